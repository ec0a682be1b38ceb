"""TIR for CUDA: what a GPU can launch, whether a kernel's threads do as they must, PTX, machine code."""

"""Functions of unknown extents on CUDA GPUs, made of kernels for pieces of known ones."""

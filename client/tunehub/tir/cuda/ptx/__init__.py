"""One wrapper of each instruction of PTX that kernels have: a function of CUDA C++ that is called by name."""

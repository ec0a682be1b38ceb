"""Products of matrices on CUDA GPUs, and convolutions as implicit GEMM."""

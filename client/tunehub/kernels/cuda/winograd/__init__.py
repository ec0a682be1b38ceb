"""Convolutions of 3×3 by Winograd's algorithm on CUDA GPUs: three kernels each, and where they are worth it."""

"""Attention on CUDA GPUs as one function each, and what is around it."""

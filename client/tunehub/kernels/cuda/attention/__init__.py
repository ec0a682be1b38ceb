"""Attention on CUDA GPUs as one kernel."""

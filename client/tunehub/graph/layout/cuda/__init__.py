"""Channels last on CUDA GPUs."""

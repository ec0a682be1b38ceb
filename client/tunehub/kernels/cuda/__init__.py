"""Schedules for CUDA GPUs: tiles by rule, what they cost, and what a GPU can launch."""

"""Convolutions as Winograd's algorithm has them, on CPUs and GPUs: where it pays, and the functions."""

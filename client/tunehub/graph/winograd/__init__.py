"""Convolutions of 3×3 by Winograd's algorithm, on CPUs: the kernel, where it is worth it, and how a module gets it."""

"""Compiled code that is kept in the cache: libraries of models, and machine code of GPU kernels."""

"""Attention over a paged cache of keys and values, for CPUs."""

"""Quantised models on CPUs: recognised in Relax, computed in integers."""

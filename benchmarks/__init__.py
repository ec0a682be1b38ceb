"""Benchmarks: ``python -m benchmarks NAME [--json]``. Each prints ratios from one run; see :mod:`benchmarks.table`."""

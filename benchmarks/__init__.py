"""Benchmarks: each module or package here is one, ``python -m benchmarks NAME``, but for ``processes``, ``random_cases``
and ``shared``, which they use. Most print rows of ratios from one run (:mod:`benchmarks.shared.table`)."""

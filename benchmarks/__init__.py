"""Benchmarks: each module or package here is one, ``python -m benchmarks NAME``, but for what they use: ``processes``,
``random_cases`` and ``shared``. Most print rows of ratios from one run (:mod:`benchmarks.shared.table`)."""

"""Tuning logs of TVM <= 0.19: distilled, imported, translated."""

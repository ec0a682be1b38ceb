"""Tuning: from a network's workloads to measured records in a work directory that can be resumed."""

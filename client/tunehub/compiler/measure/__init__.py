"""Measuring on this machine: candidates built and timed in worker processes."""

"""Attention in graphs: recognised, and made one kernel."""

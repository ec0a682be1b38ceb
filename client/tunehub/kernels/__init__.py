"""Schedules: for one PrimFunc each, which knows neither graphs nor records."""

"""Prove before use: schedules that nobody has measured on this kind of device are checked before they serve."""

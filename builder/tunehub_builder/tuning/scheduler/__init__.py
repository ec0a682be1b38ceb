"""The tuning loop: which tasks get trials, and in which order."""

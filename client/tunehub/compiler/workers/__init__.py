"""Processes in which schedules are built, run and timed, apart from the one that compiles."""

"""Functions of unknown extents on CPUs: a loop over tiles, of unknown length, around schedules of static functions."""

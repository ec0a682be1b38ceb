"""The schedule of one function, adapted to another one of other extents."""

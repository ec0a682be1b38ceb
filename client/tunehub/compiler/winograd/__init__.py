"""Modules whose convolutions are computed by Winograd's algorithm, where no record speaks against it."""

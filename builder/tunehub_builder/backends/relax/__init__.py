"""The builder on current TVM (0.25 and newer)."""

"""Products in half precision on tensor cores."""

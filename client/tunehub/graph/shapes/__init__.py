"""Open shapes: bounds, views, and functions for chosen sizes."""

"""When a time or an output counts as better, as worse, or as wrong."""

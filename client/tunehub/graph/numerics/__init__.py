"""Functions written so that they are fast, or right, where TVM's are not."""

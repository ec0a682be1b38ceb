"""The builder's commands."""

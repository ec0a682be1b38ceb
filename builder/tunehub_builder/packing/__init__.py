"""From checked records to a package."""

"""Records by key: lookups, their index, packages of records, and what their evidence says."""

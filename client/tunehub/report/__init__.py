"""What the hub did for each workload: the report, its text, profiles and the file of misses."""

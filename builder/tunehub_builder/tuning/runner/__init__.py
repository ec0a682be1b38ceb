"""Building and running candidates in worker processes and on boards."""

"""The publish gate: which records are right and faster than the default, workload by workload and end to end."""

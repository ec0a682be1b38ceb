"""Tuning on many machines: jobs on dask workers and on boards behind TVM's RPC tracker."""

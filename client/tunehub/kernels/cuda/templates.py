"""Templates for CUDA whose tiles records may name as knobs (:mod:`tunehub.kernels.cuda.knobs`), with their versions,
and the oldest TVM that some need: what an index of records knows without TVM."""

from __future__ import annotations

VERSIONS = {
    "cuda_tiles": 1,
    "split_k": 1,
    "tensor_cores": 1,
    "warpgroups": 1,
    "bulk_copies": 1,
    "low_batch": 1,
    "low_batch_direct": 1,
    "low_batch_warpgroups": 1,
}
OLDEST_TVM = {"warpgroups": (0, 27), "bulk_copies": (0, 27), "low_batch_warpgroups": (0, 27)}  # functions of CUDA C++

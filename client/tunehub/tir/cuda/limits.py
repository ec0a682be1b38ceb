"""What a CUDA GPU can launch, and whether a scheduled function keeps to it.

A kernel that asks for more than the device has compiles without a word and fails when it is launched. A record is
therefore held to the limits that every GPU from compute capability 8.0 on shares, and to the device's own where these
are tighter. Registers need no rule here: TVM states the number of threads of a block in ``__launch_bounds__``, and the
assembler keeps to the registers that so many threads may have.
Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tunehub.target.gpu_architectures import ASKED_BYTES, FEWEST_ASKED_BYTES, SM_80, LaunchLimits
from tunehub.tir.nodes import buffer_kind, extent_or_one, statements_in

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Attrs, PackedFunc, PrimFunc

MOST_LOCAL_BYTES = 16 << 10
_PREFIX = {"threadIdx": "block", "blockIdx": "grid"}


def limits_of(target: Target) -> LaunchLimits:
    """The limits for ``target``: those of sm_80, or what the target itself states where that is less."""
    attrs: Attrs = target.attrs
    threads = [int(attrs[name]) for name in ("max_threads_per_block", "max_num_threads") if attrs.get(name)]
    shared = attrs.get("max_shared_memory_per_block")
    return LaunchLimits(
        threads=min([SM_80.threads, *threads]),
        shared_memory=min(SM_80.shared_memory, int(shared)) if shared else SM_80.shared_memory,
        asked_shared_memory=ASKED_BYTES.get(str(attrs.get("arch", "")).rstrip("af"), SM_80.asked_shared_memory),
    )


def excess_threads(threads: Mapping[str, int], limits: LaunchLimits) -> str | None:
    """Why blocks or the grid are too large, or None. ``threads``: the extent by thread tag, as ``threadIdx.x``."""
    count = 1
    for tag, extent in threads.items():
        what = _PREFIX.get(tag.partition(".")[0])
        if what is None:
            continue
        most = getattr(limits, what)["xyz".index(tag[-1])]
        if extent > most:
            return f"{tag} has {extent} values, more than {most}"
        count *= extent if what == "block" else 1
    return f"a block has more than {limits.threads} threads" if count > limits.threads else None


def excess_shared_memory(lowered: PrimFunc, limits: LaunchLimits) -> str | None:
    """Why the kernels of a function take too much shared memory, or None.

    ``lowered``: as :func:`tunehub.tir.cuda.lowering.lowered` gives it, or `tvm.lower` of TVM up to 0.19. How much they
    take shows only once TVM has cut every buffer down to the part that a block uses. Where so much of it is dynamic
    that TVM asks for it at the launch, there may be more.
    """
    most = limits.asked_shared_memory if _dynamic_bytes(lowered) >= FEWEST_ASKED_BYTES else limits.shared_memory
    if _verify_gpu_code()(lowered, {"max_shared_memory_per_block": most}):
        return None
    return f"a block takes more than {most} bytes of shared memory"


def excess_local_memory(lowered: PrimFunc) -> str | None:
    """Why a thread takes too much memory of its own, or None; ``lowered`` as for :func:`excess_shared_memory`.

    A GPU sets it aside for all threads that it can run at once, 270,000 on an H200, and has at most 512 KiB of it a
    thread: beyond, kernels cannot be launched.
    """
    if _verify_gpu_code()(lowered, {"max_local_memory_per_block": MOST_LOCAL_BYTES}):  # TVM's "block" is a thread
        return None
    return f"a thread takes more than {MOST_LOCAL_BYTES} bytes of its own"


def _dynamic_bytes(lowered: PrimFunc) -> int:
    """Of dynamic shared memory; 0 for functions of TVM up to 0.19, which have other nodes."""
    allocated = (node.buffer for node in statements_in(lowered.body) if type(node).__name__ == "AllocBuffer")
    kinds = [buffer_kind(buffer) for buffer in allocated if str(buffer.scope()) == "shared.dyn"]
    return sum(np.dtype(str(kind.dtype)).itemsize * math.prod(map(extent_or_one, kind.shape)) for kind in kinds)


def _verify_gpu_code() -> PackedFunc:
    """TVM's analysis, where it is since 0.25 or up to 0.19."""
    try:
        from tvm.s_tir import analysis
    except ImportError:
        from tvm.tir import analysis
    return analysis.verify_gpu_code

"""What the functions of this folder do to memory, which checks and emulators of kernels read."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES, WARPGROUP

_COMPUTING = (
    *("nearest", "nearest_byte", "nearest_signed_byte", "quotient"),
    *("table_element", "signed_table_element", "set_table_element"),
)


class Effect(NamedTuple):
    """What a function does to memory: ``words`` of 4 bytes that it reads of each operand, ``accumulators`` that
    each of the ``threads`` has that do it together. ``waits``: all threads of a block wait in it, and ``of_cluster``
    those of all its blocks. ``blocks``: of a cluster, whose memory it reads."""

    kind: Literal["copy", "round", "multiply", "finish", "cluster_sum", "compute", "none"]
    waits: bool = False
    words: tuple[int, ...] = ()
    accumulators: int = 0
    of_cluster: bool = False
    blocks: int = 1
    threads: int = WARPGROUP

    @staticmethod
    def of(name: str) -> Effect | None:
        """Of one of these functions; None for another one."""
        found = re.fullmatch(r"tunehub_([a-z_]+)(?:_(\d+))?(?:_(\d+))?(?:_[\d_]+)?", name)
        if found is None:
            return None
        kind, first, second = found[1].rstrip("_"), int(found[2] or 0), int(found[3] or 0)
        known = {
            "copy": Effect("copy"),
            "copies_end": Effect("none"),
            "copies_landed": Effect("none"),
            "round": Effect("round"),
            "copies_arrived": Effect("none", waits=True),
            "wgmma": Effect(
                "multiply",
                words=(first * (ROW_BYTES // 4), second * (ROW_BYTES // 4)),
                accumulators=first * second // 128,
            ),
            "wgmma_bytes": Effect(
                "multiply",
                words=(first * (ROW_BYTES // 4), second * (ROW_BYTES // 4)),
                accumulators=first * second // 128,
            ),
            **dict.fromkeys(_COMPUTING, Effect("compute")),
            "copies_met": Effect("none", waits=True),
            "mma": Effect(
                "multiply",
                words=(first * (ROW_BYTES // 4), second * (ROW_BYTES // 4)),
                accumulators=first * second // WARP,
                threads=WARP,
            ),
            "wgmma_done": Effect("none"),
            "wgmma_finished": Effect("finish", accumulators=first),
            "cluster_waited": Effect("none", waits=True, of_cluster=True),
            "cluster_sum": Effect("cluster_sum", accumulators=4, blocks=first),
        }
        return known.get(kind)

"""Schedules for GPUs, run on a CPU: threads become loops. TVM's JSON is rewritten: its parser would take longer."""

from __future__ import annotations

import json
import re
from typing import Any

from tunehub.tir.versions import PARALLEL, SERIAL, THREAD_BINDING, UNROLLED, VECTORIZED

_KINDS = (SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD_BINDING)


def threads_as_loops(mod: Any, *, scopes: str = "local", all_loops: bool = False) -> Any:
    """``mod`` with plain loops in place of threads, and buffers in global memory whose scope matches ``scopes``.

    ``all_loops``: also in place of vectorized and unrolled loops.
    """
    import tvm

    graph = json.loads(tvm.ir.save_json(mod))
    nothing = next(number for number, node in enumerate(graph["nodes"]) if node["type"] == "None")
    for node in graph["nodes"]:
        if node["type"] == "tirx.For" and node["data"]["kind"] in (_KINDS if all_loops else (THREAD_BINDING,)):
            node["data"] |= {"kind": SERIAL, "thread_binding": nothing}
        elif node["type"] == "ffi.String" and re.fullmatch(scopes, node["data"]):
            node["data"] = "global"
    return tvm.ir.load_json(json.dumps(graph))

"""TVM's kernels of a paged cache, written once a process: parsing those of one model takes it two seconds of CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from types import FunctionType
from typing import Any

_PLAIN = (int, float, str, dict, type(None))


@cache
def cache_kernels_written_once() -> None:
    """From now on TVM gives the same function where it is asked for a kernel by the same numbers and types."""
    from tvm.relax.frontend.nn.llm import kv_cache

    for name, each in list(vars(kv_cache).items()):
        if isinstance(each, FunctionType) and ("_attention_" in name or "tree_attn" in name or "_kv_" in name):
            setattr(kv_cache, name, _once(each))


def _once(write: Callable[..., Any]) -> Callable[..., Any]:
    import tvm

    written: dict[str, Any] = {}

    @wraps(write)
    def once(*given: Any, **named: Any) -> Any:
        values = (*given, *named.values())
        if not all(isinstance(each, (*_PLAIN, tvm.target.Target)) for each in values):
            return write(*given, **named)
        key = repr([each.export() if isinstance(each, tvm.target.Target) else each for each in (*values, *named)])
        if key not in written:
            written[key] = write(*given, **named)
        return written[key]

    return once

"""What TVM makes again and again of the same, made once a process: kernels of a paged cache, whose parsing takes two
seconds of CPU for each model, and machine code of functions that are equal."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from types import FunctionType
from typing import Any

_LIBRARIES = 100  # that are kept: of some MB each
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


@cache
def machine_code_made_once() -> None:
    """From now on functions for CPUs that are the same as before are the library that they were before. What is made
    of them for a GPU, too, is made anew: it becomes part of the library of its host."""
    import tvm
    from tvm_ffi import structural_hash

    build = import_module("tvm.tirx.build")
    generate = build.tir_to_runtime
    made: dict[Any, Any] = {}

    @wraps(generate)
    def once(host: Any, devices: Any, target: Any) -> Any:
        if any(len(each.functions) for each in devices.values()):
            return generate(host, devices, target)
        config = tvm.transform.PassContext.current().config
        key = (structural_hash(host), str(target.export()), str(sorted(map(str, config.items()))))
        if key not in made:
            if len(made) == _LIBRARIES:
                made.pop(next(iter(made)))
            made[key] = generate(host, devices, target)
        return made[key]

    build.tir_to_runtime = once

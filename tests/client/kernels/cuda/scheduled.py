"""Functions scheduled for CUDA in each way that there is: by published records, the rule, dlight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op
from tvm.s_tir import dlight

import tunehub
from tunehub.compiler.preparing import prepare
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.tir.nodes import is_static, main_module, tensor_class

H200 = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "model": "h200",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    }
)
ROOT = Path(__file__).parents[4]  # the registry that comes with tunehub
_RULES = (
    dlight.gpu.Matmul(),
    dlight.gpu.GEMV(),
    dlight.gpu.Reduction(),
    dlight.gpu.GeneralReduction(),
    dlight.gpu.Fallback(),
)
_Tensor = tensor_class()
Case = tuple[Callable[..., Any], str, tuple[tuple[int, ...], ...]]


def _dense(data: Any, weight: Any, bias: Any) -> Any:
    return op.add(op.matmul(data, weight), bias)


def _convolution(**options: Any) -> Callable[..., Any]:
    def build(data: Any, weight: Any, bias: Any) -> Any:
        return op.nn.relu(op.add(op.nn.conv2d(data, weight, **options), bias))

    return build


CASES: dict[str, Case] = {
    "matmul": (_dense, "float32", ((1, 128, 768), (768, 768), (768,))),
    "matmul of odd rows": (_dense, "float32", ((1, 197, 384), (384, 1152), (1152,))),
    "matmul of other extents": (_dense, "float32", ((1, 96, 512), (512, 384), (384,))),
    "convolution": (_convolution(), "float32", ((1, 512, 7, 7), (2048, 512, 1, 1), (1, 2048, 1, 1))),
    "3x3": (_convolution(padding=1), "float32", ((1, 48, 27, 27), (96, 48, 3, 3), (1, 96, 1, 1))),
    "depthwise": (_convolution(padding=1, groups=96), "float32", ((1, 96, 56, 56), (96, 1, 3, 3), (1, 96, 1, 1))),
    "half precision": (_dense, "float16", ((1, 128, 768), (768, 768), (768,))),
    "vector": (_dense, "float32", ((1, 1024), (1024, 1000), (1000,))),
    "softmax": (lambda data: op.nn.softmax(data, axis=-1), "float32", ((1, 12, 64, 128),)),
    "layer norm": (
        lambda data, scale, bias: op.nn.layer_norm(data, scale, bias, axes=[-1]),
        "float32",
        ((1, 64, 768), (768,), (768,)),
    ),
}


def scheduled_functions(*names: str) -> Iterator[tuple[str, Any, Any]]:
    """What serves each case, ``case: rung``, the function, and its schedule; ``names``: the cases, else all."""
    with tunehub.context(H200, require="cuda-h200", registry=[str(ROOT)]) as hub:
        pass
    for name in names or CASES:
        for function in _functions(*CASES[name]):
            with H200:
                outcome, scheduled = schedule_function(function, H200, hub.lookup)
            if scheduled is None:
                yield f"{name}: dlight", function, _by_dlight(function)
            else:
                yield f"{name}: {outcome.rung}", function, scheduled


def _functions(build: Callable[..., Any], dtype: str, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    variables = [relax.Var(f"v{number}", _Tensor(shape, dtype)) for number, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*variables)))
        builder.emit_func_output(result)
    with H200:
        found = prepare(builder.get(), H200).functions.values()
    return [each for each in found if isinstance(each, tvm.tirx.PrimFunc) and is_static(each)]


def _by_dlight(function: Any) -> Any:
    with H200:
        return dlight.ApplyDefaultSchedule(*_RULES)(main_module(function))["main"]

"""Kernels that are started before the last one has ended: what TVM makes of them. No GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import relax, te
from tvm.tirx.build import split_host_device_mods
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

import tunehub
from tunehub.compiler.cuda.dependent_launch import with_dependent_launches
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.lowering import PIPELINE
from tunehub.tir.nodes import main_module, tensor_class

from ...kernels.cuda.scheduled import H200, ROOT

pytestmark = pytest.mark.slow

_KERNEL = re.compile(r"__global__ void [^;{]*\{\s*([^;]*;)")
_WAIT = "tunehub_after_the_kernel_before();"


def _function() -> Any:
    """Two kernels, the second of which reads what the first has written."""
    data = te.placeholder((64,), name="data")
    first = te.compute((64,), lambda i: data[i] + 1.0, name="first")
    second = te.compute((64,), lambda i: first[63 - i] * 2.0, name="second")
    schedule = tvm.s_tir.Schedule(main_module(te.create_prim_func([data, second])))
    for name in ("first", "second"):
        blocks, threads = schedule.split(schedule.get_loops(schedule.get_sblock(name))[0], [None, 32])
        schedule.bind(blocks, "blockIdx.x")
        schedule.bind(threads, "threadIdx.x")
    return schedule.mod["main"].with_attr("global_symbol", "main")


def _lowered(target: Any) -> tuple[Any, str]:
    """The kernels of the function for ``target``, and their source."""
    whole = tvm.target.Target(target, host="llvm")
    lower, _, finalize = with_dependent_launches(PIPELINE_MAP[PIPELINE])()
    with whole:
        mod = lower(main_module(_function().with_attr("target", whole)))
    _, devices = split_host_device_mods(mod)
    ((own, kernels),) = devices.items()
    finished = finalize()(kernels)
    return finished, str(tvm.get_global_func("target.build.cuda")(finished, own).inspect_source())


def test_each_kernel_waits_first_and_is_launched_so() -> None:
    kernels, source = _lowered(H200)
    tags = [[str(tag) for tag in each.attrs["tirx.kernel_launch_params"]] for each in kernels.functions.values()]
    assert [tag.count("tirx.use_programtic_dependent_launch") for tag in tags] == [1, 1]
    assert _KERNEL.findall(source) == [_WAIT] * 2
    assert source.count("griddepcontrol.wait") == 1 and "griddepcontrol.launch_dependents" not in source


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_a_gpu_without_them_has_none(arch: str) -> None:
    kernels, source = _lowered(tvm.target.Target({**dict(H200.attrs.items()), "kind": "cuda", "arch": arch}))
    assert len(_KERNEL.findall(source)) == 2 and "griddepcontrol" not in source
    assert "programtic" not in str(kernels)


def test_a_compile_through_the_hub_has_them_and_one_without_has_not() -> None:
    x, builder = relax.Var("x", tensor_class()((64, 100), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.softmax(builder.emit(relax.op.nn.relu(x))))
        builder.emit_func_output(result)
    with tunehub.context(H200, registry=[str(ROOT)], verify="never"):
        sources = _sources(tvm.compile(builder.get(), H200).mod)
    assert _WAIT not in "".join(_sources(tvm.compile(builder.get(), H200).mod))
    first = [statement for source in sources for statement in _KERNEL.findall(source)]
    assert first and set(first) == {_WAIT}


def test_a_kernel_of_the_copy_engine_waits_before_it_asks_for_anything() -> None:
    """What it knows of operands is an argument of the launch, which no kernel has written."""
    x, w = (relax.Var(name, tensor_class()((extent, 2048), "float16")) for name, extent in (("x", 1024), ("w", 4096)))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, builder.emit(relax.op.permute_dims(w))))
        builder.emit_func_output(result)
    with tunehub.context(H200, registry=[str(ROOT)], verify="never"):
        source = "".join(_sources(tvm.compile(builder.get(), H200).mod))
    assert "cp.async.bulk.tensor" in source and _KERNEL.findall(source) == [_WAIT]


def _sources(mod: Any) -> list[str]:
    return [source_of(mod), *(source for part in mod.imports for source in _sources(part))]

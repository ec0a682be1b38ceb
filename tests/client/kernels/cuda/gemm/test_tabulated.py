"""Functions of bytes between two roundings as tables, and numbers that are loaded once: run by a GPU of NumPy, followed
by the static check, and as CUDA source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.gemm.ampere import rule as by_warps
from tunehub.kernels.cuda.gemm.ampere.tiles import WarpTile
from tunehub.kernels.cuda.gemm.hopper import eight_bits
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.tir.cuda import nvrtc
from tunehub.tir.cuda.check import fault
from tunehub.tir.nodes import buffer_shapes

from ..scheduled import H200
from .hopper.bulk_emulator import run_bulk
from .hopper.emulator import run

pytestmark = pytest.mark.slow

LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
TILES = {
    "warps": WarpTile(warps=(1, 2), rows=32, columns=32, stages=3),
    "warpgroups": WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=3),
    "bulk": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3),
    "bulk, K divided": BulkTile(groups=(2, 1), rows=64, columns=64, stages=3, cluster=2),
}


def _layer(inner: str = "uint8", outer: str = "uint8", *, costly: bool = True, added: bool = False) -> Any:
    """What a quantised layer is: zero points and scales of tensors are parameters."""
    rows, columns, depth = 70, 64, 336
    a, b = te.placeholder((rows, depth), "uint8", "a"), te.placeholder((columns, depth), "int8", "b")
    of_columns, other = te.placeholder((columns,), name="s"), te.placeholder((rows, columns), "uint8", name="other")
    scale, zero = te.placeholder((1,), name="scale"), te.placeholder((1,), inner, name="zero")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k].astype("int32") * b[j, k].astype("int32"), axis=k), "c")

    def rounded(x: Any, kind: str, own: Any) -> Any:
        low, high = (tirx.const(float(each), "float32") for each in LIMITS[kind])
        return te.min(te.max(te.round(x) + own, low), high).astype(kind)

    def first(i: Any, j: Any) -> Any:
        return rounded(c[i, j].astype("float32") * of_columns[j], inner, zero[0].astype("float32"))

    first = te.compute(c.shape, first, "first")

    def value(i: Any, j: Any) -> Any:
        real = (first[i, j].astype("float32") - zero[0].astype("float32")) * scale[0]
        real = real * te.exp(real) if costly else real
        real = real + other[i, j].astype("float32") if added else real
        return rounded(real * tirx.const(20, "float32"), outer, tirx.const(3, "float32"))

    out = te.compute(c.shape, value, "out")
    inputs = [a, b, of_columns, scale, zero, *([other] if added else []), out]
    return tvm.IRModule({"main": te.create_prim_func(inputs, index_dtype_override="int64")})


def _kernel(mod: Any, tile: Any) -> Any:
    rule: Any = by_warps if isinstance(tile, WarpTile) else eight_bits
    workload = rule.match(mod, H200)
    assert workload is not None
    return rule.build(workload, tile).mod["main"]


def _arrays(mod: Any) -> list[Any]:
    rng, found = np.random.default_rng(0), []
    for shape, dtype in buffer_shapes(mod["main"]):
        if dtype == "float32":
            found.append(np.full(shape, 0.03, dtype) if shape == (1,) else rng.uniform(1e-3, 1e-2, shape).astype(dtype))
        else:
            low, high = (90, 110) if shape == (1,) else LIMITS[dtype]
            found.append(rng.integers(low, high, shape, endpoint=True).astype(dtype))
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize(("inner", "outer"), [("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.few(4)
def test_elements_of_a_table_are_what_was_computed(name: str, inner: str, outer: str) -> None:
    mod, tile = _layer(inner, outer), TILES[name]
    written, arrays = _kernel(mod, tile), _arrays(mod)
    assert "table" in written.script()
    run_bulk(written, *arrays, seed=0) if isinstance(tile, BulkTile) else run(written, *arrays)
    own = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(mod, "llvm")(*own)
    assert len(np.unique(arrays[-1])) > 10
    apart = np.abs(arrays[-1].astype(int) - own[-1].numpy())  # another exp
    assert apart.max() <= 1 and (apart > 0).mean() < 0.01


@pytest.mark.parametrize("name", ["warps", "warpgroups"])
def test_nothing_is_wrong_with_a_table(name: str) -> None:
    assert fault(_kernel(_layer(), TILES[name]), H200) is None


@pytest.mark.parametrize("options", [{"costly": False}, {"added": True}], ids=["cheap", "of another tensor, too"])
def test_what_is_no_costly_function_of_bytes_is_computed(options: dict[str, bool]) -> None:
    assert "table" not in _kernel(_layer(**options), TILES["warps"]).script()


@pytest.mark.parametrize("name", TILES)
@pytest.mark.few(2)
def test_zero_points_that_are_parameters_become_cuda_source(name: str) -> None:
    for options, known in (({}, "= tunehub_table_element("), ({"costly": False, "added": True}, "number")):
        kernel = tvm.IRModule({"main": _kernel(_layer(**options), TILES[name])})
        with tvm.transform.PassContext(opt_level=3, config={"tirx.disable_cse_tir": True}):  # as a compile has it
            source = nvrtc.source_of(tvm.tirx.build(kernel, target=H200))
        assert known in source
        assert "__shared__" not in source.replace("extern __shared__", "")  # it would move operands, which are swizzled

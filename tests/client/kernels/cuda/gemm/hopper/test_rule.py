"""Which products get a kernel for warpgroups, and how TVM compiles it. No GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tunehub.tir.cuda.ptx.effects import Effect
from tunehub.tir.cuda.ptx.wgmma import ARCHITECTURE, WARPGROUPS

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
import tvm_ffi

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm.hopper import rule
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.cost import bulk_counts, counts, seconds
from tunehub.kernels.cuda.gemm.hopper.tiles import suits, tiles
from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.cuda import nvrtc
from tunehub.tir.cuda.check import fault

from ...scheduled import H200
from ..half_products import every_other_row, half_conv, half_product

pytestmark = pytest.mark.slow
DEVICE = default_device()
_CALLBACK = "tvm_callback_cuda_compile"


def _linear(rows: int, columns: int, depth: int) -> Any:
    return half_product(1, rows, columns, depth, transposed=(False, True))


def _is_of_warpgroups(found: Any) -> bool:
    return isinstance(found[0], rule.WarpgroupSchedule)


def _serves_by_warpgroups(mod: Any) -> bool:
    """What the ladder serves, which is a kernel for tensor cores in any case."""
    outcome, _ = schedule_function(mod["main"], H200, EmptyLookup())
    assert outcome.served is not None and outcome.served.template == "tensor_cores"
    return isinstance(outcome.schedule, rule.WarpgroupSchedule)


def test_a_large_product_is_served_by_warpgroups_and_compiled_for_their_architecture() -> None:
    mod = _linear(1024, 6144, 4096)
    outcome, scheduled = schedule_function(mod["main"], H200, EmptyLookup())
    served = outcome.served
    assert served is not None and (served.rung, served.template) == ("template", "tensor_cores")
    assert str(scheduled.attrs["target"].attrs["arch"]) == ARCHITECTURE
    assert served.predicted_s == rule.expected_s(matmul_of(mod), H200)
    source = nvrtc.source_of(tvm.tirx.build(tvm.IRModule({"main": scheduled}), target=H200))
    assert "wgmma.mma_async" in source and "cp.async.bulk.tensor" in source


def test_operands_that_the_copy_engine_cannot_take_are_copied_otherwise() -> None:
    """Every other row of a larger matrix, which counts say nothing of."""
    mod = every_other_row(2048, 2048, 2048)
    matmul = matmul_of(mod)
    assert isinstance(rule.best(matmul, DEVICE)[0][1], BulkTile)
    schedule, own_s = by_one(rule, mod, H200) or pytest.fail("nothing serves")
    assert "cp.async.cg" in str(schedule.mod) and "cp.async.bulk" not in str(schedule.mod)
    assert own_s == min(seconds(matmul, tile, DEVICE) for tile in tiles(matmul))


def test_what_serves_has_been_checked() -> None:
    found = by_one(rule, _nhwc_of(64), H200)
    assert found is not None and _is_of_warpgroups(found)
    assert fault(found[0].mod["main"].without_attr("target"), H200) is None


def _nhwc_of(channels: int) -> Any:
    from tvm import te, topi

    x = te.placeholder((8, 28, 28, channels), "float16", name="x")
    w = te.placeholder((3, 3, channels, 128), "float16", name="w")
    y = topi.nn.conv2d_nhwc(x, w, 1, 1, 1, out_dtype="float32")
    z = te.compute(y.shape, lambda *i: y(*i).astype("float16"), name="half")
    return tvm.IRModule({"main": te.create_prim_func([x, w, z], index_dtype_override="int64")})


def test_other_gpus_and_tvms_are_served_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = _linear(1024, 1024, 1024)
    matmul = matmul_of(mod)
    assert rule.expected_s(matmul, tvm.target.Target({"kind": "cuda", "arch": "sm_80"})) is None
    assert rule.expected_s(matmul, H200) is not None
    monkeypatch.setattr(rule, "has_functions", lambda: False)
    assert rule.expected_s(matmul, H200) is None
    assert by_one(rule, mod, H200) is None
    assert not _serves_by_warpgroups(mod)


@pytest.mark.parametrize("mod", [half_conv(14, 64, 64, 3, 1), half_product(1, 64, 64, 60, transposed=(False, True))])
def test_operands_without_rows_of_16_bytes_do_not_suit(mod: Any) -> None:
    matmul = matmul_of(mod)
    assert matmul is not None and not suits(matmul)


def test_a_kernel_that_would_be_wrong_leaves_the_function_to_the_other_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(rule, "build", refused)
    mod = _linear(1024, 1024, 1024)
    assert not _serves_by_warpgroups(mod)
    outcome, _ = schedule_function(mod["main"], H200, EmptyLookup())
    assert "a fault" in [item.reason for item in outcome.rejected], "the report says so"


def test_waves_and_waiting_are_counted() -> None:
    matmul = matmul_of(_linear(1024, 6144, 4096))
    assert matmul is not None
    tile = next(t for t in tiles(matmul) if t.block == (128, 256) and t.stages == 4 and t.groups == (2, 1))
    found = counts(matmul, tile, DEVICE)
    assert (found["rounds"], found["steps"], found["waits"]) == (2, 128, 64)  # 192 blocks on 132 multiprocessors


@pytest.mark.parametrize(("columns", "k"), [(4096, 4096), (3584, 18944)])
def test_a_product_of_256_rows_is_computed_at_once(columns: int, k: int) -> None:
    """32 clusters of four blocks took twice as long as 28: there are places for 30."""
    matmul = matmul_of(_linear(256, columns, k))
    best = rule.best(matmul, DEVICE)[0][1]
    assert isinstance(best, BulkTile) and bulk_counts(matmul, best, DEVICE)["rounds"] == 1
    divided = BulkTile(groups=(2, 1), rows=64, columns=256, stages=4, cluster=4)
    assert bulk_counts(matmul_of(_linear(256, 4096, 4096)), divided, DEVICE)["rounds"] == 2


def test_effects_are_known_by_the_names_of_functions() -> None:
    assert Effect.of("tunehub_wgmma_128_64_0_8192_8192_2") == Effect("multiply", words=(4096, 2048), accumulators=64)
    assert Effect.of("tunehub_copies_arrived_2") == Effect("none", waits=True)
    assert Effect.of("tunehub_cluster_sum_4") == Effect("cluster_sum", accumulators=4, blocks=4)
    assert Effect.of("tunehub_other") is None and Effect.of("printf") is None


def test_their_source_is_compiled_for_their_architecture_whatever_target_is_around() -> None:
    seen = []

    def compiled(_code: Any, *_rest: Any) -> bytearray:
        seen.append(str(tvm.target.Target.current().attrs["arch"]))
        return bytearray()

    before = tvm_ffi.get_global_func(_CALLBACK)
    try:
        tvm_ffi.register_global_func(_CALLBACK, compiled, override=True)
        nvrtc.compile_for_warpgroups()
        once = tvm_ffi.get_global_func(_CALLBACK)
        nvrtc.compile_for_warpgroups()
        assert tvm_ffi.get_global_func(_CALLBACK).same_as(once)
        with H200:
            for code in (f"void {WARPGROUPS}_1() {{}}", "void other() {}"):
                tvm_ffi.get_global_func(_CALLBACK)(code)
    finally:
        tvm_ffi.register_global_func(_CALLBACK, before, override=True)
    assert seen == [ARCHITECTURE, "sm_90"]
    assert nvrtc.own_architecture(f"{WARPGROUPS}_1", "sm_90") == "sm_90a"
    assert nvrtc.own_architecture("other", "sm_90") == "sm_90"

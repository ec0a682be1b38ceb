"""Schedules for CUDA by rule: outputs by running all threads one after the other, legality, and what is left to TVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, topi

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm import tiles as cuda_tiles
from tunehub.kernels.cuda.gemm.cost import Term
from tunehub.kernels.cuda.gemm.rule import NoTileError, Tile, ranked
from tunehub.kernels.cuda.gemm.tiles import one_thread_each, reduction_block_of, tiled
from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup, Measured
from tunehub.report.ladder import StepRejected
from tunehub.tir.guard import GuardError, check_exact, check_function, check_tiles
from tunehub_registry.evidence import RecordEvidence

from ....compiler.outputs import difference, one_after_the_other
from .tensor_core.products import narrow_conv

pytestmark = pytest.mark.slow
DEVICE = default_device()

TARGET = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
)
H200 = tvm.target.Target({**{str(name): value for name, value in TARGET.export().items()}, "arch": "sm_90"})
LIMITS = {"shared_memory": 49152, "threads": 1024}


def _module(*tensors: Any) -> Any:
    return tvm.IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def _conv(
    channels: int,
    size: int,
    outputs: int,
    kernel: int,
    *,
    groups: int = 1,
    stride: int = 1,
    batch: int = 1,
    dtype: str = "float32",
) -> Any:
    """A convolution with padding, bias and ReLU."""
    data = te.placeholder((batch, channels, size, size), dtype, name="data")
    weight = te.placeholder((outputs, channels // groups, kernel, kernel), dtype, name="weight")
    bias = te.placeholder((1, outputs, 1, 1), dtype, name="bias")
    if groups == 1:
        sums = topi.nn.conv2d(data, weight, stride, kernel // 2, 1)
    else:
        sums = topi.nn.group_conv2d_nchw(data, weight, stride, kernel // 2, 1, groups)
    return _module(data, weight, bias, topi.nn.relu(topi.add(sums, bias)))


def _attention(heads: int, rows: int, width: int) -> Any:
    """Scores of queries and keys, heads behind tokens, scaled."""
    query, key = (te.placeholder((1, rows, heads, width), name=name) for name in ("query", "key"))
    first, second = topi.transpose(query, [0, 2, 1, 3]), topi.transpose(key, [0, 2, 3, 1])
    return _module(query, key, topi.multiply(topi.nn.matmul(first, second), 0.125))


def _context(heads: int, rows: int, width: int) -> Any:
    """What attention weights make of values, heads behind tokens again."""
    weight = te.placeholder((1, heads, rows, rows), name="weight")
    value = te.placeholder((1, rows, heads, width), name="value")
    sums = topi.nn.matmul(weight, topi.transpose(value, [0, 2, 1, 3]))
    return _module(weight, value, topi.reshape(topi.transpose(sums, [0, 2, 1, 3]), (1, rows, heads * width)))


def _product(rows: int, depth: int, columns: int, epilogue: str) -> Any:
    first, second = te.placeholder((rows, depth), name="first"), te.placeholder((depth, columns), name="second")
    sums = topi.nn.matmul(first, second)
    if epilogue == "none":
        return _module(first, second, sums)
    if epilogue == "branches":  # as gelu: the sum is read more than once
        return _module(first, second, topi.multiply(sums, topi.sigmoid(topi.add(sums, topi.nn.relu(sums)))))
    bias = te.placeholder((columns,), name="bias")
    return _module(first, second, bias, topi.add(sums, bias))


def _pool(channels: int, size: int, kernel: int) -> Any:
    data = te.placeholder((1, channels, size, size), name="data")
    return _module(data, topi.nn.pool2d(data, (kernel, kernel), (1, 1), (1, 1), (1, 1, 1, 1), "avg"))


def _bytes_depthwise(channels: int, size: int, kernel: int) -> Any:
    """A depthwise convolution of padded unsigned bytes with channels last, and signed ones as weights."""
    data = te.placeholder((1, size, size, channels), "uint8", name="data")
    weight = te.placeholder((kernel, kernel, channels), "int8", name="weight")
    pad = kernel // 2
    padded = topi.nn.pad(data, (0, pad, pad, 0), (0, pad, pad, 0), te.const(3, "uint8"))
    i, j = (te.reduce_axis((0, kernel), name=name) for name in "ij")
    sums = te.compute(
        data.shape,
        lambda n, y, x, c: te.sum(
            padded[n, y + i, x + j, c].astype("int32") * weight[i, j, c].astype("int32"), axis=[i, j]
        ),
        name="sums",
    )
    return _module(data, weight, te.compute(sums.shape, lambda *at: (sums(*at) * 3).astype("float32"), name="out"))


CASES = {
    "window": lambda: _conv(16, 8, 16, 3),
    "strided": lambda: _conv(8, 14, 24, 3, stride=2),
    "batch": lambda: _conv(8, 7, 16, 1, batch=2),
    "groups": lambda: _conv(24, 7, 36, 3, groups=3),
    "depthwise": lambda: _conv(32, 9, 32, 5, groups=32),
    "depthwise of bytes": lambda: _bytes_depthwise(32, 9, 3),
    "primes": lambda: _conv(7, 13, 11, 3),
    "few outputs in half precision": narrow_conv,
    "plain product": lambda: _product(32, 48, 40, "none"),
    "branching epilogue": lambda: _product(32, 48, 40, "branches"),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(3)
def test_tiles_compute_what_the_function_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_tiles, "UNROLLED", 1)  # LLVM takes seconds for long straight code
    mod = CASES[name]()
    reducing = reduction_block_of(mod, narrow=True)
    assert reducing is not None and reducing.problem is not None
    tiles = ranked(reducing.problem, DEVICE, count=200, **LIMITS)
    for tile in (tiles[0], tiles[len(tiles) // 2]):
        scheduled = tiled(mod, reducing, tile).mod
        check_exact(scheduled["main"])
        check_function(scheduled["main"], mod["main"], TARGET)
        assert difference(one_after_the_other(scheduled), mod) < 1e-4


COVERED = {
    "rows": lambda: _product(61, 48, 64, "bias"),
    "rows and columns": lambda: _product(37, 32, 53, "branches"),
    "all": lambda: _product(37, 29, 41, "none"),
    "scores": lambda: _attention(3, 37, 16),
    "context": lambda: _context(3, 37, 16),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", COVERED)
@pytest.mark.few(2)
def test_tiles_that_go_beyond_the_ends_compute_what_the_function_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_tiles, "UNROLLED", 1)
    mod = COVERED[name]()
    reducing = reduction_block_of(mod)
    assert reducing is not None and reducing.problem is not None and reducing.einsum
    tiles = ranked(reducing.problem, DEVICE, count=200, covering=True, **LIMITS)
    extents = (*reducing.spatial, *reducing.reduction)
    uneven = [tile for tile in tiles if any(e % c for e, c in zip(extents, tile.lengths, strict=True))]
    for tile in (uneven[0], uneven[len(uneven) // 2]):
        scheduled = tiled(mod, reducing, tile).mod
        check_tiles(scheduled["main"])
        check_function(scheduled["main"], mod["main"], TARGET)
        assert difference(one_after_the_other(scheduled), mod) < 1e-4


def test_a_product_of_prime_rows_gets_a_tile() -> None:
    outcome, scheduled = schedule_function(_product(197, 384, 1152, "bias")["main"], TARGET, EmptyLookup())
    assert (outcome.rung, outcome.rejected) == ("template", ())
    assert scheduled is not None and "T.if_then_else" in scheduled.script()


def test_virtual_threads_and_several_elements_of_a_thread() -> None:
    mod = _product(64, 32, 64, "none")
    reducing = reduction_block_of(mod)
    assert reducing is not None and reducing.problem is not None
    tile = Tile(virtual=(1, 2), threads=(8, 4), inner=(4, 2), step=(8,), expected_s=0.0)
    scheduled = tiled(mod, reducing, tile).mod
    check_function(scheduled["main"], mod["main"], TARGET)
    assert difference(one_after_the_other(scheduled), mod) < 1e-4


def test_a_mean_of_windows_gets_a_thread_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = _pool(3, 11, 3)
    reducing = reduction_block_of(mod)
    assert reducing is not None and reducing.problem is None
    scheduled = one_thread_each(mod, reducing).mod
    check_function(scheduled["main"], mod["main"], TARGET)
    assert difference(one_after_the_other(scheduled), mod) < 1e-5
    with pytest.raises(NoTileError, match="several threads for each result"):
        by_one(cuda_tiles, mod, TARGET)
    monkeypatch.setattr(cuda_tiles, "FEWEST_WINDOWS", 1)
    found = by_one(cuda_tiles, mod, TARGET)
    assert found is not None and found[1] is None


@pytest.mark.parametrize(
    ("spatial", "threads"),
    [((4, 32, 32), 256), ((3, 11, 11), 33), ((16, 16, 16), 128), ((3, 28, 28), 147), ((61, 53, 53), 61)],
)
def test_threads_fill_warps_and_leave_no_remainder(spatial: tuple[int, ...], threads: int) -> None:
    assert cuda_tiles._threads_without_remainder(spatial) == threads


def test_primes_of_windows_are_left_to_tvm() -> None:
    with pytest.raises(NoTileError, match="no block of 32 to 256 threads divides 7919"):
        cuda_tiles._threads_without_remainder((1, 7919))


def test_indices_are_read_as_terms() -> None:
    reducing = reduction_block_of(_conv(24, 7, 36, 3, groups=3, stride=2))
    assert reducing is not None and reducing.problem is not None
    data, weight = reducing.problem.operands
    assert data.index == (
        (),  # one image
        (Term(loop=1, scale=8, divisor=12), Term(loop=4, scale=1)),
        (Term(loop=2, scale=2), Term(loop=5, scale=1)),
        (Term(loop=3, scale=2), Term(loop=6, scale=1)),
    )
    assert [len(terms) for terms in weight.index] == [1, 1, 1, 1]
    assert not reducing.einsum  # the second index of the image is a sum of two loops


def _functions_of_other_kinds() -> Sequence[Any]:
    data = te.placeholder((64, 64), name="data")
    half = te.placeholder((64, 64), "float16", name="half")
    rows = te.placeholder((te.var("n"), 64), name="rows")
    return (
        _module(data, topi.nn.relu(data)),
        _module(data, topi.nn.softmax(data)),
        _module(data, topi.max(data, axis=1)),
        _module(half, topi.nn.matmul(half, half)),
        _module(data, topi.nn.matmul(data, data)),
        _module(rows, data, topi.nn.matmul(rows, data)),
        _module(data, topi.cumsum(data, axis=1)),
    )


@pytest.mark.parametrize("number", range(7))
def test_other_functions_are_left_to_tvm(number: int) -> None:
    assert by_one(cuda_tiles, _functions_of_other_kinds()[number], TARGET) is None


def test_in_half_precision_tensor_cores_serve_all_but_groups_and_few_outputs() -> None:
    assert reduction_block_of(_conv(64, 14, 64, 3, dtype="float16"), narrow=True) is None
    assert reduction_block_of(narrow_conv()) is None and reduction_block_of(narrow_conv(), narrow=True) is not None
    found = by_one(cuda_tiles, _conv(64, 14, 64, 3, groups=64, dtype="float16"), TARGET)
    assert found is not None and found[1] is not None


def test_a_rule_that_promises_little_says_so() -> None:
    with pytest.raises(NoTileError, match="a guess must promise"):
        by_one(cuda_tiles, _product(784, 16, 320, "none"), H200)


def test_what_cannot_be_launched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_tiles, "UNROLLED", 1 << 20)
    mod = _conv(256, 56, 64, 3)
    with pytest.raises(GuardError, match="unrolled"):
        by_one(cuda_tiles, mod, TARGET)


def test_a_function_without_a_record_gets_a_tile() -> None:
    outcome, scheduled = schedule_function(_conv(256, 14, 256, 3)["main"], TARGET, EmptyLookup())
    assert (outcome.rung, outcome.rejected) == ("template", ())
    assert outcome.served is not None and outcome.served.template == "cuda_tiles"
    assert scheduled is not None
    assert outcome.served.predicted_s is not None and 0 < outcome.served.predicted_s < 1e-3


def test_the_report_says_why_there_is_none() -> None:
    outcome, scheduled = schedule_function(_product(784, 16, 320, "none")["main"], H200, EmptyLookup())
    assert (outcome.rung, scheduled) == (None, None)
    (rejected,) = outcome.rejected
    assert rejected.template == "cuda_tiles"
    assert rejected.reason.startswith("TVM's own schedule should take")


def test_what_tvm_refuses_is_left_to_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("ScheduleError: no")

    monkeypatch.setattr(cuda_tiles, "tiled", refuse)
    outcome, scheduled = schedule_function(_conv(256, 14, 256, 3)["main"], TARGET, EmptyLookup())
    assert (outcome.rung, scheduled) == (None, None)
    assert outcome.rejected == (StepRejected(step="template", template="cuda_tiles", reason="ScheduleError: no"),)


def test_a_tile_does_not_stand_against_a_measurement() -> None:
    evidence = RecordEvidence(
        exact="0" * 32,
        default_s=2e-5,
        tuned_s=3e-5,
        speedup=0.67,
        repeats=5,
        spread=0.0,
        output_max_rel_diff=0.0,
        threads=1,
        admitted=False,
        reason="slower",
    )

    class Known(EmptyLookup):
        def measured(self, tuner: str, _key: str) -> Measured | None:
            return Measured(evidence=evidence, package="p 1") if tuner == "meta_schedule" else None

    outcome, scheduled = schedule_function(_conv(256, 14, 256, 3)["main"], TARGET, Known())
    assert (outcome.rung, scheduled) == (None, None)
    assert outcome.rejected[-1].reason == ("measured no faster than TVM's default by p 1: 30 against 20 µs")

"""Functions with open axes on CUDA: outputs by running all threads one after the other, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
import tvm_ffi
from tvm import te, tirx, topi

from tunehub.kernels.cuda import pieces
from tunehub.kernels.cuda.gemm import tiles
from tunehub.kernels.cuda.gemm.rule import ranked
from tunehub.kernels.cuda.pieces import NotPiecesError, over_pieces
from tunehub.kernels.cuda.symbolic import schedule as open_sizes
from tunehub.kernels.cuda.symbolic.schedule import by_size
from tunehub.kernels.devices.known import default_device
from tunehub.tir.branches import SizeBranch, joined, size_of
from tunehub.tir.cuda.check import fault
from tunehub.tir.guard import FaultFoundError, GuardError
from tunehub.tir.nodes import main_module
from tunehub.tir.open_axes import open_axes
from tunehub.tir.symbols import branches_at, instance, probes

from ....compiler.outputs import one_after_the_other
from .open_functions import TARGET, Array, function_of, largest_error, open_rows, tensor, variables

pytestmark = pytest.mark.slow


class _Pieces:
    """Static functions: those of ``length`` have a schedule that was measured, those of ``moved`` one that was measured
    for other shapes, others have none."""

    def __init__(self, length: int | None = None, moved: int | None = None) -> None:
        self._length, self._moved = length, moved

    def scheduled(self, piece: Any) -> None:
        return None

    def recorded(self, piece: Any) -> tuple[Any, float] | None:
        return self._found(piece, self._length)

    def transferred(self, piece: Any) -> tuple[Any, float] | None:
        return self._found(piece, self._moved)

    def _found(self, piece: Any, length: int | None) -> tuple[Any, float] | None:
        reducing = tiles.reduction_block_of(main_module(piece))
        assert reducing is not None and reducing.problem is not None
        if reducing.spatial[0] != length:
            return None
        (tile,) = ranked(reducing.problem, default_device(), shared_memory=49152, threads=1024, count=1)
        return tiles.checked_tiles(main_module(piece), reducing, tile).mod["main"], 1e-7


NO_RECORDS = _Pieces()


def _batch_and_rows() -> tuple[Any, Callable[..., Any]]:
    batch, rows = variables("batch", "rows")
    first, second = tensor("first", batch, rows, 29), tensor("second", 29, 37)
    function = function_of(first, second, topi.nn.relu(topi.nn.matmul(first, second)))
    return function, lambda b, n: ([(b, n, 29), (29, 37), (b, n, 37)], lambda x, y: np.maximum(x @ y, 0))


def _images() -> tuple[Any, Callable[..., Any]]:
    """A convolution with padding and bias."""
    (batch,) = variables("batch")
    data, weight = tensor("data", batch, 6, 7, 7), tensor("weight", 16, 6, 3, 3)
    bias = tensor("bias", 1, 16, 1, 1)
    function = function_of(data, weight, bias, topi.add(topi.nn.conv2d(data, weight, 1, 1, 1), bias))

    def expected(x: Array, w: Array, b: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True) + b

    return function, lambda n: ([(n, 6, 7, 7), (16, 6, 3, 3), (1, 16, 1, 1), (n, 16, 7, 7)], expected)


def _depthwise() -> tuple[Any, Callable[..., Any]]:
    (batch,) = variables("batch")
    data, weight = tensor("data", batch, 32, 9, 9), tensor("weight", 32, 1, 3, 3)
    function = function_of(data, weight, topi.nn.relu(topi.nn.group_conv2d_nchw(data, weight, 1, 1, 1, 32)))

    def expected(x: Array, w: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        return np.maximum(np.einsum("nchwij,cij->nchw", windows, w[:, 0]), 0)

    return function, lambda n: ([(n, 32, 9, 9), (32, 1, 3, 3), (n, 32, 9, 9)], expected)


def _means() -> tuple[Any, Callable[..., Any]]:
    """Of all places of an image: several threads for each result of few images, one of more."""
    (batch,) = variables("batch")
    data = tensor("data", batch, 1500, 3, 3)
    function = function_of(data, topi.divide(topi.sum(data, axis=[2, 3], keepdims=True), 9.0))
    return function, lambda n: (
        [(n, 1500, 3, 3), (n, 1500, 1, 1)],
        lambda x: np.asarray(x.mean(axis=(2, 3), keepdims=True)),
    )


def _scores() -> tuple[Any, Callable[..., Any]]:
    """Of attention: rows and columns are open."""
    (length,) = variables("length")
    query, key = tensor("query", 3, length, 16), tensor("key", 3, 16, length)
    function = function_of(query, key, topi.multiply(topi.nn.batch_matmul(query, key, transpose_b=False), 0.125))
    return function, lambda n: ([(3, n, 16), (3, 16, n), (3, n, n)], lambda query, key: query @ key / 8)


def _context() -> tuple[Any, Callable[..., Any]]:
    """Of attention: rows and what is summed over are open."""
    (length,) = variables("length")
    weight, value = tensor("weight", 3, length, length), tensor("value", 3, length, 16)
    function = function_of(weight, value, topi.nn.batch_matmul(weight, value, transpose_b=False))
    return function, lambda n: ([(3, n, n), (3, n, 16), (3, n, 16)], lambda weight, value: weight @ value)


def _softmax() -> tuple[Any, Callable[..., Any]]:
    """Rows as long as there are of them."""
    (length,) = variables("length")
    scores = tensor("scores", 3, length, length)

    def expected(x: Array) -> Array:
        found = np.exp(x - x.max(axis=-1, keepdims=True))
        return np.asarray(found / found.sum(axis=-1, keepdims=True))

    return function_of(scores, topi.nn.softmax(scores, axis=-1)), lambda n: ([(3, n, n), (3, n, n)], expected)


def _largest() -> tuple[Any, Callable[..., Any]]:
    """The first place of each row that has its largest value: two reductions of a row."""
    (rows,) = variables("rows")
    scores, k, place = tensor("scores", rows, 3000), te.reduce_axis((0, 3000)), te.reduce_axis((0, 3000))
    most = te.compute((rows,), lambda i: te.max(scores[i, k], axis=k), name="most")
    here = lambda i: tirx.Select(scores[i, place] == most[i], place.astype("float32"), 2999.0)  # noqa: E731
    first = te.compute((rows,), lambda i: te.min(here(i), axis=place), name="first")
    return function_of(scores, first), lambda n: ([(n, 3000), (n,)], lambda x: x.argmax(axis=1).astype("float32"))


CASES = {
    "largest of a row": (_largest, [(1,), (2,), (33,)]),
    "softmax": (_softmax, [(1,), (2,), (16,), (33,), (61,), (97,), (130,)]),
    "scores": (_scores, [(1,), (2,), (16,), (33,), (61,), (97,), (130,)]),
    "context": (_context, [(1,), (2,), (16,), (33,), (61,), (97,), (130,)]),
    "rows": (open_rows, [(1,), (2,), (7,), (8,), (31,), (33,), (61,), (130,), (257,)]),
    "batch and rows": (_batch_and_rows, [(1, 1), (2, 1), (1, 5), (3, 7), (2, 16), (5, 53)]),
    "images": (_images, [(1,), (2,), (3,), (5,), (9,), (33,)]),
    "depthwise": (_depthwise, [(1,), (2,), (5,)]),
    "means": (_means, [(1,), (2,), (3,), (9,)]),
}


def _scheduled(function: Any, static: Any = NO_RECORDS) -> Any:
    found = by_size(function, TARGET, static)
    assert found is not None
    return found.mod


@pytest.mark.no_cover
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(3)
def test_all_sizes_are_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "UNROLLED", 1)  # LLVM takes seconds for long straight code
    make, sizes = CASES[name]
    function, at = make()
    looped = one_after_the_other(_scheduled(function))
    library = tvm.tirx.build(looped, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    for values in sizes:
        assert largest_error(library, *at(*values)) < 1e-4, values


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("static", "records"),
    [(_Pieces(128), (128,)), (_Pieces(moved=128), (128,))],
    ids=["a record", "one for other shapes"],
)
def test_what_is_known_of_128_rows_serves_other_numbers_of_rows(
    static: _Pieces, records: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "UNROLLED", 1)
    function, at = open_rows()
    found = by_size(function, TARGET, static)
    assert found is not None and found.measured == records
    library = tvm.tirx.build(one_after_the_other(found.mod), target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    for rows in (1, 2, 33, 127, 128, 129, 300):
        assert largest_error(library, *at(rows)) < 1e-4, rows


def test_other_tiles_serve_where_sums_cannot_be_divided_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    function, _ = open_rows(512, 64)
    split_k, none = by_size(function, TARGET, NO_RECORDS), by_size(function, TARGET, NO_RECORDS, splits_k=False)
    monkeypatch.setattr(open_sizes, "over_rows", lambda *_: (_ for _ in ()).throw(NotPiecesError("of another kind")))
    failed = by_size(function, TARGET, NO_RECORDS)
    assert split_k is not None and failed is not None and none is not None and split_k.split_k
    tvm.ir.assert_structural_equal(failed.mod, none.mod)


def test_other_tiles_serve_where_divided_sums_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    function, _ = open_rows(512, 64)
    none = by_size(function, TARGET, NO_RECORDS, splits_k=False)

    def refused(scheduled: Any, original: Any, target: Any, values: Any) -> None:
        if none is None or not tvm_ffi.structural_equal(scheduled, none.mod["main"], map_free_vars=True):
            raise GuardError("a race")

    monkeypatch.setattr(open_sizes, "check_function", refused)
    found = by_size(function, TARGET, NO_RECORDS)
    assert found is not None and not found.split_k
    monkeypatch.setattr(open_sizes, "check_function", lambda *_: (_ for _ in ()).throw(GuardError("a race")))
    with pytest.raises(GuardError):
        by_size(function, TARGET, NO_RECORDS)


def test_nothing_is_launched_for_size_0() -> None:
    function, _ = open_rows()
    looped = one_after_the_other(_scheduled(function))
    library = tvm.tirx.build(looped, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    arrays = [np.zeros(shape, "float32") for shape in ((0, 48), (48, 40), (40,), (0, 40), (0, 40))]
    library["main"](*map(tvm.runtime.tensor, arrays))


def test_each_range_has_a_kernel_of_its_own_and_indices_of_32_bits() -> None:
    function, _ = open_rows(256, 512)
    mod = _scheduled(function)
    built = tvm.compile(mod, target=tvm.target.Target(TARGET, host="llvm"))
    source = next(each for each in built.mod.imports if each.kind == "cuda").inspect_source()
    branches = len(mod["main"].body.block.body.seq)
    assert branches > 1 and source.count("__launch_bounds__") == 2 * branches  # each declared, then defined
    assert "for (int " in source and "for (int64_t" not in source


def _source(mod: Any) -> str:
    built = tvm.compile(mod, target=tvm.target.Target(TARGET, host="llvm"))
    return str(next(each for each in built.mod.imports if each.kind == "cuda").inspect_source())


def test_vectors_are_loaded_whole_from_pieces_that_may_go_beyond_the_end() -> None:
    (rows,) = variables("rows")
    data = tensor("data", rows, 32)
    function = function_of(data, topi.nn.relu(data))
    axes = open_axes(function)
    assert axes is not None
    schedule = tvm.s_tir.Schedule(main_module(instance(function, [8])))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.bind(schedule.fuse(*schedule.get_loops(block)[:1]), "blockIdx.x")
    staged = schedule.cache_read(block, 0, "shared")
    schedule.compute_at(staged, schedule.get_loops(block)[0])
    threads, lanes = schedule.split(schedule.get_loops(staged)[-1], [None, 4])
    schedule.bind(threads, "threadIdx.x")
    schedule.vectorize(lanes)
    schedule.bind(schedule.split(schedule.get_loops(block)[-1], [None, 4])[0], "threadIdx.x")
    assert "*(float4*)(data" in _source(main_module(over_pieces(function, axes, schedule.mod["main"], [8])))


def test_a_schedule_that_serves_two_ranges_is_one_kernel() -> None:
    function, _ = open_rows()
    first, second = (SizeBranch(up_to=up_to, function=function) for up_to in (3, None))
    own = SizeBranch(up_to=9, function=tvm.s_tir.renew_defs(function))
    mod = main_module(joined(function, size_of(function), [first, own, second]))
    assert len(mod["main"].body.block.body.seq) == 2
    at = [branches_at(mod["main"], [size]) for size in (1, 3, 4, 9, 10, 500)]
    assert at == [(0,), (0,), (1,), (1,), (0,), (0,)]


def test_at_a_size_only_its_kernel_counts_also_where_branches_are_in_branches() -> None:
    function, _ = open_rows(256, 512)
    rule = _scheduled(function)["main"]
    assert len(rule.body.block.body.seq) > 1
    branches = [SizeBranch(up_to=200, function=rule), SizeBranch(up_to=None, function=tvm.s_tir.renew_defs(rule))]
    ladder = joined(function, size_of(function), branches)
    for size in (1, 64, 200, 201):
        kernels = re.findall(
            r'thread="blockIdx.x"|thread_binding\([^)]*"blockIdx.x"', instance(ladder, [size]).script()
        )
        assert len(kernels) == 1, size


@pytest.mark.parametrize("name", ["scores", "context"])
def test_no_block_is_found_by_dividing_by_an_unknown_extent(name: str) -> None:
    function, _ = CASES[name][0]()
    source = _source(_scheduled(function))
    assert "length" in source and not re.search(r"[%/] \(*(?!int)[a-z]", source)


def test_the_check_tries_sizes_around_thresholds() -> None:
    function, _ = open_rows(256, 512)
    scheduled = _scheduled(function)["main"]
    thresholds = {size for (size,) in probes(scheduled)} - {size for (size,) in probes(function)}
    assert thresholds and fault(scheduled, TARGET) is None


class _NoMasks:
    def __init__(self, *_: Any) -> None:
        pass

    def statement(self, node: Any) -> Any:
        return node


def test_rows_beyond_the_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_Masking", _NoMasks)
    function, _ = open_rows()
    with pytest.raises(FaultFoundError, match=r"an access leaves its buffer \(.* at \d"):
        by_size(function, TARGET, NO_RECORDS)


def test_pieces_that_leave_rows_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "number", lambda value: pieces.tirx_number(value - 1 if value > 1 else value))
    monkeypatch.setattr(pieces, "tirx_number", lambda value: tirx.const(value, "int64"), raising=False)
    function, _ = open_rows()
    with pytest.raises(FaultFoundError, match="never written"):
        by_size(function, TARGET, NO_RECORDS)


def test_a_piece_that_is_several_kernels_is_not_taken() -> None:
    (rows,) = variables("rows")
    data = tensor("data", rows, 8)
    total = te.compute(
        (rows,), lambda i: te.sum(data[i, (k := te.reduce_axis((0, 8), name="k"))], axis=k), name="total"
    )
    function = function_of(data, te.compute((rows, 8), lambda i, j: data[i, j] - total[i], name="rest"))
    axes = open_axes(function)
    assert axes is not None
    with pytest.raises(NotPiecesError):
        over_pieces(function, axes, instance(function, [4]), [4])


def test_what_is_no_sum_of_products_is_left_to_tvm() -> None:
    (rows,) = variables("rows")
    data = tensor("data", rows, 8)
    assert by_size(function_of(data, topi.nn.relu(data)), TARGET, NO_RECORDS) is None

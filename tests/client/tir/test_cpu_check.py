"""Schedules that TVM takes for CPUs and that write beyond a buffer or compute something else are refused, right ones
are not. Each wrong one here ended a process, gave wrong results, or was never done compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relax")

from tvm import te, topi  # noqa: E402

from tunehub.compiler.schedule.apply import apply_exact  # noqa: E402
from tunehub.tir.cpu_check import check_proven, fault  # noqa: E402
from tunehub.tir.first_terms import check_first_terms  # noqa: E402
from tunehub.tir.guard import FaultFoundError, GuardError, check_function, check_order  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402
from tunehub.tir.traces import export_trace, import_trace  # noqa: E402

pytestmark = pytest.mark.slow

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
Steps = Callable[[Any], None]


def product() -> Any:
    """A product of matrices, and a maximum behind it."""
    a, b = te.placeholder((48, 16), name="a"), te.placeholder((16, 32), name="b")
    k = te.reduce_axis((0, 16), "k")
    c = te.compute((48, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return _module(a, b, te.compute(c.shape, lambda i, j: te.max(c[i, j] + 1.0, te.const(0, "float32")), "d"))


def pooling() -> Any:
    data = te.placeholder((1, 8, 14, 14), name="data")
    return _module(data, topi.nn.pool2d(data, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max", layout="NCHW"))


def means() -> Any:
    """Means of 2 × 2 windows, of which the last ones end where the padding does."""
    data = te.placeholder((1, 3, 15, 15), name="data")
    return _module(data, topi.nn.pool2d(data, [2, 2], [2, 2], [1, 1], [1, 1, 1, 1], "avg", layout="NCHW"))


def softmax() -> Any:
    data = te.placeholder((16, 7), name="data")
    return _module(data, topi.nn.softmax(data))


def variance() -> Any:
    """Sums of squares of how far numbers are from a mean."""
    data, mean = te.placeholder((16, 7), name="data"), te.placeholder((16,), name="mean")
    k = te.reduce_axis((0, 7), "k")

    def square(i: Any) -> Any:
        return te.sum((data[i, k] - mean[i]) * (data[i, k] - mean[i]), axis=k)

    return _module(data, mean, te.compute((16,), square, "variance"))


def argmax() -> Any:
    data = te.placeholder((16, 7), name="data")
    return _module(data, topi.argmax(data, axis=1))


def elementwise() -> Any:
    data = te.placeholder((16, 8), name="data")
    first = te.compute(data.shape, lambda i, j: data[i, j] * 2.0, "first")
    return _module(data, te.compute(data.shape, lambda i, j: first[i, j] + 1.0, "last"))


def gather() -> Any:
    table, places = te.placeholder((7, 5), name="table"), te.placeholder((3,), "int32", "places")
    return _module(table, places, topi.take(table, places, axis=0, mode="fast"))


def open_addition() -> Any:
    n = te.var("n", "int64")
    data = te.placeholder((n, 8), name="data")
    return _module(data, te.compute(data.shape, lambda i, j: data[i, j] + 1.0, "d"))


def _module(*arguments: Any) -> Any:
    return main_module(te.create_prim_func(list(arguments)))


def scheduled(mod: Any, steps: Steps) -> Any:
    """``mod`` after a record with ``steps``, as a client has it: replayed, and looked at by the guard."""
    schedule = tvm.s_tir.Schedule(mod, debug_mask="none")
    steps(schedule)
    replayed = apply_exact(mod, import_trace(export_trace(schedule.trace))).mod["main"]
    check_function(replayed, mod["main"], TARGET)
    return replayed


def _loops(schedule: Any, name: str) -> list[Any]:
    return list(schedule.get_loops(schedule.get_sblock(name)))


def rows_end_in_tiles(schedule: Any) -> None:
    outer, _ = schedule.split(schedule.fuse(*_loops(schedule, "c")[:2]), [None, 64])
    schedule.reverse_compute_at(schedule.get_sblock("d"), outer)


def padded_after_its_epilogue(schedule: Any) -> None:
    schedule.reverse_compute_at(schedule.get_sblock("d"), _loops(schedule, "c")[1])
    schedule.pad_einsum(schedule.get_sblock("c"), [1024, 1, 2])


def tiles_across_rows(schedule: Any) -> None:
    outer, _ = schedule.split(schedule.fuse(*_loops(schedule, "c")[:2]), [None, 24])
    schedule.reverse_compute_at(schedule.get_sblock("d"), outer)


def parts_of_sums_beyond_the_end(schedule: Any) -> None:
    k = _loops(schedule, "c")[2]
    outer, _ = schedule.split(k, [3, 8], preserve_unit_iters=True)
    schedule.rfactor(outer, 0)


def maximum_behind_its_readers(schedule: Any) -> None:
    maximum = schedule.get_sblock("T_softmax_maxelem")
    schedule.reverse_compute_at(maximum, _loops(schedule, "T_softmax_norm")[0], preserve_unit_loops=True)


def squares_of_zeros(schedule: Any) -> None:
    schedule.pad_einsum(schedule.get_sblock("variance"), [1, 8])


def an_index_beyond_the_end(schedule: Any) -> None:
    schedule.pad_einsum(schedule.get_sblock("data_red_temp"), [1, 8])


def sums_of_zeros(schedule: Any) -> None:
    schedule.pad_einsum(schedule.get_sblock("T_softmax_expsum"), [1, 8])


def products_of_zeros(schedule: Any) -> None:
    schedule.pad_einsum(schedule.get_sblock("c"), [1, 16, 32])


def copied_between_its_parts(schedule: Any) -> None:
    """The copy, in front of all loops, has the initial value alone."""
    rows, columns = _loops(schedule, "d")
    schedule.compute_at(schedule.get_sblock("c"), columns)
    schedule.decompose_reduction(schedule.get_sblock("c"), rows)
    schedule.reindex(schedule.get_sblock("d"), ("read", 0))


def of_each_lane(schedule: Any) -> None:
    """What a lane computes for itself: TVM's vectors have one element for all lanes."""
    columns = _loops(schedule, "last")[1]
    schedule.compute_at(schedule.get_sblock("first"), columns)
    schedule.vectorize(columns)


def of_a_row(schedule: Any) -> None:
    rows, columns = _loops(schedule, "last")
    schedule.compute_at(schedule.get_sblock("first"), rows)
    schedule.vectorize(columns)


def windows_of_one_number(schedule: Any) -> None:
    """TVM forgets that the last rows and columns of what is padded belong to windows of two."""
    schedule.reverse_compute_at(schedule.get_sblock("pool_sum"), _loops(schedule, "pad_temp")[0], index=-1)


def terms_in_another_order(schedule: Any) -> None:
    """Columns and terms as one loop, whose parts change places: the initial value comes behind some terms."""
    outer, inner = schedule.split(schedule.fuse(*_loops(schedule, "c")[1:]), [None, 24])
    schedule.reorder(inner, outer)


def terms_of_all_for_each_row(schedule: Any) -> None:
    """Sums begin once, and all of them are added up for each row."""
    rows = _loops(schedule, "d")[0]
    schedule.reverse_compute_at(schedule.get_sblock("c"), rows, preserve_unit_loops=True, index=-2)
    schedule.decompose_reduction(schedule.get_sblock("c"), rows)


def terms_in_their_order(schedule: Any) -> None:
    schedule.split(schedule.fuse(*_loops(schedule, "c")[1:]), [None, 24])


def far_apart(schedule: Any) -> None:
    schedule.storage_align(schedule.get_sblock("c"), 0, 0, 1 << 20, 0)


def a_little_apart(schedule: Any) -> None:
    schedule.storage_align(schedule.get_sblock("c"), 0, 0, 32, 8)


def many_statements(schedule: Any) -> None:
    schedule.unroll(schedule.split(schedule.fuse(*_loops(schedule, "c")), [None, 3072])[1])


def remainders(schedule: Any) -> None:
    for loop in _loops(schedule, "c"):
        schedule.split(loop, [None, 7])


def in_vectors(schedule: Any) -> None:
    block = next(name for name in ("pool_max", "T_take", "d") if _has(schedule, name))
    schedule.vectorize(schedule.split(schedule.fuse(*_loops(schedule, block)[:2]), [None, 4])[1])


def _has(schedule: Any, name: str) -> bool:
    try:
        schedule.get_sblock(name)
    except Exception:
        return False
    return True


@pytest.mark.parametrize(
    ("make", "steps", "says"),
    [
        (product, padded_after_its_epilogue, "not proven to lie inside its buffer (d)"),
        (product, tiles_across_rows, "a tile writes elements of other tiles"),
        (product, parts_of_sums_beyond_the_end, "a buffer is read before it is written (c.rf)"),
        (softmax, maximum_behind_its_readers, "a buffer is read before it is written (T_softmax_maxelem)"),
        (elementwise, of_each_lane, "the lanes of a vector share a buffer that each should have of its own (first)"),
        (product, far_apart, "strides take far more memory than their elements (c)"),
        (product, many_statements, "compiling it would take minutes"),
    ],
)
def test_what_would_be_wrong_is_refused(make: Callable[[], Any], steps: Steps, says: str) -> None:
    found = scheduled(make(), steps)
    assert says in str(fault(found, TARGET))
    with pytest.raises(FaultFoundError):
        check_proven(found, TARGET)


@pytest.mark.parametrize(
    ("make", "steps", "says"),
    [
        (variance, squares_of_zeros, "the block variance would reduce zeros"),
        (argmax, an_index_beyond_the_end, "the block data_red_temp would reduce zeros"),
        (product, copied_between_its_parts, "a buffer is changed after it was read"),
        (product, terms_of_all_for_each_row, "the loops of c_update may add a term twice"),
        (means, windows_of_one_number, "the loops of pool_sum may leave out terms of a sum"),
        (product, terms_in_another_order, "the loops of c may begin a sum after its first term"),
    ],
)
def test_the_guard_refuses_what_would_be_wrong(make: Callable[[], Any], steps: Steps, says: str) -> None:
    with pytest.raises((GuardError, RuntimeError), match=says):  # what is raised while TVM replays is TVM's error
        found = scheduled(make(), steps)
        check_order(found)
        check_first_terms(found)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (softmax, sums_of_zeros),
        (product, products_of_zeros),
        (product, terms_in_their_order),
        (elementwise, of_a_row),
        (product, rows_end_in_tiles),
        (product, a_little_apart),
        (product, remainders),
        (pooling, in_vectors),
        (gather, in_vectors),
        (open_addition, lambda schedule: schedule.split(_loops(schedule, "d")[0], [None, 4])),
    ],
)
def test_what_is_right_is_proven(make: Callable[[], Any], steps: Steps) -> None:
    found = scheduled(make(), steps)
    check_order(found)
    check_first_terms(found)
    assert fault(found, TARGET) is None


def test_sums_are_not_divided_among_iterations_of_a_parallel_loop() -> None:
    schedule = tvm.s_tir.Schedule(product(), debug_mask="none")
    k = _loops(schedule, "c")[2]
    reduction = schedule.mod["main"].with_body(_parallel(schedule.mod["main"].body, schedule.get(k).loop_var))
    assert fault(reduction, TARGET).rule == "race"  # type: ignore[union-attr]


def _parallel(node: Any, variable: Any) -> Any:
    """A statement with the loop over ``variable`` in parallel, which TVM's own steps do not give."""
    from tunehub.tir.nodes import with_children

    kind = type(node).__name__
    if kind == "For" and node.loop_var.same_as(variable):
        return tvm.tirx.For(node.loop_var, node.min, node.extent, 1, node.body)
    if kind == "SBlockRealize":
        return type(node)(node.iter_values, node.predicate, _parallel(node.block, variable))
    return with_children(node, lambda child: _parallel(child, variable))


@pytest.mark.parametrize("scope", ["m16n8k8.matrixC", "shared", "wmma.accumulator", "warp"])
def test_memory_of_gpus_is_not_for_cpus(scope: str) -> None:
    with pytest.raises(GuardError, match="for GPUs"):
        scheduled(product(), lambda schedule: schedule.set_scope(schedule.get_sblock("c"), 0, scope))

"""Classes: the same for all extents of an operator, another for anything else that changes the computation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from tunehub.tir.operator_class import OperatorClass, anchor_class_of, class_of

from ..compiler.conftest import Nets
from ..kernels.transfer.transfer_cases import KINDS, case

pytestmark = pytest.mark.slow

op = relax.op
NETS = Nets()
sizes = st.integers(2, 40)  # an extent of 1 may change how TVM broadcasts


def keys(mod: Any, tasks_of: Any) -> list[str | None]:
    return [found and found.key for found in (class_of(task.mod) for task in tasks_of(mod))]


def one(make: Any, *shape: int, dtype: str = "float32") -> Any:
    return NETS.build(lambda b, x: b.emit(make(x)), shape, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_extents_do_not_matter(kind: str) -> None:
    """But for an extent of 1 that TVM takes out of an index: a group of one channel, an operand of one element."""
    found = [class_of(case(kind, seed).mod) for seed in range(30)]
    keys = Counter(own.key for own in found if own)
    assert sum(keys.values()) == len(found)
    assert len(keys) <= (4 if kind == "grouped" else 2)
    assert max(keys.values()) >= len(found) / 2
    assert len({own.extents for own in found if own}) > 12


@given(sizes, sizes, sizes, st.integers(1, 8))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_convolutions_of_all_shapes_and_batches(tasks_of: Any, channels: int, out: int, size: int, batch: int) -> None:
    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, NETS.const(out, channels, 3, 3), padding=1))
        return b.emit(op.nn.relu(b.emit(op.add(y, NETS.const(1, out, 1, 1)))))

    assert keys(NETS.build(make, (batch, channels, size, size)), tasks_of) == keys(NETS.conv(), tasks_of)


def test_what_makes_another_class(tasks_of: Any) -> None:
    modules = [
        NETS.conv(),
        NETS.conv(relu=False),
        NETS.conv(bias=False),
        one(lambda x: op.nn.conv2d(x, NETS.const(16, 8, 3, 3), padding=1, strides=2), 1, 8, 9, 9),
        one(lambda x: op.nn.conv2d(x, NETS.const(16, 4, 3, 3), padding=1, groups=2), 1, 8, 9, 9),
        NETS.matmul(),
        NETS.matmul(dtype="float16"),
        one(lambda x: op.nn.softmax(x, 1), 3, 4, 5),
        one(lambda x: op.nn.softmax(x, 2), 3, 4, 5),
        one(lambda x: op.exp(x), 3, 4),
        one(lambda x: op.tanh(x), 3, 4),
        one(lambda x: op.add(x, NETS.const(3, 4)), 3, 4),
        one(lambda x: op.add(x, NETS.const(1, 4)), 3, 4),
        one(lambda x: op.nn.max_pool2d(x, (3, 3), padding=1), 1, 8, 9, 9),
        one(lambda x: op.nn.avg_pool2d(x, (3, 3), padding=1), 1, 8, 9, 9),
    ]
    found = [key for mod in modules for key in keys(mod, tasks_of)]
    assert None not in found
    assert len(set(found)) == len(modules)


def test_names_do_not_matter(tasks_of: Any) -> None:
    assert keys(NETS.matmul(name="x0"), tasks_of) == keys(NETS.matmul(name="gpu_0_data"), tasks_of)


def test_numbers_that_follow_from_extents_do_not_matter(tasks_of: Any) -> None:
    first, second = (one(lambda x: op.mean(x, [2, 3]), 1, 8, size, size) for size in (7, 12))
    assert keys(first, tasks_of) == keys(second, tasks_of)


@pytest.mark.parametrize("make", [lambda x: op.argmax(x, 1), lambda x: op.cumsum(x, 1)])
def test_what_no_trace_could_serve_has_no_class(make: Any, tasks_of: Any) -> None:
    import tvm

    from tunehub.compiler.preparing import prepare

    prepared = prepare(one(make, 3, 4), tvm.target.Target({"kind": "llvm", "num-cores": 2}))
    functions = [f for f in prepared.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert functions
    assert [class_of(tvm.IRModule({"main": function})) for function in functions] == [None] * len(functions)


def test_extents_by_block(tasks_of: Any) -> None:
    (task,) = tasks_of(NETS.conv(8, 16, 10))
    own = class_of(task.mod)
    assert own is not None
    assert own.shape == ((1, 8, 12, 12), (1, 16, 10, 10, 8, 3, 3), (1, 16, 10, 10), (1, 16, 10, 10))
    assert own.work == 16 * 100 * 72
    assert own.same_shape(own.extents) == own.shape
    assert own.same_shape(own.extents[1:]) is None
    anchors = anchor_class_of(task.mod)
    assert anchors is not None and anchors.shape == own.shape[1:2]
    assert (task.classes["op_class"], task.classes["extents"]) == (own.key, own.extents)
    assert (task.classes["anchor_class"], task.classes["anchor_extents"]) == (anchors.key, anchors.extents)


def test_the_anchors_class_does_not_depend_on_what_is_around_it(tasks_of: Any) -> None:
    modules = [NETS.conv(), NETS.conv(bias=False), NETS.conv(4, 6, 9, relu=False), NETS.residual()]
    found = [anchor_class_of(task.mod) for mod in modules for task in tasks_of(mod)]
    assert len({each.key for each in found if each}) == 1
    assert len({class_of(task.mod) and class_of(task.mod).key for mod in modules for task in tasks_of(mod)}) > 3  # type: ignore[union-attr]
    (chain,) = tasks_of(one(lambda x: op.exp(x), 3, 4))
    assert anchor_class_of(chain.mod) is None


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple), min_size=1, max_size=5).map(tuple))
def test_extents_are_split_as_they_were_joined(shape: tuple[tuple[int, ...], ...]) -> None:
    own = OperatorClass(key="0" * 32, shape=shape)
    assert own.same_shape(own.extents) == shape

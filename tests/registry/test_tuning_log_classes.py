"""Classes of AutoTVM's and the auto-scheduler's workloads: what they leave out, and what they must not."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.tuning_log import (
    LogRecord,
    auto_scheduler_class,
    autotvm_class,
    autotvm_key,
    operator_key,
    parse_line,
    read_log,
)

pytestmark = pytest.mark.fast

TOPHUB = Path(__file__).parents[3] / "shared/tophub"
EXTENT = st.integers(1, 1 << 16)
TYPES = st.sampled_from(["float32", "float16", "int8"])
PLAIN = st.one_of(st.none(), st.integers(-9, 99), st.text(max_size=5), st.floats(0.25, 0.75))
ARGUMENTS = st.recursive(
    PLAIN | st.tuples(st.just("TENSOR"), st.lists(EXTENT, max_size=5).map(tuple), TYPES),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
WORKLOADS = st.builds(lambda task, rest: (task, *rest), st.text(max_size=9), st.lists(ARGUMENTS, max_size=5))


def conv(data: tuple[int, ...], kernel: tuple[int, ...], stride: int = 1, *, dtype: str = "float32") -> tuple[Any, ...]:
    tensors = (("TENSOR", data, dtype), ("TENSOR", kernel, dtype))
    return ("conv2d_NCHWc.x86", *tensors, (stride, stride), (1, 1, 1, 1), (1, 1), "NCHW", "NCHW", dtype)


BASE = conv((1, 64, 56, 56), (64, 64, 3, 3))


def resized(value: Any, resize: Any) -> Any:
    """A workload with other extents: `resize` is called with the extents of each tensor."""
    if not isinstance(value, tuple):
        return value
    if value[:1] == ("TENSOR",):
        return ("TENSOR", resize(value[1]), *value[2:])
    return tuple(resized(item, resize) for item in value)


def test_other_shapes_are_one_class_with_other_extents() -> None:
    own, other = autotvm_class(BASE), autotvm_class(conv((8, 3, 224, 224), (17, 3, 7, 7)))
    assert own is not None
    assert other is not None
    assert own.key == other.key
    assert (own.extents, other.extents) == ((1, 64, 56, 56, 64, 64, 3, 3), (8, 3, 224, 224, 17, 3, 7, 7))


@pytest.mark.parametrize(
    "other",
    [
        conv((1, 64, 56, 56), (64, 64, 3, 3), 2),
        conv((1, 64, 56, 56), (64, 64, 3, 3), dtype="float16"),
        conv((1, 4, 56, 56, 16), (64, 64, 3, 3)),
        ("conv2d_NCHWc.cuda", *BASE[1:]),
        (*BASE[:-2], "NCHW16c", "float32"),
        BASE[:-1],
    ],
)
def test_another_computation_is_another_class(other: tuple[Any, ...]) -> None:
    own, found = autotvm_class(BASE), autotvm_class(other)
    assert own is not None
    assert found is not None
    assert own.key != found.key


def test_the_template_of_an_old_record_is_part_of_its_class() -> None:
    winograd, direct = autotvm_class(BASE, "winograd"), autotvm_class(BASE, "direct")
    assert winograd is not None
    assert direct is not None
    assert winograd.key != direct.key


def test_the_keys_of_classes_stay_what_they_are() -> None:
    """They are in indexes: another answer needs another name of the scheme."""
    found, ansor = autotvm_class(BASE), auto_scheduler_class(("d7b65649a4dd54becea0a52aabbc5af5", 1, 1000, 1, 1000))
    assert found is not None
    assert ansor is not None
    assert (found.key, ansor.key) == ("a288e0a3057f820a521e895d81efd646", "64243cf76db185e28ee0a3b2c1838572")


@pytest.mark.parametrize("shape", [(), (1, 0), (1, "any"), (1, -1), (1, (2, 3))])
def test_a_shape_that_is_none_has_no_class(shape: tuple[Any, ...]) -> None:
    assert autotvm_class(("dense.x86", ("TENSOR", shape, "float32"))) is None


@given(WORKLOADS, st.data())
def test_the_class_depends_on_everything_but_extents(workload: tuple[Any, ...], data: st.DataObject) -> None:
    own = autotvm_class(workload)
    other = resized(workload, lambda shape: tuple(data.draw(EXTENT) for _ in shape))
    found = autotvm_class(other)
    if own is None:
        assert found is None
        return
    assert found is not None
    assert own.key == found.key
    assert len(own.extents) == len(found.extents)
    assert (own == found) == (autotvm_key(workload) == autotvm_key(other))


@given(WORKLOADS, WORKLOADS)
def test_class_and_extents_say_the_whole_workload(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    first = autotvm_class(one)
    if first is not None and first == autotvm_class(other):
        assert autotvm_key(one) == autotvm_key(other)


@given(st.text(max_size=5), st.lists(st.integers(-2, 99) | st.text(max_size=3), max_size=6))
def test_the_auto_schedulers_class_is_the_dag(name: str, rest: list[Any]) -> None:
    """A positive number is an extent; names and other numbers, which only a user's own function has, are kept."""
    found = auto_scheduler_class((name, *rest))
    extents = tuple(item for item in rest if isinstance(item, int) and item > 0)
    assert (found is None) == (not extents)
    if found is not None:
        assert found.extents == extents
        grown = [item + 1 if isinstance(item, int) and item > 0 else item for item in rest]
        again = auto_scheduler_class((name, *grown))
        assert again is not None
        assert again.key == found.key
        longer, renamed = auto_scheduler_class((name, *rest, 1)), auto_scheduler_class((name + "x", *rest))
        assert longer is not None
        assert renamed is not None
        assert len({found.key, longer.key, renamed.key}) == 3


def test_real_shapes_of_one_dag() -> None:
    """Two convolutions as TVM 0.19 writes them: kernels of 3 and 7, stride 2."""
    lines = [
        ["aedc93fdbeaee69df00b3c14a47e3eb0", [1, 14, 14, 256], [3, 3, 256, 512], [1, 1, 1, 512], [1, 7, 7, 512]],
        ["aedc93fdbeaee69df00b3c14a47e3eb0", [1, 224, 224, 3], [7, 7, 3, 64], [1, 1, 1, 64], [1, 112, 112, 64]],
    ]
    classes = [parse_line(ansor_line(line)).operator_class for line in lines]
    assert len({found.key for found in classes if found}) == 1
    assert [found.extents[:4] for found in classes if found] == [(1, 14, 14, 256), (1, 224, 224, 3)]


def ansor_line(workload: list[Any]) -> bytes:
    key = json.dumps(workload)
    task = [key, "llvm -keys=cpu -mcpu=znver5", [2, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    return json.dumps({"i": [task, [[], []]], "r": [[0.1], 0, 0.2, 1], "v": "v0.6"}).encode()


@pytest.mark.parametrize("name", ["llvm_v0.01.log", "llvm_v0.04.log", "cuda_v0.10.log", "arm_cpu_v0.08.log"])
def test_tophubs_own_records_have_classes(name: str) -> None:
    """Every record has one, with as many extents as its others, and fewer classes than workloads."""
    if not (TOPHUB / name).exists():
        pytest.skip("TopHub's files are not here")
    with (TOPHUB / name).open("rb") as stream:
        records = [item for item in read_log(stream, name) if isinstance(item, LogRecord)]
    members: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for record in records:
        found = record.operator_class
        assert found is not None
        members[found.key].append(found.extents)
        assert operator_key(record.workload) == record.operator
    assert 1 < len(members) < len({record.key for record in records})
    assert all(len(set(map(len, extents))) == 1 for extents in members.values())

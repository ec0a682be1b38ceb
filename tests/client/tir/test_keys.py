from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunehub.tir.keys import _rename, anchor_key, workload_key

pytestmark = pytest.mark.slow


def keys(tasks_of: Any, mod: Any) -> tuple[str, str | None]:
    (task,) = tasks_of(mod)
    return task.exact, task.anchor


def test_names_do_not_matter(nets: Any, tasks_of: Any) -> None:
    first, second = keys(tasks_of, nets.matmul()), keys(tasks_of, nets.matmul(name="gpu_0/data_0"))
    assert first == second
    assert all(key is not None and len(key) == 32 and int(key, 16) >= 0 for key in first)


def test_shapes_types_and_epilogues_matter(nets: Any, tasks_of: Any) -> None:
    plain = keys(tasks_of, nets.matmul())
    assert plain[0] != keys(tasks_of, nets.matmul(m=17))[0]
    assert plain[1] != keys(tasks_of, nets.matmul(m=17))[1]
    assert plain[1] != keys(tasks_of, nets.matmul(dtype="float16"))[1]
    with_bias, without = keys(tasks_of, nets.conv()), keys(tasks_of, nets.conv(bias=False))
    assert with_bias[0] != without[0]
    assert with_bias[1] == without[1]


def test_weights_do_not_matter(nets: Any, tasks_of: Any) -> None:
    assert keys(tasks_of, nets.conv()) == keys(tasks_of, nets.conv())


def test_function_attributes_do_not_matter(nets: Any, tasks_of: Any) -> None:
    import tvm

    (task,) = tasks_of(nets.matmul())
    changed = tvm.IRModule({"main": task.mod["main"].with_attr("op_pattern", 7)})
    assert workload_key(changed) == task.exact
    assert anchor_key(changed) == task.anchor


def test_a_function_without_a_reduction_has_its_keys(nets: Any, tasks_of: Any) -> None:
    from tvm import relax

    (task,) = tasks_of(nets.build(lambda b, x: b.emit(relax.op.nn.relu(x)), (4, 4)))
    assert len(task.exact) == 32
    assert task.anchor is None or len(task.anchor) == 32


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15)
@given(shapes=st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=2, max_size=2, unique=True))
def test_different_extents_have_different_keys(nets: Any, tasks_of: Any, shapes: list[tuple[int, int, int]]) -> None:
    first, second = (keys(tasks_of, nets.matmul(*shape)) for shape in shapes)
    assert first[0] != second[0]
    if first[1] is not None:
        assert first[1] != second[1]


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(lambda n: n not in {"for", "in", "def", "T"})


@given(st.lists(NAMES, min_size=3, max_size=3, unique=True), st.lists(NAMES, min_size=3, max_size=3, unique=True))
def test_renaming_is_by_first_occurrence(first: list[str], second: list[str]) -> None:
    def text(names: list[str]) -> str:
        a, b, c = names
        return (
            f'for {a}, {b} in T.grid(4, 5):\n    with T.sblock("block"):\n        {c}[{a}, {b}] = {a}.x + T.max({b}, 1)'
        )

    assert _rename(text(first), frozenset(first)) == _rename(text(second), frozenset(second))


@pytest.mark.parametrize(
    ("text", "expected"), [('x = "x"', 'x0 = "x"'), ("T.int64(x)", "T.int64(x0)"), ("y + x", "y + x0")]
)
def test_strings_and_foreign_names_stay(text: str, expected: str) -> None:
    assert _rename(text, frozenset({"x"})) == expected

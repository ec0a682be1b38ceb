"""Which workloads are tuned, where several are served by one record."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.relax")

from tunehub_builder.tuning.tasks import TuningTask, without_other_numbers

pytestmark = pytest.mark.fast


def task(exact: str, anchor: str | None, op_class: str | None = "c", extents: tuple[int, ...] = (8,)) -> TuningTask:
    classes: dict[str, Any] = {"op_class": op_class, "extents": extents}
    return TuningTask(name=exact, exact=exact, anchor=anchor, count=2, networks=("net",), mod=None, classes=classes)


def test_of_workloads_that_differ_in_numbers_alone_the_last_stands_for_all_calls() -> None:
    found = without_other_numbers([task("a", "x"), task("b", "x"), task("c", "y"), task("d", "x")])
    assert [(each.exact, each.count) for each in found] == [("d", 6), ("c", 2)]


def test_another_epilogue_or_shape_and_what_has_no_heavy_block_are_tuned_too() -> None:
    tasks = [
        task("a", "x"), task("b", "x", op_class="other"), task("c", "x", extents=(9,)), task("d", None),
        task("e", None), task("f", "x", op_class=None), task("g", "x", op_class=None),
    ]  # fmt: skip
    assert without_other_numbers(tasks) == tasks

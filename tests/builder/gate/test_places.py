"""Cases are judged on several devices at once, each once, and a failure ends all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tunehub_builder.backends.relax.workload_gate import places
from tunehub_builder.gate.places import judge_at_once

pytestmark = pytest.mark.fast


def test_each_case_is_judged_once_and_all_places_work_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def judge(cases: Iterator[int], place: str) -> Iterator[tuple[str, int]]:
        first = next(cases)
        both.wait(20)  # passes only when two places have taken a case
        yield place, first
        for case in cases:
            yield place, case

    found = list(judge_at_once(range(20), ["a", "b"], judge))
    assert sorted(case for _, case in found) == list(range(20))
    assert {place for place, _ in found} == {"a", "b"}


def test_one_place_needs_no_thread() -> None:
    def judge(cases: Iterator[int], place: str) -> Iterator[tuple[str, str]]:
        return ((place, threading.current_thread().name) for _ in cases)

    assert list(judge_at_once([1], ["a"], judge)) == [("a", threading.current_thread().name)]


def test_what_one_place_raises_ends_the_others_after_their_case() -> None:
    judged: list[int] = []
    failed = threading.Event()

    def judge(cases: Iterator[int], place: str) -> Iterator[int]:
        for case in cases:
            if place == "bad":
                failed.set()
                raise ValueError("no device")
            assert failed.wait(20)
            judged.append(case)
            yield case

    with pytest.raises(ValueError, match="no device"):
        list(judge_at_once(range(1000), ["good", "bad"], judge))
    assert len(judged) < 1000


def test_who_stops_asking_ends_all_places() -> None:
    running = threading.active_count()

    def judge(cases: Iterator[int], _place: str) -> Iterator[int]:
        yield from cases

    found = judge_at_once(iter(int, 1), ["a", "b"], judge)  # endless
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == running


def test_who_stops_asking_waits_for_no_case_that_takes_minutes() -> None:
    stopped, busy = threading.Event(), threading.Event()

    def judge(cases: Iterator[int], place: str) -> Iterator[int]:
        for case in cases:
            if place == "slow":
                busy.set()
                assert stopped.wait(60), "nobody ended it"
                raise RuntimeError("its process was stopped")
            assert busy.wait(20)
            yield case

    found = judge_at_once(iter(int, 1), ["quick", "slow"], judge, stopped.set)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert stopped.is_set()


@pytest.mark.parametrize(("kind", "expected"), [("cuda", [["a"], ["b"]]), ("llvm", [["a", "b"]])])
def test_each_worker_for_a_gpu_judges_workloads_of_its_own(kind: str, expected: list[list[str]]) -> None:
    run, workers = SimpleNamespace(target={"kind": kind}), ["a", "b"]
    assert places(run, workers) == expected  # type: ignore[arg-type]

"""A warm start: what records propose for a task, in which order, and what becomes of it in the searches."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tunehub.records.lookup import Candidate, EmptyLookup, Neighbour
from tunehub.tir.operator_class import OperatorClass
from tunehub_builder.cli.distill import distill as distill_command
from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial
from tunehub_builder.tuning.scheduler.batches import KnobOptions, TunerOptions
from tunehub_builder.tuning.search.evolutionary import EvolutionarySearch
from tunehub_builder.tuning.search.knobs import KnobSearch, choice_id
from tunehub_builder.tuning.search.register_tiles import RegisterTileSearch, center_of
from tunehub_builder.tuning.search.strategy import trace_id
from tunehub_builder.tuning.search.warm_start import (
    TRANSFERRED,
    Seed,
    candidate_id,
    ranked,
    searches,
    seeds_of,
    source_of,
)
from tunehub_builder.tuning.space import register_tiles as sketch
from tunehub_builder.tuning.tasks import TuningTask, task_of
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.record import ScheduleRecord

from ....sweeps import swept
from ...conftest import tile

pytestmark = pytest.mark.slow

Command = Callable[..., list[str]]
PACKAGE = "llvm-nothing 1.0"


class Records(EmptyLookup):
    """Some records as a package has them. ``members``: neighbours by the key of their class."""

    def __init__(
        self,
        exact: ScheduleRecord | None = None,
        anchored: Sequence[ScheduleRecord] = (),
        members: dict[str, list[Neighbour]] | None = None,
    ) -> None:
        self._exact, self._anchored, self._members = exact, anchored, members or {}

    def by_exact(self, key: str) -> Candidate | None:
        if self._exact is None or self._exact.exact != key:
            return None
        return Candidate(record=self._exact, rung="exact", package=PACKAGE)

    def by_anchor(self, key: str) -> tuple[Candidate, ...]:
        found = [record for record in self._anchored if record.anchor == key]
        return tuple(Candidate(record=item, rung="anchor", package=PACKAGE, anchored=True) for item in found)

    def by_class(self, key: str) -> tuple[Neighbour, ...]:
        return tuple(self._members.get(key, ()))


def neighbour(record: ScheduleRecord, extents: tuple[int, ...], seconds: float = 1e-3) -> Neighbour:
    candidate = Candidate(record=record, rung="transfer", package=PACKAGE)
    return Neighbour(
        extents=extents, run_s=seconds, default_s=None, knobs=False, package=PACKAGE, read=lambda: candidate
    )


def product(tvm: Any, rows: int, columns: int, depth: int) -> TuningTask:
    from tvm import te

    a, b = te.placeholder((rows, depth), name="A"), te.placeholder((depth, columns), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    task = task_of("tiny", "matmul", te.create_prim_func([a, b, c]), 1)
    assert task is not None
    return task


def record_of(task: TuningTask, trace: Any, seconds: float = 1e-3) -> ScheduleRecord:
    return ScheduleRecord(
        exact=task.exact, anchor=task.anchor, op=task.name, run_s=(seconds,), source="sketch", trace=tuple(trace),
        **task.classes,
    )  # fmt: skip


def tiled(task: TuningTask, rows: int) -> Any:
    from tvm.s_tir import Schedule

    from tunehub.tir.traces import export_trace

    schedule = Schedule(task.mod)
    tile(schedule, schedule.get_sblock("matmul"), rows)
    return export_trace(schedule.trace)


@pytest.fixture(scope="module")
def host(tvm: Any, target: dict[str, Any]) -> Any:
    return tvm.target.Target(target)


def test_the_most_efficient_and_the_nearest_come_in_turns() -> None:
    own = OperatorClass(key="a" * 32, shape=((64, 64, 64),))
    record = ScheduleRecord(exact="a" * 32, op="x", run_s=(1.0,), source="x", trace=([], []))
    near_and_slow = neighbour(record, (64, 64, 32), 1.0)
    far_and_fast = neighbour(record, (512, 512, 512), 1e-6)
    between = neighbour(record, (128, 128, 128), 1e-3)
    other = neighbour(record, (64, 64), 1e-9)
    assert ranked(own, [between, other, near_and_slow, far_and_fast]) == [far_and_fast, near_and_slow, between]
    assert ranked(own, [other]) == []


def test_sources_name_no_folder_and_fit_into_a_record() -> None:
    assert source_of("llvm-znver5 0.3.0", "anchor") == "registry llvm-znver5 0.3.0, anchor"
    assert source_of("/home/someone/records.jsonl", "exact") == "registry records.jsonl, exact"
    assert len(source_of("x" * 1000, "transfer")) <= 256


def test_seeds_are_searches_by_source_that_propose_each_once() -> None:
    seeds = [Seed(candidate=[name], source=source) for name, source in (("a", "one"), ("b", "two"), ("c", "one"))]
    (first, most), (second, one) = searches(seeds)
    assert [(first.name, most), (second.name, one)] == [("one", 2), ("two", 1)]
    known = [Trial(task="t", trace=["a"], source="sketch")]
    assert first.propose([], 1) == [["a"]]
    assert first.propose(known, 2) == [["c"]]
    assert second.propose([Trial(task="t", trace=["b"], source="two")], 1) == []


def test_what_fits_a_task_is_proposed_best_kind_first(tvm: Any, host: Any) -> None:
    """The record itself, one of its anchor, and others' adapted; a trace that does not fit is left out."""
    task, larger, other = (product(tvm, 128, 128, depth) for depth in (128, 256, 512))
    tall = product(tvm, 256, 64, 128)
    broken = tiled(task, 8)
    broken = [[["GetSBlock", [], ["nothing", "main"], ["b0"]]], []]
    key = task.classes["op_class"]
    own, others = tiled(task, 4), [larger, other, tall]
    members = [neighbour(record_of(item, tiled(item, 16)), item.classes["extents"]) for item in others]
    members += [neighbour(record_of(larger, broken), larger.classes["extents"])]
    members += [neighbour(record_of(task, own), task.classes["extents"])]
    found = seeds_of(task, host, Records(exact=record_of(task, own), members={key: members}), knobs=False)
    assert [seed.source.rpartition(", ")[2] for seed in found] == ["exact", *["transfer"] * (len(found) - 1)]
    assert found[0].candidate == list(own)
    assert 2 <= len(found) <= 1 + len(others)  # equal after adapting: proposed once
    assert len({candidate_id(seed.candidate) for seed in found}) == len(found)
    assert seeds_of(task, host, EmptyLookup(), knobs=False) == []
    assert seeds_of(task, host, Records(exact=record_of(task, own)), knobs=True) == []


def test_seeds_can_be_built_and_are_not_endless(tvm: Any, host: Any) -> None:
    from tunehub.compiler.schedule.apply import apply_exact
    from tunehub.tir.traces import import_trace

    task = product(tvm, 96, 80, 40)
    others = [product(tvm, 16 * rows, 64, 8 * depth) for rows in range(1, 7) for depth in range(1, 7)]
    members = [
        neighbour(record_of(item, tiled(item, 2 ** (i % 4))), item.classes["extents"]) for i, item in enumerate(others)
    ]
    found = seeds_of(task, host, Records(members={task.classes["op_class"]: members}), knobs=False)
    assert 1 < len(found) <= TRANSFERRED
    for seed in found:
        tvm.tirx.build(apply_exact(task.mod, import_trace(seed.candidate)).mod, target=host)


def test_seeds_come_before_the_searches_and_behind_a_templates_own_choice(tvm: Any, host: Any) -> None:
    task = product(tvm, 128, 128, 128)
    records = Records(exact=record_of(task, tiled(task, 4)))
    names = [source.name for source, _ in TunerOptions(records=records).plan(task, host)]
    assert names == [f"registry {PACKAGE}, exact", "sketch", "evolutionary"]
    assert [source.name for source, _ in TunerOptions().plan(task, host)] == ["sketch", "evolutionary"]
    (search, most) = KnobOptions(trials=5, records=records).plan(task, host)[-1]
    assert most == 5
    assert len(KnobOptions(trials=5, records=records).plan(task, host)) == 1  # no knobs among the records
    assert search.name


def test_the_register_tile_of_a_sketch_is_read_from_its_trace(tvm: Any) -> None:
    from tunehub.tir.traces import export_trace

    task = product(tvm, 128, 96, 64)
    loops = sketch.loops_of(task.mod)
    assert loops is not None
    tiles = sketch.register_tiles(loops, 16)
    for found in [*tiles, *sketch.variations(loops, tiles[0])]:
        trace = export_trace(sketch.apply(task.mod, loops, found).trace)
        assert sketch.register_tile(trace) == found.sizes == (found.vectors, found.vector, found.tile)
    assert sketch.register_tile(tiled(task, 8)) is None


def test_sketches_around_what_a_registry_proposed_come_first_and_none_is_lost(tvm: Any) -> None:
    task = product(tvm, 128, 96, 64)
    everything = RegisterTileSearch(task.mod, 16).propose([], 999)
    seed = Trial(task=task.exact, trace=everything[-1], source="registry p, transfer", run_s=(1e-5,))
    center = center_of([seed])
    assert center is not None and center == sketch.register_tile(everything[-1])
    search, trials = RegisterTileSearch(task.mod, 16), [seed]
    while batch := search.propose(trials, 4):
        tiles = [sketch.register_tile(trace) for trace in batch]
        if len(trials) == 1:
            assert all(tile is not None and sketch.apart(tile, center) <= 1.0 for tile in tiles)
        trials += [Trial(task=task.exact, trace=trace, source="sketch", run_s=(1e-3,)) for trace in batch]
    ids = [trace_id(trial.trace) for trial in trials]
    assert len(set(ids)) == len(ids)
    assert set(map(trace_id, everything)) <= set(ids)


def test_without_a_registry_sketches_keep_their_order(tvm: Any) -> None:
    task = product(tvm, 128, 96, 64)
    first, *others = RegisterTileSearch(task.mod, 16).propose([], 999)
    known = [Trial(task=task.exact, trace=first, source="sketch", run_s=(1e-5,))]
    assert center_of(known) is None
    assert RegisterTileSearch(task.mod, 16).propose(known, 999) == others


def test_knobs_that_a_registry_proposed_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    space = tuple(KnobChoice(template="t", version=2, knobs={"a": a}) for a in range(4))
    monkeypatch.setattr("tunehub_builder.tuning.search.knobs.space_of", lambda _mod, _target: space)
    old = KnobChoice(template="t", version=1, knobs={"a": 3})
    trials = [
        Trial(task="x", choice=space[0], source="t 2", run_s=(1.0,)),
        Trial(task="x", choice=space[2], source="registry p, exact", run_s=(1.0,)),
        Trial(task="x", choice=old, source="registry p, anchor", run_s=(1.0,)),
    ]
    found = KnobSearch(None, None).propose(trials, 9)
    assert [choice_id(choice) for choice in found] == [choice_id(space[1]), choice_id(space[3])]


def test_a_population_with_traces_that_tvm_cannot_finish_is_searched(tvm: Any, host: Any) -> None:
    """The search would end with an error if TVM did not leave them out."""
    task = product(tvm, 64, 64, 64)
    good, bad = tiled(task, 4), [[["GetSBlock", [], ["nothing", "main"], ["b0"]]], []]
    trials = [
        Trial(task=task.exact, trace=trace, source="registry p, exact", run_s=(1e-4,)) for trace in (bad, good, bad)
    ]
    search = EvolutionarySearch(task.mod, host, seed=0, threads=1, batch=4)
    proposed = search.propose(trials, 4)
    assert proposed
    assert trace_id(good) not in map(trace_id, proposed)


@pytest.mark.parametrize("option", [["--target", "host"], ["--target", "cuda"]])
def test_a_warm_start_that_cannot_be_is_refused(
    tvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.setenv("TUNEHUB_REQUIRE", "llvm-nothing")
    monkeypatch.setenv("TUNEHUB_RECORDS", str(tmp_path / "none"))
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    call = [*option, "--network", "squeezenet", "--warm-start", "--work", str(tmp_path / "work")]
    result = CliRunner().invoke(tune_command, call)
    assert result.exit_code == 1
    if option[1] == "host":
        assert "--warm-start: there are no records for llvm-" in result.output
        assert "llvm-nothing" in result.output


@pytest.mark.usefixtures("tvm")
@pytest.mark.parametrize("tuner", swept([], ["meta_schedule", "template"]))
def test_another_directory_starts_from_the_records_of_the_first(
    command: Command, blocked_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuner: str
) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNEHUB_REQUIRE", "llvm-nothing")
    options = ["--target", "host", "--model", blocked_model, "--tuner", tuner, "--threads", 1, "--workers", 1]
    search = ["--trials", 2, *(["--search-trials", 0] if tuner == "meta_schedule" else [])]

    def tuned(work: Path, *more: Any) -> list[Trial]:
        call = command("tune", *options, *search, "--work", work, *more)
        subprocess.run(call, capture_output=True, text=True, timeout=240, check=True)
        return list(Journal(work).trials())

    cold = tuned(tmp_path / "cold", "--no-warm-start")
    assert not any(trial.source.startswith("registry") for trial in cold)
    records = tmp_path / "records.jsonl"
    CliRunner().invoke(distill_command, [str(tmp_path / "cold"), "-o", str(records)], catch_exceptions=False)
    assert records.stat().st_size
    monkeypatch.setenv("TUNEHUB_RECORDS", str(records))
    warm = tuned(tmp_path / "warm")

    best = {record["exact"]: record for record in map(json.loads, records.read_bytes().splitlines())}
    by_task: dict[str, list[Trial]] = {}
    for trial in warm:
        by_task.setdefault(trial.task, []).append(trial)
    for exact in best:
        first, *others = by_task[exact]
        if tuner == "template":
            assert not first.source.startswith("registry")  # the gate compares with the template's own choice
            first = next((trial for trial in others if trial.source == "registry records.jsonl, exact"), first)
        else:
            assert first.source == "registry records.jsonl, exact"
        assert first.run_s
    ids = [(trial.task, candidate_id(trial.candidate)) for trial in warm]
    assert len(set(ids)) == len(ids)
    run = WorkDirectory(tmp_path / "warm").existing_run().runs[-1]
    assert run.options["warm_start"] == "own records"
    assert "--warm-start" in run.command and str(tmp_path) not in run.command

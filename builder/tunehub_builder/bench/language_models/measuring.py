"""Runtimes of a language model in turns: seconds of prompts and steps, and how far logits are apart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tunehub.comparison.difference import difference
from tunehub_builder.bench.comparison import processes
from tunehub_builder.bench.language_models.case import LanguageCase, LanguageFacts, step_bytes
from tunehub_builder.bench.language_models.checkpoint import write_random
from tunehub_builder.bench.language_models.runtimes import OURS, RUNTIMES, made, needs_files
from tunehub_builder.exceptions import BenchError

if TYPE_CHECKING:
    from tunehub.compiler.workers.process import WorkerProcess

_WIDE = "PyTorch in float32"
_LIMIT_S = 1200.0
_RAGGED = 7  # how much shorter each prompt is than the one before, of those whose logits are compared
_COMPARED = 4  # sequences of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """`batches` at each of `contexts`; prompts of the lengths `prompts`; `steps` of a sample, `rounds` of samples."""

    prompts: Sequence[int]
    batches: Sequence[int]
    contexts: Sequence[int]
    steps: int = 32
    rounds: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageRow:
    """One figure of a runtime: `kind` is prefill or decode; `samples_s`: seconds of a prompt or a step in each round;
    `error`: why there are none; `bytes`: what a step reads at least."""

    runtime: str
    kind: str
    batch: int
    length: int
    samples_s: Sequence[float] = ()
    error: str | None = None
    bytes: int = 0

    @property
    def seconds(self) -> float:
        """The median. NaN without samples."""
        return median(self.samples_s) if self.samples_s else float("nan")

    @property
    def tokens_per_s(self) -> float:
        """Words read or written."""
        return (self.length if self.kind == "prefill" else self.batch) / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """What a step reads at least, by its time."""
        return self.bytes / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageComparison:
    """`facts` by runtime, and `errors` of those that were not ready; `apart`: how far logits are, relative
    to the largest, from those that PyTorch computes in float32, or without it from those of TVM's default."""

    facts: Mapping[str, LanguageFacts]
    errors: Mapping[str, str]
    rows: Sequence[LanguageRow]
    apart: Mapping[str, float]


def compare_language(
    case: LanguageCase,
    names: Sequence[str],
    asked: Asked,
    *,
    threads: int,
    pythons: Mapping[str, str] | None = None,
    told: Callable[[LanguageRow], None] = lambda _row: None,
    profiled: Callable[[str, str, int, int, Sequence[tuple[str, int, float]]], None] | None = None,
) -> LanguageComparison:
    """Measure runtimes, each in a process of its own, of the interpreter that `pythons` names for it; `told` of each
    row when it is there, `profiled` of the kernels of each prompt and step of TVM's, after that. Where a runtime needs
    weights in a folder and there is none, all get the same random ones. Raises BenchError for a name that is none."""
    unknown = sorted(set(names) - set(RUNTIMES))
    if unknown:
        raise BenchError(f"{unknown[0]} is no runtime of language models: take some of {', '.join(RUNTIMES)}")
    with (
        _with_files(case, names) as given,
        processes(
            {name: partial(made, name, given, threads) for name in names}, threads=threads, pythons=pythons
        ) as workers,
    ):
        facts, errors = _ready(workers)
        ready = {name: worker for name, worker in workers.items() if name in facts}
        apart = _apart(ready, case, asked)
        rows = []
        for row in _rows(ready, case, asked):
            told(row)
            rows.append(row)
        if profiled is not None:
            _profile(ready, asked, profiled)
    return LanguageComparison(facts=facts, errors=errors, rows=rows, apart=apart)


@contextmanager
def _with_files(case: LanguageCase, names: Sequence[str]) -> Iterator[LanguageCase]:
    """The case with a folder for files, and with weights in it, where a runtime needs them."""
    if not any(map(needs_files, names)):
        yield case
        return
    with tempfile.TemporaryDirectory() as work:
        folder = case.folder or Path(work)
        if case.folder is None:
            write_random(case.config, folder)
        yield replace(case, folder=folder, work=Path(work))


def _profile(
    workers: Mapping[str, WorkerProcess],
    asked: Asked,
    profiled: Callable[[str, str, int, int, Sequence[tuple[str, int, float]]], None],
) -> None:
    """Of TVM's runtimes: which kernels a prompt has, and a step."""
    prompts = [("prefill", 1, length) for length in asked.prompts]
    steps = [("decode", batch, context) for context in asked.contexts for batch in asked.batches]
    for name, worker in workers.items():
        for kind, batch, length in [*prompts, *steps] if name.startswith((OURS, "default")) else ():
            answer, value = worker.ask((f"{kind}_kernels", batch, length), _LIMIT_S)
            profiled(name, kind, batch, length, value if answer == "ok" else [(str(value), 0, 0.0)])


def _ready(workers: Mapping[str, WorkerProcess]) -> tuple[dict[str, LanguageFacts], dict[str, str]]:
    facts, errors = {}, {}
    for name, worker in workers.items():
        kind, value = worker.ask(("preparation",), _LIMIT_S)
        if kind == "ok":
            facts[name] = value
        else:
            errors[name] = value
    return facts, errors


def _rows(workers: Mapping[str, WorkerProcess], case: LanguageCase, asked: Asked) -> Iterator[LanguageRow]:
    for length in asked.prompts:
        yield from _in_turns(workers, asked.rounds, ("prefill_s", length), kind="prefill", batch=1, length=length)
    for context in asked.contexts:
        for batch in asked.batches:
            request = ("decode_s", batch, context, asked.steps)
            shape = {"kind": "decode", "batch": batch, "length": context, "bytes": step_bytes(case, batch, context)}
            yield from _in_turns(workers, asked.rounds, request, **shape)


def _in_turns(
    workers: Mapping[str, WorkerProcess], rounds: int, request: tuple[Any, ...], **shape: Any
) -> Iterator[LanguageRow]:
    """A sample of each runtime after another, again and again; one that fails has no further turn."""
    samples: dict[str, list[float]] = {name: [] for name in workers}
    errors: dict[str, str] = {}
    for _ in range(rounds):
        for name, worker in workers.items():
            if name in errors or not worker.alive:
                continue
            kind, value = worker.ask(request, _LIMIT_S)
            if kind == "ok":
                samples[name].append(value)
            else:
                errors[name] = str(value)
    for name in workers:
        error = errors.get(name) or (None if samples[name] else "its process has ended")
        yield LanguageRow(runtime=name, samples_s=samples[name] if not error else (), error=error, **shape)


def _apart(workers: Mapping[str, WorkerProcess], case: LanguageCase, asked: Asked) -> dict[str, float]:
    """How far logits are apart, of prompts of several lengths and of a step of all of them."""
    longest = min(asked.prompts)
    lengths = [max(1, longest - _RAGGED * each) for each in range(min(_COMPARED, case.sequences))]
    requests = {name: ("logits", name) for name in workers}
    torch = next((name for name in workers if name.startswith("torch")), None)
    if torch is not None:
        requests[_WIDE] = ("wide_logits", torch)
    found = {}
    for label, (request, name) in requests.items():
        kind, value = workers[name].ask((request, lengths), _LIMIT_S)
        if kind == "ok":
            found[label] = value
    reference = next((name for name in (_WIDE, "torch", "default", OURS) if name in found), None)
    if reference is None:
        return {}
    return {name: difference([value], [found[reference]]) for name, value in found.items() if name != reference}

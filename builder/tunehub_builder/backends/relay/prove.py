"""Whether TVM (0.8 to 0.19) takes a record: its template exists, takes these arguments, and has these knobs.

Records come from anywhere, and TVM's loaders end the process on some (an invalid step of the auto-scheduler aborts in
C++), so a child process reads them: when it dies, the record that it died on is refuted and another one goes on.
No machine code is made, no device is needed, and no pickle is ever read.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tunehub.exceptions import typed_last_line

if TYPE_CHECKING:
    from tunehub.relay.types import Config, Input, Task

State = Literal["proved", "refuted", "unproved"]

_MAX_DEATHS = 16
_SECONDS_TO_START = 120.0
_SECONDS_A_LINE = 2.0
# What a TVM without the device's runtime says of templates that ask a library (cuDNN, rocBLAS) for its algorithms.
_NEEDS_DEVICE = re.compile(r"[Cc]annot find|[Cc]an't find|not enabled|no CUDA|libdevice|cudnn|miopen")
_MODEL = re.compile(r"\s-model=\S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The outcome for one line.

    `reason` says why a line is refuted, or why nothing can be said about it; on a proved one it tells that the config
    lies outside the template's search space, but TVM makes code of it all the same.
    """

    state: State
    reason: str | None = None


def prove(lines: Sequence[bytes]) -> list[Proof]:
    """Load AutoTVM 0.2 and auto-scheduler lines in the installed TVM; the result has one proof a line, in order."""
    proofs: list[Proof] = []
    ended = "did not start"
    with tempfile.TemporaryDirectory(prefix="tunehub-prove-") as folder:
        source, sink = Path(folder, "lines"), Path(folder, "proofs")
        source.write_bytes(b"".join(line + b"\n" for line in lines))
        for _attempt in range(_MAX_DEATHS):
            death = _run_child(source, sink, len(proofs), len(lines) - len(proofs))
            proofs += _read(sink)
            ended = death.how
            if len(proofs) >= len(lines) or not death.started:
                break
            proofs.append(Proof(state="refuted", reason=f"TVM {death.how} while it read this record"))
    rest = Proof(state="unproved", reason=f"the process that loads records in TVM {ended}")
    return [*proofs, *[rest] * (len(lines) - len(proofs))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Death:
    """How a child ended; one that never started to read says nothing about the records."""

    how: str
    started: bool


def _run_child(source: Path, sink: Path, skip: int, count: int) -> _Death:
    sink.write_bytes(b"")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TOPHUB_LOCATION": "NONE"}
    command = [sys.executable, "-m", "tunehub_builder.backends.relay.prove", str(source), str(sink), str(skip)]
    limit = _SECONDS_TO_START + _SECONDS_A_LINE * count
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return _Death(how=f"took more than {limit:.0f} s", started=bool(sink.read_bytes()))
    code = done.returncode
    how = f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
    return _Death(how=how, started=bool(sink.read_bytes()))


def _read(sink: Path) -> list[Proof]:
    """The proofs that the child wrote; the first line only says that it started, a torn last line does not count."""
    rows = sink.read_bytes().split(b"\n")[1:-1]
    return [Proof(**json.loads(row)) for row in rows]


def main(arguments: Sequence[str]) -> None:
    """The child: read lines from a file, from one on, and append a proof for each to another file."""
    source, sink, skip = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    prover = _Prover()
    with sink.open("ab", buffering=0) as stream:
        stream.write(b"started\n")
        for proof in _proofs(prover, source.read_bytes().split(b"\n")[skip:-1]):
            row = {"state": proof.state, "reason": proof.reason}
            stream.write(json.dumps(row).encode() + b"\n")


def _proofs(prover: _Prover, lines: Iterable[bytes]) -> Iterator[Proof]:
    for line in lines:
        try:
            yield prover.prove(line.decode())
        except Exception as error:  # whatever TVM raises is its verdict on this record only
            yield _failure(error)


class _Prover:
    """Loads records in TVM; a task with its search space is made once for all devices of one kind."""

    def __init__(self) -> None:
        import tvm
        from tvm import auto_scheduler, autotvm, relay, topi  # noqa: F401 - topi and relay register the templates
        from tvm.autotvm.task.task import TASK_TABLE

        self._autotvm = autotvm
        self._auto_scheduler = auto_scheduler
        self._target = tvm.target.Target
        self._lower = tvm.lower
        self._version = tvm.__version__
        self._templates = TASK_TABLE
        self._tasks: dict[str, Task] = {}

    def prove(self, line: str) -> Proof:
        if '"i"' in line and '"input"' not in line:
            return self._auto_scheduler_proof(line)
        inputs, result = self._autotvm.record.decode(line)
        name = inputs.task.name
        if name not in self._templates:
            return Proof(state="unproved", reason=f"TVM {self._version} has no template {name}")
        if not _usable(result.costs):
            return Proof(state="refuted", reason="TVM reads no cost from it")
        task = self._task(inputs)
        if isinstance(task, Proof):
            return task
        problem = space_problem(task.config_space.space_map, inputs.config.to_json_dict()["entity"])
        return Proof(state="proved") if problem is None else self._lowered(task, inputs.config, problem)

    def _lowered(self, task: Task, config: Config, problem: str) -> Proof:
        """Records of 2018 have splits that today's space does not list; whether they still work, lowering shows."""
        try:
            with task.target:
                schedule, arguments = task.instantiate(config)
                self._lower(schedule, arguments)
        except Exception as error:
            return Proof(state="refuted", reason=f"{problem}; {typed_last_line(error)}")
        return Proof(state="proved", reason=problem)

    def _task(self, inputs: Input) -> Task:
        target = _MODEL.sub("", str(inputs.target))
        key = repr((inputs.task.name, inputs.task.args, target))
        if key not in self._tasks:
            try:
                self._tasks[key] = self._autotvm.task.create(inputs.task.name, inputs.task.args, self._target(target))
            except Exception as error:
                self._tasks[key] = _failure(error)
        return self._tasks[key]

    def _auto_scheduler_proof(self, line: str) -> Proof:
        _inputs, result = self._auto_scheduler.measure_record.load_record_from_string(line)
        costs = [float(getattr(cost, "value", cost)) for cost in result.costs]
        if not _usable(costs):
            return Proof(state="refuted", reason="TVM reads no cost from it")
        return Proof(state="proved")


def space_problem(space: dict[str, Any], entity: Sequence[Sequence[Any]]) -> str | None:
    """Why a config is not one of the template's, or None. More knobs than the template has do no harm: TVM ignores
    them; the value of a plain option is not compared, since the lists of options have grown and shrunk."""
    knobs = {name: (kind, value) for name, kind, value in entity}
    for name, axis in space.items():
        if name not in knobs:
            return f"the template has a knob {name}, the config does not"
        problem = _knob_problem(axis, *knobs[name])
        if problem is not None:
            return f"knob {name}: {problem}"
    return None


def _knob_problem(axis: Any, kind: str, value: Any) -> str | None:
    expected = _KINDS.get(type(axis).__name__)
    if expected is not None and kind != expected:
        return f"is of kind {kind!r}, the template's is {expected!r}"
    if kind == "sp":
        return _split_problem(axis, list(value))
    if kind in ("re", "an") and hasattr(axis, "entities") and len(axis.entities) > 0:
        first = axis.entities[0]
        length = len(first.perm if kind == "re" else first.anns)
        return None if len(value) == length else f"has {len(value)} axes, the template's has {length}"
    return None


def _split_problem(axis: Any, sizes: list[int]) -> str | None:
    """A split has the template's number of parts and covers the axis, with a tail only where the template allows it."""
    if len(sizes) != axis.num_output:
        return f"has {len(sizes)} parts, the template's has {axis.num_output}"
    inner = math.prod(sizes[1:])
    if inner < 1 or (axis.policy == "factors" and axis.product % inner):
        return f"{sizes} does not divide the axis of {axis.product}"
    outer = -(-axis.product // inner)
    if sizes[0] not in (-1, outer):
        return f"{sizes} does not cover the axis of {axis.product}"
    return None


_KINDS = {"SplitSpace": "sp", "ReorderSpace": "re", "AnnotateSpace": "an", "OtherOptionSpace": "ot"}


def _usable(costs: Iterable[float]) -> bool:
    values = list(costs)
    return bool(values) and all(math.isfinite(value) and value > 0 for value in values)


def _failure(error: Exception) -> Proof:
    state: State = "unproved" if _NEEDS_DEVICE.search(str(error)) else "refuted"
    return Proof(state=state, reason=f"TVM cannot make its task: {typed_last_line(error)}")


if __name__ == "__main__":
    main(sys.argv[1:])

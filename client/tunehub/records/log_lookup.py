"""Lines of TVM's own tuning logs by key: the port `LogLookup` that Relay's dispatch asks, and its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from tunehub.exceptions import HubError, RecordUnusableError
from tunehub.records.index import ClassMember, IndexedLine, RecordIndex, SetInfo
from tunehub.records.reopening_index import ReopeningIndex
from tunehub_registry.evidence import RecordEvidence

if TYPE_CHECKING:
    from tunehub.records.masking import Mask
    from tunehub_registry.tuning_log import LogRecord

LogRung = Literal["user", "exact", "family", "transfer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCandidate:
    """A line of a log that serves a workload. `family`: it was measured on another device than the target's;
    `transfer`: it was measured at other shapes, so its configuration has to be fitted.

    `line` are its bytes as published, `package` is name and version (`llvm-znver5 0.2.0`) or the user's file.
    """

    record: LogRecord
    line: bytes
    rung: LogRung
    package: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogNeighbour:
    """A line for a workload of the same class, not read yet: its extents, and its time in seconds there.

    `read` gives the record, on the rung `transfer`, or None when it is not sound.
    """

    extents: tuple[int, ...]
    run_s: float
    read: Callable[[], LogCandidate | None]


class LogLookup(Protocol):
    """Where Relay's dispatch gets its records. No method raises in default mode: a problem is a miss and a warning."""

    def best(self, tuner: str, key: str) -> LogCandidate | None:
        """The fastest sound record for the workload with this key."""

    def of_task(self, task: str) -> tuple[LogCandidate, ...]:
        """Sound AutoTVM records for any workload of this task, the references for TVM's own fallback rule."""

    def tasks(self, tuner: str) -> tuple[str, ...]:
        """AutoTVM's tasks, or the auto-scheduler's hashes, that there are records for."""

    def by_class(self, tuner: str, key: str) -> tuple[LogNeighbour, ...]:
        """Records whose workloads are of this class, fastest first; none of the user's, whose gain nobody measured, and
        none of another device's package."""

    def has_operator(self, key: str) -> bool:
        """Whether any implementation of the operator with this key has an AutoTVM record."""

    def graph(self, fingerprint: str) -> tuple[LogCandidate, ...]:
        """The graph-level records of the network with this fingerprint in node order; none when there are none."""

    def evidence(self, tuner: str, key: str) -> RecordEvidence | None:
        """What a publish gate measured for this workload, also of a record that it did not admit."""


class EmptyLogs:
    """No records at all."""

    def best(self, tuner: str, key: str) -> LogCandidate | None:
        """Always None."""
        return None

    def of_task(self, task: str) -> tuple[LogCandidate, ...]:
        """Always empty."""
        return ()

    def tasks(self, tuner: str) -> tuple[str, ...]:
        """Always empty."""
        return ()

    def by_class(self, tuner: str, key: str) -> tuple[LogNeighbour, ...]:
        """Always empty."""
        return ()

    def has_operator(self, key: str) -> bool:
        """Always False."""
        return False

    def graph(self, fingerprint: str) -> tuple[LogCandidate, ...]:
        """Always empty."""
        return ()

    def evidence(self, tuner: str, key: str) -> RecordEvidence | None:
        """Always None."""
        return None


class IndexLogs:
    """The logs of one package, or the user's own, through their index.

    Every line passes the parser and the static check of its configuration before it is returned; one that does not is
    left out and given to `on_problem`. An index that turns out to be damaged is opened anew once.
    """

    def __init__(
        self,
        index: RecordIndex,
        *,
        sets: Sequence[SetInfo],
        package: str,
        rung: LogRung,
        reopen: Callable[[], RecordIndex],
        on_problem: Callable[[HubError], None],
        mask: Mask | None = None,
    ) -> None:
        """`sets` are the record sets of the index that may be used; `reopen` rebuilds the index; what is in `mask`
        never serves."""
        self._index = ReopeningIndex(index, package=package, reopen=reopen, on_problem=on_problem)
        self._sets = {
            tuner: [item.id for item in sets if item.tuner == tuner]
            for tuner in dict.fromkeys(item.tuner for item in sets)
        }
        self._package = package
        self._rung = rung
        self._on_problem = on_problem
        self.is_users = rung == "user"
        self.mask = mask

    def best(self, tuner: str, key: str) -> LogCandidate | None:
        """As the port says."""
        sets = self._sets.get(tuner)
        lines = self._index.ask(lambda index: index.logged(key, sets)) if sets else []
        return next((found for line in lines if (found := self._candidate(line))), None)

    def of_task(self, task: str) -> tuple[LogCandidate, ...]:
        """As the port says."""
        sets = self._sets.get("autotvm")
        lines = self._index.ask(lambda index: index.of_task(task, sets)) if sets else []
        return tuple(found for line in lines if (found := self._candidate(line)))

    def tasks(self, tuner: str) -> tuple[str, ...]:
        """As the port says."""
        sets = self._sets.get(tuner)
        return tuple(self._index.ask(lambda index: index.tasks(sets))) if sets else ()

    def by_class(self, tuner: str, key: str) -> tuple[LogNeighbour, ...]:
        """As the port says; at most `record_index.MAX_MEMBERS`."""
        sets = self._sets.get(tuner) if self._rung == "exact" else None
        members = self._index.ask(lambda index: index.members(key, sets)) if sets else []
        return tuple(map(self._neighbour, members))

    def has_operator(self, key: str) -> bool:
        """As the port says."""
        sets = self._sets.get("autotvm")
        return bool(sets and self._index.ask(lambda index: index.of_operator(key, sets)))

    def graph(self, fingerprint: str) -> tuple[LogCandidate, ...]:
        """As the port says. One bad line spoils the set: what follows it would serve other nodes."""
        sets = None if self._is_masked("graph_tuner", fingerprint) else self._sets.get("graph_tuner")
        found = self._index.ask(lambda index: index.logged(fingerprint, sets)) if sets else []
        if not found:
            return ()
        candidates = [self._candidate(line) for line in _split(found[0])]
        return () if None in candidates else tuple(item for item in candidates if item is not None)

    def evidence(self, tuner: str, key: str) -> RecordEvidence | None:
        """As the port says."""
        found = self._index.ask(lambda index: [index.evidence(tuner, key)])
        return found[0] if found else None

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def _neighbour(self, member: ClassMember) -> LogNeighbour:
        def read() -> LogCandidate | None:
            lines = self._index.ask(lambda index: index.logged_member(member))
            found = self._candidate(lines[0]) if lines else None
            return None if found is None else replace(found, rung="transfer")

        return LogNeighbour(extents=member.extents, run_s=member.run_s, read=read)

    def _candidate(self, found: IndexedLine) -> LogCandidate | None:
        from tunehub_registry.tuning_log import LogLineError, parse_line  # only Relay needs it

        try:
            record = parse_line(found.line)
            problem = record.config_problem
        except LogLineError as error:
            problem = error.reason
        if problem is not None:
            reason = f"{self._package}: line {found.number}, a record of {found.task}, is not used: {problem}"
            self._on_problem(RecordUnusableError(reason, remedy=self._remedy(), cause=f"{self._package}: bad record"))
            return None
        if self._is_masked(record.tuner, record.key):
            return None
        return LogCandidate(record=record, line=found.line, rung=self._rung, package=self._package)

    def _is_masked(self, tuner: str, key: str) -> bool:
        return self.mask is not None and (tuner, key) in self.mask.reasons

    def _remedy(self) -> str:
        return "remove the line from your log" if self._rung == "user" else "report it to the publisher of the package"


class LayeredLogs:
    """Layers in order of preference, the user's first."""

    def __init__(self, layers: Sequence[LogLookup]) -> None:
        """`layers`: most preferred first."""
        self.layers = tuple(layers)

    def best(self, tuner: str, key: str) -> LogCandidate | None:
        """The record of the first layer that has one."""
        return next((found for layer in self.layers if (found := layer.best(tuner, key))), None)

    def of_task(self, task: str) -> tuple[LogCandidate, ...]:
        """The records of all layers, in the order of the layers."""
        return tuple(found for layer in self.layers for found in layer.of_task(task))

    def tasks(self, tuner: str) -> tuple[str, ...]:
        """The names of all layers, each once."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.tasks(tuner)))

    def by_class(self, tuner: str, key: str) -> tuple[LogNeighbour, ...]:
        """The records of the class in all layers, in the order of the layers."""
        return tuple(found for layer in self.layers for found in layer.by_class(tuner, key))

    def has_operator(self, key: str) -> bool:
        """Whether any layer has one."""
        return any(layer.has_operator(key) for layer in self.layers)

    def graph(self, fingerprint: str) -> tuple[LogCandidate, ...]:
        """The records of the first layer that knows the network."""
        return next((found for layer in self.layers if (found := layer.graph(fingerprint))), ())

    def evidence(self, tuner: str, key: str) -> RecordEvidence | None:
        """That of the first layer that has any."""
        return next((found for layer in self.layers if (found := layer.evidence(tuner, key))), None)


def _split(found: IndexedLine) -> list[IndexedLine]:
    lines = enumerate(found.line.split(b"\n"), 2)  # line 1 is the header
    return [replace(found, line=line, number=number) for number, line in lines]

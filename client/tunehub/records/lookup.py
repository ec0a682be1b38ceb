"""Records by key: the port `RecordLookup` that compiling asks, and its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from tunehub.exceptions import HubError, PackageUnusableError, RecordUnusableError
from tunehub.records.index import ClassMember, RecordIndex
from tunehub.records.reopening_index import ReopeningIndex
from tunehub.registries.key_scheme import LADDER, META_SCHEDULE, TEMPLATE
from tunehub.target.machine_profile import PublishedProfile
from tunehub_registry.any_record import AnyRecord, parse_any_record
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.exceptions import FormatError, RegistryError
from tunehub_registry.machine_profile import PROFILE, parse_profile
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.records.masking import Mask
    from tunehub_registry.ladder_record import LadderRecord, LadderStep

IsCurrent = Callable[[TemplateRecord], bool]
Rung = Literal["measured", "user", "exact", "anchor", "transfer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A record that may serve a workload: a trace, or the knobs of a template.

    `rung` is `user` for the user's own records, `measured` for what this process has measured; `anchored` says that the
    record was found by its anchor key, so that it was made for another function with the same anchor block. On the rung
    `transfer` it was found by its operator class: made for other shapes, it has to be adapted. `package` is name and
    version (`llvm-znver5 0.1.0`), or the path of the user's file; `embedded`: it is a package that comes with tunehub;
    `foreign`: it is neither that nor the user's own.
    """

    record: AnyRecord
    rung: Rung
    package: str
    anchored: bool = False
    embedded: bool = False
    foreign: bool = False


def content_of(record: AnyRecord | LadderRecord) -> bytes:
    """What a record says of how to schedule, whatever its times and its workload are."""
    if hasattr(record, "ladder"):
        return msgspec.json.encode([(step.up_to, step.own, _said(step)) for step in record.ladder], order="sorted")
    return msgspec.json.encode(_said(record), order="sorted")


def _said(record: AnyRecord | LadderStep) -> list[object]:
    return [getattr(record, name, None) for name in ("trace", "template", "version", "knobs")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A record of the same operator class, not read yet: what it takes to choose one of many.

    `extents` are those of its workload, `run_s` and `default_s` its times in seconds there. `knobs` says that it holds
    the knobs of a template, `anchored` that the class is that of the anchor block alone. `read` gives the record, or
    None when it is not sound.
    """

    extents: tuple[int, ...]
    run_s: float
    default_s: float | None
    knobs: bool
    package: str
    read: Callable[[], Candidate | None]
    anchored: bool = False


LadderBy = Literal["exact", "anchor", "instance"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundLadder:
    """A ladder of a symbolic workload, and how it was found; `rung`, `package`, `embedded` and `foreign` are a
    candidate's.

    On the rung `transfer` it is for a static workload that has one of the sizes that it was measured at.
    """

    record: LadderRecord
    rung: Rung
    package: str
    embedded: bool = False
    foreign: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the publish gate of ``package`` measured of one tuner's best for a workload, admitted or not."""

    evidence: RecordEvidence
    package: str


class RecordLookup(Protocol):
    """Where compiling gets its records. No method raises in default mode: a problem is a miss and a warning."""

    def by_exact(self, key: str) -> Candidate | None:
        """The best sound record for the very workload with this key, or None."""

    def by_anchor(self, key: str) -> tuple[Candidate, ...]:
        """Sound records for workloads with the same anchor block, best first; none for a malformed key."""

    def by_class(self, key: str) -> tuple[Neighbour, ...]:
        """Records of this class, of functions or of anchor blocks, the greatest speed-up first; none for a bad key."""

    def ladders(self, by: LadderBy, key: str) -> tuple[FoundLadder, ...]:
        """Sound ladders of symbolic workloads, best first: of the very workload with this key, of those with the same
        anchor block, or of those that a static workload with this exact key is an instance of."""

    def measured(self, tuner: str, key: str) -> Measured | None:
        """What is known of this tuner's (`template`, `meta_schedule`) best for the very workload with this key."""


class EmptyLookup:
    """No records at all."""

    def by_exact(self, key: str) -> Candidate | None:
        """Always None."""
        return None

    def by_anchor(self, key: str) -> tuple[Candidate, ...]:
        """Always empty."""
        return ()

    def by_class(self, key: str) -> tuple[Neighbour, ...]:
        """Always empty."""
        return ()

    def ladders(self, by: LadderBy, key: str) -> tuple[FoundLadder, ...]:
        """Always empty."""
        return ()

    def measured(self, tuner: str, key: str) -> Measured | None:
        """Always None."""
        return None


class IndexLookup:
    """The records of one package, or of the user's own file, through its index.

    Every record passes the parser, and a trace the allow-list, before it is returned; one that does not is left out and
    given to `on_problem`. An index that turns out to be damaged is opened anew once.
    """

    def __init__(
        self,
        index: RecordIndex,
        *,
        sets: Sequence[int],
        package: str,
        reopen: Callable[[], RecordIndex],
        on_problem: Callable[[HubError], None],
        is_current: IsCurrent,
        user: bool = False,
        mask: Mask | None = None,
        embedded: bool = False,
    ) -> None:
        """`sets` are the record sets of the index that may be used; `reopen` rebuilds the index; what is in `mask`
        never serves; `embedded`: the package comes with tunehub, byte for byte. `is_current` says whether this client
        has a record's version of its template: of several exact records, one that it has not serves last.

        The field `tuners` names the tuners whose records there are, besides those that compiles have measured: these
        follow the layouts that the others ask for.
        """
        self._index = ReopeningIndex(index, package=package, reopen=reopen, on_problem=on_problem)
        usable = frozenset(sets)
        own = [info for info in index.sets if info.id in usable]
        self._sets = tuple(info.id for info in own if info.tuner != LADDER)
        self._ladder_sets = tuple(info.id for info in own if info.tuner == LADDER)
        self.tuners = frozenset(info.tuner for info in own if info.good > info.measured)
        self._knob_sets = frozenset(info.id for info in own if info.tuner == TEMPLATE)
        self._package = package
        self._on_problem = on_problem
        self._user = user
        self._is_current = is_current
        self.mask = mask
        self._embedded = embedded

    def profile(self) -> PublishedProfile | None:
        """The machine profile that the package has; one that is none is given to `on_problem`, and counts as none."""
        found = self._index.ask(lambda index: index.profiles())
        try:
            parsed = [parse_profile(data, f"{self._package}!{PROFILE}") for data in found]
        except FormatError as error:
            remedy = "report it to the publisher; until then built-in rates hold, or those of `tunehub calibrate`"
            self._on_problem(PackageUnusableError(f"{self._package}'s profile: {error.reason}", remedy=remedy))
            return None
        return PublishedProfile(profile=parsed[0], package=self._package) if parsed else None

    def by_exact(self, key: str) -> Candidate | None:
        """As the port says."""
        lines = self._index.ask(lambda index: index.exact(key, self._sets))
        found = (self._candidate(line, key, self._rung("exact")) for line in lines)
        return self._first_current(candidate for candidate in found if candidate is not None)

    def by_anchor(self, key: str) -> tuple[Candidate, ...]:
        """As the port says; at most `record_index.MAX_CANDIDATES`."""
        lines = self._index.ask(lambda index: index.anchor(key, self._sets))
        return tuple(found for line in lines if (found := self._candidate(line, key, self._rung("anchor"), True)))

    def by_class(self, key: str) -> tuple[Neighbour, ...]:
        """As the port says; at most `record_index.MAX_MEMBERS`."""
        members = self._index.ask(lambda index: index.members(key, self._sets))
        return tuple(self._neighbour(member, key) for member in members)

    def ladders(self, by: LadderBy, key: str) -> tuple[FoundLadder, ...]:
        """As the port says; at most `record_index.MAX_CANDIDATES`."""
        if not self._ladder_sets:
            return ()
        rung = "transfer" if by == "instance" else self._rung(by)
        lines = self._index.ask(lambda index: _ladder_lines(index, by, key, self._ladder_sets))
        return tuple(found for line in lines if (found := self._ladder(line, key, rung)))

    def measured(self, tuner: str, key: str) -> Measured | None:
        """As the port says; nothing of tuners whose records are of no use here."""
        if tuner not in self.tuners:
            return None
        found = self._index.ask(lambda index: [index.evidence(tuner, key)])
        evidence = found[0] if found else None
        return None if evidence is None else Measured(evidence=evidence, package=self._package)

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    @property
    def identity(self) -> str:
        """Which records these are: another text stands for others."""
        masked = sorted(self.mask.reasons) if self.mask is not None else []
        return f"{self._package} {self._index.stamp} {self._sets} {self._ladder_sets} {masked} {self.is_foreign}"

    @property
    def is_foreign(self) -> bool:
        """Whether the records are neither the user's own nor came with tunehub."""
        return not (self._user or self._embedded)

    def _neighbour(self, member: ClassMember, key: str) -> Neighbour:
        def read() -> Candidate | None:
            lines = self._index.ask(lambda index: [index.line(member.line)])
            return self._candidate(lines[0], key, "transfer", member.anchored) if lines else None

        return Neighbour(
            extents=member.extents,
            run_s=member.run_s,
            default_s=member.default_s,
            knobs=member.record_set in self._knob_sets,
            package=self._package,
            read=read,
            anchored=member.anchored,
        )

    def _rung(self, rung: Rung) -> Rung:
        return "user" if self._user else rung

    def _candidate(self, line: bytes, key: str, rung: Rung, anchored: bool = False) -> Candidate | None:
        try:
            record = parse_any_record(line, self._package)
            if isinstance(record, ScheduleRecord):
                from tunehub_registry.trace_rules import validate_trace  # records of templates have none

                validate_trace(record.trace)
        except RegistryError as error:
            self._unusable(key, error)
            return None
        if self._is_masked(META_SCHEDULE if isinstance(record, ScheduleRecord) else TEMPLATE, record.exact):
            return None
        return Candidate(
            record=record,
            rung=rung,
            package=self._package,
            anchored=anchored,
            embedded=self._embedded,
            foreign=self.is_foreign,
        )

    def _ladder(self, line: bytes, key: str, rung: Rung) -> FoundLadder | None:
        from tunehub_registry.ladder_record import parse_ladder_record
        from tunehub_registry.trace_rules import validate_trace  # static shapes need neither

        try:
            record = parse_ladder_record(line, self._package)
            for step in record.ladder:
                if step.trace is not None:
                    validate_trace(step.trace)
        except RegistryError as error:
            self._unusable(key, error)
            return None
        if self._is_masked(LADDER, record.exact):
            return None
        return FoundLadder(
            record=record, rung=rung, package=self._package, embedded=self._embedded, foreign=self.is_foreign
        )

    def _first_current(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The first, but one for another version of its template only when there is none for this: files of users
        grow."""
        first = None
        for candidate in candidates:
            if self._serves_now(candidate.record):
                return candidate
            first = first or candidate
        return first

    def _serves_now(self, record: AnyRecord) -> bool:
        return not isinstance(record, TemplateRecord) or self._is_current(record)

    def _is_masked(self, tuner: str, key: str) -> bool:
        return self.mask is not None and (tuner, key) in self.mask.reasons

    def _unusable(self, key: str, error: RegistryError) -> None:
        reason = f"{self._package}: the record {key} is not used: {error}"
        self._on_problem(RecordUnusableError(reason, remedy=self._remedy(), cause=f"{self._package}: bad record"))

    def _remedy(self) -> str:
        return "remove the line from your records" if self._user else "report it to the publisher of the package"


def _ladder_lines(index: RecordIndex, by: LadderBy, key: str, sets: Sequence[int]) -> list[bytes]:
    ask = {"exact": index.exact, "anchor": index.anchor, "instance": index.of_instance}
    return ask[by](key, sets)


class LayeredLookup:
    """Layers in order of preference, the user's first. Any exact record comes before any anchored one."""

    def __init__(self, layers: Sequence[RecordLookup]) -> None:
        """`layers`: most preferred first."""
        self.layers = tuple(layers)

    def by_exact(self, key: str) -> Candidate | None:
        """The exact record of the first layer that has one."""
        return next((found for layer in self.layers if (found := layer.by_exact(key))), None)

    def by_anchor(self, key: str) -> tuple[Candidate, ...]:
        """The anchored records of all layers, in the order of the layers."""
        return tuple(found for layer in self.layers for found in layer.by_anchor(key))

    def by_class(self, key: str) -> tuple[Neighbour, ...]:
        """The records of the class in all layers, in the order of the layers."""
        return tuple(found for layer in self.layers for found in layer.by_class(key))

    def ladders(self, by: LadderBy, key: str) -> tuple[FoundLadder, ...]:
        """Those of all layers, in the order of the layers."""
        return tuple(found for layer in self.layers for found in layer.ladders(by, key))

    def measured(self, tuner: str, key: str) -> Measured | None:
        """That of the first layer that knows any."""
        return next((found for layer in self.layers if (found := layer.measured(tuner, key))), None)

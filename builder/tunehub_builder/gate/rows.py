"""`tunehub rows`: whether each record of a package still is what it was published as.

A record has to be of use to a network, be it one that the package was not made of, schedule its workload on the TVM
that is installed, and be no slower than what rules had where both were measured. Nothing is run: `tunehub check
--again` measures anew.
Workloads are made as for tuning, and as a client has them (:mod:`tunehub_builder.replay.workloads`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.compiler.schedule.ladder import rule_text
from tunehub.compiler.schedule.request import Request
from tunehub.compiler.schedule.rule_choice import text_hash
from tunehub.exceptions import last_line
from tunehub.kernels.template_fit import published_rates
from tunehub.records.lookup import EmptyLookup
from tunehub.records.never_worse import is_stale
from tunehub.registries.key_scheme import KEY_SCHEMES, RECORD_TUNERS
from tunehub.registries.resolution import tvm_allowed
from tunehub.target.descriptors import as_tvm_target
from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.judged import network_of
from tunehub_builder.gate.packages import evidence_of, opened, published_profile
from tunehub_builder.replay.records import Record, records_by_tuner, scheduled_by_record
from tunehub_builder.replay.workloads import (
    Borrowers,
    MatchedRecord,
    WorkloadFiles,
    WorkloadSource,
    is_at_hand,
    matched_in,
    other_sources,
    sources,
)
from tunehub_builder.tuning.target import tvm_versions
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence, evidence_in
from tunehub_registry.manifest import Manifest

if TYPE_CHECKING:
    from tunehub.target.types import Target

_MOST_REASON = 200
Mapped = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]  # as `map`


@dataclass(frozen=True, kw_only=True, slots=True)
class RowState:
    """One record. ``problem`` fails a release: ``unmatched`` (no workload of a network known by name has a use for
    it), ``orphaned`` (TVM or a template of today cannot use it) or ``slower`` (than rules, where both were measured),
    for ``reason``.

    ``at_hand``: a network of it could be made, or its workload was in a file; else nothing more is known. ``stale``:
    rules choose something else now than it was judged beside (:func:`tunehub.records.never_worse.is_stale`), None where
    it does not say. ``recoded``: they choose the same, and make other code of it. ``by_rule``: it is what rules have,
    so that it is not stale. ``kept``: only a client that keeps layouts has its workload. ``anchored``: no workload has
    its key, and one without a row of its own has its anchor block, which it serves, or, of a trace, its operator class,
    which it may. ``judged``: its evidence says beside which rules it was.
    """

    tuner: str
    exact: str
    op: str
    networks: tuple[str, ...]
    at_hand: bool
    problem: str | None = None
    reason: str = ""
    stale: bool | None = None
    recoded: bool = False
    by_rule: bool = False
    kept: bool = False
    anchored: bool = False
    judged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageRows:
    """The rows of a package. ``problems``: of the package itself, such as an empty table; ``unread``: networks whose
    workloads could not be made, and why; ``over_rules``: how many times as fast networks are with the rows as by rules
    alone, where the package says."""

    package: str
    rows: tuple[RowState, ...]
    problems: tuple[str, ...]
    unread: tuple[str, ...]
    over_rules: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether it may not be released as it is."""
        return bool(self.problems) or any(row.problem for row in self.rows)

    def counts(self) -> dict[str, int]:
        """How many rows there are of each kind."""
        problems = Counter(row.problem for row in self.rows)
        return {
            "rows": len(self.rows),
            "not at hand": sum(not row.at_hand for row in self.rows),
            **{name: problems[name] for name in ("unmatched", "orphaned", "slower")},
            "stale": sum(row.stale is True for row in self.rows),
            "other code": sum(row.recoded for row in self.rows),
            "never judged": sum(not row.judged for row in self.rows),
            "as by rule": sum(row.by_rule for row in self.rows),
            "by anchor": sum(row.anchored for row in self.rows),
            "layout=keep": sum(row.kept for row in self.rows),
        }

    def by_network(self) -> dict[str, tuple[int, int]]:
        """By network: its rows, and those of them that matched a workload."""
        named = Counter(name for row in self.rows for name in row.networks)
        matched = Counter(name for row in self.rows for name in row.networks if row.at_hand and not row.problem)
        return {name: (count, matched[name]) for name, count in sorted(named.items())}

    def as_json(self) -> dict[str, object]:
        """All of it in JSON's types."""
        rows = [asdict(row) for row in self.rows]
        said = {"package": self.package, "problems": self.problems, "unread": self.unread}
        networks = {"networks": self.by_network(), "over_rules": dict(self.over_rules)}
        return {**said, "counts": self.counts(), **networks, "rows": rows}


def rows_of(path: Path, files: WorkloadFiles, mapped: Mapped = map) -> PackageRows:
    """Look at every record of the package ``path``; ``mapped`` looks at sources of workloads, at several at once, say.
    Raises BuilderError where it cannot be read, PackageError and FormatError where it is damaged."""
    package = _Looked.of(path)
    merged = _Merged()
    own = list(sources(package.manifest, files, dict(package.records)))
    for found in mapped(partial(_found_in, path), own):
        merged.add(found)
    others = other_sources(package.manifest, package.target) if merged.lost(package.records) else ()
    for found in mapped(partial(_found_in, path), others):
        merged.add(found)
        if not merged.lost(package.records):
            break
    rows = tuple(
        replace(merged.row(about, record), judged=package.is_judged(about)) for about, record in package.records.items()
    )
    label = f"{package.manifest.name} {package.manifest.version}"
    problems, unread = tuple(_problems(package.manifest)), tuple(merged.unread)
    return PackageRows(package=label, rows=rows, problems=problems, unread=unread, over_rules=package.over_rules)


@contextmanager
def several(workers: int) -> Iterator[Mapped]:
    """What looks at so many sources at once, in processes of their own."""
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield pool.map


def _problems(manifest: Manifest) -> Iterator[str]:
    """What is wrong with whole tables."""
    if not manifest.record_sets:
        yield "it has no table of records"
    installed = tvm_versions()[0]
    for entry in manifest.record_sets:
        if entry.count == 0 and not manifest.evidence_alone:
            yield f"{entry.file} is empty"
        elif entry.tuner in RECORD_TUNERS and not tvm_allowed(entry.tvm, installed):
            yield f"{entry.file} is for TVM {entry.tvm}, which {installed} is not"
        elif KEY_SCHEMES.get(entry.tuner, entry.key_scheme) != entry.key_scheme:
            yield f"{entry.file} has keys of the scheme {entry.key_scheme}; today's is {KEY_SCHEMES[entry.tuner]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _SourceRows:
    """What became of the records that a source has workloads of, the workloads that it lends, and why it has none."""

    rows: Mapping[tuple[str, str], RowState]
    lent: Borrowers
    unread: Sequence[str]


@dataclass(kw_only=True)
class _Merged:
    """What sources have, in their order."""

    rows: dict[tuple[str, str], RowState] = field(default_factory=dict)
    lent: Borrowers = field(default_factory=Borrowers)
    unread: list[str] = field(default_factory=list)

    def add(self, found: _SourceRows) -> None:
        """What the next source has."""
        self.rows = {**found.rows, **self.rows}
        self.lent.update(found.lent)
        self.unread += found.unread

    def lost(self, records: Mapping[tuple[str, str], Record]) -> bool:
        """Whether there is a record that nothing has a use for yet, and something may."""
        return any(
            about not in self.rows and is_at_hand(record) and not self.lent.have_use_for(about[0], record)
            for about, record in records.items()
        )

    def row(self, about: tuple[str, str], record: Record) -> RowState:
        """What is known of a record in the end."""
        anchored = about not in self.rows and self.lent.have_use_for(about[0], record)
        return self.rows.get(about) or _unmatched(about[0], record, anchored=anchored)


def _found_in(path: Path, source: WorkloadSource) -> _SourceRows:
    """In any process."""
    looked, unread, lent = _Looked.of(path), list[str](), Borrowers()
    with published_rates(looked.published):
        matched = matched_in(source, looked.records, looked.target, unread, lent)
        rows = {(each.tuner, each.record.exact): looked.row(each) for each in matched}
    return _SourceRows(rows=rows, lent=lent, unread=unread)


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """A package that is looked at."""

    manifest: Manifest
    records: Mapping[tuple[str, str], Record]
    evidence: Mapping[tuple[str, str], RecordEvidence]
    over_rules: Mapping[str, float]
    published: PublishedProfile | None
    target: Target

    @classmethod
    def of(cls, path: Path) -> _Looked:
        """As it is on the disk: one that has changed is read again. Raises as :func:`rows_of`."""
        try:
            state = path.stat()
        except OSError as error:
            raise BuilderError(f"{path}: {error.strerror}; give a .tunepkg file") from error
        return _looked(path, state.st_mtime_ns, state.st_size)

    def is_judged(self, about: tuple[str, str]) -> bool:
        """Whether the evidence on a record names the rules that it was judged beside."""
        judged = self.evidence.get(about)
        return judged is not None and bool(judged.rule)

    def row(self, matched: MatchedRecord) -> RowState:
        """A record beside today's rules on its workload."""
        tuner, record, mod = matched.tuner, matched.record, matched.mod
        judged = self.evidence.get((tuner, record.exact))
        row = RowState(
            tuner=tuner,
            exact=record.exact,
            op=record.op,
            networks=record.networks,
            at_hand=True,
            kept=matched.kept,
        )
        with self.target:
            try:
                text = text_hash(scheduled_by_record(record, mod, self.target)["main"])
            except Exception as error:  # TVM raises many kinds
                return replace(row, problem="orphaned", reason=last_line(error, limit=_MOST_REASON))
        request = Request(mod=mod, target=self.target, lookup=EmptyLookup())
        own, choice = rule_text(request), request.rule_choice
        row = replace(row, by_rule=text == own)
        stale = None
        if judged is not None and judged.rule:
            now = None if choice is None else choice.hash
            stale = not row.by_rule and is_stale(judged.rule, now, lambda: own)
            recoded = not (row.by_rule or stale) and judged.rule.text != own
            row = replace(row, stale=stale, recoded=recoded)
        rule_s = None if judged is None or stale or row.by_rule else judged.without_s
        if judged is None or rule_s is None or judged.tuned_s <= rule_s:
            return row
        return replace(
            row, problem="slower", reason=f"it takes {judged.tuned_s / rule_s:.3g} times as long as rules do"
        )


@lru_cache(maxsize=1)  # a process looks at many sources of one
def _looked(path: Path, _changed: int, _size: int) -> _Looked:
    with opened(path) as package:
        manifest, records = package.manifest, records_by_tuner(package)
        evidence, published = evidence_of(package), published_profile(package)
        timed = [line for line in evidence_in(package) if isinstance(line, NetworkEvidence) and line.over_rules]
    return _Looked(
        manifest=manifest,
        records={(tuner, key): record for tuner, of in records.items() for key, record in of.items()},
        evidence=evidence,
        over_rules={network_of(line.network): line.over_rules or 1.0 for line in timed},
        published=published,
        target=as_tvm_target(manifest.name),
    )


def _unmatched(tuner: str, record: Record, *, anchored: bool) -> RowState:
    """Where none of its networks can be made, nobody can say what is wrong with it."""
    at_hand = anchored or is_at_hand(record)
    lost = at_hand and not anchored
    return RowState(
        tuner=tuner,
        exact=record.exact,
        op=record.op,
        networks=record.networks,
        at_hand=at_hand,
        problem="unmatched" if lost else None,
        reason=f"no workload of {', '.join(record.networks)} or another network known by name has a use for it"
        if lost
        else "",
        anchored=anchored,
    )

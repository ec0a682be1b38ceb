"""The hub: one target's records and the report; how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tunehub.compiler.current import is_current
from tunehub.exceptions import (
    CompileStepError,
    HubError,
    ProfileError,
    RegistryUnreadableError,
    ScheduleRefusedError,
    TunehubError,
    UnknownTargetError,
    typed_last_line,
)
from tunehub.interrupts import raise_if_asked
from tunehub.options import HubOptions, Layout, Options, Precision, read_options
from tunehub.policy import Policy
from tunehub.records.indexing_budget import IndexingBudget
from tunehub.records.layers import (
    Layer,
    LayerRequest,
    RecordLayers,
    open_layer_behind,
    open_nearest_layer,
    open_user_layer,
)
from tunehub.records.log_lookup import EmptyLogs, IndexLogs, LogLookup
from tunehub.records.lookup import EmptyLookup, IndexLookup, RecordLookup
from tunehub.records.stale_rows import StaleRow, remember_stale
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.configured import configured_registries
from tunehub.registries.ordered import Registries
from tunehub.registries.requirement import Requirement, parse_requirement
from tunehub.registries.resolution import Chosen, Resolution, nearest_text
from tunehub.report.kept import CompileSaid
from tunehub.report.model import Profile, WorkloadReport, WrongOperator
from tunehub.report.origin import Origin
from tunehub.report.report import Report
from tunehub.target.descriptors import descriptor_of, missing_mcpu
from tunehub.target.host import small_pool
from tunehub.target.tvm_generation import find_tvm, require_relax
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.stores.port import Deadline
from tunehub_registry.target import TargetDescriptor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tunehub.compiler.schedule.locked import LockedChoices
    from tunehub.compiler.verify.verification import Verification
    from tunehub.graph.types import Executable
    from tunehub.records.measured import MeasuredRecords
    from tunehub.records.tuning_evidence import PackageEvidence
    from tunehub.registries.port import Registry
    from tunehub.target.machine_profile import PublishedProfile
    from tunehub.target.types import TargetLike
    from tunehub.tir.types import Array, PrimFunc
    from tunehub_registry.trust.attestations import AttestationSummary


@dataclass(kw_only=True, eq=False, repr=False)
class Hub:
    """What `tunehub.context` yields; `open_hub` makes it.

    `target` is the target as it was given, `host` its description, `resolution` how the package was found. The records
    are in `lookup` for TVM 0.25 and newer, in `logs` for TVM up to 0.19; the other one is empty. `layout` says whether
    compiling keeps the layouts of a module or chooses them, `precision` what operands in float32 may be rounded to,
    `winograd` whether convolutions may be computed by that algorithm, `check_indices` whether models refuse indices of
    rows that their tables do not have (CPUs); with `measuring` it measures what has no record, and puts the fastest
    there. `verification` checks schedules before they serve. `published_profile` is what the package for this very CPU
    says of its speed, `evidence` reads what it says of its records; `choices` are the kernels that a lock file asks
    for; `options` are what it was opened with, `origin` which packages and lock file it goes by. Compiling reports by
    `add`, `failed`, `refused`, `fall_back`, `leaves_wrong` and `lost_vectors`; `on_step`, where somebody sets it, is
    told by `step` what begins: `graph`, `schedule`, `lower` or `code`.
    """

    target: TargetLike | None
    host: TargetDescriptor
    resolution: Resolution
    policy: Policy
    lookup: RecordLookup = field(default_factory=EmptyLookup)
    logs: LogLookup = field(default_factory=EmptyLogs)
    layout: Layout = "keep"
    precision: Precision = "float32"
    measuring: MeasuredRecords | None = None
    verification: Verification | None = None
    winograd: bool = False
    check_indices: bool = True
    published_profile: PublishedProfile | None = None
    evidence: Callable[[], PackageEvidence] | None = None
    attestations: AttestationSummary | None = None
    options: Options | None = None
    origin: Origin = field(default_factory=Origin)
    choices: LockedChoices | None = None
    on_step: Callable[[str], None] | None = field(default=None, init=False)
    _workloads: list[WorkloadReport] = field(default_factory=list, init=False)
    _functions: dict[str, Callable[[], tuple[str, str]]] = field(default_factory=dict, init=False)
    _read_evidence: PackageEvidence | None = field(default=None, init=False)
    _profiles: dict[int, Profile] = field(default_factory=dict, init=False)
    _wrong_operators: list[WrongOperator] = field(default_factory=list, init=False)
    _modules: int = field(default=0, init=False)

    @property
    def strict(self) -> bool:
        """Whether problems are errors."""
        return self.policy.strict

    def step(self, name: str) -> None:
        """The next step of a compile begins. Raises what Ctrl-C asks for."""
        raise_if_asked()
        if self.on_step is not None:
            self.on_step(name)

    def begin_module(self) -> int:
        """Begin with the workloads of another module; returns its number, 1 for the first."""
        self._modules += 1
        return self._modules

    def add(self, workload: WorkloadReport, function: PrimFunc | None = None) -> None:
        """Put one compiled workload into the report; `function` is TVM's, kept for the file of misses."""
        self._workloads.append(workload if self.measuring is None else self.measuring.described(workload))
        if function is not None and workload.exact is not None and not workload.hit:
            self._functions[workload.exact] = partial(_function_text, function)

    def failed(self, step: str, error: BaseException) -> None:
        """A step of the hub failed with `error`; the caller goes on without it. Raises in strict mode, and what Ctrl-C
        asks for: then nothing has failed."""
        raise_if_asked()
        raised = self.policy.raised
        if raised is not None and str(raised) in str(error):  # TVM makes errors of its passes its own
            raise raised from error
        if isinstance(error, HubError):
            self.policy.problem(error)
            return
        reason = f"{step} failed: {typed_last_line(error)}"
        problem = CompileStepError(reason, remedy="TVM's own pipeline is used instead; please report it", cause=step)
        problem.__cause__ = error
        self.policy.problem(problem)

    def refused(self, workload: str, reason: str) -> None:
        """A schedule of `workload` was verified and refused; the report says so. Raises in strict mode."""
        if self.strict:
            remedy = "report it to the publisher of the package; without strict, what comes next on the ladder serves"
            self.policy.problem(ScheduleRefusedError(workload, reason, remedy=remedy))

    def slow_integers(self, workload: str, types: str, reason: str) -> None:
        """A product of 8 bits has no schedule: warn, because plain loops take many times what float32 takes."""
        text = f"{workload} ({types}) runs in plain loops: {reason}"
        self.policy.warn(f"{text} (please report it; a model that is not quantised is faster)", text)

    def fall_back(self, reason: str) -> None:
        """The hub cannot serve this module by its nature: warn, in strict mode too, and leave it to TVM."""
        self.policy.warn(f"records are not used: {reason} (TVM's own pipeline is used instead)", reason)

    def leaves_wrong(self, operators: Iterable[WrongOperator]) -> None:
        """Put into the report what the module that was begun last has of what TVM is known to compute wrongly."""
        self._wrong_operators += (replace(each, module=self._modules) for each in operators)

    def lost_vectors(self, functions: Collection[str], reason: str) -> None:
        """TVM makes no vectors of the remainders in these functions of the module that was begun last."""
        self._workloads = [
            replace(each, scalar_remainders=reason) if each.module == self._modules and each.name in functions else each
            for each in self._workloads
        ]

    def note(self, text: str) -> None:
        """Put a remark into the report, without a warning."""
        self.policy.note(text)

    def told(self) -> tuple[int, int]:
        """How many notes and warnings there are so far."""
        return len(self.policy.notes), self.policy.warnings

    def said(self, since: int = 0) -> CompileSaid:
        """What it reported so far, of notes those behind so many."""
        return CompileSaid(
            workloads=tuple(self._workloads),
            wrong_operators=tuple(self._wrong_operators),
            notes=tuple(self.policy.notes[since:]),
            functions={key: text() for key, text in self._functions.items()},
        )

    def take(self, said: CompileSaid) -> None:
        """Report what another hub with the same records said of a compile."""
        first = self._modules
        self._workloads += (replace(each, module=first + each.module) for each in said.workloads)
        self._wrong_operators += (replace(each, module=first + each.module) for each in said.wrong_operators)
        self._functions |= {key: partial(_kept_text, text) for key, text in said.functions.items()}
        self._modules += max((each.module for each in said.workloads), default=0)
        for note in said.notes:
            self.note(note)

    def report(self) -> Report:
        """What was compiled so far."""
        return self._report(self._workloads)

    def profile(
        self, executable: Executable, inputs: Mapping[str, Array] | Sequence[Array], *, runs: int = 10
    ) -> Report:
        """Run an executable that this hub compiled, and time each of its calls; later reports have the times, too.

        `inputs` are arrays of numpy or TVM for `main`, in order or by name; they run on the first device of the
        target's kind, `2 × runs` times and some more to warm up. The report is that of the executable's module (of
        several modules with the same kernels, the one compiled last). Needs TVM 0.25 or newer. Raises
        UnsupportedTVMError, ProfileError, and what TVM raises for wrong inputs.
        """
        require_relax()
        from tunehub.compiler.profile import time_calls
        from tunehub.report.profile import measured, module_of

        if runs < 1:
            raise ProfileError(runs, "is not a number of runs", remedy="give runs=1 or more")
        times = time_calls(executable, inputs, self.host.kind, runs)
        number = module_of(self._workloads, times.calls)
        if number is None:
            remedy = "give what tvm.compile returned inside this hub's context, or tunehub.compile(..., hub=hub)"
            raise ProfileError(executable, "calls no workload that this hub has compiled", remedy=remedy)
        own, self._profiles[number] = measured([item for item in self._workloads if item.module == number], times)
        by_name = {item.name: item for item in own}
        self._workloads = [by_name[w.name] if w.module == number else w for w in self._workloads]
        self.read_tuning()
        return self._report(own)

    def read_tuning(self) -> None:
        """Read what the package's evidence says that tuning is worth, and of the accuracy of networks; from then on
        reports have it. Never raises."""
        read, self.evidence = self.evidence, None
        try:
            self._read_evidence = read() if read is not None else self._read_evidence
        except Exception as error:  # what tuning would gain is then unknown, which the report says
            self.note(f"the package's evidence cannot be read: {error}")

    def _report(self, workloads: Sequence[WorkloadReport]) -> Report:
        chosen = self.resolution.chosen
        modules = {item.module for item in workloads}
        wrong = tuple(item for item in self._wrong_operators if item.module in modules)
        return Report(
            target=self.host.name,
            package=chosen.label if chosen else None,
            origin=self.origin,
            attestations=self.attestations,
            nearest=nearest_text(chosen, self.host.name, self.attestations),
            workloads=tuple(workloads),
            notes=tuple(self.policy.notes),
            profile=self._profiles.get(modules.pop()) if len(modules) == 1 else None,
            tuning=self._read_evidence.ratios if self._read_evidence else {},
            accuracy=self._read_evidence.networks if self._read_evidence else (),
            functions=dict(self._functions),
            wrong_operators=wrong,
        )

    def serves(self, target: TargetLike) -> bool:
        """Whether the records may be used for this target: the hub was opened for its kind and architecture."""
        other = descriptor_of(target)
        return (other.kind, other.arch) == (self.host.kind, self.host.arch)

    def close(self) -> None:
        """Close the files of the records, and remember which of them were stale. Lookups afterwards find nothing or
        fail."""
        found = [(item.package, item.exact, item.op) for item in self._workloads if item.stale is not None]
        stale = [StaleRow(package=label, exact=key, op=op) for label, key, op in found if label and key]
        if stale and self.options is not None:
            remember_stale(self.options.cache, stale)
        for layer in (*getattr(self.lookup, "layers", ()), *getattr(self.logs, "layers", ())):
            if isinstance(layer, IndexLookup | IndexLogs):
                layer.close()


def open_hub(target: TargetLike | None = None, *, tvm_version: str | None = None, **options: Unpack[HubOptions]) -> Hub:
    """Find the package for `target` (None: this machine's CPU) and open its records and the user's own.

    Options that are None come from the environment; `tvm_version` is that of the installed TVM by default.
    Whatever goes wrong with registries, cache or packages ends in a hub with fewer records and one HubWarning, or in
    a HubError in strict mode. Wrong values (UnknownTargetError, RequirementError, SettingError, LockFileError) raise in
    any mode.
    """
    read = read_options(**options)
    requirement = check_options(read)
    host = descriptor_of(target)
    if tvm_version is None:
        installed = find_tvm()
        tvm_version = installed.version if installed else None
    policy = Policy(strict=read.strict)
    policy.hold()
    try:
        return _open(target, host, read, requirement, tvm_version, policy)
    finally:
        policy.release()


def check_options(options: Options) -> Requirement:
    """What the options ask of packages.

    Raises RequirementError (also when a lock file pins something else), or LockFileError.
    """
    requirement = parse_requirement(options.require, options.require_place)
    if options.lock is not None:
        from tunehub.registries.locked import check_lock

        check_lock(options, requirement)
    return requirement


def describe_target(target: TargetLike | None, options: Options, policy: Policy) -> TargetDescriptor:
    """Describe a target as `descriptor_of`; a name that neither TVM nor tunehub knows may be that of a package.

    Raises UnknownTargetError.
    """
    try:
        return descriptor_of(target)
    except UnknownTargetError:
        registries = _open_registries(options, policy)
        name = str(target).lower()
        published = next((offer.target for offer in registries.offers({name}) if offer.name == name), None)
        if published is None:
            raise
        return published


def resolve_host(
    host: TargetDescriptor, options: Options, policy: Policy, tvm_version: str | None
) -> tuple[Registries, Resolution]:
    """Resolve without opening the package. Raises as `open_hub`."""
    registries = _open_registries(options, policy)
    requirement = parse_requirement(options.require, options.require_place)
    resolution = registries.resolve(host, requirement, tvm_version)
    return registries, replace(resolution, behind=registries.behind(resolution, requirement, tvm_version))


def _open_registries(options: Options, policy: Policy, deadline: Deadline | None = None) -> Registries:
    """The lock file's packages alone when there is one, else all registries'."""
    deadline = deadline or Deadline(options.budget)
    return configured_registries(options, on_problem=policy.problem, on_warning=policy.warn, deadline=deadline)


@dataclass(kw_only=True, slots=True)
class _Found:
    """What registries and the user's files give, as far as opening got."""

    resolution: Resolution
    layers: RecordLayers
    origin: Origin = field(default_factory=Origin)
    profile: PublishedProfile | None = None
    read_tuning: Callable[[], PackageEvidence] | None = None
    attestations: AttestationSummary | None = None


def _open(
    target: TargetLike | None,
    host: TargetDescriptor,
    options: Options,
    requirement: Requirement,
    tvm_version: str | None,
    policy: Policy,
) -> Hub:
    _remark(target, host, policy)
    deadline = Deadline(options.budget)
    request = LayerRequest(
        host=host, options=options, requirement=requirement, tvm_version=tvm_version,
        cache=BlobCache(options.cache, deadline), policy=policy, is_current=is_current,
        indexing=IndexingBudget(options.budget),
    )  # fmt: skip
    layers = RecordLayers(relay=request.relay)
    found = _Found(resolution=Resolution(host=host, chosen=None), layers=layers)
    measuring = _measuring(options, host, policy, request.relay)
    try:
        _find(found, request, deadline)
    except TunehubError:
        raise
    except Exception as error:  # a bug of ours must not break a compile
        policy.problem(_unexpected(error))
    return Hub(
        target=target, host=host, resolution=found.resolution, policy=policy,
        lookup=layers.lookup(measuring) or EmptyLookup(), logs=layers.logs() or EmptyLogs(),
        layout=options.layout or layers.layout(), precision=options.precision, measuring=measuring,
        evidence=found.read_tuning, verification=_verification(request, found),
        winograd=options.winograd, check_indices=options.check_indices, published_profile=found.profile,
        attestations=found.attestations, options=options, origin=found.origin,
        choices=None if request.relay else _choices(options, host),
    )  # fmt: skip


def _remark(target: TargetLike | None, host: TargetDescriptor, policy: Policy) -> None:
    """Say what makes compiled code slower than it needs to be."""
    slow = missing_mcpu(target)
    if slow is not None:
        policy.warn(slow)
    pool = small_pool() if host.kind == "llvm" else None
    if pool is not None:
        policy.note(pool)


def _find(found: _Found, request: LayerRequest, deadline: Deadline) -> None:
    """Open the layers, the user's first, and learn what the package says besides."""
    found.layers.add(open_user_layer(request))
    registries = _open_registries(request.options, request.policy, deadline)
    found.resolution, package = open_nearest_layer(request, registries)
    found.layers.add(package)
    found.profile = _published_profile(found.resolution, package)
    behind = open_layer_behind(request, registries, found.resolution)
    if behind is not None:
        found.layers.add(behind[1])
        found.resolution = replace(found.resolution, behind=behind[0])
    found.origin = registries.origin(found.resolution)
    chosen = found.resolution.chosen
    if chosen is not None:
        registry = registries.sources[chosen.position]
        found.read_tuning = partial(_package_evidence, chosen, registry, request.cache)
        found.attestations = _attestations(chosen, registries, request.policy)


def _published_profile(resolution: Resolution, package: Layer | None) -> PublishedProfile | None:
    """What the package for this very CPU says of its speed."""
    chosen = resolution.chosen
    if chosen is None or chosen.match.fit != "exact" or not isinstance(package, IndexLookup):
        return None
    return package.profile()


def _choices(options: Options, host: TargetDescriptor) -> LockedChoices | None:
    """What the lock file of the options asks for beside packages. Raises LockFileError."""
    if options.lock is None:
        return None
    from tunehub.registries.locked import read_lock

    models = tuple(each for each in read_lock(options.lock, options.lock_place).models if each.target == host.name)
    if not models:
        return None
    from tunehub.compiler.schedule.locked import LockedChoices  # imports TVM

    return LockedChoices(place=str(options.lock), models=models)


def _measuring(options: Options, host: TargetDescriptor, policy: Policy, relay: bool) -> MeasuredRecords | None:
    if options.measure and relay:
        policy.warn("nothing is measured: that needs TVM 0.25 or newer", "measuring")
    if not options.measure or relay:
        return None
    from tunehub.records.measured import MeasuredRecords, records_file

    return MeasuredRecords(options.measure, records_file(options.records, host.name))


def _verification(request: LayerRequest, found: _Found) -> Verification | None:
    options, policy, chosen = request.options, request.policy, found.resolution.chosen
    if request.relay:
        if options.verify == "always":
            policy.warn("nothing is verified: that needs TVM 0.25 or newer", "verifying")
        return None
    from tunehub.compiler.artifacts.store import store_of
    from tunehub.compiler.verify.verification import Verification

    measured_here = chosen is not None and chosen.match.fit == "exact"
    return Verification(
        options.verify,
        host=request.host,
        cache=options.cache,
        kernels=store_of(options),
        measured_package=chosen.label if chosen is not None and measured_here else None,
        foreign=found.layers.foreign(),
        on_problem=policy.problem,
    )


def _package_evidence(chosen: Chosen, registry: Registry, cache: BlobCache) -> PackageEvidence:
    from tunehub.records.tuning_evidence import read_package_evidence

    return read_package_evidence(chosen, registry, cache)


def _attestations(chosen: Chosen, registries: Registries, policy: Policy) -> AttestationSummary | None:
    try:
        return registries.attestations(chosen)
    except (RegistryUnreadableError, RegistryError, OSError) as error:
        policy.note(f"what others measured of {chosen.label} cannot be read: {error}")
        return None


def _unexpected(error: Exception) -> HubError:
    problem = CompileStepError(
        f"opening the hub failed: {type(error).__name__}: {error}", remedy="compiling without records; please report it"
    )
    problem.__cause__ = error
    return problem


def _function_text(function: object) -> tuple[str, str]:
    import tvm

    from tunehub.tir.workload import workload_text

    return workload_text(function), str(tvm.__version__)


def _kept_text(text: tuple[str, str]) -> tuple[str, str]:
    return text

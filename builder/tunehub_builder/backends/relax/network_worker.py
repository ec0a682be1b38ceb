"""In a worker process: one network compiled in several ways with current TVM, compared and timed end to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.measure.difference import difference
from tunehub.measure.quiet import Patience, clear_of_the_pool, undisturbed
from tunehub.records.key_scheme import META_SCHEDULE
from tunehub.records.lookup import EmptyLookup, LayeredLookup, Measured
from tunehub_registry.evidence import RecordEvidence, read_evidence

if TYPE_CHECKING:
    from tunehub.hub import Hub
    from tunehub_builder.networks import Network

DEFAULT, PLAIN, TUNED = "default", "plain", "tuned"
_PAUSE_S = 0.05
_RUNS_COMPARED = 3  # threads that write over each other do not do so every time


class NetworkCase(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs of a network: its name, or its ONNX ``file`` with the ``shapes`` of open inputs; TVM's
    ``target`` as JSON; the file of ``records``, the ``layout`` that they are for, and the file of ``evidence``."""

    name: str
    file: str | None = None
    shapes: dict[str, tuple[int, ...]] = {}
    target: dict[str, Any]
    records: str
    layout: str
    evidence: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSampleOptions:
    """In each of ``rounds`` every variant runs for ``warm_up_s``, then for ``sample_s``, after a pause. In seconds.

    The default, which may be a thousand times slower, is not warmed up, and runs for ``default_budget_s`` in all but
    twice at least. Samples that other programs disturb are taken again for ``patience_s``.
    """

    rounds: int
    sample_s: float
    warm_up_s: float
    default_budget_s: float
    patience_s: float


class NetworkSession:
    """What a worker remembers between requests: one network, and the variants that are built. Public methods are the
    requests. Variants: TVM's ``default``, ``plain`` (tunehub without any record), ``tuned`` (with the records)."""

    def __init__(self) -> None:
        self._variants: dict[str, Callable[[], list[Any]]] = {}
        self._expected: list[Any] | None = None

    def task(self, _name: str, case: str) -> None:
        """Load a network, a :class:`NetworkCase` as JSON; whatever was built before is forgotten."""
        import tvm

        self._variants.clear()
        self._expected = None
        self._case = msgspec.json.decode(case, type=NetworkCase)
        self._target = tvm.target.Target(self._case.target)
        network = _network(self._case)
        self._module, self._inputs = network.relax_module(), network.sample_inputs()

    def build(self, variant: str) -> dict[str, int]:
        """Compile the network; returns how many workloads each rung serves. Raises what compiling raises."""
        import tvm

        if variant == DEFAULT:
            self._keep(variant, tvm.compile(self._module, self._target))
            return {}
        from tunehub.relax import pipeline as relax_pipeline

        hub = _hub(self._case, self._target) if variant == TUNED else _plain(self._target)
        self._keep(variant, relax_pipeline.compile_module(self._module, self._target, hub))
        return {rung: count for rung, count in hub.report().rung_counts().items() if count}

    def _keep(self, variant: str, executable: Any) -> None:
        self._variants[variant] = _runner(executable, self._inputs, str(self._target.kind.name))

    def difference(self, variant: str) -> float:
        """The largest difference of an output from the default's, relative to its largest, over some runs."""
        if self._expected is None:
            self._expected = self._variants[DEFAULT]()
        runs = [self._variants[variant]() for _ in range(_RUNS_COMPARED)]
        return max(difference(found, self._expected) for found in runs)

    def sample(self, variants: Sequence[str], options: NetworkSampleOptions) -> dict[str, tuple[float, ...]]:
        """Times of one run in seconds, by variant: the mean of each round."""
        samples: dict[str, list[float]] = {variant: [] for variant in variants}
        patience = Patience(left=options.patience_s)
        with clear_of_the_pool():
            for number in range(options.rounds):
                for variant in variants:
                    spent = sum(samples[variant])
                    if variant == DEFAULT and number > 1 and spent * (1 + 1 / number) > options.default_budget_s:
                        continue
                    samples[variant] += self._round(variant, options, patience)
        return {variant: tuple(times) for variant, times in samples.items()}

    def _round(self, variant: str, options: NetworkSampleOptions, patience: Patience) -> tuple[float, ...]:
        run = self._variants[variant]
        sleep(_PAUSE_S)
        if variant == DEFAULT:
            return undisturbed(lambda: (_mean(run, 0.0),), patience)
        _mean(run, options.warm_up_s)
        return undisturbed(lambda: (_mean(run, options.sample_s),), patience)

    def drop(self) -> None:
        """Forget the network."""
        self._variants.clear()
        self._expected = None


def _network(case: NetworkCase) -> Network:
    from tunehub_builder import networks

    return networks.get(case.name) if case.file is None else networks.from_onnx_file(case.file, shapes=case.shapes)


def _hub(case: NetworkCase, target: Any) -> Hub:
    """A hub with the records of a file, the evidence on them, and nothing else."""
    from tunehub.options import read_options
    from tunehub.records.package_records import open_user_records
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.target.descriptors import descriptor_of

    hub = _plain(target)
    hub.layout = "auto" if case.layout == "auto" else "keep"
    cache, host = BlobCache(read_options().cache), descriptor_of(target)
    lookup = open_user_records(Path(case.records), cache, host=host, given=True, on_problem=_raise)
    hub.lookup = LayeredLookup([lookup or hub.lookup, _Judged(case.evidence)])
    return hub


class _Judged(EmptyLookup):
    """What the gate measured, from a file of evidence."""

    def __init__(self, path: str | None) -> None:
        self._known: dict[tuple[str, str], RecordEvidence] = {}
        if path is not None:
            with Path(path).open("rb") as stream:
                lines = [line for line in read_evidence(stream, path) if isinstance(line, RecordEvidence)]
            self._known = {(line.tuner or META_SCHEDULE, line.exact): line for line in lines}

    def measured(self, tuner: str, key: str) -> Measured | None:
        """As the port says."""
        found = self._known.get((tuner, key))
        return None if found is None else Measured(evidence=found, package="the gate")


def _plain(target: Any) -> Hub:
    """A hub without records, in the layouts that it then chooses; strict, so that falling back to TVM is an error."""
    from tunehub.hub import Hub, Policy
    from tunehub.registries.resolution import Resolution
    from tunehub.target.descriptors import descriptor_of

    host = descriptor_of(target)
    resolution = Resolution(host=host, chosen=None)
    return Hub(target=target, host=host, resolution=resolution, policy=Policy(strict=True), layout="auto")


def _raise(problem: Exception) -> None:
    raise problem


def _runner(executable: Any, inputs: Mapping[str, Any], kind: str) -> Callable[[], list[Any]]:
    import tvm
    from tvm import relax

    device = tvm.cpu() if kind == "llvm" else tvm.device(kind, 0)
    machine = relax.VirtualMachine(executable, device)
    arguments = [tvm.runtime.tensor(value, device=device) for value in inputs.values()]

    def run() -> list[Any]:
        result = machine["main"](*arguments)
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return run


def _mean(run: Callable[[], Any], least_s: float) -> float:
    """Mean seconds of runs, one after the other for ``least_s``, one at least."""
    began, runs = perf_counter(), 0
    while True:
        run()
        runs += 1
        spent = perf_counter() - began
        if spent >= least_s:
            return spent / runs

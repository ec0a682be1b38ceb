"""In a worker process: one network compiled in several ways with current TVM, compared and timed end to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.comparison.difference import tolerance
from tunehub.comparison.protocol import wall_timer
from tunehub.deploy.library import write_library
from tunehub.deploy.runtime import load_module
from tunehub.records.lookup import EmptyLookup, LayeredLookup, Measured
from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub.target.host import physical_cores
from tunehub_builder.bench.gpu_runs import GpuRunner, gpu_runner, launched_seconds, recorded_or_not
from tunehub_builder.gate.accuracy import accuracy_of
from tunehub_builder.gate.network_session import DEFAULT, BuiltNetwork, NetworkSession
from tunehub_builder.networks import Precision
from tunehub_builder.networks.half import in_single
from tunehub_builder.networks.precision import output_steps
from tunehub_registry.evidence import Accuracy, RecordEvidence, read_evidence
from tunehub_registry.machine_profile import MachineProfile

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.graph.types import Executable, VirtualMachine
    from tunehub.target.types import Target
    from tunehub.tir.types import Array, Device, DeviceTensor
    from tunehub_builder.networks import Network

PLAIN, TUNED = "plain", "tuned"
_PATIENCE_S = 20.0


class RelaxNetworkCase(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs of a network: its name, or its ONNX ``file`` with the ``shapes`` of open inputs; the
    ``precision`` that it has or is to have; TVM's ``target`` as JSON; the file of ``records``, the ``layout`` that they
    are for, and the file of ``evidence``. ``half``: it is in half precision. ``profile``: of the machine, by which
    rules go, with the records and without."""

    name: str
    file: str | None = None
    shapes: dict[str, tuple[int, ...]] = {}
    target: dict[str, Any]
    records: str
    layout: str
    precision: Precision = "float32"
    evidence: str | None = None
    half: bool = False
    profile: MachineProfile | None = None


class RelaxNetworkSession(NetworkSession):
    """Variants: TVM's ``default``, ``plain`` (tunehub without any record), ``tuned`` (with the records)."""

    def __init__(self) -> None:
        super().__init__(_PATIENCE_S)
        self._machines: dict[str, VirtualMachine] = {}  # by variant
        self._executables: dict[str, Executable] = {}

    def open(self, case: str) -> None:
        """Load a :class:`RelaxNetworkCase`."""
        import tvm

        self._case = msgspec.json.decode(case, type=RelaxNetworkCase)
        self._target = tvm.target.Target(self._case.target)
        self._network = _network(self._case)
        self._module, self._inputs = None, self._network.sample_inputs()

    def compiled(self, variant: str, *arguments: object) -> tuple[BuiltNetwork, Any]:
        """As the base says; tells how many workloads each rung serves."""
        del arguments
        if self._kind == "cuda":
            return self._on_gpu(variant)
        self._executables[variant], rungs = self._executable(variant)
        return self._loaded(variant, self._executables[variant]), rungs

    def expected(self) -> list[Array]:
        """As the base says; of a network in half precision, in which the default is less precise, those in float32."""
        whole = in_single(self._network)
        if whole is None:
            return super().expected()
        import tvm

        executable = tvm.compile(whole.relax_module(), self._target)
        inputs = [value.astype("float32") if value.dtype == "float16" else value for value in self._inputs.values()]
        return _runner(tvm.relax.VirtualMachine(executable, _device(self._kind)), inputs, self._kind)()

    def least(self) -> Sequence[float]:
        """As the base says: one step of an output in 8 bits may be off, also where it has two or three steps in all."""
        if self._case.precision != "int8":
            return ()
        most = tolerance(["quantised"], "narrow sums")
        return [step / most for step in output_steps(self._network.onnx_model())]

    def _on_gpu(self, variant: str) -> tuple[BuiltNetwork, dict[str, int]]:
        """Recorded as CUDA graphs, and timed without waiting for each run: launches one by one hide what short kernels
        take."""
        rungs: dict[str, int] = {}

        def compiled() -> Executable:
            executable, found = self._executable(variant)
            rungs.update(found)
            return executable

        def ran(executable: Executable) -> GpuRunner:
            runner = gpu_runner(executable, self._inputs)
            runner()
            return runner

        runner = recorded_or_not(compiled, ran)
        return BuiltNetwork(outputs=runner, time=partial(launched_seconds, runner)), rungs

    def generate(self, variant: str) -> dict[str, int]:
        """Compile the network for a target that need not be here, and load nothing; how many workloads each rung
        serves."""
        return self._executable(variant)[1]

    def _executable(self, variant: str) -> tuple[Executable, dict[str, int]]:
        import tvm

        from tunehub.graph.gathers import quiet_gathers

        self._module = self._module or self._network.relax_module()
        if variant == DEFAULT:
            return tvm.compile(quiet_gathers(self._module), self._target), {}
        from tunehub.compiler import pipeline as relax_pipeline

        network = self._network
        made = _hub if variant == TUNED else _plain
        hub = made(self._case, self._target, network)
        executable = relax_pipeline.compile_module(self._module, self._target, hub)
        return executable, {rung: count for rung, count in hub.report().rung_counts().items() if count}

    def accuracy(self, variant: str, inputs: int) -> Accuracy | None:
        """How near a variant's outputs are to onnxruntime's on so many random inputs; None without onnxruntime.

        It computes the operators as the model writes them: its own optimisations round sums in 8 bits in another way.
        """
        from tunehub_builder.bench.runtimes import onnxruntime_session

        try:
            from onnxruntime import GraphOptimizationLevel
        except ImportError:
            return None
        plain = GraphOptimizationLevel.ORT_DISABLE_ALL
        model = self._network.onnx_model().SerializeToString()
        session = onnxruntime_session(model, _threads(), graph_optimization_level=plain)
        names = [argument.name for argument in session.get_inputs()]

        def pair(seed: int) -> tuple[list[Array], list[Array]]:
            values = list(self._network.sample_inputs(seed).values())
            found = _runner(self._machines[variant], values, "llvm")()
            return found, list(session.run(None, dict(zip(names, values, strict=True))))

        return accuracy_of(map(pair, range(inputs)))

    def keep(self, variant: str, file: str) -> None:
        """Write a variant that was built as a library. Raises LinkError."""
        write_library(self._executables[variant], Path(file))

    def take(self, variant: str, file: str) -> None:
        """Load a variant from a library, instead of building it. Raises what loading raises."""
        self._built[variant] = self._loaded(variant, load_module(Path(file)))

    def drop(self) -> None:
        """As the base says."""
        super().drop()
        self._machines.clear()
        self._executables.clear()

    @property
    def _kind(self) -> str:
        return str(self._target.kind.name)

    def _loaded(self, variant: str, executable: Executable) -> BuiltNetwork:
        from tvm import relax

        self._machines[variant] = relax.VirtualMachine(executable, _device(self._kind))
        run = _runner(self._machines[variant], self._inputs.values(), self._kind)
        return BuiltNetwork(outputs=run, time=wall_timer(run))


def _network(case: RelaxNetworkCase) -> Network:
    from tunehub_builder import networks

    if case.file is None:
        return networks.get(case.name)
    return networks.in_precision(networks.from_onnx_file(case.file, shapes=case.shapes), case.precision)


def _hub(case: RelaxNetworkCase, target: Target, network: Network) -> Hub:
    """A hub with the records of a file, the evidence on them, and nothing else: as a client has them of a package, rows
    that are stale by this evidence give way."""
    from tunehub.compiler.current import is_current
    from tunehub.options import read_options
    from tunehub.records.package_records import open_user_records
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.target.descriptors import descriptor_of

    hub = _plain(case, target, network)
    hub.layout = "auto" if case.layout == "auto" else "keep"
    cache, host = BlobCache(read_options().cache), descriptor_of(target)
    lookup = open_user_records(
        Path(case.records), cache, host=host, given=True, on_problem=_raise, is_current=is_current, package=host.name
    )
    hub.lookup = LayeredLookup([lookup or hub.lookup, _Judged(case.evidence, host.name)])
    return hub


class _Judged(EmptyLookup):
    """What the gate measured, from a file of evidence, of a ``package``."""

    def __init__(self, path: str | None, package: str) -> None:
        self._package = package
        self._known: dict[tuple[str, str], RecordEvidence] = {}
        if path is not None:
            with Path(path).open("rb") as stream:
                lines = [line for line in read_evidence(stream, path) if isinstance(line, RecordEvidence)]
            self._known = {(line.tuner or META_SCHEDULE, line.exact): line for line in lines}

    def measured(self, tuner: str, key: str) -> Measured | None:
        """As the port says."""
        found = self._known.get((tuner, key))
        return None if found is None else Measured(evidence=found, package=self._package)


def _plain(case: RelaxNetworkCase, target: Target, network: Network) -> Hub:
    """A hub without records, in the layouts that it then chooses; strict, so that falling back to TVM is an error."""
    from tunehub.compiler.hub import Hub
    from tunehub.policy import Policy
    from tunehub.registries.resolution import Resolution
    from tunehub.target.descriptors import descriptor_of
    from tunehub.target.machine_profile import PublishedProfile

    host = descriptor_of(target)
    resolution = Resolution(host=host, chosen=None)
    policy = Policy(strict=True)
    published = None if case.profile is None else PublishedProfile(profile=case.profile, package="the gate")
    return Hub(
        target=target, host=host, resolution=resolution, policy=policy, layout="auto", precision=network.compiled_in,
        published_profile=published,
        winograd=network.precision != "float32",  # as clients have it; in float32 it may differ by more than is allowed
    )  # fmt: skip


def _raise(problem: Exception) -> None:
    raise problem


def _threads() -> int:
    """Those of TVM's pool in this process."""
    return int(os.environ.get("TVM_NUM_THREADS", "") or physical_cores() or 1)


def _device(kind: str) -> Device:
    import tvm

    return tvm.cpu() if kind == "llvm" else tvm.device(kind, 0)


def _runner(machine: VirtualMachine, inputs: Iterable[DeviceTensor], kind: str) -> Callable[[], list[Array]]:
    import tvm

    arguments = [tvm.runtime.tensor(value, device=_device(kind)) for value in inputs]

    def run() -> list[Array]:
        result = machine["main"](*arguments)
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return run

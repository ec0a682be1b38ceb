"""A compiled library beside what else can run the model that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from tunehub.comparison.difference import tolerance
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.deploy.interface import Interface, Sizes
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, measured_each, prepared, runtime_processes
from tunehub_builder.bench.peers import version_of
from tunehub_builder.bench.runtimes import LibraryRuntime, Runtime
from tunehub_builder.exceptions import BenchError
from tunehub_builder.networks import Network, open_model_file

if TYPE_CHECKING:
    import onnx
    import tvm

OURS = "tunehub"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerModel:
    """The model in a file as other runtimes get it. `shapes` are those of inputs that the library has fixed."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        return open_model_file(self.path, shapes=self.shapes).relax_module()

    def program(self) -> Any:
        """The program in a `.pt2` file. Raises ModelFileError."""
        from tunehub_builder.networks.exported_program import ExportedProgramFile

        return ExportedProgramFile(path=self.path, shapes={}, sizes={}).program()

    def onnx_model(self) -> onnx.ModelProto:
        """The file's own, not rewritten for TVM's importer."""
        from tunehub_builder.networks.onnx_file import OnnxFile

        return OnnxFile(path=self.path, shapes=self.shapes, may_be_open=True).as_exported()


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeRow:
    """A runtime's part: seconds of a run (median, 95th and 99th percentile of `runs`) and of loading, which for some is
    compiling; `difference` of its outputs from tunehub's, relative to the largest; `error` where something is wrong.
    `batch` is the size of the open first dimension, where it was asked for; `per_s` are samples a second in streams."""

    name: str
    version: str | None
    median_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    runs: int = 0
    load_s: float | None = None
    difference: float | None = None
    error: str | None = None
    batch: int | None = None
    per_s: float | None = None


def network_of(interface: Interface, sizes: Sizes, library: Path, model: Path | None) -> Network:
    """What all runtimes are given, with inputs of the library's shapes. Raises LibraryError for an open dimension
    without a size."""
    interface.check_sizes(sizes)
    inputs = {each.name: each.shape_at(sizes) for each in interface.inputs}
    fixed = {each.name: inputs[each.name] for each in interface.inputs if not each.open_dimensions()}
    return Network(
        name=library.stem,
        source=str(model or library),
        inputs=inputs,
        input_dtypes={each.name: each.dtype for each in interface.inputs},
        definition=PeerModel(path=model or library, shapes=fixed),
    )


def batch_dimension(interface: Interface) -> str:
    """The open dimension that comes first in all inputs. Raises BenchError where there is none."""
    first = {each.shape[0] if each.shape else None for each in interface.inputs}
    if len(first) == 1 and isinstance(name := first.pop(), str):
        return name
    shapes = ", ".join(map(str, interface.inputs))
    raise BenchError(f"--batch: no open dimension comes first in all inputs ({shapes}): export the model with one")


def compare_library(
    library: Path, network: Network, peers: Sequence[Runtime], *, threads: int, repeat: int, plan: MeasuringPlan = PLAN
) -> NetworkComparison:
    """Time `library` and its `peers` on `network`, each in a process of its own with so many `threads`, in turns.
    Raises BenchError where no process can be started."""
    runtimes = [LibraryRuntime(library=library.resolve(), name=OURS), *peers]
    try:
        with runtime_processes(runtimes, threads=threads) as workers:
            return measured_each(prepared(network, workers), workers, replace(plan, rounds=repeat))
    except OSError as error:
        raise BenchError(f"no process can be started: {error.strerror or error}") from error


def rows_of(found: NetworkComparison, names: Sequence[str], most: float) -> list[RuntimeRow]:
    """A row for each of `names`; outputs that differ from tunehub's by more than `most` are an error."""
    return [_row(found, name, most) for name in names]


def most_apart(interface: Interface, precision: str | None) -> float:
    """How far outputs may be from tunehub's: its convolutions may be Winograd's, its operands rounded."""
    dtypes = {each.dtype for each in (*interface.inputs, *interface.outputs)}
    rounded = {"bf16": "bfloat16", "auto": "bfloat16", "tf32": "tf32"}.get(precision or "")
    narrow = tolerance([rounded], "narrow sums") if rounded else 0.0
    return max(
        tolerance(dtypes, "winograd"), tolerance(dtypes, "narrow sums"), tolerance(("float32",), "winograd"), narrow
    )


def _row(found: NetworkComparison, name: str, most: float) -> RuntimeRow:
    facts, samples = found.facts.get(name), found.samples_s.get(name, ())
    apart = _difference(found, name)
    error = found.errors.get(name)
    if error is None and apart is not None and not apart <= most:
        error = f"its outputs differ from tunehub's by {apart:.2g} of the largest; the most is {most:.2g}"
    return RuntimeRow(
        name=name,
        version=version_of(name),
        median_s=median(samples) if samples else None,
        p95_s=_percentile(samples, 95) if samples else None,
        p99_s=_percentile(samples, 99) if samples else None,
        runs=len(samples),
        load_s=None if facts is None else facts.compile_s,
        difference=apart,
        error=error,
    )


def _difference(found: NetworkComparison, name: str) -> float | None:
    from tunehub.comparison.difference import difference

    if name == OURS or name not in found.facts or OURS not in found.facts:
        return None
    return difference(found.facts[name].outputs, found.facts[OURS].outputs)


def _percentile(samples: Sequence[float], percent: int) -> float:
    return quantiles(samples, n=100, method="inclusive")[percent - 1] if len(samples) > 1 else samples[0]


def as_plain(row: RuntimeRow) -> dict[str, object]:
    """For JSON, which has no infinity."""
    from dataclasses import asdict

    known = asdict(row)
    return {**known, "difference": None if row.difference == float("inf") else row.difference}

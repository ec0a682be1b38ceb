"""Logs of AutoTVM as records of the client's templates, for TVM 0.25 and newer: one file of records a device.

What a configuration means as knobs is in :mod:`~tunehub_builder.logs.autotvm_to_knobs`. Here a layer is built and keyed
as the client does it, and its template must accept the knobs on the client's own path. Nothing is measured: the times
are AutoTVM's, from another machine perhaps and another code generator, and each record says so in its ``source``.
``default_s`` stays unknown, so that of anchored records the client asks these last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tunehub.kernels import cpu as templates
from tunehub.kernels.te import blocked
from tunehub.kernels.template_fit import TemplateFit
from tunehub.tir.guard import GuardError, check_function
from tunehub.tir.nodes import tensor_class
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.logs.autotvm_to_knobs import PLAIN, DenseLayer, Layer, Translation, translate_knobs
from tunehub_builder.logs.autotvm_v01_to_v02 import UntranslatableError
from tunehub_builder.logs.read import Imported, ReadFile, read_file
from tunehub_builder.tuning.journal import write_atomically
from tunehub_builder.tuning.search.proposals import propose
from tunehub_builder.tuning.tasks import extract_tasks
from tunehub_registry.legacy_target import parse_target
from tunehub_registry.template_record import TemplateRecord, encode_template_record
from tunehub_registry.tuning_log import AUTOTVM, LogRecord

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Tensor

_MOST_TIMES = 1000  # in a record
_NEARLY = 1.2  # of a log's trials of a workload those are tried that take up to so many times as long as the fastest


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslatedLayer:
    """A line that became records of ``device``, one for each layout of its input; ``notes`` say in what their schedule
    differs from the line's."""

    device: str
    file: str
    line: int
    records: tuple[TemplateRecord, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedLayer:
    """A workload without a record, named by its fastest line, and why that one has no knobs here."""

    device: str
    file: str
    line: int
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateImport:
    """What became of some logs; ``written``: the files of records, by device; ``proposed``: new choices for the tuner,
    None when it was not asked for."""

    files: tuple[ReadFile, ...]
    translated: tuple[TranslatedLayer, ...]
    refused: tuple[RefusedLayer, ...]
    written: dict[str, Path]
    proposed: int | None = None

    def as_json(self) -> dict[str, object]:
        """The report, for ``--json``."""
        return {
            "files": [
                {
                    "file": str(file.path),
                    "lines": file.lines,
                    "skipped": [{"line": remark.line, "reason": remark.reason} for remark in file.skipped],
                }
                for file in self.files
            ],
            "records": [
                {
                    "device": item.device,
                    "file": item.file,
                    "line": item.line,
                    "op": item.records[0].op,
                    "template": item.records[0].template,
                    "knobs": item.records[0].knobs,
                    "anchors": [record.anchor for record in item.records],
                    "notes": list(item.notes),
                }
                for item in self.translated
            ],
            "refused": [
                {"device": item.device, "file": item.file, "line": item.line, "op": item.name, "reason": item.reason}
                for item in self.refused
            ],
            "written": {device: str(path) for device, path in self.written.items()},
            "proposed": self.proposed,
        }


def import_as_templates(paths: Sequence[Path], output: Path, work: Path | None = None) -> TemplateImport:
    """Write ``<device>.jsonl`` into the folder ``output`` for each device that a log has translatable lines of.

    Of each workload that line becomes the record that is the fastest of those that a template can express, if it is
    nearly as fast as the fastest of all. The knobs are also proposed to the work directory ``work``, if there is one.
    Raises BuilderError: a log that cannot be read, a file of records that is there already with other content, a full
    disk, a work directory that is in use or another tuner's.
    """
    files = tuple(read_file(path, "0") for path in paths)
    translated: list[TranslatedLayer] = []
    refused: list[RefusedLayer] = []
    for trials in _by_workload(files):
        found = _fastest(trials)
        if isinstance(found, TranslatedLayer):
            translated.append(found)
        else:
            refused.append(found)
    devices = sorted({item.device for item in translated})
    written = {device: output / f"{device}.jsonl" for device in devices}
    for device, path in written.items():
        records = [record for item in translated if item.device == device for record in item.records]
        _write(path, [encode_template_record(record) for record in records])
    proposed = None if work is None else propose(work, (r for item in translated for r in item.records))
    return TemplateImport(
        files=files, translated=tuple(translated), refused=tuple(refused), written=written, proposed=proposed
    )


def template_records(item: Imported) -> tuple[tuple[TemplateRecord, ...], tuple[str, ...]]:
    """The records that a line means, and the notes of its translation. Raises UntranslatableError."""
    if item.record.tuner != AUTOTVM:
        raise UntranslatableError(f"a record of the {item.record.tuner} has no knobs, only steps")
    target = _target(item.record.target)
    meaning = translate_knobs(item.record, _vector(target))
    return tuple(_accepted(item, meaning, layer, target) for layer in meaning.layers), meaning.notes


def _accepted(item: Imported, meaning: Translation, layer: Layer, target: Target) -> TemplateRecord:
    """The record for one layer, keyed and scheduled as the client does it. Raises UntranslatableError."""
    (task,) = extract_tasks([(item.file, layer_module(layer))], target)
    template = templates.template(meaning.template)
    record = TemplateRecord(
        exact=task.exact,
        anchor=task.anchor,
        op=item.record.name,
        run_s=_times(item.record),
        source=f"AutoTVM, {item.file[-200:]}:{item.line}",
        template=template.NAME,
        version=template.VERSION,
        knobs=meaning.knobs,
        **task.classes,
    )
    try:
        schedule = TemplateFit(task.mod, target).by_knobs(record)
        check_function(schedule.mod["main"], task.mod["main"], target)
    except (templates.KnobError, GuardError) as error:
        raise UntranslatableError(f"the template {template.NAME} does not take it: {error}") from error
    return record


def layer_module(layer: Layer) -> IRModule:
    """A Relax module with ``layer`` alone, in its layouts and with packed weights, as planning leaves it."""
    builder = relax.BlockBuilder()
    data, weight = (_variable(name, shape) for name, shape in zip("xw", _shapes(layer), strict=True))
    with builder.function("main", [data, weight]):
        with builder.dataflow():
            result = builder.emit_output(builder.call_te(_operator(layer), data, weight))
        builder.emit_func_output(result)
    return builder.get()


def _operator(layer: Layer) -> Callable[[Tensor, Tensor], Tensor]:
    """What the client's planning of layouts writes for ``layer``."""
    if isinstance(layer, DenseLayer):
        outputs = layer.outputs
        return lambda x, w: blocked.dense_blocked(x, w, outputs=outputs)
    window: dict[str, Any] = {"strides": layer.strides, "padding": layer.padding, "dilation": layer.dilation}
    if layer.depthwise:
        return lambda x, w: blocked.depthwise_blocked(x, w, **window)
    return lambda x, w: blocked.conv2d_blocked(x, w, **window)


def _shapes(layer: Layer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the data and of the packed weights."""
    if isinstance(layer, DenseLayer):
        return (layer.rows, layer.depth), (-(-layer.outputs // layer.block), layer.depth, layer.block)
    inside, outside = layer.blocks
    if inside == PLAIN:
        data: tuple[int, ...] = (layer.batch, layer.in_channels, *layer.size)
        return data, (layer.out_channels // outside, layer.in_channels, *layer.kernel, outside)
    outer = layer.in_channels // inside
    data = (layer.batch, outer, *layer.size, inside)
    if layer.depthwise:
        return data, (outer, *layer.kernel, inside)
    return data, (layer.out_channels // outside, outer, *layer.kernel, inside, outside)


def _variable(name: str, shape: tuple[int, ...]) -> Expr:
    kind = tensor_class()
    return relax.Var(name, kind(shape, "float32"))


@lru_cache(maxsize=64)
def _target(text: str) -> Target:
    """The target of a log for current TVM. Raises UntranslatableError when it has none."""
    found = parse_target(text)
    if found.kind != "llvm":
        raise UntranslatableError(f"templates with knobs are for CPUs, the line is for {found.kind}")
    options = {"mcpu": found.mcpu, "mattr": list(found.mattr), "mtriple": found.mtriple}
    try:
        return tvm.target.Target({"kind": "llvm", **{name: value for name, value in options.items() if value}})
    except Exception as error:  # TVM raises several kinds
        raise UntranslatableError(f"TVM has no target like {text}") from error


@lru_cache(maxsize=64)
def _vector(target: Target) -> int:
    return templates.machine_of(target, cores=1).vector


def _times(record: LogRecord) -> tuple[float, ...]:
    """The times in seconds; their mean alone where one of them is no time."""
    usable = len(record.costs) <= _MOST_TIMES and all(cost > 0 for cost in record.costs)
    return record.costs if usable else (record.mean_s,)


def _by_workload(files: Sequence[ReadFile]) -> Iterator[list[Imported]]:
    """The lines of each workload on each device, the fastest first."""
    groups: dict[tuple[str, str], list[Imported]] = {}
    for file in files:
        for item in file.imported:
            groups.setdefault((item.target.name, item.record.key), []).append(item)
    for items in groups.values():
        yield sorted(items, key=lambda item: item.record.mean_s)


def _fastest(trials: Sequence[Imported]) -> TranslatedLayer | RefusedLayer:
    """The fastest trial that has a translation; when none is nearly as fast as the first, the reason of the first."""
    first = trials[0]
    reason = None
    for item in trials:
        if item.record.mean_s > _NEARLY * first.record.mean_s:
            break
        try:
            records, notes = template_records(item)
        except UntranslatableError as error:
            reason = reason or error.reason
            continue
        if reason is not None:
            slower = item.record.mean_s / first.record.mean_s
            notes = (*notes, f"takes {slower:.2f} times as long as line {first.line} ({reason})")
        return TranslatedLayer(device=item.target.name, file=item.file, line=item.line, records=records, notes=notes)
    return RefusedLayer(
        device=first.target.name, file=first.file, line=first.line, name=first.record.name, reason=reason or ""
    )


def _write(path: Path, lines: Sequence[bytes]) -> None:
    """Write a file of records; one that holds others stays, because it may hold measured ones."""
    content = b"".join(lines)
    try:
        known = path.read_bytes() if path.exists() else content
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror or error}; give a folder that you may read and write") from error
    if known != content:
        raise BuilderError(f"{path} has other records, which are not replaced; give another folder, or move the file")
    write_atomically(path, [content])

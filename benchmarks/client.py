"""What the client costs: import, opening packages of 1,000 to 100,000 records, lookups, and added compile time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import msgspec

from benchmarks.shared.published import RECORDS_FILE, published_records
from benchmarks.shared.table import Row, thousands
from tunehub.registries.key_scheme import KEY_SCHEME
from tunehub_builder import networks
from tunehub_builder.networks import Network
from tunehub_registry.index import Index, RecordSetSummary, ShardEntry, add_version, encode_index, package_path
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import pack
from tunehub_registry.record import ScheduleRecord, encode_record
from tunehub_registry.target import TargetDescriptor

_SIZES = (1_000, 10_000, 100_000)
_JSON_SIZES = (1_000, 10_000)
_QUERIES = 200
_NETWORK = "squeezenet"
_TARGET = TargetDescriptor(kind="llvm", model="benchmark", arch="x86_64")


def run(
    sizes: Sequence[int] = _SIZES,
    json_sizes: Sequence[int] = _JSON_SIZES,
    network: Network | None = None,
    repeats: int = 15,
) -> list[Row]:
    """All rows. A JSONDatabase of each of ``json_sizes`` records is opened once: one of 10,000 takes a minute."""
    with tempfile.TemporaryDirectory() as folder:
        packages = _package_rows(Path(folder), sizes, json_sizes, repeats)
        compiled = _compile_rows(network or networks.get(_NETWORK), max(1, repeats // 3))
        foreign = foreign_rows(network or networks.get(_NETWORK), max(1, repeats // 5))
        return [*_import_rows(repeats), *packages, *compiled, *foreign]


def _import_rows(repeats: int) -> list[Row]:
    """Start of a process that imports tunehub over one that imports nothing, interleaved."""
    bare, ours = [], []
    for _ in range(repeats):
        bare.append(_process_ms("pass"))
        ours.append(_process_ms("import tunehub"))
    return [Row(name="import_ms", value=median(ours) - median(bare), unit="ms", note="over bare Python")]


def _process_ms(code: str) -> float:
    return _ms(lambda: subprocess.run([sys.executable, "-c", code], check=True))


def _package_rows(folder: Path, sizes: Sequence[int], json_sizes: Sequence[int], repeats: int) -> list[Row]:
    from tunehub.compiler.hub import open_hub

    samples = published_records()
    rows, opened = [], {}
    for size in sizes:
        registry, label = folder / str(size), thousands(size)
        keys = _make_registry(registry, samples, size)
        open_it = partial(open_hub, _TARGET, registry=[registry])
        index_s = _ms(lambda: open_it().close()) / 1e3  # noqa: B023
        rows.append(Row(name=f"index_{label}_s", value=index_s, unit="s", note="first use"))
        opened[size] = median(_ms(lambda: open_it().close()) for _ in range(repeats))  # noqa: B023
        hub = open_it()
        query = median(_ms(lambda: hub.lookup.by_exact(key)) for key in keys[:_QUERIES])  # noqa: B023
        assert hub.lookup.by_exact(keys[0]) is not None
        hub.close()
        rows.append(Row(name=f"open_{label}_ms", value=opened[size], unit="ms", note="indexed before"))
        rows.append(Row(name=f"query_{label}_ms", value=query, unit="ms", note="one exact record"))
    for size in json_sizes:
        value = _json_database_ms(folder / f"json{size}", size)
        rows.append(Row(name=f"jsondatabase_open_{thousands(size)}_ms", value=value, unit="ms"))
        rows.append(Row(name=f"open_{thousands(size)}_vs_jsondatabase", value=value / opened[size], unit="times"))
    return rows


def _make_registry(folder: Path, samples: list[ScheduleRecord], size: int) -> list[str]:
    """A folder registry with one package of ``size`` records under keys of their own; returns the keys."""
    records = list(_renamed(samples, size))
    manifest = Manifest(
        format_version="1.0", name="llvm-benchmark", version="1.0", target=_TARGET, networks=(),
        record_sets=(
            RecordSet(tuner="meta_schedule", file=RECORDS_FILE, tvm=">=0.25,<0.28", key_scheme=KEY_SCHEME, count=size),
        ),
        provenance=_provenance(),
    )  # fmt: skip
    data = pack(manifest, {RECORDS_FILE: b"".join(map(encode_record, records))})
    entry = ShardEntry(
        version="1.0", file=package_path("llvm-benchmark", "1.0"), sha256=hashlib.sha256(data).hexdigest(),
        size=len(data), record_sets=(RecordSetSummary(tuner="meta_schedule", tvm=">=0.25,<0.28"),),
        published="2026-01-01",
    )  # fmt: skip
    update = add_version(Index(schema_version="1.0", serial=0, names={}), None, entry, target=_TARGET)
    for path, content in (
        (entry.file, data), (update.shard_path, update.shard_data), ("index.json", encode_index(update.index)),
    ):  # fmt: skip
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return [record.exact for record in records]


def _renamed(samples: list[ScheduleRecord], size: int) -> Iterator[ScheduleRecord]:
    for number in range(size):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        sample = samples[number % len(samples)]
        yield msgspec.structs.replace(sample, exact=digest[:32], anchor=digest[32:], op=f"synthetic {digest[:16]}")


def _provenance() -> Provenance:
    return Provenance(
        machine={}, tvm_version="0.27.0", tvm_ffi_version="0", tuner_options={}, trials=0, seed=0, threads=1,
        command="python -m benchmarks client", started="2026-01-01", finished="2026-01-01",
    )  # fmt: skip


def _json_database_ms(folder: Path, size: int) -> float:
    """Open a JSONDatabase with ``size`` records of one convolution, written as TVM writes them."""
    from tvm.s_tir import meta_schedule as ms

    workload, record = _stock_json()
    folder.mkdir()
    (folder / "database_workload.json").write_text(workload + "\n")
    (folder / "database_tuning_record.json").write_text((record + "\n") * size)
    return _ms(lambda: ms.database.JSONDatabase(work_dir=str(folder)))


@cache
def _stock_json() -> tuple[str, str]:
    """One workload and one record of it, in TVM's own JSON."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    from tunehub_builder.tuning.space import register_tiles as sketch

    a, b = te.placeholder((256, 256), name="A"), te.placeholder((256, 256), name="B")
    k = te.reduce_axis((0, 256), name="k")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    loops = sketch.loops_of(mod)
    assert loops is not None
    schedule = sketch.apply(mod, loops, sketch.register_tiles(loops, 16)[0])
    workload = ms.database.Workload(mod)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    arguments = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
    record = ms.database.TuningRecord(schedule.trace, workload, [1e-3], target, arguments)
    return _dumps(workload.as_json()), _dumps([0, record.as_json()])


def _dumps(value: Any) -> str:
    def plain(item: Any) -> Any:
        if hasattr(item, "value"):
            return item.value
        return dict(item.items()) if hasattr(item, "items") else list(item)

    return json.dumps(value, default=plain)


def _compile_rows(network: Network, repeats: int) -> list[Row]:
    """One network: TVM's plain pipeline, the hub's, and of this the functions with records; medians, interleaved.

    What is per workload with a record is left out where there is none.
    """
    import tvm

    import tunehub
    from tunehub.compiler.hub import open_hub
    from tunehub.compiler.pipeline import build_pipeline
    from tunehub.compiler.preparing import prepare
    from tunehub.compiler.schedule.ladder import schedule_function

    target = tunehub.host_target()
    module = network.relax_module()
    with target:
        build_pipeline(target, open_hub(target))(module)  # first use loads what is loaded lazily
    samples: dict[str, list[float]] = {"plain": [], "hub": [], "applied": []}
    for _ in range(repeats):
        samples["plain"].append(_ms(lambda: tvm.compile(module, target)))
        hub = open_hub(target)
        samples["hub"].append(_ms(lambda: tunehub.compile(module, target, hub=hub)))  # noqa: B023
        served = {workload.name for workload in hub.report().hits()}
        prepared = prepare(module, target, layout=hub.layout)
        functions = [function for name, function in prepared.functions.items() if str(name.name_hint) in served]
        samples["applied"].append(_ms(lambda: [schedule_function(f, target, hub.lookup) for f in functions]))  # noqa: B023
    times = {name: median(values) for name, values in samples.items()}
    rows = [
        Row(name="hub_hits", value=len(functions), unit="count", note=f"workloads of {network.name}"),
        Row(name="compile_vs_plain", value=times["hub"] / times["plain"], unit="times"),
    ]
    each = (
        ("compile", times["hub"] - times["plain"], "whole compile with records less TVM's plain one: graph passes, "
         "records, packing, code generation"),
        ("apply", times["applied"], "records only: lookup, checks and schedule"),
    )  # fmt: skip
    for what, ms, note in each if functions else ():
        rows.append(Row(name=f"hub_{what}_ms_per_hit", value=ms / len(functions), unit="ms", note=note))
    return rows


def foreign_rows(network: Network, repeats: int) -> list[Row]:
    """One network with the embedded packages, and as if they were somebody else's, whose schedules run once before they
    serve: the first compile, and one that knows the verdicts. Medians of hubs that are new each time."""
    import tunehub
    from tunehub.compiler.hub import open_hub
    from tunehub.records import package_records

    target, module = tunehub.host_target(), network.relax_module()
    samples: dict[str, list[float]] = {"embedded": [], "foreign_first": [], "foreign_again": []}

    def compiled(name: str, cache: str) -> None:
        with patch.dict(os.environ, TUNEHUB_CACHE=cache), closing(open_hub(target)) as hub:
            samples[name].append(_ms(lambda: tunehub.compile(module, target, hub=hub)))

    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as known, tempfile.TemporaryDirectory() as cache:
            compiled("embedded", known)
            with patch.object(package_records, "embedded_digests", lambda _: frozenset()):
                compiled("foreign_first", cache)
                compiled("foreign_again", cache)
    times = {name: median(values) for name, values in samples.items()}
    note = f"of {network.name}'s compile with embedded packages, {times['embedded']:.0f} ms"
    return [
        Row(name=f"compile_{name}", value=times[name] / times["embedded"], unit="times", note=note)
        for name in ("foreign_first", "foreign_again")
    ]


def _ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3

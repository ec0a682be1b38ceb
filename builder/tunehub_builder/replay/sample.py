"""A whole network on one release: compiled as a client compiles it, with a package's records and no others.

It is compiled for the package's target, and where this machine's CPU has all that such code uses, run, too, beside
TVM's default. For a GPU code is generated, and not assembled: that needs no GPU.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tunehub.comparison.difference import difference_reason
from tunehub.target.descriptors import as_tvm_target
from tunehub_builder import networks
from tunehub_builder.backends.relax.network_worker import TUNED, RelaxNetworkCase, RelaxNetworkSession
from tunehub_builder.gate.network_session import DEFAULT
from tunehub_builder.gate.network_times import TOLERANCE
from tunehub_builder.replay.records import runs_here
from tunehub_builder.replay.results import OnBegin, failed_sample
from tunehub_registry.any_record import AnyRecord, encode_any_record
from tunehub_registry.compat import NetworkSample
from tunehub_registry.manifest import Manifest
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.target import TargetDescriptor

# Networks that compile in seconds, the quickest first.
_SMALL = ("squeezenet", "mobilenet_v2", "shufflenet", "resnet-18", "mobilenet", "alexnet")
_BY_RECORD = ("user", "exact", "anchor", "transfer")  # a file of records is the user's


def compile_sample(manifest: Manifest, records: Sequence[AnyRecord], on_begin: OnBegin) -> NetworkSample | None:
    """What comes of the package's smallest known network with all ``records``, as a client has them; None without a
    small one."""
    static = {entry.name for entry in manifest.networks if networks.OPEN not in entry.source}
    served = static & {name for record in records for name in record.networks}
    name = next((each for each in _SMALL if each in served), None)
    if name is None:
        return None
    on_begin("", name)
    try:
        return _compiled(name, manifest.target, records)
    except Exception as error:  # TVM raises many kinds
        return failed_sample(name, error)


def _compiled(name: str, described: TargetDescriptor, records: Sequence[AnyRecord]) -> NetworkSample:
    target = as_tvm_target(described.name)
    runs = runs_here(target)
    layout = "keep" if all(isinstance(record, ScheduleRecord) for record in records) else "auto"  # as a client has it
    with tempfile.TemporaryDirectory(prefix="tunehub-sample-") as folder:
        file = Path(folder) / "records.jsonl"
        file.write_bytes(b"".join(encode_any_record(record) for record in records))
        case = RelaxNetworkCase(name=name, target=json.loads(str(target)), records=str(file), layout=layout)
        session = RelaxNetworkSession()
        session.task(name, msgspec.json.encode(case).decode())
        rungs = session.build(TUNED) if runs else session.generate(TUNED)
        reason = _other_outputs(session) if runs else None
    if reason is not None:
        return failed_sample(name, f"run beside the default: {reason}")
    served = sum(rungs.get(rung, 0) for rung in _BY_RECORD)
    return NetworkSample(network=name, outcome="ok", workloads=sum(rungs.values()), by_record=served, ran=runs)


def _other_outputs(session: RelaxNetworkSession) -> str | None:
    session.build(DEFAULT)
    return difference_reason(session.difference(TUNED), TOLERANCE)

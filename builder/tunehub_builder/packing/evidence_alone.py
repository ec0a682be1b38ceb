"""Packages of evidence alone: where rules are as good as records, that is what is published, and no records.

Their tables are empty. They say for which TVM it was measured, and clients that choose such a package look no further.
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import msgspec

from tunehub.registries.key_scheme import KEY_SCHEME, LOG_TUNERS, TEMPLATE
from tunehub_builder.backends.relax.contents import TVM_VERSIONS
from tunehub_builder.exceptions import PackingError
from tunehub_builder.gate.judged import network_of
from tunehub_builder.packing.contents import Contents
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence, encode_evidence, read_evidence
from tunehub_registry.machine_profile import PROFILE
from tunehub_registry.manifest import RecordSet
from tunehub_registry.package import EVIDENCE

_FILE = f"records/{TEMPLATE}.jsonl"
_REASON = "published as evidence alone: whole networks are as fast by rules"


def without_records(contents: Contents) -> Contents:
    """``contents`` with an empty table in place of all records, of which none is admitted any more, and the networks
    that were run. Rules go by built-in rates: there is no profile. Raises PackingError where no network was run with
    records and by rules alone, and for records of TVM up to 0.19."""
    lines = [line for line in read_evidence(BytesIO(contents.evidence), EVIDENCE) if isinstance(line, Evidence)]
    run = {network_of(line.network) for line in lines if isinstance(line, NetworkEvidence) and line.over_rules}
    if not run:
        remedy = "run `tunehub check --end-to-end`, or give --measured with `over_rules`"
        raise PackingError(f"no network was run beside rules alone, so nothing says that they are as good; {remedy}")
    if any(entry.tuner in LOG_TUNERS for entry in contents.record_sets):
        raise PackingError("records of TVM up to 0.19 have no rules beside them: leave --evidence-alone out")
    left_out = {PROFILE, *(entry.file for entry in contents.record_sets)}
    table = RecordSet(tuner=TEMPLATE, file=_FILE, tvm=TVM_VERSIONS, key_scheme=KEY_SCHEME, count=0)
    return replace(
        contents,
        record_sets=(table,),
        networks=tuple(entry for entry in contents.networks if entry.name in run),
        files={**{name: data for name, data in contents.files.items() if name not in left_out}, _FILE: b""},
        evidence=b"".join(encode_evidence(_not_admitted(line)) for line in lines),
        counts={**contents.counts, "records": 0, "taken_along": 0},
        curves=(),
    )


def _not_admitted(line: Evidence) -> Evidence:
    if isinstance(line, RecordEvidence) and line.admitted:
        return msgspec.structs.replace(line, admitted=False, reason=_REASON)
    return line

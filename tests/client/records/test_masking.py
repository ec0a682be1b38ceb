"""Records that the installed TVM cannot use, by the replays published beside their package."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tunehub.cli.group import cli
from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import HubError, HubWarning
from tunehub.records.index import RecordIndex
from tunehub.records.index_building import index_in_memory, record_sets
from tunehub.records.indexing_budget import Meter
from tunehub.records.log_lookup import IndexLogs
from tunehub.records.masking import Mask
from tunehub_registry.compat import Compat, RecordReplay, ReleaseReplay, encode_compat
from tunehub_registry.graph_log import parse_graph_header
from tunehub_registry.index import parse_index, parse_shard
from tunehub_registry.package import open_package
from tunehub_registry.publishing.packages import attach
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.tuning_log import LogRecord, read_log

from ..conftest import ZNVER5, RegistryFolder, key, lines, make_record

pytestmark = pytest.mark.fast

TVM = "0.27.0.post1"


def compat_of(file: Path, *masked: int, **changes: Any) -> Compat:
    records = [
        RecordReplay(tuner="meta_schedule", key=key(number), outcome="failed", reason="TypeError: no such instruction")
        for number in masked
    ]
    fields: dict[str, Any] = {
        "name": ZNVER5.name,
        "version": "0.1.0",
        "package": hashlib.sha256(file.read_bytes()).hexdigest(),
        "created_by": "test",
        "created": "2026-11-23",
        "releases": (ReleaseReplay(tvm="0.27.0.post1", records=tuple(records)),),
    }
    return Compat(**{**fields, **changes})


@pytest.fixture
def package(registry: RegistryFolder) -> Path:
    return registry.publish(data=lines(make_record(1), make_record(2)))


def attach_bytes(registry: RegistryFolder, package: Path, data: bytes) -> None:
    sha256 = hashlib.sha256(package.read_bytes()).hexdigest()
    ledger = UnsignedLedger(FolderStore(registry.root))
    attach(ledger, ZNVER5.name, "0.1.0", package=sha256, kind="compat", data=data)


def opened(registry: RegistryFolder, tvm: str = TVM, **options: Any) -> Hub:
    return open_hub(ZNVER5, registry=str(registry.root), tvm_version=tvm, **options)


def test_what_is_masked_does_not_serve_and_the_report_says_so(registry: RegistryFolder, package: Path) -> None:
    attach_bytes(registry, package, encode_compat(compat_of(package, 1)))
    for tvm, first in ((TVM, False), ("0.26.0", True)):
        hub = opened(registry, tvm, strict=True)
        assert (hub.lookup.by_exact(key(1)) is not None) is first
        assert bool(hub.lookup.by_anchor(key(1001))) is first
        assert hub.lookup.by_exact(key(2)) is not None
        notes = [note for note in hub.report().notes if note.startswith("masked: ")]
        assert bool(notes) is not first
        hub.close()
    hub = opened(registry)
    (note,) = [note for note in hub.report().notes if note.startswith("masked: ")]
    assert note.startswith(f"masked: 1 record of llvm-znver5 0.1.0 that TVM {TVM} cannot use, such as meta_schedule")
    assert "no such instruction" in note
    hub.close()


@pytest.mark.parametrize("damage", ["garbage", "another package", "gone", "another version"])
def test_a_document_that_is_none_masks_nothing_and_warns_once(
    registry: RegistryFolder, package: Path, damage: str
) -> None:
    compat = compat_of(package, 1, package="0" * 64) if damage == "another package" else compat_of(package, 1)
    data = encode_compat(compat)
    if damage == "another version":
        data = data.replace(b'"format_version":"1.0"', b'"format_version":"2.0"')
    attach_bytes(registry, package, b"[" * 100 if damage == "garbage" else data)
    if damage == "gone":
        for path in (registry.root / "packages" / "documents").iterdir():
            path.unlink()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = opened(registry)
    assert [item.category for item in caught] == [HubWarning]
    assert "what is known of llvm-znver5 0.1.0 on each TVM is not used" in str(caught[0].message)
    assert hub.lookup.by_exact(key(1)) is not None
    hub.close()


def test_attach_publishes_what_replay_wrote(registry: RegistryFolder, package: Path, tmp_path: Path) -> None:
    document = tmp_path / "compat.json"
    document.write_bytes(encode_compat(compat_of(package, 1)))
    command = ["attach", str(registry.root), str(document), "--unsigned", "--json"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    assert '"kind": "compat"' in result.output
    hub = opened(registry)
    assert hub.lookup.by_exact(key(1)) is None
    hub.close()
    document.write_bytes(encode_compat(compat_of(package, 1, package="0" * 64)))
    refused = CliRunner().invoke(cli, command)
    assert refused.exit_code == 1
    assert "make the document from the published package" in refused.stderr
    document.write_bytes(b"{}")
    refused = CliRunner().invoke(cli, command)
    assert refused.exit_code == 1
    assert "compat.json: at $.format_version" in refused.stderr


def test_logs_are_masked_too() -> None:
    """Of the embedded package for Zen 5: one of AutoTVM's records, and a graph-level set as a whole."""
    root = Path(__file__).parents[3]
    known = parse_index((root / "index.json").read_bytes(), "index.json").names["llvm-znver5"]
    shard = parse_shard((root / known.shard_path).read_bytes(), "shard")
    package = root / shard.versions[-1].file
    with open_package(package) as opened_package:
        first = next(iter(read_log(opened_package.open("records/autotvm.log"), "log")))
        header = parse_graph_header(opened_package.open("records/graph/resnet-18.log").readline())
    assert isinstance(first, LogRecord) and header is not None
    masked = {("autotvm", first.key): "no", ("graph_tuner", header.fingerprint): "no"}
    for mask in (None, Mask(package="p", tvm="0.19.0", reasons=masked)):
        with open_package(package) as opened_package, record_sets(opened_package, Meter(60.0)) as sources:
            index = index_in_memory("stamp", sources, [], None)
        logs = IndexLogs(
            index, sets=index.sets, package="p", rung="exact", reopen=never, on_problem=fail, mask=mask
        )  # fmt: skip
        assert (logs.best("autotvm", first.key) is None) is (mask is not None)
        assert (logs.graph(header.fingerprint) == ()) is (mask is not None)
        logs.close()


def never() -> RecordIndex:
    raise AssertionError("the index is sound")


def fail(error: HubError) -> None:
    raise error

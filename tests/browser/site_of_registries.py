"""The catalogue that the tests look at: of a signed registry, one whose publisher is hostile, and the embedded one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from tunehub.cli.group import cli
from tunehub.site import catalogue, sections
from tunehub.site.charts import Group, bars
from tunehub.site.pages import Pages
from tunehub_registry.attestation import PackageSubject
from tunehub_registry.compat import Compat, RecordReplay, ReleaseReplay, encode_compat
from tunehub_registry.index import (
    Index,
    IndexName,
    RecordSetSummary,
    Shard,
    ShardEntry,
    encode_index,
    encode_shard,
    package_path,
    shard_path,
)
from tunehub_registry.manifest import NetworkEntry
from tunehub_registry.publishing.packages import attach
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_curves import TuningCurve

from ..client.conftest import SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_record
from ..client.signing import FolderPlace, SigningRegistry
from ..registry.attestations import a_signer
from ..registry.attestations import signed as attested

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(1)">'
GPU = TargetDescriptor(kind="cuda", model="toy9000", arch="sm_90", aliases=("NVIDIA Toy 9000",))
MOST_PICTURES = 20  # that matplotlib draws; behind them, the last one stands for all
MOST_BYTES = 500_000  # of a page with its style and scripts


def network(name: str, dtype: str = "float32") -> NetworkEntry:
    return NetworkEntry(name=name, source="a test", inputs={"input": (1, 3, 224, 224)}, dtype=dtype)


def evidence(*networks: str, reason: str = "slower") -> str:
    """Lines of evidence: an admitted record, a refused one, and times of networks."""
    record = {
        "type": "record", "exact": key(1), "default_s": 0.02, "tuned_s": 0.002, "speedup": 10.0, "repeats": 9,
        "spread": 0.01, "output_max_rel_diff": 1e-6, "threads": 2, "admitted": True,
    }  # fmt: skip
    refused = {**record, "exact": key(2), "admitted": False, "reason": reason, "tuned_s": 0.03}
    times = [
        {
            "type": "network", "network": name, "default_s": 0.4, "tuned_s": 0.01 * number, "onnxruntime_s": 0.012,
            "repeats": 7, "threads": 2, "output_max_rel_diff": 1e-6,
        }
        for number, name in enumerate(networks, 1)
    ]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in (record, refused, *times))


def _signed_registry(folder: Path) -> SigningRegistry:
    registry = SigningRegistry(FolderPlace(folder))
    names = ("resnet50", "toynet-3")
    options = {"networks": tuple(map(network, names)), "license": "CC0-1.0"}
    data = lines(make_record(1, networks=names), make_record(2, networks=names[:1]))
    registry.publish(ZNVER5, "1.2.0", data, evidence=evidence(*names), **options)
    registry.publish(GPU, "2.0.0", data, role="bob", evidence=evidence(*names), **options)
    return registry


def _hostile_registry(folder: Path) -> RegistryFolder:
    registry = RegistryFolder(folder)
    data = lines(make_record(1, op=HOSTILE, networks=(HOSTILE,)))
    registry.publish(SKYLAKE, "0.9.0", yanked=HOSTILE)
    curve = TuningCurve(exact=key(1), tuner="meta_schedule", trials=64, steps=((1, 0.02), (9, 0.004), (40, 0.002)))
    package = registry.publish(
        SKYLAKE, "1.0.0", data, evidence=evidence(HOSTILE, reason=HOSTILE), networks=(network(HOSTILE, HOSTILE),),
        curves=(curve,),
    )  # fmt: skip
    ledger = UnsignedLedger(FolderStore(folder))
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    for kind, text in (("compat", _replays(digest)), ("attestations", _attestation(folder.parent, digest))):
        attach(ledger, SKYLAKE.name, "1.0.0", package=digest, kind=kind, data=text)
    return registry


def _replays(digest: str) -> bytes:
    """It works on one release, and fails on another."""
    worked = RecordReplay(tuner="meta_schedule", key=key(1), outcome="ok")
    failed = RecordReplay(tuner="meta_schedule", key=key(1), outcome="failed", reason=HOSTILE)
    releases = (ReleaseReplay(tvm="0.27.0", records=(worked,)), ReleaseReplay(tvm="0.26.0", records=(failed,)))
    return encode_compat(
        Compat(
            name=SKYLAKE.name, version="1.0.0", package=digest, created_by=HOSTILE, created="2026-11-23",
            releases=releases,
        )
    )  # fmt: skip


def _attestation(folder: Path, digest: str) -> bytes:
    """By a key that nobody trusts."""
    return attested(a_signer(folder, "eve"), 2.0, subject=PackageSubject.of(SKYLAKE.name, "1.0.0", digest))


def write_site(folder: Path) -> Path:
    """Make the registries and the catalogue in `folder`, with some pictures; returns the site's folder."""
    signed = _signed_registry(folder / "signed")
    hostile = _hostile_registry(folder / "hostile")
    root = folder / "root.json"
    root.write_bytes(signed.root)
    with pytest.MonkeyPatch.context() as environment:
        for name in ("cache", "trust"):
            environment.setenv(f"TUNEHUB_{name.upper()}", str(folder / name))
        environment.delenv("TUNEHUB_REGISTRY", raising=False)
        _run("trust", "add", signed.place.address, str(root))
        environment.setattr(sections, "bars", _bars_of_some())
        _run("catalogue", signed.place.address, str(hostile.root), "-o", str(folder / "site"))
    return folder / "site"


def _bars_of_some() -> Callable[..., str]:
    drawn: dict[str, str] = {}

    def draw(groups: Sequence[Group], series: Sequence[str], *, title: str) -> str:
        if title not in drawn and len(drawn) < MOST_PICTURES:
            drawn[title] = bars(groups, series, title=title)
        return drawn.get(title, [*drawn.values()][-1])

    return draw


class _FewPages(Pages):
    """The first page of a package stands for those of all, and that of a target, too: rendering them takes longest."""

    _first: ClassVar[dict[tuple[Path, str], Path]] = {}

    def write(self, template: str, path: str, **values: object) -> None:
        kind, place = path.partition("/")[0], self._folder / path
        first = self._first.setdefault((self._folder, kind), place)
        if kind not in ("package", "target") or first == place:
            super().write(template, path, **values)
        else:
            place.parent.mkdir(parents=True)
            place.hardlink_to(first)


def _run(*words: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output


def write_large_site(folder: Path, count: int) -> Path:
    """The catalogue of a registry of `count` names, without their packages, one page for all; returns its folder."""
    (folder / "registry/packages/shards").mkdir(parents=True)
    names = {}
    for number in range(count):
        target = TargetDescriptor(kind="llvm", model=f"cpu{number:05}", arch="x86_64", features=("avx", "avx2"))
        entry = ShardEntry(
            version="1.0.0", file=package_path(target.name, "1.0.0"), sha256=f"{number:064x}",
            size=1000 * (number * 7919 % count) + 1, published="2026-01-31T12:00:00Z",
            record_sets=(RecordSetSummary(tuner="meta_schedule", tvm=">=0.25,<0.28"),),
        )  # fmt: skip
        data = encode_shard(Shard(name=target.name, versions=(entry,)))
        digest = hashlib.sha256(data).hexdigest()
        (folder / "registry" / shard_path(digest)).write_bytes(data)
        names[target.name] = IndexName(target=target, shard=digest, shard_size=len(data))
    (folder / "registry/index.json").write_bytes(encode_index(Index(names=names)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(catalogue, "Pages", _FewPages)
        _run("catalogue", str(folder / "registry"), "-o", str(folder / "site"), "--metadata-only")
    return folder / "site"

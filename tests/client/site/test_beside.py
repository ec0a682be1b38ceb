"""What pages say beyond a package's own evidence: replays, curves, attestations, successors and publishers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from tests.registry.attestations import a_record, a_signer, some_times
from tests.registry.attestations import signed as envelope

from tunehub.cli.group import cli
from tunehub.site.charts import Line, falling
from tunehub.site.contents import PackageContents, RecordName, SetNetworks
from tunehub.site.curves import curve_views
from tunehub.site.replays import MOST_REASONS, MOST_TUNERS, ReplayCounts, network_coverages, replays_view
from tunehub_registry.attestation import PackageSubject
from tunehub_registry.compat import Compat, NetworkSample, RecordReplay, ReleaseReplay, encode_compat
from tunehub_registry.manifest import Manifest, NetworkEntry, RecordSet
from tunehub_registry.package import open_package
from tunehub_registry.publishing.packages import attach
from tunehub_registry.publishing.unsigned import UnsignedLedger
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.tuning_curves import TuningCurve

from ..conftest import ZNVER5, RegistryFolder, key, lines, make_package, make_record
from ..signing import FolderPlace, SigningRegistry
from .catalogue_pages import HOSTILE, check_pages, evidence, files, run

pytestmark = pytest.mark.fast

PRINTABLE = HOSTILE.replace("\u202e", "")  # where the format takes nothing else


def replay(number: int, outcome: Any, tuner: str = "meta_schedule", reason: str = "") -> RecordReplay:
    needs = outcome in ("failed", "not_run")
    return RecordReplay(tuner=tuner, key=key(number), outcome=outcome, reason=(reason or "why") if needs else "")


def compat_of(
    sha256: str,
    *releases: tuple[str, Sequence[RecordReplay]],
    by: str = "test",
    samples: Mapping[str, NetworkSample] = MappingProxyType({}),
) -> Compat:
    """`samples` are by TVM's version."""
    found = tuple(ReleaseReplay(tvm=tvm, records=tuple(records), sample=samples.get(tvm)) for tvm, records in releases)
    return Compat(
        name=ZNVER5.name, version="0.1.0", package=sha256, created_by=by, created="2026-11-23", releases=found
    )


def curve(number: int, *steps: tuple[int, float], trials: int = 64) -> TuningCurve:
    return TuningCurve(exact=key(number), tuner="meta_schedule", trials=trials, steps=steps)


def network(name: str, dtype: str = "float32") -> NetworkEntry:
    return NetworkEntry(name=name, source="a test", inputs={"x": (1, 3)}, dtype=dtype)


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def put_beside(registry: RegistryFolder, file: Path, kind: str, data: bytes) -> None:
    ledger = UnsignedLedger(FolderStore(registry.root))
    attach(ledger, ZNVER5.name, "0.1.0", package=sha256_of(file), kind=kind, data=data)


def text_of(page: Path) -> str:
    """What a reader sees, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8"))).split())


def package_page(site: Path) -> str:
    return text_of(site / "package/llvm-znver5/index.html")


# --- the rules


def contents_of(sets: Sequence[SetNetworks], names: Sequence[str], whole: Manifest) -> PackageContents:
    from msgspec.structs import replace

    manifest = replace(whole, networks=tuple(map(network, names)))
    return PackageContents(
        manifest=manifest, sets=tuple(sets), names={}, records=(), networks=(), curves=(), bad_lines=0
    )


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    with open_package(make_package(), source="x") as package:
        return package.manifest


def record_set(tuner: str, tvm: str) -> RecordSet:
    return RecordSet(tuner=tuner, file=f"records/{tuner}.jsonl", tvm=tvm, key_scheme="k", count=3)


def test_a_network_is_covered_by_what_its_records_did_on_each_release(manifest: Manifest) -> None:
    tuned = SetNetworks(record_set=record_set("meta_schedule", ">=0.25,<0.28"), networks={"a": [key(1), key(2)]})
    logs = SetNetworks(record_set=record_set("autotvm", "<0.20"), networks={})
    compat = compat_of(
        "ab" * 32,
        ("0.27.0.post1", [replay(1, "ok"), replay(2, "differs")]),
        ("0.26.0", [replay(1, "failed"), replay(2, "failed")]),
        ("0.19.0.12", [replay(9, "ok", "autotvm"), replay(8, "not_run", "autotvm")]),
    )
    found = network_coverages(contents_of([tuned, logs], ["a", "b"], manifest), compat)
    assert {item.release: item.counts for item in found["a"]} == {
        "0.25": None, "0.26": ReplayCounts(failed=2), "0.27": ReplayCounts(ok=1, differs=1),
    }  # fmt: skip
    assert [item.release for item in found["a"] if item.usable] == ["0.25", "0.27"]
    assert {item.release: item.counts for item in found["b"]} == {"0.19": ReplayCounts(ok=1, not_run=1)}
    unknown = network_coverages(contents_of([tuned], ["a"], manifest), compat_of("ab" * 32, ("0.27.0", [])))
    assert unknown["a"][-1].counts == ReplayCounts(not_run=2)


def test_a_matrix_has_every_tuner_and_reasons_that_are_alike_once() -> None:
    compat = compat_of(
        "ab" * 32,
        ("0.27.0", [replay(number, "failed", reason=f"buffer lv{number} at {number}") for number in (1, 2)]),
        ("0.26.0", [replay(1, "ok"), replay(3, "not_run", "autotvm", "no network")]),
    )
    names = {key(1): RecordName(op="matmul", networks=())}
    view = replays_view(compat, names, ("0.25", "0.26", "0.27"))
    assert view.failing == ("0.27",)
    assert view.releases == (("0.26", "0.26.0"), ("0.27", "0.27.0")) and view.missing == ("0.25",)
    assert [(row.tuner, row.cells) for row in view.rows] == [
        ("autotvm", (ReplayCounts(not_run=1), None)), ("meta_schedule", (ReplayCounts(ok=1), ReplayCounts(failed=2))),
    ]  # fmt: skip
    assert [(row.release, row.count, row.reason, row.operators) for row in view.reasons] == [
        ("0.27", 2, "buffer lv1 at 1", ("matmul",)), ("0.26", 1, "no network", ()),
    ]  # fmt: skip


def test_a_matrix_stays_small_whatever_a_document_says() -> None:
    records = [replay(number, "failed", f"t{number}", f"{'x' * number} fails") for number in range(1, 200)]
    view = replays_view(compat_of("ab" * 32, ("0.27.0", records)), {}, ())
    assert (len(view.rows), view.more_tuners) == (MOST_TUNERS, 199 - MOST_TUNERS)
    assert (len(view.reasons), view.more_reasons) == (MOST_REASONS, 199 - MOST_REASONS)
    assert view.sums == (ReplayCounts(failed=199),)


def test_curves_that_fell_most_come_first() -> None:
    views = curve_views([curve(1, (1, 2e-3), (9, 1e-3)), curve(2, (3, 9e-3), (4, 1e-3)), curve(3, (1, 1e-3))], {})
    assert [(view.key, round(view.gain, 3)) for view in views] == [(key(2), 9.0), (key(1), 2.0), (key(3), 1.0)]


def test_a_picture_of_curves_is_well_formed_and_shows_hostile_labels_as_text() -> None:
    drawn = [Line(label=HOSTILE, points=((1, 1e-3), (40, 1e-4)), end=64), Line(label="b", points=((7, 1.0),), end=7)]
    svg = falling(drawn, title=HOSTILE)
    texts = "".join(ElementTree.fromstring(svg).itertext())
    assert "</script>" in texts and "\u202e" not in texts and svg == falling(drawn, title=HOSTILE)


# --- the pages


def test_what_is_missing_is_said_to_be_missing(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(evidence=evidence())
    run(tmp_path / "site", registry.root)
    page = package_page(tmp_path / "site")
    for said in (
        "has no tuning curves", "Nobody published replays of this version: TVM 0.25, 0.26, 0.27 is what its publisher",
        "Nobody but its publisher has measured", "No publisher has signed it", "Licence not stated",
    ):  # fmt: skip
        assert said in page, said
    run(tmp_path / "bare", registry.root, "--metadata-only")
    assert "was not read for this page" in package_page(tmp_path / "bare")


@pytest.fixture
def full(registry: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with all that a package can have beside it; in hostile words where words are free."""
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "trust"))
    file = registry.publish(
        data=lines(make_record(1, op=HOSTILE, networks=(HOSTILE,)), make_record(2, networks=("resnet50",))),
        evidence=evidence(), license="Apache-2.0", networks=(network(HOSTILE, HOSTILE), network("resnet50")),
        curves=[curve(1, (1, 2e-3), (9, 1e-3)), curve(2, (1, 4e-3), (12, 1e-3))],
    )  # fmt: skip
    on_26 = [replay(1, "failed", reason=f"Error: {HOSTILE}"), replay(2, "differs")]
    releases = (("0.27.0.post1", [replay(1, "ok"), replay(2, "ok")]), ("0.26.0", on_26))
    samples = {
        "0.27.0.post1": NetworkSample(network="resnet50", outcome="ok", workloads=5, by_record=2, ran=True),
        "0.26.0": NetworkSample(network=HOSTILE, outcome="failed", reason=HOSTILE),
    }
    compat = compat_of(sha256_of(file), *releases, by=HOSTILE, samples=samples)
    put_beside(registry, file, "compat", encode_compat(compat))
    subject = PackageSubject.of(ZNVER5.name, "0.1.0", sha256_of(file))
    records = (a_record(1, times=some_times(3.0)),)
    words = [
        envelope(a_signer(tmp_path, "alice"), 1.5, subject=subject),
        envelope(a_signer(tmp_path, "bob"), 0, subject=subject, records=records, tvm_version=HOSTILE),
        envelope(a_signer(tmp_path, "eve"), 900.0, subject=subject),
        envelope(a_signer(tmp_path, "carl"), 0, subject=subject, records=(a_record(2, fault=HOSTILE),)),
    ]
    forged = {**json.loads(words[0]), "signatures": [{"keyid": HOSTILE, "sig": "AA=="}]}
    put_beside(registry, file, "attestations", b"".join([*words, json.dumps(forged).encode() + b"\n"]))
    for name in ("alice", "bob", "carl"):
        done = CliRunner().invoke(cli, ["trust", "attester", "add", str(tmp_path / f"{name}.pub")])
        assert done.exit_code == 0, done.output
    return registry.root


def test_a_page_says_what_is_known_beside_a_package(full: Path, tmp_path: Path) -> None:
    run(tmp_path / "site", full)
    check_pages(tmp_path / "site")
    page = package_page(tmp_path / "site")
    for said in (
        "Measured by 2 machines, gain 2.25× (median; 1.5× to 3×)", "unknown key", "it found 1 faults, the first",
        "2 workloads; those that gained most", "4× ", "1 work (1 with other text) , 1 failed",
        "Stated, and not replayed: TVM 0.25",
        "0.27 resnet50 works 2 of 5 run, with the outputs of TVM's default", "Licence Apache-2.0", "0.26 ( 1 failed )",
    ):  # fmt: skip
        assert said in page, (said, page)
    assert "900" not in page  # what is not verified is not shown
    front = text_of(tmp_path / "site/index.html")
    assert "1 replayed" in front and "2 work " in front and "stated" in front


def test_hostile_words_beside_a_package_stay_text(full: Path, tmp_path: Path) -> None:
    run(tmp_path / "site", full)
    for path, content in files(tmp_path / "site").items():
        if not path.startswith("static/"):
            text = content.decode()
            assert "<img" not in text and "\u202e" not in text, path
            assert path.endswith(".html") or "</script" not in text, path


def test_a_network_of_which_all_records_fail_is_not_said_to_be_for_that_release(full: Path, tmp_path: Path) -> None:
    run(tmp_path / "site", full)
    pages = [path.read_text() for path in (tmp_path / "site/list").glob("networks*.html")]
    heat = (tmp_path / "site/index.html").read_text()
    assert 'data-tvm="0.25 0.27"' in heat and 'data-tvm="0.25 0.26 0.27"' in heat and pages


def test_documents_that_cannot_be_read_are_named_and_the_page_is_there(full: Path, tmp_path: Path) -> None:
    for path in (full / "packages/documents").iterdir():
        path.write_bytes(b"{}")
    report = run(tmp_path / "site", full, code=1)
    assert len(report["problems"]) == 2
    page = package_page(tmp_path / "site")
    assert "the replays of llvm-znver5 0.1.0 are not shown" in page and "the attestations of llvm-znver5" in page
    assert "There are replays beside this version, which are not read here" in page


def test_replays_of_another_package_are_not_shown(registry: RegistryFolder, tmp_path: Path) -> None:
    file = registry.publish()
    put_beside(registry, file, "compat", encode_compat(compat_of("ab" * 32, ("0.27.0", [replay(1, "ok")]))))
    report = run(tmp_path / "site", registry.root, code=1)
    assert "are of another package" in report["problems"][0]


def test_successors_are_said_and_linked_where_they_are(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    other = CliRunner().invoke(
        cli, ["deprecate", str(registry.root), "llvm-znver5", "--successor", "llvm-znver6>=1", "--reason", PRINTABLE,
              "--unsigned"],
    )  # fmt: skip
    assert other.exit_code == 0, other.output
    run(tmp_path / "site", registry.root)
    page = package_page(tmp_path / "site")
    assert "Superseded by llvm-znver6>=1: </script><img" in page and "Its page" not in page
    assert "superseded" in text_of(tmp_path / "site/index.html")
    registry.publish(version="0.2.0")
    back = ["deprecate", str(registry.root), "llvm-znver5==0.2.0", "--successor", "llvm-znver5<0.2", "--unsigned"]
    assert CliRunner().invoke(cli, back).exit_code == 0
    run(tmp_path / "site", registry.root)
    assert "Its page" in package_page(tmp_path / "site")


def test_a_signed_registry_names_publishers_and_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "trust"))
    place = FolderPlace(tmp_path / "signed")
    signing = SigningRegistry(place)
    signing.publish()
    (tmp_path / "root.json").write_bytes(signing.root)
    assert CliRunner().invoke(cli, ["trust", "add", place.address, str(tmp_path / "root.json")]).exit_code == 0
    for _ in range(2):  # the second one reads shards from the cache
        run(tmp_path / "site", place.address)
        page = package_page(tmp_path / "site")
        keys = {role: signing.keys[role].public_key.keyid for role in ("alice", "bob")}
        assert "alice" in page and keys["alice"] in page and keys["bob"] not in page and "1 of 1" in page
        trust = text_of(tmp_path / "site/trust.html")
        assert all(keyid in trust for keyid in keys.values()) and "cuda-*" in trust

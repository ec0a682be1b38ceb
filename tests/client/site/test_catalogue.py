"""The static catalogue: what its pages say, hostile names, the same bytes again, and what becomes of failures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from tunehub.cli.group import cli
from tunehub.registries.embedded import embedded_registry
from tunehub.site import sections
from tunehub.site.charts import Group, bars
from tunehub.site.folder import replaced_folder
from tunehub.site.machines import machine_views
from tunehub.site.names import slug
from tunehub.site.overview import HOTTEST, Entry, PackageRow, TargetRow, base_name, batch_of, heat, pages, type_of
from tunehub.site.releases import releases_of
from tunehub.site.views import PEERS, EndToEndTimes, PeerTime, TunedNetwork
from tunehub_registry.printable import plain
from tunehub_registry.target import TargetDescriptor

from ..conftest import A76, SKYLAKE, ZNVER5, RegistryFolder
from ..signing import FolderPlace, SigningRegistry
from .catalogue_pages import HOSTILE, check_pages, evidence, files, run

pytestmark = pytest.mark.fast


def data(folder: Path, name: str) -> Any:
    text = (folder / "data" / name).read_text(encoding="utf-8")
    return json.loads(text.partition("=")[2].removesuffix(";\n"))


def test_a_package_page_says_what_it_is_and_what_was_measured(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(version="0.1.0", yanked="wrong outputs")
    registry.publish(version="0.2.0", evidence=evidence())
    report = run(tmp_path / "site", registry.root)
    assert (report["packages"], report["problems"], report["metadata_only"]) == (1, [], False)
    page = (tmp_path / "site/package/llvm-znver5/index.html").read_text()
    for text in (
        "0.2.0",
        "10×",
        "40×",
        "1.38×",
        "Over rules",
        "refused",
        "slower",
        "yanked",
        "wrong outputs",
        "unsigned",
        "avx512vnni",
        "matmul1",
    ):
        assert text in page, text
    assert page.count("<svg ") == 2
    assert f"tunehub lock &#39;llvm-znver5==0.2.0&#39; --registry {registry.root}" in page
    check_pages(tmp_path / "site")


def test_the_same_registry_gives_the_same_bytes(registry: RegistryFolder, tmp_path: Path) -> None:
    for target in (ZNVER5, SKYLAKE, A76):
        registry.publish(target, evidence=evidence())
    run(tmp_path / "one", registry.root)
    run(tmp_path / "other", registry.root)
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_hostile_names_stay_text(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(evidence=evidence(HOSTILE, HOSTILE), yanked=HOSTILE)
    run(tmp_path / "site", registry.root)
    check_pages(tmp_path / "site")
    for path, content in files(tmp_path / "site").items():
        if not path.startswith("static/"):
            text = content.decode()
            assert "<img" not in text and "\u202e" not in text, path
            assert path.endswith(".html") or "</script" not in text, path


def test_a_signed_registry_is_said_to_be_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = FolderPlace(tmp_path / "signed")
    signing = SigningRegistry(place)
    signing.publish()
    root = tmp_path / "root.json"
    root.write_bytes(signing.root)
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "trust"))
    added = CliRunner().invoke(cli, ["trust", "add", place.address, str(root)])
    assert added.exit_code == 0, added.output
    run(tmp_path / "site", place.address)
    page = (tmp_path / "site/trust.html").read_text()
    assert all(signing.keys[role].public_key.keyid in page for role in ("root", "targets", "online"))
    assert "version 1" in page and "1 of 1" in page and f"{signing.expires:%Y-%m-%d}" in page
    assert "signed by the publisher" in (tmp_path / "site/package/llvm-znver5/index.html").read_text()


def test_a_damaged_package_has_a_page_that_says_so(registry: RegistryFolder, tmp_path: Path) -> None:
    path = registry.publish()
    path.write_bytes(b"\0" * path.stat().st_size)
    report = run(tmp_path / "site", registry.root, code=1)
    assert "sha256" in report["problems"][0]
    assert "could not be read" in (tmp_path / "site/package/llvm-znver5/index.html").read_text()


def test_a_name_of_two_registries_has_two_pages(registry: RegistryFolder, tmp_path: Path) -> None:
    other = RegistryFolder(tmp_path / "other")
    registry.publish()
    other.publish(version="0.3.0")
    assert run(tmp_path / "site", registry.root, other.root)["packages"] == 2
    assert "0.3.0" in (tmp_path / "site/package/llvm-znver5!2/index.html").read_text()
    check_pages(tmp_path / "site")


def test_no_package_is_read_when_only_metadata_is_asked_for(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish().unlink()
    done = CliRunner().invoke(cli, ["catalogue", str(registry.root), "-o", str(tmp_path / "site"), "--metadata-only"])
    assert done.exit_code == 0, done.output
    check_pages(tmp_path / "site")


def test_an_old_catalogue_is_replaced_and_nothing_else_is(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    site = tmp_path / "site"
    run(site, registry.root)
    (site / "stale.html").write_text("old")
    run(site, registry.root)
    assert not (site / "stale.html").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("text")
    with pytest.raises(Exception, match="is not a catalogue"):
        CliRunner().invoke(cli, ["catalogue", str(registry.root), "-o", str(mine)], catch_exceptions=False)
    assert files(mine) == {"thesis.tex": b"text"}
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_an_error_while_writing_leaves_the_old_folder(tmp_path: Path) -> None:
    with replaced_folder(tmp_path / "site") as new:
        (new / "index.html").write_text("old")
    before = files(tmp_path / "site")

    def fail() -> None:
        with replaced_folder(tmp_path / "site") as new:
            (new / "index.html").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert files(tmp_path / "site") == before


def test_the_embedded_registry_has_pages_of_all_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture stands for all: tests/browser has those of these packages drawn, and looks at them."""
    picture = bars((Group(label="one", seconds=(1.0,)),), ("x",), title="of one")
    monkeypatch.setattr(sections, "bars", lambda *_, **__: picture)
    monkeypatch.setattr("tunehub.registries.configured.embedded_registry", embedded_registry)
    monkeypatch.setattr("tunehub.registries.trust_store.embedded_registry", embedded_registry)
    report = run(tmp_path / "site")
    assert report["problems"] == [] and report["packages"] >= 3
    check_pages(tmp_path / "site")
    index = data(tmp_path / "site", "index.js")
    rows = {kind: [row for path in paths for row in data(tmp_path / "site", Path(path).name)]
            for kind, paths in index["scripts"].items()}  # fmt: skip
    assert len(rows["packages"]) == report["packages"] and len(rows["networks"]) == report["networks"]
    named = {
        path[0] if path else index["folders"][kind] + name for kinds, name, _, *path in rows["search"] for kind in kinds
    }
    folders = {
        path.parent
        for kind in ("package", "network", "target")
        for path in (tmp_path / "site" / kind).rglob("index.html")
    }
    assert {tmp_path / "site" / path for path in named} == folders
    page = (tmp_path / "site/package/llvm-znver5/index.html").read_text()
    assert "comes with tunehub itself" in page and "onnxruntime" in page and "tunehub tune --target host" in page


@pytest.mark.parametrize("name", ["resnet50", "ResNet50", "a/b", "a-b", "..", "", "é", "a" * 300, "CON~1", HOSTILE])
def test_a_slug_is_one_safe_component(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9_][a-z0-9._-]*(![0-9a-f]{12})?", slug(name))


def test_different_names_have_different_slugs() -> None:
    names = ["resnet50", "ResNet50", "RESNET50", "res net", "res-net", "res/net", "é", "è", "a" * 300, "a" * 301]
    assert len({slug(name) for name in names}) == len(names)


def test_what_does_not_print_is_replaced() -> None:
    assert plain("a\x00b\u202ec\nd") == "a\ufffdb\ufffdc\ufffdd"


def test_releases_are_those_that_a_specifier_covers() -> None:
    assert releases_of([">=0.25,<0.28", ">=0.8,<0.20"]) == ("0.19", "0.25", "0.26", "0.27")
    assert releases_of([">=0.26,<0.27"]) == ("0.26",)


def test_heat_grows_with_the_gain() -> None:
    assert [heat(gain) for gain in (None, 0.5, 1.0, 3.0, 30.0, 1e9)] == [0, 1, 1, 2, 4, HOTTEST]


def test_pages_hold_every_row_once() -> None:
    assert [list(rows) for _, rows in pages(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert [list(rows) for _, rows in pages([], 2)] == [[]]


def test_a_picture_is_well_formed_and_shows_hostile_labels_as_text() -> None:
    groups = [Group(label=HOSTILE, seconds=(0.3, None)), Group(label="$\\frac{a}{b}$", seconds=(0.2, 1e-5))]
    svg = bars(groups, ("default", "tuned"), title=HOSTILE)
    tree = ElementTree.fromstring(svg)
    texts = "".join(tree.itertext())
    assert "</script>" in texts and "$\\frac{a}{b}$" in texts and "\u202e" not in texts
    # What matplotlib names by what is drawn (clip paths, markers, dots) may stand twice on a page; others may not.
    assert "var(--chart-1)" in svg and not re.search(r"#0101\d\d| id=\"(?!p|m|C\d_\d_)", svg)
    assert svg == bars(groups, ("default", "tuned"), title=HOSTILE)


def test_variants_of_a_network_are_one_row_by_type_and_batch() -> None:
    names = ("bert_base", "bert_base_bf16", "bert_half8", "bert_half1", "resnet50_fp16", "_bf16", "resnet-50")
    assert [base_name(name) for name in names] == [
        "bert_base", "bert_base", "bert", "bert", "resnet50", "_bf16", "resnet-50",
    ]  # fmt: skip
    assert [batch_of(name) for name in names] == ["", "", "8", "", "", "", ""]
    assert type_of("bert_half8", "any") == "float16" and type_of("bert_base_bf16", "bfloat16") == "bfloat16"


def test_a_machine_has_its_times_beside_other_runtimes() -> None:
    graphs, torch = (PeerTime(name=PEERS[key], seconds=s) for key, s in (("tuned_graphs_s", 0.5), ("torch_s", 2.0)))
    times = EndToEndTimes(
        network="net", path="network/net", variant="", dtype="float32", default_s=4.0, tuned_s=1.0,
        peers=(graphs, torch), threads=1, repeats=1, difference=0.0, conditions="", same_class="", over_rules=1.1,
    )  # fmt: skip
    target = TargetDescriptor(kind="cuda", arch="sm_90", model="h200", aliases=("NVIDIA H200",))
    network = TunedNetwork(
        name="net", path="network/net", dtype="float32", source="", inputs=(), coverage=(), records=1, gain=8.0
    )
    entry = Entry(
        network=network, package="cuda-h200", package_path="p", target="NVIDIA H200", target_path="t", version="1",
        times=(times,),
    )  # fmt: skip
    package = PackageRow(
        name="cuda-h200", path="p", target=target, target_path="t", registry="embedded", version="1", published="",
        releases=(), size=1, networks=1, gain=None, yanked=False, successor="", matrix=(),
        times=(replace(times, network="untuned", path="", default_s=None),),
    )  # fmt: skip
    (view,) = machine_views([TargetRow(path="t", target=target, packages=(package,), entries=(entry,))])
    assert "nvidia h200" in view.words and view.lock == "tunehub lock 'cuda-h200==1'"
    assert [(each.name, each.share, each.networks) for each in view.beside] == [("PyTorch", 0.25, 2)]
    assert [(each.path, each.seconds, each.others) for each in view.rows] == [
        ("network/net", 0.5, (2.0,)), ("", 0.5, (2.0,))
    ]  # fmt: skip

"""Records of templates beside traces: in packages, in the user's own file, and what they say about layouts."""

from __future__ import annotations

import warnings
from pathlib import Path

import msgspec
import pytest

from tunehub.compiler.hub import open_hub
from tunehub_registry.manifest import RecordSet
from tunehub_registry.package import open_package, pack

from .. import conftest
from ..conftest import RECORDS, ZNVER5, RegistryFolder, key, lines, make_package, make_record
from .template_records import TVM, opened, template_lines, template_record

pytestmark = pytest.mark.fast

TEMPLATES = "records/template.jsonl"


def publish_both(registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch, traces: bytes, knobs: bytes) -> None:
    """Publish a package with a set of traces and a set of templates' knobs."""
    plain = make_package()
    with open_package(plain, source="plain") as package:
        manifest = package.manifest
    (first,) = manifest.record_sets
    second = RecordSet(tuner="template", file=TEMPLATES, tvm=first.tvm, key_scheme=first.key_scheme, count=1)
    both = msgspec.structs.replace(manifest, record_sets=(first, second))
    package_bytes = pack(both, {RECORDS: traces, TEMPLATES: knobs})
    monkeypatch.setattr(conftest, "make_package", lambda *_args, **_options: package_bytes)
    registry.publish()


def test_the_fastest_of_both_kinds_serves(registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = lines(make_record(1, run_s=(0.002,)), make_record(2, run_s=(0.002,)), make_record(3))
    knobs = template_lines(
        template_record(1, run_s=(0.001,)), template_record(2, run_s=(0.003,), anchor=key(1001)), template_record(4)
    )
    publish_both(registry, monkeypatch, traces, knobs)
    hub = opened(registry)
    found = {number: hub.lookup.by_exact(key(number)) for number in (1, 2, 3, 4)}
    assert {number: type(each.record).__name__ for number, each in found.items() if each} == {
        1: "TemplateRecord", 2: "ScheduleRecord", 3: "ScheduleRecord", 4: "TemplateRecord",
    }  # fmt: skip
    assert found[1] is not None and found[1].record == template_record(1, run_s=(0.001,))
    anchored = [(c.rung, c.record.op) for c in hub.lookup.by_anchor(key(1001))]
    assert anchored == [("anchor", "conv1"), ("anchor", "matmul1"), ("anchor", "conv2")]  # by their speed-ups
    assert hub.layout == "auto"


def test_a_package_with_templates_alone_serves(registry: RegistryFolder) -> None:
    registry.publish(data=template_lines(template_record(1)), tuner="template")
    hub = opened(registry)
    found = hub.lookup.by_exact(key(1))
    assert found is not None and found.record == template_record(1)
    assert (found.rung, hub.layout) == ("exact", "auto")


def test_records_in_the_wrong_set_are_left_out(registry: RegistryFolder) -> None:
    registry.publish(data=lines(make_record(1)) + template_lines(template_record(2)))
    hub = opened(registry)
    assert hub.lookup.by_exact(key(1)) is not None
    assert hub.lookup.by_exact(key(2)) is None
    assert hub.layout == "keep"


def test_the_users_file_may_hold_both_kinds(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(make_record(5)) + template_lines(template_record(6)))
    hub = opened(registry, user_records=file)
    for number, name in ((5, "ScheduleRecord"), (6, "TemplateRecord")):
        found = hub.lookup.by_exact(key(number))
        assert found is not None
        assert (found.rung, type(found.record).__name__) == ("user", name)


def test_bad_lines_of_the_users_file_are_counted_once(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b"{}\n" + lines(make_record(5)) + template_lines(template_record(6)))
    with pytest.warns(UserWarning, match=r"1 lines of .*mine\.jsonl are not records"):
        open_hub(ZNVER5, registry=str(registry.root), tvm_version=TVM, user_records=file)


# what the user's file and the package hold -> the layout
LAYOUTS = {
    "none_at_all": ("", "", "auto"),
    "traces": ("", "t", "keep"),
    "knobs": ("", "k", "auto"),
    "own_traces_before_knobs": ("t", "k", "keep"),
    "own_knobs_before_traces": ("k", "t", "auto"),
    "own_of_both_kinds": ("tk", "t", "auto"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_default_layout_is_what_the_records_are_for(name: str, registry: RegistryFolder, tmp_path: Path) -> None:
    own, published, layout = LAYOUTS[name]
    contents = {"t": lines(make_record(1)), "k": template_lines(template_record(2))}
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b"".join(contents[kind] for kind in own))
    if published:
        tuner = "template" if published == "k" else "meta_schedule"
        registry.publish(data=contents[published], tuner=tuner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a registry without packages
        hubs = {
            asked: open_hub(ZNVER5, registry=str(registry.root), tvm_version=TVM, user_records=file, layout=asked)
            for asked in (None, "keep", "auto")
        }
    assert {asked: hub.layout for asked, hub in hubs.items()} == {None: layout, "keep": "keep", "auto": "auto"}

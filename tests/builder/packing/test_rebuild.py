"""`tunehub rebuild`: the work directory of a package gives it again, or the difference is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tunehub.cli import cli
from tunehub_builder.backends.relax.workload_gate import verdict_journal
from tunehub_builder.packing.pack import pack_directory
from tunehub_builder.packing.publish import publish_locally
from tunehub_builder.packing.rebuild import compare_packages
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import MANIFEST, open_package, pack

from .directories import with_templates

pytestmark = pytest.mark.fast


def rebuild(*args: Any, code: int) -> Result:
    result = CliRunner().invoke(cli, ["rebuild", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def members(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    with open_package(path) as package:
        return package.manifest, {name: package.read(name) for name in package.names if name != MANIFEST}


@pytest.mark.parametrize("stated", ["Apache-2.0", "CC0-1.0"])
def test_the_same_directory_gives_the_package_again(directory: WorkDirectory, tmp_path: Path, stated: str) -> None:
    path = publish_locally(pack_directory(directory, "0.1.0", license=stated), tmp_path / "out", None)
    assert "same bytes" in rebuild(path, directory.path, code=0).output
    assert [item.name for item in (tmp_path / "out").iterdir()] == [path.name]


def test_a_package_on_top_of_another_is_rebuilt_with_it(directory: WorkDirectory, task: Any, tmp_path: Path) -> None:
    base = publish_locally(pack_directory(directory, "0.1.0", license="MIT"), tmp_path, None)
    work = with_templates(directory, task, tmp_path / "templates")
    path = publish_locally(pack_directory(work, "0.2.0", base=base), tmp_path, None)
    assert "same bytes" in rebuild(path, work.path, "--with", base, code=0).output
    without = rebuild(path, work.path, code=1).output
    assert "records/meta_schedule.jsonl: published present, rebuilt absent" in without


def test_a_package_without_some_records_is_rebuilt_with_the_same_options(
    directory: WorkDirectory, task: Any, two: Path, tmp_path: Path
) -> None:
    work = with_templates(directory, task, tmp_path / "templates")
    path = publish_locally(pack_directory(work, "0.2.0", base=two, without={"000000": "slower"}), tmp_path, None)
    options = ("--with", two, "--without", "00000000=slower")
    assert "same bytes" in rebuild(path, work.path, *options, code=0).output
    assert "evidence.jsonl" in rebuild(path, work.path, "--with", two, code=1).output
    alone = publish_locally(pack_directory(None, "0.3.0", base=two, without={"000000": "slower"}), tmp_path, None)
    assert "same bytes" in rebuild(alone, *options, code=0).output


def test_a_changed_journal_is_named_by_member_line_and_field(directory: WorkDirectory, tmp_path: Path) -> None:
    path = publish_locally(pack_directory(directory, "0.1.0"), tmp_path, None)
    verdict = next(verdict_journal(directory).entries())
    verdict_journal(directory).append(msgspec.structs.replace(verdict, default_s=(2e-3, 2e-3)))
    document = json.loads(rebuild(path, directory.path, "--json", code=1).output)
    found = {item["member"]: item for item in document["differences"]}
    assert document["outcome"] == "other content"
    record = found["records/meta_schedule.jsonl"]
    assert (record["line"], record["field"], record["rebuilt"]) == (1, "$.default_s", "0.002")
    assert float(record["published"]) == pytest.approx(1.05e-3)
    assert MANIFEST not in found


def test_another_format_is_named(directory: WorkDirectory, tmp_path: Path) -> None:
    path = publish_locally(pack_directory(directory, "0.1.0"), tmp_path, None)
    manifest, files = members(path)
    older = msgspec.structs.replace(manifest, format_version="1.1", license=None)
    path.write_bytes(pack(older, files))
    shown = rebuild(path, directory.path, code=1).output
    assert 'manifest.json $.format_version: published "1.1", rebuilt "1.2"' in shown


def test_a_damaged_package_and_no_directory_are_errors_in_a_line(directory: WorkDirectory, tmp_path: Path) -> None:
    path = tmp_path / "x.tunepkg"
    path.write_bytes(b"no zip")
    assert "not a readable zip" in rebuild(path, directory.path, code=1).output
    good = publish_locally(pack_directory(directory, "0.1.0"), tmp_path, None)
    assert "Error: " in rebuild(good, tmp_path / "nowhere", code=1).output


_LINES = st.lists(st.one_of(st.binary(max_size=20), st.just(b'{"a": [1, {"b": "\\u001b[2J"}]}')), max_size=4)


@given(before=_LINES, after=_LINES)
def test_any_two_contents_are_compared_and_shown_in_ascii(before: list[bytes], after: list[bytes]) -> None:
    manifest = _manifest()
    name = manifest.record_sets[0].file
    old, new = (pack(manifest, {name: b"\n".join(lines)}) for lines in (before, after))
    found = compare_packages(old, new, "p")
    assert bool(found) == (b"\n".join(before) != b"\n".join(after))
    assert all(text.isprintable() for text in map(str, found))
    assert compare_packages(old, old, "p") == ()


def _manifest() -> Manifest:
    from ...client.conftest import make_package

    with open_package(make_package()) as package:
        return package.manifest

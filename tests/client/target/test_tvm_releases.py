"""The table of TVM's releases against all that must say the same, and what is read of it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tunehub.site.releases import RELEASES as IN_CATALOGUES
from tunehub.target.tvm_generation import InstalledTVM, check_pair
from tunehub.target.tvm_releases import OLDEST_RELAX, RELAX, RELEASES, TVMRelease, pip_install

pytestmark = pytest.mark.fast
PROJECT = Path(__file__).parents[3] / "pyproject.toml"
_TVM = ("apache-tvm", "apache-tvm-ffi", "xtc-tvm-python-bindings")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_the_extra_pins_what_the_table_says(release: TVMRelease) -> None:
    project = msgspec.toml.decode(PROJECT.read_bytes())["project"]
    asked = project["optional-dependencies"][release.extra]
    assert {text for text in asked if Requirement(text).name in _TVM} == set(release.pins)
    (tvm,) = Requirement(release.pins[0]).specifier
    assert Version(tvm.version).release[:2] == release.numbers
    if release.ffi:
        installed = InstalledTVM(version=tvm.version, ffi=release.pins[1].partition("==")[2])
        assert check_pair(installed) == "relax"


def test_each_extra_that_pins_a_tvm_is_in_the_table() -> None:
    extras = msgspec.toml.decode(PROJECT.read_bytes())["project"]["optional-dependencies"]
    pinning = {name for name, asked in extras.items() if any(Requirement(text).name in _TVM for text in asked)}
    assert pinning == {release.extra for release in RELEASES}


def test_newest_first_and_once() -> None:
    numbers = [release.numbers for release in RELEASES]
    assert numbers == sorted(set(numbers), reverse=True)
    assert [release.extra for release in RELAX] == ["tvm", *(f"tvm-0-{release.numbers[1]}" for release in RELAX[1:])]


def test_the_documents_and_the_catalogue_name_them() -> None:
    readme = (PROJECT.parent / "README.md").read_text()
    (row,) = re.findall(r"^\| TVM \|.*$", readme, re.MULTILINE)
    assert all(release.version in row for release in RELEASES)
    assert list(IN_CATALOGUES) == [release.version for release in reversed(RELEASES)]


def test_the_command_that_installs_a_release() -> None:
    assert pip_install(*OLDEST_RELAX.pins) == 'pip install "apache-tvm==0.25.0.post1" "apache-tvm-ffi==0.1.12"'

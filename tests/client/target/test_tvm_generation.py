from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunehub.exceptions import UnsupportedTVMError
from tunehub.target import tvm_generation
from tunehub.target.tvm_generation import InstalledTVM, check_pair, find_tvm, require_relax

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("version", "ffi"),
    [
        ("0.27.0.post1", "0.1.14.post1"), ("0.27.0.post1", "0.1.14.post0"), ("0.26.0", "0.1.13.post3"),
        ("0.26.0", "0.1.14.post0"), ("0.25.0.post1", "0.1.12"),
    ],
)  # fmt: skip
def test_pairs_that_work(version: str, ffi: str) -> None:
    assert check_pair(InstalledTVM(version=version, ffi=ffi)) == "relax"


@pytest.mark.parametrize(
    ("version", "ffi"),
    [
        ("0.27.0.post1", "0.1.15.post1"), ("0.27.0.post1", None), ("0.26.0", "0.1.15.post2"),
        ("0.25.0.post1", "0.1.13.post3"),
    ],
)  # fmt: skip
def test_broken_pairs_say_what_to_install(version: str, ffi: str | None) -> None:
    with pytest.raises(UnsupportedTVMError, match=r"pip install .apache-tvm-ffi==") as caught:
        check_pair(InstalledTVM(version=version, ffi=ffi))
    assert version in str(caught.value)


@pytest.mark.parametrize("version", ["0.20.0", "0.24.0", "0.28.0", "1.0", "0", "unknown"])
def test_unsupported_versions(version: str) -> None:
    with pytest.raises(UnsupportedTVMError, match=r"only 0\.8 to 0\.19 and 0\.25 to 0\.27.*pip install"):
        check_pair(InstalledTVM(version=version, ffi="0.1.14"))


def test_relay_is_known_but_not_compiled_with(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = InstalledTVM(version="0.19.0.12", ffi=None)
    assert check_pair(relay) == "relay"
    monkeypatch.setattr(tvm_generation, "find_tvm", lambda: relay)
    with pytest.raises(UnsupportedTVMError, match="Relay"):
        require_relax()


def test_no_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_generation, "find_tvm", lambda: None)
    with pytest.raises(UnsupportedTVMError, match=r"not installed.*pip install"):
        require_relax()


def test_own_build_states_its_version_in_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "tvm"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "_version.py").write_text("__version__: str\n__version__ = version = '0.26.0.dev3+gabc'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tvm", raising=False)
    monkeypatch.setattr(tvm_generation, "_distribution_version", lambda *names: None)
    assert find_tvm() == InstalledTVM(version="0.26.0.dev3+gabc", ffi=None)
    (package / "_version.py").unlink()
    found = find_tvm()
    assert found is not None
    assert found.generation is None

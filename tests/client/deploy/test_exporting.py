"""Libraries whose parts are written by threads at once: byte for byte as TVM writes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunehub.compiler import halves
from tunehub.compiler.halves import RuntimeInParts
from tunehub.deploy import exporting
from tunehub.deploy.data_object import write_data_object
from tunehub.deploy.exporting import export_library

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.slow


def test_a_library_of_several_parts_is_that_of_tvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ...tiny_networks import tiny_mobilenet

    monkeypatch.setattr(halves, "_FEWEST", 2)
    runtime = RuntimeInParts()
    runtime.apply()
    try:
        executable = tvm.compile(tiny_mobilenet().relax_module(), tvm.target.Target("llvm"))
    finally:
        runtime.close()
    assert len(executable.mod._collect_dso_modules()) == 2
    executable.export_library(str(tmp_path / "theirs.so"), cc="g++", options=list(exporting.OPTIONS))
    export_library(executable, tmp_path / "ours.so", "g++")
    assert (tmp_path / "ours.so").read_bytes() == (tmp_path / "theirs.so").read_bytes()
    monkeypatch.setattr(exporting, "write_data_object", lambda *_: False)  # as for another kind of machine
    export_library(executable, tmp_path / "by_llvm.so", "g++")
    assert (tmp_path / "by_llvm.so").read_bytes() == (tmp_path / "theirs.so").read_bytes()
    monkeypatch.setattr(exporting, "OPTIONS", ("-Wl,--no-such-option",))
    export_library(executable, tmp_path / "plain.so", "g++")
    executable.export_library(str(tmp_path / "theirs.so"), cc="g++")
    assert (tmp_path / "plain.so").read_bytes() == (tmp_path / "theirs.so").read_bytes()


def test_what_has_parts_of_other_kinds_is_left_to_tvm(tmp_path: Path) -> None:
    asked: list[Any] = []
    mod = SimpleNamespace(_collect_dso_modules=lambda: [SimpleNamespace(kind="c")])
    export_library(
        SimpleNamespace(mod=mod, export_library=lambda *a, **k: asked.append((a, k))), tmp_path / "m.so", "cc"
    )
    assert asked == [((str(tmp_path / "m.so"),), {"cc": "cc"})]


def test_data_for_machines_that_are_no_64_bit_elf_is_left_to_llvm(tmp_path: Path) -> None:
    other, data = tmp_path / "other.o", np.arange(5, dtype=np.uint8)
    other.write_bytes(b"\x7fELF\x01\x01" + bytes(58))
    assert not write_data_object(tmp_path / "data.o", "name", data, lambda: other)

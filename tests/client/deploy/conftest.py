"""One library for all tests of this folder, compiled without records."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...tiny_networks import tiny_mobilenet


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tvm = pytest.importorskip("tvm")
    from tunehub.deploy.embedding import interface_of, with_interface
    from tunehub.deploy.library import write_library

    target = tvm.target.Target({"kind": "llvm"})
    mod = tiny_mobilenet().relax_module()
    made = with_interface(mod, interface_of(mod, target, outputs=("classes",)))
    path: Path = tmp_path_factory.mktemp("library") / "model.so"
    write_library(tvm.compile(made, target), path)
    return path

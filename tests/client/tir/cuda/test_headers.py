"""CUDA's headers: where they are found, and what is said of those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tunehub.tir.cuda import headers

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def only_these_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUDA is in folders of the test, if anywhere."""
    monkeypatch.setattr(headers, "cuda_folders", lambda: (tmp_path / name for name in ("none", "old", "new", "crt")))
    headers.header_folders.cache_clear()
    yield
    headers.header_folders.cache_clear()


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_each_header_is_taken_from_the_first_folder_that_has_it(tmp_path: Path) -> None:
    """NVIDIA's wheels have parts of them in several folders."""
    put(tmp_path / "old/include", "cuda_fp16.h")
    put(tmp_path / "new/include", "cuda_fp16.h", "mma.h")
    put(tmp_path / "crt/include", "crt/mma.h")
    assert headers.header_folders() == tuple(str(tmp_path / name / "include") for name in ("old", "new", "crt"))
    assert headers.missing_headers((headers.HALF, *headers.TENSOR_CORES)) is None


def test_a_toolkit_has_them_by_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    put(tmp_path / "old/targets/sbsa-linux/include", "cuda_fp16.h")
    assert headers.header_folders() == (str(tmp_path / "old/targets/sbsa-linux/include"),)


def test_what_is_missing_is_named_with_its_packages(tmp_path: Path) -> None:
    assert headers.missing_for_tensor_cores() is None  # nothing in half precision compiles here, with or without them
    said = headers.missing_headers((headers.HALF,))
    assert str(said).startswith("CUDA's cuda_fp16.h is not on this machine: pip install nvidia-cuda-")
    put(tmp_path / "old/include", "cuda_fp16.h", "mma.h")
    headers.header_folders.cache_clear()
    said = headers.missing_for_tensor_cores()
    assert str(said).startswith(f"CUDA's crt/mma.h is not in {tmp_path / 'old/include'}: pip install")
    assert said is not None and "nvidia-cuda-crt" in said.remedy

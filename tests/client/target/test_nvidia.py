"""What the driver of NVIDIA's GPUs says, and what becomes of it."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.target import nvidia
from tunehub.target.nvidia import Gpu, find_gpus, parse_gpus

pytestmark = pytest.mark.fast

H200 = "NVIDIA H200, 9.0, 143771, 580.159.04, 1980, 3201, 700.00"


def test_an_h200() -> None:
    (gpu,) = parse_gpus(H200 + "\n")
    assert gpu == Gpu(
        name="NVIDIA H200", arch="sm_90", memory_mib=143771, driver="580.159.04", sm_clock_mhz=1980,
        memory_clock_mhz=3201, power_limit_w=700.0,
    )  # fmt: skip
    assert gpu.model == "h200"
    assert gpu.tvm_config()["arch"] == "sm_90"
    assert gpu.facts()["gpu_driver"] == "580.159.04"


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    (gpu,) = parse_gpus("NVIDIA GeForce RTX 4090, 8.9, [N/A], 550.1, [N/A], [Not Supported], [N/A]")
    assert (gpu.model, gpu.arch, gpu.memory_mib, gpu.power_limit_w) == ("rtx-4090", "sm_89", None, None)
    assert gpu.facts() == {"gpu": "NVIDIA GeForce RTX 4090", "gpu_arch": "sm_89", "gpu_driver": "550.1"}


def test_lines_that_are_no_gpu_are_left_out() -> None:
    assert [
        gpu.arch for gpu in parse_gpus(f"\nNo devices were found\n{H200}\n, 9.0, 1, 1, 1, 1, 1\nx, y, 1, 1, 1, 1, 1")
    ] == ["sm_90"]


@given(st.text(max_size=200))
def test_any_answer_is_read(text: str) -> None:
    for gpu in parse_gpus(text):
        assert gpu.model


@pytest.mark.parametrize("failure", [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_no_driver(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_words: Any, **_options: Any) -> Any:
        raise failure

    monkeypatch.setattr(nvidia.subprocess, "run", run)
    assert find_gpus() == ()


def test_the_driver_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(words: list[str], **_options: Any) -> Any:
        asked.append(words)
        return subprocess.CompletedProcess(words, 0, stdout=f"{H200}\n{H200}\n", stderr="")

    monkeypatch.setattr(nvidia.subprocess, "run", run)
    assert len(find_gpus()) == 2
    assert asked[0][0] == "nvidia-smi"

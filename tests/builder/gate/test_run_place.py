"""Where the gate's processes run kernels of TVM <= 0.19: on all GPUs that may be used, or on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunehub_builder.backends.relay.run_place import RunPlace, kind_of, places_by_device

pytestmark = pytest.mark.fast

H200 = "cuda -keys=cuda,gpu -arch=sm_90 -max_num_threads=1024 -model=h200 -thread_warp_size=32"
CPU = "llvm -keys=cpu -mcpu=znver5 -num-cores=2"


def test_processes_are_spread_over_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    found = places_by_device(H200, tmp_path, 5)
    assert [[place.gpu for place in places] for places in found.values()] == [["3", "3", "3"], ["5", "5"]]
    assert {place.lock for places in found.values() for place in places} == set(found)
    assert len(set(found)) == 2, "whoever measures holds one GPU only"


def test_there_is_a_process_at_least_and_on_a_cpu_all_are_in_one_place(tmp_path: Path) -> None:
    assert places_by_device(CPU, tmp_path, 0) == {None: [RunPlace()]}
    assert places_by_device(CPU, tmp_path, 3) == {None: [RunPlace()] * 3}
    assert (kind_of(H200), kind_of(CPU)) == ("cuda", "llvm")


def test_a_process_sees_its_gpu_alone_and_no_records_of_tvms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "TOPHUB_LOCATION"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    RunPlace().enter()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    RunPlace("lock", "5").enter()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"
    assert os.environ["TOPHUB_LOCATION"] == "NONE"

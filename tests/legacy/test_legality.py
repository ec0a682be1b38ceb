"""A record of another GPU is used only when it fits this one; TVM needs no GPU to say so."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import autotvm

import tunehub
from tunehub.relay.legality import build_problem, device_problem
from tunehub_registry.target import TargetDescriptor

from .relay_cases import log_line, make_registry, write_log

pytestmark = pytest.mark.legacy

ARGUMENTS = (
    ("TENSOR", (1, 64, 32, 32), "float32"), ("TENSOR", (64, 64, 3, 3), "float32"), (1, 1), (1, 1, 1, 1), (1, 1),
    "float32",
)  # fmt: skip
WORKLOAD = ("conv2d_nchw.cuda", *ARGUMENTS)
BIG = "cuda -model=big"
H200 = "cuda -arch=sm_90 -model=h200"


@pytest.fixture(scope="module")
def task() -> Any:
    return autotvm.task.create(WORKLOAD[0], ARGUMENTS, tvm.target.Target(BIG))


def configurations(task: Any) -> Iterator[tuple[int, int]]:
    """Index and threads per block of some configurations that use no virtual threads."""
    for index in range(0, len(task.config_space), 97):
        config = task.config_space.get(index)
        tiles = [config[name].size for name in ("tile_f", "tile_y", "tile_x")]
        if all(size[1] == 1 for size in tiles):
            yield index, math.prod(size[2] for size in tiles)


def index_with(task: Any, least: int, most: int) -> int:
    return next(index for index, threads in configurations(task) if least <= threads <= most)


def knobs(task: Any, **splits: list[int]) -> Any:
    """A configuration with these splits; kernel windows whole, nothing unrolled."""
    sizes = {"tile_ry": [-1, 3], "tile_rx": [-1, 3], **splits}
    entity = [[name, "sp", sizes[name]] for name in task.config_space.space_map if name in sizes]
    entity += [["auto_unroll_max_step", "ot", 0], ["unroll_explicit", "ot", 0]]
    return autotvm.task.space.ConfigEntity.from_json_dict({"index": 0, "code_hash": None, "entity": entity})


def limited(threads: int) -> Any:
    return tvm.target.Target(f"cuda -model=small -max_num_threads={threads}")


def test_threads_decide(task: Any) -> None:
    small = task.config_space.get(index_with(task, 32, 64))
    large = task.config_space.get(index_with(task, 512, 1024))
    assert device_problem(limited(256), WORKLOAD, small) is None
    assert "a block has more than 256 threads" in str(device_problem(limited(256), WORKLOAD, large))
    assert device_problem(limited(1024), WORKLOAD, large) is None


def test_a_cuda_gpu_has_the_limits_of_sm_80_whatever_its_target_states(task: Any) -> None:
    """As current TVM's schedules, by the same rule: `tunehub.tir.cuda.limits`."""
    large = knobs(task, tile_f=[-1, 1, 8, 8], tile_y=[-1, 1, 8, 1], tile_x=[-1, 1, 8, 1], tile_rc=[-1, 64])
    assert device_problem(tvm.target.Target(BIG), WORKLOAD, large) == (
        "a block takes more than 49152 bytes of shared memory"
    )
    generous = tvm.target.Target(f"{BIG} -max_shared_memory_per_block=232448 -max_threads_per_block=2048")
    assert "shared memory" in str(device_problem(generous, WORKLOAD, large))
    deep = knobs(task, tile_f=[-1, 1, 64, 1], tile_y=[-1, 1, 32, 1], tile_x=[-1, 1, 1, 1], tile_rc=[-1, 1])
    assert device_problem(generous, WORKLOAD, deep) == "a block has more than 1024 threads"
    small = knobs(task, tile_f=[-1, 1, 8, 1], tile_y=[-1, 1, 8, 1], tile_x=[-1, 1, 8, 1], tile_rc=[-1, 4])
    assert device_problem(tvm.target.Target(BIG), WORKLOAD, small) is None


def test_other_gpus_have_the_limits_that_their_target_states(task: Any) -> None:
    large = task.config_space.get(index_with(task, 512, 1024))
    other = tvm.target.Target("opencl -device=intel_graphics")
    assert device_problem(other, WORKLOAD, large) == (
        "it exceeds this device's limits (max_shared_memory_per_block 16384, max_threads_per_block 256)"
    )


def test_a_cpu_runs_every_configuration(task: Any) -> None:
    assert device_problem(tvm.target.Target("llvm"), WORKLOAD, task.config_space.get(0)) is None


def test_a_template_that_refuses_says_so(task: Any) -> None:
    config = task.config_space.get(0)
    del config._entity_map["tile_f"]
    assert "no knob 'tile_f'" in str(build_problem(limited(1024), WORKLOAD, config))
    assert "the template refuses it" in str(device_problem(limited(1024), WORKLOAD, config))


def test_another_devices_record_is_served_only_when_legal(
    task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is for another model of the same architecture; this device allows 256 threads a block."""
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    arch = str(tvm.target.Target(BIG).attrs["arch"])
    descriptor = TargetDescriptor(kind="cuda", model="big", arch=arch, features=(arch,))
    served = {}
    for name, index in (("legal", index_with(task, 32, 64)), ("illegal", index_with(task, 512, 1024))):
        content = write_log(tmp_path / "a.log", log_line(task, index, 1e-3, BIG)).read_bytes()
        place = make_registry(tmp_path / name, descriptor, {"records/autotvm.log": ("autotvm", content)})
        with warnings.catch_warnings():
            warnings.simplefilter("error", tunehub.HubWarning)
            with tunehub.context(limited(256), registry=place) as hub:
                config = autotvm.task.DispatchContext.current.query(limited(256), WORKLOAD)
        served[name] = (config.is_fallback, [note for note in hub.report().notes if "another device" in note])
    assert served["legal"] == (False, [])
    is_fallback, notes = served["illegal"]
    assert is_fallback
    assert "big 1.0: conv2d_nchw.cuda 1x64x32x32 64x64x3x3" in notes[0]
    assert "more than 256 threads" in notes[0]


@pytest.mark.parametrize("changed, served", [({}, True), ({"offset": 1}, False), ({"wmma_m": None}, False)])
def test_a_template_for_tensor_cores_gets_the_values_that_it_states(
    tmp_path: Path, changed: dict[str, Any], served: bool
) -> None:
    """Rows of fragments that are 129 numbers apart compile, and load others than the template means."""
    shapes = (("TENSOR", (128, 128), "float16"), ("TENSOR", (128, 128), "float16"))
    dense = autotvm.task.create("dense_tensorcore.cuda", (*shapes, None, "float16"), tvm.target.Target(H200))
    line = log_line(dense, 0, 1e-5, H200)
    entities = [[name, kind, changed.get(name, value)] for name, kind, value in line["config"]["entity"]]
    line["config"]["entity"] = [each for each in entities if each[2] is not None]
    with tunehub.context(H200, user_records=write_log(tmp_path / "mine.log", line)) as hub:
        found = autotvm.task.DispatchContext.current.query(dense.target, dense.workload)
    assert found.is_fallback is not served
    assert any("left out: the knob" in note for note in hub.report().notes) is not served

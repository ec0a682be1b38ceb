"""Measuring a GPU for the rules: its kernels, and what is made of their times. Nothing here needs a GPU."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relax")

from tunehub.cli.calibrate import gpu_profile_state  # noqa: E402
from tunehub.cli.doctor import _describe_gpu_profile  # noqa: E402
from tunehub.cli.group import cli  # noqa: E402
from tunehub.compiler.measure import gpu_calibration, gpu_kernels  # noqa: E402
from tunehub.compiler.measure.gpu_kernels import GpuKernel  # noqa: E402
from tunehub.exceptions import MeasureError, UnknownTargetError  # noqa: E402
from tunehub.kernels.devices.known import default_device, device_for, device_of  # noqa: E402
from tunehub.target import nvidia_driver  # noqa: E402
from tunehub.target.gpu_profile import gpu_profile_path, write_gpu_profile  # noqa: E402
from tunehub.target.nvidia_driver import DriverFacts  # noqa: E402

from ...kernels.cuda.attention import lockstep  # noqa: E402

pytestmark = pytest.mark.slow

FACTS = DriverFacts(
    model="rtx-3090", architecture="sm_86", multiprocessors=82, clock=1.695e9, shared_memory=100 << 10,
    block_shared_memory=99 << 10, registers=1 << 16, blocks=16, warps=48, l2=6 << 20, bandwidth=936e9,
)  # fmt: skip
TIMES = {"clock": 1.7e9, "bandwidth": 4e11, "l2_bandwidth": 2.5e12, "flops": 3e13, "tensor_flops": 1.2e14}
LAUNCH_S = 3e-6


def timed(slow: float = 1.0) -> Callable[[GpuKernel], Callable[[], float]]:
    """A GPU of these rates; from the second round on it is ``slow`` times as slow."""
    names = {kernel.work: name for name, kernel in gpu_kernels.gpu_kernels(device_for("sm_86", facts=FACTS)).items()}

    def build(kernel: GpuKernel) -> Callable[[], float]:
        rate = TIMES.get(names[kernel.work], 1 / LAUNCH_S)
        rounds = iter([1.0, *[slow] * gpu_calibration.STEPS])
        return lambda: next(rounds) * kernel.work / rate

    return build


def emulated(kernel: GpuKernel, values: np.ndarray) -> np.ndarray:
    pytest.importorskip("tvm.backend.cuda.ptx", reason="the emulator needs TVM 0.27")
    written = np.zeros(kernel.written, "float32")
    lockstep.run(kernel.mod["main"], values, written)
    return written


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "_ROUNDS", 2)


def numbers(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 0.9, count).astype("float32")


def test_a_copy_copies() -> None:
    kernel = gpu_kernels.copied(4096)
    values = numbers(kernel.read)
    assert np.array_equal(emulated(kernel, values), values)
    assert kernel.work == 2 * 4 * 4096


def test_each_block_reads_all_of_what_is_in_the_cache() -> None:
    kernel = gpu_kernels.cached(5 * 4096, 3)
    values = numbers(kernel.read)
    rows = values.reshape(5, 256, 4)
    expected = rows.sum((0, 2)) + values[:4].sum()  # which sums begin with
    assert np.allclose(emulated(kernel, values), np.tile(expected, 3))
    assert kernel.work == 4 * kernel.read * 3


@pytest.mark.parametrize(("kernel", "sums"), [(gpu_kernels.chained, 1), (lambda: gpu_kernels.multiply_adds(1), 16)])
def test_sums_are_of_multiply_adds(kernel: Callable[[], GpuKernel], sums: int) -> None:
    found = kernel()
    values = numbers(found.read)
    own = np.lib.stride_tricks.sliding_window_view(values, max(sums, 2))[: found.written]
    state, steps = own[:, :sums].copy(), 2 * gpu_kernels._CHAIN
    for _ in range(steps):
        state = state * own[:, :1] + own[:, 1:2]
    assert np.allclose(emulated(found, values), state.sum(1), rtol=1e-4)
    operations = 4 * steps if sums == 1 else 2 * 256 * 16 * steps
    assert found.work == operations


def test_every_kernel_is_code_for_cuda() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_86"})
    for name, kernel in gpu_kernels.gpu_kernels(device_for("sm_86")).items():
        with target:
            lowered = tvm.compile(kernel.mod, target)
        source = lowered.mod.imports[0].inspect_source()
        assert ("mma.sync.aligned.m16n8k16" in source) == (name == "tensor_flops")
        assert ("float4" in source) == (name in ("bandwidth", "l2_bandwidth"))


def test_a_profile_has_the_rates_of_the_best_rounds() -> None:
    shown: list[int] = []
    profile = gpu_calibration.calibrate_gpu(FACTS, timed(1.2), shown.append)
    assert sum(shown) == gpu_calibration.STEPS
    assert (profile.gpu, profile.architecture, profile.multiprocessors) == ("rtx-3090", "sm_86", 82)
    has_functions = gpu_kernels._has_functions()
    for name, rate in TIMES.items():
        expected = rate if name != "tensor_flops" or has_functions else None
        assert getattr(profile, name) == (None if expected is None else pytest.approx(expected))
    assert profile.launch_s == pytest.approx(LAUNCH_S)


def test_a_busy_gpu_is_not_measured() -> None:
    with pytest.raises(MeasureError, match="the GPU is busy"):
        gpu_calibration.calibrate_gpu(FACTS, timed(1.5))


def test_the_command_keeps_a_profile_and_rules_go_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    monkeypatch.setattr(nvidia_driver, "driver_facts", lambda: FACTS)
    monkeypatch.setattr(gpu_calibration, "on_this_gpu", lambda target: timed())
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_86"})
    dry = CliRunner().invoke(cli, ["calibrate", "--device", "cuda", "--dry-run"])
    assert dry.exit_code == 0 and "nothing was kept" in dry.output and "float32" in dry.output
    assert not gpu_profile_path(tmp_path, "sm_86").exists()
    result = CliRunner().invoke(cli, ["calibrate", "--device", "cuda", "--json"])
    found = json.loads(result.stdout)
    assert found["path"] == str(gpu_profile_path(tmp_path, "sm_86"))
    assert found["bandwidth"] == pytest.approx(TIMES["bandwidth"])
    device, reference = device_of(target), default_device()
    assert reference.calibrated is not None
    assert device.bandwidth == found["rates"]["bandwidth"] != device_for("sm_86").bandwidth
    gain = TIMES["bandwidth"] / reference.calibrated.bandwidth
    assert device.costs.threads["bytes"] == pytest.approx(reference.costs.threads["bytes"] / gain)


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_driver, "driver_facts", lambda: None)
    result = CliRunner().invoke(cli, ["calibrate", "--device", "cuda"])
    assert isinstance(result.exception, UnknownTargetError) and "names no GPU here" in str(result.exception)


def test_the_doctor_says_when_a_gpu_was_measured_and_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    monkeypatch.setattr(nvidia_driver, "driver_facts", lambda: FACTS)
    assert gpu_profile_state() == {} and _describe_gpu_profile({}) == []
    path = write_gpu_profile(tmp_path, gpu_calibration.calibrate_gpu(FACTS, timed()))
    (found,) = _describe_gpu_profile(gpu_profile_state())
    assert (found.state, found.text) == ("ok", f"measured {datetime.date.today().isoformat()}")
    path.write_bytes(b"{")
    (found,) = _describe_gpu_profile(gpu_profile_state())
    assert found.state == "warning" and path.name in found.text

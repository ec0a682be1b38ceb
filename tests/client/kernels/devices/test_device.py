"""Devices: what a file has to say, and that the client's own says it."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from tunehub.exceptions import DeviceFileError
from tunehub.kernels.devices import known
from tunehub.kernels.devices.device import NAMES, DeviceCosts, GpuDevice, read_device, read_specification
from tunehub.kernels.devices.known import _NAMES, _OF_ARCHITECTURE, default_device, device_for, device_of
from tunehub.target.gpu_profile import write_gpu_profile
from tunehub.target.nvidia_driver import DriverFacts
from tunehub_registry.gpu_profile import GpuProfile

pytestmark = pytest.mark.fast

FOLDER = resources.files("tunehub.kernels.devices")
TEXT = FOLDER.joinpath("h200.toml").read_text(encoding="utf-8")
OTHER = FOLDER.joinpath("a100.toml").read_text(encoding="utf-8")


class _Target:
    """What is asked of a target of TVM."""

    def __init__(self, tag: str = "", **attrs: str) -> None:
        self.tag, self.attrs = tag, attrs


def test_a_file_is_read_once() -> None:
    assert device_for("sm_90") is default_device() is default_device()
    assert device_for("sm_80") is device_for("sm_80")


def test_every_file_is_known_by_its_name_and_every_architecture_by_one_of_it() -> None:
    files = {each.name.removesuffix(".toml") for each in FOLDER.iterdir() if each.name.endswith(".toml")}
    assert files == _NAMES
    for architecture, name in _OF_ARCHITECTURE.items():
        assert device_for(f"sm_{architecture}").name == name
        assert device_for(f"sm_{architecture}").architecture == f"sm_{architecture}"
    for name in files:
        text = FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")
        device = device_for((read_device if name == "h200" else read_specification)(text, name).architecture, name)
        assert device.name == name and device.measured == (name == "h200")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (_Target(arch="sm_90"), "h200"),
        (_Target(arch="sm_90a"), "h200"),
        (_Target(arch="sm_90", model="unknown"), "h200"),
        (_Target(arch="sm_90a", tag="nvidia/nvidia-h100"), "h100"),
        (_Target(arch="sm_90", model="h100"), "h100"),
        (_Target(arch="sm_90", model="h100-pcie"), "h100-pcie"),
        (_Target(arch="sm_90", model="../h200"), "h200"),
        (_Target(arch="sm_80", model="h100"), "a100"),
        (_Target(arch="sm_80"), "a100"),
        (_Target(arch="sm_86", model="geforce-rtx-3090"), "a10"),
        (_Target(arch="sm_89", model="l4"), "l4"),
        (_Target(arch="sm_75"), "a100"),
        (_Target(arch="sm_87"), "a10"),
        (_Target(arch="sm_120"), "b200"),
        (_Target(arch="none"), "a100"),
        (_Target(), "a100"),
    ],
)
def test_a_target_names_its_gpu_or_gets_the_nearest(target: _Target, name: str) -> None:
    assert device_of(target).name == name


def test_what_nobody_measured_follows_from_rates() -> None:
    known, other = default_device(), device_for("sm_80", "a100")
    costs, own = known.costs, other.costs
    assert other.bandwidth == pytest.approx(2.039e12 * 4 / 4.8)
    assert own.threads["bytes"] == pytest.approx(costs.threads["bytes"] * 4.8 / 2.039)
    assert own.threads["products"] == pytest.approx(costs.threads["products"] * 67 / 132 / (19.5 / 108))
    assert own.tensor_cores["products"] == pytest.approx(costs.tensor_cores["products"] * 989 / 132 / (312 / 108))
    assert own.threads["chain"] == pytest.approx(costs.threads["chain"] * 1.98 / 1.41)
    assert own.threads["launch"] == costs.threads["launch"]
    assert other.places == {1: 108} and other.found_by(8) == 108


def test_clusters_of_another_size_are_as_on_the_gpu_that_was_measured() -> None:
    assert device_for("sm_90", "h100").places == default_device().places
    assert max(device_for("sm_100").places) == 8


FACTS = DriverFacts(
    model="rtx-3090", architecture="sm_86", multiprocessors=82, clock=1.695e9, shared_memory=100 << 10,
    block_shared_memory=99 << 10, registers=1 << 16, blocks=16, warps=48, l2=6 << 20, bandwidth=936e9,
)  # fmt: skip


def test_of_an_unknown_gpu_its_driver_tells() -> None:
    near, device = device_for("sm_86"), device_for("sm_86", FACTS.model, facts=FACTS)
    assert (device.name, device.measured, device.multiprocessors) == ("rtx-3090", False, 82)
    assert device.flops == pytest.approx(near.flops * 82 / 72)
    assert device.bandwidth == pytest.approx(936e9 * 4 / 4.8)
    assert device.costs.threads["bytes"] == pytest.approx(default_device().costs.threads["bytes"] * 4e12 / 780e9)


def test_the_driver_is_asked_of_this_machines_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    monkeypatch.setattr(known, "driver_facts", lambda: FACTS)
    assert device_of(_Target(arch="sm_86", model="rtx-3090")).multiprocessors == 82
    for other in (
        _Target(arch="sm_86", model="rtx-3080"),
        _Target(arch="sm_89", model="rtx-3090"),
        _Target(arch="sm_86"),
    ):
        assert device_of(other).name in ("a10", "l40s")


def test_rules_go_by_the_profile_of_an_architecture_and_by_none_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "sound", tmp_path / "damaged"]
    for folder in folders:
        path = write_gpu_profile(folder, profile(default_device(), bandwidth=0.5))
    path.write_bytes(b"{")
    bandwidths = []
    for folder in folders:
        monkeypatch.setenv("TUNEHUB_CACHE", str(folder))
        bandwidths.append(device_of(_Target(arch="sm_90a")).bandwidth)
        assert device_of(_Target(arch="sm_90", model="h100")) is device_for("sm_90", "h100")
    assert bandwidths == [default_device().bandwidth / 2, default_device().bandwidth]


def test_facts_of_the_gpu_that_is_known_change_nothing() -> None:
    facts = replace(FACTS, model="a10", multiprocessors=72)
    assert device_for("sm_86", "a10", facts=facts) is device_for("sm_86", "a10")


def profile(device: GpuDevice, **changes: float) -> GpuProfile:
    """One of a GPU that is as fast as an H200 but for ``changes``, by how many times."""
    known = default_device().calibrated
    assert known is not None
    rates = {name: changes.get(name, 1.0) * rate for name, rate in msgspec.structs.asdict(known).items()}
    return GpuProfile(
        gpu=device.name, architecture=device.architecture, multiprocessors=device.multiprocessors,
        measured="2026-11-28", **rates,
    )  # fmt: skip


def test_what_is_not_measured_exactly_enough_changes_nothing() -> None:
    device = default_device()
    rates = {"clock": 0.95, "bandwidth": 1.08, "l2_bandwidth": 0.92, "flops": 1.05, "launch_s": 1.09}
    assert device_for("sm_90", "h200", profile=profile(device, **rates)) is device


def test_a_profile_has_other_rates_and_so_other_costs() -> None:
    known = default_device()
    found = device_for("sm_90", "h200", profile=profile(known, bandwidth=0.5, launch_s=2.0, clock=1.05))
    assert (found.bandwidth, found.clock) == (known.bandwidth / 2, known.clock)
    assert found.launches.moving == 2 * known.launches.moving
    assert found.launches.threads == tuple(2 * each for each in known.launches.threads)
    assert found.costs.threads["bytes"] == 2 * known.costs.threads["bytes"]
    assert found.costs.threads["launch"] == 2 * known.costs.threads["launch"]
    assert found.costs.threads["chain"] == known.costs.threads["chain"]


def test_without_a_rate_of_tensor_cores_the_known_one_stays() -> None:
    known = default_device()
    found = device_for("sm_90", "h200", profile=msgspec.structs.replace(profile(known, flops=0.5), tensor_flops=None))
    assert (found.flops, found.tensor_flops) == (known.flops / 2, known.tensor_flops)


def test_a_profile_tells_two_forms_of_a_gpu_apart() -> None:
    other = device_for("sm_90", "h100-pcie")
    assert device_for("sm_90", "h100", profile=profile(other)).name == "h100-pcie"
    assert device_for("sm_90", "h100", profile=profile(device_for("sm_90", "h100"))).name == "h100"


def test_each_kind_of_costs_has_names() -> None:
    assert tuple(NAMES) == DeviceCosts.__struct_fields__


def test_costs_are_added_up_in_one_order_whatever_that_of_the_file() -> None:
    lines = TEXT.splitlines()
    at = lines.index("[costs.threads]")
    lines[at + 1 : at + 3] = reversed(lines[at + 1 : at + 3])
    assert list(read_device("\n".join(lines), "other.toml").costs.threads) == list(NAMES["threads"])


def test_clusters_of_many_blocks_find_fewer_multiprocessors() -> None:
    device = default_device()
    assert device.found_by(1) == device.found_by(2) == device.multiprocessors
    assert device.found_by(4) == device.found_by(8) == device.clustered_multiprocessors < device.multiprocessors


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("multiprocessors = 132", "", "multiprocessors"),
        ("multiprocessors = 132", "multiprocessors = 0", "multiprocessors"),
        ("multiprocessors = 132", "multiprocessors = 'many'", "multiprocessors"),
        ("bandwidth = 4e12", "bandwidth = 4e12\nband_width = 4e12", "band_width"),
        ("[costs.split_k]", "[costs.splitk]", "split"),
        ("spilled = 2.58e-09", "", "spilled"),
        ("spilled = 2.58e-09", "spilled = -2.58e-09", "costs.threads"),
        ("spilled = 2.58e-09", "spilled = 2.58e-09\nlost = 1.0", "lost"),
        ("8 = 15", "8 = 'few'", "places"),
    ],
)
def test_a_wrong_field_is_named_with_the_file(old: str, new: str, field: str) -> None:
    assert old in TEXT
    with pytest.raises(DeviceFileError) as caught:
        read_device(TEXT.replace(f"\n{old}", f"\n{new}", 1), "other.toml")
    assert caught.value.file == "other.toml" and str(caught.value).startswith("other.toml: ")
    assert field in caught.value.reason


def test_of_a_gpu_that_nobody_measured_a_wrong_field_is_named_too() -> None:
    with pytest.raises(DeviceFileError, match=r"other\.toml: .*bandwidth"):
        read_specification(OTHER.replace("peak_bandwidth", "bandwidth"), "other.toml")
    with pytest.raises(DeviceFileError, match=r"other\.toml: .*architecture"):
        read_specification(OTHER.replace("sm_80", "ampere"), "other.toml")


def test_what_is_no_toml_is_refused() -> None:
    with pytest.raises(DeviceFileError, match=r"other\.toml: not TOML"):
        read_device("name = ", "other.toml")

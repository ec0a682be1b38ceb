"""Devices: what a file has to say, and that the client's own says it."""

from __future__ import annotations

from importlib import resources

import pytest

from tunehub.exceptions import DeviceFileError
from tunehub.kernels.devices.device import NAMES, DeviceCosts, read_device, read_specification
from tunehub.kernels.devices.known import _NAMES, _OF_ARCHITECTURE, default_device, device_for, device_of

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

"""Devices: what a file has to say, and that the client's own says it."""

from __future__ import annotations

from importlib import resources

import pytest

from tunehub.exceptions import DeviceFileError
from tunehub.kernels.devices.device import NAMES, DeviceCosts, read_device
from tunehub.kernels.devices.known import default_device, device_of

pytestmark = pytest.mark.fast

TEXT = resources.files("tunehub.kernels.devices").joinpath("h200.toml").read_text(encoding="utf-8")


def test_the_file_is_read_once() -> None:
    assert device_of("cuda") is default_device() is default_device()
    assert default_device().name == "h200"


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


def test_what_is_no_toml_is_refused() -> None:
    with pytest.raises(DeviceFileError, match=r"other\.toml: not TOML"):
        read_device("name = ", "other.toml")

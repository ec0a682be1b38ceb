"""What the driver's library says of a GPU, by one that is none."""

from __future__ import annotations

from typing import Any

import pytest

from tunehub.target.nvidia_driver import DriverFacts, facts_of

pytestmark = pytest.mark.fast

# Of a GeForce RTX 3090, by the numbers of the attributes.
RTX_3090 = {
    75: 8, 76: 6, 16: 82, 13: 1_695_000, 36: 9_751_000, 37: 384, 38: 6 << 20, 81: 100 << 10, 97: 99 << 10, 82: 1 << 16,
    106: 16, 39: 1536, 10: 32,
}  # fmt: skip


class FakeDriver:
    """The functions that are called, of a GPU with these ``attributes``; the function ``failing`` fails."""

    def __init__(self, attributes: dict[int, int], failing: str = "") -> None:
        self._attributes, self._failing = attributes, failing

    def cuInit(self, flags: int) -> int:
        return int(self._failing == "cuInit" or flags != 0)

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = 7
        return int(self._failing == "cuDeviceGet" or ordinal != 0)

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"NVIDIA GeForce RTX 3090"[: size - 1]
        return int(self._failing == "cuDeviceGetName" or device.value != 7)

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        if attribute not in self._attributes:
            return 1
        value._obj.value = self._attributes[attribute]
        return int(device.value != 7)


def test_sizes_and_rates_are_read() -> None:
    assert facts_of(FakeDriver(RTX_3090)) == DriverFacts(  # type: ignore[arg-type]
        model="rtx-3090",
        architecture="sm_86",
        multiprocessors=82,
        clock=1.695e9,
        shared_memory=100 << 10,
        block_shared_memory=99 << 10,
        registers=1 << 16,
        blocks=16,
        warps=48,
        l2=6 << 20,
        bandwidth=936.096e9,
    )


@pytest.mark.parametrize("failing", ["cuInit", "cuDeviceGet", "cuDeviceGetName"])
def test_without_a_gpu_nothing_is_known(failing: str) -> None:
    assert facts_of(FakeDriver(RTX_3090, failing)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("attribute", [16, 36, 37, 106])
def test_a_driver_that_does_not_tell_all_counts_as_none(attribute: int) -> None:
    rest = {number: value for number, value in RTX_3090.items() if number != attribute}
    assert facts_of(FakeDriver(rest)) is None  # type: ignore[arg-type]

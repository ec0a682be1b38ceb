"""Tensors on a CPU are what was given; large ones begin at a huge page, small ones share some."""

from __future__ import annotations

import itertools
import mmap
from pathlib import Path

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm

from tunehub.models.device_tensors import empty_array, new_memory_in_huge_pages, on_device, owned_on_device, zeros

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "uint32"])
@pytest.mark.parametrize("rows", [3, 3001])
def test_a_copy_has_all_elements_and_its_own_memory(kind: str, rows: int) -> None:
    array = (np.arange(rows * 700, dtype="float32") % 251).reshape(rows, 700).astype(kind)
    made = on_device(array, tvm.cpu())
    kept = array.copy()
    array[:] = 0
    assert (made.shape, str(made.dtype)) == ((rows, 700), kind)
    assert (made.numpy() == kept).all()


def test_a_large_tensor_begins_at_a_huge_page() -> None:
    made = zeros((8192, 1024), "float32", tvm.cpu())
    assert np.from_dlpack(made).ctypes.data % (2 << 20) == 0
    assert not made.numpy().any()


@pytest.mark.parametrize("count", [1000, 1 << 20])
def test_a_tensor_lies_in_private_memory_of_which_linux_makes_huge_pages(count: int) -> None:
    made = zeros((count,), "float32", tvm.cpu())
    place = made.data_ptr()
    lines = [each.split() for each in Path("/proc/self/maps").read_text().splitlines()]
    found = [kind for where, kind, *_ in lines if place in range(*(int(each, 16) for each in where.split("-")))]
    assert found == ["rw-p"]


def test_small_tensors_share_huge_pages_and_do_not_overlap() -> None:
    made = [on_device(np.full((count,), count, "uint32"), tvm.cpu()) for count in (3, 400_000, 17, 300_000) * 8]
    places = sorted((each.data_ptr(), each.numpy().nbytes) for each in made)
    assert all(begin % 64 == 0 for begin, _ in places)
    assert all(begin + size <= other for (begin, size), (other, _) in itertools.pairwise(places))
    assert all((each.numpy() == each.shape[0]).all() for each in made)
    assert len({begin >> 24 for begin, _ in places}) <= 5  # 22 MB in parts of 16


def test_tensors_a_little_larger_than_a_huge_page_do_not_lose_the_rest_of_another() -> None:
    places = sorted(zeros((550_000,), "float32", tvm.cpu()).data_ptr() for _ in range(9))
    steps = [other - one for one, other in itertools.pairwise(places)]
    assert steps.count(550_000 * 4) >= 7  # one part may have ended


def test_what_numpy_has_is_copied_and_an_empty_array_is_taken_as_it_is() -> None:
    own, other = empty_array((3, 5), "bfloat16"), np.ones((3, 5), "float32")
    own[:] = 2
    tensor = owned_on_device(own, tvm.cpu())
    assert (tensor.data_ptr(), tensor.shape, str(tensor.dtype)) == (own.ctypes.data, (3, 5), "bfloat16")
    assert (tensor.numpy() == own).all()
    assert owned_on_device(other, tvm.cpu()).data_ptr() != other.ctypes.data


def test_a_tensor_without_elements_is_one() -> None:
    assert on_device(np.empty((0, 4), "float32"), tvm.cpu()).shape == (0, 4)


@pytest.mark.parametrize(("device", "advised"), [(tvm.cpu(), True), (tvm.cuda(), False)])
def test_what_others_map_for_a_cpu_is_advised_to_have_huge_pages(device: tvm.runtime.Device, advised: bool) -> None:
    with new_memory_in_huge_pages(device):
        made = mmap.mmap(-1, 5 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made[:] = b"x" * len(made)
    assert ("hg" in _flags_of(np.frombuffer(made, "uint8").ctypes.data)) == advised


def _flags_of(place: int) -> list[str]:
    """Of the mapping that has an address, as Linux names them."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and ":" not in name:
            found = place in range(*(int(each, 16) for each in name.split("-")))
        if found and name == "VmFlags:":
            return rest
    raise AssertionError(place)

from __future__ import annotations

import pytest

from tunehub_builder.review.roofline import ceiling_of
from tunehub_registry.machine_profile import MachineProfile
from tunehub_registry.target import TargetDescriptor

pytestmark = pytest.mark.fast

ZEN = TargetDescriptor(kind="llvm", model="znver4", arch="x86_64", features=("avx2", "avx512f"))
NARROW = TargetDescriptor(kind="llvm", model="haswell", arch="x86_64", features=("avx2",))
SLOW = MachineProfile(
    cpu="znver4", mattr=(), cores=2, measured="2026-11-23", multiply_add_s=2e-10, dependent_s=1e-9, memory_bytes=1e10,
    region_s=1e-6,
)  # fmt: skip


def gpu(model: str) -> TargetDescriptor:
    return TargetDescriptor(kind="cuda", model=model, arch="sm_90")


def test_a_cpu_does_so_much_a_thread_and_half_with_narrow_vectors() -> None:
    one, four = (ceiling_of(ZEN, threads, ["float32"], None) for threads in (1, 4))
    assert one.operations == 64 * 6.5e9 and four.operations == 4 * one.operations
    assert ceiling_of(NARROW, 1, ["float32"], None).operations == one.operations / 2


def test_a_profile_lowers_the_ceiling_and_never_lifts_it() -> None:
    plain, slow = ceiling_of(ZEN, 1, ["float32"], None), ceiling_of(ZEN, 1, ["float32"], SLOW)
    assert slow.operations == pytest.approx(1.5 * 32 / 2e-10) and slow.source == "the package's machine profile"
    import msgspec

    boast = msgspec.structs.replace(SLOW, multiply_add_s=1e-13)
    assert ceiling_of(ZEN, 1, ["float32"], boast) == plain


def test_nobody_has_more_than_1024_threads() -> None:
    assert ceiling_of(ZEN, 2**50, ["float32"], None) == ceiling_of(ZEN, 1024, ["float32"], None)


def test_an_unknown_gpu_counts_as_the_largest_and_narrow_types_are_faster() -> None:
    assert ceiling_of(gpu("x9"), 1, ["float32"], None).operations == ceiling_of(gpu("b200"), 1, [], None).operations
    assert ceiling_of(gpu("h200"), 1, ["float16"], None).operations == 989e12


def test_the_least_time_is_that_of_arithmetic_or_of_bytes() -> None:
    ceiling = ceiling_of(ZEN, 1, ["float32"], None)
    assert ceiling.least_s(2 * ceiling.operations, 0) == 1.0
    assert ceiling.least_s(0, 3 * ceiling.moved) == 3.0
    assert ceiling.least_s(18 * ceiling.operations, 0, winograd=True) == 1.0

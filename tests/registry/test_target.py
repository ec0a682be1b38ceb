from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.target import Accepted, Matcher, Rejected, TargetDescriptor, match

pytestmark = pytest.mark.fast


def cpu(model: str = "znver5", **changes: object) -> TargetDescriptor:
    base = TargetDescriptor(kind="llvm", model=model, arch="x86_64", features=("avx2", "avx512f"))
    return msgspec.structs.replace(base, **changes)


def gpu(model: str, arch: str, **changes: object) -> TargetDescriptor:
    base = TargetDescriptor(
        kind="cuda", model=model, arch=arch, max_threads_per_block=1024, max_shared_memory_per_block=49152
    )
    return msgspec.structs.replace(base, **changes)


def test_name() -> None:
    assert cpu("skylake-avx512").name == "llvm-skylake-avx512"


@pytest.mark.parametrize("field", ["kind", "model", "arch"])
@pytest.mark.parametrize("value", ["", "../x", "a/b", "a\\b", "x\n", ".a", "a\x00b", "-a"])
def test_names_cannot_escape(field: str, value: str) -> None:
    fields = {"kind": "llvm", "model": "m", "arch": "x86_64", field: value}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, TargetDescriptor)


def test_exact_by_model_and_by_alias_in_either_direction() -> None:
    assert match(cpu(), cpu(features=())) == Accepted(fit="exact", distance=0)
    assert match(cpu(aliases=("EPYC-9005",)), cpu("epyc-9005")) == Accepted(fit="exact", distance=0)
    assert match(cpu(), cpu("other", aliases=("ZnVer5",))) == Accepted(fit="exact", distance=0)


def test_the_same_name_with_other_features_is_matched_by_these() -> None:
    """A virtual machine that hides its model goes by another one's name; another hides what its model has."""
    masked = cpu("rocketlake", features=("avx2", "avx512f", "amx-tile"))
    assert match(cpu("rocketlake"), masked) == Accepted(fit="family", distance=1)
    assert match(cpu("sapphirerapids", features=masked.features), masked) == Accepted(fit="family", distance=0)
    assert match(masked, masked) == Accepted(fit="exact", distance=0)
    assert match(cpu(), cpu(features=("avx2",))) == Accepted(fit="generic", distance=1)
    assert match(cpu(features=()), cpu()) == Accepted(fit="exact", distance=0)


def test_family_counts_the_unused_features() -> None:
    host = cpu("znver6", features=("avx2", "avx512f", "avx512vnni", "avx512bf16"))
    assert match(cpu(), host) == Accepted(fit="family", distance=2)


def test_generic_when_the_host_lacks_features_that_are_not_required() -> None:
    assert match(cpu(), cpu("haswell", features=("avx2",))) == Accepted(fit="generic", distance=1)


def test_required_features_hold_on_every_rung_and_are_named() -> None:
    package = cpu(features=("avx512vnni",), required_features=("avx512vnni", "amx"))
    for model in ("znver5", "haswell"):
        assert match(package, cpu(model, features=("avx2",))) == Rejected(
            reason="this machine lacks the required features amx, avx512vnni"
        )


def test_other_kind_and_other_architecture() -> None:
    assert match(gpu("h200", "sm_90"), cpu()) == Rejected(
        reason="the package is for kind 'cuda', this machine is 'llvm'"
    )
    assert match(cpu(), cpu("m1", arch="aarch64")) == Rejected(
        reason="the package is for architecture 'x86_64', this machine is 'aarch64'"
    )


@pytest.mark.parametrize(
    ("package", "host", "expected"),
    [
        ("sm_80", "sm_86", Accepted(fit="family", distance=6)),
        ("sm_86", "sm_80", Accepted(fit="generic", distance=6)),
        ("sm_80", "sm_90", Accepted(fit="generic", distance=10)),
        ("sm_90a", "sm_90", Accepted(fit="family", distance=0)),
        ("sm_100", "sm_103", Accepted(fit="family", distance=3)),
    ],
)
def test_gpu_family_is_the_same_major_architecture(package: str, host: str, expected: Accepted) -> None:
    assert match(gpu("a", package), gpu("b", host)) == expected


def test_a_required_sm_means_that_or_later() -> None:
    package = gpu("a", "sm_90", required_features=("sm_80",))
    assert match(package, gpu("b", "sm_86")) == Accepted(fit="generic", distance=4)
    assert isinstance(match(package, gpu("b", "sm_75")), Rejected)
    special = gpu("a", "sm_90a", required_features=("sm_90a",))
    assert isinstance(match(special, gpu("b", "sm_100")), Rejected)
    assert match(special, gpu("b", "sm_90a", features=("sm_90a",))) == Accepted(fit="family", distance=1)


def test_gpu_limits_are_legal_on_every_rung() -> None:
    big = gpu("h200", "sm_90", max_shared_memory_per_block=232448)
    for host in (gpu("h200", "sm_90"), gpu("b", "sm_90"), gpu("b", "sm_80")):
        assert match(big, host) == Rejected(
            reason="the package may use 232448 bytes of shared memory per block, this machine allows 49152"
        )
    assert isinstance(match(gpu("a", "sm_90"), gpu("b", "sm_90", max_threads_per_block=512)), Rejected)


FEATURES = st.lists(st.sampled_from(["avx2", "avx512f", "amx", "sm_80"]), unique=True).map(tuple)
TARGETS = st.builds(
    TargetDescriptor,
    kind=st.sampled_from(["llvm", "cuda"]),
    model=st.sampled_from(["a", "b", "c"]),
    arch=st.sampled_from(["x86_64", "aarch64", "sm_80", "sm_90"]),
    features=FEATURES,
    required_features=FEATURES,
    max_threads_per_block=st.none() | st.integers(1, 4),
)


@given(TARGETS, TARGETS)
def test_match_is_total_and_never_accepts_what_is_illegal(package: TargetDescriptor, host: TargetDescriptor) -> None:
    decision = match(package, host)
    if isinstance(decision, Accepted):
        assert decision.distance >= 0
        assert package.kind == host.kind
        cpu_features = {f for f in package.required_features if not f.startswith("sm_")}
        assert cpu_features <= set(host.features)
    else:
        assert decision.reason


SETS = ["avx", "avx2", "avx512f", "avx512vnni", "avxvnni", "avx512bf16", "amx-tile", "amx-int8"]
CPUS = st.builds(
    cpu, model=st.sampled_from(["a", "b"]), features=st.lists(st.sampled_from(SETS), unique=True, min_size=1).map(tuple)
)
REGISTERS = {"avx", "avx512f", "amx-tile"}


def nearness(package: TargetDescriptor, host: TargetDescriptor) -> tuple[int, ...]:
    matcher = Matcher(host)
    accepted = matcher.match(package)
    assert isinstance(accepted, Accepted)
    return matcher.nearness(package, accepted)


@given(CPUS, CPUS, CPUS)
def test_who_uses_more_of_a_machine_is_never_behind_who_uses_less(
    host: TargetDescriptor, more: TargetDescriptor, less: TargetDescriptor
) -> None:
    """Exact first; last what was made for registers that the machine lacks; of others the one that uses more."""
    has, places = set(host.features), [nearness(package, host) for package in (more, less)]
    foreign = [len((set(package.features) - has) & REGISTERS) for package in (more, less)]
    if match(more, host) == Accepted(fit="exact", distance=0):
        assert places[0] <= places[1]
    elif match(less, host) != Accepted(fit="exact", distance=0) and foreign[0] != foreign[1]:
        assert (places[0] < places[1]) == (foreign[0] < foreign[1])
    elif match(less, host) != Accepted(fit="exact", distance=0) and has & set(more.features) > has & set(less.features):
        assert places[0] < places[1]


def test_what_is_wide_counts_before_the_rest_and_what_is_missing_last() -> None:
    host = cpu("new", features=("avx2", "fma", "f16c", "avx512f", "avx512vnni"))
    order = [
        cpu("all", features=host.features),
        cpu("more", features=(*host.features, "avx512bf16")),
        cpu("narrow", features=("avx512f", "avx512vnni")),
        cpu("plain", features=("avx2", "fma", "f16c", "avx512f")),
        cpu("avx2", features=("avx2", "fma", "f16c")),
        cpu("tiles", features=(*host.features, "amx-tile")),
    ]
    assert sorted(set(order), key=lambda package: nearness(package, host)) == order

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tunehub.registries.embedded import embedded_registry
from tunehub.registries.requirement import parse_requirement
from tunehub.registries.resolution import (
    Chosen,
    Decision,
    NameOffer,
    Resolution,
    choose_version,
    nearest_text,
    rank_names,
    tvm_allowed,
)
from tunehub.target.descriptors import descriptor_of
from tunehub_registry.index import RecordSetSummary, ShardEntry, parse_index
from tunehub_registry.target import Accepted, Rejected, TargetDescriptor

from ..conftest import A76, SKYLAKE, ZNVER5

pytestmark = pytest.mark.fast

ANY = parse_requirement(None)


def offer(target: TargetDescriptor, position: int = 0) -> NameOffer:
    return NameOffer(name=target.name, target=target, registry=f"registry{position}", position=position)


def entry(version: str, *, tvm: str = ">=0.25,<0.28", tuner: str = "meta_schedule", yanked: str | None = None) -> Any:
    return ShardEntry(
        version=version,
        file=f"packages/llvm-znver5-{version}.tunepkg",
        sha256="0" * 64,
        size=1,
        record_sets=(RecordSetSummary(tuner=tuner, tvm=tvm),),
        published="2026-01-31",
        yanked=yanked,
    )


def choose(*entries: Any, require: str | None = None, tvm: str | None = "0.27.0.post1") -> tuple[str | None, list[Any]]:
    (ranked,), _ = rank_names([offer(ZNVER5)], ZNVER5, ANY)
    chosen, trace = choose_version(ranked, entries, parse_requirement(require), tvm)
    return (chosen.entry.version if chosen else None), [(item.version, item.reason) for item in trace]


def test_ladder_exact_then_family_then_generic_and_reasons() -> None:
    bare = TargetDescriptor(kind="llvm", model="nehalem", arch="x86_64", features=("avx512fp16",))
    ranked, rejected = rank_names([offer(bare), offer(A76), offer(SKYLAKE), offer(ZNVER5)], ZNVER5, ANY)
    assert [(item.offer.name, item.match.fit) for item in ranked] == [
        ("llvm-znver5", "exact"), ("llvm-skylake", "family"), ("llvm-nehalem", "generic")
    ]  # fmt: skip
    assert [item.name for item in rejected] == ["llvm-cortex-a76"]
    assert "aarch64" in str(rejected[0].reason)


def test_registry_order_decides_between_equals() -> None:
    ranked, _ = rank_names([offer(ZNVER5, 1), offer(ZNVER5, 0)], ZNVER5, ANY)
    assert [item.offer.position for item in ranked] == [0, 1]


def ranking(*targets: TargetDescriptor, host: TargetDescriptor = ZNVER5, **bound: str) -> list[tuple[str, str]]:
    ranked, _ = rank_names(
        [offer(target) for target in targets], host, ANY, {f"llvm-{name}": bound[name] for name in bound}
    )
    return [(item.offer.target.model, item.match.fit) for item in ranked]


def cpu(model: str, **changes: Any) -> TargetDescriptor:
    return structs.replace(ZNVER5, model=model, **changes)


def test_what_states_no_features_comes_behind_all_that_states_them() -> None:
    silent = cpu("znver5", features=())
    far = cpu("nehalem", features=("avx512fp16",))
    assert ranking(silent, far, SKYLAKE) == [("skylake", "family"), ("nehalem", "generic"), ("znver5", "exact")]
    unknown = cpu("znver5", features=())  # a host of which nothing is known: nothing can be compared
    assert ranking(far, silent, host=unknown)[0] == ("znver5", "exact")


def test_an_alias_counts_with_the_features_of_the_host_alone_and_behind_the_name_itself() -> None:
    alias = cpu("aaa", aliases=("ZnVer5",))
    assert ranking(alias, ZNVER5) == ranking(ZNVER5, alias) == [("znver5", "exact"), ("aaa", "exact")]
    for features, fit in (((), "family"), (("avx",), "family")):
        assert ranking(cpu("aaa", aliases=("znver5",), features=features)) == [("aaa", fit)]


def test_an_alias_that_is_bound_as_a_name_to_another_registry_does_not_count() -> None:
    alias = cpu("aaa", aliases=("znver5", "znver6"))
    assert ranking(alias, znver5="elsewhere") == [("aaa", "family")]
    assert ranking(alias, znver5="registry0", znver6="elsewhere") == [("aaa", "exact")]


def test_ties_are_not_broken_by_the_alphabet() -> None:
    models = [model for model, _ in ranking(*(cpu(f"{letter}-cpu") for letter in "abcdefgh"))]
    assert models == [model for model, _ in ranking(*(cpu(f"{letter}-cpu") for letter in "hgfedcba"))]
    assert models not in (sorted(models), sorted(models, reverse=True))


def test_required_name_rejects_others() -> None:
    ranked, rejected = rank_names([offer(ZNVER5), offer(SKYLAKE)], ZNVER5, parse_requirement("llvm-skylake"))
    assert [item.offer.name for item in ranked] == ["llvm-skylake"]
    assert rejected[0].reason == "the requirement asks for llvm-skylake"


def test_newest_version_that_is_not_yanked_and_fits() -> None:
    chosen, trace = choose(
        entry("0.1.0"), entry("0.2.0"), entry("0.3.0", yanked="wrong numbers"), entry("0.4.0", tvm=">=0.28"),
        entry("0.5.0", tuner="autotvm"), entry("0.6.0rc1"),
    )  # fmt: skip
    assert chosen == "0.2.0"
    assert trace == [
        ("0.5.0", "it has no ladder or meta_schedule or template records, only autotvm"),
        ("0.4.0", "its records are for TVM >=0.28, installed is 0.27.0.post1"),
        ("0.3.0", "yanked: wrong numbers"),
        ("0.2.0", None),
        ("0.1.0", "0.2.0 is preferred"),
        ("0.6.0rc1", "0.2.0 is preferred"),
    ]


def test_prerelease_serves_when_nothing_else_does() -> None:
    assert choose(entry("0.2.0rc1"))[0] == "0.2.0rc1"


@pytest.mark.parametrize(
    ("require", "expected"),
    [
        (">=0.1,<0.2", "0.1.5"),
        ("llvm-znver5<0.1.5", "0.1.0"),
        ("==0.9", None),
        ("llvm-znver5", "0.2.0"),
        (" ", "0.2.0"),
    ],
)
def test_requirements(require: str, expected: str | None) -> None:
    assert choose(entry("0.1.0"), entry("0.1.5"), entry("0.2.0"), require=require)[0] == expected


def test_tvm_unknown_takes_any() -> None:
    assert choose(entry("0.4.0", tvm=">=0.28"), tvm=None)[0] == "0.4.0"


@pytest.mark.parametrize(
    ("specifier", "version", "allowed"),
    [
        (">=0.25,<0.28", "0.27.0.post1", True),
        (">=0.25,<0.28", "0.25.0.post1", True),
        (">=0.25,<0.28", "0.28.0", False),
        (">=0.25,<0.28", "0.27.0.dev12+gabc", True),
        (">=0.25", "0.24.0", False),
    ],
)
def test_tvm_specifier_counts_pre_and_post_releases(specifier: str, version: str, allowed: bool) -> None:
    assert tvm_allowed(specifier, version) is allowed


def test_versions_that_too_few_attest_are_left_and_only_those_that_would_be_taken_are_counted() -> None:
    (ranked,), _ = rank_names([offer(ZNVER5)], ZNVER5, ANY)
    counts, asked = {"0.3.0": 1, "0.2.0": 2}, []

    def too_few(item: ShardEntry) -> str | None:
        asked.append(item.version)
        return None if counts[item.version] >= 2 else f"attested by {counts[item.version]} of the 2 asked"

    entries = [entry("0.1.0"), entry("0.2.0"), entry("0.3.0"), entry("0.4.0", yanked="wrong"), entry("0.5.0")]
    chosen, trace = choose_version(ranked, entries, parse_requirement("<0.5"), "0.27.0", too_few=too_few)
    assert chosen is not None and chosen.entry.version == "0.2.0"
    assert [(item.version, item.reason) for item in trace] == [
        ("0.5.0", "the requirement asks for <0.5"),
        ("0.4.0", "yanked: wrong"),
        ("0.3.0", "attested by 1 of the 2 asked"),
        ("0.2.0", None),
        ("0.1.0", "0.2.0 is preferred"),
    ]
    assert asked == ["0.3.0", "0.2.0"]


def test_explain_and_json_say_everything() -> None:
    accepted = Accepted(fit="family", distance=2)
    chosen = Chosen(name="llvm-znver5", registry="here", position=0, entry=entry("0.1.0"), match=accepted)
    trace = (
        Decision(name="llvm-znver5", version="0.1.0", registry="here", outcome=accepted),
        Decision(name="llvm-a76", version="*", registry="here", outcome=Rejected(reason="another architecture")),
    )
    found = Resolution(host=SKYLAKE, chosen=chosen, trace=trace)
    text = found.explain()
    assert "llvm-znver5 0.1.0 from here, same architecture family, distance 2" in text
    assert "- llvm-a76 * [here]: another architecture" in text
    assert found.to_json()["chosen"]["rung"] == "family"
    assert [row["accepted"] for row in found.to_json()["trace"]] == [True, False]
    nothing = Resolution(host=SKYLAKE, chosen=None)
    assert "no package serves it" in nothing.explain()
    assert nothing.to_json()["chosen"] is None


@pytest.mark.parametrize(
    ("target", "where"), [(ZNVER5, "such a machine"), (SKYLAKE, "llvm-skylake, not on llvm-znver5")]
)
def test_a_package_of_evidence_alone_says_that_rules_are_as_good(target: TargetDescriptor, where: str) -> None:
    (ranked,), _ = rank_names([offer(target)], ZNVER5, ANY)
    empty = RecordSetSummary(tuner="template", tvm=">=0.25,<0.28", empty=True)
    chosen, _ = choose_version(ranked, [structs.replace(entry("0.1.0"), record_sets=(empty,))], ANY, "0.27.0.post1")
    said = nearest_text(chosen, "llvm-znver5", None)
    assert said == f"measured on {where}: rules are as good, no records are needed"


def test_a_package_for_another_machine_says_what_is_known_of_it_here() -> None:
    (own,), _ = rank_names([offer(ZNVER5)], ZNVER5, ANY)
    (other,), _ = rank_names([offer(SKYLAKE)], ZNVER5, ANY)
    exact, nearest = (choose_version(each, [entry("0.1.0")], ANY, "0.27.0.post1")[0] for each in (own, other))
    assert nearest_text(exact, "llvm-znver5", None) is nearest_text(None, "llvm-znver5", None) is None
    said = nearest_text(nearest, "llvm-znver5", None)
    assert said is not None
    assert said.startswith(
        "made for llvm-skylake; its records on llvm-znver5: not measured by a machine that you trust"
    )


@pytest.mark.parametrize(
    ("model", "nearest"),
    [
        ("icelake-server", ["znver4", "znver5"]),
        ("skylake-avx512", ["znver4", "znver5"]),
        ("x86-64-v4", ["znver4", "znver5"]),
        ("cooperlake", ["znver4", "znver5"]),
        ("znver4", ["znver4", "znver5"]),
        ("znver5", ["znver5", "znver4"]),
        ("sapphirerapids", ["sapphirerapids", "znver5"]),
        ("graniterapids", ["sapphirerapids", "znver5"]),
        ("x86-64-v3", ["x86-64-v3", "znver4"]),
        ("haswell", ["x86-64-v3", "znver4"]),
        ("znver3", ["x86-64-v3", "znver4"]),
        ("alderlake", ["x86-64-v3", "znver5"]),
    ],
)
def test_of_the_embedded_packages_and_one_for_avx2_the_nearest_serves(model: str, nearest: list[str]) -> None:
    """One for AVX2 alone, all of whose features machines with AVX-512 have, serves none of these."""
    names = parse_index((embedded_registry() / "index.json").read_bytes(), "embedded").names
    targets = {entry.target.name: entry.target for entry in names.values()}
    targets["llvm-x86-64-v3"] = descriptor_of("llvm-x86-64-v3")
    ranked = ranking(*targets.values(), host=descriptor_of(f"llvm-{model}"))
    assert [name for name, _ in ranked][:2] == nearest

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.target.features import RELEVANT, differences, linux_features

pytestmark = pytest.mark.fast

X86 = "flags\t\t: fpu sse2 pni avx avx2 fma avx512f avx512_vnni aes\n"


def test_flags_in_llvms_spelling_without_those_that_code_does_not_use() -> None:
    assert linux_features(X86, "x86_64") == {"sse3", "avx", "avx2", "fma", "avx512f", "avx512vnni"}
    arm = "Features\t: fp asimd evtstrm aes asimdhp asimddp sve i8mm\n"
    assert linux_features(arm, "aarch64") == {"neon", "fullfp16", "dotprod", "sve", "i8mm"}


def test_cpus_that_differ_have_what_all_of_them_have() -> None:
    little = "flags : fpu sse2 pni avx avx2 avx_vnni\n"
    assert linux_features(f"processor: 0\n{X86}\nprocessor: 1\n{little}", "x86_64") == {"sse3", "avx", "avx2"}


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("", "x86_64"),
        ("flags", "x86_64"),
        ("flags :", "x86_64"),
        ("flags : avx512f amx_tile", "x86_64"),  # every CPU of this architecture has sse2: something else wrote this
        ("model name : flags : sse2 avx512f", "x86_64"),
        (f"{X86}processor : 1\nflags : \n", "x86_64"),  # cut off
        ("Features : fp asimd sve", "x86_64"),  # of the machine that emulates this one
        (X86, "aarch64"),
        (X86, "riscv64"),
        (X86, "unknown"),
        ("\x00\ufffd:\n:::\nflags\x00: sse2 avx512f", "x86_64"),
    ],
)
def test_a_text_that_does_not_tell_says_nothing(text: str, arch: str) -> None:
    assert linux_features(text, arch) is None
    assert differences(None, {"avx512f"}, arch) == ()


def test_what_is_hidden_comes_after_what_is_more() -> None:
    features = frozenset({"avx2", "amx-tile", "avx512bf16", "gfni"})
    model = {"avx2", "avx512f", "avx512bw", "bmi2", "fast-lzcnt", "sha"}
    assert differences(features, model, "x86_64") == (
        "+amx-tile", "+avx512bf16", "-avx512bw", "-avx512f", "-bmi2",
    )  # fmt: skip
    assert differences(frozenset(model), model, "x86_64") == ()


@given(st.text(max_size=300), st.sampled_from(["x86_64", "aarch64", "mips"]))
def test_any_text_is_read(text: str, arch: str) -> None:
    found = linux_features(f"flags: sse2 {text}\nFeatures: asimd {text}", arch)
    for name in differences(found, {"avx512f", "neon", "other"}, arch):
        assert name[0] in "+-"
        assert name[1:] in RELEVANT

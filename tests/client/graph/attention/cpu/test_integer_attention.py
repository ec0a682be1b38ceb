"""Attention of quantised models as one kernel of integers: numpy's very integers, at any lengths and zero points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tvm import te  # noqa: E402

from tunehub.graph.attention.cpu.rule import Lengths, chosen_in_integers  # noqa: E402
from tunehub.kernels.cpu import Machine  # noqa: E402
from tunehub.kernels.cpu.attention import is_attention, lacks, schedule_attention  # noqa: E402
from tunehub.kernels.te.attention import Rounding, Scores, Step  # noqa: E402
from tunehub.kernels.te.grouped import WORDS  # noqa: E402
from tunehub.kernels.te.integer_attention import QuantisedAttention, quantised_attention  # noqa: E402
from tunehub.kernels.te.scales import Affine  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402

from .....cpu_features import AVX512_VNNI, cpu, needs, needs_tvm  # noqa: E402

pytestmark = pytest.mark.slow

Array = Any
MACHINE = Machine(vector=16, registers=32, cores=2)
CASCADE_LAKE = cpu(AVX512_VNNI)
USUAL = QuantisedAttention(
    query=Affine(scale=0.042, zero=132),
    key=Affine(scale=0.036, zero=123),
    weight=Affine(scale=1 / 255, zero=0),
    value=Affine(scale=0.0396, zero=133),
    product=Rounding(Affine(scale=0.317, zero=125), "uint8"),
    product_step=0.317,
    result=Rounding(Affine(scale=0.0089, zero=124), "uint8"),
    steps=(Step("relax.divide", 8.0, None, False), Rounding(Affine(scale=0.0397, zero=125), "uint8")),
    axes=((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)),
    scores=Scores(8, 16, WORDS[4]),
)
SYMMETRIC = replace(
    USUAL,
    query=Affine(scale=0.042, zero=128),
    key=Affine(scale=0.036, zero=0),
    weight=Affine(scale=1 / 255, zero=128),
    value=Affine(scale=0.0396, zero=0),
)
HEADS = 2


def kernel(how: QuantisedAttention, queries: int, keys: int, depth: int = 32, outputs: int = 48) -> Any:
    """The kernel of two heads, which lie behind lengths in memory."""
    shapes = ((queries, depth), (keys, depth), (keys, outputs))
    tensors = [te.placeholder((1, length, HEADS, last), "uint8") for length, last in shapes]
    return main_module(te.create_prim_func([*tensors, quantised_attention(*tensors, [], how)]))


def inputs(queries: int, keys: int, depth: int = 32, outputs: int = 48) -> list[Array]:
    rng = np.random.default_rng(queries)
    shapes = ((queries, depth), (keys, depth), (keys, outputs))
    return [rng.normal(128, 40, (1, n, HEADS, last)).round().clip(0, 255).astype("uint8") for n, last in shapes]


def rounded(x: Array, affine: Affine) -> Array:
    return np.clip(np.rint(x.astype("float32") / np.float32(affine.scale)) + affine.zero, 0, 255)


def numbers(q: Array, affine: Affine) -> Array:
    return (q - affine.zero).astype("float32") * np.float32(affine.scale)


def sums(equation: str, first: tuple[Array, Affine], second: tuple[Array, Affine], step: float) -> Array:
    """Of products of integers, in multiples of ``step``."""
    integers = [values.astype("int64") - affine.zero for values, affine in (first, second)]
    scale = np.float32(first[1].scale) * np.float32(second[1].scale)
    return np.einsum(equation, *integers).astype("float32") * (scale / np.float32(step))


def in_steps(found: Array, to: Rounding) -> Array:
    return rounded(found, replace(to.affine, scale=1.0))


def exact(q: Array, k: Array, v: Array, how: QuantisedAttention) -> Array:
    """As numpy computes it, step by step."""
    scores = sums("bihd,bjhd->bhij", (q, how.query), (k, how.key), how.product_step)
    scores = numbers(in_steps(scores, how.product), how.product.affine) if how.product else scores
    for step in how.steps:
        if isinstance(step, Rounding):
            scores = numbers(rounded(scores, step.affine), step.affine)
        else:
            scores = scores / np.float32(step.number)
    powers = np.exp((scores - scores.max(-1, keepdims=True)).astype("float64"))
    weights = rounded(powers / powers.sum(-1, keepdims=True), how.weight)
    unit = how.result.affine.scale if how.result else 1.0
    result = sums("bhij,bjhd->bhid", (weights, how.weight), (v, how.value), unit)
    return in_steps(result, how.result) if how.result else result


def run(function: Any, target: Any, arrays: list[Array], how: QuantisedAttention) -> Array:
    queries, outputs = arrays[0].shape[1], arrays[2].shape[3]
    dtype = "float32" if how.result is None else "uint8"
    result = tvm.runtime.tensor(np.zeros((1, HEADS, queries, outputs), dtype))
    tvm.compile(function, target)["main"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


@pytest.mark.parametrize(
    ("how", "size"),
    [(USUAL, (37, 45)), (replace(SYMMETRIC, result=None), (16, 32))],
    ids=["zero points", "none"],
)
@pytest.mark.few(1)
def test_what_the_kernel_says_is_attention(how: QuantisedAttention, size: tuple[int, int]) -> None:
    """By TVM's own loops, on any CPU."""
    arrays = inputs(*size)
    found, expected = run(kernel(how, *size), "llvm", arrays, how), exact(*arrays, how)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@needs_tvm
@needs(AVX512_VNNI)
@pytest.mark.parametrize(
    ("how", "size", "scores"),
    [
        (USUAL, (40, 40), (5, 16)),
        (USUAL, (37, 45), (8, 16)),
        (USUAL, (9, 33), (13, 16)),
        (replace(USUAL, weight=Affine(scale=1 / 255, zero=3)), (24, 70), (6, 32)),
        (SYMMETRIC, (24, 20), (8, 16)),
        (replace(USUAL, product=Rounding(Affine(scale=0.04, zero=125), "uint8"), steps=()), (24, 20), (8, 16)),
        (replace(USUAL, product=Rounding(Affine(scale=0.5, zero=125), "uint8"), steps=()), (24, 20), (8, 16)),
        (replace(USUAL, product=None, product_step=1.0, result=None, steps=()), (20, 64), (10, 16)),
    ],
)
@pytest.mark.few(1)
def test_scheduled_it_is_the_same(how: QuantisedAttention, size: tuple[int, int], scores: tuple[int, int]) -> None:
    how = replace(how, scores=Scores(*scores, WORDS[4]))
    arrays, mod = inputs(*size), kernel(how, *size)
    assert is_attention(mod)
    found = run(schedule_attention(mod, MACHINE).mod, CASCADE_LAKE, arrays, how)
    expected = exact(*arrays, how)
    if how.product is None:  # another order of float32 sums may round a weight another way
        assert np.abs(found - expected).max() < 255 * how.weight.scale * how.value.scale
    else:
        np.testing.assert_array_equal(found, expected)


@needs_tvm
def test_the_code_has_the_instruction_and_targets_without_it_never_see_it() -> None:
    mod = kernel(USUAL, 32, 32)
    text = tvm.compile(schedule_attention(mod, MACHINE).mod, CASCADE_LAKE).mod.inspect_source("asm")
    assert text.count("vpdpbusd") > 16
    assert lacks(mod, CASCADE_LAKE) is None
    assert "avx512vnni" in str(lacks(mod, tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"})))


def test_tasks_waste_little_on_ones_and_ends() -> None:
    def scores(queries: int | None, keys: int | None, depth: int = 64, outputs: int = 64) -> tuple[int, int] | None:
        found = chosen_in_integers(Lengths(queries=queries, keys=keys, depth=depth, outputs=outputs))
        return None if found is None else (found.queries, found.keys)

    assert scores(128, 128) == (13, 16)
    assert scores(197, 197) == (11, 16)
    assert scores(1, 512) is None  # five of six queries would be computed for nothing
    assert scores(64, 64, depth=40) is scores(64, 64, outputs=40) is None
    assert scores(None, 64) == scores(64, None) == scores(None, None) == (12, 16)
    assert scores(64, 2**16) is scores(64, 64, depth=2**16) is None  # sums might leave 32 bits

"""The default knobs of every template, on every kind of CPU, whatever this machine is: they fit, and the guard admits
what they make, unless the template itself says that the CPU lacks the instruction."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import te, topi  # noqa: E402

from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.te import grouped  # noqa: E402
from tunehub.kernels.winograd.rewriting import find, rewritten  # noqa: E402
from tunehub.tir.guard import check_function, check_tiles  # noqa: E402
from tunehub.tir.nodes import constant_array, main_module  # noqa: E402

from ....cpu_features import AMX, AVX2, AVX512_BF16, AVX512_VNNI, AVX_VNNI, FEATURE_SETS, cpu, needs_tvm  # noqa: E402
from ....sweeps import swept  # noqa: E402

pytestmark = [pytest.mark.slow, needs_tvm]
SEEDS = range(4)
KINDS = {  # of products by instructions: what is added up in a lane, and the type of the data
    "pairs": (grouped.PAIRS, "bfloat16"),
    "tiles": (grouped.TILES, "bfloat16"),
    "tiles of bytes": (grouped.TILES_INT8, "uint8"),
    "bytes": (grouped.WORDS[4], "uint8"),
    "words": (grouped.WORDS[2], "uint8"),
}
# Where each is to be had, with so many lanes; everywhere else the template has to say that it is not.
SERVED = {
    ("pairs", 16): {AVX512_BF16, "znver4", AMX},
    ("tiles", 16): {AMX},
    ("tiles of bytes", 16): {AMX},
    ("bytes", 16): {AVX512_VNNI, AVX512_BF16, "znver4", AMX},
    ("bytes", 8): {AVX_VNNI, AVX512_VNNI, AVX512_BF16, "znver4", AMX},
    ("words", 16): set(FEATURE_SETS) - {AVX2, AVX_VNNI},
    ("words", 8): set(FEATURE_SETS),
}


def plain_cases(support: Any, block: int) -> Iterator[tuple[str, Any]]:
    """Functions in float32 of every kind that templates are for, and convolutions by Winograd's algorithm."""
    yield "loops", support.case("loops", lambda x: topi.sum(x, axis=1), (9, 33, 20)).mod
    for seed in SEEDS:
        for make in support.MAKERS.values():
            found = make(random.Random(seed), block)
            yield found.name, found.mod
        case = support.random_winograd(random.Random(seed), block)
        convolution = find(case.mod["main"])
        if convolution is not None:
            yield case.name, main_module(rewritten(case.mod["main"], convolution, 4))


def grouped_cases(kind: str, lanes: int) -> Iterator[tuple[str, Any]]:
    """Products and convolutions by an instruction."""
    groups, data_type = KINDS[kind]
    rng, block = np.random.default_rng(0), max(groups.depth, lanes)
    numbers = rng.integers(-127, 128, (2 * block, 64)).astype("int8" if data_type == "uint8" else "float32")
    packed = np.asarray(constant_array(grouped.pack_dense(numbers, groups, out_block=lanes)))
    for shape in ((1, 1), (1, 6), (2, 37), (128,)):
        yield (
            f"{kind} {shape}",
            _function(lambda x, w: grouped.dense_grouped(x, w, outputs=64), ((*shape, 2 * block), data_type), packed),
        )
    weight = rng.integers(-127, 128, (2 * block, block, 3, 3)).astype(numbers.dtype)
    out_block = block if kind.startswith("tiles") else lanes
    packed = np.asarray(constant_array(grouped.pack_conv2d(weight, groups, in_block=block, out_block=out_block)))
    for how in ({"padding": (1, 1, 1, 1)}, {"strides": (2, 2)}):
        yield (
            f"{kind} {how}",
            _function(
                lambda x, w, how=how: grouped.conv2d_grouped(x, w, **how), ((1, 1, 9, 11, block), data_type), packed
            ),
        )


def _function(make: Any, data: tuple[tuple[int, ...], str], weight: Any) -> Any:
    x, w = te.placeholder(*data, name="x"), te.placeholder(weight.shape, str(weight.dtype), name="w")
    result = make(x, w)
    one = tvm.tirx.const(1, str(result.dtype))
    more = te.compute(result.shape, lambda *i: result[i] + one, name="more")
    return tvm.IRModule({"main": te.create_prim_func([x, w, more]).with_attr("global_symbol", "main")})


def check(name: str, mod: Any, target: Any) -> str:
    """The template whose default knobs made a schedule that the guard admits."""
    match = templates.find(mod)
    assert match is not None, name
    assert templates.lacking(match, target) is None, name
    knobs = match.template.default_knobs(match.workload, templates.machine_of(target))
    scheduled = match.template.apply(mod, match.workload, knobs).mod["main"]  # raises KnobError
    check_function(scheduled, mod["main"], target)
    check_tiles(scheduled)
    return match.template.NAME


@pytest.mark.parametrize("model", swept((AVX2, AMX), FEATURE_SETS))
def test_default_knobs_fit_every_function_in_float32(model: str, support: Any) -> None:
    target = cpu(model)
    cases = plain_cases(support, templates.machine_of(target).vector)
    served = {check(name, mod, target) for name, mod in cases}
    assert served == set(templates.NAMES) - {"matrix_tiles"}


@pytest.mark.few(20)
@pytest.mark.parametrize("model", FEATURE_SETS)
@pytest.mark.parametrize(("kind", "lanes"), SERVED)
def test_default_knobs_of_instructions_fit_or_the_target_lacks_them(kind: str, lanes: int, model: str) -> None:
    target, has = cpu(model), model in SERVED[kind, lanes]
    for name, mod in grouped_cases(kind, lanes):
        match = templates.find(mod)
        assert match is not None, name
        if has:
            expected = {"matrix_tiles"} if kind.startswith("tiles") else {"dense", "conv2d"}
            assert check(name, mod, target) in expected
        else:
            assert "lacks" in str(templates.lacking(match, target)), name

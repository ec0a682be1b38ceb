"""Products with weights of 4 and 8 bits are numpy's, at every number of rows and by vectors of every width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import tirx

from tunehub.kernels.cpu import amx, machine_of
from tunehub.kernels.cpu.packed_products import product_function
from tunehub.kernels.cpu.packed_weights import PackedProduct, lanes_of, plain_product
from tunehub.kernels.cpu.unpacked_tiles import UnpackedTiles

from ....amx_emulation import emulated, emulation  # noqa: F401
from ....cpu_features import AMX, AVX2, AVX512, AVX512_BF16, AVX512_VNNI, AVX_VNNI, ZEN4, cpu, here, needs, needs_tvm
from ....sweeps import covering

pytestmark = pytest.mark.slow

Array = npt.NDArray[Any]
LANES = {AVX512: 16, AVX512_VNNI: 16, AVX2: 8, AVX_VNNI: 8, "x86-64": 4}
MANY = {16: 1152, 8: 704}  # numbers of a row that fill vectors of so many lanes, in groups that do not
EXACT, ROUNDED = 1e-6, 1.5e-2  # of the largest result


@dataclass(frozen=True, kw_only=True)
class Operands:
    """Random ones of ``product``, and what they are as numbers."""

    data: Array
    words: Array
    scales: Array
    weights: Array


def operands(
    product: PackedProduct, shape: tuple[int, ...], data: str = "float32", scales: str = "float16"
) -> Operands:
    rng = np.random.default_rng(product.depth)
    words = rng.integers(0, 1 << 32, (product.rows, product.words), dtype=np.uint32)
    factors = rng.uniform(0.01, 0.03, (product.rows, product.groups)).astype(scales)
    numbers = [(words >> (product.bits * at)) & (2**product.bits - 1) for at in range(product.in_word)]
    whole = np.stack(numbers, -1).reshape(product.rows, product.depth).astype("float64") - product.zero
    return Operands(
        data=rng.standard_normal(shape).astype(data),
        words=words,
        scales=factors,
        weights=whole * np.repeat(factors.astype("float64"), 32, 1),
    )


def error(
    product: PackedProduct, given: Operands, model: Any, *, result: str = "float32", open_rows: bool = True
) -> float:
    """Of the function for ``model``, by its largest result."""
    arrays = [given.data, given.words, given.scales]
    return _error(product, arrays, given.weights, model, result=result, open_rows=open_rows)


def _error(
    product: PackedProduct, given: list[Array], weights: Array, model: Any, *, result: str, open_rows: bool = True
) -> float:
    shape = given[0].shape
    extents = [tirx.Var("rows", "int64") if open_rows else shape[0], *shape[1:]]
    function = product_function(product, extents, str(given[0].dtype), str(given[-1].dtype), result)
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    output = tvm.runtime.tensor(np.full((*shape[:-1], product.rows), np.nan, result))
    arrays = [tvm.runtime.tensor(each) for each in given]
    tvm.compile(module, target=cpu(model) if isinstance(model, str) else model)["main"](*arrays, output)
    wanted = given[0].astype("float64") @ weights.T
    return float(abs(output.numpy().astype("float64") - wanted).max() / abs(wanted).max())


def plain_error(rows: int, kind: str, model: Any, *, lanes: int = 16, depth: int = 1152, by: str = "") -> float:
    """Of products with random weights of a type of floats and results in that, of many rows ``by`` tiles or pairs."""
    rng = np.random.default_rng(depth)
    product = plain_product(64, depth, lanes, tiles="tiles" in by, pairs="pairs" in by, wide="wide" in by)
    assert product is not None
    data, weights = (rng.standard_normal(shape).astype(kind) for shape in ((rows, depth), (64, depth)))
    return _error(product, [data, weights], weights.astype("float64"), model, result=kind)


def product_of(model: str, bits: int, *, rows: int = 24, depth: int = 896, integers: bool = False) -> PackedProduct:
    lanes = lanes_of(depth, bits, LANES[model])
    return PackedProduct(rows=rows, depth=depth, bits=bits, lanes=lanes, integers=integers)


@pytest.mark.parametrize(
    ("bits", "model", "rows"), covering([4, 8], here(AVX512, AVX2, "x86-64"), [1, 4, 7], together=2)
)
@pytest.mark.few(2)
def test_products_in_floats_are_exact(model: str, bits: int, rows: int) -> None:
    product = product_of(model, bits)
    assert error(product, operands(product, (rows, 896)), model) < EXACT


@needs_tvm
@needs(AVX512_VNNI)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 7, 11])
@pytest.mark.few(2)
def test_products_in_integers_are_as_exact_as_activations_of_8_bits(bits: int, rows: int) -> None:
    product = product_of(AVX512_VNNI, bits, integers=True)
    found = error(product, operands(product, (rows, 896)), AVX512_VNNI)
    assert EXACT < found < ROUNDED


@needs_tvm
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("model", here(AVX_VNNI, AVX512_VNNI))
@pytest.mark.few(2)
def test_short_vectors_of_integers_are_as_exact(model: str, bits: int) -> None:
    product = PackedProduct(rows=24, depth=704, bits=bits, lanes=8, integers=True)
    assert EXACT < error(product, operands(product, (5, 704)), model) < ROUNDED


@needs_tvm
@needs(AVX512_VNNI)
def test_activations_that_8_bits_hold_lose_nothing() -> None:
    product = product_of(AVX512_VNNI, 4, integers=True)
    given = operands(product, (3, 896))
    given.data[:] = np.random.default_rng(1).integers(-127, 128, given.data.shape)
    given.data[:, ::32] = 127
    given.data[1] = 0
    assert error(product, given, AVX512_VNNI) < EXACT


@needs_tvm
@needs(AVX512_VNNI)
@pytest.mark.parametrize(
    ("rows", "depth", "open_rows"),
    [(11, 1152, True), (3, 4864, True), (8, 896, False), (2, 512, True), (5, 1152, False)],
)
@pytest.mark.few(2)
def test_few_rows_of_bytes_lose_nothing_that_8_bits_hold(rows: int, depth: int, open_rows: bool) -> None:
    product = product_of(AVX512_VNNI, 8, rows=48, depth=depth, integers=True)
    given = operands(product, (rows, depth), scales="float32")
    given.data[:] = np.random.default_rng(1).integers(-127, 128, given.data.shape)
    given.data[:, ::32] = 127
    assert error(product, given, AVX512_VNNI, open_rows=open_rows) < EXACT


@needs_tvm
@pytest.mark.parametrize(
    ("bits", "rows", "model"), covering([4, 8], [7, 12, 523], here(AVX_VNNI, AVX512_VNNI), together=2)
)
@pytest.mark.few(3)
def test_many_rows_of_integers_are_as_exact(model: str, bits: int, rows: int) -> None:
    product = product_of(model, bits, rows=64, depth=MANY[LANES[model]], integers=True)
    assert EXACT < error(product, operands(product, (rows, product.depth)), model) < ROUNDED


@pytest.mark.parametrize(("bits", "rows", "model"), covering([4, 8], [24, 523], here(AVX512, AVX2), together=2))
@pytest.mark.few(1)
def test_many_rows_in_floats_are_exact(model: str, bits: int, rows: int) -> None:
    product = product_of(model, bits, rows=64, depth=MANY[LANES[model]])
    assert error(product, operands(product, (rows, product.depth)), model) < 3 * EXACT


def in_tiles(bits: int, rows: int, model: Any) -> float:
    """The error of many rows by tiles, in code for ``model``."""
    product = replace(product_of(AVX512_VNNI, bits, rows=64, depth=1152, integers=True), tiles=True)
    return error(product, operands(product, (rows, product.depth)), model)


@needs_tvm
@needs(AVX512_VNNI)
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [16, 259])
@pytest.mark.few(1)
def test_many_rows_by_emulated_tiles_are_as_exact_as_bfloat16(bits: int, rows: int) -> None:
    assert EXACT < in_tiles(bits, rows, AVX512_VNNI) < ROUNDED / 2


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [16, 40, 259])
@pytest.mark.few(3)
def test_many_rows_by_tiles_are_as_exact_as_bfloat16(bits: int, rows: int) -> None:
    assert EXACT < in_tiles(bits, rows, AMX) < ROUNDED / 2


def in_integer_tiles(rows: int, model: Any, kind: str = "float32", depth: int = 1792) -> float:
    """The error of few rows with weights of 8 bits by tiles, in code for ``model``; the depth has two parts."""
    product = replace(product_of(AVX512_VNNI, 8, rows=48, depth=depth, integers=True), tiles=True)
    return error(product, operands(product, (rows, depth), kind, kind), model, result=kind)


@needs_tvm
@needs(AVX512_VNNI)
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("rows", [3, 11])
def test_few_rows_by_emulated_tiles_are_as_exact_as_integers(rows: int) -> None:
    assert EXACT < in_integer_tiles(rows, AVX512_VNNI) < ROUNDED


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize(
    ("rows", "kind", "depth"),
    [(5, "float32", 896), (13, "float16", 1792), (8, "float32", 1344), (2, "float32", 896), (4, "float16", 2816)],
)
@pytest.mark.few(3)
def test_few_rows_by_tiles_are_as_exact_as_integers(rows: int, kind: str, depth: int) -> None:
    assert EXACT < in_integer_tiles(rows, AMX, kind, depth) < ROUNDED


@needs_tvm
@needs(AMX)
def test_activations_that_8_bits_hold_lose_nothing_in_tiles() -> None:
    product = replace(product_of(AVX512_VNNI, 8, rows=32, integers=True), tiles=True)
    given = operands(product, (5, 896))
    given.data[:] = np.random.default_rng(1).integers(-127, 128, given.data.shape)
    given.data[:, ::32] = 127
    given.data[1] = 0
    assert error(product, given, AMX) < EXACT


@needs_tvm
@needs(AVX512_VNNI)
@pytest.mark.parametrize(("bits", "rows"), [(4, 40), (8, 5)])
def test_a_library_made_for_amx_multiplies_without_it(bits: int, rows: int, refused_target: Any) -> None:
    product = replace(product_of(AVX512_VNNI, bits, rows=64, depth=1152, integers=True), tiles=True)
    found = error(product, operands(product, (rows, product.depth)), tvm.target.Target(refused_target))
    assert EXACT < found < (ROUNDED if bits == 8 else ROUNDED / 2)


@needs_tvm
def test_code_for_amx_has_its_instructions() -> None:
    product = replace(product_of(AVX512_VNNI, 8, rows=64, depth=1152, integers=True), tiles=True)
    function = product_function(product, [tirx.Var("rows", "int64"), 1152], "float32", "float16", "float32")
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    text = tvm.compile(module, target=cpu(AMX)).mod.inspect_source("asm")
    assert all(each in text for each in ("tdpbf16ps", "tdpbusd", "tileloadd", "ldtilecfg", "tilerelease"))


@needs_tvm
@pytest.mark.parametrize(
    ("model", "kind", "rows"), covering(here(AVX512, AVX2), ["float32", "float16", "bfloat16"], [1, 11, 67], together=2)
)
@pytest.mark.few(2)
def test_weights_that_are_floats_have_such_products(model: str, rows: int, kind: str) -> None:
    lanes, largest = LANES[model], {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1e-2}[kind]
    assert plain_error(rows, kind, model, lanes=lanes, depth=96 * lanes) < largest


@needs_tvm
@needs(AVX512)
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("kind", "largest"), [("float32", 1e-2), ("bfloat16", 1e-2)])
@pytest.mark.few(1)
def test_weights_that_are_floats_have_emulated_tiles(kind: str, largest: float) -> None:
    assert plain_error(67, kind, AVX512, by="tiles") < largest


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_weights_that_are_floats_have_tiles(kind: str) -> None:
    assert plain_error(67, kind, AMX, by="tiles") < 1e-2


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 33, 67, 523])
@pytest.mark.few(3)
def test_weights_in_bfloat16_are_tiles_as_they_lie_from_two_rows_on(rows: int) -> None:
    assert plain_error(rows, "bfloat16", AMX, by="tiles and pairs", depth=(1152, 4864)[rows > 300]) < 1e-2


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize("depth", [96, 992])  # fewer steps than are asked for ahead, and halves that are not alike
@pytest.mark.parametrize("result", ["float32", "float16"])
@pytest.mark.few(2)
def test_such_tiles_give_other_results_of_any_rank(depth: int, result: str) -> None:
    given, product = tile_operands((3, 7, depth)), plain_product(96, depth, 16, tiles=True)
    assert product is not None
    found = _error(product, given, given[1].astype("float64"), AMX, result=result, open_rows=False)
    assert found < {"float32": EXACT, "float16": 2e-3}[result]


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize("rows", [1, 35, 300])
@pytest.mark.few(2)
def test_silu_of_gate_times_up_is_the_end_of_such_tiles(rows: int) -> None:
    assert gated_error(rows, AMX) < 1e-2


def gated_error(rows: int, model: str) -> float:
    product, (data, weights) = plain_product(96, 992, 16, tiles=True, pairs=True), tile_operands((rows, 992))
    assert product is not None
    data[:1] *= np.asarray(1000, data.dtype)  # powers of such sums do not fit
    extents = [tirx.Var("rows", "int64"), 992]
    function = product_function(replace(product, gated=True), extents, *["bfloat16"] * 3)
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    output = tvm.runtime.tensor(np.full((rows, 48), np.nan, "bfloat16"))
    tvm.compile(module, target=cpu(model))["main"](*map(tvm.runtime.tensor, (data, weights)), output)
    gate, up = np.split(data.astype("float64") @ weights.T.astype("float64"), 2, -1)
    wanted = gate * up / (1 + np.exp(np.minimum(-gate, 700)))
    found = output.numpy().astype("float64")
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in zip(found, wanted, strict=True))


def tile_operands(shape: tuple[int, ...], weights: int = 96) -> list[Array]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(each).astype("bfloat16") for each in (shape, (weights, shape[-1]))]


@pytest.fixture
def refused(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Linux refuses AMX to what is compiled."""
    monkeypatch.setattr(amx, "IMPORTED", "define i32 @tunehub_amx_begin(i64 %rows) alwaysinline { ret i32 1 }")


@needs_tvm
@needs(AVX512)
@pytest.mark.usefixtures("refused")
def test_such_tiles_are_vectors_where_linux_refuses_amx() -> None:
    assert plain_error(35, "bfloat16", AVX512, by="tiles") < 1e-2
    assert gated_error(3, AVX512) < 1e-2


def widened(data: Array, weights: Array, model: str, *, lanes: int = 16, by: str = "") -> Array:
    """The product in float32 of data in float32 and ``weights`` in another type, of several rows ``by`` split tiles."""
    product = plain_product(*weights.shape, lanes, split="split" in by)
    assert product is not None
    function = product_function(
        product, [tirx.Var("rows", "int64"), data.shape[1]], "float32", str(weights.dtype), "float32"
    )
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    output = tvm.runtime.tensor(np.full((len(data), len(weights)), np.nan, "float32"))
    tvm.compile(module, target=cpu(model))["main"](*map(tvm.runtime.tensor, (data, weights)), output)
    return output.numpy()


@needs_tvm
@pytest.mark.parametrize(
    ("model", "kind", "rows"), covering(here(AVX512, AVX2), ["float16", "bfloat16"], [1, 7, 67], together=2)
)
@pytest.mark.few(2)
def test_weights_of_16_bits_give_the_results_of_float32_to_the_bit(model: str, rows: int, kind: str) -> None:
    lanes, rng = LANES[model], np.random.default_rng(3)
    data, weights = (rng.standard_normal(shape, "float32") for shape in ((rows, 32 * lanes), (48, 32 * lanes)))
    narrow = weights.astype(kind)
    found, wanted = (widened(data, each, model, lanes=lanes) for each in (narrow, narrow.astype("float32")))
    np.testing.assert_array_equal(found, wanted)


def split_error(rows: int, depth: int, model: str) -> tuple[float, float]:
    """Of products by split tiles, and of a sum in float32 one after the other: roots of the mean square."""
    rng = np.random.default_rng(rows)
    data = (rng.standard_normal((rows, depth)) * 2.0 ** rng.integers(-8, 8, (rows, depth))).astype("float32")
    weights = rng.standard_normal((96, depth)).astype("bfloat16")
    products = data.astype("float64")[:, None] * weights.astype("float64")
    exact, plain = products.sum(-1), products.astype("float32").cumsum(-1, dtype="float32")[..., -1]
    found = widened(data, weights, model, by="split")
    return tuple(float(np.sqrt(((each - exact) ** 2).mean())) for each in (found, plain))  # type: ignore[return-value]


@needs_tvm
@needs(AVX512)
@pytest.mark.usefixtures("emulated")
def test_emulated_tiles_of_float32_in_three_parts_are_as_exact() -> None:
    found, plain = split_error(19, 992, AVX512)
    assert found <= plain


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize(("rows", "depth"), [(5, 896), (1, 96), (16, 4864), (35, 992), (300, 1152)])
@pytest.mark.few(2)
def test_tiles_of_float32_in_three_parts_are_no_less_exact_than_float32(rows: int, depth: int) -> None:
    found, plain = split_error(rows, depth, AMX)
    assert found <= plain


def check_parts(model: str) -> None:
    """Of a single number and a weight of 1 the parts give that number; of an infinite one infinity."""
    rng = np.random.default_rng(4)
    bits = rng.integers(0x0D000000, 0x7F800000, (5, 96)) | rng.integers(0, 2, (5, 96)) << 31  # from 2 ** -101 on
    data, identity = bits.astype("uint32").view("float32"), np.eye(96).astype("bfloat16")
    np.testing.assert_array_equal(widened(data, identity, model, by="split"), data)
    data[:] = 1
    data[1, 7], data[2, 8], data[3, 9] = np.inf, -np.inf, np.nan
    found = widened(data, np.ones((96, 96), "bfloat16"), model, by="split")
    np.testing.assert_array_equal(found[:, 0], [96, np.inf, -np.inf, np.nan, 96])


@needs_tvm
@needs(AMX)
def test_three_parts_are_the_whole_number() -> None:
    check_parts(AMX)


@needs_tvm
@needs(AVX512)
@pytest.mark.usefixtures("refused")
def test_split_tiles_are_vectors_where_linux_refuses_amx() -> None:
    check_parts(AVX512)


@needs_tvm
@needs(AVX512_BF16)
@pytest.mark.parametrize(("kind", "rows"), covering(["float32", "float16", "bfloat16"], [1, 3, 13, 24, 523]))
@pytest.mark.few(1)
def test_weights_that_are_floats_have_products_of_pairs(kind: str, rows: int) -> None:
    assert plain_error(rows, kind, AVX512_BF16, by="pairs") < 1e-2
    assert kind != "bfloat16" or plain_error(rows, kind, AVX512_BF16, by="pairs", depth=896) < 1e-2


@needs_tvm
@needs(AVX512_BF16)
@pytest.mark.parametrize("rows", [3, 67])
def test_many_rows_may_be_in_float32_where_few_are_in_pairs(rows: int) -> None:
    assert plain_error(rows, "bfloat16", AVX512_BF16, by="pairs, wide") < 1e-2


def test_pairs_are_slow_on_intels_cpus_with_amx_or_without() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "rocketlake", "mattr": ["+avx512bf16", "+avx512fp16"]})
    assert machine_of(target).rates.pairs < 1 < machine_of(cpu(ZEN4)).rates.pairs


@needs_tvm
@needs(AVX512_BF16)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.few(1)
def test_many_rows_by_pairs_are_as_exact_as_bfloat16(bits: int) -> None:
    product = replace(product_of(AVX512, bits, rows=64, depth=1152), pairs=True)
    assert EXACT < error(product, operands(product, (67, 1152)), AVX512_BF16) < ROUNDED / 2


@needs_tvm
@needs(AVX512_VNNI)
def test_many_rows_may_have_any_rank_and_results_16_bits() -> None:
    product = product_of(AVX512_VNNI, 4, rows=32, integers=True)
    for shape in ((3, 5, 896), (1, 40, 896)):
        assert error(product, operands(product, shape), AVX512_VNNI, result="float16", open_rows=False) < ROUNDED


@needs(AVX512)
@pytest.mark.parametrize(
    ("shape", "bits"), covering([(1, 32), (6, 64), (7, 128), (40, 192), (96, 4864), (8, 544)], [4, 8])
)
@pytest.mark.few(3)
def test_any_number_of_weights_and_of_groups_has_a_product(shape: tuple[int, int], bits: int) -> None:
    rows, depth = shape
    product = product_of(AVX512, bits, rows=rows, depth=depth)
    assert error(product, operands(product, (5, depth)), AVX512) < EXACT


@needs(AVX512)
@pytest.mark.parametrize("shape", [(1, 896), (1, 1, 896), (3, 1, 896), (1, 6, 896), (2, 3, 896)])
@pytest.mark.few(2)
def test_activations_may_have_any_rank(shape: tuple[int, ...]) -> None:
    product = product_of(AVX512, 4)
    assert error(product, operands(product, shape), AVX512, open_rows=False) < EXACT


@pytest.mark.few(1)
@needs_tvm
@needs(AVX512)
@pytest.mark.parametrize(("kind", "largest"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_activations_scales_and_results_may_have_16_bits(kind: str, largest: float) -> None:
    product = product_of(AVX512, 4)
    given = operands(product, (5, 896), kind, kind)
    assert error(product, given, AVX512, result=kind) < largest
    assert error(product, given, AVX512, result="float32") < EXACT


@pytest.mark.parametrize(("bits", "outputs", "least"), [(4, 4096, 29), (4, 896, 17), (8, 4096, 17)])
def test_tiles_unpack_weights_from_as_many_rows_on_as_pay_for_it(bits: int, outputs: int, least: int) -> None:
    product = PackedProduct(rows=outputs, depth=1024, bits=bits, lanes=16, integers=True, tiles=True)
    assert UnpackedTiles.least_rows(product) == least

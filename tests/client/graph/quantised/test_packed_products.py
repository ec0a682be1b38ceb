"""Language models with quantised weights on CPUs: no weight is made floats, and none is transposed, at a call."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm

from tunehub.compiler.preparing import prepare
from tunehub.models.compiling import compile_model
from tunehub.models.export import export
from tunehub.models.random_weights import random_array
from tunehub.models.session import CacheSizes
from tunehub.tir.nodes import calls_in, operator_of

from ....cpu_features import AMX, AVX2, AVX512_BF16, AVX512_VNNI, cpu, here, needs, needs_tvm
from ....numpy_decoder import NumpyDecoder
from ....small_models import small

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]
ONE_LAYER = small(tied=True, qkv_bias=True, layers=1)
PRODUCTS = 4 + 1
PROMPT = [3, 1, 4, 1, 5] * 6  # many rows
STEPS = ("embed", "decode", "batch_decode", "prefill")


@cache
def prepared(kind: str, model: str, precision: Any = "float32") -> tuple[Any, list[str]]:
    """The module of a model of one layer as a compile for such a CPU has it, and what that notes."""
    target, notes = cpu(model), []
    module = export(small(layers=1), target, kind, STEPS).module
    return prepare(module, target, layout="auto", precision=precision, note=notes.append), notes


def kernels(module: Any) -> list[str]:
    """Names of the functions that graphs call."""
    called = [call for call in calls_in(module) if operator_of(call) == "relax.call_tir"]
    return [str(call.args[0].name_hint) for call in called]


@pytest.mark.parametrize("kind", ["q4f16_1", "q4f32_1", "q8f16_1"])
@pytest.mark.few(1)
def test_no_step_makes_floats_of_weights(kind: str) -> None:
    module, notes = prepared(kind, AVX2)
    names = kernels(module)
    assert sum(name.startswith("packed_matmul") for name in names) == 3 * PRODUCTS
    assert not [name for name in names if name.startswith("dequantize") or "transpose" in name]
    assert any(f"{3 * PRODUCTS} products read weights" in note and "in floats" in note for note in notes)


def test_an_embedding_takes_its_rows_alone() -> None:
    module, _ = prepared("q4f16_1", AVX2)
    assert sum("take_dequantized" in name for name in kernels(module)) == 1


@needs_tvm
def test_activations_are_rounded_only_where_that_is_allowed_and_faster() -> None:
    assert any("rounded to 8 bits" in note for note in prepared("q4f16_1", AVX512_VNNI, "bf16")[1])
    assert any("in floats" in note for note in prepared("q4f16_1", AVX512_VNNI, "float32")[1])
    assert any("in floats" in note for note in prepared("q4f16_1", AVX2, "bf16")[1])


@needs_tvm
@pytest.mark.parametrize(
    ("kind", "model", "precision", "functions"),
    [
        ("q0bf16", AMX, "float32", 3 * (PRODUCTS - 1)),  # but logits, of 1,000 words
        ("q0f32", AMX, "bf16", 3 * (PRODUCTS - 1)),
        ("q0f32", AMX, "float32", 3 * (PRODUCTS - 1)),
        ("q0f16", AVX2, "bf16", 3 * PRODUCTS),
        ("q0bf16_f32", AMX, "bf16", 3 * PRODUCTS),
        ("q0f32", AVX512_BF16, "bf16", 3 * (PRODUCTS - 1)),
    ],
)
@pytest.mark.few(1)
def test_weights_that_are_floats_have_such_functions(kind: str, model: str, precision: Any, functions: int) -> None:
    names = kernels(prepared(kind, model, precision)[0])
    assert sum(name.startswith("packed_matmul") for name in names) == functions


@needs_tvm
@pytest.mark.parametrize(("kind", "model"), [("q0bf16_f32", AMX), ("q0f16_f32", AVX2), ("q0bf16_f32", AVX2)])
@pytest.mark.few(2)
def test_products_in_float32_read_weights_as_they_are_stored(kind: str, model: str) -> None:
    module, notes = prepared(kind, model)
    names = kernels(module)
    assert sum(name.startswith("packed_matmul") for name in names) == 3 * PRODUCTS
    assert sum("cast" in name or "astype" in name for name in names) == 1  # of the embedding's rows
    (note,) = [each for each in notes if "read weights of 16 bits" in each]
    assert note.startswith(f"{3 * PRODUCTS} products in float32") and ("three numbers" in note) == (model == AMX)


@needs_tvm
def test_silu_of_gate_times_up_is_part_of_products_by_tiles_but_of_one_row() -> None:
    one_row = 2  # of a step, and of a prompt behind the last layer's attention
    assert sum("silu" in name for name in kernels(prepared("q0bf16", AMX)[0])) == one_row


@needs_tvm
@needs(AVX512_VNNI)
@pytest.mark.sweep
@pytest.mark.parametrize("case", ["q4f32_1 float32", "q8f32_1 bf16", "q0bf16 float32", "q4f16_1 bf16", "q0f32 float32"])
def test_steps_give_numpys_logits(case: str) -> None:
    exact = case in ("q4f32_1 float32", "q0f32 float32")
    assert logits_error(AVX512_VNNI, *case.split()) < (1e-5 if exact else 2e-2)


@needs_tvm
@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["q0bf16_f32", "q0f16_f32"])
@pytest.mark.parametrize("model", here(AMX, AVX512_VNNI, AVX2))
def test_steps_with_widened_weights_give_numpys_logits(kind: str, model: str) -> None:
    assert logits_error(model, kind, "float32") < 1e-5


@needs_tvm
@needs(AVX512_BF16)
@pytest.mark.sweep
@pytest.mark.parametrize("case", ["q0f32 bf16", "q4bf16_1 float32", "q0bf16 float32", "q0bf16_f32 bf16"])
def test_steps_in_pairs_give_numpys_logits(case: str) -> None:
    assert logits_error(AVX512_BF16, *case.split()) < 2e-2


def logits_error(model: str, kind: str, precision: Any) -> float:
    """Of prompts and steps, by the largest logit."""
    compiled = compile_model(ONE_LAYER, kind, cpu(model), precision=precision, functions=STEPS)
    arrays = [random_array(each, compiled.quantization) for each in compiled.parameters]
    weights = [tvm.runtime.tensor(each) for each in arrays]
    session = compiled.session(weights, tvm.cpu(), CacheSizes(sequences=2, tokens=128, chunk=32))
    reference = NumpyDecoder(compiled, arrays)
    first, second = session.open(), session.open()
    found = [session.prefill(first, PROMPT).numpy()[0]]
    session.prefill(second, [2, 7])
    found.append(session.decode([first], session.tokens([9])).numpy()[0])
    found.append(session.decode([first, second], session.tokens([2, 6])).numpy()[1])
    wanted = [reference.logits(each)[-1:] for each in (PROMPT, [*PROMPT, 9], [2, 7, 6])]
    return max(float(abs(one - other).max() / abs(other).max()) for one, other in zip(found, wanted, strict=True))

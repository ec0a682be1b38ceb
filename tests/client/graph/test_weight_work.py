"""What is done to weights at every call: found in modules as MLC-LLM writes them, and said in the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax
from tvm.relax import op

from tunehub.compiler.pipeline import explain_module
from tunehub.compiler.preparing import prepare
from tunehub.graph.weight_work import weight_work
from tunehub.tir.nodes import tensor_class, tuple_class

from ..compiler.conftest import FakeHub

pytestmark = pytest.mark.slow

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024})
COLUMNS, DEPTH = 1024, 512


def _model(*, converted: bool, packed: bool = True) -> Any:
    """A product of a weight [N, K], which is made float32 before it where ``converted``; ``packed``: weights are in a
    tuple, else they lie behind the number of inputs that the function says it has."""
    kind, dtype = tensor_class(), "float16" if converted else "float32"
    x, weight = relax.Var("x", kind((4, DEPTH), "float32")), relax.Var("w", kind((COLUMNS, DEPTH), dtype))
    params = relax.Var("packed_params", tuple_class()([kind((COLUMNS, DEPTH), dtype)]))
    builder = relax.BlockBuilder()
    with builder.function("decode", [x, params if packed else weight], attrs={} if packed else {"num_input": 1}):
        with builder.dataflow():
            value = builder.emit(relax.TupleGetItem(params, 0)) if packed else weight
            value = builder.emit(op.astype(value, "float32")) if converted else value
            result = builder.emit_output(op.matmul(x, builder.emit(op.permute_dims(value))))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("packed", [True, False], ids=["tuple", "inputs"])
def test_weights_that_are_converted_at_every_call_are_found(packed: bool) -> None:
    (work,) = weight_work(prepare(_model(converted=True, packed=packed), TARGET))
    assert (work.function, work.moved) == ("decode", 6 * COLUMNS * DEPTH)
    assert set(work.what) & {"converted", "transposed"}
    assert not weight_work(prepare(_model(converted=False, packed=packed), TARGET))


def test_the_report_says_what_it_takes() -> None:
    hub = FakeHub(host=SimpleNamespace(kind="cuda"))
    explain_module(_model(converted=True), TARGET, hub)
    (note,) = (note for note in hub.notes if "at every call" in note)
    assert note.startswith("decode: weights are ") and "3 MB moved" in note and note.endswith("ms at least")


def test_tokens_that_keep_their_place_from_step_to_step_are_no_weights() -> None:
    kind = tensor_class()
    tokens, table = relax.Var("tokens", kind((4096,), "int32")), relax.Var("w", kind((100, DEPTH), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("decode_step", [tokens, table], attrs={"num_input": 0}):
        with builder.dataflow():
            result = builder.emit_output(op.exp(builder.emit(op.take(table, tokens, axis=0))))
        builder.emit_func_output(result)
    assert not weight_work(prepare(builder.get(), TARGET))

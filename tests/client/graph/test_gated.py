"""Which products of a graph have SiLU(gate) · up as their epilogue. No GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

from tvm import relax, tirx

from tunehub.graph.gated import gated_products
from tunehub.kernels.cuda.low_batch.gated_functions import gated_maker, gated_quantised_product
from tunehub.kernels.cuda.low_batch.weights import QUANTISED, dequantised
from tunehub.tir.nodes import calls_in, operator_of, tensor_class

from ..kernels.cuda.scheduled import H200
from ..kernels.cuda.symbolic.open_functions import TARGET

pytestmark = pytest.mark.slow

HALF, DEPTH = 1024, 2048


def _module(
    rows: int | None = None,
    *,
    halves: tuple[int, int] = (0, HALF),
    given: bool = True,
    scaled: bool = False,
    packed: bool = False,
) -> Any:
    count = tirx.Var("n", "int64") if rows is None else rows
    dtypes = {name: "float8_e4m3fn" if scaled or (packed and name == "w") else "float16" for name in "xw"}
    shapes = {"x": (1, count, DEPTH), "w": (2 * HALF, DEPTH), "of_x": (1, count, 1), "of_w": (2 * HALF,)}
    x, w, of_x, of_w = (
        relax.Var(name, tensor_class()(shape, dtypes.get(name, "float32"))) for name, shape in shapes.items()
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, of_x, of_w]):
        with builder.dataflow():
            weight = w if given else builder.emit(relax.op.negative(w))
            weight = builder.emit(relax.op.astype(weight, "float16")) if packed else weight
            weight = builder.emit(relax.op.permute_dims(weight))
            both = builder.emit(relax.op.matmul(x, weight, out_dtype="float32" if scaled or packed else None))
            if scaled or packed:
                both = builder.emit(relax.op.multiply(both, of_x)) if scaled else both
                both = builder.emit(relax.op.multiply(both, of_w))
                both = builder.emit(relax.op.astype(both, "float16"))
            gate, up = (builder.emit(relax.op.strided_slice(both, [2], [at], [at + HALF])) for at in halves)
            result = builder.emit_output(relax.op.multiply(builder.emit(relax.op.nn.silu(gate)), up))
        builder.emit_func_output(result)
    return builder.get()


def _is_one_kernel(mod: Any, target: Any = H200) -> bool:
    with target:
        names = [operator_of(call) for call in calls_in(gated_products(mod))]
    return names == ["relax.call_tir"]


def test_it_is_the_epilogue_of_a_product_with_a_parameter_and_open_rows() -> None:
    assert _is_one_kernel(_module())


@pytest.mark.parametrize("rows", [None, 1])
def test_weights_in_e4m3_and_a_single_row_have_it_too(rows: int | None) -> None:
    assert _is_one_kernel(_module(rows, packed=True))


@pytest.mark.parametrize(("rows", "bits"), [(None, 4), (1, 4), (None, 8)])
def test_weights_in_groups_are_made_in_it(rows: int | None, bits: int) -> None:
    count, form = tirx.Var("n", "int64") if rows is None else rows, QUANTISED[bits // 8]
    kinds = {
        "x": ((1, count, DEPTH), "float16"),
        "w": ((2 * HALF, DEPTH // form.per_element), "uint32"),
        "s": ((2 * HALF, DEPTH // form.group), "float16"),
    }
    x, w, s = (relax.Var(name, tensor_class()(*kind)) for name, kind in kinds.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, s]):
        with builder.dataflow():
            made = builder.emit(builder.call_te(partial(dequantised, form=form), w, s, primfunc_name_hint="made"))
            both = builder.emit(relax.op.matmul(x, builder.emit(relax.op.permute_dims(made))))
            gate, up = (builder.emit(relax.op.strided_slice(both, [2], [at], [at + HALF])) for at in (0, HALF))
            result = builder.emit_output(relax.op.multiply(builder.emit(relax.op.nn.silu(gate)), up))
        builder.emit_func_output(result)
    with H200:
        after = gated_products(builder.get())
    (call,) = calls_in(after)
    assert gated_maker(after[call.args[0]]) is gated_quantised_product


def test_scales_of_rows_and_columns_are_part_of_it() -> None:
    assert _is_one_kernel(_module(scaled=True))


@pytest.mark.parametrize(
    "mod",
    [_module(32), _module(1), _module(halves=(HALF, 0)), _module(given=False), _module(1, scaled=True)],
    ids=["known rows", "one", "up before gate", "weights that are computed", "one of 8 bits"],
)
def test_others_stay_as_they_are(mod: Any) -> None:
    assert not _is_one_kernel(mod)


def test_gpus_without_warpgroups_have_none() -> None:
    assert not _is_one_kernel(_module(), TARGET)

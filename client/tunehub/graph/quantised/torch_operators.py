"""Quantised programs of PyTorch (pt2e): converters for TVM's importer, which has none for their operators.

``torchao``'s ``convert_pt2e`` writes ``torch.ops.quantized_decomposed.*`` around float operators. Here they become
``relax.op.quantize`` and ``relax.op.dequantize``, as TVM's importer of ONNX makes them of QDQ form. Source of what they
compute: torch/ao/quantization/fx/_decomposed.py of PyTorch 2.15. Imports tvm only inside functions, and torch nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.kernels.te.scales import LIMITS

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Expr, Scalar, TorchImporter, TorchNode, Var
    from tunehub.tir.types import Index

Converter = Callable[[Any, Any], Any]
LIBRARY = "quantized_decomposed"


def torch_convert_map() -> dict[str, Converter]:
    """Converters for the operators of quantised PyTorch programs, as ``custom_convert_map`` of
    ``tvm.relax.frontend.torch.from_exported_program`` takes them: by the name of the operator and its overload.

    Integers of 8 bits, a scale and a zero point for a tensor or for each channel, constant or computed by the program
    (dynamic quantisation). The importer raises NotImplementedError, naming the type, for integers of other sizes that a
    program quantises to."""
    kinds = ("default", "tensor", "tensor2")
    return {
        **{f"quantize_per_tensor.{kind}": _quantize for kind in kinds},
        **{f"dequantize_per_tensor.{kind}": _dequantize for kind in kinds},
        "quantize_per_channel.default": _quantize_channels,
        "dequantize_per_channel.default": _dequantize_channels,
        "choose_qparams.tensor": _choose,
        "choose_qparams_symmetric.tensor": _choose_symmetric,
        "convert_element_type.no_fuse": _convert,
    }


def _quantize(node: TorchNode, importer: TorchImporter) -> Expr:
    x, scale, zero, low, high, dtype = importer.retrieve_args(node)
    return _quantized(importer.block_builder, x, (scale, zero), (low, high), _name(dtype))


def _quantize_channels(node: TorchNode, importer: TorchImporter) -> Expr:
    x, scales, zeros, axis, low, high, dtype = importer.retrieve_args(node)
    return _quantized(importer.block_builder, x, (scales, zeros), (low, high), _name(dtype), axis)


def _dequantize(node: TorchNode, importer: TorchImporter) -> Expr:
    x, scale, zero = importer.retrieve_args(node)[:3]
    return _dequantized(importer.block_builder, x, (scale, zero), node.kwargs.get("out_dtype"))


def _dequantize_channels(node: TorchNode, importer: TorchImporter) -> Expr:
    x, scales, zeros, axis = importer.retrieve_args(node)[:4]
    return _dequantized(importer.block_builder, x, (scales, zeros), node.kwargs.get("out_dtype"), axis)


def _choose(node: TorchNode, importer: TorchImporter) -> Sequence[Expr]:
    """``choose_qparams``: scale and zero point such that ``low`` to ``high`` hold all elements, and 0."""
    from tvm import relax

    emit, (x, low, high, eps, _) = importer.block_builder.emit, importer.retrieve_args(node)
    least, most = _range(emit, x)
    scale = emit(relax.op.divide(emit(relax.op.subtract(most, least)), relax.const(np.float32(high - low))))
    scale = emit(relax.op.maximum(scale, relax.const(np.float32(eps))))
    steps = emit(relax.op.round(emit(relax.op.divide(least, scale))))
    zero = emit(relax.op.clip(emit(relax.op.subtract(relax.const(np.float32(low)), steps)), low, high))
    return scale, zero


def _choose_symmetric(node: TorchNode, importer: TorchImporter) -> Sequence[Expr]:
    """The same with 0 in the middle."""
    from tvm import relax

    emit, (x, low, high, eps, dtype) = importer.block_builder.emit, importer.retrieve_args(node)
    least, most = _range(emit, x)
    largest = emit(relax.op.maximum(emit(relax.op.negative(least)), most))
    scale = emit(relax.op.divide(largest, relax.const(np.float32((high - low) / 2))))
    scale = emit(relax.op.maximum(scale, relax.const(np.float32(eps))))
    return scale, relax.const(np.float32(128 if _name(dtype) == "uint8" else 0))


def _range(emit: Callable[[Expr], Var], x: Expr) -> tuple[Expr, Expr]:
    """The least and the largest element, or 0."""
    from tvm import relax

    x, none = _as(emit, x, "float32"), relax.const(np.float32(0))
    least, most = emit(relax.op.min(x)), emit(relax.op.max(x))
    return emit(relax.op.minimum(least, none)), emit(relax.op.maximum(most, none))


def _convert(node: TorchNode, importer: TorchImporter) -> Expr:
    x, dtype = importer.retrieve_args(node)
    return _as(importer.block_builder.emit, x, _name(dtype))


def _quantized(
    builder: BlockBuilder,
    x: Expr,
    by: tuple[Scalar, Scalar],
    limits: tuple[int, int],
    dtype: str,
    axis: int | None = None,
) -> Expr:
    """``by``: scale and zero point; ``axis``: that they are along. Limits narrower than those of ``dtype`` clip."""
    from tvm import relax

    if dtype not in LIMITS:
        raise NotImplementedError(f"quantising to {dtype}: there are converters for {' and '.join(LIMITS)}")
    x, constant = _as(builder.emit, x, "float32"), not isinstance(by[0], relax.Expr)
    narrow = limits != LIMITS[dtype]
    if narrow and constant:  # of numbers, so that integers are quantised alone: clients look for that
        x = builder.emit(relax.op.clip(x, *(by[0] * (limit - by[1]) for limit in limits)))
    scale, zero = _parameters(builder.emit, by, dtype, axis)
    along = -1 if axis is None else axis
    q = _with_an_axis(builder.emit, x, lambda x: relax.op.quantize(x, scale, zero, axis=along, out_dtype=dtype))
    if narrow and not constant:
        low, high = (relax.const(np.asarray(limit, dtype)) for limit in limits)
        q = builder.emit(relax.op.minimum(builder.emit(relax.op.maximum(q, low)), high))
    return q


def _dequantized(
    builder: BlockBuilder, x: Expr, by: tuple[Scalar, Scalar], out_dtype: object, axis: int | None = None
) -> Expr:
    from tvm import relax

    from tunehub.tir.nodes import tensor_type

    scale, zero = _parameters(builder.emit, by, str(tensor_type(x).dtype), axis)
    along = -1 if axis is None else axis
    result = _with_an_axis(builder.emit, x, lambda x: relax.op.dequantize(x, scale, zero, axis=along))
    return _as(builder.emit, result, "float32" if out_dtype is None else _name(out_dtype))


def _with_an_axis(emit: Callable[[Expr], Var], x: Expr, compute: Callable[[Expr], Expr]) -> Expr:
    """``compute`` on elements; TVM 0.25 and 0.26 want an axis where a single number has none."""
    from tvm import relax

    from tunehub.tir.nodes import shape_of

    if shape_of(x) != ():
        return emit(compute(x))
    return emit(relax.op.reshape(emit(compute(emit(relax.op.reshape(x, (1,))))), ()))


def _parameters(
    emit: Callable[[Expr], Var], by: tuple[Scalar, Scalar], dtype: str, axis: int | None
) -> tuple[Expr, Expr]:
    """Scale and zero point as TVM wants them: a float32 and an integer of ``dtype``, or one of each for a channel."""
    from tvm import relax

    from tunehub.tir.nodes import shape_of

    scale, zero = by
    if not isinstance(scale, relax.Expr):
        return relax.const(np.float32(scale)), relax.const(np.asarray(zero, dtype))
    shape: Sequence[Index] = () if axis is None else shape_of(scale) or ()
    zero = relax.const(np.zeros(shape, dtype)) if zero is None else zero
    found = _as(emit, scale, "float32"), _as(emit, zero, dtype)
    scale, zero = (each if shape_of(each) == tuple(shape) else emit(relax.op.reshape(each, shape)) for each in found)
    return scale, zero


def _as(emit: Callable[[Expr], Var], x: Expr, dtype: str) -> Expr:
    """``x`` with elements of ``dtype``."""
    from tvm import relax

    from tunehub.tir.nodes import tensor_type

    return x if str(tensor_type(x).dtype) == dtype else emit(relax.op.astype(x, dtype))


def _name(dtype: object) -> str:
    """What TVM calls an element type of PyTorch."""
    return str(dtype).removeprefix("torch.")

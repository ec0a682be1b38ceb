"""Converters for what TVM's importer of PyTorch's programs lacks, and what it reads as something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tunehub.graph.quantised.torch_operators import Converter
from tunehub.tir.nodes import shape_of, tensor_type
from tunehub_builder.networks.columns import ColumnWindows, emitted_columns, emitted_image, sliding

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, TorchImporter, TorchNode

KEPT = ("im2col", "col2im")  # which PyTorch would decompose into indices


def operator_convert_map() -> dict[str, Converter]:
    """By the operator and its overload, as ``custom_convert_map`` of ``from_exported_program`` takes them."""
    return {
        "unfold.default": _unfolded,
        "im2col.default": _columns,
        "col2im.default": _image,
        "index.Tensor": _indexed,
        "_unsafe_index.Tensor": _indexed,
        "div.Tensor_mode": _divided,
        "div.Scalar_mode": _divided,
        "amax.default": _largest,
        "amin.default": _least,
        "adaptive_max_pool2d.default": _adaptive_max_pool,
    }


def _unfolded(node: TorchNode, importer: TorchImporter) -> Expr:
    data, axis, size, step = importer.retrieve_args(node)
    axis %= len(shape_of(data) or ())
    builder = importer.block_builder
    return builder.emit_te(lambda given: sliding(given, axis, size, step), data, primfunc_name_hint="unfold")


def _columns(node: TorchNode, importer: TorchImporter) -> Expr:
    data, *given = importer.retrieve_args(node)
    return _batched(importer, data, 4, lambda each: emitted_columns(importer.block_builder, each, _windows(*given)))


def _image(node: TorchNode, importer: TorchImporter) -> Expr:
    data, image, *given = importer.retrieve_args(node)
    builder, windows = importer.block_builder, _windows(*given)
    return _batched(importer, data, 3, lambda each: emitted_image(builder, each, image, windows))


def _windows(sizes: Sequence[int], gaps: Sequence[int], added: Sequence[int], strides: Sequence[int]) -> ColumnWindows:
    return ColumnWindows(sizes=sizes, strides=strides, dilations=gaps, before=added, behind=added)


def _batched(importer: TorchImporter, data: Expr, axes: int, convert: Callable[[Expr], Expr]) -> Expr:
    """What ``convert`` makes of a batch; of one alone, which PyTorch takes too, that of a batch of it."""
    from tvm import relax

    emit = importer.block_builder.emit
    if len(shape_of(data) or ()) == axes:
        return convert(data)
    return emit(relax.op.squeeze(convert(emit(relax.op.expand_dims(data, 0))), [0]))


def _indexed(node: TorchNode, importer: TorchImporter) -> Expr:
    """Along axes whose indices are tensors, all at once as in NumPy: TVM's importer takes axis by axis where one is not
    indexed, which is another thing. Raises NotImplementedError for masks, whose results have open sizes."""
    from tvm import relax

    data, indices = importer.retrieve_args(node)[:2]
    emit, rank = importer.block_builder.emit, len(shape_of(data) or ())
    along = [axis for axis, each in enumerate(indices) if each is not None]
    if any(str(tensor_type(indices[axis]).dtype) not in ("int32", "int64") for axis in along):
        raise NotImplementedError("indices that are masks")
    places = [_from_end(emit, indices[axis], data, axis) for axis in along]
    if len(along) == 1:
        return emit(relax.op.take(data, places[0], axis=along[0]))
    rest = [axis for axis in range(rank) if axis not in along]
    moved = data if not rest or along[-1] < rest[0] else emit(relax.op.permute_dims(data, [*along, *rest]))
    found = emit(relax.op.index_tensor(moved, places))
    first = along[0] if along[-1] - along[0] == len(along) - 1 else 0  # PyTorch puts axes apart in front of all
    count = len(shape_of(found) or ()) - len(rest)
    order = [*range(count, count + first), *range(count), *range(count + first, count + len(rest))]
    return emit(relax.op.permute_dims(found, order)) if first else found


def _from_end(emit: Callable[[Expr], Expr], index: Expr, data: Expr, axis: int) -> Expr:
    """An index in which negative numbers count from the end, of an axis whose extent is known."""
    from tvm import relax

    index, extent = _of_type(emit, index, "int64"), (shape_of(data) or ())[axis]
    if not isinstance(extent, int):
        return index
    negative = emit(relax.op.less(index, relax.const(0, "int64")))
    return emit(relax.op.where(negative, emit(relax.op.add(index, relax.const(extent, "int64"))), index))


def _divided(node: TorchNode, importer: TorchImporter) -> Expr:
    """Rounded as ``rounding_mode`` says, in the type that PyTorch says."""
    from tvm import relax

    emit, dtype = importer.block_builder.emit, str(node.meta["val"].dtype).removeprefix("torch.")
    one, other = (_of_type(emit, each, dtype) for each in importer.retrieve_args(node)[:2])
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return emit(relax.op.floor_divide(one, other))
    divided = emit(relax.op.divide(one, other))  # of integers towards zero
    return emit(relax.op.trunc(divided)) if mode == "trunc" and "float" in dtype else divided


def _of_type(emit: Callable[[Expr], Expr], value: Any, dtype: str) -> Expr:
    from tvm import relax

    if not isinstance(value, relax.Expr):
        return relax.const(value, dtype)
    return value if str(tensor_type(value).dtype) == dtype else emit(relax.op.astype(value, dtype))


def _largest(node: TorchNode, importer: TorchImporter) -> Expr:
    from tvm import relax

    return _reduced(node, importer, relax.op.max)


def _least(node: TorchNode, importer: TorchImporter) -> Expr:
    from tvm import relax

    return _reduced(node, importer, relax.op.min)


def _reduced(node: TorchNode, importer: TorchImporter, reduce: Callable[..., Expr]) -> Expr:
    data, *rest = importer.retrieve_args(node)
    axes, keep = (*rest[:1], ())[0], rest[1] if len(rest) > 1 else False
    return importer.block_builder.emit(reduce(data, [*axes] or None, keepdims=keep))


def _adaptive_max_pool(node: TorchNode, importer: TorchImporter) -> tuple[Expr]:
    """The largest elements; of their places, which PyTorch gives, too, nothing."""
    from tvm import relax, topi

    data, size = importer.retrieve_args(node)
    builder, image = importer.block_builder, (shape_of(data) or ())[-2:]
    if all(isinstance(each, int) and each % out == 0 for each, out in zip(image, size, strict=True)):
        window = [each // out for each, out in zip(image, size, strict=True)]
        return (_batched(importer, data, 4, lambda each: builder.emit(relax.op.nn.max_pool2d(each, window, window))),)

    def pooled(each: Any) -> Any:
        return topi.nn.adaptive_pool(each, size, "max")

    return (
        _batched(importer, data, 4, lambda each: builder.emit_te(pooled, each, primfunc_name_hint="adaptive_max_pool")),
    )

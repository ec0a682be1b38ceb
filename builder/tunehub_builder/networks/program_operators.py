"""Converters for what TVM's importer of PyTorch's programs lacks, and what it reads as something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.graph.quantised.torch_operators import Converter
from tunehub.tir.nodes import shape_of, tensor_type
from tunehub_builder.networks.columns import ColumnWindows, emitted_columns, emitted_image, sliding

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, TorchImporter, TorchNode

KEPT = ("im2col", "col2im")  # which PyTorch would decompose into indices
COMPOSED = (  # what TVM's importer lacks or computes otherwise, and PyTorch itself can compose
    *("any.default", "any.dims", "prod.dim_int", "var.dim", "select_scatter.default", "addmv.default"),
    *("_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats", "triu_indices.default"),
    *("selu.default", "elu.default", "grid_sampler_2d.default"),
    *(f"{kind}_pad{axes}d.default" for kind in ("reflection", "replication") for axes in (1, 2, 3)),
)


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
        "min.dim": _least_and_place,
        "var_mean.correction": _variance_and_mean,
        "scatter_add.default": _scattered,
        "scatter_reduce.two": _scattered,
        "index_put.default": _put,
        "max_pool2d_with_indices.default": _max_pool,
        "exp2.default": _power_of_two,
        "addbmm.default": _added_batch,
        "var.default": _variance,
        "_cdist_forward.default": _distances,
        "__lshift__.Scalar": _shifted,
        "__rshift__.Scalar": _shifted,
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
    along, places = _places(emit, data, indices)
    if len(along) == 1:
        return emit(relax.op.take(data, places[0], axis=along[0]))
    rest, first = [axis for axis in range(rank) if axis not in along], _first(along)
    moved = data if not rest or along[-1] < rest[0] else emit(relax.op.permute_dims(data, [*along, *rest]))
    found = emit(relax.op.index_tensor(moved, places))
    count = len(shape_of(found) or ()) - len(rest)
    order = [*range(count, count + first), *range(count), *range(count + first, count + len(rest))]
    return emit(relax.op.permute_dims(found, order)) if first else found


def _places(emit: Callable[[Expr], Expr], data: Expr, indices: Sequence[Expr | None]) -> tuple[list[int], list[Expr]]:
    """The axes that are indexed, and their indices from the beginning. Raises NotImplementedError for masks."""
    given = {axis: each for axis, each in enumerate(indices) if each is not None}
    if any(str(tensor_type(each).dtype) not in ("int32", "int64") for each in given.values()):
        raise NotImplementedError("indices that are masks")
    return list(given), [_from_end(emit, each, data, axis) for axis, each in given.items()]


def _first(along: Sequence[int]) -> int:
    """Behind how many of the other axes PyTorch has those of the places: of axes apart they are in front of all."""
    return along[0] if along[-1] - along[0] == len(along) - 1 else 0


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


def _least_and_place(node: TorchNode, importer: TorchImporter) -> tuple[Expr, Expr]:
    from tvm import relax

    data, axis, *keep = importer.retrieve_args(node)
    emit, keeps = importer.block_builder.emit, bool(keep and keep[0])
    return emit(relax.op.min(data, axis, keepdims=keeps)), emit(relax.op.argmin(data, axis, keepdims=keeps))


def _variance_and_mean(node: TorchNode, importer: TorchImporter) -> tuple[Expr, Expr]:
    from tvm import relax

    data, *axes = importer.retrieve_args(node)
    mean = relax.op.mean(data, *axes[:1], keepdims=bool(node.kwargs.get("keepdim", False)))
    return importer.create_convert_map()["var.correction"](node), importer.block_builder.emit(mean)


def _scattered(node: TorchNode, importer: TorchImporter) -> Expr:
    from tvm import relax

    data, axis, index, source, *named = importer.retrieve_args(node)
    kind, whole = named[0] if named else "sum", node.kwargs.get("include_self", True)
    reduction = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}.get(kind)
    if reduction is None or not whole:
        raise NotImplementedError(f"scatter_reduce by {kind!r}, include_self={whole}")
    return importer.block_builder.emit(relax.op.scatter_elements(data, index, source, axis, reduction))


def _put(node: TorchNode, importer: TorchImporter) -> Expr:
    """Values where indices of some axes point together, as NumPy has it. Raises NotImplementedError for masks."""
    from tvm import relax

    data, indices, values, *adds = importer.retrieve_args(node)
    emit, extents = importer.block_builder.emit, [*(shape_of(data) or ())]
    along, places = _places(emit, data, indices)
    rest, first = [axis for axis in range(len(extents)) if axis not in along], _first(along)
    broadcast = [*np.broadcast_shapes(*[tuple(shape_of(each) or ()) for each in places])]
    places = [emit(relax.op.expand_dims(emit(relax.op.broadcast_to(each, broadcast)), -1)) for each in places]
    others = [extents[axis] for axis in rest]
    values = emit(relax.op.broadcast_to(values, [*others[:first], *broadcast, *others[first:]]))
    order = [
        *range(first, first + len(broadcast)),
        *range(first),
        *range(first + len(broadcast), len(broadcast) + len(rest)),
    ]
    moved = emit(relax.op.permute_dims(data, [*along, *rest]))
    index, values = emit(relax.op.concat(places, -1)), emit(relax.op.permute_dims(values, order))
    found = emit(relax.op.scatter_nd(moved, index, values, "add" if adds and adds[0] else "update"))
    return emit(relax.op.permute_dims(found, [[*along, *rest].index(axis) for axis in range(len(extents))]))


def _max_pool(node: TorchNode, importer: TorchImporter) -> tuple[Expr]:
    """The largest elements. Raises NotImplementedError where their places are used."""
    if any(each.args[1] for each in node.users):
        raise NotImplementedError("the places of the largest elements")
    largest: tuple[Expr] = importer.create_convert_map()["max_pool2d_with_indices.default"](node)
    return largest


def _power_of_two(node: TorchNode, importer: TorchImporter) -> Expr:
    from tvm import relax

    (data,) = importer.retrieve_args(node)
    return importer.block_builder.emit(relax.op.power(relax.const(2, str(tensor_type(data).dtype)), data))


def _added_batch(node: TorchNode, importer: TorchImporter) -> Expr:
    from tvm import relax

    emit, (added, one, other) = importer.block_builder.emit, importer.retrieve_args(node)
    product = emit(relax.op.sum(emit(relax.op.matmul(one, other)), 0))
    dtype = str(tensor_type(product).dtype)
    both = [(added, node.kwargs.get("beta", 1)), (product, node.kwargs.get("alpha", 1))]
    return emit(relax.op.add(*[emit(relax.op.multiply(each, relax.const(by, dtype))) for each, by in both]))


def _variance(node: TorchNode, importer: TorchImporter) -> Expr:
    """``prims.var``, without the axes that it adds up."""
    from tvm import relax

    data, axes, *correction = importer.retrieve_args(node)
    extents = [(shape_of(data) or ())[axis] for axis in axes]
    ratio = math.prod(extents) / max(math.prod(extents) - (correction[0] if correction else 1), 0)
    emit, dtype = importer.block_builder.emit, str(tensor_type(data).dtype)
    return emit(relax.op.multiply(emit(relax.op.variance(data, [*axes])), relax.const(ratio, dtype)))


def _distances(node: TorchNode, importer: TorchImporter) -> Expr:
    """Of each of some rows to each of others, by the sum of squares. Raises NotImplementedError for another norm."""
    from tvm import relax

    one, other, norm, _ = importer.retrieve_args(node)
    if norm != 2:
        raise NotImplementedError(f"distances by the norm {norm}")
    emit = importer.block_builder.emit
    apart = emit(relax.op.subtract(emit(relax.op.expand_dims(one, -2)), emit(relax.op.expand_dims(other, -3))))
    return emit(relax.op.sqrt(emit(relax.op.sum(emit(relax.op.multiply(apart, apart)), -1))))


def _shifted(node: TorchNode, importer: TorchImporter) -> Expr:
    from tvm import relax

    data, by = importer.retrieve_args(node)
    operator = relax.op.left_shift if "lshift" in node.target.__name__ else relax.op.right_shift
    return importer.block_builder.emit(operator(data, relax.const(by, str(tensor_type(data).dtype))))


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

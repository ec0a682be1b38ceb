"""Images of PyTorch's programs in other sizes, as PyTorch computes them.

TVM's importer has bilinear and cubic images of any size and the nearest points of whole multiples. Everything else is
here what PyTorch's operator makes of one axis after the other: it is asked for that of an axis' places, or of an
identity matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunehub.graph.quantised.torch_operators import Converter
from tunehub.tir.nodes import shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, TorchImporter, TorchNode

_IMAGE = 2  # its first axis, behind batch and channels
_OTHERS = 2
_NEAREST = tuple(f"{kind}{axes}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for axes in (1, 2, 3))
_SUMS = ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
_WIDE_SUMS = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
RESIZING = (*_NEAREST, *_SUMS, *_WIDE_SUMS)
_TVMS = ("upsample_nearest2d.vec", "upsample_bilinear2d.vec", "upsample_bicubic2d.vec")


def resizing_convert_map() -> dict[str, Converter]:
    """By the operator and its overload, as ``custom_convert_map`` of ``from_exported_program`` takes them."""
    return {f"{name}.{overload}": _resized for name in RESIZING for overload in ("vec", "default")}


def _resized(node: TorchNode, importer: TorchImporter) -> Expr:
    """Raises NotImplementedError for open sizes of which TVM's importer has nothing."""
    data, name = importer.env[node.args[0]], node.target.__name__
    extents, sizes = shape_of(data) or (), [*node.meta["val"].shape]
    known = all(isinstance(each, int) for each in (*extents[_IMAGE:], *sizes[_IMAGE:]))
    if name in _TVMS and (not known or _is_tvms(node, name, extents[_IMAGE:], sizes[_IMAGE:])):
        return importer.create_convert_map()[name](node)
    if not known:
        raise NotImplementedError("images of open sizes")
    for axis, size in enumerate(sizes[_IMAGE:]):
        if size != extents[_IMAGE + axis] or name.partition(".")[0] in _WIDE_SUMS:
            data = _along(importer, node, data, axis)
    return data


def _is_tvms(node: TorchNode, name: str, extents: Sequence[int], sizes: Sequence[int]) -> bool:
    """TVM takes the ratio of the sizes, where PyTorch takes the scales that it was given; nearest points of other
    ratios than whole ones TVM rounds otherwise."""
    scales, pairs = _arguments(node).get("scale_factors"), list(zip(extents, sizes, strict=True))
    exact = not scales or all(each * scale == size for (each, size), scale in zip(pairs, scales, strict=True))
    whole = not name.startswith("upsample_nearest") or all(size % each == 0 for each, size in pairs)
    return exact and whole


def _arguments(node: TorchNode) -> dict[str, Any]:
    names = [each.name for each in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _along(importer: TorchImporter, node: TorchNode, data: Expr, axis: int) -> Expr:
    import torch
    from tvm import relax

    emit, count = importer.block_builder.emit, (shape_of(data) or ())[_IMAGE + axis]
    arguments, dtype = _of_axis(node, axis), str(tensor_type(data).dtype)
    if node.target.__name__.partition(".")[0] in _NEAREST:
        places = _computed(node, arguments, axis, torch.arange(float(count))[None])
        return emit(relax.op.take(data, relax.const(places.astype("int64")[0]), axis=_IMAGE + axis))
    weights = relax.const(_computed(node, arguments, axis, torch.eye(int(count))).astype("float32"))
    weights = weights if dtype == "float32" else emit(relax.op.astype(weights, dtype))
    moved = [each for each in range(len(shape_of(data) or ())) if each != _IMAGE + axis] + [_IMAGE + axis]
    if moved == sorted(moved):
        return emit(relax.op.matmul(data, weights))
    product = emit(relax.op.matmul(emit(relax.op.permute_dims(data, moved)), weights))
    return emit(relax.op.permute_dims(product, [moved.index(each) for each in range(len(moved))]))


def _computed(node: TorchNode, arguments: Mapping[str, Any], axis: int, rows: Any) -> Any:
    """What PyTorch's operator makes of each of ``rows`` along an axis, as rows of NumPy. Other axes have two places:
    with one PyTorch 2.11 takes antialiased images for some whose channels lie last."""
    extents = [rows.shape[1] if each == axis else _OTHERS for each in range(len(node.meta["val"].shape) - _IMAGE)]
    image = rows.reshape(len(rows), 1, *[rows.shape[1] if each == axis else 1 for each in range(len(extents))])
    found = node.target(image.expand(-1, -1, *extents).contiguous(), **arguments)
    return found.movedim(_IMAGE + axis, -1).reshape(len(rows), -1, found.shape[_IMAGE + axis])[:, 0].numpy()


def _of_axis(node: TorchNode, axis: int) -> dict[str, Any]:
    """The operator's arguments but the image, for the axis alone."""
    given, arguments = _arguments(node), {}
    scales = [each for each in given if each == "scales" or each.startswith("scales_")]
    for name, value in [*given.items()][1:]:
        if name == "output_size" and value is not None:
            value = [size if each == axis else _OTHERS for each, size in enumerate(value)]
        elif name == "scale_factors" and value is not None:
            value = [scale if each == axis else 1.0 for each, scale in enumerate(value)]
        elif name in scales and scales.index(name) != axis:
            value = None
        arguments[name] = value
    return arguments

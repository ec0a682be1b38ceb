"""Attributes of ONNX's nodes that TVM's importer misreads or does not read, as others that it reads. No TVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunehub_builder.networks.columns import ColumnWindows

_POOLS = ("AveragePool", "MaxPool", "LpPool")
_NORMS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


MISREAD = frozenset({"BatchNormalization", *_POOLS, "ConvTranspose", *_NORMS, "IsInf"})


def node_name(attributes: Mapping[str, Any]) -> str:
    """The name of a node, which TVM's importer puts among its attributes."""
    return str(attributes.get("tvm_custom", {}).get("name") or "")


def rewritten(
    operator: str, attributes: Mapping[str, Any], spatial: Sequence[Any], kernel: Sequence[int], *, has_axes: bool
) -> Mapping[str, Any]:
    """The attributes of a node of an operator of `MISREAD`; ``spatial``: the extents of its data behind the first two,
    ``kernel``: those of its weight or window; ``has_axes``: whether a reduction is given some. Raises ValueError for
    what TVM cannot say."""
    if operator == "BatchNormalization" and attributes.get("training_mode"):  # the share of the old statistics in ONNX
        return {**attributes, "momentum": 1 - attributes.get("momentum", 0.9)}
    if operator in _POOLS and text_of(attributes, "auto_pad").startswith("SAME"):
        return {**attributes, "auto_pad": b"NOTSET", "pads": _same(attributes, spatial, kernel)}
    if operator == "ConvTranspose" and attributes.get("output_shape"):
        kept = {name: value for name, value in attributes.items() if name not in ("output_shape", "auto_pad")}
        return {**kept, "pads": _cropped(attributes, spatial, kernel)}
    if operator in _NORMS and attributes.get("noop_with_empty_axes") and not has_axes:
        raise ValueError("noop_with_empty_axes without axes: runtimes take it for different things")
    if operator == "IsInf" and not (attributes.get("detect_negative", 1) and attributes.get("detect_positive", 1)):
        raise ValueError("detect_negative and detect_positive are not both 1")
    return attributes


def _same(attributes: Mapping[str, Any], spatial: Sequence[Any], kernel: Sequence[int]) -> tuple[int, ...]:
    """What is added before and behind each axis for as many windows as strides begin in it."""
    added = []
    for size, window, stride, dilation in zip(_known(spatial), kernel, *_steps(attributes, kernel), strict=True):
        reached = (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1
        added.append(max(reached - size, 0))
    return _split(added, more_behind=text_of(attributes, "auto_pad") == "SAME_UPPER")


def _cropped(attributes: Mapping[str, Any], spatial: Sequence[Any], kernel: Sequence[int]) -> tuple[int, ...]:
    """What is taken away before and behind each axis, so that so much is left as a node says."""
    wanted, more = attributes["output_shape"][-len(kernel) :], attributes.get("output_padding", [0] * len(kernel))
    left = []
    for size, out, pad, window, stride, dilation in zip(
        _known(spatial), wanted, more, kernel, *_steps(attributes, kernel), strict=True
    ):
        left.append(stride * (size - 1) + pad + (window - 1) * dilation + 1 - out)
    if min(left) < 0:
        raise ValueError(f"the output_shape {[*wanted]} is larger than what is computed")
    return _split(left, more_behind=text_of(attributes, "auto_pad") == "SAME_UPPER")


def _split(total: Sequence[int], *, more_behind: bool) -> tuple[int, ...]:
    halves = [(each // 2, each - each // 2) for each in total]
    pairs = halves if more_behind else [(behind, before) for before, behind in halves]
    return (*(before for before, _ in pairs), *(behind for _, behind in pairs))


def _steps(attributes: Mapping[str, Any], kernel: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Strides and dilations."""
    ones = [1] * len(kernel)
    return attributes.get("strides", ones), attributes.get("dilations", ones)


def windows_of(attributes: Mapping[str, Any], sizes: Sequence[int]) -> ColumnWindows:
    """Windows of these sizes."""
    pads, (strides, dilations) = attributes.get("pads", [0] * 2 * len(sizes)), _steps(attributes, sizes)
    before, behind = pads[: len(sizes)], pads[len(sizes) :]
    return ColumnWindows(sizes=sizes, strides=strides, dilations=dilations, before=before, behind=behind)


def _known(spatial: Sequence[Any]) -> list[int]:
    if not all(isinstance(each, int) for each in spatial):
        raise ValueError("what its data is padded by depends on open dimensions")
    return [*spatial]


def text_of(attributes: Mapping[str, Any], name: str, default: str = "") -> str:
    """An attribute that is a text, which TVM's importer hands on as bytes."""
    given = attributes.get(name, default)
    return given.decode("ascii") if isinstance(given, bytes) else str(given)

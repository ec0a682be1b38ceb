"""Fixing open dimensions of a Relax module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm import relax

from tunehub.tir.nodes import integer, shape_of
from tunehub.tir.symbols import symbol_name, variables_in
from tunehub_builder.networks.exceptions import ModelFileError

if TYPE_CHECKING:
    from tunehub.tir.types import Index, IRModule


def with_fixed(mod: IRModule, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int], source: str) -> IRModule:
    """`mod` with `shapes` of inputs of `main`, and `sizes` of its symbols. Raises ModelFileError for others."""
    inputs = {str(getattr(each, "name_hint", None) or each.name): shape_of(each) or () for each in mod["main"].params}
    symbols = {symbol_name(each): each for each in variables_in([e for shape in inputs.values() for e in shape])}
    for name in sizes:
        if name not in symbols:
            remedy = f"Its open dimensions are {', '.join(symbols)}" if symbols else "It has none"
            raise ModelFileError(source, f"there is no open dimension {name!r}", remedy)
    values = dict(sizes)
    for name, shape in shapes.items():
        if name not in inputs:
            known = ", ".join(inputs) or "none"
            raise ModelFileError(source, f"there is no input {name!r}", f"Give shapes for the inputs it has: {known}")
        for symbol, size in _sizes_by(inputs[name], shape, name, source).items():
            if values.setdefault(symbol, size) != size:
                reason = f"{symbol!r} is {values[symbol]}, and {size} by the shape given for input {name!r}"
                raise ModelFileError(source, reason, "Give one size")
    bound = {symbols[name]: value for name, value in values.items()}
    return relax.transform.BindSymbolicVars(bound, "main")(mod) if bound else mod


def _sizes_by(declared: tuple[Index, ...], shape: tuple[int, ...], name: str, source: str) -> dict[str, int]:
    """The sizes of symbols that make a declared shape the given one."""
    found: dict[str, int] = {}
    if len(declared) == len(shape):
        for extent, size in zip(declared, shape, strict=True):
            known = integer(extent)
            if known is None and hasattr(extent, "name"):
                known = found.setdefault(symbol_name(extent), size)
            if known != size:
                break
        else:
            return found
    text = ", ".join(str(extent) for extent in declared)
    reason = f"the shape {shape} given for input {name!r} contradicts the file's ({text})"
    raise ModelFileError(source, reason, "Keep the fixed dimensions and set only the open ones")

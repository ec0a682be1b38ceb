"""Weights quantised in groups of 32 along K, in MLC-LLM's layout of rows, as one function for CPUs, which arrives
scheduled: bit for bit what :func:`tunehub.models.weights.quantized` does with numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu.packed_weights import GROUP
from tunehub.kernels.cpu.vectors import Vectors
from tunehub.tir.nodes import parameters
from tunehub.tir.statements import block_of, const, f32, load, sequence, serial, store, with_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, Stmt

_VECTORS = Vectors(GROUP // 2)
_ROUNDING = 12582912.0  # 1.5 · 2²³: what is added to it is rounded to an integer, in its lowest bits
_HALF, _BYTE, _POSITIVE = 16, 0xFF, 0x7FFFFFFF


def group_quantisation(source: str, bits: int, least: float, scale: str) -> PrimFunc:
    """Its parameters: numbers of type ``source`` (words of two where that has 16 bits), the first group that is written
    and how many (int32 [2]), bytes of all groups, their scales of type ``scale``, which are ``least`` at least."""
    from tvm import te, tirx

    held, groups = (tirx.Var(name, "int32") for name in ("held", "groups"))
    of_data = "float32" if source == "float32" else "uint32"
    given = [
        te.placeholder((held,), of_data, name="data"),
        te.placeholder((2,), "int32", name="place"),
        te.placeholder((groups * (GROUP * bits // 8),), "uint8", name="words"),
    ]
    result = te.compute((groups,), lambda _: const(0, scale), name="scales")
    function = te.create_prim_func([*given, result])  # for its parameters and root: the body is another
    data, place, words, scales = parameters(function)
    low, high, most = (_VECTORS.buffer(name) for name in ("low", "high", "most"))
    own = tirx.decl_buffer((1,), "float32", "scale")
    zero = 2.0 ** (bits - 1) - 1

    def group(at: PrimExpr) -> Stmt:
        to, values = load(place, 0) + at, _numbers(data, source)(at)
        both = [_stored(each, own, zero) for each in (low, high)]
        body = sequence(
            [_VECTORS.set(each, value) for each, value in zip((low, high), values, strict=True)],
            _VECTORS.set(most, tirx.max(*(_size(each) for each in (low, high)))),
            _VECTORS.largest(most),
            store(scales, [to], tirx.Cast(scale, tirx.max(load(most, 0), f32(least * zero)) / f32(zero))),
            store(own, [0], tirx.Cast("float32", load(scales, to))),
            _packed(words, to, tirx.bitwise_or(both[0], both[1] << _VECTORS.all(bits, "uint32")), bits),
        )
        return block_of(function.body, body, "group", [low, high, most, own])

    body = with_root(function.body, [serial("group", load(place, 1), group)], [])
    return function.with_body(body).with_attr({"tirx.is_scheduled": True, "tirx.noalias": True})


def _numbers(data: Buffer, source: str) -> Callable[[PrimExpr], tuple[PrimExpr, PrimExpr]]:
    """Of a group those at even and at odd places, in float32."""

    def of_words(at: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        found = load(data, _VECTORS.ramp(at * _VECTORS.lanes))
        if source == "bfloat16":
            return _VECTORS.floats_of(found)
        halves = (_VECTORS.cast(each, "uint16") for each in (found, found >> _VECTORS.all(_HALF, "uint32")))
        low, high = (_VECTORS.cast(_VECTORS.bits_as(each, "float16")) for each in halves)
        return low, high

    def of_floats(at: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        found = [load(data, _VECTORS.ramp(at * GROUP + first)) for first in (0, _VECTORS.lanes)]
        low, high = (_VECTORS.shuffled(found, range(first, GROUP, 2)) for first in (0, 1))
        return low, high

    assert source in ("float32", "float16", "bfloat16"), source
    return of_floats if source == "float32" else of_words


def _size(vector: Buffer) -> PrimExpr:
    """Without signs."""
    from tvm import tirx

    bits = tirx.bitwise_and(_VECTORS.bits_as(_VECTORS.get(vector), "uint32"), _VECTORS.all(_POSITIVE, "uint32"))
    return _VECTORS.bits_as(bits, "float32")


def _stored(vector: Buffer, scale: Buffer, zero: float) -> PrimExpr:
    """What is stored for numbers."""
    from tvm import tirx

    value = _VECTORS.get(vector) / _VECTORS.all(load(scale, 0)) + _VECTORS.all(zero)
    value = tirx.max(tirx.min(value, _VECTORS.all(2 * zero)), _VECTORS.all(0.0)) + _VECTORS.all(_ROUNDING)
    return tirx.bitwise_and(_VECTORS.bits_as(value, "uint32"), _VECTORS.all(_BYTE, "uint32"))


def _packed(words: Buffer, group: PrimExpr, pairs: PrimExpr, bits: int) -> Stmt:
    """The pairs of a group, each in one byte or two."""
    from tvm import tirx

    count = GROUP * bits // 8
    narrow = _VECTORS.cast(pairs, f"uint{2 * bits}")
    value = narrow if count == _VECTORS.lanes else tirx.reinterpret(f"uint8x{count}", narrow)
    return store(words, [tirx.Ramp(group * count, const(1), count)], value)

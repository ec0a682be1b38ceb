"""Keys and values of new tokens to their pages, in vectors; TVM's function computes the place of each element."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu.paged_attention.cached import KEYS, LANES, VALUES, VECTORS
from tunehub.kernels.cpu.vectors import vector_types
from tunehub.tir.nodes import buffer_kind, integer, parameters
from tunehub.tir.statements import block_of, const, either, load, parallel, sequence, serial, store, when, with_root

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, Stmt

_FEW = 32  # tokens, which take as long as a parallel region
_NOWHERE = -1  # the place of a token that is not to be kept


def append_in_vectors(function: PrimFunc) -> PrimFunc | None:
    """``function``, TVM's own for pages, with rows copied in vectors, by several threads where there are more tokens
    than a batch has; None where vectors do not divide a row."""
    pages, _, _, places = buffers = parameters(function)
    _, _, _, _, depth = buffer_kind(pages).shape
    if str(buffer_kind(pages).dtype) not in vector_types() or (integer(depth) or 1) % LANES:
        return None
    root, tokens = function.body, buffer_kind(places).shape[0].astype("int32")

    def token(at: PrimExpr) -> Stmt:
        return block_of(root, _token(buffers, at), "append", [])

    body = either(tokens > const(_FEW), parallel("token", tokens, token), serial("token", tokens, token))
    return function.with_body(with_root(root, [body], [])).with_attr({"tirx.is_scheduled": True, "tirx.noalias": True})


def _token(buffers: list[Buffer], token: PrimExpr) -> Stmt:
    from tvm import tirx

    pages, keys, values, places = buffers
    _, _, heads, page, depth = map(integer, buffer_kind(pages).shape)
    place = load(places, token)

    def head(at: PrimExpr) -> Stmt:
        return sequence(
            [
                store(
                    pages,
                    [tirx.floordiv(place, page), const(kind), at, tirx.floormod(place, page), VECTORS.ramp(first)],
                    load(rows, token, at, VECTORS.ramp(first)),
                )
                for kind, rows in ((KEYS, keys), (VALUES, values))
                for first in range(0, depth or 0, LANES)
            ]
        )

    return when(tirx.NE(place, const(_NOWHERE)), serial("head", heads or 0, head))

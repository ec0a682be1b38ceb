"""``einsum`` of two tensors that TVM's ONNX importer wrote as a kernel, as a matmul: it is a product like any other
then, and attention that is written so is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import relax, topi

from tunehub.tir.nodes import buffer_kind, buffer_of
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import Index, PrimExpr, SBlock, Tensor

BLOCK = "T_einsum"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
IsKernel = Callable[[Sequence[Any]], bool]


def einsum_operator(
    block: SBlock, tensor: Callable[[Sequence[Index], str], Tensor], is_kernel: IsKernel
) -> Callable[..., Expr] | None:
    """The matmul that a kernel with this one ``block`` is, as a function of its two tensors; None for others.
    ``tensor`` makes one of a shape and a type; ``is_kernel`` says whether the kernel is TVM's own for tensors, of which
    the last is the result."""
    added: PrimExpr = getattr(block.body.value, "b", None)
    factors: list[PrimExpr] = [getattr(added, side, None) for side in "ab"]
    if type(added).__name__ != "Mul" or any(type(each).__name__ not in LOADS for each in factors):
        return None
    letters = {hash(axis.var): letter for axis, letter in zip(block.iter_vars, _LETTERS, strict=False)}
    words = [_word(each, letters) for each in (factors[0].indices, factors[1].indices, block.body.indices)]
    first, second, result = (each or "" for each in words)
    order = _order(first, second, result)
    kinds = [buffer_kind(buffer_of(each)) for each in factors]
    given = [tensor(kind.shape, str(kind.dtype)) for kind in kinds]
    if None in words or order is None or not is_kernel([*given, topi.einsum(f"{first},{second}->{result}", *given)]):
        return None
    batch, row, column, depth = order

    def matmul(one: Expr, other: Expr) -> Expr:
        rows, columns = (_permuted(one, first, batch + row + depth), _permuted(other, second, batch + depth + column))
        return _permuted(relax.op.matmul(rows, columns), batch + row + column, result)

    return matmul


def _order(first: str, second: str, result: str) -> tuple[str, str, str, str] | None:
    """The letters of the batch, of rows, columns and of what is added up; None where one of the latter has not one."""
    batch = "".join(each for each in result if each in first and each in second)
    rows, columns = ("".join(each for each in word if each in result and each not in batch) for word in (first, second))
    depth = "".join(each for each in first if each in second and each not in result)
    whole = sorted(first) == sorted(batch + rows + depth) and sorted(second) == sorted(batch + columns + depth)
    single = len(rows) == len(columns) == len(depth) == 1
    return (
        (batch, rows, columns, depth) if single and whole and sorted(result) == sorted(batch + rows + columns) else None
    )


def _permuted(tensor: Expr, word: str, wanted: str) -> Expr:
    return tensor if word == wanted else relax.op.permute_dims(tensor, [word.index(letter) for letter in wanted])


def _word(indices: Sequence[PrimExpr], letters: Mapping[int, str]) -> str | None:
    found = [letters.get(hash(index)) for index in indices]
    return None if None in found or len(set(found)) != len(found) else "".join(map(str, found))

"""What all results of a kernel are computed with: numbers of one element, which a thread loads once, and what follows
a rounding to 8 bits and ends in 8 bits, as a table of 256 bytes that a block computes before its products are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tunehub.kernels.te.scales import LIMITS
from tunehub.tir.cuda.ptx.rounding import set_table_element, table_element
from tunehub.tir.index_expressions import operator_name, parts_of
from tunehub.tir.nodes import element_type
from tunehub.tir.statements import loop, sequence, when
from tunehub.tir.versions import LOADS, UNROLLED

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferLoad, Number, PrimExpr, Stmt, Var

BYTES = 256
_WIDE = "float32"
_CHEAP = ("round", "nearbyint", "if_then_else")


class ByteTable(NamedTuple):
    """In shared memory, at the ``address`` that a kernel binds; its elements are ``element`` of the ``place``. It is of
    the memory that the kernel has anyway: declared by itself it would move that, by whose addresses ``wgmma`` reads."""

    address: Var
    place: Var
    element: PrimExpr

    def filled(self, thread: PrimExpr, threads: int) -> Stmt:
        """Each of the ``threads`` of a block writes some elements."""
        from tvm import tirx

        def one(i: PrimExpr) -> Stmt:
            at = i * threads + thread
            value = tirx.Cast("int32", _with(self.element, self.place, at))
            written = set_table_element()(self.address, at, value)
            return written if BYTES % threads == 0 else when(at < BYTES, written)

        return sequence([loop("i", -(-BYTES // threads), one, UNROLLED)])


def table_in(value: PrimExpr, sums: Buffer) -> tuple[PrimExpr, ByteTable | None]:
    """``value``, of accumulators ``sums``, as an element of a table where it is a costly function of nothing but what
    is rounded to 8 bits; as it is otherwise."""
    from tvm import tirx

    if element_type(value) not in LIMITS:
        return value, None
    inner, rest, whole = _rounded_within(value, sums)
    if inner is None or not _is_costly(rest) or any(not _is_number(each) for each in _loads(rest)):
        return value, None
    low = LIMITS[element_type(inner)][0]
    address, place = tirx.Var("table", "uint32"), tirx.Var("place", "int32")
    element = _with(rest, whole, tirx.Cast(_WIDE, place + low if low else place))
    at = tirx.Cast("int32", inner)
    found = table_element(element_type(value))(address, at - low if low else at, result=element_type(value))
    return found, ByteTable(address, place, element)


def with_numbers(*values: PrimExpr) -> tuple[list[PrimExpr], list[tuple[Var, PrimExpr]]]:
    """``values`` with variables for all that are loaded from tensors of one element, and these, each with what it is:
    bytes as they are cast."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    found: list[tuple[Var, PrimExpr]] = []

    def variable(node: PrimExpr) -> PrimExpr:
        known = next((var for var, value in found if tvm_ffi.structural_equal(value, node)), None)
        if known is None:
            known = tirx.Var("number", element_type(node))
            found.append((known, node))
        return known

    def cast(node: PrimExpr) -> PrimExpr:
        return variable(node) if type(node.value).__name__ in LOADS and _is_number(node.value) else node

    rules = [(tirx.Cast, cast), (tvm.ir.TensorLoad, lambda each: variable(each) if _is_number(each) else each)]
    return [tvm_ffi.structural_map(value, rules, order="pre") for value in values], found


def _rounded_within(value: PrimExpr, sums: Buffer) -> tuple[PrimExpr | None, PrimExpr, Var]:
    """The outermost bytes that ``value`` computes of ``sums``, if there is one kind; ``value`` of a variable in place
    of these in float32, and the variable."""
    import tvm_ffi
    from tvm import tirx

    inner, whole = list[Any](), tirx.Var("rounded", _WIDE)

    def visit(node: PrimExpr) -> PrimExpr:
        is_wide = element_type(node) == _WIDE and type(node.value).__name__ == "Cast"
        if not is_wide or element_type(node.value) not in LIMITS:
            return node
        if not any(each.source.same_as(sums) for each in _loads(node)):
            return node
        inner.append(node.value)
        return whole

    rest = tvm_ffi.structural_map(value, [(tirx.Cast, visit)], order="pre")
    one = bool(inner) and all(tvm_ffi.structural_equal(inner[0], each) for each in inner)
    return (inner[0] if one else None), rest, whole


def _loads(node: Number) -> list[BufferLoad]:
    own = [node] if type(node).__name__ in LOADS else []
    return own + [each for part in parts_of(node) for each in _loads(part)]


def _is_number(node: PrimExpr) -> bool:
    return all(type(index).__name__ == "IntImm" for index in node.indices)


def _is_costly(node: Number) -> bool:
    """Whether it calls what takes many instructions."""
    called = type(node).__name__ == "Call" and operator_name(node) not in _CHEAP
    return called or any(map(_is_costly, parts_of(node)))


def _with(expression: PrimExpr, variable: Var, value: PrimExpr) -> PrimExpr:
    import tvm
    import tvm_ffi

    return tvm_ffi.structural_map(
        expression, [(tvm.ir.Var, lambda own: value if own.same_as(variable) else own)], order="pre"
    )

"""Nodes of current TVM whose classes or fields changed between 0.25 and 0.27, read in one way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tunehub.tir.versions import COMM_REDUCE, CONSTANTS

if TYPE_CHECKING:
    from tunehub.tir.types import (
        Array,
        Buffer,
        BufferLoad,
        BufferRegion,
        BufferStore,
        DeviceTensor,
        Expr,
        For,
        Index,
        IRModule,
        IterVar,
        Mutator,
        Node,
        PrimExpr,
        PrimFunc,
        SBlock,
        SBlockRealize,
        Stmt,
        Type,
    )

_ALIGNMENT = 64  # bytes: TVM's kAllocAlignment
_ALL_CHILDREN = ("block", "init", "body", "then_case", "else_case")
_CHILDREN = {  # asking a node for what it has not takes long; other kinds are asked for all
    "For": ("body",),
    "SBlockRealize": ("block",),
    "SBlock": ("init", "body"),
    **dict.fromkeys(("BufferStore", "Evaluate"), ()),
}


def main_module(function: PrimFunc) -> IRModule:
    """An IRModule with the PrimFunc ``function`` as its ``main``."""
    import tvm

    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def symbolic() -> ModuleType:
    """TVM's module for arithmetic on expressions; 0.27 renamed it."""
    import tvm

    found: ModuleType = tvm.sym if hasattr(tvm, "sym") else tvm.arith
    return found


def parameters(function: PrimFunc) -> list[Buffer]:
    """The buffers of the parameters of ``function``; since 0.27 a parameter is its buffer."""
    if hasattr(function, "buffer_map"):
        return [function.buffer_map[parameter] for parameter in function.params if parameter in function.buffer_map]
    return [parameter for parameter in function.params[:] if hasattr(getattr(parameter, "ty", None), "shape")]


def with_parameter(function: PrimFunc, buffer: Buffer) -> PrimFunc:
    """``function`` with ``buffer`` as its last parameter."""
    from tvm.tirx import PrimFunc, Var

    if not hasattr(function, "buffer_map"):
        return PrimFunc([*function.params, buffer], function.body, function.ret_type, function.attrs)
    handle = Var(str(buffer.name), "handle")
    buffers = {**dict(function.buffer_map.items()), handle: buffer}
    return PrimFunc([*function.params, handle], function.body, function.ret_type, buffers, function.attrs)


def with_parameters(function: PrimFunc, buffers: Sequence[Buffer]) -> PrimFunc:
    """``function`` with these buffers as its parameters, in front of those of its parameters that are none."""
    from tvm.tirx import PrimFunc, Var

    if not hasattr(function, "buffer_map"):
        plain = [each for each in function.params if not hasattr(getattr(each, "ty", None), "shape")]
        return PrimFunc([*buffers, *plain], function.body, function.ret_type, function.attrs)
    plain = [each for each in function.params if each not in function.buffer_map]
    own = {Var(str(buffer.name), "handle"): buffer for buffer in buffers}
    return PrimFunc([*own, *plain], function.body, function.ret_type, own, function.attrs)


def buffer_of(access: BufferLoad | BufferStore | BufferRegion) -> Buffer:
    """The buffer of a region, load or store; 0.27 calls that of regions and loads their source."""
    return access.buffer if hasattr(access, "buffer") else access.source


def buffer_kind(buffer: Buffer) -> Buffer:
    """What has the ``shape`` and ``dtype``: the buffer, or since 0.27 its type."""
    return buffer if hasattr(buffer, "shape") else buffer.ty


def extents_of(buffer: Buffer) -> list[Index]:
    """The shape of a buffer. A slice of TVM's array takes a third of the time of going through it."""
    return list(buffer_kind(buffer).shape[:])


def buffer_shapes(function: PrimFunc) -> list[tuple[tuple[int, ...], str]]:
    """Shape and element type of each buffer parameter of ``function``, which are static."""
    kinds = map(buffer_kind, parameters(function))
    return [(tuple(int(extent) for extent in kind.shape), str(kind.dtype)) for kind in kinds]


def parameter_bytes(function: PrimFunc) -> int:
    """Bytes of all buffer parameters of ``function``, which are static: what it moves at least."""
    import tvm

    return sum(math.prod(shape) * int(tvm.DataType(dtype).itemsize) for shape, dtype in buffer_shapes(function))


def is_static(function: PrimFunc) -> bool:
    """Whether all parameters of ``function`` are buffers of known shapes."""
    kinds = list(map(buffer_kind, parameters(function)))
    extents = (integer(extent) for kind in kinds for extent in kind.shape)
    return len(kinds) == len(function.params) and None not in extents


def element_type(expression: PrimExpr) -> str:
    """The element type of an expression of TIR, which has a type since 0.26."""
    return str(expression.ty.dtype if hasattr(expression, "ty") else expression.dtype)


def integer(value: Index) -> int | None:
    """The number that an expression is, such as a static extent; None when it is none."""
    return int(value.value) if type(value).__name__ == "IntImm" else value if isinstance(value, int) else None


def plain_extent(value: PrimExpr) -> Index:
    """An extent: a number where it is static, else TVM's expression."""
    number = integer(value)
    return value if number is None else number


def integers(argument: Expr, value_of: Callable[[Expr], Expr]) -> list[int] | None:
    """The numbers of a tuple; ``value_of``: what a variable is bound to."""
    fields = [value_of(field) for field in getattr(value_of(argument), "fields", (None,))]
    numbers = [integer(scalar_of(field)) for field in fields]
    return None if None in numbers else [int(number) for number in numbers if number is not None]


def extent_or_one(value: PrimExpr) -> int:
    """A static extent, and 1 for one that is not known."""
    extent = integer(value)
    return 1 if extent is None else extent


def is_reduction(axis: IterVar) -> bool:
    """Whether an axis of a block is one of those that are summed over."""
    return int(axis.iter_type) == COMM_REDUCE


def reduces(block: SBlock) -> bool:
    """Whether a block has a reduction."""
    return any(map(is_reduction, block.iter_vars))


def children(node: Node) -> list[Stmt]:
    """The statements and blocks right inside one of a function's body (0.27 has no statement visitor in Python)."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return list(node.seq[:])  # a slice takes a third of the time
    return [child for name in _CHILDREN.get(kind, _ALL_CHILDREN) if (child := getattr(node, name, None)) is not None]


def realized_blocks(body: Stmt, loops: tuple[For, ...] = ()) -> Iterator[tuple[SBlockRealize, tuple[For, ...]]]:
    """All blocks of a function body, the outer one before those in it, with the loops around each."""
    kind = type(body).__name__
    if kind == "SBlockRealize":
        yield body, loops
    if kind == "For":
        loops = (*loops, body)
    for child in children(body):
        yield from realized_blocks(child, loops)


def with_children(node: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """A statement or block with what :func:`children` lists changed, but for the ``init`` of a block."""
    from tvm import tirx

    kind = type(node).__name__
    if kind == "SeqStmt":
        return tirx.SeqStmt([change(each) for each in node.seq])
    if kind == "For":
        more = {"annotations": node.annotations, "thread_binding": node.thread_binding}
        return tirx.For(node.loop_var, node.min, node.extent, int(node.kind), change(node.body), **more)
    if kind == "SBlockRealize":
        return type(node)(node.iter_values, node.predicate, change(node.block))
    if kind == "AttrStmt":
        return tirx.AttrStmt(node.node, node.attr_key, node.value, change(node.body))
    return with_block_body(node, change(node.body)) if kind == "SBlock" else node


def with_block_body(block: SBlock, body: Stmt, init: Stmt | None = None) -> Stmt:
    """``block`` with another ``body``, and with another ``init`` if that is given."""
    return type(block)(
        *(block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init if init is None else init),
        *(block.alloc_buffers, block.match_buffers, block.annotations),
    )


def statements_in(node: Stmt) -> Iterator[Stmt]:
    """A statement, and all statements and blocks in it, in order."""
    yield node
    for child in children(node):
        yield from statements_in(child)


def outermost(node: Stmt, wanted: Callable[[Stmt], object]) -> Iterator[Stmt]:
    """The statements in one, itself included, that are ``wanted``; not those inside of these."""
    if wanted(node):
        yield node
        return
    for child in children(node):
        yield from outermost(child, wanted)


def blocks_in(node: Stmt) -> Iterator[SBlock]:
    """The blocks of a statement, in order."""
    return (each for each in statements_in(node) if type(each).__name__ == "SBlock")


def is_constant(expression: object) -> bool:
    """True for a constant tensor of Relax."""
    return type(expression).__name__ in CONSTANTS


def constant_array(constant: Expr) -> Array:
    """The value of a constant tensor of Relax; read-only, because it is no copy where numpy has the element type."""
    tensor = constant_tensor(constant)
    try:
        array = np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError):  # bfloat16, say, or a tensor that is on a GPU
        array = np.asarray(tensor.numpy())
    array.flags.writeable = False
    return array


def constant_tensor(constant: Expr) -> DeviceTensor:
    """The tensor of TVM's runtime that a constant tensor of Relax is."""
    return constant.data if hasattr(constant, "data") else constant.value


def has_floats(array: npt.NDArray[np.generic]) -> bool:
    """Whether the elements are floating-point numbers; numpy has no kind for bfloat16."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def constant_like(shape: tuple[int, ...], dtype: str, fill: Callable[[Array], None]) -> Expr:
    """A constant tensor of Relax with what ``fill`` writes into it, without a copy.

    The memory is numpy's, which asks for huge pages: the first touch of 1 GB takes 0.1 s instead of 1 s.
    """
    import tvm
    from tvm import relax

    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    array = memory[start : start + size].view(dtype).reshape(shape)
    fill(array)
    return relax.const(tvm.runtime.from_dlpack(array) if size else array)


def operator_of(expression: Expr) -> str:
    """The name of the operator that an expression of Relax is a call of; empty for other expressions."""
    return str(getattr(getattr(expression, "op", None), "name", ""))


def calls_in(mod: IRModule) -> list[Expr]:
    """The calls in the Relax functions of ``mod``."""
    return [each for each in _expressions_in(mod) if type(each).__name__ == "Call"]


def constants_in(mod: IRModule) -> list[Expr]:
    """The constants in the Relax functions of ``mod``, each as often as it is used."""
    return list(filter(is_constant, _expressions_in(mod)))


def _expressions_in(mod: IRModule) -> Iterator[Expr]:
    from tvm import relax

    functions = (each for each in mod.functions.values() if isinstance(each, relax.Function))
    return (each for function in functions for each in _expressions(function.body))


def _expressions(expression: Expr) -> Iterator[Expr]:
    """Those in an expression, itself the last, none that types have; TVM's own visitor takes ten times as long."""
    kind = type(expression).__name__
    if kind == "SeqExpr":
        for binding in (binding for block in expression.blocks[:] for binding in block.bindings[:]):
            yield from _expressions(binding.value)
    for part in _parts(expression, kind):
        yield from _expressions(part)
    yield expression


def _parts(expression: Expr, kind: str) -> Sequence[Expr]:
    """What an expression of this ``kind`` is made of."""
    if kind == "Call":
        return list(expression.args[:])
    if kind == "Tuple":
        return list(expression.fields[:])
    if kind == "TupleGetItem":
        return (expression.tuple_value,)
    if kind == "If":
        return (expression.cond, expression.true_branch, expression.false_branch)
    return (expression.body,) if kind in ("SeqExpr", "Function") else ()


def variables_in(expression: Expr) -> list[Expr]:
    """The variables that an expression of Relax reads, each as often as it does."""
    from tvm import relax

    return _found(expression, relax.Var)


def _found(expression: Expr, kind: type) -> list[Expr]:
    from tvm import relax

    found: list[Expr] = []
    relax.analysis.post_order_visit(expression, lambda node: found.append(node) if isinstance(node, kind) else None)
    return found


def bound_value(mutator: Mutator, expression: Expr) -> Expr:
    """What a variable is bound to in what ``mutator`` (a PyExprMutator) writes, followed to the end; other expressions,
    and parameters, are themselves."""
    from tvm import relax

    while isinstance(expression, relax.Var):
        bound = mutator.lookup_binding(expression)
        if bound is None:
            return expression
        expression = bound
    return expression


def is_given(mutator: Mutator, expression: Expr | None) -> bool:
    """Whether a variable of Relax, in what ``mutator`` writes, is a parameter of the function, or a part of one that is
    a tuple, in whatever shape: it is known when the function is called."""
    value = bound_value(mutator, expression)
    while type(value).__name__ == "TupleGetItem" or operator_of(value) == "relax.reshape":
        value = bound_value(mutator, value.tuple_value if type(value).__name__ == "TupleGetItem" else value.args[0])
    return type(value).__name__ == "Var"


def tensor_class() -> type:
    """The class of the types of tensors, made of a shape and an element type; 0.26 renamed it, by a name that 0.25 had
    for something else."""
    from tvm import relax

    found: type = getattr(relax, "TensorStructInfo", None) or relax.TensorType
    return found


def tuple_class() -> type:
    """The class of the types of tuples, which 0.26 renamed."""
    from tvm import relax

    found: type = getattr(relax, "TupleStructInfo", None) or relax.TupleType
    return found


def static_shape(expression: Expr) -> tuple[int, ...] | None:
    """The shape of a tensor expression of Relax when every extent is a number, else None."""
    shape = shape_of(expression)
    return shape if shape is not None and all(isinstance(extent, int) for extent in shape) else None


def shape_of(expression: Expr) -> tuple[Index, ...] | None:
    """The shape of a tensor expression of Relax: numbers, and TVM's expressions for symbolic extents. None when it is
    a value of its own, or nothing is known of it."""
    return shape_of_type(tensor_type(expression))


def shape_of_type(kind: Type) -> tuple[Index, ...] | None:
    """As :func:`shape_of`, by the type of an expression."""
    values = getattr(getattr(kind, "shape", None), "values", None)
    return None if values is None else tuple(map(plain_extent, values[:]))


def scalar_of(argument: Expr) -> PrimExpr:
    """The expression of a scalar argument of Relax, which until 0.26 a PrimValue holds."""
    return argument.value if type(argument).__name__ == "PrimValue" else argument


def permuted_axes(call: Expr) -> list[int] | None:
    """Which axis of its argument each axis of ``call``, a ``relax.permute_dims``, is; None for anything else."""
    shape = shape_of(call)
    if operator_of(call) != "relax.permute_dims" or shape is None:
        return None
    axes, rank = call.attrs.axes, len(shape)
    return [*range(rank)][::-1] if axes is None else [int(axis) % rank for axis in axes]


def transposed_matrix(graph: Mutator, expression: Expr) -> Expr | None:
    """The matrix that ``expression`` is the transpose of; None where it is of none."""
    value = bound_value(graph, expression)
    return value.args[0] if permuted_axes(value) == [1, 0] else None


def transposed_matrices(graph: Mutator, expression: Expr) -> Expr | None:
    """The tensor [B, N, K] whose matrices' transposes ``expression`` has; None where it is of none."""
    value = bound_value(graph, expression)
    return value.args[0] if permuted_axes(value) == [0, 2, 1] else None


def same_extent(first: Index, second: Index) -> bool:
    """Whether two extents (numbers or TVM's expressions) are equal for all values of their symbols, as far as TVM can
    prove it."""
    if None not in (integer(first), integer(second)):
        return integer(first) == integer(second)
    if hasattr(first, "same_as") and first.same_as(second):
        return True
    return bool(symbolic().Analyzer().can_prove_equal(first, second))


def same_shape(first: Expr, second: Expr) -> bool:
    """Whether two tensor expressions of Relax have the same shape, as far as that is known."""
    one, other = shape_of(first), shape_of(second)
    return one is not None and other is not None and same_extents(one, other)


def same_extents(first: Sequence[Index], second: Sequence[Index]) -> bool:
    """Whether two shapes are equal, as far as TVM can prove it."""
    return len(first) == len(second) and all(map(same_extent, first, second))


def variable_name(variable: Expr) -> str:
    """The name of a variable of Relax; 0.27 has no ``name_hint``."""
    return str(getattr(variable, "name_hint", None) or variable.name)


def tensor_type(expression: Expr) -> Type:
    """The type of an expression of Relax; 0.26 renamed ``struct_info`` to ``ty``."""
    return expression.ty if hasattr(expression, "ty") else expression.struct_info

"""A lowered GPU kernel as its accesses to memory, its barriers, and the loops and conditions around them.

TVM's statements are read once, because asking them takes long; :mod:`tunehub.tir.cuda.simulation` runs what is made
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tunehub.tir.cuda.fault import FaultError, NotSimulatedError
from tunehub.tir.cuda.ptx.cp_async import COPIED_BYTES, shared_address
from tunehub.tir.cuda.ptx.effects import Effect
from tunehub.tir.cuda.ptx.wgmma import SWIZZLED_BYTES
from tunehub.tir.index_expressions import (
    LANES,
    Expression,
    combined,
    compiled,
    constant,
    operator_name,
    variable,
)
from tunehub.tir.nodes import buffer_kind, buffer_of, children, element_type, integer, parameters, symbolic
from tunehub.tir.versions import BINDINGS, LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferLoad, BufferStore, Call, For, Index, PrimExpr, PrimFunc, Stmt

_PARTS = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride")
_LEAVES = ("IntImm", "FloatImm", "Var", "StringImm")
_NESTED = ("AttrStmt", "SeqStmt", "DeclBuffer", "AllocBuffer")
ANY = 0  # no object has this hash
_WARP_CALLS = ("tvm_warp_shuffle", "tvm_warp_shuffle_up", "tvm_warp_shuffle_down", "tvm_warp_activemask")
_MATRIX_CALLS = ("tvm_load_matrix_sync", "tvm_store_matrix_sync", "tvm_fill_fragment", "tvm_mma_sync")
_CLUSTER = "clusterCtaIdx"
_FRAGMENTS = {"wmma.matrix_a": (0, 2), "wmma.matrix_b": (2, 1)}  # rows and columns among m, n, k


@dataclass(frozen=True, eq=False, slots=True)
class Memory:
    """One allocation, or a parameter: ``size`` in elements of the buffer that allocates it."""

    name: str
    scope: str
    size: int

    @property
    def is_shared(self) -> bool:
        """Whether the threads of a block share it."""
        return self.scope.startswith("shared")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class MemoryAccess:
    """A read or write of one element, or of a vector's.

    ``through``: the buffer, of which several may lie in one memory; :data:`ANY`: whichever lies there, for a pointer.
    ``guard``: when it happens. ``variables``: all that it depends on, those of the loops and conditions around it among
    them. ``by_warp``: 32 threads do it together. ``of_cluster``: of the memory of all blocks of a cluster. ``sources``:
    the reads of what a statement writes. ``multiple``: an index, and the elements of which it must be a multiple.
    """

    memory: Memory
    through: int
    index: Expression
    guard: Expression | None
    writes: bool
    by_warp: bool
    variables: frozenset[int]
    of_cluster: bool = False
    sources: tuple[MemoryAccess, ...] = ()
    multiple: tuple[Expression, int] | None = None

    @property
    def lanes(self) -> int:
        """The number of elements."""
        return max(self.index.lanes, 1 if self.guard is None else self.guard.lanes)


@dataclass(frozen=True, eq=False, slots=True)
class Barrier:
    """All threads of a block wait here; ``of_warp``: those of a warp do something together; ``of_cluster``: all threads
    of a cluster of blocks wait."""

    of_warp: bool = False
    of_cluster: bool = False


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Loop:
    """``extent`` iterations of ``body``; ``waits``: there is a barrier inside."""

    counter: int
    start: Expression
    extent: Expression
    body: tuple[Node, ...]
    waits: bool


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Branch:
    """``then`` under a ``condition``, ``otherwise`` where it does not hold."""

    condition: Expression
    then: tuple[Node, ...]
    otherwise: tuple[Node, ...]
    waits: bool


Node: TypeAlias = MemoryAccess | Barrier | Loop | Branch


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Launch:
    """One kernel: the extents of its grid and of a block by thread tag, and the tag of each variable of a thread.
    ``mixes``: threads take what is in one another's registers, as in reductions among them."""

    grid: dict[str, int]
    block: dict[str, int]
    tags: dict[int, str]
    body: tuple[Node, ...]
    mixes: bool = False


def accesses(body: Iterable[Node]) -> Iterator[MemoryAccess]:
    """All accesses in ``body``."""
    for node in body:
        if isinstance(node, MemoryAccess):
            yield node
        elif not isinstance(node, Barrier):
            yield from accesses(node.body if isinstance(node, Loop) else (*node.then, *node.otherwise))


def within_block(body: Iterable[Node]) -> frozenset[int]:
    """The variables on which it depends what a block does, but for where in global memory it writes."""
    found = [each.variables for each in accesses(body) if not (each.writes and each.memory.scope == "global")]
    return frozenset[int]().union(*found)


def apart(launch: Launch) -> frozenset[Memory]:
    """Those of the threads' own memories in which not all threads take the same elements at the same time."""
    threads = {variable for variable, tag in launch.tags.items() if tag in launch.block}
    own = (each for each in accesses(launch.body) if not (each.memory.is_shared or each.memory.scope == "global"))
    return frozenset(each.memory for each in own if not threads.isdisjoint(each.variables))


def launches(function: PrimFunc) -> Iterator[Launch]:
    """The kernels of a PrimFunc as :func:`tunehub.tir.cuda.lowering.lowered` gives it.

    Raises FaultError when loops of one kernel bound to one thread tag differ in length, NotSimulatedError for what is
    not known here, such as indices that are loaded.
    """
    memories: dict[int, Memory] = {}
    for buffer in parameters(function):
        _remember(buffer, _memory(buffer, "global"), memories)
    yield from _launches(function.body, memories)


def _launches(node: Stmt, memories: dict[int, Memory]) -> Iterator[Launch]:
    if _tag(node):
        yield _Reader(memories).launch(node)
        return
    _declare(node, memories)
    for child in children(node):
        yield from _launches(child, memories)


def _declare(node: Stmt, memories: dict[int, Memory]) -> None:
    kind = type(node).__name__
    if kind == "DeclBuffer":
        viewed = _viewed(node)
        _remember(node.buffer, _known(viewed, memories), memories)
    elif kind == "AllocBuffer":
        _remember(node.buffer, _memory(node.buffer, str(node.buffer.scope())), memories)


def _viewed(declaration: Stmt) -> PrimExpr:
    return declaration.data if hasattr(declaration, "data") else declaration.buffer.data


def _remember(buffer: Buffer, memory: Memory, memories: dict[int, Memory]) -> None:
    memories[hash(buffer)] = memory
    if hasattr(buffer, "data"):  # until 0.26; views in 0.25 name only this variable
        memories[hash(buffer.data)] = memory


def _memory(buffer: Buffer, scope: str) -> Memory:
    extents = [integer(extent) for extent in buffer_kind(buffer).shape]
    if None in extents:
        raise NotSimulatedError("a buffer of unknown size")
    return Memory(str(buffer.name), scope, math.prod(int(extent or 0) for extent in extents))


def _known(buffer: Buffer | PrimExpr, memories: dict[int, Memory]) -> Memory:
    if type(buffer).__name__ == "Call":  # buffer_data
        buffer = buffer.args[0]
    memory = memories.get(hash(buffer))
    if memory is None and hasattr(buffer, "data"):  # until 0.26; virtual threads leave buffers undeclared there
        memory = memories.get(hash(buffer.data))
    if memory is None:
        raise NotSimulatedError(f"the memory of {getattr(buffer, 'name', buffer)}")
    return memory


def _tag(node: Stmt) -> str:
    """The thread tag that a statement gives a variable for, as ``threadIdx.x``."""
    if type(node).__name__ != "AttrStmt" or str(node.attr_key) != "thread_extent":
        return ""
    return str(node.node.thread_tag)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What is around a statement: the variables that decide whether it runs, and whether it is TVM's own reduction
    among threads, where lanes that do not count carry anything."""

    variables: frozenset[int] = frozenset()
    guard: Expression | None = None
    reducing: bool = False

    def under(self, condition: Expression, *, holds: bool = True) -> _Surroundings:
        """With a condition of ``if_then_else`` around a load."""
        own = condition if holds else combined(lambda value, _: np.logical_not(value), condition, constant(0))
        guard = own if self.guard is None else combined(np.logical_and, self.guard, own)
        return _Surroundings(self.variables | condition.variables, guard, self.reducing)

    def inside(self, *around: Expression) -> _Surroundings:
        """In a loop or a branch."""
        return _Surroundings(self.variables.union(*(each.variables for each in around)), self.guard, self.reducing)


@dataclass(slots=True)
class _Reader:
    """Reads one kernel."""

    memories: dict[int, Memory]
    extents: dict[str, int] = field(default_factory=dict)
    tags: dict[int, str] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)  # buffers
    named: set[int] = field(default_factory=set)  # variables that stand for a value
    limited: set[int] = field(default_factory=set)  # variables of loops whose values ``bounds`` knows
    unlimited: set[int] = field(default_factory=set)
    starts: dict[int, Index] = field(default_factory=dict)  # of views, and of pointers: the element that they begin at
    bounds: Any = None
    mixes: bool = False

    def launch(self, node: Stmt) -> Launch:
        self.bounds = symbolic().Analyzer()
        self.written = {hash(buffer_of(store)) for store in _stores(node)}
        body = tuple(self.nodes(node, _Surroundings()))
        grid, block = (
            {tag: extent for tag, extent in sorted(self.extents.items()) if tag.startswith(prefix)}
            for prefix in ("blockIdx", "threadIdx")
        )
        for tag, extent in self.extents.items():
            if tag.startswith(_CLUSTER) and grid.get(tag.replace(_CLUSTER, "blockIdx"), 1) % extent:
                raise FaultError("threads", f"{tag} = {extent}, which does not divide the grid")
        return Launch(grid=grid, block=block, tags=self.tags, body=body, mixes=self.mixes)

    def expression(self, expression: PrimExpr) -> Expression:
        """An index or a condition."""
        try:
            found = compiled(expression)
        except KeyError as unknown:
            raise NotSimulatedError(f"an index or a condition with {unknown.args[0]}") from unknown
        if not found.variables.isdisjoint(self.named):
            raise NotSimulatedError("an index or a condition with a variable")
        return found

    def nodes(self, node: Stmt, path: _Surroundings) -> Iterator[Node]:
        """What a statement does, in its order."""
        kind = type(node).__name__
        if kind == "For":
            yield from self.loop(node, path)
        elif kind == "IfThenElse":
            yield from self.branch(node, path)
        elif kind == "BufferStore":
            yield from self.store(node, path)
        elif kind == "Evaluate":
            yield from self.call(node.value, path)
        elif kind in _NESTED:
            yield from self.nested(node, path)
        elif kind in BINDINGS:
            if not self.points(node.var, node.value):
                self.named.add(hash(node.var))
                yield from self.reads(node.value, path)
            for child in children(node):
                yield from self.nodes(child, path)
        else:
            raise NotSimulatedError(f"a statement {kind}")

    def points(self, name: Buffer | PrimExpr, value: PrimExpr) -> bool:
        """Note that ``name``, a view or a pointer, begins where ``value`` says, if that is an address or a pointer."""
        if type(value).__name__ == "Call" and operator_name(value) == "address_of":
            (load,) = value.args
            memory, start = _known(buffer_of(load), self.memories), self.start_of(buffer_of(load), load.indices[0])
        elif hash(value) in self.starts:
            memory, start = self.memories[hash(value)], self.starts[hash(value)]
        elif _called(value) == shared_address().name:
            return self.points(name, value.args[1])
        else:
            return False
        self.memories[hash(name)], self.starts[hash(name)] = memory, start
        return True

    def start_of(self, buffer: Buffer, index: PrimExpr) -> PrimExpr:
        """The place of an element of a buffer in the memory that it is a view of."""
        start = self.starts.get(hash(buffer), 0)
        if integer(start) == 0:
            return index
        if type(index).__name__ == "Ramp":
            return type(index)(index.base + start, index.stride, index.lanes)
        return index + start

    def nested(self, node: Stmt, path: _Surroundings) -> Iterator[Node]:
        if not (type(node).__name__ == "DeclBuffer" and self.points(node.buffer, _viewed(node))):
            _declare(node, self.memories)
        if type(node).__name__ == "AttrStmt":
            key = str(node.attr_key)
            if key == "thread_extent":
                self.bind(node)
            elif key == "reduce_scope":
                self.mixes = True
                path = _Surroundings(path.variables, path.guard, reducing=True)
        for child in children(node):
            yield from self.nodes(child, path)

    def bind(self, node: Stmt) -> None:
        import tvm

        tag, extent = _tag(node), integer(node.value)
        if extent is None:
            raise NotSimulatedError(f"{tag} of unknown extent")
        if self.extents.setdefault(tag, extent) != extent:
            raise FaultError("thread_extents", tag)
        self.tags[hash(node.node.var)] = tag
        self.bounds.bind(node.node.var, tvm.ir.Range(0, extent))

    def loop(self, node: For, path: _Surroundings) -> Iterator[Node]:
        start, extent = self.expression(node.min), self.expression(node.extent)
        self.limit(node)
        body = tuple(self.nodes(node.body, path.inside(start, extent)))
        if body:
            waits = any(map(_waits, body))
            yield Loop(counter=hash(node.loop_var), start=start, extent=extent, body=body, waits=waits)

    def limit(self, loop: For) -> None:
        """Tell what values the variable of a loop has; an analyzer of TVM's can be told once."""
        import tvm

        name = hash(loop.loop_var)
        if name in self.limited or None in (integer(loop.min), integer(loop.extent)):
            self.unlimited.add(name)
        else:
            self.limited.add(name)
            self.bounds.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))

    def branch(self, node: Stmt, path: _Surroundings) -> Iterator[Node]:
        yield from self.reads(node.condition, path)
        condition = self.expression(node.condition)
        then, otherwise = (
            () if case is None else tuple(self.nodes(case, path.inside(condition)))
            for case in (node.then_case, node.else_case)
        )
        if then or otherwise:
            waits = any(map(_waits, (*then, *otherwise)))
            yield Branch(condition=condition, then=then, otherwise=otherwise, waits=waits)

    def store(self, node: BufferStore, path: _Surroundings) -> Iterator[Node]:
        if _is_itself(node):  # of reductions among threads: each writes what is there
            return
        values = tuple(self.reads(node.value, path))
        yield from values
        for index in node.indices:
            yield from self.reads(index, path)
        sources = tuple(each for each in values if isinstance(each, MemoryAccess))
        for access in self.access(node, path, writes=True):
            yield replace(access, sources=sources)

    def access(self, node: BufferLoad | BufferStore, path: _Surroundings, *, writes: bool) -> Iterator[MemoryAccess]:
        buffer = buffer_of(node)
        if len(node.indices) != 1:
            raise NotSimulatedError("a buffer of several dimensions")
        memory, index = _known(buffer, self.memories), self.start_of(buffer, node.indices[0])
        yield self.made(memory, hash(buffer), self.expression(index), path, writes=writes)

    def made(
        self,
        memory: Memory,
        through: int,
        index: Expression,
        path: _Surroundings,
        *,
        writes: bool,
        by_warp: bool = False,
    ) -> MemoryAccess:
        return MemoryAccess(
            memory=memory,
            through=through,
            index=index,
            guard=path.guard,
            writes=writes,
            by_warp=by_warp,
            variables=index.variables | path.variables,
        )

    def reads(self, expression: PrimExpr, path: _Surroundings) -> Iterator[Node]:
        """Every load in ``expression``, under the conditions of ``if_then_else`` around it."""
        kind = type(expression).__name__
        if kind in _LEAVES:
            return
        if kind in LOADS:
            for index in expression.indices:
                yield from self.reads(index, path)
            yield from self.load(expression, path)
        elif kind == "Call":
            yield from self.call_reads(expression, path)
        else:
            for name in _PARTS:
                part = getattr(expression, name, None)
                if part is not None:
                    yield from self.reads(part, path)

    def load(self, node: PrimExpr, path: _Surroundings) -> Iterator[MemoryAccess]:
        memory = _known(buffer_of(node), self.memories)
        if memory.scope == "local" and path.reducing:
            return
        unwritten = memory.scope == "global" and hash(buffer_of(node)) not in self.written
        index = self.start_of(buffer_of(node), node.indices[0]) if unwritten else None
        if unwritten and (self.is_loaded(index) or self.stays_inside(index, memory.size)):
            return
        yield from self.access(node, path, writes=False)

    def is_loaded(self, index: PrimExpr) -> bool:
        """Whether an index or a condition is known only when the kernel runs."""
        try:
            self.expression(index)
        except NotSimulatedError:
            return True
        return False

    def stays_inside(self, index: PrimExpr, size: int) -> bool:
        """Whether an index is inside for all values of its variables, whatever the conditions."""
        last = 0
        if self.unlimited and not self.unlimited.isdisjoint(self.expression(index).variables):
            return False
        if type(index).__name__ == "Ramp":
            stride = integer(index.stride)
            if stride is None or stride < 0:
                return False
            index, last = index.base, stride * (int(index.lanes) - 1)
        found = self.bounds.const_int_bound(index)
        return int(found.min_value) >= 0 and int(found.max_value) + last < size

    def call_reads(self, call: Call, path: _Surroundings) -> Iterator[Node]:
        name = operator_name(call)
        if name == "if_then_else":
            condition, *cases = call.args
            yield from self.reads(condition, path)
            held = None if self.is_loaded(condition) else self.expression(condition)
            for case, holds in zip(cases, (True, False), strict=True):
                yield from self.reads(case, path if held is None else path.under(held, holds=holds))
            return
        if _called(call):
            yield from self.warpgroup(Effect.of(_called(call)), call.args[1:-1], path)
            return
        if name in _WARP_CALLS:
            self.mixes = True
            yield Barrier(of_warp=True)
        for argument in call.args:
            yield from self.reads(argument, path)

    def call(self, call: Call, path: _Surroundings) -> Iterator[Node]:
        """A statement that is a call."""
        if type(call).__name__ == "IntImm":  # nothing
            return
        name = operator_name(call) if type(call).__name__ == "Call" else ""
        if name == "tvm_storage_sync":
            if str(call.args[0].value) != "warp":
                yield Barrier()
        elif name in _MATRIX_CALLS:
            self.mixes = True
            yield Barrier(of_warp=True)
            yield from self.matrix(name, call.args, path)
        elif _called(call):
            yield from self.warpgroup(Effect.of(_called(call)), call.args[1:-1], path)
        else:
            raise NotSimulatedError(f"a call of {name or type(call).__name__}")

    def matrix(self, name: str, args: Sequence[PrimExpr], path: _Surroundings) -> Iterator[MemoryAccess]:
        """What an operation on fragments of matrices reads and writes. All of a warp holds a fragment together."""
        if name == "tvm_fill_fragment":
            yield self.fragment(args[0], args[4], path, writes=True)
        elif name == "tvm_mma_sync":
            for place in (2, 4, 6):
                yield self.fragment(args[place], args[place + 1], path, writes=False)
            yield self.fragment(args[0], args[1], path, writes=True)
        elif name == "tvm_load_matrix_sync":
            yield self.matrix_in_memory(args, path, writes=False)
            yield self.fragment(args[0], args[4], path, writes=True)
        else:
            yield self.fragment(args[0], args[4], path, writes=False)
            yield self.matrix_in_memory(args, path, writes=True)

    def warpgroup(self, effect: Effect | None, args: Sequence[PrimExpr], path: _Surroundings) -> Iterator[Node]:
        """What a function of :mod:`tunehub.tir.cuda.ptx` reads and writes. Copies count as done where they are
        started: the barrier after they are waited for comes later than that."""
        if effect is None:
            raise NotSimulatedError("a function of CUDA C++")
        if effect.waits:
            yield Barrier(of_cluster=effect.of_cluster)
        if effect.kind == "copy":
            (load,) = args[1].args
            inside = path.under(self.expression(args[2]))
            source, first = _known(buffer_of(load), self.memories), self.expression(load.indices[0])
            lanes = COPIED_BYTES // np.dtype(element_type(load)).itemsize
            whole = combined(np.add, first, variable(LANES), lanes=lanes)
            read = self.made(source, hash(buffer_of(load)), whole, inside, writes=False)
            yield replace(read, multiple=(first, lanes))
            yield self.words(args[0], COPIED_BYTES // 4, path, writes=True)
        elif effect.kind == "round":
            for writes in (False, True):
                yield self.words(args[0], COPIED_BYTES // 4, path, writes=writes)
        elif effect.kind == "multiply":
            yield Barrier(of_warp=True)
            for operand, words in zip(args[1:], effect.words, strict=True):
                yield self.words(operand, words // effect.threads, path, writes=False, among=effect.threads)
            yield from self.registers(args[0], effect.accumulators, path)
        elif effect.kind == "compute":
            for argument in args:
                yield from self.reads(argument, path)
        elif effect.kind == "finish":
            yield from self.registers(args[0], effect.accumulators, path)
        elif effect.kind == "cluster_sum":
            blocks = math.prod(extent for tag, extent in self.extents.items() if tag.startswith(_CLUSTER))
            if blocks != effect.blocks:
                raise FaultError("cluster", f"{effect.blocks} blocks of {blocks}")
            yield replace(self.words(args[0], effect.accumulators, path, writes=False), of_cluster=True)

    def words(
        self, address: PrimExpr, count: int, path: _Surroundings, *, writes: bool, among: int = 1
    ) -> MemoryAccess:
        """``count`` numbers of 4 bytes from an address on, which is a pointer and a number of bytes. ``among``: each
        of so many threads has its own; which of them has which does not matter between barriers."""
        pointer, distance = (address.a, address.b) if type(address).__name__ == "Add" else (address, None)
        if hash(pointer) not in self.starts:
            raise NotSimulatedError("an address of unknown form")
        offset, start = (
            constant(0) if each is None else self.expression(each) for each in (distance, self.starts[hash(pointer)])
        )
        first = combined(lambda at, start: at // 4 + start, offset, start)
        thread = next(
            (variable(name) for name, tag in self.tags.items() if tag == "threadIdx.x" and among > 1), constant(0)
        )
        index = combined(
            lambda first, thread, lane: first + thread % among * count + lane,
            first,
            thread,
            variable(LANES),
            lanes=count,
        )
        made = self.made(self.memories[hash(pointer)], ANY, index, path, writes=writes)
        return replace(made, multiple=(first, SWIZZLED_BYTES // 4 if among > 1 else COPIED_BYTES // 4))

    def registers(self, pointer: Call, count: int, path: _Surroundings) -> Iterator[MemoryAccess]:
        """A thread's own ``count`` numbers, read and written."""
        (load,) = pointer.args
        index = combined(np.add, self.expression(load.indices[0]), variable(LANES), lanes=count)
        for writes in (False, True):
            memory, buffer = _known(buffer_of(load), self.memories), hash(buffer_of(load))
            yield self.made(memory, buffer, index, path, writes=writes)

    def fragment(self, data: PrimExpr, index: PrimExpr, path: _Surroundings, *, writes: bool) -> MemoryAccess:
        memory = _known(data, self.memories)
        return self.made(memory, id(memory), self.expression(index), path, writes=writes)

    def matrix_in_memory(self, args: Sequence[PrimExpr], path: _Surroundings, *, writes: bool) -> MemoryAccess:
        """What ``tvm_load_matrix_sync`` or ``tvm_store_matrix_sync`` takes, whichever thread takes an element."""
        pointer, sizes = args[5], [int(argument) for argument in args[1:4]]
        if type(pointer).__name__ != "Call" or operator_name(pointer) != "tvm_access_ptr":
            raise NotSimulatedError("a pointer of unknown form")
        memory = _known(pointer.args[1], self.memories)
        if writes and memory.scope == "global":
            raise NotSimulatedError("fragments that are stored to global memory")
        rows, columns = (sizes[at] for at in _FRAGMENTS.get(_known(args[0], self.memories).scope, (0, 1)))
        if str(args[7].value) != "row_major":
            rows, columns = columns, rows
        index = combined(
            lambda first, stride, lane: first + lane // columns * stride + lane % columns,
            self.expression(pointer.args[2]),
            self.expression(args[6]),
            variable(LANES),
            lanes=rows * columns,
        )
        return self.made(memory, ANY, index, path, writes=writes, by_warp=True)


def _called(value: PrimExpr) -> str:
    """The name of the function of CUDA C++ that a call is of."""
    is_call = type(value).__name__ == "Call" and operator_name(value) == "func_call"
    return str(value.args[0].value) if is_call else ""


def _is_itself(store: BufferStore) -> bool:
    value = store.value
    if type(value).__name__ not in LOADS or not buffer_of(value).same_as(buffer_of(store)):
        return False
    return [str(index) for index in value.indices] == [str(index) for index in store.indices]


def _stores(node: Stmt) -> Iterator[Stmt]:
    if type(node).__name__ == "BufferStore":
        yield node
    for child in children(node):
        yield from _stores(child)


def _waits(node: Node) -> bool:
    if isinstance(node, Barrier):
        return not node.of_warp
    return not isinstance(node, MemoryAccess) and node.waits

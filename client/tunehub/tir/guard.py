"""What TVM (0.25 and newer) does not check about a schedule that came from outside.

A trace that passes :mod:`tunehub_registry.trace_rules` can still fit a function badly: TVM schedules loops that its
code generator refuses afterwards, or takes minutes for. Found by trying each on TVM 0.27. Layouts are judged before, by
:mod:`tunehub.tir.layout_guard`. Everything here raises :class:`GuardError`, and the record is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from tunehub.target.gpu_architectures import LaunchLimits
from tunehub.tir.cuda.fault import Fault, NotSimulated
from tunehub.tir.cuda.headers import missing_for_tensor_cores
from tunehub.tir.cuda.limits import excess_threads, limits_of
from tunehub.tir.cuda.thread_extents import thread_tag
from tunehub.tir.flattened_indices import misread_buffer
from tunehub.tir.index_expressions import parts_of
from tunehub.tir.nodes import (
    blocks_in,
    buffer_kind,
    buffer_of,
    children,
    extent_or_one,
    extents_of,
    integer,
    parameters,
    realized_blocks,
    reduces,
    symbolic,
)
from tunehub.tir.symbols import instance, instances, is_symbolic, probes
from tunehub.tir.versions import LOADS, PARALLEL, SERIAL, THREAD_BINDING, UNROLLED, VECTORIZED

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, BufferStore, For, Node, PrimExpr, PrimFunc, SBlock, SBlockRealize, Stmt, Var

_PREPROC = "meta_schedule.layout_rewrite_preproc"
_ENCODED = "tirx.tensormap_encode_tiled"
_LEAVES = ("BufferStore", "Evaluate")
_PARTITION = "pragma_loop_partition_hint"
_GPU_ONLY = ("software_pipeline", "double_buffer", "warp_execution")
_BY_HEADER = frozenset({"sm_70", "sm_72", "sm_75"})  # fragments of matrices (WMMA); later intrinsics are plain PTX

MAX_LANES = {"cpu": 1024, "gpu": 16}
MAX_UNROLLED = 4096  # copies of one statement: code size, and with it compile time
MAX_ELEMENTS = 1 << 16  # copies × vector lanes of one statement
MAX_OPERATIONS = 1 << 16  # copies × operations of one statement, of records found by their anchor
MAX_CODE = {"cpu": (1 << 12, 1 << 16), "gpu": (1 << 11, 1 << 14)}  # statements and operations of a function, copied
_CUT_LANE = 20  # steps that one element takes in a vector that goes over the end of a row
_WORK_FACTOR, _WORK_FREE = 64, 1 << 24  # steps: a fast softmax recomputes and takes 22 × those of the function
_WORKSPACE_FACTOR, _WORKSPACE_FREE = 16, 64 << 20  # buffers: at most 16 × those of the function, and 64 MiB


class GuardError(ValueError):
    """A record would give wrong results, no code, or code that cannot be built in reasonable time."""


class FaultFoundError(GuardError):
    """The static check found a fault in a schedule; the text says what."""


def check_headers(features: frozenset[str]) -> None:
    """Raise GuardError when a record's intrinsics are those of tensor cores, whose headers of CUDA are missing here.

    The kernel would not compile, and the whole module be left to TVM.
    """
    missing = missing_for_tensor_cores() if features & _BY_HEADER else None
    if missing is not None:
        raise GuardError(str(missing))


def check_features(features: frozenset[str], target: Target) -> None:
    """Raise GuardError when ``target`` lacks a machine feature that a record's intrinsics need.

    LLVM ends the process when it is told to generate an instruction that the target does not have.
    """
    from tvm.target import codegen

    if target.kind.name == "llvm":
        missing = sorted(name for name in features if not codegen.target_has_features([name], target))
    else:
        arch = _architecture(str(target.attrs.get("arch", "")))
        missing = sorted(name for name in features if not 0 < _architecture(name) <= arch)
    if missing:
        raise GuardError(f"the record needs {', '.join(missing)}, which the target does not have")


def check_function(
    scheduled: PrimFunc, original: PrimFunc, target: Target, values: Sequence[tuple[int, ...]] | None = None
) -> NotSimulated | None:
    """Raise GuardError unless ``scheduled`` keeps the parameters of ``original``, code can be generated for it, and on
    a GPU :func:`tunehub.tir.cuda.check.fault` finds nothing wrong. Returns why that is not known, where it is not.

    ``values``: those of the symbols at which statements are looked at, all probes if not given.
    """
    _check_statements(scheduled, original, target, values)
    return None if target.kind.name == "llvm" else _found_right(scheduled, target)


def check_simulated(scheduled: PrimFunc, target: Target) -> None:
    """Raise FaultFoundError unless the simulation of ``scheduled``, which is for a GPU, ended and found nothing."""
    unknown = _found_right(scheduled, target)
    if unknown is not None:
        raise FaultFoundError(unproven_text(unknown, "it becomes a part of another function"))


def unproven_text(unknown: NotSimulated, not_run: str) -> str:
    """Why somebody else's schedule does not serve; ``not_run``: why it is not run first."""
    return f"neither simulated ({unknown.reason}) nor run ({not_run}), and the record is somebody else's"


def check_statements(scheduled: PrimFunc, original: PrimFunc, target: Target) -> None:
    """The part of :func:`check_function` that looks at the schedule itself."""
    _check_statements(scheduled, original, target)
    if target.kind.name != "llvm":
        from tunehub.tir.cuda.check import structural_fault  # CPUs do not need it

        wrong = structural_fault(scheduled)
        if isinstance(wrong, Fault):
            raise FaultFoundError(str(wrong))


def _found_right(scheduled: PrimFunc, target: Target) -> NotSimulated | None:
    from tunehub.tir.cuda.check import fault

    found = fault(scheduled, target)
    if isinstance(found, Fault):
        raise FaultFoundError(str(found))
    return found


def _check_statements(
    scheduled: PrimFunc, original: PrimFunc, target: Target, values: Sequence[tuple[int, ...]] | None = None
) -> None:
    before, after = ([_shape_and_type(buffer) for buffer in parameters(f)] for f in (original, scheduled))
    if before != after or len(original.params) != len(scheduled.params):
        raise GuardError("the record changes the parameters of the function")
    if not is_symbolic(original):
        _check_static(scheduled, original, target)
        return
    _check_open_loops(scheduled, target)
    values = probes(scheduled) if values is None else values
    for each in values:
        _check_static(instance(scheduled, each), instance(original, each), target)
    if not values:
        raise GuardError("there are no values of its symbols on which the schedule could be checked")


def _check_open_loops(scheduled: PrimFunc, target: Target) -> None:
    """Loops of unknown extent run one after the other, in parallel on CPUs, as blocks along x or y on GPUs; all else
    needs a number."""
    allowed = (SERIAL, PARALLEL) if target.kind.name == "llvm" else (SERIAL,)
    for node, _ in _walk(scheduled.body, _Path()):
        if type(node).__name__ != "For" or integer(node.extent) is not None or int(node.kind) in allowed:
            continue
        if thread_tag(node) not in ("blockIdx.x", "blockIdx.y") or target.kind.name == "llvm":
            raise GuardError("a vector, unrolled or parallel loop, or one bound to threads, of unknown extent")


def _check_static(scheduled: PrimFunc, original: PrimFunc, target: Target) -> None:
    device = "cpu" if target.kind.name == "llvm" else "gpu"
    limits = limits_of(target)
    statements = list(_walk(scheduled.body, _Path()))
    for node, path in statements:
        _check_annotations(node, scheduled, device)
        if device == "cpu":
            _check_scopes(node)
        if type(node).__name__ == "For":
            _check_loop(node, path, device, limits)
        elif type(node).__name__ in _LEAVES:
            _check_code_size(path)
            if path.partitioned and _reads_indices(node):
                raise GuardError("a loop with a remainder of its own has indices that are read from a buffer")
            if device == "gpu" and not path.threads and not _describes_memory(node):
                raise GuardError("a statement is not bound to GPU threads")
    _check_cost(_cost(scheduled, statements), _cost(original, _walk(original.body, _Path())))
    misread = misread_buffer(scheduled) if device == "cpu" else None  # of GPUs' schedules, the check finds it
    if misread is not None:
        raise GuardError(f"TVM would simplify the indices of {misread} wrongly")


def _check_scopes(node: Stmt) -> None:
    """CPUs have one kind of memory: of others TVM's lowering fails, or takes them for a GPU's."""
    for buffer in getattr(node, "alloc_buffers", ()):
        if (scope := str(buffer.scope())) not in ("", "global"):
            raise GuardError(f"memory of the scope {scope} is for GPUs")


def _describes_memory(node: Stmt) -> bool:
    """Whether a statement tells a GPU's copy engine what lies where, which is done where kernels are launched."""
    called = getattr(getattr(node, "value", None), "op", None)
    return type(node).__name__ == "Evaluate" and str(getattr(called, "name", "")) == _ENCODED


def check_tiles(scheduled: PrimFunc) -> None:
    """Raise GuardError when what follows a reduction in tiles writes elements of other tiles, too.

    ``reverse_compute_at`` takes the box around what a tile covers, and of the conditions on it those at the ends of the
    result alone. A tile that holds parts of two rows, or a remainder that ends inside, writes elements that no one has
    computed, and with threads those stay. So every such block must write each element once
    (``tvm::arith::DetectIterMap``). Of a symbolic function, in each of some instances.
    """
    for each in instances(scheduled):
        _check_tiles(each)


def _check_tiles(scheduled: PrimFunc) -> None:
    own = parameters(scheduled)
    blocks = list(realized_blocks(scheduled.body))
    if not any(reduces(node.block) for node, _ in blocks):
        return
    for node, loops in blocks:
        written = any(buffer_of(region).same_as(own_buffer) for region in node.block.writes for own_buffer in own)
        if loops and written and not reduces(node.block) and not _writes_once(node, loops):
            raise GuardError("a tile writes beyond its end, where other threads write")


def check_order(scheduled: PrimFunc) -> None:
    """Raise GuardError when a block changes a buffer that another one has read before, as they stand: a copy that was
    put between a sum's initial value and its update has the former alone."""
    blocks = [block for block in blocks_in(scheduled.body) if not any(blocks_in(block.body))]
    own = {hash(buffer) for block in blocks_in(scheduled.body) for buffer in block.alloc_buffers}
    read: set[int] = set()
    for block in blocks:
        writes = {hash(buffer_of(region)): buffer_of(region) for region in block.writes}
        for buffer in (buffer for key, buffer in writes.items() if key in read & own):
            raise GuardError(f"a buffer is changed after it was read ({buffer.name})")
        read |= {hash(buffer_of(region)) for region in block.reads} - set(writes)


def check_rows(scheduled: PrimFunc) -> None:
    """Raise GuardError when much of the work is in vectors that go over the ends of rows: each of their lanes is
    divided, and read or written, alone.

    Postprocessing fuses the loops of a copy and makes vectors of as many elements as the record had, whatever a row's
    length is here: with a padding of 114 columns in vectors of 64 a max pooling took nine times as long as by TVM's own
    loops. Beside a convolution such a padding is little.
    """
    cut = whole = 0
    for node, loops in realized_blocks(scheduled.body):
        extents = [extent_or_one(loop.extent) for loop in loops]
        vectors = [(loop.loop_var, lanes) for loop, lanes in zip(loops, extents, strict=True) if _is_vector(loop)]
        is_cut = any(_is_cut(value, *vector) for value in node.iter_values for vector in vectors)
        cut, whole = cut + is_cut * math.prod(extents), whole + math.prod(extents)
    if cut * _CUT_LANE > whole:
        raise GuardError("vectors go over the ends of rows")


def _is_vector(loop: For) -> bool:
    return int(loop.kind) == VECTORIZED and integer(loop.extent) is not None


def _is_cut(expression: PrimExpr, variable: Var, lanes: int) -> bool:
    """True when ``variable``, with ``lanes`` values, is divided by what ``lanes`` does not divide."""
    operands = [getattr(expression, name) for name in ("a", "b") if hasattr(expression, name)]
    divides = type(expression).__name__ in ("FloorDiv", "FloorMod") and type(operands[1]).__name__ == "IntImm"
    if divides and int(operands[1]) % lanes and _has(operands[0], variable):
        return True
    return any(_is_cut(operand, variable, lanes) for operand in operands)


def _has(expression: PrimExpr, variable: Var) -> bool:
    if type(expression).__name__ == "Var":
        return bool(expression.same_as(variable))
    return any(_has(getattr(expression, name), variable) for name in ("a", "b") if hasattr(expression, name))


def _writes_once(node: SBlockRealize, loops: tuple[For, ...]) -> bool:
    import tvm

    extents = [axis.dom.extent for axis in node.block.iter_vars]
    around = [loop.extent for loop in loops]
    if None in map(integer, (*extents, *around)):
        return False  # the box around what a tile covers has another size for each tile
    if math.prod(map(int, extents)) == math.prod(map(int, around)):
        return True  # no remainder: TVM has checked that the loops cover the block
    domains = {loop.loop_var: tvm.ir.Range(loop.min, loop.extent) for loop in loops}
    found = symbolic().detect_iter_map(list(node.iter_values), domains, node.predicate, "bijective")
    return len(found.indices) > 0


def check_exact(scheduled: PrimFunc) -> None:
    """Raise GuardError when results are written more often than there are elements of a parameter.

    Stricter than :func:`check_tiles`, for tiles that divide their loops: there is no remainder to allow for. A tile of
    two fused loops that holds parts of a row writes all of the row, the sums that others have not finished included.
    Loops without a reduction may have a remainder: TVM cuts them into vectors.
    """
    own, body = parameters(scheduled), scheduled.body.block.body
    for nest in body.seq if type(body).__name__ == "SeqStmt" else (body,):
        stores = [(node, path) for node, path in _walk(nest, _Path()) if type(node).__name__ == "BufferStore"]
        if not any(path.reducing for _, path in stores):
            continue
        for node, path in stores:
            buffer = buffer_of(node)
            written = not path.reducing and any(buffer.same_as(parameter) for parameter in own)
            if written and path.iterations > math.prod(static_extents(buffer)):
                raise GuardError("a tile writes results of its neighbours, too")


def check_size(scheduled: PrimFunc, device: Literal["cpu", "gpu"] = "cpu") -> None:
    """Raise GuardError when all statements together become code that a compiler takes minutes for.

    LLVM's time grows with the square of how many statements follow each other: 512 take 1.1 s on Zen, 1,024 take 4.2,
    2,048 take 21. The largest schedule that was published has 2,050 in all. NVRTC takes 8 s for 2,304 of a product of
    matrices and 32 s for 4,352, and as long for 2,048 of eight hyperbolic tangents each; 607 statements and 3,343
    operations are the most that a published schedule for GPUs was seen to have.
    """
    statements = operations = 0
    for node, path in _walk(scheduled.body, _Path()):
        if type(node).__name__ in _LEAVES:
            copies = _copies(path)
            lanes = path.lanes if device == "gpu" else 1  # CUDA's vectors have no arithmetic
            statements, operations = (
                statements + copies,
                operations + copies * lanes * _operations(node, MAX_OPERATIONS),
            )
    most = MAX_CODE[device]
    if statements > most[0] or operations > most[1]:
        raise GuardError(f"unrolled it has {statements} statements of {operations} operations")


def check_operations(scheduled: PrimFunc) -> None:
    """Raise GuardError when long statements are unrolled often.

    A record found by its anchor unrolls statements that its own function did not have, such as a polynomial of
    hundreds of operations where that called the C library for an exponential.
    """
    for node, path in _walk(scheduled.body, _Path()):
        if type(node).__name__ in _LEAVES and (copies := _copies(path)) > 1:
            most = MAX_OPERATIONS // copies
            if _operations(node, most + 1) > most:
                raise GuardError(f"a statement of more than {most} operations is unrolled {copies} times")


class _Path(NamedTuple):  # thousands are made for a network: replacing a field of a dataclass takes five times as long
    """What the loops around a statement are."""

    parallel: bool = False
    lanes: int = 1
    copies: int = 1
    iterations: int = 1
    unroll_step: int = 0  # inner loops are unrolled by TVM while the number of steps is at most this
    steps: int = 1
    partitioned: bool = False
    threads: tuple[tuple[str, int], ...] = ()
    reducing: bool = False


def _walk(node: Stmt, path: _Path) -> Iterator[tuple[Stmt, _Path]]:
    """All statements of a function body with the loops around them."""
    yield node, path
    kind = type(node).__name__
    if kind == "For":
        path = _inside(node, path)
    if kind == "SBlock" and reduces(node):
        path = path._replace(reducing=True)
    for child in children(node):
        yield from _walk(child, path)


def _inside(loop: For, path: _Path) -> _Path:
    extent = extent_or_one(loop.extent)
    kind = int(loop.kind)
    tag = str(loop.thread_binding.thread_tag) if kind == THREAD_BINDING else ""
    if not any(tag == outer for outer, _ in path.threads):  # loops bound to one tag share its threads
        path = path._replace(iterations=path.iterations * extent)
    if int(loop.annotations.get("pragma_unroll_explicit", 0)):
        path = path._replace(unroll_step=int(loop.annotations.get("pragma_auto_unroll_max_step", 0)))
    if int(loop.annotations.get(_PARTITION, 0)):
        path = path._replace(partitioned=True)
    if kind == SERIAL and path.unroll_step:
        return path._replace(steps=path.steps * extent)
    if kind == PARALLEL:
        return path._replace(parallel=True)
    if kind == VECTORIZED:
        return path._replace(lanes=path.lanes * extent)
    if kind == UNROLLED:
        return path._replace(copies=path.copies * extent)
    if kind == THREAD_BINDING:
        return path._replace(threads=(*path.threads, (tag, extent)))
    return path


def _check_loop(loop: For, path: _Path, device: str, limits: LaunchLimits) -> None:
    kind = int(loop.kind)
    if kind in (PARALLEL, VECTORIZED, UNROLLED, THREAD_BINDING) and integer(loop.extent) is None:
        raise GuardError("a vector, unrolled or parallel loop, or one bound to threads, of unknown extent")
    if kind == PARALLEL and (path.parallel or device == "gpu"):
        raise GuardError("parallel loops are nested" if path.parallel else "parallel loops are for CPUs")
    if kind == VECTORIZED and (path.lanes > 1 or int(loop.extent.value) > MAX_LANES[device]):
        raise GuardError(f"vectors are nested or longer than {MAX_LANES[device]} elements")
    if kind == VECTORIZED and int(loop.extent.value) == 1 and len(loop.annotations):
        raise GuardError("a vector of one element has annotations, for which TVM keeps it, and generates no code")
    if kind == THREAD_BINDING:
        if device == "cpu":
            raise GuardError("the record binds loops to GPU threads")
        too_many = excess_threads(_widest(_inside(loop, path).threads), limits)
        if too_many is not None:
            raise GuardError(too_many)


def _widest(threads: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The extent by thread tag: loops that are nested and bound to one tag share its threads."""
    widest: dict[str, int] = {}
    for tag, extent in threads:
        widest[tag] = max(extent, widest.get(tag, 1))
    return widest


def _check_code_size(path: _Path) -> None:
    copies = _copies(path)
    if copies > MAX_UNROLLED or copies * path.lanes > MAX_ELEMENTS:
        raise GuardError(f"a statement is unrolled {copies} times with {path.lanes} vector lanes")


def _copies(path: _Path) -> int:
    """How often a statement stands in the code: TVM copies it for virtual threads first, then unrolls up to a step."""
    virtual = math.prod(extent for tag, extent in path.threads if tag.startswith("vthread"))
    return path.copies * max(virtual, min(virtual * path.steps, path.unroll_step))


def _operations(node: BufferStore, most: int) -> int:
    """The number of nodes of what a statement computes, indices not counted; counting ends at ``most``."""
    found, open_nodes = 0, [node.value]
    while open_nodes and found < most:
        each = open_nodes.pop()
        found += 1
        open_nodes += parts_of(each)
    return found


def _reads_indices(node: Node, *, inside: bool = False) -> bool:
    """True when an index in a statement is itself loaded: TVM's LoopPartition then fails with mismatched types."""
    if inside and type(node).__name__ in LOADS:
        return True
    if any(_reads_indices(child, inside=True) for child in getattr(node, "indices", ())):
        return True
    return any(_reads_indices(child, inside=inside) for child in parts_of(node))


def _check_cost(after: tuple[int, int], before: tuple[int, int]) -> None:
    """Bound memory and time: a tile far larger than its loop runs through all of it without doing anything."""
    (bytes_before, steps_before), (bytes_after, steps_after) = before, after
    if bytes_after > _WORKSPACE_FACTOR * bytes_before + _WORKSPACE_FREE:
        raise GuardError(f"the record allocates {bytes_after} bytes, the function has {bytes_before}")
    if steps_after > _WORK_FACTOR * steps_before + _WORK_FREE:
        raise GuardError(f"the record takes {steps_after} steps, the function {steps_before}")


def _cost(function: PrimFunc, statements: Iterable[tuple[Stmt, _Path]]) -> tuple[int, int]:
    """The bytes of all buffers of ``function``, and how often its statements run, predicates not considered."""
    size, steps = sum(map(_bytes, parameters(function))), 0
    for node, path in statements:
        size += sum(map(_bytes, getattr(node, "alloc_buffers", ())))
        steps += path.iterations if type(node).__name__ in _LEAVES else 0
    return size, steps


def _check_annotations(node: Stmt, function: PrimFunc, device: str) -> None:
    for key in getattr(node, "annotations", None) or ():
        if device == "cpu" and str(key).startswith(_GPU_ONLY):
            raise GuardError(f"the annotation {key} is for GPUs")
        if str(key) == _PREPROC and not _copies_free_parameter(node, function):
            raise GuardError("a block is marked as packing of a weight, but does not copy one")


def _copies_free_parameter(block: SBlock, function: PrimFunc) -> bool:
    """True when ``block`` copies a whole parameter whose layout is free (``layout_free_buffers``), and nothing else."""
    load: PrimExpr = getattr(block.body, "value", None)
    if type(block.body).__name__ != "BufferStore" or type(load).__name__ not in LOADS:
        return False
    own = parameters(function)
    free = [own[int(i)] for i in (function.attrs or {}).get("layout_free_buffers", ()) if int(i) < len(own)]
    source, target = (buffer_of(access) for access in (load, block.body))
    return (
        any(source.same_as(parameter) for parameter in free)
        and not any(target.same_as(parameter) for parameter in own)
        and [str(index) for index in load.indices] == [str(axis.var) for axis in block.iter_vars]
        and [int(axis.dom.extent) for axis in block.iter_vars] == static_extents(source)
    )


def _shape_and_type(buffer: Buffer) -> tuple[list[str], str]:
    kind = buffer_kind(buffer)
    extents = [str(extent.value if type(extent).__name__ == "IntImm" else extent) for extent in kind.shape[:]]
    return extents, str(kind.dtype)


def _bytes(buffer: Buffer) -> int:
    return math.prod(map(extent_or_one, extents_of(buffer))) * _itemsize(str(buffer_kind(buffer).dtype))


@cache
def _itemsize(dtype: str) -> int:
    import tvm

    return max(1, int(tvm.DataType(dtype).itemsize))


def static_extents(buffer: Buffer) -> list[int]:
    """The shape of a buffer; GuardError when it is not static."""
    extents = list(map(integer, extents_of(buffer)))
    if None in extents:
        raise GuardError("the layout of a buffer of dynamic shape is changed")
    return [int(extent or 0) for extent in extents]


def _architecture(name: str) -> int:
    """The number in ``sm_90a``; 0 for anything else."""
    digits = "".join(c for c in name.removeprefix("sm_") if c.isdigit())
    return int(digits) if name.startswith("sm_") and digits else 0

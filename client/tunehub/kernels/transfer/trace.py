"""Shape transfer: the trace of one function, adapted to another function of the same class (current TVM).

The design part of the trace is replayed. Wherever it decides on a tile, the loop's extent here is asked for and the
nearest tile that divides it is taken (:mod:`tunehub.kernels.transfer.tiles`); unrolling and places of
computation stay as they are. What TVM's postprocessing adds (threads, vectors, packed weights) is made anew, because it
depends on extents. A trace of a function with the same anchor block is adapted before it is replayed, by the extents of
that block. Nothing is compiled or measured. The idea of replaying with clamped decisions: Gibson and Cano,
"Transfer-Tuning", PACT 2022 (arXiv 2201.05587).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.transfer.threads import ThreadExtents, TransferError, numbers
from tunehub.kernels.transfer.tiles import keeps_vectors, perfect_tile
from tunehub.tir.layout_guard import layout_provider
from tunehub.tir.nodes import integer
from tunehub.tir.postprocess import postprocess

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import (
        BlockRV,
        Decision,
        Index,
        Instruction,
        IRModule,
        LoopRV,
        Operand,
        SBlock,
        Schedule,
        Trace,
    )

MOST_PADDING = 1.2  # times the work, as the sketches that pad allow
_PIPELINE = "software_pipeline_stage"
MAX_REFITS = 32  # splits by numbers of one trace that are changed: each means another replay


def transfer(mod: IRModule, trace: Trace, target: Target) -> Schedule:
    """Return the schedule of ``mod`` by ``trace`` (a ``tvm.s_tir.Trace``), which was made for other extents.

    Raises TransferError, GuardError for a layout that does not fit, and what TVM raises for steps that are not legal
    here. The schedule needs the checks of :mod:`tunehub.tir.guard` like any other.
    """
    design = trace.simplified(remove_postproc=True)
    schedule = replayed(mod, design)
    postprocess(schedule, mod, target, tensorized=is_tensorized(design))
    return schedule


def is_tensorized(design: Trace) -> bool:
    """Whether postprocessing has to look for tensor intrinsics."""
    return any("auto_tensorize" in str(attr) for inst in design.insts for attr in inst.attrs)


def check_vectors(mod: IRModule, design: Trace) -> None:
    """Raise TransferError when ``design`` (a ``tvm.s_tir.Trace``), fitted to ``mod``, has vectors of less than half
    the lanes: extents such as 57 have no divisor near to a vector, and templates take such loops with remainders.
    """
    from tvm.s_tir import analysis

    block = analysis.find_anchor_sblock(mod)
    if block is None:
        return
    loops = _AnchorLoops(str(block.name_hint), [int(axis.dom.extent) for axis in block.iter_vars], design)
    for instruction in design.insts:
        loops.follow(instruction, design.decisions.get(instruction))
    for wanted, found in loops.vectors():
        if not keeps_vectors(wanted, found):
            raise TransferError(f"its vectors of {wanted} would have to be of {found}")


def fitted_to_anchor(design: Trace, block: SBlock) -> Trace:
    """``design`` (a ``tvm.s_tir.Trace``) with tiles for the loops of ``block``, the anchor of the function at hand.

    Loops that are not made of the anchor's keep their decisions; TVM makes those that do not divide trivial.
    """
    from tvm.s_tir import Trace

    loops = _AnchorLoops(str(block.name_hint), [int(axis.dom.extent) for axis in block.iter_vars], design)
    decisions = dict(design.decisions)
    instructions = []
    for instruction in design.insts:
        fitted, decision = loops.follow(instruction, decisions.pop(instruction, None))
        instructions.append(fitted)
        if decision is not None:
            decisions[fitted] = decision
    return Trace(instructions, decisions)


class _AnchorLoops:
    """The extents of an anchor's loops through the steps of a design, as far as they follow from those of its axes."""

    def __init__(self, name: str, extents: list[int], design: Trace) -> None:
        self._name, self._axes = name, extents
        self._threads, self._position = ThreadExtents(list(design.insts)), -1
        self._anchors: set[BlockRV] = set()
        self._extents: dict[LoopRV, int] = {}
        self._factors: dict[LoopRV, int] = {}
        self._tiles: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._splits: dict[LoopRV, tuple[int, int]] = {}
        self._vectors: list[tuple[int, int]] = []

    def vectors(self) -> list[tuple[int, int]]:
        """The steps of loops in vectors, as the design has them and as they are here.

        Designs of sketches say which those are; with MetaSchedule's tiles it is the innermost of the last axis of
        results, which are tiled in more parts than reductions are.
        """
        parts = max((len(wanted) for wanted, _ in self._tiles), default=0)
        last = [(wanted[-1], found[-1]) for wanted, found in self._tiles if len(wanted) == parts > 2]
        return self._vectors or last[-1:]

    def follow(self, instruction: Instruction, decision: Decision) -> tuple[Instruction, Decision]:
        """The instruction and its decision, both as they suit the extents here."""
        self._position += 1
        kind, inputs, outputs = instruction.kind.name, instruction.inputs, list(instruction.outputs)
        if kind == "GetSBlock" and str(instruction.attrs[0]) == self._name:
            self._anchors.update(outputs)
        elif kind == "GetLoops" and inputs[0] in self._anchors and not self._extents:
            if len(outputs) == len(self._axes):
                self._extents.update(zip(outputs, self._axes, strict=True))
        elif kind == "SamplePerfectTile" and inputs[0] in self._extents:
            wanted = tuple(map(int, decision))
            tile = perfect_tile(self._extents[inputs[0]], wanted, int(instruction.attrs[1]))
            self._tiles.append((wanted, tile))
            self._factors.update(zip(outputs, tile, strict=True))
            return instruction, list(tile)
        elif kind == "Split" and inputs[0] in self._extents:
            return self._split(instruction, outputs), decision
        elif kind == "Vectorize" and inputs[0] in self._splits:
            self._vectors.append(self._splits[inputs[0]])
        elif kind == "Fuse" and all(loop in self._extents for loop in inputs):
            self._extents[outputs[0]] = math.prod(self._extents[loop] for loop in inputs)
        return instruction, decision

    def _split(self, instruction: Instruction, outputs: list[LoopRV]) -> Instruction:
        extent = self._extents[instruction.inputs[0]]
        factors = [_number(value) for value in instruction.inputs[1:]]
        if ... not in factors:
            refitted = self._threads.fitted(self._position, extent, tuple(factors))
            fitted = factors if refitted is None else refitted
            pairs = zip(outputs, factors, fitted, strict=True)
            self._splits.update((loop, (wanted, found)) for loop, wanted, found in pairs if wanted and found)
            if refitted is not None:
                instruction, factors = _with_factors(instruction, refitted), list(refitted)
        known = [self._factors.get(v) if f is ... else f for f, v in zip(factors, instruction.inputs[1:], strict=True)]
        open_part = extent // math.prod(factor or 1 for factor in known)
        self._extents.update(zip(outputs, [factor or open_part for factor in known], strict=True))
        return instruction


def replayed(mod: IRModule, design: Trace) -> Schedule:
    """The schedule of ``mod`` after ``design`` (a ``tvm.s_tir.Trace``), its tiles fitted to the loops that they meet.

    TVM asks for decisions only, so a split by numbers that must change means a new replay. Raises as :func:`transfer`.
    """
    from tvm.s_tir import Schedule, Trace

    instructions, decisions = list(design.insts), dict(design.decisions)
    threads = ThreadExtents(instructions)
    for _ in range(MAX_REFITS):
        schedule = Schedule(mod, debug_mask="none", error_render_level="fast")
        adapter = _Adapter(schedule, threads, instructions)
        try:
            Trace(instructions, decisions).apply_to_schedule(schedule, remove_postproc=True, decision_provider=adapter)
            return schedule
        except Exception as error:
            if adapter.refit is None:
                raise (adapter.failure or error) from None
            position, factors = adapter.refit
            instructions[position] = _with_factors(instructions[position], factors)
    raise TransferError(f"more than {MAX_REFITS} splits do not fit")


class _Adapter:
    """The decision provider of a replay. ``refit``: the split that stopped it, and the factors that it needs."""

    def __init__(self, schedule: Schedule, threads: ThreadExtents, instructions: list[Instruction]) -> None:
        self.refit: tuple[int, tuple[int | None, ...]] | None = None
        self.failure: Exception | None = None
        self._schedule, self._threads, self._instructions = schedule, threads, instructions
        self._check_layout = layout_provider(schedule)
        self._position = -1

    def __call__(
        self, instruction: Instruction, inputs: Sequence[Operand], attrs: Sequence[Operand], decision: Decision
    ) -> Decision:
        try:
            return self._decide(instruction, inputs, attrs, decision)
        except Exception as error:
            self.failure = error  # TVM passes on its text alone
            raise

    def _decide(
        self, instruction: Instruction, inputs: Sequence[Operand], attrs: Sequence[Operand], decision: Decision
    ) -> Decision:
        self._position += 1
        kind = instruction.kind.name
        if kind == "SamplePerfectTile":
            return list(perfect_tile(self._extent(inputs[0]), tuple(map(int, decision)), int(attrs[1])))
        if kind == "Split" and (factors := numbers(inputs[1:])) is not None:
            new = self._threads.fitted(self._position, self._extent(inputs[0]), factors)
            self._stop_for(None if new is None else (self._position, new))
        if kind == "Bind" and self._threads.is_tile(self._position):
            self._threads.bound(self._position, self._extent(inputs[0]))
            self._stop_for(self._threads.misfit(self._position, self._instructions))
        if kind == "PadEinsum":
            self._check_padding(inputs[0], [int(size) for size in attrs[0]])
        if kind == "Annotate" and str(attrs[0]) == _PIPELINE and self._extent(inputs[0]) < 2:
            raise TransferError("there is no next load for a pipeline to start early")
        return self._check_layout(instruction, inputs, attrs, decision)

    def _check_padding(self, block: BlockRV, multiples: list[int]) -> None:
        extents = [int(axis.dom.extent) for axis in self._schedule.get(block).iter_vars]
        padded = math.prod(-(-extent // size) * size for extent, size in zip(extents, multiples, strict=True))
        if padded > MOST_PADDING * math.prod(extents):
            raise TransferError(f"{padded / math.prod(extents):.2g} times the work, with what is padded")

    def _stop_for(self, refit: tuple[int, tuple[int | None, ...]] | None) -> None:
        if refit is not None:
            self.refit = refit
            raise TransferError("a split does not fit its loop")

    def _extent(self, loop: LoopRV) -> int:
        extent = integer(self._schedule.get(loop).extent)
        if extent is None:
            raise TransferError("a loop has no known extent")
        return extent


def _number(value: Index | None) -> Index | None:
    """A factor of a split as a number, None for the open one, ``...`` for one that was decided on."""
    if value is None or isinstance(value, int):
        return value
    return int(value.value) if type(value).__name__ == "IntImm" else ...


def _with_factors(instruction: Instruction, factors: tuple[int | None, ...]) -> Instruction:
    from tvm.s_tir.schedule import Instruction

    inputs = [instruction.inputs[0], *factors]
    return Instruction(instruction.kind, inputs, list(instruction.attrs), list(instruction.outputs))

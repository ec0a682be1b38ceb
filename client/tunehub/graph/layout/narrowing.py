"""Operands in bfloat16: where they are faster, and activations that are kept so between the operators that want them.

An operator of pairs (:mod:`tunehub.kernels.te.grouped`) reads a tensor that is rounded once for all of them. If the
rest of its readers only add, multiply or compare its elements, they read it rounded, too: then the kernel before writes
nothing else, and half of the bytes move; what is joined for such readers alone is rounded before that. What sums up or
divides (norms, softmax, averages) reads float32.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.graph.kernel_calls import rewritten
from tunehub.graph.layout.costs import ConvWorkload
from tunehub.kernels.cpu import amx, pairs
from tunehub.kernels.cpu.base import Machine
from tunehub.kernels.cpu.pairs import LANES
from tunehub.kernels.te.grouped import NARROW, PAIRS, PIXEL, TILES, WIDE, Groups
from tunehub.kernels.winograd.rule import Conv3x3, chosen_tile
from tunehub.tir.nodes import operator_of, tensor_type, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import BindingBlock, Call, Expr, Var
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

_WORTH = 1.15  # times as fast as in float32 products of pairs must be
_ELEMENTWISE = frozenset(
    f"relax.{name}" for name in ("add", "subtract", "multiply", "maximum", "minimum", "clip", "nn.relu")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowing:
    """Which operators ``machine``, which multiplies pairs, computes with operands in bfloat16. ``winograd``: whether
    others may be computed by that algorithm. ``tiles``: whether it has instructions for matrices
    (:mod:`tunehub.kernels.cpu.amx`); ``rows_in_tiles``: for products of an open number of rows, too, the few of which
    instructions for pairs compute."""

    machine: Machine
    winograd: bool
    tiles: bool = False
    rows_in_tiles: bool = False

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of blocks of channels that instructions for matrices want, beside those of vectors."""
        return (TILES.depth,) if self.tiles else ()

    def dense_in_tiles(self, depth: int) -> bool:
        """A product with sums of ``depth`` and a known number of rows."""
        return self.tiles and depth % TILES.depth == 0

    def conv_in_tiles(self, workload: ConvWorkload, source: int, result: int) -> bool:
        """A convolution in these layouts of images of a known size."""
        return self.tiles and not workload.depthwise and source == result == TILES.depth

    def windows(self, workload: ConvWorkload) -> bool:
        """A convolution of a plain image of a known size, of few channels: neighbours in a row, four channels each, are
        what instructions for matrices add up. There is nothing to add up in rows of one pixel."""
        few = workload.groups == 1 and workload.in_channels <= PIXEL
        return self.tiles and few and workload.dilation[1] == 1 and workload.kernel[1] > 1

    @property
    def depthwise(self) -> bool:
        """Whether depthwise convolutions, which multiply in float32, read bfloat16. What is around them is so much
        faster by instructions for matrices that the bytes count; by those for pairs MobileNetV2 and ShuffleNet took
        1.05 times as long so, on Zen 4."""
        return self.tiles

    @property
    def narrow_bytes(self) -> bool:
        """Whether maxima of windows and joined images are of bfloat16: bytes count as for depthwise convolutions."""
        return self.tiles

    def dense(self, depth: int) -> bool:
        """A product with sums of ``depth``, by pairs, or with an open number of rows by either."""
        if self.rows_in_tiles and depth % TILES.depth == 0:
            return True
        return depth % PAIRS.size == 0 and self.worth(1)

    def attention(self, depth: int, outputs: int) -> Groups | None:
        """How products are computed of queries and keys of ``depth`` numbers, and of weights and values, which give
        ``outputs``; None in float32."""
        if outputs % LANES:
            return None
        if self.tiles and depth % TILES.depth == 0:
            return TILES
        return PAIRS if self.dense(depth) else None

    def worth(self, used: float, by: Groups = PAIRS) -> bool:
        """Whether products gain enough where this share of what is multiplied is needed."""
        rates = self.machine.rates
        return (rates.tiles if by == TILES else rates.pairs) * used >= _WORTH

    def conv(self, workload: ConvWorkload, source: int, result: int) -> bool:
        """A convolution in these layouts."""
        if self.machine.rates.pairs < _WORTH:
            return False
        each = workload.in_channels // workload.groups
        fits = source > 0 and source % PAIRS.size == 0 and result == LANES
        if workload.groups > 1:
            return fits and each % PAIRS.size == 0
        return fits and not (self.winograd and self._is_faster_by_winograd(workload, source, result))

    def rows(self, workload: ConvWorkload, result: int) -> bool:
        """A convolution of a plain image of a known size: neighbours in a row are a pair, and kernels with an odd
        number of columns waste half of one."""
        columns = workload.kernel[1]
        gain = self.machine.rates.pairs * columns / (columns + columns % PAIRS.size)
        return workload.groups == workload.dilation[1] == 1 and result == LANES and gain >= _WORTH

    def _is_faster_by_winograd(self, workload: ConvWorkload, source: int, result: int) -> bool:
        unit_steps = all(-2 <= out - size <= 2 for out, size in zip(workload.out_size, workload.in_size, strict=True))
        if workload.kernel != (3, 3) or not unit_steps:
            return False
        rows, columns = workload.out_size
        convolution = Conv3x3(
            batches=(workload.batch,),
            inputs=(-(-workload.in_channels // source), source),
            outputs=(-(-workload.out_channels // result), result),
            rows=rows,
            columns=columns,
        )
        return chosen_tile(convolution, self.machine, self.machine.rates.pairs / GUESS_MARGIN) is not None


def doubt(target: Target, machine: Machine, *, asked: bool = True) -> str | None:
    """Why nothing should be rounded for ``target``, which is ``machine``; None where products of pairs, or of matrices,
    are faster. Unless it is ``asked`` for, a profile of the machine has to say so: on some CPUs pairs are slower."""
    if amx.doubt(target, NARROW) is None:
        return None
    if (lacking := pairs.doubt(target)) is not None:
        return lacking
    if machine.rates.pairs < _WORTH:
        known = f"{machine.rates.pairs:.2g} times as fast by {machine.profile or 'what is known'}"
        return f"products of pairs are only {known}"
    if not asked and machine.profile is None:
        return "whether pairs are faster is not known without a profile of this CPU (`tunehub calibrate`)"
    return None


def read_narrow(mod: IRModule, *, joined: bool) -> IRModule:
    """``mod`` with tensors that operators of pairs read in bfloat16 alone, where their other readers allow that;
    ``joined``: what such a tensor is joined of, too."""
    reader = _NarrowReader(mod)
    reader.joined = joined
    return relax.transform.DeadCodeElimination()(rewritten(reader, mod))


@mutator
class _NarrowReader(PyExprMutator):  # type: ignore[misc]
    joined: bool

    def visit_dataflow_block_(self, block: BindingBlock) -> BindingBlock:
        self._narrow = _kept_narrow(block)  # variable -> the variable of what it is rounded to
        self._joined = _joined(block) if self.joined else {}
        return super().visit_dataflow_block_(block)

    def visit_call_(self, call: Call) -> Expr:
        if operator_of(call) == "relax.astype" and call.args[0] in self._narrow and call.args[0] in self._joined:
            joined = self._joined[call.args[0]]
            parts = [
                self.builder_.emit(relax.op.astype(self.visit_expr(part), NARROW)) for part in joined.args[0].fields
            ]
            return relax.Call(joined.op, [relax.Tuple(parts)], joined.attrs)
        if operator_of(call) not in _ELEMENTWISE:
            return super().visit_call_(call)
        arguments = [self._read(each) for each in call.args]
        return self.builder_.normalize(relax.Call(call.op, arguments, call.attrs))

    def _read(self, argument: Expr) -> Expr:
        rounded = self._narrow.get(argument) if isinstance(argument, relax.DataflowVar) else None
        if rounded is None:
            return self.visit_expr(argument)
        return self.builder_.emit(relax.op.astype(self.visit_expr(rounded), WIDE))


def _joined(block: BindingBlock) -> dict[Expr, Expr]:
    """The tensors of ``block`` that join others that nobody else reads: these may be rounded before they are joined."""
    values = {each.var: each.value for each in block.bindings}
    read = Counter(each for value in values.values() for each in variables_in(value))
    return {
        variable: value
        for variable, value in values.items()
        if operator_of(value) == "relax.concat"
        and isinstance(value.args[0], relax.Tuple)
        and all(isinstance(part, relax.DataflowVar) and read[part] == 1 for part in value.args[0].fields)
    }


def _kept_narrow(block: BindingBlock) -> dict[Expr, Expr]:
    """The tensors of ``block`` that are rounded to bfloat16 and that nothing else reads but elementwise operators
    behind that, with the variables of what they are rounded to."""
    rounded: dict[Var, Var] = {}
    early: set[Var] = set()
    for binding in block.bindings:
        value = binding.value
        if operator_of(value) == "relax.astype" and str(tensor_type(value).dtype) == NARROW:
            rounded[value.args[0]] = binding.var
            continue
        tolerant = operator_of(value) in _ELEMENTWISE
        early.update(each for each in variables_in(value) if not tolerant or each not in rounded)
    return {source: var for source, var in rounded.items() if source not in early}

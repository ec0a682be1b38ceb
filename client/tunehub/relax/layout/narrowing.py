"""Operands in bfloat16: where they are faster, and activations that are kept so between the operators that want them.

An operator of pairs (:mod:`tunehub.relax.layout.paired`) reads a tensor that is rounded once for all of them. If the
rest of its readers only add, multiply or compare its elements, they read it rounded, too: then the kernel before writes
nothing else, and half of the bytes move. What sums up or divides (norms, softmax, pooling) reads float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.records.never_worse import GUESS_MARGIN
from tunehub.relax.kernels import rewritten
from tunehub.relax.layout.costs import ConvWorkload
from tunehub.relax.layout.paired import NARROW, PAIR, WIDE
from tunehub.relax.layout.tiled import GROUPS, STEP
from tunehub.relax.nodes import tensor_type
from tunehub.relax.winograd.rule import Conv3x3, chosen_tile
from tunehub.templates import amx, pairs
from tunehub.templates.base import Machine
from tunehub.templates.pairs import LANES

_STEP = STEP * GROUPS[NARROW]  # channels that an instruction for matrices adds up
_WORTH = 1.15  # times as fast as in float32 products of pairs must be
_ELEMENTWISE = frozenset(
    f"relax.{name}" for name in ("add", "subtract", "multiply", "maximum", "minimum", "clip", "nn.relu")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowing:
    """Which operators ``machine``, which multiplies pairs, computes with operands in bfloat16. ``winograd``: whether
    others may be computed by that algorithm. ``tiles``: whether it has instructions for matrices
    (:mod:`tunehub.templates.amx`)."""

    machine: Machine
    winograd: bool
    tiles: bool = False

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of blocks of channels that instructions for matrices want, beside those of vectors."""
        return (_STEP,) if self.tiles else ()

    def dense_in_tiles(self, depth: int) -> bool:
        """A product with sums of ``depth`` and a known number of rows."""
        return self.tiles and depth % _STEP == 0

    def conv_in_tiles(self, workload: ConvWorkload, source: int, result: int) -> bool:
        """A convolution in these layouts of images of a known size."""
        return self.tiles and workload.groups == 1 and source == result == _STEP

    def dense(self, depth: int) -> bool:
        """A product with sums of ``depth``."""
        return depth % PAIR == 0 and self.machine.rates.pairs >= _WORTH

    def conv(self, workload: ConvWorkload, source: int, result: int) -> bool:
        """A convolution in these layouts."""
        if self.machine.rates.pairs < _WORTH:
            return False
        fits = workload.groups == 1 and source > 0 and source % PAIR == 0 and result == LANES
        return fits and not (self.winograd and self._is_faster_by_winograd(workload, source, result))

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


def doubt(target: Any, machine: Machine) -> str | None:
    """Why nothing should be rounded for ``target``, which is ``machine``; None where products of pairs, or of matrices,
    are faster."""
    if amx.doubt(target, NARROW) is None:
        return None
    faster = machine.rates.pairs
    if (lacking := pairs.doubt(target)) is not None or faster >= _WORTH:
        return lacking
    return f"the machine's profile says that products of pairs are only {faster:.2g} times as fast"


def read_narrow(mod: Any) -> Any:
    """``mod`` with tensors that operators of pairs read in bfloat16 alone, where their other readers allow that."""
    return relax.transform.DeadCodeElimination()(rewritten(_NarrowReader(mod), mod))


@mutator
class _NarrowReader(PyExprMutator):  # type: ignore[misc]
    def visit_dataflow_block_(self, block: Any) -> Any:
        self._narrow = _kept_narrow(block)  # variable -> the variable of what it is rounded to
        return super().visit_dataflow_block_(block)

    def visit_call_(self, call: Any) -> Any:
        if _operator(call) not in _ELEMENTWISE:
            return super().visit_call_(call)
        arguments = [self._read(each) for each in call.args]
        return self.builder_.normalize(relax.Call(call.op, arguments, call.attrs))

    def _read(self, argument: Any) -> Any:
        rounded = self._narrow.get(argument) if isinstance(argument, relax.DataflowVar) else None
        if rounded is None:
            return self.visit_expr(argument)
        return self.builder_.emit(relax.op.astype(self.visit_expr(rounded), WIDE))


def _kept_narrow(block: Any) -> dict[Any, Any]:
    """The tensors of ``block`` that are rounded to bfloat16 and that nothing else reads but elementwise operators
    behind that, with the variables of what they are rounded to."""
    rounded: dict[Any, Any] = {}
    early: set[Any] = set()
    for binding in block.bindings:
        value = binding.value
        if _operator(value) == "relax.astype" and str(tensor_type(value).dtype) == NARROW:
            rounded[value.args[0]] = binding.var
            continue
        tolerant = _operator(value) in _ELEMENTWISE
        early.update(each for each in _variables(value) if not tolerant or each not in rounded)
    return {source: var for source, var in rounded.items() if source not in early}


def _variables(expression: Any) -> list[Any]:
    found: list[Any] = []

    def visit(each: Any) -> None:
        if isinstance(each, relax.Var):
            found.append(each)

    relax.analysis.post_order_visit(expression, visit)
    return found


def _operator(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", ""))

"""Operators that TVM computes wrongly for some data, and that tunehub leaves as they are.

The list is that of docs/compile.md ("What TVM computes wrongly", not mended), as far as a module shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.report.model import WrongFor, WrongOperator
from tunehub.tir.nodes import constant_array, is_constant

if TYPE_CHECKING:
    from tunehub.graph.types import Call
    from tunehub.target.types import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mistake:
    """``operators`` (of Relax, without the dialect's name) are wrong for data of the kind ``wrong_for``, where a call
    ``fits``; ``kinds`` are of targets."""

    wrong_for: WrongFor
    operators: tuple[str, ...]
    kinds: tuple[str, ...] = ("llvm", "cuda")
    fits: Callable[[Call], bool] = lambda _call: True


def _has_half_exponents(call: Call) -> bool:
    exponent = call.args[1]
    return is_constant(exponent) and bool((constant_array(exponent).astype("float64") % 1 == 0.5).any())


_MISTAKES = (
    _Mistake(wrong_for="nan", operators=("maximum", "minimum", "clip", "max", "nn.relu", "sign")),
    _Mistake(wrong_for="nan", operators=("not_equal",), kinds=("llvm",)),
    _Mistake(wrong_for="infinity", operators=("power",), fits=_has_half_exponents),
    _Mistake(wrong_for="far_from_zero", operators=("nn.layer_norm",)),
    _Mistake(wrong_for="far_from_zero", operators=("nn.batch_norm",), fits=lambda call: bool(call.attrs.training)),
    _Mistake(wrong_for="subnormal", operators=("log", "rsqrt"), kinds=("cuda",)),
    _Mistake(wrong_for="large_divisor", operators=("divide",), kinds=("cuda",)),
    _Mistake(wrong_for="halfway", operators=("quantize",), kinds=("cuda",)),
)
_BY_OPERATOR = {
    name: tuple(mistake for mistake in _MISTAKES if name in mistake.operators)
    for name in {name for mistake in _MISTAKES for name in mistake.operators}
}


def wrong_operators(calls: Iterable[Call], target: Target) -> tuple[WrongOperator, ...]:
    """What is left wrong of ``calls``, those of a module of Relax as it is given to a compile for ``target``."""
    kind = str(target.kind.name)
    counts: Counter[tuple[WrongFor, str]] = Counter()
    for call in calls:
        name = str(getattr(call.op, "name", "")).removeprefix("relax.")
        for mistake in _BY_OPERATOR.get(name, ()):
            if kind in mistake.kinds and mistake.fits(call):
                counts[mistake.wrong_for, name] += 1
    return tuple(
        WrongOperator(operator=name, wrong_for=wrong_for, calls=count) for (wrong_for, name), count in counts.items()
    )

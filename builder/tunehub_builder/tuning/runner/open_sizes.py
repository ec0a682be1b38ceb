"""A symbolic workload in a worker: built once, run at one size after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunehub.tir.nodes import buffer_shapes
from tunehub.tir.symbols import instance, scalars

_POINTS = "tunehub.points"  # an attribute of a workload's function, which no key depends on


def with_points(function: Any, points: Sequence[Sequence[int]]) -> Any:
    """A symbolic function that says itself at which values of its symbols it is measured."""
    return function.with_attr(_POINTS, [list(values) for values in points])


def points_of(function: Any) -> list[tuple[int, ...]]:
    """Those values."""
    return [tuple(map(int, values)) for values in function.attrs[_POINTS]]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCandidate:
    """The compiled ``library`` of a symbolic ``function``, which is called for any values of its symbols."""

    library: Any
    function: Any

    def at(self, values: Sequence[int], argument: Callable[[tuple[int, ...], str], Any]) -> tuple[Any, list[Any]]:
        """It for these values of its symbols as a library of a static function, and arguments, which ``argument`` makes
        of a shape and a type."""
        shapes = buffer_shapes(instance(self.function, values))
        return _AtValues(self.library, scalars(self.function, values)), [argument(*shape) for shape in shapes]


class _AtValues:
    """A library whose function is called with its scalar parameters behind the others."""

    def __init__(self, library: Any, values: Sequence[int]) -> None:
        self._library, self._values = library, values

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return lambda *tensors: self._library[name](*tensors, *self._values)

    def time_evaluator(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        timer = self._library.time_evaluator(*arguments, **options)
        return lambda *tensors: timer(*tensors, *self._values)

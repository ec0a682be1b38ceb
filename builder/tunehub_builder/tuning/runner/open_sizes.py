"""A symbolic workload in a worker: built once, run at one size after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.tir.nodes import buffer_shapes
from tunehub.tir.symbols import instance, scalars

if TYPE_CHECKING:
    from tunehub.tir.types import DeviceTensor, Module, PrimFunc

_POINTS = "tunehub.points"  # an attribute of a workload's function, which no key depends on


def with_points(function: PrimFunc, points: Sequence[Sequence[int]]) -> PrimFunc:
    """A symbolic function that says itself at which values of its symbols it is measured."""
    return function.with_attr(_POINTS, [list(values) for values in points])


def points_of(function: PrimFunc) -> list[tuple[int, ...]]:
    """Those values."""
    return [tuple(map(int, values)) for values in function.attrs[_POINTS]]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCandidate:
    """The compiled ``library`` of a symbolic ``function``, which is called for any values of its symbols."""

    library: Module
    function: PrimFunc

    def at(
        self, values: Sequence[int], argument: Callable[[tuple[int, ...], str], DeviceTensor]
    ) -> tuple[Any, list[Any]]:
        """It for these values of its symbols as a library of a static function, and arguments, which ``argument`` makes
        of a shape and a type."""
        shapes = buffer_shapes(instance(self.function, values))
        return _AtValues(self.library, scalars(self.function, values)), [argument(*shape) for shape in shapes]


class _AtValues:
    """A library whose function is called with its scalar parameters behind the others."""

    def __init__(self, library: Module, values: Sequence[int]) -> None:
        self._library, self._values = library, values

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return lambda *tensors: self._library[name](*tensors, *self._values)

    def time_evaluator(self, *arguments: object, **options: object) -> Callable[..., Any]:
        timer = self._library.time_evaluator(*arguments, **options)
        return lambda *tensors: timer(*tensors, *self._values)

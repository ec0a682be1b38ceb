"""In a worker process: one network compiled in several ways, compared and timed end to end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import Timer
from tunehub.compiler.measure.quiet import Patience, clear_of_the_pool, undisturbed

if TYPE_CHECKING:
    from tunehub.tir.types import Array

DEFAULT = "default"  # the variant that TVM makes without tunehub
_RUNS_COMPARED = 3  # threads that write over each other do not do so every time


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltNetwork:
    """A variant that runs: its ``outputs`` as arrays, and the mean seconds of some runs."""

    outputs: Callable[[], list[Array]]
    time: Timer


class NetworkSession(ABC):
    """What a worker remembers between requests: one network, and the variants that are built. Public methods are the
    requests. A generation of TVM says how a network is opened and compiled."""

    def __init__(self, patience_s: float) -> None:
        """``patience_s``: spent on repeating disturbed measurements of a network."""
        self._patience_s = patience_s
        self._built: dict[str, BuiltNetwork] = {}
        self._expected: list[Array] | None = None
        self._patience = Patience(left=patience_s)

    def task(self, _name: str, case: str) -> None:
        """Load a network; whatever was built before is forgotten."""
        self.drop()
        self.open(case)

    def build(self, variant: str, *arguments: object) -> Any:
        """Compile the network; returns what there is to tell. Raises what compiling raises."""
        self._built[variant], told = self.compiled(variant, *arguments)
        return told

    def difference(self, variant: str) -> float:
        """The largest difference of an output from what is expected, relative to its largest, over some runs."""
        if self._expected is None:
            self._expected = self.expected()
        outputs = (self._built[variant].outputs() for _ in range(_RUNS_COMPARED))
        return max(difference(found, self._expected, least=self.least()) for found in outputs)

    def time(self, variant: str, runs: int, patient: bool) -> float:
        """Mean seconds of ``runs`` runs; a ``patient`` one is repeated while other programs disturb it."""
        timer = self._built[variant].time
        with clear_of_the_pool():
            return undisturbed(lambda: (timer(runs),), self._patience)[0] if patient else timer(runs)

    def drop(self) -> None:
        """Forget the network."""
        self._built.clear()
        self._expected = None
        self._patience = Patience(left=self._patience_s)

    def expected(self) -> list[Array]:
        """The outputs that others are compared with: the default's."""
        return self._built[DEFAULT].outputs()

    def least(self) -> Sequence[float]:
        """Of each output, the magnitude that differences are relative to where its largest value is smaller."""
        return ()

    @abstractmethod
    def open(self, case: str) -> None:
        """Load the network that ``case``, the backend's own JSON, describes."""

    @abstractmethod
    def compiled(self, variant: str, *arguments: object) -> tuple[BuiltNetwork, Any]:
        """Compile the network in one way; also what :meth:`build` returns."""

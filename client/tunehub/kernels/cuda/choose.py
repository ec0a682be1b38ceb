"""Which kernel serves a function: that which should take least, of all rules that have one. Pure: rules match, count
and build."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.comparison.guess import microseconds
from tunehub.kernels.cuda.kernel_rule import KernelCandidate, KernelRule, OpenKernelRule
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.guard import check_function

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, ScheduledModule

Check = Callable[[Any], object]
"""Raises for a schedule that would be wrong or cannot be launched."""


class SlowerError(ValueError):
    """A kernel that another one should outdo; the message says by what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenKernel:
    """A ``schedule`` that a rule built by a ``tile``, checked; ``seconds``: what it should take, if that is known."""

    rule: KernelRule | OpenKernelRule
    schedule: ScheduledModule
    seconds: float | None
    tile: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedKernel:
    """Why a rule for such functions does not serve this one: the ``error`` that it raised."""

    rule: KernelRule | OpenKernelRule
    error: Exception


@dataclass(kw_only=True, slots=True)
class Offer:
    """What a ``rule`` at a ``place`` of its registry has for a function: its ``best`` tile that was not tried yet, what
    comes after it, and the last ``error``."""

    place: int
    rule: KernelRule
    workload: object = None
    best: KernelCandidate | None = None
    rest: Iterator[KernelCandidate] | None = None
    error: Exception | None = None

    @property
    def place_s(self) -> float:
        """By what it is compared; infinite without a tile."""
        return math.inf if self.best is None else self.best.place_s

    def advance(self) -> None:
        """To the next tile."""
        self.best = None
        try:
            self.best = None if self.rest is None else next(self.rest, None)
        except Exception as error:  # of any kind: a rule that fails costs no other
            self.error = error

    def build(self, check: Check) -> ScheduledModule | None:
        """The schedule by the best tile; None where it cannot be built, or is refused."""
        assert self.best is not None
        try:
            schedule = self.rule.build(self.workload, self.best.tile)
            check(schedule)
        except Exception as error:  # TVM raises many kinds; another tile may do
            self.error = error
            return None
        return schedule


def offers(rules: Sequence[KernelRule], mod: IRModule, target: Target, device: GpuDevice) -> list[Offer]:
    """What ``rules`` have for ``mod``, one static PrimFunc ``main``: those that match, in their order. Nothing is
    built."""
    found = []
    for place, rule in enumerate(rules):
        offer = Offer(place=place, rule=rule)
        try:
            offer.workload = rule.match(mod, target)
            if offer.workload is None:
                continue
            offer.rest = iter(rule.candidates(offer.workload, device))
        except Exception as error:  # as above
            offer.error = error
        offer.advance()
        if offer.best is not None or offer.error is not None:
            found.append(offer)
        if rule.ALONE:
            break
    return found


def likeliest(found: Sequence[Offer]) -> Offer | None:
    """The offer that should take least, the first of several; None without any."""
    return min((each for each in found if each.best is not None), key=_order, default=None)


def choose(found: Sequence[Offer], check: Check) -> Iterator[ChosenKernel | RefusedKernel]:
    """What serves, the kernel that should take least first: who refuses it goes on to the next. Offers are used up.

    Why a rule that precedes another one in the registry does not serve is said before what does serve, of the others at
    the end. Each says the last thing that spoke against it.
    """
    refused = {offer.place: offer.error for offer in found if offer.best is None}
    while (offer := likeliest(found)) is not None:
        assert offer.best is not None
        schedule = offer.build(check)
        if schedule is not None:
            yield from _said(found, offer, offer.best, refused)
            best = offer.best
            yield ChosenKernel(rule=offer.rule, schedule=schedule, seconds=best.seconds, tile=best.tile)
            offer.error = None
        offer.advance()
        if schedule is None and offer.best is None:
            refused[offer.place] = offer.error
    yield from (RefusedKernel(rule=each.rule, error=error) for each in found if (error := refused.get(each.place)))


def _said(
    found: Sequence[Offer], served: Offer, best: KernelCandidate, refused: dict[int, Exception | None]
) -> Iterator[RefusedKernel]:
    """Of the rules before what is ``served`` by its ``best`` tile: those that are refused, and those that should take
    longer."""
    for each in found:
        error = refused.pop(each.place, None) if each.place < served.place else None
        if error is None and each.place < served.place and each.best is not None:
            error = _slower(each.best, best)
        if error is not None:
            yield RefusedKernel(rule=each.rule, error=error)


def _slower(own: KernelCandidate, other: KernelCandidate) -> SlowerError | None:
    if own.seconds is None or other.seconds is None:
        return None
    said = f"another kernel should take {microseconds(other.seconds)} µs, this one {microseconds(own.seconds)}"
    counted = "" if own.place_s in (own.seconds, math.inf) else f", which counts as {microseconds(own.place_s)}"
    return SlowerError(said + counted)


def _order(offer: Offer) -> tuple[float, int]:
    return (offer.place_s, offer.place)


def choose_open(
    rules: Sequence[OpenKernelRule], mod: IRModule, target: Target, pieces: Any
) -> Iterator[ChosenKernel | RefusedKernel]:
    """As :func:`choose`, of a function with open axes, whose times depend on its size: in the order of ``rules``."""
    for rule in rules:
        try:
            schedule = rule.open_sizes(mod, target, pieces)
        except Exception as error:  # of any kind, as above
            yield RefusedKernel(rule=rule, error=error)
            continue
        if schedule is not None:
            yield ChosenKernel(rule=rule, schedule=schedule, seconds=None)


def by_one(rule: KernelRule, mod: IRModule, target: Target) -> tuple[ScheduledModule, float | None] | None:
    """The schedule of ``mod``, one static PrimFunc ``main``, by ``rule`` alone, and the seconds that it should take;
    None for a function of another kind. Raises what the rule raises, GuardError for what would be wrong or
    cannot be launched."""

    def check(schedule: ScheduledModule) -> None:
        check_function(schedule.mod["main"], mod["main"], target)

    found = next(choose(offers((rule,), mod, target, device_of(target)), check), None)
    if isinstance(found, RefusedKernel):
        raise found.error
    return None if found is None else (found.schedule, found.seconds)

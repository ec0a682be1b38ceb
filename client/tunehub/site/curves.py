"""What pages say of tuning curves: how the best time of a workload fell from trial to trial. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tunehub.site.contents import RecordName
from tunehub_registry.printable import plain
from tunehub_registry.tuning_curves import TuningCurve


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveView:
    """The tuning of one record. `steps` are pairs of a trial and the best time in seconds from then on."""

    op: str
    key: str
    tuner: str
    trials: int
    steps: tuple[tuple[int, float], ...]

    @property
    def first_s(self) -> float:
        """The first time that was measured."""
        return self.steps[0][1]

    @property
    def best_s(self) -> float:
        """The time of the record."""
        return self.steps[-1][1]

    @property
    def gain(self) -> float:
        """How many times as fast as the first one."""
        return self.first_s / self.best_s


def curve_views(curves: Iterable[TuningCurve], names: Mapping[str, RecordName]) -> tuple[CurveView, ...]:
    """Those that gained most come first."""
    views = [
        CurveView(
            op=plain(names[curve.exact].op) if curve.exact in names else "",
            key=curve.exact,
            tuner=curve.tuner,
            trials=curve.trials,
            steps=curve.steps,
        )
        for curve in curves
    ]
    return tuple(sorted(views, key=lambda view: (-view.gain, view.op, view.key, view.tuner)))

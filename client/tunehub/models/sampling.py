"""The next token of logits: the likeliest, or one drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tunehub.tir.types import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """`temperature` divides logits, 0 takes the likeliest token; `top_p`: of the likeliest tokens, as many as have that
    probability together."""

    temperature: float = 0.0
    top_p: float = 1.0

    def token(self, logits: Array, rng: np.random.Generator) -> int:
        """One of ``[words]``."""
        if self.temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        weights = np.exp((logits[order].astype("float64") - float(logits[order[0]])) / self.temperature)
        share = weights / weights.sum()
        kept = int(np.searchsorted(np.cumsum(share), self.top_p)) + 1
        share = share[:kept] / share[:kept].sum()
        return int(rng.choice(order[:kept], p=share))

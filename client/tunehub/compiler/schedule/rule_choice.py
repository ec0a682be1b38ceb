"""What rules choose for one function, and its hash: by that a record knows whether it was judged beside today's rules
(docs/adr/0076-rows-that-stay-true.md)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tunehub.kernels import cpu
from tunehub.kernels.template_fit import machine_for
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import main_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunehub.kernels.cuda.choose import Offer
    from tunehub.kernels.template_fit import TemplateFit
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

_DIGITS = 16
NOTHING = "TVM's own"  # what is chosen where no rule promises a gain


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleChoice:
    """``hash`` is that of a template with its version and knobs, or of TVM's own loops; ``seconds``: what that should
    take, where the costs know it."""

    hash: str
    seconds: float | None = None


def cpu_choice(fit: TemplateFit, mod: IRModule, target: Target) -> RuleChoice:
    """Of the static function ``main`` of ``mod`` on a CPU. Raises what templates raise."""
    from tunehub.kernels.cpu import attention  # imported by few functions

    if attention.is_attention(mod):
        return RuleChoice(hash=choice_hash(attention.NAME))
    match, machine = fit.match, machine_for(target)
    if match is None or cpu.doubt(match, machine) is not None:
        return RuleChoice(hash=choice_hash(NOTHING))
    knobs = msgspec.to_builtins(match.template.default_knobs(match.workload, machine))
    return RuleChoice(hash=choice_hash(match.template.NAME, match.template.VERSION, knobs))


def cuda_choice(offers: Sequence[Offer]) -> RuleChoice:
    """Of a function for which rules for CUDA have ``offers``, none of which is used up."""
    from tunehub.kernels.cuda.choose import likeliest  # CPUs need none of it
    from tunehub.kernels.cuda.knobs import knobs_of_tile

    offer = likeliest(offers)
    if offer is None or offer.best is None:
        return RuleChoice(hash=choice_hash(NOTHING))
    chosen = choice_hash(offer.rule.NAME, offer.rule.VERSION, knobs_of_tile(offer.best.tile))
    return RuleChoice(hash=chosen, seconds=offer.best.seconds)


def text_hash(function: PrimFunc | None) -> str:
    """Of ``function`` as rules schedule it, whatever its names; None: they leave it to TVM."""
    return choice_hash(NOTHING) if function is None else workload_key(main_module(function))[:_DIGITS]


def choice_hash(*said: object) -> str:
    """Of a template's name, its version and its knobs as JSON has them, or of what else a rule has chosen."""
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

"""A prepared module whose convolutions are computed by Winograd's algorithm on a CUDA GPU where that should be
faster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tunehub.cuda.adapted import without_record_s
from tunehub.cuda.winograd import transforms
from tunehub.cuda.winograd.kernels import transformed
from tunehub.cuda.winograd.rule import chosen_tile
from tunehub.cuda.winograd.splitting import find_plain, stages
from tunehub.relax.keys import anchor_key, workload_key
from tunehub.relax.nodes import main_module
from tunehub.relax.symbols import is_symbolic
from tunehub.relax.winograd.module import has_ladder
from tunehub.relax.winograd.replacing import Replacement, WinogradStage, with_replacements

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.records.lookup import Candidate, RecordLookup


def with_winograd(mod: Any, target: Any, lookup: RecordLookup, note: Callable[[str], None]) -> Any:
    """``mod``, as :func:`tunehub.relax.pipeline.prepare` makes it for a GPU, with such functions and their weights.

    A function for which ``lookup`` has a record keeps it unless the algorithm should be faster than that by the margin
    of a guess; one with an open batch keeps a ladder, which says nothing of single sizes. ``note`` is told how many do
    not.
    """
    return with_replacements(mod, partial(_replacement, target=target, lookup=lookup), transformed, note)


def _replacement(name: str, function: Any, *, target: Any, lookup: RecordLookup) -> Replacement | None:
    found = find_plain(function)
    single = main_module(function)
    if found is None or (found.convolution.batch is None and has_ladder(single, workload_key(single), lookup)):
        return None
    singles = list(map(main_module, found.judged))
    candidates = [_candidate(each, lookup) for each in singles]
    direct_s = [_direct_s(*each, target) for each in zip(singles, candidates, strict=True)]
    tile = chosen_tile(found.convolution, direct_s, target) if all(direct_s) else None
    if tile is None:
        return None
    split = stages(function, name, found, tile)
    if not _fit(split, target):
        return None
    return Replacement(stages=split, weight=found.weight, tile=tile, recorded=any(candidates))


def _direct_s(single: Any, candidate: Candidate | None, target: Any) -> float:
    """Seconds that the direct convolution should take; 0 where that is not known."""
    known = [without_record_s(single, target), None if candidate is None else candidate.record.mean_s]
    return min(filter(None, known), default=0.0)


def _candidate(single: Any, lookup: RecordLookup) -> Candidate | None:
    exact = lookup.by_exact(workload_key(single))
    anchor = anchor_key(single) if exact is None else None
    return exact or next(iter(lookup.by_anchor(anchor) if anchor else ()), None)


def _fit(split: tuple[WinogradStage, ...], target: Any) -> bool:
    """Whether the transforms have schedules: without, TVM's loops would compute them many times."""
    first, _, last = split
    try:
        return all(_transform(main_module(each.function), target) is not None for each in (first, last))
    except Exception:  # TVM raises many kinds for a schedule that does not fit
        return False


def _transform(mod: Any, target: Any) -> Any | None:
    return (transforms.by_images if is_symbolic(mod["main"]) else transforms.by_rule)(mod, target)

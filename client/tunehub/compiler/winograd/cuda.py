"""A prepared module whose convolutions are computed by Winograd's algorithm on a CUDA GPU where that should be
faster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tunehub.graph.winograd.replacing import Replacement, WinogradStage, with_replacements
from tunehub.graph.winograd.splitting import find_plain, stages
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.winograd import transforms
from tunehub.kernels.cuda.winograd.forms import form_of
from tunehub.kernels.cuda.winograd.rule import chosen_tile, products_s
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import constant_array, main_module
from tunehub.tir.symbols import is_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tunehub.graph.types import Constant, Expr
    from tunehub.records.lookup import Candidate, RecordLookup
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc
    from tunehub_registry.ladder_record import LadderRecord


def with_winograd(mod: IRModule, target: Target, lookup: RecordLookup, note: Callable[[str], None]) -> IRModule:
    """``mod``, as :func:`tunehub.compiler.preparing.prepare` makes it for a GPU, with such functions and their weights.

    A function for which ``lookup`` has a record keeps it unless the algorithm should be faster than that by the margin
    of a guess; one with an open batch keeps a ladder unless that holds at the batches by which it is judged. ``note``
    is told how many do not.
    """
    return with_replacements(mod, partial(_replacement, target=target, lookup=lookup), _transformed, note)


def _transformed(constant: Constant, tile: int) -> Expr:
    return form_of(half=constant_array(constant).dtype == "float16").transformed(constant, tile)


def _replacement(name: str, function: PrimFunc, *, target: Target, lookup: RecordLookup) -> Replacement | None:
    found = find_plain(function)
    if found is None:
        return None
    singles = list(map(main_module, found.judged))
    candidates = [_candidate(each, lookup) for each in singles]
    ladder = _ladder(main_module(function), lookup) if found.convolution.batch is None else None
    direct_s = [
        _direct_s(single, [*_record_s(candidate), *_ladder_s(ladder, each.batch)], target, half=each.half)
        for single, candidate, each in zip(singles, candidates, found.convolution.judged(), strict=True)
    ]
    tile = chosen_tile(found.convolution, direct_s, target) if all(direct_s) else None
    if tile is None:
        return None
    split = stages(function, name, found, tile)
    if not _fit(split, target):
        return None
    return Replacement(stages=split, weight=found.weight, tile=tile, recorded=any((*candidates, ladder)))


def _direct_s(single: IRModule, recorded_s: Sequence[float], target: Target, *, half: bool) -> float:
    """Seconds that the direct convolution should take, or took by records; 0 where that is not known."""
    return min(filter(None, [products_s(single, target, half=half), *recorded_s]), default=0.0)


def _record_s(candidate: Candidate | None) -> list[float]:
    return [] if candidate is None else [candidate.record.mean_s]


def _ladder_s(ladder: LadderRecord | None, batch: int | None) -> list[float]:
    """Of so many images, by what was measured at the nearest number of them."""
    if ladder is None or batch is None:
        return []
    times = ladder.near((batch,))
    return [times.run_s * batch / times.size]


def _ladder(mod: IRModule, lookup: RecordLookup) -> LadderRecord | None:
    """The ladder that would serve ``mod``, a function with an open batch."""
    anchor = anchor_key(mod)
    found = [*lookup.ladders("exact", workload_key(mod)), *(lookup.ladders("anchor", anchor) if anchor else ())]
    return found[0].record if found else None


def _candidate(single: IRModule, lookup: RecordLookup) -> Candidate | None:
    exact = lookup.by_exact(workload_key(single))
    anchor = anchor_key(single) if exact is None else None
    return exact or next(iter(lookup.by_anchor(anchor) if anchor else ()), None)


def _fit(split: tuple[WinogradStage, ...], target: Target) -> bool:
    """Whether the transforms have schedules: without, TVM's loops would compute them many times."""
    first, _, last = split
    try:
        return all(_transform(main_module(each.function), target) is not None for each in (first, last))
    except Exception:  # TVM raises many kinds for a schedule that does not fit
        return False


def _transform(mod: IRModule, target: Target) -> object:
    return transforms.open_sizes(mod, target) if is_symbolic(mod["main"]) else by_one(transforms, mod, target)

"""Functions for CPUs lowered while the next ones are scheduled.

Scheduling is Python's, on one thread; TVM's passes hold no lock of Python's. So what is scheduled is lowered by another
thread, a few functions at a time. What becomes of a function is the same wherever it is lowered; one that changes
before TVM asks for it, as where its schedule is refused or its weights are packed, is lowered then.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import local
from typing import TYPE_CHECKING, Any

from tunehub.target.host import usable_threads
from tunehub.tir.keys import structurally_equal
from tunehub.tir.lowering import is_scheduled

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import GlobalVar, IRModule, PassContext, PrimFunc

_TOGETHER = 8  # functions of one module: TVM's passes take a millisecond to begin
_ENTRY = "tirx.is_entry_func"  # what TVM makes of the only function of a module

Lower = Callable[[Any], Any]
_here = local()


class LoweredAhead:
    """Functions that are scheduled, and what they are lowered to, by name."""

    def __init__(self) -> None:
        """No thread is started until there are functions."""
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[str, PrimFunc] = {}
        self._begun: list[tuple[IRModule, Future[IRModule]]] = []

    def begin(self, lowering: Callable[[], Lower], name: str, function: PrimFunc, target: Target) -> None:
        """Lower ``function`` of the module that will be compiled for ``target``, in the PassContext of the moment, by
        what ``lowering`` gives, while the caller goes on."""
        import tvm

        context = tvm.transform.PassContext.current()
        if usable_threads() < 2 or context.instruments:
            return
        self._waiting[name] = function.with_attr("global_symbol", name)
        if len(self._waiting) < _TOGETHER:
            return
        functions, self._waiting = self._waiting, {}
        with suppress(Exception):  # TVM raises it again, of the whole module
            mod = tvm.tirx.transform.BindTarget(target.with_host(target.host or target))(tvm.IRModule(functions))
            self._pool = self._pool or ThreadPoolExecutor(1)
            self._begun.append((mod, self._pool.submit(_lowered, lowering, mod, context)))

    def using(self, lower: Lower) -> Lower:
        """The pass ``lower`` for a module, or parts of it, with what is known of its functions; what no thread has
        begun with yet is forgotten."""
        known = self._known()

        def lowered(mod: IRModule) -> IRModule:
            import tvm

            same = {v: known[str(v.name_hint)][1] for v, now in mod.functions.items() if _is_known(known, v, now)}
            if len(mod.functions) < 2 or not same:
                return lower(mod)
            rest = _rest(mod, same)
            try:
                found = dict(lower(tvm.IRModule(rest, attrs=mod.attrs)).functions.items()) if rest else {}
            except Exception:  # of any kind: one of them calls one that is not there
                return lower(mod)
            if found.keys() != rest.keys():
                return lower(mod)
            made = {**found, **dict(_unchecked(mod, same).functions.items())}
            return tvm.IRModule({variable: made[variable] for variable in mod.functions}, attrs=mod.attrs)

        return lowered if known else lower

    def close(self) -> None:
        """End the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self._waiting, self._begun = None, {}, []

    def _known(self) -> dict[str, tuple[PrimFunc, PrimFunc]]:
        """Functions as they were, and as they are lowered. None at all where TVM raised: it will say of what."""
        begun, self._begun, self._waiting = self._begun, [], {}
        begun = [(mod, future) for mod, future in begun if not future.cancel()]
        found: dict[str, tuple[PrimFunc, PrimFunc]] = {}
        with suppress(Exception):
            for mod, future in begun:
                made = {str(variable.name_hint): function for variable, function in future.result().functions.items()}
                found |= {str(v.name_hint): (function, made[str(v.name_hint)]) for v, function in mod.functions.items()}
            return found
        return {}


def is_ahead() -> bool:
    """Whether this thread lowers ahead: what cannot be lowered as it should raises there."""
    return getattr(_here, "ahead", False)


def _lowered(lowering: Callable[[], Lower], mod: IRModule, context: PassContext) -> IRModule:
    import tvm

    _here.ahead = True
    with context:
        found = lowering()(mod)
    return tvm.IRModule({variable: function.without_attr(_ENTRY) for variable, function in found.functions.items()})


def _is_known(known: dict[str, tuple[PrimFunc, PrimFunc]], variable: GlobalVar, now: PrimFunc) -> bool:
    from tunehub.tir.argument_checks import HAS_OWN_ARGUMENTS  # which says nothing to TVM's passes

    pair = known.get(str(variable.name_hint))
    return pair is not None and is_same(*(each.without_attr(HAS_OWN_ARGUMENTS) for each in (pair[0], now)))


def is_same(before: PrimFunc, now: PrimFunc) -> bool:
    """Whether two functions are equal, and for equal targets, which TVM compares by address."""
    targets = [str(each.attrs["target"]) for each in (before, now)]
    return targets[0] == targets[1] and structurally_equal(*(each.without_attr("target") for each in (before, now)))


def _unchecked(mod: IRModule, same: dict[GlobalVar, PrimFunc]) -> IRModule:
    """Lowered functions, without checks of the arguments of those that have a mark in ``mod``."""
    import tvm

    from tunehub.tir.argument_checks import HAS_OWN_ARGUMENTS, without_argument_checks

    marks = {variable: HAS_OWN_ARGUMENTS in mod[variable].attrs for variable in same}
    marked = {v: f.with_attr(HAS_OWN_ARGUMENTS, True) if marks[v] else f for v, f in same.items()}
    return without_argument_checks(tvm.IRModule(marked))


def _rest(mod: IRModule, same: dict[GlobalVar, PrimFunc]) -> dict[GlobalVar, PrimFunc]:
    """The functions of ``mod`` that are to be lowered yet, and one more where none is scheduled, or there is but
    one: TVM lowers a module without schedules otherwise, and makes an entry of its only function."""
    rest = {variable: function for variable, function in mod.functions.items() if variable not in same}
    if len(rest) == 1 or (rest and not any(map(is_scheduled, rest.values()))):
        variable = next(iter(same))
        rest[variable] = mod[variable]
    return rest

"""The hub as a layer in TVM's dispatch: below the user's own records, above TVM's fallback.

TVM keeps the current context in a class attribute, for all threads. One layer of each tuner therefore serves the whole
process, for as long as any thread has a session, and asks the session of the thread that queries it.
Sources: autotvm/task/dispatcher.py and auto_scheduler/dispatcher.py of TVM 0.19.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tvm import auto_scheduler, autotvm
from tvm.auto_scheduler import dispatcher as ansor_dispatcher

from tunehub.relay import layers
from tunehub.relay.session import DispatchSession, current_session

if TYPE_CHECKING:
    from tunehub.relay.types import Config, DispatchContext, State, Workload
    from tunehub.target.types import Target

_lock = threading.Lock()


class HubDispatch(autotvm.task.DispatchContext):  # type: ignore[misc]
    """AutoTVM's layer."""

    def _query_inside(self, target: Target, workload: Workload) -> Any:
        own = _altered(target, workload)
        if own is not None:
            return own
        config = self._users(target, workload)
        session = current_session()
        if config is None and session is not None:
            config = session.config(target, workload)
            layers.asked(session, target, workload, config)
        return config

    def update(self, target: Target, workload: Workload, cfg: Config) -> None:
        """AlterOpLayout keeps the configuration of an operator that it rewrites. TVM's own contexts set its cost to 0
        on the caller's object; the object is a record that serves other layers too, so it is left as it is."""
        altered = layers.altered()
        if altered is None:
            self._old_ctx.update(target, workload, cfg)
        else:
            altered[str(target), workload] = cfg

    def _users(self, target: Target, workload: Workload) -> Any:
        """What contexts that were entered before this one say: a user's own records come first, wherever they are."""
        for context in _below(self):
            if isinstance(context, autotvm.task.ApplyGraphBest):
                continue  # any question would use up one of its records; see `users_graph`
            config = context._query_inside(target, workload)
            if config is not None and not config.is_fallback:
                layers.answered_by_user(target, workload, config)
                return config
        return None


class AnsorDispatch(auto_scheduler.DispatchContext):  # type: ignore[misc]
    """The auto-scheduler's layer. It is asked only while TVM's flag is on."""

    verbose = 1  # `auto_scheduler.extract_tasks`, when a user calls it, sets it on whatever context is current

    def _query_inside(self, target: Target, workload_key: str, func_name: str) -> Any:
        answers = (context._query_inside(target, workload_key, func_name) for context in _below(self))
        state = next((answer for answer in answers if answer is not None), None)
        layers.asked_for_state(str(workload_key), state is not None)
        session = current_session()
        return session.state(target, workload_key) if state is None and session else state

    def update(self, target: Target, workload_key: str, state: State) -> None:
        """TVM calls this for contexts that tune while compiling; kept in the layer below."""
        self._old_ctx.update(target, workload_key, state)


class GraphDispatch(autotvm.task.ApplyGraphBest):  # type: ignore[misc]
    """A graph-level record set of the very network that is compiled, node by node.

    AlterOpLayout asks a context of this class for "the next" configuration (no workload). TVM's own class answers any
    other question the same way, or asserts; here only the next one counts, and all else goes to the layers below.
    """

    def __init__(self, pairs: Sequence[Any], session: DispatchSession) -> None:
        """`pairs` are TVM's inputs and results in node order."""
        super().__init__(iter(pairs))
        self._session = session

    def _query_inside(self, target: Target, workload: Workload) -> Any:
        if workload is not None:
            return self._global_cfg_dict.get((str(target), workload))
        if self._counter >= len(self._records):
            raise RuntimeError(f"the network has more convolutions than the {len(self._records)} graph-level records")
        found, result = self._records[self._counter]
        self._counter += 1
        config = found.config
        config.workload = found.task.workload
        self.update(target, found.task.workload, config)
        layers.replayed(self._session, target, found, result)
        return config


_hub_dispatch: Any = None
_ansor_dispatch: Any = None


def attach() -> None:
    """Put both layers on top of TVM's current contexts; done once for all threads (see `context`)."""
    global _hub_dispatch, _ansor_dispatch
    with _lock:
        _hub_dispatch, _ansor_dispatch = HubDispatch(), AnsorDispatch()
        _hub_dispatch.__enter__()
        _ansor_dispatch.__enter__()


def detach() -> None:
    """Take both layers out again, wherever they are by now: contexts entered after them stay."""
    global _hub_dispatch, _ansor_dispatch
    with _lock:
        _remove(autotvm.task.DispatchContext, _hub_dispatch)
        _remove(auto_scheduler.DispatchContext, _ansor_dispatch)
        _hub_dispatch = _ansor_dispatch = None


def has_user_records() -> bool:
    """Whether a context of the user is active on top of TVM's root, for AutoTVM."""
    context = autotvm.task.DispatchContext.current
    return any(not isinstance(item, HubDispatch) for item in (context, *_below(context)) if not _is_root(item))


def has_user_states_above() -> bool:
    """Whether a context of the user's own is on top of our layer, for the auto-scheduler."""
    return not isinstance(auto_scheduler.DispatchContext.current, AnsorDispatch)


def users_graph() -> Any:
    """The user's own `ApplyGraphBest` when it lies below our layer, as a context to be entered for one build, or None.

    AlterOpLayout looks only at the topmost context for its class.
    """
    for context in _below(autotvm.task.DispatchContext.current):
        if isinstance(context, autotvm.task.ApplyGraphBest) and not isinstance(context, GraphDispatch):
            again = copy.copy(context)
            again._counter, again._global_cfg_dict = 0, {}
            return again
    return None


def _altered(target: Target, workload: Workload) -> Any:
    altered = layers.altered()
    return None if altered is None else altered.get((str(target), workload))


def _below(context: DispatchContext) -> Iterator[DispatchContext]:
    """The contexts under this one down to TVM's root, which is left out."""
    while (context := context._old_ctx) is not None and not _is_root(context):
        yield context


def _is_root(context: DispatchContext) -> bool:
    return isinstance(context, autotvm.FallbackContext | ansor_dispatcher.FallbackContext) and context._old_ctx is None


def _remove(holder: type[DispatchContext], layer: DispatchContext) -> None:
    if holder.current is layer:
        holder.current = layer._old_ctx
        return
    context = holder.current
    while context is not None:
        if context._old_ctx is layer:
            context._old_ctx = layer._old_ctx
            return
        context = context._old_ctx

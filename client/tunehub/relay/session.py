"""What dispatch knows while hubs serve a thread: the configuration of each workload, and what must not be used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tvm import auto_scheduler, autotvm

from tunehub.compiler.hub import Hub
from tunehub.exceptions import RecordUnusableError, typed_last_line
from tunehub.records.whole_splits import with_whole_splits
from tunehub.relay.coverage import CHANGE, serves, state_of
from tunehub.relay.ladder import ConfigRequest, ServedConfig, find_config
from tunehub_registry.tuning_log import auto_scheduler_key, autotvm_key

if TYPE_CHECKING:
    from tunehub.relay.types import Workload
    from tunehub.target.types import Target

HubFor = Callable[[Any], Hub | None]


class DispatchSession:
    """Answers TVM's questions from hubs; `hub_for` gives the hub that serves a target, or None.

    Nothing here raises in default mode: what goes wrong is a miss, and the hub warns.
    """

    def __init__(self, hub_for: HubFor) -> None:
        self._hub_for = hub_for
        self._hubs: dict[str, Hub | None] = {}
        self._lock = threading.RLock()
        self._banned: dict[str, str] = {}
        self._served: dict[tuple[str, Any], ServedConfig | None] = {}
        self._states: dict[tuple[str, str], Any] = {}
        self._references: dict[str, list[Any]] = {}
        self.enabled = True
        self.without: frozenset[str] = frozenset()  # templates whose records do not serve the build at hand
        self.referring = True

    def hub(self, target: Target) -> Hub | None:
        """The hub that serves `target`."""
        name = str(target)
        with self._lock:
            if name not in self._hubs:
                self._hubs[name] = self._hub_for(target)
            return self._hubs[name]

    def hubs(self) -> tuple[Hub, ...]:
        """The hubs asked so far, each once."""
        return tuple(dict.fromkeys(hub for hub in self._hubs.values() if hub is not None))

    def config(self, target: Target, workload: Workload) -> Any:
        """The AutoTVM configuration for a workload, or None."""
        found = self.served(target, workload)
        return found.config if found else None

    def served(self, target: Target, workload: Workload) -> ServedConfig | None:
        """The record that serves a workload, found once."""
        if not self.enabled or target is None or workload is None or workload[0] in self.without:
            return None
        name = (str(target), workload)
        with self._lock:
            if name not in self._served:
                self._served[name] = self._guarded(target, lambda hub: self._find(hub, target, workload))
            found = self._served[name]
        return None if found is None or found.key in self._banned else found

    def state(self, target: Target, workload_key: str) -> Any:
        """The auto-scheduler's state for a workload, or None."""
        if not self.enabled or target is None:
            return None
        name = (str(target), workload_key)
        with self._lock:
            if name not in self._states:
                self._states[name] = self._guarded(target, lambda hub: self._find_state(hub, target, workload_key))
            return self._states[name]

    def references(self, task: str) -> list[Any]:
        """Records of other shapes of an AutoTVM task as TVM's own fallback rule wants them: pairs of input, result."""
        if not (self.enabled and self.referring):
            return []
        with self._lock:
            if task not in self._references:
                self._references[task] = [pair for hub in self.hubs() for pair in self._decoded(hub, task)]
            return self._references[task]

    def is_referenced(self, task: str) -> bool:
        """Whether TVM was given references for this task."""
        return bool(self._references.get(task))

    def has_references(self) -> bool:
        """Whether TVM was given any."""
        return any(self._references.values())

    def ban(self, found: ServedConfig, reason: str) -> None:
        """Never serve this record again; the hub warns, or raises in strict mode."""
        self._banned[found.key] = reason
        hub = self.hub(found.target)
        if hub is not None:
            record = found.candidate.record
            text = f"{found.candidate.package}: the record of {record.name} is not used: {reason}"
            hub.failed("building with records", RecordUnusableError(text, remedy=CHANGE))

    def in_use(self) -> list[ServedConfig]:
        """The AutoTVM records handed out and not banned."""
        return [item for item in self._served.values() if item and item.key not in self._banned]

    def _guarded(self, target: Target, find: Callable[[Hub], Any]) -> Any:
        hub = self.hub(target)
        if hub is None:
            return None
        try:
            return find(hub)
        except Exception as error:  # a bug of ours must not break a compile
            hub.failed("looking up a record", error)
            return None

    def _find(self, hub: Hub, target: Target, workload: Workload) -> ServedConfig | None:
        try:
            key = autotvm_key(workload)
        except TypeError:  # a dynamic shape: no record can be for it
            return None
        request = ConfigRequest(logs=hub.logs, target=target, workload=workload, key=key)
        served, rejected = find_config(request)
        for item in rejected:
            hub.note(f"{item.package}: {item.record} was {item.reason}")
        return served

    def _find_state(self, hub: Hub, target: Target, workload_key: str) -> Any:
        candidate = hub.logs.best("auto_scheduler", auto_scheduler_key(str(workload_key)))
        if candidate is None:
            return None
        try:
            state = state_of(candidate)
        except Exception as error:  # TVM's reader raises anything
            text = f"{candidate.package}: the record of {candidate.record.name} is not used: {typed_last_line(error)}"
            hub.failed("reading a record", RecordUnusableError(text, remedy=CHANGE))
            return None
        return state if serves(candidate, auto_scheduler.ComputeDAG(str(workload_key)), hub, target) else None

    def _decoded(self, hub: Hub, task: str) -> Iterable[Any]:
        for candidate in hub.logs.of_task(task):
            try:
                pair = autotvm.record.decode(with_whole_splits(candidate.line).decode("utf-8"))
            except Exception as error:  # TVM's reader raises anything
                hub.failed("reading a reference record", error)
                continue
            if pair is not None:
                yield pair


_active: ContextVar[DispatchSession | None] = ContextVar("tunehub_relay_session", default=None)
_installed: DispatchSession | None = None


def current_session() -> DispatchSession | None:
    """The session of this thread or task, else the one that is installed for the process."""
    return _active.get() or _installed

"""TVM's entry points to its default compile pipelines, replaced while a hub is on (TVM 0.25 and newer)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

from tunehub.compiler.ahead import is_ahead
from tunehub.compiler.artifacts.store import ArtifactStore, store_of
from tunehub.compiler.cuda.dependent_launch import with_dependent_launches
from tunehub.compiler.cuda.side_by_side import SideBySide
from tunehub.compiler.halves import RuntimeInParts
from tunehub.tir.lowering import PIPELINE, Factory, without_cleaning

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Pass, PassContext

_Defaults: TypeAlias = "tuple[Callable[..., Pass], Callable[[Target], Pass]]"
_active: ContextVar[Hub | None] = ContextVar("tunehub_active_hub", default=None)
_last: ContextVar[Hub | None] = ContextVar("tunehub_last_hub", default=None)  # of those that are installed


class DefaultPipelinePatch:
    """TVM's entry points to its default pipelines, replaced while at least one context, install or compile needs it.

    ``relax/vm_build.py`` takes ``PIPELINE_MAP["default"]`` on CPUs and ``relax.get_default_pipeline`` on GPUs;
    ``tirx/build.py`` lowers by another ``PIPELINE_MAP``.
    """

    def __init__(self, build: Callable[[Target, Hub], Pass]) -> None:
        """``build`` makes the module pass that compiles for a target with a hub's records."""
        self._build = build
        self._open_hub: Callable[[Target], Hub] | None = None
        self._users = 0
        self._lock = threading.Lock()
        self._originals: _Defaults | None = None
        self._lowering: Factory | None = None
        self.kernels = SideBySide(store=_store)
        self._parts = RuntimeInParts()

    @contextmanager
    def activate(self, hub: Hub) -> Iterator[None]:
        """Make ``tvm.compile(mod, target)`` use ``hub`` inside the block, in this thread or task only."""
        token = _active.set(hub)
        try:
            with self.applied():
                yield
        finally:
            _active.reset(token)

    def install(self, open_hub: Callable[[Target], Hub]) -> None:
        """Make every later ``tvm.compile`` of this process use the hub that ``open_hub(target)`` gives. Idempotent."""
        if self._open_hub is None:
            self._acquire()
        self._open_hub = open_hub

    def uninstall(self) -> None:
        """Undo :meth:`install`; TVM is left exactly as it was."""
        if self._open_hub is not None:
            self._open_hub = None
            self._release()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replaced inside the block."""
        self._acquire()
        try:
            yield
        finally:
            self._release()

    def _acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._apply()

    def _release(self) -> None:
        from tvm import relax
        from tvm.tirx.compilation_pipeline import PIPELINE_MAP

        with self._lock:
            self._users -= 1
            if self._users == 0 and self._originals is not None:
                relax.pipeline.PIPELINE_MAP["default"], relax.get_default_pipeline = self._originals
                PIPELINE_MAP[PIPELINE] = self._lowering
                self.kernels.close()
                self._parts.close()
                self._originals = self._lowering = None

    def originals(self) -> _Defaults:
        """The pair (default of the pipeline map, default by target) as TVM ships it."""
        from tvm import relax

        return self._originals or (relax.pipeline.PIPELINE_MAP["default"], relax.get_default_pipeline)

    def _apply(self) -> None:
        import tvm
        from tvm import relax
        from tvm.tirx.compilation_pipeline import PIPELINE_MAP

        default, by_target = relax.pipeline.PIPELINE_MAP["default"], relax.get_default_pipeline
        self._originals, self._lowering = (default, by_target), PIPELINE_MAP[PIPELINE]
        self._parts.apply()
        PIPELINE_MAP[PIPELINE] = self.kernels.lowering(
            with_dependent_launches(without_cleaning(PIPELINE_MAP[PIPELINE], _lost_vectors))
        )

        def hub_or_default() -> Pass:
            @tvm.transform.module_pass(opt_level=0, name="tunehub.default")  # type: ignore[untyped-decorator]
            def choose(mod: IRModule, _context: PassContext) -> IRModule:
                target = tvm.target.Target.current(allow_none=True)
                hub = self._hub_for(target)
                return (default() if hub is None else self._build(target, hub))(mod)

            return choose

        def hub_or_default_by_target(target: Target) -> Pass:
            hub = self._hub_for(target)
            return by_target(target) if hub is None else self._build(target, hub)

        relax.pipeline.PIPELINE_MAP["default"] = hub_or_default
        relax.get_default_pipeline = hub_or_default_by_target

    def _hub_for(self, target: Target) -> Hub | None:
        hub = _active.get()
        if hub is not None or self._open_hub is None or target is None:
            return hub if target is not None else None
        hub = self._open_hub(target)
        _last.set(hub)
        return hub


def _store() -> ArtifactStore:
    """What keeps machine code for the hub of the module that is lowered."""
    hub = _active.get() or _last.get()
    return store_of(None if hub is None else hub.options)


def _lost_vectors(functions: Collection[str], reason: str) -> None:
    """The module that is lowered is the one that went through the hub's pipeline before."""
    if is_ahead():
        raise RuntimeError(reason)
    hub = _active.get() or _last.get()
    if hub is not None:
        hub.lost_vectors(functions, reason)

"""Turning hubs on in TVM: for a block of one thread or task, or for the process.

TVM gives no hook for "before a build", so four methods and three functions of it are replaced while any hub is on, and
put back when the last one ends.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tvm
from tvm import autotvm
from tvm.relay.backend.vm import VMCompiler
from tvm.relay.build_module import BuildModule

from tunehub.compiler.hub import Hub
from tunehub.relay import build, dispatch, layers, session

if TYPE_CHECKING:
    from tunehub.relay.types import Compiler, Op, Params, RelayModule, RelayType
    from tunehub.target.types import Target, TargetLike
    from tunehub.tir.types import Attrs, Tensor

try:
    from tvm.relay.backend import te_compiler
except ImportError:  # TVM 0.8
    from tvm.relay.backend import compile_engine as te_compiler

_lock = threading.Lock()
_users = 0
_originals: list[tuple[Any, str, Any]] = []


@contextmanager
def activate(hub: Hub) -> Iterator[None]:
    """Serve what this thread or task builds for the hub's kind of target, until the block ends."""
    current = session.DispatchSession(lambda target: hub if hub.serves(target) else None)
    token = session._active.set(current)
    _acquire()
    try:
        yield
    finally:
        session._active.reset(token)
        _release()


def install(hub_for: Callable[[Any], Hub]) -> None:
    """Serve every build of the process; `hub_for` gives the hub of a target. A second call replaces the first."""
    if session._installed is None:
        _acquire()
    session._installed = session.DispatchSession(hub_for)


def uninstall() -> None:
    """Undo `install`."""
    if session._installed is not None:
        session._installed = None
        _release()


def _acquire() -> None:
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            dispatch.attach()
            _replace_all()


def _release() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            dispatch.detach()
            while _originals:
                holder, name, original = _originals.pop()
                setattr(holder, name, original)


def _replace_all() -> None:
    for method in ("build", "optimize"):
        _replace(BuildModule, method, _building)
    _replace(VMCompiler, "optimize", _building)
    _replace(VMCompiler, "lower", _lowering)
    _replace(VMCompiler, "codegen", _generating)
    _replace(te_compiler, "select_implementation", _selecting)
    # TVM asks these only below a hub: the download of TopHub must not be tried, and references come from the hub.
    _replace(autotvm.tophub, "context", lambda original: _no_tophub)
    _replace(autotvm.tophub, "check_backend", lambda original: _no_backend)
    _replace(autotvm.tophub, "load_reference_log", lambda original: _references)


def _replace(holder: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(holder, name)
    _originals.append((holder, name, original))
    setattr(holder, name, functools.wraps(original)(wrap(original)))


def _building(original: Callable[..., Any]) -> Any:
    def replaced(self: Compiler, mod: RelayModule, target: TargetLike = None, *args: object, **kwargs: Any) -> Any:
        def run() -> Any:
            return original(self, mod, target, *args, **kwargs)

        current = session.current_session()
        if current is None or layers.altered() is not None:  # no hub here, or inside of a build that has one
            with build.alone():
                return run()
        params = kwargs.get("params")
        module = mod if isinstance(mod, tvm.IRModule) else tvm.IRModule.from_expr(mod)
        return build.build(current, module, params or _params(self), target, run, lambda: _renew(self, params))

    return replaced


def _lowering(original: Callable[..., Any]) -> Any:
    """Lowering generates code, too: what TVM cannot make of a record shows no earlier (`VerifyMemory`, NVRTC)."""
    generate = VMCompiler.codegen

    def lower_and_generate(self: Compiler, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if session.current_session() is not None:
            generate(self)
            self.is_generated = True

    return _building(lower_and_generate)


def _generating(original: Callable[..., Any]) -> Any:
    def replaced(self: Compiler) -> None:
        if not self.__dict__.pop("is_generated", False):
            original(self)

    return replaced


def _params(module: Compiler) -> Any:
    """The parameters that were given to the compiler before (VM)."""
    return module.get_params() if isinstance(module, VMCompiler) else None


def _renew(module: Compiler, params: Params) -> None:
    """Make a compiler new: after an error its C++ object holds half a build."""
    kept = _params(module)
    module.__init__()
    if kept:
        module.set_params(kept)


def _selecting(original: Callable[..., Any]) -> Any:
    def replaced(
        op: Op, attrs: Attrs, inputs: Sequence[Tensor], out_type: RelayType, target: Target, use_autotvm: bool = True
    ) -> Any:
        layers.choosing()
        implementation, outputs = original(op, attrs, inputs, out_type, target, use_autotvm)
        layers.chosen(op, attrs, inputs, target, implementation, outputs)
        return implementation, outputs

    return replaced


def _no_tophub(target: Target, extra_files: Sequence[str] | None = None) -> Any:
    """In place of TopHub's context: the hub is a layer of its own; files that the caller names still count."""
    context = autotvm.task.ApplyHistoryBest([])
    for name in extra_files or ():
        context.load(name)
    return context if extra_files else autotvm.utils.EmptyContext()


def _no_backend(tophub_location: str, backend: str) -> bool:
    return False


def _references(backend: str, model: str, workload_name: str) -> list[Any]:
    """In place of TopHub's reference log: the hub's records of the same task, for TVM's own fallback rule."""
    current = session.current_session()
    return current.references(workload_name) if current else []

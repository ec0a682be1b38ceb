"""The public functions: compile with records, for one call, inside a block, or for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from tunehub.compiler.hub import Hub, check_options, describe_target, open_hub, resolve_host
from tunehub.options import HubOptions, read_options
from tunehub.policy import Policy
from tunehub.registries.resolution import Resolution
from tunehub.report.report import Report
from tunehub.target.descriptors import as_tvm_target
from tunehub.target.threads import size_pool
from tunehub.target.tvm_generation import Generation, find_tvm, require_relax, require_tvm

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tunehub.graph.types import Executable, Params
    from tunehub.options import Sizes
    from tunehub.target.types import Target, TargetLike
    from tunehub.tir.types import IRModule, Pass


def compile(
    mod: IRModule,
    target: TargetLike | None = None,
    *,
    params: Params | None = None,
    specialize: Sizes | None = None,
    hub: Hub | None = None,
    **options: Unpack[HubOptions],
) -> Executable:
    """Compile a Relax module with records; returns what `tvm.compile` does (a `tvm.relax.VMExecutable`).

    `target` is anything that `tunehub.resolve` takes; None is this machine's CPU. `params` are bound into `main`.
    `specialize`: sizes of open dimensions, `{"batch": [1, 8], "sequence": [128]}`, for whose every combination `main`
    gets a function of its own beside the one for all sizes; which one runs is decided by the inputs.
    `hub` reuses a hub (then no options); pass one to read its `report()` afterwards.
    For a CPU, `TVM_NUM_THREADS` is set to the physical cores if TVM would take fewer and nobody has set a number.
    Raises UnsupportedTVMError, UnknownTargetError, RequirementError, SettingError, LockFileError; HubError only in
    strict mode; and what TVM raises for the module.
    """
    require_relax()
    from tunehub.compiler import pipeline as relax_pipeline

    tvm_target = as_tvm_target(target)
    sized = size_pool() if tvm_target.kind.name == "llvm" else None
    chosen = _hub_for(tvm_target, hub, options)
    if sized is not None:
        chosen.note(sized)
    return relax_pipeline.compile_module(mod, tvm_target, chosen, params, specialize)


def explain(
    mod: IRModule,
    target: TargetLike | None = None,
    *,
    params: Params | None = None,
    specialize: Sizes | None = None,
    hub: Hub | None = None,
    **options: Unpack[HubOptions],
) -> Report:
    """Say what `compile` would do with a Relax module, without generating code: the report, its times predicted.

    `target` need not be this machine; nothing is measured. Raises as `compile`.
    """
    require_relax()
    from tunehub.compiler import pipeline as relax_pipeline

    tvm_target = as_tvm_target(target)
    chosen = _hub_for(tvm_target, hub, options)
    relax_pipeline.explain_module(mod, tvm_target, chosen, params, specialize)
    chosen.read_tuning()
    return chosen.report()


@contextmanager
def context(target: TargetLike | None = None, **options: Unpack[HubOptions]) -> Iterator[Hub]:
    """Inside the block `tvm.compile(mod, target)`, or on TVM up to 0.19 `relay.build(mod, target)`, uses records.

    The block's value is the hub, with its `report()`. Only this thread or task is affected, and afterwards nothing in
    TVM is changed. Raises as `compile`.
    """
    generation = require_tvm()
    hub = open_hub(as_tvm_target(target), **options)
    with _module(generation).activate(hub):
        yield hub


def install(**options: Unpack[HubOptions]) -> None:
    """Make every later `tvm.compile` or `relay.build` of this process use records, each target with its own hub.

    A second call replaces the options. Raises UnsupportedTVMError, RequirementError, SettingError or LockFileError at
    once.
    """
    generation = require_tvm()
    check_options(read_options(**options))

    global _installed
    _installed = _Installed(options)
    _module(generation).install(_installed.hub_for)


def uninstall() -> None:
    """Undo `install`; TVM is left as it was. Does nothing when nothing is installed."""
    global _installed
    if _installed is None:
        return
    _module(require_tvm()).uninstall()
    _installed = None


def installed_hubs() -> tuple[Hub, ...]:
    """The hubs that `install` has opened so far, one a target, for their reports."""
    return () if _installed is None else _installed.hubs()


def pipeline(
    target: TargetLike | None = None,
    *,
    specialize: Sizes | None = None,
    hub: Hub | None = None,
    **options: Unpack[HubOptions],
) -> Pass:
    """A module pass of TVM for `tvm.compile(mod, target, relax_pipeline=…)`. `specialize` and errors as of `compile`;
    sizes that do not fit a module are an error of TVM's when the pass runs."""
    require_relax()
    from tunehub.compiler import pipeline as relax_pipeline

    tvm_target = as_tvm_target(target)
    return relax_pipeline.build_pipeline(tvm_target, _hub_for(tvm_target, hub, options), specialize)


def resolve(target: TargetLike | None = None, **options: Unpack[HubOptions]) -> Resolution:
    """Say which package would serve `target`, and why no other: `resolve(...).explain()`. Works without TVM.

    `target`: a TVM target, a dict or JSON in TVM's form, a package name such as `llvm-znver5`; None is this machine's
    CPU. Raises UnknownTargetError, RequirementError, SettingError, LockFileError; RegistryUnreadableError in strict
    mode.
    """
    read = read_options(**options)
    check_options(read)
    installed = find_tvm()
    policy = Policy(strict=read.strict)
    host = describe_target(target, read, policy)
    return resolve_host(host, read, policy, installed.version if installed else None)[1]


class _Switch(Protocol):
    """What turns hubs on in a generation of TVM, by its own entry points."""

    def activate(self, hub: Hub) -> AbstractContextManager[None]:
        """``hub`` in this thread or task while the context lasts."""

    def install(self, hub_for: Callable[[Target], Hub]) -> None:
        """The hub of each target, in the whole process."""

    def uninstall(self) -> None:
        """TVM as it was."""


class _Installed:
    """The hubs of `install`, opened when a target is first compiled for."""

    def __init__(self, options: HubOptions) -> None:
        self._options = options
        self._hubs: dict[str, Hub] = {}
        self._lock = threading.Lock()

    def hub_for(self, target: Target) -> Hub:
        with self._lock:
            name = str(target)
            if name not in self._hubs:
                self._hubs[name] = open_hub(target, **self._options)
            return self._hubs[name]

    def hubs(self) -> tuple[Hub, ...]:
        return tuple(self._hubs.values())


_installed: _Installed | None = None


def _module(generation: Generation) -> _Switch:
    """The module that turns hubs on in this generation of TVM."""
    if generation == "relay":
        from tunehub.relay import context as relay_context

        return relay_context
    from tunehub.compiler import pipeline as relax_pipeline

    return relax_pipeline


def _hub_for(target: Target, hub: Hub | None, options: HubOptions) -> Hub:
    if hub is None:
        return open_hub(target, **options)
    if options:
        raise TypeError(f"options {', '.join(options)} have no effect on a hub that is open: leave them or `hub` out")
    return hub

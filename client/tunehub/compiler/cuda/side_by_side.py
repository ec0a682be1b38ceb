"""The functions of a module lowered, and its kernels compiled to machine code, by several threads: NVRTC takes most of
a compile for CUDA, for one kernel after the other, and TVM's passes most of the rest.

TVM makes a runtime module for each target, and asks ``tvm_callback_cuda_compile`` for the machine code of one when it
makes it. So kernels are dealt to targets that differ in their tag alone, the source of each is asked for before TVM
does, and threads compile it by the very callback, whosever that is; TVM then gets what they have made. In place of
TVM's own callback NVRTC is asked without the headers that most kernels do not need (:mod:`tunehub.tir.cuda.nvrtc`): for
9 modules of a ResNet-18 threads waited 25 s with them, and 1.9 s without. What NVRTC makes is kept in the cache by its
source (:mod:`tunehub.compiler.artifacts.store`), as long as the callback is TVM's own. Functions of many kernels, as
those of open sizes are, take NVRTC longest: each of these kernels is a module, so that the source is the same in the
process that verifies the schedule and in the compile, which then finds machine code in the cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tunehub.compiler.ahead import LoweredAhead, is_same
from tunehub.compiler.artifacts.kernels import KernelStore
from tunehub.compiler.artifacts.store import ArtifactStore
from tunehub.compiler.halves import lowered_in_parts
from tunehub.target.host import usable_threads
from tunehub.tir.cuda.kept_loops import with_kept_loops
from tunehub.tir.cuda.nvrtc import CALLBACK, asked_for, build_plain, own_architecture, split_source, without_header
from tunehub.tir.lowering import Factory, Lowering
from tunehub.tir.symbols import PROBES

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import GlobalVar, IRModule, Pass, PassContext, PrimFunc

_MOST_MODULES = 16
_FEWEST_KERNELS = 2  # of a module
_APART = 3  # kernels of a function from which on each has a module of its own
_ALONE = "tunehub.alone"  # the mark of such kernels
_FINALISED = "tunehub.finalised"  # the mark of kernels after TVM's last passes
_TAG = "tunehub."
_ENTRY = "tirx.is_entry_func"  # what TVM makes of the only function of a module

_Lowered: TypeAlias = "list[tuple[GlobalVar, PrimFunc]]"


class _SourceSeen(Exception):
    """Ends making a module whose source was asked for."""


class SideBySide:
    """Compiles ahead in ``threads`` threads (None: as many as there are processors); ``store`` gives what keeps machine
    code of the compile that is going on, None: nothing does."""

    def __init__(
        self,
        threads: int | None = None,
        store: Callable[[], ArtifactStore] | None = None,
        quick: Callable[[], bool] = asked_for,
    ) -> None:
        """Nothing is started, and TVM is as it is, until a module for CUDA is compiled. ``quick``: whether NVRTC may be
        asked in place of the callback."""
        self._store, self._quick = store, quick
        self._kept: KernelStore | None = None
        self._threads = min(threads or usable_threads(), _MOST_MODULES)
        self._factory: Factory | None = None
        self._early: ThreadPoolExecutor | None = None
        self._on_cpu = LoweredAhead()
        self._ahead: dict[str, tuple[PrimFunc, Future[_Lowered]]] = {}  # what was begun ahead, by name
        self._pool: ThreadPoolExecutor | None = None
        self._original: Any = None
        self._plain: str | None = None  # TVM's header, where it can be left out
        self._made: dict[str, Future[Any]] = {}
        self._finalised: dict[int, tuple[PrimFunc, PrimFunc]] = {}  # by the hashes, addresses, of what they were
        self._seen = local()

    def lowering(self, factory: Factory) -> Factory:
        """``factory`` of a lowering pipeline, with one that deals kernels to modules and begins to compile them."""
        self._factory = factory

        def apart() -> Lowering:
            import tvm

            lower, finalize_host, finalize_device = factory()

            @tvm.transform.module_pass(opt_level=0, name="tunehub.DealKernels")  # type: ignore[untyped-decorator]
            def deal(mod: IRModule, context: PassContext) -> IRModule:
                return self._dealt(mod, lower, finalize_device, context)

            def finalize() -> Pass:
                passes = finalize_device()

                @tvm.transform.module_pass(opt_level=0, name="tunehub.BeginKernels")  # type: ignore[untyped-decorator]
                def begin(mod: IRModule, _context: PassContext) -> IRModule:
                    finished = self._finalised_module(mod) or passes(mod)
                    with suppress(Exception):  # TVM then says itself what is wrong
                        self._begin(finished)
                    return finished

                return begin

            return deal, finalize_host, finalize

        return apart

    def _dealt(self, mod: IRModule, lower: Pass, finalize_device: Callable[[], Pass], context: PassContext) -> IRModule:
        """``mod`` lowered, its kernels dealt to modules, and their last passes begun."""
        import tvm

        known = {} if context.instruments else self._begun(mod)
        rest = {variable: function for variable, function in mod.functions.items() if variable not in known}
        mod = tvm.IRModule(rest, attrs=mod.attrs)
        if not context.instruments:
            mod = _with_kept_loops(mod)
        own = self._on_cpu.using(lower)
        found = dict(lowered_apart(own, mod, context, self._threads).functions.items())
        found |= {variable: function for part in known.values() for variable, function in part}
        found = dealt(tvm.IRModule(found, attrs=mod.attrs), self._threads)
        if not context.instruments:
            self._finalise_ahead(found, finalize_device, context)
        return found

    def begin(self, name: str, function: PrimFunc, target: Target) -> None:
        """Lower ``function`` of the module that will be compiled for ``target``, in the PassContext of the moment,
        while the caller goes on: one with branches for many sizes, which takes seconds."""
        import tvm

        context, factory = tvm.transform.PassContext.current(), self._factory
        if factory is not None and target.kind.name == "llvm":
            self._on_cpu.begin(lambda: factory()[0], name, function, target)
        if self._factory is None or self._threads < _FEWEST_KERNELS or PROBES not in function.attrs:
            return
        if context.instruments or target.kind.name != "cuda":
            return
        self._early = self._early or ThreadPoolExecutor(self._threads)
        host = target.host or tvm.target.Target("llvm" if tvm.runtime.enabled("llvm") else "c")
        named = tvm.IRModule({name: function.with_attr("global_symbol", name)})
        mod = tvm.tirx.transform.BindTarget(target.with_host(host))(named)
        self._ahead[name] = (mod[name], self._early.submit(_lowered_ahead, self._factory, mod, context))

    def _begun(self, mod: IRModule) -> dict[GlobalVar, _Lowered]:
        """What :meth:`begin` made of functions that are in ``mod`` as they were then; nothing where names clash."""
        found: dict[GlobalVar, _Lowered] = {}
        for variable, function in mod.functions.items():
            before, future = self._ahead.pop(str(variable.name_hint), (None, None))
            if before is not None and future is not None and is_same(before, function):
                with suppress(Exception):  # TVM raises it again
                    found[variable] = future.result()
        names = [str(each.name_hint) for part in found.values() for each, _ in part]
        others = {str(each.name_hint) for each in mod.functions if each not in found}
        return found if len(set(names)) == len(names) and not others & set(names) else {}

    def close(self) -> None:
        """End the threads, and leave TVM as it was."""
        self._on_cpu.close()
        if self._early is not None:
            self._early.shutdown(wait=False, cancel_futures=True)
        self._early = self._factory = None
        self._ahead.clear()
        if self._pool is not None:
            _register(self._original)
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self._original, self._plain, self._kept = None, None, None, None
        self._made.clear()
        self._finalised.clear()

    def _finalise_ahead(self, mod: IRModule, finalize: Callable[[], Pass], context: PassContext) -> None:
        """TVM's last passes over each kernel of ``mod``, lowered functions, by threads: TVM asks for them for one
        module after the other, and they take no note of other functions."""
        import tvm

        kernels = [item for item in mod.functions.items() if _is_kernel(item[1])]
        if min(self._threads, len(kernels)) < _FEWEST_KERNELS:
            return

        def finalised(item: tuple[GlobalVar, PrimFunc]) -> PrimFunc:
            if _FINALISED in item[1].attrs:
                return item[1].without_attr(_FINALISED)
            with context:
                return finalize()(tvm.IRModule(dict([item]), attrs=mod.attrs))[item[0]]

        with suppress(Exception), ThreadPoolExecutor(self._threads) as pool:  # TVM raises it again, of a whole module
            done = list(pool.map(finalised, kernels))
            self._finalised = {hash(before): (before, after) for (_, before), after in zip(kernels, done, strict=True)}

    def _finalised_module(self, mod: IRModule) -> IRModule | None:
        """``mod`` with its functions as they were finalised ahead; None where some were not."""
        import tvm

        known = [(variable, self._finalised.pop(hash(function), None)) for variable, function in mod.functions.items()]
        found = {variable: pair[1] for variable, pair in known if pair is not None}
        return tvm.IRModule(found, attrs=mod.attrs) if found and len(found) == len(known) else None

    def _begin(self, mod: IRModule) -> None:
        """Compile what TVM will ask for when it makes a runtime module of ``mod``, finished device functions."""
        import tvm_ffi

        target = next(iter(mod.functions.values())).attrs["target"]
        if not str(target.tag).startswith(_TAG):
            return
        if self._pool is None:
            self._original = tvm_ffi.get_global_func(CALLBACK)
            quick = self._quick()
            self._pool = ThreadPoolExecutor(self._threads)
            _register(self._compile)
            self._plain = self._plain_header() if quick else None
            store = self._store() if self._store is not None and quick else None
            self._kept = KernelStore(store) if store is not None and store.is_used else None
        arguments = self._source(lambda: tvm_ffi.get_global_func("target.build.cuda")(mod, target))
        if arguments is not None:
            self._made[str(arguments[0])] = self._pool.submit(self._machine_code, target, arguments)

    def _plain_header(self) -> str | None:
        arguments = self._source(build_plain)
        return None if arguments is None else split_source(str(arguments[0]))[0]

    def _source(self, build: Callable[[], object]) -> tuple[object, ...] | None:
        """What TVM asks the callback while it does ``build``; None where it does not, as without CUDA."""
        self._seen.arguments, self._seen.asked = None, True
        try:
            build()
        except Exception:
            if self._seen.arguments is None:
                raise
        finally:
            self._seen.asked = False
        found: tuple[Any, ...] | None = self._seen.arguments
        return found

    def _machine_code(self, target: Target, arguments: tuple[object, ...]) -> Any:
        if self._kept is None:
            return self._compiled(target, arguments)
        source = str(arguments[0])
        arch = own_architecture(source, str(target.attrs["arch"]))
        known = self._kept.machine_code(source, arch)
        if known is not None:
            return bytearray(known)
        made = self._compiled(target, arguments)
        self._kept.keep(source, arch, bytes(made))
        return made

    def _compiled(self, target: Target, arguments: tuple[object, ...]) -> Any:
        if self._plain is not None:
            source = str(arguments[0])
            found = without_header(source, self._plain, own_architecture(source, str(target.attrs["arch"])))
            if found is not None:
                return bytearray(found)
        with target:
            return self._original(*arguments)

    def _compile(self, *arguments: object) -> Any:
        """The callback."""
        if getattr(self._seen, "asked", False):
            self._seen.arguments = arguments
            raise _SourceSeen
        made = self._made.pop(str(arguments[0]), None)
        return self._original(*arguments) if made is None else made.result()


def _lowered_ahead(factory: Factory, mod: IRModule, context: PassContext) -> _Lowered:
    """The functions that ``mod``, one function, becomes; kernels finalised, with a mark."""
    import tvm

    lower, _, finalize = factory()

    def finalised(variable: GlobalVar, function: PrimFunc) -> PrimFunc:
        if not _is_kernel(function):
            return function
        return finalize()(tvm.IRModule({variable: function}))[variable].with_attr(_FINALISED, True)

    with context:
        found = _marked(lower(_with_kept_loops(mod)), 1)
        return [(variable, finalised(variable, function).without_attr(_ENTRY)) for variable, function in found]


def _with_kept_loops(mod: IRModule) -> IRModule:
    import tvm

    functions = {v: with_kept_loops(f) if _is_kernel(f) else f for v, f in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


def lowered_apart(lower: Callable[[IRModule], IRModule], mod: IRModule, context: PassContext, threads: int) -> IRModule:
    """``mod`` after the pass ``lower``, under the PassContext ``context``: each function for CUDA on its own, as TVM's
    passes for one function take no note of others, and what is for a host, such as shapes of open dimensions, in one
    module. MetaSchedule lowers in threads as well."""
    import tvm

    parts = [[item] for item in mod.functions.items() if _is_kernel(item[1])]
    if context.instruments:
        return lower(mod)
    others = [item for item in mod.functions.items() if not _is_kernel(item[1])]
    if not mod.functions:
        return mod
    if not parts or min(threads, len(parts) + bool(others)) < _FEWEST_KERNELS:
        together = _marked(lowered_in_parts(lower, mod, context), len(parts) + len(others))
        return tvm.IRModule(dict(together), attrs=mod.attrs)

    def alone(items: _Lowered) -> _Lowered:
        with context:
            part = lower(tvm.IRModule(dict(items), attrs=mod.attrs))
        return [(variable, function.without_attr(_ENTRY)) for variable, function in _marked(part, len(items))]

    with ThreadPoolExecutor(threads) as pool:
        found = [each for part in pool.map(alone, [*parts, others] if others else parts) for each in part]
    if len({str(variable.name_hint) for variable, _ in found}) < len(found):
        return lower(mod)  # a kernel's name is that of another function
    return tvm.IRModule(dict(found), attrs=mod.attrs)


def _marked(lowered: IRModule, functions: int) -> list[tuple[GlobalVar, PrimFunc]]:
    """What ``lowered`` has, made of so many functions; the kernels that have a module of their own with a mark."""
    found = list(lowered.functions.items())
    if functions > 1 or sum(_is_kernel(function) for _, function in found) < _APART:
        return found
    return [(variable, each.with_attr(_ALONE, True) if _is_kernel(each) else each) for variable, each in found]


def dealt(mod: IRModule, modules: int) -> IRModule:
    """``mod``, lowered, with the kernels for each target of CUDA dealt to at most ``modules`` targets of their own,
    where there are so many that it pays. Those with a mark have one each."""
    import tvm

    groups: dict[str, _Lowered] = {}
    for variable, function in mod.functions.items():
        if _is_kernel(function):
            groups.setdefault(str(function.attrs["target"]), []).append((variable, function))
    dealings = [_Dealing.of(text, group, modules) for text, group in groups.items()]
    if sum(each.modules for each in dealings) < _FEWEST_KERNELS:
        return mod
    found = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    for kind, dealing in enumerate(dealings):
        config = json.loads(dealing.target)
        tagged = [tvm.target.Target({**config, "tag": f"{_TAG}{kind}.{n}"}) for n in range(dealing.modules)]
        for number, (variable, function) in enumerate(dealing.kernels):
            place = number if number < dealing.alone else dealing.alone + number % dealing.shared
            found.update_func(variable, function.without_attr(_ALONE).with_attr("target", tagged[place]))
    return found


class _Dealing(NamedTuple):
    """Kernels for one target: the first are ``alone`` in a module each, the others in ``shared`` ones."""

    target: str
    kernels: _Lowered
    alone: int
    shared: int

    @classmethod
    def of(cls, target: str, group: _Lowered, modules: int) -> _Dealing:
        """At most so many ``modules`` are shared."""
        alone = [item for item in group if _ALONE in (item[1].attrs or {})]
        others = [item for item in group if _ALONE not in (item[1].attrs or {})]
        shared = max(1, min(modules, len(others) // _FEWEST_KERNELS)) if others else 0
        return cls(target, [*alone, *others], len(alone), shared)

    @property
    def modules(self) -> int:
        """How many there are."""
        return self.alone + self.shared


def _is_kernel(function: PrimFunc) -> bool:
    target = function.attrs.get("target") if function.attrs else None
    return target is not None and str(target.kind.name) == "cuda"


def _register(function: Callable[..., object]) -> None:
    import tvm_ffi

    tvm_ffi.register_global_func(CALLBACK, function, override=True)

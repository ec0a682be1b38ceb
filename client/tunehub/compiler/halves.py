"""Modules for CPUs lowered and made machine code of in two parts, by two threads at once.

TVM lowers all functions of a module one after the other, and LLVM makes one object of them: a third of a compile.
TVM's passes and LLVM take no note of other functions, and hold no lock of Python's. There are two parts whatever the
number of cores, so that a library is the same wherever it is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import GlobalVar, IRModule, Module, PassContext, PrimFunc

_PARTS = 2
_FEWEST = 24  # functions of a module: fewer take no longer than what the second part costs
_MAKER = "tir_to_runtime"  # what TVM calls to make runtime modules of lowered functions

_Part = TypeVar("_Part")
_Functions: TypeAlias = "list[tuple[GlobalVar, PrimFunc]]"
Lower: TypeAlias = "Callable[[IRModule], IRModule]"


def lowered_in_parts(lower: Lower, mod: IRModule, context: PassContext) -> IRModule:
    """``mod`` after the pass ``lower`` under the PassContext ``context``, in parts where it has many functions, all for
    CPUs."""
    import tvm

    if context.instruments or not _is_large(mod):
        return lower(mod)

    def part_of(items: _Functions) -> _Functions:
        with context:
            return list(lower(tvm.IRModule(dict(items), attrs=mod.attrs)).functions.items())

    parts = _side_by_side(part_of, mod)
    if parts is None:
        return lower(mod)
    return tvm.IRModule(dict(item for part in parts for item in part), attrs=mod.attrs)


class RuntimeInParts:
    """TVM's making of runtime modules, replaced for those that are large and for CPUs alone."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._original: Callable[[IRModule, dict[Target, IRModule], Target], Module] | None = None

    def apply(self) -> None:
        """Replace it; nothing where this TVM has no such function."""
        module = _builder()
        self._original = getattr(module, _MAKER, None)
        if self._original is not None:
            setattr(module, _MAKER, self._made)

    def close(self) -> None:
        """Leave TVM as it was."""
        if self._original is not None:
            setattr(_builder(), _MAKER, self._original)
        self._original = None

    def _made(self, host: IRModule, devices: dict[Target, IRModule], target: Target) -> Module:
        import tvm

        make, context = self._original, tvm.transform.PassContext.current()
        assert make is not None  # TVM's own, which this is in place of
        if devices or context.instruments or not _is_large(host):
            return make(host, devices, target)

        def part_of(items: _Functions) -> Module:
            with context:
                return make(tvm.IRModule(dict(items), attrs=host.attrs), {}, target)

        parts = _side_by_side(part_of, host)
        if parts is None:
            return make(host, devices, target)
        first, *others = parts
        for each in others:
            if not any(known.same_as(each) for known in first.imports):  # as where somebody keeps what TVM made
                first.import_module(each)
        return first


def _builder() -> ModuleType:
    return importlib.import_module("tvm.tirx.build")


def _is_large(mod: IRModule) -> bool:
    """Whether there are so many functions that parts pay, all for CPUs."""
    functions = list(mod.functions.values())
    targets = [each.attrs.get("target") if each.attrs else None for each in functions]
    return len(functions) >= _FEWEST and all(each is not None and each.kind.name == "llvm" for each in targets)


def _side_by_side(part_of: Callable[[_Functions], _Part], mod: IRModule) -> list[_Part] | None:
    """What ``part_of`` makes of each part of the functions; None where TVM raises for one, such as for a function that
    calls one of the other: it is to be asked of the whole. Functions are dealt there and back (ABBA): in many networks
    every second one takes longer."""
    items = list(mod.functions.items())
    turns = [*range(_PARTS), *reversed(range(_PARTS))]
    with ThreadPoolExecutor(_PARTS) as pool:
        parts = [[item for at, item in enumerate(items) if turns[at % len(turns)] == n] for n in range(_PARTS)]
        try:
            return list(pool.map(part_of, parts))
        except Exception:  # of any kind
            return None

"""A Relax module becomes a library that says what it takes (TVM 0.25 and newer)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from tunehub import api
from tunehub.compiler.hub import open_hub
from tunehub.compiler.libraries.inputs import rules_digest
from tunehub.compiler.libraries.keeping import kept_compile
from tunehub.deploy.embedding import interface_of, weight_bytes, with_interface
from tunehub.deploy.interface import Interface
from tunehub.deploy.library import copy_library, find_linker, share_library, write_library
from tunehub.report.report import Report
from tunehub.target.descriptors import as_tvm_target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tunehub.options import HubOptions, Sizes
    from tunehub.tir.types import IRModule

STEPS = ("import", "registries", "graph", "schedule", "lower", "code", "link")
"""What a compile does, in order; the first is reading the model."""


class StepClock:
    """When each step began: seconds by step. `show` is told what begins."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = show
        self._began: list[tuple[str, float]] = []

    def __call__(self, step: str) -> None:
        """`step` begins, and the one before ends."""
        self._began.append((step, time.perf_counter()))
        if self._show is not None:
            self._show(step)

    def seconds(self) -> dict[str, float]:
        """Seconds of each step so far, the last one until now; several of one name are added."""
        ends = [began for _, began in self._began[1:]] + [time.perf_counter()]
        found: dict[str, float] = {}
        for (name, began), end in zip(self._began, ends, strict=True):
            found[name] = found.get(name, 0.0) + end - began
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledLibrary:
    """A library that was written, or is kept in the cache: its `bytes`, those of the model's weights as they were
    imported, the report, and `seconds` by step."""

    path: Path
    interface: Interface
    report: Report
    bytes: int
    weight_bytes: int
    seconds: Mapping[str, float]


def compile_library(
    mod: IRModule,
    path: Path,
    *,
    target: object = None,
    clock: StepClock,
    outputs: Sequence[str] = (),
    source: Path | None = None,
    specialize: Sizes | None = None,
    cc: str | None = None,
    copied: bool = True,
    check: Callable[[Interface], object] = lambda _: None,
    **options: Unpack[HubOptions],
) -> CompiledLibrary:
    """Compile `mod` as `tunehub.compile` does and write it as the shared library `path`, which names its `outputs`, and
    `source`, the model's file. `cc` is the compiler that links it.

    The same compile, in this process or a later one, takes the library that is kept in the cache; where it may not be
    `copied` it stays there, and so does what is kept now. `check` sees what the library will take before anything is
    compiled. Raises what that raises, as `tunehub.compile`; LibraryError for a module
    without a `main` of tensors, LinkError, OSError.
    """
    clock("registries")
    tvm_target = as_tvm_target(target)
    interface = interface_of(mod, tvm_target, outputs=outputs, source=source)
    check(interface)
    linker = find_linker(path, cc)
    hub = open_hub(tvm_target, **options)
    hub.on_step = clock
    try:
        hub.origin = structs.replace(hub.origin, rules_sha256=rules_digest())
        interface = structs.replace(interface, origin=hub.origin)
        named = with_interface(mod, interface)
        kept = kept_compile(hub, tvm_target, partial(_what, named, linker, specialize))
        library = kept.library()
        if library is None:
            executable = api.compile(named, tvm_target, hub=hub, specialize=specialize)
            clock("link")
            write_library(executable, path, linker, weight_bytes(mod))
            library = kept.keep(partial(copy_library if copied else share_library, path))
        elif copied:
            clock("link")
            copy_library(library, path)
        hub.read_tuning()
        report = hub.report()
    finally:
        hub.close()
    path = path if copied or library is None else library
    return CompiledLibrary(
        path=path,
        interface=interface,
        report=report,
        bytes=path.stat().st_size,
        weight_bytes=weight_bytes(mod),
        seconds=clock.seconds(),
    )


def _what(mod: IRModule, linker: str, specialize: Sizes | None) -> dict[str, object]:
    """What is compiled, in JSON's types."""
    from tunehub.compiler.libraries.inputs import module_digest

    sizes = {name: list(each) for name, each in (specialize or {}).items()}
    return {"module": module_digest(mod), "linker": linker, "sizes": sizes}

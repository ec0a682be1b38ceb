"""A language model compiled with records: for TVM's cache, or for steps on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import tvm

from tunehub import api
from tunehub.compiler.hub import open_hub
from tunehub.compiler.libraries.keeping import kept_compile
from tunehub.deploy.library import copy_library, found_linker, write_library
from tunehub.exceptions import UsageError
from tunehub.graph.steps.writing import with_steps
from tunehub.kernels.cuda.paged_attention.narrow import E4M3_PAGES
from tunehub.models.description import ModelDescription, load_described, with_description
from tunehub.models.export import FUNCTIONS, export, parameters_of
from tunehub.models.quantization import quantization
from tunehub.models.session import CacheSession
from tunehub.models.step_session import StepSession
from tunehub.target.descriptors import as_tvm_target
from tunehub.target.threads import size_pool
from tunehub.tir.nodes import calls_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Unpack

    from tunehub.compiler.hub import Hub
    from tunehub.graph.types import BaseFunc, Executable
    from tunehub.models.config import ModelConfig
    from tunehub.models.export import ModelParameter
    from tunehub.models.quantization import Quantization
    from tunehub.models.session import CacheSizes, LanguageSession
    from tunehub.models.types import Device, DeviceTensor
    from tunehub.options import HubOptions
    from tunehub.report.report import Report
    from tunehub.target.types import Target, TargetLike
    from tunehub.tir.types import GlobalVar, IRModule

AUTO = "auto"
CACHE_TYPES = (AUTO, "fp8_e4m3")  # as vLLM calls them
GRAPHS = {"relax.backend.use_cuda_graph": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledLanguageModel:
    """`steps`: its functions take pages as tensors, not TVM's cache; `cache`: of which type these are, that of
    activations where it is empty. `report`: of a compile through tunehub. `made` is
    what this process compiled or loaded, None where `library`, which is kept in the cache, is all there is."""

    made: Executable | None
    config: ModelConfig
    quantization: Quantization
    report: Report | None
    steps: bool
    cache: str = ""
    library: Path | None = None

    @property
    def executable(self) -> Executable:
        """Its code: a `VMExecutable`, or the loaded library, which a `VirtualMachine` takes as well. Raises what TVM
        raises for a device that its runtime does not know."""
        return tvm.runtime.load_module(str(self.library)) if self.made is None else self.made

    def write(self, path: Path, cc: str | None = None) -> None:
        """Write its library; `cc` links it where none is kept. Raises LinkError."""
        if self.library is None:
            write_library(self.made, path, cc)
        else:
            copy_library(self.library, path)

    @property
    def parameters(self) -> tuple[ModelParameter, ...]:
        """Its weights, in the order in which a session takes them."""
        return parameters_of(self.config, self.quantization)

    def session(self, weights: Iterable[DeviceTensor], device: Device, sizes: CacheSizes) -> LanguageSession:
        """It at work, with its weights on the device in the module's order."""
        made: StepSession | CacheSession
        if self.steps:
            dtype = E4M3_PAGES if self.cache else self.quantization.dtype
            made = StepSession(self.executable, weights, device, sizes, self.config, dtype)
        else:
            made = CacheSession(self.executable, weights, device, sizes)
        made.words, made.context = self.config.vocabulary, self.config.context
        return made


def compile_model(
    config: ModelConfig,
    quantization_name: str,
    target: TargetLike | None = None,
    *,
    most_sequences: int = 64,
    steps: bool | None = None,
    cache_dtype: str = "auto",
    functions: Sequence[str] = FUNCTIONS,
    cc: str | None = None,
    **options: Unpack[HubOptions],
) -> CompiledLanguageModel:
    """Compile a model with records, for at most so many sequences at once.

    ``steps``: as functions on tensors, whose step is one CUDA graph on a GPU, in place of those that take TVM's cache;
    None: on GPUs. ``cache_dtype``: of the keys and values of steps, ``fp8_e4m3`` or that of activations (``auto``). The
    same compile, in this process or a later one, takes the library that is kept in the cache, which
    ``cc`` links: None is the first compiler found. Raises as `tunehub.compile`, and UsageError.
    """
    tvm_target = as_tvm_target(target)
    kind = str(tvm_target.kind.name)
    steps = kind == "cuda" if steps is None else steps
    cache = _checked_cache(cache_dtype, steps=steps)
    said = ModelDescription(config=config, quantization=quantization_name, steps=steps, device=kind, cache=cache)
    sized = size_pool() if kind == "llvm" else None
    with tvm.transform.PassContext(opt_level=3, config=GRAPHS if steps and kind == "cuda" else {}):
        hub = open_hub(tvm_target, **options)
        if sized is not None:
            hub.note(sized)
        made, library = _compiled(said, tvm_target, hub, most_sequences, functions, cc)
    report, kind_of_weights = hub.report(), quantization(quantization_name)
    hub.close()
    return CompiledLanguageModel(
        made=made,
        config=config,
        quantization=kind_of_weights,
        report=report,
        steps=steps,
        cache=cache,
        library=library,
    )


def _compiled(
    said: ModelDescription, target: Target, hub: Hub, most_sequences: int, functions: Sequence[str], cc: str | None
) -> tuple[Executable | None, Path | None]:
    """What was compiled of the model ``said``, None where it is kept in the cache, and the library there, if any."""
    what = {
        "model": msgspec.to_builtins(said),
        "sequences": most_sequences,
        "functions": list(functions),
        "linker": found_linker(cc),
    }
    kept = kept_compile(hub, target, lambda: what)
    library = kept.library(partial(_loads, said.device))
    if library is not None:
        return None, library
    module = export(said.config, target, said.quantization, functions).module
    module = _steps_alone(module, most_sequences, e4m3_pages=bool(said.cache)) if said.steps else module
    made = api.compile(with_description(module, said), target, hub=hub)
    return made, kept.keep(partial(write_library, made, cc=cc))


def _checked_cache(dtype: str, *, steps: bool) -> str:
    """What a description says of it. Raises UsageError."""
    if dtype not in CACHE_TYPES:
        raise UsageError(dtype, "is no type of a cache", place="cache", remedy=f"take one of {', '.join(CACHE_TYPES)}")
    if dtype != AUTO and not steps:
        raise UsageError(dtype, "is for GPUs alone", place="cache", remedy=f"take {AUTO}")
    return "" if dtype == AUTO else dtype


def _loads(kind: str, library: Path) -> bool:
    """Whether TVM's runtime loads a library: the cache may lie where nothing may be run. One for a device that the
    runtime does not know can be copied all the same."""
    if not tvm.runtime.enabled(kind):
        return True
    try:
        tvm.runtime.load_module(str(library))
    except Exception:  # of the system's loader, or of TVM's
        return False
    return True


def load_model(path: Path) -> tuple[CompiledLanguageModel, str]:
    """The library of a model, and the kind of device that it is for. Loading one runs its code. Raises LibraryError."""
    executable, said = load_described(path)
    kind = quantization(said.quantization)
    made = CompiledLanguageModel(
        made=executable, config=said.config, quantization=kind, report=None, steps=said.steps, cache=said.cache
    )
    return made, said.device


def _steps_alone(module: IRModule, most_sequences: int, *, e4m3_pages: bool) -> IRModule:
    """The functions on tensors and their kernels, without those that they were made of. TVM's DeadCodeElimination takes
    away the writing of pages that the same function does not read."""
    written = with_steps(module, most_sequences, e4m3_pages=e4m3_pages)
    waiting = [each for each in written.functions if str(each.name_hint).endswith(("_step", "greedy"))]
    kept: dict[GlobalVar, BaseFunc] = {}
    while waiting:
        name = waiting.pop()
        kept[name] = written[name]
        calls = calls_in(tvm.IRModule({name: written[name]}))
        called = {arg for call in calls for arg in (call.op, *call.args) if isinstance(arg, tvm.ir.GlobalVar)}
        waiting += [each for each in called if each not in kept]
    return tvm.IRModule(kept, attrs=written.attrs)

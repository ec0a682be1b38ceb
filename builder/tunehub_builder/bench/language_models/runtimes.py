"""The runtimes of a language model by name; a worker process makes one and imports nothing of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tunehub_builder.bench.language_models.case import LanguageCase, LanguageRuntime

OURS = "tunehub"


def _tvm(case: LanguageCase, _threads: int, **options: Any) -> LanguageRuntime:
    from tunehub_builder.bench.language_models.tvm_runtime import TvmLanguageModel

    return TvmLanguageModel(case, **options)


def _torch(case: LanguageCase, threads: int, **options: Any) -> LanguageRuntime:
    from tunehub_builder.bench.language_models.torch_runtime import TorchLanguageModel

    return TorchLanguageModel(case, threads=threads, **options)


def _llama_cpp(case: LanguageCase, threads: int) -> LanguageRuntime:
    from tunehub_builder.bench.language_models.llama_cpp_runtime import LlamaCppModel

    return LlamaCppModel(case, threads)


def _onnxruntime(case: LanguageCase, threads: int, **options: Any) -> LanguageRuntime:
    from tunehub_builder.bench.language_models.onnx_runtimes import onnxruntime_model

    return onnxruntime_model(case, threads, **options)


def _tunehub_onnx(case: LanguageCase, threads: int, **options: Any) -> LanguageRuntime:
    from tunehub_builder.bench.language_models.onnx_runtimes import tunehub_model

    return tunehub_model(case, threads, **options)


def _openvino(case: LanguageCase, threads: int) -> LanguageRuntime:
    from tunehub_builder.bench.language_models.onnx_runtimes import openvino_model

    return openvino_model(case, threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRuntime:
    """How one is made, with options of its own; the ``modules`` that a peer needs: it reads weights from a folder."""

    make: Callable[..., LanguageRuntime]
    options: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()


_ONNX = ("onnx", "safetensors")
RUNTIMES: Mapping[str, KnownRuntime] = MappingProxyType(
    {
        OURS: KnownRuntime(make=_tvm),
        "tunehub_cache": KnownRuntime(make=_tvm, options={"steps": False}),
        "tunehub_steps": KnownRuntime(make=_tvm, options={"steps": True}),
        "tunehub_onnx": KnownRuntime(make=_tunehub_onnx, modules=("onnxruntime", *_ONNX)),
        "tunehub_onnx_dynamic": KnownRuntime(
            make=_tunehub_onnx, options={"dynamic": True}, modules=("onnxruntime", *_ONNX)
        ),
        "default": KnownRuntime(make=_tvm, options={"default": True}),
        "torch": KnownRuntime(make=_torch),
        "torch_compiled": KnownRuntime(make=_torch, options={"compiled": True}),
        "llama.cpp": KnownRuntime(make=_llama_cpp, modules=("llama_cpp", "gguf", "safetensors")),
        "onnxruntime": KnownRuntime(make=_onnxruntime, modules=("onnxruntime", *_ONNX)),
        "onnxruntime_dynamic": KnownRuntime(
            make=_onnxruntime, options={"dynamic": True}, modules=("onnxruntime", *_ONNX)
        ),
        "openvino": KnownRuntime(make=_openvino, modules=("openvino", *_ONNX)),
    }
)


def made(name: str, case: LanguageCase, threads: int) -> LanguageRuntime:
    """In the worker: what answers."""
    return RUNTIMES[name].make(case, threads, **RUNTIMES[name].options)


def needs_files(name: str) -> bool:
    """Whether it reads weights from a folder, and writes its own files of them."""
    return bool(RUNTIMES[name].modules)

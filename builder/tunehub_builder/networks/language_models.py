"""Language models of known shapes in MLC-LLM's form. Their weights are inputs: none are made to tune them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from tunehub.models.config import Experts, ModelConfig
from tunehub_builder.networks.exceptions import ModelFileError
from tunehub_builder.networks.network import OPEN, Network

if TYPE_CHECKING:
    import onnx
    import tvm

MODELS: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "llama-3-8b": ModelConfig(
            family="llama",
            hidden=4096,
            intermediate=14336,
            layers=32,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocabulary=128256,
            context=8192,
            epsilon=1e-5,
            rope_theta=500000.0,
        ),
        "qwen2.5-7b": ModelConfig(
            family="qwen2",
            hidden=3584,
            intermediate=18944,
            layers=28,
            heads=28,
            kv_heads=4,
            head_dim=128,
            vocabulary=152064,
            context=32768,
            epsilon=1e-6,
            rope_theta=1000000.0,
            qkv_bias=True,
        ),
        "qwen2.5-1.5b": ModelConfig(
            family="qwen2",
            hidden=1536,
            intermediate=8960,
            layers=28,
            heads=12,
            kv_heads=2,
            head_dim=128,
            vocabulary=151936,
            context=32768,
            epsilon=1e-6,
            rope_theta=1000000.0,
            qkv_bias=True,
            tied=True,
        ),
        "qwen2.5-0.5b": ModelConfig(
            family="qwen2",
            hidden=896,
            intermediate=4864,
            layers=24,
            heads=14,
            kv_heads=2,
            head_dim=64,
            vocabulary=151936,
            context=32768,
            epsilon=1e-6,
            rope_theta=1000000.0,
            qkv_bias=True,
            tied=True,
        ),
        "phi-3-mini": ModelConfig(
            family="phi3",
            hidden=3072,
            intermediate=8192,
            layers=32,
            heads=32,
            kv_heads=32,
            head_dim=96,
            vocabulary=32064,
            context=4096,
            epsilon=1e-5,
            rope_theta=10000.0,
        ),
        "qwen1.5-moe-a2.7b": ModelConfig(
            family="qwen2_moe",
            hidden=2048,
            intermediate=5632,
            layers=24,
            heads=16,
            kv_heads=16,
            head_dim=128,
            vocabulary=151936,
            context=8192,
            epsilon=1e-6,
            rope_theta=1000000.0,
            qkv_bias=True,
            experts=Experts(count=60, chosen=4, intermediate=1408, shared=5632, normalised=False),
        ),
        "mixtral-8x7b": ModelConfig(
            family="mixtral",
            hidden=4096,
            intermediate=14336,
            layers=32,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocabulary=32000,
            context=32768,
            epsilon=1e-5,
            rope_theta=1000000.0,
            experts=Experts(count=8, chosen=2, intermediate=14336),
        ),
    }
)
"""Shapes of models as published, by name."""
_ROWS = (1, 8, 32, 64, 128, 256, 512, 1024)
_DIMS: Mapping[str, tuple[int, ...]] = MappingProxyType({"seq_len": _ROWS, "batch_size": _ROWS})
_BETWEEN = "_q"  # a model and its quantization


def is_language_model(name: str) -> bool:
    """Whether `language_model` has it: `llama-3-8b_q4f16_1`, say."""
    model, between, quantization = name.partition(_BETWEEN)
    return model in MODELS and bool(between) and quantization != ""


def language_model(name: str, dims: Mapping[str, tuple[int, ...]] | None = None) -> Network:
    """The model `name`, of those in ``MODELS``, in the quantization behind it. `seq_len` and `batch_size` are open;
    `dims`: the values for which they are tuned, None: `1` to `1024`. Raises ModelFileError for other dimensions."""
    model, _, quantization = name.partition(_BETWEEN)
    unknown = sorted((dims or {}).keys() - _DIMS.keys())
    if unknown:
        raise ModelFileError(name, f"it has no dimension {unknown[0]!r}", f"Its dimensions are {', '.join(_DIMS)}")
    definition = LanguageModelByName(name=name, config=MODELS[model], quantization=_BETWEEN[1:] + quantization)
    return Network(
        name=name,
        source=f"tunehub.models, {MODELS[model].family}{OPEN}{', '.join(_DIMS)}",
        inputs={},
        dtype="bfloat16" if "bf16" in quantization else "float32" if "f32" in quantization else "float16",
        dims={**_DIMS, **(dims or {})},
        definition=definition,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModelByName:
    """`config` with weights in MLC-LLM's `quantization`."""

    name: str
    config: ModelConfig
    quantization: str

    def relax_module(self) -> tvm.IRModule:
        """Functions `prefill`, `batch_decode` and so on in place of `main`, their weights in a tuple. Raises
        UsageError for a quantization that is not known."""
        from tunehub.models.export import export

        return export(self.config, None, self.quantization).module

    def onnx_model(self) -> onnx.ModelProto:
        """There is none: raises ModelFileError."""
        raise ModelFileError(self.name, "it has no form in ONNX", "Its times are those of `benchmarks language_models`")

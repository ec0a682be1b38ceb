"""A language model as a module of Relax, as MLC-LLM exports and then dispatches it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache

from tunehub.models.decoder import Decoder
from tunehub.models.quantization import quantization
from tunehub.target.descriptors import as_tvm_target
from tunehub.tir.intrinsics import light_parser

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.models.config import ModelConfig
    from tunehub.models.quantization import Quantization
    from tunehub.models.types import KVCache, SizeVar, Tensor
    from tunehub.target.types import Target, TargetLike
    from tunehub.tir.types import IRModule

CREATE_CACHE = "create_tir_paged_kv_cache"
FUNCTIONS = ("embed", "prefill", "decode", "batch_prefill", "batch_decode", "greedy")
_CACHE_SIZES = ("max_batch_size", "max_total_seq_len", "prefill_chunk_size", "page_size", "support_sliding_window")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParameter:
    """A tensor of `packed_params`."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedModel:
    """`module` has the functions that were asked for and `create_tir_paged_kv_cache`; `parameters` in the order of the
    tuple `packed_params` that each takes last."""

    module: IRModule
    parameters: tuple[ModelParameter, ...]
    config: ModelConfig
    quantization: Quantization


def export(
    config: ModelConfig,
    target: TargetLike | None = None,
    quantization_name: str = "q0f16",
    functions: Sequence[str] = FUNCTIONS,
) -> ExportedModel:
    """The module of a model for ``target`` (None: this machine's CPU), on which the kernels of its cache depend.

    ``functions``: which of ``FUNCTIONS``. Shapes, with hidden features ``h`` and words ``v``: ``embed`` int32
    ``[seq_len]`` → ``[seq_len, h]``; ``prefill`` ``[1, seq_len, h]``, ``decode`` ``[1, 1, h]``, ``batch_decode``
    ``[batch_size, 1, h]`` → float32 ``[batch, 1, v]``; ``batch_prefill`` ``[1, seq_len, h]`` with int32
    ``logit_positions`` ``[batch_size]`` → ``[1, batch_size, v]``; ``greedy`` float32 ``[batch_size, v]`` → int32
    ``[batch_size]``, the likeliest, without weights. Raises UsageError.
    """
    kind, tvm_target = quantization(quantization_name), as_tvm_target(target)
    model = Decoder(config, kind)
    model.create_tir_paged_kv_cache = _cache_creator(config, kind, tvm_target)
    with tvm_target, light_parser():
        module, named = model.export_tvm(spec=nn.spec.ModuleSpec.from_raw(_specs(config, kind, functions), model))
    return ExportedModel(module=module, parameters=_parameters(named), config=config, quantization=kind)


def parameters_of(config: ModelConfig, kind: Quantization) -> tuple[ModelParameter, ...]:
    """Those of the module, without exporting it."""
    return _parameters(Decoder(config, kind).named_parameters())


def _parameters(named: Iterable[tuple[str, Tensor]]) -> tuple[ModelParameter, ...]:
    return tuple(
        ModelParameter(name=name, shape=tuple(int(each) for each in value.shape), dtype=str(value.dtype))
        for name, value in named
    )


def _specs(config: ModelConfig, kind: Quantization, functions: Sequence[str]) -> dict[str, dict[str, object]]:
    cache = {"paged_kv_cache": nn.spec.Object(object_type=PagedKVCache)}

    def tensor(*shape: int | str) -> object:
        return nn.spec.Tensor([*shape, config.hidden], kind.dtype)

    specs: dict[str, dict[str, object]] = {
        "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32")},
        "prefill": {"input_embed": tensor(1, "seq_len"), **cache},
        "decode": {"input_embed": tensor(1, 1), **cache},
        "batch_prefill": {
            "input_embeds": tensor(1, "seq_len"),
            "logit_positions": nn.spec.Tensor(["batch_size"], "int32"),
            **cache,
        },
        "batch_decode": {"input_embeds": tensor("batch_size", 1), **cache},
    }
    specs["greedy"] = {"logits": nn.spec.Tensor(["batch_size", config.vocabulary], "float32")}
    modes = {name: "none" if name == "greedy" else "packed" for name in functions}
    chosen = {name: {**specs[name], "$": {"param_mode": mode, "effect_mode": "none"}} for name, mode in modes.items()}
    create = {**dict.fromkeys(_CACHE_SIZES, int), "$": {"param_mode": "none", "effect_mode": "none"}}
    return {**chosen, CREATE_CACHE: create}


def _cache_creator(config: ModelConfig, kind: Quantization, target: Target) -> Callable[..., KVCache]:
    """The function that makes the cache, of TVM's own kernels."""

    def create_tir_paged_kv_cache(
        max_batch_size: SizeVar,
        max_total_seq_len: SizeVar,
        prefill_chunk_size: SizeVar,
        page_size: SizeVar,
        support_sliding_window: SizeVar,
    ) -> KVCache:
        return TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=max_batch_size,
            max_total_seq_len=max_total_seq_len,
            prefill_chunk_size=prefill_chunk_size,
            page_size=page_size,
            support_sliding_window=support_sliding_window,
            layer_partition=relax.ShapeExpr([0, config.layers]),
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            qk_head_dim=config.head_dim,
            v_head_dim=config.head_dim,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=int(config.rope_theta),
            rope_scaling={} if config.rope_scaling is None else config.rope_scaling.for_tvm(),
            rope_ext_factors=_number(0),
            rotary_dim=config.head_dim,
            enable_disaggregation=False,
            dtype=kind.dtype,
            target=target,
        )

    return create_tir_paged_kv_cache


def _number(value: int) -> Expr:
    """A scalar argument."""
    return relax.PrimValue(value) if hasattr(relax, "PrimValue") else relax.prim_value(value)  # the latter since 0.26

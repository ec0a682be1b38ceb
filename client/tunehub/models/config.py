"""What a language model is: read from the `config.json` of a Hugging Face folder, which anybody may have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from tunehub.exceptions import ModelError

T = TypeVar("T")

CONFIG = "config.json"
_MOST_BYTES = 1 << 20

Family = Literal["llama", "mistral", "qwen2", "phi3", "mixtral", "qwen2_moe"]

Size = Annotated[int, Meta(gt=0, le=1 << 20)]
Layers = Annotated[int, Meta(gt=0, le=1024)]
Heads = Annotated[int, Meta(gt=0, le=4096)]
Epsilon = Annotated[float, Meta(gt=0, lt=1)]
Base = Annotated[float, Meta(gt=1, le=1 << 40)]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary embeddings reach beyond the lengths that a model was trained for, as Llama 3.1 does it."""

    factor: Annotated[float, Meta(ge=1, le=1024)]
    low_freq_factor: Annotated[float, Meta(gt=0, le=1024)]
    high_freq_factor: Annotated[float, Meta(gt=0, le=1024)]
    original_max_position_embeddings: Size

    def for_tvm(self) -> dict[str, Any]:
        """As TVM's rotary embeddings take it."""
        return {"rope_type": "llama3", **msgspec.structs.asdict(self)}


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts: `chosen` of `count` for each token, each of `intermediate` features; `shared`: features of
    one that every token passes beside them, 0 for none; `normalised`: their weights sum to 1."""

    count: int
    chosen: int
    intermediate: int
    shared: int = 0
    normalised: bool = True


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder. `intermediate`: features of the feed-forward network; `context`: the most tokens of a sequence;
    `qkv_bias`: query, key and value have biases; `tied`: logits are computed with the embedding's weight."""

    family: Family
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    tied: bool = False
    experts: Experts | None = None
    end_tokens: tuple[int, ...] = ()

    @property
    def qkv(self) -> int:
        """Features of query, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


class _Rope(msgspec.Struct, frozen=True):
    """`rope_scaling`, and `rope_parameters` of newer files."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Base | None = None
    partial_rotary_factor: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"


class _ModelType(msgspec.Struct, frozen=True):
    """The key that says which others there are."""

    model_type: str


class _ConfigFile(msgspec.Struct, frozen=True):
    """`config.json`: the keys that are read."""

    model_type: str
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Heads
    vocab_size: Size
    rms_norm_eps: Epsilon = 1e-6
    num_key_value_heads: Heads | None = None
    head_dim: Annotated[int, Meta(gt=0, le=1024)] | None = None
    max_position_embeddings: Annotated[int, Meta(gt=0, le=1 << 24)] = 2048
    rope_theta: Base | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    sliding_window: Annotated[int, Meta(ge=0)] | None = None
    use_sliding_window: bool = True
    num_local_experts: Annotated[int, Meta(gt=0, le=1024)] | None = None
    num_experts: Annotated[int, Meta(gt=0, le=1024)] | None = None
    num_experts_per_tok: Annotated[int, Meta(gt=0, le=64)] = 2
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] = []
    eos_token_id: int | list[int] | None = None


class _Declared(msgspec.Struct, frozen=True):
    """Newer files say `dtype`."""

    dtype: Any = None
    torch_dtype: Any = None


def declared_type(folder: Path) -> str:
    """The type of a folder's weights by its ``config.json``; empty where that says none. Raises ModelError."""
    found = _read(folder / CONFIG, lambda raw: msgspec.json.decode(raw, type=_Declared))
    return str(found.dtype or found.torch_dtype or "")


def read_config(folder: Path) -> ModelConfig:
    """The model of ``folder``, by its ``config.json``. Raises ModelError."""
    path = folder / CONFIG
    return _read(path, lambda raw: _config(_known(raw, path), path))


def _read(path: Path, made: Callable[[bytes], T]) -> T:
    """What is ``made`` of a file. Raises ModelError, also where what is in it is wrong."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        remedy = "give a folder with a model as Hugging Face's transformers saves it"
        raise ModelError(path, error.strerror or str(error), place="model", remedy=remedy) from None
    if len(raw) > _MOST_BYTES:
        raise ModelError(path, "is larger than 1 MB", place="model", remedy="give the model's own configuration")
    try:
        return made(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        remedy = "correct that key" if isinstance(error, msgspec.ValidationError) else "it should be JSON: copy it"
        raise ModelError(path, str(error), place="model", remedy=remedy) from None


def _known(raw: bytes, path: Path) -> _ConfigFile:
    """A file of a known family: others have other keys."""
    family = msgspec.json.decode(raw, type=_ModelType).model_type
    if family not in get_args(Family):
        known = ", ".join(get_args(Family))
        raise _wrong(path, "model_type", family, f"is of no known family; known are {known}")
    return msgspec.json.decode(raw, type=_ConfigFile)


def _config(file: _ConfigFile, path: Path) -> ModelConfig:
    kv_heads = file.num_key_value_heads or file.num_attention_heads
    head_dim = file.head_dim or file.hidden_size // file.num_attention_heads
    _check(file, path, kv_heads, head_dim)
    rope = file.rope_parameters or _Rope()
    ends = file.eos_token_id
    return ModelConfig(
        family=file.model_type,  # type: ignore[arg-type]
        hidden=file.hidden_size,
        intermediate=file.intermediate_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=file.vocab_size,
        context=_context(file),
        epsilon=file.rms_norm_eps,
        rope_theta=rope.rope_theta or file.rope_theta or 10000.0,
        rope_scaling=_rope_scaling(file, path),
        qkv_bias=file.model_type.startswith("qwen2"),
        tied=file.tie_word_embeddings,
        experts=_experts(file, path),
        end_tokens=(ends,) if isinstance(ends, int) else tuple(ends or ()),
    )


def _check(file: _ConfigFile, path: Path, kv_heads: int, head_dim: int) -> None:
    """Refuse what would silently be computed otherwise."""
    rope = file.rope_parameters or _Rope()
    if file.hidden_act not in ("silu", "swish"):
        raise _wrong(path, "hidden_act", file.hidden_act, "is not supported, only silu is")
    if file.attention_bias or file.mlp_bias:
        raise _wrong(path, "attention_bias or mlp_bias", True, "is not supported in this family")
    if file.num_attention_heads % kv_heads:
        raise _wrong(path, "num_key_value_heads", kv_heads, f"does not divide {file.num_attention_heads} heads")
    if head_dim % 2 or not head_dim:
        raise _wrong(path, "head_dim", head_dim, "is 0 or odd, and rotary embeddings turn pairs")
    for factor in (file.partial_rotary_factor, rope.partial_rotary_factor):
        if factor not in (None, 1.0):
            raise _wrong(path, "partial_rotary_factor", factor, "is not supported, only 1.0 is")


def _context(file: _ConfigFile) -> int:
    """Where attention sees a window only, sequences are no longer than that: then it is attention to all."""
    if file.sliding_window and (file.use_sliding_window or not file.model_type.startswith("qwen2")):
        return min(file.sliding_window, file.max_position_embeddings)
    return file.max_position_embeddings


def _rope_scaling(file: _ConfigFile, path: Path) -> RopeScaling | None:
    rope = file.rope_scaling or file.rope_parameters
    if rope is None or rope.kind == "default":
        return None
    if rope.kind != "llama3":
        raise _wrong(path, "rope_scaling", rope.kind, "is not supported, only llama3 is")
    found = msgspec.convert({name: getattr(rope, name) for name in RopeScaling.__struct_fields__}, RopeScaling)
    if found.low_freq_factor >= found.high_freq_factor:
        raise _wrong(path, "high_freq_factor", found.high_freq_factor, f"is no more than {found.low_freq_factor}")
    return found


def _experts(file: _ConfigFile, path: Path) -> Experts | None:
    count = file.num_local_experts or file.num_experts
    if file.model_type not in ("mixtral", "qwen2_moe"):
        return None
    if count is None:
        raise _wrong(path, "num_local_experts or num_experts", None, "is missing")
    if file.num_experts_per_tok > count:
        raise _wrong(path, "num_experts_per_tok", file.num_experts_per_tok, f"is more than {count} experts")
    if file.decoder_sparse_step != 1 or file.mlp_only_layers:
        raise _wrong(path, "decoder_sparse_step or mlp_only_layers", "", "is not supported: layers must be alike")
    mixtral = file.model_type == "mixtral"
    return Experts(
        count=count,
        chosen=file.num_experts_per_tok,
        intermediate=file.moe_intermediate_size or file.intermediate_size,
        shared=0 if mixtral else file.shared_expert_intermediate_size,
        normalised=mixtral or file.norm_topk_prob,
    )


def _wrong(path: Path, key: str, value: object, reason: str) -> ModelError:
    return ModelError(value, reason, place=f"{path}: {key}", remedy="give a model that is supported, see docs/llm.md")

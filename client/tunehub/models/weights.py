"""Weights of a folder's `*.safetensors`, as a model's parameters: read, joined and quantised one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tunehub.exceptions import ModelError
from tunehub.kernels.te.e4m3 import LARGEST
from tunehub.models.checkpoint import ONE_MODEL, ModelWeights, StoredTensor
from tunehub.models.config import Experts, ModelConfig
from tunehub.models.quantization import GROUP, Quantization
from tunehub.target.host import usable_threads

if TYPE_CHECKING:
    from tunehub.models.export import ModelParameter

Array = npt.NDArray[Any]

_ROWS = 4096  # quantised at once, in e4m3
_CACHED = 1 << 18  # numbers quantised at once in groups: they stay in a core's cache
LEAST_SCALE = 1e-7
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_OWN = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")
_BESIDE = ("rotary_emb.inv_freq", "_scale", "_scale_inv")  # what is computed anew, and what is read with a weight
Packed = tuple[Array, Array]  # words and scales
Reader = Callable[[Sequence[StoredTensor]], Packed | None]


def arrays(
    parameters: Sequence[ModelParameter],
    config: ModelConfig,
    kind: Quantization,
    folder: Path,
    read: Reader = lambda _: None,
) -> Iterator[Array]:
    """The parameters of a module in their order. ``read`` quantises tensors that lie row upon row, or gives None for
    those that numpy is to quantise. Raises ModelError for a weight that is missing, of another shape, or none of the
    model that ``config`` describes."""
    checkpoint, last = ModelWeights(folder), ("", (np.empty(0), np.empty(0)))
    _check_names(checkpoint, parameters, config)
    for parameter in parameters:
        base, _, part = parameter.name.rpartition(".")
        if part not in ("q_weight", "q_scale"):
            yield _checked(_joined(checkpoint, parameter.name, config), parameter, folder, exact=bool(kind.stored))
            continue
        if last[0] != base:
            last = (base, _packed(checkpoint, base, config, kind, read))
        yield _checked(last[1][part == "q_scale"], parameter, folder)


def _check_names(checkpoint: ModelWeights, parameters: Sequence[ModelParameter], config: ModelConfig) -> None:
    """Refuse weights that would be left out: biases and norms that the family has not, more layers than are computed,
    logits by another matrix than the embedding's."""
    bases = {parameter.name.removesuffix("q_weight").removesuffix("q_scale") for parameter in parameters}
    wholes = [base + "weight" if base.endswith(".") else base for base in bases]
    known = {name for whole in wholes for name in sources(whole, config.family, config.experts)}
    for name in checkpoint.names():
        if not name.startswith(_OWN) or name in known or name.endswith(_BESIDE):
            continue
        reason = "is no weight of what config.json describes"
        if name == _HEAD and config.tied:
            reason = "is not the embedding, to which config.json ties it"
            if np.array_equal(checkpoint.tensor(name), checkpoint.tensor(_EMBEDDING)):
                continue
        raise ModelError(name, reason, place=str(checkpoint.folder), remedy=ONE_MODEL)


def _checked(array: Array, parameter: ModelParameter, folder: Path, *, exact: bool = False) -> Array:
    """In the parameter's type; ``exact``: only where that has all of its numbers."""
    if array.shape != parameter.shape:
        reason = f"has the shape {array.shape}, and config.json says {parameter.shape}"
        raise ModelError(parameter.name, reason, place=str(folder), remedy=ONE_MODEL)
    made = array.astype(parameter.dtype, copy=False)
    if exact and made is not array and not np.array_equal(made.astype("float32"), array.astype("float32")):
        reason = f"is in {array.dtype} and has numbers that {parameter.dtype} has not"
        raise ModelError(parameter.name, reason, place=str(folder), remedy="compile the model for this folder: q0f32")
    return made


def _packed(checkpoint: ModelWeights, base: str, config: ModelConfig, kind: Quantization, read: Reader) -> Packed:
    """Words and scales of a weight. What lies in e4m3 with a scale for each row, or one, stays as it lies."""
    names = _sources(checkpoint, f"{base}.weight", config)
    stored = [found for found in map(checkpoint.stored, names) if found is not None]
    made = read(stored) if len(stored) == len(names) else None
    if made is None:
        scaled = [found for found in map(checkpoint.in_e4m3, names) if found is not None and found[1].ndim == 1]
        if not kind.e4m3 or len(scaled) < len(names):
            return quantized(_joined(checkpoint, f"{base}.weight", config), kind)
        numbers, scales = (np.concatenate(each) for each in zip(*scaled, strict=True))
        made = numbers, scales
    if config.experts is None or not base.endswith(("e1_e3", "e2")):
        return made
    first, second = (each.reshape(config.experts.count, -1, *each.shape[1:]) for each in made)
    return first, second


def _joined(checkpoint: ModelWeights, name: str, config: ModelConfig) -> Array:
    """What a parameter is made of, put together."""
    found = [checkpoint.tensor(each) for each in _sources(checkpoint, name, config)]
    if config.experts is None or not name.endswith(("e1_e3.weight", "e2.weight")):
        return found[0] if len(found) == 1 else np.concatenate(found)
    each = len(found) // config.experts.count
    return np.stack([np.concatenate(found[at : at + each]) for at in range(0, len(found), each)])


def _sources(checkpoint: ModelWeights, name: str, config: ModelConfig) -> Sequence[str]:
    """:func:`sources`, each of the shape that ``config`` says: joined, one part's rows would pass for another's. Raises
    ModelError."""
    found = sources(name, config.family, config.experts)
    for each in found:
        checkpoint.check_shape(each, shape_of(each, config))
    return found


def shape_of(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Of a tensor by Hugging Face's name."""
    base, _, part = name.rpartition(".")
    leaf, experts, hidden = base.rpartition(".")[2], config.experts, config.hidden
    if leaf.endswith("norm"):
        return (hidden,)
    wide = config.intermediate
    if experts is not None:
        wide = experts.intermediate if ".experts." in name else experts.shared
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    rows = {
        **dict.fromkeys(("embed_tokens", "lm_head"), config.vocabulary),
        "q_proj": heads,
        "k_proj": kv_heads,
        "v_proj": kv_heads,
        "qkv_proj": config.qkv,
        **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), wide),
        "gate_up_proj": 2 * wide,
        "shared_expert_gate": 1,
        "gate": experts.count if experts else 0,
    }.get(leaf, hidden)
    if part == "bias":
        return (rows,)
    return rows, {"o_proj": heads, "down_proj": wide, "w2": wide}.get(leaf, hidden)


def sources(name: str, family: str, experts: Experts | None = None) -> Sequence[str]:
    """Hugging Face's names of what is joined, row upon row, to the parameter ``name``; of experts, expert by expert."""
    base, _, part = name.replace(".moe.", ".block_sparse_moe." if family == "mixtral" else ".mlp.").rpartition(".")
    parent, _, leaf = base.rpartition(".")
    if leaf == "qkv_proj" and family != "phi3":
        return [f"{parent}.{each}_proj.{part}" for each in "qkv"]
    if leaf == "gate_up_proj" and family != "phi3":
        return [f"{parent}.{each}_proj.{part}" for each in ("gate", "up")]
    if experts is not None and leaf in ("e1_e3", "e2"):
        first, second = (("w1", "w3"), ("w2",)) if family == "mixtral" else (("gate_proj", "up_proj"), ("down_proj",))
        leaves = first if leaf == "e1_e3" else second
        return [f"{parent}.experts.{number}.{each}.weight" for number in range(experts.count) for each in leaves]
    return [f"{base}.{part}"]


def quantized(weight: Array, kind: Quantization) -> tuple[Array, Array]:
    """Words and scales of a weight ``[…, K]`` in groups, as MLC-LLM's group quantisation makes them; or numbers in e4m3
    and scales of rows."""
    rows = weight.reshape(-1, weight.shape[-1])
    if kind.e4m3:
        numbers, of_rows = _in_e4m3(rows)
        return numbers.reshape(weight.shape), of_rows.reshape(weight.shape[:-1])
    words = np.empty((len(rows), kind.words(rows.shape[1])), "uint32")
    scales = np.empty((len(rows), kind.groups(rows.shape[1])), kind.dtype)
    some = max(1, _CACHED // max(1, rows.shape[1]))

    def quantize(at: int) -> None:
        words[at : at + some], scales[at : at + some] = _quantized(rows[at : at + some], kind)

    with ThreadPoolExecutor(usable_threads()) as pool:
        list(pool.map(quantize, range(0, len(rows), some)))
    return words.reshape(*weight.shape[:-1], -1), scales.reshape(*weight.shape[:-1], -1)


def _in_e4m3(rows: Array) -> tuple[Array, Array]:
    """Numbers of a weight's rows, the largest of each row is that of e4m3, and scales of the rows."""
    numbers = np.empty(rows.shape, ml_dtypes.float8_e4m3fn)
    scales = np.empty(len(rows), "float32")
    for at in range(0, len(rows), _ROWS):
        some = rows[at : at + _ROWS].astype("float32")
        own = np.maximum(np.abs(some).max(-1), LEAST_SCALE * LARGEST) / np.float32(LARGEST)
        numbers[at : at + _ROWS] = np.clip(some / own[:, None], -LARGEST, LARGEST).astype(numbers.dtype)
        scales[at : at + _ROWS] = own
    return numbers, scales


def _quantized(rows: Array, kind: Quantization) -> tuple[Array, Array]:
    padded = np.zeros((len(rows), kind.groups(rows.shape[1]) * GROUP), "float32")
    padded[:, : rows.shape[1]] = rows
    groups = padded.reshape(len(rows), -1, GROUP)
    largest = np.abs(padded).reshape(-1, GROUP).T.copy().max(0).reshape(groups.shape[:2])
    scales = (np.maximum(largest, LEAST_SCALE * kind.zero) / kind.zero).astype(kind.dtype)
    groups /= scales.astype("float32")[..., None]
    groups += np.float32(kind.zero)
    values = np.clip(np.rint(groups, out=groups), 0, 2 * kind.zero, out=groups).astype("uint8").reshape(len(rows), -1)
    if kind.bits == 4:
        values = values[:, ::2] | values[:, 1::2] << 4
    return np.ascontiguousarray(values).view("<u4"), scales

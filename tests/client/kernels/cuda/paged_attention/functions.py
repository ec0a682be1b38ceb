"""The kernels that TVM writes for a paged cache, ours in their place, and how these are run without a GPU."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend.nn.llm import kv_cache

from tunehub.kernels.cuda import paged_attention
from tunehub.kernels.cuda.paged_attention.function import BUFFERS, with_kernel
from tunehub.kernels.cuda.paged_attention.matching import paged_attention_of
from tunehub.kernels.cuda.paged_attention.source import PREFIX, bringing, products
from tunehub.kernels.cuda.paged_attention.spec import PAGE, ByWarpgroups, Kind, PagedAttention, PagedBulkTile, Tile
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.nodes import parameters

from ..low_batch.on_cpu import HEADER, INSTRUCTIONS, run_code
from ..scheduled import H200

_OWN_HEADER = (Path(__file__).parent / "instructions.hpp").read_text()
_OWN_INSTRUCTIONS = (Path(paged_attention.__file__).parent / "instructions.cuh").read_text()
LIMITED = "sliding_window_size" in signature(kv_cache._attention_prefill).parameters
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def of_tvm(
    kind: str, key_heads: int, heads: int, depth: int, *, dtype: str = "float16", window: bool = False, cross: int = 0
) -> Any:
    """The kernel as TVM writes it for a Llama 3."""
    if kind == "decode":
        return kv_cache._attention_decode(key_heads, heads, depth, dtype, window, LLAMA3, H200)
    if kind == "prefill":
        more = {"sliding_window_size": cross} if cross else {}
        return kv_cache._attention_prefill(key_heads, heads, depth, dtype, window, LLAMA3, H200, **more)
    return kv_cache._attention_prefill_ragged(key_heads, heads, depth, depth, dtype, LLAMA3, H200)


def found(function: Any, cross: int = 0) -> PagedAttention:
    """What ``function`` is recognised as."""
    attention = paged_attention_of(function, H200, [cross] if cross else [])
    assert attention is not None
    return attention


def cuda_source(function: Any) -> str:
    """The CUDA source of a function; numbers are computed where they are used."""
    with tvm.transform.PassContext(disabled_pass=["tirx.CommonSubexprElim"]):
        return source_of(tvm.tirx.build(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), H200))


def run(
    attention: PagedAttention, tile: Tile, device: GpuDevice, arrays: dict[str, Any], blocks: int, folder: Path
) -> None:
    """Run our kernel on a CPU; ``arrays``: by the names of :data:`BUFFERS`, and numbers by their own."""
    function = attention.function
    source = cuda_source(with_kernel(attention, tile, device))
    code = source[source.index(f"namespace {PREFIX}") :]
    assert INSTRUCTIONS in code
    assert _OWN_INSTRUCTIONS in code
    code, maps = code.replace(INSTRUCTIONS, "").replace(_OWN_INSTRUCTIONS, ""), {}
    if isinstance(tile, ByWarpgroups):
        code = code.replace(products(attention, tile), "")
    if isinstance(tile, PagedBulkTile):
        code = code.replace(bringing(attention, tile), "").replace("const __grid_constant__ CUtensorMap", "CUtensorMap")
        maps = _maps(attention, tile, arrays)
    buffers = {
        str(b.name): arrays.get(name) for name, b in zip(BUFFERS[attention.kind], parameters(function), strict=True)
    }
    extents = {"B": len(arrays["key_offset"]), "batch_size": len(arrays["key_offset"])}
    if "values" in arrays:
        extents["nnz_pages"] = len(arrays["values"])
    if "starts" in arrays:
        extents |= dict.fromkeys(("total_len", "qo_len"), len(arrays["queries"]))
    offsets = dict.fromkeys(_offsets(code), 0)
    numbers = {name: value for name, value in arrays.items() if isinstance(value, (int, float))}
    named = {**offsets, **extents, **numbers, **buffers, "parts": arrays.get("parts"), **maps}
    run_code(HEADER + _OWN_HEADER, code, named, (blocks, 1), folder)


def _maps(attention: PagedAttention, tile: PagedBulkTile, arrays: dict[str, Any]) -> dict[str, Any]:
    """What the copy engine is told of keys and values, by the names that kernels have for it."""
    ragged = attention.kind is Kind.RAGGED
    width = attention.depth * (attention.key_heads if ragged else 1)
    matrices = {name: arrays[name] for name in (("keys", "own_values") if ragged else ("pages",))}
    return {
        f"{name}_map": np.array([each.ctypes.data, each.size // width, width, tile.keys if ragged else PAGE], np.int64)
        for name, each in matrices.items()
    }


def _offsets(code: str) -> set[str]:
    import re

    return set(re.findall(r"\w+_elem_offset", code))


def empty_like(shape: tuple[int, ...], dtype: str) -> Any:
    """Results that nobody has written yet."""
    return np.full(shape, 0x7FFF, np.uint16) if dtype == "bfloat16" else np.full(shape, np.nan, np.float16)

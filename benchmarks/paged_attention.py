"""Attention over a paged cache on a GPU, of language models' heads: our kernels, TVM's own and PyTorch's.

Each is recorded in a CUDA graph, with copies of the cache that are larger than the GPU's. Outputs are compared with
PyTorch's in float32. Decode is counted in bytes of keys and values, prefill in operations. Needs PyTorch.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import product
from typing import Any

import click

from benchmarks.processes.gpu_network import this_gpu
from benchmarks.shared.graph_times import graph_us
from benchmarks.shared.table import Row
from tunehub.compiler.hub import open_hub
from tunehub.compiler.pipeline import activate
from tunehub.kernels.cuda.attention.kernel import LOG2_E
from tunehub.kernels.cuda.paged_attention.narrow import with_e4m3_pages
from tunehub.kernels.cuda.paged_attention.rule import PagedWorkload, build, candidates, fits, match
from tunehub.kernels.cuda.paged_attention.spec import (
    PAGE,
    DecodeTile,
    Kind,
    PagedBulkTile,
    PagedWarpgroupTile,
    PrefillTile,
    Tile,
)

HEADS = {  # of queries, of keys, elements
    "llama-3-8b": (32, 8, 128),
    "qwen2.5-7b": (28, 4, 128),
    "phi-3-mini": (32, 32, 96),
    "qwen2.5-0.5b": (14, 2, 64),
}
OPTIONS = (
    click.Option(["--only"], default="llama-3-8b", show_default=True, help="Heads by names or patterns, by commas."),
    click.Option(["--batches"], default="1,8,32", show_default=True, help="Sequences of decode."),
    click.Option(["--tokens"], default="512,8192", show_default=True, help="Of a sequence, for decode and prefill."),
    click.Option(["--kinds"], default="decode,ragged,prefill", show_default=True, help="Of kernels."),
    click.Option(["--ragged"], is_flag=True, help="Sequences of decode are between 1 and so many tokens long."),
    click.Option(["--bfloat16"], is_flag=True, help="In place of float16."),
    click.Option(["--e4m3"], is_flag=True, help="Pages of it."),
    click.Option(["--tiles"], is_flag=True, help="Every tile of a list in place of the likeliest; TVM's is left out."),
)
_COPIES_BYTES, _MOST_COPIES = 300_000_000, 100  # of keys and values: six times the cache of an H200
_QUERIES = 512  # of a sequence behind as many tokens as are asked for, of the kind "prefill"
_FEW = 3  # repeats of what takes long
_MOST_APART = {"float16": 2e-3, "bfloat16": 1.6e-2}  # of the largest value


def run(
    only: str,
    batches: str,
    tokens: str,
    kinds: str,
    *,
    ragged: bool = False,
    bfloat16: bool = False,
    e4m3: bool = False,
    tiles: bool = False,
) -> list[Row]:
    """Milliseconds of one layer, each told to stderr as it comes; notes say what is wrong."""
    names = [name for name in HEADS if any(fnmatch.fnmatch(name, each.strip()) for each in only.split(","))]
    found: list[Row] = []
    for name, kind, length in product(names, map(Kind, kinds.split(",")), map(int, tokens.split(","))):
        for batch in map(int, batches.split(",")) if kind is Kind.DECODE else [1]:
            lengths = _lengths(batch, length, ragged=ragged and kind is Kind.DECODE)
            case = PagedCase(kind, HEADS[name], lengths, "bfloat16" if bfloat16 else "float16", e4m3=e4m3)
            for row in _rows(f"{name} {kind.value}, batch {batch}, {length} tokens", case, tiles=tiles):
                click.echo(f"{row.name}: {row.value * 1e3:.1f} us, {row.note}", err=True)
                found.append(row)
    return found


def _lengths(batch: int, most: int, *, ragged: bool) -> list[int]:
    import random

    chance = random.Random(batch)
    return [chance.randint(1, most) if ragged else most for _ in range(batch)]


def _rows(label: str, case: PagedCase, *, tiles: bool) -> Iterator[Row]:
    torch_us = graph_us(case.torch_launch, _FEW)
    yield Row(name=f"{label}, torch", value=torch_us / 1e3, unit="ms", note=case.rate(torch_us))
    given = _workload(case)
    own = [next(candidates(given)).tile]
    if tiles:
        own = [each for each in _TILES[case.kind is Kind.DECODE] if fits(given, each)]
    functions = {f"tunehub {_text(each)}": build(given, each) for each in own}
    if not tiles:
        functions["TVM"] = given.attention.function
    for name, function in functions.items():
        us, apart = case.timed(function, long=name == "TVM")
        right = "" if apart <= _MOST_APART[case.dtype] else "WRONG: "
        note = f"{case.rate(us)}, {us / torch_us:.3f} of torch's, {right}{apart:.1e} apart"
        yield Row(name=f"{label}, {name}", value=us / 1e3, unit="ms", note=note)


_DECODE = (
    (4, 3, 2),
    (4, 2, 2),
    (4, 2, 3),
    (4, 3, 4),
    (8, 3, 1),
    (2, 3, 4),
    (2, 4, 2),
    (4, 5, 1),
    (4, 4, 2),
    (4, 5, 2),
    (8, 3, 2),
)
_PREFILL = ((4, 2, 64), (4, 2, 32), (4, 1, 64), (8, 1, 64), (8, 2, 64))
_WARPGROUPS = ((2, 128), (2, 64), (3, 64), (1, 128))
_BULK = ((2, 128, 2), (2, 128, 3), (2, 64, 4), (3, 64, 3), (1, 128, 2))
_TILES: dict[bool, list[Any]] = {
    True: [DecodeTile(warps=warps, stages=stages, blocks=blocks) for warps, stages, blocks in _DECODE],
    False: [
        *(PrefillTile(warps=warps, tall=tall, keys=keys) for warps, tall, keys in _PREFILL),
        *(PagedWarpgroupTile(groups=groups, keys=keys) for groups, keys in _WARPGROUPS),
        *(PagedBulkTile(groups=groups, keys=keys, stages=stages) for groups, keys, stages in _BULK),
    ],
}
"""Of decode, and of others."""


def _text(tile: Tile) -> str:
    return type(tile).__name__.removesuffix("Tile") + " " + " x ".join(f"{value}" for value in astuple(tile))


def _workload(case: PagedCase) -> PagedWorkload:
    import tvm
    from tvm.relax.frontend.nn.llm import kv_cache

    target = tvm.target.Target(this_gpu().tvm_config())
    heads, key_heads, depth = case.heads
    if case.kind is Kind.DECODE:
        function = kv_cache._attention_decode(key_heads, heads, depth, case.dtype, False, {}, target)
    elif case.kind is Kind.PREFILL:
        function = kv_cache._attention_prefill(key_heads, heads, depth, case.dtype, False, {}, target)
    else:
        function = kv_cache._attention_prefill_ragged(key_heads, heads, depth, depth, case.dtype, {}, target)
    found = match(with_e4m3_pages(function) if case.e4m3 else function, target)
    assert found is not None
    return found


@dataclass(frozen=True)
class PagedCase:
    """Sequences with these ``lengths`` of keys; of DECODE each has one query, of RAGGED as many as keys, of PREFILL
    some behind all keys, none of which are theirs."""

    kind: Kind
    heads: tuple[int, int, int]
    lengths: list[int]
    dtype: str
    e4m3: bool = False

    @property
    def queries(self) -> list[int]:
        """Of each sequence."""
        return [{Kind.DECODE: 1, Kind.RAGGED: each, Kind.PREFILL: _QUERIES}[self.kind] for each in self.lengths]

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return (1 if self.e4m3 else 2) * 2 * sum(self.lengths) * self.heads[1] * self.heads[2]

    @property
    def operations(self) -> int:
        """Of both products, half of them where queries see keys up to themselves."""
        pairs = sum(queries * keys for queries, keys in zip(self.queries, self.lengths, strict=True))
        return 4 * pairs * self.heads[0] * self.heads[2] // (2 if self.kind is Kind.RAGGED else 1)

    def rate(self, us: float) -> str:
        """By what it is counted."""
        if self.kind is Kind.DECODE:
            return f"{self.bytes / us / 1e3:.0f} GB/s"
        return f"{self.operations / us / 1e6:.1f} TFLOP/s"

    @cached_property
    def copies(self) -> int:
        """Of keys and values."""
        return max(1, min(_MOST_COPIES, -(-_COPIES_BYTES // self.bytes)))

    def torch_launch(self) -> int:
        """PyTorch's attention over each copy."""
        for query, key, value in self._torch_operands:
            _attend(query, key, value, causal=self.kind is Kind.RAGGED)
        return len(self._torch_operands)

    @cached_property
    def _torch_operands(self) -> list[tuple[Any, Any, Any]]:
        """[batch, heads, tokens, depth]: sequences as long as the longest one."""
        import torch

        heads, key_heads, depth = self.heads
        shapes = [(len(self.lengths), heads, max(self.queries), depth)]
        shapes += [(len(self.lengths), key_heads, max(self.lengths), depth)] * 2
        return [tuple(torch.randn(shape, device="cuda").to(self._type) for shape in shapes) for _ in range(self.copies)]

    @property
    def _type(self) -> Any:
        import torch

        return getattr(torch, self.dtype)

    @cached_property
    def _operands(self) -> list[list[Any]]:
        """Of the kernel, but for its numbers, by copies."""
        return [list(self._one(at)) for at in range(self.copies)]

    def _one(self, seed: int) -> Iterator[Any]:
        import torch

        torch.manual_seed(seed)
        heads, key_heads, depth = self.heads
        total, batch = sum(self.queries), len(self.lengths)
        yield torch.randn(total, heads, depth, device="cuda").to(self._type)
        if self.kind is not Kind.DECODE:
            yield _starts(self.queries)
        if self.kind is Kind.RAGGED:
            for _ in range(2):
                yield torch.randn(total, key_heads, depth, device="cuda").to(self._type)
            yield _starts(self.lengths)
            yield from (_zeros(total), _zeros(batch))
        else:
            counts = [-(-length // PAGE) for length in self.lengths]
            pages = torch.randn(sum(counts), 2, key_heads, PAGE, depth, device="cuda")
            yield pages.to(torch.float8_e4m3fn).view(torch.uint8) if self.e4m3 else pages.to(self._type)
            yield _starts(counts)
            yield torch.randperm(sum(counts), device="cuda").int()
            yield torch.tensor([(length - 1) % PAGE + 1 for length in self.lengths], device="cuda").int()
            yield from (_zeros(batch), _zeros(total))
        yield torch.full((total, heads, depth), float("nan"), device="cuda", dtype=self._type)
        yield torch.full((total, heads), float("nan"), device="cuda")

    def timed(self, function: Any, *, long: bool = False) -> tuple[float, float]:
        """Microseconds of ``function``, a kernel with TVM's parameters, and how far its results are apart from those in
        float32. ``long``: it may take so long that few runs do."""
        import tvm

        target = tvm.target.Target(this_gpu().tvm_config())
        with target, activate(open_hub(target, offline=True)):  # lowered as in a compile
            module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
            main = tvm.tirx.build(module, target=target)["main"]
        given = [[tvm.runtime.from_dlpack(each) for each in own] for own in self._operands]
        numbers = [*([] if self.kind is Kind.DECODE else [int(self.kind is Kind.RAGGED)]), 0, 1.0, 1e4, self._scale]
        used = given[:2] if long and self.operations > 1e11 else given

        def launch() -> int:
            for own in used:
                main(*own, *numbers)
            return len(used)

        found = graph_us(launch, _FEW)
        return found, self._apart(self._operands[len(used) - 1])

    @property
    def _scale(self) -> float:
        return float(self.heads[2] ** -0.5)

    def _apart(self, operands: list[Any]) -> float:
        """Outputs and sums of the first and the last sequence, of the largest value."""
        import torch

        out, lse = operands[-2:]
        apart = []
        for at, head in product({0, len(self.lengths) - 1}, range(0, self.heads[0], 7)):
            begin = sum(self.queries[:at])
            own, shared = slice(begin, begin + self.queries[at]), head // (self.heads[0] // self.heads[1])
            key, value = self._keys_and_values(operands, at)
            scores = operands[0][own, head].float() @ key[:, shared].float().t() * self._scale
            if self.kind is Kind.RAGGED:
                scores += torch.full_like(scores, float("-inf")).triu(1)
            wanted = torch.softmax(scores, -1) @ value[:, shared].float(), torch.logsumexp(scores, -1) * LOG2_E
            pairs = zip((out[own, head].float(), lse[own, head]), wanted, strict=True)
            apart += [float((one - other).abs().max() / other.abs().max()) for one, other in pairs]
        return max(math.inf if math.isnan(each) else each for each in apart)

    def _keys_and_values(self, operands: list[Any], at: int) -> tuple[Any, Any]:
        """Of a sequence, [keys, heads, depth]."""
        import torch

        if self.kind is Kind.RAGGED:
            return operands[2][: self.lengths[0]], operands[3][: self.lengths[0]]
        pages, table, values = operands[1:4] if self.kind is Kind.DECODE else operands[2:5]
        pages = pages.view(torch.float8_e4m3fn).float() if self.e4m3 else pages
        own = pages[values[table[at] : table[at + 1]].long()].permute(1, 0, 3, 2, 4).flatten(1, 2)
        return own[0, : self.lengths[at]], own[1, : self.lengths[at]]


def _attend(query: Any, key: Any, value: Any, *, causal: bool) -> Any:
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1])


def _starts(counts: list[int]) -> Any:
    import torch

    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], device="cuda").int()


def _zeros(count: int) -> Any:
    import torch

    return torch.zeros(count, device="cuda", dtype=torch.int32)

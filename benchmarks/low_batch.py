"""Low-batch GEMMs of language models on a GPU, weights [N, K] in float16 and quantised as MLC-LLM has them.

Each kernel is what a function without a record gets, or one with ``--records``, beside PyTorch's for float16; more rows
than a few may be asked for, too; ``--open``: one kernel for any number of them. Both are recorded in a CUDA graph
with copies of the weights that are larger than the GPU's cache, so that each comes from memory. Outputs are compared
with float32. Needs PyTorch.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

import click

from benchmarks.processes.gpu_network import alone, this_gpu
from benchmarks.shared.graph_times import graph_us
from benchmarks.shared.table import Row
from benchmarks.shared.torch_reference import wide_weights
from tunehub.compiler.hub import open_hub
from tunehub.compiler.pipeline import activate
from tunehub.compiler.preparing import prepare
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cuda.default import default_schedule
from tunehub.kernels.cuda.low_batch.weights import E4M3, QUANTISED, WORD_BITS, Format, weights_made
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.nodes import tensor_class

PRODUCTS = {  # columns and K of the weights
    "llama-3-8b qkv": (6144, 4096),
    "llama-3-8b o": (4096, 4096),
    "llama-3-8b gate_up": (28672, 4096),
    "llama-3-8b down": (4096, 14336),
    "qwen2.5-7b qkv": (4608, 3584),
    "qwen2.5-7b o": (3584, 3584),
    "qwen2.5-7b gate_up": (37888, 3584),
    "qwen2.5-7b down": (3584, 18944),
    "phi-3-mini qkv": (9216, 3072),
    "phi-3-mini o": (3072, 3072),
    "phi-3-mini gate_up": (16384, 3072),
    "phi-3-mini down": (3072, 8192),
}
FORMATS = {"float16": Format(bits=16), "q4f16": QUANTISED[0], "q8f16": QUANTISED[1]}
FORMATS |= {f"q{form.bits}bf16": replace(form, bfloat=True) for form in QUANTISED}
FORMATS |= {"e4m3": E4M3, "e4m3bf16": replace(E4M3, bfloat=True)}
OPTIONS = (
    click.Option(["--only"], default="*", help="Products by names or patterns, separated by commas."),
    click.Option(["--rows"], default="1,2,4,8,16,32,64", show_default=True, help="Numbers of rows."),
    click.Option(["--formats"], default="float16,q4f16,q8f16", show_default=True, help="Of weights."),
    click.Option(["--records"], is_flag=True, help="What the package for this GPU gives."),
    click.Option(["--open", "is_open"], is_flag=True, help="The number of rows is not known when kernels are made."),
    click.Option(["--lock"], default=None, help="A file: several processes time their kernels one after the other."),
)
_COPIES_BYTES = 300_000_000  # of weights: six times the cache of an H200
_LAUNCHES = 24
_SPREAD = 64.0  # of numbers in e4m3 around 0
# Of the largest value: two units in the last place of float16 and bfloat16.
_MOST_APART = {"float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedProduct:
    """A kernel's time in microseconds, what served it, and how far its results were apart from float32."""

    run_us: float
    served: str
    apart: float


def run(
    only: str, rows: str, formats: str, lock: str | None, *, records: bool = False, is_open: bool = False
) -> list[Row]:
    """Times in ms, ratios of PyTorch's time in float16. Raises RuntimeError for a wrong result."""
    wanted = [name for name in PRODUCTS if any(fnmatch.fnmatch(name, each.strip()) for each in only.split(","))]
    found: list[Row] = []
    labels = formats.split(",")
    ratios: dict[str, list[float]] = {}
    for name in wanted:
        opened = {label: _built(None, *PRODUCTS[name], FORMATS[label], records=records) for label in labels if is_open}
        for count in map(int, rows.split(",")):
            torch_us = _torch_us(count, *PRODUCTS[name], lock)
            found.append(Row(name=f"{name}, {count} rows, torch float16", value=torch_us / 1e3, unit="ms"))
            for label in labels:
                made = opened.get(label) or _built(count, *PRODUCTS[name], FORMATS[label], records=records)
                timed = _timed(made, count, *PRODUCTS[name], FORMATS[label], lock)
                ratio = timed.run_us / torch_us
                ratios.setdefault(label, []).append(ratio)
                note = f"{timed.served}: {ratio:.3f} of torch's, apart {timed.apart:.1e}"
                found.append(Row(name=f"{name}, {count} rows, {label}", value=timed.run_us / 1e3, unit="ms", note=note))
    for label, values in ratios.items():
        found.append(Row(name=f"{label}: of torch's time, geometric mean", value=geometric_mean(values), unit="ratio"))
        found.append(Row(name=f"{label}: of torch's time, worst", value=max(values), unit="ratio"))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltProduct:
    """A function that runs, and what serves it."""

    main: Any
    served: str


def _built(rows: int | None, columns: int, depth: int, form: Format, *, records: bool = False) -> BuiltProduct:
    """What a function without a record gets, or with the package's; ``rows``: None of any number."""
    import tvm

    target = tvm.target.Target(this_gpu().tvm_config())
    hub = open_hub(target, offline=True)
    with target, activate(hub):  # kernels are lowered as in a compile
        function = only_function(prepare(_module(rows, columns, depth, form), target))
        lookup = hub.lookup if records else EmptyLookup()
        scheduled, made = schedule_function(function, target, lookup)
        made = default_schedule(function, target) if made is None else made
        main = tvm.tirx.build(tvm.IRModule({"main": made.with_attr("global_symbol", "main")}), target=target)["main"]
    served = "dlight" if scheduled.served is None else f"{scheduled.served.template} ({scheduled.served.rung})"
    return BuiltProduct(main=main, served=str(served))


def _timed(made: BuiltProduct, rows: int, columns: int, depth: int, form: Format, lock: str | None) -> TimedProduct:
    """With so many rows. Raises RuntimeError for a wrong result."""
    import torch

    main, served = made.main, made.served
    kind = getattr(torch, _dtype(form))
    x = torch.randn(1, rows, depth, device="cuda").to(kind)
    weights = list(_weights(columns, depth, form))
    out = torch.empty(1, rows, columns, device="cuda", dtype=kind)
    given = [[_tensor(x, form), *(_tensor(each, form) for each in own), _tensor(out, form)] for own in weights]

    def launch() -> int:
        for at in range(_launches(weights)):
            main(*given[at % len(given)])
        return _launches(weights)

    with _alone(lock):
        run_us = graph_us(launch)
    last = weights[(_launches(weights) - 1) % len(weights)]
    expected = x.float()[0] @ _wide(last, form).t()
    apart = float((out[0].float() - expected).abs().max() / expected.abs().max())
    if not apart <= _MOST_APART[_dtype(form)]:
        raise RuntimeError(f"{rows} x {columns} x {depth} of {form.bits} bits by {served}: {apart} apart from float32")
    return TimedProduct(run_us=run_us, served=served, apart=apart)


def _torch_us(rows: int, columns: int, depth: int, lock: str | None) -> float:
    import torch

    x = torch.randn(rows, depth, device="cuda").half()
    weights = [own[0].t() for own in _weights(columns, depth, FORMATS["float16"])]

    def launch() -> int:
        for at in range(_launches(weights)):
            torch.matmul(x, weights[at % len(weights)])
        return _launches(weights)

    with _alone(lock):
        return graph_us(launch)


def _launches(weights: list[Any]) -> int:
    return len(weights) * max(1, _LAUNCHES // len(weights))


def _alone(lock: str | None) -> Any:
    return nullcontext() if lock is None else alone(lock)


def _weights(columns: int, depth: int, form: Format) -> Iterator[list[Any]]:
    """Copies that are together larger than the cache."""
    import torch

    for _ in range(max(2, -(-_COPIES_BYTES * 8 // (columns * depth * form.bits)))):
        if form.e4m3:
            numbers = (torch.randn(columns, depth, device="cuda") * _SPREAD).to(torch.float8_e4m3fn)
            scales = (torch.rand(columns, device="cuda") + 0.5) / (_SPREAD * depth**0.5)
            yield [numbers.view(torch.uint8), scales]
            continue
        if not form.group:
            yield [torch.randn(columns, depth, device="cuda").half() / depth**0.5]
            continue
        words = torch.randint(-(2**31), 2**31, (columns, depth * form.bits // WORD_BITS), device="cuda").int()
        scales = torch.rand(columns, depth // form.group, device="cuda") + 0.5
        yield [words.view(torch.uint32), (scales / (form.offset * depth**0.5)).to(getattr(torch, _dtype(form)))]


def _tensor(given: Any, form: Format) -> Any:
    """PyTorch's as TVM's; bytes are numbers in e4m3."""
    import tvm

    tensor = tvm.runtime.from_dlpack(given)
    is_bytes = str(tensor.dtype) == "uint8"
    return tensor._create_view(tuple(tensor.shape), form.stored, 0) if is_bytes else tensor


def _dtype(form: Format) -> str:
    """Of activations and scales."""
    return "bfloat16" if form.bfloat else "float16"


def _wide(own: list[Any], form: Format) -> Any:
    import torch

    if form.e4m3:
        return own[0].view(torch.float8_e4m3fn).float() * own[1][:, None]
    return wide_weights(own[0], own[1], form) if form.group else own[0].float()


def _module(rows: int | None, columns: int, depth: int, form: Format) -> Any:
    """x · Wᵀ as a model has it."""
    from tvm import relax, tirx

    kind, dtype = tensor_class(), _dtype(form)
    x = relax.Var("x", kind((1, tirx.Var("rows", "int64") if rows is None else rows, depth), dtype))
    builder = relax.BlockBuilder()
    if form.packed:
        scales = ((columns,), "float32") if form.e4m3 else ((columns, depth // form.group), dtype)
        given = [
            relax.Var("w", kind((columns, depth // form.per_element), form.stored)),
            relax.Var("s", kind(*scales)),
        ]
    else:
        given = [relax.Var("w", kind((columns, depth), "float16"))]
    with builder.function("main", [x, *given]):
        with builder.dataflow():
            weight = given[0]
            if form.packed:
                sources = given[:1] if form.e4m3 else given
                weight = builder.emit_te(
                    lambda *own: weights_made(own, form, dtype), *sources, primfunc_name_hint="dequantize"
                )
            transposed = builder.emit(relax.op.permute_dims(weight))
            if form.e4m3:
                scaled = relax.op.multiply(builder.emit(relax.op.matmul(x, transposed, out_dtype="float32")), given[1])
                result = builder.emit_output(relax.op.astype(builder.emit(scaled), dtype))
            else:
                result = builder.emit_output(relax.op.matmul(x, transposed))
        builder.emit_func_output(result)
    return builder.get()


def only_function(mod: Any) -> Any:
    """The PrimFunc of a product. Raises click.UsageError where there are several: with many rows, quantised weights are
    made float16 by a function of their own, and the product's time alone would not be that of both."""
    import tvm

    found = {name.name_hint: each for name, each in mod.functions.items() if isinstance(each, tvm.tirx.PrimFunc)}
    if len(found) > 1:
        names = " and ".join(sorted(found))
        raise click.UsageError(f"{names} are several kernels: --formats q4f16 and q8f16 are timed with up to 64 --rows")
    (function,) = found.values()
    return function

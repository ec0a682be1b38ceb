"""Language models of known shapes with random weights: tokens a second beside PyTorch, with CUDA graphs on both sides.

``python -m benchmarks language_models --device cuda --models llama-3-8b --quantizations q0f16,q4f16_1 --batches 1,8,32
--contexts 512,8192 --against torch,torch_compiled --out FILE.jsonl`` compiles each model once and measures, in turns,
steps of every batch at every context and prompts of the lengths ``--prompts``; each runtime has a process of its own.
``--device cpu`` does so on this CPU, with PyTorch eager and compiled, and beside llama.cpp, onnxruntime and OpenVINO:
``--against llama.cpp,onnxruntime,onnxruntime_dynamic,openvino --peer llama.cpp=VENV/bin/python``, each with a file of
the same random weights in its own format of as many bits. The memory's bandwidth is measured before and after. A line
of JSON for each figure goes to FILE while it is measured; logits are compared with those that PyTorch computes in
float32 of the same weights.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.shared.bandwidth import read_bandwidth
from benchmarks.shared.table import Row, machine
from tunehub.models.config import ModelConfig
from tunehub.target.host import physical_cores
from tunehub.target.nvidia import find_gpus
from tunehub_builder.bench.language_models.case import LanguageCase
from tunehub_builder.bench.language_models.measuring import (
    Asked,
    LanguageComparison,
    LanguageRow,
    compare_language,
)
from tunehub_builder.bench.language_models.runtimes import OURS, RUNTIMES
from tunehub_builder.networks import language_models
from tunehub_builder.tuning.target import tvm_versions

MODELS: Mapping[str, ModelConfig] = {
    **language_models.MODELS,
    "0.4b": msgspec.structs.replace(
        language_models.MODELS["qwen2.5-0.5b"], family="llama", vocabulary=32000, qkv_bias=False, tied=False
    ),
    "tiny": ModelConfig(
        family="llama",
        hidden=64,
        intermediate=96,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocabulary=200,
        context=512,
        epsilon=1e-5,
        rope_theta=10000.0,
    ),
}
"""Shapes by name; ``0.4b`` is Qwen2.5-0.5B's with few words, ``tiny`` is for trying this out."""
_KERNELS_SHOWN = 14


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in value.split(",") if each)
    except ValueError:
        raise click.BadParameter(f"{value!r}: give numbers separated by commas, as 1,8,32") from None


def _pythons(_context: click.Context, _parameter: click.Parameter, value: Sequence[str]) -> dict[str, str]:
    found = dict(each.partition("=")[::2] for each in value)
    for name, python in found.items():
        if name not in RUNTIMES or not Path(python).is_file():
            raise click.BadParameter(f"{name}={python}: give NAME=PYTHON, one of {', '.join(RUNTIMES)}, and a program")
    return found


def _names(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(each for each in value.split(",") if each)


OPTIONS = (
    click.Option(["--device"], type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True),
    click.Option(["--models"], default="llama-3-8b", show_default=True, callback=_names, help="By name, with commas."),
    click.Option(["--quantizations"], default="q0f16", show_default=True, callback=_names, help="MLC-LLM's names."),
    click.Option(["--kv-cache-dtype", "cache_dtype"], default="auto", show_default=True, help="Or fp8_e4m3."),
    click.Option(["--batches"], default="1,8,32", show_default=True, callback=_numbers),
    click.Option(["--contexts"], default="512", show_default=True, callback=_numbers),
    click.Option(["--prompts"], default="512", show_default=True, callback=_numbers, help="Lengths that are read."),
    click.Option(
        ["--ours"], default=OURS, show_default=True, callback=_names, help="And tunehub_cache, tunehub_steps."
    ),
    click.Option(
        ["--against"],
        default="torch",
        show_default=True,
        callback=_names,
        help="default,torch,torch_compiled; on CPUs llama.cpp,onnxruntime,onnxruntime_dynamic,openvino",
    ),
    click.Option(
        ["--peer", "pythons"],
        multiple=True,
        metavar="NAME=PYTHON",
        callback=_pythons,
        help="The interpreter of its environment, of this one's version.",
    ),
    click.Option(["--layers"], type=int, help="Only so many layers, to try things out."),
    click.Option(["--steps"], type=int, default=32, show_default=True, help="Of a sample."),
    click.Option(["--rounds"], type=int, default=3, show_default=True),
    click.Option(["--profile"], is_flag=True, help="Kernels of prompts and steps, by PyTorch's profiler."),
    click.Option(["--threads"], type=int, default=0, help="Of each runtime on a CPU.  [physical cores]"),
    click.Option(["--out"], type=click.Path(path_type=Path), help="Lines of JSON are appended."),
)


def run(
    *,
    device: str,
    models: Sequence[str],
    quantizations: Sequence[str],
    cache_dtype: str,
    batches: Sequence[int],
    contexts: Sequence[int],
    prompts: Sequence[int],
    ours: Sequence[str],
    against: Sequence[str],
    pythons: Mapping[str, str],
    layers: int | None,
    steps: int,
    rounds: int,
    profile: bool,
    threads: int,
    out: Path | None,
) -> list[Row]:
    """Measure every model in every quantization. Raises ClickException for a model that is not known."""
    unknown = sorted(set(models) - set(MODELS))
    if unknown:
        raise click.ClickException(f"--models {unknown[0]}: take some of {', '.join(MODELS)}")
    asked = Asked(prompts=prompts, batches=batches, contexts=contexts, steps=steps, rounds=rounds)
    rows = []
    for model in models:
        for quantization in quantizations:
            case = _case(model, quantization, device, asked, layers)
            case = replace(case, cache_dtype=cache_dtype)
            about = {"model": model, "quantization": quantization, "device": device, "layers": layers}
            log = _FigureLog(out, about | ({} if cache_dtype == "auto" else {"kv_cache_dtype": cache_dtype}))
            chosen, profiled = [*ours, *against], log.kernels if profile else None
            count = threads or physical_cores()
            log.machine(count, {name: pythons[name] for name in chosen if name in pythons})
            log.bandwidth("before", count)
            found = compare_language(
                case, chosen, asked, threads=count, pythons=pythons, told=log.row, profiled=profiled
            )
            log.bandwidth("after", count)
            log.comparison(found)
            rows += _rows(f"{model}_{quantization}", found)
    return rows


def _case(model: str, quantization: str, device: str, asked: Asked, layers: int | None) -> LanguageCase:
    config = MODELS[model] if layers is None else msgspec.structs.replace(MODELS[model], layers=layers)
    longest = max(*asked.prompts, *asked.contexts)
    return LanguageCase(
        config=config,
        quantization=quantization,
        device=device,
        sequences=max(asked.batches),
        tokens=longest + asked.steps,
        prompt=max(asked.prompts),
    )


class _FigureLog:
    """Lines of JSON, each written at once: a run that is cut short leaves what it has."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self._path, self._about = path, about

    def machine(self, threads: int, pythons: Mapping[str, str]) -> None:
        """The GPU or CPU, and what measures it: evidence states that."""
        about = {"date": time.strftime("%Y-%m-%d"), "tvm": tvm_versions()[0]}
        if self._about["device"] == "cpu":
            peers = {name: _version(python, (*RUNTIMES[name].modules, "torch")[0]) for name, python in pythons.items()}
            self._line(machine={"cpu": machine()["cpu"], "threads": threads, **about, "peers": peers})
        elif gpus := find_gpus():
            torch = {"torch": version("torch")} if find_spec("torch") is not None else {}
            self._line(machine={**gpus[0].facts(), **about, **torch})

    def row(self, row: LanguageRow) -> None:
        """A figure."""
        self._line(**asdict(row), tokens_per_s=row.tokens_per_s, bytes_per_s=row.bytes_per_s)
        result = row.error or f"{1e3 * row.seconds:.3f} ms, {row.tokens_per_s:.1f} tokens/s"
        click.echo(f"{row.runtime} {row.kind} batch {row.batch} length {row.length}: {result}", err=True)

    def kernels(
        self, runtime: str, kind: str, batch: int, length: int, found: Sequence[tuple[str, int, float]]
    ) -> None:
        """Those of a prompt or a step, the longest first."""
        self._line(runtime=runtime, kind=kind, batch=batch, length=length, kernels=found)
        total = 1e6 * sum(each[2] for each in found)
        click.echo(f"{runtime} {kind} batch {batch} length {length}: {total:.0f} us", err=True)
        for name, count, seconds in found[:_KERNELS_SHOWN]:
            click.echo(f"  {1e6 * seconds:9.1f} us x{count:4} {name[:100]}", err=True)

    def bandwidth(self, when: str, threads: int) -> None:
        """The memory's, of a CPU."""
        if self._about["device"] == "cpu":
            found = read_bandwidth(threads)
            self._line(bandwidth=found, when=when, threads=threads)
            click.echo(f"{found / 1e9:.1f} GB/s {when}", err=True)

    def comparison(self, found: LanguageComparison) -> None:
        """What was said before."""
        facts = {name: asdict(each) for name, each in found.facts.items()}
        self._line(facts=facts, errors=dict(found.errors), apart=dict(found.apart))

    def _line(self, **fields: Any) -> None:
        if self._path is not None:
            with self._path.open("a") as lines:
                lines.write(json.dumps({**self._about, **fields}) + "\n")


def _version(python: str, module: str) -> str:
    """Of a module of another environment; empty where it cannot be imported, which its runtime says then."""
    command = [python, "-c", f"import {module}; print({module}.__version__)"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found.partition("-")[0]  # OpenVINO says which commit, too


def _rows(name: str, found: LanguageComparison) -> list[Row]:
    rows = [
        Row(name=f"{name}_{runtime}_compile", value=facts.compile_s, unit="s", note=f"served by {facts.served}")
        for runtime, facts in found.facts.items()
    ]
    rows += [
        Row(name=f"{name}_{runtime}_apart", value=value, unit="ratio", note="logits, of the largest")
        for runtime, value in found.apart.items()
    ]
    for row in found.rows:
        unit, value = ("ms", 1e3 * row.seconds) if row.kind == "prefill" else ("per s", row.tokens_per_s)
        note = row.error or (f"{row.bytes_per_s / 1e12:.3f} TB/s" if row.bytes else f"{row.tokens_per_s:.0f} per s")
        rows.append(
            Row(name=f"{name}_{row.runtime}_{row.kind}_{row.length}_x{row.batch}", value=value, unit=unit, note=note)
        )
    return [
        *rows,
        *(Row(name=f"{name}_{key}", value=float("nan"), unit="s", note=e) for key, e in found.errors.items()),
    ]

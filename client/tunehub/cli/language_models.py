"""What `compile`, `bench` and `generate` do with a folder that holds a language model."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tunehub.cli.output import plain_size, print_json, print_table, say
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from tunehub.models.compiling import CompiledLanguageModel
    from tunehub.models.config import ModelConfig
    from tunehub.models.types import Device, DeviceTensor
    from tunehub_builder.bench.language_models.case import LanguageCase

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CPU, DEFAULT_GPU = "q0f32", "q0f16"
_PACKAGES = ("ml_dtypes", "safetensors", "tokenizers")

quantization_option: Callable[[F], F] = click.option(
    "--quantization",
    metavar="NAME",
    help="Of a language model: q0f32, q0f16, q0bf16, q4f16_1, q8f16_1 … (MLC-LLM's), e4m3  [q0f32; q0f16 on GPUs]",
)
cache_option: Callable[[F], F] = click.option(
    "--kv-cache-dtype",
    "cache_dtype",
    type=click.Choice(["auto", "fp8_e4m3"]),
    help="Of a language model's keys and values on a GPU.  [auto: as activations]",
)


@contextmanager
def needing_packages(command: str) -> Iterator[None]:
    """Raise ClickException where what language models need is not installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"`tunehub {command}` of a folder needs the module {missing[0]}: {pip_install('llm')}"
        )
    yield


def compiled_folder(
    folder: Path, *, quantization: str | None, target: str | None, most_sequences: int, **options: Any
) -> tuple[CompiledLanguageModel, str]:
    """The model of a folder, and the kind of device that it is for. Raises ModelError, and what the client raises."""
    from tunehub.models.compiling import compile_model
    from tunehub.models.config import read_config
    from tunehub.target.descriptors import as_tvm_target

    chosen, config = as_tvm_target(target), read_config(folder)
    kind = str(chosen.kind.name)
    name = _form(quantization, folder, config, kind)
    return compile_model(config, name, chosen, most_sequences=most_sequences, **options), kind


def _form(quantization: str | None, folder: Path, config: ModelConfig, kind: str) -> str:
    """That of weights which is asked for, or the one for such a device, as the folder has them. Raises ModelError."""
    from tunehub.models.stored import as_stored

    return as_stored(quantization or (DEFAULT_CPU if kind == "llvm" else DEFAULT_GPU), folder, config, kind)


def loaded_weights(
    model: CompiledLanguageModel, folder: Path, device: Device, written: Path | None = None
) -> Iterator[DeviceTensor]:
    """The weights of a folder on a device, or those that were ``written`` for the model before. Raises ModelError."""
    from tunehub.models.parameter_file import mapped_parameters
    from tunehub.models.quantising import folder_tensors

    if written is None:
        return folder_tensors(model, folder, device)
    return mapped_parameters(written, model.parameters, device)


def compile_folder(
    folder: Path,
    path: Path,
    *,
    report: Path | None,
    weights: Path | None,
    as_json: bool,
    most_sequences: int,
    cc: str | None,
    **options: Any,
) -> None:
    """Write the library of a language model, and say what is in it. Its weights stay in the folder, or are written to a
    file as the library takes them."""
    from tunehub.deploy.library import find_linker
    from tunehub.models.checkpoint import has_weights

    linker, began = find_linker(path, cc), time.perf_counter()
    model, _ = compiled_folder(folder, most_sequences=most_sequences, cc=linker, **options)
    model.write(path, linker)
    if weights is not None:
        _write_weights(model, folder, weights)
    seconds, found = time.perf_counter() - began, model.report
    assert found is not None
    if report is not None:
        found.save(report)
    size = sum(_bytes(each.shape, each.dtype) for each in model.parameters)
    if as_json:
        plain = {"library": str(path), "bytes": path.stat().st_size, "weight_bytes": size, "seconds": seconds}
        shown = {name: value for name, value in found.to_json().items() if name != "workloads"}
        print_json({**plain, "quantization": model.quantization.name, "report": shown})
        return
    say(f"{folder.name} ({model.config.family}, {model.quantization.name}) in {seconds:.1f} s")
    say(*str(found.summary()).splitlines())
    say(f"{path}: {plain_size(path.stat().st_size)}; the model's weights are {plain_size(size)}")
    if not has_weights(folder):
        say(f"{folder} has no *.safetensors, the weights that `tunehub generate` reads")
    say("", f"run it: tunehub generate {folder} TEXT --library {path}{f' --weights {weights}' if weights else ''}")


def _write_weights(model: CompiledLanguageModel, folder: Path, path: Path) -> None:
    from tunehub.models.parameter_file import write_parameters
    from tunehub.models.quantising import folder_arrays

    write_parameters(path, model.parameters, folder_arrays(model, folder))


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageRequest:
    """What was asked of `bench`: steps of `batches` behind a prompt of so many words; `against` None: all there are."""

    quantization: str | None
    device: str
    prompt: int
    generate: int
    batches: Sequence[int]
    against: Sequence[str] | None
    threads: int
    repeat: int
    cache_dtype: str = "auto"


def bench_folder(folder: Path, request: LanguageRequest, *, plot: Path | None, as_json: bool) -> bool:
    """Time a language model beside other runtimes; whether all of them ran."""
    from tunehub_builder.bench.language_models import measuring, runtimes, tables

    case = _case(folder, request)
    names = [runtimes.OURS, *(_peers() if request.against is None else request.against)]
    asked = measuring.Asked(
        prompts=(request.prompt,),
        batches=request.batches,
        contexts=(request.prompt,),
        steps=request.generate,
        rounds=request.repeat,
    )
    say(f"timing {', '.join(names)}", err=True)
    found = measuring.compare_language(case, names, asked, threads=request.threads)
    where = tables.place(case.device)
    if as_json:
        print_json({"model": str(folder), "quantization": case.quantization, **tables.as_plain(found)})
    else:
        print_table(tables.HEADINGS, tables.cells(found, tables.bandwidth(case.device)), empty="no runtime was ready")
        weights = "the folder's weights" if case.folder else "random weights"
        say(f"{folder.name} in {case.quantization} with {weights} on {where}; steps behind {request.prompt} tokens")
        for name, error in found.errors.items():
            say(f"{name}: {error}", err=True)
    if plot is not None:
        tables.draw(found, plot, title=f"{folder.name}, {case.quantization}, on {where}")
    return not found.errors and not any(row.error for row in found.rows)


def _case(folder: Path, request: LanguageRequest) -> LanguageCase:
    from tunehub.models.checkpoint import has_weights
    from tunehub.models.config import read_config
    from tunehub_builder.bench.language_models.case import LanguageCase

    config, kind = read_config(folder), "llvm" if request.device == "cpu" else request.device
    return LanguageCase(
        config=config,
        quantization=_form(request.quantization, folder, config, kind),
        device=request.device,
        sequences=max(request.batches),
        tokens=request.prompt + request.generate,
        prompt=request.prompt,
        cache_dtype=request.cache_dtype,
        folder=folder.resolve() if has_weights(folder) else None,
    )


def _peers() -> list[str]:
    """All there are here."""
    return ["default", *(["torch"] if importlib.util.find_spec("torch") else [])]


def _bytes(shape: Sequence[int], dtype: str) -> int:
    import math

    return math.prod(shape) * (4 if dtype in ("float32", "uint32") else 2)

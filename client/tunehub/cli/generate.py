"""`tunehub generate`: a language model's text behind a prompt."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunehub.cli.compile import ending_cleanly, step_display
from tunehub.cli.language_models import needing_packages, quantization_option
from tunehub.cli.model_files import require_relax_for, target_option
from tunehub.cli.options import registry_option
from tunehub.cli.output import say, stream

if TYPE_CHECKING:
    from tunehub.models.session import LanguageSession


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("text")
@click.option("--tokens", type=click.IntRange(min=1), default=128, show_default=True, help="The most that are written.")
@click.option("--library", type=click.Path(path_type=Path), metavar="FILE.so", help="Of `tunehub compile FOLDER`.")
@click.option(
    "--weights",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.safetensors",
    help="Of `tunehub compile FOLDER --weights FILE.safetensors`.",
)
@quantization_option
@target_option
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0: the likeliest tokens."
)
@click.option(
    "--top-p", type=click.FloatRange(min=0, max=1), default=1.0, show_default=True, help="Draw among the likeliest."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of what is drawn.")
@registry_option
def generate(
    folder: Path,
    text: str,
    tokens: int,
    library: Path | None,
    weights: Path | None,
    quantization: str | None,
    target: str | None,
    temperature: float,
    top_p: float,
    seed: int,
    registry: Sequence[str],
) -> None:
    """Write what the language model in FOLDER says behind TEXT, as it comes.

    It is compiled first, unless a library is given. Loading a library runs its code: load only your own.
    """
    require_relax_for("generate")
    with needing_packages("generate"), ending_cleanly():
        from tunehub.models.config import read_config
        from tunehub.models.generating import ModelTokenizer, generated
        from tunehub.models.sampling import Sampling

        config, tokenizer = read_config(folder), ModelTokenizer(folder)
        prompt = tokenizer.tokens(text)
        if len(prompt) + tokens > config.context:
            raise click.UsageError(
                f"--tokens {tokens}: with {len(prompt)} tokens of TEXT that is more than the model's {config.context}"
            )
        with step_display() as show:
            options = {"quantization": quantization, "target": target, "registry": registry or None}
            session = _session(folder, library, weights, len(prompt) + tokens, show, **options)
        sampling = Sampling(temperature=temperature, top_p=top_p)
        began = time.perf_counter()
        found = generated(session, prompt, tokens, sampling=sampling, seed=seed, ends=config.end_tokens)
        counted = _CountedTokens(found)
        stream(tokenizer.pieces(counted))
        say(f"{counted.count} tokens, {counted.count / (time.perf_counter() - began):.1f} a second", err=True)


class _CountedTokens:
    """Tokens, and how many there were."""

    def __init__(self, tokens: Iterator[int]) -> None:
        self._tokens, self.count = tokens, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        token = next(self._tokens)
        self.count += 1
        return token


def _session(
    folder: Path, library: Path | None, weights: Path | None, tokens: int, show: Any, **options: Any
) -> LanguageSession:
    import tvm

    from tunehub.cli.language_models import compiled_folder, loaded_weights
    from tunehub.models.compiling import load_model
    from tunehub.models.session import CacheSizes

    if library is not None:
        model, kind = load_model(library)
    else:
        show("schedule")
        model, kind = compiled_folder(folder, most_sequences=1, **options)
    device = tvm.cpu() if kind == "llvm" else tvm.device(kind)
    show("reading the weights")
    tensors = loaded_weights(model, folder, device, weights)
    return model.session(tensors, device, CacheSizes(sequences=1, tokens=tokens))

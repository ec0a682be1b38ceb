"""Text behind a prompt, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tunehub.exceptions import ModelError
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from tunehub.models.sampling import Sampling
    from tunehub.models.session import LanguageSession

TOKENIZER = "tokenizer.json"
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # of a letter whose last bytes are another token
_REMEDY = "give a folder with the tokenizer that transformers saves"

_Result = TypeVar("_Result")


class ModelTokenizer:
    """The tokenizer of a folder. Raises ModelError."""

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / TOKENIZER
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            install = f"install it: {pip_install('llm')}"
            raise ModelError(path, "needs the package tokenizers", place="tokenizer", remedy=install) from None
        if not path.is_file():
            raise ModelError(path, "is not there", place="tokenizer", remedy=_REMEDY)
        self._tokenizer: Any = self._run(lambda: Tokenizer.from_file(str(path)))

    def tokens(self, text: str) -> list[int]:
        """Of a text, with those that its model wants before it. Raises ModelError where the tokenizer fails."""
        return list(self._run(lambda: self._tokenizer.encode(text).ids))

    def pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        """The text of tokens as they come; a letter of several tokens when it is whole. Raises as `tokens`."""
        found: list[int] = []
        said = ""
        for token in tokens:
            found.append(token)
            text = self._decoded(found)
            if not text.endswith(_UNFINISHED):
                yield text[len(said) :]
                said = text
        yield self._decoded(found)[len(said) :] if found else ""

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._run(lambda: self._tokenizer.decode(tokens)))

    def _run(self, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except BaseException as error:  # tokenizers raises Exception itself, and Rust's panics are no such
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ModelError(self._path, f"cannot be used: {error}", place="tokenizer", remedy=_REMEDY) from None


def generated(
    session: LanguageSession,
    prompt: Sequence[int],
    count: int,
    *,
    sampling: Sampling,
    seed: int,
    ends: Sequence[int] = (),
) -> Iterator[int]:
    """At most ``count`` tokens behind a prompt, which end before one of ``ends``."""
    rng, sequence, token = np.random.default_rng(seed), session.open(), -1
    try:
        for number in range(count):
            with session.lock:
                given = (
                    session.decode([sequence], session.tokens([token])) if number else session.prefill(sequence, prompt)
                )
                if sampling.temperature == 0:
                    token = int(session.greedy(given).numpy()[0])
                else:
                    token = sampling.token(given.numpy().reshape(-1), rng)
            if token in ends:
                return
            yield token
    finally:
        session.close(sequence)

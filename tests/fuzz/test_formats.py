"""Mutated documents of every format: refused by an error of its own, or read. Nothing else, whatever comes.

The same few examples in each run; with `TUNEHUB_FUZZ_SECONDS` new ones for so long, by `nox -s fuzz`. What fails is
written to the corpus, and from then on every run reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..hostile import VALUES
from .formats import CORPUS, FORMATS, FuzzedFormat, folder_of, seeds

pytestmark = pytest.mark.fast

SECONDS = float(os.environ.get("TUNEHUB_FUZZ_SECONDS", "0"))
TOKENS = [text.encode() for text in VALUES.values() if len(text) < 500]
MOST_BYTES = 1 << 16  # of what hypothesis makes an example from


@st.composite
def mutated(draw: st.DrawFn, name: str) -> bytes:
    """A seed with a few changes: bytes that are cut, doubled, flipped or put in; JSON with hostile values."""
    data = bytearray(draw(st.sampled_from(seeds(name))))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 1, 2, 4, 16, 64, 1024])))
        kind = draw(st.sampled_from(["cut", "double", "flip", "token", "bytes", "swap"]))
        piece = data[start:end]
        if kind == "cut":
            piece = bytearray()
        elif kind == "double":
            piece = piece * draw(st.integers(2, 40))
        elif kind == "flip":
            piece = bytearray(byte ^ 1 << draw(st.integers(0, 7)) for byte in piece[:16]) + piece[16:]
        elif kind == "token":
            piece = bytearray(draw(st.sampled_from(TOKENS)))
        elif kind == "bytes":
            piece = bytearray(draw(st.binary(max_size=16)))
        else:
            piece = piece[::-1]
        data[start:end] = piece
    return bytes(data)


def check(name: str, data: bytes) -> None:
    """Read it. What fails in a search for new examples is kept."""
    form = FORMATS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            form.read(data)
        except form.errors:
            return
        except Exception:
            if SECONDS:
                folder_of(name).mkdir(parents=True, exist_ok=True)
                (folder_of(name) / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            raise


def examples(name: str) -> Callable[[], None]:
    @settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)
    @given(mutated(name))
    def run(data: bytes) -> None:
        check(name, data)

    return run


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_mutated_is_refused_or_read(name: str) -> None:
    check(name, FORMATS[name].sample)
    run = examples(name)
    run()
    end = time.monotonic() + SECONDS / len(FORMATS)
    while time.monotonic() < end:
        run.hypothesis.fuzz_one_input(random.randbytes(random.randrange(32, MOST_BYTES)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(path for path in CORPUS.glob("*/*")), ids=lambda path: path.parent.name)
def test_what_was_found_once_is_refused_or_read(path: Path) -> None:
    names = {folder_of(name).name: name for name in FORMATS}
    check(names[path.parent.name], path.read_bytes())


def test_the_corpus_is_of_formats_that_are_read() -> None:
    folders = {folder_of(name) for name in FORMATS}
    assert len(folders) == len(FORMATS)
    assert {path for path in CORPUS.iterdir() if path.is_dir()} <= folders


def test_a_parser_that_raises_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FuzzedFormat(sample=b'{"a": 1}', read=lambda data: json.loads(data)["a"], errors=())
    monkeypatch.setitem(globals(), "SECONDS", 0)
    monkeypatch.setitem(FORMATS, "broken", broken)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r".") as error:
        examples("broken")()
    assert not isinstance(error.value, AssertionError)

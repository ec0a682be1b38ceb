"""What AMX computes in bfloat16 only where it is asked for: right, but not yet timed (docs/adr/0045-amx.md).

Imports nothing of TVM, so that what only names the extras need not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

Extra = Literal["images", "groups", "sums", "bytes", "attention"]
EXTRAS: tuple[Extra, ...] = get_args(Extra)
"""What instructions for matrices compute besides, where it is asked for: right, but not yet timed. Convolutions of
plain ``images``, of ``groups`` of channels with the shuffles behind, ``sums`` over channels; ``bytes``: maxima of
windows and joined images in bfloat16; ``attention`` of known lengths."""
_ASKED: ContextVar[tuple[Extra, ...]] = ContextVar("extras", default=())


@contextmanager
def with_extras(*extras: Extra) -> Iterator[None]:
    """Compiles inside have these, for `python -m benchmarks.precision --extra` and tests."""
    token = _ASKED.set(extras)
    try:
        yield
    finally:
        _ASKED.reset(token)


def asked_extras() -> frozenset[Extra]:
    """Those of the :func:`with_extras` around."""
    return frozenset(_ASKED.get())

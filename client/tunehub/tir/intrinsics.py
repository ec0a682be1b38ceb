"""TVM's tensor intrinsics and its kernels of a paged cache, parsed in a fraction of the time.

They are TVMScript functions. For every mention of ``T.prim_func`` in them, and for every macro that they call, TVM's
parser takes the whole stack with ``inspect.stack()``, which looks up the source of each frame in all modules of the
process: 10 of the 13 s of CPU that the intrinsics of CUDA take. The parser reads the frames themselves and one line of
source, which a stack can give that looks it up when asked.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace

_PARSERS = ("tvm.tirx.script.parser.entry", "tvm.script.parser.core.parser")  # of functions, of macros


def import_intrinsics(module: str) -> None:
    """Import ``module``, for example "tvm.s_tir.tensor_intrin.cuda"; raises what an import raises."""
    if module in sys.modules:
        return
    with light_parser():
        importlib.import_module(module)


class _Frame:
    """What TVM's parser reads of an ``inspect.FrameInfo``; the line of source is looked up when asked for."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.lineno = frame.f_lineno

    @property
    def code_context(self) -> list[str] | None:
        lines = linecache.getlines(self.frame.f_code.co_filename, self.frame.f_globals)
        return lines[self.lineno - 1 : self.lineno] or None


def _stack() -> list[_Frame]:
    return _outer(sys._getframe(1))


def _outer(frame: FrameType | None) -> list[_Frame]:
    frames = []
    while frame is not None:
        frames.append(_Frame(frame))
        frame = frame.f_back
    return frames


@contextmanager
def light_parser() -> Iterator[None]:
    """While open, TVM's parser alone sees our stack. Other threads that parse meanwhile are served as well by it.

    For :func:`import_intrinsics`, and for what imports intrinsics itself, as TVM's rules for products on GPUs do, or
    has TVM write kernels.
    """
    parsers = [importlib.import_module(name) for name in _PARSERS]
    for parser in parsers:
        parser.__dict__["inspect"] = SimpleNamespace(**{**vars(inspect), "stack": _stack, "getouterframes": _outer})
    try:
        yield
    finally:
        for parser in parsers:
            parser.__dict__["inspect"] = inspect

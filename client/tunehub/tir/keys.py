"""Workload keys of current TVM (0.25 and newer): the same function has the same key in every supported release.

TVM's structural hash differs between releases, so it cannot name a workload in a package. The printed form is stable
once variables and buffers are renamed by first occurrence; block names stay, because traces refer to blocks by name.
The scheme has a name, :data:`tunehub.registries.key_scheme.KEY_SCHEME`: a release whose printer differs needs a new
one.

Releases print symbols in different ways. So the key of a symbolic workload is that of one of its instances, and of its
extents in two others: what is equal there has the same static extents, and the same symbols in the same places,
whatever they are called.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, main_module, parameters
from tunehub.tir.symbols import extent_at, instance, symbols_of

if TYPE_CHECKING:
    from tunehub.tir.types import BufferRegion, Index, IRModule, PrimExpr, PrimFunc, SBlock

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w.]*')
_DEFINITION = re.compile(r"(?:^|[\s(])(?:([A-Za-z_][\w, ]*?) = T\.|for ([\w, ]+) in |([A-Za-z_]\w*): T\.)")
_NOT_NAMES = frozenset({"T", "I", "R"})
_SYNTAX = frozenset({"with", "in", "for", "if", "else", "as", "and", "or", "not", "def", "True", "False", "None"})
_KEY_LENGTH = 32
_PRINTED, _OTHERS = (10007, 30), ((11, 2), (210, 6))  # of the first symbol, and what the next one has more


def workload_key(mod: IRModule) -> str:
    """Return the exact key (32 hex digits) of ``mod``, an IRModule that holds one PrimFunc called ``main``.

    Attributes of the function are left out: they carry names and hints, never the computation.
    """
    printed = _printed(mod)
    text: str = printed["main"].script(show_meta=False)
    body = text[text.index("def ") :]
    lines = [line for line in body.splitlines() if not line.lstrip().startswith("T.func_attr(")]
    key = _digest(_rename("\n".join(lines), _names(body)))
    if printed is mod:
        return key
    return _of_sizes(key, mod, (extent for buffer in parameters(mod["main"]) for extent in buffer_kind(buffer).shape))


def anchor_key(mod: IRModule) -> str | None:
    """Return the key of the anchor block of ``mod`` (as :func:`workload_key`), or None when it has none.

    Functions with one anchor key compute the same heavy block and differ in what is fused around it. Buffers that
    the block only refers to are not printed with their shapes, so the extents are added.
    Source of the notion: TVM, ``src/s_tir/analysis/analysis.cc`` (FindAnchorBlock) and ``trace_apply.cc``.
    """
    from tvm.s_tir import analysis

    printed = _printed(mod)
    block = analysis.find_anchor_sblock(printed)
    if block is None:
        return None
    text: str = block.script(show_meta=False)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    extents = [f"{axis.iter_type}:{axis.dom.extent}" for axis in block.iter_vars]
    buffers = [_buffer_text(region) for region in (*block.reads, *block.writes)]
    key = _digest(_rename("\n".join(lines), None) + "|".join([*extents, *buffers]))
    if printed is mod:
        return key
    at = next(at for at, each in enumerate(blocks_in(printed["main"].body)) if each.same_as(block))
    return _of_sizes(key, mod, _extents(list(blocks_in(mod["main"].body))[at]))


def _printed(mod: IRModule) -> IRModule:
    """``mod``, or of a symbolic workload the instance that is printed."""
    symbols = symbols_of(mod["main"])
    return main_module(instance(mod["main"], _sizes(len(symbols), *_PRINTED))) if symbols else mod


def _sizes(symbols: int, first: int, apart: int) -> list[int]:
    return [first + apart * at for at in range(symbols)]


def _of_sizes(key: str, mod: IRModule, extents: Iterable[Index]) -> str:
    """The key of a symbolic workload: ``key`` is that of the instance that is printed."""
    symbols, found = symbols_of(mod["main"]), list(extents)
    known = [dict(zip(map(hash, symbols), _sizes(len(symbols), *sizes), strict=True)) for sizes in _OTHERS]
    numbers = [_number(extent, values) for values in known for extent in found]
    return _digest("|".join([f"{len(symbols)} symbols", key, *numbers]))


def _number(extent: PrimExpr, values: dict[int, int]) -> str:
    try:
        return str(extent_at(extent, values))
    except KeyError:  # it is read from memory: what is printed says from where
        return "?"


def _extents(block: SBlock) -> list[PrimExpr]:
    """The extents of the axes of a block, and of the buffers that it reads and writes."""
    buffers = [buffer_kind(buffer_of(region)) for region in (*block.reads, *block.writes)]
    return [*(axis.dom.extent for axis in block.iter_vars), *(extent for kind in buffers for extent in kind.shape)]


def structural_hash(function: PrimFunc) -> int:
    """TVM's hash of ``function``, 64 bits: fast, and good for one release of TVM."""
    import tvm

    if hasattr(tvm.ir, "structural_hash"):
        return int(tvm.ir.structural_hash(function))
    from tvm_ffi import structural_hash as of_ffi  # since 0.27

    return int(of_ffi(function))


def structurally_equal(first: PrimFunc, second: PrimFunc) -> bool:
    """Whether TVM finds two functions equal, whatever their variables are called."""
    import tvm

    if hasattr(tvm.ir, "structural_equal"):
        return bool(tvm.ir.structural_equal(first, second))
    from tvm_ffi import structural_equal  # since 0.27

    return bool(structural_equal(first, second))


def _buffer_text(region: BufferRegion) -> str:
    """The element type and shape of a region's buffer; 0.27 made the buffer a variable with a type."""
    buffer = buffer_kind(buffer_of(region))
    return f"{buffer.dtype}{[str(extent) for extent in buffer.shape]}"


def _names(text: str) -> frozenset[str]:
    found: set[str] = set()
    for match in _DEFINITION.finditer(text):
        for group in match.groups():
            if group:
                found.update(name.strip() for name in group.split(","))
    return frozenset(found - _NOT_NAMES)


def _rename(text: str, names: frozenset[str] | None) -> str:
    """Replace each name by its order of first occurrence; ``None`` renames all but syntax and TVM's namespaces."""
    order: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        token = match.group(0)
        if token[0] == '"':
            return token
        head, dot, rest = token.partition(".")
        known = head in names if names is not None else head not in _NOT_NAMES and head not in _SYNTAX
        return order.setdefault(head, f"x{len(order)}") + dot + rest if known else token

    return _TOKEN.sub(replace, text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]

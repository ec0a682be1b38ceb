"""What a compiled library takes and gives, as the library itself says it. Pure.

The function `tunehub_interface` of the library returns this as JSON, in a tensor of bytes. TVM's virtual machine knows
how many arguments `main` has, but not their shapes and element types.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tunehub.exceptions import LibraryError
from tunehub.report.origin import Origin

FUNCTION = "tunehub_interface"
VERSION = 1
_DTYPE = re.compile(r"bool|(u?int|b?float)\d{1,3}(_\w+)?")
_MOST = 2**62
Extent = int | str
Sizes = Mapping[str, int]  # of open dimensions, by their names


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input or output of `main`. `shape`: numbers, and texts for what is open: the name of a dimension, or an
    expression of names; None where not even the rank is known. `dtype` as NumPy and ml_dtypes name it. `rows`: of the
    smallest table that an input's values index, up to rows - 1 and from 0, or `from_end` from -rows; None where none is
    known."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    rows: int | None = None
    from_end: bool = True

    @property
    def least(self) -> int:
        """Of the values that index."""
        return -(self.rows or 0) if self.from_end else 0

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {shape_text(self.shape)}"

    def open_dimensions(self) -> tuple[str, ...]:
        """What is open in the shape, each once."""
        return tuple(dict.fromkeys(extent for extent in self.shape or () if isinstance(extent, str)))

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape where open dimensions have `sizes`. Raises LibraryError for one that is not known."""
        if self.shape is None:
            remedy = "give it with --inputs FILE.npz"
            raise LibraryError(self.name, "has no known number of axes", place="input", remedy=remedy)
        return tuple(self._extent_at(extent, sizes) for extent in self.shape)

    def _extent_at(self, extent: Extent, sizes: Sizes) -> int:
        if isinstance(extent, int):
            return extent
        if extent not in sizes:
            reason = f"has the open dimension {extent!r} in its shape {shape_text(self.shape)}"
            lacking = dict.fromkeys(each for each in self.shape or () if isinstance(each, str) and each not in sizes)
            remedy = f"give sizes, such as {' '.join(f'--dim {shlex.quote(each)}=8' for each in lacking)}"
            raise LibraryError(self.name, reason, place="input", remedy=remedy)
        return sizes[extent]


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of `main`, in order, its outputs, and where the library came from.

    `target` is TVM's, as JSON, `device` its kind of device (`llvm`, `cuda`). `arch` is a CPU's instruction set or
    a GPU's architecture (`x86_64`, `sm_90`), `features` what the code may use of a CPU, in LLVM's spelling; libraries
    of tunehub up to 0.2 have neither. `source` is the name of the model's file, without folders, and `source_sha256`
    its hash; None where there was none. `origin` is which packages it was compiled with (libraries of tunehub up to 0.2
    have none).
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    target: str
    device: str
    tvm: str
    tunehub: str
    source: str | None = None
    source_sha256: str | None = None
    arch: str | None = None
    features: tuple[str, ...] = ()
    origin: Origin | None = None
    version: int = VERSION

    def open_dimensions(self) -> tuple[str, ...]:
        """The open dimensions of the inputs, each once, in order."""
        return tuple(dict.fromkeys(name for each in self.inputs for name in each.open_dimensions()))

    def check_sizes(self, sizes: Sizes) -> None:
        """Raise LibraryError for a size of something that is not open."""
        known = self.open_dimensions()
        for name in sizes:
            if name not in known:
                remedy = f"its open dimensions are {', '.join(known)}" if known else "leave it out: nothing is open"
                raise LibraryError(name, "is no open dimension of the library", place="--dim", remedy=remedy)


def encoded(interface: Interface) -> bytes:
    """The interface as JSON."""
    return msgspec.json.encode(interface)


def decoded(data: bytes, path: object) -> Interface:
    """What :func:`encoded` wrote into the library `path`. Raises LibraryError for anything else."""
    remedy = "compile the model again, or update tunehub"
    try:
        found = msgspec.json.decode(data, type=Interface)
    except (msgspec.DecodeError, RecursionError) as error:
        raise LibraryError(path, f"its interface cannot be read: {error}", place="library", remedy=remedy) from None
    if found.version != VERSION:
        reason = f"its interface is of version {found.version}, this tunehub reads {VERSION}"
        raise LibraryError(path, reason, place="library", remedy=remedy)
    return found


def check_sound(interface: Interface, path: object) -> None:
    """Raise LibraryError where the interface of the library `path` says what none can: names that stand twice, types
    that are none, sizes below zero."""
    for place, specs in (("input", interface.inputs), ("output", interface.outputs)):
        for reason in _faults(specs):
            text = f"its interface is malformed: {place} {reason}"
            raise LibraryError(path, text, place="library", remedy="compile the model again")


def _faults(specs: Sequence[TensorSpec]) -> Iterator[str]:
    names = [each.name for each in specs]
    for each in specs:
        if names.count(each.name) > 1:
            yield f"{each.name[:80]!r} stands twice"
        if not _DTYPE.fullmatch(each.dtype):
            yield f"{each.name[:80]!r} has the element type {each.dtype[:80]!r}"
        if not all(isinstance(extent, str) or 0 <= extent <= _MOST for extent in each.shape or ()):
            yield f"{each.name[:80]!r} has the shape {shape_text(each.shape)[:200]}"


def shape_text(shape: Sequence[Extent] | None) -> str:
    """A shape for people: `[1, 3, height, width]`."""
    return "of unknown shape" if shape is None else f"[{', '.join(map(str, shape))}]"

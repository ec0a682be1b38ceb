"""An object file with one array of bytes, such as a library's weights.

LLVM takes 10 ms for each MB of a constant, and copies it several times: of what compiling NASNet-A took, a quarter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunehub.tir.types import Array

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # of ELF with 64 bits, little-endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_IS_KNOWN = b"\x7fELF\x02\x01"
_RELOCATABLE, _ABSOLUTE, _ALIGNMENT = 1, 0xFFF1, 8
_DATA, _SYMBOLS, _STRINGS = 1, 2, 3  # types of sections
_FILE, _GLOBAL_OBJECT = 4, 0x11  # kinds of symbols
_NAMES = ("devc", ".text", ".rodata", ".note.GNU-stack", ".symtab", ".strtab")  # the first is what TVM calls the source
_SECTIONS, _AT = 6, 2  # how many, with the one of no name; where that of the data is among them


def write_data_object(path: Path, name: str, data: Array, like: Callable[[], Path]) -> bool:
    """Write `data`, an array of bytes, as the object file `path` with the symbol `name`, for the machine of another
    object file, which `like` waits for. False where that is no ELF file of 64 bits, little-endian. Raises OSError."""
    with path.open("wb") as stream:
        stream.seek(_HEADER.size)
        stream.write(data.data)
        with like().open("rb") as other:
            known = other.read(_HEADER.size)
        if not known.startswith(_IS_KNOWN):
            return False
        tail, sections = _tail(name, data.nbytes)
        stream.write(tail)
        stream.seek(0)
        stream.write(_header(known, sections))
    return True


def _tail(name: str, size: int) -> tuple[bytes, int]:
    """What follows so many bytes of data: names, symbols and the table of sections; where that table begins."""
    strings, places = b"\0", list[int]()
    for each in (*_NAMES, name):
        places.append(len(strings))
        strings += each.encode() + b"\0"
    end = _HEADER.size + size
    symbols = _SYMBOL.pack(*[0] * 6) + _SYMBOL.pack(places[0], _FILE, 0, _ABSOLUTE, 0, 0)
    symbols += _SYMBOL.pack(places[-1], _GLOBAL_OBJECT, 0, _AT, 0, size)
    at = _aligned(end)
    table = _aligned(at + len(symbols) + len(strings))
    sections = [
        [0] * 10,
        [places[1], _DATA, 6, 0, _HEADER.size, 0, 0, 0, 4, 0],  # of no code, as LLVM writes it: linkers align by it
        [places[2], _DATA, 2, 0, _HEADER.size, size, 0, 0, 1, 0],
        [places[3], _DATA, 0, 0, end, 0, 0, 0, 1, 0],
        [places[4], _SYMBOLS, 0, 0, at, len(symbols), _SECTIONS - 1, 2, _ALIGNMENT, _SYMBOL.size],
        [places[5], _STRINGS, 0, 0, at + len(symbols), len(strings), 0, 0, 1, 0],
    ]
    found = bytes(at - end) + symbols + strings
    return found.ljust(table - end, b"\0") + b"".join(_SECTION.pack(*each) for each in sections), table


def _header(known: bytes, sections: int) -> bytes:
    """The header of a file whose table of sections begins at `sections`, of the machine of another header."""
    ident, _, machine, version, *_, flags, _, _, _, _, _, _ = _HEADER.unpack(known)
    sizes = (_HEADER.size, 0, 0, _SECTION.size, _SECTIONS, _SECTIONS - 1)
    return _HEADER.pack(ident, _RELOCATABLE, machine, version, 0, 0, sections, flags, *sizes)


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT

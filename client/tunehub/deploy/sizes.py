"""Sizes as users write them: `NAME:1,3,224,224` and `NAME=1,8`. Pure."""

from __future__ import annotations

import re

MOST = 2**31
_NUMBER = re.compile(r"\s*0*([0-9]+)\s*")

_SEVERAL = re.compile(r"=\s*\d+\s*,")


def parse_numbers(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224`` or ``NAME:1,3,224,224``, also with ``x`` between the numbers, which are at least 1.

    The name is all before the last ``=``, or without one before the last ``:``. Raises ValueError with the text, and
    with the limit for numbers beyond it.
    """
    name, separator, numbers = text.rpartition("=" if "=" in text else ":")
    found = [_NUMBER.fullmatch(number) for number in numbers.replace("x", ",").split(",")]
    digits = [each[1] for each in found if each]
    if _SEVERAL.search(name):
        raise ValueError(f"{text} (give each name an option of its own)")
    if not separator or not name.strip() or len(digits) != len(found):
        raise ValueError(text)
    if not all(len(each) <= len(str(MOST)) and 1 <= int(each) <= MOST for each in digits):
        raise ValueError(f"{text} (a size is at least 1 and at most {MOST})")
    return name.strip(), tuple(map(int, digits))

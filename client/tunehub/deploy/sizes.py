"""Sizes as users write them: `NAME:1,3,224,224` and `NAME=1,8`. Pure."""

from __future__ import annotations

import re

MOST = 2**31
_NUMBER = re.compile(r"\s*([0-9]{1,10})\s*")


def parse_numbers(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224`` or ``NAME:1,3,224,224``, also with ``x`` between the numbers, which are at least 1.

    The name is all before the last ``=``, or without one before the last ``:``. Raises ValueError with the text.
    """
    name, separator, numbers = text.rpartition("=" if "=" in text else ":")
    found = [_NUMBER.fullmatch(number) for number in numbers.replace("x", ",").split(",")]
    values = tuple(int(each[1]) for each in found if each)
    if not separator or not name.strip() or len(values) != len(found) or not all(1 <= v <= MOST for v in values):
        raise ValueError(text)
    return name.strip(), values

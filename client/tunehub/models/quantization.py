"""Types of weights, by MLC-LLM's names: plain floats, and groups of 4 or 8 bits in its layout of rows.

A weight ``[N, K]`` is ``q_weight``, uint32 ``[N, K·bits/32]`` (the lowest bits first), and ``q_scale`` ``[N, K/32]``;
a value is ``(bits − (2^(bits−1) − 1)) · scale``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunehub.exceptions import UsageError

GROUP = 32
STORAGE = "uint32"
_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """`dtype` of activations, scales and plain weights; `bits` of a weight in a group, 0 for plain weights."""

    name: str
    dtype: str
    bits: int = 0

    @property
    def per_word(self) -> int:
        """Weights in a word of storage."""
        return 32 // self.bits

    @property
    def zero(self) -> int:
        """What is stored for 0."""
        return int(2 ** (self.bits - 1)) - 1

    def groups(self, features: int) -> int:
        """Scales of a row."""
        return -(-features // GROUP)

    def words(self, features: int) -> int:
        """Words of a row."""
        return self.groups(features) * GROUP // self.per_word

    def bytes(self, rows: int, features: int) -> int:
        """Of a weight."""
        size = 4 if self.dtype == "float32" else 2
        return rows * (4 * self.words(features) + size * self.groups(features) if self.bits else size * features)


QUANTIZATIONS = {
    each.name: each
    for each in (
        *(Quantization(name=f"q0{short}", dtype=dtype) for short, dtype in _TYPES.items()),
        *(
            Quantization(name=f"q{bits}{short}_1", dtype=dtype, bits=bits)
            for bits in (4, 8)
            for short, dtype in _TYPES.items()
        ),
    )
}


def quantization(name: str) -> Quantization:
    """The one of that name. Raises UsageError."""
    if name not in QUANTIZATIONS:
        raise UsageError(
            name, "is no quantization", place="quantization", remedy=f"take one of {', '.join(QUANTIZATIONS)}"
        )
    return QUANTIZATIONS[name]

"""Types of weights, by MLC-LLM's names: plain floats, groups of 4 or 8 bits in its layout of rows, and e4m3; and floats
of 16 bits, as checkpoints have them, which products in float32 widen.

A weight ``[N, K]`` is ``q_weight``, uint32 ``[N, K·bits/32]`` (the lowest bits first), and ``q_scale`` ``[N, K/32]``;
a value is ``(bits − (2^(bits−1) − 1)) · scale``. In e4m3 ``q_weight`` has numbers of 8 bits in floating point,
``[N, K]``, and ``q_scale``, float32 ``[N]``, a scale for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunehub.exceptions import UsageError

GROUP = 32
STORAGE = "uint32"
E4M3 = "float8_e4m3fn"  # by numpy's and TVM's name
_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """`dtype` of activations, scales of groups and plain weights; `bits` of a packed weight, 0 for plain ones; `e4m3`:
    8 bits are a number in floating point, and rows have scales in place of groups; `rounded_prompts`: activations of
    prompts, too, by the largest of each token; `stored`: the type of plain matrices where it is narrower."""

    name: str
    dtype: str
    bits: int = 0
    e4m3: bool = False
    rounded_prompts: bool = False
    stored: str = ""

    @property
    def matrices(self) -> str:
        """The type of plain ones."""
        return self.stored or self.dtype

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
        size = {"float32": 4}
        if not self.bits:
            return rows * features * size.get(self.matrices, 2)
        if self.e4m3:
            return rows * (features + size["float32"])
        return rows * (4 * self.words(features) + size.get(self.dtype, 2) * self.groups(features))


QUANTIZATIONS = {
    each.name: each
    for each in (
        *(Quantization(name=f"q0{short}", dtype=dtype) for short, dtype in _TYPES.items()),
        *(
            Quantization(name=f"q0{short}_f32", dtype="float32", stored=dtype)
            for short, dtype in _TYPES.items()
            if dtype != "float32"
        ),
        *(
            Quantization(name=f"q{bits}{short}_1", dtype=dtype, bits=bits)
            for bits in (4, 8)
            for short, dtype in _TYPES.items()
        ),
        *(
            Quantization(name=name + suffix, dtype=_TYPES[short], bits=8, e4m3=True, rounded_prompts=name != "e4m3")
            for name in ("e4m3", "e4m3_e4m3")
            for short, suffix in {"f16": "", "bf16": "_bf16", "f32": "_f32"}.items()
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

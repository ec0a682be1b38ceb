"""Which convolutions and products tensor cores multiply in 8 bits.

They take uint8 and int8 in any mix, and add up in int32. What reaches kernels (one PrimFunc each, with all that follows
element by element):

* Convolutions ``conv2d`` of data [N, H, W, C] with constants [O, H, W, I]; products ``NT_matmul`` of data [..., K] with
  constants [N, K]: the reduction is innermost in both operands. Data are uint8 or int8, weights int8, sums int32.
* Then, where there is one, an int32 addend for each output (zero point of data, bias), a cast to float32, a float32
  factor for each output, maybe a float32 bias; maybe a residual, dequantised by a factor, added; maybe ``clip``;
  ``nearbyint``, a zero point added, ``clip`` to the limits of 8 bits, a cast to uint8 or int8. Others end in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.te.scales import Array, NotIntegerError
from tunehub.target.tvm_generation import find_tvm
from tunehub.tir.guard import GuardError, check_features

if TYPE_CHECKING:
    from tunehub.target.types import Target

_OLDEST_TVM = (0, 27)
_MOST_GROUPS = 32  # of several channels, whose zeros are multiplied, too
_NEEDED = frozenset({"sm_80"})  # with mma.m16n8k32 for operands of 8 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorCores:
    """Of a GPU from sm_80 on."""

    @property
    def data(self) -> tuple[str, ...]:
        """The types that data may have."""
        return ("uint8", "int8")

    @property
    def has_attention(self) -> bool:
        """There is a kernel for attention in integers."""
        return True

    def convolution(self, weight: Array, groups: int) -> tuple[Array, int]:
        """Groups of several channels become one, with zeros for what is of other groups: tensor cores multiply 8 bits
        more than thirty times as fast as threads multiply float32. Raises NotIntegerError for many groups."""
        if groups == 1 or weight.shape[1] == 1:
            return weight, groups
        if groups > _MOST_GROUPS:
            raise NotIntegerError("GPUs multiply many groups of several channels in float32")
        outputs = weight.shape[0] // groups
        parts = np.split(weight, groups)
        dense = np.zeros((groups, outputs, groups, *weight.shape[1:]), weight.dtype)
        dense[range(groups), :, range(groups)] = parts
        return dense.reshape(weight.shape[0], -1, *weight.shape[2:]), 1

    def check_product(self, weight: Array) -> None:
        """Raise NotIntegerError for a second operand that is no matrix."""
        if weight.ndim != 2:
            raise NotIntegerError("its second operand is no matrix")


def tensor_cores_of(target: Target) -> TensorCores | None:
    """Those of ``target`` that multiply 8 bits, if it has them and the installed TVM can use them."""
    installed = find_tvm()
    if target.kind.name != "cuda" or installed is None or installed.release < _OLDEST_TVM:
        return None
    try:
        check_features(_NEEDED, target)
    except GuardError:
        return None
    return TensorCores()

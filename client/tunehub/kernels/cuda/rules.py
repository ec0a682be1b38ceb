"""All kernels for CUDA: a line each. A rule before another one serves where both should take as long."""

from __future__ import annotations

from tunehub.kernels.cuda.attention import rule as attention
from tunehub.kernels.cuda.gemm import tiles
from tunehub.kernels.cuda.gemm.ampere import rule as ampere
from tunehub.kernels.cuda.gemm.hopper import block_scales, eight_bits, tf32
from tunehub.kernels.cuda.gemm.hopper import rule as hopper
from tunehub.kernels.cuda.gemm.split_k import rule as split_k
from tunehub.kernels.cuda.gemm.tensor_core import rule as tensor_core
from tunehub.kernels.cuda.kernel_rule import KernelRule, OpenKernelRule
from tunehub.kernels.cuda.low_batch import experts
from tunehub.kernels.cuda.low_batch import gated as low_batch_gated
from tunehub.kernels.cuda.low_batch import rule as low_batch
from tunehub.kernels.cuda.rows import bytes as byte_vectors
from tunehub.kernels.cuda.rows import columns, elementwise, extremes, narrowed
from tunehub.kernels.cuda.rows import norms as row_norms
from tunehub.kernels.cuda.symbolic import eight_bits as open_eight_bits
from tunehub.kernels.cuda.symbolic import elementwise as open_elementwise
from tunehub.kernels.cuda.symbolic import gated, packed
from tunehub.kernels.cuda.symbolic import rotation as open_rotation
from tunehub.kernels.cuda.symbolic import schedule as open_tiles
from tunehub.kernels.cuda.symbolic import tensor_cores as open_tensor_cores
from tunehub.kernels.cuda.winograd import transforms as winograd

RULES: tuple[KernelRule, ...] = (
    attention,
    winograd,
    row_norms,
    extremes,
    columns,
    elementwise,
    byte_vectors,
    experts,
    low_batch_gated,
    low_batch,
    ampere,
    hopper,
    eight_bits,
    block_scales,
    tensor_core,
    split_k,
    tiles,
)
TF32_RULES: tuple[KernelRule, ...] = (tf32,)
"""Of products in float32 whose operands may be rounded."""
OPEN_RULES: tuple[OpenKernelRule, ...] = (
    attention,
    winograd,
    experts,
    narrowed,
    gated,
    packed,
    open_eight_bits,
    open_tensor_cores,
    open_tiles,
    open_elementwise,
    open_rotation,
)
"""Of functions with open axes; the first that has a kernel serves."""

"""All kernels for CUDA: a line each. A rule before another one serves where both should take as long."""

from __future__ import annotations

from tunehub.kernels.cuda.attention import rule as attention
from tunehub.kernels.cuda.gemm import tiles as cuda_tiles
from tunehub.kernels.cuda.gemm.hopper import rule as hopper
from tunehub.kernels.cuda.gemm.hopper import tf32
from tunehub.kernels.cuda.gemm.split_k import rule as split_k
from tunehub.kernels.cuda.gemm.tensor_core import rule as tensor_core
from tunehub.kernels.cuda.kernel_rule import KernelRule
from tunehub.kernels.cuda.low_batch import rule as low_batch
from tunehub.kernels.cuda.winograd import transforms as winograd

TF32_RULES: tuple[KernelRule, ...] = (tf32,)
"""Of products in float32 whose operands may be rounded."""
RULES: tuple[KernelRule, ...] = (attention, winograd, low_batch, hopper, tensor_core, split_k, cuda_tiles)

"""Whether products in float32 read weights as a checkpoint has them: nearly all are stored in 16 bits, of which float32
keeps every number, and a step on a CPU takes as long as its weights take to be read."""

from __future__ import annotations

from pathlib import Path

from tunehub.kernels.cpu.vectors import vector_types
from tunehub.models.checkpoint import ModelWeights, has_weights
from tunehub.models.config import ModelConfig, declared_type
from tunehub.models.quantization import GROUP

_WIDE = "q0f32"
_FORMS = {"bfloat16": "q0bf16_f32", "float16": "q0f16_f32"}
_TYPES = {"BF16": "bfloat16", "F16": "float16"}  # in headers


def as_stored(quantization: str, folder: Path, config: ModelConfig, device: str) -> str:
    """``q0f32`` for a CPU (``llvm``) as the form that keeps matrices in the type that all of them have in ``folder``,
    or without weights there that of its ``config.json``, where kernels widen it. Other names stay. Raises
    ModelError."""
    if quantization != _WIDE or device != "llvm":
        return quantization
    depths = (config.hidden, config.heads * config.head_dim, config.intermediate)
    found = _stored_type(folder)
    widened = found in vector_types() and not any(each % GROUP for each in depths)
    return _FORMS.get(found, quantization) if widened else quantization


def _stored_type(folder: Path) -> str:
    """Empty where matrices are of several types."""
    if not has_weights(folder):
        return declared_type(folder)
    found = ModelWeights(folder).matrix_types()
    return _TYPES.get(found.pop(), "") if len(found) == 1 else ""

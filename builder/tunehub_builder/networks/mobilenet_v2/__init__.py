"""MobileNetV2 (Sandler et al. 2018, arXiv 1801.04381), inference form.

Batch normalisations are folded into the convolutions: each convolution has a bias and none is followed by a
normalisation, which is what an inference engine runs. Importing this package imports neither tvm nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunehub_builder.networks.mobilenet_v2.plan import BottleneckStage, MobileNetV2Config
from tunehub_builder.networks.planned import PlannedNetwork

__all__ = ["BottleneckStage", "MobileNetV2", "MobileNetV2Config"]


@dataclass(frozen=True, kw_only=True)
class MobileNetV2(PlannedNetwork[MobileNetV2Config]):
    """A MobileNetV2."""

    package = __name__
    input_name = "data"

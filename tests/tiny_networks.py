"""Networks that compile in a second."""

from __future__ import annotations

from tunehub_builder.networks import Network
from tunehub_builder.networks.mobilenet_v2 import MobileNetV2
from tunehub_builder.networks.mobilenet_v2.plan import BottleneckStage, MobileNetV2Config


def tiny_mobilenet(name: str = "tiny") -> Network:
    """Two blocks, 16 x 16 pixels."""
    stages = (
        BottleneckStage(expansion=1, channels=8, repeats=1, stride=1),
        BottleneckStage(expansion=2, channels=16, repeats=1, stride=2),
    )
    config = MobileNetV2Config(image=16, stem=8, stages=stages, head=16, classes=10)
    return MobileNetV2(config=config).network(name)

"""The layers and the weights of a MobileNetV2: what its Relax and its ONNX form share. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunehub_builder.networks import seeding

# Each residual block multiplies the mean square by 1 + the square of this: keeps relu6 from saturating.
RESIDUAL_GAIN = 0.4
CLASSIFIER_GAIN = 3.0


@dataclass(frozen=True, kw_only=True)
class BottleneckStage:
    """A row of table 2 of the paper: `repeats` blocks, the first with `stride`."""

    expansion: int
    channels: int
    repeats: int
    stride: int


PAPER_STAGES = (
    BottleneckStage(expansion=1, channels=16, repeats=1, stride=1),
    BottleneckStage(expansion=6, channels=24, repeats=2, stride=2),
    BottleneckStage(expansion=6, channels=32, repeats=3, stride=2),
    BottleneckStage(expansion=6, channels=64, repeats=4, stride=2),
    BottleneckStage(expansion=6, channels=96, repeats=3, stride=1),
    BottleneckStage(expansion=6, channels=160, repeats=3, stride=2),
    BottleneckStage(expansion=6, channels=320, repeats=1, stride=1),
)


@dataclass(frozen=True, kw_only=True)
class MobileNetV2Config:
    """Sizes; the defaults are the paper's network of width 1.0 for ImageNet. `image`: side of the square input."""

    batch: int = 1
    image: int = 224
    stem: int = 32
    stages: tuple[BottleneckStage, ...] = PAPER_STAGES
    head: int = 1280
    classes: int = 1000

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """N, C, H, W of the input."""
        return (self.batch, 3, self.image, self.image)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution with a bias, padded by half its kernel; depthwise if `groups` is not 1. `gain`: see `seeding`."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    relu6: bool = True
    gain: float = math.sqrt(2)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Layout OIHW."""
        return (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)


@dataclass(frozen=True, kw_only=True)
class ConvolutionBlock:
    """Convolutions one after the other, with the block's input added at the end if `residual`."""

    convolutions: tuple[Convolution, ...]
    residual: bool = False


def blocks(config: MobileNetV2Config) -> tuple[ConvolutionBlock, ...]:
    """All blocks from the input to the global pooling, in order."""
    stem = Convolution(name="stem", inputs=3, outputs=config.stem, kernel=3, stride=2)
    made = [ConvolutionBlock(convolutions=(stem,))]
    channels = config.stem
    for stage in config.stages:
        for repeat in range(stage.repeats):
            made.append(_inverted_residual(f"block{len(made)}", channels, stage, stage.stride if repeat == 0 else 1))
            channels = stage.channels
    head = Convolution(name="head", inputs=channels, outputs=config.head, kernel=1)
    return (*made, ConvolutionBlock(convolutions=(head,)))


def _inverted_residual(name: str, inputs: int, stage: BottleneckStage, stride: int) -> ConvolutionBlock:
    hidden = inputs * stage.expansion
    residual = stride == 1 and inputs == stage.channels
    expand = Convolution(name=f"{name}_expand", inputs=inputs, outputs=hidden, kernel=1)
    depthwise = Convolution(
        name=f"{name}_depthwise", inputs=hidden, outputs=hidden, kernel=3, stride=stride, groups=hidden
    )
    project = Convolution(
        name=f"{name}_project",
        inputs=hidden,
        outputs=stage.channels,
        kernel=1,
        relu6=False,
        gain=RESIDUAL_GAIN if residual else 1.0,
    )
    return ConvolutionBlock(
        convolutions=(*((expand,) if stage.expansion != 1 else ()), depthwise, project), residual=residual
    )


def weights(config: MobileNetV2Config, seed: int) -> dict[str, seeding.Array]:
    """All weights by name: of each convolution (weight OIHW, bias 1O11) and of the classifier (weight (in, out))."""
    made = {}
    for convolution in (c for block in blocks(config) for c in block.convolutions):
        name, shape = f"{convolution.name}_weight", convolution.weight_shape
        made[name] = seeding.normal(
            seed, name, shape, seeding.fan_in_deviation(math.prod(shape[1:]), gain=convolution.gain)
        )
        name = f"{convolution.name}_bias"
        made[name] = seeding.bias(seed, name, (1, convolution.outputs, 1, 1))
    shape2 = (config.head, config.classes)
    deviation = seeding.fan_in_deviation(config.head, gain=CLASSIFIER_GAIN)
    made["classifier_weight"] = seeding.normal(seed, "classifier_weight", shape2, deviation)
    made["classifier_bias"] = seeding.bias(seed, "classifier_bias", (config.classes,))
    return made

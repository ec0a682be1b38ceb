"""Networks that no package was tuned on, as ONNX files: what a user brings.

Their weights are random (fixed by the name of each array) and keep activations near unit scale. Batch normalisations
are folded into the convolutions, as exporters for inference do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx

from tunehub_builder import networks
from tunehub_builder.networks import onnx_model, seeding
from tunehub_builder.networks.network import Network
from tunehub_builder.networks.onnx_graph import GraphWriter

_IMAGE = (1, 3, 224, 224)
_SEED = 0


def names() -> tuple[str, ...]:
    """Those of :func:`get`."""
    return ("zfnet512", *_WRITERS)


def get(name: str, folder: Path) -> Network:
    """The network ``name``; its ONNX file is written to ``folder`` unless it is there (up to 340 MB)."""
    if name not in _WRITERS:
        return networks.get(name)
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(_WRITERS[name](), path)
    return networks.from_onnx_file(path)


class _Writer(GraphWriter):
    """A graph whose weights are made where they are used."""

    def __init__(self) -> None:
        super().__init__({})
        self._count = 0

    def weight(self, shape: Sequence[int], fan_in: int, gain: float = math.sqrt(2)) -> str:
        name = self._name("weight")
        return self.tensor(name, seeding.normal(_SEED, name, shape, seeding.fan_in_deviation(fan_in, gain=gain)))

    def bias(self, *shape: int) -> str:
        name = self._name("bias")
        return self.tensor(name, seeding.bias(_SEED, name, shape))

    def scale(self, *shape: int, factor: float = 1.0) -> str:
        name = self._name("scale")
        return self.tensor(name, factor * seeding.around_one(_SEED, name, shape))

    def tensor(self, name: str, array: seeding.Array) -> str:
        onnx_model.add_initializer(self._graph, name, array.astype("float32", copy=False))
        return name

    def vector(self, *values: int) -> str:
        return self.shape(self._name("shape"), values)

    def number(self, value: float) -> str:
        return self.scalar(self._name("scalar"), value)

    def conv(
        self, data: str, channels: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1, gain: float = 1.4
    ) -> str:
        """A convolution with bias that keeps the size but for its stride; ``channels``: of the input, the output."""
        inputs, outputs = channels
        fan_in = inputs // groups * kernel * kernel
        weight = self.weight((outputs, inputs // groups, kernel, kernel), fan_in, gain)
        padding = [(kernel - 1) // 2] * 4
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": padding, "group": groups}
        return self.add("Conv", [data, weight, self.bias(outputs)], **sizes)

    def swish(self, data: str) -> str:
        return self.add("Mul", [data, self.add("Sigmoid", [data])])

    def linear(self, data: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        product = self.add("MatMul", [data, self.weight((inputs, outputs), inputs, gain)])
        return self.add("Add", [product, self.bias(outputs)])

    def norm(self, data: str, channels: int) -> str:
        inputs = [data, self.scale(channels), self.bias(channels)]
        return self.add("LayerNormalization", inputs, axis=-1, epsilon=1e-5)

    def classifier(self, data: str, channels: int) -> str:
        pooled = self.add("Flatten", [self.add("GlobalAveragePool", [data])])
        return self.linear(pooled, channels, 1000)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"


def _finished(
    writer: _Writer, name: str, output: str, shape: Sequence[int], data: Sequence[int] = _IMAGE
) -> onnx.ModelProto:
    return writer.model(name, inputs={"data": data}, output=output, shape=shape)


def _resnet18() -> onnx.ModelProto:
    """He et al. 2015, arXiv 1512.03385: basic blocks."""
    net = _Writer()
    data = net.add("Relu", [net.conv("data", (3, 64), 7, 2)])
    data = net.add("MaxPool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        inner = net.add("Relu", [net.conv(data, (channels, width), 3, stride)])
        inner = net.conv(inner, (width, width), 3, gain=0.5)
        beside = data if stride == 1 and channels == width else net.conv(data, (channels, width), 1, stride, gain=1.0)
        data, channels = net.add("Relu", [net.add("Add", [inner, beside])]), width
    return _finished(net, "resnet18", net.classifier(data, channels), (1, 1000))


def _mobilenet_v1() -> onnx.ModelProto:
    """Howard et al. 2017, arXiv 1704.04861."""
    net = _Writer()
    data, channels = net.add("Relu", [net.conv("data", (3, 32), 3, 2)]), 32
    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for width, stride in blocks:
        data = net.add("Relu", [net.conv(data, (channels, channels), 3, stride, groups=channels)])
        data, channels = net.add("Relu", [net.conv(data, (channels, width), 1)]), width
    return _finished(net, "mobilenet_v1", net.classifier(data, channels), (1, 1000))


def _efficientnet_b0() -> onnx.ModelProto:
    """Tan and Le 2019, arXiv 1905.11946: inverted bottlenecks with squeeze and excitation."""
    net = _Writer()
    data, channels = net.swish(net.conv("data", (3, 32), 3, 2)), 32
    stages = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    for expand, kernel, first, width, repeats in stages:
        for number in range(repeats):
            data = _mbconv(net, data, (channels, width), (expand, kernel, first if number == 0 else 1))
            channels = width
    data = net.swish(net.conv(data, (channels, 1280), 1))
    return _finished(net, "efficientnet_b0", net.classifier(data, 1280), (1, 1000))


def _mbconv(net: _Writer, data: str, channels: tuple[int, int], block: tuple[int, int, int]) -> str:
    (inputs, outputs), (expand, kernel, stride) = channels, block
    wide = inputs * expand
    inner = net.swish(net.conv(data, (inputs, wide), 1)) if expand > 1 else data
    inner = net.swish(net.conv(inner, (wide, wide), kernel, stride, groups=wide))
    few = max(1, inputs // 4)
    squeezed = net.swish(net.conv(net.add("GlobalAveragePool", [inner]), (wide, few), 1))
    inner = net.add("Mul", [inner, net.add("Sigmoid", [net.conv(squeezed, (few, wide), 1)])])
    inner = net.conv(inner, (wide, outputs), 1, gain=1.0)
    return net.add("Add", [inner, data]) if stride == 1 and inputs == outputs else inner


def _convnext_tiny() -> onnx.ModelProto:
    """Liu et al. 2022, arXiv 2201.03545: normalisation and products with channels last."""
    net = _Writer()
    widths, repeats = (96, 192, 384, 768), (3, 3, 9, 3)
    data = _patches(net, "data", (3, 96), 4)
    data = _channels_last(net, data, lambda inner: net.norm(inner, 96))
    for stage, (width, count) in enumerate(zip(widths, repeats, strict=True)):
        if stage:
            before = widths[stage - 1]
            normal = _channels_last(net, data, lambda inner, before=before: net.norm(inner, before))
            data = _patches(net, normal, (before, width), 2)
        for _ in range(count):
            data = _convnext_block(net, data, width)
    pooled = net.add("Flatten", [net.add("GlobalAveragePool", [data])])
    return _finished(net, "convnext_tiny", net.linear(net.norm(pooled, 768), 768, 1000), (1, 1000))


def _patches(net: _Writer, data: str, channels: tuple[int, int], size: int) -> str:
    inputs, outputs = channels
    weight = net.weight((outputs, inputs, size, size), inputs * size * size)
    return net.add("Conv", [data, weight, net.bias(outputs)], kernel_shape=[size] * 2, strides=[size] * 2)


def _channels_last(net: _Writer, data: str, make: Callable[[str], str]) -> str:
    inner = make(net.add("Transpose", [data], perm=[0, 2, 3, 1]))
    return net.add("Transpose", [inner], perm=[0, 3, 1, 2])


def _convnext_block(net: _Writer, data: str, width: int) -> str:
    def mixed(inner: str) -> str:
        wide = net.add("Gelu", [net.linear(net.norm(inner, width), width, 4 * width)])
        return net.add("Mul", [net.linear(wide, 4 * width, width), net.scale(width, factor=0.1)])

    return net.add("Add", [_channels_last(net, net.conv(data, (width, width), 7, groups=width), mixed), data])


def _unet() -> onnx.ModelProto:
    """Ronneberger et al. 2015, arXiv 1505.04597: with padding, 32 channels at the top, 256 x 256 pixels."""
    net, data, channels = _Writer(), "data", 3
    kept: list[tuple[str, int]] = []

    def twice(data: str, inputs: int, outputs: int) -> str:
        inner = net.add("Relu", [net.conv(data, (inputs, outputs), 3)])
        return net.add("Relu", [net.conv(inner, (outputs, outputs), 3)])

    for width in (32, 64, 128, 256):
        data, channels = twice(data, channels, width), width
        kept.append((data, width))
        data = net.add("MaxPool", [data], kernel_shape=[2, 2], strides=[2, 2])
    data, channels = twice(data, channels, 512), 512
    for beside, width in reversed(kept):
        weight = net.weight((channels, width, 2, 2), channels, 1.0)
        upper = net.add("ConvTranspose", [data, weight, net.bias(width)], kernel_shape=[2, 2], strides=[2, 2])
        data, channels = twice(net.add("Concat", [beside, upper], axis=1), 2 * width, width), width
    output = net.add("Sigmoid", [net.conv(data, (channels, 1), 1)])
    return _finished(net, "unet", output, (1, 1, 256, 256), (1, 3, 256, 256))


def _gpt2() -> onnx.ModelProto:
    """Radford et al. 2019, the small one without its head: hidden states of 64 embedded tokens, causal attention."""
    net, tokens, width, heads = _Writer(), 64, 768, 12
    mask = net.tensor("mask", np.triu(np.full((tokens, tokens), -1e9, "float32"), 1))
    data = net.add("Add", ["data", net.bias(tokens, width)])
    for _ in range(12):
        joined = net.linear(net.norm(data, width), width, 3 * width)
        parts = [net.add("Slice", [joined, *_range(net, i * width, (i + 1) * width)]) for i in range(3)]
        split = net.vector(1, tokens, heads, width // heads)
        query, key, value = (
            net.add("Transpose", [net.add("Reshape", [part, split])], perm=perm)
            for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scores = net.add("Div", [net.add("MatMul", [query, key]), net.number(math.sqrt(width // heads))])
        weights = net.add("Softmax", [net.add("Add", [scores, mask])], axis=-1)
        mixed = net.add("Transpose", [net.add("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        flat = net.add("Reshape", [mixed, net.vector(1, tokens, width)])
        data = net.add("Add", [net.linear(flat, width, width, 0.3), data])
        wide = net.add("Gelu", [net.linear(net.norm(data, width), width, 4 * width)], approximate="tanh")
        data = net.add("Add", [net.linear(wide, 4 * width, width, 0.3), data])
    return _finished(net, "gpt2", net.norm(data, width), (1, tokens, width), (1, tokens, width))


def _range(net: _Writer, first: int, end: int) -> tuple[str, str, str]:
    """Begin, end and axis of a slice of the last of three axes."""
    return net.vector(first), net.vector(end), net.vector(2)


_WRITERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": _resnet18,
    "mobilenet_v1": _mobilenet_v1,
    "efficientnet_b0": _efficientnet_b0,
    "convnext_tiny": _convnext_tiny,
    "unet": _unet,
    "gpt2": _gpt2,
}

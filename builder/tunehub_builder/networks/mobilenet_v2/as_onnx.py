"""MobileNetV2 in ONNX, as an exporter writes it: Conv with bias, Clip, GlobalAveragePool, Flatten, Gemm."""

from __future__ import annotations

import onnx

from tunehub_builder.networks.mobilenet_v2.plan import Convolution, ConvolutionBlock, MobileNetV2Config, blocks, weights
from tunehub_builder.networks.onnx_graph import GraphWriter


def build(config: MobileNetV2Config, seed: int) -> onnx.ModelProto:
    """The network as an ONNX model with its weights."""
    arrays = weights(config, seed)
    for convolution in (c for block in blocks(config) for c in block.convolutions):
        name = f"{convolution.name}_bias"
        arrays[name] = arrays[name].reshape(-1)
    graph = GraphWriter(arrays)
    low, high = graph.scalar("zero", 0.0), graph.scalar("six", 6.0)
    data = "data"
    for block in blocks(config):
        data = _block(graph, block, data, (low, high))
    data = graph.add("Flatten", [graph.add("GlobalAveragePool", [data])])
    data = graph.add("Gemm", [data, "classifier_weight", "classifier_bias"])
    return graph.model(
        "mobilenet_v2", inputs={"data": config.input_shape}, output=data, shape=(config.batch, config.classes)
    )


def _block(graph: GraphWriter, block: ConvolutionBlock, data: str, limits: tuple[str, str]) -> str:
    result = data
    for convolution in block.convolutions:
        result = _convolution(graph, convolution, result)
        if convolution.relu6:
            result = graph.add("Clip", [result, *limits])
    return graph.add("Add", [result, data]) if block.residual else result


def _convolution(graph: GraphWriter, convolution: Convolution, data: str) -> str:
    return graph.add(
        "Conv",
        [data, f"{convolution.name}_weight", f"{convolution.name}_bias"],
        kernel_shape=[convolution.kernel] * 2,
        strides=[convolution.stride] * 2,
        pads=[convolution.kernel // 2] * 4,
        group=convolution.groups,
    )

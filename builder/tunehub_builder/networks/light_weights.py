"""Random weights for an ONNX graph whose weights are ConstantOfShape nodes.

One walk over the nodes, in the graph's (topological) order, keeps an estimate of the mean square of every activation.
Each convolution and Gemm gets weights of deviation 1 / sqrt(fan-in * mean square of its input), so its output has unit
scale whatever comes before (He initialisation is the special case of a relu between unit-scale layers); batch
normalisation gets the estimate as its variance. The estimates need not be sharp: an error is carried on, but only
poolings add to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tunehub_builder.networks import onnx_model, seeding

# Deviation of the classifier's outputs: softmax over 1000 of them is then neither flat nor one-hot.
CLASSIFIER_DEVIATION = 1.5
# A maximum over 2x2 or 3x3 rectified normal values; an average over as many, which are correlated.
MAX_POOL_FACTOR = 2.0
AVERAGE_POOL_FACTOR = 0.6

Shape = tuple[int, ...]


def seed_weights(graph: onnx.GraphProto, seed: int) -> None:
    """Replace all float weights of `graph` by random initializers, and constant subgraphs on them by their results."""
    shapes, folded = _weight_shapes(graph)
    walk = _Walk(graph=graph, seed=seed, shapes=shapes)
    kept = [node for node in graph.node if node.output[0] not in folded]
    last = next(node for node in reversed(kept) if node.op_type in ("Conv", "Gemm"))
    for node in kept:
        walk.visit(node, CLASSIFIER_DEVIATION if node is last else 1.0)
    used = {name for node in kept for name in node.input}
    others = [i for i in graph.initializer if i.name in used and i.name not in walk.weights]
    del graph.initializer[:], graph.node[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.initializer.extend(others)
    for name, values in walk.weights.items():
        onnx_model.add_initializer(graph, name, values)


def _weight_shapes(graph: onnx.GraphProto) -> tuple[dict[str, Shape], set[str]]:
    """The shape of each float constant, and which of them are the results of nodes (to be removed)."""
    initializers = {i.name: i for i in graph.initializer}
    shapes = {n: tuple(i.dims) for n, i in initializers.items() if i.data_type == onnx.TensorProto.FLOAT}
    folded: set[str] = set()
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = numpy_helper.to_array(initializers[node.input[0]])
        elif node.op_type == "Reshape" and node.input[0] in shapes:
            shape = numpy_helper.to_array(initializers[node.input[1]])
        elif node.op_type == "Unsqueeze" and node.input[0] in shapes:
            shape = _unsqueezed(shapes[node.input[0]], _attribute(node, "axes", ()))
        else:
            continue
        shapes[node.output[0]] = tuple(int(d) for d in shape)
        folded.add(node.output[0])
    return shapes, folded


def _unsqueezed(shape: Shape, axes: tuple[int, ...]) -> Shape:
    longer = list(shape)
    for axis in sorted(axes):
        longer.insert(axis, 1)
    return tuple(longer)


def _attribute(node: onnx.NodeProto, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return next((tuple(helper.get_attribute_value(a)) for a in node.attribute if a.name == name), default)


@dataclass(kw_only=True)
class _Walk:
    """The state of the walk: the weights made, the mean square of each activation, and which are (mostly) positive."""

    graph: onnx.GraphProto
    seed: int
    shapes: Mapping[str, Shape]
    weights: dict[str, seeding.Array] = field(default_factory=dict)
    moments: dict[str, float] = field(default_factory=dict)
    rectified: set[str] = field(default_factory=set)

    def visit(self, node: onnx.NodeProto, deviation: float) -> None:
        """Make the weights of `node`, and estimate its output."""
        data = [name for name in node.input if name not in self.shapes]
        moments = [self.moments.get(name, 1.0) for name in data] or [1.0]
        if node.op_type in ("Conv", "Gemm"):
            moment = self._linear(node, moments[0], deviation)
        elif node.op_type == "BatchNormalization":
            moment = self._normalisation(node, moments[0])
        else:
            self._elementwise(node)
            moment = _MOMENT.get(node.op_type, _mean)(moments)
            if node.op_type == "Relu" and data[0] not in self.rectified:
                moment /= 2  # of a symmetric distribution, half
        positive = node.op_type == "Relu" or (node.op_type in _KEEPS_SIGN and any(n in self.rectified for n in data))
        for name in node.output:
            self.moments[name] = moment
            if positive:
                self.rectified.add(name)

    def _linear(self, node: onnx.NodeProto, moment: float, deviation: float) -> float:
        name, shape = node.input[1], self.shapes[node.input[1]]
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        fan_in = shape[0] if node.op_type == "Gemm" and not transposed else math.prod(shape[1:])
        self.weights[name] = seeding.normal(self.seed, name, shape, seeding.fan_in_deviation(fan_in, moment, deviation))
        for extra in node.input[2:]:
            self.weights[extra] = seeding.bias(self.seed, extra, self.shapes[extra])
        return deviation**2

    def _normalisation(self, node: onnx.NodeProto, moment: float) -> float:
        scale, offset, mean, variance = node.input[1:5]
        self.weights[scale] = seeding.around_one(self.seed, scale, self.shapes[scale])
        self.weights[offset] = seeding.bias(self.seed, offset, self.shapes[offset])
        self.weights[mean] = seeding.bias(self.seed, mean, self.shapes[mean]) * np.float32(math.sqrt(moment))
        self.weights[variance] = seeding.around_one(self.seed, variance, self.shapes[variance]) * np.float32(moment)
        return 1.0

    def _elementwise(self, node: onnx.NodeProto) -> None:
        """Per-channel scales (Mul) and offsets (Add), as Caffe writes them after a batch normalisation."""
        for name in node.input:
            if name in self.shapes:
                make = seeding.around_one if node.op_type == "Mul" else seeding.bias
                self.weights[name] = make(self.seed, name, self.shapes[name])


def _mean(moments: list[float]) -> float:
    return sum(moments) / len(moments)


# Operators whose results are positive, or mostly so, if an input is: the sum of a residual block is one.
_KEEPS_SIGN = frozenset(
    {"Sum", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "LRN", "Dropout", "Reshape", "Transpose"}
)

# How an operator changes the mean square of its inputs; without an entry: their mean.
_MOMENT: Mapping[str, Callable[[list[float]], float]] = {
    "Sum": sum,
    "MaxPool": lambda moments: moments[0] * MAX_POOL_FACTOR,
    "AveragePool": lambda moments: moments[0] * AVERAGE_POOL_FACTOR,
    "GlobalAveragePool": lambda moments: moments[0] * AVERAGE_POOL_FACTOR,
}

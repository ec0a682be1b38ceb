"""A network's ONNX form run by PyTorch, node by node: the operators of our networks, and nothing else.

PyTorch reads no ONNX, and torchvision's networks are not ours: same graph, same weights and same inputs are what makes
times and outputs comparable. Every node becomes one call of ``torch.nn.functional``, as a hand-written model has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_Step = Callable[[dict[str, Any]], Any]


class TorchNetwork:
    """``network(*inputs)`` gives the first output. Weights lie on ``device`` as ``dtype`` (a torch.dtype)."""

    def __init__(self, model: Any, device: Any, dtype: Any) -> None:
        """``model``: an onnx.ModelProto. Raises NotImplementedError for an operator that none of our networks has."""
        import torch
        from onnx import numpy_helper

        self._inputs = [value.name for value in model.graph.input]
        self._output = model.graph.output[0].name
        opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self._values: dict[str, Any] = {}
        for tensor in model.graph.initializer:
            value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
            if value.is_floating_point():
                value = value.to(device=device, dtype=dtype)
            self._values[tensor.name] = value
        self._steps = [(list(node.output), _step(node, self._values, opset)) for node in model.graph.node]

    def __call__(self, *inputs: Any) -> Any:
        values = {**self._values, **dict(zip(self._inputs, inputs, strict=True))}
        for outputs, step in self._steps:
            values[outputs[0]] = step(values)
        return values[self._output]


def _step(node: Any, constants: dict[str, Any], opset: int) -> _Step:
    from onnx import helper

    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if node.op_type not in _OPERATORS:
        raise NotImplementedError(f"{node.op_type}: add it to benchmarks/shared/torch_network.py")
    return _OPERATORS[node.op_type](list(node.input), attributes, constants, opset)


def _convolution(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    from torch.nn import functional

    strides = tuple(attributes.get("strides", (1, 1)))
    dilations, groups = tuple(attributes.get("dilations", (1, 1))), int(attributes.get("group", 1))
    even, padding = _pads(attributes)

    def run(values: dict[str, Any]) -> Any:
        data, weight, *bias = (values[name] for name in names)
        if not even:
            data = functional.pad(data, padding)
        inner = padding[2::-2] if even else (0, 0)
        return functional.conv2d(data, weight, bias[0] if bias else None, strides, inner, dilations, groups)

    return run


def _pads(attributes: dict[str, Any]) -> tuple[bool, tuple[int, ...]]:
    """Whether both ends of an axis are padded alike, and the padding as ``functional.pad`` takes it."""
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    return (top, left) == (bottom, right), (left, right, top, bottom)


def _max_pool(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    from torch.nn import functional

    even, padding = _pads(attributes)
    kernel, strides = tuple(attributes["kernel_shape"]), tuple(attributes.get("strides", (1, 1)))

    def run(values: dict[str, Any]) -> Any:
        data = values[names[0]]
        if even:
            return functional.max_pool2d(data, kernel, strides, padding[2::-2])
        return functional.max_pool2d(functional.pad(data, padding, value=float("-inf")), kernel, strides)

    return run


def _average_pool(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    import torch
    from torch.nn import functional

    even, padding = _pads(attributes)
    kernel, strides = tuple(attributes["kernel_shape"]), tuple(attributes.get("strides", (1, 1)))
    included = bool(attributes.get("count_include_pad", 0))
    if even:
        return lambda values: functional.avg_pool2d(values[names[0]], kernel, strides, padding[2::-2], False, included)
    counts: list[Any] = []  # how many elements each window has, of the first run

    def sums(data: Any) -> Any:
        return functional.avg_pool2d(functional.pad(data, padding), kernel, strides, divisor_override=1)

    def run(values: dict[str, Any]) -> Any:
        data = values[names[0]]
        if not counts:
            counts.append(math.prod(kernel) if included else sums(torch.ones_like(data[:1, :1])))
        return sums(data) / counts[0]

    return run


def _gemm(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    from torch.nn import functional

    if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise NotImplementedError("Gemm with factors: add it to benchmarks/shared/torch_network.py")
    transposed = bool(attributes.get("transB", 0))

    def run(values: dict[str, Any]) -> Any:
        data, weight, *bias = (values[name] for name in names)
        return functional.linear(data, weight if transposed else weight.t(), bias[0] if bias else None)

    return run


def _batch_norm(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    from torch.nn import functional

    epsilon = float(attributes.get("epsilon", 1e-5))

    def run(values: dict[str, Any]) -> Any:
        data, scale, offset, mean, variance = (values[name] for name in names)
        return functional.batch_norm(data, mean, variance, scale, offset, False, 0.0, epsilon)

    return run


def _reshape(names: list[str], _attributes: dict[str, Any], constants: dict[str, Any], _opset: int) -> _Step:
    shape = [int(extent) for extent in constants[names[1]]]

    def run(values: dict[str, Any]) -> Any:
        data = values[names[0]]
        return data.reshape([data.shape[axis] if extent == 0 else extent for axis, extent in enumerate(shape)])

    return run


def _softmax(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], opset: int) -> _Step:
    """Before opset 13 everything from the axis on is one."""
    if opset >= 13:
        axis = int(attributes.get("axis", -1))
        return lambda values: values[names[0]].softmax(axis)
    first = int(attributes.get("axis", 1))

    def run(values: dict[str, Any]) -> Any:
        data = values[names[0]]
        return data.flatten(first).softmax(-1).reshape(data.shape)

    return run


def _response_norm(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    from torch.nn import functional

    size, alpha, beta = int(attributes["size"]), float(attributes["alpha"]), float(attributes["beta"])
    offset = float(attributes.get("bias", 1.0))
    return lambda values: functional.local_response_norm(values[names[0]], size, alpha, beta, offset)


def _layer_norm(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    from torch.nn import functional

    epsilon = float(attributes.get("epsilon", 1e-5))

    def run(values: dict[str, Any]) -> Any:
        data, scale, *offset = (values[name] for name in names)
        return functional.layer_norm(data, scale.shape, scale, offset[0] if offset else None, epsilon)

    return run


def _unsqueeze(names: list[str], attributes: dict[str, Any], constants: dict[str, Any], _opset: int) -> _Step:
    axes = sorted(int(axis) for axis in (attributes.get("axes") or constants[names[1]]))

    def run(values: dict[str, Any]) -> Any:
        data = values[names[0]]
        for axis in axes:
            data = data.unsqueeze(axis)
        return data

    return run


def _clip(names: list[str], _attributes: dict[str, Any], constants: dict[str, Any], _opset: int) -> _Step:
    low, high = (float(constants[name]) for name in names[1:3])
    return lambda values: values[names[0]].clamp(low, high)


def _gelu(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    from torch.nn import functional

    how = attributes.get("approximate", b"none").decode()
    return lambda values: functional.gelu(values[names[0]], approximate=how)


def _concat(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    import torch

    axis = int(attributes["axis"])
    return lambda values: torch.cat([values[name] for name in names], axis)


def _gather(names: list[str], attributes: dict[str, Any], constants: dict[str, Any], _opset: int) -> _Step:
    """Neighbours, such as the first of all words, which PyTorch takes without a copy."""
    axis, indices = int(attributes.get("axis", 0)), constants[names[1]].tolist()
    if not isinstance(indices, list) or indices != list(range(indices[0], indices[0] + len(indices))):
        raise NotImplementedError("Gather of others than neighbours: add it to benchmarks/shared/torch_network.py")
    return lambda values: values[names[0]].narrow(axis, indices[0], len(indices))


def _transpose(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    order = tuple(attributes["perm"])
    return lambda values: values[names[0]].permute(order)


def _flatten(names: list[str], attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
    axis = int(attributes.get("axis", 1))
    return lambda values: values[names[0]].flatten(axis)


def _pairwise(operator: str) -> Callable[..., _Step]:
    def make(names: list[str], _attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
        import torch

        function = getattr(torch, operator)
        return lambda values: function(values[names[0]], values[names[1]])

    return make


def _unary(run: Callable[[Any], Any]) -> Callable[..., _Step]:
    def make(names: list[str], _attributes: dict[str, Any], _constants: dict[str, Any], _opset: int) -> _Step:
        return lambda values: run(values[names[0]])

    return make


_OPERATORS: dict[str, Callable[..., _Step]] = {
    "Conv": _convolution,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _unary(lambda data: data.mean((2, 3), keepdim=True)),
    "Gemm": _gemm,
    "BatchNormalization": _batch_norm,
    "Reshape": _reshape,
    "Softmax": _softmax,
    "LRN": _response_norm,
    "LayerNormalization": _layer_norm,
    "Unsqueeze": _unsqueeze,
    "Clip": _clip,
    "Gelu": _gelu,
    "Concat": _concat,
    "Transpose": _transpose,
    "Flatten": _flatten,
    "Gather": _gather,
    "Relu": _unary(lambda data: data.relu()),
    "Identity": _unary(lambda data: data),
    "Dropout": _unary(lambda data: data),
    "Add": _pairwise("add"),
    "Mul": _pairwise("mul"),
    "Div": _pairwise("div"),
    "MatMul": _pairwise("matmul"),
}

"""A quantised ONNX model in other forms: its own float network, with the same weights, and either for several inputs
at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
_SUMS = ("Conv", "Gemm", "MatMul", "Add")


def float_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, in QDQ form, without quantising: constants are what they are dequantised to, and sums that are
    quantised to what is not negative are clipped, as the quantiser leaves such activations out."""
    from onnx import ModelProto, helper, numpy_helper

    found = ModelProto()
    found.CopyFrom(model)
    constants = {each.name: numpy_helper.to_array(each) for each in found.graph.initializer}
    source: dict[str, str] = {}  # of quantised and dequantised tensors, the one that they are of
    nodes, sums = [], set[str]()
    for node in model.graph.node:
        if node.op_type in _QUANTISING:
            given = source.get(node.input[0], node.input[0])
            if node.input[0] in constants:
                constants[node.output[0]] = _dequantised(node, constants)
                continue
            source[node.output[0]] = given
            if given in sums and constants[node.input[2]].dtype == np.uint8 and not constants[node.input[2]].any():
                limits = {"least": np.float32(0), "most": np.float32(255 * constants[node.input[1]])}
                constants |= {f"{given}_{name}": limit for name, limit in limits.items()}
                source[node.output[0]] = f"{given}_clipped"
                nodes.append(
                    helper.make_node("Clip", [given, *(f"{given}_{name}" for name in limits)], [f"{given}_clipped"])
                )
                sums.discard(given)
            continue
        sums |= {*node.output} if node.op_type in _SUMS else set()
        own = helper.make_node(node.op_type, [source.get(each, each) for each in node.input], node.output, node.name)
        own.attribute.extend(node.attribute)
        nodes.append(own)
    for each in found.graph.output:
        if each.name in source:
            nodes.append(helper.make_node("Identity", [source[each.name]], [each.name]))
    used = {name for node in nodes for name in node.input}
    kept = [numpy_helper.from_array(np.asarray(v, order="C"), name) for name, v in constants.items() if name in used]
    for field, values in (("node", nodes), ("initializer", kept), ("value_info", [])):
        found.graph.ClearField(field)
        getattr(found.graph, field).extend(values)
    return found


def with_batch(model: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """``model``, of one input at a time, for ``count``: extents of inputs, outputs and constant shapes of reshapes,
    whose rows may be those of a sequence."""
    from onnx import ModelProto, numpy_helper

    found = ModelProto()
    found.CopyFrom(model)
    lengths = {1}
    for value in (*found.graph.input, *found.graph.output):
        extents = value.type.tensor_type.shape.dim
        lengths |= {each.dim_value for each in list(extents)[1:-1]} if len(extents) == 3 else set()
        if len(extents) and extents[0].dim_value == 1:
            extents[0].dim_value = count
    shapes = {node.input[1] for node in found.graph.node if node.op_type == "Reshape"}
    for tensor in found.graph.initializer:
        shape = numpy_helper.to_array(tensor).copy() if tensor.name in shapes else np.zeros(0, np.int64)
        if shape.size and (shape[0] == 1 or (shape.size == 2 and shape[0] in lengths)):
            shape[0] *= count
            tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
    found.graph.ClearField("value_info")
    return found


def _dequantised(node: Any, constants: Mapping[str, Any]) -> Any:
    values, scale = (constants[name] for name in node.input[:2])
    zero = constants[node.input[2]] if len(node.input) > 2 else np.zeros_like(scale)
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    along = [-1 if at == axis % max(values.ndim, 1) else 1 for at in range(values.ndim)]
    scale, zero = (each.reshape(along if each.size > 1 else ()) for each in (scale, zero))
    return ((values.astype(np.int64) - zero) * scale).astype(np.float32)

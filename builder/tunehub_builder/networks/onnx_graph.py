"""Writing an ONNX model node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tunehub_builder.networks import onnx_model

# The first opset with Gelu (and with LayerNormalization, which is of 17).
OPSET = 20
IR_VERSION = 9


class GraphWriter:
    """Collects nodes and weights; `model` finishes the model, once. Nodes must come in topological order."""

    def __init__(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._model = onnx.ModelProto(ir_version=IR_VERSION, opset_import=[helper.make_opsetid("", OPSET)])
        self._graph = self._model.graph
        for name, array in weights.items():
            onnx_model.add_initializer(self._graph, name, array)

    def add(self, operator: str, inputs: Sequence[str], **attributes: object) -> str:
        """Append a node with one output; return the output's name."""
        output = f"{operator.lower()}_{len(self._graph.node)}"
        self._graph.node.append(helper.make_node(operator, list(inputs), [output], name=output, **attributes))
        return output

    def scalar(self, name: str, value: float) -> str:
        """A float32 constant; return its name."""
        onnx_model.add_initializer(self._graph, name, np.array(value, "float32"))
        return name

    def shape(self, name: str, values: Sequence[int]) -> str:
        """An int64 vector, for Reshape; return its name."""
        onnx_model.add_initializer(self._graph, name, np.array(values, "int64"))
        return name

    def model(
        self, name: str, *, inputs: Mapping[str, Sequence[int]], output: str, shape: Sequence[int]
    ) -> onnx.ModelProto:
        """The model with float32 `inputs` and the one float32 result `output`."""
        self._graph.name = name
        self._graph.input.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items())
        self._graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
        return self._model

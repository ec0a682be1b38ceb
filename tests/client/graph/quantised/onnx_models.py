"""Small ONNX models, and what tunehub and onnxruntime compute of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tunehub.compiler.hub import Hub
from tunehub.compiler.pipeline import compile_module
from tunehub.policy import Policy
from tunehub.registries.resolution import Resolution
from tunehub.target.descriptors import descriptor_of
from tunehub_builder import networks

Array = np.ndarray[Any, Any]


def model(nodes: Sequence[Any], constants: dict[str, Array], shape: tuple[int, ...], rank: int) -> Any:
    """An ONNX model from `x`, float32 of `shape`, to `y` of `rank` axes."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "quantised", inputs, outputs, initializers)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def computed(made: Any, x: Array, *, optimised: bool = True) -> Array:
    """What onnxruntime computes of a model of one input; ``optimised``: as it rewrites it, else node by node."""
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {made.graph.input[0].name: x})
    return np.asarray(found)


def both(made: Any, x: Array, tmp_path: Any, target: Any) -> tuple[Array, Array, list[str]]:
    """What tunehub and onnxruntime compute, and the notes of the report."""
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    expected = computed(made, x)
    host = descriptor_of(target)
    resolution, policy = Resolution(host=host, chosen=None), Policy(strict=True)
    hub = Hub(target=target, host=host, resolution=resolution, policy=policy, layout="auto")
    executable = compile_module(networks.open_onnx_file(path).relax_module(), target, hub)
    notes = [note for note in hub.report().notes if note.startswith("int8")]
    hub.close()
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    return result, expected, notes

"""The networks of the onnx package: weights are seeded, activations stay sane, only the data input is left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tunehub_builder.networks import Network, get

pytestmark = pytest.mark.slow

onnx = pytest.importorskip("onnx")

# The files with few weights. All the transformations (folded Unsqueeze and Reshape, residual sums, per-channel scales,
# unused initializers, names with slashes) occur in one or another of them.
FAST = ("squeezenet", "shufflenet", "densenet121", "inception_v1")


@pytest.mark.parametrize("name", FAST)
def test_only_the_data_input_and_no_constructed_weights_are_left(name: str) -> None:
    network = get(name)
    model = network.onnx_model()
    onnx.checker.check_model(model, full_check=True)
    assert {
        value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in model.graph.input
    } == {**network.inputs}
    operators = {node.op_type for node in model.graph.node}
    assert not operators & {"ConstantOfShape", "Unsqueeze", "Sum", "Dropout"}
    used = {name for node in model.graph.node for name in node.input}
    assert all(initializer.name in used for initializer in model.graph.initializer)
    assert all(value.name.isidentifier() for value in (*model.graph.input, *model.graph.output))


@pytest.mark.parametrize("name", FAST)
@pytest.mark.few(2)
def test_outputs_are_finite_spread_and_not_saturated(
    name: str, run_onnxruntime: Callable[[Network], npt.NDArray[np.float32]]
) -> None:
    network = get(name)
    output = run_onnxruntime(network).ravel()
    assert np.isfinite(output).all()
    if network.onnx_model().graph.node[-1].op_type == "Softmax":
        assert output.max() < 0.5
        output = np.log(output)
    assert 0.2 < float(output.std()) < 5
    assert len(np.unique(output)) > 500  # a rectified classifier gives some classes exactly 0


def test_same_seed_same_model_other_seed_other_weights() -> None:
    first, again, other = (get("squeezenet", seed=s).onnx_model().SerializeToString() for s in (0, 0, 1))
    assert first == again
    assert first != other


def test_normalisations_have_positive_variances() -> None:
    model = get("shufflenet").onnx_model()
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    normalisations = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert normalisations
    for node in normalisations:
        assert float(arrays[node.input[4]].min()) > 0
        assert abs(float(arrays[node.input[1]].mean()) - 1) < 0.1


def test_imports_into_relax_with_sanitised_inputs() -> None:
    pytest.importorskip("tvm")
    network = get("shufflenet")
    module = network.relax_module()
    assert [variable.name_hint for variable in module.get_global_vars()] == ["main"]
    assert len(module["main"].params) == 1
    assert "gpu_0_data_0" in str(module["main"].params[0])

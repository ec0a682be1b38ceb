"""The networks for TVM <= 0.19: those of relay.testing, and ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from tvm import relay
from tvm.contrib import graph_executor

from tunehub_builder.backends.relay import networks
from tunehub_builder.cli.networks import networks as networks_command
from tunehub_builder.networks import OnnxFileError, UnknownNetworkError

pytestmark = pytest.mark.legacy

LIGHT = ("resnet-18", "mobilenet", "squeezenet_v1.1", "densenet-121", "dcgan", "dqn", "mlp", "lstm", "resnet3d-18")


def data_inputs(module: Any, params: Any) -> dict[str, tuple[int, ...]]:
    given = [variable for variable in module["main"].params if variable.name_hint not in params]
    return {v.name_hint: tuple(int(d) for d in v.type_annotation.shape) for v in given}


@pytest.mark.parametrize("layout", networks.LAYOUTS)
@pytest.mark.parametrize("name", LIGHT)
def test_a_standard_network_has_the_inputs_that_it_states(name: str, layout: str) -> None:
    network = networks.get(name, layout=layout)
    module, params = network.module()
    assert data_inputs(relay.transform.InferType()(module), params) == dict(network.inputs)
    assert network.layout == layout


def test_all_of_relay_testing_is_there() -> None:
    names = networks.names()
    for family in ("resnet-50", "vgg-16", "inception_v3", "squeezenet_v1.0", "densenet-201", "mobilenet"):
        assert family in names
    assert networks.get("resnet-18-nhwc") == networks.get("resnet-18", layout="NHWC")
    assert networks.get("resnet-18-nhwc").name == "resnet-18-nhwc"
    assert networks.get("resnet-18-nhwc").inputs == {"data": (1, 224, 224, 3)}


def test_weights_are_the_same_every_time() -> None:
    (_, once), (_, again) = networks.get("mlp").module(), networks.get("mlp").module()
    assert all(np.array_equal(once[name].numpy(), again[name].numpy()) for name in once)


def test_an_unknown_network_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownNetworkError, match=r"resnet-19.*resnet-18"):
        networks.get("resnet-19")


def test_the_command_lists_them() -> None:
    result = CliRunner().invoke(networks_command, [])
    assert result.exit_code == 0
    assert "mobilenet       tvm.relay.testing.mobilenet" in result.output


def save(path: Path, *, open_shape: bool = True, operator: str = "Conv", domain: str = "") -> Path:
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3, 3, 3), dtype="float32"), "w")
    node = helper.make_node(operator, ["x", "w"], ["y"], domain=domain)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N" if open_shape else 1, *rest])
        for name, rest in (("x", (3, 8, 8)), ("y", (4, 6, 6)))
    ]
    graph = helper.make_graph([node], "tiny", ends[:1], ends[1:], [weights])
    opsets = [helper.make_opsetid("", 13), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def run(network: networks.RelayNetwork) -> Any:
    module, params = network.module()
    with tvm.transform.PassContext(opt_level=2):
        library = relay.build(module, target="llvm", params=dict(params))
    executor = graph_executor.GraphModule(library["default"](tvm.cpu()))
    executor.set_input("x", np.random.default_rng(1).standard_normal((1, 3, 8, 8), dtype="float32"))
    executor.run()
    return executor.get_output(0).numpy()


def test_an_onnx_file_computes_the_same_in_both_layouts(tmp_path: Path) -> None:
    path = save(tmp_path / "tiny.onnx")
    plain = networks.from_onnx_file(path, shapes={"x": (1, 3, 8, 8)})
    converted = networks.from_onnx_file(path, shapes={"x": (1, 3, 8, 8)}, layout="NHWC")
    assert (plain.name, converted.name) == ("tiny", "tiny-nhwc")
    assert plain.inputs == converted.inputs == {"x": (1, 3, 8, 8)}
    assert 'data_layout="NHWC"' in str(converted.module()[0])
    np.testing.assert_allclose(run(converted), run(plain), rtol=1e-5, atol=1e-5)


def test_an_onnx_file_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(OnnxFileError, match=r"dynamic shape.*--input-shape x:1,3,8,8"):
        networks.from_onnx_file(save(tmp_path / "open.onnx"))
    strange = networks.from_onnx_file(save(tmp_path / "s.onnx", open_shape=False, operator="Odd", domain="my.own"))
    with pytest.raises(OnnxFileError, match=r"s\.onnx: TVM .* cannot import it into Relay .*Odd"):
        strange.module()

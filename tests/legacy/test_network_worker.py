"""What the gate runs of a network: its logits too, with inputs of the types that it declares."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.contrib import graph_executor

from tunehub_builder.backends.relay import networks
from tunehub_builder.backends.relay.network_worker import random_inputs, showing_logits

pytestmark = pytest.mark.legacy


def test_a_network_with_a_softmax_at_its_end_also_gives_what_the_softmax_hides() -> None:
    network = networks.get("mlp")
    module, params = network.module()
    shown = showing_logits(module)
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(shown, "llvm", params=params)
    run = graph_executor.GraphModule(library["default"](tvm.cpu()))
    run.run(**random_inputs(shown, network.inputs))
    assert run.get_num_outputs() == 2
    likely, logits = (run.get_output(i).numpy().astype("float64") for i in range(2))
    np.testing.assert_allclose(likely, np.exp(logits) / np.exp(logits).sum(), rtol=1e-5)


def test_any_other_network_stays_as_it_is() -> None:
    module, _ = networks.get("dqn").module()
    assert showing_logits(module) is module


def test_inputs_have_the_types_that_the_module_declares() -> None:
    tokens, weight = relay.var("tokens", shape=(1, 4), dtype="int64"), relay.var("weight", shape=(7, 3))
    module = tvm.IRModule.from_expr(relay.Function([tokens, weight], relay.take(weight, tokens, axis=0)))
    given = random_inputs(module, {"tokens": (1, 4)})
    assert list(given) == ["tokens"] and given["tokens"].dtype == "int64"

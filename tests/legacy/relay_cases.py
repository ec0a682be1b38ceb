"""Small Relay networks, and tuning logs for them made from the templates' own spaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import autotvm, relay
from tvm.contrib import graph_executor

TARGET = "llvm -mcpu=core-avx2"
SHAPE = (1, 16, 14, 14)


def conv_net(layers: int = 1, channels: int = 16) -> tuple[Any, dict[str, Any]]:
    """`layers` equal convolutions with ReLU, NCHW."""
    rng = np.random.RandomState(0)
    body = relay.var("data", shape=SHAPE)
    params = {}
    for number in range(layers):
        name = f"w{number}"
        params[name] = tvm.nd.array(rng.uniform(-1, 1, size=(channels, channels, 3, 3)).astype("float32"))
        weight = relay.var(name, shape=(channels, channels, 3, 3))
        body = relay.nn.relu(relay.nn.conv2d(body, weight, padding=(1, 1), kernel_size=(3, 3), channels=channels))
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body)), params


def tasks(mod: Any, params: dict[str, Any], target: str = TARGET) -> list[Any]:
    """AutoTVM's tasks of a network."""
    found: list[Any] = autotvm.task.extract_from_program(mod["main"], target=target, params=params)
    return found


def log_line(task: Any, index: int, cost: float, target: str = TARGET) -> dict[str, Any]:
    """A line as AutoTVM writes it for configuration `index` of the task's space."""
    config = task.config_space.get(index).to_json_dict()
    return {
        "input": [target, task.name, _plain(task.args), {}],
        "config": {**config, "entity": _plain(config["entity"])},
        "result": [[cost], 0, 0.5, 1700000000.0],
        "version": 0.2,
        "tvm_version": "0.19.0",
    }


def write_log(path: Path, *lines: Any) -> Path:
    """Write dicts as JSON lines; text and bytes as they are."""
    chunks = [line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
              for line in lines]  # fmt: skip
    path.write_bytes(b"".join(chunk + b"\n" for chunk in chunks))
    return path


def build(mod: Any, params: dict[str, Any], target: Any = TARGET) -> Any:
    """As users build for the graph executor."""
    with tvm.transform.PassContext(opt_level=3):
        return relay.build(mod, target, params=params)


def run(lib: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    """The output for a fixed input."""
    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input("data", np.random.RandomState(1).uniform(-1, 1, size=shape).astype("float32"))
    module.run()
    return module.get_output(0).numpy()


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

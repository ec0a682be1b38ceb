"""Small Relay networks, and tuning logs for them made from the templates' own spaces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import autotvm, relay
from tvm.contrib import graph_executor

from tunehub.registries.key_scheme import KEY_SCHEMES
from tunehub.relay.fingerprint import graph_fingerprint
from tunehub_registry.graph_log import GraphHeader, encode_graph_header
from tunehub_registry.index import Index, RecordSetSummary, ShardEntry, add_version, encode_index, package_path
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import EVIDENCE, pack
from tunehub_registry.target import TargetDescriptor

PROVENANCE = Provenance(
    machine={}, tvm_version="0.19.0", tvm_ffi_version="none", tuner_options={}, trials=0, seed=0, threads=1,
    command="tests", started="2026-01-01", finished="2026-01-01",
)  # fmt: skip
TARGET = "llvm -mcpu=core-avx2"
SHAPE = (1, 16, 14, 14)
FEW = {"evolutionary_search_population": 16, "sample_init_min_population": 4}
"""Of the auto-scheduler's policy: how many programs it samples; by default 2,048, which takes seconds."""


def conv_net(layers: int = 1, channels: int = 16, shape: tuple[int, ...] = SHAPE) -> tuple[Any, dict[str, Any]]:
    """`layers` equal convolutions with ReLU, NCHW."""
    rng = np.random.RandomState(0)
    body = relay.var("data", shape=shape)
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


def build(mod: Any, params: dict[str, Any], target: Any = TARGET, config: Mapping[str, Any] | None = None) -> Any:
    """As users build for the graph executor; ``config`` of TVM's PassContext."""
    with tvm.transform.PassContext(opt_level=3, config=dict(config or {})):
        return relay.build(mod, target, params=params)


def run(lib: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    """The output for a fixed input."""
    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input("data", np.random.RandomState(1).uniform(-1, 1, size=shape).astype("float32"))
    module.run()
    return module.get_output(0).numpy()


def plain_output(mod: Any, params: dict[str, Any], shape: tuple[int, ...] = SHAPE, target: str = TARGET) -> Any:
    """The output for the same input without optimising: other layouts and folding take most of the time of a build."""
    with tvm.transform.PassContext(opt_level=0):
        return run(relay.build(mod, target, params=params), shape)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def make_registry(
    folder: Path, descriptor: TargetDescriptor, sets: dict[str, tuple[str, bytes]], evidence: bytes = b""
) -> Path:
    """A folder registry with one package, 1.0, of the record sets: file in the package -> (tuner, content)."""
    record_sets = tuple(
        RecordSet(tuner=tuner, file=file, tvm=">=0.8,<0.20", key_scheme=KEY_SCHEMES[tuner], count=data.count(b"\n"))
        for file, (tuner, data) in sets.items()
    )
    manifest = Manifest(
        name=descriptor.name, version="1.0", target=descriptor, record_sets=record_sets, provenance=PROVENANCE
    )
    files = {file: content for file, (_, content) in sets.items()}
    data = pack(manifest, {**files, EVIDENCE: evidence} if evidence else files)
    entry = ShardEntry(
        version="1.0", file=package_path(descriptor.name, "1.0"), sha256=hashlib.sha256(data).hexdigest(),
        size=len(data), published="2026-01-01",
        record_sets=tuple(RecordSetSummary(tuner=item.tuner, tvm=item.tvm) for item in record_sets),
    )  # fmt: skip
    update = add_version(Index(serial=0, names={}), None, entry, target=descriptor)
    for path, content in (
        (entry.file, data), (update.shard_path, update.shard_data), ("index.json", encode_index(update.index)),
    ):  # fmt: skip
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def graph_log(mod: Any, lines: list[Any], network: str = "net") -> bytes:
    """A graph-level record file for this module."""
    fingerprint = graph_fingerprint(mod)
    assert fingerprint is not None
    header = encode_graph_header(GraphHeader(network=network, fingerprint=fingerprint))
    return header + b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def used_layouts(lib: Any) -> list[str]:
    """The layouts of the convolutions that AlterOpLayout chose, in the order of the graph."""
    nodes = json.loads(lib.get_graph_json())["nodes"]
    attributes = [node.get("attrs", {}) for node in nodes if "conv2d" in node.get("name", "")]
    return [f"{item.get('data_layout')} {item.get('kernel_layout')} {item.get('out_layout')}" for item in attributes]


def layouts_of(task: Any, index: int) -> str:
    """The layouts that configuration `index` of an x86 convolution stands for."""
    config = task.config_space.get(index)
    ic, oc = config["tile_ic"].size[-1], config["tile_oc"].size[-1]
    return f"NCHW{ic}c OIHW{ic}i{oc}o NCHW{oc}c"

"""A network with an open dimension from tuning to serving: one ladder, published, found, right at every size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

tvm = pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

import tunehub  # noqa: E402
from tunehub.cli.publish import publish  # noqa: E402
from tunehub.target.host import host_cpu  # noqa: E402
from tunehub_builder import networks  # noqa: E402
from tunehub_builder.cli.check import check  # noqa: E402
from tunehub_builder.cli.distill import distill  # noqa: E402
from tunehub_builder.cli.pack import pack  # noqa: E402
from tunehub_builder.cli.tune import tune  # noqa: E402
from tunehub_builder.gate import ladders  # noqa: E402
from tunehub_registry.index import Index, encode_index  # noqa: E402
from tunehub_registry.ladder_record import read_ladder_records  # noqa: E402
from tunehub_registry.package import EVIDENCE, open_package  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ONE_CORE = ("--threads", "1", "--workers", "1")
DEPTH, OUTPUTS = 64, 32


def run(command: Any, *arguments: object) -> Any:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product of an open number of rows."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = np.random.default_rng(0).standard_normal((DEPTH, OUTPUTS)).astype("float32")
    sides = [helper.make_tensor_value_info(name, kind, ["rows", n]) for name, n in (("x", DEPTH), ("y", OUTPUTS))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], [onnx.numpy_helper.from_array(weight, "w")])
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def read_records(path: Path) -> list[Any]:
    with path.open("rb") as lines:
        return list(read_ladder_records(lines, path.name))


def published(work: Path, tmp_path: Path) -> Path:
    """The registry with a package of what was admitted."""
    run(pack, work, "--version", "0.1.0", "-o", tmp_path / "packages")
    (package,) = (tmp_path / "packages").glob("*.tunepkg")
    registry = tmp_path / "registry"
    (registry / "packages" / "shards").mkdir(parents=True)
    (registry / "index.json").write_bytes(encode_index(Index()))
    run(publish, registry, package, "--unsigned")
    with open_package(package) as opened, opened.open("records/ladder.jsonl") as lines:
        (record,) = read_ladder_records(lines, "ladder")
        assert [found.tuner for found in opened.manifest.record_sets] == ["ladder"]
        (line,) = map(json.loads, opened.read(EVIDENCE).splitlines())
    assert record.symbols == 1 and len({times.at for times in record.times}) >= 6
    assert all(times.run_s <= times.default_s for times in record.times)
    assert {(1,), (2,), (3,), (7,), (61,)} <= {times.at for times in record.times}
    assert (line["tuner"], line["exact"], line["admitted"]) == ("ladder", record.exact, True)
    return registry


def test_tuned_published_and_served(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_PATIENCE", "0")
    monkeypatch.setattr(ladders, "OVER_RULE", 0.5)  # two trials need not gain over the rule
    work = tmp_path / "work"
    command = ("--target", "host", "--model", model, "--dim", "rows=8..64", "--trials", 2, "--work", work, *ONE_CORE)
    assert "2 trials measured now" in run(tune, *command).output
    assert "0 trials measured now, 2 in" in run(tune, *command).output
    assert "1 admitted, 0 rejected" in run(check, work, *ONE_CORE).output

    told = CliRunner().invoke(check, [str(work), *ONE_CORE, "--end-to-end"])
    assert told.exit_code == 1 and "open dimensions are not judged: leave --end-to-end out" in told.output
    run(distill, work, "-o", tmp_path / "own.jsonl")
    ((own,), registry) = read_records(tmp_path / "own.jsonl"), published(work, tmp_path)
    assert own.ladder and own.symbols == 1
    assert "1 admitted, 0 rejected by format" in run(check, tmp_path / "own.jsonl").output
    (tmp_path / "bad.jsonl").write_bytes((tmp_path / "own.jsonl").read_bytes().replace(b'"large":', b'"long":'))
    bad = CliRunner().invoke(check, [str(tmp_path / "bad.jsonl")])
    assert bad.exit_code == 1 and "the knobs are not allowed" in bad.output
    cpu = host_cpu()
    assert cpu is not None
    target = tvm.target.Target({**cpu.config(), "num-cores": 1})
    mod = networks.open_onnx_file(model).relax_module()
    with tunehub.context(target, registry=str(registry)) as hub:
        machine = tvm.relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    (workload,) = hub.report().workloads
    assert (workload.rung, workload.symbols) == ("exact", ("rows",)), workload
    assert workload.sizes is not None and "exact" in workload.sizes
    assert workload.default_s is not None and workload.run_s is not None

    weight = onnx.numpy_helper.to_array(onnx.load(model).graph.initializer[0])
    for rows in (1, 2, 7, 8, 9, 33, 64, 65, 130):
        data = np.random.default_rng(rows).standard_normal((rows, DEPTH)).astype("float32")
        found = machine["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_allclose(found, np.maximum(data @ weight, 0), rtol=1e-4, atol=1e-4, err_msg=f"{rows} rows")


def test_what_dim_is_told_of_that_there_is_not(model: Path, tmp_path: Path) -> None:
    base = ["--target", "host", "--work", str(tmp_path / "work")]
    cases: dict[str, list[str]] = {
        "the dimension 'rows' is open": ["--model", str(model), "--dim", "batch=1"],
        "it has no dimension 'sequence'": ["--network", "mobilenet_v2", "--dim", "sequence=1"],
        "expected NAME=1,2,4 or NAME=16..512": ["--model", str(model), "--dim", "rows=0"],
        "--dim is for the tuner template": ["--model", str(model), "--dim", "rows=1", "--tuner", "meta_schedule"],
        "leave --engine out": ["--model", str(model), "--dim", "rows=1", "--engine", "local"],
        "it has no open dimension": ["--model", str(model), "--dim", "rows=1", "--input-shape", f"x=4,{DEPTH}"],
    }
    for message, options in cases.items():
        result = CliRunner().invoke(tune, [*base, *options])
        assert result.exit_code != 0 and message in result.output, (message, result.output)

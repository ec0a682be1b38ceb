"""`tunehub bench`, with processes of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunehub.cli.bench import _library as subject_of
from tunehub.cli.bench import _print as print_rows
from tunehub.deploy.interface import Interface
from tunehub_builder.bench import throughput
from tunehub_builder.bench.models import RuntimeRow

from ...tiny_networks import tiny_mobilenet

onnx = pytest.importorskip("onnx")
pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    onnx.save(tiny_mobilenet().onnx_model(), "tiny.onnx")
    return folder / "tiny.onnx"


def test_a_model_is_compiled_compared_and_drawn(run: Any, model: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--repeat", 1, "--threads", 1, "--plot", "bench.svg", "-o", "kept.so", "--json"]
    made = run("bench", model, "--against", "default,onnxruntime", *options)
    assert made.code == 0, made.err
    ours, default, other = made.json["runtimes"]
    assert [each["name"] for each in (ours, default, other)] == ["tunehub", "default", "onnxruntime"]
    for each in (ours, default, other):
        assert 0 < each["median_s"] <= each["p95_s"] and each["error"] is None
    assert max(default["difference"], other["difference"]) < 1e-4
    assert made.json["inputs"] == {"data": [1, 3, 16, 16]} and made.json["left_out"] == {}
    assert "onnxruntime" in Path("bench.svg").read_text()
    assert Path("kept.so").is_file()


def test_the_table_says_what_share_of_each_runtimes_time_tunehub_takes_and_who_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        RuntimeRow(name="tunehub", version="0.27.0", median_s=0.002, p95_s=0.003, p99_s=0.0035, runs=9, load_s=0.1),
        RuntimeRow(
            name="onnxruntime",
            version="1.31",
            median_s=0.003,
            p95_s=0.004,
            p99_s=0.0045,
            runs=8,
            difference=0.5,
            error="is off",
        ),
        RuntimeRow(name="default", version=None, error="crashed"),
    ]
    print_rows(rows, {"openvino": "it is not installed"})
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()[1:3]] == [
        ["tunehub", "(TVM", "0.27.0)", "2", "3", "3.5", "0.10", "9"],
        ["onnxruntime", "(1.31)", "3", "4", "4.5", "0.667", "of", "its", "time", "5.0e-01", "8"],
    ]
    assert "failed" in shown.out and "openvino is left out: it is not installed" in shown.out
    assert shown.err == "onnxruntime: is off\ndefault: crashed\n"


def test_a_library_finds_the_model_that_it_was_made_from(run: Any, model: Path) -> None:
    assert run("compile", model).code == 0
    library = model.with_suffix(".so")
    assert subject_of(library, None, (), (), None).model == model
    with model.open("ab") as stream:
        stream.write(b"\n")
    changed = subject_of(library, None, (), (), None)
    assert changed.model is None and "tiny.onnx has changed since tiny.so was compiled" in changed.no_model
    assert subject_of(library, model, (), (), None).model == model
    model.unlink()
    assert (
        "tiny.onnx is not there: give the library's model with --model"
        in subject_of(library, None, (), (), None).no_model
    )
    assert run("bench", library, "-o", "other.so").code == 2


def test_a_library_for_a_gpu_is_not_compared_on_this_cpu(
    run: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = Interface(inputs=(), outputs=(), target="{}", device="cuda", tvm="0.27.0", tunehub="0.1.0")
    monkeypatch.setattr("tunehub.deploy.library.Library", lambda path: SimpleNamespace(interface=interface))
    ended = run("bench", model.with_suffix(".so"), "--against", "onnxruntime")
    assert ended.code == 2 and "is for cuda; runtimes are compared on this CPU" in ended.err


def test_what_cannot_be_compared_is_said_before_anything_is_compiled(
    run: Any, model: Path, monkeypatch: pytest.MonkeyPatch, forget_modules: Any
) -> None:
    for arguments, code, expected in (
        (["--against", "tensorrt"], 1, "--against tensorrt: expected some of default"),
        (["--plot", "bench.jpg"], 1, "ends in .svg"),
        (["-o", "x.dll"], 2, "give x.so"),
        (["--dim", "batch=1"], 1, "no open dimension 'batch'"),
    ):
        ended = run("bench", model, *arguments)
        assert (ended.code, ended.out) == (code, ""), ended
        assert expected in ended.err
    assert run("bench", "nowhere.so").code == 2
    forget_modules("tunehub_builder.bench")
    monkeypatch.setitem(sys.modules, "tunehub_builder.bench", None)
    assert "[bench]'" in run("bench", model).err


def test_an_open_model_needs_sizes(run: Any) -> None:
    network = tiny_mobilenet()
    opened = network.onnx_model()
    opened.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(opened, "open.onnx")
    ended = run("bench", "open.onnx", "--against", "")
    assert ended.code == 2 and "has the open dimension 'batch'" in ended.err and "--dim batch=8" in ended.err


def test_the_table_is_there_although_the_picture_cannot_be_written(
    run: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tunehub_builder.bench.picture.draw", full)
    ended = run("bench", model, "--against", "", "--repeat", 1, "--threads", 1, "--plot", "bench.svg")
    assert ended.code == 1 and "--plot bench.svg: No space left on device" in ended.err
    assert "MEDIAN ms" in ended.out


@pytest.fixture
def open_model(model: Path) -> Path:
    """y = x @ w, with any number of rows."""
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.arange(20, dtype="float32").reshape(4, 5), "w")
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ("rows", size)) for n, size in (("x", 4), ("y", 5))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", kinds[:1], kinds[1:], [weights])
    path = model.with_name("open.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_batches_have_latencies_and_streams_have_throughput(
    run: Any, open_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(throughput.runs_per_second.__kwdefaults__, "seconds", 0.2)
    monkeypatch.setattr(throughput, "_WARM_UP_S", 0.1)
    options = ["--against", "onnxruntime", "--repeat", 1, "--threads", 1, "--batch", "1,3", "--streams", 2, "--json"]
    made = run("bench", open_model, *options)
    assert made.code == 0, made.err
    rows = made.json["runtimes"]
    assert [(each["batch"], each["name"]) for each in rows] == [
        (1, "tunehub"), (1, "onnxruntime"), (3, "tunehub"), (3, "onnxruntime"),
    ]  # fmt: skip
    for each in rows:
        assert 0 < each["median_s"] <= each["p95_s"] <= each["p99_s"] and each["per_s"] > 0
    assert made.json["inputs"] == {"x": ["rows", 4]} and made.json["streams"] == 2


def test_a_batch_needs_an_open_first_dimension(run: Any, model: Path) -> None:
    refused = run("bench", model, "--batch", "1,8", "--against", "")
    assert refused.code == 1
    assert "no open dimension comes first in all inputs (data float32 [1, 3, 16, 16])" in refused.err

"""Models with an open dimension: tiny ones, compiled once and for each size; what is said of times and outputs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.__main__ import main
from benchmarks.dynamic import measure
from benchmarks.dynamic.compiling import CompilingSession, compile_ahead, recorded
from benchmarks.dynamic.document import keep, latest, write_document
from benchmarks.dynamic.models import open_model, opened
from benchmarks.dynamic.results import open_result, rows, size_result, summarize
from click.testing import CliRunner

from tunehub_builder.bench.comparison import NetworkComparison, RuntimeFacts
from tunehub_builder.bench.runtimes import tvm_runner
from tunehub_builder.networks import UnknownNetworkError, open_onnx_file

from .tiny_dynamic import PLAN, tiny_bert


def comparison(name: str, difference: float = 0.0, **samples: tuple[float, ...]) -> NetworkComparison:
    outputs = {runtime: [np.ones(2) + (difference if runtime == "fixed" else 0)] for runtime in samples}
    facts = {
        runtime: RuntimeFacts(compile_s=3.0 if runtime == "dynamic" else 2.0, outputs=outputs[runtime])
        for runtime in samples
    }
    return NetworkComparison(name=name, facts=facts, samples_s=samples, errors={})


@pytest.mark.fast
def test_the_ratio_is_the_median_of_the_rounds_and_not_that_of_the_medians() -> None:
    """The machine was twice as slow in the first round, and three times in the second."""
    found = size_result(8, comparison("net", dynamic=(2.2, 3.0, 1.1), fixed=(2.0, 3.0, 1.0), onnxruntime=(4.0, 6.0)))
    assert found.ratios == pytest.approx({"fixed": 1.1, "onnxruntime": 0.525})
    assert found.ms["dynamic"] == 2200.0
    assert found.is_right()


@pytest.mark.fast
def test_results_are_kept_and_written_as_a_document(tmp_path: Path) -> None:
    sizes = {
        1: comparison("net_1", dynamic=(1.0,), fixed=(2.0,)),
        3: comparison("net_3", 0.5, dynamic=(2.0,), fixed=(1.0,)),
    }
    failed = NetworkComparison(name="net_8", facts={}, samples_s={}, errors={"dynamic": "it | fails"})
    result = open_result("net", "batch", 2_000_000, {**sizes, 8: failed})
    assert result.compile_ratio() == 1.5
    summary = summarize("cpu", {"date": "2026-11-22"}, [result])
    assert summary.geomeans == {"fixed": 1.0}
    assert summary.worst == {"fixed": 2.0}
    keep(summary, tmp_path)
    assert latest(tmp_path) == [summary]
    write_document(tmp_path, tmp_path / "dynamic.md")
    text = (tmp_path / "dynamic.md").read_text()
    assert "| net | batch | 1 | 1,000 | 2,000 | 0.50 |  |  | 0e+00 |" in text
    assert "3e-01, WRONG" in text
    assert "it / fails" in text
    assert {row.name: row.value for row in rows(summary)}["cpu_sizes_right"] == 1


@pytest.mark.slow
def test_a_library_that_was_compiled_ahead_runs(tmp_path: Path) -> None:
    model = opened(tiny_bert(), tmp_path, {1: "sequence"}, (1, 7))
    network = open_onnx_file(model.path)
    found = CompilingSession(tmp_path, "cpu").library("bert", network)
    assert found.executable is None and np.isnan(found.compile_s)
    assert found.library_bytes == (tmp_path / "bert.so").stat().st_size
    for size in (1, 7):
        (outputs,) = tvm_runner(found.loaded().executable, model.at(size).sample_inputs())()
        assert outputs.shape[1] == size


@pytest.mark.slow
@pytest.mark.sweep
def test_on_a_gpu_all_goes_as_far_as_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Here is none: a program by the name of nvidia-smi says there is, in all processes."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771, 580.0, 1980, 3201, 700.00'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    model = opened(tiny_bert(), tmp_path, {1: "sequence"}, (1, 7))
    found = measure([model], tmp_path, "cuda", PLAN, jobs=2)
    (result,) = found.models
    assert result.cpu_s.keys() == result.alone_s.keys() == {"dynamic", "fixed"}
    assert result.compile_ratio() > 0.0 and result.cpu_ratio() > 0.0
    for size in result.sizes:
        assert {"dynamic", "fixed", "torch_graphs"} == size.errors.keys()
        assert "not compiled" not in " ".join(size.errors.values())
    assert found.machine["gpu"] == "NVIDIA H200"
    said = capfd.readouterr().err
    assert said.count("s of CPU time") == 4, "with the one that warms up"
    assert said.count(" s alone") == 3 and "bert_1: compiled in" in said


@pytest.mark.slow
def test_without_time_nothing_is_compiled_or_measured(tmp_path: Path) -> None:
    model = opened(tiny_bert(), tmp_path, {1: "sequence"}, (1,))
    assert set(compile_ahead([model], tmp_path, "cpu", 2, 0.0).values()) == {"no time was left to compile it"}
    (result,) = measure([model], tmp_path, "cpu", PLAN, jobs=2, seconds=0.1).models
    assert result.sizes == []


@pytest.mark.slow
def test_cuda_graphs_are_recorded_for_sizes_up_to_the_largest(tmp_path: Path) -> None:
    model = opened(tiny_bert(), tmp_path, {1: "sequence"}, (1,))
    main = recorded(open_onnx_file(model.path).relax_module())["main"]
    assert [str(name) for name in main.attrs["relax.rewrite_cuda_graph.capture_symbolic_vars"]] == ["sequence"]
    assert {str(name): int(most) for name, most in main.attrs["tir_var_upper_bound"].items()} == {"sequence": 384}
    fixed = model.at(7).relax_module()
    assert recorded(fixed) is fixed


@pytest.mark.fast
def test_height_and_width_are_open_together(tmp_path: Path) -> None:
    model = open_model("mobilenet_v2_images", tmp_path, 1)
    assert model.symbols == {2: "height", 3: "width"}
    network = model.at(64)
    assert (network.name, network.inputs) == ("mobilenet_v2_images_64", {"data": (1, 3, 64, 64)})


@pytest.mark.fast
def test_a_model_without_an_open_dimension_to_take_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownNetworkError):
        open_model("nothing", tmp_path, 1)


@pytest.mark.fast
def test_without_the_gpu_that_is_asked_for_a_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.target.nvidia.find_gpus", lambda: ())
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    result = CliRunner().invoke(main, ["dynamic", "--device", "cuda"])
    assert (result.exit_code, "nvidia-smi lists no GPU" in result.output) == (1, True)

"""The zoo where there is no PyTorch: its list, its results and document, and a network that is already exported."""

from __future__ import annotations

import importlib.util
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest
from benchmarks.__main__ import main
from benchmarks.shared.table import Row
from benchmarks.zoo import run_zoo, select
from benchmarks.zoo import runtimes as zoo_runtimes
from benchmarks.zoo.architectures import KINDS, Architecture, Feed, architecture, architectures, at_batch, in_half
from benchmarks.zoo.document import keep, write_document
from benchmarks.zoo.export import MODEL, export, feeds_of, is_exported, read_exported, seeded_model, write_network
from benchmarks.zoo.results import ZooJournal, ZooResult, rows, summarize
from benchmarks.zoo.running import ZooRun
from click.testing import CliRunner
from tests.tiny_networks import tiny_mobilenet

from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder.bench.gpu_runs import GpuRunner, recorded_or_not
from tunehub_builder.bench.runtimes import onnxruntime_session

PLAN = MeasuringPlan(rounds=2, sample_s=0.0, cutoff=5.0)


def no_module() -> object:
    raise AssertionError("nothing is exported here")


def tiny(name: str = "tiny") -> Architecture:
    feeds = {"data": Feed(shape=(1, 3, 16, 16))}
    return Architecture(name=name, kind="mobile", form="onnx", library="here", make=no_module, feeds=feeds)


def write_tiny(folder: Path) -> None:
    """The tiny network, and what onnxruntime computes, in place of what PyTorch would."""
    network = tiny_mobilenet()
    folder.mkdir(parents=True)
    model = network.onnx_model().SerializeToString()
    (folder / MODEL).write_bytes(model)
    inputs = network.sample_inputs()
    write_network(folder, "tiny", "here", inputs, onnxruntime_session(model, 1).run(None, inputs))


def smallest() -> list[Row]:
    """The zoo of one network, measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny(folder / "exports" / "tiny")
        zoo = ZooRun(exports=folder / "exports", plan=PLAN, limit_s=200.0)
        return rows(run_zoo(zoo, [tiny()], ZooJournal(folder / "cpu.jsonl")))


@pytest.mark.slow
def test_a_network_is_checked_once_and_one_that_fails_says_why_and_stops_no_other(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny")
    zoo, journal = ZooRun(exports=tmp_path, limit_s=200.0), ZooJournal(tmp_path / "cpu-check.jsonl")
    found = run_zoo(zoo, [tiny("nobody"), tiny()], journal)
    by_name = {row.name: row for row in rows(found)}
    assert by_name["cpu_networks_right"].value == 1
    assert by_name["cpu_nobody_failed"].note.startswith("the export failed: ")
    assert 0 < by_name["cpu_tiny_tunehub_max_rel_diff"].value < 1e-4
    assert not any(name.endswith("_ms") for name in by_name)
    before = (tmp_path / "cpu-check.jsonl").read_bytes()
    assert run_zoo(zoo, [tiny("nobody"), tiny()], journal) == found
    assert (tmp_path / "cpu-check.jsonl").read_bytes() == before
    journal.forget(["nobody"])
    assert list(journal.results()) == ["tiny"]


@pytest.mark.fast
def test_the_list_has_all_kinds_in_both_forms() -> None:
    names = Counter(item.name for item in architectures())
    assert len(names) >= 60
    assert set(names.values()) == {1}
    assert {(item.kind, item.form) for item in architectures()} == {(k, f) for k in KINDS for f in ("onnx", "program")}


@pytest.mark.fast
def test_networks_are_selected_by_patterns() -> None:
    assert [item.name for item in select("llama, swin_?")] == ["swin_t", "llama"]
    result = CliRunner().invoke(main, ["zoo", "--only", "nobody*"])
    assert result.exit_code == 1
    assert "--only 'nobody*' matches none of resnet18, " in result.output


@pytest.mark.fast
def test_a_network_in_half_precision_has_a_name_and_inputs_of_its_own() -> None:
    own = in_half(architecture("bert"), 8)
    assert own.name == "bert.half8" and architecture("bert.half8").feeds == own.feeds
    words, mask = feeds_of(own, 0)
    assert (words.shape, words.dtype, mask.dtype) == ((8, 128), "int64", "int64")
    (image,) = feeds_of(architecture("resnet18.half8"), 0)
    assert (image.shape, image.dtype) == ((8, 3, 224, 224), "float16")
    near = {"tunehub": 1e-3}
    wide = ZooResult(name="resnet18", kind="cnn", form="onnx", library="torchvision", differences=near)
    assert not wide.is_right() and msgspec.structs.replace(wide, half=True).is_right()


@pytest.mark.fast
def test_a_network_at_another_batch_keeps_its_form_and_precision() -> None:
    own = at_batch(architecture("squeezenet1_1"), 8)
    assert own.name == "squeezenet1_1.batch8" and architecture(own.name).feeds == own.feeds
    assert (own.form, own.half) == ("program", False)
    (image,) = feeds_of(own, 0)
    assert (image.shape, image.dtype) == ((8, 3, 224, 224), "float32")
    both = CliRunner().invoke(main, ["zoo", "--half", "8", "--batch", "8"])
    assert both.exit_code == 1 and "give one of them" in both.output


@pytest.mark.fast
def test_the_document_says_what_is_wrong_and_what_failed(tmp_path: Path) -> None:
    right = ZooResult(
        name="good", kind="cnn", form="onnx", library="timm", differences={"tunehub": 2e-6, "default": 1e-6},
        ms={"tunehub": 2.0, "default": 3000.0, "onnxruntime": 4.0}, errors={"openvino": "no | way"}, others_share=0.02,
    )  # fmt: skip
    wrong = ZooResult(name="bad", kind="cnn", form="program", library="timm", differences={"tunehub": None})
    failed = ZooResult(name="ugly", kind="audio", form="onnx", library="timm", failed="the export failed: a reason")
    summary = summarize("cpu", {"date": "2026-11-22", "cpu": "a CPU"}, [right, wrong, failed])
    keep(summary, tmp_path)
    write_document(tmp_path, tmp_path / "zoo.md")
    text = (tmp_path / "zoo.md").read_text()
    assert "date 2026-11-22, cpu a CPU." in text
    assert "| 1 of 3 |" in text
    assert "| good | onnx | 2e-06 | 3,000 | 2 | 4 | no / way | 0.50 |  | 2.0 % |" in text
    assert "**wrong**: not finite, TVM's default, too" in text
    assert "the export failed: a reason" in text
    assert (tmp_path / "zoo-cpu-latest.json").read_bytes() == (tmp_path / "zoo-cpu-2026-11-22.json").read_bytes()
    by_name = {row.name: row.value for row in rows(summary)}
    assert by_name["cpu_geomean_vs_onnxruntime"] == 0.5
    assert by_name["cpu_geomean_vs_default"] == 1500.0
    assert by_name["cpu_bad_tunehub_wrong"] == by_name["cpu_ugly_failed"] == by_name["cpu_good_openvino_failed"] == 1


@pytest.mark.fast
def test_a_torn_line_of_the_journal_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cpu.jsonl"
    path.write_text('{"name": "half')
    result = ZooResult(name="whole", kind="cnn", form="onnx", library="timm", ms={"tunehub": 1.0})
    ZooJournal(path).add(result)
    assert ZooJournal(path).results() == {"whole": result}


def needs_the_extra() -> None:
    if not all(importlib.util.find_spec(name) for name in ("torch", "torchvision", "timm", "transformers")):
        pytest.skip("the extra `zoo` (PyTorch, timm, transformers) is not installed")


@pytest.mark.fast
def test_the_libraries_know_all_names() -> None:
    needs_the_extra()
    import timm
    import torchvision

    known = {"torchvision": torchvision.models.list_models(), "timm": timm.list_models()}
    for library, names in known.items():
        wanted = [i.name for i in architectures() if i.library == library]
        assert set(wanted) <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "program"])
def test_an_exported_network_computes_in_tvm_what_it_does_in_pytorch(form: str, tmp_path: Path) -> None:
    needs_the_extra()
    import torch

    from tunehub_builder.bench.runtimes import TvmDefault

    def make() -> torch.nn.Module:
        norm = torch.nn.BatchNorm2d(4)
        torch.nn.init.zeros_(norm.weight)  # as libraries leave the last of a residual branch
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), norm, torch.nn.ReLU())

    item = Architecture(
        name=f"tiny_{form}", kind="cnn", form=form, library="here", make=make, feeds={"data": Feed(shape=(1, 3, 8, 8))}
    )  # fmt: skip
    assert seeded_model(item).whole[1].weight.abs().min() > 0
    export(item, tmp_path / item.name)
    other = "program" if form == "onnx" else "onnx"
    assert is_exported(tmp_path / item.name, form, with_onnx=True)
    assert not is_exported(tmp_path / item.name, other, with_onnx=True)
    network = read_exported(tmp_path / item.name)
    found = TvmDefault().prepare(network, 1).run()
    assert difference(found, network.expected()) < 1e-5


@pytest.mark.fast
def test_a_module_whose_cuda_graph_cannot_be_recorded_runs_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def runner(executable: object, _inputs: object) -> GpuRunner:
        tried.append(executable)
        if len(tried) == 1:
            raise RuntimeError("no graph of this")
        return GpuRunner(lambda: executable, lambda: None, lambda result: [result])

    monkeypatch.setattr(zoo_runtimes, "gpu_runner", runner)
    runtime = zoo_runtimes.GpuTvm(name="tunehub", served=True, lock=str(tmp_path / "lock"))
    compiled = iter(["with a graph", "without"])
    assert recorded_or_not(lambda: next(compiled), partial(runtime._ran, {}))() == ["without"]
    assert tried == ["with a graph", "without"]

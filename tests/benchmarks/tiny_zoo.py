"""A zoo of one tiny network, and the smallest run of its benchmark."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.shared.table import Row
from benchmarks.zoo import run_zoo
from benchmarks.zoo.architectures import Architecture, Feed
from benchmarks.zoo.export import MODEL, write_network
from benchmarks.zoo.results import ZooJournal, rows
from benchmarks.zoo.running import ZooRun
from tests.tiny_networks import tiny_mobilenet

from tunehub.comparison.protocol import MeasuringPlan
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

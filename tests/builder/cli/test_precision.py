"""Networks in bfloat16 and 8 bits from `tunehub tune` to a compile with the records."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

import onnx
import tvm

import tunehub
from tunehub.graph.layout.narrowing import doubt
from tunehub.kernels.cpu.dot_product import dot_product_of
from tunehub.kernels.template_fit import machine_for
from tunehub_builder import networks
from tunehub_builder.bench.runtimes import tvm_runner
from tunehub_builder.cli.check import check as check_command
from tunehub_builder.cli.distill import distill as distill_command
from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.tuning.work_directory import WorkDirectory

from ...sweeps import swept

pytestmark = pytest.mark.slow

HOST = tunehub.host_target()
TYPES = {"bf16": "bfloat16 × bfloat16 → float32", "int8": "uint8 × int8 → int32"}


def _can(precision: str) -> bool:
    if precision == "int8":
        return dot_product_of(HOST) is not None
    return doubt(HOST, machine_for(HOST)) is None


def command(run: Any, *arguments: object) -> str:
    done = CliRunner().invoke(run, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two products."""
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNEHUB_PATIENCE", "0")
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.standard_normal((64, 128), "float32"),
        "v": generator.standard_normal((128, 64), "float32"),
    }
    made = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        tiny (float[16, 64] x) => (float[16, 64] y) { z = MatMul(x, w) r = Relu(z) y = MatMul(r, v) }
    """)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(each, name) for name, each in weights.items())
    onnx.save(made, tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


@pytest.mark.long
@pytest.mark.parametrize("precision", swept(["bf16"], TYPES))
def test_records_of_a_precision_serve_a_compile_in_it(model: Path, tmp_path: Path, precision: Any) -> None:
    if not _can(precision):
        pytest.skip("no AVX512_BF16" if precision == "bf16" else "no AVX2")
    work, records = tmp_path / "work", tmp_path / "records.jsonl"
    alone = ("--threads", 1, "--workers", 1)
    command(tune_command, "--target", "host", "--model", model, "--precision", precision, "--trials", 2,
            "--no-warm-start", "--work", work, *alone)  # fmt: skip
    run = WorkDirectory(work).existing_run()
    assert (run.tuner, [each.name for each in run.networks]) == ("template", [f"tiny_{precision}"])
    assert f"--precision {precision}" in run.runs[-1].command
    command(check_command, work, *alone)
    command(distill_command, work, "-o", records)

    network = networks.in_precision(networks.from_onnx_file(model), precision)
    data = network.sample_inputs(3)
    found = []
    for options in ({"user_records": records, "precision": network.compiled_in, "layout": "auto"}, {"layout": "auto"}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a registry that has nothing for this CPU
            with tunehub.context(HOST, offline=True, registry=tmp_path, **options) as hub:
                executable = tvm.compile(network.relax_module(), HOST)
        found.append((tvm_runner(executable, data)(), hub.report()))
    (tuned, report), (plain, _) = found
    served = [item for item in report.workloads if item.rung == "user" and item.types == TYPES[precision]]
    assert served, [(item.name, item.rung, item.types, item.skipped) for item in report.workloads]
    apart = np.abs(tuned[0] - plain[0]).max() / np.abs(plain[0]).max()
    assert apart == 0.0 if precision == "int8" else 0 < apart < 2e-2


def test_a_cpu_without_the_instruction_is_told_before_anything_is_tuned(model: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        tune_command,
        ["--target", "llvm-haswell", "--model", str(model), "--precision", "bf16", "--work", str(tmp_path / "work")],
    )
    assert done.exit_code != 0
    assert "bfloat16" in done.output or "haswell" in done.output


def test_precision_is_for_the_tuner_of_templates(model: Path, tmp_path: Path) -> None:
    options = ["--target", "host", "--model", str(model), "--tuner", "meta_schedule", "--precision", "int8"]
    done = CliRunner().invoke(tune_command, [*options, "--work", str(tmp_path / "work")])
    assert (done.exit_code, "--precision is for the tuner template" in done.output) == (1, True)

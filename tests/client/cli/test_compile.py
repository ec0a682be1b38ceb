"""`tunehub compile` and `tunehub run`, in this process; what the library is to others is in tests/client/deploy."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunehub.deploy.library import stated_interface
from tunehub.registries.locked import read_lock
from tunehub.target.descriptors import descriptor_of
from tunehub_registry.package import sha256_of

from ...tiny_networks import tiny_mobilenet
from ..conftest import RegistryFolder

onnx = pytest.importorskip("onnx")
tvm = pytest.importorskip("tvm")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only if there is onnx

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def product(here: Path) -> Path:
    """ids [batch, 4] times a constant; the output is called `sum/0`."""
    weights = numpy_helper.from_array(np.arange(20, dtype="float32").reshape(4, 5), "w")
    ids = helper.make_tensor_value_info("x:0", TensorProto.FLOAT, ("batch", 4))
    result = helper.make_tensor_value_info("sum/0", TensorProto.FLOAT, ("batch", 5))
    graph = helper.make_graph([helper.make_node("MatMul", ["x:0", "w"], ["sum/0"])], "g", [ids], [result], [weights])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), here / "product.onnx"
    )
    return here / "product.onnx"


def test_the_kernels_of_a_model_are_frozen_in_a_lock_and_a_compile_goes_by_them(
    run: Any, product: Path, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(descriptor_of("llvm-znver4"))
    compiled = ["--dim", "batch=2", "--target", "llvm-znver4"]
    assert run("lock", *compiled).code == 2
    freezing = ["lock", "llvm-znver4", "--registry", registry.root, "--choices", product, *compiled]
    made = run(*freezing)
    assert made.code == 0, made.err
    assert "kernels frozen" in made.err
    models = read_lock(Path("tunehub.lock")).models
    assert [model.name for model in models] == ["product"] and len(models[0].kernels) == 1
    again = run(*freezing, "--check")
    assert again.code == 0, again.out + again.err
    monkeypatch.setenv("TUNEHUB_LOCK", "tunehub.lock")
    explained = json.loads(run("explain", product, *compiled, "--json").out)
    assert any("1 of 1 kernels are as locked" in note for note in explained["notes"])


def test_a_model_becomes_a_library_that_runs(run: Any, here: Path) -> None:
    network = tiny_mobilenet()
    onnx.save(network.onnx_model(), "tiny.onnx")
    made = run("compile", "tiny.onnx", "--report", "report.json")
    assert made.code == 0, made.err
    assert made.out.startswith("tiny.onnx for llvm-")
    assert "takes data float32 [1, 3, 16, 16]\n" in made.out and "run it: tunehub run tiny.so" in made.out
    report = json.loads((here / "report.json").read_text())
    assert len(report["workloads"]) >= 5 and all(each["rung"] != "exact" for each in report["workloads"])
    assert {path.name for path in here.iterdir()} == {"tiny.onnx", "tiny.so", "report.json"}

    inputs = network.sample_inputs(7)
    np.savez("x.npz", **inputs)
    ran = run("run", "tiny.so", "--inputs", "x.npz", "--outputs", "y.npz", "--repeat", 2)
    assert ran.code == 0, ran.err
    assert "input   data float32 [1, 3, 16, 16]" in ran.out and "median" in ran.out
    target = tvm.target.Target({"kind": "llvm"})
    machine = tvm.relax.VirtualMachine(tvm.compile(network.relax_module(), target), tvm.cpu())
    expected = machine["main"](*map(tvm.runtime.tensor, inputs.values())).numpy()
    with np.load("y.npz") as found:
        (array,) = found.values()
    assert np.allclose(array, expected, atol=1e-5)


def test_a_library_is_named_by_the_target_and_replaces_no_library_of_another_target_or_model(
    run: Any, here: Path, product: Path
) -> None:
    network = tiny_mobilenet()
    onnx.save(network.onnx_model(), "tiny.onnx")
    assert run("compile", "tiny.onnx").code == 0
    other = run("compile", "tiny.onnx", "--target", "llvm-skylake-avx512")
    assert other.code == 0, other.err
    assert {path.name for path in here.glob("*.so")} == {"tiny.so", "tiny-llvm-skylake-avx512.so"}
    before = Path("tiny.so").read_bytes()
    for arguments, reason in (
        (["tiny.onnx", "-o", "tiny.so", "--target", "llvm-skylake-avx512"], "is the library for kind llvm, mcpu "),
        ([product, "-o", "tiny.so"], "is the library of tiny.onnx"),
    ):
        refused = run("compile", *arguments)
        assert refused.code == 2 and "tiny.so" in refused.err and reason in refused.err, refused
        assert "give another --output, or --force" in refused.err
        assert Path("tiny.so").read_bytes() == before
    Path("foreign.so").write_bytes(b"not ours")
    assert "is no library of a model's file" in run("compile", product, "-o", "foreign.so").err
    assert "delete it, or give another --output" in run("bench", product, "--dim", "batch=1", "-o", "foreign.so").err
    assert run("compile", "tiny.onnx", "-o", "tiny.so").code == 0
    assert run("compile", product, "-o", "tiny.so", "--force").code == 0


def test_a_library_and_its_report_say_what_they_were_made_of(
    run: Any, here: Path, product: Path, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = registry.publish(descriptor_of("llvm-znver4"))
    assert run("lock", "llvm-znver4", "--registry", registry.root).code == 0
    monkeypatch.setenv("TUNEHUB_LOCK", "tunehub.lock")
    done = run("compile", product, "--target", "llvm-znver4", "-o", "model.so", "--report", "report.json")
    assert done.code == 0, done.err
    found = run("inspect", "model.so", "--json", "--sbom", "model.cdx.json").json
    lock, sha256 = sha256_of("tunehub.lock"), sha256_of(package)
    (stated,) = found["origin"]["packages"]
    assert (stated["name"], stated["version"], stated["sha256"]) == ("llvm-znver4", "0.1.0", sha256)
    assert (found["origin"]["lock_sha256"], found["sha256"]) == (lock, sha256_of("model.so"))
    assert found["source_sha256"] == sha256_of(product)
    report = json.loads(Path("report.json").read_text())
    assert report["lock_sha256"] == lock and report["rules_sha256"] == found["origin"]["rules_sha256"] is not None
    assert [each["sha256"] for each in report["packages"]] == [sha256]
    bill = json.loads(Path("model.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {each["type"] for each in bill["components"]} == {"library", "data", "machine-learning-model"}
    assert bill["dependencies"][0]["dependsOn"] == [each["bom-ref"] for each in bill["components"]]
    assert sha256 in [hashed["content"] for each in bill["components"] for hashed in each.get("hashes", ())]
    shown = run("inspect", "model.so").out
    assert f"lock file: sha256 {lock}" in shown and sha256 in shown
    refused = run("inspect", product)
    assert refused.code == 2 and product.name in refused.err and "does not say what it is" in refused.err


def test_a_library_for_a_gpu_is_built_for_the_architecture_that_was_asked_for(
    run: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunehub.target.descriptors.gpu_descriptor", lambda: None)
    monkeypatch.setattr("tunehub.deploy.library.gpu_descriptor", lambda: None)
    onnx.save(tiny_mobilenet().onnx_model(), "tiny.onnx")
    for nowhere in ("cuda", '{"kind": "cuda"}'):
        refused = run("compile", "tiny.onnx", "--target", nowhere)
        assert refused.code == 2 and "TVM finds no CUDA GPU here" in refused.err and "cuda-h100" in refused.err, refused
    made = run("compile", "tiny.onnx", "--target", '{"kind": "cuda", "arch": "sm_90"}')
    assert made.code == 0, made.err
    assert "tiny-cuda-sm_90.so" in made.out and "run it:" not in made.out and "copy it there" in made.out
    found = stated_interface(here / "tiny-cuda-sm_90.so")
    assert found is not None and (found.device, found.arch) == ("cuda", "sm_90")


@pytest.mark.parametrize("index", [5, -6, 10**9])
def test_an_index_of_no_row_is_refused_before_it_is_read(run: Any, index: int) -> None:
    table = numpy_helper.from_array(np.arange(15, dtype="float32").reshape(5, 3), "table")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, (1, 4))
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, (1, 4, 3))
    graph = helper.make_graph([helper.make_node("Gather", ["table", "ids"], ["rows"])], "g", [ids], [rows], [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "rows.onnx")
    assert run("compile", "rows.onnx").code == 0
    np.savez("good.npz", ids=np.array([[0, 4, -1, -5]]))
    assert run("run", "rows.so", "--inputs", "good.npz", "--repeat", 1).code == 0
    np.savez("bad.npz", ids=np.array([[0, index, 1, 2]]))
    refused = run("run", "rows.so", "--inputs", "bad.npz")
    assert refused.code == 2 and f"array 'ids' has {index}, which is no row of a table of 5" in refused.err, refused
    assert "give values from -5 to 4" in refused.err


def test_an_open_dimension_stays_open_and_runs_at_any_size(run: Any, product: Path) -> None:
    made = run("compile", product, "-o", "open.so", "--json").json
    assert made["library"] == "open.so" and made["weight_bytes"] == 80
    assert list(made["seconds"]) == ["import", "registries", "graph", "schedule", "lower", "code", "link"]
    interface = made["interface"]
    assert interface["inputs"] == [{"name": "x_0", "dtype": "float32", "shape": ["batch", 4]}]
    assert interface["outputs"] == [{"name": "sum_0", "dtype": "float32", "shape": ["batch", 5]}]
    assert interface["source"] == "product.onnx" and len(interface["source_sha256"]) == 64
    for size in (1, 9):
        ran = run("run", "open.so", "--dim", f"batch={size}", "--repeat", 1, "--json").json
        assert ran["outputs"] == [{"name": "sum_0", "dtype": "float32", "shape": [size, 5]}]
        assert ran["median_s"] > 0
    x = np.arange(8, dtype="float32").reshape(2, 4)
    np.savez("x.npz", x_0=x)
    assert run("run", "open.so", "--inputs", "x.npz", "--outputs", "y.npz", "--repeat", 1).code == 0
    with np.load("y.npz") as found:
        assert np.allclose(found["sum_0"], x @ np.arange(20, dtype="float32").reshape(4, 5))
    missing = run("run", "open.so")
    assert missing.code == 2 and "'x_0': has the open dimension 'batch'" in missing.err
    assert run("run", "open.so", "--dim", "bath=1").code == 2


def test_dimensions_and_inputs_can_be_fixed_and_have_functions_of_their_own(run: Any, product: Path) -> None:
    by_name = run("compile", product, "--dim", "batch=3", "--json").json
    assert by_name["interface"]["inputs"][0]["shape"] == [3, 4]
    by_input = run("compile", product, "--input-shape", "x:0=2,4", "--json").json
    assert by_input["interface"]["inputs"][0]["shape"] == [2, 4]
    assert run("compile", product, "--specialize", "batch=1,8", "-o", "both.so").code == 0
    machine = tvm.relax.VirtualMachine(tvm.runtime.load_module("both.so"), tvm.cpu())
    assert machine["main_batch_8"](tvm.runtime.tensor(np.ones((8, 4), "float32"))).shape == (8, 5)


def test_what_cannot_be_compiled_is_said_and_leaves_no_file(run: Any, product: Path, here: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.acme", name="frob_1")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), "foreign.onnx")
    Path("weights.pth").write_bytes(b"\x80\x04N.")
    (here / "folder").mkdir()
    for name in ("other.so", "folder/config.json", "folder/model.safetensors"):
        Path(name).write_bytes(b"{}")
    before = set(here.iterdir())
    for arguments, code, expected in (
        (["foreign.onnx"], 1, r"cannot import the operator Frobnicate (node frob_1)"),
        (["weights.pth"], 1, "holds pickled Python"),
        (["nowhere.onnx"], 1, "no such file"),
        ([product, "-o", "nowhere/x.so"], 2, "its folder does not exist"),
        ([product, "-o", "x.dll"], 2, "give x.so"),
        ([product, "--report", "nowhere/x.json"], 2, "--report"),
        ([product, "--dim", "bath=1"], 1, "Its open dimensions are batch"),
        (["nowhere.pt2"], 1, "no such file"),
        (["nowhere/"], 1, "no such file"),
        (["folder/config.json"], 1, "Give the folder: folder"),
        (["folder/model.safetensors"], 1, "Give the folder: folder"),
        (["other.so"], 1, "`tunehub inspect`"),
        ([product, "--dim", "batch=1,height=2"], 2, "give each name an option of its own"),
        ([product, "--target", "zen4"], 2, "did you mean 'llvm-znver4'?"),
        ([product, "--target", "llvm -mcpu=znver4"], 2, "did you mean 'llvm-znver4'?"),
        ([product, "--target", "llvm-znver"], 2, "did you mean 'llvm-znver"),
        ([product, "--target", "cuda-h2000"], 2, "did you mean 'cuda-h200'?"),
        ([product, "--target", "gpu"], 2, "did you mean 'cuda'?"),
        ([product, "--target", '{"kind"'], 2, "is not valid JSON"),
        ([product, "--dim", "batch=1,2"], 2, "--specialize batch=1,2"[:18]),
        ([product, "--dim", "batch"], 2, "--dim: expected NAME=8, got batch"),
        ([product, "--dim", "batch=1", "--dim", "batch=2"], 2, "'batch' stands twice"),
        ([product, "--input-shape", "x:0=0,4"], 2, "--input-shape: expected INPUT:1,3,224,224"),
        ([product, "--specialize", "bath=1"], 2, "bath"),
        ([product, "--target", "llvm-abacus"], 2, "LLVM knows no such CPU"),
        ([product, "--cc", "/nowhere/g++"], 1, "no program"),
    ):
        ended = run("compile", *arguments)
        assert (ended.code, ended.out) == (code, ""), ended
        assert expected in ended.err
        assert set(here.iterdir()) == before


def test_a_model_that_tvm_cannot_compile_is_said_in_a_line(run: Any, here: Path) -> None:
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, 8, 8))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = numpy_helper.from_array(np.ones((1, 1, 3, 3), "float32"), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[-9] * 4)
    graph = helper.make_graph([node], "g", [image], [result], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, here / "less.onnx")
    done = run("compile", here / "less.onnx")
    assert done.code == 1 and not (here / "less.so").exists()
    assert done.err.splitlines()[-1].startswith("Error: ") and "less.onnx: TVM " in done.err, done.err
    assert "negative output shape" in done.err and "Traceback" not in done.err


def test_run_refuses_what_it_cannot_feed_or_write(run: Any, product: Path, here: Path) -> None:
    assert run("compile", product, "-o", "open.so").code == 0
    np.savez("x.npz", x_0=np.ones((2, 5), "float32"))
    for arguments, code, expected in (
        (["open.so", "--inputs", "x.npz"], 2, "array 'x_0' is [2, 5], the input [batch, 4]"),
        (["open.so", "--inputs", "x.npz", "--dim", "batch=1"], 2, "--dim is for random inputs"),
        (["open.so", "--dim", "batch=1", "--outputs", "nowhere/y.npz"], 2, "--outputs"),
        (["product.onnx"], 2, "tunehub compile"),
    ):
        ended = run("run", *arguments)
        assert (ended.code, ended.out) == (code, ""), ended
        assert expected in ended.err
    assert not list(here.glob("y.npz*"))


def test_ctrl_c_that_tvm_swallows_ends_a_run(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def swallowing(*_: Any) -> tuple[None, None]:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return None, None

    monkeypatch.setattr("tunehub.cli.run._loaded", swallowing)
    monkeypatch.setattr("tunehub.cli.run._timed", lambda *_: pytest.fail("it went on"))
    ended = run("run", "model.so")
    assert (ended.code, ended.out) == (1, "") and "Aborted!" in ended.err


def test_tvm_with_relay_is_said_to_be_too_old(run: Any, product: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunehub.target.tvm_generation import InstalledTVM

    monkeypatch.setattr("tunehub.cli.model_files.find_tvm", lambda: InstalledTVM(version="0.19.0", ffi=None))
    for command in (["compile", product], ["run", "x.so"], ["explain", product]):
        ended = run(*command)
        assert ended.code == 1
        assert f"`tunehub {command[0]}` needs Relax, TVM 0.19.0 has Relay" in ended.err
        assert "TVM 0.25 to 0.27" in ended.err


def test_without_what_reads_models_the_extra_is_named(
    run: Any, product: Path, monkeypatch: pytest.MonkeyPatch, forget_modules: Any
) -> None:
    forget_modules("tunehub_builder.networks")
    monkeypatch.setitem(sys.modules, "onnx", None)
    ended = run("compile", product)
    assert ended.code == 1 and "needs the module onnx" in ended.err and "[bench]'" in ended.err


def test_a_program_of_pytorchs_needs_pytorch(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ended = run("compile", Path(__file__).parents[2] / "builder" / "networks" / "data" / "open.pt2")
    assert ended.code == 1 and "needs the module torch: install PyTorch" in ended.err


def test_a_relax_module_becomes_a_library(run: Any) -> None:
    Path("tiny.json").write_text(str(tvm.ir.save_json(tiny_mobilenet().relax_module())))
    made = run("compile", "tiny.json", "--json")
    assert made.code == 0, made.err
    assert made.json["interface"]["outputs"] == [{"name": "output_0", "dtype": "float32", "shape": [1, 10]}]


@pytest.mark.usefixtures("keeps_compiled")
def test_the_same_compile_in_a_new_process_is_a_copy_from_the_cache(run: Any, here: Path, product: Path) -> None:
    first = run("compile", product, "-o", "first.so", "--report", "first.json")
    again = run("compile", product, "-o", "again.so", "--report", "again.json", "--json").json
    assert first.code == 0 and list(again["seconds"]) == ["import", "registries", "link"]
    assert (here / "again.so").read_bytes() == (here / "first.so").read_bytes()
    (note,) = (each for each in again["report"]["notes"] if each.startswith("from the cache: "))
    assert "TUNEHUB_COMPILED=0" in note
    reports = [json.loads((here / name).read_text()) for name in ("first.json", "again.json")]
    assert reports[0]["workloads"] == reports[1]["workloads"] != []
    assert run("run", "again.so", "--dim", "batch=2", "--repeat", 1).code == 0


@pytest.mark.few(2)
@pytest.mark.usefixtures("keeps_compiled")
@pytest.mark.parametrize("changed", ["--precision", "--specialize", "model", "TUNEHUB_COMPILED"])
def test_another_compile_is_none_of_the_cache(
    changed: str, run: Any, here: Path, product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("compile", product, "-o", "first.so").code == 0
    options = {"--precision": ("--precision", "auto"), "--specialize": ("--specialize", "batch=1,8")}.get(changed, ())
    if changed == "model":
        model = onnx.load(product)
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 5), "float32"), "w"))
        onnx.save(model, product)
    if changed == "TUNEHUB_COMPILED":
        monkeypatch.setenv("TUNEHUB_COMPILED", "0")
    again = run("compile", product, "-o", "again.so", *options, "--json").json
    assert "code" in again["seconds"]


@pytest.mark.usefixtures("keeps_compiled")
def test_a_damaged_library_of_the_cache_is_compiled_again(run: Any, here: Path, cache: Path, product: Path) -> None:
    assert run("compile", product, "-o", "first.so").code == 0
    (kept,) = (cache / "libraries").glob("*.so")
    kept.write_bytes(kept.read_bytes()[:-100])
    again = run("compile", product, "-o", "again.so", "--json").json
    assert "code" in again["seconds"] and run("run", "again.so", "--dim", "batch=1", "--repeat", 1).code == 0
    assert "link" in run("compile", product, "-o", "third.so", "--json").json["seconds"]


@pytest.mark.usefixtures("keeps_compiled")
def test_a_full_or_read_only_cache_breaks_no_compile(
    run: Any, here: Path, cache: Path, product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(exist_ok=True)
    (cache / "libraries").write_text("in the way")
    assert run("compile", product, "-o", "first.so").code == 0
    assert (here / "first.so").is_file()


@pytest.mark.usefixtures("keeps_compiled")
def test_the_cache_of_compiled_code_is_shown_checked_and_emptied(
    run: Any, here: Path, cache: Path, product: Path
) -> None:
    assert run("compile", product, "-o", "first.so").code == 0
    rows = run("cache", "ls", "--json").json["files"]
    assert [row["kind"] for row in rows].count("library") == 2
    assert run("cache", "verify").code == 0
    (entry,) = (cache / "libraries").glob("*.json")
    entry.write_bytes(entry.read_bytes().replace(b"workloads", b"work1oads"))
    (damaged,) = run("cache", "verify", "--json").json["deleted"]
    assert damaged["path"] == str(entry)
    assert run("cache", "clear", "--compiled", "--json").json["freed"] > 0
    assert not {row["kind"] for row in run("cache", "ls", "--json").json["files"]} & {"library", "kernel"}


def test_a_run_is_profiled_by_the_models_own_nodes(
    run: Any, here: Path, product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model's file, and of a library with the report of its compile; the picture has the same calls."""
    onnx.save(tiny_mobilenet().onnx_model(), "tiny.onnx")
    nodes = {node.name for node in onnx.load("tiny.onnx").graph.node}
    found = run("run", "tiny.onnx", "--profile", "--repeat", 2, "--plot", "graph.svg", "--json").json
    kernels = [call for call in found["calls"] if call["rung"] is not None]
    named = [name for call in kernels for name in call["nodes"]]
    assert set(named) <= nodes and len(named) > len(nodes) / 2
    assert all(call["seconds"] > 0 for call in found["calls"]) and found["run_s"] > 0
    picture = (here / "graph.svg").read_text()
    assert picture.count("<g>") == len(kernels) and picture.count("<path") >= len(kernels) - 1

    assert run("compile", "tiny.onnx", "--report", "report.json").code == 0
    again = run("run", "tiny.so", "--profile", "--repeat", 2, "--report", "report.json")
    assert again.out.startswith("NODES") and kernels[0]["nodes"][0] in again.out and "a run takes" in again.out
    alone = run("run", "tiny.so", "--profile", "--repeat", 2, "--json").json
    assert {call["rung"] for call in alone["calls"]} == {None}

    with monkeypatch.context() as patch:
        patch.setattr("tunehub.api.compile", pytest.fail)  # what is open is said before
        missing = run("run", product, "--profile")
    assert missing.code == 2 and "--dim batch=8" in missing.err

    for wrong in (["--plot", "x.svg"], ["--profile", "--outputs", "y.npz"], ["--profile", "--report", "tiny.onnx"]):
        refused = run("run", "tiny.so", *wrong)
        assert refused.code == 2 and "--" in refused.err

"""The key of a compile: the same for the same inputs, another for any other."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax

from tunehub.compiler.hub import open_hub
from tunehub.compiler.libraries import inputs
from tunehub.compiler.libraries.inputs import compile_key, module_digest
from tunehub.tir.nodes import tensor_class
from tunehub_registry.target import TargetDescriptor

from ...conftest import RegistryFolder, lines, make_record

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]

LLVM = {"kind": "llvm", "mcpu": "znver4"}
CUDA = {"kind": "cuda", "arch": "sm_90"}


def network(*, weight: float = 1.0, name: str = "main", operator: str = "add", rows: int = 2) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_class()((rows, 3), "float32"))
    constant = relax.const(np.array([0.0, 0.0, weight], "float32"))
    with builder.function(name, [x]):
        y = builder.emit(getattr(relax.op, operator)(x, constant))
        builder.emit_func_output(builder.emit(relax.op.multiply(y, constant)))
    return builder.get()


def key(what: Any = "model", target: Any = LLVM, **options: Any) -> str | None:
    chosen = tvm.target.Target(target)
    hub = open_hub(chosen, **options)
    try:
        return compile_key(hub, chosen, {"what": what})
    finally:
        hub.close()


@pytest.mark.parametrize(
    "changes", [{"weight": 2.0}, {"weight": -0.0}, {"name": "other"}, {"operator": "subtract"}, {"rows": 4}], ids=str
)
def test_another_module_has_another_digest(changes: dict[str, Any]) -> None:
    assert module_digest(network()) == module_digest(network())
    assert module_digest(network(weight=0.0)) != module_digest(network(**changes)) != module_digest(network())


def test_other_attributes_and_which_constants_are_one_are_other_digests() -> None:
    module = network()
    found = {
        module_digest(each)
        for each in (module, module.with_attr("a", 1), module.with_attr("a", 2), relax.transform.LegalizeOps()(module))
    }
    assert len(found) == 4


def test_constants_are_no_part_of_the_text_that_tvm_writes() -> None:
    constants = inputs._ConstantsApart()
    text = tvm.ir.save_json(constants.visit_expr(network()["main"]))
    assert len(constants.found) == 1 and "constant0" in text and "constant1" not in text


def test_the_digest_is_the_same_in_every_process() -> None:
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from typing import Any\nimport numpy as np\nfrom tvm import relax\n"
        "from tunehub.tir.nodes import tensor_class\n"
        f"from tunehub.compiler.libraries.inputs import module_digest\n{inspect.getsource(network)}\n"
        "print(module_digest(network()))\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": "1"}, check=True, capture_output=True, text=True
    )
    assert other.stdout == f"{module_digest(network())}\n"


@pytest.fixture
def with_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's own callback compiles kernels, whatever other tests of this process have put in its place."""
    monkeypatch.setattr("tunehub.tir.cuda.nvrtc.asked_for", lambda: True)


@pytest.mark.usefixtures("with_nvrtc")
def test_the_same_inputs_have_the_same_key() -> None:
    assert key() == key() is not None
    assert key(target=CUDA) == key(target=CUDA) is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"what": "another"},
        {"target": {"kind": "llvm", "mcpu": "znver5"}},
        {"target": {"kind": "llvm", "mcpu": "znver4", "mattr": ["-avx512f"]}},
        {"layout": "keep"},
        {"verify": "never"},
        {"winograd": False},
        {"precision": "bf16"},
        {"strict": True, "require": None},
    ],
    ids=str,
)
def test_any_other_option_is_another_key(changed: dict[str, Any], registry: RegistryFolder) -> None:
    registry.publish(target=TargetDescriptor(kind="llvm", arch="x86_64", model="znver4"))
    same = {"registry": str(registry.root), "layout": "auto"}
    assert key(**same) != key(**{**same, **changed})


@pytest.mark.parametrize(
    "variable", ["TVM_CUDA_PTXAS_REG_LEVEL", "TUNEHUB_ANYTHING", "OMP_NUM_THREADS", "NVCC_APPEND_FLAGS"]
)
def test_any_switch_of_the_environment_is_another_key(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv(variable, "3")
    assert key() != before


def test_where_the_cache_lies_is_no_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = key()
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("TUNEHUB_COMPILED", "7")
    assert key() == before


@pytest.mark.parametrize(
    "context",
    [
        lambda: tvm.transform.PassContext(opt_level=2),
        lambda: tvm.transform.PassContext(opt_level=3, disabled_pass=["FuseOps"]),
        lambda: tvm.transform.PassContext(opt_level=3, required_pass=["FuseOps"]),
        lambda: tvm.transform.PassContext(opt_level=3, config={"relax.backend.use_cuda_graph": True}),
    ],
)
def test_another_pass_context_is_another_key(context: Callable[[], Any]) -> None:
    with tvm.transform.PassContext(opt_level=3):
        before = key()
    with context():
        assert key() != before


def test_who_watches_or_measures_has_no_key() -> None:
    with tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]):
        assert key() is None
    assert key(measure=1) is None


def test_other_records_and_another_package_are_another_key(tmp_path: Path, registry: RegistryFolder) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(lines(make_record(1)))
    found = [key(), key(user_records=mine)]
    mine.write_bytes(lines(make_record(1), make_record(2)))
    found.append(key(user_records=mine))
    registry.publish(target=TargetDescriptor(kind="llvm", arch="x86_64", model="znver4"))
    found.append(key(registry=str(registry.root)))
    registry.publish(target=TargetDescriptor(kind="llvm", arch="x86_64", model="znver4"), version="9.0.0")
    found.append(key(registry=str(registry.root)))
    assert len(set(found)) == 5 and None not in found


@pytest.mark.parametrize("program", ["rules_digest", "_tvm_libraries"])
def test_another_tunehub_or_tvm_is_another_key(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(inputs, program, lambda: "another")
    assert key() != before


@pytest.mark.usefixtures("with_nvrtc")
def test_another_compiler_of_kernels_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(target=CUDA)
    monkeypatch.setattr("tunehub.tir.cuda.nvrtc.compiler_identity", lambda: "another")
    assert key(target=CUDA) != before


def test_another_machine_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(inputs, "physical_cores", lambda: 77)
    assert key() != before


def test_a_calibration_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(inputs, "machine_for", lambda _target: "calibrated")
    assert key() != before

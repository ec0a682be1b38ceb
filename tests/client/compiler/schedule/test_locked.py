"""Kernels that a lock file asks for serve before what rules choose today; what can no longer be made is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub.compiler.freezing import frozen_model
from tunehub.compiler.hub import open_hub
from tunehub.compiler.pipeline import compile_module, explain_module
from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.compiler.schedule.locked import OTHER_CODE, LockedChoices, frozen
from tunehub.compiler.schedule.rule_choice import text_hash
from tunehub.exceptions import LockError
from tunehub.kernels.cpu import conv2d
from tunehub.records.lookup import EmptyLookup
from tunehub.target.descriptors import as_tvm_target
from tunehub_registry.lock import Lock, encode_lock
from tunehub_registry.locked_kernel import LockedKernel, LockedModel

from ..conftest import Nets
from .conv_records import conv, conv_function

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]
TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}


def prefer_another_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if later rules chose other knobs for convolutions."""

    own = conv2d.default_knobs

    def another(workload: Any, machine: Any) -> Any:
        return msgspec.structs.replace(own(workload, machine), blocks=1, columns=2)

    monkeypatch.setattr(conv2d, "default_knobs", another)


def library(mod: Any, lock: Path, folder: Path) -> bytes:
    hub = open_hub(as_tvm_target(TARGET), lock=str(lock), layout="auto")
    executable = compile_module(mod, as_tvm_target(TARGET), hub)
    executable.export_library(str(folder / "library.so"))
    return (folder / "library.so").read_bytes()


def written(path: Path, *models: LockedModel) -> Path:
    path.write_bytes(encode_lock(Lock(created_by="tunehub", models=models)))
    return path


def test_a_locked_model_is_the_same_library_whatever_rules_choose_later(
    nets: Nets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod, empty = nets.conv(channels=16, out=32, size=14), written(tmp_path / "empty.lock")
    hub = open_hub(as_tvm_target(TARGET), lock=str(empty), layout="auto")
    lock = written(tmp_path / "tunehub.lock", frozen_model(mod, "net", as_tvm_target(TARGET), hub))
    before = library(mod, empty, tmp_path)
    prefer_another_tile(monkeypatch)
    assert library(mod, empty, tmp_path) != before
    assert library(mod, lock, tmp_path) == before


@pytest.fixture
def alone(nets: Nets, target: Any) -> Any:
    return conv_function(conv(nets), target)


def by_lock(alone: Any, target: Any, kernel: LockedKernel) -> Scheduling:
    model = LockedModel(name="net", target="llvm-x", tvm="0.27.0", created_by="tunehub", kernels=(kernel,))
    choices = LockedChoices(place="my.lock", models=(model,))
    return Scheduling(alone["main"], target, EmptyLookup(), choices=choices)


def kernel_of(alone: Any, target: Any) -> LockedKernel:
    return frozen("conv", Scheduling(alone["main"], target, EmptyLookup()))


def test_the_kernel_of_a_lock_is_made_by_its_knobs(alone: Any, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(alone, target)
    assert kernel.template == "conv2d" and kernel.knobs
    prefer_another_tile(monkeypatch)
    found = by_lock(alone, target, kernel)
    assert text_hash(found.function) == kernel.text != kernel_of(alone, target).text
    assert found.served is not None and found.served.locked is None and not found.outcome.rejected


def test_a_kernel_whose_code_has_changed_serves_and_says_so(alone: Any, target: Any) -> None:
    kernel = msgspec.structs.replace(kernel_of(alone, target), text="0" * 16)
    found = by_lock(alone, target, kernel)
    assert found.served is not None and found.served.locked == OTHER_CODE


def test_tvms_own_loops_are_kept(alone: Any, target: Any) -> None:
    kernel = LockedKernel(key=kernel_of(alone, target).key, op="conv", rung="default", text=text_hash(None))
    assert by_lock(alone, target, kernel).served is None


def test_a_kernel_without_knobs_is_found_by_its_code(alone: Any, target: Any) -> None:
    own = kernel_of(alone, target)
    kernel = LockedKernel(key=own.key, op="conv", rung="template", text=own.text)
    assert text_hash(by_lock(alone, target, kernel).function) == own.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 99, "text": "0" * 16}, "version 99 of the template conv2d is not known"),
        ({"knobs": {"columns": "__import__('os')"}, "text": "0" * 16}, "columns"),
        ({"template": None, "knobs": {}, "text": "0" * 16}, "no step gives its code"),
    ],
)
def test_a_choice_that_cannot_be_made_falls_back_and_says_why(
    alone: Any, target: Any, changes: dict[str, Any], reason: str
) -> None:
    own = kernel_of(alone, target)
    found = by_lock(alone, target, msgspec.structs.replace(own, **changes))
    said = [item.reason for item in found.outcome.rejected if item.step == "lock"]
    assert text_hash(found.function) == own.text
    assert len(said) == 1 and said[0].startswith("my.lock: its choice, rung template") and reason in said[0]


def test_lost_choices_are_a_warning_in_the_report_and_an_error_in_strict_mode(nets: Nets, tmp_path: Path) -> None:
    mod, target = nets.conv(channels=16, out=32, size=14), as_tvm_target(TARGET)
    empty = written(tmp_path / "empty.lock")
    model = frozen_model(mod, "net", target, open_hub(target, lock=str(empty), layout="auto"))
    kernels = [
        msgspec.structs.replace(each, version=99, text="0" * 16) if each.template == "conv2d" else each
        for each in model.kernels
    ]
    gone = LockedKernel(key="0" * 32, op="old", rung="default", text="0" * 16)
    lock = written(tmp_path / "tunehub.lock", msgspec.structs.replace(model, kernels=(*kernels, gone)))
    hub = open_hub(target, lock=str(lock), layout="auto")
    explain_module(mod, target, hub)
    notes = "\n".join(hub.report().notes)
    assert "1 choices can no longer be made" in notes and "1 of the lock's are for workloads that" in notes
    assert [each.locked for each in hub.report().workloads if "conv" in each.name] == ["not as locked"]
    strict = open_hub(target, lock=str(lock), layout="auto")
    strict.policy.strict = True
    with pytest.raises(LockError, match="can no longer be made"):
        explain_module(mod, target, strict)

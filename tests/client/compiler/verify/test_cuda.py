"""GPUs that are not here: which schedules are to be run, what is said instead, and a static check that is made once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relax")

from tunehub.compiler.hub import Hub, open_hub  # noqa: E402
from tunehub.compiler.module_records import ModuleRecords  # noqa: E402
from tunehub.compiler.pipeline import explain_module, prepared_for  # noqa: E402
from tunehub.compiler.schedule.request import Served  # noqa: E402
from tunehub.compiler.verify.port import ScheduledFunction, TrustingVerifier  # noqa: E402
from tunehub.compiler.verify.session import VerifySession  # noqa: E402
from tunehub.compiler.verify.verification import Device, Verification, device_for  # noqa: E402
from tunehub.target.descriptors import descriptor_of  # noqa: E402
from tunehub.tir.cuda import check  # noqa: E402
from tunehub.tir.cuda.fault import Fault, NotSimulated  # noqa: E402
from tunehub.tir.cuda.known_faults import Found, made_of, remembered, remembering_faults  # noqa: E402
from tunehub.tir.workload import workload_text  # noqa: E402

from .conftest import asked  # noqa: E402

pytestmark = pytest.mark.slow

PACKAGE = "cuda-h200 0.2.0"
TARGET = {"kind": "cuda", "arch": "sm_90", "model": "h200", "max_threads_per_block": 1024, "max_num_threads": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


@pytest.fixture(scope="module")
def h200() -> Any:
    return tvm.target.Target(TARGET)


@pytest.fixture
def hub(h200: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Hub]:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    monkeypatch.setattr("tunehub.compiler.verify.verification.gpu_descriptor", lambda: None)

    def opened() -> Hub:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return open_hub(h200)

    return opened


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that the static check looked at."""
    seen: list[Any] = []
    find = check._fault

    def counted(scheduled: Any, target: Any) -> Any:
        seen.append(scheduled)
        return find(scheduled, target)

    monkeypatch.setattr(check, "_fault", counted)
    return seen


def test_without_a_gpu_the_report_says_that_nothing_was_run_and_the_second_time_nothing_is_checked(
    hub: Callable[[], Hub], h200: Any, nets: Any, checked: list[Any]
) -> None:
    net = nets.conv(256, 256, 14, relu=False, bias=False)
    for again in (False, True):
        opened = hub()
        checked.clear()
        with opened.verification.verifying(h200) as verifier:
            assert verifier is not None
        explain_module(net, h200, opened)
        served = opened.report().workloads  # by Winograd's algorithm
        assert [(item.rung, item.verified) for item in served] == 3 * [("template", "static")]
        assert "3 by the static check alone, not run on the device" in str(opened.report().table().title)
        assert bool(checked) is not again
        opened.close()


class ProcessesThatCheck(TrustingVerifier):
    """Passes everything, as if processes had checked and run it."""

    checks = True

    def __init__(self) -> None:
        self.submitted: list[ScheduledFunction] = []

    def submit(self, asked: ScheduledFunction) -> None:
        self.submitted.append(asked)


def test_processes_that_run_schedules_check_them_so_that_the_compile_does_not(
    hub: Callable[[], Hub], h200: Any, nets: Any, checked: list[Any]
) -> None:
    opened, verifier = hub(), ProcessesThatCheck()
    prepared = prepared_for(nets.conv(48, 80, 15, relu=True, bias=True), h200, opened)
    checked.clear()
    records = ModuleRecords(prepared, h200, opened, verifier, {})
    assert not records.verified.settle()
    assert verifier.submitted
    assert all(each.unchecked for each in verifier.submitted)
    assert not checked
    session = VerifySession(str(h200))
    assert {session.fault(workload_text(each.scheduled)) for each in verifier.submitted} == {None}
    assert len(checked) == len(verifier.submitted)
    opened.close()


@pytest.mark.parametrize(
    ("mode", "model", "rung", "package", "embedded", "wanted"),
    [
        ("auto", "h200", "exact", PACKAGE, True, False),
        ("auto", None, "exact", PACKAGE, True, False),  # no device: the target is what the records were measured on
        ("auto", "h100", "exact", PACKAGE, True, True),
        ("auto", "h200", "exact", PACKAGE, False, True),  # somebody else's, by that name
        ("auto", "h200", "exact", "cuda-a100 1.0", False, True),
        ("auto", "h200", "anchor", PACKAGE, True, True),
        ("auto", "h200", "transfer", PACKAGE, True, True),
        ("auto", "h200", "template", None, False, True),
        ("auto", "h200", "user", "mine.jsonl", False, True),
        ("auto", "h200", "measured", "mine.jsonl", False, False),
        ("always", "h200", "exact", PACKAGE, True, True),
    ],
)
def test_what_was_measured_on_this_kind_of_device_is_not_run(
    mode: Any,
    model: str | None,
    rung: Any,
    package: str | None,
    embedded: bool,
    wanted: bool,
    h200: Any,
    tmp_path: Path,
) -> None:
    host = descriptor_of(h200)
    verification = Verification(mode, host=host, cache=tmp_path, measured_package=PACKAGE, on_problem=pytest.fail)
    verification._device = Device(name=model, model=model)
    served = Served(step="exact", schedule=None, rung=rung, package=package, embedded=embedded)
    assert verification.wants(served) == wanted


def test_a_device_of_another_architecture_runs_nothing(h200: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host = descriptor_of(h200)
    where = "tunehub.compiler.verify.verification.gpu_descriptor"
    monkeypatch.setattr(where, lambda: descriptor_of(tvm.target.Target({**TARGET, "arch": "sm_80", "model": "a100"})))
    assert device_for(host) == Device(reason="the CUDA device of this machine is sm_80, not sm_90")
    monkeypatch.setattr(where, lambda: host)
    assert device_for(host) == Device(name="h200 sm_90", model="h200")
    monkeypatch.setattr(where, lambda: None)
    assert device_for(host).name is None


class Kept(dict[str, str]):
    """Texts in memory."""

    def fault_text(self, key: str) -> str | None:
        return self.get(key)

    def keep_fault_text(self, key: str, text: str) -> None:
        self[key] = text


@pytest.mark.parametrize("found", [None, Fault("race", "the buffer A"), NotSimulated("a loop too many")])
def test_what_was_found_is_found_again(found: Found) -> None:
    scheduled, kept = asked("right").scheduled, Kept()
    with remembering_faults(kept):
        assert remembered(scheduled, lambda: found) == found
        assert remembered(scheduled, lambda: pytest.fail("looked again")) == found
        with made_of(b"another record"):
            assert remembered(scheduled, lambda: Fault("race", "B")) == Fault("race", "B")
    for key in kept:
        kept[key] = "nonsense that was written there"
    with remembering_faults(kept):
        assert remembered(scheduled, lambda: found) == found
    assert remembered(scheduled, lambda: None) is None

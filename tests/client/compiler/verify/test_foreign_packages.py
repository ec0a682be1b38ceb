"""On CPUs, too, a schedule by a record of somebody else's package runs once before it serves; not those of packages
that come with tunehub, nor the user's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm

from tunehub.compiler.hub import Hub, open_hub
from tunehub.compiler.pipeline import compile_module
from tunehub.compiler.schedule import attempts
from tunehub.compiler.verify import verification, workers
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.template_fit import TemplateFit
from tunehub.records import package_records
from tunehub.registries import embedded
from tunehub.report.model import WorkloadReport
from tunehub.target.descriptors import descriptor_of
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import main_module
from tunehub_registry.record import encode_record
from tunehub_registry.template_record import TemplateRecord, encode_template_record

from ...conftest import RegistryFolder
from .conftest import of_matmul, spoilt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def net(module_nets: Any) -> Any:
    return module_nets.matmul(m=16, n=64, k=64)


@pytest.fixture
def folder(tmp_path: Path, net: Any, target: Any, record_for: Any) -> RegistryFolder:
    """A registry with a package for this target: a record of the network's matmul."""
    made = RegistryFolder(tmp_path / "theirs")
    made.publish(descriptor_of(target), data=b"".join(map(encode_record, record_for(net)[:1])))
    return made


@pytest.fixture
def hub(
    folder: RegistryFolder, target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Hub]]:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verification, "MOST_WORKERS", 1)
    hubs: list[Hub] = []

    def opened(verify: Any = "auto", registry: str = str(folder.root)) -> Hub:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hubs.append(open_hub(target, registry=registry, verify=verify, layout="keep"))
        return hubs[-1]

    yield opened
    for each in hubs:
        each.close()


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def forbid() -> None:
        for name in ("ForkServer", "WorkerProcess"):
            monkeypatch.setattr(workers, name, lambda *_, **__: pytest.fail("a process was started"))

    return forbid


def compiled(net: Any, target: Any, hub: Hub) -> WorkloadReport:
    compile_module(net, target, hub)
    return of_matmul(hub)


def test_a_schedule_of_a_foreign_package_is_run_once(net: Any, target: Any, hub: Any, no_processes: Any) -> None:
    first = compiled(net, target, hub())
    assert (first.rung, first.verified, first.refused) == ("exact", "run", ())
    no_processes()
    assert compiled(net, target, hub()) == first


def test_one_that_is_wrong_never_serves(
    net: Any, target: Any, hub: Any, run: Any, nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = attempts.apply_candidate
    monkeypatch.setattr(
        attempts, "apply_candidate", lambda *arguments: _Schedule(main_module(spoilt(applied(*arguments).mod["main"])))
    )
    data = nets.array(16, 64)
    opened = hub()
    executable = compile_module(net, target, opened)
    np.testing.assert_allclose(run(executable, data), run(tvm.compile(net, target), data), rtol=1e-4, atol=1e-4)
    found = of_matmul(opened)
    assert found.rung == "template" and {each.refusal.check for each in found.refused if each.refusal} == {"run"}


class _Schedule:
    trace = None

    def __init__(self, mod: Any) -> None:
        self.mod = mod


def knob_record(mod: Any, target: Any, number: int) -> TemplateRecord:
    """A record of one of the choices of knobs for ``mod``: 0 is the rule's own."""
    fit = TemplateFit(mod, target)
    assert fit.match is not None
    own = fit.match.template
    knobs = msgspec.to_builtins(fit.knob_space(fit.match)[number])
    return TemplateRecord(
        exact=workload_key(mod), anchor=anchor_key(mod), op="matmul", template=own.NAME, version=own.VERSION,
        knobs=knobs, run_s=(1e-6,), default_s=1e-3, source="template",
    )  # fmt: skip


@pytest.mark.parametrize(("number", "verified", "checked"), [(0, None, 0), (-1, "run", 1)])
def test_knobs_that_the_rule_itself_chooses_are_not_run(
    net: Any, target: Any, hub: Any, tmp_path: Path, tasks_of: Any, monkeypatch: pytest.MonkeyPatch,
    number: int, verified: str | None, checked: int,
) -> None:  # fmt: skip
    (task,) = (each for each in tasks_of(net) if "matmul" in each.name)
    made = RegistryFolder(tmp_path / "knobs")
    data = encode_template_record(knob_record(task.mod, target, number))
    made.publish(descriptor_of(target), data=data, tuner="template")
    proven: list[Any] = []
    check = attempts.check_proven
    monkeypatch.setattr(attempts, "check_proven", lambda *arguments: proven.append(check(*arguments)))
    found = compiled(net, target, hub(registry=str(made.root)))
    assert (found.rung, found.verified, len(proven)) == ("exact", verified, checked)


def test_knobs_of_another_version_of_the_template_or_out_of_bounds_are_none_that_the_rule_chooses(
    net: Any, target: Any, tasks_of: Any
) -> None:
    (task,) = (each for each in tasks_of(net) if "matmul" in each.name)
    fit, own = TemplateFit(task.mod, target), knob_record(task.mod, target, 0)
    assert fit.has_default(own)
    assert not fit.has_default(msgspec.structs.replace(own, version=own.version + 1))
    assert not fit.has_default(msgspec.structs.replace(own, template="pooling"))
    with pytest.raises(KnobError):
        fit.has_default(msgspec.structs.replace(own, knobs={}))


def test_nothing_is_run_where_the_user_says_never(net: Any, target: Any, hub: Any, no_processes: Any) -> None:
    no_processes()
    assert compiled(net, target, hub("never")).rung == "exact"


def test_packages_that_come_with_tunehub_are_not_run(
    net: Any, target: Any, hub: Any, folder: RegistryFolder, no_processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "embedded_registry", lambda: folder.root)
    proven: list[Any] = []
    monkeypatch.setattr(attempts, "check_proven", lambda *arguments: proven.append(arguments))
    no_processes()
    found = compiled(net, target, hub())
    assert (found.rung, found.verified, proven) == ("exact", None, [])


def test_a_package_of_the_same_name_and_version_is_none_that_came_with_tunehub(
    net: Any, target: Any, hub: Any, folder: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = RegistryFolder(tmp_path / "ours")
    path = ours.publish(descriptor_of(target), data=b"")
    assert path.name in {each.name for each in (folder.root / "packages").iterdir()}
    monkeypatch.setattr(embedded, "embedded_registry", lambda: ours.root)
    assert compiled(net, target, hub()).verified == "run"


def test_where_code_for_the_target_does_not_run_it_is_built_and_the_report_says_so(
    net: Any, target: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = verification.Device(reason="this machine's CPU does not run code for it")
    monkeypatch.setattr(verification, "device_for", lambda _: nowhere)
    found = compiled(net, target, hub())
    assert (found.rung, found.verified, found.not_run) == ("exact", "static", nowhere.reason)


def test_where_code_for_the_target_does_not_run_one_that_does_not_compile_never_serves(
    net: Any, target: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = verification.Device(reason="this machine's CPU does not run code for it")
    monkeypatch.setattr(verification, "device_for", lambda _: nowhere)
    applied = attempts.apply_candidate

    def apply(*arguments: Any) -> Any:
        schedule = applied(*arguments)
        function = schedule.mod["main"]
        call = tvm.tirx.Evaluate(tvm.tirx.call_intrin("void", tvm.ir.Op.get("tirx.tvm_storage_sync"), "shared"))
        whole = function.body
        block = whole.block
        body = tvm.tirx.SeqStmt([block.body, call])
        longer = type(block)([], [], [], block.name_hint, body, alloc_buffers=block.alloc_buffers)
        return _Schedule(main_module(function.with_body(type(whole)([], True, longer))))

    monkeypatch.setattr(attempts, "apply_candidate", apply)
    found = compiled(net, target, hub())
    assert found.rung == "template" and found.refused


def test_digests_are_of_one_name(folder: RegistryFolder, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "embedded_registry", lambda: folder.root)
    assert len(package_records.embedded_digests(descriptor_of(target).name)) == 1
    assert package_records.embedded_digests("llvm-other") == frozenset()
    (folder.root / "index.json").write_bytes(b"{")
    assert package_records.embedded_digests(descriptor_of(target).name) == frozenset()

"""One package for every supported TVM: the keys that 0.27 gave are found, its traces apply, the results are right."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import make_data as made

pytestmark = [
    pytest.mark.tvm_versions,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the data is for x86-64"),
]
tvm = pytest.importorskip("tvm")
CLASSES = {  # as 0.27 gives them
    "conv_relu": "8a051cc2f64f32b2302ca005916e9c5c",
    "conv_sigmoid": "5b32e9249caaa36bcd5eb712ac84458e",
    "matmul_bias": "99e5a036575e978c47663f7c1938cef4",
    "conv_pointwise": "bceec7ce4c9641504ee300378d1a8b9b",
}


@pytest.fixture(scope="module")
def target() -> Any:
    return tvm.target.Target(made.TARGET)


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    """The records in the package, by the net that they were made for."""
    from tunehub_registry.package import open_package
    from tunehub_registry.record import ScheduleRecord, read_records

    (path,) = (made.DATA / "packages").rglob("*.tunepkg")
    with open_package(path) as package:
        found = list(read_records(package.open(made.RECORDS), str(path)))
    assert all(isinstance(record, ScheduleRecord) for record in found)
    return {record.networks[0]: record for record in found if isinstance(record, ScheduleRecord)}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any) -> Any:
    from tunehub.compiler.hub import open_hub

    for name in ("REGISTRY", "RECORDS", "STRICT", "REQUIRE"):
        monkeypatch.delenv(f"TUNEHUB_{name}", raising=False)
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    opened = open_hub(target, registry=made.DATA, require="llvm-x86-64-v2", strict=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", made.NETS)
def test_keys_are_those_of_the_release_that_made_the_data(name: str, records: dict[str, Any], target: Any) -> None:
    from tunehub_builder.tuning.tasks import extract_tasks

    (task,) = extract_tasks([(name, getattr(made.Nets(), name)())], target)
    if name in records:
        assert (task.exact, task.anchor) == (records[name].exact, records[name].anchor)
    else:
        assert task.anchor in {record.anchor for record in records.values()}
        assert task.exact not in {record.exact for record in records.values()}


@pytest.mark.parametrize(("name", "key"), CLASSES.items())
def test_classes_are_those_of_every_release(name: str, key: str, target: Any) -> None:
    from tunehub_builder.tuning.tasks import extract_tasks

    (task,) = extract_tasks([(name, getattr(made.Nets(), name)())], target)
    assert task.classes["op_class"] == key


@pytest.mark.parametrize("name", ["conv_pointwise", "matmul_bias"])
def test_records_serve_other_shapes(name: str, records: dict[str, Any], target: Any) -> None:
    from tunehub.compiler.schedule.apply import apply_transfer
    from tunehub.tir.nodes import buffer_shapes
    from tunehub.tir.traces import import_trace
    from tunehub_builder.tuning.tasks import extract_tasks

    (task,) = extract_tasks([(name, made.OtherShapes().build(name))], target)
    assert task.classes["op_class"] == CLASSES[name]
    scheduled = apply_transfer(task.mod, import_trace(list(records[name].trace)), target).mod
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, shape).astype("float32") for shape, _ in buffer_shapes(task.mod["main"])]
    results = []
    for mod in (scheduled, task.mod):
        buffers = [tvm.runtime.tensor(array) for array in inputs]
        tvm.tirx.build(mod, target=target)["main"](*buffers)
        results.append(buffers[-1].numpy())
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", made.NETS)
def test_the_package_serves_and_the_result_is_right(name: str, hub: Any, target: Any) -> None:
    from tvm import relax

    from tunehub.compiler.pipeline import activate

    shape, source = made.NETS[name]
    mod = getattr(made.Nets(), name)()
    data = np.random.default_rng(1).uniform(-1, 1, shape).astype("float32")

    def run(executable: Any) -> Any:
        return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()

    with activate(hub):
        by_records = run(tvm.compile(mod, target))
    np.testing.assert_allclose(by_records, run(tvm.compile(mod, target)), rtol=1e-4, atol=1e-4)
    (workload,) = hub.report().workloads
    assert workload.rung == ("anchor" if source is None else "exact"), workload.skipped


def test_the_package_has_what_the_test_is_about(records: dict[str, Any]) -> None:
    from tunehub_registry.trace_rules import validate_trace

    kinds = {name: {instruction[0] for instruction in record.trace[0]} for name, record in records.items()}
    assert set(kinds) == {name for name, (_, source) in made.NETS.items() if source}
    assert "TransformLayout" in kinds["conv_relu"]  # packed weights
    assert {"SamplePerfectTile", "SampleCategorical"} <= kinds["conv_pointwise"]
    for record in records.values():
        validate_trace(record.trace)
        assert record.default_s is not None and min(record.run_s) > 0

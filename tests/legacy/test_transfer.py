"""AutoTVM's records at other shapes: when they serve, what is made of their knobs, and what the report says."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import autotvm, relay

import tunehub
from tunehub.exceptions import HubWarning
from tunehub.relay import ladder
from tunehub.relay.legality import build_problem
from tunehub.relay.transfer import fitted
from tunehub.target.descriptors import descriptor_of
from tunehub_registry.evidence import RecordEvidence, encode_evidence
from tunehub_registry.tuning_log import autotvm_key, parse_line

from .relay_cases import TARGET, build, log_line, make_registry, plain_output, run, tasks, used_layouts, write_log

pytestmark = pytest.mark.legacy

OTHER = (1, 16, 28, 28)


def conv(shape: tuple[int, ...], channels: int, stride: int = 1) -> tuple[Any, dict[str, Any]]:
    rng = np.random.RandomState(0)
    data, weight = relay.var("data", shape=shape), relay.var("w", shape=(channels, shape[1], 3, 3))
    body = relay.nn.conv2d(data, weight, (stride, stride), (1, 1), kernel_size=(3, 3), channels=channels)
    params = {"w": tvm.nd.array(rng.uniform(-1, 1, size=(channels, shape[1], 3, 3)).astype("float32"))}
    return tvm.IRModule.from_expr(relay.Function([data, weight], relay.nn.relu(body))), params


def task_of(net: Any) -> Any:
    return next(task for task in tasks(*net) if task.name == "conv2d_NCHWc.x86")


@pytest.fixture(scope="module")
def source() -> Any:
    return task_of(conv((1, 16, 14, 14), 16))


@pytest.fixture(scope="module")
def index(source: Any) -> int:
    """A configuration with tiles of 8 channels in, 8 out and 7 columns."""
    for number in range(len(source.config_space)):
        config = source.config_space.get(number)
        if [config[name].size[-1] for name in ("tile_ic", "tile_oc", "tile_ow")] == [8, 8, 7]:
            return number
    raise AssertionError("the template's space has no such tiles")


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", HubWarning)
        yield


def verdict(task: Any, default_s: float, **changes: Any) -> bytes:
    """What a gate measured of the record of 0.1 ms."""
    values: dict[str, Any] = {
        "exact": autotvm_key(task.workload), "default_s": default_s, "tuned_s": 1e-4, "speedup": default_s / 1e-4,
        "repeats": 3, "spread": 0.01, "output_max_rel_diff": 0.0, "threads": 2, "admitted": True, "tuner": "autotvm",
    }  # fmt: skip
    return encode_evidence(RecordEvidence(**(values | changes)))


def registry(folder: Path, evidence: bytes, *lines: Any) -> Path:
    content = write_log(folder / "a.log", *lines).read_bytes()
    sets = {"records/autotvm.log": ("autotvm", content)}
    return make_registry(folder / "registry", descriptor_of(tvm.target.Target(TARGET)), sets, evidence)


def test_a_record_of_other_shapes_serves(source: Any, index: int, tmp_path: Path) -> None:
    net = conv(OTHER, 32)
    place = registry(tmp_path, verdict(source, 2e-4), log_line(source, index, 1e-4))
    with tunehub.context(TARGET, registry=place) as hub:
        lib = build(*net)
    assert used_layouts(lib) == ["NCHW8c OIHW8i8o NCHW8c"]
    (layer,) = hub.report().workloads
    assert (layer.rung, layer.tuner, layer.run_s, layer.hit) == ("transfer", "autotvm", None, False)
    assert layer.source == "conv2d_NCHWc.x86 1x16x14x14 16x16x3x3 s1 p1"
    assert layer.package is not None
    assert layer.package.endswith(" 1.0")
    assert layer.predicted_s == pytest.approx(1e-4 * task_of(net).flop / source.flop)
    np.testing.assert_allclose(run(lib, OTHER), plain_output(*net, OTHER), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "evidence",
    [
        lambda source, own: b"",
        lambda source, own: verdict(source, 1.2e-4),
        lambda source, own: verdict(source, 2e-4, admitted=False, reason="outputs differ"),
        lambda source, own: verdict(source, 2e-4) + verdict(own, 1.01e-4, admitted=False, reason="no gain"),
    ],
    ids=["nobody measured it", "too little gain", "not admitted", "the workload itself was measured"],
)
def test_without_evidence_of_a_gain_the_default_stays(source: Any, index: int, evidence: Any, tmp_path: Path) -> None:
    net = conv(OTHER, 32)
    place = registry(tmp_path, evidence(source, task_of(net)), log_line(source, index, 1e-4))
    with tunehub.context(TARGET, registry=place) as hub:
        build(*net)
    assert [item.rung for item in hub.report().workloads] == ["default"]


@pytest.mark.parametrize("size, channels", [(7, 16), (56, 32)], ids=["far less work", "too far away"])
def test_a_neighbour_must_be_near(source: Any, index: int, size: int, channels: int, tmp_path: Path) -> None:
    place = registry(tmp_path, verdict(source, 2e-4), log_line(source, index, 1e-4))
    with tunehub.context(TARGET, registry=place) as hub:
        build(*conv((1, 16, size, size), channels))
    assert [item.rung for item in hub.report().workloads] == ["default"]


def test_another_stride_is_another_class(source: Any, index: int, tmp_path: Path) -> None:
    place = registry(tmp_path, verdict(source, 2e-4), log_line(source, index, 1e-4))
    with tunehub.context(TARGET, registry=place) as hub:
        build(*conv(OTHER, 32, 2))
    assert [item.rung for item in hub.report().workloads] == ["default"]


def test_the_nearest_shapes_come_first_and_own_records_before_any(source: Any, index: int, tmp_path: Path) -> None:
    net, near = conv(OTHER, 32), task_of(conv(OTHER, 24))
    evidence = verdict(source, 2e-4) + verdict(near, 2e-4)
    lines = [log_line(source, index, 1e-4), log_line(near, 0, 1e-4)]
    with tunehub.context(TARGET, registry=registry(tmp_path, evidence, *lines)) as hub:
        build(*net)
    assert [item.source for item in hub.report().workloads] == ["conv2d_NCHWc.x86 1x16x28x28 24x16x3x3 s1 p1"]
    own = write_log(tmp_path / "mine.log", log_line(task_of(net), 0, 1.0))
    with tunehub.context(TARGET, registry=tmp_path / "registry", user_records=own) as hub:
        build(*net)
    assert [item.rung for item in hub.report().workloads] == ["user"]


def test_an_operator_with_a_record_of_another_implementation_is_left_alone(
    source: Any, index: int, tmp_path: Path
) -> None:
    """TVM takes the implementation of the lowest cost: a prediction must not compete with what was measured."""
    net = conv(OTHER, 32)
    line = log_line(task_of(net), 0, 1.0)
    line["input"][1] = "conv2d_nchw_winograd.x86"
    place = registry(tmp_path, verdict(source, 2e-4), log_line(source, index, 1e-4), line)
    with tunehub.context(TARGET, registry=place) as hub:
        build(*net)
    assert [item.rung for item in hub.report().workloads] == ["default"]


def test_a_transfer_that_breaks_a_build_is_left_out(
    source: Any, index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's own record is not the one at fault, and stays in use."""
    found = ladder.transferred

    def broken(*arguments: Any) -> Any:
        result = found(*arguments)
        if result is not None:
            del result.config._entity_map["tile_ow"]
        return result

    monkeypatch.setattr(ladder, "transferred", broken)
    place = registry(tmp_path, verdict(source, 2e-4), log_line(source, index, 1e-4))
    with warnings.catch_warnings(record=True) as caught, tunehub.context(TARGET, registry=place) as hub:
        warnings.simplefilter("always", HubWarning)
        build(*conv(OTHER, 32))
        build(*conv((1, 16, 14, 14), 16))
    assert [item.rung for item in hub.report().workloads] == ["default", "exact"]
    assert any("tile_ow" in str(item.message) for item in caught)


@pytest.mark.parametrize("shape, channels", [((1, 3, 17, 17), 5), ((2, 7, 1, 1), 1), ((1, 40, 13, 31), 22)])
def test_what_is_fitted_is_of_the_space_and_builds(source: Any, shape: tuple[int, ...], channels: int) -> None:
    """Primes and ones included; where the space has nothing near, nothing is fitted, and no tile grows."""
    task = task_of(conv(shape, channels))
    done = 0
    for number in range(len(source.config_space)):
        config = parse_line(json.dumps(log_line(source, number, 1.0)).encode()).config
        found = fitted(config, task.config_space)
        if found is not None:
            sizes = {name: value for name, kind, value in config["entity"] if kind == "sp"}
            assert all(found[name].size[-1] <= value[-1] for name, value in sizes.items())
        if found is not None and (done := done + 1) % 7 == 1:
            assert build_problem(tvm.target.Target(TARGET), task.workload, found) is None
    assert done > 0


def test_knobs_of_another_template_do_not_fit(source: Any) -> None:
    pointwise = autotvm.task.create(
        source.name, (("TENSOR", (1, 16, 14, 14), "float32"), ("TENSOR", (16, 16, 1, 1), "float32"), *source.args[2:]),
        tvm.target.Target(TARGET),
    )  # fmt: skip
    config = parse_line(json.dumps(log_line(source, 0, 1.0)).encode()).config
    assert fitted(config, pointwise.config_space) is None
    assert fitted(config, source.config_space) is not None


def test_tiles_that_would_be_another_schedule_do_not_fit(source: Any, index: int) -> None:
    """13 columns in place of 7, or vectors of 5 or 6 channels in place of 8."""
    config = parse_line(json.dumps(log_line(source, index, 1.0)).encode()).config
    for shape, channels in (((1, 16, 13, 13), 16), ((1, 16, 14, 14), 50), ((1, 12, 14, 14), 16)):
        assert fitted(config, task_of(conv(shape, channels)).config_space) is None

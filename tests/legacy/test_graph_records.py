"""Graph-level records: used for the very network they were made for, node by node, and for no other."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import autotvm

import tunehub
from tunehub.exceptions import HubWarning
from tunehub.relay.fingerprint import graph_fingerprint
from tunehub.target.descriptors import descriptor_of

from .relay_cases import (
    TARGET,
    build,
    conv_net,
    graph_log,
    layouts_of,
    log_line,
    make_registry,
    plain_output,
    run,
    tasks,
    used_layouts,
    write_log,
)  # fmt: skip

pytestmark = pytest.mark.legacy

SETS = "records/graph/net.log"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def net() -> Any:
    return conv_net(layers=3)


@pytest.fixture(scope="module")
def task(net: Any) -> Any:
    return tasks(*net)[0]


@pytest.fixture
def layouts(task: Any) -> Iterator[list[int]]:
    """Three configurations of the one workload with three layouts: no record by workload could give them."""
    chosen: dict[str, int] = {}
    for index in range(len(task.config_space)):
        chosen.setdefault(layouts_of(task, index), index)
    yield list(chosen.values())[2:5]


def registry(folder: Path, net: Any, task: Any, indices: list[int], *more: Any) -> Path:
    import tvm

    lines = [log_line(task, index, 1e-3) for index in indices]
    by_workload = log_line(task, 0, 1e-4)
    content = write_log(folder / "a.log", by_workload).read_bytes()
    descriptor = descriptor_of(tvm.target.Target(TARGET))
    sets = {"records/autotvm.log": ("autotvm", content), SETS: ("graph_tuner", graph_log(net[0], [*lines, *more]))}
    return make_registry(folder / "registry", descriptor, sets)


def test_each_layer_gets_its_own_record(net: Any, task: Any, layouts: list[int], tmp_path: Path) -> None:
    place = registry(tmp_path, net, task, layouts)
    with tunehub.context(TARGET, registry=place) as hub:
        lib = build(*net)
    assert used_layouts(lib) == [layouts_of(task, index) for index in layouts]
    report = hub.report()
    assert {item.tuner for item in report.workloads} == {"graph_tuner"}
    assert sum(item.count for item in report.workloads) == 3
    assert any("one for each of the 3 convolutions" in note for note in report.notes)
    assert np.allclose(run(lib), plain_output(*net), atol=1e-4)


def test_another_network_gets_records_by_workload(net: Any, task: Any, layouts: list[int], tmp_path: Path) -> None:
    place = registry(tmp_path, net, task, layouts)
    with tunehub.context(TARGET, registry=place) as hub:
        lib = build(*conv_net(layers=2))
    assert used_layouts(lib) == [layouts_of(task, 0)] * 2
    assert {item.tuner for item in hub.report().workloads} == {"autotvm"}


def test_the_users_own_records_come_first(net: Any, task: Any, layouts: list[int], tmp_path: Path) -> None:
    place = registry(tmp_path, net, task, layouts)
    users = write_log(tmp_path / "user.log", log_line(task, 1, 5e-3))
    with tunehub.context(TARGET, registry=place, user_records=users) as hub:
        lib = build(*net)
    assert used_layouts(lib) == [layouts_of(task, 1)] * 3
    assert any("your own records come first" in note for note in hub.report().notes)


def test_a_set_that_does_not_fit_is_dropped(net: Any, task: Any, layouts: list[int], tmp_path: Path) -> None:
    """Too few records: the build fails inside of TVM, and is done again with the records by workload."""
    place = registry(tmp_path, net, task, layouts[:2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tunehub.context(TARGET, registry=place):
            lib = build(*net)
    assert used_layouts(lib) == [layouts_of(task, 0)] * 3
    assert any("graph-level records failed" in str(item.message) for item in caught if item.category is HubWarning)


def test_a_bad_line_spoils_the_set_not_the_build(net: Any, task: Any, layouts: list[int], tmp_path: Path) -> None:
    bad = log_line(task, 1, 1e-3)
    bad["config"]["entity"][0][2] = [-1, 0]
    place = registry(tmp_path, net, task, layouts[:2], bad)
    with pytest.warns(HubWarning, match="not positive"), tunehub.context(TARGET, registry=place):
        lib = build(*net)
    assert used_layouts(lib) == [layouts_of(task, 0)] * 3


def test_fingerprints_tell_networks_apart() -> None:
    three, four = conv_net(layers=3)[0], conv_net(layers=4)[0]
    assert graph_fingerprint(three) == graph_fingerprint(conv_net(layers=3)[0])
    assert graph_fingerprint(three) != graph_fingerprint(four)


@pytest.mark.parametrize("outside", [True, False])
def test_the_users_own_graph_records_come_first(
    net: Any, task: Any, layouts: list[int], tmp_path: Path, outside: bool
) -> None:
    place = registry(tmp_path, net, task, list(reversed(layouts)))
    users = write_log(tmp_path / "user.log", *(log_line(task, index, 5e-3) for index in layouts))
    if outside:
        with autotvm.apply_graph_best(str(users)), tunehub.context(TARGET, registry=place):
            lib = build(*net)
    else:
        with tunehub.context(TARGET, registry=place), autotvm.apply_graph_best(str(users)):
            lib = build(*net)
    assert used_layouts(lib) == [layouts_of(task, index) for index in layouts]

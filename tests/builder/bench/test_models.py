"""A library beside other runtimes: rows, and what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.comparison.protocol import MeasuringPlan
from tunehub.deploy.interface import Interface, TensorSpec
from tunehub.exceptions import LibraryError
from tunehub_builder.bench.comparison import NetworkComparison, RuntimeFacts, measured_each, prepared, runtime_processes
from tunehub_builder.bench.models import RuntimeRow, as_plain, most_apart, network_of, rows_of

sys.path.append(str(Path(__file__).parents[1] / "fakes"))  # processes import the fakes by name, too

from runtime_fakes import FakeRuntime

QUICK = MeasuringPlan(rounds=3, sample_s=0.0)
X = TensorSpec(name="x", dtype="int64", shape=("batch", 4))
INTERFACE = Interface(inputs=(X,), outputs=(), target="{}", device="llvm", tvm="0.27.0", tunehub="0.1.0")


def compared(*runtimes: FakeRuntime) -> NetworkComparison:
    network = network_of(INTERFACE, {"batch": 2}, Path("model.so"), None)
    with runtime_processes(runtimes, threads=1) as workers:
        return measured_each(prepared(network, workers), workers, QUICK)


def row(found: NetworkComparison, name: str, most: float = 1e-3) -> RuntimeRow:
    return rows_of(found, [name], most)[0]


@pytest.mark.slow
def test_other_outputs_are_an_error_and_so_is_a_process_that_dies() -> None:
    runtimes = [
        FakeRuntime(name="tunehub", value=0.5),
        FakeRuntime(name="near", value=0.5001),
        FakeRuntime(name="far", value=0.75),
        FakeRuntime(name="nowhere", value=float("nan")),
        FakeRuntime(name="dead", at=4),
    ]
    found = compared(*runtimes)
    ours, near, far, nowhere, dead = rows_of(found, [each.name for each in runtimes], 1e-3)
    assert ours.error is None and ours.difference is None and ours.load_s == 0.5
    assert near.error is None and near.difference == pytest.approx(1e-4, rel=1e-2)
    assert near.runs == len(found.samples_s["near"]) == 3
    assert far.error == "its outputs differ from tunehub's by 0.25 of the largest; the most is 0.001"
    assert far.median_s is not None
    assert nowhere.error is not None and as_plain(nowhere)["difference"] is None
    assert dead.error is not None and "crashed its process" in dead.error and dead.median_s is None


@pytest.mark.fast
@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=60))
def test_a_row_has_the_median_and_the_95th_percentile_of_all_runs(samples: list[float]) -> None:
    facts = RuntimeFacts(compile_s=1.0, outputs=[np.ones(2)])
    found = NetworkComparison(name="m", facts={"tunehub": facts}, samples_s={"tunehub": samples}, errors={})
    made = row(found, "tunehub")
    assert made.median_s == median(samples) and made.runs == len(samples)
    assert made.p95_s == pytest.approx(float(np.percentile(samples, 95)))


@pytest.mark.fast
def test_the_network_has_the_librarys_inputs_at_the_sizes_given() -> None:
    network = network_of(INTERFACE, {"batch": 3}, Path("model.so"), Path("model.onnx"))
    assert {n: (a.shape, str(a.dtype)) for n, a in network.sample_inputs().items()} == {"x": ((3, 4), "int64")}
    with pytest.raises(LibraryError, match="'batch'"):
        network_of(INTERFACE, {}, Path("model.so"), None)


@pytest.mark.fast
def test_rounded_operands_may_be_further_apart() -> None:
    assert most_apart(INTERFACE, None) == most_apart(INTERFACE, "float32") == 1e-3
    assert most_apart(INTERFACE, "bf16") == most_apart(INTERFACE, "auto") == 5e-2
    assert most_apart(INTERFACE, "tf32") == 2e-3

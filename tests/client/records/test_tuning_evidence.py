"""What tuning is worth, by the evidence in a package."""

from __future__ import annotations

import warnings

import msgspec
import pytest
from msgspec import UNSET

from tunehub.compiler.hub import Hub, open_hub
from tunehub.records.tuning_evidence import MIN_WORKLOADS, network_accuracy, tuned_ratios
from tunehub.report.model import NetworkAccuracy, TunedRatio, WorkloadReport
from tunehub_registry.evidence import Accuracy, NetworkEvidence, RecordEvidence, encode_evidence

from ..conftest import ZNVER5, RegistryFolder, key

pytestmark = pytest.mark.fast


def line(number: int, untuned_s: float, **changes: object) -> RecordEvidence:
    return msgspec.structs.replace(
        RecordEvidence(
            exact=key(number), default_s=1.0, tuned_s=0.1, speedup=10.0, repeats=5, spread=0.0,
            output_max_rel_diff=0.0, threads=2, admitted=True, tuner="template", template="dense", untuned_s=untuned_s,
        ),
        **changes,
    )  # fmt: skip


def test_the_median_of_enough_workloads_counts() -> None:
    ratios = [0.10, 0.10, 0.11, 0.12, 0.50]
    found = [line(number, seconds) for number, seconds in enumerate(ratios)]
    rejected = line(9, 9.0, admitted=False)
    without = msgspec.structs.replace(line(10, 1.0), untuned_s=msgspec.UNSET, template=msgspec.UNSET)
    few = [line(20 + number, 0.2, template="conv2d") for number in range(MIN_WORKLOADS - 1)]
    assert tuned_ratios([*found, rejected, without, *few]) == {"dense": TunedRatio(median=0.11 / 0.1, count=5)}
    assert tuned_ratios([]) == {}


def opened(registry: RegistryFolder) -> Hub:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(ZNVER5, registry=registry.root, tvm_version="0.27.0.post1")


@pytest.mark.parametrize("cached", [True, False])
def test_the_report_has_it_when_it_was_read(registry: RegistryFolder, cached: bool) -> None:
    evidence = b"".join(encode_evidence(line(number, 0.15)) for number in range(MIN_WORKLOADS))
    registry.publish(evidence=evidence.decode())
    hub = opened(registry)
    hub.add(WorkloadReport(name="fc", op="matmul", rung="template", template="dense", exact=key(1), measured_s=0.3))
    (item,) = hub.report().workloads
    assert hub.report().gain(item).factor is None  # compiling reads no evidence
    if not cached:
        for blob in (registry.root.parent / "cache" / "blobs").glob("*.tunepkg"):
            blob.unlink()
    hub.read_tuning()
    hub.read_tuning()  # once is enough
    gain = hub.report().gain(item)
    assert (gain.factor, gain.seconds) == (pytest.approx(1.5), pytest.approx(0.1))


def test_evidence_that_cannot_be_read_is_a_note(registry: RegistryFolder) -> None:
    path = registry.publish()
    hub = opened(registry)
    for blob in (registry.root.parent / "cache" / "blobs").glob("*.tunepkg"):
        blob.unlink()
    path.unlink()
    hub.read_tuning()
    (note,) = hub.report().notes
    assert note.startswith("the package's evidence cannot be read:")
    assert hub.report().tuning == {}


def test_a_package_without_evidence_says_nothing(registry: RegistryFolder) -> None:
    registry.publish()
    hub = opened(registry)
    hub.read_tuning()
    assert (hub.report().tuning, hub.report().notes) == ({}, ())


def test_the_accuracy_of_networks_is_read_where_it_was_measured() -> None:
    line = NetworkEvidence(
        network="net_int8", default_s=1.0, tuned_s=0.1, repeats=3, threads=2, output_max_rel_diff=0.0,
        precision="int8", accuracy=Accuracy(inputs=64, rows=64, same_class=63, max_rel_diff=1e-3),
    )  # fmt: skip
    found = network_accuracy(line)
    expected = NetworkAccuracy(network="net_int8", precision="int8", inputs=64, rows=64, same_class=63, difference=1e-3)
    assert found == expected
    assert network_accuracy(msgspec.structs.replace(line, accuracy=UNSET)) is None

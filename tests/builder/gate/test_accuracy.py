"""How near a network is to another runtime: counted by inputs, rows and classes."""

from __future__ import annotations

import numpy as np
import pytest

from tunehub_builder.gate.accuracy import accuracy_of, classes_of
from tunehub_builder.gate.evidence import network_evidence
from tunehub_builder.gate.networks import NetworkVerdict
from tunehub_builder.gate.report import network_results, shown_on
from tunehub_registry.evidence import Accuracy, NetworkEvidence, encode_evidence, parse_evidence
from tunehub_registry.exceptions import FormatError

pytestmark = pytest.mark.slow

FIRST, SECOND = np.array([[1.0, 3.0, 2.0], [4.0, 0.0, 1.0]]), np.array([[1.0, 2.9, 3.1], [4.0, 0.0, 1.0]])
FOUND = Accuracy(inputs=2, rows=4, same_class=3, max_rel_diff=0.275)
VERDICT = NetworkVerdict(
    network="net_bf16", digest="d", threads=2, admitted=True, default_s=(1.0,), tuned_s=(0.1,), difference=0.01,
    tolerance=0.02, precision="bf16", accuracy=FOUND,
)  # fmt: skip


def test_the_largest_difference_and_the_rows_with_the_same_class_are_counted() -> None:
    found = accuracy_of([([FIRST], [SECOND]), ([FIRST], [FIRST])])
    assert (found.inputs, found.rows, found.same_class) == (2, 4, 3)
    assert found.max_rel_diff == pytest.approx(1.1 / 4.0)


@pytest.mark.parametrize("wrong", [FIRST * np.nan, FIRST[:1]])
def test_outputs_that_cannot_be_compared_are_an_error(wrong: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="not finite, or of another shape"):
        accuracy_of([([FIRST], [FIRST]), ([wrong], [FIRST])])


@pytest.mark.parametrize(("shape", "rows"), [((2, 5), 2), ((2, 5, 1, 1), 2), ((1, 3, 5), 3), ((2, 1), 2), ((5,), 1)])
def test_axes_of_one_at_the_end_are_no_rows(shape: tuple[int, ...], rows: int) -> None:
    output = np.arange(np.prod(shape)).reshape(shape)
    assert classes_of(output).tolist() == [0 if shape == (2, 1) else 4] * rows


def test_a_verdict_becomes_evidence_with_precision_and_accuracy() -> None:
    line = network_evidence(VERDICT)
    assert isinstance(line, NetworkEvidence)
    assert (line.precision, line.accuracy) == ("bf16", FOUND)
    assert parse_evidence(encode_evidence(line)[:-1], "line") == line
    with pytest.raises(FormatError, match=r"same_class.*5 of 4 rows"):
        parse_evidence(encode_evidence(line)[:-1].replace(b'"same_class":3', b'"same_class":5'), "line")


def test_a_check_says_how_near_a_network_is(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    (result,) = network_results([VERDICT])
    assert result.accuracy == FOUND
    shown_on(sys.stdout)(VERDICT, 1, 1)
    assert "0.28 from onnxruntime on 2 inputs, the same class 3 of 4 times" in capsys.readouterr().out

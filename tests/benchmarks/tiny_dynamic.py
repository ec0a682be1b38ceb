"""Models with an open dimension that are tiny, and the smallest run of their benchmark."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.dynamic import measure
from benchmarks.dynamic.models import opened
from benchmarks.dynamic.results import rows
from benchmarks.shared.table import Row

from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder.networks import Network
from tunehub_builder.networks.bert import Bert, BertConfig

PLAN = MeasuringPlan(rounds=2, sample_s=0.0)


def tiny_bert() -> Network:
    return Bert(config=BertConfig(sequence=8, layers=1, hidden=32, heads=2, feed_forward=64)).network("bert")


def smallest() -> list[Row]:
    """An encoder at two lengths: all right, and rows without a failure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = rows(measure([opened(tiny_bert(), folder, {1: "sequence"}, (1, 7))], folder, "cpu", PLAN))
    by_name = {row.name: row for row in found}
    assert by_name["cpu_sizes_right"].value == by_name["cpu_sizes"].value == 2
    assert {f"cpu_bert_7_{name}_ms" for name in ("dynamic", "fixed", "onnxruntime")} <= by_name.keys()
    assert by_name["cpu_bert_dynamic_library"].value > by_name["cpu_bert_weights"].value > 0
    assert not [row for row in found if row.name.endswith("failed")]
    return found

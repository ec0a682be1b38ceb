"""The benchmark of low-batch products, but for a GPU: its models are served as it says, with one kernel each."""

from __future__ import annotations

import click
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from benchmarks import low_batch
from tests.client.kernels.cuda.scheduled import H200

from tunehub.compiler.preparing import prepare
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.records.lookup import EmptyLookup

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("rows", "label", "served"), [
    (1, "float16", None),
    (8, "float16", "low_batch"),
    pytest.param(9, "float16", "tensor_cores", marks=pytest.mark.sweep),
    (1, "q4f16", "low_batch"),
    (64, "q8f16", "low_batch"),
    pytest.param(None, "float16", "tensor_cores", marks=pytest.mark.sweep),
    (None, "q4f16", "tensor_cores"),
    pytest.param(16, "q4bf16", "low_batch", marks=pytest.mark.sweep),
    pytest.param(None, "q8bf16", "tensor_cores", marks=pytest.mark.sweep),
])  # fmt: skip
@pytest.mark.few(2)
def test_each_product_is_one_kernel(rows: int | None, label: str, served: str | None) -> None:
    with H200:
        function = low_batch.only_function(prepare(low_batch._module(rows, 512, 256, low_batch.FORMATS[label]), H200))
        scheduled, _ = schedule_function(function, H200, EmptyLookup())
    assert (scheduled.served.template if scheduled.served is not None else None) == served


def test_products_of_several_kernels_are_refused() -> None:
    with H200:
        prepared = prepare(low_batch._module(256, 512, 256, low_batch.FORMATS["q4f16"]), H200)
    with pytest.raises(click.UsageError, match=r"dequantize.* and .*several kernels: .*up to 64 --rows"):
        low_batch.only_function(prepared)

"""Networks for GPUs: which convolutions Winograd's algorithm takes, what the report says, and what stays. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import explain_module
from tunehub.compiler.preparing import prepare
from tunehub.compiler.winograd import cuda as winograd
from tunehub.compiler.winograd.cuda import with_winograd
from tunehub.graph.winograd.splitting import find_plain
from tunehub.kernels.cuda.gemm.hopper.rule import has_functions
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import constant_array, is_constant, main_module
from tunehub_registry.record import ScheduleRecord

from ...kernels.cuda.scheduled import H200
from ..conftest import Nets
from .running import functions

pytestmark = pytest.mark.slow

op = relax.op
CHANNELS, SIZE = 64, 56


def network(
    nets: Nets,
    *,
    batch: Any = 8,
    layers: int = 1,
    dtype: str = "float32",
    channels: int = CHANNELS,
    size: int = SIZE,
    **options: Any,
) -> Any:
    weight = relax.const(nets.array(channels, channels // options.get("groups", 1), 3, 3).astype(dtype))

    def make(b: Any, x: Any) -> Any:
        for _ in range(layers):
            x = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weight, **{"padding": 1, **options}))))
        return x

    return nets.build(make, (batch, channels, size, size), dtype=dtype)


def prepared(mod: Any) -> Any:
    return prepare(mod, H200)


def convolutions(mod: Any) -> list[Any]:
    return [found for each in functions(mod).values() if (found := find_plain(each)) is not None]


def test_only_windows_of_3x3_at_every_place_in_float32_are_found(nets: Nets) -> None:
    assert len(convolutions(prepared(network(nets)))) == 1
    others = [
        network(nets, strides=2), network(nets, dilation=2), network(nets, strides=(1, 2)), network(nets, groups=2),
        network(nets, dtype="float16"),
    ]  # fmt: skip
    assert [convolutions(prepared(mod)) for mod in others] == [[]] * len(others)


def test_an_open_batch_gets_it_and_every_function_has_a_schedule(nets: Nets, make_hub: Any) -> None:
    hub = make_hub(winograd=True)
    hub.host.kind = "cuda"
    explain_module(network(nets, batch=tvm.tirx.Var("n", "int64"), layers=2), H200, hub)
    templates = {each.name: each.template for each in hub.workloads if "winograd" in each.name}
    assert sorted(map(str, templates.values())) == ["cuda_tiles", "winograd", "winograd"] and not hub.failures


def test_what_has_more_than_its_batch_open_is_left_alone(nets: Nets) -> None:
    weight, n, rows = relax.const(nets.array(CHANNELS, CHANNELS, 3, 3)), *(tvm.tirx.Var(s, "int64") for s in "nh")
    mod = nets.build(lambda b, x: b.emit(op.nn.conv2d(x, weight, padding=1)), (n, CHANNELS, rows, SIZE))
    assert convolutions(prepared(mod)) == []


def test_large_images_get_it_and_the_report_names_it(nets: Nets, make_hub: Any) -> None:
    hubs = {flag: make_hub(winograd=flag) for flag in (True, False)}
    for hub in hubs.values():
        hub.host.kind = "cuda"
        explain_module(network(nets), H200, hub)
    names = {flag: {each.name: each.template for each in hub.workloads} for flag, hub in hubs.items()}
    found = {name: template for name, template in names[True].items() if "winograd" in name}
    assert [found[name] for name in found if "image" in name or "result" in name] == ["winograd"] * 2
    assert found["winograd_product"] in {"split_k", "cuda_tiles"}
    assert "winograd" not in str(names[False]) and not hubs[True].failures


def test_operands_that_may_be_rounded_are_left_to_tensor_cores(nets: Nets, make_hub: Any) -> None:
    hub = make_hub(winograd=True, precision="tf32")
    hub.host.kind = "cuda"
    explain_module(network(nets), H200, hub)
    assert "winograd" not in str([each.name for each in hub.workloads])


@pytest.mark.skipif(not has_functions(), reason="needs TVM 0.27 or newer")
@pytest.mark.parametrize(
    ("channels", "expected"), [(64, []), (512, ["tensor_cores", "winograd", "winograd"])], ids=["few", "many"]
)
def test_in_half_precision_many_channels_get_it_and_products_are_for_tensor_cores(
    channels: int, expected: list[str], nets: Nets, make_hub: Any
) -> None:
    hub = make_hub(winograd=True)
    hub.host.kind = "cuda"
    explain_module(network(nets, channels=channels, size=14, dtype="float16"), H200, hub)
    templates = [str(each.template) for each in hub.workloads if "winograd" in each.name]
    assert not hub.failures and sorted(templates) == expected


def test_weights_that_calls_share_are_transformed_once(nets: Nets) -> None:
    mod = with_winograd(prepared(network(nets, layers=3)), H200, EmptyLookup(), lambda _: None)
    weights: set[Any] = set()

    def visit(node: Any) -> None:
        if is_constant(node) and constant_array(node).ndim == 3:
            weights.add((constant_array(node).ctypes.data, constant_array(node).shape))

    relax.analysis.post_order_visit(mod["main"], visit)
    assert [shape[1:] for _, shape in weights] == [(CHANNELS, CHANNELS)]
    names = [str(variable.name_hint) for variable in mod.functions]
    assert len([name for name in names if "winograd" in name]) == 3


def with_record(mod: Any, run_s: float, make_hub: Any) -> Any:
    """A hub with a record for the one convolution of ``mod``."""
    (exact,) = [workload_key(main_module(each)) for each in functions(prepared(mod)).values() if find_plain(each)]
    record = ScheduleRecord(
        exact=exact, anchor=None, op="conv", trace=([], []), run_s=(run_s,), default_s=1.0, source="sketch"
    )  # fmt: skip
    return make_hub([record])


@pytest.mark.parametrize(("run_s", "stays"), [(1e-6, True), (1.0, False)], ids=["a fast one", "a slow one"])
def test_a_record_stays_unless_the_algorithm_should_be_faster(
    run_s: float, stays: bool, nets: Nets, make_hub: Any
) -> None:
    notes: list[str] = []
    mod = network(nets)
    before = prepared(mod)
    after = with_winograd(before, H200, with_record(mod, run_s, make_hub).lookup, notes.append)
    assert (after is before) == stays
    assert ["winograd=False" in note for note in notes] == ([] if stays else [True])


def test_without_a_schedule_nothing_is_rewritten(nets: Nets, monkeypatch: Any) -> None:
    def refused(*_: Any) -> None:
        raise ValueError("refused")

    mod = prepared(network(nets))
    monkeypatch.setattr(winograd.transforms, "build", refused)
    assert with_winograd(mod, H200, EmptyLookup(), lambda _: None) is mod


def test_weights_are_transformed_as_the_algorithm_has_them(nets: Nets) -> None:
    """F(2×2): a place in the middle is the sum of all nine, divided by four."""
    from tunehub.kernels.cuda.winograd.kernels import transformed

    weight = nets.array(5, 7, 3, 3)
    found = constant_array(transformed(relax.const(weight), 2))
    assert found.shape == (16, 7, 5)
    np.testing.assert_allclose(found[5], weight.sum((2, 3)).T / 4, rtol=1e-5)
    np.testing.assert_allclose(found[0], weight[:, :, 0, 0].T, rtol=1e-6)

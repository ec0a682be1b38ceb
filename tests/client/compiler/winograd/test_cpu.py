"""Networks whose convolutions are computed by Winograd's algorithm: right, reported, and only where it is to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module, explain_module
from tunehub.compiler.preparing import prepare
from tunehub.compiler.winograd import cpu as winograd
from tunehub.compiler.winograd.cpu import with_winograd
from tunehub.kernels.cpu import winograd as template
from tunehub.kernels.template_fit import TemplateFit
from tunehub.kernels.winograd.rewriting import find
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import constant_array, is_constant, main_module, tensor_class
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.template_record import TemplateRecord

from ....cpu_features import host as this_machine
from ..conftest import Nets

pytestmark = pytest.mark.slow

op = relax.op
CHANNELS, SIZE = 64, 28


@pytest.fixture(scope="module")
def wide() -> Any:
    """A CPU with vectors of 16, as far as rules go: no code is generated for it."""
    return tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1})


@pytest.fixture
def host() -> Any:
    """This CPU, on one core: code for it runs here."""
    return this_machine(1)


def chain(nets: Nets, *, layers: int = 2, channels: int = CHANNELS, size: Any = SIZE, batch: Any = 1) -> Any:
    """Convolutions with bias, the last with a residual."""

    def make(b: Any, x: Any) -> Any:
        y = x
        for at in range(layers):
            y = b.emit(op.nn.conv2d(y, nets.const(channels, channels, 3, 3), padding=1))
            y = b.emit(op.add(y, nets.const(1, channels, 1, 1)))
            y = b.emit(op.nn.relu(b.emit(op.add(y, x)) if at else y))
        return y

    return nets.build(make, (batch, channels, size, size))


def direct(data: Any, weight: Any, padding: tuple[int, int]) -> Any:
    """The convolution in float64."""
    padded = np.pad(data.astype("float64"), ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwpq,kcpq->nkhw", windows, weight.astype("float64"), optimize=True)


def functions(mod: Any) -> list[Any]:
    return [function for function in mod.functions.values() if isinstance(function, tvm.tirx.PrimFunc)]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "padding", "batch"),
    [
        (16, 16, (16, 16), (1, 1), 1),
        (20, 33, (23, 17), (1, 1), 1),
        (24, 40, (15, 21), (0, 0), 2),
        (48, 20, (14, 13), (1, 0), 1),
    ],
)
@pytest.mark.parametrize("tile", [2, 4])
def test_results_are_those_of_numpy(
    inputs: int, outputs: int, size: tuple[int, int], padding: tuple[int, int], batch: int, tile: int, nets: Nets,
    host: Any, run: Any, make_hub: Any, monkeypatch: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(winograd, "chosen_tile", lambda *_: tile)
    first, weight, bias = nets.array(inputs, 64, 1, 1), nets.array(outputs, inputs, 3, 3), nets.array(1, outputs, 1, 1)

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, relax.const(first)))))  # leaves its result in blocks
        y = b.emit(op.nn.conv2d(y, relax.const(weight), padding=padding))
        return b.emit(op.nn.relu(b.emit(op.add(y, relax.const(bias)))))

    data = nets.array(batch, 64, *size)
    hub = make_hub(layout="auto", winograd=True)
    found = run(compile_module(nets.build(make, data.shape), host, hub), data)
    between = np.maximum(np.einsum("nchw,kc->nkhw", data, first[:, :, 0, 0]), 0)
    expected = np.maximum(direct(between, weight, padding) + bias, 0)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert "winograd" in [each.template for each in hub.workloads] and not hub.failures


def test_a_network_gets_it_and_the_report_names_it(nets: Nets, host: Any, run: Any, make_hub: Any) -> None:
    mod, data = chain(nets), nets.array(1, CHANNELS, SIZE, SIZE)
    hubs = {flag: make_hub(layout="auto", winograd=flag) for flag in (True, False)}
    on, off = (run(compile_module(mod, host, hub), data) for hub in hubs.values())
    np.testing.assert_allclose(on, off, rtol=1e-4, atol=1e-4 * np.abs(off).max())
    names = {flag: [(each.name, each.template) for each in hub.workloads] for flag, hub in hubs.items()}
    assert {template for name, template in names[True] if "winograd" in name} == {"winograd"}
    assert "winograd" not in str(names[False]) and not hubs[True].failures


def test_explain_says_the_same(nets: Nets, wide: Any, make_hub: Any) -> None:
    hub = make_hub(layout="auto", winograd=True)
    explain_module(chain(nets), wide, hub)
    assert [each.template for each in hub.workloads].count("winograd") == 2


def test_weights_that_calls_share_are_transformed_once(nets: Nets, wide: Any) -> None:
    notes: list[str] = []
    weight = nets.const(CHANNELS, CHANNELS, 3, 3)

    def make(b: Any, x: Any) -> Any:
        for _ in range(3):
            x = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weight, padding=1))))
        return x

    mod, _ = with_winograd(
        prepare(nets.build(make, (1, CHANNELS, SIZE, SIZE)), wide, layout="auto"), wide, EmptyLookup(), notes.append
    )
    weights: dict[Any, Any] = {}

    def visit(node: Any) -> None:
        if is_constant(node) and constant_array(node).ndim == 6:
            weights[constant_array(node).ctypes.data] = constant_array(node)

    relax.analysis.post_order_visit(mod["main"], visit)
    assert {array.shape[:2] for array in weights.values()} == {(6, 6)}
    blocks = {array.shape[4:] for array in weights.values()}
    assert len(weights) == len(blocks)  # one for each layout that images have


def test_weights_that_are_no_constants_stay(nets: Nets, wide: Any) -> None:
    notes: list[str] = []
    kind = tensor_class()
    weight = relax.Var("w", kind((4, 4, 3, 3, 16, 16), "float32"))
    from tunehub.kernels.te.blocked import conv2d_blocked

    builder, x = relax.BlockBuilder(), relax.Var("x", kind((1, 4, 30, 30, 16), "float32"))
    with builder.function("main", [x, weight]):
        with builder.dataflow():
            out = builder.emit_output(builder.call_te(conv2d_blocked, x, weight, primfunc_name_hint="conv2d"))
        builder.emit_func_output(out)
    mod = builder.get()
    assert find(functions(mod)[0]) is not None
    assert with_winograd(mod, wide, EmptyLookup(), notes.append) == (mod, {})


def test_open_batches_are_right_at_every_size(nets: Nets, host: Any, run: Any, make_hub: Any) -> None:
    mod = chain(nets, batch=tvm.tirx.Var("n", "int64"))
    hubs = {flag: make_hub(layout="auto", winograd=flag) for flag in (True, False)}
    on, off = (compile_module(mod, host, hub) for hub in hubs.values())
    assert [each.template for each in hubs[True].workloads].count("winograd") == 2
    for batch in (1, 2, 5):
        data = nets.array(batch, CHANNELS, SIZE, SIZE)
        found, expected = run(on, data), run(off, data)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_open_images_keep_the_direct_convolution(nets: Nets, wide: Any) -> None:
    notes: list[str] = []
    mod = prepare(chain(nets, size=tvm.tirx.Var("h", "int64")), wide, layout="auto")
    assert with_winograd(mod, wide, EmptyLookup(), notes.append) == (mod, {})


def test_without_a_schedule_nothing_is_rewritten(nets: Nets, wide: Any, monkeypatch: Any) -> None:
    notes: list[str] = []

    def refused(*_: Any) -> None:
        raise ValueError("refused")

    mod = prepare(chain(nets), wide, layout="auto")
    monkeypatch.setattr(TemplateFit, "by_default", refused)
    assert with_winograd(mod, wide, EmptyLookup(), notes.append) == (mod, {})


@pytest.mark.parametrize("batch", [1, "n"])
def test_functions_are_scheduled_once(batch: Any, nets: Nets, wide: Any, make_hub: Any, monkeypatch: Any) -> None:
    applied, apply = [], template.apply

    def counted(*arguments: Any) -> Any:
        applied.append(arguments)
        return apply(*arguments)

    monkeypatch.setattr(template, "apply", counted)
    hub = make_hub(layout="auto", winograd=True)
    explain_module(chain(nets, batch=batch if batch == 1 else tvm.tirx.Var("n", "int64")), wide, hub)
    assert len(applied) == [each.template for each in hub.workloads].count("winograd") == 2


def test_an_error_leaves_direct_convolutions(nets: Nets, wide: Any, make_hub: Any, monkeypatch: Any) -> None:
    def failing(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(winograd, "with_winograd", failing)
    hub = make_hub(layout="auto", winograd=True)
    explain_module(chain(nets), wide, hub)
    assert [step for step, _ in hub.failures] == ["writing convolutions by Winograd's algorithm"]
    assert [each.template for each in hub.workloads].count("conv2d") == 2


def with_record(mod: Any, target: Any, make_hub: Any, **times: float) -> Any:
    """A hub with a record for one of the convolutions of ``mod``, and evidence with ``times`` where there are any."""
    chosen = next(function for function in functions(prepare(mod, target, layout="auto")) if find(function))
    exact = workload_key(main_module(chosen))
    record = TemplateRecord(
        exact=exact, anchor=None, op="conv", template="conv2d", version=1, run_s=(1e-3,), default_s=1e-2,
        source="template",
        knobs={"columns": 7, "blocks": 2, "row": SIZE, "order": "rows", "padding": "whole", "parallel": False},
    )  # fmt: skip
    evidence = RecordEvidence(
        exact=exact, default_s=1e-2, tuned_s=1e-3, speedup=10.0, repeats=5, spread=0.0, output_max_rel_diff=0.0,
        threads=1, admitted=True, tuner="template", template="conv2d", **times,
    )  # fmt: skip
    return make_hub([record], layout="auto", winograd=True, evidence=[evidence] if times else [])


@pytest.mark.parametrize(
    ("times", "templates"),
    [
        ({}, {"conv2d", "winograd"}),
        ({"untuned_s": 1.1e-3}, {"winograd"}),
        ({"untuned_s": 9e-3}, {"conv2d", "winograd"}),
    ],
    ids=["nobody says what tuning gained", "tuning gained little", "tuning gained more"],
)
def test_a_record_serves_unless_the_algorithm_should_be_faster(
    times: dict[str, float], templates: set[str], nets: Nets, wide: Any, make_hub: Any
) -> None:
    mod = chain(nets)
    hub = with_record(mod, wide, make_hub, **times)
    explain_module(mod, wide, hub)
    found = {each.template for each in hub.workloads if "conv2d" in each.name or "winograd" in each.name}
    assert found == templates
    assert ("exact" in hub.rungs()) == ("conv2d" in templates)
    noted = ["1 functions with records" in note and "winograd=False" in note for note in hub.notes]
    assert noted == ([True] if templates == {"winograd"} else [])

"""What keeps TVM from wrong results does so under every supported TVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.relax_nets import net

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

op = relax.op
GPU = {"kind": "cuda", "arch": "sm_90"}


def _computed(mod: Any, *arrays: Any) -> Any:
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("shapes", [((64, 64), (64, 64)), ((3, 4, 5),)])
def test_the_check_of_gpu_schedules_passes_tvms_own(shapes: tuple[tuple[int, ...], ...]) -> None:
    from tunehub.compiler.preparing import prepare
    from tunehub.tir.cuda.check import fault

    target = tvm.target.Target(GPU)
    make = (lambda _, x, y: op.matmul(x, y)) if len(shapes) == 2 else (lambda _, x: op.max(x, axis=[1, 2]))
    mod = prepare(net(make, *shapes), target)
    with target:
        for rules in relax.pipeline.legalize_passes(target):
            if "ApplyDefaultSchedule" in str(rules.info.name):
                mod = rules(mod)
    functions = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert functions
    assert [fault(function, target) for function in functions] == [None] * len(functions)


def test_constant_powers_and_group_norms() -> None:
    from tunehub.graph.simplify import simplify

    scale, shift = np.linspace(0.5, 2, 6, dtype="float32"), np.linspace(-1, 1, 6, dtype="float32")

    def make(b: Any, x: Any) -> Any:
        cube = b.emit(op.power(x, relax.const(np.float32(3))))
        return op.nn.group_norm(cube, relax.const(scale), relax.const(shift), num_groups=3, channel_axis=1, axes=[2, 3])

    data = (np.random.default_rng(0).uniform(-1, 1, (2, 6, 5, 7)) - 30).astype("float32")
    parts = (data.astype("float64") ** 3).reshape(2, 3, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    wanted = parts.reshape(data.shape) * scale[:, None, None] + shift[:, None, None]
    mod = simplify(net(make, data.shape))
    assert "R.power" not in mod.script(show_meta=False)
    np.testing.assert_allclose(_computed(mod, data), wanted, atol=1e-3)


def test_what_fast_mathematics_makes_wrong() -> None:
    from tunehub.graph.numerics.accurate_math import accurate_math

    def make(b: Any, x: Any, y: Any) -> Any:
        parts = [op.power(x, y), op.sin(x), op.tanh(x), op.nn.gelu_tanh(x), op.floor(b.emit(op.divide(x, y)))]
        return op.stack([b.emit(part) for part in parts], axis=0)

    x, y = np.array([-8, -3, 0.5, 7, 4096], "float32"), np.array([3, 2, -0.5, 7, 2], "float32")
    wide = x.astype("float64")
    gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    wanted = [wide**y, np.sin(wide), np.tanh(wide), gelu, np.floor(wide / y)]
    mod = accurate_math(net(make, x.shape, y.shape))
    np.testing.assert_allclose(_computed(mod, x, y), np.stack(wanted), rtol=1e-6, atol=1e-7)
    assert 'dtype="float64"' in mod.script(show_meta=False)


def test_convolutions_by_winograds_algorithm() -> None:
    import tunehub

    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64, 3, 3)).astype("float32") / 24 for _ in range(2)]

    def make(b: Any, x: Any) -> Any:
        for weight in weights:
            x = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, relax.const(weight), padding=1))))
        return x

    data = rng.standard_normal((1, 64, 28, 28)).astype("float32")
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
    results = {}
    for winograd in (True, False):
        with tunehub.context(target, layout="auto", winograd=winograd) as hub:
            machine = relax.VirtualMachine(tvm.compile(net(make, data.shape), target), tvm.cpu())
        results[winograd] = machine["main"](tvm.runtime.tensor(data)).numpy()
        assert ("winograd" in [each.template for each in hub.report().workloads]) == winograd
    assert np.abs(results[True] - results[False]).max() <= 1e-4 * np.abs(results[False]).max()


def test_products_whose_weights_are_inputs_are_read_as_they_lie() -> None:
    import tunehub

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((4, 256), (64, 256)))
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
    mod = net(lambda _, x, w: op.matmul(x, op.permute_dims(w)), x.shape, w.shape)
    with tunehub.context(target) as hub:
        machine = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, (x, w))).numpy()
    assert [each.template for each in hub.report().workloads] == ["nt_dense"]
    np.testing.assert_allclose(found, x @ w.T, atol=1e-3)

"""Convolutions of tokens with channels last: the same numbers, no transposes, and others left as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.compiler.pipeline import compile_module  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.layout.rules import ELEMENTWISE  # noqa: E402
from tunehub.graph.layout.tokens import images_of_tokens  # noqa: E402
from tunehub.tir.nodes import buffer_kind, calls_in, operator_of, parameters, static_shape  # noqa: E402

from ....cpu_features import AMX, AVX2, cpu, needs  # noqa: E402

pytestmark = pytest.mark.slow
op = relax.op
Nets = Any
TURN = (0, 2, 1)


def mixed(nets: Nets, *, axes: bool = False, after: bool = True, channels: int = 48, **how: Any) -> Any:
    """Tokens through a convolution, as they stand between the products of a transformer; ``axes``: moved as axes of
    images. ``after``: what comes back are tokens, GELU and a residual behind."""
    kernel = how.pop("kernel", 3)
    how = {"padding": 1, "groups": channels, **how}

    def make(b: Any, x: Any) -> Any:
        whole = (1, 6, 8, channels) if axes else (1, channels, 6, 8)
        if axes:
            image = b.emit(op.permute_dims(b.emit(op.reshape(x, whole)), (0, 3, 1, 2)))
        else:
            image = b.emit(op.reshape(b.emit(op.permute_dims(x, TURN)), whole))
        weight = nets.const(channels, channels // how["groups"], kernel, kernel)
        mixed = b.emit(op.add(b.emit(op.nn.conv2d(image, weight, **how)), nets.const(1, channels, 1, 1)))
        if not after:
            return b.emit(op.nn.relu(mixed))
        count = int(np.prod(static_shape(mixed)[2:]))
        if axes:
            back = b.emit(op.reshape(b.emit(op.permute_dims(mixed, (0, 2, 3, 1))), (1, count, channels)))
        else:
            back = b.emit(op.permute_dims(b.emit(op.reshape(mixed, (1, channels, count))), TURN))
        active = b.emit(op.nn.gelu(b.emit(op.multiply(back, nets.const(channels)))))
        return b.emit(op.add(x, active)) if count == 48 else active

    return nets.build(make, (1, 48, channels))


def output(mod: Any, data: Any) -> Any:
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(data)).numpy()


@pytest.mark.parametrize("axes", [False, True])
def test_depthwise_convolutions_read_tokens_as_they_lie(nets: Nets, axes: bool) -> None:
    mod, data = mixed(nets, axes=axes), nets.array(1, 48, 48)
    found = images_of_tokens(mod, ELEMENTWISE)
    names = [operator_of(call) for call in calls_in(found)]
    assert not {"relax.permute_dims", "relax.nn.conv2d"} & set(names)
    np.testing.assert_allclose(output(found, data), output(mod, data), rtol=1e-5, atol=1e-5)


def test_windows_that_do_not_overlap_are_products_of_patches(nets: Nets) -> None:
    mod, data = mixed(nets, kernel=2, strides=2, padding=0, groups=1), nets.array(1, 48, 48)
    found = images_of_tokens(mod, ELEMENTWISE)
    assert "relax.matmul" in {operator_of(call) for call in calls_in(found)}
    np.testing.assert_allclose(output(found, data), output(mod, data), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", [{"after": False}, {"channels": 40}, {"groups": 2}, {"groups": 1, "dilation": 2}])
def test_images_that_stay_images_odd_channels_and_other_windows_are_left(nets: Nets, how: Any) -> None:
    mod = mixed(nets, **how)
    assert images_of_tokens(mod, ELEMENTWISE) is mod


@needs(AVX2)
def test_a_depthwise_convolution_of_tokens_is_one_kernel_with_what_follows(nets: Nets, make_hub: Any) -> None:
    mod, data, hub = mixed(nets), nets.array(1, 48, 48), make_hub(layout="auto")
    executable = compile_module(mod, cpu(AVX2), hub)
    (work,) = (each for each in hub.workloads if "depthwise" in each.name)
    assert (work.rung, work.template) == ("template", "depthwise")
    assert "gelu" in work.name
    machine = relax.VirtualMachine(executable, tvm.cpu())
    np.testing.assert_allclose(
        machine["main"](tvm.runtime.tensor(data)).numpy(), output(mod, data), rtol=1e-4, atol=1e-5
    )


def test_on_tiles_tokens_are_rounded_where_they_are_written(nets: Nets) -> None:
    def make(b: Any, x: Any) -> Any:
        tokens = b.emit(op.matmul(x, nets.const(64, 64)))
        image = b.emit(op.reshape(b.emit(op.permute_dims(tokens, TURN)), (1, 64, 6, 8)))
        mixed = b.emit(op.nn.conv2d(image, nets.const(64, 1, 3, 3), padding=1, groups=64))
        back = b.emit(op.permute_dims(b.emit(op.reshape(mixed, (1, 64, 48))), TURN))
        return b.emit(op.matmul(b.emit(op.nn.gelu(back)), nets.const(64, 64)))

    found = prepare(nets.build(make, (1, 48, 64)), cpu(AMX), layout="auto", precision="bf16")
    (depthwise,) = (f for name, f in found.functions.items() if "depthwise" in name.name_hint)
    kinds = [str(buffer_kind(each).dtype) for each in parameters(depthwise)]
    assert kinds == ["bfloat16", "float32", "bfloat16"]

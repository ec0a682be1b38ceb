"""Convolutions in half precision with channels last: which modules are turned, that they compute the same, and how they
are served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import relax
from tvm.relax import op

import tunehub
from tunehub.compiler.pipeline import _prepare_for
from tunehub.compiler.preparing import prepare
from tunehub.graph.layout.cuda.channels_last import channels_last, wants_channels_last
from tunehub.graph.layout.cuda.payoff import pays
from tunehub.tir.nodes import is_constant, shape_of, tensor_class

from .....unoptimised import UNOPTIMISED
from ....kernels.cuda.scheduled import H200, ROOT

pytestmark = pytest.mark.slow
_Tensor = tensor_class()


def _network(dtype: str = "float16", channels: int = 64, size: int = 32) -> Any:
    """A photograph, a strided convolution, a pooling, one that adds what came before, and a mean."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return relax.const((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(dtype))

    image = relax.Var("image", _Tensor((2, 3, size, size), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            first = builder.emit(op.nn.conv2d(image, weight(channels, 3, 7, 7), strides=2, padding=3))
            first = builder.emit(op.nn.max_pool2d(op.nn.relu(first), (3, 3), strides=2, padding=1))
            second = builder.emit(op.nn.conv2d(first, weight(channels, channels, 3, 3), padding=1))
            second = builder.emit(op.clip(op.add(op.add(second, first), weight(1, channels, 1, 1)), 0, 6))
            result = builder.emit_output(op.mean(second, axis=[2, 3]))
        builder.emit_func_output(result)
    return builder.get()


def _outputs(mod: Any, image: Any = None) -> Any:
    image = np.random.default_rng(1).standard_normal((2, 3, 16, 16)).astype("float16") if image is None else image
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target(UNOPTIMISED)), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(image)).numpy().astype("float32")


def test_a_turned_network_computes_the_same_with_one_transposition() -> None:
    mod = _network(channels=16, size=16)
    turned = channels_last(mod)
    expected = _outputs(mod)
    assert np.abs(_outputs(turned) - expected).max() <= 1e-2 * np.abs(expected).max()  # TVM's sums are in float16 here
    convolutions = [call for call in _calls(turned) if call.op.name == "relax.nn.conv2d"]
    assert [str(call.attrs.data_layout) for call in convolutions] == ["NHWC"] * 2
    assert [shape_of(call.args[0])[-1] for call in convolutions] == [8, 16]


def _blocks_of_branches(size: int = 8) -> Any:
    """Two blocks as ConvNeXt and MetaFormer have them: a norm over channels that it turns images for itself, scales of
    one number and of a number a channel, and what came before added."""
    rng, dtype = np.random.default_rng(0), "float16"

    def weight(*shape: int) -> Any:
        return relax.const((rng.standard_normal(shape) / 4).astype(dtype))

    image = relax.Var("image", _Tensor((2, 3, size, size), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            last = builder.emit(op.nn.conv2d(image, weight(16, 3, 3, 3), padding=1))
            for _ in range(2):
                first = builder.emit(op.nn.conv2d(last, weight(16, 16, 3, 3), padding=1))
                turned = builder.emit(op.permute_dims(first, [0, 2, 3, 1]))
                normed = builder.emit(op.nn.layer_norm(turned, weight(16), weight(16), axes=[-1]))
                back = builder.emit(op.permute_dims(op.nn.relu(normed), [0, 3, 1, 2]))
                wide = builder.emit(op.add(op.multiply(back, weight(1)), weight(16, 1, 1)))
                last = builder.emit(op.add(op.multiply(last, weight(16, 1, 1)), wide))
            result = builder.emit_output(op.mean(last, axis=[2, 3]))
        builder.emit_func_output(result)
    return builder.get()


def test_branches_that_turn_images_for_themselves_leave_one_transposition() -> None:
    mod = _blocks_of_branches()
    turned = channels_last(mod)
    assert [call.op.name for call in _calls(turned)].count("relax.permute_dims") - _of_constants(turned) == 1
    image = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype("float16")
    found, expected = (_outputs(each, image) for each in (turned, mod))
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()


def _of_constants(mod: Any) -> int:
    return sum(call.op.name == "relax.permute_dims" and is_constant(call.args[0]) for call in _calls(mod))


def _calls(mod: Any) -> list[Any]:
    return [b.value for block in mod["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]


def test_all_of_it_is_one_transposition_and_kernels_for_rows_of_channels() -> None:
    with tunehub.context(H200, registry=[str(ROOT)], verify="never") as hub:
        pass
    with H200:
        tunehub.pipeline(H200, hub=hub)(_network())
    found = {each.name: each for each in hub.report().workloads}
    assert sum("transpose" in name for name in found) == 1
    assert [each.template for name, each in found.items() if "conv2d" in name] == ["tensor_cores"] * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_images_are_turned_where_no_package_says_which_layouts_records_are_for(dtype: str) -> None:
    with tunehub.context(H200, registry=[str(ROOT)], verify="never") as hub:
        pass
    hub.layout = "auto"  # as without a package
    with H200:
        names = [[str(v.name_hint) for v in each.functions] for each in (
            _prepare_for(hub, _network(dtype), H200), prepare(_network(dtype), H200, channels_last=True)
        )]  # fmt: skip
    assert names[0] == names[1]


@pytest.mark.parametrize("dtype,arch", [("float32", "sm_90"), ("float16", "sm_80")])
def test_other_networks_and_gpus_keep_their_order(dtype: str, arch: str) -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": arch, "max_threads_per_block": 1024})
    assert not wants_channels_last(_network(dtype), target)


@pytest.mark.parametrize("mean_s,keeps", [(1e-6, True), (1e-3, False)])
def test_convolutions_with_records_keep_their_order_unless_these_are_slow(
    mean_s: float, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunehub.context(H200, registry=[str(ROOT)], verify="never") as hub:
        pass
    found = SimpleNamespace(record=SimpleNamespace(mean_s=mean_s))
    monkeypatch.setattr(type(hub.lookup), "by_exact", lambda *_: found)
    with H200:
        chosen, plain = _prepare_for(hub, _network(), H200), prepare(_network(), H200)
    names = [[str(v.name_hint) for v in mod.functions] for mod in (chosen, plain)]
    assert (names[0] == names[1]) is keeps


@pytest.mark.parametrize(
    ("shape", "kernel", "precision", "turns_images"),
    [
        ((1, 16, 28, 28), (32, 16, 3, 3), "float32", False),
        ((1, 512, 7, 7), (512, 512, 3, 3), "float32", True),
        ((1, 16, 28, 28), (32, 16, 3, 3), "tf32", False),
    ],
    ids=["small", "long sums", "small, TF32"],
)
def test_a_convolution_alone_is_turned_where_it_gains_more_than_turning_takes(
    shape: tuple[int, ...], kernel: tuple[int, ...], precision: Any, turns_images: bool
) -> None:
    dtype = "float32" if precision == "tf32" else "float16"
    image = relax.Var("image", _Tensor(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            weight = relax.const(np.ones(kernel, dtype))
            result = builder.emit_output(op.nn.conv2d(image, weight, padding=1))
        builder.emit_func_output(result)
    mod = builder.get()
    with H200:
        own, other = (prepare(mod, H200, channels_last=turned, precision=precision) for turned in (False, True))
    assert pays(own, other, H200, precision) is turns_images


def test_pooling_and_means_of_turned_images_are_of_images_as_they_lie() -> None:
    image = relax.Var("image", _Tensor((1, 3, 8, 8), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            weight = relax.const((np.random.default_rng(0).standard_normal((16, 3, 3, 3)) / 4).astype("float16"))
            first = builder.emit(op.permute_dims(builder.emit(op.nn.conv2d(image, weight, padding=1)), [0, 2, 3, 1]))
            normed = builder.emit(op.nn.layer_norm(first, *[relax.const(np.ones(16, "float16"))] * 2, axes=[-1]))
            back = builder.emit(op.permute_dims(normed, [0, 3, 1, 2]))
            pooled = builder.emit(op.nn.avg_pool2d(back, (2, 2), strides=2))
            result = builder.emit_output(op.mean(pooled, axis=[2, 3], keepdims=True))
        builder.emit_func_output(result)
    mod = builder.get()
    turned = channels_last(mod)
    assert [call.op.name for call in _calls(turned)].count("relax.permute_dims") - _of_constants(turned) == 1
    given = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float16")
    found, expected = (_outputs(each, given) for each in (turned, mod))
    assert found.shape == expected.shape == (1, 16, 1, 1)
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()


def test_tokens_that_become_an_image_and_back_are_not_copied() -> None:
    """As SegFormer has a depthwise convolution between two linear layers."""
    tokens = relax.Var("tokens", _Tensor((1, 64, 16), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [tokens]):
        with builder.dataflow():
            weight = relax.const((np.random.default_rng(0).standard_normal((16, 16, 3, 3)) / 8).astype("float16"))
            turned = builder.emit(op.permute_dims(tokens, [0, 2, 1]))
            image = builder.emit(op.nn.conv2d(builder.emit(op.reshape(turned, (1, 16, 8, 8))), weight, padding=1))
            back = builder.emit(op.nn.gelu(builder.emit(op.reshape(image, (1, 16, 64)))))
            result = builder.emit_output(op.permute_dims(back, [0, 2, 1]))
        builder.emit_func_output(result)
    mod = builder.get()
    turned = channels_last(mod)
    assert [call.op.name for call in _calls(turned)].count("relax.permute_dims") == _of_constants(turned)
    given = np.random.default_rng(1).standard_normal((1, 64, 16)).astype("float16")
    found, expected = (_outputs(each, given) for each in (turned, mod))
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()

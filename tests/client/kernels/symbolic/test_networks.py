"""Networks with an open batch or sequence: nothing is left to TVM's default, and every size is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.compiler.pipeline import compile_module  # noqa: E402

from ....unoptimised import UNOPTIMISED  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
HIDDEN, HEADS = 128, 4


def _image_network(nets: Any, batch: Any) -> Any:
    rng = np.random.default_rng(0)
    stem, first, second, last = (
        relax.const(rng.uniform(-0.2, 0.2, shape).astype("float32"))
        for shape in ((32, 3, 7, 7), (32, 32, 3, 3), (32, 32, 1, 1), (32, 10))
    )

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, stem, strides=2, padding=3))))
        y = b.emit(op.nn.max_pool2d(y, (3, 3), (2, 2), 1))
        z = b.emit(op.nn.relu(b.emit(op.nn.conv2d(y, first, padding=1))))
        z = b.emit(op.nn.relu(b.emit(op.add(b.emit(op.nn.conv2d(z, second)), y))))
        return b.emit(op.matmul(b.emit(op.mean(z, axis=[2, 3])), last))

    return nets.build(make, (batch, 3, 64, 64))


def _encoder(nets: Any, batch: Any, length: Any) -> Any:
    rng = np.random.default_rng(0)
    weights = [relax.const(rng.uniform(-0.1, 0.1, (HIDDEN, HIDDEN)).astype("float32")) for _ in range(4)]
    bias, scale = relax.const(np.full(HIDDEN, 0.1, "float32")), relax.const(np.ones(HIDDEN, "float32"))

    def make(b: Any, x: Any, mask: Any) -> Any:
        def linear(y: Any, at: int) -> Any:
            return b.emit(op.add(b.emit(op.matmul(y, weights[at])), bias))

        def heads(y: Any, axes: list[int]) -> Any:
            split = b.emit(op.reshape(y, (batch, length, HEADS, HIDDEN // HEADS)))
            return b.emit(op.permute_dims(split, axes))

        query, keys, values = (
            heads(linear(x, at), axes) for at, axes in enumerate(([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        )
        scores = b.emit(
            op.add(b.emit(op.multiply(b.emit(op.matmul(query, keys)), relax.const(np.float32(0.25)))), mask)
        )
        mixed = b.emit(op.matmul(b.emit(op.nn.softmax(scores, axis=-1)), values))
        joined = b.emit(op.reshape(b.emit(op.permute_dims(mixed, [0, 2, 1, 3])), (batch, length, HIDDEN)))
        return b.emit(op.nn.layer_norm(b.emit(op.add(linear(joined, 3), x)), scale, bias, axes=[-1]))

    return nets.build(make, (batch, length, HIDDEN), (batch, 1, 1, length))


def _compiled(mod: Any, target: Any, hub: Any) -> Any:
    executable = compile_module(mod, target, hub)
    assert not hub.failures
    return executable


def _output(executable: Any, *arrays: Any) -> Any:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.sweep  # tests/client/compiler/test_symbolic_shapes.py has one
def test_a_convolution_network_with_an_open_batch(nets: Any, cpu: Any, make_hub: Any) -> None:
    hub = make_hub(layout="auto")
    opened = _compiled(_image_network(nets, tvm.tirx.Var("n", "int64")), cpu, hub)
    assert set(hub.rungs()) == {"template"}
    fixed = _compiled(_image_network(nets, 1), cpu, make_hub(layout="auto"))
    for batch in (1, 2, 3, 8, 17):
        data = np.random.default_rng(batch).uniform(-1, 1, (batch, 3, 64, 64)).astype("float32")
        expected = np.concatenate([_output(fixed, image[None]) for image in data])
        np.testing.assert_allclose(_output(opened, data), expected, rtol=1e-4, atol=1e-5, err_msg=str(batch))


@pytest.mark.sweep  # tests/client/compiler/test_symbolic_onnx.py has one
def test_an_encoder_with_an_open_batch_and_sequence(nets: Any, cpu: Any, make_hub: Any) -> None:
    hub = make_hub(layout="auto")
    batch, length = (tvm.tirx.Var(name, "int64") for name in "ns")
    opened = _compiled(_encoder(nets, batch, length), cpu, hub)
    assert set(hub.rungs()) == {"template"}
    plain = tvm.compile(_encoder(nets, batch, length), tvm.target.Target(UNOPTIMISED))
    for n, s in ((1, 1), (1, 7), (3, 1), (2, 16), (1, 61), (5, 13)):
        rng = np.random.default_rng(n * s)
        data = rng.uniform(-1, 1, (n, s, HIDDEN)).astype("float32")
        mask = np.where(rng.random((n, 1, 1, s)) < 0.3, -1e4, 0).astype("float32")
        got, expected = (_output(each, data, mask) for each in (opened, plain))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=f"{n}, {s}")


def test_an_open_batch_holds_each_weight_once(nets: Any, cpu: Any, make_hub: Any, tmp_path: Path) -> None:
    sizes = []
    for batch in (1, tvm.tirx.Var("n", "int64")):
        weights = nets.const(1024, 512)
        mod = nets.build(lambda b, x, w=weights: b.emit(op.matmul(x, w)), (batch, 1024))
        path = tmp_path / f"{len(sizes)}.so"
        _compiled(mod, cpu, make_hub(layout="auto")).export_library(str(path))
        sizes.append(path.stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 1024 * 512 * 4 / 2

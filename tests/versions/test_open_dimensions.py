"""Open dimensions under every supported TVM: keys are the same, results right, effects and casts kept."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest
from tests.relax_nets import net

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from tunehub.tir.nodes import tensor_class  # noqa: E402

op = relax.op
SIZES = (1, 2, 3, 7, 13, 16)


def symbol(name: str) -> Any:
    return tvm.tirx.Var(name, "int64")


def kind_of(shape: tuple[Any, ...]) -> Any:
    return tensor_class()(shape, "float32")


def array(*shape: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")


@pytest.fixture
def compiled(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that computes what a module does, compiled by tunehub without any records."""
    import tunehub

    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))

    def make(mod: Any, layout: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there is no package for any CPU
            target = {"kind": "llvm", "num-cores": 2}
            executable = tunehub.compile(mod, target, layout=layout, offline=True, **options)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        return lambda *arrays: machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()

    return make


def test_symbolic_workloads_have_one_key_in_all_releases() -> None:
    from tunehub.compiler.preparing import prepare
    from tunehub.tir.keys import anchor_key, workload_key
    from tunehub.tir.nodes import main_module

    def keys(make: Any, *shape: Any) -> tuple[str, str | None]:
        mod = prepare(net(make, shape), tvm.target.Target({"kind": "llvm"}))
        (function,) = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        return workload_key(main_module(function)), anchor_key(main_module(function))

    assert keys(lambda b, x: b.emit(op.nn.softmax(x)), symbol("batch"), 2, symbol("length")) == (
        "4f30bcd2321d5ce936d300984fd847a8",
        "7a88bb04f7369065385169a634ae7a6a",
    )
    assert keys(lambda b, x: b.emit(op.concat([x, x], axis=0)), symbol("n"), 4)[0] == "6be8e5a68780e011d299209642f2725f"


@pytest.mark.parametrize("layout", ["keep", "auto"])
def test_results_are_right_at_every_size(compiled: Any, layout: str) -> None:
    n, weight, scale = symbol("n"), array(8, 12), array(12)

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.matmul(x, relax.const(weight)))))
        y = b.emit(op.nn.softmax(b.emit(op.multiply(y, relax.const(scale)))))
        last = b.emit(op.take(y, relax.const(np.array([-1, 0]), "int64"), axis=0, mode="fast"))
        return b.emit(op.power(last, relax.const(2.0)))

    run = compiled(net(make, (n, 8)), layout)
    for size in SIZES:
        data = array(size, 8)
        y = np.exp(np.maximum(data @ weight, 0) * scale)
        np.testing.assert_allclose(run(data), ((y / y.sum(-1, keepdims=True)) ** 2)[[-1, 0]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layout", ["keep", "auto"])
def test_effects_and_casts_are_kept(compiled: Any, layout: str) -> None:
    called: list[int] = []
    tvm.register_global_func("tunehub.test.seen", lambda x: called.append(int(x.shape[0])) or x, override=True)
    keyword = next(k for k in inspect.signature(op.call_pure_packed).parameters if k in ("ty_args", "sinfo_args"))
    n, m = symbol("n"), symbol("m")

    def make(b: Any, x: Any, y: Any) -> Any:
        b.emit(op.call_pure_packed("tunehub.test.seen", x, **{keyword: kind_of((m, 4))}))
        same = b.match_cast(x, kind_of((n, 4)))
        return b.emit(op.multiply(b.emit(op.exp(same)), y))

    run = compiled(net(make, (m, 4), (n, 4)), layout)
    for size in SIZES:
        x, y = array(size, 4), array(size, 4) + 1
        np.testing.assert_allclose(run(x, y), np.exp(x) * y, rtol=1e-5)
    assert called == list(SIZES)
    with pytest.raises(Exception, match=r"(?i)cast|mismatch|shape"):
        run(array(5, 4), array(4, 4))


def test_convolutions_with_an_open_batch_are_those_of_each_image(compiled: Any) -> None:
    weight = array(16, 16, 3, 3)

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, relax.const(weight), padding=1))))
        return b.emit(op.nn.max_pool2d(y, (2, 2), (2, 2)))

    run, run_one = (compiled(net(make, (n, 16, 15, 15)), "auto") for n in (symbol("n"), 1))
    for size in SIZES:
        data = array(size, 16, 15, 15)
        expected = np.concatenate([run_one(image[None]) for image in data])
        np.testing.assert_allclose(run(data), expected, rtol=1e-4, atol=1e-5)


def test_attention_over_an_open_sequence_is_right(compiled: Any) -> None:
    s = symbol("s")

    def make(b: Any, q: Any, k: Any, v: Any) -> Any:
        scores = b.emit(op.matmul(q, b.emit(op.permute_dims(k, [0, 2, 1]))))
        return b.emit(op.matmul(b.emit(op.nn.softmax(scores)), v))

    run = compiled(net(make, (2, s, 32), (2, s, 32), (2, s, 32)), "auto")
    for size in (*SIZES, 61):
        q, k, v = (array(2, size, 32) * factor for factor in (1, 2, 3))
        powers = np.exp(q @ k.transpose(0, 2, 1))
        np.testing.assert_allclose(run(q, k, v), powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_functions_for_chosen_sizes_are_right(compiled: Any) -> None:
    n, m, weight = symbol("n"), symbol("m"), array(8, 12)

    def make(b: Any, x: Any, y: Any) -> Any:
        same = b.match_cast(y, kind_of((n, 12)))
        return b.emit(op.add(b.emit(op.nn.relu(b.emit(op.matmul(x, relax.const(weight))))), same))

    run = compiled(net(make, (n, 8), (m, 12)), "auto", specialize={"n": [1, 7], "m": [1, 7]})
    for size in SIZES:
        x, y = array(size, 8), array(size, 12)
        np.testing.assert_allclose(run(x, y), np.maximum(x @ weight, 0) + y, rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match=r"(?i)cast|mismatch|shape"):
        run(array(7, 8), array(3, 12))


def test_bounds_decide_shapes_and_are_checked(compiled: Any) -> None:
    n, table = symbol("n"), array(16, 4)

    def make(b: Any, x: Any) -> Any:
        return b.emit(op.add(x, b.emit(op.strided_slice(relax.const(table), [0], [0], [n], [1]))))

    main = net(make, (n, 4))["main"].with_attr("tir_var_upper_bound", {"n": 16})
    run = compiled(tvm.IRModule({"main": main}), "auto")
    for size in SIZES:
        x = array(size, 4)
        np.testing.assert_allclose(run(x), x + table[:size], rtol=1e-6)
    with pytest.raises(Exception, match=r"(?i)cast|mismatch|shape"):
        run(array(17, 4))

"""Attention over sequences of unknown length, as one kernel, at every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.compiler.pipeline import compile_module  # noqa: E402
from tunehub.graph.attention.cpu.joining import join_attention  # noqa: E402
from tunehub.graph.attention.cpu.rule import MANY_KEYS  # noqa: E402

from ....relax_nets import net  # noqa: E402

pytestmark = pytest.mark.slow


def _module(masked: bool, transposed: bool, depth: int) -> Any:
    s, op = tvm.tirx.Var("s", "int64"), relax.op

    def make(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        heads = [b.emit(op.permute_dims(x, [0, 2, 1, 3])) if transposed else x for x in (q, v)]
        keys = b.emit(op.permute_dims(k, [0, 2, 3, 1] if transposed else [0, 1, 3, 2]))
        scores = b.emit(op.divide(b.emit(op.matmul(heads[0], keys)), relax.const(np.float32(3.0))))
        if masked:
            scores = b.emit(op.add(scores, mask))
        return op.matmul(b.emit(op.nn.softmax(scores, axis=-1)), heads[1])

    return net(make, *[(1, s, 2, depth) if transposed else (1, 2, s, depth)] * 3, (1, 1, 1, s))


def _expected(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = np.einsum("bhid,bhjd->bhij", q.astype("float64"), k.astype("float64")) / 3.0 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.few(2)
@pytest.mark.parametrize(("masked", "transposed", "depth"), [(True, True, 32), (False, False, 64), (True, False, 20)])
def test_one_kernel_is_right_at_every_length(masked: bool, transposed: bool, depth: int, cpu: Any, opened: Any) -> None:
    joined = join_attention(_module(masked, transposed, depth), 16)
    functions = [f for f in joined.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(functions) == 1
    case = opened.OpenCase(
        mod=tvm.IRModule({"main": functions[0].with_attr("global_symbol", "main")}), shapes=None, symbols=1, dtypes=()
    )
    found = opened.scheduled(case, cpu)
    assert found.template == "attention"
    kernel, rng = opened.compiled(found.mod, cpu), np.random.default_rng(0)
    for length in (*opened.SIZES, 128):
        q, k, v = (rng.uniform(-2, 2, (1, 2, length, depth)).astype("float32") for _ in range(3))
        mask = np.where(rng.random((1, 1, 1, length)) < 0.2, -3.4e38, 0).astype("float32") * masked
        mask[..., 0] = 0
        given = [x.transpose(0, 2, 1, 3).copy() for x in (q, k, v)] if transposed else [q, k, v]
        got = opened.written(kernel, [*given, mask] if masked else given, (1, 2, length, depth))
        np.testing.assert_allclose(got, _expected(q, k, v, mask), rtol=1e-4, atol=1e-5, err_msg=str(length))


def _static(length: int) -> Any:
    return relax.transform.BindSymbolicVars({"s": length}, "main")(_module(True, True, 32))


def test_short_static_attention_stays_as_it_is() -> None:
    module = _static(MANY_KEYS - 1)
    assert join_attention(module, 16) is module


def test_what_follows_attention_is_a_kernel_of_its_own(cpu: Any, make_hub: Any) -> None:
    """Fused with it, it would be no kernel that anything schedules."""
    op, hub = relax.op, make_hub(layout="auto")

    def make(b: Any, q: Any, k: Any, v: Any) -> Any:
        weights = b.emit(op.nn.softmax(b.emit(op.matmul(q, k)), axis=-1))
        return op.multiply(b.emit(op.matmul(weights, v)), relax.const(np.float32(3)))

    compile_module(net(make, (2, MANY_KEYS, 32), (2, 32, MANY_KEYS), (2, MANY_KEYS, 32)), cpu, hub)
    assert [each.template for each in hub.workloads] == ["attention", "elementwise"]


def test_long_static_attention_is_one_kernel(cpu: Any, make_hub: Any) -> None:
    hub = make_hub(layout="auto")
    virtual = relax.VirtualMachine(compile_module(_static(MANY_KEYS + 5), cpu, hub), tvm.cpu())
    assert [each.template for each in hub.workloads if "attention" in each.name] == ["attention"]
    assert not any("matmul" in each.name for each in hub.workloads)
    rng = np.random.default_rng(0)
    q, k, v = (rng.uniform(-2, 2, (1, MANY_KEYS + 5, 2, 32)).astype("float32") for _ in range(3))
    mask = np.where(rng.random((1, 1, 1, MANY_KEYS + 5)) < 0.2, -3.4e38, 0).astype("float32")
    got = virtual["main"](*map(tvm.runtime.tensor, (q, k, v, mask))).numpy()
    heads = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    np.testing.assert_allclose(got, _expected(*heads, mask), rtol=1e-4, atol=1e-5)


def test_a_query_without_any_key_gets_zeros(cpu: Any, make_hub: Any) -> None:
    """As PyTorch exports it: what is no number behind the softmax becomes zero."""
    op = relax.op

    def make(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        weights = b.emit(op.nn.softmax(b.emit(op.add(b.emit(op.matmul(q, k)), mask)), axis=-1))
        zero = relax.const(np.float32(0))
        return op.matmul(b.emit(op.where(b.emit(op.isnan(weights)), zero, weights)), v)

    hub, shapes = make_hub(layout="auto"), ((1, 2, 40, 32), (1, 2, 32, 300), (1, 2, 300, 32), (1, 1, 40, 300))
    virtual = relax.VirtualMachine(compile_module(net(make, *shapes), cpu, hub), tvm.cpu())
    assert [each.template for each in hub.workloads] == ["attention"]
    rng = np.random.default_rng(0)
    q, k, v, mask = (rng.uniform(-1, 1, shape).astype("float32") for shape in shapes)
    mask[:, :, 7], mask[:, :, 9, 5:] = -np.inf, -np.inf
    got = virtual["main"](*map(tvm.runtime.tensor, (q, k, v, mask))).numpy()
    scores = np.einsum("bhid,bhdj->bhij", q.astype("float64"), k) + mask
    scores[:, :, 7] = 0
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)
    expected[:, :, 7] = 0
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_attention_of_few_queries_stays_as_it_is() -> None:
    """Six queries are one task: of one query five would be computed for nothing."""
    op = relax.op

    def make(b: Any, q: Any, k: Any, v: Any) -> Any:
        return op.matmul(b.emit(op.nn.softmax(b.emit(op.matmul(q, k)), axis=-1)), v)

    module = net(make, (1, 2, 1, 32), (1, 2, 32, 512), (1, 2, 512, 32))
    assert not any(isinstance(each, tvm.tirx.PrimFunc) for each in join_attention(module, 16).functions.values())


def test_the_operator_with_lengths_of_its_own(cpu: Any, make_hub: Any) -> None:
    """Relax's attention: batch, queries and keys open, with a bias for each query."""
    n, s, t = (tvm.tirx.Var(name, "int64") for name in "nst")
    shapes = ((n, s, 2, 32), (n, t, 2, 32), (n, t, 2, 16), (n, 1, s, t))
    hub = make_hub(layout="auto")
    executable = compile_module(net(lambda _, *given: relax.op.nn.attention(*given), *shapes), cpu, hub)
    assert not hub.failures and "template" in hub.rungs()
    machine, rng = relax.VirtualMachine(executable, tvm.cpu()), np.random.default_rng(0)
    for size in ((1, 1, 1), (2, 7, 13), (3, 61, 33), (1, 128, 5), (2, 1, 64)):
        known = dict(zip("nst", size, strict=True))
        given = [
            rng.uniform(-1, 1, [known.get(getattr(extent, "name", ""), extent) for extent in shape]).astype("float32")
            for shape in shapes
        ]
        scores = np.einsum("bihd,bjhd->bhij", given[0], given[1]) / np.sqrt(32) + given[3]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        expected = np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), given[2])
        got = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=str(size))
    nothing = [given[0], *(np.empty((2, 0, *each.shape[2:]), "float32") for each in given[1:3]), given[3][..., :0]]
    assert not machine["main"](*map(tvm.runtime.tensor, nothing)).numpy().any()  # the product of no weights and values

"""Attention of open lengths on CPUs with AVX-512: heads that share keys, any mask, and keys that it hides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402

from .....cpu_features import AVX512, cpu, needs  # noqa: E402
from .....relax_nets import net  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

op = relax.op
HEADS, SHARED, DEPTH = 6, 2, 16
LOWEST = np.finfo("float32").min
Array = Any


def machine(kind: str) -> Any:
    """Attention as exports write it: heads repeated by broadcasting, scores scaled, ``kind`` of mask added."""
    rows, seen = (tvm.tirx.Var(name, "int64") for name in ("rows", "seen"))

    def repeated(b: Any, x: Any) -> Any:
        each = b.emit(op.broadcast_to(b.emit(op.expand_dims(x, 2)), [2, SHARED, HEADS // SHARED, seen, DEPTH]))
        return b.emit(op.reshape(each, [2, HEADS, seen, DEPTH]))

    def make(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = b.emit(op.permute_dims(q, [0, 2, 1, 3])), repeated(b, k), repeated(b, v)
        scores = b.emit(op.matmul(q, b.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        scores = b.emit(op.multiply(scores, relax.const(np.float32(DEPTH**-0.5))))
        if kind == "shown":
            shown = b.emit(op.astype(mask, "bool"))
            mask = b.emit(op.where(shown, relax.const(np.float32(0)), relax.const(np.float32(LOWEST))))
        weights = b.emit(op.nn.softmax(b.emit(op.add(scores, mask)), axis=-1))
        if kind == "safe":
            weights = b.emit(op.where(b.emit(op.isnan(weights)), relax.const(np.float32(0)), weights))
        return b.emit(op.permute_dims(b.emit(op.matmul(weights, v)), [0, 2, 1, 3]))

    module = net(make, (2, rows, HEADS, DEPTH), (2, SHARED, seen, DEPTH), (2, SHARED, seen, DEPTH), (2, 1, rows, seen))
    with tunehub.context(cpu(AVX512)) as hub:
        made = tvm.relax.VirtualMachine(tvm.compile(module, cpu(AVX512)), tvm.cpu())
    assert not any(
        part in each.name for each in hub.report().workloads for part in ("softmax", "broadcast_to", "matmul")
    )
    return made


def tensors(rows: int, seen: int) -> list[Array]:
    rng = np.random.default_rng(rows)
    shapes = (2, rows, HEADS, DEPTH), (2, SHARED, seen, DEPTH), (2, SHARED, seen, DEPTH)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def exact(q: Array, k: Array, v: Array, mask: Array) -> Array:
    k, v = (np.repeat(each.astype("float64"), HEADS // SHARED, axis=1) for each in (k, v))
    scores = q.transpose(0, 2, 1, 3).astype("float64") @ k.transpose(0, 1, 3, 2) * DEPTH**-0.5 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return ((weights / weights.sum(-1, keepdims=True)) @ v).transpose(0, 2, 1, 3)


@needs(AVX512)
@pytest.mark.parametrize("kind", ["added", "shown", "safe"])
@pytest.mark.few(1)
def test_any_lengths_and_masks_give_what_numpy_computes_and_hidden_blocks_are_left_out(kind: str) -> None:
    run = machine(kind)["main"]
    for rows, seen in ((1, 1), (1, 40), (3, 8), (21, 40), (33, 33)):
        given = tensors(rows, seen)
        shown = np.broadcast_to(np.arange(seen) <= np.arange(rows)[:, None] + seen - rows, (2, 1, rows, seen)).copy()
        shown[1, ..., : rows // 2] = False  # words that fill up in front: the first queries see no key at all
        mask = np.where(shown, 0.5 * (kind != "shown"), LOWEST).astype("float32")
        found = run(*map(tvm.runtime.tensor, (*given, shown.astype("float32") if kind == "shown" else mask))).numpy()
        expected = exact(given[0], given[1], given[2], mask)
        assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max(), (rows, seen)
    q, k, v = tensors(16, 64)
    shown = np.broadcast_to(np.arange(64) < 20, (2, 1, 16, 64))
    k[..., 32:, :], mask = np.nan, np.where(shown, 0, LOWEST).astype("float32")
    found = run(*map(tvm.runtime.tensor, (q, k, v, shown.astype("float32") if kind == "shown" else mask))).numpy()
    assert np.isfinite(found).all()


@needs(AVX512)
def test_nan_stays_a_query_without_keys_is_what_its_softmax_is_and_hidden_keys_may_be_anything() -> None:
    run, (q, k, v), mask = machine("added")["main"], tensors(3, 20), np.zeros((2, 1, 3, 20), "float32")
    q[0, 0], mask[0, :, 1], mask[1, :, 2, 17] = np.nan, -np.inf, np.nan
    mask[1, :, :2, 5:], k[1, :, 6] = -np.inf, np.nan
    found = run(*map(tvm.runtime.tensor, (q, k, v, mask))).numpy()
    assert np.array_equal(np.isnan(found).all((2, 3)), [[True, True, False], [False, False, True]])
    assert np.isfinite(found[[0, 1, 1], [2, 0, 1]]).all()
    nothing = run(*map(tvm.runtime.tensor, (q, k[:, :, :0], v[:, :, :0], mask[..., :0]))).numpy()
    assert not nothing.any()  # the product of no weights and no values
    run = machine("safe")["main"]
    assert not run(*map(tvm.runtime.tensor, (q, k, v, np.full_like(mask, -np.inf)))).numpy().any()


@pytest.mark.parametrize(("keys", "safe", "flash"), [(128, True, True), (64, True, False), (128, False, False)])
def test_short_attention_of_known_lengths_is_one_kernel_where_zeros_replace_nan(
    keys: int, safe: bool, flash: bool
) -> None:
    def make(b: Any, q: Any, k: Any, v: Any) -> Any:
        scores = b.emit(op.matmul(q, b.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        weights = b.emit(op.nn.softmax(scores, axis=-1))
        if safe:
            weights = b.emit(op.where(b.emit(op.isnan(weights)), relax.const(np.float32(0)), weights))
        return op.matmul(weights, v)

    mod = net(make, *[(1, 4, keys, 64)] * 3)
    prepared = prepare(mod, cpu(AVX512), layout="auto")
    assert any("flash_attention" in str(each.name_hint) for each in prepared.functions) == flash

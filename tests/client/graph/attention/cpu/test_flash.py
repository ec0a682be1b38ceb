"""Attention of open lengths on CPUs with AVX-512: heads that share keys, any mask, and keys that it hides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402

from .....cpu_features import AMX, AVX512, cpu, needs  # noqa: E402
from .....relax_nets import net  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

op = relax.op
HEADS, SHARED, DEPTH = 6, 2, 32
LOWEST = np.finfo("float32").min
Array = Any


def machine(kind: str, features: str = AVX512) -> Any:
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
    options: Any = {"precision": "bf16"} if features == AMX else {}
    with tunehub.context(cpu(features), **options) as hub:
        made = tvm.relax.VirtualMachine(tvm.compile(module, cpu(features)), tvm.cpu())
    assert not any(
        part in each.name for each in hub.report().workloads for part in ("softmax", "broadcast_to", "matmul")
    )
    return made


def tensors(rows: int, seen: int) -> list[Array]:
    rng = np.random.default_rng(rows)
    shapes = (2, rows, HEADS, DEPTH), (2, SHARED, seen, DEPTH), (2, SHARED, seen, DEPTH)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def exact(q: Array, k: Array, v: Array, mask: Array) -> Array:
    k, v = (np.repeat(each.astype("float64"), q.shape[2] // k.shape[1], axis=1) for each in (k, v))
    scores = q.transpose(0, 2, 1, 3).astype("float64") @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5 + mask
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


def decoder(kind: str, depth: int, heads: int, shared: int) -> Any:
    """Attention of words behind others, as exports write it, by AMX: how many of each, and the batch, are open."""
    batch, rows, past = (tvm.tirx.Var(name, "int64") for name in ("batch", "rows", "past"))
    seen = past + rows

    def joined(b: Any, before: Any, x: Any) -> Any:
        x = b.emit(op.concat([before, b.emit(op.permute_dims(x, [0, 2, 1, 3]))], axis=2))
        wide = [batch, shared, heads // shared, seen, depth]
        return b.emit(
            op.reshape(b.emit(op.broadcast_to(b.emit(op.expand_dims(x, 2)), wide)), [batch, heads, *wide[3:]])
        )

    def make(b: Any, q: Any, past_k: Any, past_v: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = b.emit(op.permute_dims(q, [0, 2, 1, 3])), joined(b, past_k, k), joined(b, past_v, v)
        scores = b.emit(op.matmul(q, b.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        scores = b.emit(op.multiply(scores, relax.const(np.float32(depth**-0.5))))
        if kind == "causal":
            places, own = (b.emit(op.arange(*each, dtype="int64")) for each in ((0, seen, 1), (past, seen, 1)))
            mask = b.emit(op.less_equal(places, b.emit(op.expand_dims(own, 1))))
        if kind in ("causal", "shown"):
            shown = b.emit(op.astype(mask, "bool"))
            mask = b.emit(op.where(shown, relax.const(np.float32(0)), relax.const(np.float32(LOWEST))))
        if kind != "none":
            scores = b.emit(op.add(scores, mask))
        return b.emit(op.permute_dims(b.emit(op.matmul(b.emit(op.nn.softmax(scores, axis=-1)), v)), [0, 2, 1, 3]))

    masked = {"padded": (batch, 1, 1, seen), "heads": (batch, heads, rows, seen)}.get(kind, (batch, 1, rows, seen))
    own, before = (batch, rows, shared, depth), (batch, shared, past, depth)
    module = net(make, (batch, rows, heads, depth), before, before, own, own, masked)
    with tunehub.context(cpu(AMX), precision="bf16") as hub:
        made = tvm.relax.VirtualMachine(tvm.compile(module, cpu(AMX)), tvm.cpu())
    assert not any(part in each.name for each in hub.report().workloads for part in ("softmax", "matmul"))
    return made


def added(kind: str, batch: int, heads: int, rows: int, past: int) -> Array:
    """What a mask of ``kind`` adds to scores."""
    rng, seen = np.random.default_rng(past), past + rows
    shown: Array = np.arange(seen) <= np.arange(rows)[:, None] + past
    if kind == "padded":
        return np.where(np.arange(seen) < np.arange(batch)[:, None, None, None] * past // 3, LOWEST, 0)
    if kind == "heads":
        return np.where(shown, rng.standard_normal((batch, heads, rows, seen)), -np.inf)
    if kind == "none":
        shown = np.ones_like(shown)
    return np.broadcast_to(np.where(shown, 0.5 * (kind == "added"), LOWEST), (batch, 1, rows, seen))


@needs(AMX)
@pytest.mark.parametrize(
    ("kind", "depth", "heads", "shared"),
    [("causal", 64, 14, 2), ("padded", 96, 4, 4), ("shown", 128, 6, 2), ("heads", 64, 4, 2), ("none", 64, 3, 1),
     ("added", 32, 8, 1)],
)  # fmt: skip
@pytest.mark.few(1)
def test_more_than_sixteen_rows_of_a_decoder_are_multiplied_in_bfloat16_by_tiles(
    kind: str, depth: int, heads: int, shared: int
) -> None:
    run = decoder(kind, depth, heads, shared)["main"]
    for rows in (*range(1, 41), 127, 128, 129, 130):
        batch, past, rng = 1 + rows % 3, (0, 1, 15, 63, 64, 100, 200)[rows % 7], np.random.default_rng(rows)
        q, *others = (
            rng.standard_normal((batch, *shape)).astype("float32")
            for shape in ((rows, heads, depth), *[(shared, past, depth)] * 2, *[(rows, shared, depth)] * 2)
        )
        mask = added(kind, batch, heads, rows, past).astype("float32")
        given = (mask == 0).astype("float32") if kind == "shown" else mask
        found = run(*map(tvm.runtime.tensor, (q, *others, given))).numpy()
        k, v = (np.concatenate([others[at], others[at + 2].transpose(0, 2, 1, 3)], 2) for at in (0, 1))
        expected = exact(q, k, v, mask)
        few = rows * heads // shared <= 16
        assert np.abs(found - expected).max() < (2e-6 if few else 1e-2) * np.abs(expected).max(), (rows, past)


@needs(AMX)
def test_by_tiles_nan_stays_hidden_blocks_are_left_out_and_a_query_without_keys_is_what_its_softmax_is() -> None:
    run, (q, k, v), mask = machine("added", AMX)["main"], tensors(40, 200), np.zeros((2, 1, 40, 200), "float32")
    mask[..., 70:], k[..., 128:, :], v[..., 128:, :] = LOWEST, np.nan, np.nan
    q[0, 0], mask[0, :, 1, 17] = np.nan, np.nan
    wrong = np.isnan(run(*map(tvm.runtime.tensor, (q, k, v, mask))).numpy()).all((2, 3))
    assert (wrong[0, :2].all(), wrong.sum()) == (True, 2)
    (q, k, v), mask = tensors(40, 80), np.zeros((2, 1, 40, 80), "float32")
    mask[0, :, 3], mask[1, :, 5] = -np.inf, LOWEST
    found = run(*map(tvm.runtime.tensor, (q, k, v, mask))).numpy()
    assert (np.isnan(found[0, 3]).all(), np.isnan(found).sum()) == (True, HEADS * DEPTH)
    assert np.abs(found[1, 5] - v[1].repeat(HEADS // SHARED, 0).mean(1)).max() < 1e-2
    nothing = run(*map(tvm.runtime.tensor, (q, k[:, :, :0], v[:, :, :0], mask[..., :0]))).numpy()
    assert not nothing.any()  # the product of no weights and no values


@needs(AMX)
@pytest.mark.sweep
def test_by_tiles_zeros_are_in_place_of_what_is_no_number() -> None:
    run, (q, k, v), mask = machine("safe", AMX)["main"], tensors(40, 80), np.full((2, 1, 40, 80), -np.inf, "float32")
    mask[0, :, 7, :70] = 0
    found = run(*map(tvm.runtime.tensor, (q, k, v, mask))).numpy()
    assert (found[0, 7].all(), np.count_nonzero(found)) == (True, HEADS * DEPTH)


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

"""Attention with elementwise functions behind it, which fusion makes one function with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.backend.cuda.ptx", reason="needs TVM 0.27")

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax import op

from tunehub.compiler.preparing import prepare
from tunehub.kernels.cuda import choose
from tunehub.kernels.cuda.attention import rule
from tunehub.kernels.cuda.attention.kernel import AttentionTile
from tunehub.kernels.cuda.attention.kernels import kernel_of
from tunehub.kernels.cuda.attention.shared_heads import with_heads_as_queries
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.kernels.devices.known import default_device
from tunehub.tir.guard import GuardError
from tunehub.tir.nodes import buffer_shapes, main_module, parameters, statements_in, tensor_class
from tunehub.tir.symbols import instance

from .....sweeps import covering
from .cases import H200, Case, expected, function_of, placeholders
from .lockstep import run as run_in_lockstep

pytestmark = pytest.mark.slow
MULTIPROCESSORS = default_device().multiprocessors

Behind = Callable[[Any], Any]


def _extents(tensor: Any) -> list[Any]:
    return list(tensor.shape)


def single(out: Any) -> Any:
    return topi.cast(out, "float32")


def half(out: Any) -> Any:
    return topi.cast(out, "float16")


def scaled(out: Any) -> Any:
    return topi.multiply(out, tirx.const(0.5, out.dtype))


def added(out: Any) -> Any:
    """A residual of another type, which is cast in the same function, and a bias for each number of a row."""
    residual = te.placeholder(_extents(out), "float32", "residual")
    bias = te.placeholder([out.shape[-1]], "float32", "bias")
    return topi.add(topi.add(topi.cast(out, "float32"), bias), topi.multiply(residual, tirx.const(2.0, "float32")))


def activated(out: Any) -> Any:
    """Reads the result twice, by two functions."""
    wide = topi.cast(out, "float32")
    return topi.cast(topi.multiply(topi.nn.relu(wide), topi.add(wide, tirx.const(1.0, "float32"))), "float16")


def transposed(out: Any) -> Any:
    return topi.transpose(out, (0, 2, 3, 1))


_COMPUTED: dict[Behind, Callable[..., Any]] = {
    single: lambda x: x,
    half: lambda x: x,
    scaled: lambda x: 0.5 * x,
    added: lambda x, bias, residual: x + bias + 2 * residual,
    activated: lambda x: np.maximum(x, 0) * (x + 1),
    transposed: lambda x: x.transpose(0, 2, 3, 1),
}


def _wide(rows: int, along: int, keys: int, **more: Any) -> AttentionTile:
    return AttentionTile(warps=(4 * rows, along), rows=1, keys=keys, warpgroups=True, **more)


TILES = {
    "mma": Case("float16", 1, 2, 33, 40, 32, 48, AttentionTile(warps=(2, 1), rows=1, keys=16)),
    "keys in parts": Case("bfloat16", 1, 2, 33, 40, 32, 48, AttentionTile(warps=(1, 4), rows=1, keys=16), behind=False),
    "float32": Case("float32", 1, 2, 18, 20, 32, 32, AttentionTile(warps=(1, 2), rows=1, keys=16)),
    "cluster": Case("float16", 1, 2, 3, 200, 32, 32, AttentionTile(warps=(1, 2), rows=1, keys=16, cluster=4)),
    "wgmma": Case("float16", 1, 2, 70, 130, 64, 64, _wide(1, 1, 64)),
    "wgmma, keys in parts": Case("float16", 1, 2, 65, 90, 64, 64, _wide(1, 2, 64), causal=True),
    "copying": Case("float16", 1, 2, 130, 200, 64, 64, _wide(2, 1, 32, copying=True)),
    "TMA": Case("float16", 1, 2, 130, 100, 128, 128, _wide(2, 1, 48, copying=True, bulk=True)),
}


def _check(case: Case, behind: Behind, heads: int = 1) -> None:
    """``heads``: that are queries of one."""
    rng, own = np.random.default_rng(0), case.heads // case.group
    q = rng.standard_normal((case.batch, case.heads, case.queries, case.depth)).astype(case.dtype)
    k = rng.standard_normal((case.batch, own, case.keys, case.depth)).astype(case.dtype)
    v = rng.standard_normal((case.batch, own, case.keys, case.outputs)).astype(case.dtype)
    function = function_of(case, behind)
    found = attention_of(function)
    assert found is not None
    found = with_heads_as_queries(found, heads) if heads > 1 else found
    *_, (shape, dtype) = shapes = buffer_shapes(function)
    more = [rng.standard_normal(each).astype(kind) for each, kind in shapes[3:-1]]
    given = [x.transpose(0, 2, 1, 3).copy() if case.behind else x for x in (q, k, v)]
    out = np.full(shape, np.nan, dtype)
    run_in_lockstep(kernel_of(found, case.tile, MULTIPROCESSORS), *given, *more, out)
    plain = expected(case, q, k, v, None)
    want = _COMPUTED[behind](plain.transpose(0, 2, 1, 3) if case.behind else plain, *more)
    within = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-6 if dtype == "float32" else 1e-3}[case.dtype]
    assert np.abs(out.astype("float64") - want).max() <= within * np.abs(want).max()


@pytest.mark.parametrize(("tile", "behind"), covering(list(TILES), [half, single, added]))
@pytest.mark.few(3)
def test_every_form_of_the_kernel_computes_what_follows_attention(tile: str, behind: Behind) -> None:
    _check(TILES[tile], behind)


@pytest.mark.parametrize("behind", [scaled, activated, transposed], ids=lambda each: each.__name__)
def test_what_follows_attention_may_be_several_functions(behind: Behind) -> None:
    _check(TILES["mma"], behind)


def test_heads_that_are_queries_of_one_find_what_is_added_to_each() -> None:
    tile = AttentionTile(warps=(1, 2), rows=1, keys=16, cluster=2)
    _check(Case("float16", 2, 8, 1, 90, 32, 32, tile, group=4), added, heads=4)


def test_the_kernel_has_no_memory_between_attention_and_what_follows() -> None:
    function = function_of(TILES["keys in parts"], added)
    found = attention_of(function)
    assert found is not None
    kernel = kernel_of(found, TILES["keys in parts"].tile, MULTIPROCESSORS)
    stores = [node.buffer for node in statements_in(kernel.body) if type(node).__name__ == "BufferStore"]
    result = parameters(function)[-1]
    assert {str(each.scope()) for each in stores if not each.same_as(result)} == {"local", "shared.dyn"}


def _sliced(out: Any) -> Any:
    return topi.strided_slice(out, [0, 0, 0, 0], [1, 8, 2, 32])


def _repeated(out: Any) -> Any:
    return topi.add(out, te.placeholder([3, *_extents(out)[1:]], out.dtype, "more"))


def _summed(out: Any) -> Any:
    return topi.sum(out, axis=-1)


@pytest.mark.parametrize("behind", [_sliced, _repeated, _summed], ids=["a part", "more results", "a sum"])
def test_what_is_not_elementwise_is_refused_with_a_reason(behind: Behind) -> None:
    function = function_of(TILES["mma"], behind)
    with pytest.raises(GuardError, match=r"is not elementwise"):
        attention_of(function)
    with pytest.raises(GuardError, match=r"is not elementwise"):
        choose.by_one(rule, main_module(function), tvm.target.Target(H200))


def test_a_result_that_is_stored_beside_what_follows_is_refused() -> None:
    results: list[Any] = []
    function_of(TILES["mma"], lambda out: results.append(out) or single(out))  # type: ignore[func-returns-value]
    last = single(results[0])
    function = te.create_prim_func([*placeholders(last), results[0], last], index_dtype_override="int64")
    with pytest.raises(GuardError, match="2 results"):
        attention_of(function)


HEADS, DEPTH = 2, 64


def _fused(batch: Any, length: Any, target: Any) -> Any:
    """The function that a compile makes of attention in float16 and a cast, a scale and a sum behind it."""
    kind, builder, width = tensor_class(), relax.BlockBuilder(), HEADS * DEPTH
    tensors = [relax.Var(name, kind((batch, length, width), "float16")) for name in "qkv"]
    residual = relax.Var("residual", kind((batch, HEADS, length, DEPTH), "float32"))
    with builder.function("main", [*tensors, residual]):
        with builder.dataflow():
            emit, shape = builder.emit, (batch, length, HEADS, DEPTH)
            q, k, v = (emit(op.permute_dims(emit(op.reshape(each, shape)), [0, 2, 1, 3])) for each in tensors)
            scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
            weights = emit(op.nn.softmax(emit(op.multiply(scores, relax.const(0.125, "float16"))), axis=-1))
            context = emit(op.astype(emit(op.matmul(weights, v)), "float32"))
            total = emit(op.add(emit(op.multiply(context, relax.const(0.5, "float32"))), residual))
            result = builder.emit_output(op.astype(total, "float16"))
        builder.emit_func_output(result)
    prepared = prepare(builder.get(), target)
    (found,) = (each for each in prepared.functions.values() if isinstance(each, tirx.PrimFunc))
    return found


def _is_right(kernel: Any) -> bool:
    rng = np.random.default_rng(0)
    *given, (shape, dtype) = buffer_shapes(kernel)
    q, k, v, residual = arrays = [rng.standard_normal(each).astype(kind) for each, kind in given]
    out = np.full(shape, np.nan, dtype)
    run_in_lockstep(kernel, *arrays, out)
    q, k, v = (x.reshape(*x.shape[:2], HEADS, DEPTH).transpose(0, 2, 1, 3) for x in (q, k, v))
    case = TILES["mma"]._replace(queries=shape[2], keys=shape[2], depth=DEPTH, outputs=DEPTH)
    want = 0.5 * expected(case, q, k, v, None) + residual
    return bool(np.abs(out.astype("float64") - want).max() <= 2e-3 * np.abs(want).max())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.few(1)
def test_attention_that_fusion_joined_with_what_follows_is_served(arch: str) -> None:
    target = tvm.target.Target({**H200, "arch": arch})
    found = choose.by_one(rule, main_module(_fused(1, 50, target)), target)
    assert found is not None
    assert _is_right(found[0].mod["main"])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_attention_of_many_queries_with_what_follows_is_by_warpgroups_where_they_are(arch: str) -> None:
    target = tvm.target.Target({**H200, "arch": arch})
    found = choose.by_one(rule, main_module(_fused(8, 512, target)), target)
    assert found is not None
    assert ("tunehub_wgmma" in str(found[0].mod)) is (arch == "sm_90")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.few(1)
def test_attention_of_an_open_length_that_fusion_joined_with_what_follows_is_served(arch: str) -> None:
    """Of many rows by warpgroups, where they are."""
    target = tvm.target.Target({**H200, "arch": arch})
    found = rule.open_sizes(main_module(_fused(1, tirx.Var("n", "int64"), target)), target)
    assert found is not None
    kernel = found.mod["main"]
    assert ("tunehub_wgmma" in str(kernel)) is (arch == "sm_90")
    assert all(_is_right(instance(kernel, [length])) for length in (20, 270))

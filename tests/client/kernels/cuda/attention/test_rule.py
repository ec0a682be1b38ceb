"""Which tiles attention gets, and kernels for several numbers of queries in one function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.backend.cuda.ptx", reason="needs TVM 0.27")

import tvm
from tvm import relax, tirx
from tvm.relax import op

from tunehub.graph.attention.cuda.joining import join_attention
from tunehub.kernels.cuda import choose
from tunehub.kernels.cuda.attention import rule
from tunehub.kernels.cuda.attention.kernel import AttentionTile
from tunehub.kernels.cuda.attention.rule import serves, tiles
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.kernels.cuda.knobs import knob_space
from tunehub.tir.guard import GuardError
from tunehub.tir.nodes import buffer_shapes, main_module, tensor_class
from tunehub.tir.symbols import instance, is_symbolic, symbol_name, symbols_of

from .....sweeps import swept
from .lockstep import run as run_in_lockstep

pytestmark = pytest.mark.slow

HEADS, DEPTH = 2, 32
H200 = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}


def function_of(batch: Any, length: Any, dtype: str, depth: int = DEPTH) -> Any:
    """Attention with a mask for each key, of heads that lie behind queries and keys."""
    kind, builder, width = tensor_class(), relax.BlockBuilder(), HEADS * depth
    tensors = [relax.Var(name, kind((batch, length, width), dtype)) for name in "qkv"]
    mask = relax.Var("mask", kind((batch, 1, 1, length), dtype))
    with builder.function("main", [*tensors, mask]):
        with builder.dataflow():
            emit, shape = builder.emit, (batch, length, HEADS, depth)
            q, k, v = (emit(op.permute_dims(emit(op.reshape(each, shape)), [0, 2, 1, 3])) for each in tensors)
            scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
            scaled = emit(op.multiply(scores, relax.const(np.array(0.25, dtype))))
            weights = emit(op.nn.softmax(emit(op.add(scaled, mask)), axis=-1))
            behind = emit(op.permute_dims(emit(op.matmul(weights, v)), [0, 2, 1, 3]))
            result = builder.emit_output(op.reshape(behind, (batch, length, width)))
        builder.emit_func_output(result)
    joined = join_attention(builder.get())
    (found,) = (each for each in joined.functions.values() if isinstance(each, tirx.PrimFunc))
    return found


def _scheduled(function: Any) -> Any:
    mod, target = main_module(function), tvm.target.Target(H200)
    found = rule.open_sizes(mod, target) if is_symbolic(function) else choose.by_one(rule, mod, target)
    assert found is not None
    return (found[0] if isinstance(found, tuple) else found).mod


def _expected(arrays: list[Any]) -> Any:
    mask, *tensors = (array.astype("float64") for array in arrays)
    q, k, v = (x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) for x in tensors)
    scores = np.einsum("bhid,bhjd->bhij", q, k) * 0.25 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bihd", weights / weights.sum(-1, keepdims=True), v)


_OPEN = [("float16", DEPTH, 90), ("bfloat16", 64, 270), ("float32", DEPTH, 90)]


@pytest.mark.parametrize("case", swept(_OPEN[:2], _OPEN))
@pytest.mark.few(1)
def test_attention_of_open_length_is_right_at_every_size(case: tuple[str, int, int]) -> None:
    """With heads of 64 numbers, those of more than 256 rows are by warpgroups."""
    dtype, depth, longest = case
    function = function_of(tirx.Var("n", "int64"), tirx.Var("s", "int64"), dtype, depth)
    assert list(map(symbol_name, symbols_of(function))) == ["n", "s"]
    found = _scheduled(function)
    scheduled, rng = found["main"], np.random.default_rng(0)
    for size in ((1, 1), (2, 20), (1, 70), (3, 90), (1, longest)):
        static = instance(scheduled, size)
        *given, (shape, _) = buffer_shapes(static)
        arrays = [rng.uniform(-1, 1, each).astype(kind) for each, kind in given]
        out = np.full(shape, np.nan, dtype)
        run_in_lockstep(static, *arrays, out)
        want = _expected(arrays)
        bound = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6}[dtype]
        assert np.abs(out.reshape(want.shape).astype("float64") - want).max() <= bound * np.abs(want).max(), size


@pytest.mark.parametrize("blocks,copying", [(16, False), (64, True)], ids=["few", "many"])
def test_a_warpgroup_copies_for_others_where_blocks_of_wide_heads_are_many(blocks: int, copying: bool) -> None:
    function = function_of(blocks // 2, 512, "float16", 128)
    assert _first_tile(function).copying is copying
    assert _first_tile(function).bulk is copying
    assert not _first_tile(function_of(blocks // 2, 512, "float16", 64)).copying
    found = _scheduled(function)
    assert ("tunehub_ring_wait" in str(found)) is copying


def test_a_warpgroup_copies_for_three_where_heads_of_64_are_long_and_fill_the_gpu() -> None:
    assert _first_tile(function_of(66, 2112, "float16", 64)).warps == (12, 1)
    assert not _first_tile(function_of(66, 1920, "float16", 64)).copying  # short
    assert not _first_tile(function_of(7, 2112, "float16", 64)).copying  # 154 blocks, of 264 places


def test_the_copy_engine_brings_keys_for_heads_of_64_in_large_batches() -> None:
    for heads, length, warps in ((264, 512, 8), (96, 2048, 12)):  # 2,112 blocks of 128 and of 192 queries
        many = _first_tile(function_of(heads, length, "float16", 64))
        assert (many.warps, many.copying, many.bulk) == ((warps, 1), True, True)
        assert not _first_tile(function_of(heads - 2, length, "float16", 64)).bulk
    assert not _first_tile(function_of(2000, 264, "float16", 64)).bulk  # half of the places have no query


def _first_tile(function: Any, arch: str = "sm_90") -> AttentionTile:
    found = attention_of(function)
    assert found is not None
    return next(tiles(found, tvm.target.Target({**H200, "arch": arch})))


def test_warpgroups_serve_many_queries_of_wide_heads_where_they_are() -> None:
    many = function_of(8, 512, "float16", 64)
    assert _first_tile(many).warpgroups and not _first_tile(many, "sm_80").warpgroups
    assert _first_tile(function_of(8, 512, "bfloat16", 128)).warpgroups
    others = (function_of(8, 512, "float16", 96), function_of(1, 64, "float16", 64), function_of(8, 512, "float32", 64))
    assert not any(_first_tile(each).warpgroups for each in others)


def test_kernels_for_warpgroups_name_their_architecture() -> None:
    for length in (512, tirx.Var("s", "int64")):
        found = _scheduled(function_of(8, length, "float16", 64))
        assert str(found["main"].attrs["target"].attrs["arch"]) == "sm_90a"


def test_shared_memory_of_an_open_length_is_that_of_a_long_one() -> None:
    """Up to a tile of keys half of it is not used: such a kernel was launched, and refused, on a GPU."""
    found = _scheduled(function_of(1, tirx.Var("s", "int64"), "float32", 96))
    static = instance(found["main"], [255])
    loops = {str(each.thread_binding.thread_tag): int(each.extent) for each in _bound(static.body)}
    assert loops["threadIdx.y"] == 4


def test_another_tile_serves_where_the_first_takes_too_much_shared_memory() -> None:
    function = function_of(1, 128, "float16", depth=256)
    found = _scheduled(function)
    loops = {str(each.thread_binding.thread_tag): int(each.extent) for each in _bound(found["main"].body)}
    assert loops["threadIdx.y"] == 4


def _bound(node: Any) -> list[Any]:
    from tunehub.tir.nodes import statements_in

    return [each for each in statements_in(node) if type(each).__name__ == "For" and each.thread_binding is not None]


def test_other_functions_are_left() -> None:
    from tvm import te

    source = te.placeholder((4,), name="x")
    function = te.create_prim_func([source, te.compute((4,), lambda i: source[i] * 2.0)])
    assert attention_of(function) is None
    assert rule.match(main_module(function), tvm.target.Target(H200)) is None


def test_tiles_of_which_none_can_be_launched_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise GuardError("no")

    monkeypatch.setattr(choose, "check_function", refuse)
    with pytest.raises(GuardError, match="no"):
        _scheduled(function_of(1, 32, "float16"))


@pytest.mark.parametrize(("arch", "expected"), [("sm_90", True), ("sm_80", True), ("sm_90a", True), ("sm_75", False)])
def test_only_architectures_with_the_instructions_are_served(arch: str, expected: bool) -> None:
    assert serves(tvm.target.Target({"kind": "cuda", "arch": arch})) is expected


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_attention_has_no_knobs_that_could_be_tuned(dtype: str) -> None:
    assert knob_space(main_module(function_of(1, 64, dtype, 64)), tvm.target.Target(H200)) == []

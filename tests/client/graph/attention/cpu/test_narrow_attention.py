"""Attention with operands in bfloat16: as one kernel, near that in float32, and where there is none."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.compiler.pipeline import compile_module  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.attention.cpu.rule import Lengths, chosen  # noqa: E402
from tunehub.graph.layout.narrowing import Narrowing  # noqa: E402
from tunehub.kernels.cpu import Machine  # noqa: E402
from tunehub.kernels.cpu.attention import is_attention, lacks, schedule_attention  # noqa: E402
from tunehub.kernels.cpu.base import Rates  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402

from .....cpu_features import AMX, AVX2, AVX512_BF16, cpu, here, needs, needs_tvm, runs_here  # noqa: E402
from .....relax_nets import net  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
COOPERLAKE = cpu(AVX512_BF16)
INSTRUCTIONS = {AVX512_BF16: "vdpbf16ps", AMX: "tdpbf16ps"}
MACHINE = Machine(vector=16, registers=32, cores=2)
Array = Any


def attention(queries: Any, keys: Any, *, depth: int, outputs: int, groups: int = 4, transposed: bool = True) -> Any:
    """Four heads with ``groups`` of keys and values, and a mask; ``transposed``: lengths come before heads."""

    def make(b: Any, *given: Any) -> Any:
        q, k, v = (b.emit(op.permute_dims(each, [0, 2, 1, 3])) if transposed else each for each in given[:3])
        k, v = (b.emit(op.repeat(each, 4 // groups, axis=1)) if groups < 4 else each for each in (k, v))
        scores = b.emit(op.matmul(q, b.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        scores = b.emit(op.multiply(scores, relax.const(np.float32(depth**-0.5))))
        weights = b.emit(op.nn.softmax(b.emit(op.add(scores, given[3])), axis=-1))
        result = b.emit(op.matmul(weights, v))
        return op.permute_dims(result, [0, 2, 1, 3]) if transposed else result

    shapes = ((4, queries, depth), (groups, keys, depth), (groups, keys, outputs))
    ordered = [(1, length, heads, last) if transposed else (1, heads, length, last) for heads, length, last in shapes]
    return net(make, *ordered, (1, 1, 1, keys))


def inputs(
    queries: int, keys: int, *, depth: int, outputs: int, groups: int = 4, transposed: bool = True
) -> list[Array]:
    """Random ones, a fifth of the keys masked."""
    rng = np.random.default_rng(queries)
    shapes = ((4, queries, depth), (groups, keys, depth), (groups, keys, outputs))
    given = [rng.standard_normal((1, *shape)).astype("float32") for shape in shapes]
    mask = np.where(rng.random((1, 1, 1, keys)) < 0.2, -3.4e38, 0).astype("float32")
    mask[..., 0] = 0
    return [*(each.transpose(0, 2, 1, 3).copy() if transposed else each for each in given), mask]


def exact(q: Array, k: Array, v: Array, mask: Array, *, transposed: bool = True) -> Array:
    if transposed:
        q, k, v = (each.transpose(0, 2, 1, 3) for each in (q, k, v))
    k, v = (np.repeat(each, 4 // each.shape[1], axis=1) for each in (k, v))
    scores = np.einsum("bhid,bhjd->bhij", q.astype("float64"), k) * q.shape[-1] ** -0.5 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)
    return result.transpose(0, 2, 1, 3) if transposed else result


def check_near(found: Array, expected: Array, size: Any = None) -> None:
    """Off by more than float32 is, and by less than documents promise."""
    assert 1e-5 < np.abs(found - expected).max() / np.abs(expected).max() < 2e-2, size


def compiled(mod: Any, hub: Any, target: Any) -> Any:
    """``mod``, compiled by ``hub``, and the code of its kernels; nothing may have been left to TVM."""
    executable = compile_module(mod, target, hub)
    assert not hub.failures
    kernels = (module for module in executable.mod.imports if module.kind == "llvm")
    return executable, "\n".join(str(module.inspect_source("asm")) for module in kernels)


def run(executable: Any) -> Any:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return lambda arrays: machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def check_is_one_kernel(hub: Any, *, arrives_scheduled: bool = False) -> None:
    templates = [each.template for each in hub.workloads if "attention" in each.name]
    assert templates == ([] if arrives_scheduled else ["attention"])
    assert not any("matmul" in each.name or "softmax" in each.name for each in hub.workloads)
    assert hub.notes == ["precision=bf16: 1 functions multiply operands that are rounded to bfloat16"]


LENGTHS = [
    ((197, 197), {"depth": 64, "outputs": 64}),
    ((65, 61), {"depth": 36, "outputs": 48, "groups": 2}),
    ((77, 80), {"depth": 32, "outputs": 16, "groups": 1, "transposed": False}),
]


@needs_tvm
@pytest.mark.parametrize(
    ("model", "size", "how"),
    [
        *((AVX512_BF16, *case) for case in LENGTHS),
        (AMX, *LENGTHS[0]),
        (AMX, *LENGTHS[2]),
    ],
)
@pytest.mark.few(2)
def test_attention_of_any_lengths_is_one_kernel(model: str, size: tuple[int, int], how: Any, make_hub: Any) -> None:
    hub = make_hub(layout="auto", precision="bf16")
    executable, code = compiled(attention(*size, **how), hub, cpu(model))
    check_is_one_kernel(hub)
    assert any(each in code for each in INSTRUCTIONS.values())
    if runs_here(model):
        arrays = inputs(*size, **how)
        check_near(run(executable)(arrays), exact(*arrays, transposed=how.get("transposed", True)))


@needs_tvm
@pytest.mark.parametrize("model", here(*INSTRUCTIONS))
@pytest.mark.few(1)
def test_verification_knows_that_operands_are_rounded(model: str) -> None:
    """TVM's own loops round nothing within a kernel."""
    how, arrays = {"depth": 32, "outputs": 32}, inputs(61, 45, depth=32, outputs=32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options: Any = {"precision": "bf16", "layout": "auto", "verify": "always"}
        executable = tunehub.compile(attention(61, 45, **how), cpu(model), **options)
    assert "differs" not in " ".join(str(each.message) for each in caught)
    check_near(run(executable)(arrays), exact(*arrays))  # refused, it would be that of float32


@needs_tvm
@pytest.mark.parametrize("model", [AVX512_BF16, AMX])
@pytest.mark.few(1)
def test_attention_of_open_lengths_is_right_at_each(model: str, make_hub: Any) -> None:
    hub, how = make_hub(layout="auto", precision="bf16"), {"depth": 32, "outputs": 32}
    s, t = (tvm.tirx.Var(name, "int64") for name in "st")
    executable, code = compiled(attention(s, t, **how), hub, cpu(model))
    check_is_one_kernel(hub, arrives_scheduled=model == AMX)
    assert any(each in code for each in INSTRUCTIONS.values())
    if runs_here(model):
        for size in ((1, 1), (1, 40), (12, 16), (13, 17), (61, 3), (128, 300)):
            arrays = inputs(*size, **how)
            found, expected = run(executable)(arrays), exact(*arrays)
            assert np.abs(found - expected).max() < 2e-2 * np.abs(expected).max(), size


@needs_tvm
@pytest.mark.parametrize("model", here(*INSTRUCTIONS))
def test_a_query_without_any_key_gets_zeros_and_infinity_stays(model: str, make_hub: Any) -> None:
    """As PyTorch exports it: what is no number behind the softmax becomes zero."""

    def make(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        weights = b.emit(op.nn.softmax(b.emit(op.add(b.emit(op.matmul(q, k)), mask)), axis=-1))
        zero = relax.const(np.float32(0))
        return op.matmul(b.emit(op.where(b.emit(op.isnan(weights)), zero, weights)), v)

    shapes = ((2, 40, 32), (2, 32, 50), (2, 50, 32), (1, 40, 50))
    executable, _ = compiled(net(make, *shapes), make_hub(layout="auto", precision="bf16"), cpu(model))
    rng = np.random.default_rng(0)
    q, k, v, mask = (rng.uniform(-1, 1, shape).astype("float32") for shape in shapes)
    mask[:, 7], mask[:, 9, 5:] = -np.inf, -np.inf
    v[0, 49, 3] = np.inf  # the last value: nothing that is filled up may meet it
    mask[:, 9, 49] = 0
    found = run(executable)([q, k, v, mask])
    assert not found[:, 7].any()
    assert np.isposinf(found[0, :, 3][[0, 9, 39]]).all()
    assert np.isfinite(np.delete(found, 3, axis=-1)).all()


@needs_tvm
def test_the_code_has_the_instruction() -> None:
    (function,) = _attention_kernels(attention(64, 64, depth=64, outputs=64), COOPERLAKE)
    scheduled = schedule_attention(main_module(function), MACHINE).mod
    text = tvm.compile(scheduled, target=COOPERLAKE).mod.inspect_source("asm")
    assert text.count("vdpbf16ps") > 16


@needs_tvm
def test_targets_without_the_instruction_never_see_it() -> None:
    (function,) = _attention_kernels(attention(64, 64, depth=64, outputs=64), COOPERLAKE)
    assert "AVX512_BF16" in str(lacks(main_module(function), cpu(AVX2)))
    assert lacks(main_module(function), COOPERLAKE) is None


@needs(AVX2)
def test_another_cpu_computes_in_float32(make_hub: Any) -> None:
    how = {"depth": 32, "outputs": 32}
    wide, narrow = (make_hub(layout="auto", precision=precision) for precision in ("float32", "bf16"))
    arrays = inputs(40, 40, **how)
    found, same = (run(compiled(attention(40, 40, **how), hub, cpu(AVX2))[0])(arrays) for hub in (narrow, wide))
    assert np.array_equal(found, same)
    np.testing.assert_allclose(found, exact(*arrays), rtol=1e-4, atol=1e-5)
    assert "nothing is rounded" in " ".join(narrow.notes)


@needs_tvm
@pytest.mark.parametrize(("depth", "outputs"), [(33, 32), (32, 24)])
def test_what_pairs_or_vectors_do_not_divide_stays_in_float32(depth: int, outputs: int) -> None:
    mod = attention(64, 64, depth=depth, outputs=outputs)
    assert not _attention_kernels(mod, COOPERLAKE)


def _attention_kernels(mod: Any, target: Any) -> list[Any]:
    """The PrimFuncs that are attention when ``mod`` is prepared in bf16."""
    prepared = prepare(mod, target, layout="auto", precision="bf16")
    functions = [each for each in prepared.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    return [each for each in functions if is_attention(main_module(each))]


def test_tiles_waste_as_little_as_possible() -> None:
    def scores(queries: int | None, keys: int | None, pairs: float = 1.8) -> tuple[int, int, bool] | None:
        narrowing = Narrowing(machine=Machine(vector=16, registers=32, rates=Rates(pairs=pairs)), winograd=False)
        found = chosen(Lengths(queries=queries, keys=keys, depth=64, outputs=64), 16, narrowing)
        return None if found is None else (found.queries, found.keys, found.groups is not None)

    assert scores(197, 197) == (11, 16, True)
    assert scores(128, 128) == (8, 16, True)
    assert scores(None, 128) == scores(None, None) == (12, 16, True)
    assert scores(1, 512) is None  # five of six queries would be computed for nothing
    assert scores(128, 128, pairs=0.6) is None
    assert scores(512, 512, pairs=0.6) == (6, 32, False)
    assert scores(None, None, pairs=0.6) == (6, 32, False)


@needs_tvm
@pytest.mark.parametrize(("queries", "flash"), [(4, True), (40, False)])
def test_few_queries_over_open_keys_are_not_rounded(queries: int, flash: bool) -> None:
    mod = attention(queries, tvm.tirx.Var("t", "int64"), depth=32, outputs=32)
    prepared = prepare(mod, cpu(AMX), layout="auto", precision="bf16")
    assert any("flash_attention" in str(each.name_hint) for each in prepared.functions) == flash

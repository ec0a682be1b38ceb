"""Steps of language models on tensors: what they compute, and that a GPU has them as one graph. No GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.relax.frontend.nn.llm.kv_cache")

import tvm
from tvm import relax

from tunehub.compiler.finishing import lowering_passes
from tunehub.graph.steps.cache import cache_kernels
from tunehub.graph.steps.writing import with_steps
from tunehub.models import export as exporting
from tunehub.models.cache_pages import CachePages, StepTensors
from tunehub.models.export import CREATE_CACHE, export
from tunehub.tir.nodes import calls_in, tuple_class

from ....small_models import LLAMA, small
from ...kernels.cuda.scheduled import H200

pytestmark = pytest.mark.slow

LENGTHS = (5, 33, 16)
PAGES = 12
Tokens = np.ndarray[Any, Any]
CAPTURE = "vm.builtin.cuda_graph.run_or_capture"


def _shape(*values: int) -> Any:
    return tvm.runtime.ShapeTuple(list(values))


def _tokens(count: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, LLAMA.vocabulary, count).astype("int32")


class _Cached:
    """The model with TVM's cache."""

    def __init__(self, machine: Any, weights: Any) -> None:
        self._machine, self._weights = machine, weights
        self._cache = machine["create_tir_paged_kv_cache"](*map(_shape, (3, 256, 64, 16, 0)))
        names = ("add_sequence", "begin_forward", "end_forward")
        self._add, self._begin, self._end = (tvm.get_global_func(f"vm.builtin.kv_state_{name}") for name in names)

    def add(self, sequence: int) -> None:
        self._add(self._cache, sequence)

    def logits(self, name: str, tokens: Tokens, sequences: tuple[int, ...], shape: tuple[int, int]) -> Any:
        self._begin(self._cache, _shape(*sequences), _shape(*[len(tokens) // len(sequences)] * len(sequences)))
        embedded = self._machine["embed"](tvm.runtime.tensor(tokens), self._weights).numpy().reshape(*shape, -1)
        found, _ = self._machine[name](tvm.runtime.tensor(embedded), self._cache, self._weights)
        self._end(self._cache)
        return found.numpy()


@pytest.fixture(scope="module", params=["NORMAL", "INLINE"])
def model(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A machine with all functions, and the weights; positions are applied before attention, or in TVM's kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "RopeMode", SimpleNamespace(NORMAL=getattr(exporting.RopeMode, request.param)))
        exported = export(LLAMA, "llvm", "q0f32", functions=("embed", "prefill", "batch_decode"))
    kernels = cache_kernels(exported.module)
    assert kernels is not None and kernels.rotates and kernels.rotary[0] == 0
    names = [f"{name}_step" for name in ("prefill", "prefill_first", "batch_decode")]
    kept = relax.transform.DeadCodeElimination([*names, "embed", "prefill", "batch_decode", CREATE_CACHE])
    executable = tvm.compile(kept(with_steps(exported.module)), "llvm")
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(each.shape, "float32") * each.shape[-1] ** -0.5 for each in exported.parameters]
    return relax.VirtualMachine(executable, tvm.cpu()), [tvm.runtime.tensor(each) for each in arrays]


@pytest.mark.sweep
def test_prefills_whole_and_in_parts_and_batches_give_the_logits_of_the_cache(model: tuple[Any, Any]) -> None:
    machine, weights = model
    cached, planned = _Cached(machine, weights), CachePages(PAGES)
    shape = (PAGES, 2, LLAMA.kv_heads, 16, LLAMA.head_dim)
    layers = [tvm.runtime.tensor(np.zeros(shape, "float32")) for _ in range(LLAMA.layers)]

    def stepped(name: str, tokens: Tokens, sequences: tuple[int, ...]) -> Any:
        counts = [len(tokens) // len(sequences)] * len(sequences)
        given = StepTensors(len(tokens), len(sequences), PAGES, tvm.cpu(), decode=name == "batch_decode_step")
        given.write(planned.plan(sequences, counts))
        return machine[name](tvm.runtime.tensor(tokens), *given.arguments, layers, weights).numpy()

    planned.add(9)
    stepped("prefill_first_step", _tokens(20, 9), (9,))  # whose pages are used again
    planned.remove(9)
    for sequence, length in enumerate(LENGTHS):
        tokens = _tokens(length, sequence)
        cached.add(sequence)
        planned.add(sequence)
        expected = cached.logits("prefill", tokens, (sequence,), (1, length))
        stepped("prefill_step", tokens[:3], (sequence,))
        np.testing.assert_allclose(stepped("prefill_step", tokens[3:], (sequence,)), expected, atol=2e-5)
        if sequence > 0:  # the last way is what batches read
            planned.remove(sequence)
            planned.add(sequence)
            np.testing.assert_allclose(stepped("prefill_first_step", tokens, (sequence,)), expected, atol=2e-5)
    for number in range(2):
        tokens = _tokens(3, 10 + number)
        expected = cached.logits("batch_decode", tokens, (0, 1, 2), (3, 1))
        np.testing.assert_allclose(stepped("batch_decode_step", tokens, (0, 1, 2)), expected, atol=2e-5)


def _lowered(mod: Any) -> Any:
    """``mod`` as it is lowered for a GPU, with CUDA graphs; kernels are not scheduled."""
    target = tvm.target.Target(H200, host="llvm")
    with target, tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        return tvm.transform.Sequential([relax.transform.LegalizeOps(), *lowering_passes(target)])(mod)


def _packed(mod: Any, name: str) -> list[str]:
    """The packed functions that the function ``name`` calls."""
    calls = calls_in(tvm.IRModule({"main": mod[name]}))
    return [str(each.op.global_symbol) for each in calls if isinstance(each.op, relax.ExternFunc)] + [
        str(each.args[0].global_symbol) for each in calls if each.args and isinstance(each.args[0], relax.ExternFunc)
    ]


def test_a_step_is_one_graph_with_the_attention_of_all_layers() -> None:
    exported = export(small(layers=3), H200, "q0f16", functions=("embed", "decode", "batch_decode"))
    lowered = _lowered(with_steps(exported.module, most_sequences=8))
    for name in ("decode", "batch_decode"):
        assert _packed(lowered, f"{name}_step").count(CAPTURE) == 1
        captured = lowered[f"{name}_step_cuda_graph_capture"]
        called = [str(getattr(each.op, "name_hint", "")) for each in calls_in(tvm.IRModule({"main": captured}))]
        assert sum("batch_decode_paged_kv" in each for each in called) == 3
        assert sum("_and_append_" in each for each in called) == 3
        assert not any("transpose_append" in each for each in called)
    assert _packed(lowered, "decode").count(CAPTURE) > 1


def test_an_unknown_kernel_that_appends_stays_one_of_its_own() -> None:
    mod = export(LLAMA, "llvm", "q0f32", functions=("embed", "batch_decode")).module
    names = cache_kernels(mod)
    assert names is not None
    append = mod[names.append]
    mod.update_func(mod.get_global_var(names.append), append.with_body(mod[names.split].body))
    called = [str(each.name_hint) for each in with_steps(mod).functions]
    assert any("transpose_append_of_step" in each for each in called)
    assert not any("_and_append_" in each for each in called)


def test_a_module_without_a_cache_stays_as_it_is() -> None:
    mod = tvm.IRModule({"main": relax.Function([], relax.Tuple([]), tuple_class()([]))})
    assert cache_kernels(mod) is None
    assert with_steps(mod) is mod

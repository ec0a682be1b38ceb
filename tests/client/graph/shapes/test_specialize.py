"""Functions for chosen sizes of open dimensions: which one runs, that all are right, and what they hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tunehub
from tunehub.compiler.pipeline import build_pipeline, compile_module, explain_module
from tunehub.exceptions import SettingError
from tunehub.graph.shapes import specialize
from tunehub.graph.shapes.specialize import check_sizes, note_of_weights, specialized
from tunehub.tir.nodes import tensor_class, tensor_type, tuple_class

pytestmark = pytest.mark.slow

op = relax.op


def symbol(name: str) -> Any:
    return tvm.tirx.Var(name, "int64")


class Machine:
    """Runs an executable; which functions of the module ran, and the kernels."""

    def __init__(self, executable: Any) -> None:
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._machine.set_instrument(self._called)
        self.called: list[str] = []

    def _called(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        self.called += [str(name)] if before else []
        return 0

    def __call__(self, *arrays: Any) -> Any:
        return self.run("main", *map(tvm.runtime.tensor, arrays))

    def run(self, name: str, *arguments: Any) -> Any:
        self.called.clear()
        return self._machine[name](*arguments)

    def chosen(self) -> list[str]:
        return [name for name in self.called if name.startswith("main_")]


@pytest.fixture
def images(nets: Any) -> Callable[..., Any]:
    """A convolution and a dense layer, of a batch."""
    weight, dense = nets.const(16, 8, 3, 3), nets.const(16, 10)

    def make(batch: Any) -> Any:
        def body(b: Any, x: Any) -> Any:
            y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weight, padding=1))))
            return b.emit(op.matmul(b.emit(op.mean(y, axis=[2, 3])), dense))

        return nets.build(body, (batch, 8, 6, 6))

    return make


@pytest.mark.parametrize("layout", ["keep", "auto"])
@pytest.mark.few(1)
def test_chosen_batches_have_functions_of_their_own_and_all_are_right(
    nets: Any, images: Any, target: Any, make_hub: Any, layout: str
) -> None:
    mod, hub = images(symbol("batch")), make_hub(layout=layout)
    machine = Machine(compile_module(mod, target, hub, specialize={"batch": [1, 8]}))
    assert not hub.failures
    assert not hub.notes or layout == "keep"  # where the functions pack the dense layer's weight each in its way
    plain = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    for size in (1, 2, 7, 8, 9, 1):
        data = nets.array(size, 8, 6, 6)
        expected = plain["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_allclose(machine(data).numpy(), expected, rtol=1e-4, atol=1e-5)
        assert machine.chosen() == [f"main_batch_{size}" if size in (1, 8) else "main_open"]
    assert {workload.symbols for workload in hub.workloads} == {(), ("batch",)}


@pytest.mark.parametrize("begin", [0, 1])
def test_slices_that_may_end_at_a_negative_number_have_functions_for_chosen_sizes(
    nets: Any, target: Any, make_hub: Any, begin: int
) -> None:
    n = symbol("n")

    def body(b: Any, x: Any) -> Any:
        return b.emit(op.exp(b.emit(op.strided_slice(x, [1], [begin], [n - 1], [1]))))

    hub = make_hub(layout="auto")
    machine = Machine(compile_module(nets.build(body, (2, n, 8)), target, hub, specialize={"n": [1, 6]}))
    assert not hub.failures
    for size in (1, 2, 6, 9):
        data = nets.array(2, size, 8)
        np.testing.assert_allclose(machine(data).numpy(), np.exp(data[:, begin : size - 1]), rtol=1e-5)
        assert machine.chosen() == [f"main_n_{size}" if size in (1, 6) else "main_open"]


def test_a_token_in_front_of_the_others_has_functions_for_chosen_sizes(nets: Any, target: Any, make_hub: Any) -> None:
    """What TVM's types call ``1 + n`` rows and its kernels ``n + 1``."""
    first, scale = nets.array(2, 1, 8), nets.array(8)

    def body(b: Any, x: Any) -> Any:
        rows = b.emit(op.concat([relax.const(first), x], axis=1))
        return b.emit(op.exp(b.emit(op.multiply(rows, relax.const(scale)))))

    hub = make_hub(layout="auto")
    machine = Machine(compile_module(nets.build(body, (2, symbol("n"), 8)), target, hub, specialize={"n": [1, 5]}))
    assert not hub.failures
    for size in (1, 4, 5):
        data = nets.array(2, size, 8)
        expected = np.exp(np.concatenate([first, data], axis=1) * scale)
        np.testing.assert_allclose(machine(data).numpy(), expected, rtol=1e-5)
        assert machine.chosen() == [f"main_n_{size}" if size in (1, 5) else "main_open"]


def test_a_record_for_the_fixed_shape_serves_the_function_of_its_size(
    nets: Any, target: Any, make_hub: Any, record_for: Any
) -> None:
    weight = nets.array(24, 32)

    def make(rows: Any) -> Any:
        return nets.build(lambda b, x: b.emit(op.matmul(x, relax.const(weight))), (rows, 24))

    hub = make_hub(record_for(make(16)))
    machine = Machine(compile_module(make(symbol("rows")), target, hub, specialize={"rows": [16]}))
    assert {workload.symbols: workload.rung for workload in hub.workloads}[()] == "exact"
    data = nets.array(16, 24)
    np.testing.assert_allclose(machine(data).numpy(), data @ weight, rtol=1e-4, atol=1e-5)
    assert machine.chosen() == ["main_rows_16"]


def test_every_combination_of_several_dimensions_has_a_function(nets: Any, target: Any, make_hub: Any) -> None:
    batch, length, scale = symbol("batch"), symbol("sequence"), nets.const(6)

    def make(b: Any, x: Any, mask: Any) -> Any:
        weighted = b.emit(op.add(b.emit(op.multiply(x, scale)), mask))
        return b.emit(relax.Tuple([b.emit(op.nn.softmax(weighted)), b.emit(op.sum(mask, axis=[1]))]))

    mod = nets.build(make, (batch, length, 6), (batch, length, 1))
    hub = make_hub()
    chosen = {"sequence": (4, 16), "batch": [1, 2, 1]}
    machine = Machine(compile_module(mod, target, hub, specialize=chosen))
    plain = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    for n, s in ((1, 4), (2, 16), (2, 4), (3, 4), (1, 5)):
        arrays = nets.array(n, s, 6), nets.array(n, s, 1)
        found, expected = machine(*arrays), plain["main"](*map(tvm.runtime.tensor, arrays))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
        named = n in (1, 2) and s in (4, 16)
        assert machine.chosen() == [f"main_sequence_{s}_batch_{n}" if named else "main_open"]


def test_a_dimension_that_nothing_is_chosen_for_stays_open_in_the_functions_of_the_others(
    nets: Any, target: Any, make_hub: Any
) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(op.exp(b.emit(op.reshape(x, relax.ShapeExpr([batch * length, 3])))))

    batch, length = symbol("batch"), symbol("sequence")
    mod, hub = nets.build(make, (batch, length, 3)), make_hub()
    machine = Machine(compile_module(mod, target, hub, specialize={"batch": [2]}))
    for n, s in ((2, 1), (2, 7), (3, 7)):
        data = nets.array(n, s, 3)
        np.testing.assert_allclose(machine(data).numpy(), np.exp(data).reshape(-1, 3), rtol=1e-5)
        assert machine.chosen() == ["main_batch_2" if n == 2 else "main_open"]


def test_effects_happen_once_and_in_the_function_that_runs(nets: Any, target: Any, make_hub: Any) -> None:
    seen: list[int] = []
    tvm.register_global_func("tunehub.test.rows", lambda x: seen.append(int(x.shape[0])) or x, override=True)
    keyword = next(k for k in inspect.signature(op.call_pure_packed).parameters if k in ("ty_args", "sinfo_args"))

    def make(b: Any, x: Any) -> Any:
        b.emit(op.call_pure_packed("tunehub.test.rows", x, **{keyword: tensor_type(x)}))
        return b.emit(op.exp(x))

    mod, hub = nets.build(make, (symbol("n"), 4)), make_hub()
    machine = Machine(compile_module(mod, target, hub, specialize={"n": [3]}))
    assert not hub.failures and not hub.notes
    for size in (3, 5, 3):
        data = nets.array(size, 4)
        np.testing.assert_allclose(machine(data).numpy(), np.exp(data), rtol=1e-5)
        assert machine.chosen() == ["main_n_3" if size == 3 else "main_open"]
    assert seen == [3, 5, 3]


def test_the_library_holds_each_weight_once(nets: Any, make_hub: Any, tmp_path: Path) -> None:
    weight, target = nets.const(1024, 512), tunehub.host_target()
    mod = nets.build(lambda b, x: b.emit(op.matmul(x, weight)), (symbol("n"), 1024))
    sizes = []
    for chosen in (None, {"n": [1, 16]}):
        path, hub = tmp_path / f"{len(sizes)}.so", make_hub(layout="auto")
        compile_module(mod, target, hub, specialize=chosen).export_library(str(path))
        sizes.append(path.stat().st_size)
        assert not hub.notes and not hub.failures
    assert sizes[1] - sizes[0] < 1024 * 512 * 4 / 2


def test_weights_in_other_forms_are_noted(nets: Any) -> None:
    """The function for one row has the weight transposed, as if another schedule had packed it."""
    weight = nets.array(8, 16)
    mod = specialized(
        nets.build(lambda b, x: b.emit(op.matmul(x, relax.const(weight))), (symbol("n"), 8)), {"n": [1, 2]}
    )
    assert note_of_weights(mod) is None
    other = nets.build(lambda b, x: b.emit(op.matmul(x, relax.const(weight.T.copy()))), (1, 16))["main"]
    variable = mod.get_global_var("main_n_1")
    mod.update_func(variable, other.with_attr("global_symbol", "main_n_1"))
    note = "functions for chosen sizes pack 1 weights otherwise than the one for all sizes: 0.0 MB beside its 0.0 MB"
    assert note_of_weights(mod) == note
    assert note_of_weights(nets.conv()) is None


def test_names_that_are_taken_get_numbers(nets: Any, target: Any, make_hub: Any) -> None:
    mod = nets.build(lambda b, x: b.emit(op.exp(x)), (symbol("n"), 4))
    mod = tvm.IRModule({**dict(mod.functions.items()), "main_n_1": nets.conv()["main"].without_attr("global_symbol")})
    made = specialized(mod, {"n": [1]})
    assert {"main", "main_n_1", "main_n_1_1", "main_open"} == {str(v.name_hint) for v in made.get_global_vars()}
    assert relax.analysis.well_formed(made) is not False


def test_the_pass_and_explain_take_sizes_too(images: Any, nets: Any, target: Any, make_hub: Any) -> None:
    mod, hub, explained = images(symbol("batch")), make_hub(), make_hub()
    executable = tvm.compile(mod, target, relax_pipeline=build_pipeline(target, hub, {"batch": [2]}))
    machine = Machine(executable)
    machine(nets.array(2, 8, 6, 6))
    assert machine.chosen() == ["main_batch_2"]
    explain_module(mod, target, explained, specialize={"batch": [2]})
    assert explained.workloads == hub.workloads
    with pytest.raises(Exception, match="specialize: 'rows': is no open dimension"):  # of TVM's own type
        tvm.compile(mod, target, relax_pipeline=build_pipeline(target, make_hub(), {"rows": [2]}))


def test_a_module_without_main_has_them_for_each_function_from_outside(nets: Any, target: Any, make_hub: Any) -> None:
    """As a language model: a step of a batch, and a prompt of a sequence, with their weights in a tuple."""
    builder, kind = relax.BlockBuilder(), tensor_class()
    for name, shape in (("batch_decode", (symbol("batch"), 1, 8)), ("prefill", (1, symbol("length"), 8))):
        x = relax.Var("x", kind(shape, "float32"))
        weights = relax.Var("packed_params", tuple_class()([kind((4, 8), "float32")]))
        with builder.function(name, [x, weights]):
            with builder.dataflow():
                weight = builder.emit(op.permute_dims(builder.emit(relax.TupleGetItem(weights, 0))))
                result = builder.emit_output(op.nn.relu(builder.emit(op.matmul(x, weight))))
            builder.emit_func_output(result)
    hub, weight = make_hub(), nets.array(4, 8)
    executable = compile_module(builder.get(), target, hub, specialize={"batch": [2]})
    assert not hub.failures
    machine = Machine(executable)
    for name, shape, chosen in (
        ("batch_decode", (2, 1, 8), "batch_decode_batch_2"),
        ("batch_decode", (3, 1, 8), "batch_decode_open"),
        ("prefill", (1, 2, 8), None),
    ):
        data = nets.array(*shape)
        found = machine.run(name, tvm.runtime.tensor(data), [tvm.runtime.tensor(weight)]).numpy()
        np.testing.assert_allclose(found, np.maximum(data @ weight.T, 0), rtol=1e-4, atol=1e-5)
        assert [each for each in machine.called if each.startswith("batch_decode_")] == ([chosen] if chosen else [])


def test_when_functions_cannot_be_made_the_one_for_all_sizes_serves(
    images: Any, nets: Any, target: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specialize, "_combinations", lambda _sizes: 1 / 0)
    hub = make_hub()
    machine = Machine(compile_module(images(symbol("batch")), target, hub, specialize={"batch": [1]}))
    assert machine(nets.array(1, 8, 6, 6)).numpy().shape == (1, 10)
    assert [step for step, _ in hub.failures] == ["making functions for chosen sizes"]
    assert machine.chosen() == []


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"rows": [1]}, r"'rows': is no open dimension of the model's inputs \(give some of n \(axis 0 of x0\), m "),
        ({"n": []}, "is no list of sizes"),
        ({"n": 8}, "is no list of sizes"),
        ({"n": "8"}, "is no list of sizes"),
        ({"n": [0]}, r"specialize, n: '0': is not a whole number from 1 \(give sizes such as"),
        ({"n": [True]}, "is not a whole number"),
        ({"n": [2.0]}, "is not a whole number"),
        ({"n": [65]}, r"'65': is not within the bounds that the model states \(give sizes from 2 to 64"),
        ({"n": [1]}, "is not within the bounds"),
        ([1, 8], "is no dict of sizes"),
    ],
)
def test_wrong_sizes_are_errors_that_say_what_to_give(nets: Any, sizes: Any, message: str) -> None:
    mod = nets.build(lambda b, x: b.emit(op.exp(x)), (symbol("n"), symbol("m")))
    main = mod["main"].with_attr("tir_var_upper_bound", {"n": 64}).with_attr("tir_var_lower_bound", {"n": 2})
    with pytest.raises(SettingError, match=message):
        check_sizes(tvm.IRModule({"main": main}), sizes)


def test_a_model_without_open_dimensions_has_none_to_choose(nets: Any) -> None:
    with pytest.raises(SettingError, match="leave it out: the inputs have no open dimension"):
        check_sizes(nets.conv(), {"batch": [1]})
    check_sizes(nets.conv(), {})
    assert specialized(nets.conv(), {}) is not None


@pytest.mark.filterwarnings("ignore")
def test_compile_takes_sizes(images: Any, nets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    sizes: Mapping[str, Sequence[int]] = {"batch": [2]}
    mod, hub = images(symbol("batch")), tunehub.open_hub(offline=True)
    executable = tunehub.compile(mod, hub=hub, specialize=sizes)
    machine = Machine(executable)
    machine(nets.array(2, 8, 6, 6))
    assert machine.chosen() == ["main_batch_2"]
    profiled = hub.profile(executable, [nets.array(2, 8, 6, 6)], runs=1)
    assert {w.symbols for w in profiled.workloads if w.measured_s is not None} == {()}  # only what ran has a time
    assert len(tunehub.explain(mod, specialize=sizes, offline=True).workloads) == len(hub.report().workloads)
    with pytest.raises(SettingError, match="no open dimension"):
        tunehub.compile(mod, hub=hub, specialize={"b": [1]})

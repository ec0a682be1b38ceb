"""The symbols of PrimFuncs and their instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.preparing import prepare
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import buffer_shapes, is_static, main_module
from tunehub.tir.symbols import (
    instance,
    instances,
    is_symbolic,
    probes,
    scalars,
    symbol_name,
    symbols_of,
    typical,
    typical_instance,
)

pytestmark = pytest.mark.slow


def functions(mod: Any) -> list[Any]:
    return [function for function in mod.functions.values() if isinstance(function, tvm.tirx.PrimFunc)]


def symbol(name: str) -> Any:
    return tvm.tirx.Var(name, "int64")


@pytest.fixture
def product(nets: Any, target: Any) -> Any:
    """Makes the workload of a product with open rows."""

    def make(rows: Any, outputs: int = 8) -> Any:
        weight = nets.const(16, outputs)
        mod = nets.build(lambda b, x: b.emit(relax.op.nn.relu(b.emit(relax.op.matmul(x, weight)))), (rows, 16))
        (function,) = functions(prepare(mod, target))
        return function

    return make


def test_symbols_are_those_of_the_shapes_in_order(nets: Any, target: Any) -> None:
    batch, length = symbol("batch"), symbol("length")
    mod = nets.build(lambda b, x, y: b.emit(relax.op.add(x, y)), (batch, length, 4), (batch, 1, 4))
    (function,) = functions(prepare(mod, target))
    assert [symbol_name(each) for each in symbols_of(function)] == ["batch", "length"]
    assert is_symbolic(function) and not is_static(function)


def test_a_static_function_is_its_own_instance(product: Any) -> None:
    function = product(5)
    assert symbols_of(function) == () and instances(function) == [function]
    assert instance(function, ()) is function and typical_instance(function) is function


def test_an_instance_has_the_key_of_the_static_function(product: Any) -> None:
    """Records of static shapes so are found for instances."""
    static, open_rows = product(7), product(symbol("n"))
    found = instance(open_rows, (7,))
    assert buffer_shapes(found) == buffer_shapes(static)
    assert workload_key(main_module(found)) == workload_key(main_module(static))


def test_extents_that_are_computed_become_numbers(nets: Any, target: Any) -> None:
    n = symbol("n")
    mod = nets.build(lambda b, x: b.emit(relax.op.concat([x, x], axis=0)), (n, 4))
    (function,) = functions(prepare(mod, target))
    assert buffer_shapes(instance(function, (5,)))[-1] == ((10, 4), "float32")


def test_instances_compute_what_the_function_computes(product: Any, target: Any) -> None:
    function = product(symbol("n"))
    built = tvm.tirx.build(main_module(function), target=target)
    for values, each in zip(probes(function), instances(function), strict=True):
        rng = np.random.default_rng(0)
        arrays = [rng.uniform(-1, 1, shape).astype(dtype) for shape, dtype in buffer_shapes(each)]
        results = []
        for library, behind in ((built, scalars(function, values)), (tvm.tirx.build(main_module(each), target), ())):
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            library["main"](*tensors, *behind)
            results.append(tensors[-1].numpy())
        np.testing.assert_array_equal(*results)


def test_at_least_six_values_are_probed_with_one_and_primes_among_them(product: Any) -> None:
    values = [value for (value,) in probes(product(symbol("n")))]
    assert len(values) >= 6 and {1, 2, 3, 7} <= set(values)


def test_values_without_elements_are_not_probed(nets: Any, target: Any) -> None:
    n = symbol("n")
    mod = nets.build(lambda b, x: b.emit(relax.op.nn.max_pool2d(x, (9, 9))), (1, 2, n, n))
    (function,) = functions(prepare(mod, target))
    values = [value for (value,) in probes(function)]
    assert len(values) >= 6 and min(values) == 13  # of 9 and more; 13 is the least of those tried
    assert all(min(shape) > 0 for each in instances(function) for shape, _ in buffer_shapes(each))


def test_symbols_differ_in_most_probes(nets: Any, target: Any) -> None:
    batch, length = symbol("batch"), symbol("length")
    mod = nets.build(lambda b, x: b.emit(relax.op.nn.softmax(x)), (batch, 2, length))
    (function,) = functions(prepare(mod, target))
    found = probes(function)
    assert found[0] == (1, 1) and sum(a != b for a, b in found) == len(found) - 1
    assert typical(function) == (1, 128)


def test_the_typical_value_is_larger_where_less_leaves_nothing(nets: Any, target: Any) -> None:
    samples = symbol("samples")
    mod = nets.build(lambda b, x: b.emit(relax.op.nn.max_pool2d(x, (1, 200))), (1, 2, 1, samples))
    (function,) = functions(prepare(mod, target))
    assert typical(function) == (4096,)


def test_keys_do_not_depend_on_names_of_symbols(product: Any) -> None:
    first, second = (main_module(product(symbol(name))) for name in ("n", "sequence_length"))
    assert workload_key(first) == workload_key(second)
    assert anchor_key(first) == anchor_key(second) is not None


def test_keys_tell_open_from_static_and_one_symbol_from_two(nets: Any, target: Any, product: Any) -> None:
    def added(*shape: Any) -> Any:
        (function,) = functions(prepare(nets.build(lambda b, x: b.emit(relax.op.exp(x)), shape), target))
        return workload_key(main_module(function))

    n, m = symbol("n"), symbol("m")
    assert len({added(n, n), added(n, m), added(n, 4), added(4, n), added(4, 4)}) == 5
    assert added(n, m) == added(m, n)
    first, second = (main_module(product(symbol("n"), outputs)) for outputs in (8, 16))
    assert workload_key(first) != workload_key(second) and anchor_key(first) != anchor_key(second)

"""Powers with constant exponents: products and roots that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.numerics.powers import is_expanded
from tunehub.graph.simplify import simplify
from tunehub.tir.nodes import tensor_class

pytestmark = pytest.mark.slow

op = relax.op
Array = np.ndarray[Any, Any]
BASES = np.array([-1e4, -7.5, -2, -1, -0.25, 0.0, 1e-3, 0.5, 1, 3, 88, 1e4, np.inf], "float32")
EXPONENTS = (-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)


def operators(mod: Any) -> list[str]:
    names: list[str] = []
    relax.analysis.post_order_visit(
        mod["main"], lambda node: names.append(node.op.name) if isinstance(node, relax.Call) else None
    )
    return names


def power(nets: Any, exponents: Any, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    constant = relax.const(np.asarray(exponents, dtype), dtype)
    return nets.build(lambda b, x: b.emit(op.power(x, constant)), shape, dtype=dtype)


def expected(bases: Array, exponent: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.power(bases.astype("float64"), exponent)).astype(bases.dtype)


def test_each_exponent_gives_what_the_c_library_gives(nets: Any, target: Any, run: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        powers = [b.emit(op.power(x, relax.const(np.float32(exponent)))) for exponent in EXPONENTS]
        return b.emit(op.stack(powers, axis=0))

    after = simplify(nets.build(make, BASES.shape))
    assert "relax.power" not in operators(after)
    found = run(tvm.compile(after, target), BASES)
    wanted = np.stack([expected(BASES, exponent) for exponent in EXPONENTS])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("exponent", [-1, 0.5, 2, 3])
def test_half_precision_is_rounded_once(nets: Any, target: Any, run: Any, exponent: float) -> None:
    bases = np.array([-3.1, -1.7, 0.37, 2.3, 15.8] if exponent != 0.5 else [0.37, 2.3, 15.8], "float16")
    after = simplify(power(nets, exponent, bases.shape, "float16"))
    assert "relax.power" not in operators(after)
    np.testing.assert_array_equal(run(tvm.compile(after, target), bases), expected(bases, exponent))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("exponent", [0, 1, 2, 5])
def test_powers_of_integers_which_tvm_does_not_compile(
    nets: Any, target: Any, run: Any, dtype: str, exponent: int
) -> None:
    bases = np.array([-7, -1, 0, 1, 9], dtype)
    mod = power(nets, exponent, bases.shape, dtype)
    with pytest.raises(Exception, match="power only applies to float"):
        tvm.compile(mod, target)
    np.testing.assert_array_equal(run(tvm.compile(simplify(mod), target), bases), bases**exponent)


def test_a_constant_of_equal_exponents_may_widen_the_base(nets: Any, target: Any, run: Any) -> None:
    after = simplify(power(nets, np.full((3, 1, 4), 2), (2, 1)))
    assert operators(after) == ["relax.multiply", "relax.broadcast_to"]
    bases = np.array([[-3], [5]], "float32")
    np.testing.assert_array_equal(run(tvm.compile(after, target), bases), np.broadcast_to(bases**2, (3, 2, 4)))


@pytest.mark.parametrize("exponents", [0.3, 9, -4, [2.0, 3.0]])
def test_other_powers_stay(nets: Any, exponents: Any) -> None:
    assert operators(simplify(power(nets, exponents, (2,)))) == ["relax.power"]


def test_an_open_dimension_is_no_obstacle() -> None:
    builder = relax.BlockBuilder()
    kind = tensor_class()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", kind((n, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(op.power(x, relax.const(np.float32(2))))
        builder.emit_func_output(output)
    assert operators(simplify(builder.get())) == ["relax.multiply"]


def test_integers_have_whole_exponents_from_zero_only() -> None:
    assert [e for e in (-1, 0, 0.5, 2, 8, 9) if is_expanded(e, "int32")] == [0, 2, 8]
    assert not is_expanded(2, "bool")

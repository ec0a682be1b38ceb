"""What follows products of integers is computed in fewer instructions, with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

from tvm import tirx

from tunehub.kernels.cuda.gemm.requantisation import in_fewer_instructions

pytestmark = pytest.mark.fast
X = tirx.Var("x", "float32")
RNG = np.random.default_rng(0)


def _f(value: float, dtype: str = "float32") -> Any:
    return tirx.const(value, dtype)


def _called(value: Any) -> str:
    return str(value.args[0].value)


def test_a_rounded_and_clipped_number_becomes_a_byte_in_one_function() -> None:
    rounded = tirx.nearbyint(X) + _f(3)
    for dtype, low, high in (("uint8", 0, 255), ("int8", -128, 127)):
        found: Any = in_fewer_instructions(tirx.Cast(dtype, tirx.min(tirx.max(rounded, _f(low)), _f(high))))
        assert _called(found) == ("tunehub_nearest_byte" if dtype == "uint8" else "tunehub_nearest_signed_byte")
        assert [float(each.value) for each in found.args[2:5]] == [low - 3, high - 3, 3]


@pytest.mark.parametrize(("kind", "known"), [("uint8", True), ("int8", True), ("float32", False)])
def test_a_zero_point_may_be_a_parameter_of_bytes_which_hold_integers_alone(kind: str, known: bool) -> None:
    element = tirx.BufferLoad(tirx.decl_buffer([1], kind, "zero"), [0])
    zero = element if kind == "float32" else tirx.Cast("float32", element)
    byte = tirx.Cast("uint8", tirx.min(tirx.max(tirx.nearbyint(X) + zero, _f(0)), _f(255)))
    found: Any = in_fewer_instructions(byte)
    assert found.same_as(byte) != known
    if known:
        low, high, own = (str(each) for each in found.args[2:5])
        assert _called(found) == "tunehub_nearest_byte" and "int32" in own
        assert low.startswith(f"{_f(0)} - ") and high.startswith(f"{_f(255)} - ")


def test_a_byte_that_is_dequantised_at_once_never_is_one() -> None:
    byte = tirx.Cast("uint8", tirx.max(tirx.min(tirx.round(X), _f(255)), _f(0)))
    assert _called(in_fewer_instructions(tirx.Cast("float32", byte))) == "tunehub_nearest"


def test_what_is_not_clipped_to_what_a_byte_holds_stays() -> None:
    for low, high in ((0, 256), (-1, 255), (0, 254.5)):
        value = tirx.Cast("uint8", tirx.min(tirx.max(tirx.round(X), _f(low)), _f(high)))
        assert in_fewer_instructions(value).same_as(value)


def test_a_quotient_in_float64_by_a_number_of_float32_becomes_products() -> None:
    def by(divisor: float) -> Any:
        return tirx.Cast("float32", tirx.Div(tirx.Cast("float64", X), _f(divisor, "float64")))

    assert _called(in_fewer_instructions(by(float(np.float32(0.04))))) == "tunehub_quotient"
    assert type(in_fewer_instructions(by(0.04))).__name__ == "Cast"


def test_the_sum_with_a_large_number_has_the_nearest_integer_in_its_last_bits() -> None:
    x = np.concatenate([RNG.uniform(-300, 300, 100_000), np.arange(-600, 600) / 2]).astype("float32")
    for low, high, zero, dtype in ((0, 255, 0, "uint8"), (-128, 127, 7, "int8"), (0, 255, 250, "uint8")):
        shifted = np.clip(x, np.float32(low - zero), np.float32(high - zero)) + np.float32(12582912)
        found = (shifted.view("int32") + zero).astype("uint8").view(dtype)
        assert np.array_equal(found, np.clip(np.rint(x) + zero, low, high).astype(dtype))


def test_quotients_by_products_are_those_of_a_division() -> None:
    x = (RNG.standard_normal(300_000) * 10 ** RNG.uniform(-4, 6, 300_000)).astype("float32")
    divisors = RNG.uniform(1e-4, 10, 300_000).astype("float32")
    inverse = np.float32(1) / divisors
    first = x * inverse
    rest = (x.astype("float64") - first.astype("float64") * divisors).astype("float32")  # exact before it is rounded
    found = (first.astype("float64") + rest.astype("float64") * inverse).astype("float32")
    assert np.array_equal(found, x / divisors)

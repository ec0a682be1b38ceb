"""Element types of workloads: they are in every key, and decide which outputs are near enough."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

tvm = pytest.importorskip("tvm")

from tvm import te  # noqa: E402

from tunehub.tir.element_types import product_types, roundings_in_a_row, written_types  # noqa: E402
from tunehub.tir.keys import anchor_key, workload_key  # noqa: E402
from tunehub.tir.operator_class import anchor_class_of, class_of  # noqa: E402

pytestmark = pytest.mark.fast

TYPES = (
    ("float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "float16", "float32"),
    ("uint8", "int8", "int32"),
    ("int8", "int8", "int32"),
    ("int16", "int16", "int32"),
)


def product(data: str, weight: str, sums: str, depth: int = 16) -> Any:
    """The same loops whatever the types are."""
    a, b = te.placeholder((8, depth), data, name="a"), te.placeholder((depth, 16), weight, name="b")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((8, 16), lambda i, j: te.sum(a[i, k].astype(sums) * b[k, j].astype(sums), axis=k), name="matmul")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")})


def keys(mod: Any) -> tuple[Any, ...]:
    found = class_of(mod), anchor_class_of(mod)
    return workload_key(mod), anchor_key(mod), *(each and each.key for each in found)


@pytest.mark.parametrize("pair", list(combinations(TYPES, 2)), ids=str)
def test_records_of_one_precision_are_not_found_for_another(pair: tuple[Any, Any]) -> None:
    first, second = (keys(product(*types)) for types in pair)
    assert None not in first + second
    assert all(own != other for own, other in zip(first, second, strict=True))


def test_the_types_of_a_product_are_named_unless_all_is_of_one() -> None:
    assert product_types(product("uint8", "int8", "int32")["main"]) == "uint8 × int8 → int32"
    assert product_types(product("bfloat16", "bfloat16", "float32")["main"]) == "bfloat16 × bfloat16 → float32"
    assert product_types(product("float32", "float32", "float32")["main"]) is None


def test_what_is_written_is_known_without_what_is_read() -> None:
    a = te.placeholder((8,), "uint8", name="a")
    half = te.compute((8,), lambda i: a[i].astype("bfloat16"), name="half")
    whole = te.compute((8,), lambda i: half[i].astype("float32"), name="whole")
    assert written_types(te.create_prim_func([a, whole])) == {"bfloat16", "float32"}


def in_eight_bits(x: Any) -> Any:
    return te.compute((8,), lambda i: te.round(x[i] * 0.5).astype("uint8"), name="eight")


def computed_with(x: Any) -> Any:
    return te.compute((8,), lambda i: x[i].astype("float32") * 3.0, name="wide")


def rounded(count: int) -> Any:
    """Numbers that are rounded to 8 bits, computed with and rounded again, so many times, and copied at the end."""
    first = te.placeholder((8,), "float32", name="x")
    last = in_eight_bits(first)
    for _ in range(count - 1):
        last = in_eight_bits(computed_with(last))
    return te.create_prim_func([first, te.compute((8,), lambda i: last[7 - i], name="copied")])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_roundings_in_a_row_are_those_of_one_result(count: int) -> None:
    assert roundings_in_a_row(rounded(count)) == count


def test_results_beside_each_other_are_rounded_once_each() -> None:
    a = te.placeholder((8,), "float32", name="a")
    one, other = in_eight_bits(a), in_eight_bits(a)
    both = te.compute((8,), lambda i: one[i].astype("float32") + other[i], name="both")
    assert roundings_in_a_row(te.create_prim_func([a, both])) == 1

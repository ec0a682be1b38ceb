"""Index maps: what the rules accept is a bijection wherever it fits, and nothing that loses elements gets through."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry._index_map import IndexMapError, _evaluate, check_index_map, splits_only

pytestmark = pytest.mark.fast

PACKED = [["//", "v0", 16], "v1", "v2", "v3", ["%", "v0", 16]]
UNPACK = [["+", ["*", "v0", 16], "v4"], "v1", "v2", "v3"]


def index_map(ndim: int, final: list[Any], inverse: list[Any] | None = None) -> dict[str, Any]:
    backward = None if inverse is None else {"ndim": len(final), "final": inverse, "inverse": None}
    return {"index_map": {"ndim": ndim, "final": final, "inverse": backward}}


@pytest.mark.parametrize(
    "value",
    [
        index_map(4, ["v0", "v2", "v3", "v1"]),
        index_map(4, PACKED),
        index_map(4, PACKED, UNPACK),
        index_map(1, [["//", ["//", "v0", 4], 8], ["%", ["//", "v0", 4], 8], ["%", "v0", 4]]),
        index_map(1, [["//", "v0", 32], ["//", ["%", "v0", 32], 4], ["%", "v0", 4]]),
        index_map(1, [0, "v0"]),
        index_map(4, [["//", "v1", 16], ["%", "v1", 16]], [0, ["+", ["*", "v0", 16], "v1"], 0, 0]),
        index_map(2, [["+", ["*", "v0", 3], "v1"]], [["//", "v0", 3], ["%", "v0", 3]]),
        # TVM's own for 96 elements in tiles of 64: the remainder is by the extent
        index_map(1, [["//", "v0", 64], ["%", "v0", 64]], [["%", ["+", ["*", "v0", 64], "v1"], 96]]),
        {"index_map": {"ndim": 1, "final": ["v0"]}},
    ],
)
def test_layouts_that_keep_every_element_are_accepted(value: object) -> None:
    check_index_map(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (index_map(1, [["%", "v0", 4]]), "v0 is lost"),
        (index_map(1, [["//", "v0", 4]]), "v0 is lost"),
        (index_map(1, [["//", "v0", 4], ["%", "v0", 8]]), "v0 is lost or used twice"),
        (index_map(1, [["//", "v0", 8], ["%", "v0", 4]]), "v0 is lost"),
        (index_map(1, ["v0", "v0"]), "used twice"),
        (index_map(1, [["%", ["//", "v0", 4], 6], ["%", "v0", 4]]), "v0 is lost"),
        (index_map(2, ["v0"]), "v1 is lost"),
        (index_map(2, ["v0"], ["v0", 1]), "v1 is lost"),
        (index_map(1, [["%", "v0", 4]], ["v0"]), "v0 is lost"),
        (index_map(2, ["v0", ["+", "v1", 3]]), "inverse must be given"),
        (index_map(2, [["+", ["*", "v0", 3], "v1"]]), "inverse must be given"),
        (index_map(2, [["+", "v0", "v1"]], ["v0", 0]), "taken|inverse is wrong"),
        (index_map(1, [["-", 0, "v0"]], [["-", 0, "v0"]]), "does not exist"),
        (index_map(1, ["v0", 1]), "does not start at 1"),
        (index_map(4, PACKED, [["*", "v0", 16], "v1", "v2", "v3"]), "inverse is wrong"),
        (index_map(4, PACKED, [["+", ["*", "v0", 15], "v4"], "v1", "v2", "v3"]), "inverse is wrong"),
        (index_map(2, ["v1", "v0"], ["v0", "v1"]), "inverse is wrong"),
        (index_map(2, ["v1", "v0"], ["v0"]), "dimensions of an inverse"),
        (index_map(1, [["//", "v0", 0]]), "at least 1"),
        (index_map(1, [["%", "v0", -4]]), "at least 1"),
        (index_map(1, [["%", "v0", "v0"]]), "at least 1"),
        (index_map(1, [["*", "v0", "v0"]]), "product of two"),
        (index_map(1, [["+", "v0", 2**41]]), "out of range"),
        (index_map(1, ["v1"]), "does not exist"),
        (index_map(1, ["v00"]), "does not exist"),
        (index_map(1, [["**", "v0", 2]]), "expected an integer"),
        (index_map(1, [True]), "expected an integer"),
        (index_map(1, [1.0]), "expected an integer"),
        (index_map(1, []), "1 to 32"),
        (index_map(1, [0] * 33), "1 to 32"),
        (index_map(0, ["v0"]), "ndim"),
        (index_map(17, [f"v{i}" for i in range(17)]), "1 to 16"),
        (index_map(True, ["v0"]), "ndim"),
        ("{}", "serialised"),
        ({"index_map": []}, "fields"),
        ({"index_map": {"ndim": 1}}, "fields"),
        ({"index_map": {"ndim": 1, "final": ["v0"], "inverse": None, "more": 1}}, "fields"),
        ({"index_map": {"ndim": 1, "final": ["v0"], "inverse": index_map(1, ["v0"], ["v0"])["index_map"]}}, "has one"),
    ],
)
def test_what_is_refused(value: object, why: str) -> None:
    with pytest.raises(IndexMapError, match=why):
        check_index_map(value)


@pytest.mark.parametrize(
    ("final", "shape", "expected"),
    [
        (["v1", "v0"], [3, 5], True),
        ([["//", "v0", 4], ["%", "v0", 4], "v1"], [10, 5], True),
        ([["%", "v0", 4], "v1"], [4, 5], True),
        ([["%", "v0", 4], "v1"], [5, 5], False),
        (["v1"], [1, 5], True),
        (["v1"], [2, 5], False),
        ([["+", ["*", "v0", 5], "v1"]], [3, 5], False),
        (["v0", "v1", "v1"], [3, 5], False),
    ],
)
def test_shapes_decide_what_is_lost(final: list[Any], shape: list[int], expected: bool) -> None:
    assert splits_only(index_map(2, final), shape) is expected
    with pytest.raises(IndexMapError, match="2 dimensions for a buffer of 1"):
        splits_only(index_map(2, final), shape[:1])


def test_deep_and_long_expressions_are_refused() -> None:
    deep: Any = "v0"
    for _ in range(100_000):
        deep = ["+", deep, 0]
    with pytest.raises(IndexMapError, match="too deep"):
        check_index_map(index_map(1, [deep]))
    wide: Any = "v0"
    for _ in range(11):
        wide = ["+", wide, wide]
    with pytest.raises(IndexMapError, match="1000 operations"):
        check_index_map(index_map(1, [wide]))


def test_tvm_proves_block_layouts_by_itself() -> None:
    check_index_map(index_map(2, [["+", ["*", "v0", 3], "v1"]]), needs_proof=False)
    with pytest.raises(IndexMapError, match="TVM must derive it"):
        check_index_map(index_map(2, ["v1", "v0"], ["v1", "v0"]), needs_proof=False)


def expressions(ndim: int) -> st.SearchStrategy[Any]:
    leaves = st.sampled_from([f"v{i}" for i in range(ndim)]) | st.integers(0, 6)
    return st.recursive(
        leaves,
        lambda inner: (
            st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 6)).map(list)
            | st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner).map(list)
        ),
        max_leaves=4,
    )


@pytest.mark.slow
@given(st.data(), st.integers(1, 3))
def test_accepted_maps_without_inverse_never_share_a_place(data: st.DataObject, ndim: int) -> None:
    final = data.draw(st.lists(expressions(ndim), min_size=1, max_size=4))
    try:
        check_index_map(index_map(ndim, final))
    except IndexMapError:
        return
    images = [tuple(_evaluate(e, point) for e in final) for point in itertools.product(range(13), repeat=ndim)]
    assert len(set(images)) == len(images)
    assert min(map(min, images)) >= 0


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.randoms())
def test_splits_in_any_order_are_accepted(factors: list[int], random: Any) -> None:
    parts: list[Any] = []
    rest: Any = "v0"
    for factor in factors:
        parts.append(["%", rest, factor])
        rest = ["//", rest, factor]
    parts.append(rest)
    random.shuffle(parts)
    check_index_map(index_map(2, [*parts, "v1"]))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["v0", "//", "+"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["index_map", "ndim", "final", "inverse", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_anything_raises_only_index_map_errors(ndim: object, final: object, inverse: object) -> None:
    for value in (final, {"index_map": {"ndim": ndim, "final": final, "inverse": inverse}}):
        with contextlib.suppress(IndexMapError):
            check_index_map(value)

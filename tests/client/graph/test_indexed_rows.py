"""Constants that index what is not there are refused: TVM would read and write other memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.fast
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from tunehub.exceptions import IndexOfNoRowError  # noqa: E402
from tunehub.graph.indexed_rows import check_constant_indices  # noqa: E402
from tunehub.graph.origins import named  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402

op = relax.op
Written = Callable[[Any, Any, Any], Any]


def constant(values: object) -> Any:
    return relax.const(np.array(values, "int64"), "int64")


def module(write: Written, index: Any) -> Any:
    builder = relax.BlockBuilder()
    data = relax.Var("data", tensor_class()((4, 3), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            found = builder.emit_output(named(write(builder, data, index), ("a_node",)))
        builder.emit_func_output(found)
    return builder.get()


def from_the_end(builder: Any, index: Any, count: int) -> Any:
    """As importers of ONNX write it."""
    added = builder.emit(op.add(index, constant(count)))
    return builder.emit(op.where(builder.emit(op.less(index, constant(0))), added, index))


def outer_sum(builder: Any, index: Any, other: object) -> Any:
    """As relative positions are made: of places along two axes."""
    return builder.emit(op.add(builder.emit(op.expand_dims(index, 1)), constant(other)))


def transposed_sum(builder: Any, index: Any, other: object) -> Any:
    return builder.emit(op.add(builder.emit(op.permute_dims(index)), constant(other)))


def updates(*shape: int) -> Any:
    return relax.const(np.ones(shape, "float32"))


CASES: dict[str, tuple[Written, Any, int | None]] = {
    "take": (lambda _, x, i: op.take(x, i, axis=0), [0, 4], 4),
    "take counted from the end": (lambda b, x, i: op.take(x, from_the_end(b, i, 3), axis=-1), [-3, -4], -4),
    "places for more of a batch": (lambda _, x, i: op.gather_nd(x, i, 1), [[0], [1], [2], [0], [1]], 4),
    "take of the last": (lambda _, x, i: op.take(x, i, axis=1), [2, -3], None),
    "take of what is clipped": (lambda _, x, i: op.take(x, i, axis=1, mode="clip"), [9], None),
    "take of a sum": (lambda b, x, i: op.take(x, b.emit(op.add(i, constant(2))), axis=0), [1, 2], 4),
    "take of a range": (lambda b, x, _: op.take(x, b.emit(op.arange(0, 6, 1, "int64")), axis=0), [], 4),
    "take of an outer sum": (lambda b, x, i: op.take(x, outer_sum(b, i, [[0, 0, 1]]), axis=0), [1, 3], 4),
    "take of a transposed index": (
        lambda b, x, i: op.take(x, transposed_sum(b, i, [[0], [0], [3]]), axis=0),
        [[0, 3, 1]],
        4,
    ),
    "gather_elements": (lambda _, x, i: op.gather_elements(x, i, axis=1), [[0, 3, 1]], 3),
    "gather_nd": (lambda _, x, i: op.gather_nd(x, i), [[3, 2], [2, 3]], 3),
    "gather_nd of a batch": (lambda _, x, i: op.gather_nd(x, i, 1), [[2], [3], [0], [0]], 3),
    "scatter_elements": (lambda _, x, i: op.scatter_elements(x, i, updates(1, 3)), [[0, -5, 0]], -5),
    "scatter_nd": (lambda _, x, i: op.scatter_nd(x, i, updates(2, 3)), [[3], [4]], 4),
    "scatter_nd of the last": (lambda _, x, i: op.scatter_nd(x, i, updates(2)), [[3, 2], [0, 0]], None),
    "index_tensor": (lambda _, x, i: op.index_tensor(x, [constant([0]), i]), [3], 3),
    "no index": (lambda _, x, i: op.take(x, i, axis=0), [], None),
}


@pytest.mark.parametrize(("write", "values", "wrong"), CASES.values(), ids=CASES)
def test_a_constant_index_of_no_row_is_refused_by_node_and_number(
    write: Written, values: Any, wrong: int | None
) -> None:
    mod = module(write, constant(values))
    if wrong is None:
        check_constant_indices(mod)
        return
    with pytest.raises(IndexOfNoRowError, match=r"node a_node .* constant index names none of [34] rows") as caught:
        check_constant_indices(mod)
    assert (caught.value.value, caught.value.nodes) == (wrong, ("a_node",))

"""Concatenations of many tensors that begin as earlier ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tvm
from tvm import relax

from tunehub.graph.long_concats import shorter_concats
from tunehub.tir.nodes import calls_in, operator_of, static_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule

pytestmark = pytest.mark.fast


def dense_block(layers: int, *, axis: int = 1, first: Callable[[int], int] = lambda _: 0) -> IRModule:
    """A block in which each layer joins what all layers before it gave, from the ``first`` on, and gives a tensor of
    one more channel than the last."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{at}", relax.TensorType((1, at + 1, 3), "float32")) for at in range(layers + 1)]
    with builder.function("main", inputs):
        with builder.dataflow():
            given, outputs = [inputs[0]], []
            for at in range(layers):
                given.append(builder.emit(relax.op.nn.relu(inputs[at + 1])))
                joined = builder.emit(relax.op.concat(given[first(at) :], axis=axis)) if axis == 1 else None
                outputs.append(builder.emit(relax.op.exp(joined)))
            found = builder.emit_output(relax.Tuple(outputs))
        builder.emit_func_output(found)
    return builder.get()


def concats(mod: IRModule) -> list[Call]:
    return [call for call in calls_in(mod) if operator_of(call) == "relax.concat"]


def joined_channels(mod: IRModule) -> list[list[int]]:
    """The channels of the tensors that each concatenation joins, what is joined before taken apart."""
    values = {each.var: each.value for block in mod["main"].body.blocks for each in block.bindings}

    def parts(value: Expr) -> list[int]:
        known = values.get(value)
        if operator_of(known) == "relax.concat":
            return [channels for each in known.args[0].fields for channels in parts(each)]
        return [static_shape(value)[1]]

    return [[c for part in call.args[0].fields for c in parts(part)] for call in concats(mod)]


def lengths(mod: IRModule) -> list[int]:
    return [len(call.args[0].fields) for call in concats(mod)]


def test_long_concatenations_take_earlier_ones_for_what_they_begin_with() -> None:
    block = dense_block(40)
    found = shorter_concats(block)
    assert max(lengths(found)) == 12
    assert lengths(found)[:14] == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 2, 3, 4]
    assert joined_channels(found) == joined_channels(block)


def test_blocks_that_packages_know_stay_as_they_are() -> None:
    block = dense_block(24)
    assert shorter_concats(block).same_as(block)


def test_only_tensors_in_the_same_order_are_the_same_beginning() -> None:
    block = dense_block(40, first=lambda at: at % 2)
    found = shorter_concats(block)
    assert joined_channels(found) == joined_channels(block)
    assert max(lengths(found)) <= 13
    alone = dense_block(40, first=lambda at: at)
    assert shorter_concats(alone).same_as(alone)


def test_what_is_joined_along_another_axis_is_no_beginning() -> None:
    inputs = [relax.Var(f"x{at}", relax.TensorType((3, 3), "float32")) for at in range(30)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            rows = builder.emit(relax.op.concat(inputs[:20], axis=0))
            columns = builder.emit(relax.op.concat(inputs, axis=1))
            found = builder.emit_output(relax.Tuple([rows, columns]))
        builder.emit_func_output(found)
    block = builder.get()
    assert shorter_concats(block).same_as(block)
    assert isinstance(block, tvm.IRModule)

"""Constants found with numpy are those that TVM's FoldConstant finds, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.preparing import prepare
from tunehub.graph import constants
from tunehub.graph.constants import evaluate_constants, evaluated
from tunehub.tir.nodes import constant_array, is_constant

pytestmark = pytest.mark.slow

op = relax.op
RNG = np.random.default_rng(0)
FLOATS = RNG.uniform(-3, 3, (4, 6)).astype("float32")
SPECIAL = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]] * 4, "float32")
WHOLE = RNG.integers(-9, 9, (4, 6)).astype("int32")
PLACES = np.array([2, 0, 3, -1], "int64")


def _const(array: Any) -> Any:
    return relax.const(array, str(array.dtype))


CHOICE = (_const(FLOATS), _const(SPECIAL))
BYTES = (_const(WHOLE.astype("int8")), _const((WHOLE * 14).astype("int8")))


def _mask(b: Any) -> Any:
    """What ``mask[1:3, 2:] = 5`` becomes when PyTorch exports it."""
    zeros = b.emit(op.zeros((4, 6), "float32"))
    rows = b.emit(op.strided_slice(zeros, [0], [1], [3]))
    part = b.emit(op.strided_slice(rows, [1], [2], [6]))
    filled = b.emit(op.full_like(part, relax.const(5, "float32")))
    inner = b.emit(op.slice_scatter(rows, filled, *map(relax.prim_value, (2, 6, 1)), axis=1))
    return op.slice_scatter(zeros, inner, *map(relax.prim_value, (1, 3, 1)), axis=0)


KNOWN: dict[str, Callable[[Any], Any]] = {
    "a mask": _mask,
    "numbers in order": lambda b: op.arange(0, 24, 2, "int64"),
    "another shape": lambda b: op.reshape(_const(FLOATS), (3, 8)),
    "other axes": lambda b: op.permute_dims(_const(WHOLE), [1, 0]),
    "parts in a row": lambda b: op.concat([_const(FLOATS), _const(SPECIAL)], axis=1),
    "every other one": lambda b: op.strided_slice(_const(FLOATS), [0, 1], [0, 1], [4, 6], [2, 3]),
    "backwards": lambda b: op.flip(_const(FLOATS), 1),
    "a border": lambda b: op.nn.pad(_const(FLOATS), [1, 2, 0, 3], "constant", 7.0),
    "a choice": lambda b: op.where(b.emit(op.equal(_const(WHOLE), relax.const(3, "int32"))), *CHOICE),
    "unequal": lambda b: op.not_equal(_const(SPECIAL[:, :4]), relax.const(0, "float32")),
    "smaller": lambda b: op.less(_const(SPECIAL), _const(FLOATS)),
    "stretched": lambda b: op.broadcast_to(_const(FLOATS[:1]), (5, 6)),
    "taken": lambda b: op.take(_const(FLOATS), _const(np.array([3, 0, 0], "int64")), axis=0),
    "whole numbers": lambda b: op.add(_const(WHOLE), b.emit(op.floor_divide(_const(WHOLE), relax.const(4, "int32")))),
    "whole numbers that overflow": lambda b: op.multiply(*BYTES),
    "quotients and remainders of C": lambda b: op.mod(_const(WHOLE), relax.const(-4, "int32")),
    "one rounding": lambda b: op.multiply(_const(FLOATS), _const(SPECIAL)),
    "a quotient": lambda b: op.divide(_const(FLOATS), _const(FLOATS[:1])),
    "a difference": lambda b: op.subtract(_const(FLOATS), _const(SPECIAL)),
    "another type": lambda b: op.astype(b.emit(op.astype(_const(FLOATS), "int32")), "float64"),
    "half floats that move": lambda b: op.permute_dims(_const(FLOATS.astype("float16")), [1, 0]),
    "one number": lambda b: op.add(relax.const(np.float32(0.1)), relax.const(np.float32(0.2))),
}  # fmt: skip
LEFT: dict[str, Callable[[Any], Any]] = {
    "functions": lambda b: op.exp(_const(FLOATS)),
    "sums": lambda b: op.sum(_const(FLOATS), axis=[1]),
    "sums from the start on": lambda b: op.cumsum(_const(FLOATS), axis=1),
    "largest ones, of which NaN may be one": lambda b: op.maximum(_const(FLOATS), _const(SPECIAL)),
    "whole numbers of what is too large": lambda b: op.astype(_const(SPECIAL), "int32"),
    "half floats that are added": lambda b: op.add(*[_const(FLOATS.astype("float16"))] * 2),
    "what lies before the tensor": lambda b: op.take(_const(FLOATS), _const(PLACES), axis=0),
    "NaN, which TVM finds unequal to nothing": lambda b: op.not_equal(_const(SPECIAL), relax.const(0, "float32")),
    "a remainder of zero": lambda b: op.floor_mod(_const(WHOLE), _const(WHOLE * 0)),
}


def _legal(nets: Any, make: Callable[[Any], Any]) -> Any:
    mod = nets.build(lambda b, _: b.emit(make(b)), (1,))
    return relax.transform.LegalizeOps()(mod)


def _calls(mod: Any) -> int:
    found = []
    relax.analysis.post_order_visit(mod["main"], lambda node: found.append(isinstance(node, relax.Call)))
    return sum(found)


def _constants(mod: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    found = []

    def visit(node: Any) -> None:
        if is_constant(node):
            array = constant_array(node)
            found.append((str(array.dtype), array.shape, array.tobytes()))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.few(8)
def test_what_tvm_would_build_kernels_for_is_found_without_code(nets: Any, name: str) -> None:
    mod = _legal(nets, KNOWN[name])
    known = evaluated(mod)
    assert _calls(known) == 0
    folded, expected = (relax.transform.FoldConstant()(each) for each in (known, mod))
    assert _constants(folded) == _constants(expected) and len(_constants(folded)) == 1


@pytest.mark.parametrize("name", LEFT)
def test_what_could_differ_is_left_to_tvm(nets: Any, name: str) -> None:
    mod = _legal(nets, LEFT[name])
    assert _calls(evaluated(mod)) > 0


def test_what_numpy_does_not_know_is_run_as_tvm_does_by_kernels_that_are_built_once(
    nets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(b: Any) -> Any:
        moved = b.emit(op.permute_dims(b.emit(op.exp(b.emit(op.exp(_const(FLOATS))))), [1, 0]))
        return op.sum(b.emit(op.exp(b.emit(op.permute_dims(moved, [1, 0])))), axis=[1])

    mod, built, build = _legal(nets, make), [], tvm.tirx.build
    expected = _constants(relax.transform.FoldConstant()(mod))
    monkeypatch.setattr(tvm.tirx, "build", lambda *each, **how: (built.append(each), build(*each, **how))[1])
    run = evaluate_constants(mod)
    assert _calls(run) == 0 and len(built) == 2
    assert _constants(relax.transform.FoldConstant()(run)) == expected


def test_two_roundings_are_left_where_code_could_do_them_at_once(nets: Any) -> None:
    def fused(b: Any) -> Any:
        def compute(x: Any) -> Any:
            return tvm.te.compute(x.shape, lambda i, j: x[i, j] * x[i, j] + x[i, j])

        return b.call_te(compute, _const(FLOATS))

    assert _calls(evaluated(_legal(nets, fused))) == 1


def test_what_depends_on_an_input_stays(nets: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(op.add(b.emit(op.multiply(x, x)), b.emit(op.permute_dims(_const(FLOATS), [1, 0]))))

    mod = relax.transform.LegalizeOps()(nets.build(make, (6, 4)))
    assert (_calls(mod), _calls(evaluated(mod))) == (3, 2)


def test_large_results_are_left_to_kernels(nets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.tir.kernel_values.MOST_ELEMENTS", 23)
    assert _calls(evaluated(_legal(nets, KNOWN["other axes"]))) == 1


def test_a_module_without_such_calls_is_the_same_module(nets: Any) -> None:
    mod = relax.transform.LegalizeOps()(nets.conv())
    assert evaluated(mod).same_as(mod)


def test_a_module_is_prepared_as_without(nets: Any, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(op.nn.relu(b.emit(op.add(x, b.emit(_mask(b))))))

    mod = nets.build(make, (4, 6))
    found = prepare(mod, target)
    monkeypatch.setattr(constants, "_known", lambda *_: {})
    tvm.ir.assert_structural_equal(found, prepare(mod, target))

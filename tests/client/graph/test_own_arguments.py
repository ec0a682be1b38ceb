"""Kernels check what comes from outside a module; what the module makes itself they need not check."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.graph.own_arguments import mark_own_arguments
from tunehub.tir.argument_checks import HAS_OWN_ARGUMENTS

pytestmark = pytest.mark.slow

Binding = Callable[[Any, Any], Any]


def marked(mod: Any) -> set[str]:
    """The PrimFuncs that are marked, by the operator that they are for."""
    functions = mark_own_arguments(mod).functions.items()
    return {str(v.name_hint).removeprefix("tir_") for v, f in functions if f.attrs and HAS_OWN_ARGUMENTS in f.attrs}


def chain(nets: Any, *operators: Binding, shape: tuple[int, ...] = (4, 6)) -> Any:
    """A network of operators, each a kernel of its own, each after the other."""

    def make(b: Any, x: Any) -> Any:
        for operator in operators:
            x = b.emit(operator(b, x))
        return x

    return relax.transform.LegalizeOps()(nets.build(make, shape))


def softmax(_b: Any, x: Any) -> Any:
    return relax.op.nn.softmax(x)


def log_softmax(_b: Any, x: Any) -> Any:
    return relax.op.nn.log_softmax(x)


def tanh(_b: Any, x: Any) -> Any:
    return relax.op.tanh(x)


def exp(_b: Any, x: Any) -> Any:
    return relax.op.exp(x)


def flat(_b: Any, x: Any) -> Any:
    return relax.op.reshape(x, (24,))


def plus(values: Any) -> Binding:
    return lambda _b, x: relax.op.add(x, relax.const(values))


def test_who_reads_only_what_other_kernels_wrote_is_marked(nets: Any) -> None:
    assert marked(chain(nets, softmax, tanh, flat, exp)) == {"tanh", "reshape", "exp"}


def test_a_view_of_an_argument_is_from_outside(nets: Any) -> None:
    assert marked(chain(nets, flat, tanh, exp)) == {"exp"}


def test_a_kernel_that_reads_an_argument_once_is_not_marked(nets: Any) -> None:
    assert marked(chain(nets, tanh, tanh)) == set()


def test_parameters_that_are_not_bound_are_from_outside(nets: Any) -> None:
    def make(b: Any, x: Any, weight: Any) -> Any:
        return b.emit(relax.op.multiply(b.emit(relax.op.tanh(x)), weight))

    assert marked(relax.transform.LegalizeOps()(nets.build(make, (4, 6), (4, 6)))) == set()


def test_results_of_packed_functions_are_from_outside(nets: Any) -> None:
    def packed(_b: Any, x: Any) -> Any:
        kind = x.ty if hasattr(x, "ty") else x.struct_info
        return relax.op.call_dps_packed("test.anything", (x,), kind)

    assert marked(chain(nets, softmax, packed, tanh, exp)) == {"exp"}


def test_constants_are_the_modules_own(nets: Any) -> None:
    assert marked(chain(nets, softmax, plus(np.ones((4, 6), "float32")))) == {"add"}


@pytest.mark.parametrize("values", [np.ones((6, 4), "float32").T, np.ones(25, "float32")[1:]], ids=["gaps", "odd"])
def test_tvm_takes_no_constant_that_kernels_cannot_read(values: Any) -> None:
    with pytest.raises(RuntimeError):
        tvm.runtime.from_dlpack(values)


def kernel(mod: Any, name: str) -> tuple[Any, Any]:
    """The PrimFunc for an operator, with its variable."""
    (variable,) = [v for v in mod.get_global_vars() if v.name_hint.endswith(name)]
    return variable, mod[variable]


def test_functions_with_assertions_of_their_own_are_left(nets: Any) -> None:
    mod = chain(nets, softmax, tanh)
    variable, function = kernel(mod, "tanh")
    true, message = tvm.tirx.const(True, "bool"), tvm.ir.StringImm("no")
    asserted = tvm.tirx.SeqStmt([tvm.tirx.AssertStmt(true, message, [message]), function.body])
    mod.update_func(variable, function.with_body(asserted))
    assert marked(mod) == set()


def test_kernels_of_open_shapes_are_marked(nets: Any) -> None:
    batch, rows = tvm.tirx.Var("batch", "int64"), tvm.tirx.Var("rows", "int64")
    assert marked(chain(nets, softmax, tanh, exp, shape=(batch, rows, 6))) == {"tanh", "exp"}


def test_kernels_whose_open_extents_are_expressions_are_marked(nets: Any) -> None:
    def twice(_b: Any, x: Any) -> Any:
        return relax.op.concat([x, x], axis=0)

    mod = chain(nets, softmax, twice, tanh, shape=(tvm.tirx.Var("n", "int64"), 6))
    assert len(kernel(mod, "tanh")[1].params) == 3  # its rows are 2n, so that n is a parameter of its own
    assert marked(mod) == {"concatenate", "tanh"}


@pytest.mark.parametrize("own", [(5, 6), (4, 6, 1)])
@pytest.mark.parametrize("rows", [4, None])
def test_a_kernel_that_is_called_with_other_shapes_than_its_own_is_not_marked(
    nets: Any, rows: int | None, own: tuple[int, ...]
) -> None:
    mod = chain(nets, softmax, tanh, exp, shape=(rows or tvm.tirx.Var("n", "int64"), 6))
    mod.update_func(kernel(mod, "tanh")[0], kernel(chain(nets, tanh, shape=own), "tanh")[1])
    assert marked(mod) == {"exp"}


def test_a_kernel_whose_open_extents_a_call_makes_two_different_ones_is_not_marked(nets: Any) -> None:
    n, m = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")

    def make(b: Any, x: Any, y: Any) -> Any:
        x, y = b.emit(relax.op.nn.softmax(x)), b.emit(relax.op.nn.softmax(y))
        return b.emit(relax.op.add(x, b.emit(relax.op.tanh(y))))

    mod = relax.transform.LegalizeOps()(nets.build(make, (n, 6), (1, 6)))
    same = relax.transform.LegalizeOps()(nets.build(lambda b, x, y: b.emit(relax.op.add(x, y)), (m, 6), (m, 6)))
    assert marked(mod) == {"tanh", "add"}
    mod.update_func(kernel(mod, "add")[0], kernel(same, "add")[1])  # for n rows and n rows, not for n and 1
    assert marked(mod) == {"tanh"}


def test_a_kernel_that_a_branch_calls_is_not_marked(nets: Any) -> None:
    mod = relax.transform.ToNonDataflow()(chain(nets, softmax, tanh, exp))
    main, condition = mod["main"], nets.var("condition", (), "bool")
    first, second, third = main.body.blocks[0].bindings[:3]

    def only(binding: Any) -> Any:
        result = relax.Var("result", kind(binding.var))
        return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, binding.value)])], result)

    branch = relax.VarBinding(second.var, relax.If(condition, only(second), only(second)))
    body = relax.SeqExpr([relax.BindingBlock([first, branch, third])], third.var)
    mod["main"] = relax.Function([*main.params, condition], body, kind(third.var))
    assert marked(mod) == set()  # what exp reads may be anything that a branch gives


def kind(variable: Any) -> Any:
    """The type of a variable."""
    return variable.ty if hasattr(variable, "ty") else variable.struct_info


@pytest.mark.parametrize(("is_open", "last"), [(False, exp), (True, log_softmax)])
def test_code_of_marked_kernels_has_no_checks_and_the_network_is_right(
    nets: Any, target: Any, make_hub: Any, run: Any, is_open: bool, last: Binding
) -> None:
    shape = (tvm.tirx.Var("n", "int64") if is_open else 4, 6)
    mod, data = chain(nets, softmax, tanh, last, shape=shape), nets.array(4, 6)
    found = compile_module(mod, target, make_hub())
    kernels = [(name, body) for name, body in code(found) if "shape_func" not in name]  # which the VM calls with shapes
    failures = {name: body.count("label %assert_fail") for name, body in kernels}
    first, *others = sorted(failures.values(), reverse=True)
    assert first > 20
    assert others
    assert set(others) == {0}
    np.testing.assert_allclose(run(found, data), run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    with pytest.raises(Exception, match="shape"):
        run(found, nets.array(4, 5))
    assert not is_open or run(found, nets.array(9, 6)).shape == (9, 6)


def code(executable: Any) -> list[tuple[str, str]]:
    """LLVM's code of the functions that the virtual machine calls, by name."""
    (library,) = getattr(executable.mod, "imports", None) or executable.mod.imported_modules
    return re.findall(r"^define .*?@__tvm_ffi_(\w+)\((.*?)^}", library.inspect_source("ll"), re.M | re.S)

"""Kernels check what comes from outside a module; what the module makes itself they need not check."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.relax.own_arguments import HAS_OWN_ARGUMENTS, mark_own_arguments
from tunehub.relax.pipeline import compile_module

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


def test_functions_with_assertions_of_their_own_or_of_unknown_shapes_are_left(nets: Any) -> None:
    mod = chain(nets, softmax, tanh)
    (variable,) = [v for v in mod.get_global_vars() if v.name_hint.endswith("tanh")]
    function = mod[variable]
    true, message = tvm.tirx.const(True, "bool"), tvm.ir.StringImm("no")
    asserted = tvm.tirx.SeqStmt([tvm.tirx.AssertStmt(true, message, [message]), function.body])
    mod.update_func(variable, function.with_body(asserted))
    assert marked(mod) == set()
    n = tvm.tirx.Var("n", "int64")
    assert marked(chain(nets, softmax, tanh, shape=(n, 6))) == set()


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


def test_code_of_marked_kernels_has_no_checks_and_the_network_is_right(
    nets: Any, target: Any, make_hub: Any, run: Any
) -> None:
    mod, data = chain(nets, softmax, tanh, exp), nets.array(4, 6)
    found = compile_module(mod, target, make_hub())
    failures = {name: body.count("label %assert_fail") for name, body in code(found)}
    first, *others = sorted(failures.values(), reverse=True)
    assert first > 20
    assert others
    assert set(others) == {0}
    np.testing.assert_allclose(run(found, data), run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    with pytest.raises(Exception, match="shape"):
        run(found, nets.array(4, 5))


def code(executable: Any) -> list[tuple[str, str]]:
    """LLVM's code of the functions that the virtual machine calls, by name."""
    (library,) = getattr(executable.mod, "imports", None) or executable.mod.imported_modules
    return re.findall(r"^define .*?@__tvm_ffi_(\w+)\((.*?)^}", library.inspect_source("ll"), re.M | re.S)

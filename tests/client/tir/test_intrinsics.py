"""TVM's tensor intrinsics are the same ones, whichever way its parser gets the stack."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from tunehub.tir import intrinsics

pytestmark = pytest.mark.slow

PARSER = sys.modules["tvm.tirx.script.parser.entry"]


def in_a_function() -> Any:
    width = 16

    @T.prim_func
    def double(a: T.Buffer((width,), "float32"), b: T.Buffer((width,), "float32")) -> None:
        for i in range(width):
            b[i] = a[i] * T.float32(2)

    return double


def in_a_class() -> Any:
    @I.ir_module
    class Module:
        @T.prim_func
        def main(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
            for i in range(8):
                b[i] = a[i] + T.float32(1)

    return Module


def in_a_macro() -> Any:
    @T.macro
    def double(a: Any, b: Any, at: Any) -> None:
        b[at] = a[at] * T.float32(2)

    @T.prim_func
    def function(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
        for i in range(8):
            double(a, b, i)

    return function


@pytest.mark.parametrize("script", [in_a_function, in_a_class, in_a_macro])
def test_the_parser_reads_the_same(script: Callable[[], Any]) -> None:
    plain = script()
    with intrinsics.light_parser():
        assert PARSER.__dict__["inspect"] is not inspect
        light = script()
    tvm.ir.assert_structural_equal(plain, light)


def test_the_parser_has_its_own_stack_back_after_a_failure() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_device"):
        intrinsics.import_intrinsics("tvm.no_such_device")
    assert PARSER.__dict__["inspect"] is inspect

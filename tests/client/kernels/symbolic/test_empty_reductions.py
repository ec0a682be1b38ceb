"""What is reduced along an open axis without elements is what a reduction begins with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax, tirx
from tvm.relax import op

import tunehub
from tunehub.tir.nodes import tensor_class

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]

CASES = {  # what is computed, shapes, and what each step adds where all elements are 2
    "a batched product": (lambda x, y: op.matmul(x, y), ("b", 4, "k"), ("b", "k", 3), 4),
    "einsum": (lambda x, y: op.einsum(relax.Tuple([x, y]), "abk,bkc->abc"), (2, "b", "k"), ("b", "k", 3), 4),
    "a product": (lambda x, y: op.matmul(x, y), (4, "k"), ("k", 5), 4),
    "a sum": (lambda x, _y: op.sum(x, axis=[1]), (4, "k", 3), (1,), 2),
    "a large sum": (lambda x, _y: op.sum(x, axis=[1]), (64, "k", 300), (1,), 2),
}


def _compiled(case: str) -> Any:
    compute, *shapes, _ = CASES[case]
    symbols = {name: tirx.Var(name, "int64") for name in "bk"}
    given = [
        relax.Var(name, tensor_class()([symbols.get(each, each) for each in shape], "float32"))
        for name, shape in zip("xy", shapes, strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(compute(*given)))
        builder.emit_func_output(result)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    hub = tunehub.open_hub(target, offline=True)
    return relax.VirtualMachine(tunehub.compile(builder.get(), target, hub=hub), tvm.cpu())["main"], shapes


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_summed_to_zero(case: str) -> None:
    main, shapes = _compiled(case)
    for size in (0, 3, 0):
        known = {"b": 2, "k": size}
        arrays = [np.full([known.get(each, each) for each in shape], 2, "float32") for shape in shapes]
        found = main(*map(tvm.runtime.tensor, arrays)).numpy()
        assert found.size
        np.testing.assert_array_equal(found, np.full(found.shape, size * CASES[case][-1], "float32"))

"""What is not in TVM's outermost block is left to others."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

from tunehub.kernels.cuda.rows import bytes as byte_vectors
from tunehub.kernels.cuda.rows import columns, elementwise, norms
from tunehub.tir.nodes import main_module, tensor_class

from ..scheduled import H200

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rule", [byte_vectors, columns, elementwise, norms], ids=lambda rule: str(rule.NAME))
def test_a_scatter_matches_no_rule(rule: Any) -> None:
    x, i, u = (
        relax.Var(name, tensor_class()((2, 4), dtype))
        for name, dtype in (("x", "float32"), ("i", "int64"), ("u", "float32"))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, i, u]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.scatter_elements(x, i, u, axis=1))
        builder.emit_func_output(result)
    functions = relax.transform.LegalizeOps()(builder.get()).functions.values()
    (scatter,) = [each for each in functions if isinstance(each, tvm.tirx.PrimFunc)]
    assert rule.match(main_module(scatter), H200) is None

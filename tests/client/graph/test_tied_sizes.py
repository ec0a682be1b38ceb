"""Open dimensions of two names that have to agree: other sizes are errors of the compiled model, on CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tunehub.compiler.pipeline import compile_module
from tunehub.graph.checked_indices import index_limits
from tunehub.tir.nodes import tensor_class

pytestmark = pytest.mark.slow

op = relax.op
N, M = (tirx.Var(name, "int64") for name in "nm")
Shape = tuple[Any, ...]


def zeros(b: Any, like: Any) -> Any:
    return b.emit(op.astype(b.emit(op.multiply(like, relax.const(np.float32(0)))), "int64"))


# How it is written; shapes of the inputs; sizes that fit, and those that do not.
CASES: dict[str, tuple[Callable[[Any, Any, Any], Any], Shape, Shape, Any, Any]] = {
    "product": (lambda _, x, y: op.matmul(x, y), (4, N), (M, 8), [(5, 5), (0, 0)], [(5, 3), (3, 5)]),
    "product of joined ones": (
        lambda b, x, y: op.matmul(x, b.emit(op.concat([y, y], 0))), (4, N), (M, 8), [(6, 3)], [(6, 2), (5, 3), (6, 4)],
    ),
    "convolution": (lambda _, x, y: op.nn.conv1d(x, y), (1, N, 6), (3, M, 1), [(4, 4)], [(4, 2), (2, 4)]),
    "elements": (lambda b, x, y: op.gather_elements(x, zeros(b, y), 1), (N, 4), (M, 2), [(5, 5), (5, 2)], [(5, 6)]),
    "places of a batch": (lambda b, x, y: op.gather_nd(x, zeros(b, y), 1), (N, 4), (M, 1), [(5, 5)], [(1, 5), (5, 1)]),
    "scattered elements": (
        lambda b, x, y: op.scatter_elements(x, zeros(b, y), y, 1, "add"), (N, 4), (M, 2), [(5, 5), (5, 2)], [(5, 6)],
    ),
}  # fmt: skip


def written(write: Callable[[Any, Any, Any], Any], *shapes: Shape) -> Any:
    builder = relax.BlockBuilder()
    inputs = [relax.Var(name, tensor_class()(shape, "float32")) for name, shape in zip("xy", shapes, strict=True)]
    with builder.function("main", inputs):
        with builder.dataflow():
            found = builder.emit_output(write(builder, *inputs))
        builder.emit_func_output(found)
    return builder.get()


@pytest.mark.parametrize("case", CASES)
def test_sizes_that_do_not_agree_are_an_error(case: str, target: Any, make_hub: Any) -> None:
    write, *shapes, right, wrong = CASES[case]
    mod = written(write, *shapes)
    ours, theirs = compile_module(mod, target, make_hub(layout="auto")), tvm.compile(mod, target)
    rng = np.random.default_rng(0)
    for n, m in (*right, *wrong):
        sizes = {N: n, M: m}
        extents = [[sizes.get(each, each) for each in shape] for shape in shapes]
        given = [tvm.runtime.tensor(rng.standard_normal(each).astype("float32")) for each in extents]
        if (n, m) in wrong:
            with pytest.raises(Exception, match="mismatch"):
                relax.VirtualMachine(ours, tvm.cpu())["main"](*given)
            continue
        found, expected = (relax.VirtualMachine(each, tvm.cpu())["main"](*given).numpy() for each in (ours, theirs))
        if n:  # TVM writes no sum of nothing
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_sizes_that_are_known_to_agree_are_not_looked_at() -> None:
    assert not index_limits(written(lambda _, x, y: op.matmul(x, y), (4, N), (N, 8)))
    assert not index_limits(written(lambda _, x, y: op.matmul(x, y), (4, 3), (3, 8)))
    assert not index_limits(written(lambda b, x, y: op.gather_elements(x, zeros(b, y), 1), (N, 4), (N, 9)))
    ties = index_limits(written(lambda _, x, y: op.matmul(x, y), (4, N), (M, 8)), values=False)["main"].ties
    assert [name for name, _ in ties] == ["m", "m"]

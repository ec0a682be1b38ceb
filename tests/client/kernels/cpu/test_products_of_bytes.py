"""Products of bytes by vectors of 16 outputs: which tiles they have, what they ask memory for, and where sums are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import te  # noqa: E402

from tunehub.compiler.pipeline import activate  # noqa: E402
from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.te import grouped  # noqa: E402
from tunehub.tir.lowering import IS_SCHEDULED  # noqa: E402

from ....cpu_features import AVX512_VNNI, cpu, needs, needs_tvm  # noqa: E402

pytestmark = [pytest.mark.slow, needs_tvm]
DEPTH, OUTPUTS = 64, 96


def product(rows: int) -> Any:
    data = te.placeholder((1, rows, DEPTH), "uint8", name="data")
    weight = te.placeholder((OUTPUTS // 16, DEPTH // 4, 16, 4), "int8", name="weight")
    result = grouped.dense_grouped(data, weight, outputs=OUTPUTS)
    return tvm.IRModule({"main": te.create_prim_func([data, weight, result]).with_attr("global_symbol", "main")})


def scheduled(rows: int, **fields: Any) -> tuple[Any, Any]:
    """The knobs that a product has by default but for ``fields``, and its schedule with them."""
    mod = product(rows)
    match = templates.find(mod)
    assert match is not None
    default = match.template.default_knobs(match.workload, templates.machine_of(cpu(AVX512_VNNI)))
    knobs = type(default)(**{**{name: getattr(default, name) for name in default.__struct_fields__}, **fields})
    return knobs, match.template.apply(mod, match.workload, knobs).mod["main"]


def test_tiles_of_many_rows_have_24_sums_and_a_task_all_rows() -> None:
    knobs, _ = scheduled(128)
    assert (knobs.columns, knobs.blocks, knobs.row) == (8, 3, 128)


def test_the_next_panel_is_asked_for_where_a_task_has_all_rows_and_tiles_enough() -> None:
    asked = [scheduled(*at, **fields)[1].script().count("prefetch") for at, fields in (
        ((128,), {}), ((128,), {"row": 64}), ((16,), {"columns": 8, "blocks": 3}), ((128,), {"order": "rows"}),
    )]  # fmt: skip
    assert asked == [1, 0, 0, 0]


def built(rows: int, make_hub: Any) -> Any:
    function = scheduled(rows)[1].with_attr(IS_SCHEDULED, True).with_attr("tirx.noalias", True)
    with activate(make_hub()):
        return tvm.compile(tvm.IRModule({"main": function}), cpu(AVX512_VNNI))


def test_sums_are_in_registers_alone_while_a_tile_is_multiplied(make_hub: Any) -> None:
    code = built(128, make_hub).mod.inspect_source("asm")
    assert "TVMBackendAllocWorkspace" not in code
    loops = [each.split("\tjne\t")[0] for each in code.split("\n.LBB") if "vpdpbusd" in each]
    assert loops
    for loop in loops:
        assert loop.count("vpdpbusd") == 24 and "prefetcht1" in loop
        assert not re.search(r"vmov\w+\t%zmm\d+, .*\(", loop)


@needs(AVX512_VNNI)
@pytest.mark.parametrize("rows", [130, 24])
def test_products_with_rows_left_over_are_exact(rows: int, make_hub: Any) -> None:
    rng = np.random.default_rng(rows)
    data = rng.integers(0, 256, (1, rows, DEPTH)).astype("uint8")
    weight = rng.integers(-128, 128, (DEPTH, OUTPUTS)).astype("int8")
    packed = weight.reshape(DEPTH // 4, 4, OUTPUTS // 16, 16).transpose(2, 0, 3, 1).copy()
    result = tvm.runtime.tensor(np.zeros((1, rows, OUTPUTS), "int32"))
    built(rows, make_hub)(tvm.runtime.tensor(data), tvm.runtime.tensor(packed), result)
    np.testing.assert_array_equal(result.numpy()[0], data[0].astype("int32") @ weight.astype("int32"))

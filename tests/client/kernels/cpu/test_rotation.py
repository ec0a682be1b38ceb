"""Positions are applied as TVM applies them, with sines and cosines computed once a token, in vectors where they divide
heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.relax.frontend.nn.llm.position_embedding", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, topi
from tvm.relax.frontend.nn.llm.position_embedding import llama_rope_with_position_map

from tunehub.kernels.cpu import rotation
from tunehub.kernels.cpu.rotation import with_shared_angles
from tunehub.tir.lowering import is_scheduled

from ....cpu_features import host

pytestmark = pytest.mark.slow

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
HEADS, KEY_HEADS, DEPTH = 6, 2, 32


def rotated(function: Any, positions: list[int], apply: int) -> list[Any]:
    data = np.random.default_rng(0).standard_normal((len(positions), HEADS + 2 * KEY_HEADS, DEPTH)).astype("float32")
    results = [np.full((len(positions), count, DEPTH), np.nan, "float32") for count in (HEADS, KEY_HEADS, KEY_HEADS)]
    tensors = [tvm.runtime.tensor(each) for each in (data, np.array(positions, "int32"), *results)]
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    tvm.compile(module, target=host(2))["main"](*tensors, apply)
    return [each.numpy() for each in tensors[2:]]


@pytest.mark.few(3)
@pytest.mark.parametrize("scaling", [{}, LLAMA3], ids=["plain", "llama3"])
@pytest.mark.parametrize("apply", [0, 1])
@pytest.mark.parametrize("turned", [DEPTH, DEPTH // 2, DEPTH - 8])
def test_positions_are_applied_as_tvm_does(scaling: dict[str, Any], apply: int, turned: int) -> None:
    function = llama_rope_with_position_map(1e4, 1.0, DEPTH, HEADS, KEY_HEADS, "float32", scaling, turned)
    own = with_shared_angles(function, host(2))
    assert own is not None
    assert is_scheduled(own)
    positions = [0, 1, 77, 4000, 99999, 3]
    for one, other in zip(rotated(own, positions, apply), rotated(function, positions, apply), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lanes", [4, 8, 12])
@pytest.mark.few(1)
def test_vectors_of_every_width_turn_as_one_by_one(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "widest_lanes", lambda _: lanes)  # 12 do not divide a head
    test_positions_are_applied_as_tvm_does({}, 1, DEPTH)


def test_functions_without_shared_angles_stay() -> None:
    x = te.placeholder((4, 3, 8), "float32")
    assert with_shared_angles(te.create_prim_func([x, topi.sin(x)]), host(2)) is None
    assert with_shared_angles(te.create_prim_func([x, topi.nn.relu(x)]), host(2)) is None

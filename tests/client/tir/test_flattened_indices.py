"""Indices that TVM would simplify wrongly: schedules that lead there are refused, and what serves instead is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.compiler.preparing import prepare
from tunehub.kernels.cpu.base import blocks_of
from tunehub.kernels.cpu.fusion import inline
from tunehub.tir.cuda.check import fault
from tunehub.tir.cuda.fault import Fault
from tunehub.tir.flattened_indices import misread_buffer
from tunehub.tir.nodes import main_module
from tunehub.tir.schedules import open_schedule

from ...relax_nets import net

pytestmark = pytest.mark.slow

SIDE, WINDOW, CHANNELS = 64, 8, 18


def shifted_windows() -> Any:
    """Windows are put back into an image, which is shifted by half a window in both directions: Swin's way back."""
    op, count = relax.op, SIDE // WINDOW

    def make(b: Any, windows: Any) -> Any:
        parts = b.emit(op.reshape(windows, (1, count, count, WINDOW, WINDOW, CHANNELS)))
        image = b.emit(op.permute_dims(parts, [0, 1, 3, 2, 4, 5]))
        image = b.emit(op.reshape(image, (1, SIDE, SIDE, CHANNELS)))
        for axis in (1, 2):
            last = b.emit(op.strided_slice(image, [axis], [SIDE - 4], [SIDE]))
            first = b.emit(op.strided_slice(image, [axis], [0], [SIDE - 4]))
            image = b.emit(op.concat([last, first], axis=axis))
        return op.reshape(image, (1, SIDE * SIDE, CHANNELS))

    return net(make, (count * count, WINDOW * WINDOW, CHANNELS))


def expected(windows: Any) -> Any:
    count = SIDE // WINDOW
    parts = windows.reshape(count, count, WINDOW, WINDOW, CHANNELS)
    image = parts.transpose(0, 2, 1, 3, 4).reshape(SIDE, SIDE, CHANNELS)
    return np.roll(image, (4, 4), (0, 1)).reshape(1, SIDE * SIDE, CHANNELS)


def test_a_compile_is_right(make_hub: Any) -> None:
    """On default knobs, which put all steps into one where nothing is wrong with that."""
    windows = np.arange(SIDE * SIDE * CHANNELS, dtype="float32").reshape(-1, WINDOW * WINDOW, CHANNELS)
    hub = make_hub()
    executable = compile_module(shifted_windows(), tvm.target.Target({"kind": "llvm", "num-cores": 2}), hub)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(windows)).numpy()
    np.testing.assert_array_equal(found, expected(windows))
    assert not hub.failures


def test_steps_that_are_all_in_one_are_found() -> None:
    """Blocks for themselves are right."""
    prepared = prepare(shifted_windows(), tvm.target.Target("llvm"))
    functions = [each for each in prepared.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    most = max(functions, key=lambda each: len(blocks_of(main_module(each))))
    assert misread_buffer(most) is None
    module = main_module(most)
    schedule = open_schedule(module)
    for block in blocks_of(module)[:-1]:
        inline(schedule, block.name)
    assert misread_buffer(schedule.mod["main"]) is not None

    (block,) = blocks_of(schedule.mod)
    blocks, threads = schedule.split(schedule.fuse(*schedule.get_loops(schedule.get_sblock(block.name))), [None, 256])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    assert misread_buffer(schedule.mod["main"]) is not None
    found = fault(schedule.mod["main"], tvm.target.Target({"kind": "cuda", "arch": "sm_90"}))
    assert isinstance(found, Fault) and found.rule == "misread"

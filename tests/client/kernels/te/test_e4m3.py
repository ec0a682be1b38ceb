"""Numbers in e4m3 as tensor expressions are those of ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te

from tunehub.kernels.te.e4m3 import LARGEST, byte_of, number_of

pytestmark = pytest.mark.slow


def test_every_half_becomes_the_nearest_byte_and_every_byte_its_number() -> None:
    halves = np.arange(1 << 16, dtype="uint16").view("float16")
    x = te.placeholder(halves.shape, "float16", name="x")
    byte = te.compute(x.shape, lambda i: byte_of(x[i]), name="byte")
    number = te.compute(x.shape, lambda i: number_of(byte[i].astype("uint32"), "float32"), name="number")
    main = tvm.compile(te.create_prim_func([x, byte, number]), target="llvm")["main"]
    arrays = [tvm.runtime.tensor(each) for each in (halves, np.zeros(1 << 16, "uint8"), np.zeros(1 << 16, "float32"))]
    main(*arrays)
    finite = np.isfinite(halves)
    expected = np.clip(halves[finite].astype("float32"), -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(arrays[1].numpy()[finite], expected.view("uint8"))
    np.testing.assert_array_equal(arrays[2].numpy()[finite], expected.astype("float32"))

"""The CUDA code of a warpgroup with packed weights computes the right sums, on a CPU: threads take turns, and tensor
cores are loops."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")
if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

from tunehub.kernels.cuda.low_batch.weights import E4M3, QUANTISED, Format
from tunehub.kernels.cuda.packed_gemm.source import PackedSource
from tunehub.kernels.cuda.packed_gemm.tile import PackedTile

from .....sweeps import covering
from ..low_batch.on_cpu import HEADER, INSTRUCTIONS, run_code

FORMS = [*QUANTISED, E4M3]

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

_OF_WARPGROUPS = re.compile(
    r"// What the kernel for warpgroups asks.*?(?=// What a warpgroup does with a stage)", re.DOTALL
)
_LAID_OUT = """
extern "C" __global__ void __launch_bounds__(128) main_kernel(uint* stages, ushort* scales, float* sums) {
  __shared__ char pool[STEPS * STAGE + 1024];
  const unsigned first = (shared_address(pool) + 1023) / 1024 * 1024;
  for (int i = threadIdx.x; i < STEPS * STAGE / 4; i += 128) store_one(first + 4 * i, stages[i]);
  __syncthreads();
  unsigned state[STATE];
  float own[PARTS * 4 * MT] = {};
  begin(state, scales, FIRST, 0);
  for (int i = 0; i < STEPS; ++i) {
    const unsigned stage = first + i * STAGE;
    products(own, state, stage + 2 * PANEL, stage, scales, FIRST, i);
  }
  finish(own, state);
  for (int i = 0; i < PARTS * 4 * MT; ++i) sums[threadIdx.x * PARTS * 4 * MT + i] = own[i];
}
"""


def _stage(weights: np.ndarray, x: np.ndarray, bits: int) -> np.ndarray:
    """128 of K as they lie in shared memory: two panels of x, and rows of weights, which are bytes."""
    rows = [np.ascontiguousarray(x[:, at : at + 64]).view("uint8") for at in (0, 64)]
    rows = [_swizzled(each) for each in rows] + [_swizzled(weights) if bits == 8 else weights]
    return np.concatenate([each.reshape(-1) for each in rows])


def _swizzled(rows: np.ndarray) -> np.ndarray:
    chunks = rows.reshape(rows.shape[0], 8, 16)
    at = np.arange(rows.shape[0])[:, None]
    return chunks[at, np.arange(8)[None] ^ at % 8]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("whole", "parts", "bfloat", "form"), covering([True, False], [1, 2], [False, True], FORMS, together=2)
)
def test_sums_are_right(form: Format, bfloat: bool, parts: int, whole: bool, tmp_path: Path) -> None:
    columns, depth, first = (64, 256, 0) if whole else (200, 288, 128)  # beyond the end
    rows, bits, kind = 24, form.bits, ml_dtypes.bfloat16 if bfloat else np.float16
    tile = PackedTile(groups=(1, 1), rows=rows, columns=64 * parts, stages=2, bits=bits)
    source = PackedSource(columns=columns, depth=depth, form=replace(form, bfloat=bfloat), tile=tile)
    chance, steps = np.random.default_rng(depth), -(-depth // 128)
    numbers = chance.integers(0, 2**bits, (64 * parts, steps * 128), "uint8")
    numbers = np.where(numbers & 127 == 127, 0, numbers) if form.e4m3 else numbers  # none that is no number
    scales = (chance.random((columns, depth // 32)) * 0.02 + 0.01).astype(kind)
    x = chance.standard_normal((rows, steps * 128)).astype(kind)
    x[:, depth:] = 0
    packed = numbers if bits == 8 else numbers[:, ::2] | numbers[:, 1::2] << 4
    width = 16 * bits
    stages = [_stage(packed[:, i * width : (i + 1) * width], x[:, i * 128 : (i + 1) * 128], bits) for i in range(steps)]
    assert len(stages[0]) == tile.stage_bytes
    place = np.minimum(first + np.arange(64 * parts), columns - 1)
    own = scales[place][:, np.minimum(np.arange(steps * 128) // 32, depth // 32 - 1)]
    scaled = (
        numbers.view("float8_e4m3fn") if form.e4m3 else (numbers.astype(kind) - np.asarray(form.offset, kind)) * own
    )
    wide = scaled.astype("float32")
    expected = wide @ x.T.astype("float32")
    code = _OF_WARPGROUPS.sub("", source.begin().source.replace(INSTRUCTIONS, ""))
    code = code[: code.rindex("}")].replace(
        "CLUSTER = 1", f"STAGE = {tile.stage_bytes}, STATE = {source.state}, FIRST = {first}"
    )
    found = np.zeros((128, parts, rows // 2), "float32")
    arrays = {"stages": np.concatenate(stages).view("uint32"), "scales": scales.view("uint16"), "sums": found}
    run_code(
        HEADER + "#define ushort unsigned short\n",
        code + _LAID_OUT + "}\nusing namespace " + _space(code) + ";\n#endif\n",
        arrays,
        (1, 1),
        tmp_path,
    )
    thread, part, i = np.ix_(np.arange(128), np.arange(parts), np.arange(rows // 2))
    row = part * 64 + thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    np.testing.assert_allclose(
        found, expected[row, i // 4 * 8 + thread % 4 * 2 + i % 2], rtol=1e-4, atol=1e-3 * np.abs(expected).max()
    )


def _space(code: str) -> str:
    found = re.search(r"namespace (\w+)", code)
    assert found is not None
    return found[1]

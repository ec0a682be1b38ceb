"""The CUDA code of a kernel as TVM writes it, run on a CPU: compiled as C++, with threads that take turns."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tunehub.kernels.cuda import low_batch

HEADER = (Path(__file__).parent / "threads.hpp").read_text()
INSTRUCTIONS = (Path(low_batch.__file__).parent / "instructions.cuh").read_text()

# Instructions of warpgroups alone, and what is made for a number of rows.
_OF_WARPGROUPS = re.compile(r"// What the kernel for warpgroups asks.*?(?=// A block's part of y)", re.DOTALL)

_DYNAMIC = (227 << 10) // 4  # floats of shared memory that a kernel may ask for


def run(source: str, arrays: Mapping[str, Any], grid: tuple[int, int], folder: Path) -> None:
    """Run the only kernel of ``source``, launched with ``grid`` blocks; ``arrays``: its parameters by name."""
    code = source[source.index("namespace tunehub_skinny") :]
    assert INSTRUCTIONS in code
    run_code(HEADER, _OF_WARPGROUPS.sub("", code.replace(INSTRUCTIONS, "")), arrays, grid, folder)


def run_code(header: str, code: str, arrays: Mapping[str, Any], grid: tuple[int, int], folder: Path) -> None:
    """Run the only kernel of ``code``, whose instructions ``header`` has; the rest as in :func:`run`."""
    signature = re.search(r"void __launch_bounds__\((\d+)(?:, \d)?\) main_kernel\((.*?)\)( \{|;)", code, re.DOTALL)
    assert signature is not None
    threads, parameters = int(signature[1]), [each.rsplit(" ", 1) for each in signature[2].split(", ")]
    code = code.replace('extern "C" __global__ ', "static ").replace("__shared__ alignas(64)", "alignas(64) __shared__")
    code = re.sub(r"__launch_bounds__\(\d+(?:, \d)?\)", "", code)
    code = re.sub(
        r"extern __shared__ __align__\(64\) float (\w+)\[\]", rf"alignas(64) static float \1[{_DYNAMIC}]", code
    )
    unpacked = ", ".join(
        f"({kind})given[{at}]" if "*" in kind else f"*({kind}*)given[{at}]" for at, (kind, _) in enumerate(parameters)
    )
    code += f"""
static void** given;
static void thread() {{ main_kernel({unpacked}); }}
extern "C" void launch(void** arrays, int x, int y) {{
  given = arrays;
  for (int i = 0; i < x; ++i)
    for (int j = 0; j < y; ++j) threads::run({threads}, {{i, j}}, thread);
}}
"""
    library = _built(header + code, folder)
    given = [arrays[name.removesuffix("_ptr")] for _, name in parameters]
    kinds = {int: np.int64, float: np.float32}
    held = [np.array(each, kinds[type(each)]) if type(each) in kinds else each for each in given]
    pointers = [each.ctypes.data for each in held]
    library.launch((ctypes.c_void_p * len(pointers))(*pointers), *grid)


def _built(code: str, folder: Path) -> Any:
    path, library = folder / "kernel.cpp", folder / "kernel.so"
    path.write_text(code)
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique", "-o", str(library), str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(library))


def weights(
    bits: int, columns: int, depth: int, seed: int, kind: Any = np.float16, *, e4m3: bool = False
) -> tuple[list[Any], Any]:
    """Random weights [N, K] in half precision or quantised with scales of a ``kind``, and what they are in single
    precision; in e4m3 with scales of rows."""
    random = np.random.default_rng(seed)
    if bits == 16:
        plain = random.standard_normal((columns, depth)).astype(np.float16)
        return [plain], plain.astype(np.float32)
    if e4m3:
        numbers = random.standard_normal((columns, depth)).astype(ml_dtypes.float8_e4m3fn)
        scales = (random.random(columns) * 0.02 + 0.01).astype(np.float32)
        return [numbers, scales], numbers.astype(np.float32) * scales[:, None]
    words = random.integers(0, 1 << 32, (columns, depth * bits // 32), np.uint32)
    scales = (random.random((columns, depth // 32)) * 0.02 + 0.01).astype(kind)
    parts = [words >> np.uint32(bits * at) & np.uint32(2**bits - 1) for at in range(32 // bits)]
    numbers = np.stack(parts, axis=-1).reshape(columns, depth).astype(kind)
    wide = (numbers - kind(2 ** (bits - 1) - 1)) * np.repeat(scales, 32, axis=1)
    return [words, scales], wide.astype(np.float32)

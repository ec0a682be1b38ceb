"""AMX's instructions in C, and those for pairs in plain LLVM IR, for CPUs that have none: fixtures."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

_PAIRS = """
define <16 x float> @tunehub_dpbf16ps(<16 x float> %sums, ptr %pair, ptr %weights) alwaysinline {
  %one = load i32, ptr %pair, align 2
  %first = insertelement <16 x i32> poison, i32 %one, i64 0
  %a = shufflevector <16 x i32> %first, <16 x i32> poison, <16 x i32> zeroinitializer
  %b = load <16 x i32>, ptr %weights, align 64
  %a_low = shl <16 x i32> %a, splat (i32 16)
  %b_low = shl <16 x i32> %b, splat (i32 16)
  %a_high = and <16 x i32> %a, splat (i32 -65536)
  %b_high = and <16 x i32> %b, splat (i32 -65536)
  %al = bitcast <16 x i32> %a_low to <16 x float>
  %bl = bitcast <16 x i32> %b_low to <16 x float>
  %ah = bitcast <16 x i32> %a_high to <16 x float>
  %bh = bitcast <16 x i32> %b_high to <16 x float>
  %high = fmul <16 x float> %ah, %bh
  %low = fmul <16 x float> %al, %bl
  %both = fadd <16 x float> %high, %low
  %r = fadd <16 x float> %sums, %both
  ret <16 x float> %r
}
"""


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The emulation of AMX, whose functions the process has from now on."""
    tvm = pytest.importorskip("tvm")
    cc = pytest.importorskip("tvm.support.cc") if hasattr(tvm, "support") else pytest.importorskip("tvm.contrib.cc")
    path = tmp_path_factory.mktemp("amx") / "emulated_amx.so"
    cc.create_shared(str(path), [str(Path(__file__).with_name("emulated_amx.c"))], ["-O2"], cc="cc")
    return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, emulation: Any) -> None:
    """Code for AMX and AVX512_BF16 runs on a CPU that has neither."""
    from tvm import tirx

    from tunehub.kernels.cpu import amx, pairs

    def call(name: str, *arguments: Any) -> Any:
        function = f"emulated_{name.rpartition('.')[2]}"
        assert hasattr(emulation, function)
        return tirx.Evaluate(tirx.call_extern("void", function, *arguments))

    monkeypatch.setattr(amx, "call_tiles", call)
    monkeypatch.setattr(amx, "IMPORTED", "declare void @tunehub_nothing()\n")
    monkeypatch.setattr(amx._Body, "_plain", lambda _: tirx.Evaluate(0))  # never taken, and half of the compile time
    monkeypatch.setattr(pairs, "_IMPORTED", _PAIRS)

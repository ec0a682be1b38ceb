"""CUDA source to machine code: what is cut off it, what kernels take, and NVRTC itself where it is installed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.tir.cuda.nvrtc import (
    Compiler,
    NvrtcError,
    errors_of,
    kernel_uses,
    own_part,
    plain_header,
    source_of,
    split_source,
)

pytestmark = pytest.mark.slow

PLAIN = "#include <cuda/std/cstdint>\nusing namespace cuda::std;\n"
BYTES = """
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 610)
#include <sm_61_intrinsics.h>
#if defined(__CUDACC_RTC__)
#endif
#endif // __CUDA_ARCH__ >= 610
"""
KERNEL = 'extern "C" __global__ void k(float* x) { x[0] = 1.0f; }\n'


def test_source_is_split_where_its_kernels_begin() -> None:
    assert split_source(PLAIN + KERNEL) == (PLAIN, KERNEL)
    assert split_source("int x;") == ("int x;", "")


@pytest.mark.parametrize(
    ("source", "own"),
    [
        (PLAIN + KERNEL, KERNEL),
        (PLAIN + "#define N 4\n" + KERNEL, "#define N 4\n" + KERNEL),
        (
            PLAIN + "#include <cuda_fp16.h>\n#include <mma.h>\n" + KERNEL,
            "#include <cuda_fp16.h>\n#include <mma.h>\n" + KERNEL,
        ),
        (PLAIN + BYTES + KERNEL, KERNEL),
        (PLAIN + "#include <math_constants.h>\n" + KERNEL, "#include <math_constants.h>\n" + KERNEL),
        (PLAIN + "#include <cuda_bf16.h>\n" + KERNEL, "#include <cuda_bf16.h>\n" + KERNEL),
        (PLAIN + "#include <cuda_fp8.h>\n" + KERNEL, "#include <cuda_fp8.h>\n" + KERNEL),
        (PLAIN + "#include <cuda_fp6.h>\n" + KERNEL, None),
        (PLAIN + "using std::sin;\n" + KERNEL, None),
    ],
)
def test_only_what_needs_no_header_goes_without(source: str, own: str | None) -> None:
    assert own_part(source, PLAIN) == own


def test_no_machine_code_is_made_for_the_plain_header() -> None:
    header = plain_header()
    assert "uchar" in header
    assert not split_source(header)[1]


def test_kernels_of_bytes_need_no_header() -> None:
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    data = te.placeholder((256, 4), "int8", name="data")
    block = te.compute(data.shape, lambda *at: data[at] + data[at])
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([data, block])}))
    outer, inner = schedule.get_loops(schedule.get_sblock("compute"))
    schedule.bind(outer, "threadIdx.x")
    schedule.vectorize(inner)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    with target:
        source = source_of(tvm.tirx.build(schedule.mod, target=target))
    assert "sm_61_intrinsics" in source
    own = own_part(source, plain_header())
    assert own is not None
    assert "#" not in own


def test_without_nvrtc_the_error_says_what_to_install() -> None:
    try:
        import cuda.bindings.nvrtc  # noqa: F401
    except ImportError:
        with pytest.raises(NvrtcError, match="pip install cuda-bindings"):
            Compiler("sm_80")
    else:
        pytest.skip("NVRTC is installed")


def _scheduled_sum() -> Any:
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    data = te.placeholder((256,), name="data")
    mod = tvm.IRModule({"main": te.create_prim_func([data, te.compute((256,), lambda i: data[i] + 1.0)])})
    schedule = Schedule(mod)
    schedule.bind(schedule.get_loops(schedule.get_sblock("compute"))[0], "threadIdx.x")
    return schedule.mod


def test_a_kernel_is_compiled_once_and_its_registers_are_known() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install cuda-bindings nvidia-cuda-nvrtc")
    import tvm

    compiler = Compiler("sm_80")
    compiler.install()
    library = tvm.tirx.build(_scheduled_sum(), target=tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))
    source = source_of(library)
    assert source.startswith(plain_header().splitlines()[0])
    binary = compiler.compile(source)
    assert compiler.compile(source) is binary
    (use,) = kernel_uses(binary).values()
    assert 0 < use.registers < 32
    assert use.stack == use.shared_memory == 0
    with pytest.raises(NvrtcError):
        compiler.compile("nonsense")


def test_of_a_compilers_log_the_errors_are_kept() -> None:
    log = 'k.cu(76): warning #177-D: function "f" was\nk.cu(9): error: no suitable conversion\n2 errors detected'
    assert errors_of(log) == "k.cu(9): error: no suitable conversion"
    assert errors_of("out of memory") == "out of memory"

"""CUDA source to machine code by NVRTC, several times as fast as TVM asks for it, and what a kernel takes of a GPU.

TVM's source begins with headers of CUDA's C++ library, which take 0.6 s to parse; most kernels use nothing of them but
names of integer types. What the header has in common with that of the plainest kernel is left out, and so is what
declares products of four integers of 8 bits, which NVRTC knows; source that includes more than the headers of half
precision, of floats of 8 bits, of constants and of tensor cores, and any that does not compile so, goes the way of TVM
(``tvm/support/nvcc.py``). Options are the same.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tunehub.tir.cuda.headers import HALF, TENSOR_CORES, header_folders, header_states, missing_headers
from tunehub.tir.cuda.ptx.wgmma import ARCHITECTURE, WARPGROUPS

if TYPE_CHECKING:
    from tunehub.tir.types import Module, PackedFunc

CALLBACK = "tvm_callback_cuda_compile"
_FIRST_KERNEL = 'extern "C"'
_OTHER_HEADER = re.compile(r"#\s*include(?!\s*<(cuda_fp16|cuda_bf16|cuda_fp8|math_constants|mma)\.h>)")
_DOT_PRODUCTS = re.compile(
    r"\n#if [^\n]*\n#include <sm_61_intrinsics\.h>\n.*?\n#endif // __CUDA_ARCH__ [^\n]*\n", re.DOTALL
)
_ERROR = re.compile(r"\b(error|fatal)\b\s*:")
_FLAGS = ("-default-device", "--device-int128", "--use_fast_math")
_KEPT = 512  # compiled kernels that are kept, as TVM asks again when it loads one

# What TVM's header defines for a plain kernel.
_TYPES = """\
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
#define __asm__ asm
#define __volatile__ volatile
#define INFINITY (__int_as_float(0x7f800000))
#define TVM_ENABLE_L2_PREFETCH 1
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;
"""


class NvrtcError(RuntimeError):
    """NVRTC is missing, or refuses a source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelUse:
    """What one kernel takes: 32-bit registers and bytes of stack of a thread, bytes of static shared memory."""

    registers: int
    stack: int
    shared_memory: int


class Compiler:
    """Compiles for one architecture (``sm_90``)."""

    def __init__(self, arch: str) -> None:
        """Raises NvrtcError when there is no NVRTC here."""
        try:
            from cuda.bindings import nvrtc  # noqa: F401
        except ImportError as error:
            raise NvrtcError(f"{error}: pip install cuda-bindings nvidia-cuda-nvrtc") from error
        self._arch = arch
        self._plain = plain_header()
        self._given: tuple[str, bytes] = ("", b"")
        self.compile = lru_cache(maxsize=_KEPT)(self._compile)

    def install(self) -> None:
        """Make TVM compile with this from now on, in this process."""
        import tvm_ffi

        def compiled(code: str, *_target: object) -> bytearray:
            return bytearray(self.compile(str(code)))

        tvm_ffi.register_global_func(CALLBACK, compiled, override=True)

    def know(self, source: str, cubin: bytes) -> None:
        """Take machine code that another process has made: TVM will ask for that of ``source``."""
        self._given = (source, cubin)

    def _compile(self, source: str) -> bytes:
        if source == self._given[0]:
            return self._given[1]
        arch = own_architecture(source, self._arch)
        return without_header(source, self._plain, arch) or _as_tvm(source, arch)


def without_header(source: str, plain: str, arch: str) -> bytes | None:
    """Machine code of ``source`` for ``arch``, compiled without what its header has in common with the ``plain`` one;
    None where that is needed after all, NVRTC is missing, or it refuses the source."""
    own = own_part(source, plain)
    try:
        return None if own is None else _without_headers(_TYPES + own, arch)
    except (NvrtcError, ImportError):
        return None


_for_warpgroups: list[tuple[PackedFunc, PackedFunc]] = []  # callbacks from here, and what was TVM's before each


def compile_for_warpgroups() -> None:
    """Let TVM compile kernels for warpgroups, which name their architecture as their target, for that, in this process:
    it asks for the target around a compile, which is ``sm_90`` where a caller set one."""
    import tvm
    import tvm_ffi

    real = tvm_ffi.get_global_func(CALLBACK)
    if _before(real) is not None:
        return

    def compiled(code: str, *rest: object) -> Any:
        if WARPGROUPS not in str(code):
            return real(code, *rest)
        with tvm.target.Target({"kind": "cuda", "arch": ARCHITECTURE}):
            return real(code, *rest)

    tvm_ffi.register_global_func(CALLBACK, compiled, override=True)
    _for_warpgroups.append((tvm_ffi.get_global_func(CALLBACK), real))


def _before(callback: PackedFunc) -> PackedFunc | None:
    """What :func:`compile_for_warpgroups` replaced by ``callback``, if it made that."""
    return next((real for own, real in _for_warpgroups if callback.same_as(own)), None)


def asked_for() -> bool:
    """Whether TVM's own callback would compile with NVRTC, and nobody wants to see what it makes of a source."""
    import tvm_ffi
    from tvm.support import nvcc

    callback = tvm_ffi.get_global_func(CALLBACK)
    is_own = (_before(callback) or callback).same_as(nvcc.tvm_callback_cuda_compile)
    mode = os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc").lower()
    return bool(is_own) and mode == "nvrtc" and "TVM_KERNEL_DUMP" not in os.environ


def compiler_identity() -> str:
    """What machine code depends on besides a source and an architecture: NVRTC, its options, and CUDA's headers."""
    return f"{_nvrtc_version()} {_FLAGS} {_ptxas_flags()} {header_states()}"


def _ptxas_flags() -> list[str]:
    """As TVM says them (0.26 and newer)."""
    from tvm.support import nvcc

    flags = getattr(nvcc, "_ptxas_option_flags", None)
    return [] if flags is None else list(map(str, flags()))


@lru_cache(maxsize=1)
def _nvrtc_version() -> str:
    try:
        from cuda.bindings import nvrtc

        return str(nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError):
        return ""


def own_architecture(source: str, arch: str) -> str:
    """``arch``, or that with its own instructions (``sm_90a``) where ``source`` uses these."""
    return f"{arch}a" if WARPGROUPS in source and not arch.endswith("a") else arch


def own_part(source: str, plain: str) -> str | None:
    """``source`` without what its header has in common with the ``plain`` one, or None when it includes more."""
    header, kernels = split_source(source)
    header = _DOT_PRODUCTS.sub("", header)
    pairs = zip(header, plain, strict=False)
    common = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(header), len(plain)))
    rest = header[header.rfind("\n", 0, common) + 1 :]
    return None if _OTHER_HEADER.search(rest) or "std::" in rest else rest + kernels


def split_source(source: str) -> tuple[str, str]:
    """The header of TVM's CUDA source, and its kernels."""
    start = source.find(_FIRST_KERNEL)
    return (source, "") if start < 0 else (source[:start], source[start:])


@lru_cache(maxsize=1)
def plain_header() -> str:
    """The header that this TVM writes for a kernel which needs nothing. NVRTC is not asked."""
    import tvm_ffi

    real = tvm_ffi.get_global_func(CALLBACK)
    tvm_ffi.register_global_func(CALLBACK, lambda *_: bytearray(), override=True)
    try:
        return split_source(source_of(build_plain()))[0]
    finally:
        tvm_ffi.register_global_func(CALLBACK, real, override=True)


def build_plain() -> Module:
    """A library with a kernel that needs nothing: a copy of one number."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    data = te.placeholder((1,), name="data")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([data, te.compute((1,), lambda i: data[i] + 1.0)])}))
    (loop,) = schedule.get_loops(schedule.get_sblock("compute"))
    schedule.bind(schedule.split(loop, [None, 1])[1], "threadIdx.x")
    return tvm.tirx.build(schedule.mod, target=tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))


def source_of(library: Module) -> str:
    """The CUDA source in a module that was built for a host and a GPU; empty without a kernel."""
    return "".join(str(part.inspect_source()) for part in library.imports if part.kind == "cuda")


def kernel_uses(cubin: bytes) -> dict[str, KernelUse]:
    """What the kernels in machine code take, by name.

    Source of the format: ELF-64, and NVIDIA's sections ``.nv.info`` as ``cuobjdump --dump-elf`` shows them.
    """
    sections = list(_sections(cubin))
    symbols = next((_symbols(cubin, section, sections) for section in sections if section.name == ".symtab"), [])
    found: dict[str, dict[int, int]] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, symbol, value in _info(cubin[section.offset : section.offset + section.size]):
                found.setdefault(symbols[symbol], {})[attribute] = value
    shared = {section.name.removeprefix(".nv.shared."): section.size for section in sections}
    return {
        name: KernelUse(registers=values[_REGISTERS], stack=values.get(_FRAME, 0), shared_memory=shared.get(name, 0))
        for name, values in found.items()
        if _REGISTERS in values
    }


_REGISTERS, _FRAME = 0x2F, 0x11  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE
_SIZED_VALUE = 0x04  # EIFMT_SVAL: two bytes of size, then the value


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    offset: int
    size: int
    link: int


def _sections(elf: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    each, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    rows = [struct.unpack_from("<IIQQQQII", elf, table + each * index) for index in range(count)]
    strings = rows[names][4]
    for row in rows:
        yield _Section(_text(elf, strings + row[0]), row[4], row[5], row[6])


def _symbols(elf: bytes, section: _Section, sections: list[_Section]) -> list[str]:
    strings = sections[section.link].offset
    return [
        _text(elf, strings + int(struct.unpack_from("<I", elf, at)[0]))
        for at in range(section.offset, section.offset + section.size, 24)
    ]


def _info(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Attributes with a symbol and a value, as (attribute, symbol, value)."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED_VALUE:
            if size == 8:
                yield (attribute, *struct.unpack_from("<II", data, at))
            at += size


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(0, start)].decode("ascii", errors="replace")


def _as_tvm(source: str, arch: str) -> bytes:
    from tvm.support import nvcc

    try:
        return bytes(nvcc.compile_cuda(source, target_format="cubin", compiler="nvrtc", arch=arch))
    except RuntimeError as error:
        raise NvrtcError(str(missing_headers(_included(source)) or errors_of(str(error)))) from error


def _included(source: str) -> Sequence[str]:
    """The headers of half precision and tensor cores that a source needs."""
    half = (HALF,) if HALF in source else ()
    return (HALF, *TENSOR_CORES) if "<mma.h>" in source else half


def _without_headers(source: str, arch: str) -> bytes:
    from cuda.bindings import nvrtc

    options = [f"--gpu-architecture={arch}", *_FLAGS]
    options += [f"--ptxas-options={flag}" for flag in _ptxas_flags() if flag != "-v"]
    options += [f"-I{folder}" for folder in header_folders()] if "#include" in source else []
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"tvm_kernels.cu", 0, None, None))
    try:
        encoded = [option.encode() for option in options]
        if nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NvrtcError(_log(nvrtc, program))
        binary = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, binary))
        return bytes(binary)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: ModuleType, program: object) -> str:
    text = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc.nvrtcGetProgramLog(program, text))
    return errors_of(text.decode(errors="replace").strip("\0\n")) or "NVRTC refuses the source"


def errors_of(log: str) -> str:
    """The lines of a compiler's ``log`` that say what is wrong, among many warnings; all where none does."""
    return "\n".join(line for line in log.splitlines() if _ERROR.search(line)) or log


def _checked(answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if int(result) != 0:
        raise NvrtcError(f"NVRTC: {result}")
    return values[0] if values else None

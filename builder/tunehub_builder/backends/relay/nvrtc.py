"""CUDA source to machine code by NVRTC in this process, for TVM <= 0.19.

That TVM starts ``nvcc`` for every candidate, which takes over a second (``tvm/contrib/nvcc.py``). NVRTC is a library of
CUDA's own and is called through ctypes, so that nothing needs to be installed besides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tunehub.tir.cuda.headers import cuda_folders, header_folders
from tunehub.tir.cuda.nvrtc import NvrtcError, kernel_uses

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so")
_CALLBACK = "tvm_callback_cuda_compile"


def available() -> bool:
    """Whether there is an NVRTC here."""
    try:
        _library()
    except NvrtcError:
        return False
    return True


@dataclass(kw_only=True, slots=True)
class Refusals:
    """What candidates are refused for when they are compiled: more than ``most_stack`` bytes of stack a thread, or what
    NVRTC says.

    TVM's callback must not raise: an error that passes through TVM 0.19's ``tir_to_runtime`` leaves its stack of
    targets as it was in there, and a later build of the process ends in a segmentation fault.
    """

    most_stack: int
    problems: list[NvrtcError] = field(default_factory=list)

    def raise_first(self) -> None:
        """After a build: raises what its kernels were refused for, if they were, and forgets it."""
        problems, self.problems = self.problems, []
        if problems:
            raise problems[0]


def install(arch: str, refusals: Refusals | None = None) -> None:
    """Let TVM compile for ``arch`` (``sm_90``) with this from now on, in this process.

    With ``refusals`` a kernel that is refused has no machine code, and the caller asks after each build; without, all
    stack is allowed and what NVRTC says is raised.
    """
    import tvm

    def compiled(source: str | bytes, *_target: object) -> bytearray:
        if refusals is None:
            return bytearray(machine_code(str(source), arch))
        try:
            code = machine_code(str(source), arch)
            check_stack(code, refusals.most_stack)
        except NvrtcError as error:
            refusals.problems.append(error)
            return bytearray()
        return bytearray(code)

    tvm._ffi.register_func(_CALLBACK, compiled, override=True)


def machine_code(source: str, arch: str) -> bytes:
    """A cubin. Raises NvrtcError with the last lines of NVRTC's message, or when there is no NVRTC."""
    nvrtc = _library()
    program = ctypes.c_void_p()
    text = source.encode()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"tvm_kernels.cu", 0, None, None))
    try:
        options = [f"--gpu-architecture={arch}".encode()]
        options += [f"-I{folder}".encode() for folder in header_folders()] if "#include" in source else []
        if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
            raise NvrtcError(_problem(_read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)))
        return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def check_stack(code: bytes, most: int) -> None:
    """Raises NvrtcError when a thread of a kernel in ``code``, a cubin, takes more than ``most`` bytes of stack."""
    stack = max((use.stack for use in kernel_uses(code).values()), default=0)
    if stack > most:
        raise NvrtcError(f"error: a thread takes {stack} bytes of local memory, more than {most}")


@lru_cache(maxsize=1)
def _library() -> Any:
    errors = []
    for place in (*_NAMES, *_places()):
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            errors.append(str(error))
    raise NvrtcError(f"no NVRTC here ({errors[0]}): install CUDA, or pip install nvidia-cuda-nvrtc")


def _places() -> Iterator[str]:
    """NVRTC in CUDA's folder, and in NVIDIA's wheels."""
    for folder in cuda_folders():
        for below in ("lib64", "lib", "targets/x86_64-linux/lib"):
            yield from sorted(str(path) for path in (folder / below).glob("libnvrtc.so.*"))


def _problem(log: bytes) -> str:
    """The first line of NVRTC's or the assembler's message that names an error."""
    lines = log.decode(errors="replace").strip("\0\n").splitlines()
    return next((line.strip() for line in lines if "error" in line.lower()), lines[-1] if lines else "NVRTC refuses it")


def _read(size_of: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(read(program, buffer))
    return buffer.raw


def _check(result: int) -> None:
    if result:
        _library().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise NvrtcError(f"NVRTC: {_library().nvrtcGetErrorString(result).decode()}")

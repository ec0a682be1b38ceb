"""Where CUDA's folders and headers are: a toolkit's, or those of NVIDIA's wheels, which have them in several.

Kernels in half precision include ``cuda_fp16.h``, those for tensor cores ``mma.h`` and what that includes. Finding
them imports neither TVM nor CUDA.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

HALF, TENSOR_CORES = "cuda_fp16.h", ("mma.h", "crt/mma.h")


def cuda_folders() -> Iterator[Path]:
    """Folders that may be CUDA's, the likeliest first: where ``CUDA_PATH`` and ``nvcc`` are, the usual place, and
    NVIDIA's wheels."""
    if "CUDA_PATH" in os.environ:
        yield Path(os.environ["CUDA_PATH"])
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parent.parent
    yield Path("/usr/local/cuda")
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels.submodule_search_locations or ()) if wheels is not None else ():
        yield from sorted(Path(folder).glob("*"))


@lru_cache(maxsize=1)
def header_folders() -> tuple[str, ...]:
    """The folders to include, each the first that has one of the headers; what is not found is left out."""
    places = [place for folder in cuda_folders() for place in _includes(folder)]
    firsts = (next((place for place in places if (place / name).is_file()), None) for name in (HALF, *TENSOR_CORES))
    return tuple(dict.fromkeys(str(place) for place in firsts if place is not None))


@lru_cache(maxsize=1)
def header_states() -> str:
    """Where the headers are, their bytes and times of change: others are other headers."""
    paths = [Path(folder) / name for folder in header_folders() for name in (HALF, *TENSOR_CORES)]
    return str([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file()])


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Which of CUDA's headers are missing, and what to do."""

    reason: str
    remedy: str = "pip install nvidia-cuda-runtime nvidia-cuda-crt, or install the CUDA toolkit and set CUDA_PATH"

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


def missing_headers(names: Sequence[str]) -> Missing | None:
    """What is missing of CUDA's headers ``names``; None where they all are."""
    missing = [name for name in names if not _has(name)]
    if not missing:
        return None
    where = f"in {' or '.join(header_folders())}" if header_folders() else "on this machine"
    return Missing(reason=f"CUDA's {' and '.join(missing)} {'are' if missing[1:] else 'is'} not {where}")


def missing_for_tensor_cores() -> Missing | None:
    """As :func:`missing_headers` for tensor cores; None where those of half precision are missing, too: there no kernel
    in half precision compiles, whoever schedules it."""
    return missing_headers(TENSOR_CORES) if _has(HALF) else None


def _has(name: str) -> bool:
    return any((Path(folder) / name).is_file() for folder in header_folders())


def _includes(folder: Path) -> Iterator[Path]:
    yield folder / "include"
    machine = platform.machine().lower()
    for name in ("sbsa-linux", "aarch64-linux") if machine in ("arm64", "aarch64") else (f"{machine}-linux",):
        yield folder / "targets" / name / "include"

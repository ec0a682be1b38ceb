"""Machine code of GPU kernels that is kept, by all that NVRTC reads: source, architecture, its version and options."""

from __future__ import annotations

import hashlib

from tunehub.compiler.artifacts.store import ArtifactStore
from tunehub.registries.blob_cache import KERNELS
from tunehub.tir.cuda.nvrtc import compiler_identity


class KernelStore:
    """Kernels that this NVRTC has compiled."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store, self._identity = store, compiler_identity()

    def machine_code(self, source: str, arch: str) -> bytes | None:
        """What is kept of ``source`` for ``arch``."""
        return self._store.read(KERNELS, self._name(source, arch))

    def keep(self, source: str, arch: str, cubin: bytes) -> None:
        """Keep what was compiled."""
        self._store.keep(KERNELS, self._name(source, arch), cubin)

    def _name(self, source: str, arch: str) -> str:
        return hashlib.sha256(f"{self._identity}\n{arch}\n{source}".encode()).hexdigest() + ".cubin"

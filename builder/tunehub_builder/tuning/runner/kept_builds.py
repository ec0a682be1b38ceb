"""Builds that are kept in a folder: processes without a device make them ahead, those with it load them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub._files.atomic import open_regular, write_file
from tunehub.compiler.libraries.inputs import rules_digest
from tunehub_builder.tuning.target import tvm_versions

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike
    from tunehub.tir.types import Module

_LIBRARY = "library.so"


class KeptBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A shared ``library``, and the machine code ``cubin`` of the CUDA ``source`` in it."""

    library: bytes
    source: str
    cubin: bytes

    def loaded(self) -> Module:
        """It as a module of TVM. Raises RuntimeError for what the system cannot load."""
        import tvm

        with tempfile.TemporaryDirectory(prefix="tunehub-") as folder:  # a library stays loaded when its file is gone
            path = Path(folder) / _LIBRARY
            path.write_bytes(self.library)
            return tvm.runtime.load_module(str(path))


def linked(library: Module) -> bytes:
    """What TVM has built, as a shared library. Raises RuntimeError without a C compiler."""
    with tempfile.TemporaryDirectory(prefix="tunehub-") as folder:
        path = Path(folder) / _LIBRARY
        library.export_library(str(path))
        return path.read_bytes()


@dataclass(frozen=True, slots=True)
class KeptBuilds:
    """What was built, and what was found of rules, in ``folder``, by all that it depends on. The folder is the caller's
    own: libraries in it are run."""

    folder: Path

    def name(self, target: TargetLike, *said: object) -> str:
        """Of what is made of ``said`` for a ``target`` of TVM, in JSON's types, by these programs."""
        text = json.dumps([*_programs(), _written(json.dumps(target)), *msgspec.to_builtins(said)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, name: str) -> KeptBuild | None:
        """The build of this name, None without a whole one."""
        return self._decoded(f"{name}.build", KeptBuild)  # type: ignore[no-any-return]

    def keep(self, name: str, build: KeptBuild) -> None:
        """Keep a build. Raises OSError."""
        self._write(f"{name}.build", build)

    def read_found(self, name: str) -> tuple[str, str, str] | None:
        """What was found of a row, None where nothing was."""
        return self._decoded(f"{name}.found", tuple[str, str, str])  # type: ignore[no-any-return]

    def keep_found(self, name: str, found: tuple[str, str, str]) -> None:
        """Keep what was found of a row. Raises OSError."""
        self._write(f"{name}.found", found)

    def has(self, name: str) -> bool:
        """Whether there is a build of this name."""
        return (self.folder / f"{name}.build").is_file()

    def _decoded(self, name: str, kind: Any) -> Any:
        try:
            with open_regular(self.folder / name) as stream:
                return msgspec.msgpack.decode(stream.read(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self, name: str, content: object) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(self.folder / name, msgspec.msgpack.encode(content))


@lru_cache(maxsize=8)
def _written(target: str) -> str:
    """As TVM writes it: its defaults may be said or not."""
    import tvm

    return str(tvm.target.Target(json.loads(target)))


@lru_cache(maxsize=1)
def _programs() -> tuple[str, ...]:
    from tunehub.tir.cuda.nvrtc import compiler_identity

    return (rules_digest(), *tvm_versions(), compiler_identity())

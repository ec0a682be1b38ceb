"""What the library of a language model says of itself: a function of it returns this as JSON, in a tensor of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import tvm
from tvm import relax

from tunehub.exceptions import LibraryError, last_line
from tunehub.models.config import ModelConfig

if TYPE_CHECKING:
    from tunehub.graph.types import Executable
    from tunehub.tir.types import IRModule

FUNCTION = "tunehub_language_model"


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`quantization` by its name; `steps`: functions take pages as tensors; `device`: TVM's kind of target;
    `cache`: the type of keys and values in pages, that of activations where it is empty."""

    config: ModelConfig
    quantization: str
    steps: bool
    device: str
    cache: str = ""


def with_description(module: IRModule, description: ModelDescription) -> IRModule:
    """`module` with the function that says it."""
    builder = relax.BlockBuilder()
    with builder.function(FUNCTION, []):
        builder.emit_func_output(relax.const(np.frombuffer(msgspec.json.encode(description), np.uint8)))
    return tvm.IRModule({**dict(module.functions.items()), **dict(builder.get().functions.items())}, attrs=module.attrs)


def load_described(path: Path) -> tuple[Executable, ModelDescription]:
    """The library of a language model and what it says. Loading one runs its code. Raises LibraryError."""
    remedy = "give a library that `tunehub compile FOLDER` wrote for this machine"
    if not path.is_file():
        raise LibraryError(path, "is not there", place="library", remedy=remedy)
    try:
        loaded = tvm.runtime.load_module(str(path))
        raw = relax.VirtualMachine(loaded, tvm.cpu())[FUNCTION]().numpy().tobytes()
        return loaded, msgspec.json.decode(raw, type=ModelDescription)
    except Exception as error:  # of the system's loader, or of TVM's
        raise LibraryError(path, last_line(error), place="library", remedy=remedy) from None

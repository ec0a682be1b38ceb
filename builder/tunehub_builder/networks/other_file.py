"""What files of models in other forms than ONNX have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tunehub_builder.networks.exceptions import ModelFileError
from tunehub_builder.networks.network import ImportedModel

if TYPE_CHECKING:
    import onnx
    import tvm


@dataclass(frozen=True, kw_only=True)
class OtherFile(ABC):
    """Reads the file anew for each form. `shapes` fixes inputs, `sizes` symbols; the others stay open."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]
    to_onnx: ClassVar[str]
    """How one makes an ONNX file of it."""

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        return self.imported().module

    def onnx_model(self) -> onnx.ModelProto:
        """Raises ModelFileError: it has none."""
        raise ModelFileError(str(self.path), "is not an ONNX file", self.to_onnx)

    @abstractmethod
    def imported(self) -> ImportedModel:
        """See `UserModel.imported`."""

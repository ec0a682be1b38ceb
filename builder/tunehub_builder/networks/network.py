"""`Network`: what the tuner, the gate and the demo know about a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from tunehub.deploy.arrays import random_array

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx
    import tvm


Precision = Literal["float32", "bf16", "int8"]
OPEN = ", open: "  # in the source of a network with open dimensions, before their names


class Definition(Protocol):
    """Where the two forms of a network come from. Both must compute the same function with the same weights."""

    def relax_module(self) -> tvm.IRModule:
        """The network as a Relax module; see `Network.relax_module`."""

    def onnx_model(self) -> onnx.ModelProto:
        """The network as an ONNX model; see `Network.onnx_model`."""


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A Relax module, as `Network.relax_module` says, and the names of its outputs where the file has them."""

    module: tvm.IRModule
    outputs: tuple[str, ...] = ()


class UserModel(Definition, Protocol):
    """A user's model in a file."""

    def imported(self) -> ImportedModel:
        """Read the file. Raises ModelFileError: it cannot be read, or not be imported into Relax."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network with deterministic weights. Its shapes are fixed but for the dimensions that `dims` names.

    `inputs` maps the data inputs, in order, to their shapes; the names are identifiers and are the same in both forms.
    `dtype` is the element type of the inputs, except of those that `input_dtypes` names. Of open dimensions, `dims`
    has the values at which they are tuned, and `inputs` the first of these. `precision`: `bf16` is what operands are to
    be rounded to when it is compiled; a model in `int8` has quantised tensors of its own.
    """

    name: str
    source: str
    inputs: Mapping[str, tuple[int, ...]]
    dtype: str = "float32"
    input_dtypes: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    precision: Precision = "float32"
    definition: Definition = field(repr=False, compare=False)

    def relax_module(self) -> tvm.IRModule:
        """A fresh Relax module: function `main`, its parameters the data inputs, all weights bound as constants.

        Raises OnnxFileError when the network comes from a file and has an operator that Relax cannot import.
        """
        return self.definition.relax_module()

    def onnx_model(self) -> onnx.ModelProto:
        """A fresh ONNX model of the same network with the same weights; only the data inputs are graph inputs."""
        return self.definition.onnx_model()

    @property
    def compiled_in(self) -> Literal["float32", "bf16"]:
        """The option `precision` with which it is compiled."""
        return "bf16" if self.precision == "bf16" else "float32"

    def dtype_of(self, name: str) -> str:
        """The element type of the input `name`."""
        return self.input_dtypes.get(name, self.dtype)

    def sample_inputs(self, seed: int = 0) -> dict[str, npt.NDArray[np.generic]]:
        """An array for each input: standard normal for floats, 0 or 1 for integers and bools. Fixed by `seed`."""
        return {name: random_array(seed, name, shape, self.dtype_of(name)) for name, shape in self.inputs.items()}

"""A network that is written here twice, in Relax and in ONNX, from one plan of its layers and weights."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from tunehub_builder.networks.network import Network

if TYPE_CHECKING:
    import onnx
    import tvm


class Sized(Protocol):
    """The sizes of a network."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of its one data input."""


C = TypeVar("C", bound=Sized)


@dataclass(frozen=True, kw_only=True)
class PlannedNetwork(Generic[C]):
    """A network of the size `config`, with weights made from `seed`.

    A subclass names its package, whose modules `as_relax` and `as_onnx` have a function `build(config, seed)`, and its
    input.
    """

    config: C
    seed: int = 0

    package: ClassVar[str]
    input_name: ClassVar[str]

    def network(self, name: str) -> Network:
        """This model as a network called `name`."""
        inputs = {self.input_name: self.config.input_shape}
        return Network(name=name, source="relax.frontend.nn", inputs=inputs, definition=self)

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        return import_module(f"{self.package}.as_relax").build(self.config, self.seed)

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`."""
        return import_module(f"{self.package}.as_onnx").build(self.config, self.seed)

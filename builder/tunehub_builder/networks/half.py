"""A network in half precision: weights and inputs are float16, matmuls and convolutions accumulate in float32. And the
other way: one in half precision as it is in float32, with which its outputs are compared.

tvm and onnx are imported only when a model is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub_builder.networks.network import Definition, Network

if TYPE_CHECKING:
    import onnx
    import tvm

DTYPE = "float16"


@dataclass(frozen=True, kw_only=True)
class HalfPrecision:
    """The network `whole`, whose data inputs are called `inputs`, in half precision. Outputs stay float32 in Relax."""

    whole: Definition
    inputs: tuple[str, ...]

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        import tvm
        from tvm import relax

        from tunehub.graph.simplify import simplify

        passes = [
            relax.transform.CanonicalizeBindings(),
            relax.transform.FoldBatchnormToConv2D(),  # while the weights are exact
            simplify,
            relax.transform.CanonicalizeBindings(),  # a constant behind a name would stay float32
            relax.transform.ToMixedPrecision(out_dtype="float32", fp16_input_names=list(self.inputs)),
            simplify,
        ]
        return tvm.transform.Sequential(passes)(self.whole.relax_module())

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`: every float32 tensor becomes float16; how sums are made is left to the runtime."""
        from tunehub_builder.networks.onnx_model import to_half

        model = self.whole.onnx_model()
        to_half(model)
        return model


def half(network: Network, name: str) -> Network:
    """`network` in half precision, under another name."""
    definition = HalfPrecision(whole=network.definition, inputs=tuple(network.inputs))
    return Network(
        name=name, source=f"{network.source}, {DTYPE}", inputs=network.inputs, dtype=DTYPE, definition=definition
    )


@dataclass(frozen=True, kw_only=True)
class SinglePrecision:
    """The network `half`, which is in half precision, in float32: with the same weights, which float16 can hold."""

    half: Definition
    name: str

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        from tunehub_builder.networks.onnx_import import to_relax

        return to_relax(self.onnx_model(), self.name)

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`."""
        from tunehub_builder.networks.onnx_model import to_single

        model = self.half.onnx_model()
        to_single(model)
        return model


def in_single(network: Network) -> Definition | None:
    """A network in half precision as it is in float32; None for another one."""
    if network.dtype != DTYPE:
        return None
    known = network.definition
    return known.whole if isinstance(known, HalfPrecision) else SinglePrecision(half=known, name=network.name)

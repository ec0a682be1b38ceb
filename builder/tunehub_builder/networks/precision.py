"""Networks in another precision: operands rounded to bfloat16 when they are compiled, or models in 8 bits (QDQ form).

What is in 8 bits is made by onnxruntime's static quantiser: weights int8 per channel, data uint8, ranges of data from
a few random inputs. That takes up to a minute, so what it made of a model is kept in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tunehub_builder.networks.exceptions import NetworkError
from tunehub_builder.networks.network import Network, Precision
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    import onnx
    import tvm

    from tunehub.tir.types import Array

_CALIBRATION = 4  # random inputs that ranges of data are taken from
_FOLDED = b"folded"  # not what caches have from before `_fold`
_QUANTISED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger"})


def in_precision(network: Network, precision: Precision) -> Network:
    """`network`, which is in float32, in `precision`, with that behind its name: beside its records in float32 it is
    another network. Raises WrongPrecisionError for a network that has another one.
    """
    if network.precision != "float32":
        raise WrongPrecisionError(network.name, network.precision, precision)
    source = f"{network.source}, {precision}"
    changed = replace(network, name=f"{network.name}_{precision}", source=source, precision=precision)
    if precision == "int8":
        return replace(changed, definition=QuantisedNetwork(whole=network))
    return changed


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether `model` has tensors of 8 bits and their scales."""
    return any(node.op_type in _QUANTISED for node in model.graph.node)


def output_steps(model: onnx.ModelProto) -> list[float]:
    """Of each output of `model`, what one step of it in 8 bits is worth: the largest scale of the DequantizeLinear that
    writes it. 0 of what another operator writes."""
    from onnx import numpy_helper

    scales = {each.name: each for each in model.graph.initializer}
    written = {name: node for node in model.graph.node for name in node.output}
    found = []
    for output in model.graph.output:
        node = written.get(output.name)
        scale = scales.get(node.input[1]) if node is not None and node.op_type == "DequantizeLinear" else None
        found.append(0.0 if scale is None else float(numpy_helper.to_array(scale).max()))
    return found


class WrongPrecisionError(NetworkError):
    """A model that has a precision cannot have another one."""

    def __init__(self, name: str, own: str, asked: str) -> None:
        super().__init__(f"the network {name!r} is in {own} and cannot be in {asked}: leave --precision out")


@dataclass(frozen=True, kw_only=True)
class QuantisedNetwork:
    """`whole` in 8 bits."""

    whole: Network

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        from tunehub_builder.networks.onnx_import import to_relax

        return to_relax(self.onnx_model(), f"{self.whole.name} in 8 bits")

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`. Raises NetworkError without onnxruntime, and for a model in an opset below 13 that
        onnx cannot convert."""
        import onnx

        try:
            import onnxruntime
        except ImportError as error:
            raise NetworkError(f"quantising a network needs onnxruntime: {pip_install('demo')}") from error
        from tunehub.options import read_options
        from tunehub_builder.networks.onnx_model import simplify, with_scales_of_channels

        data = with_scales_of_channels(self.whole.onnx_model()).SerializeToString()
        named = hashlib.sha256(data + _FOLDED + onnxruntime.__version__.encode()).hexdigest()[:24]
        kept = read_options().cache / "quantised" / f"{named}.onnx"
        if not kept.exists():
            _quantise(data, kept, self.whole)
        model = onnx.load(kept)
        simplify(model)
        return model


def _quantise(data: bytes, kept: Path, network: Network) -> None:
    """Write the model in `data` in 8 bits to `kept`. Raises OSError, and what onnxruntime's quantiser raises."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._inputs: Iterator[Mapping[str, Any]] = map(network.sample_inputs, range(_CALIBRATION))

        def get_next(self) -> Mapping[str, Array] | None:
            return next(self._inputs, None)

    kept.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=kept.parent) as folder:
        source, ready, whole = (Path(folder) / f"{name}.onnx" for name in ("source", "ready", "whole"))
        _fold(data, source)
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True, skip_optimization=True)
        quantization.quantize_static(
            str(ready), str(whole), Samples(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
        whole.replace(kept)


def _fold(data: bytes, folded: Path) -> None:
    """Write the model in `data` with its constants, shapes and batch normalisations folded, as onnxruntime does.

    `quant_pre_process` folds, too, but up to onnxruntime 1.30 it loses the result (without symbolic shapes): computed
    sizes of padding are quantised then, and the importer does not know the shapes behind them.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folded)
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

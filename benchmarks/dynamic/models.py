"""Networks with open dimensions, as ONNX files, and the sizes at which they are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from benchmarks.shared import untuned_networks
from tunehub_builder import networks
from tunehub_builder.networks import Network, onnx_model
from tunehub_builder.networks.bert import Bert, BertConfig
from tunehub_builder.networks.opened import open_axis

NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base")
_BATCH, _SEQUENCE, _IMAGE = {0: "batch"}, {1: "sequence"}, {2: "height", 3: "width"}  # symbols by axes
_BATCHES, _LENGTHS, _PIXELS = (1, 3, 8, 17), (1, 16, 63, 128, 384), (64, 129, 224, 320)
LARGEST = {"batch": max(_BATCHES), "sequence": max(_LENGTHS), "height": max(_PIXELS), "width": max(_PIXELS)}
_OF_IMAGES = "_images"  # behind the name of a network: open are height and width


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenModel:
    """The ONNX file ``path``, whose one input has open dimensions: ``symbols`` by axis. ``sizes`` to measure: a size is
    that of all of them."""

    name: str
    path: Path
    symbols: Mapping[int, str]
    sizes: Sequence[int]

    def at(self, size: int) -> Network:
        """The network with its dimensions fixed, read from the same file."""
        (given,) = onnx.load(self.path, load_external_data=False).graph.input
        declared = enumerate(onnx_model.shape_of(given) or ())
        shape = tuple(size if axis in self.symbols else int(extent) for axis, extent in declared)
        fixed = networks.from_onnx_file(self.path, shapes={given.name: shape})
        return replace(fixed, name=f"{self.name}_{size}")


def open_model(name: str, folder: Path, layers: int) -> OpenModel:
    """The network ``name`` in a file in ``folder``: bert_base, of so many ``layers``, with an open sequence, others
    with an open batch, or with ``_images`` behind their name an open height and width. Raises UnknownNetworkError."""
    if name == "bert_base":
        return opened(Bert(config=BertConfig(layers=layers)).network(name), folder, _SEQUENCE, _LENGTHS)
    network = untuned_networks.get(name.removesuffix(_OF_IMAGES), folder / "fixed")
    if name.endswith(_OF_IMAGES):
        return opened(replace(network, name=name), folder, _IMAGE, _PIXELS)
    return opened(network, folder, _BATCH, _BATCHES)


def opened(network: Network, folder: Path, symbols: Mapping[int, str], sizes: Sequence[int]) -> OpenModel:
    """``network`` in a file in ``folder`` with ``symbols`` at axes of its input, and of all that is reshaped."""
    model = network.onnx_model()
    for axis, symbol in symbols.items():
        open_axis(model, symbol, axis)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{network.name}.onnx"
    onnx.save(model, path)
    return OpenModel(name=network.name, path=path, symbols=symbols, sizes=sizes)

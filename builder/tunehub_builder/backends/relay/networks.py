"""The networks for TVM <= 0.19: all of ``relay.testing`` that need no download, and any user's ONNX file.

Importing this imports neither tvm nor onnx; asking a network for its module does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.exceptions import typed_last_line
from tunehub_builder.networks.exceptions import OnnxFileError, UnknownNetworkError

if TYPE_CHECKING:
    from tunehub.relay.types import RelayModule

NCHW, NHWC = "NCHW", "NHWC"
LAYOUTS = (NCHW, NHWC)
_SUFFIX = "-nhwc"
# What `relay.transform.ConvertLayout` is asked for; "default": the kernel layout that TVM takes with it.
_CONVERTED = {
    **{f"nn.{operator}": [NHWC, "default"] for operator in ("conv2d", "conv2d_transpose")},
    **{f"nn.{operator}": [NHWC] for operator in ("max_pool2d", "avg_pool2d", "global_avg_pool2d")},
    "nn.conv3d": ["NDHWC", "default"],
    **{f"nn.{operator}": ["NDHWC"] for operator in ("max_pool3d", "avg_pool3d")},
}
_IMAGE = (3, 224, 224)
_Module = tuple[Any, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayNetwork:
    """One network with fixed shapes. ``inputs`` maps its data inputs, in order, to their shapes, in ``layout``."""

    name: str
    source: str
    inputs: Mapping[str, tuple[int, ...]]
    dtype: str = "float32"
    layout: str = NCHW
    definition: Callable[[], _Module] = field(repr=False, compare=False)

    def module(self) -> _Module:
        """A fresh ``IRModule`` with the weights by name. The weights of a standard network are always the same.

        Raises OnnxFileError for a file that TVM cannot import.
        """
        return self.definition()


@dataclass(frozen=True, slots=True)
class _Standard:
    """A network of ``relay.testing``: its module, the arguments of ``get_workload``, its inputs for one image.

    ``image``: the argument that takes the shape of an image; only then is there a ``layout`` argument to go with it.
    """

    module: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, tuple[int, ...]]
    image: str | None = None

    def build(self, layout: str) -> _Module:
        workload = import_module(f"tvm.relay.testing.{self.module}").get_workload
        if layout == NHWC and self.image is not None:
            c, h, w = self.inputs["data"][1:]
            module, params = workload(**self.arguments, layout=NHWC, **{self.image: (h, w, c)})
            return module, params
        module, params = workload(**self.arguments)
        return (to_nhwc(module) if layout == NHWC else module), params

    def shapes(self, layout: str) -> dict[str, tuple[int, ...]]:
        if layout == NCHW or self.image is None:
            return dict(self.inputs)
        n, c, h, w = self.inputs["data"]
        return {"data": (n, h, w, c)}


def names() -> tuple[str, ...]:
    """The names of the standard networks; each also exists with ``-nhwc`` behind it."""
    return tuple(_standard())


def get(name: str, *, layout: str | None = None) -> RelayNetwork:
    """The standard network ``name``; with ``layout`` NHWC its name gets the suffix ``-nhwc``, unless it has it.

    Raises UnknownNetworkError, which lists the names.
    """
    standard = _standard()
    base = name.removesuffix(_SUFFIX)
    if base not in standard:
        raise UnknownNetworkError(name, names())
    chosen = NHWC if base != name else layout or NCHW
    found = standard[base]
    return RelayNetwork(
        name=base + _SUFFIX if chosen == NHWC else base,
        source=f"tvm.relay.testing.{found.module}",
        inputs=found.shapes(chosen),
        layout=chosen,
        definition=lambda: found.build(chosen),
    )


def from_onnx_file(
    path: str | Path, *, shapes: Mapping[str, tuple[int, ...]] | None = None, layout: str | None = None
) -> RelayNetwork:
    """The network in a user's ONNX file, with the file's own weights; see ``tunehub_builder.networks.from_onnx_file``.

    With ``layout`` NHWC its operators are converted; its inputs stay as the file has them. Raises OnnxFileError.
    """
    from tunehub_builder import networks

    network = networks.from_onnx_file(path, shapes=shapes)
    chosen = layout or NCHW

    def build() -> _Module:
        module, params = _from_onnx(network.onnx_model(), network.inputs, str(path))
        return (to_nhwc(module) if chosen == NHWC else module), params

    return RelayNetwork(
        name=network.name + _SUFFIX if chosen == NHWC else network.name,
        source=network.source,
        inputs=network.inputs,
        dtype=network.dtype,
        layout=chosen,
        definition=build,
    )


def to_nhwc(module: RelayModule) -> RelayModule:
    """``module`` with convolutions and pooling in NHWC; inputs, outputs and weights keep their layouts."""
    import tvm
    from tvm import relay

    passes = [relay.transform.RemoveUnusedFunctions(), relay.transform.ConvertLayout(_CONVERTED)]
    with tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(module)


def _from_onnx(model: Any, inputs: Mapping[str, tuple[int, ...]], source: str) -> _Module:
    import tvm
    from tvm import relay

    _offer_onnx_mapping()
    shapes = {name: list(shape) for name, shape in inputs.items()}
    try:
        # The importer warns about outputs without a shape, and prints what it thinks of some operators.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            module, params = relay.frontend.from_onnx(model, shapes, freeze_params=True)
            return relay.transform.DynamicToStatic()(module), params
    except Exception as error:  # converters raise whatever they run into
        reason = f"TVM {tvm.__version__} cannot import it into Relay ({typed_last_line(error)})"
        remedy = "Export it with an older opset (TVM 0.19 reads up to 18) or with other operators"
        raise OnnxFileError(source, reason, remedy) from error


def _offer_onnx_mapping() -> None:
    """TVM's importer reads a table of element types from `onnx.mapping`, which onnx 1.19 and newer do not have."""
    import onnx

    if importlib.util.find_spec("onnx.mapping") is not None:
        return
    table = {}
    for number in onnx.TensorProto.DataType.values():
        with contextlib.suppress(KeyError):
            table[number] = onnx.helper.tensor_dtype_to_np_dtype(number)
    module = types.ModuleType("onnx.mapping")
    module.__dict__["TENSOR_TYPE_TO_NP_TYPE"] = table
    module.__spec__ = importlib.util.spec_from_loader("onnx.mapping", None)
    sys.modules["onnx.mapping"] = module


def _standard() -> dict[str, _Standard]:
    image = {"data": (1, *_IMAGE)}
    nets = {f"resnet-{n}": _Standard("resnet", {"num_layers": n}, image, "image_shape") for n in (18, 34, 50, 101, 152)}
    nets["resnet3d-18"] = _Standard("resnet_3d", {"num_layers": 18}, {"data": (1, 3, 16, 112, 112)})
    nets["mobilenet"] = _Standard("mobilenet", {"batch_size": 1}, image, "image_shape")
    for version in ("1.0", "1.1"):
        nets[f"squeezenet_v{version}"] = _Standard("squeezenet", {"version": version}, image)
    nets["inception_v3"] = _Standard("inception_v3", {"batch_size": 1}, {"data": (1, 3, 299, 299)})
    for n in (11, 13, 16, 19):
        nets[f"vgg-{n}"] = _Standard("vgg", {"batch_size": 1, "num_layers": n}, image)
    for n in (121, 161, 169, 201):
        nets[f"densenet-{n}"] = _Standard("densenet", {"batch_size": 1, "densenet_size": n}, image)
    nets["dcgan"] = _Standard("dcgan", {"batch_size": 1}, {"data": (1, 100)})
    nets["dqn"] = _Standard("dqn", {"batch_size": 1}, {"data": (1, 4, 84, 84)}, "image_shape")
    nets["mlp"] = _Standard("mlp", {"batch_size": 1}, {"data": (1, 1, 28, 28)})
    nets["lstm"] = _Standard("lstm", {"iterations": 1, "num_hidden": 128}, {"data": (1, 128)})
    return nets

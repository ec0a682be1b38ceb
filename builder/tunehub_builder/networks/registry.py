"""The list of standard networks, and how to get one. Imports neither tvm nor onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tunehub_builder.networks.bert import Bert, BertConfig
from tunehub_builder.networks.exceptions import UnknownNetworkError
from tunehub_builder.networks.language_models import MODELS, is_language_model, language_model
from tunehub_builder.networks.mobilenet_v2 import MobileNetV2, MobileNetV2Config
from tunehub_builder.networks.network import Definition, Network, Precision, UserModel
from tunehub_builder.networks.vit import ViT, ViTConfig

IMAGE = (1, 3, 224, 224)
_WHOLE_ONLY = frozenset({"mobilenet_v2"})  # TVM 0.27 cannot convert its clip (ToMixedPrecision)
_PRECISIONS: tuple[Precision, ...] = ("bf16", "int8")
_HALF = "_fp16"  # behind the name of a network: in half precision, with sums in float32

# Network -> (stem after "light_" of the file in the onnx package, name of the data input as an identifier).
# Their weights are constants there; ours are random.
LIGHT: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "squeezenet": ("squeezenet", "data_0"),
        "resnet50": ("resnet50", "gpu_0_data_0"),
        "shufflenet": ("shufflenet", "gpu_0_data_0"),
        "inception_v1": ("inception_v1", "data_0"),
        "inception_v2": ("inception_v2", "data_0"),
        "densenet121": ("densenet121", "data_0"),
        "vgg19": ("vgg19", "data_0"),
        "alexnet": ("bvlc_alexnet", "data_0"),
        "zfnet512": ("zfnet512", "gpu_0_data_0"),
    }
)


def names() -> tuple[str, ...]:
    """The names of the standard networks, those in half precision that packages have among them."""
    return (*LIGHT, *_DEFINED, f"bert_base{_HALF}", f"resnet50{_HALF}")


def is_known(name: str) -> bool:
    """Whether `get` has a network of this name."""
    if is_language_model(name):
        return True
    wholes = {name, *(name.removesuffix(f"_{each}") for each in _PRECISIONS)} | (
        {name.removesuffix(_HALF)} - _WHOLE_ONLY
    )
    return not wholes.isdisjoint((*LIGHT, *_DEFINED))


def get(name: str, *, seed: int = 0) -> Network:
    """The standard network `name`, with weights made from `seed`; most of them also in half precision, with `_fp16`
    behind the name, and all in bfloat16 and 8 bits, with `_bf16` and `_int8`. Language models of known shapes have
    their quantization there. Raises UnknownNetworkError, which lists the names."""
    if is_language_model(name):
        return language_model(name)
    if name in LIGHT:
        return _light(name, seed)
    if name in _DEFINED:
        return _DEFINED[name](seed)
    whole = name.removesuffix(_HALF)
    if whole != name and whole not in _WHOLE_ONLY and (whole in LIGHT or whole in _DEFINED):
        from tunehub_builder.networks.half import half

        return half(get(whole, seed=seed), name)
    for precision in _PRECISIONS:
        whole = name.removesuffix(f"_{precision}")
        if whole != name and (whole in LIGHT or whole in _DEFINED):
            return in_precision(get(whole, seed=seed), precision)
    raise UnknownNetworkError(name, (*names(), *(f"{model}_q0f16" for model in MODELS)))


def get_open(name: str, dims: Mapping[str, tuple[int, ...]], precision: Precision | None = None) -> Network:
    """The standard network `name` with the dimensions that `dims` names open, to be tuned for the values there.

    These are `batch`, of encoders `sequence`; without any it is the network itself. It is called `name`_open. Those of
    language models are always open: `seq_len` and `batch_size`.
    `precision`: see `in_precision`; None: its own. Raises UnknownNetworkError; OnnxFileError where it has no such
    dimension, NetworkError where it has another precision.
    """
    if is_language_model(name) and precision is None:
        return language_model(name, dims)
    network = in_precision(get(name), precision)
    if not dims:
        return network
    from tunehub_builder.networks.opened import opened

    return opened(network, dims)


def in_precision(network: Network, precision: Precision | None) -> Network:
    """`network` in another precision, under another name: with operands in bfloat16, or as a model in 8 bits; None: as
    it is. Raises NetworkError where it has a precision already."""
    if precision in (None, network.precision):
        return network
    from tunehub_builder.networks import precision as made

    return made.in_precision(network, precision)


def from_onnx_file(
    path: str | Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, tuple[int, ...]] | None = None,
) -> Network:
    """The network in a user's ONNX file, with the file's own weights.

    `shapes` fixes inputs whose shapes the file leaves open, by original or sanitised name. `dims` are the names of
    dimensions that stay open, and the values for which they are tuned.
    Raises OnnxFileError: no such file; not an ONNX model; an input that is not a tensor, is still dynamic, or does not
    exist; a given shape that contradicts the file. Operators that Relax cannot import raise it from `relax_module`.
    """
    from tunehub_builder.networks.onnx_file import read

    return read(Path(path), shapes, dims or {})


def open_model_file(
    path: str | Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> UserModel:
    """The model in a file of any form that can be read: ONNX, torch.export's `.pt2`, Relax as TVM's JSON.

    `shapes` fixes inputs, `sizes` open dimensions by name; what neither fixes stays open. Raises ModelFileError for a
    file of another form. The file is read by the methods of what is returned, which raise it, too.
    """
    from tunehub_builder.networks.model_file import reader_of

    return reader_of(Path(path))(Path(path), dict(shapes or {}), dict(sizes or {}))


def open_onnx_file(path: str | Path, *, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Definition:
    """As `from_onnx_file`; dimensions that neither the file nor `shapes` fixes stay open."""
    from tunehub_builder.networks.onnx_file import OnnxFile

    return OnnxFile(path=Path(path), shapes=dict(shapes or {}), may_be_open=True)


def _light(name: str, seed: int) -> Network:
    from tunehub_builder.networks.light import LightNetwork

    stem, data = LIGHT[name]
    return Network(
        name=name,
        source=f"onnx light_{stem} (weights seeded)",
        inputs={data: IMAGE},
        definition=LightNetwork(stem=stem, seed=seed),
    )


_DEFINED: Mapping[str, Callable[[int], Network]] = MappingProxyType(
    {
        "mobilenet_v2": lambda seed: MobileNetV2(config=MobileNetV2Config(), seed=seed).network("mobilenet_v2"),
        "bert_base": lambda seed: Bert(config=BertConfig(), seed=seed).network("bert_base"),
        "vit_b16": lambda seed: ViT(config=ViTConfig(), seed=seed).network("vit_b16"),
    }
)

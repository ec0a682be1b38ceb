"""Which reader a file with a model needs. Imports neither tvm nor onnx nor torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from tunehub_builder.networks.exceptions import ModelFileError
from tunehub_builder.networks.network import UserModel

Shapes = dict[str, tuple[int, ...]]
Reader = Callable[[Path, Shapes, dict[str, int]], UserModel]

_CONFIG = "config.json"
_PICKLED = "holds pickled Python, which is code and never loaded here"
_EXPORT = "Export the model: torch.export.save(torch.export.export(model, inputs), 'model.pt2')"
_FOREIGN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **dict.fromkeys((".pt", ".pth", ".ckpt", ".pkl", ".pickle"), (_PICKLED, _EXPORT)),
        ".bin": ("its name does not say what it is", f"Rename it if it is a model, else e{_EXPORT[1:]}"),
        ".safetensors": ("holds weights without a model", _EXPORT),
        ".tflite": ("is a model of TensorFlow Lite", "Convert it to ONNX: python -m tf2onnx.convert --tflite FILE"),
        ".so": ("is a library, not a model", "`tunehub run` runs it, `tunehub inspect` says what it was made of"),
        **dict.fromkeys((".pb", ".h5", ".keras"), ("is a model of TensorFlow", "Convert it to ONNX with tf2onnx")),
    }
)


def reader_of(path: Path) -> Reader:
    """The reader for a file, by how its name ends. Raises ModelFileError, saying what to do, for another ending, a file
    that is not there, and one of a language model's folder."""
    suffix = path.suffix.lower()
    if suffix not in _FOREIGN and not path.exists():
        raise ModelFileError(str(path), "no such file", f"Give the path of a model ({', '.join(_READERS)})")
    if path.name == _CONFIG or (suffix == ".safetensors" and (path.parent / _CONFIG).is_file()):
        raise ModelFileError(str(path), "is a part of a language model", f"Give the folder: {path.parent}")
    if suffix in _READERS:
        return _READERS[suffix]
    reason, remedy = _FOREIGN.get(suffix, ("its name does not say what it is", "Rename it"))
    raise ModelFileError(str(path), f"{reason}", f"{remedy}; {', '.join(_READERS)} can be read")


def _onnx(path: Path, shapes: Shapes, sizes: dict[str, int]) -> UserModel:
    from tunehub_builder.networks.onnx_file import OnnxFile

    return OnnxFile(path=path, shapes=shapes, may_be_open=True, sizes=sizes)


def _exported_program(path: Path, shapes: Shapes, sizes: dict[str, int]) -> UserModel:
    from tunehub_builder.networks.exported_program import ExportedProgramFile

    return ExportedProgramFile(path=path, shapes=shapes, sizes=sizes)


def _relax(path: Path, shapes: Shapes, sizes: dict[str, int]) -> UserModel:
    from tunehub_builder.networks.relax_file import RelaxFile

    return RelaxFile(path=path, shapes=shapes, sizes=sizes)


_READERS: Mapping[str, Reader] = MappingProxyType({".onnx": _onnx, ".pt2": _exported_program, ".json": _relax})

"""A model's file as a function of arrays: compiled once, kept, and called with what numpy or PyTorch have."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from tunehub.deploy.arrays import check_array, check_inputs
from tunehub.deploy.library import SUFFIX, Library, copy_library
from tunehub.deploy.runtime import ALIGNMENT, as_numpy
from tunehub.exceptions import LibraryError, LinkError
from tunehub.target.threads import size_pool
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from tunehub.deploy.interface import Interface, TensorSpec
    from tunehub.options import HubOptions, Sizes
    from tunehub.report.report import Report
    from tunehub.target.types import TargetLike
    from tunehub.tir.types import DeviceTensor
    from tunehub_builder.networks import ImportedModel

_PLACE = "model"
_PACKAGES = f"{pip_install('bench')} reads ONNX files; .pt2 files need torch as well"
_FOLDER = "language models have `tunehub.models` and `tunehub generate` (docs/llm.md); give a file here"
_SIZE, _SHAPE = "give a number, such as dims={'batch': 8}", "give numbers, such as shapes={'x': (1, 4)}"
_NOTHING_TO_CHOOSE = "leave target, dims, shapes, specialize and options out, or give the model's file"
_Read = TypeVar("_Read")


class Model:
    """A model that runs on arrays: `model(x)`, or `model(data=x)` by the names of its inputs.

    Arrays are numpy's, PyTorch's, or anything that numpy makes an array of. Nothing is copied where it lies on the
    model's device, contiguous, and aligned to 64 bytes, as PyTorch's tensors are; numpy's own are aligned to 16 and
    copied. With a tensor of PyTorch's among the inputs outputs are such, on the model's device; else arrays of numpy.
    One output comes alone, several as a tuple in the order of `outputs`. Outputs are memory that this call allocated,
    but for a model that gives an input, or a constant, back as it is. One call runs at a time.

    `report` says what serves it, and is None for a library, which was compiled before.
    """

    def __init__(self, library: Library, report: Report | None = None, folder: str | None = None) -> None:
        """`folder` goes when this does."""
        self.report = report
        if folder is not None:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._library, self._main = library, library.main
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The model's file, where the library says it, else the library's."""
        return self.interface.source or self.path.name

    @property
    def path(self) -> Path:
        """The file of its library."""
        return self._library.path

    @property
    def interface(self) -> Interface:
        """What it takes and gives, and where it came from."""
        return self._library.interface

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What it takes, in order: names, element types, shapes."""
        return self.interface.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it gives, in order."""
        return self.interface.outputs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write its library, which `load` takes again and other programs load (docs/deploy.md). Raises LinkError."""
        copy_library(self._library.path, Path(path))

    def __call__(self, *inputs: object, **named: object) -> Any:
        """Run it. Raises LibraryError for arrays that it does not take, and where running it fails."""
        given = self._given(inputs, named)
        torch_given = any(map(_is_torch, given.values()))
        arrays = {each.name: _array(self.name, each, given[each.name]) for each in self.inputs}
        check_inputs(self.name, arrays, self.interface, place="inputs")
        arguments = [_tensor(self._library, value) for value in arrays.values()]
        with self._lock:
            try:
                found = self._main(*arguments)
            except Exception as error:
                raise self._library.failed(error) from None
        make: Callable[[DeviceTensor], Any] = _as_torch if torch_given else as_numpy
        outputs = tuple(map(make, self._library.tensors(found)))
        return outputs[0] if len(outputs) == 1 else outputs

    def __repr__(self) -> str:
        takes, gives = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<tunehub.Model {self.name}: {takes} -> {gives}>"

    def _given(self, inputs: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
        """The arrays by name. Raises LibraryError unless there is one for each input."""
        names = [each.name for each in self.inputs]
        given = {**dict(zip(names, inputs, strict=False)), **named}
        if len(inputs) + len(named) != len(names) or set(given) != set(names):
            reason = f"takes {', '.join(map(str, self.inputs)) or 'nothing'}; {len(inputs)} arrays were given in order"
            reason += f" and {', '.join(named)} by name" if named else ""
            raise LibraryError(self.name, reason, place="inputs", remedy="give each input once")
        return given


def load(
    model: str | os.PathLike[str],
    target: TargetLike | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    specialize: Sizes | None = None,
    **options: Unpack[HubOptions],
) -> Model:
    """A model that runs: of a file (`.onnx`, `.pt2`, `.json` of `tvm.ir.save_json`), compiled with records, or of a
    library that `tunehub compile` wrote, whose code runs when it is loaded.

    The same compile, in this process or a later one, takes what is kept in the cache. `target` is that of
    `tunehub.compile` and has to be here. `dims` fix open dimensions by name, `shapes` inputs; what is left stays open.
    For a CPU `TVM_NUM_THREADS` is set as `tunehub.compile` sets it. Raises as `tunehub.compile`, and LibraryError,
    LinkError, OSError.
    """
    path = Path(model)
    size_pool()
    if path.suffix == SUFFIX:
        if target is not None or dims or shapes or specialize or options:
            raise LibraryError(path, "is compiled already", place=_PLACE, remedy=_NOTHING_TO_CHOOSE)
        return Model(Library(path))
    if path.is_dir():
        raise LibraryError(path, "is a folder", place=_PLACE, remedy=_FOLDER)
    for name, size in (dims or {}).items():
        _check_sizes(path, f"dims has {size!r} for {name!r}", [size], _SIZE)
    for name, shape in (shapes or {}).items():
        _check_sizes(path, f"shapes has {shape!r} for {name!r}", shape, _SHAPE)
    return compiled(path, target, dims or {}, shapes or {}, specialize=specialize, **options)


def _check_sizes(path: Path, given: str, sizes: object, remedy: str) -> None:
    """Raise LibraryError unless ``sizes`` are whole numbers from 0 on."""
    found = list(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else [None]
    if not all(isinstance(size, SupportsIndex) and not isinstance(size, bool) and int(size) >= 0 for size in found):
        raise LibraryError(path, given, place=_PLACE, remedy=remedy)


def compiled(
    path: Path,
    target: TargetLike | None,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    **options: Any,
) -> Model:
    """The model in a file, compiled or from the cache. `options` are `compile_library`'s; raises as `load`."""
    from tunehub.target.tvm_generation import require_relax

    require_relax()
    from tunehub.deploy.compiling import StepClock, compile_library

    clock = StepClock()
    clock("import")
    read = _read(path, dims, {name: tuple(shape) for name, shape in shapes.items()})
    folder = tempfile.mkdtemp(prefix="tunehub-")
    try:
        place = Path(folder) / f"{path.stem}{SUFFIX}"
        outputs, source = read.outputs, path
        made = compile_library(
            read.module, place, copied=False, target=target, clock=clock, outputs=outputs, source=source, **options
        )
        return Model(Library(made.path), made.report, folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, LinkError):
            raise LinkError(path, error.reason, remedy=error.remedy) from error  # nobody knows the folder
        raise


def _read(path: Path, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> ImportedModel:
    """The model in a file as a Relax module, with the names of its outputs. Raises LibraryError."""
    try:
        from tunehub_builder.networks import NetworkError, open_model_file
    except ModuleNotFoundError as error:
        raise _missing(path, error) from None
    try:
        return open_model_file(path, shapes=shapes, sizes=dims).imported()
    except NetworkError as error:
        reason, remedy = getattr(error, "reason", str(error)), getattr(error, "remedy", "export the model again")
        raise LibraryError(path, reason, place=_PLACE, remedy=remedy) from None
    except ModuleNotFoundError as error:
        raise _missing(path, error) from None


def _missing(path: Path, error: ModuleNotFoundError) -> LibraryError:
    return LibraryError(path, f"reading it needs the module {error.name}", place=_PLACE, remedy=_PACKAGES)


def _is_torch(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr")


def _array(model: str, spec: TensorSpec, value: Any) -> Any:
    """What was given for an input, as an array of numpy or a tensor of PyTorch. Raises LibraryError where that is not
    what the input takes."""
    import numpy as np

    if _is_torch(value):
        dtype = str(value.dtype).removeprefix("torch.")
        array = value.detach()
    else:
        array = value if isinstance(value, np.ndarray) else _numpy_of(spec, value)
        dtype = str(array.dtype)
    check_array(model, spec, tuple(array.shape), dtype, place="inputs")
    return array


def _numpy_of(spec: TensorSpec, value: Any) -> Any:
    """Arrays of others keep their element type; numbers and lists get that of the input."""
    import numpy as np

    return np.asarray(value) if hasattr(value, "dtype") else np.asarray(value, spec.dtype)


def _tensor(library: Library, value: Any) -> DeviceTensor:
    """An array on the library's device."""
    if not _is_torch(value):
        return library.tensor(value)
    device = str(value.device)
    wanted = "cpu" if library.device is None else str(library.device).replace("gpu", "cuda")
    if device.partition(":")[0] != wanted.partition(":")[0]:
        value = value.to(wanted)
    value = value.contiguous()
    return value if value.data_ptr() % ALIGNMENT == 0 else value.clone()


def _as_torch(tensor: Any) -> Any:
    import torch

    return tensor if isinstance(tensor, torch.Tensor) else torch.from_dlpack(tensor)

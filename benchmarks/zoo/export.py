"""An architecture as files: its ONNX file or program, its inputs, and what PyTorch computes from them in float32.

The folder of a network holds ``network.json`` (written last: without it the folder counts for nothing), ``model.onnx``,
``program.pt2`` where TVM gets that one, and ``inputs.npz`` and ``expected.npz``, arrays in order.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from tunehub.comparison.difference import difference
from tunehub_builder.networks import Network, open_model_file

if TYPE_CHECKING:
    import onnx
    import tvm

    from benchmarks.zoo.architectures import Architecture, Feed, Form

FACTS, MODEL, PROGRAM, INPUTS, EXPECTED = (
    "network.json", "model.onnx", "program.pt2", "inputs.npz", "expected.npz",
)  # fmt: skip
_SEED = 2026
_LEAST_ALIVE = 1e-3  # how much outputs must differ, relative, between two inputs: else nothing would be checked
Arrays = list[np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedForms:
    """The files of a network as its definition, see :class:`~tunehub_builder.networks.Definition`."""

    folder: Path

    def relax_module(self) -> tvm.IRModule:
        """What users get of the program, or of the ONNX file."""
        if (self.folder / PROGRAM).exists():
            return open_model_file(self.folder / PROGRAM).relax_module()
        from tunehub_builder.networks.onnx_import import to_relax

        return to_relax(self.onnx_model(), MODEL)

    def onnx_model(self) -> onnx.ModelProto:
        """Raises as :meth:`onnx_path`."""
        import onnx

        return onnx.load(self.onnx_path())

    def onnx_path(self) -> Path:
        """The ONNX file. Raises FileNotFoundError, which says why the exporter failed, or that it was not asked."""
        if not (self.folder / MODEL).exists():
            reason = json.loads((self.folder / FACTS).read_text()).get("onnx_error", "exported without one")
            raise FileNotFoundError(f"no ONNX file: {reason}")
        return self.folder / MODEL


@dataclass(frozen=True, kw_only=True)
class ExportedNetwork(Network):
    """A network that was exported into ``folder``."""

    folder: Path
    definition: ExportedForms = field(repr=False, compare=False)

    def sample_inputs(self, seed: int = 0) -> dict[str, Any]:
        """The inputs that it was exported with, whatever the seed."""
        return dict(zip(self.inputs, arrays(self.folder / INPUTS), strict=True))

    def expected(self) -> Arrays:
        """PyTorch's outputs for these inputs."""
        return arrays(self.folder / EXPECTED)


def read_exported(folder: Path) -> ExportedNetwork:
    """The network in ``folder``. Raises OSError when nothing was exported there."""
    facts = json.loads((folder / FACTS).read_text())
    inputs = {name: tuple(shape) for name, shape in facts["inputs"].items()}
    forms = ExportedForms(folder=folder)
    return ExportedNetwork(name=facts["name"], source=facts["library"], inputs=inputs, definition=forms, folder=folder)


def is_exported(folder: Path, form: Form, *, with_onnx: bool) -> bool:
    """Whether :func:`export` has been through for this form, and when asked has also made an ONNX file or said why it
    cannot."""
    if not (folder / FACTS).exists() or (folder / PROGRAM).exists() != (form == "program"):
        return False
    return not with_onnx or (folder / MODEL).exists() or "onnx_error" in json.loads((folder / FACTS).read_text())


def arrays(path: Path) -> Arrays:
    """The arrays of an ``.npz`` file, in order."""
    with np.load(path) as file:
        return [file[name] for name in sorted(file.files)]


def _write_arrays(path: Path, values: Sequence[Any]) -> None:
    """The opposite of :func:`arrays`."""
    np.savez(path, **{f"a{number:03}": value for number, value in enumerate(values)})


def export(architecture: Architecture, folder: Path, *, with_onnx: bool = True) -> None:
    """Make the network of ``architecture`` and write its files; ``with_onnx``: an ONNX file also beside a program.

    Raises what PyTorch's exporters raise, ValueError for a network whose outputs do not depend on its inputs, and
    ImportError without PyTorch or the architecture's library.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name in (FACTS, MODEL, PROGRAM):
        (folder / name).unlink(missing_ok=True)
    model = seeded_model(architecture)
    values, others = feeds_of(architecture, _SEED), feeds_of(architecture, _SEED + 1)
    with torch.inference_mode():
        expected, changed = ([as_array(v) for v in model(*map(_wide, given))] for given in (values, others))
    if not difference(changed, expected) > _LEAST_ALIVE:
        raise ValueError("its outputs do not depend on its inputs")
    model = model.half() if architecture.half else model
    facts = _write_forms(architecture, model, [torch.from_numpy(value) for value in values], folder, with_onnx)
    parameters = sum(weight.numel() for weight in model.parameters())
    named = dict(zip(architecture.feeds, values, strict=True))
    write_network(folder, architecture.name, architecture.library, named, expected, parameters=parameters, **facts)


def write_network(
    folder: Path, name: str, library: str, inputs: Mapping[str, Any], expected: Sequence[Any], **facts: Any
) -> None:
    """All but the network's forms, which must be in the ``folder`` already. Raises OSError."""
    _write_arrays(folder / INPUTS, list(inputs.values()))
    _write_arrays(folder / EXPECTED, expected)
    shapes = {key: list(value.shape) for key, value in inputs.items()}
    text = json.dumps({"name": name, "library": library, "inputs": shapes, **facts}, indent=1)
    (folder / FACTS).write_text(text)


class ExportSession:
    """In a worker process: exports by request."""

    def export(self, name: str, folder: Path, with_onnx: bool) -> None:
        """See :func:`export`. Raises StopIteration for a name that no architecture has."""
        from benchmarks.zoo.architectures import architecture

        export(architecture(name), folder, with_onnx=with_onnx)


def _write_forms(
    architecture: Architecture, model: Any, values: Sequence[Any], folder: Path, with_onnx: bool
) -> dict[str, Any]:
    """The network's files; an ONNX file that only other runtimes need may fail, and the facts say why."""
    import torch

    warnings.simplefilter("ignore")
    if architecture.form == "program":
        torch.export.save(torch.export.export(model, tuple(values)), folder / PROGRAM)
        if not with_onnx:
            return {}
    try:
        torch.onnx.export(
            model, tuple(values), folder / MODEL, dynamo=True, external_data=False, verbose=False,
            input_names=list(architecture.feeds),
        )  # fmt: skip
    except Exception as error:
        if architecture.form == "onnx":
            raise
        return {"onnx_error": str(error).strip().splitlines()[-1]}
    return {}


def seeded_model(architecture: Architecture) -> Any:
    """The network for inference with random weights that depend on its name alone; its outputs are a tuple of tensors.

    No weight is left at a constant, such as the zeros of a residual branch's last scale, and batch normalisations have
    the statistics of a random input, so that everything counts in the outputs.
    """
    import torch

    torch.manual_seed(crc32(architecture.name.encode()))
    whole = architecture.make().eval()
    with torch.no_grad():
        for weight in whole.parameters():
            if weight.is_floating_point() and weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                _vary(weight)
        _calibrate(whole, architecture.feeds)
    return _tuple_module(whole, tuple(architecture.feeds) if architecture.library == "transformers" else ())


def _vary(weight: Any) -> None:
    """Zeros and tiny scales become small numbers of both signs, others vary around what they are."""
    import torch

    value = float(weight.flatten()[0])
    weight.copy_(
        torch.randn_like(weight) * 0.1 + value if abs(value) < 0.2 else value * (0.8 + 0.4 * torch.rand_like(weight))
    )


def _calibrate(model: Any, feeds: Mapping[str, Feed]) -> None:
    import torch

    norms = [part for part in model.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms or len(feeds) != 1:
        return
    for part in norms:
        part.train()
        part.momentum = 1.0
    (feed,) = feeds.values()
    model(torch.randn(4, *feed.shape[1:]))
    for part in norms:
        part.eval()


def _tuple_module(whole: Any, names: Sequence[str]) -> Any:
    """``whole`` with positional arguments, by ``names`` where there are any; a tuple of all tensors it returns."""
    import torch
    from torch.utils._pytree import tree_leaves

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = whole

        def forward(self, *values: Any) -> Any:
            found = self.whole(**dict(zip(names, values, strict=True))) if names else self.whole(*values)
            found = dict(found) if hasattr(found, "keys") else found
            return tuple(leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor))

    return Flat().eval()


def feeds_of(architecture: Architecture, seed: int) -> Arrays:
    """Arrays for all inputs."""
    rng = np.random.default_rng(seed)
    return [_feed(feed, rng, "float16" if architecture.half else "float32") for feed in architecture.feeds.values()]


def _wide(value: Any) -> Any:
    """An input as a tensor of float32: what is computed in half precision is compared with that."""
    import torch

    return torch.from_numpy(value.astype("float32") if value.dtype == "float16" else value)


def _feed(feed: Feed, rng: np.random.Generator, dtype: str) -> Any:
    if feed.mask:
        mask = np.ones(feed.shape, "int64")
        mask[..., feed.shape[-1] * 3 // 4 :] = 0
        return mask
    if feed.below:
        return rng.integers(1, feed.below, feed.shape)
    return rng.standard_normal(feed.shape, dtype="float32").astype(dtype)


def as_array(tensor: Any) -> Any:
    """A tensor of PyTorch on the CPU."""
    return tensor.detach().cpu().numpy()

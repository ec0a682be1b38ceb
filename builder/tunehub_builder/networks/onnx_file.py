"""A user's ONNX file as a network."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
import tvm

from tunehub.graph.identifiers import identifiers
from tunehub_builder.networks import onnx_model
from tunehub_builder.networks.exceptions import OnnxFileError
from tunehub_builder.networks.network import OPEN, ImportedModel, Network
from tunehub_builder.networks.precision import is_quantised

Shapes = Mapping[str, tuple[int, ...]]
_SIZE, _MOST_TRIED = 64, 4


@dataclass(frozen=True, kw_only=True)
class OnnxFile:
    """Reads the file anew for each form, so that no weights stay in memory between uses.

    ``may_be_open``: dimensions that neither the file, ``shapes`` nor ``sizes``, by name, fixes stay open.
    """

    path: Path
    shapes: Shapes
    may_be_open: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        return self.imported().module

    def imported(self) -> ImportedModel:
        """See `UserModel.imported`."""
        from tunehub_builder.networks.onnx_import import to_relax

        model = self.onnx_model()
        outputs = tuple(value.name for value in model.graph.output)
        try:
            return ImportedModel(module=to_relax(model, str(self.path)), outputs=outputs)
        except OnnxFileError as error:
            helps = self._sizes_that_help(model)
            if not helps:
                raise
            remedy = f"Fix what is open there: {' '.join(f'--dim {name}={size}' for name, size in helps.items())}, say"
            raise OnnxFileError(
                error.path, error.reason, f"{remedy}; or {error.remedy[0].lower()}{error.remedy[1:]}"
            ) from error

    def _sizes_that_help(self, model: onnx.ModelProto) -> dict[str, int]:
        """Sizes of open dimensions with which a model can be imported that cannot as it is: of one, or of all."""
        from tunehub_builder.networks.onnx_import import to_relax

        shapes = [onnx_model.shape_of(value) or () for value in model.graph.input]
        names = dict.fromkeys(d for shape in shapes for d in shape if isinstance(d, str) and d != "?")
        for tried in [*([name] for name in names), list(names)] if len(names) <= _MOST_TRIED else [list(names)]:
            sizes = dict.fromkeys(tried, _SIZE)
            with contextlib.suppress(OnnxFileError):
                to_relax(replace(self, sizes={**self.sizes, **sizes}).onnx_model(), str(self.path))
                return sizes
        return {}

    def as_exported(self) -> onnx.ModelProto:
        """The file's model, its shapes fixed: what other runtimes are given. Raises OnnxFileError."""
        model = onnx_model.load(self.path)
        onnx_model.drop_initializers_from_inputs(model)
        _fix_sizes(model, self.sizes, str(self.path))
        _fix_shapes(model, self.shapes, str(self.path), may_be_open=self.may_be_open)
        return model

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`."""
        model = self.as_exported()
        onnx_model.simplify(model)
        onnx_model.sanitise_interface(model)
        return model


def read(path: Path, shapes: Shapes | None = None, dims: Shapes | None = None) -> Network:
    """The network in an ONNX file; see `tunehub_builder.networks.from_onnx_file`."""
    definition = OnnxFile(path=path, shapes=dict(shapes or {}), may_be_open=bool(dims))
    model = definition.onnx_model()
    graph = model.graph
    opened = {value.name: onnx_model.shape_of(value) or () for value in graph.input}
    named = {d for shape in opened.values() for d in shape if isinstance(d, str)}
    _check_named(named, dims or {}, str(path))
    known = {name: values for name, values in (dims or {}).items() if name in named}
    inputs = {name: tuple(known[d][0] if isinstance(d, str) else d for d in s) for name, s in opened.items()}
    dtypes = {value.name: onnx_model.dtype_of(value) for value in graph.input}
    main = next((d for d in dtypes.values() if d.startswith("float")), "float32")
    return Network(
        name=f"{path.stem}_open" if known else path.stem,  # beside records of fixed shapes another network
        source=f"onnx file {path.name}" + (f"{OPEN}{', '.join(known)}" if known else ""),
        inputs=inputs,
        dtype=main,
        input_dtypes={name: dtype for name, dtype in dtypes.items() if dtype != main},
        dims=known,
        precision="int8" if is_quantised(model) else "float32",
        definition=definition,
    )


def _check_named(found: set[str], dims: Shapes, source: str) -> None:
    """Raise OnnxFileError unless `dims` are names of open dimensions, and all of these."""
    unknown = sorted(found - dims.keys())
    if unknown:
        reason = f"the dimension {unknown[0]!r} is open"
        raise OnnxFileError(source, reason, f"Give --dim {unknown[0]}=1,2,4 with the values to tune for, or fix it")
    if dims and not found:
        raise OnnxFileError(source, "it has no open dimension", "Leave --dim out")


def _fix_shapes(model: onnx.ModelProto, shapes: Shapes, source: str, *, may_be_open: bool) -> None:
    """Set the given shapes; raise OnnxFileError unless every input then has a shape, which is fixed but with
    ``may_be_open``."""
    names = identifiers(value.name for value in model.graph.input)
    asked = {_input_named(name, names, source): shape for name, shape in shapes.items()}
    for value in model.graph.input:
        try:
            onnx_model.dtype_of(value)
        except (ValueError, KeyError) as error:
            remedy = "Only tensor inputs can be tuned; export the model without it"
            raise OnnxFileError(source, f"input {value.name!r} is not a tensor", remedy) from error
        if value.name in asked:
            _check_fits(value, asked[value.name], source)
            onnx_model.set_shape(value, asked[value.name])
        if not may_be_open or onnx_model.shape_of(value) is None:
            _check_static(value, names[value.name], source, may_be_open=may_be_open)
    if asked:
        onnx_model.forget_inferred_shapes(model)


def _fix_sizes(model: onnx.ModelProto, sizes: Mapping[str, int], source: str) -> None:
    """Give the open dimensions of all inputs that ``sizes`` names their sizes. Raises OnnxFileError for others."""
    dimensions = [d for value in model.graph.input for d in value.type.tensor_type.shape.dim if d.dim_param]
    named = {d.dim_param for d in dimensions}
    for name in sizes:
        if name not in named:
            remedy = f"Its open dimensions are {', '.join(sorted(named))}" if named else "It has none with a name"
            raise OnnxFileError(source, f"there is no open dimension {name!r}", remedy)
    for dimension in dimensions:
        if dimension.dim_param in sizes:
            dimension.dim_value = sizes[dimension.dim_param]
    if sizes:
        onnx_model.forget_inferred_shapes(model)


def _input_named(name: str, names: Mapping[str, str], source: str) -> str:
    for original, identifier in names.items():
        if name in (original, identifier):
            return original
    known = ", ".join(names) or "none"
    raise OnnxFileError(source, f"there is no input {name!r}", f"Give shapes for the inputs it has: {known}")


def _check_fits(value: onnx.ValueInfoProto, shape: tuple[int, ...], source: str) -> None:
    declared = onnx_model.shape_of(value)
    if any(not isinstance(d, int) or d <= 0 for d in shape):
        reason = f"the shape {shape} given for input {value.name!r} has a dimension that is not a positive integer"
        raise OnnxFileError(source, reason, "Give positive integers")
    if declared is None:
        return
    differs = any(isinstance(d, int) and d != s for d, s in zip(declared, shape, strict=False))
    if differs or len(declared) != len(shape):
        reason = f"the shape {shape} given for input {value.name!r} contradicts the file's {_printed(declared)}"
        raise OnnxFileError(source, reason, "Keep the fixed dimensions and set only the open ones")


def _check_static(value: onnx.ValueInfoProto, identifier: str, source: str, *, may_be_open: bool) -> None:
    shape = onnx_model.shape_of(value)
    if shape is not None and all(isinstance(d, int) for d in shape):
        return
    if shape is None:
        reason, example = f"input {value.name!r} has no shape", "1,3,224,224"
    else:
        reason = f"input {value.name!r} has the dynamic shape {_printed(shape)}"
        example = ",".join(str(d) if isinstance(d, int) else "1" for d in shape)
    remedy = f"Fix it, for example with --input-shape {identifier}:{example}"
    remedy += "" if may_be_open else ", or tune for some of its values with `tunehub tune --dim`"
    raise OnnxFileError(source, reason, remedy)


def _printed(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(str(d) for d in shape)})"

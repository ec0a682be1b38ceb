"""Reading and rewriting ONNX models. No TVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tunehub.graph.identifiers import identifiers
from tunehub_builder.networks.exceptions import NetworkError, OnnxFileError
from tunehub_builder.networks.onnx_packed import with_packed_weights
from tunehub_builder.networks.onnx_quantised import to_qdq
from tunehub_builder.networks.onnx_shapes import keep_shapes

# Initializers may be left out of the graph inputs from IR version 4 on.
FIRST_IR_WITH_FREE_INITIALIZERS = 4
FIRST_OPSET_WITH_BROADCASTING_SUM = 8
FIRST_OPSET_WITH_AXES_AS_INPUTS = 13  # of Unsqueeze
FIRST_OPSET_WITH_SCALES_OF_CHANNELS = 13  # of QuantizeLinear
_TYPES = frozenset({"to", "dtype", "output_dtype"})  # attributes that are types of elements
_ZIP = b"PK\x03\x04"
_LFS = b"version https://git-lfs.github.com/spec/"


def load(path: Path) -> onnx.ModelProto:
    """Read a model with its external data. Raises OnnxFileError for a file that is missing, or that is not a model."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "no such file"
        raise OnnxFileError(str(path), what, "Give the path of an ONNX file, for example ./model.onnx")
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's, onnx's and the system's errors have no common root
        raise OnnxFileError(str(path), f"not readable as ONNX ({_first_line(error)})", _remedy(path, error)) from error
    if not model.graph.node:
        raise OnnxFileError(str(path), "not an ONNX model: it has no nodes", "Export the model again")
    return model


def _remedy(path: Path, error: Exception) -> str:
    """What to do about a file that cannot be read."""
    if "external data" in str(error).lower() or "should be stored in" in str(error):
        return "Put the file with its weights where the model names it, beside the model"
    with path.open("rb") as stream:
        begin = stream.read(64)
    if begin.startswith(_ZIP):
        return "It is an archive, such as PyTorch's: give it the name that it had, or export the model to ONNX"
    if begin.startswith(_LFS):
        return "It is a pointer of Git LFS in place of the model: run `git lfs pull`"
    if begin.isascii() and begin.decode().strip().replace("\n", "").isprintable():
        return "It is text, such as a web page: download or export the model again"
    return "It may not be whole: copy or export it again"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def drop_initializers_from_inputs(model: onnx.ModelProto) -> None:
    """Leave only the true data inputs in the graph's inputs."""
    weights = {i.name for i in model.graph.initializer} | {i.values.name for i in model.graph.sparse_initializer}
    kept = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, FIRST_IR_WITH_FREE_INITIALIZERS)


def simplify(model: onnx.ModelProto) -> None:
    """Rewrite, without changing any result, what TVM's importers take badly.

    Sum becomes Add: the importers make a broadcast, a stack and a reduction of it, which no convolution takes in.
    Dropout, the identity at inference, goes: TVM 0.25 cannot import it. Needs opset 8, the first whose Sum broadcasts.
    From opset 13 on, what :mod:`tunehub_builder.networks.onnx_shapes` rewrites, integer operators in QDQ form
    (:mod:`tunehub_builder.networks.onnx_quantised`), and weights in blocks
    (:mod:`tunehub_builder.networks.onnx_packed`).
    """
    if _opset(model) < FIRST_OPSET_WITH_BROADCASTING_SUM:
        return
    if _opset(model) >= FIRST_OPSET_WITH_AXES_AS_INPUTS:
        keep_shapes(model.graph)
        with_packed_weights(model.graph)
        to_qdq(model.graph)
    _drop_dropout(model.graph)
    nodes = [new for node in model.graph.node for new in (_adds(node) if node.op_type == "Sum" else [node])]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def with_scales_of_channels(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an opset whose quantisation may have a scale for each channel.

    onnxruntime's quantiser does not look, and no runtime loads what it writes then. Raises NetworkError.
    """
    from onnx import version_converter

    if _opset(model) >= FIRST_OPSET_WITH_SCALES_OF_CHANNELS:
        return model
    try:
        return version_converter.convert_version(model, FIRST_OPSET_WITH_SCALES_OF_CHANNELS)
    except RuntimeError as error:  # ConvertError, and what its C++ throws
        raise NetworkError(
            f"a model in opset {_opset(model)} cannot be brought to {FIRST_OPSET_WITH_SCALES_OF_CHANNELS}, which "
            f"8 bits need: {error}. Export it with a newer opset"
        ) from error


def _opset(model: onnx.ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def _drop_dropout(graph: onnx.GraphProto) -> None:
    """Remove the dropouts whose mask nobody asks for and that no input can switch to training."""
    results = {value.name for value in graph.output}
    for node in [n for n in graph.node if n.op_type == "Dropout"]:
        output, *mask = node.output
        if len(node.input) < 3 and output not in results and not _used(graph) & {*mask}:
            graph.node.remove(node)
            rename(graph, {output: node.input[0]})


def _used(graph: onnx.GraphProto) -> set[str]:
    """The names that nodes take, in inner graphs too, or that the graph returns."""
    inner = [g for node in graph.node for a in node.attribute for g in (a.g, *a.graphs)]
    names = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    return names.union(*(_used(g) for g in inner))


def _adds(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A chain of Add for a Sum of two or more."""
    first, *others = node.input
    if not others:
        return [node]
    partial = [*(f"{node.output[0]}_partial{i}" for i in range(len(others) - 1)), node.output[0]]
    left = [first, *partial]
    return [helper.make_node("Add", [a, b], [out], name=out) for a, b, out in zip(left, others, partial, strict=False)]


def add_initializer(graph: onnx.GraphProto, name: str, array: npt.NDArray[np.generic]) -> None:
    """Append a constant, with fewer copies than `onnx.numpy_helper.from_array`: for large weights they are the cost."""
    tensor = graph.initializer.add(name=name, dims=array.shape)
    tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor.raw_data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def to_half(model: onnx.ModelProto) -> None:
    """Make every float32 tensor of a model float16: weights, inputs and outputs. Attributes stay as they are."""
    single, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    weights = [tensor for tensor in model.graph.initializer if tensor.data_type == single]
    for tensor in weights:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == single:
            value.type.tensor_type.elem_type = half


def to_single(model: onnx.ModelProto) -> None:
    """Make every float16 tensor of a model float32: weights, inputs, outputs, and what nodes name."""
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    for graph in _graphs(model.graph):
        given = [attribute for node in graph.node for attribute in node.attribute]
        for tensor in (*graph.initializer, *(a.t for a in given if a.type == onnx.AttributeProto.TENSOR)):
            if tensor.data_type == half:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))
        for attribute in given:
            if attribute.name in _TYPES and attribute.i == half:
                attribute.i = single
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == half:
                value.type.tensor_type.elem_type = single


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(inner)


def sanitise_interface(model: onnx.ModelProto) -> None:
    """Give the graph's inputs and outputs names that are identifiers."""
    interface = [value.name for value in (*model.graph.input, *model.graph.output)]
    others = _tensor_names(model.graph) - set(interface)
    taken = identifiers([*(n for n in sorted(others) if n.isidentifier()), *interface])
    rename(model.graph, {name: taken[name] for name in interface if taken[name] != name})


def _tensor_names(graph: onnx.GraphProto) -> set[str]:
    return {i.name for i in graph.initializer} | {o for node in graph.node for o in node.output}


def rename(graph: onnx.GraphProto, mapping: Mapping[str, str]) -> None:
    """Rename tensors, also where inner graphs (If, Loop) use them."""
    if not mapping:
        return
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = mapping.get(value.name, value.name)
    for node in graph.node:
        for ends in (node.input, node.output):
            for i, name in enumerate(ends):
                ends[i] = mapping.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                rename(inner, mapping)


def shape_of(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    """The shape of a graph input; an open dimension gives its name, or "?". None: not even the rank is known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.dim_value > 0 else d.dim_param or "?" for d in tensor.shape.dim)


def dtype_of(value: onnx.ValueInfoProto) -> str:
    """The element type of a graph input as NumPy names it. Raises ValueError for an input that is not a tensor."""
    if not value.type.HasField("tensor_type"):
        raise ValueError(f"input {value.name!r} is not a tensor")
    return str(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def set_shape(value: onnx.ValueInfoProto, shape: Iterable[int]) -> None:
    """Fix the shape of a graph input."""
    fixed = helper.make_tensor_type_proto(value.type.tensor_type.elem_type, tuple(shape))
    value.type.CopyFrom(fixed)


def forget_inferred_shapes(model: onnx.ModelProto) -> None:
    """Remove recorded shapes that input shapes set later would contradict."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")

"""Arithmetic of shapes in an ONNX model, written as TVM's importer takes it. No TVM.

Exporters compute the shapes that operators are given from those of tensors, in many ways: slices and concatenations of
whole shapes, reshapes and casts of numbers. TVM's importer keeps dimensions symbolic through some of these, and makes
tensors of others, whose values it does not know: it refuses what comes of them. Here each such vector is taken apart
into numbers, and put together again from ``Gather(Shape(x), i)``, arithmetic of two numbers, ``Unsqueeze``, ``Concat``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import numpy as np
import onnx
from onnx import helper, numpy_helper

Number = int | str
"""An int, or the name of a tensor of rank 0."""

_FIRST_OPSET = 13
_INT64 = onnx.TensorProto.INT64
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: int(a / b),
    "Mod": lambda a, b: a % b,
    "Min": min,
    "Max": max,
}
_SHAPES_OF = {"Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Resize": (3,), "Tile": (1,), "Pad": (1,),
              "Range": (0, 1, 2), "Slice": (1, 2, 3, 4)}  # fmt: skip
_MOST = 64  # numbers of a constant that may be part of a shape


@dataclass(frozen=True, kw_only=True, slots=True)
class _ShapeVector:
    """What a tensor of int64 is made of; ``scalar``: it has rank 0."""

    numbers: tuple[Number, ...]
    scalar: bool = False


def fold_shapes(model: onnx.ModelProto) -> bool:
    """Rewrite the nodes of the graph, not those of inner graphs; whether there was anything to rewrite. From opset 13
    on, whose Unsqueeze has axes as inputs."""
    graph = model.graph
    if next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1) < _FIRST_OPSET:
        return False
    writer = _ShapeWriter(shapes=_shapes(model), values=_constants(graph))
    for node in graph.node:
        writer.take(node)
    if not writer.replaced:
        return False
    del graph.node[:]
    graph.node.extend(_needed(writer.nodes, {value.name for value in graph.output}))
    graph.initializer.extend(writer.constants.values())
    del graph.value_info[:]
    return True


@dataclass(kw_only=True, slots=True)
class _ShapeWriter:
    """Reads nodes in order, and writes those that stand for them. ``shapes``: of tensors, None where open."""

    shapes: Mapping[str, tuple[int | None, ...]]
    values: dict[str, _ShapeVector]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    replaced: int = 0
    _made: dict[str, str] = field(default_factory=dict)
    _computed: set[str] = field(default_factory=set)

    def take(self, node: onnx.NodeProto) -> None:
        """Write a node, with vectors in place of what it takes as shapes."""
        found = None if node.op_type == "Constant" else self._value(node)
        if found is not None:
            self.values[node.output[0]] = found
            self._computed.add(node.output[0])
        new = onnx.NodeProto()
        new.CopyFrom(node)
        for place in _SHAPES_OF.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ():
            vector = self.values.get(node.input[place]) if place < len(node.input) else None
            if vector is not None and node.input[place] in self._computed:
                new.input[place] = self._number(vector.numbers[0]) if vector.scalar else self._vector(vector.numbers)
                self.replaced += 1
        self.nodes.append(new)

    def _value(self, node: onnx.NodeProto) -> _ShapeVector | None:
        """What a node gives, where that is known."""
        read = _READERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        try:
            return None if read is None else read(self, node)
        except (KeyError, IndexError, ValueError, ZeroDivisionError):  # of something else than shapes
            return None

    def extent(self, tensor: str, axis: int) -> Number:
        """A dimension of a tensor."""
        known = self.shapes[tensor][axis]
        if known is not None:
            return known
        shape = self._node("Shape", [tensor], f"{tensor}_shape")
        return self._node("Gather", [shape, self._constant(np.array(axis, "int64"))], f"{tensor}_extent{axis}", axis=0)

    def calculated(self, operator: str, one: Number, other: Number) -> Number:
        """The result of arithmetic on two numbers."""
        if isinstance(one, int) and isinstance(other, int):
            return _ARITHMETIC[operator](one, other)
        if operator in ("Min", "Max"):
            raise ValueError(operator)
        name = f"{operator}({one},{other})"
        return self._node(operator, [self._number(one), self._number(other)], name)

    def _number(self, number: Number) -> str:
        return number if isinstance(number, str) else self._constant(np.array(number, "int64"))

    def _vector(self, numbers: Sequence[Number]) -> str:
        if all(isinstance(number, int) for number in numbers):
            return self._constant(np.array(numbers, "int64"))
        axis = self._constant(np.array([0], "int64"))
        parts = [
            self._node("Unsqueeze", [number, axis], f"{number}_vector")
            if isinstance(number, str)
            else self._constant(np.array([number], "int64"))
            for number in numbers
        ]
        return parts[0] if len(parts) == 1 else self._node("Concat", parts, f"({','.join(map(str, numbers))})", axis=0)

    def _node(self, operator: str, inputs: Sequence[str], name: str, **attributes: int) -> str:
        """A node that is written once; its output."""
        if name not in self._made:
            output = self._made[name] = f"tunehub_shape_{len(self._made)}"
            self.nodes.append(helper.make_node(operator, list(inputs), [output], name=output, **attributes))
        return self._made[name]

    def _constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
        name = f"tunehub_shape_{'_'.join(map(str, array.reshape(-1).tolist()))}_of_rank_{array.ndim}"
        self.constants.setdefault(name, numpy_helper.from_array(array, name))
        return name


_Reader = Callable[[_ShapeWriter, onnx.NodeProto], "_ShapeVector | None"]


def _shape(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    chosen = range(len(writer.shapes[node.input[0]]))[
        slice(_attribute(node, "start", 0), _attribute(node, "end", None))
    ]
    return _ShapeVector(numbers=tuple(writer.extent(node.input[0], axis) for axis in chosen))


def _gather(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    numbers, index = writer.values[node.input[0]].numbers, writer.values[node.input[1]]
    return _ShapeVector(numbers=tuple(numbers[_known(each)] for each in index.numbers), scalar=index.scalar)


def _slice(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    data = writer.values[node.input[0]]
    parts = [[_known(each) for each in writer.values[name].numbers] if name else [0] for name in node.input[1:]]
    parts += [[default] for default in (0, 1)[len(parts) - 2 :]]  # the axis, the step
    (start,), (end,), (axis,), (step,) = parts
    if data.scalar or axis not in (0, -1):
        raise ValueError(axis)
    return _ShapeVector(numbers=data.numbers[slice(start, end, step)])


def _concat(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    parts = [writer.values[name] for name in node.input]
    if any(part.scalar for part in parts):
        raise ValueError(node.op_type)
    return _ShapeVector(numbers=tuple(number for part in parts for number in part.numbers))


def _unsqueeze(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    data = writer.values[node.input[0]]
    if not data.scalar:
        raise ValueError(node.op_type)
    return _ShapeVector(numbers=data.numbers)


def _squeeze(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    (number,) = writer.values[node.input[0]].numbers
    return _ShapeVector(numbers=(number,), scalar=True)


def _reshape(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    data, shape = writer.values[node.input[0]], writer.values[node.input[1]].numbers
    if shape and shape not in ((-1,), (len(data.numbers),)):
        raise ValueError(shape)
    return _ShapeVector(numbers=data.numbers, scalar=not shape)


def _same(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    if node.op_type == "Cast" and _attribute(node, "to", None) != _INT64:
        raise ValueError("to")
    return writer.values[node.input[0]]


def _calculated(writer: _ShapeWriter, node: onnx.NodeProto) -> _ShapeVector:
    one, other = (writer.values[name] for name in node.input)
    length = max(len(one.numbers), len(other.numbers))
    if not {len(one.numbers), len(other.numbers)} <= {1, length}:
        raise ValueError(length)
    pairs = zip(*(islice(cycle(each.numbers), length) for each in (one, other)), strict=True)
    numbers = tuple(writer.calculated(node.op_type, *pair) for pair in pairs)
    return _ShapeVector(numbers=numbers, scalar=one.scalar and other.scalar)


_READERS: Mapping[str, _Reader] = {
    "Shape": _shape, "Gather": _gather, "Slice": _slice, "Concat": _concat, "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze, "Reshape": _reshape, "Cast": _same, "Identity": _same,
    **dict.fromkeys(_ARITHMETIC, _calculated),
}  # fmt: skip


def _known(number: Number) -> int:
    if isinstance(number, str):
        raise ValueError(number)
    return number


def _attribute(node: onnx.NodeProto, name: str, default: int | None) -> int | None:
    return next((int(each.i) for each in node.attribute if each.name == name), default)


def _constants(graph: onnx.GraphProto) -> dict[str, _ShapeVector]:
    """The small constants of int64, of rank 0 and 1."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        given = next((each.t for each in node.attribute if each.name == "value"), None)
        tensors |= {node.output[0]: given} if node.op_type == "Constant" and given is not None else {}
    return {
        name: _ShapeVector(numbers=tuple(numpy_helper.to_array(tensor).reshape(-1).tolist()), scalar=not tensor.dims)
        for name, tensor in tensors.items()
        if tensor.data_type == _INT64 and len(tensor.dims) < 2 and int(np.prod(tensor.dims)) <= _MOST
    }


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int | None, ...]]:
    """What ONNX's inference knows of the shapes of tensors."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # protobuf's limit of 2 GB, and what inference takes for contradictions
        graph = model.graph
    kinds = {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info, *graph.output)}
    weights: dict[str, tuple[int | None, ...]] = {tensor.name: (*tensor.dims,) for tensor in model.graph.initializer}
    found = {name: kind.shape.dim for name, kind in kinds.items() if kind.HasField("shape")}
    return {
        name: tuple(each.dim_value if each.HasField("dim_value") else None for each in dims)
        for name, dims in found.items()
    } | weights


def _needed(nodes: Iterable[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """The nodes that results come from, in order."""
    kept = []
    for node in reversed(list(nodes)):
        if wanted & set(node.output):
            kept.append(node)
            wanted = wanted | set(node.input) | _inner(node)
    return kept[::-1]


def _inner(node: onnx.NodeProto) -> set[str]:
    """What graphs inside a node take from outside it, and more."""
    graphs = [graph for each in node.attribute for graph in (each.g, *each.graphs)]
    names = {name for graph in graphs for inner in graph.node for name in (*inner.input, *_inner(inner))}
    return names | {value.name for graph in graphs for value in graph.output}

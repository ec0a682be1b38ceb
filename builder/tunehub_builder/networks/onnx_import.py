"""From an ONNX model to a Relax module, with errors that say what to do."""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

from tunehub.exceptions import ConstantTooLargeError, typed_last_line
from tunehub.graph.constant_sizes import GROWTH, check_elements
from tunehub.graph.origins import inherited, named
from tunehub.kernels.cuda.low_batch.weights import GROUP, Format, dequantised
from tunehub.tir.nodes import calls_in, constant_array, is_constant, shape_of, shape_of_type, tensor_type
from tunehub.tir.symbols import symbol_name, variables_in
from tunehub_builder.networks.columns import emitted_image
from tunehub_builder.networks.exceptions import OnnxFileError, UnfitNodeError
from tunehub_builder.networks.onnx_attributes import MISREAD, node_name, rewritten, windows_of
from tunehub_builder.networks.onnx_packed import PACKED
from tunehub_builder.networks.onnx_resize import OPERATORS as RESIZING
from tunehub_builder.networks.onnx_resize import ResizeNode
from tunehub_builder.networks.onnx_shape_arithmetic import fold_shapes

REMEDY = (
    "Export with other operators or another opset, simplify the model (for example with onnxsim), "
    "or move the part around this operator out of the model"
)
_LOWER, _INTEGERS = "tir_var_lower_bound", ("int32", "int64")
_OF_NUMBERS = ("ConstantOfShape", "Range")
_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow")
_NAMED = 3  # nodes that an error names


def to_relax(model: onnx.ModelProto, source: str) -> tvm.IRModule:
    """Import a model whose initializers are not graph inputs; its weights become constants of `main`.

    Raises OnnxFileError (`path` = `source`) when the importer does not know an operator or fails on one, and
    ConstantTooLargeError.
    """
    try:
        found = _imported(model, source)
    except OnnxFileError:
        folded = _folded(model, source)
        if folded is None:  # what is said of the file as it is says more
            raise
        return folded
    unknown = _unknown_shapes(found)
    folded = _folded(model, source) if unknown else None
    return found if folded is None or _unknown_shapes(folded) >= unknown else folded


def _folded(model: onnx.ModelProto, source: str) -> tvm.IRModule | None:
    """The model with its shapes as numbers where that changes it, and TVM can import it then."""
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    with contextlib.suppress(OnnxFileError):
        return _imported(folded, source) if fold_shapes(folded) else None
    return None


def _unknown_shapes(mod: tvm.IRModule) -> int:
    """How many tensors of a module have no known shape: TVM has no code for most operators on them."""
    types = (tensor_type(call) for call in calls_in(mod))
    return sum(hasattr(each, "shape") and shape_of_type(each) is None for each in types)


def _imported(model: onnx.ModelProto, source: str) -> tvm.IRModule:
    printed = io.StringIO()
    try:
        # The importer warns about names and prints the node it fails on; both belong into our error or nowhere.
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            with (
                _known_lengths_of_ranges(),
                _open_sizes_of_images(),
                _resized_images(),
                _named_calls(),
                _more_operators(),
                _bounded_constants(),
                _attributes_of_onnx(),
            ):
                return _with_tokens(inherited(from_onnx(_with_names(model), keep_params_in_input=False)))
    except ConstantTooLargeError:
        raise
    except UnfitNodeError as error:
        raise OnnxFileError(source, str(error), REMEDY) from error
    except Exception as error:  # converters raise whatever they run into
        raise OnnxFileError(source, _reason(error, printed.getvalue(), model), REMEDY) from error


def _with_tokens(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` for at least one token, where slices ask: the last of ``n`` is one of them, and not ``min(n, 1)``. Open
    dimensions of integers, which count tokens, say so, as ``torch.export`` does."""
    main = mod["main"]
    given = [each for each in main.params if str(tensor_type(each).dtype) in _INTEGERS]
    counts = {symbol_name(each): 1 for each in variables_in(extent for one in given for extent in shape_of(one) or ())}
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main.with_attr(_LOWER, counts)})


@contextlib.contextmanager
def _replaced(owner: Any, name: str, ours: Any) -> Iterator[None]:
    """``ours`` in place of what TVM's importer has."""
    theirs = getattr(owner, name)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        setattr(owner, name, theirs)


@contextlib.contextmanager
def _known_lengths_of_ranges() -> Iterator[None]:
    """TVM's importer computes the length of ``Range(0, n, 1)`` when the model runs, also where ``n`` is a dimension:
    what comes of it, masks of causal attention say, has no shape then, and later operators are refused."""
    converter: Any = getattr(onnx_frontend, "Range", None)
    theirs = getattr(converter, "_impl_v12", None)
    if theirs is None or not hasattr(tvm.ir, "is_prim_expr"):  # since 0.26
        yield
        return

    def ours(builder: Any, inputs: Sequence[Any], attributes: Any, parameters: Any) -> Any:
        start, limit, step = (onnx_frontend.get_constant(inputs[each], parameters) for each in range(3))
        if tvm.ir.is_prim_expr(limit) and [_integer(each) for each in (start, step)] == [0, 1]:
            return builder.normalize(relax.op.arange(limit, dtype="int64"))
        return theirs(builder, inputs, attributes, parameters)

    with _replaced(converter, "_impl_v12", ours):
        yield


@contextlib.contextmanager
def _named_calls() -> Iterator[None]:
    """The call that TVM's importer makes of a node has the node's name, see :mod:`tunehub.graph.origins`. Not with TVM
    0.25, which loses most of them at once."""
    importer: Any = onnx_frontend.ONNXGraphImporter
    if not hasattr(tvm.ir, "is_prim_expr"):  # since 0.26
        yield
        return
    theirs = importer._convert_operator

    def ours(self: Any, operator: str, inputs: Any, attributes: Any, opset: int) -> Any:
        made = theirs(self, operator, inputs, attributes, opset)
        own = named(made, (str(attributes.get("tvm_custom", {}).get("name") or operator),))
        return made if own is made else self.bb.normalize(own)

    with _replaced(importer, "_convert_operator", ours):
        yield


@contextlib.contextmanager
def _bounded_constants() -> Iterator[None]:
    """TVM's importer does not begin to compute a constant that no memory holds."""
    importer: Any = onnx_frontend.ONNXGraphImporter
    theirs = importer._convert_operator

    def ours(self: Any, operator: str, inputs: Any, attributes: Any, opset: int) -> Any:
        if operator in (*_OF_NUMBERS, *_BROADCASTING):
            given = [onnx_frontend.get_constant(each, [self._nodes, self._params]) for each in list(inputs)]
            if all(map(is_constant, given)):
                name = str(attributes.get("tvm_custom", {}).get("name") or "")
                check_elements(_elements(operator, list(map(constant_array, given))), [name] if name else [], operator)
        return theirs(self, operator, inputs, attributes, opset)

    with _replaced(importer, "_convert_operator", ours):
        yield


@contextlib.contextmanager
def _attributes_of_onnx() -> Iterator[None]:
    """TVM's importer gets attributes that it reads as ONNX does."""
    importer: Any = onnx_frontend.ONNXGraphImporter
    theirs = importer._convert_operator

    def ours(self: Any, operator: str, inputs: Any, attributes: Any, opset: int) -> Any:
        if operator not in MISREAD:
            return theirs(self, operator, inputs, attributes, opset)
        given = list(inputs)
        shapes = [(shape_of(each) or () if each is not None else ()) for each in given[:2]]
        kernel = attributes.get("kernel_shape") or (shapes[1][2:] if len(shapes) > 1 else ())
        axes = onnx_frontend.get_constant(given[1], [self._nodes, self._params]) if len(given) > 1 else None
        has_axes = bool(attributes.get("axes")) or (is_constant(axes) and constant_array(axes).size > 0)
        try:
            attributes = rewritten(operator, attributes, (*shapes, ())[0][2:], kernel, has_axes=has_axes)
        except ValueError as error:
            raise UnfitNodeError(operator, node_name(attributes), str(error)) from error
        return theirs(self, operator, inputs, attributes, opset)

    with _replaced(importer, "_convert_operator", ours):
        yield


@contextlib.contextmanager
def _resized_images() -> Iterator[None]:
    """TVM's importer goes by whole sizes, see :mod:`tunehub_builder.networks.onnx_resize`."""
    importer: Any = onnx_frontend.ONNXGraphImporter
    theirs = importer._convert_operator

    def ours(self: Any, operator: str, inputs: Any, attributes: Any, opset: int) -> Any:
        if operator not in RESIZING:
            return theirs(self, operator, inputs, attributes, opset)
        known = [self._nodes, self._params]
        return ResizeNode(
            operator=operator,
            inputs=list(inputs),
            attributes=attributes,
            opset=opset,
            constant=lambda value: onnx_frontend.get_constant(value, known),
            by_sizes=lambda given, named: onnx_frontend.Resize._impl_v18(self.bb, given, named, known),
        ).converted(self.bb)

    with _replaced(importer, "_convert_operator", ours):
        yield


def _elements(operator: str, given: Sequence[Any]) -> int:
    """How many an operator makes of arrays."""
    if operator in _BROADCASTING:
        elements = math.prod(np.broadcast_shapes(*(each.shape for each in given)))
        return elements if elements > GROWTH * sum(each.size for each in given) else 0
    if operator == "ConstantOfShape":
        return math.prod(map(int, given[0].reshape(-1)))
    start, limit, step = (each.item() for each in given)
    return int((limit - start) / step) if step else 0


def _with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model`, whose nodes all have names: those without are called as their first output."""
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return model


@contextlib.contextmanager
def _more_operators() -> Iterator[None]:
    """TVM's importer knows the operator of :mod:`tunehub_builder.networks.onnx_packed`, too, and ``Col2Im``."""
    theirs = onnx_frontend._get_convert_map

    class Image(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
        @classmethod
        def _impl_v18(cls, builder: Any, inputs: Sequence[Any], attributes: Any, parameters: Any) -> Any:
            given = [onnx_frontend.get_constant(inputs[each], parameters) for each in (1, 2)]
            if not all(map(is_constant, given)):
                raise UnfitNodeError("Col2Im", node_name(attributes), "sizes that the model computes")
            image, sizes = ([int(each) for each in constant_array(value)] for value in given)
            return emitted_image(builder, inputs[0], image, windows_of(attributes, sizes))

    class Packed(onnx_frontend.OnnxOpConverter):  # type: ignore[misc]
        @classmethod
        def _impl_v1(cls, builder: Any, inputs: Sequence[Any], attributes: Any, _parameters: Any) -> Any:
            form = Format(bits=attributes["bits"], group=GROUP, centred=bool(attributes["centred"]))

            def compute(words: Any, scales: Any) -> Any:
                return dequantised(words, scales, form)

            made = builder.emit_te(compute, *inputs, primfunc_name_hint="dequantize")
            return relax.op.permute_dims(made, [1, 0]) if attributes["transposed"] else made

    ours = {PACKED: Packed, "Col2Im": Image}
    with _replaced(onnx_frontend, "_get_convert_map", lambda *known: {**theirs(*known), **ours}):
        yield


@contextlib.contextmanager
def _open_sizes_of_images() -> Iterator[None]:
    """TVM's importer reads the sizes of a Resize as numbers: it gets some, and the open ones are put in their place."""
    converter: Any = onnx_frontend.Resize
    theirs = converter._impl_v18

    def ours(builder: Any, inputs: Sequence[Any], attributes: Any, parameters: Any) -> Any:
        sizes = inputs[3] if len(inputs) > 3 else None
        if not isinstance(sizes, relax.ShapeExpr) or all(isinstance(each, tvm.tirx.IntImm) for each in sizes):
            return theirs(builder, inputs, attributes, parameters)
        numbers = [int(each) if isinstance(each, tvm.tirx.IntImm) else 1 for each in sizes]
        found = theirs(builder, [*inputs[:3], relax.const(numbers, "int64"), *inputs[4:]], attributes, parameters)
        if all(isinstance(each, tvm.tirx.IntImm) for each in list(sizes)[2:]):
            return found
        if not isinstance(found, relax.Call) or not isinstance(found.args[1], relax.ShapeExpr):
            raise ValueError("Resize of one axis to an open size")
        return relax.Call(found.op, [found.args[0], relax.ShapeExpr(list(sizes)[2:])], found.attrs)

    with _replaced(converter, "_impl_v18", ours):
        yield


def _integer(value: Any) -> int | None:
    """A constant's, of int64."""
    constant = getattr(getattr(value, "value", None), "numpy", None)
    array = None if constant is None else constant()
    return int(array) if array is not None and array.size == 1 and str(array.dtype) == "int64" else None


def _reason(error: Exception, printed: str, model: onnx.ModelProto) -> str:
    unsupported = re.search(r"not supported for frontend ONNX: (.+)", str(error))
    if unsupported:
        operators = sorted(unsupported.group(1).strip().split(", "))
        named = ", ".join(f"{each}{_nodes(model, each)}" for each in operators)
        return f"TVM {tvm.__version__} cannot import the operator{'s' if len(operators) > 1 else ''} {named}"
    node = re.search(r"operator (\w+)", printed)
    where = f"the operator {node.group(1)}{_nodes(model, node.group(1))}" if node else "an operator"
    return f"TVM {tvm.__version__} failed to import {where} ({typed_last_line(error)})"


def _nodes(model: onnx.ModelProto, operator: str) -> str:
    """The nodes with an operator by name, or else by their first output: TVM does not say which one it failed on."""
    names = [node.name or node.output[0] for node in model.graph.node if node.op_type == operator]
    if not names:
        return ""
    more = "" if len(names) <= _NAMED else f" and {len(names) - _NAMED} others"
    return f" (node{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more})"

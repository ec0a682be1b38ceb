"""From an ONNX model to a Relax module, with errors that say what to do."""

from __future__ import annotations

import contextlib
import io
import re
import warnings

import onnx
import tvm
from tvm.relax.frontend.onnx import from_onnx

from tunehub.exceptions import typed_last_line
from tunehub_builder.networks.exceptions import OnnxFileError

REMEDY = (
    "Export with other operators or another opset, simplify the model (for example with onnxsim), "
    "or move the part around this operator out of the model"
)
_NAMED = 3  # nodes that an error names


def to_relax(model: onnx.ModelProto, source: str) -> tvm.IRModule:
    """Import a model whose initializers are not graph inputs; its weights become constants of `main`.

    Raises OnnxFileError (`path` = `source`) when the importer does not know an operator or fails on one.
    """
    printed = io.StringIO()
    try:
        # The importer warns about names and prints the node it fails on; both belong into our error or nowhere.
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            return from_onnx(model, keep_params_in_input=False)
    except Exception as error:  # converters raise whatever they run into
        raise OnnxFileError(source, _reason(error, printed.getvalue(), model), REMEDY) from error


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

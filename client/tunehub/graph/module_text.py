"""A whole Relax module as text: TVM's JSON of an IRModule with a function ``main``, checked before TVM sees it.

As :mod:`tunehub.tir.workload`, for graphs of operators with their weights. A function that is called by its name
(``relax.expr.ExternFunc``, ``tirx.call_extern``) could be any one of the process, and is not allowed.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.exceptions import WorkloadTextError, last_line
from tunehub.tir.workload import OPERATIONS, TYPES, GraphRules, check_for_tvm, loaded

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule

_MODULE = GraphRules(
    what="the module",
    max_bytes=1 << 30,
    max_nodes=5_000_000,
    types=re.compile(
        rf"{TYPES}|ir\.(GenericConst|Tuple|TupleGetItem|VDevice)|ffi\.Tensor|relax\.attrs\.\w+"
        r"|relax\.(expr\.)?(Binding|BindingBlock|Call|Id|Constant|DataTypeImm|DataflowBlock|DataflowVar|Function|If|MatchCast"
        r"|PrimValue|SeqExpr|StringImm|Tuple|TupleGetItem|Var|VarBinding)"
    ),
    # Operators of data, and calls of functions of the module. Not: packed functions, closures, memory, other processes.
    operations=re.compile(
        rf"{OPERATIONS}|relax\.(?!call_|invoke_|make_closure|print|hint_on_device|to_vdevice|wrap_param)[a-z]\w*"
        r"|relax\.(nn|image|vision)\.\w+|relax\.call_tir"
    ),
    called=("ir.Op", "ir.GlobalVar"),
    mixed="relax.attrs.",
)
_MAGIC = 0xDD5E40F096B4A13F  # kTVMTensorMagic of tvm/runtime/tensor.h
_HEAD = struct.Struct("<QQiiiBBH")  # magic, reserved, device, its number, axes, code, bits and lanes of the type
_CPU, _MOST_AXES = 1, 16


class ModuleReader:
    """Reads modules in a process of its own: TVM's loader may crash on a graph that is allowed and makes no sense."""

    def reading(self, path: str) -> None:
        """Raise as :func:`module_of`, or end the process."""
        module_of(Path(path).read_text(encoding="utf-8"))


def module_of(text: str) -> IRModule:
    """The IRModule in ``text``. Raises WorkloadTextError: not what ``tvm.ir.save_json`` writes, or not allowed."""
    import tvm
    from tvm import relax

    _check_tensors(text)
    mod = loaded(text, _MODULE)
    if not isinstance(mod, tvm.IRModule) or "main" not in [str(v.name_hint) for v in mod.functions]:
        raise WorkloadTextError("it is not a module with a function `main`")
    if not isinstance(mod["main"], relax.Function):
        raise WorkloadTextError("`main` is not a function of Relax")
    try:
        formed = relax.analysis.well_formed(mod) is not False  # before 0.27 an answer, since then an error
    except Exception as error:
        raise WorkloadTextError(f"the module is not well formed: {last_line(error, limit=200)}") from error
    if not formed:
        raise WorkloadTextError("the module is not well formed")
    return mod


def check_module(text: str) -> None:
    """Raise WorkloadTextError for what :func:`module_of` refuses before TVM sees it."""
    _check_tensors(text)
    check_for_tvm(text, _MODULE)


def _check_tensors(text: str) -> None:
    """Raise WorkloadTextError for a tensor whose header does not fit its data: TVM allocates what the header says."""
    if len(text) > _MODULE.max_bytes:
        return  # an error of what comes next
    try:
        graph = json.loads(text)
    except (ValueError, RecursionError):
        return
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    for number, node in enumerate(nodes if isinstance(nodes, list) else ()):
        if isinstance(node, dict) and node.get("type") == "ffi.Tensor" and not _is_tensor(node.get("data")):
            raise WorkloadTextError(f"node {number} is not a tensor of TVM's")


def _is_tensor(data: object) -> bool:
    """Whether a text is a tensor as TVM writes it, on the CPU, with the bytes that its shape says."""
    try:
        raw = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
        magic, reserved, device, number, axes, _, bits, lanes = _HEAD.unpack_from(raw)
        if (magic, reserved, device, number) != (_MAGIC, 0, _CPU, 0) or not 0 <= axes <= _MOST_AXES:
            return False
        *shape, size = struct.unpack_from(f"<{axes + 1}q", raw, _HEAD.size)
    except (binascii.Error, ValueError, struct.error):
        return False
    whole = _HEAD.size + 8 * (axes + 1)
    expected = math.prod(shape) * ((bits * lanes + 7) // 8)
    return min(shape, default=0) >= 0 and size == expected == len(raw) - whole

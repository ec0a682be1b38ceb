"""The interface of a Relax module, and putting it into the module (TVM 0.25 and newer)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax

from tunehub.deploy.interface import FUNCTION, Interface, TensorSpec, encoded
from tunehub.exceptions import LibraryError
from tunehub.graph.indexed_rows import IndexedRows, indexed_rows
from tunehub.target.features import all_llvm_features, extensions
from tunehub.target.host import arch_of_triple, system_triple
from tunehub.tir.nodes import is_constant, shape_of_type, tensor_type, variable_name
from tunehub_registry import __version__

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, Function
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Type

_CHUNK = 1 << 20


def interface_of(
    mod: IRModule, target: Target, *, outputs: Sequence[str] = (), source: Path | None = None
) -> Interface:
    """What `main` of `mod` takes and gives, compiled for `target`. `outputs` are the names of what it gives, where they
    are known; `source` is the model's file. Raises LibraryError for a module without a `main` of tensors; OSError."""
    main = _main(mod)
    given = [(variable_name(each), tensor_type(each)) for each in main.params]
    rows = indexed_rows(main)
    results = _results(main.ret_ty if hasattr(main, "ret_ty") else main.ret_struct_info)
    named = list(outputs) if len(outputs) == len(results) else [f"output_{at}" for at in range(len(results))]
    return Interface(
        inputs=tuple(_spec(name, kind, "input", rows.get(at)) for at, (name, kind) in enumerate(given)),
        outputs=tuple(_spec(name, kind, "output") for name, kind in zip(named, results, strict=True)),
        target=str(target),
        device=str(target.kind.name),
        arch=_arch(target),
        features=extensions(all_llvm_features(_config(target))) if target.kind.name == "llvm" else (),
        tvm=str(tvm.__version__),
        tunehub=__version__,
        source=source.name if source else None,
        source_sha256=file_sha256(source) if source else None,
    )


def with_interface(mod: IRModule, interface: Interface) -> IRModule:
    """`mod` with a function that returns `interface`. Raises LibraryError where another one has its name."""
    if any(str(variable.name_hint) == FUNCTION for variable in mod.functions):
        raise LibraryError(FUNCTION, "is a function of the module", place="model", remedy="give it another name")
    text = relax.const(np.frombuffer(encoded(interface), np.uint8))
    builder = relax.BlockBuilder()
    with builder.function(FUNCTION, []):
        builder.emit_func_output(text)
    return tvm.IRModule({**dict(mod.functions.items()), **dict(builder.get().functions.items())}, attrs=mod.attrs)


def weight_bytes(mod: IRModule) -> int:
    """Bytes of the constants of `mod`, each counted once."""
    sizes: dict[int, int] = {}

    def visit(expression: Expr) -> None:
        if is_constant(expression):
            kind = tensor_type(expression)
            # The hash of a node of TVM's is that of its address; constants stay alive with their module.
            sizes[hash(expression)] = math.prod(shape_of_type(kind) or ()) * np.dtype(str(kind.dtype)).itemsize

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return sum(sizes.values())


def file_sha256(path: Path) -> str:
    """The hash of a file. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _config(target: Target) -> dict[str, object]:
    found: dict[str, object] = json.loads(str(target))
    return found


def _arch(target: Target) -> str | None:
    """A GPU's architecture, a CPU's instruction set."""
    if target.kind.name == "llvm":
        return arch_of_triple(str(target.attrs.get("mtriple") or system_triple()))
    arch = target.attrs.get("arch")
    return None if arch is None else str(arch)


def _main(mod: IRModule) -> Function:
    for variable, function in mod.functions.items():
        if str(variable.name_hint) == "main" and isinstance(function, relax.Function):
            return function
    raise LibraryError("main", "is no Relax function of the module", place="model", remedy="export the model again")


def _results(kind: Type) -> list[Type]:
    return [inner for field in kind.fields for inner in _results(field)] if hasattr(kind, "fields") else [kind]


def _spec(name: str, kind: Type, place: str, rows: IndexedRows | None = None) -> TensorSpec:
    dtype, shape = getattr(kind, "dtype", None), shape_of_type(kind)
    if dtype is None or not hasattr(kind, "ndim"):
        reason = f"is a {type(kind).__name__}, not a tensor"
        raise LibraryError(name, reason, place=place, remedy="export a model of tensors")
    extents = (
        None if shape is None else tuple(e if isinstance(e, int) else str(str(e)) for e in shape)
    )  # TVM's texts are of a class of their own
    if rows is None or rows.count is None:
        return TensorSpec(name=name, dtype=str(dtype), shape=extents)
    return TensorSpec(name=name, dtype=str(dtype), shape=extents, rows=rows.count, from_end=rows.from_end)

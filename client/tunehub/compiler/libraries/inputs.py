"""All that a compile depends on, as one SHA-256: another input of any kind is another key."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax

import tunehub_registry
from tunehub.kernels.template_fit import machine_for, published_rates
from tunehub.target.host import cpu_features, physical_cores, usable_threads
from tunehub.tir.nodes import constant_array, is_constant

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.graph.types import Constant, Expr
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PassContext

_SWITCHES = ("TVM_", "TUNEHUB_", "CUDA_", "NVCC_", "NVRTC_", "OMP_")
_NO_SWITCHES = frozenset({"TUNEHUB_CACHE", "TUNEHUB_COMPILED", "TUNEHUB_BUDGET", "TVM_NUM_THREADS"})
_SIMPLE = (bool, int, float, str)


def compile_key(hub: Hub, target: Target, what: Mapping[str, object]) -> str | None:
    """The key of a compile of ``what``, in JSON's types, for ``target`` with the records of ``hub``; None where what
    comes out is not known by its inputs: it measures, somebody watches TVM's passes, or compiles kernels himself."""
    context = tvm.transform.PassContext.current()
    if hub.measuring is not None or context.instruments or not _is_known(context.config.values()):
        return None
    if target.kind.name == "cuda":
        from tunehub.tir.cuda.nvrtc import asked_for

        if not asked_for():
            return None
    said = {
        "what": what,
        "target": str(target),
        "given": str(hub.target),
        "hub": _of_hub(hub),
        "records": [each.identity for each in getattr(hub.lookup, "layers", ())],
        "passes": _of_context(context),
        "machine": _of_machine(hub, target),
        "programs": _of_programs(str(target.kind.name)),
        "switches": _of_environment(os.environ),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def module_digest(mod: IRModule) -> str:
    """SHA-256 of a module, with the content of its constants. Raises what TVM raises for types that numpy lacks."""
    digest, constants = hashlib.sha256(), _ConstantsApart()
    graphs = {
        variable: constants.visit_expr(function) if isinstance(function, relax.Function) else function
        for variable, function in mod.functions.items()
    }
    digest.update(tvm.ir.save_json(tvm.IRModule(graphs, attrs=mod.attrs)).encode())
    for constant in constants.found:
        array = np.ascontiguousarray(constant_array(constant))
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@relax.expr_functor.mutator
class _ConstantsApart(relax.PyExprMutator):  # type: ignore[misc]
    """Puts a variable in the place of each constant, and keeps the constants in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Constant] = []
        self._places: dict[int, Expr] = {}

    def visit_generic_const_(self, constant: Constant) -> Expr:
        """A variable of its type."""
        if not is_constant(constant):
            return constant
        # The hash of a node of TVM's is that of its address; constants stay alive in `found`.
        place = self._places.get(hash(constant))
        if place is None:
            kind = constant.ty if hasattr(constant, "ty") else constant.struct_info
            place = self._places[hash(constant)] = relax.Var(f"constant{len(self.found)}", kind)
            self.found.append(constant)
        return place

    visit_constant_ = visit_generic_const_  # its name before 0.27


def _of_hub(hub: Hub) -> dict[str, object]:
    verification, chosen = hub.verification, hub.resolution.chosen
    return {
        "host": repr(hub.host),
        "origin": repr(hub.origin),
        "package": None if chosen is None else [chosen.label, chosen.entry.sha256, repr(chosen.match)],
        "options": [hub.layout, hub.precision, hub.winograd, hub.check_indices, hub.strict],
        "verify": None if verification is None else [verification.mode, repr(verification.device)],
    }


def _of_context(context: PassContext) -> list[object]:
    config = sorted((str(name), repr(_plain(value))) for name, value in context.config.items())
    return [context.opt_level, list(map(str, context.required_pass)), list(map(str, context.disabled_pass)), config]


def _of_machine(hub: Hub, target: Target) -> list[str]:
    """What rules read of the machine, calibrations and profiles of packages among it."""
    with published_rates(hub.published_profile):
        if target.kind.name == "cuda":
            from tunehub.kernels.devices.known import device_of

            rates = repr(device_of(target))
        else:
            rates = repr(machine_for(target)) if target.kind.name == "llvm" else ""
    facts = (platform.machine(), physical_cores(), usable_threads(), sorted(cpu_features() or ()))
    return [rates, repr(hub.published_profile), *map(str, facts)]


def _of_programs(kind: str) -> list[str]:
    """The programs that make code: this package, byte for byte, TVM, and what compiles kernels."""
    found = [rules_digest(), str(tvm.__version__), platform.python_version(), *_tvm_libraries()]
    if kind == "cuda":
        from tunehub.tir.cuda.nvrtc import compiler_identity

        found.append(compiler_identity())
    return found


@lru_cache(maxsize=1)
def rules_digest() -> str:
    """SHA-256 of this package's programs: whose rules choose what no record serves."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parents[2], Path(tunehub_registry.__path__[0])):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".toml", ".cu", ".c") and path.is_file():
                digest.update(f"{path.relative_to(root)}\n".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _tvm_libraries() -> tuple[str, ...]:
    """Builds of one version differ in their libraries."""
    found = [(path.name, path.stat()) for path in sorted(Path(tvm.__path__[0]).rglob("*.so"))]
    return tuple(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in found)


def _of_environment(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(
        (name, value) for name, value in environ.items() if name.startswith(_SWITCHES) and name not in _NO_SWITCHES
    )


def _is_known(values: Iterable[object]) -> bool:
    return all(isinstance(_plain(value), _SIMPLE) for value in values)


def _plain(value: object) -> object:
    """A value of a PassContext; TVM boxes numbers."""
    return getattr(value, "value", value)

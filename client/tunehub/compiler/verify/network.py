"""A whole network, compiled with records, beside TVM's plain compile of it: both run in a process of their own."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tunehub.comparison.difference import difference_reason, tolerance
from tunehub.compiler.verify.inputs import Kind, apart, comparable, is_floating, random_numbers
from tunehub.compiler.verify.limits import VerifyLimits
from tunehub.compiler.verify.memory import VerdictMemory
from tunehub.compiler.verify.port import KernelVerdict
from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, WorkerProcess
from tunehub.exceptions import NetworkDiffersError, last_line
from tunehub.report.ladder import Refusal
from tunehub.tir.precision import precisions

if TYPE_CHECKING:
    from tunehub.graph.types import Executable
    from tunehub.target.types import Target
    from tunehub.tir.types import Array, IRModule, Object, Pass, PassContext

_KINDS: tuple[Kind, ...] = ("signed", "positive")
_SIZES = (1, 3, 17, 32)  # of open dimensions
_Shapes = list[tuple[tuple[int, ...], str]]
_REMEDY = "TVM's own pipeline is used instead; please report it"


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkDifference:
    """How far a network's outputs are from the plain ones, where ``tolerance`` is the most."""

    difference: float
    tolerance: float


class NetworkVerifySession:
    """The requests of a worker: ``refer`` to a network, then ``compare`` what a compile made of it. Both are TVM's
    JSON: the module as it was given, and as a pipeline has lowered it."""

    def __init__(self, target: str) -> None:
        """``target`` as text."""
        self._text = target
        self._cases: list[tuple[list[Array], list[Array]]] = []

    def refer(self, original: str) -> None:
        """Run TVM's plain compile. Raises ValueError when there is nothing to compare; what TVM raises, or an assertion
        of the model, when inputs of every size are refused."""
        import tvm

        from tunehub.graph.boolean_sums import boolean_sums_as_integers
        from tunehub.graph.gathers import quiet_gathers

        mod, target = tvm.ir.load_json(original), tvm.target.Target(self._text)
        sizes = _inputs(mod)
        refusal: Exception = ValueError("TVM's plain compile gives no numbers on random inputs")
        mod = boolean_sums_as_integers(quiet_gathers(mod))
        plain = tvm.compile(mod, target, relax_pipeline=_plain_pipeline(target))
        for shapes in sizes:
            try:
                case = _case(plain, shapes, target)
            except Exception as error:  # of any kind; a model may be for some sizes only
                refusal = error
            else:
                self._cases += [] if case is None else [case]
        if not self._cases:
            raise refusal

    def compare(self, finished: str) -> NetworkDifference:
        """Run what a compile made of the network."""
        import tvm

        mod, target = tvm.ir.load_json(finished), tvm.target.Target(self._text)
        executable = _compiled_as_it_is(mod, target)
        found = max(apart(_outputs(executable, arrays, target), expected) for arrays, expected in self._cases)
        dtypes = [str(array.dtype) for arrays, expected in self._cases for array in (*arrays, *expected)]
        most = tolerance([*dtypes, *_half(mod)], "narrow sums")
        return NetworkDifference(difference=found, tolerance=most)


def check_network(
    mod: IRModule,
    finished: IRModule,
    target: str,
    memory: VerdictMemory,
    limits: VerifyLimits,
    note: Callable[[str], None],
) -> None:
    """Compare ``finished``, what a pipeline made of ``mod``, with TVM's plain compile.

    What cannot be compared is a note. Raises NetworkDiffersError, and remembers that, too.
    """
    import tvm

    original, lowered = (str(tvm.ir.save_json(each)) for each in (mod, finished))
    key = hashlib.sha256(f"{original}\n{lowered}".encode()).hexdigest()
    known = memory.get(key)
    if known is None:
        found = _compared(original, lowered, target, limits)
        if isinstance(found, str):
            note(f"the whole network was not verified: {found}")
            return
        known = _verdict(found)
        memory.add(key, known)
        memory.save()
    if known.refusal is not None:
        apart_by = math.inf if known.refusal.difference is None else known.refusal.difference
        raise NetworkDiffersError(apart_by, known.refusal.tolerance or 0.0, remedy=_REMEDY)


def _compared(original: str, finished: str, target: str, limits: VerifyLimits) -> NetworkDifference | str:
    """The difference, or why there is none to tell. A compiled network that ends its process differs."""
    try:
        worker = WorkerProcess(partial(NetworkVerifySession, target), log=os.devnull, without=SLOW_OPTIONAL_MODULES)
    except (OSError, ValueError) as error:
        return f"a process that verifies cannot start: {last_line(error)}"
    try:
        kind, value = worker.ask(("refer", original), limits.network_s)
        if kind != "ok":
            return str(value)
        kind, value = worker.ask(("compare", finished), limits.network_s)
        if kind == "ok" and isinstance(value, NetworkDifference):
            return value
        return str(value) if worker.alive else NetworkDifference(difference=math.inf, tolerance=tolerance())
    finally:
        worker.stop(at_once=True)


def _verdict(found: NetworkDifference) -> KernelVerdict:
    if difference_reason(found.difference, found.tolerance) is None:
        return KernelVerdict(check="run")
    known = found.difference if math.isfinite(found.difference) else None
    return KernelVerdict(check="run", refusal=Refusal(check="run", difference=known, tolerance=found.tolerance))


def _case(plain: Executable, shapes: _Shapes, target: Target) -> tuple[list[Array], list[Array]] | None:
    """Random inputs of these shapes, and what ``plain`` makes of them; None where that is no numbers."""
    for kind in _KINDS:
        arrays = [random_numbers(*shape, kind, seed=number) for number, shape in enumerate(shapes)]
        outputs = _outputs(plain, arrays, target)
        if comparable(outputs):
            return arrays, outputs
    return None


def _inputs(mod: IRModule) -> list[_Shapes]:
    """Shape and element type of each parameter of ``main``; of open shapes, for several values of the symbols. Raises
    ValueError for those that are not known."""
    from tunehub.tir.nodes import shape_of, tensor_type
    from tunehub.tir.symbols import combined, extent_at, variables_in

    if "main" not in [str(variable.name_hint) for variable in mod.functions]:
        raise ValueError("it has no function `main`")
    known = [(parameter, shape_of(parameter)) for parameter in mod["main"].params]
    for parameter, shape in known:
        if shape is None:
            raise ValueError(f"the shape of its input {parameter.name_hint} is not known")
    symbols = variables_in(extent for _, shape in known for extent in shape or ())
    sizes = combined(_SIZES, len(symbols)) if symbols else [()]
    return [
        [
            (
                tuple(extent_at(extent, dict(zip(map(hash, symbols), values, strict=True))) for extent in shape or ()),
                str(tensor_type(parameter).dtype),
            )
            for parameter, shape in known
        ]
        for values in sizes
    ]


def _half(mod: IRModule) -> list[str]:
    """The types that kernels of a lowered module compute in, though inputs and outputs are wider."""
    import tvm

    from tunehub.tir.nodes import buffer_kind, parameters

    functions = [function for function in mod.functions.values() if isinstance(function, tvm.tirx.PrimFunc)]
    kinds = [{str(buffer_kind(buffer).dtype) for buffer in parameters(function)} for function in functions]
    floating = sorted(dtype for dtype in set().union(*kinds) if is_floating(dtype) and dtype != "float64")
    quantised = any("uint8" in each and each & {"int8", "int16"} for each in kinds)
    return [*floating, *precisions(functions), *(["quantised"] if quantised else [])]


def _plain_pipeline(target: Target) -> Pass | str:
    """TVM's own pipeline; on CUDA with the plain schedule of each kernel, as some of TVM's own are wrong."""
    import tvm
    from tvm import relax

    if target.kind.name != "cuda":
        return "default"
    from tvm.relax.backend.cuda import pipeline

    from tunehub.kernels.cuda.plain import plain_schedule

    @tvm.transform.module_pass(opt_level=0, name="tunehub.plain")  # type: ignore[untyped-decorator]
    def plain(mod: IRModule, _context: PassContext) -> IRModule:
        functions = {
            variable: plain_schedule(function) if isinstance(function, tvm.tirx.PrimFunc) else function
            for variable, function in mod.functions.items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs)

    legalize = [p for p in relax.pipeline.legalize_passes(target) if "ApplyDefaultSchedule" not in str(p.info.name)]
    lower = [*pipeline.dataflow_lower_passes(target), *pipeline.finalize_passes(target)]
    return tvm.transform.Sequential([*relax.pipeline.library_dispatch_passes(target), *legalize, plain, *lower])


def _compiled_as_it_is(mod: IRModule, target: Target) -> Executable:
    """Code for a module that a pipeline has lowered, generated as a compile with records does it."""
    import tvm
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    from tunehub.compiler.cuda.dependent_launch import with_dependent_launches
    from tunehub.tir.lowering import PIPELINE, without_cleaning

    original = PIPELINE_MAP[PIPELINE]
    PIPELINE_MAP[PIPELINE] = with_dependent_launches(without_cleaning(original))
    try:
        return tvm.compile(mod, target, relax_pipeline=tvm.transform.Sequential([]))
    finally:
        PIPELINE_MAP[PIPELINE] = original


def _outputs(executable: Executable, arrays: list[Array], target: Target) -> list[Array]:
    import tvm
    from tvm import relax

    device = tvm.cuda(0) if target.kind.name == "cuda" else tvm.cpu()
    machine = relax.VirtualMachine(executable, device)
    return _flat(machine["main"](*[tvm.runtime.tensor(array, device) for array in arrays]))


def _flat(result: Object) -> list[Array]:
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [array for part in result for array in _flat(part)]

"""What a worker process does to verify schedules: it builds and runs them beside the plain schedule.

The plain schedule of a function for a CPU is none at all: what TVM makes of loops as they are written, or what serves
without records (:mod:`tunehub.compiler.verify.building`). For CUDA it has a kernel for each block, with nothing inlined
(:mod:`tunehub.kernels.cuda.plain`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from tunehub.comparison.difference import tolerance
from tunehub.compiler.verify.building import built, built_reference, lower_as_compiles_do
from tunehub.compiler.verify.inputs import (
    Drawn,
    Kind,
    apart,
    comparable,
    drawn_for,
    longest_sum,
    unwritten,
    written,
)
from tunehub.exceptions import last_line
from tunehub.tir.lowering import IS_SCHEDULED, PIPELINE, without_cleaning
from tunehub.tir.nodes import buffer_kind, buffer_shapes, is_static, main_module, parameters
from tunehub.tir.precision import precisions
from tunehub.tir.symbols import PROBES, elements_at, first_probes, instance, probes, scalars, symbol_name, symbols_of

if TYPE_CHECKING:
    from tunehub.compiler.artifacts.store import ArtifactStore
    from tunehub.target.types import Target
    from tunehub.tir.types import Array, Device, DeviceTensor, PackedFunc, PrimFunc

_KINDS: tuple[Kind, ...] = ("signed", "negative", "positive")
_ENOUGH = 2  # kinds of inputs
_MANY_BYTES, _LONG_S = 64 << 20, 0.1  # of inputs, of a run of the plain schedule: from there on one kind has to do
_MOST_ELEMENTS = 1 << 22  # of all parameters: larger instances take seconds to compare, and run the same code
MOST_RUN = 1 << 30  # of all parameters, at sizes that a schedule names: more take half a minute to copy and run
_RUNS = 2  # of each: threads that write over each other do not do so every time
_NO_MEMORY = ("out of memory", "memoryallocation", "bad_alloc", "memoryerror")  # says nothing about a schedule

_PERTURB, _FILL = -6, 0x80  # glibc's mallopt: what is given out is full of 0x7F, large numbers of every type

_MAIN, _DEFAULT, _AS_COMPILED = "main", "default", "tunehub.verified"  # a function, pipelines

Shapes: TypeAlias = "list[tuple[tuple[int, ...], str]]"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How far a schedule's outputs are from the plain ones, where ``tolerance`` is the most (None: it was built alone);
    or the ``error`` of building or running it. ``not_run`` names the sizes that the plain schedule could not be run at,
    and says why. ``lost``: the device does not work any more in this process."""

    difference: float | None = None
    tolerance: float
    error: str | None = None
    not_run: str | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    shapes: Shapes
    scalars: tuple[int, ...]  # behind the buffers
    inputs: list[DeviceTensor]  # tensors on the device, None for outputs
    expected: list[Array | None]  # arrays, None for inputs


@dataclass(slots=True)
class _Reference:
    """``library``: the plain schedule of ``function``, run at ``sizes``. ``cases``: by the values of its symbols;
    ``failed``: why there are none for some."""

    function: PrimFunc
    library: PackedFunc
    tolerance: float
    sizes: list[tuple[int, ...]]
    cases: dict[tuple[int, ...], list[_Case]] = field(default_factory=dict)
    failed: dict[tuple[int, ...], str] = field(default_factory=dict)

    def not_run(self, sizes: Sequence[tuple[int, ...]]) -> str | None:
        """Which of ``sizes`` have no cases, and why."""
        names = list(map(symbol_name, symbols_of(self.function)))
        texts = []
        for values in (values for values in sizes if values in self.failed):
            where = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
            texts.append(f"{where}: {self.failed[values]}")
        return "; ".join(texts) or None


class VerifySession:
    """The requests of a worker: ``refer`` to a function, then ``judge`` its schedules. Functions are TVM's JSON."""

    def __init__(self, target: str, store: ArtifactStore | None = None) -> None:
        """``target`` as text; ``store``: what keeps machine code of a GPU's kernels, None: nothing does."""
        self._text, self._store, self._pipeline = target, store, _DEFAULT
        self._reference: _Reference | None = None
        self._drawn: dict[Drawn, tuple[DeviceTensor, int]] = {}  # weights are the same at all sizes

    def warm_up(self) -> None:
        """Import TVM and take the device into use."""
        self._device().sync()
        if self._is_cuda():
            self._pipeline = with_nvrtc(str(self._target().attrs["arch"]), self._store)
        else:
            lower_as_compiles_do()
            _fill_new_memory()

    def refer(self, original: str) -> None:
        """Run the plain schedule of a function. Raises ValueError when there are no outputs to compare."""
        function = _function(original)
        if not any(written(function)):
            raise ValueError("what it writes is not known")
        library = self._plain(function)
        self._reference, sizes = None, _tried(function)
        self._drawn.clear()
        static = [instance(function, values) for values in sizes]
        dtypes = [str(buffer_kind(buffer).dtype) for buffer in parameters(function)]
        most = tolerance(dtypes, "narrow sums", terms=max(map(longest_sum, static), default=1))
        reference = _Reference(function, library, most, sizes)
        enough = _ENOUGH if len(sizes) == 1 else 1
        for each, values in zip(static, sizes, strict=True):
            self._try(reference, each, values, enough)
        if not any(reference.cases.values()):
            raise ValueError(next(iter(reference.failed.values())))
        self._reference = reference

    def _sizes_of(self, reference: _Reference, scheduled: PrimFunc) -> list[tuple[int, ...]]:
        """The sizes to run a schedule at: the function's, and those that ``scheduled`` itself names, of large ones
        those that alone lead into a branch."""
        own = {tuple(map(int, values)) for values in (scheduled.attrs or {}).get(PROBES, ())}
        first, found = first_probes(scheduled), [values for values in probes(scheduled) if values in own]
        named = [each for each in found if each in first or elements_at(reference.function, each) <= _MOST_ELEMENTS]
        for values in named:
            if values in reference.cases:
                continue
            if elements_at(reference.function, values) > MOST_RUN:
                reference.cases[values], reference.failed[values] = [], f"more than {MOST_RUN} elements"
            else:
                self._try(reference, instance(reference.function, values), values, 1)
        return [*reference.sizes, *(values for values in named if values not in reference.sizes)]

    def _try(self, reference: _Reference, static: PrimFunc, values: tuple[int, ...], enough: int) -> None:
        """Make the cases for ``values`` of the symbols, for which ``static`` is the function."""
        try:
            cases = self._cases(reference.library, static, scalars(reference.function, values), enough)
        except Exception as error:  # no memory for so much, say
            if not self._works():
                raise
            reference.cases[values], reference.failed[values] = [], last_line(error)
            return
        reference.cases[values] = cases
        if not cases:
            reference.failed[values] = "its plain schedule gives no numbers on random inputs"

    def _cases(self, library: PackedFunc, function: PrimFunc, behind: tuple[int, ...], enough: int) -> list[_Case]:
        """``enough`` cases, if that many kinds of inputs give numbers, for ``library`` at the shapes of ``function``;
        ``behind``: what it is called with behind its buffers."""
        found: list[_Case] = []
        for kind in _KINDS:
            given = [each if each is None else self._given(each) for each in drawn_for(function, kind)]
            inputs = [each if each is None else each[0] for each in given]
            case = _Case(buffer_shapes(function), behind, inputs, [])
            began = time.perf_counter()
            outputs = self._outputs(library, case)
            took = time.perf_counter() - began
            if comparable([output for output in outputs if output is not None]):
                found.append(replace(case, expected=outputs))
            many = sum(each[1] for each in given if each is not None) > _MANY_BYTES
            if len(found) >= (1 if many or took > _LONG_S else enough):
                break
        return found

    def fault(self, scheduled: str) -> str | None:
        """What the static check finds wrong in a schedule for a GPU."""
        from tunehub.tir.cuda.check import fault  # CPUs need none of it
        from tunehub.tir.cuda.fault import Fault

        found = fault(_function(scheduled), self._target())
        return str(found) if isinstance(found, Fault) else None

    def judge(self, scheduled: str, name: str = _MAIN) -> RunResult:
        """Run a schedule of the function that was referred to last, under its ``name`` in what is compiled."""
        reference = self._reference
        assert reference is not None
        most = reference.tolerance
        try:
            function = _function(scheduled)
            _check_parameters(function, reference.function)
            library, sizes = self._built(function, name), self._sizes_of(reference, function)
            cases = [case for values in sizes for case in reference.cases[values]]
            found = max(self._apart(library, case) for case in cases for _ in range(_RUNS))
            most = max(most, tolerance(precisions([function]), "narrow sums"))
        except Exception as error:  # TVM raises many kinds for what does not compile or run
            return RunResult(tolerance=most, error=last_line(error), lost=not self._works())
        return RunResult(difference=found, tolerance=most, not_run=reference.not_run(sizes))

    def _apart(self, library: PackedFunc, case: _Case) -> float:
        outputs = self._outputs(library, case)
        pairs = [(a, b) for a, b in zip(outputs, case.expected, strict=True) if a is not None and b is not None]
        return apart([a for a, _ in pairs], [b for _, b in pairs])

    def _outputs(self, library: PackedFunc, case: _Case) -> list[Array | None]:
        """The outputs of a run, None for inputs."""
        expected: list[Array | None] = case.expected or [None] * len(case.shapes)
        rows = list(zip(case.inputs, case.shapes, expected, strict=True))
        tensors = [self._tensor(unwritten(*shape, known)) if given is None else given for given, shape, known in rows]
        library(*tensors, *case.scalars)
        return [tensor.numpy() if given is None else None for tensor, (given, _, _) in zip(tensors, rows, strict=True)]

    def _plain(self, function: PrimFunc) -> PackedFunc:
        if not self._is_cuda():
            return built_reference(function, self._target())[_MAIN]
        import tvm

        from tunehub.kernels.cuda.plain import plain_schedule

        return tvm.tirx.build(main_module(plain_schedule(function)), self._target())[_MAIN]

    def _built(self, function: PrimFunc, name: str = _MAIN) -> PackedFunc:
        import tvm

        if not self._is_cuda():
            return built(function, self._target())[_MAIN]
        named = tvm.IRModule({name: function.with_attr("global_symbol", name).with_attr(IS_SCHEDULED, True)})
        return tvm.tirx.build(named, self._target(), pipeline=self._pipeline)[name]

    def _given(self, drawn: Drawn) -> tuple[DeviceTensor, int]:
        """An array on the device, and its bytes."""
        if drawn not in self._drawn:
            array = drawn.array()
            self._drawn[drawn] = self._tensor(array), array.nbytes
        return self._drawn[drawn]

    def _tensor(self, array: Array) -> DeviceTensor:
        import tvm

        return tvm.runtime.tensor(array, self._device())

    def _works(self) -> bool:
        try:
            self._device().sync()
        except Exception:  # a kernel has left its memory: nothing runs after it
            return False
        return True

    def _device(self) -> Device:
        import tvm

        return tvm.cuda(0) if self._is_cuda() else tvm.cpu()

    def _is_cuda(self) -> bool:
        return str(self._target().kind.name) == "cuda"

    def _target(self) -> Target:
        import tvm

        return tvm.target.Target(self._text)


class BuildSession:
    """The requests of a worker for a CPU that is not here: as those of :class:`VerifySession`, but schedules are built
    alone."""

    def __init__(self, target: str) -> None:
        """``target`` as text."""
        self._text = target

    def warm_up(self) -> None:
        """Import TVM."""
        lower_as_compiles_do()

    def refer(self, original: str) -> None:
        """Nothing is run."""

    def judge(self, scheduled: str, _name: str = _MAIN) -> RunResult:
        """Build a schedule."""
        import tvm

        try:
            library = built(_function(scheduled), tvm.target.Target(self._text))
            library.inspect_source("asm")  # LLVM makes code when it is asked for some
        except Exception as error:  # TVM raises many kinds for what does not compile
            return RunResult(tolerance=0.0, error=last_line(error))
        return RunResult(tolerance=0.0)


def _tried(function: PrimFunc) -> list[tuple[int, ...]]:
    """The probes without the largest, but with the first; a schedule itself names sizes at which other code runs."""
    found = probes(function)
    return [values for values in found if values == found[0] or elements_at(function, values) <= _MOST_ELEMENTS]


def _check_parameters(scheduled: PrimFunc, function: PrimFunc) -> None:
    """Raise ValueError where a schedule of a static function takes other buffers: it is not checked what it gets."""
    if is_static(function) and not (is_static(scheduled) and buffer_shapes(scheduled) == buffer_shapes(function)):
        raise ValueError("its parameters are not those of the function")


def lacks_memory(error: str) -> bool:
    """Whether an error is about memory that others have taken."""
    return any(text in error.lower().replace(" ", "").replace("_", "") for text in map(_squeezed, _NO_MEMORY))


def _squeezed(text: str) -> str:
    return text.replace(" ", "").replace("_", "")


def _function(text: str) -> PrimFunc:
    import tvm

    return tvm.ir.load_json(text)["main"]


def _fill_new_memory() -> None:
    """Have the C library fill what it gives out: results of memory that nobody has written then differ."""
    import ctypes

    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_PERTURB, _FILL)


def with_nvrtc(arch: str, store: ArtifactStore | None) -> str:
    """Compile several times as fast as TVM does, where there is NVRTC. Returns the name of a pipeline that lowers
    functions as a compile does, which then finds their kernels in the ``store``."""
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    from tunehub.compiler.cuda.dependent_launch import with_dependent_launches
    from tunehub.compiler.cuda.side_by_side import SideBySide
    from tunehub.tir.cuda.nvrtc import Compiler, NvrtcError

    try:
        Compiler(arch).install()
    except NvrtcError:
        return _DEFAULT  # TVM finds nvcc, or says what is missing
    kernels = SideBySide(store=None if store is None else lambda: store, quick=lambda: True)
    PIPELINE_MAP[_AS_COMPILED] = kernels.lowering(with_dependent_launches(without_cleaning(PIPELINE_MAP[PIPELINE])))
    return _AS_COMPILED

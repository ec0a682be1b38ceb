"""What a worker process does for a tuner: it builds and measures one candidate after another.

TVM's LocalBuilder starts new processes for every batch, and each imports all tensor intrinsics, 7 to 13 s of CPU
(``s_tir/meta_schedule/builder/local_builder.py``). A worker here lives as long as the tuning run, and only its own
process dies when the code that it builds or runs crashes (:mod:`tunehub.compiler.workers.process`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunehub.compiler.measure.quiet import clear_of_the_pool, undisturbed
from tunehub.compiler.measure.session import CandidateSession, packed, unpacked
from tunehub.compiler.workers.process import error_of
from tunehub.tir.nodes import buffer_shapes
from tunehub_builder.tuning.runner.archive import Archive, loaded_library, packed_library
from tunehub_builder.tuning.runner.messages import MeasureOptions

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike
    from tunehub.tir.types import IRModule, Module, PortableTrace


class TraceSession(CandidateSession):
    """As the client's: modules by task, built candidates by number. A candidate is a trace.

    Its public methods are the requests. A candidate stays built until it is measured or dropped.
    """

    def build(self, number: int, task: str, target: TargetLike, trace: Any) -> None:
        """Build the candidate, see :meth:`candidate`."""
        self._keep(number, self.candidate(task, target, trace), target)

    def candidate(self, task: str, target: TargetLike, trace: Any) -> IRModule:
        """The candidate as a compile makes it: constant weights come in the layout that the kernel reads."""
        from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

        del target
        return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=False)(self._scheduled(task, trace))

    def archive(self, task: str, target: TargetLike, trace: Any) -> Archive:
        """Build the candidate for another process to measure, maybe on another machine. None is the default."""
        mod = self.default(task, target) if trace is None else self.candidate(task, target, trace)
        library = self._compiled(mod, target)
        source, cubin = self._kernels(library, target)
        shapes = tuple(buffer_shapes(mod["main"]))
        return Archive(library=packed_library(library), shapes=shapes, source=source, cubin=cubin)

    def load(self, number: int, target: TargetLike, archive: Archive) -> None:
        """Keep what another process has built as a candidate of this one."""
        del target
        library = loaded_library(archive)
        library["main"]
        self._built[number] = (library, [self._argument(*shape) for shape in archive.shapes])

    def build_unpacked(self, number: int, task: str, target: TargetLike, trace: Any) -> None:
        """Build the candidate with the workload's own interface: it packs its weights itself, at every call."""
        self._keep(number, self._scheduled(task, trace), target)

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> tuple[float, ...]:
        import tvm

        library, arguments = self._built.pop(number)
        once = library.time_evaluator("main", tvm.cpu(), number=1, repeat=2)
        first = tuple(float(seconds) for seconds in once(*arguments).results)
        if best_s is not None and min(first) > options.cutoff * best_s:
            return first
        runs = max(1, int(options.min_repeat_s / max(min(first), 1e-7)))
        timer = library.time_evaluator("main", tvm.cpu(), number=runs, repeat=options.repeats)
        with clear_of_the_pool():
            return undisturbed(lambda: tuple(float(seconds) for seconds in timer(*arguments).results), self._patience)

    def build_case(self, task: str, target: TargetLike, traces: list[Any]) -> list[str | None]:
        """Build what the gate compares: the default as number 0, of trace i :func:`packed` and :func:`unpacked`.

        Returns the error of the default and of every trace, None for what is built.
        """
        self.drop()
        errors = [error_of(self.build_default, 0, task, target)]
        for i, trace in enumerate(traces):
            error = error_of(self.build, packed(i), task, target, trace)
            errors.append(error or error_of(self.build_unpacked, unpacked(i), task, target, trace))
        return errors

    def _scheduled(self, task: str, trace: PortableTrace) -> IRModule:
        from tunehub.compiler.schedule.apply import apply_exact
        from tunehub.tir.traces import import_trace

        return apply_exact(self._modules[task], import_trace(trace)).mod

    def _kernels(self, library: Module, target: TargetLike) -> tuple[str, bytes]:
        """The source of a GPU's kernels in what was built, and their machine code; a CPU has none."""
        del library, target
        return "", b""

"""Whether a GPU could launch every kernel of a package: each is compiled for it, and what it takes is added up.

No GPU is needed. A package for a large GPU says that it serves every one from some architecture on; what a kernel takes
of the smallest of these shows only in its machine code. Source of the limits: CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"; registers are handed out in units of 256 to a warp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tunehub.exceptions import last_line
from tunehub.registries.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub.target.gpu_architectures import SM_80, LaunchLimits
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.packages import opened
from tunehub_builder.gate.report import CheckResult, Rejection
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.printable import plain
from tunehub_registry.template_record import BadLine

if TYPE_CHECKING:
    from tunehub.tir.cuda.nvrtc import Compiler, KernelUse
    from tunehub_registry.manifest import RecordSet
    from tunehub_registry.package import Package

_REGISTERS = 1 << 16  # of a multiprocessor, from sm_50 on
_UNIT, _WARP = 256, 32
_KERNEL = re.compile(r'extern "C" __global__ void(?: __launch_bounds__\((\d+)[^)]*\))? (\w+)\(')


def check_launches(path: Path, work: Path, arch: str, stream: TextIO) -> CheckResult:
    """Compile the kernels of every record of a static workload in the package ``path`` for ``arch`` (``sm_80``).

    ``work`` is a work directory that has the records' workloads. Raises BuilderError for a package that is not for
    CUDA or cannot be read, or without NVRTC; PackageError and FormatError for a damaged package; WorkDirectoryError.
    """
    records = _records(path)
    tasks = {task.exact: task for task in WorkDirectory(work).tasks()}
    compiler = _compiler(arch)
    rejected = []
    for position, record in enumerate(records, 1):
        reason = _reason(record, tasks, arch, compiler)
        if reason is not None:
            rejected.append(Rejection(where=record.exact, name=record.op, reason=reason))
        stream.write(plain(f"[{position}/{len(records)}] {'refused' if reason else 'fits'} {record.op}") + "\n")
        stream.flush()
    return CheckResult(admitted=len(records) - len(rejected), rejected=tuple(rejected), measured=True)


def excess(threads: int, use: KernelUse, limits: LaunchLimits = SM_80) -> str | None:
    """Why a kernel with blocks of ``threads`` cannot be launched, or None."""
    if threads > limits.threads:
        return f"a block has {threads} threads, more than {limits.threads}"
    if use.shared_memory > limits.shared_memory:
        return f"a block takes {use.shared_memory} bytes of shared memory, more than {limits.shared_memory}"
    warps = -(-threads // _WARP)
    registers = warps * -(-use.registers * _WARP // _UNIT) * _UNIT
    if registers > _REGISTERS:
        return f"a block takes {registers} registers, more than {_REGISTERS}"
    return None


def threads_of(source: str) -> dict[str, int]:
    """The threads of a block of each kernel in TVM's CUDA source, by the kernel's name."""
    return {name: int(bound or SM_80.threads) for bound, name in _KERNEL.findall(source)}


def _compiler(arch: str) -> Compiler:
    from tunehub.tir.cuda.nvrtc import Compiler, NvrtcError

    try:
        return Compiler(arch)
    except NvrtcError as error:
        raise BuilderError(str(error)) from error


def _records(path: Path) -> list[AnyRecord]:
    with opened(path) as package:
        if package.manifest.target.kind != "cuda":
            raise BuilderError(f"{path}: is for {package.manifest.target.kind}; only CUDA has kernels to launch")
        sets = [entry for entry in package.manifest.record_sets if entry.tuner in (META_SCHEDULE, TEMPLATE)]
        return [record for entry in sets for record in _of_set(package, entry, path)]


def _of_set(package: Package, entry: RecordSet, path: Path) -> Iterator[AnyRecord]:
    with package.open(entry.file) as stream:
        for record in read_any_records(stream, str(path)):
            if isinstance(record, BadLine):
                raise BuilderError(f"{path}: {entry.file}, line {record.line}: {record.reason}")
            if not isinstance(record, LadderRecord):
                yield record


def _reason(record: AnyRecord, tasks: Mapping[str, TaskEntry], arch: str, compiler: Compiler) -> str | None:
    """Why ``record`` is refused, or None."""
    task = tasks.get(record.exact)
    if task is None:
        return "the work directory has no such workload"
    try:
        source = _source(record, task, arch)
        uses, threads = _uses(compiler.compile(source)), threads_of(source)
    except Exception as error:  # TVM raises many kinds for a record that does not fit
        return last_line(error, limit=200)
    if not uses or uses.keys() != threads.keys():
        return f"kernels {', '.join(sorted(threads))} were asked for, {', '.join(sorted(uses)) or 'none'} were made"
    reasons = (excess(threads[name], use) for name, use in uses.items())
    return next((reason for reason in reasons if reason is not None), None)


def _uses(cubin: bytes) -> dict[str, KernelUse]:
    from tunehub.tir.cuda.nvrtc import kernel_uses

    return kernel_uses(cubin)


def _source(record: AnyRecord, task: TaskEntry, arch: str) -> str:
    """The CUDA source of a workload by ``record``, made and checked as a client does it."""
    import tvm

    from tunehub.compiler.schedule.apply import apply_candidate
    from tunehub.kernels.template_fit import TemplateFit
    from tunehub.records.lookup import Candidate
    from tunehub.tir.cuda.nvrtc import source_of

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    mod = tvm.ir.load_json(task.module)
    candidate = Candidate(record=record, rung="exact", package="package")
    schedule = apply_candidate(mod, candidate, target, TemplateFit(mod, target))
    return source_of(tvm.tirx.build(schedule.mod, target=target))

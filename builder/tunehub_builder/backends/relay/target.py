"""Targets of TVM <= 0.19: texts such as ``llvm -mcpu=znver5 -num-cores=2`` or ``cuda -model=titanx``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.target.host import physical_cores
from tunehub_builder.exceptions import NoSuchTargetError, TuningError, UnsuitableTargetError
from tunehub_builder.tuning.target import HOST, Cpu, TuningTarget, find_cpu
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.legacy_target import descriptor_of_legacy, parse_target

if TYPE_CHECKING:
    from tunehub.target.types import Target


def find_relay_target(name: str, *, remote: bool) -> TuningTarget:
    """The target called ``name``: ``host``, ``llvm-`` and LLVM's name of a CPU, or TVM's own text of a target.

    Raises NoSuchTargetError for a name that is none of these, and UnsuitableTargetError for a device that neither is
    this machine nor in it (``remote``: it need not be).
    """
    if name != HOST and not name.startswith("llvm-"):
        return _from_text(name, remote)
    _require_llvm_names(name)
    cpu = find_cpu(name, remote=remote)
    return TuningTarget(name=f"llvm-{cpu.model}", config={"text": _cpu_text(cpu)})


def _from_text(text: str, remote: bool) -> TuningTarget:
    import tvm

    try:
        name = descriptor_of_legacy(parse_target(text)).name
        target = tvm.target.Target(text)
    except (RegistryError, ValueError, tvm.error.TVMError) as error:
        raise NoSuchTargetError(text, [HOST, "llvm-CPU", "cuda -model=titanx"]) from error
    if not remote and not _is_here(target):
        raise UnsuitableTargetError(text, *_missing(_kind(target)))
    return TuningTarget(name=name, config={"text": text})


def _missing(kind: str) -> tuple[str, str]:
    """Why there is no device of this kind, and what to do."""
    import tvm

    if kind not in ("llvm", "c") and not tvm.runtime.enabled(kind):
        remedy = f"use a build of your own (USE_{kind.upper()}=ON)"
        return f"this TVM was built without {kind}, as TVM 0.19 from PyPI is", remedy
    return "TVM finds no such device on this machine", "tune on a machine that has one"


def _is_here(target: Target) -> bool:
    import tvm

    kind = _kind(target)
    triple = target.attrs.get("mtriple")
    if kind in ("llvm", "c"):
        return triple is None or _same_machine(str(triple))
    return bool(tvm.device(kind, 0).exist)


def _kind(target: Target) -> str:
    return str(target.kind.name if hasattr(target.kind, "name") else target.kind)


def _same_machine(triple: str) -> bool:
    import platform

    return triple.partition("-")[0] == platform.machine()


def _cpu_text(cpu: Cpu) -> str:
    """TVM knows ``num-cores`` since 0.9; without it its auto-scheduler asks the machine."""
    import tvm

    text = f"llvm -mcpu={cpu.model}" + (f" -mattr={','.join(cpu.mattr)}" if cpu.mattr else "")
    try:
        tvm.target.Target(f"{text} -num-cores=1")
    except (ValueError, tvm.error.TVMError):
        return text
    return f"{text} -num-cores={physical_cores()}"


def _require_llvm_names(name: str) -> None:
    import tvm
    from tvm.target import codegen

    if not hasattr(codegen, "llvm_get_cpu_archlist"):
        raise TuningError(
            f"TVM {tvm.__version__} cannot tell what {name!r} is (0.15 and newer can): "
            "give TVM's own text of the target, such as --target 'llvm -mcpu=skylake-avx512'"
        )

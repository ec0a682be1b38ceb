"""Features of CPUs in LLVM's spelling: the one list of those that matter, and what a target has of them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

# LLVM features that decide which schedules are legal or fast; the rest (ciphers, tuning flags, system instructions)
# would only keep related machines apart.
RELEVANT = {
    "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq",
    "avx512cd", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni", "avxvnniint8", "avxifma", "avxneconvert",
    "amx-tile", "amx-int8", "amx-bf16", "amx-fp16", "neon", "fullfp16", "dotprod", "i8mm", "bf16", "fp16fml", "sve",
    "sve2", "sme", "sme2", "v", "zvl128b", "zvl256b", "zvl512b",
}  # fmt: skip
# What Linux calls those that generated code may use (/proc/cpuinfo; LLVM's `Host.cpp` reads the same bits itself).
# A feature that is not here is as LLVM takes it from the name of the model.
_X86 = {
    "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "sse4a": "sse4a", "popcnt": "popcnt",
    "abm": "lzcnt", "bmi1": "bmi", "bmi2": "bmi2", "movbe": "movbe", "gfni": "gfni", "avx": "avx", "avx2": "avx2",
    "fma": "fma", "fma4": "fma4", "xop": "xop", "tbm": "tbm", "f16c": "f16c", "avx512f": "avx512f",
    "avx512bw": "avx512bw", "avx512vl": "avx512vl", "avx512dq": "avx512dq", "avx512cd": "avx512cd",
    "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2",
    "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq", "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "avx512_vp2intersect": "avx512vp2intersect",
    "avx_vnni": "avxvnni", "avx_vnni_int8": "avxvnniint8", "avx_vnni_int16": "avxvnniint16", "avx_ifma": "avxifma",
    "avx_ne_convert": "avxneconvert", "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
}  # fmt: skip
_ARM = {
    "asimd": "neon", "asimdhp": "fullfp16", "asimddp": "dotprod", "asimdfhm": "fp16fml", "i8mm": "i8mm", "bf16": "bf16",
    "sve": "sve", "sve2": "sve2", "sme": "sme", "sme2": "sme2",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Flags:
    """How Linux lists the features of an architecture: ``key`` of the line, names, and one that every such CPU has."""

    key: str
    names: Mapping[str, str]
    always: str


_FLAGS = {
    "x86_64": _Flags(key="flags", names=_X86, always="sse2"),
    "aarch64": _Flags(key="Features", names=_ARM, always="asimd"),
}
_AMD, _LEVELS = ("znver", "bdver", "btver"), "x86-64"  # what LLVM's names begin with
# What generated code may use and a machine may lack; tuning flags such as `fast-lzcnt` are left out.
EXTENSIONS = re.compile(r"avx.*|fma|f16c|amx.*|sse4\.[12]|neon|dotprod|fullfp16|bf16|i8mm|sve.*|sme.*|v|zv.*")


def relevant(names: Iterable[str]) -> tuple[str, ...]:
    """Those of ``names`` that matter, sorted."""
    return tuple(sorted(RELEVANT.intersection(names)))


def linux_features(cpuinfo: str, arch: str) -> frozenset[str] | None:
    """The features, in LLVM's spelling, that every CPU in ``cpuinfo`` (the text of ``/proc/cpuinfo``) has and that code
    may use: the kernel leaves out what it has not enabled.

    None where the text does not tell: of another architecture (an emulated one), without flags, or cut off.
    """
    kind = _FLAGS.get(arch)
    if kind is None:
        return None
    pairs = (line.partition(":") for line in cpuinfo.splitlines())
    cpus = [frozenset(text.split()) for key, _, text in pairs if key.strip() == kind.key]
    common = frozenset[str].intersection(*cpus) if cpus else frozenset[str]()
    if kind.always not in common:
        return None
    return frozenset(kind.names[flag] for flag in common.intersection(kind.names))


def differences(features: frozenset[str] | None, of_model: Collection[str], arch: str) -> tuple[str, ...]:
    """In which a CPU with ``features`` differs from what LLVM takes its model to have, as LLVM is told of it:
    ``+amx-tile`` for what the model has not, then ``-avx512f`` for what is hidden or missing; without ``features``
    nothing.

    Of what a CPU has besides, only what matters to schedules is named; of what it lacks, everything that code may use.
    """
    if features is None:
        return ()
    hidden = frozenset(_FLAGS[arch].names.values()).intersection(of_model) - features
    more = RELEVANT.intersection(features).difference(of_model)
    return (*(f"+{name}" for name in sorted(more)), *(f"-{name}" for name in sorted(hidden)))


def extensions(names: Iterable[str]) -> tuple[str, ...]:
    """Those of ``names`` that generated code may use, sorted."""
    return tuple(sorted(name for name in names if EXTENSIONS.fullmatch(name)))


def not_in(features: frozenset[str] | None, wanted: Iterable[str], arch: str) -> tuple[str, ...]:
    """Those of ``wanted`` that a CPU with ``features`` (None: not known) lacks, sorted; of those that the system tells
    of."""
    if features is None:
        return ()
    return tuple(sorted(frozenset(wanted).intersection(_FLAGS[arch].names.values()) - features))


def llvm_features_of_text(target: str) -> frozenset[str]:
    """As :func:`all_llvm_features`, of a target in JSON; nothing where it is none."""
    try:
        config = json.loads(target)
    except (ValueError, RecursionError):
        return frozenset()
    return all_llvm_features(config) if isinstance(config, dict) else frozenset()


def llvm_features(config: Mapping[str, object]) -> tuple[str, ...]:
    """The relevant features that LLVM generates code with for a target, mattr considered."""
    return relevant(all_llvm_features(config))


def names_by_features(cpu: str, mattr: Sequence[str]) -> tuple[str, ...]:
    """LLVM's names of the CPUs of the maker of ``cpu`` that have, of what matters to schedules, just what it has with
    ``mattr``, sorted. None where ``mattr`` adds nothing: only a CPU whose model is hidden has more than its name
    says."""
    more = RELEVANT.intersection(each[1:] for each in mattr if each.startswith("+"))
    return _names_by_features(cpu, tuple(mattr)) if more else ()


def of_one_maker(cpu: str, other: str) -> bool:
    """Whether two of LLVM's names are of CPUs of one maker; those of levels, such as x86-64-v3, are nobody's."""
    levels = any(each.startswith(_LEVELS) for each in (cpu, other))
    return not levels and cpu.startswith(_AMD) == other.startswith(_AMD)


@lru_cache
def _names_by_features(cpu: str, mattr: tuple[str, ...]) -> tuple[str, ...]:
    import tvm
    from tvm.target import codegen

    config = {"kind": "llvm", "mcpu": cpu, "mattr": list(mattr)}
    features = llvm_features(config)
    try:
        names = [str(name) for name in codegen.llvm_get_cpu_archlist(tvm.target.Target(config))]
    except Exception:  # TVM before 0.15, or without LLVM
        return ()
    own = (name for name in names if name != cpu and of_one_maker(name, cpu))
    return tuple(sorted(name for name in own if features and llvm_features({"kind": "llvm", "mcpu": name}) == features))


def all_llvm_features(config: Mapping[str, object]) -> frozenset[str]:
    """As :func:`llvm_features`, with those that do not matter to schedules."""
    import tvm
    from tvm.target import codegen

    try:
        found = codegen.llvm_get_cpu_features(tvm.target.Target(dict(config)))
    except Exception:  # an architecture that this build of LLVM lacks: nothing is known about it
        return frozenset()
    return frozenset(str(name) for name in found)

"""What this machine is, and what a target means, as a TargetDescriptor. Everything about TVM's targets is here."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tunehub.exceptions import UnknownTargetError, last_line
from tunehub.target.tvm_generation import find_tvm
from tunehub_registry.target import TargetDescriptor

if TYPE_CHECKING:
    from tunehub.target.nvidia import Gpu

# LLVM features that decide which schedules are legal or fast; the rest (ciphers, tuning flags, system instructions)
# would only keep related machines apart.
_RELEVANT = {
    "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq",
    "avx512cd", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni", "avxvnniint8", "avxifma", "avxneconvert",
    "amx-tile", "amx-int8", "amx-bf16", "amx-fp16", "neon", "fullfp16", "dotprod", "i8mm", "bf16", "fp16fml", "sve",
    "sve2", "sme", "sme2", "v", "zvl128b", "zvl256b", "zvl512b",
}  # fmt: skip
# Linux spells some of them in its own way (/proc/cpuinfo).
_FROM_LINUX = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "avx_vnni": "avxvnni", "avx_vnni_int8": "avxvnniint8", "avx_ifma": "avxifma",
    "avx_ne_convert": "avxneconvert", "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16", "asimd": "neon", "asimdhp": "fullfp16", "asimddp": "dotprod", "asimdfhm": "fp16fml",
}  # fmt: skip
_ARCH_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
# Architectures of GPUs that TVM has no tag for, by the short names that packages use (NVIDIA's CUDA GPU table).
_GPU_ARCH = {"h200": "sm_90", "h100": "sm_90", "b200": "sm_100", "a100": "sm_80", "l4": "sm_89", "l40s": "sm_89"}
_GPU_NOISE = re.compile(r"\b(nvidia|amd|intel|geforce|tesla|quadro|graphics|gpu|sxm\d?|pcie|hbm\w*|\d+gb)\b|\(.*?\)")
_NAMED = re.compile(r"([a-z0-9][a-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9._-]*)")
_CPU_KINDS = frozenset({"llvm", "c"})
_TARGET_REMEDY = (
    'give a TVM target, a dict or JSON such as {"kind": "llvm", "mcpu": "znver5"}, a package name such as '
    "'llvm-znver5' or 'cuda-h100', or nothing for this machine's CPU; `tunehub list` shows the packages"
)


def host_descriptor(*, use_tvm: bool | None = None) -> TargetDescriptor:
    """Describe the CPU of this machine: by LLVM when TVM is there (or `use_tvm`), else by /proc/cpuinfo."""
    if use_tvm is None:
        use_tvm = find_tvm() is not None
    name = _system_cpu() if use_tvm else None
    if name is not None:
        return TargetDescriptor(
            kind="llvm",
            model=_model(name),
            arch=_arch_of_triple(_system_triple()),
            features=_llvm_features({"kind": "llvm", "mcpu": name}),
            num_cores=physical_cores(),
        )
    arch = _machine_arch()
    return TargetDescriptor(
        kind="llvm",
        model=f"generic-{arch}",
        arch=arch,
        features=_relevant(_FROM_LINUX.get(flag, flag) for flag in _linux_flags()),
        num_cores=physical_cores(),
    )


def host_target(kind: str = "llvm") -> Any:
    """A `tvm.target.Target` for this machine: its CPU with its LLVM name and its physical cores, or with `kind`
    `cuda` its first NVIDIA GPU with architecture, model and limits, as the driver's `nvidia-smi` describes it.

    Raises UnknownTargetError for another `kind`, or when there is no such GPU.
    """
    import tvm

    if kind == "cuda":
        return tvm.target.Target(_first_gpu().tvm_config())
    if kind != "llvm":
        raise UnknownTargetError(kind, "is no kind of this machine's targets", remedy="give 'llvm' or 'cuda'")
    name = _system_cpu()
    named = {} if name is None else {"mcpu": name}
    return tvm.target.Target({"kind": "llvm", **named, "num-cores": physical_cores()})


def _first_gpu() -> Gpu:
    from tunehub.target.nvidia import find_gpus

    gpus = find_gpus()
    if not gpus:
        remedy = "run on a machine with an NVIDIA GPU and its driver, or name the model, such as 'cuda-h100'"
        raise UnknownTargetError("cuda", "nvidia-smi lists no GPU here", remedy=remedy)
    return gpus[0]


def gpu_descriptor() -> TargetDescriptor | None:
    """Describe the first CUDA GPU, or None when there is none (or no TVM to ask)."""
    if find_tvm() is None:
        return None
    import tvm

    device = tvm.device("cuda", 0)
    if not device.exist:
        return None
    arch = f"sm_{str(device.compute_version).replace('.', '')}"
    return TargetDescriptor(
        kind="cuda",
        model=gpu_model(str(device.device_name)),
        arch=arch,
        features=(arch,),
        max_threads_per_block=int(device.max_threads_per_block),
        max_shared_memory_per_block=int(device.max_shared_memory_per_block),
    )


def descriptor_of(target: object) -> TargetDescriptor:
    """Describe a target: a TVM target, a dict, JSON or string in TVM's form, a package name, or None.

    None is this machine's CPU; `llvm` is what it is to TVM: a CPU without any of the newer features. A TVM target is
    never refused; other values raise UnknownTargetError when neither TVM nor tunehub knows them.
    """
    if target is None:
        return host_descriptor()
    if isinstance(target, TargetDescriptor):
        return target
    if isinstance(target, str):
        return _from_text(target)
    if isinstance(target, Mapping):
        return _from_config(target)
    if hasattr(target, "kind") and hasattr(target, "attrs"):
        return _from_tvm(target)
    raise UnknownTargetError(target, f"is a {type(target).__name__}, not a target", remedy=_TARGET_REMEDY)


def as_tvm_target(target: object) -> Any:
    """Return `target` as a `tvm.target.Target`; None is the host, package names become targets of their model.

    Raises UnknownTargetError.
    """
    import tvm

    if target is None:
        return host_target()
    if isinstance(target, str):
        named = _NAMED.fullmatch(target)
        if named is not None and named[1] in ("llvm", "cuda"):
            return _tvm_target(_config_of_name(named[1], named[2]), target)
    return target if isinstance(target, tvm.target.Target) else _tvm_target(target, target)


def missing_mcpu(target: object) -> str | None:
    """Why code for this TVM target will be slow, or None: without mcpu LLVM uses the oldest CPU of the architecture."""
    attrs = getattr(target, "attrs", None)
    if attrs is None or target.kind.name != "llvm" or attrs.get("mcpu") or attrs.get("mattr"):  # type: ignore[attr-defined]
        return None
    return (
        "the target has no mcpu, so TVM generates code for the oldest CPU of the architecture, without AVX: "
        "use tunehub.host_target(), or set mcpu"
    )


def gpu_model(name: str) -> str:
    """The short name of a GPU: vendor, product line, form factor and memory go (`NVIDIA A100-SXM4-80GB` → `a100`)."""
    words = re.findall(r"[a-z0-9.]+", _GPU_NOISE.sub(" ", name.lower()))
    return _model("-".join(words))


def physical_cores() -> int:
    """Physical cores that this process may use: /proc/cpuinfo's, else psutil's count, else all logical CPUs."""
    usable = _usable_threads()
    return max(1, min(len(_linux_cores()) or _psutil_cores() or usable, usable))


def small_pool(environ: Mapping[str, str] | None = None) -> str | None:
    """Why TVM's thread pool is smaller than the physical cores, or None. TVM is not asked: that would start the pool.

    The rule is TVM's (`src/runtime/threading_backend.cc`, MaxConcurrency): half of the hardware threads on x86.
    """
    env = os.environ if environ is None else environ
    if env.get("TVM_NUM_THREADS") or env.get("OMP_NUM_THREADS") or _machine_arch() != "x86_64":
        return None
    pool, cores = max(1, _usable_threads() // 2), physical_cores()
    if pool >= cores:
        return None
    return (
        f"TVM's thread pool takes {pool} of {cores} physical cores (half of the hardware threads): "
        f"set TVM_NUM_THREADS={cores} before TVM is first used"
    )


def _psutil_cores() -> int | None:
    """psutil is not needed on Linux, where importing it would take longer than opening a hub."""
    try:
        import psutil
    except ImportError:
        return None
    cores: int | None = psutil.cpu_count(logical=False)
    return cores


def _usable_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _from_text(text: str) -> TargetDescriptor:
    stripped = text.strip()
    if stripped.startswith("{"):
        try:
            return _from_config(json.loads(stripped))
        except (json.JSONDecodeError, RecursionError) as error:
            raise UnknownTargetError(text, f"is not valid JSON: {error}", remedy=_TARGET_REMEDY) from None
    if stripped == "llvm":
        return _from_config({"kind": "llvm"})
    if stripped == "cuda":
        gpu = gpu_descriptor()
        if gpu is None:
            raise UnknownTargetError(text, "TVM finds no CUDA GPU here", remedy="name the model, such as 'cuda-h100'")
        return gpu
    named = _NAMED.fullmatch(stripped)
    if named is not None and named[1] in ("llvm", "cuda"):
        return _named(named[1], named[2], text)
    if find_tvm() is not None:
        described = _from_tvm(_tvm_target(stripped, text))
        tag = stripped.rpartition("/")[2]
        return structs.replace(described, model=gpu_model(tag)) if stripped.startswith("nvidia/") else described
    raise UnknownTargetError(text, "is not a target that can be read without TVM", remedy=_TARGET_REMEDY)


def _named(kind: str, model: str, text: str) -> TargetDescriptor:
    """`llvm-znver5`, `cuda-h200`."""
    host = host_descriptor() if kind == "llvm" else gpu_descriptor()
    if host is not None and host.model == model.lower():
        return host
    if kind == "cuda":
        return _named_gpu(model.lower(), text)
    if find_tvm() is None:
        return TargetDescriptor(kind=kind, model=model.lower(), arch=_machine_arch())
    config = _config_of_name(kind, model)
    triple = config.get("mtriple", _system_triple())
    return TargetDescriptor(
        kind=kind, model=model.lower(), arch=_arch_of_triple(triple), features=_llvm_features(config)
    )


def _named_gpu(model: str, text: str) -> TargetDescriptor:
    config = _config_of_name("cuda", model)
    if "tag" in config:
        return structs.replace(_from_tvm(_tvm_target(config, text)), model=model)
    return TargetDescriptor(kind="cuda", model=model, arch=config["arch"], features=(config["arch"],))


def _config_of_name(kind: str, model: str) -> dict[str, Any]:
    """TVM's form of a package name. Raises UnknownTargetError."""
    if kind == "cuda":
        if find_tvm() is not None:
            for tag in (f"nvidia/nvidia-{model}", f"nvidia/{model}", f"nvidia/geforce-{model}"):
                if _is_tag(tag):
                    return {"tag": tag}
        if model in _GPU_ARCH:
            return {"kind": "cuda", "arch": _GPU_ARCH[model]}
        remedy = 'give its architecture: {"kind": "cuda", "arch": "sm_90"}'
        raise UnknownTargetError(f"{kind}-{model}", "is not a GPU that TVM or tunehub knows", remedy=remedy)
    if find_tvm() is None or not (triples := [t for t in _triples() if _is_cpu(model, t)]):
        remedy = f"use LLVM's name of the CPU (`llc -mcpu=help`). {_TARGET_REMEDY}"
        raise UnknownTargetError(f"{kind}-{model}", "LLVM knows no such CPU", remedy=remedy)
    own = _arch_of_triple(triples[0]) == _arch_of_triple(_system_triple())
    return {"kind": "llvm", "mcpu": model} if own else {"kind": "llvm", "mcpu": model, "mtriple": triples[0]}


def _from_config(config: Mapping[str, Any]) -> TargetDescriptor:
    if find_tvm() is not None:
        return _from_tvm(_tvm_target(dict(config), json.dumps(dict(config), default=str)))
    kind, arch = config.get("kind"), config.get("arch")
    if kind == "cuda" and isinstance(arch, str):
        model = str(config.get("model") or arch)
        return TargetDescriptor(kind="cuda", model=_model(model), arch=arch, features=(arch,))
    if kind == "llvm":
        triple = str(config.get("mtriple") or _machine_arch())
        model = _model(str(config.get("mcpu") or "generic"))
        return TargetDescriptor(kind="llvm", model=model, arch=_arch_of_triple(triple))
    raise UnknownTargetError(json.dumps(dict(config), default=str), "cannot be read without TVM", remedy=_TARGET_REMEDY)


def _from_tvm(target: Any) -> TargetDescriptor:
    kind = str(target.kind.name)
    attrs = {str(key): value for key, value in target.attrs.items()}
    if kind in _CPU_KINDS:
        return _cpu_from_tvm(kind, attrs)
    arch = str(attrs.get("arch") or "unknown")
    return TargetDescriptor(
        kind=kind if _NAMED.fullmatch(f"{kind}-x") else "other",
        model=_gpu_model_of(target, attrs, arch),
        arch=arch,
        features=(arch,) if arch.startswith("sm_") else (),
        max_threads_per_block=_bound(attrs.get("max_threads_per_block", attrs.get("max_num_threads"))),
        max_shared_memory_per_block=_bound(attrs.get("max_shared_memory_per_block")),
    )


def _cpu_from_tvm(kind: str, attrs: Mapping[str, Any]) -> TargetDescriptor:
    triple = str(attrs.get("mtriple") or _system_triple())
    config = {"kind": "llvm", **{key: attrs[key] for key in ("mcpu", "mtriple", "mattr") if attrs.get(key)}}
    return TargetDescriptor(
        kind=kind,
        model=_cpu_model(attrs),
        arch=_arch_of_triple(triple),
        features=_llvm_features(config),
        num_cores=_bound(attrs.get("num-cores")),
    )


def _cpu_model(attrs: Mapping[str, Any]) -> str:
    """LLVM's name of the CPU; of a board that TVM up to 0.19 describes by its `-model`, that."""
    mcpu, board = attrs.get("mcpu"), str(attrs.get("model") or "unknown")
    stated = board if board != "unknown" and (attrs.get("device") or not mcpu) else mcpu
    return _model(str(stated or "generic"))


def _gpu_model_of(target: Any, attrs: Mapping[str, Any], arch: str) -> str:
    """The model of a GPU target: what it says itself, its tag, the GPU of this machine if alike, else the arch."""
    stated = attrs.get("model") or getattr(target, "tag", "")
    if stated and str(stated) != "unknown":
        return gpu_model(str(stated).rpartition("/")[2].removeprefix("nvidia-"))
    here = gpu_descriptor() if target.kind.name == "cuda" else None
    return here.model if here is not None and here.arch.rstrip("af") == arch.rstrip("af") else _model(arch)


def _tvm_target(config: Any, value: object) -> Any:
    import tvm

    try:
        return tvm.target.Target(config)
    except Exception as error:  # TVM raises ValueError, TypeError, KeyError or InternalError, by release
        reason = f"TVM does not know it: {last_line(error, limit=200)}"
        raise UnknownTargetError(value, reason, remedy=_TARGET_REMEDY) from None


def _llvm_features(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The relevant features that LLVM generates code with for a target, mattr considered."""
    import tvm
    from tvm.target import codegen

    try:
        return _relevant(str(name) for name in codegen.llvm_get_cpu_features(tvm.target.Target(dict(config))))
    except Exception:  # an architecture that this build of LLVM lacks: nothing is known about it
        return ()


def _relevant(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(_RELEVANT.intersection(names)))


def _is_cpu(name: str, triple: str) -> bool:
    from tvm.target import codegen

    try:
        return name in {str(item) for item in codegen.llvm_get_cpu_archlist(_tvm_target(_llvm_config(triple), name))}
    except Exception:  # LLVM without this architecture
        return False


def _llvm_config(triple: str) -> dict[str, Any]:
    return {"kind": "llvm", "mtriple": triple}


def _is_tag(tag: str) -> bool:
    import tvm

    try:
        tvm.target.Target({"tag": tag})
    except Exception:  # as _tvm_target
        return False
    return True


def _triples() -> tuple[str, ...]:
    return (_system_triple(), "x86_64-linux-gnu", "aarch64-linux-gnu")


def _system_triple() -> str:
    return str(_ask_llvm("llvm_get_system_triple") or f"{_machine_arch()}-unknown-linux-gnu")


def _system_cpu() -> str | None:
    """LLVM's name of this machine's CPU; None when TVM cannot say (before 0.15, or built without LLVM)."""
    name = _ask_llvm("llvm_get_system_cpu")
    return None if name is None else str(name)


def _ask_llvm(function: str) -> Any:
    """What a function of `tvm.target.codegen` without arguments says, None where TVM does not have it."""
    from tvm.target import codegen

    try:
        return getattr(codegen, function)()
    except Exception:  # AttributeError in old releases, TVMError or TypeError without LLVM
        return None


def _arch_of_triple(triple: str) -> str:
    arch = triple.partition("-")[0].lower() or "unknown"
    return _ARCH_NAMES.get(arch, arch)


def _machine_arch() -> str:
    machine = platform.machine().lower() or "unknown"
    return _ARCH_NAMES.get(machine, machine)


def _model(name: str) -> str:
    """`name` in the characters that a descriptor allows."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "generic"


def _bound(value: Any) -> int | None:
    return int(value) if value is not None and int(value) >= 1 else None


def _linux_flags(cpuinfo: str = "/proc/cpuinfo") -> list[str]:
    """The flags of the first CPU (`flags` on x86, `Features` on ARM); none where there is no such file."""
    return next((line.split() for line in _linux_values(cpuinfo, ("flags", "Features"))), [])


def _linux_cores(cpuinfo: str = "/proc/cpuinfo") -> set[tuple[str, str]]:
    packages = _linux_values(cpuinfo, ("physical id",))
    return set(zip(packages, _linux_values(cpuinfo, ("core id",)), strict=False))


def _linux_values(cpuinfo: str, keys: tuple[str, ...]) -> list[str]:
    if not sys.platform.startswith("linux"):
        return []
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for key, _, value in pairs if key.strip() in keys]

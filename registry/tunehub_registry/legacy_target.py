"""Targets as TVM 0.6 to 0.19 write them into logs, read without TVM, and the packages that they belong to. Pure.

The grammar is that of `TargetInternal::FromRawString` and `FromConfig` (src/target/target.cc), the default keys are
those of src/target/target_kind.cc and src/target/parsers/cpu.cc.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tunehub_registry import _json
from tunehub_registry.exceptions import FieldError, FormatError
from tunehub_registry.target import TargetDescriptor

__all__ = ["LegacyTarget", "cuda_architecture", "descriptor_of_legacy", "parse_target"]

_MAX_TEXT = 4096
_KEYS: dict[str, tuple[str, ...]] = {
    "llvm": ("cpu",), "c": ("cpu",), "stackvm": ("cpu",), "hexagon": ("hexagon", "cpu"), "cuda": ("cuda", "gpu"),
    "nvptx": ("cuda", "gpu"), "rocm": ("rocm", "gpu"), "opencl": ("opencl", "gpu"), "metal": ("metal", "gpu"),
    "vulkan": ("vulkan", "gpu"), "webgpu": ("webgpu", "gpu"), "opengl": ("opengl", "gpu"),
    "sdaccel": ("sdaccel", "hls"), "aocl": ("aocl", "hls"), "aocl_sw_emu": ("aocl", "hls"), "ext_dev": (), "hybrid": (),
    "micro_dev": ("micro_dev",),
}  # fmt: skip

# Compute capabilities, from NVIDIA's table of CUDA GPUs. TVM's logs name models as its users did: `titanx` is the
# GeForce GTX TITAN X of TVM's own benchmark.
_CUDA_ARCH = {
    "k80": "sm_37", "gtx750ti": "sm_50", "titanx": "sm_52", "gtxtitanx": "sm_52", "980": "sm_52", "980ti": "sm_52",
    "970": "sm_52", "m40": "sm_52", "m60": "sm_52", "tx1": "sm_53", "nano": "sm_53", "jetson-nano": "sm_53",
    "p100": "sm_60", "1050": "sm_61", "1050ti": "sm_61", "1060": "sm_61", "1070": "sm_61", "1070ti": "sm_61",
    "1080": "sm_61", "1080ti": "sm_61", "titanxp": "sm_61", "p4": "sm_61", "p40": "sm_61", "tx2": "sm_62",
    "jetson-tx2": "sm_62", "v100": "sm_70", "titanv": "sm_70", "xavier": "sm_72", "agx-xavier": "sm_72", "t4": "sm_75",
    "1650": "sm_75", "1660": "sm_75", "1660ti": "sm_75", "2060": "sm_75", "2070": "sm_75", "2080": "sm_75",
    "2080ti": "sm_75", "titanrtx": "sm_75", "a100": "sm_80", "a30": "sm_80", "a10": "sm_86", "a40": "sm_86",
    "3060": "sm_86", "3070": "sm_86", "3080": "sm_86", "3090": "sm_86", "a6000": "sm_86", "orin": "sm_87",
    "4090": "sm_89", "l4": "sm_89", "l40": "sm_89", "l40s": "sm_89", "h100": "sm_90", "h200": "sm_90", "b200": "sm_100",
}  # fmt: skip
_GPU_NOISE = re.compile(r"^(?:nvidia[/ _-]*)?(?:geforce[ _-]*)?(?:(?:gtx|rtx|tesla)[ _-]*(?=[0-9a-z]))?")

# LLVM's other names of some CPUs (llvm/lib/TargetParser/X86TargetParser.cpp).
_CPU_ALIASES = {
    "core-avx2": "haswell", "core-avx-i": "ivybridge", "corei7-avx": "sandybridge", "corei7": "nehalem",
    "skx": "skylake-avx512", "slm": "silvermont",
}  # fmt: skip
_X86 = re.compile(
    r"x86-64|i[3-6]86|pentium|core|nehalem|westmere|sandybridge|ivybridge|haswell|broadwell|skylake|skx|kabylake"
    r"|cannonlake|icelake|cascadelake|cooperlake|tigerlake|rocketlake|alderlake|raptorlake|meteorlake|arrowlake"
    r"|lunarlake|sapphirerapids|emeraldrapids|graniterapids|sierraforest|kn[lm]|atom|bonnell|silvermont|slm|goldmont"
    r"|tremont|gracemont|penryn|k8|opteron|athlon|barcelona|amdfam10|btver|bdver|znver"
)
_AARCH64 = re.compile(
    r"cortex-(?:a3[45]|a5[357]|a6|a7[2-8]|x)|neoverse|apple-|thunderx|a64fx|carmel|kryo|falkor|saphira"
)
_ARM32 = re.compile(r"cortex-(?:a5|a7|a8|a9|a12|a15|a17|a32)(?![0-9])")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_ARM_MICRO = re.compile(r"cortex-[mr]")

# Vector features that LLVM gives these CPUs, in the spelling of packages: enough to tell which machine has them all.
_AVX2 = ("avx", "avx2", "f16c", "fma", "sse3", "sse4.1", "sse4.2", "ssse3")
_AVX512 = (*_AVX2, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_CPU_FEATURES = {
    "haswell": _AVX2, "broadwell": _AVX2, "skylake": _AVX2, "znver1": _AVX2, "znver2": _AVX2, "znver3": _AVX2,
    "x86-64-v3": _AVX2, "skylake-avx512": _AVX512, "x86-64-v4": _AVX512, "cascadelake": (*_AVX512, "avx512vnni"),
    "icelake-client": (*_AVX512, "avx512vnni"), "icelake-server": (*_AVX512, "avx512vnni"),
    "cooperlake": (*_AVX512, "avx512bf16", "avx512vnni"), "znver4": (*_AVX512, "avx512bf16", "avx512vnni"),
    "znver5": (*_AVX512, "avx512bf16", "avx512vnni", "avxvnni"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class LegacyTarget:
    """A target of TVM <= 0.19, as written. `model` is `unknown` when not given, as in TVM; other texts are empty.

    `keys` are those that TVM gives it, `mattr` its LLVM features with their sign, `arch` is GPU code's (`sm_61`),
    `attrs` what is left, as text.
    """

    kind: str
    keys: tuple[str, ...] = ()
    model: str = "unknown"
    device: str = ""
    mcpu: str = ""
    mattr: tuple[str, ...] = ()
    mtriple: str = ""
    arch: str = ""
    attrs: dict[str, str] = field(default_factory=dict)


def parse_target(text: str) -> LegacyTarget:
    """Read a target, as a string (`cuda -model=titanx`) or as JSON (`{"kind": "cuda", …}`). Raises FieldError."""
    if len(text) > _MAX_TEXT:
        raise FieldError("target", f"{len(text)} characters are too many for a target")
    stripped = text.strip()
    options = _from_json(stripped) if stripped.startswith("{") else _from_text(stripped)
    kind = options.pop("kind")
    if kind not in _KEYS:
        raise FieldError(
            "target", f"{text[:80]!r}: no kind of target is called {kind[:40]!r} (known: {', '.join(_KEYS)})"
        )
    return _target(kind, options)


def descriptor_of_legacy(target: LegacyTarget) -> TargetDescriptor:
    """The package that records of `target` belong to: `<kind>-<model>`, so that devices never mix.

    The model is what `-model` says, else LLVM's name of the CPU, else the `sm_NN`, else the device, else `generic`.
    Raises FieldError when the model cannot be a name.
    """
    is_cpu = "gpu" not in target.keys and target.kind in ("llvm", "c", "stackvm", "hexagon")
    written = _written_model(target, is_cpu)
    model = _cpu_name(written) if is_cpu else written
    arch = _cpu_arch(target) if is_cpu else _gpu_arch(target, model)
    values: dict[str, Any] = {
        "kind": target.kind,
        "model": model,
        "arch": arch,
        "features": _features(target, model),
        "num_cores": _number(target, "num-cores"),
        "max_threads_per_block": _number(target, "max_threads_per_block") or _number(target, "max_num_threads"),
        "max_shared_memory_per_block": _number(target, "max_shared_memory_per_block"),
    }
    if written != model:
        values["aliases"] = (written,)
    try:
        return msgspec.convert(values, TargetDescriptor)
    except msgspec.ValidationError as error:
        reason = f"{target.kind} with model {written!r:.80} cannot name a package: {error}"
        raise FieldError("target", reason) from None


def cuda_architecture(model: str) -> str | None:
    """The `sm_NN` of a CUDA GPU as logs call it (`h200`, `gtx-1080-ti`), None for one that the table lacks."""
    return _CUDA_ARCH.get(model) or _CUDA_ARCH.get(_GPU_NOISE.sub("", model).replace("-", ""))


def _from_text(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise FieldError("target", f"{text[:80]!r} cannot be split into options: {error}") from None
    if not words or words[0].startswith("-"):
        raise FieldError("target", f"{text[:80]!r} does not begin with a kind of target")
    options = {"kind": words[0]}
    position = 1
    while position < len(words):
        name, equals, value = words[position].lstrip("-").partition("=")
        if not words[position].startswith("-") or not name or (equals and not value):
            raise FieldError("target", f"{words[position][:80]!r} is no option of the form -name=value")
        position += 1
        if not equals and position < len(words) and not words[position].startswith("-"):
            value = words[position]
            position += 1
        options["mtriple" if name == "target" else name] = value if equals or value else "1"
    return options


def _from_json(text: str) -> dict[str, str]:
    try:
        value = _json.decode(text.encode("utf-8", "surrogatepass"), "target", max_bytes=4 * _MAX_TEXT)
    except FormatError as error:
        raise FieldError("target", error.reason) from None
    if not isinstance(value.get("kind"), str):
        raise FieldError("target", f"{text[:80]!r} has no kind")
    return {name: _as_text(item) for name, item in value.items() if item is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list):
        return ",".join(map(_as_text, value))
    return _json.encode(value).decode().strip() if isinstance(value, dict) else str(value)


def _target(kind: str, options: dict[str, str]) -> LegacyTarget:
    device = options.pop("device", "")
    mtriple = options.pop("mtriple", "")
    keys = _list(options.pop("keys", "")) or _default_keys(kind, device, mtriple)
    if device and device not in keys:
        keys = (*keys, device)
    return LegacyTarget(
        kind=kind, keys=keys, device=device, mtriple=mtriple, model=options.pop("model", "unknown"),
        mcpu=options.pop("mcpu", ""), mattr=_list(options.pop("mattr", "")), arch=options.pop("arch", ""),
        attrs=options,
    )  # fmt: skip


def _default_keys(kind: str, device: str, mtriple: str) -> tuple[str, ...]:
    """Those of the kind, after the device; TVM knows 64-bit Arm by the triple."""
    if not device and kind == "llvm" and _triple_arch(mtriple) == "aarch64":
        device = "arm_cpu"
    known = _KEYS.get(kind, ())
    return (device, *known) if device and device not in known else known


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in (item.strip() for item in text.split(",")) if part)


def _written_model(target: LegacyTarget, is_cpu: bool) -> str:
    """The model by what says most; devices that say nothing of it stay apart by their device or architecture."""
    if target.model != "unknown":
        return _NOT_IN_A_NAME.sub("-", target.model.lower()).strip("-")
    if is_cpu:
        arch = _cpu_arch(target)
        generic = "generic" if arch in ("unknown", "x86_64") else f"generic-{arch}"
        return _NOT_IN_A_NAME.sub("-", target.mcpu.lower()).strip("-") or target.device or generic
    return target.arch or target.mcpu or target.device or "generic"


def _cpu_name(model: str) -> str:
    return _CPU_ALIASES.get(model, model)


def _cpu_arch(target: LegacyTarget) -> str:
    if target.kind == "hexagon":
        return "hexagon"
    arch = _triple_arch(target.mtriple)
    if arch:
        return arch
    if _X86.match(target.mcpu) or any(name.lstrip("+").startswith(("sse", "avx", "fma")) for name in target.mattr):
        return "x86_64"
    if _AARCH64.match(target.mcpu):
        return "aarch64"
    if _ARM32.match(target.mcpu):
        return "armv7l"
    return "arm" if _ARM_MICRO.match(target.mcpu) else "unknown"


def _triple_arch(mtriple: str) -> str:
    """The architecture as Linux names it (`platform.machine()`), empty for no triple."""
    first = mtriple.split("-", 1)[0].lower()
    if first in ("aarch64", "arm64"):
        return "aarch64"
    if first in ("x86_64", "amd64"):
        return "x86_64"
    return "armv7l" if re.match(r"arm(v7|v8|hf)", first) else first


def _gpu_arch(target: LegacyTarget, model: str) -> str:
    """The table comes first: TVM without a GPU writes `-arch=sm_50` for every model."""
    if target.kind in ("cuda", "nvptx"):
        return cuda_architecture(model) or target.arch or target.mcpu or "unknown"
    code = target.mcpu or target.arch
    return code or (model if target.kind == "rocm" and model.startswith("gfx") else "unknown")


def _features(target: LegacyTarget, model: str) -> tuple[str, ...]:
    features = set(_CPU_FEATURES.get(model, ())) if target.kind == "llvm" else set()
    for name in target.mattr:
        if name.startswith("-"):
            features.discard(name[1:])
        else:
            features.add(name.lstrip("+"))
    return tuple(sorted(features))


def _number(target: LegacyTarget, name: str) -> int | None:
    text = target.attrs.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) and int(text) > 0 else None

"""What a target means: TVM's targets, their texts and package names, as a TargetDescriptor and the other way round."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tunehub.exceptions import UnknownTargetError, last_line
from tunehub.target.features import llvm_features, names_by_features
from tunehub.target.gpu_architectures import ARCHITECTURES
from tunehub.target.host import (
    arch_of_triple,
    gpu_descriptor,
    host_cpu,
    host_descriptor,
    host_target,
    machine_arch,
    system_triple,
)
from tunehub.target.nvidia import Gpu, gpu_model
from tunehub.target.suggestions import meant
from tunehub.target.tvm_generation import find_tvm
from tunehub_registry.legacy_target import cuda_architecture
from tunehub_registry.target import TargetDescriptor, model_name

if TYPE_CHECKING:
    from tunehub.target.types import Target

_NAMED = re.compile(r"([a-z0-9][a-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9._-]*)")
HOST = "host"
_CPU_KINDS = frozenset({"llvm", "c"})
_NOT_DETECTED = "sm_50"  # what TVM writes into a CUDA target where it finds no GPU
_CUDA_REMEDY = """name the model, such as 'cuda-h100', or the architecture, as {"kind": "cuda", "arch": "sm_90"}"""
_TARGET_REMEDY = (
    'give a TVM target, a dict or JSON such as {"kind": "llvm", "mcpu": "znver5"}, a package name such as '
    "'llvm-znver5' or 'cuda-h100', or nothing for this machine's CPU; `tunehub list` shows the packages"
)


def descriptor_of(target: object) -> TargetDescriptor:
    """Describe a target: a TVM target, a dict, JSON or string in TVM's form, a package name, or None.

    None, as `host`, is this machine's CPU; `llvm` is what it is to TVM: a CPU without any of the newer features. A TVM
    target is never refused; other values raise UnknownTargetError when neither TVM nor tunehub knows them.
    """
    if target is None or target == HOST:
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


def as_tvm_target(target: object) -> Target:
    """Return `target` as a `tvm.target.Target`; None and `host` are this CPU, package names targets of their model.

    Raises UnknownTargetError.
    """
    import tvm

    if isinstance(target, str):
        if target == HOST:
            return host_target()
        named = _NAMED.fullmatch(target)
        if named is not None and named[1] in ("llvm", "cuda"):
            return _tvm_target(_config_of_name(named[1], named[2]), target)
        if target.strip().startswith("{"):
            return _checked(_tvm_target(_parsed(target), target), target)
    if target is None:
        return host_target()
    return target if isinstance(target, tvm.target.Target) else _checked(_tvm_target(target, target), target)


def _checked(found: Target, target: object) -> Target:
    """Raises UnknownTargetError for a GPU of no architecture, where there is none here."""
    states = any(word in str(target) for word in ("arch", "-model="))  # TVM up to 0.19 had texts with a model
    if found.attrs.get("arch") == _NOT_DETECTED and not states and gpu_descriptor() is None:
        raise UnknownTargetError(target, "names no architecture, and TVM finds no CUDA GPU here", remedy=_CUDA_REMEDY)
    return found


def missing_mcpu(target: object) -> str | None:
    """Why code for this TVM target will be slow, or None: without mcpu LLVM uses the oldest CPU of the architecture."""
    attrs = getattr(target, "attrs", None)
    if attrs is None or target.kind.name != "llvm" or attrs.get("mcpu") or attrs.get("mattr"):  # type: ignore[attr-defined]
        return None
    return (
        "the target has no mcpu, so TVM generates code for the oldest CPU of the architecture, without AVX: "
        "use tunehub.host_target(), or set mcpu"
    )


def _from_text(text: str) -> TargetDescriptor:
    stripped = text.strip()
    if stripped.startswith("{"):
        return _from_config(_parsed(stripped))
    if stripped == "llvm":
        return _from_config({"kind": "llvm"})
    if stripped == "cuda":
        gpu = gpu_descriptor()
        if gpu is None:
            raise UnknownTargetError(text, "names no architecture, and TVM finds no CUDA GPU here", remedy=_CUDA_REMEDY)
        return gpu
    named = _NAMED.fullmatch(stripped)
    if named is not None and named[1] in ("llvm", "cuda"):
        return _named(named[1], named[2], text)
    if find_tvm() is not None:
        described = _from_tvm(_tvm_target(stripped, text))
        tag = stripped.rpartition("/")[2]
        return structs.replace(described, model=gpu_model(tag)) if stripped.startswith("nvidia/") else described
    raise UnknownTargetError(text, "is not a target that can be read without TVM", remedy=_TARGET_REMEDY)


def _parsed(text: str) -> Any:
    """A target in JSON. Raises UnknownTargetError."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UnknownTargetError(text, f"is not valid JSON: {error}", remedy=_TARGET_REMEDY) from None


def _named(kind: str, model: str, text: str) -> TargetDescriptor:
    """`llvm-znver5`, `cuda-h200`."""
    host = host_descriptor() if kind == "llvm" else gpu_descriptor()
    if host is not None and host.model == model.lower():
        return host
    if kind == "cuda":
        return _named_gpu(model.lower(), text)
    if find_tvm() is None:
        return TargetDescriptor(kind=kind, model=model.lower(), arch=machine_arch())
    config = _config_of_name(kind, model)
    triple = config.get("mtriple", system_triple())
    return TargetDescriptor(kind=kind, model=model.lower(), arch=arch_of_triple(triple), features=llvm_features(config))


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
        if model in ARCHITECTURES:
            return Gpu(name=model, arch=ARCHITECTURES[model]).tvm_config()
        remedy = f'{meant(f"cuda-{model}", ())}give its architecture: {{"kind": "cuda", "arch": "sm_90"}}'
        raise UnknownTargetError(f"{kind}-{model}", "is not a GPU that TVM or tunehub knows", remedy=remedy)
    if find_tvm() is None or not (triples := [t for t in _triples() if model in _cpus(t)]):
        remedy = f"{meant(f'llvm-{model}', _known_cpus())}{_TARGET_REMEDY}"
        raise UnknownTargetError(f"{kind}-{model}", "LLVM knows no such CPU", remedy=remedy)
    cpu = host_cpu()
    if cpu is not None and cpu.model == model:
        return cpu.config()
    own = arch_of_triple(triples[0]) == arch_of_triple(system_triple())
    return {"kind": "llvm", "mcpu": model} if own else {"kind": "llvm", "mcpu": model, "mtriple": triples[0]}


def _from_config(config: Mapping[str, object]) -> TargetDescriptor:
    if find_tvm() is not None:
        return _from_tvm(_tvm_target(dict(config), json.dumps(dict(config), default=str)))
    kind, arch = config.get("kind"), config.get("arch")
    if kind == "cuda" and isinstance(arch, str):
        model = str(config.get("model") or arch)
        return TargetDescriptor(kind="cuda", model=model_name(model), arch=arch, features=(arch,))
    if kind == "llvm":
        triple = str(config.get("mtriple") or machine_arch())
        model = model_name(str(config.get("mcpu") or "generic"))
        return TargetDescriptor(kind="llvm", model=model, arch=arch_of_triple(triple))
    raise UnknownTargetError(json.dumps(dict(config), default=str), "cannot be read without TVM", remedy=_TARGET_REMEDY)


def _from_tvm(target: Target) -> TargetDescriptor:
    kind = str(target.kind.name)
    attrs = {str(key): value for key, value in target.attrs.items()}
    if kind in _CPU_KINDS:
        return _cpu_from_tvm(kind, attrs)
    arch = str(attrs.get("arch") or "unknown")
    model = _gpu_model_of(target, attrs, arch)
    if kind == "cuda" and arch == _NOT_DETECTED:
        arch = cuda_architecture(model) or arch
    return TargetDescriptor(
        kind=kind if _NAMED.fullmatch(f"{kind}-x") else "other",
        model=model,
        arch=arch,
        features=(arch,) if arch.startswith("sm_") else (),
        max_threads_per_block=_bound(attrs.get("max_threads_per_block", attrs.get("max_num_threads"))),
        max_shared_memory_per_block=_bound(attrs.get("max_shared_memory_per_block")),
    )


def _cpu_from_tvm(kind: str, attrs: Mapping[str, Any]) -> TargetDescriptor:
    triple = str(attrs.get("mtriple") or system_triple())
    config = {"kind": "llvm", **{key: attrs[key] for key in ("mcpu", "mtriple", "mattr") if attrs.get(key)}}
    return TargetDescriptor(
        kind=kind,
        model=_cpu_model(attrs),
        arch=arch_of_triple(triple),
        features=llvm_features(config),
        num_cores=_bound(attrs.get("num-cores")),
        aliases=names_by_features(str(attrs.get("mcpu") or ""), [str(each) for each in attrs.get("mattr") or ()]),
    )


def _cpu_model(attrs: Mapping[str, Any]) -> str:
    """LLVM's name of the CPU; of a board that TVM up to 0.19 describes by its `-model`, that."""
    mcpu, board = attrs.get("mcpu"), str(attrs.get("model") or "unknown")
    stated = board if board != "unknown" and (attrs.get("device") or not mcpu) else mcpu
    return model_name(str(stated or "generic"))


def _gpu_model_of(target: Target, attrs: Mapping[str, Any], arch: str) -> str:
    """The model of a GPU target: what it says itself, its tag, the GPU of this machine if alike, else the arch."""
    stated = attrs.get("model") or getattr(target, "tag", "")
    if stated and str(stated) != "unknown":
        return gpu_model(str(stated).rpartition("/")[2].removeprefix("nvidia-"))
    here = gpu_descriptor() if target.kind.name == "cuda" else None
    return here.model if here is not None and here.arch.rstrip("af") == arch.rstrip("af") else model_name(arch)


def _tvm_target(config: object, value: object) -> Target:
    import tvm

    try:
        return tvm.target.Target(config)
    except Exception as error:  # TVM raises ValueError, TypeError, KeyError or InternalError, by release
        if isinstance(value, str) and not value.startswith("{"):
            remedy = f"{meant(value, _known_cpus())}{_TARGET_REMEDY}"
            raise UnknownTargetError(value, "is no target that TVM knows", remedy=remedy) from None
        reason = f"TVM does not know it: {last_line(error, limit=200)}"
        raise UnknownTargetError(value, reason, remedy=_TARGET_REMEDY) from None


def _known_cpus() -> list[str]:
    """LLVM's names, this machine's architecture first."""
    return [] if find_tvm() is None else [name for triple in _triples() for name in sorted(_cpus(triple))]


def _cpus(triple: str) -> set[str]:
    from tvm.target import codegen

    try:
        return {str(item) for item in codegen.llvm_get_cpu_archlist(_tvm_target(_llvm_config(triple), triple))}
    except Exception:  # LLVM without this architecture
        return set()


def _llvm_config(triple: str) -> dict[str, object]:
    return {"kind": "llvm", "mtriple": triple}


def _is_tag(tag: str) -> bool:
    import tvm

    try:
        tvm.target.Target({"tag": tag})
    except Exception:  # as _tvm_target
        return False
    return True


def _triples() -> tuple[str, ...]:
    return (system_triple(), "x86_64-linux-gnu", "aarch64-linux-gnu")


def _bound(value: int | str | None) -> int | None:
    return int(value) if value is not None and int(value) >= 1 else None

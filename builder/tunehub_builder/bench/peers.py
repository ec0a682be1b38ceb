"""What a user's model can be compared with on this CPU, and why not with the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from tunehub_builder.bench.runtimes import OnnxRuntime, OpenVino, Runtime, TorchProgram, TvmDefault
from tunehub_builder.exceptions import BenchError

_ONNX = (".onnx",)
_PROGRAM = (".pt2",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A runtime to compare with: the `module` and the distribution that it needs, and the endings of what it reads."""

    make: Callable[[], Runtime]
    module: str
    distribution: str
    reads: tuple[str, ...]


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "default": Peer(make=TvmDefault, module="tvm", distribution="apache-tvm", reads=(*_ONNX, *_PROGRAM, ".json")),
        "onnxruntime": Peer(make=OnnxRuntime, module="onnxruntime", distribution="onnxruntime", reads=_ONNX),
        "openvino": Peer(make=OpenVino, module="openvino", distribution="openvino", reads=_ONNX),
        "torch": Peer(make=TorchProgram, module="torch", distribution="torch", reads=_PROGRAM),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenPeers:
    """The `runtimes` to compare with, and the reason for each that is left out, by its name."""

    runtimes: tuple[Runtime, ...]
    left_out: Mapping[str, str]


def chosen_peers(asked: Sequence[str] | None, model: Path | None, no_model: str = "") -> ChosenPeers:
    """Those that can run `model`, a file. None asks for all there are; whoever is `asked` for has to be there: raises
    BenchError. `no_model` says why there is no file."""
    unknown = [name for name in asked or () if name not in PEERS]
    if unknown:
        raise BenchError(f"--against {unknown[0]}: expected some of {','.join(PEERS)}")
    names = list(dict.fromkeys(PEERS if asked is None else asked))
    reasons = {name: reason for name in names if (reason := _why_not(PEERS[name], model, no_model)) is not None}
    if asked is not None and reasons:
        name, reason = next(iter(reasons.items()))
        raise BenchError(f"--against {name}: {reason}")
    runtimes = tuple(PEERS[name].make() for name in names if name not in reasons)
    return ChosenPeers(runtimes=runtimes, left_out=reasons)


def version_of(name: str) -> str | None:
    """The installed version of a runtime, by its name here; None where that is not known."""
    try:
        return metadata.version("apache-tvm" if name == "tunehub" else PEERS[name].distribution)
    except (metadata.PackageNotFoundError, KeyError):
        return None


def _why_not(peer: Peer, model: Path | None, no_model: str) -> str | None:
    if model is not None and model.suffix.lower() not in peer.reads:
        return f"it does not read {model.name}, only {' and '.join(peer.reads)}: export the model"
    if importlib.util.find_spec(peer.module) is None:
        return f"it is not installed: pip install {peer.distribution}"
    return no_model if model is None else None

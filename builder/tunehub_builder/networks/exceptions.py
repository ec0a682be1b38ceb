"""What can go wrong with a network: an unknown name, or a file that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from tunehub_registry.printable import PlainMessage


class NetworkError(PlainMessage):
    """Root of the errors of `tunehub_builder.networks`."""


class UnknownNetworkError(NetworkError):
    """No network has this name. Fields: `name`, `known`."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"unknown network {name!r}. Known networks: {', '.join(known)}. "
            "A path to an ONNX file (for example ./model.onnx) works too."
        )
        self.name = name
        self.known = tuple(known)


class ModelFileError(NetworkError):
    """A file with a model cannot be read, or cannot be imported into Relax. Fields: `path`, `reason`, `remedy`."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}. {remedy}")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class OnnxFileError(ModelFileError):
    """It is an ONNX file."""


class UnfitNodeError(NetworkError):
    """A node of an ONNX file cannot be computed as ONNX says. Fields: `operator`, `node`, `reason`."""

    def __init__(self, operator: str, node: str, reason: str) -> None:
        super().__init__(f"the operator {operator} (node {node}): {reason}")
        self.operator = operator
        self.node = node
        self.reason = reason

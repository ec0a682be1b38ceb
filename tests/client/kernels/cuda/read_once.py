"""TIR read once: objects that keep each field that was asked for. TVM makes a new one at each reading, which took most
of the time of the emulators, that read the same statements for each block and each step of a loop."""

from __future__ import annotations

from functools import cache
from typing import Any


class _Node:
    """A node of TIR with its fields, of the node's class by name. The same node is the same object."""

    def __init__(self, node: Any, known: dict[int, Any], name: int) -> None:
        self.__dict__.update(_node=node, _known=known, _name=name)

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = _kept(getattr(self._node, name), self._known)
        return value

    def __hash__(self) -> int:
        return int(self._name)

    def __int__(self) -> int:
        return int(self._node)

    def __str__(self) -> str:
        return str(self._node)

    def __eq__(self, other: object) -> bool:
        return self is other


def read_once(node: Any) -> Any:
    """``node`` and what is in it, with the same fields and hashes."""
    return _kept(node, {})


def _kept(value: Any, known: dict[int, Any]) -> Any:
    from tvm.ir import Array
    from tvm.runtime import Object

    if isinstance(value, Array):
        return tuple(_kept(each, known) for each in value)
    if not isinstance(value, Object):
        return value
    if not type(value).__hash__:  # as the variables of iterations
        return _class(type(value).__name__)(value, known, 0)
    name = hash(value)
    if name not in known:
        known[name] = _class(type(value).__name__)(value, known, name)
    return known[name]


@cache
def _class(name: str) -> type[_Node]:
    return type(name, (_Node,), {})

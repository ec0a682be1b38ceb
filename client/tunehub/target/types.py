"""What TVM calls a target, as a type name. TVM has no stubs: to mypy it is ``Any``, as the aliases in
:mod:`tunehub.tir.types` and :mod:`tunehub.graph.types` are; modules import them for type checkers only."""

from __future__ import annotations

from typing import Any, TypeAlias

Target: TypeAlias = Any
"""``tvm.target.Target``."""
TargetLike: TypeAlias = Any
"""A :data:`Target`, or what TVM makes one of: its text, or a mapping of its attributes."""

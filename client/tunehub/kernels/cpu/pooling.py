"""Pooling in blocked layouts: windows and whole images, maximum and average (TOPI's ``pool2d``, ``adaptive_pool``).

The engine is :mod:`tunehub.kernels.cpu.window`; the division of an average is an epilogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu import window
from tunehub.kernels.cpu.base import Block
from tunehub.kernels.cpu.window import WindowKnobs, WindowWorkload, apply, default_knobs, knob_space

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule

__all__ = [
    "KNOBS",
    "NAME",
    "VERSION",
    "WindowKnobs",
    "WindowWorkload",
    "apply",
    "default_knobs",
    "knob_space",
    "recognise",
]

NAME, VERSION, KNOBS = "pooling", 1, WindowKnobs
_ANCHORS = ("pool_max", "pool_sum", "adaptive_pool_max", "adaptive_pool_sum")


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> WindowWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when its anchor is not pooling of a blocked tensor."""
    return window.recognise(blocks, _ANCHORS)

"""Depthwise convolutions in blocked layouts (``tunehub_depthwise`` of :mod:`tunehub.kernels.te.blocked`).

The engine is :mod:`tunehub.kernels.cpu.window`; the structure that of ``topi/x86/depthwise_conv2d.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu import window
from tunehub.kernels.cpu.base import Block
from tunehub.kernels.cpu.window import WindowKnobs, WindowWorkload, apply, default_knobs, knob_space
from tunehub.kernels.te.blocked import DEPTHWISE

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

NAME, VERSION, KNOBS = "depthwise", 1, WindowKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> WindowWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when its anchor is not a blocked depthwise convolution."""
    return window.recognise(blocks, (DEPTHWISE,))

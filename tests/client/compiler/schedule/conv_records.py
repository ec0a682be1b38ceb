"""A convolution, alone, and records of its template."""

from __future__ import annotations

from typing import Any

import tvm

from tunehub.compiler.preparing import prepare
from tunehub.kernels.template_fit import TemplateFit
from tunehub.tir.keys import anchor_key, workload_key
from tunehub_registry.template_record import TemplateRecord

from ..conftest import Nets

KNOBS = {"columns": 7, "blocks": 2, "row": 14, "order": "rows", "padding": "whole", "parallel": True}


def conv_function(mod: Any, target: Any) -> Any:
    """The one function of the prepared module that the convolution's template recognises."""
    found = []
    for function in prepare(mod, target, layout="auto").functions.values():
        if isinstance(function, tvm.tirx.PrimFunc):
            alone = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
            match = TemplateFit(alone, target).match
            if match is not None and match.template.NAME == "conv2d":
                found.append(alone)
    (result,) = found
    return result


def record_of(alone: Any, **changes: Any) -> TemplateRecord:
    fields: dict[str, Any] = {
        "exact": workload_key(alone), "anchor": anchor_key(alone), "op": "conv", "template": "conv2d", "version": 1,
        "knobs": KNOBS, "run_s": (1e-3,), "default_s": 1e-2, "source": "template", **changes,
    }  # fmt: skip
    return TemplateRecord(**fields)


def conv(nets: Nets, *, epilogue: bool = True) -> Any:
    """A convolution that is worth blocks of channels, with or without bias and relu behind it."""
    return nets.conv(channels=64, out=64, size=14, bias=epilogue, relu=epilogue)

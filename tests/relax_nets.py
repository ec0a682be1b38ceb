"""Small Relax modules that every supported TVM takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunehub.tir.nodes import tensor_class


def net(make: Callable[..., Any], *shapes: tuple[Any, ...], names: Sequence[str] = (), dtype: str = "float32") -> Any:
    """A module whose ``main`` is ``make(builder, *parameters)`` of parameters of these shapes."""
    from tvm import relax

    kind = tensor_class()
    builder = relax.BlockBuilder()
    parameters = [relax.Var(names[i] if names else f"x{i}", kind(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            output = builder.emit_output(make(builder, *parameters))
        builder.emit_func_output(output)
    return builder.get()

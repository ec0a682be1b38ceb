"""From a `tvm.relax.frontend.nn` module to a Relax module without parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.frontend import nn

if TYPE_CHECKING:
    from tunehub_builder.networks.seeding import Array


def bind_weights(
    module: nn.Module, inputs: Mapping[str, tuple[int, ...]], weights: Mapping[str, Array]
) -> tvm.IRModule:
    """Export `module.main` with float32 `inputs`, and bind its parameters to the `weights` of the same names.

    Raises ValueError when the names or the shapes of parameters and weights differ.
    """
    spec = {name: nn.spec.Tensor(shape, "float32") for name, shape in inputs.items()}
    exported, parameters = module.export_tvm({"main": spec})
    expected = {name: tuple(int(d) for d in parameter.shape) for name, parameter in parameters}
    given = {name: array.shape for name, array in weights.items()}
    if expected != given:
        differing = sorted(n for n in {*expected, *given} if expected.get(n) != given.get(n))
        raise ValueError(f"parameters and weights differ: {', '.join(differing)}")
    return relax.transform.BindParams("main", dict(weights))(exported)

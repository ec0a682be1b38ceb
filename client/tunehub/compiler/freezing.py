"""What a compile chooses for a model, as lock files keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.compiler.pipeline import prepared_for, schedulings
from tunehub.compiler.schedule.locked import frozen
from tunehub_registry import __version__
from tunehub_registry.locked_kernel import LockedModel

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule


def frozen_model(mod: IRModule, name: str, target: Target, hub: Hub) -> LockedModel:
    """The kernels of ``mod`` as a compile with ``hub`` chooses them now, verified as there. Raises what TVM raises for
    the module."""
    import tvm

    found = schedulings(prepared_for(mod, target, hub), target, hub)
    kernels = {each.request.exact: frozen(function, each) for function, each in found.items()}
    return LockedModel(
        name=name,
        target=hub.host.name,
        tvm=str(tvm.__version__),
        created_by=f"tunehub {__version__}",
        layout=hub.layout,
        precision=hub.precision,
        winograd=hub.winograd,
        kernels=tuple(kernels[key] for key in sorted(kernels)),
    )

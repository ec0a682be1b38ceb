"""`tunehub lock --choices`: what a compile with a lock chooses for a model, to be kept in the lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from msgspec import structs

from tunehub.cli.model_files import (
    dim_option,
    imported,
    layout_option,
    opened,
    require_relax_for,
    shape_option,
    target_option,
)
from tunehub.cli.output import say
from tunehub.options import Layout, Precision
from tunehub_registry.lock import Lock, encode_lock

if TYPE_CHECKING:
    from tunehub_registry.locked_kernel import LockedModel

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option("--choices", type=_PATH, metavar="MODEL", help="Also freeze which kernels a compile of MODEL chooses; "
                 "the options below are those of that compile."),
    target_option,
    shape_option,
    dim_option,
    layout_option,
    click.option("--precision", type=click.Choice(get_args(Precision)), help="What products may round to.  [float32]"),
    click.option("--no-winograd", is_flag=True, help="Convolutions of 3×3 are computed directly."),
)  # fmt: skip


def choices_options(command: F) -> F:
    """The options that say what is frozen."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedCompile:
    """What is frozen, by the options of `tunehub lock`: the compile of the model `choices`."""

    choices: Path | None
    target: str | None
    shapes: Sequence[str]
    dims: Sequence[str]
    layout: Layout | None
    precision: Precision | None
    no_winograd: bool

    def __post_init__(self) -> None:
        given = [name for name in self.__slots__ if name != "choices" and getattr(self, name)]
        if self.choices is None and given:
            name = given[0].replace("_", "-")
            raise click.UsageError(f"--{name} says how the MODEL of --choices is compiled: give --choices, too")

    def added_to(self, lock: Lock, registry: Sequence[str]) -> Lock:
        """`lock` with what a compile with it chooses for the model, whatever was frozen of that before. Raises
        ClickException for a file that is no model, and what compiles raise for wrong options."""
        if self.choices is None:
            return lock
        from tunehub.cli.compile import step_display

        require_relax_for("lock --choices")
        with step_display() as show:
            model = self._frozen(self.choices, lock, registry, show)
        own = sum(not (each.template or each.record or each.rung == "default") for each in model.kernels)
        held = f", {own} of them by their code alone" if own else ""
        say(f"{model.name} for {model.target}: {len(model.kernels)} kernels frozen{held}", err=True)
        others = [each for each in lock.models if (each.name, each.target) != (model.name, model.target)]
        return structs.replace(lock, models=(*(with_shared_kernels(each, model) for each in others), model))

    def _frozen(self, path: Path, lock: Lock, registry: Sequence[str], show: Callable[[str], None]) -> LockedModel:
        from tunehub.compiler.freezing import frozen_model
        from tunehub.compiler.hub import open_hub
        from tunehub.target.descriptors import as_tvm_target

        show("import")
        module = imported(opened(path, self.shapes, self.dims)).module
        show("schedule")
        target = as_tvm_target(self.target)
        with TemporaryDirectory() as folder:
            pinned = Path(folder) / "tunehub.lock"
            pinned.write_bytes(encode_lock(structs.replace(lock, models=())))
            hub = open_hub(
                target, lock=str(pinned), registry=registry or None, layout=self.layout, precision=self.precision,
                winograd=False if self.no_winograd else None, strict=True,
            )  # fmt: skip
            try:
                return frozen_model(module, path.stem, target, hub)
            finally:
                hub.close()


def with_shared_kernels(other: LockedModel, model: LockedModel) -> LockedModel:
    """``other`` with the kernels of ``model`` for workloads that both have: compiles tell models apart by workloads."""
    own = {kernel.key: kernel for kernel in model.kernels} if other.target == model.target else {}
    kernels = tuple(own.get(kernel.key, kernel) for kernel in other.kernels)
    changed = sum(kernel.text != before.text for kernel, before in zip(kernels, other.kernels, strict=True))
    if changed:
        say(f"{changed} of them serve {other.name}, too, which had other ones frozen: now it has these", err=True)
    return structs.replace(other, kernels=kernels)

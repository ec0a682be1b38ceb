"""What lock files keep of compiled models: which kernel served each workload, and how it is made again."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tunehub_registry import _fields
from tunehub_registry.evidence import RuleHash
from tunehub_registry.exceptions import FieldError
from tunehub_registry.template_record import KnobName, KnobValue

_MOST = 4096  # workloads of a model


class LockedKernel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """What served the workload with this `key`. `text` is the hash of its code, as in `JudgedRule`.

    It is made again by the `knobs` of a `template` in a `version`, or by a record of `package`, of which `record` is
    the SHA-256 of what it says of the schedule. Where it has none of these it is what rules have no choice for, or
    TVM's own. `op` and `rung` are for people.
    """

    key: _fields.Key
    op: _fields.Label
    rung: _fields.Label
    text: RuleHash
    template: KnobName | None = None
    version: Annotated[int, Meta(ge=1, le=2**31)] = 1
    knobs: Annotated[dict[KnobName, KnobValue], Meta(max_length=32)] = {}
    package: _fields.Label | None = None
    record: _fields.Sha256 | None = None


class LockedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """The kernels of a model that was compiled for the package name `target` with TVM `tvm` by `created_by`, and the
    options of that compile that decide which workloads it has."""

    name: _fields.Label
    target: _fields.Label
    tvm: str
    created_by: _fields.Label
    layout: Literal["keep", "auto"] = "keep"
    precision: _fields.Label = "float32"
    winograd: bool = False
    kernels: Annotated[tuple[LockedKernel, ...], Meta(max_length=_MOST)]

    def __post_init__(self) -> None:
        _fields.check_version("tvm", self.tvm)
        keys = [kernel.key for kernel in self.kernels]
        twice = next((key for key in keys if keys.count(key) > 1), None) if len(set(keys)) != len(keys) else None
        if twice is not None:
            raise FieldError("kernels", f"the key {twice} stands twice")

"""A GPU as rules see it, and how one is read from its file. Knows no TVM."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from tunehub.exceptions import DeviceFileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

Count = Annotated[int, Meta(ge=1)]
CostTable = dict[str, Annotated[float, Meta(ge=0)]]

_TILES = ("launch", "products")
_WARPGROUPS = (*_TILES, "loads", "steps", "waits", "rounds", "joined", "gathered", "results", "bytes")
# What each table of costs has to name, in the order in which costs are added up.
NAMES: Mapping[str, tuple[str, ...]] = {
    "threads": (
        *_TILES, "shared_reads", "bank_conflicts", "sectors", "steps", "loads", "chain", "bytes", "spilled",
    ),
    "threads_default": ("launch", "chain", "work", "window_chain", "window_work", "bytes"),
    "split_k": (
        *_TILES, "shared_reads", "loads", "sectors", "steps", "pipelined_steps", "chain", "parts", "results",
    ),
    "tensor_cores": (
        *_TILES, "fragments", "loads", "sectors", "placed", "pieces", "steps", "pipelined_steps", "chain", "results",
        "apart", "bytes",
    ),
    "tensor_cores_default": ("launch", "steps", "rows_apart", "columns_apart", "window_steps"),
    "half_default": ("launch", "chain", "steps", "window_chain", "window_steps", "bytes"),
    "warpgroups": _WARPGROUPS,
    "warpgroups_tf32": _WARPGROUPS,
    "warpgroups_bulk": ("products", "loads", "instructions", "rounds", "joined", "gathered", "results", "bytes"),
}  # fmt: skip


class DeviceCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Seconds for one of each thing that a kernel's time is a sum of, by the kind of the kernel: tiles by ``threads``,
    with ``split_k``, on ``tensor_cores``, for ``warpgroups`` (of operands in TF32; brought in bulk by the copy engine),
    and what TVM's own rules make (``*_default``)."""

    threads: CostTable
    threads_default: CostTable
    split_k: CostTable
    tensor_cores: CostTable
    tensor_cores_default: CostTable
    half_default: CostTable
    warpgroups: CostTable
    warpgroups_tf32: CostTable
    warpgroups_bulk: CostTable


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """A GPU: ``bandwidth`` in bytes a second, ``places`` of clusters at a time by the blocks of a cluster, and how many
    ``clustered_multiprocessors`` clusters of more than two blocks find."""

    name: str
    architecture: str
    multiprocessors: Count
    clustered_multiprocessors: Count
    bandwidth: Annotated[float, Meta(gt=0)]
    places: dict[int, Count]
    costs: DeviceCosts

    def found_by(self, cluster: int) -> int:
        """How many multiprocessors clusters of so many blocks find."""
        return self.multiprocessors if cluster <= 2 else self.clustered_multiprocessors


def read_device(text: str, file: str) -> GpuDevice:
    """The device that ``text``, what is in ``file``, describes. Raises DeviceFileError: it is no TOML, or a field is
    missing, unknown or has a wrong value."""
    try:
        device = msgspec.convert(tomllib.loads(text), GpuDevice, str_keys=True)
    except tomllib.TOMLDecodeError as error:
        raise DeviceFileError(file, f"not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise DeviceFileError(file, str(error)) from error
    return msgspec.structs.replace(device, costs=_in_order(device.costs, file))


def _in_order(costs: DeviceCosts, file: str) -> DeviceCosts:
    """The same with the names of each table in the order of :data:`NAMES`, so that sums do not depend on the file."""
    tables = {}
    for table, names in NAMES.items():
        found = getattr(costs, table)
        for name in sorted(found.keys() ^ set(names)):
            what = "an unknown" if name in found else "no"
            raise DeviceFileError(file, f"`costs.{table}` has {what} field `{name}`")
        tables[table] = {name: found[name] for name in names}
    return DeviceCosts(**tables)

"""A GPU as rules see it, and how one is read from its file. Knows no TVM."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from tunehub.exceptions import DeviceFileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0)]
CostTable = dict[str, Seconds]

_TILES = ("launch", "products")
_WARPGROUPS = (*_TILES, "loads", "steps", "waits", "rounds", "joined", "gathered", "results", "bytes")
# What each table of costs has to name, in the order in which costs are added up.
NAMES: Mapping[str, tuple[str, ...]] = {
    "threads": (
        *_TILES, "shared_reads", "bank_conflicts", "sectors", "steps", "loads", "chain", "bytes", "spilled",
    ),
    "threads_default": ("launch", "chain", "work", "window_chain", "window_work", "bytes"),
    "vectors_default": ("launch", "bytes"),
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
    "warpgroups_l2": ("launch", "loads", "multicast"),
    "warps": (*_TILES, "fragments", "copies", "placed", "waits", "rounds", "results"),
    "warpgroups_integers": _WARPGROUPS,
    "warpgroups_bulk_integers": ("launch", "results"),
}  # fmt: skip


class DeviceCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Seconds for one of each thing that a kernel's time is a sum of, by the kind of the kernel: tiles by ``threads``,
    with ``split_k``, on ``tensor_cores``, for ``warpgroups`` (of operands in TF32; brought in bulk by the copy engine;
    these at least, as all multiprocessors load from the L2 cache), of integers of 8 bits by ``warps``, for warpgroups,
    and what these take more by the copy engine, and what TVM's own rules make (``*_default``)."""

    threads: CostTable
    threads_default: CostTable
    vectors_default: CostTable
    split_k: CostTable
    tensor_cores: CostTable
    tensor_cores_default: CostTable
    half_default: CostTable
    warpgroups: CostTable
    warpgroups_tf32: CostTable
    warpgroups_bulk: CostTable
    warpgroups_l2: CostTable
    warps: CostTable
    warpgroups_integers: CostTable
    warpgroups_bulk_integers: CostTable


class LaunchCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Seconds that kernels take beside their work: those that move elements (``moving``), and products with few rows
    (``low_batch``). In a CUDA graph a tile by ``threads``, and on ``tensor_cores``, takes so much less than its costs
    say, and TVM's own schedule, the second number. Three kernels of ``winograd``, by the bytes of a number, take so
    much less than one by one."""

    moving: Seconds
    low_batch: Seconds
    threads: tuple[Seconds, Seconds]
    tensor_cores: tuple[Seconds, Seconds]
    winograd: dict[int, Seconds]


class CalibratedRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """What `tunehub calibrate` measures on it, as in the profile of a GPU: what other profiles are compared with."""

    clock: Rate
    bandwidth: Rate
    l2_bandwidth: Rate
    flops: Rate
    tensor_flops: Rate
    launch_s: Rate


class GpuSpecification(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """What a data sheet, or its driver, says of a GPU.

    ``clock``: of its multiprocessors at best, in Hz. Of a multiprocessor: ``shared_memory`` in bytes, of which a block
    may ask for ``block_shared_memory``, ``registers``, and how many ``blocks`` and ``warps`` it has at most. ``l2`` in
    bytes. Operations a second, two for a multiply-add: ``flops`` in float32, ``tensor_flops`` of tensor cores in
    float16. ``peak_bandwidth`` of its memory, in bytes a second. ``measured``: whether its costs were fitted to times
    that were measured on it.
    """

    name: str
    architecture: Annotated[str, Meta(pattern=r"^sm_[0-9]{2,3}\Z")]
    measured: bool
    multiprocessors: Count
    clock: Rate
    shared_memory: Count
    block_shared_memory: Count
    registers: Count
    blocks: Count
    warps: Count
    l2: Count
    flops: Rate
    tensor_flops: Rate
    peak_bandwidth: Rate


class GpuDevice(GpuSpecification, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """A GPU: ``bandwidth`` in bytes a second, of kernels that move elements, and of weights that are read once,
    ``l2_bandwidth``, of what is in its cache. ``places`` of clusters at a time by the blocks of a cluster, and how many
    ``clustered_multiprocessors`` clusters of more than two blocks find. ``calibrated``: of one that was measured."""

    bandwidth: Rate
    l2_bandwidth: Rate
    clustered_multiprocessors: Count
    places: dict[int, Count]
    launches: LaunchCosts
    costs: DeviceCosts
    calibrated: CalibratedRates | None = None

    def found_by(self, cluster: int) -> int:
        """How many multiprocessors clusters of so many blocks find."""
        return self.multiprocessors if cluster <= 2 else self.clustered_multiprocessors


S = TypeVar("S", bound=GpuSpecification)


def read_device(text: str, file: str) -> GpuDevice:
    """The device that ``text``, what is in ``file``, describes. Raises DeviceFileError: it is no TOML, or a field is
    missing, unknown or has a wrong value."""
    device = _read(text, file, GpuDevice)
    return msgspec.structs.replace(device, costs=_in_order(device.costs, file))


def read_specification(text: str, file: str) -> GpuSpecification:
    """As :func:`read_device`, of a GPU that nobody measured."""
    return _read(text, file, GpuSpecification)


def _read(text: str, file: str, kind: type[S]) -> S:
    try:
        fields: Any = tomllib.loads(text)
        return msgspec.convert(fields, kind, str_keys=True)
    except tomllib.TOMLDecodeError as error:
        raise DeviceFileError(file, f"not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise DeviceFileError(file, str(error)) from error


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

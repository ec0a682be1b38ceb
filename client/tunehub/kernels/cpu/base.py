"""What all templates share: the machine, the blocks of a function, checked knobs, and how a function is scheduled."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from tunehub.exceptions import SettingError

if TYPE_CHECKING:
    from tunehub.target.machine_profile import PublishedProfile
    from tunehub.target.types import Target
    from tunehub.tir.types import BufferRegion, IRModule, Range, SBlock, Schedule, Stmt
    from tunehub_registry.machine_profile import MachineProfile

MAX_STACK_BYTES = 1024  # TVM, runtime::kMaxStackAlloca: of smaller buffers LLVM makes registers
FLOAT_BYTES = 4
CAUTIOUS_BYTES = 1e10  # that a core moves in a second at least
_ATTAINED = 0.9  # of the speed of pairs in a register tile, by whole kernels
_REGIONS_WORTH = 16  # parallel regions that a kernel should take, by cautious rates, for threads to pay


class KnobError(ValueError):
    """Knobs that are out of bounds or do not fit the workload. The message names the knob and the reason."""


class Knobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the knobs of every template: a frozen record of bounded fields that JSON can hold."""


class NamedKnobs(Protocol):
    """The knobs of a template, by name: those of a record, or of a candidate."""

    @property
    def template(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def knobs(self) -> Mapping[str, Any]: ...


K = TypeVar("K", bound=Knobs)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a CPU is, as far as rules for single functions ask: by default as the machines with AVX-512 were, on
    which they were made. The planning of layouts has rates of its own, on which the keys of records depend.

    Of one core: ``cautious_flops``: operations a second of a lane that loops reach at least; ``latency``: pairs of
    multiply-adds that start while a sum waits for the one before; ``memory_bytes``: of weights, from memory, by a lane
    in the time of a multiply-add. ``worth_s``: what a kernel has to take for threads to pay; ``region``: a parallel
    region, in multiply-adds; ``pairs``: times as fast as in float32 are products of pairs of bfloat16; ``tiles``,
    ``byte_tiles``: vectors of pairs, and of groups of four bytes, that instructions for matrices multiply in the time
    of a multiply-add. ``weight_loads``: loads that start in the time of a vector of weights from the second level of
    the cache; None where nobody measured it. ``two_tiles``: times as long as one tile of rows in registers take
    two: by default as where other programs use the same cores.
    """

    cautious_flops: float = 3e9
    latency: float = 4.0
    memory_bytes: float = 0.47
    worth_s: float = 15e-6
    region: float = 40_000 / 3
    pairs: float = 1.8
    tiles: float = 3.6
    byte_tiles: float = 3.3
    weight_loads: float | None = None
    two_tiles: float = 1.3


BUILT_IN = Rates()
_INTELS_PAIRS = 0.6  # times as fast as in float32 are pairs on Intel's CPUs with AMX, also where that is switched off


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules need to know of a CPU. ``vector``: float32 elements of its widest vector. ``profile``: whose
    measurements ``rates`` come from, in words; None for built-in ones."""

    vector: int
    registers: int
    cores: int = 1
    rates: Rates = BUILT_IN
    profile: str | None = None

    @property
    def accumulators(self) -> int:
        """Vectors of sums that fit into registers beside two operands, and into TVM's limit for stack buffers."""
        return min(self.registers - 2, (MAX_STACK_BYTES - 1) // (FLOAT_BYTES * self.vector))

    @property
    def most_sums(self) -> int:
        """As ``accumulators``, of kernels that keep sums beyond that limit in registers, too; where nobody measured the
        cache, tiles are those that records and figures are of."""
        return self.accumulators if self.rates.weight_loads is None else self.registers - 2

    def with_cache(self, weight_loads: float | None) -> Machine:
        """As it is with a second-level cache measured so; None where nobody measured it."""
        return msgspec.structs.replace(self, rates=msgspec.structs.replace(self.rates, weight_loads=weight_loads))


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A block of a function: extents of its loops, and the shapes of the buffers that it reads and writes.

    ``direct``: each index that it reads at is one of its loops or a constant. ``sources``: positions of the blocks
    whose results it reads, among those of the function.
    """

    name: str
    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    write: tuple[int, ...]
    dtype: str
    direct: bool
    sources: tuple[int, ...] = ()


def machine_of(target: Target, cores: int | None = None, published: PublishedProfile | None = None) -> Machine:
    """Describe the CPU of ``target`` (a ``tvm.target.Target`` of kind llvm) as far as its name and features tell, and
    the profile that `tunehub calibrate` made for it, or else the ``published`` one of a package if that is for it.

    ``cores``: threads that kernels run on; the default is the target's ``num-cores``, else the physical cores.
    """
    from tvm.target import codegen

    from tunehub.target.host import physical_cores

    def has(feature: str) -> bool:
        return bool(codegen.target_has_features([feature], target))

    count = cores or int(target.attrs.get("num-cores", 0) or 0) or physical_cores() or 1
    vector, registers = 16 if has("avx512f") else 8 if has("avx2") else 4, 32 if has("avx512f") or has("neon") else 16
    intels = has("amx-tile") or has("avx512fp16")
    built_in = msgspec.structs.replace(BUILT_IN, pairs=_INTELS_PAIRS) if intels else BUILT_IN
    profile, source = _profile(target, count, published)
    rates = built_in if profile is None else rates_of(profile, vector, count, built_in)
    return Machine(vector=vector, registers=registers, cores=count, rates=rates, profile=source)


def rates_of(profile: MachineProfile, vector: int, cores: int, built_in: Rates = BUILT_IN) -> Rates:
    """What rules take from a profile of a CPU with vectors of ``vector`` elements. What it does not say is as
    ``built_in``, and so is what all cores do together where it is for another number of ``cores``."""

    def gain(groups_s: float | None, default: float) -> float:
        return default if groups_s is None else profile.multiply_add_s / groups_s

    rates = Rates(
        cautious_flops=2 / profile.multiply_add_s / 4,
        latency=profile.dependent_s / (2 * profile.multiply_add_s),
        memory_bytes=profile.memory_bytes * profile.multiply_add_s / vector,
        worth_s=built_in.worth_s,
        region=built_in.region,
        pairs=built_in.pairs if profile.pairs_s is None else _ATTAINED * 2 * gain(profile.pairs_s, 1.0),
        tiles=gain(profile.tiles_s, built_in.tiles),
        byte_tiles=gain(profile.byte_tiles_s, built_in.byte_tiles),
        weight_loads=None
        if profile.cached_bytes is None
        else FLOAT_BYTES * vector / profile.cached_bytes / profile.multiply_add_s,
    )
    if profile.cores != cores:
        return rates
    worth_s, region = _REGIONS_WORTH * profile.region_s, profile.region_s / profile.multiply_add_s
    two_tiles = profile.two_tiles or built_in.two_tiles
    return msgspec.structs.replace(rates, worth_s=worth_s, region=region, two_tiles=two_tiles)


def _profile(
    target: Target, cores: int, published: PublishedProfile | None
) -> tuple[MachineProfile | None, str | None]:
    """The profile for ``target``, and whose it is: the user's own, else the published one. A file that is damaged
    counts as none, and `tunehub doctor` says so."""
    from tunehub.options import read_options
    from tunehub.target.machine_profile import MachineProfileError, read_profile

    cpu, mattr = str(target.attrs.get("mcpu", "")), [str(each) for each in target.attrs.get("mattr", ())]
    try:
        own = read_profile(read_options().cache, cpu, mattr, cores)
    except (MachineProfileError, SettingError):
        own = None
    if own is not None:
        return own, f"your own profile of {own.measured}"
    if published is not None and published.fits(cpu, mattr):
        return published.profile, f"the profile of {published.package}"
    return None, None


def read_knobs(kind: type[K], fields: Mapping[str, object]) -> K:
    """Return ``fields`` (what a record holds) as knobs of ``kind``; KnobError when one is missing or out of bounds."""
    try:
        return msgspec.convert(dict(fields), kind)
    except msgspec.ValidationError as error:
        raise KnobError(str(error)) from error


def knob_distance(a: Mapping[str, object], b: Mapping[str, object]) -> int:
    """The number of knobs in which two choices of one template differ."""
    return sum(value != b.get(name) for name, value in a.items())


def require(condition: bool, message: str) -> None:
    """Raise KnobError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise KnobError(message)


def refusing(apply: Callable[[IRModule, Any, Any], Schedule]) -> Callable[[IRModule, Any, Any], Schedule]:
    """Make what TVM raises in ``apply`` a KnobError: knobs that pass all checks may still give no legal schedule."""

    @functools.wraps(apply)
    def checked(mod: IRModule, workload: object, knobs: object) -> Schedule:
        try:
            return apply(mod, workload, knobs)
        except KnobError:
            raise
        except Exception as error:  # TVM raises several kinds
            raise KnobError(f"TVM refuses {knobs}: {type(error).__name__}") from error

    return checked


def blocks_of(mod: IRModule) -> tuple[Block, ...]:
    """The blocks of the PrimFunc ``main`` of ``mod`` in program order; empty when a shape is not static."""
    from tunehub.tir.nodes import buffer_of

    try:
        nodes = list(_outermost(mod["main"].body.block.body))
        writers = {hash(buffer_of(region)): at for at, node in enumerate(nodes) for region in node.writes}
        return tuple(_describe(node, writers) for node in nodes)
    except (AttributeError, ValueError, TypeError, IndexError):  # no root block, symbolic extents
        return ()


def _outermost(node: Stmt) -> Iterator[SBlock]:
    """The blocks in a statement that are in no other one there."""
    from tunehub.tir.nodes import children

    if type(node).__name__ == "SBlockRealize":
        yield node.block
        return
    for child in children(node):
        yield from _outermost(child)


def anchor_at(blocks: tuple[Block, ...], name: str) -> int | None:
    """The position of the one block called ``name``; None when there is none or more than one."""
    found = [i for i, block in enumerate(blocks) if block.name == name]
    return found[0] if len(found) == 1 else None


def is_map(block: Block) -> bool:
    """True when ``block`` computes each element on its own (no reduction)."""
    return not block.reduction


def worth_threads(flops: float, bytes_moved: float, machine: Machine) -> bool:
    """True when a kernel takes so long on one core that starting the thread pool (5 to 30 µs) pays.

    Rates are cautious ones of one core: a quarter of the vectors' peak, at 3 GHz or by a profile, and 10 GB/s.
    """
    rates = machine.rates
    seconds = max(flops / (machine.vector * rates.cautious_flops), bytes_moved / CAUTIOUS_BYTES)
    return machine.cores > 1 and seconds > rates.worth_s


def size_of(shape: tuple[int, ...]) -> int:
    """The number of elements of a tensor."""
    return math.prod(shape)


def _describe(block: SBlock, writers: Mapping[int, int]) -> Block:
    """``writers``: the positions of the blocks that write buffers, by the hash of these."""
    from tunehub.tir.nodes import buffer_kind, buffer_of, extents_of, is_reduction

    def shape(region: BufferRegion) -> tuple[int, ...]:
        return tuple(map(int, extents_of(buffer_of(region))))

    axes = [(is_reduction(axis), int(axis.dom.extent)) for axis in block.iter_vars[:]]
    reads, written = block.reads[:], block.writes[0]
    return Block(
        name=str(block.name_hint),
        spatial=tuple(extent for reduced, extent in axes if not reduced),
        reduction=tuple(extent for reduced, extent in axes if reduced),
        reads=tuple(map(shape, reads)),
        write=shape(written),
        dtype=str(buffer_kind(buffer_of(written)).dtype),
        direct=all(_is_direct(axis) for region in reads for axis in region.region[:]),
        sources=tuple(sorted({writers[key] for each in reads if (key := hash(buffer_of(each))) in writers})),
    )


def _is_direct(axis: Range) -> bool:
    return hasattr(axis.min, "name") or type(axis.min).__name__ == "IntImm"

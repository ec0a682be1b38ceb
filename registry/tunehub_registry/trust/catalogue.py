"""The catalogue of a signed registry: every name with its target, so that the nearest package can be chosen.

It is part of the snapshot, signed by the online key, and is a hint: what counts as the versions of a name is what the
role says to which the name is delegated. JSON by zlib and base64, since python-tuf's canonical form walks all values.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import Counter
from collections.abc import Mapping

import msgspec
from msgspec import structs

from tunehub_registry import _json
from tunehub_registry.exceptions import FormatError
from tunehub_registry.target import TargetDescriptor, TargetName

MAX_CATALOGUE_BYTES = 64 << 20  # decompressed
SAMPLES = 2  # one is asked for; behind it another may serve


class _Listed(msgspec.Struct, gc=False):
    """A descriptor in a catalogue, its fields checked by type alone: ten thousand by their patterns take 30 ms."""

    kind: str
    model: str
    arch: str
    features: tuple[str, ...] = ()
    required_features: tuple[str, ...] = ()
    num_cores: int | None = None
    aliases: tuple[str, ...] = ()
    max_threads_per_block: int | None = None
    max_shared_memory_per_block: int | None = None

    def descriptor(self) -> TargetDescriptor:
        return TargetDescriptor(
            kind=self.kind, model=self.model, arch=self.arch, features=self.features,
            required_features=self.required_features, num_cores=self.num_cores, aliases=self.aliases,
            max_threads_per_block=self.max_threads_per_block,
            max_shared_memory_per_block=self.max_shared_memory_per_block,
        )  # fmt: skip


_KIND = dict[TargetName, _Listed]
_INVALID = (ValueError, RecursionError)  # of msgspec's decoder, and of names


def encode_catalogue(names: Mapping[str, TargetDescriptor]) -> str:
    """The catalogue as text; the same names give the same text."""
    return base64.b64encode(zlib.compress(_json.encode(dict(names)), 9)).decode("ascii")


def samples(listed: Mapping[str, TargetDescriptor], names: Mapping[str, TargetDescriptor]) -> frozenset[str]:
    """Those of the `names` that are to be listed, too, so that the nearest can be chosen: of names that differ in
    nothing which that looks at but the model, `SAMPLES`."""
    counts = Counter(_alike(target) for name, target in listed.items() if name not in names)
    found: set[str] = set()
    for name in sorted(names):
        like = _alike(names[name])
        if counts[like] < SAMPLES:
            counts[like] += 1
            found.add(name)
    return frozenset(found)


def _alike(target: TargetDescriptor) -> TargetDescriptor:
    return structs.replace(target, model="x", num_cores=None)


def decode_catalogue(
    text: object, source: str, left_out: list[FormatError] | None = None
) -> dict[str, TargetDescriptor]:
    """Read a catalogue. Raises FormatError for anything that `encode_catalogue` does not write; but names that are not
    valid go into `left_out`, if that is given."""
    if not isinstance(text, str):
        raise FormatError("expected the catalogue as text", source=source)
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), MAX_CATALOGUE_BYTES)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise FormatError(f"the catalogue cannot be unpacked: {error}", source=source) from None
    if not inflate.eof or inflate.unused_data:
        raise FormatError(f"the catalogue is cut off or larger than {MAX_CATALOGUE_BYTES} bytes", source=source)
    # Signed data of this very shape: msgspec's own decoder, which is ten times as fast as the strict one.
    try:
        return _named(msgspec.json.decode(data, type=_KIND))
    except _INVALID as error:
        if left_out is None:
            raise FormatError(f"the catalogue is not valid: {error}", source=source) from None
    return _valid_names(data, source, left_out)


def _named(listed: Mapping[str, _Listed]) -> dict[str, TargetDescriptor]:
    """The descriptors. Raises ValueError for one that is listed under the name of another."""
    wrong = next((name for name, item in listed.items() if f"{item.kind}-{item.model}" != name), None)
    if wrong is not None:
        raise ValueError(f"it lists the target {listed[wrong].kind}-{listed[wrong].model} as {wrong}")
    return {name: item.descriptor() for name, item in listed.items()}


def _valid_names(data: bytes, source: str, left_out: list[FormatError]) -> dict[str, TargetDescriptor]:
    """Name by name; what is not valid goes into `left_out`. Raises FormatError when there are no names at all."""
    try:
        listed = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except _INVALID as error:
        raise FormatError(f"the catalogue is not valid: {error}", source=source) from None
    names: dict[str, TargetDescriptor] = {}
    for name, raw in listed.items():
        try:
            names |= _named(msgspec.convert({name: msgspec.json.decode(raw, type=_Listed)}, _KIND))
        except _INVALID as error:
            left_out.append(FormatError(str(error), path=f"$[{name[:80]!r}]", source=source))
    return names

"""Signed attestations: DSSE envelopes (https://github.com/secure-systems-lab/dsse), one a line, and which count.

Verification is pure: bytes, the package that they should be about, and the keys whose word counts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from io import BytesIO
from itertools import islice
from statistics import geometric_mean
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
from securesystemslib.signer import Key, Signature, Signer

from tunehub_registry import _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines
from tunehub_registry.attestation import (
    PAYLOAD_TYPE,
    Attestation,
    Measurement,
    PackageSubject,
    encode_attestation,
    parse_attestation,
)
from tunehub_registry.exceptions import FormatError

DRAW_TYPE = "application/vnd.tunehub.draw"
_BEFORE_DRAWS = ("1.0", "1.1")  # formats in which whoever attested chose the seed
MAX_ATTESTATIONS = 256  # in one document: the rest is not read
_SLOWER = 1.02  # times as long: less is noise
_AHEAD = timedelta(days=1)  # clocks differ
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"  # as attestations have it: sorts as text


class _SignatureField(msgspec.Struct, frozen=True, kw_only=True):
    keyid: Annotated[str, Meta(min_length=1, max_length=256)]
    sig: str


class _EnvelopeFields(msgspec.Struct, frozen=True, kw_only=True):
    """DSSE's JSON form. One signature: an attestation is the word of one key."""

    payload: str
    payload_type: Literal["application/vnd.in-toto+json"] = msgspec.field(name="payloadType")
    signatures: Annotated[tuple[_SignatureField, ...], Meta(min_length=1, max_length=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedAttestation:
    """One line: the key that it names, what was measured if its signature is right, and why it does not count."""

    line: int
    keyid: str | None = None
    measurement: Measurement | None = None
    reason: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it is one of those that were asked for."""
        return self.reason is None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttestationSummary:
    """What a package's attestations come to. A key stands for one machine, and counts once."""

    judged: tuple[JudgedAttestation, ...] = ()

    @property
    def counted(self) -> tuple[Measurement, ...]:
        """What was measured by those that count."""
        return tuple(item.measurement for item in self.judged if item.counts and item.measurement is not None)

    @property
    def machines(self) -> int:
        """How many count."""
        return len(self.counted)

    @property
    def gains(self) -> tuple[float, ...]:
        """Of each machine that counts, how many times faster than TVM's default the sampled records are there."""
        return tuple(gain for gain in (measurement.gain for measurement in self.counted) if gain is not None)

    def nearest_text(self, machine: str) -> str | None:
        """What was measured on a machine of this name, such as `cuda-h100`, of a package that was made for another one;
        None where nobody who counts did. The newest of several."""
        found = [each for each in self.counted if each.machine.name == machine and each.beside_rules]
        if not found:
            return None
        ratios = max(found, key=lambda each: each.finished).beside_rules
        slower = sum(ratio > _SLOWER for ratio in ratios)
        rows = "1 row" if len(ratios) == 1 else f"{len(ratios)} rows"
        return f"measured at {geometric_mean(ratios):.2f} of the time without records ({rows}, {slower} slower)"

    def to_json(self) -> dict[str, Any]:
        """What counts, in JSON's types."""
        return {"machines": self.machines, "gains": list(self.gains), "text": self.text}

    @property
    def text(self) -> str:
        """As `tunehub show`, reports and the catalogue say it."""
        if not self.gains:
            return "measured by no machine that you trust"
        machines = "1 machine" if self.machines == 1 else f"{self.machines} machines"
        spread = f" ({min(self.gains):.2f} to {max(self.gains):.2f})" if len(self.gains) > 1 else ""
        return f"measured by {machines}, gain {geometric_mean(self.gains):.2f}{spread}"


def draw_of(subject: PackageSubject, signer: Signer) -> str:
    """What decides which records of a package a key's owner measures: the key's signature of the package file, in
    hexadecimal. Raises what the signer does."""
    signature: str = signer.sign(_to_draw(subject)).signature
    return signature


def seed_of(draw: str) -> int:
    """The seed of a draw."""
    return int.from_bytes(hashlib.sha256(bytes.fromhex(draw)).digest()[:6], "big")


def sign_attestation(attestation: Attestation, signer: Signer) -> bytes:
    """The envelope, on one line. Raises FormatError for one that could not be read again, and what the signer does."""
    envelope = Envelope(encode_attestation(attestation), PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return _json.encode(envelope.to_dict())


def is_envelope(data: bytes) -> bool:
    """Whether these bytes are meant to be an envelope: a JSON object with a payload and signatures."""
    try:
        value = _json.decode(data, "document", max_bytes=MAX_LINE_BYTES)
    except FormatError:
        return False
    return isinstance(value, dict) and "payloadType" in value and "signatures" in value


def read_envelope(data: bytes, source: str) -> tuple[str, Attestation]:
    """The id of the key that an envelope names, and what it says. The signature is not verified. Raises FormatError."""
    envelope = _envelope(data, source)
    return next(iter(envelope.signatures)), parse_attestation(envelope.payload, f"{source}: payload")


def verify_attestations(
    data: bytes, subject: PackageSubject, attesters: Iterable[Key], source: str, *, now: datetime
) -> AttestationSummary:
    """Judge every line of a document: it counts when its key is one of ``attesters``, its signature is right, and it is
    about ``subject`` and found no fault in it.

    Of several by one key only the newest is looked at. One that is dated more than a day after ``now``, the reader's
    time in UTC, is none of them: it would be the newest for good. Never raises: each line has a reason instead.
    """
    keys = {key.keyid: key for key in attesters}
    known = _Known(subject=subject, keys=keys, latest=(now + _AHEAD).strftime(_MOMENT))
    with BytesIO(data) as stream:
        lines = list(islice(read_lines(stream, source, lambda line, _: line), MAX_ATTESTATIONS + 1))
    judged = [_judge(number, line, known, source) for number, line in enumerate(lines[:MAX_ATTESTATIONS], 1)]
    if len(lines) > MAX_ATTESTATIONS:
        reason = f"there are more than {MAX_ATTESTATIONS} lines: the rest is not read"
        judged.append(JudgedAttestation(line=MAX_ATTESTATIONS + 1, reason=reason))
    return AttestationSummary(judged=_newest_of_each_key(judged))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """What a line is judged by: the package, whose word counts, and the last moment that it may be dated."""

    subject: PackageSubject
    keys: Mapping[str, Key]
    latest: str

    def refusal(self, found: Attestation) -> str | None:
        """Why what a key says is not about this package, at a time that has been; None when it is."""
        if found.subject != (self.subject,):
            about = found.subject[0]
            return f"it is about another file: {about.name}, sha256 {about.digest.sha256}"
        if found.predicate.finished > self.latest:
            return f"it is dated {found.predicate.finished}, more than a day ahead of this machine's clock"
        return None


def _judge(number: int, line: bytes | BadLine, known: _Known, source: str) -> JudgedAttestation:
    if isinstance(line, BadLine):
        return JudgedAttestation(line=number, reason=line.reason)
    try:
        envelope = _envelope(line, source)
    except FormatError as error:
        return JudgedAttestation(line=number, reason=f"not an attestation: at {error.path}: {error.reason}")
    keyid = next(iter(envelope.signatures))
    if keyid not in known.keys:
        return JudgedAttestation(line=number, keyid=keyid, reason="unknown key")
    try:
        envelope.verify([known.keys[keyid]], 1)
        found = parse_attestation(envelope.payload, source)
    except VerificationError:
        return JudgedAttestation(line=number, keyid=keyid, reason="its signature is not that of its key")
    except FormatError as error:
        reason = f"what it says cannot be read: at {error.path}: {error.reason}"
        return JudgedAttestation(line=number, keyid=keyid, reason=reason)
    refusal = known.refusal(found) or _chosen(found, keyid, known.keys[keyid])
    if refusal is not None:
        return JudgedAttestation(line=number, keyid=keyid, reason=refusal)
    return JudgedAttestation(line=number, keyid=keyid, measurement=found.predicate, reason=_fault(found.predicate))


def _to_draw(subject: PackageSubject) -> bytes:
    """What is signed for a draw: of a type of its own, so that it is never an attestation."""
    pae: bytes = Envelope(_json.encode(subject), DRAW_TYPE, {}).pae()
    return pae


def _chosen(found: Attestation, keyid: str, key: Key) -> str | None:
    """Why the records may have been chosen rather than drawn; None where they were drawn by the key."""
    measurement = found.predicate
    if not measurement.draw:
        before = measurement.format_version in _BEFORE_DRAWS
        return None if before else "its records were drawn by a seed that its author chose"
    try:
        key.verify_signature(Signature(keyid, measurement.draw), _to_draw(found.subject[0]))
    except (UnverifiedSignatureError, VerificationError):
        return "its draw is not its key's signature of the package"
    return None if seed_of(measurement.draw) == measurement.seed else "its seed is not that of its draw"


def _fault(measurement: Measurement) -> str | None:
    faults = measurement.faults
    return f"it found {len(faults)} faults, the first: {faults[0]}" if faults else measurement.too_small


def _newest_of_each_key(judged: Sequence[JudgedAttestation]) -> tuple[JudgedAttestation, ...]:
    """Those of a key that are older than its newest do not count, even when that one does not."""
    newest: dict[str, tuple[str, int]] = {}  # the first of equals
    for item in judged:
        if item.keyid is not None and item.measurement is not None:
            place = (item.measurement.finished, -item.line)
            newest[item.keyid] = max(place, newest.get(item.keyid, place))
    return tuple(
        item
        if item.keyid is None or item.measurement is None or newest[item.keyid][1] == -item.line
        else replace(item, reason="the newest one of this key is taken instead")
        for item in judged
    )


def _envelope(data: bytes, source: str) -> Envelope:
    """The envelope as securesystemslib has it; base64 as in RFC 4648 alone. Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    fields: _EnvelopeFields = _json.convert(value, _EnvelopeFields, source)
    signature = fields.signatures[0]
    payload, sig = _decoded(fields.payload, "payload", source), _decoded(signature.sig, "signatures[0].sig", source)
    return Envelope(payload, fields.payload_type, {signature.keyid: Signature(signature.keyid, sig.hex())})


def _decoded(text: str, field: str, source: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise FormatError(f"not base64: {error}", path=f"$.{field}", source=source) from None

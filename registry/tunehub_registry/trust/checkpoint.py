"""Heads of a log: checkpoints (c2sp.org/tlog-checkpoint) in signed notes (c2sp.org/signed-note), and cosignatures of
witnesses (c2sp.org/tlog-cosignature). Pure but for signers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
from securesystemslib.signer import Key, Signature, Signer

from tunehub_registry.trust.exceptions import KeyUnusableError
from tunehub_registry.trust.merkle import HASH_BYTES

MAX_NOTE_BYTES = 16_384
MAX_SIGNATURES = 64
_ED25519, _COSIGNATURE, _OTHER = b"\x01", b"\x04", b"\xfftunehub."
_ORIGIN = re.compile(r"[!-*,-~]{1,200}")  # ASCII that prints, but no plus
_SIZE = re.compile(r"0|[1-9][0-9]{0,17}")
_KEY_ID_BYTES = 4
_TIME_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteSignature:
    """A line of signatures: the name of the key, the first bytes of its hash, and the signature."""

    name: str
    key_id: bytes
    signature: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A head of a log: which log, how many entries, and the root of the tree over them."""

    origin: str
    size: int
    root: bytes
    signatures: tuple[NoteSignature, ...] = ()

    def __str__(self) -> str:
        return f"{self.size} entries, root {base64.b64encode(self.root).decode()}"

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @property
    def note(self) -> str:
        """The text with its signatures."""
        lines = (f"\u2014 {item.name} {_encoded(item.key_id + item.signature)}\n" for item in self.signatures)
        return f"{self.text}\n{''.join(lines)}"

    def with_signatures(self, *signatures: NoteSignature) -> Checkpoint:
        """The same head with these signatures alone."""
        return Checkpoint(origin=self.origin, size=self.size, root=self.root, signatures=signatures)


def parse_checkpoint(note: object) -> Checkpoint:
    """Read a signed note with a checkpoint. Raises ValueError, whatever it gets."""
    if not isinstance(note, str) or len(note) > MAX_NOTE_BYTES:
        raise ValueError(f"a note is a text of at most {MAX_NOTE_BYTES} bytes")
    text, separator, signed = note.rpartition("\n\n")
    lines = text.split("\n")
    if not separator or len(lines) != 3 or not signed.endswith("\n"):
        raise ValueError("a note is three lines, an empty one, and signatures")
    origin, size, root = lines
    if not _ORIGIN.fullmatch(origin) or not _SIZE.fullmatch(size):
        raise ValueError("a note begins with the name of its log and the number of entries")
    if len(_decoded(root)) != HASH_BYTES:
        raise ValueError(f"a root has {HASH_BYTES} bytes")
    signatures = tuple(map(_signature, signed.removesuffix("\n").split("\n")))
    if len(signatures) > MAX_SIGNATURES:
        raise ValueError(f"a note has at most {MAX_SIGNATURES} signatures")
    return Checkpoint(origin=origin, size=int(size), root=_decoded(root), signatures=signatures)


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> Checkpoint:
    """The head with the signature of its log, and no other. Raises KeyUnusableError."""
    signature = _sign(signer, checkpoint.text.encode())
    key_id = note_key_id(checkpoint.origin, signer.public_key)
    return checkpoint.with_signatures(NoteSignature(name=checkpoint.origin, key_id=key_id, signature=signature))


def is_signed_by(checkpoint: Checkpoint, key: Key) -> bool:
    """Whether the log's signature with this key is there, and right."""
    wanted = (checkpoint.origin, note_key_id(checkpoint.origin, key))
    payload = checkpoint.text.encode()
    return any((item.name, item.key_id) == wanted and _holds(key, item.signature, payload)
               for item in checkpoint.signatures)  # fmt: skip


def cosign(checkpoint: Checkpoint, signer: Signer, name: str, time: int) -> NoteSignature:
    """A witness's word that this is the largest head that it saw at `time` (seconds since 1970). Raises
    KeyUnusableError for what is no ed25519 key."""
    key = signer.public_key
    if key.scheme != "ed25519":
        remedy = "make one with `tunehub key new FILE`"
        raise KeyUnusableError(key.keyid, f"witnesses sign by ed25519, not {key.scheme}", remedy=remedy)
    signature = _sign(signer, _cosigned(checkpoint, time))
    key_id = note_key_id(name, key, _COSIGNATURE)
    return NoteSignature(name=name, key_id=key_id, signature=time.to_bytes(_TIME_BYTES, "big") + signature)


def cosigned_at(checkpoint: Checkpoint, key: Key) -> int | None:
    """When a witness last cosigned this head, in seconds since 1970; None when its signature is not there, or wrong."""
    times: list[int] = []
    for item in checkpoint.signatures:
        if item.key_id == note_key_id(item.name, key, _COSIGNATURE) and len(item.signature) > _TIME_BYTES:
            time = int.from_bytes(item.signature[:_TIME_BYTES], "big")
            if _holds(key, item.signature[_TIME_BYTES:], _cosigned(checkpoint, time)):
                times.append(time)
    return max(times, default=None)


def note_key_id(name: str, key: Key, kind: bytes = _ED25519) -> bytes:
    """The first bytes of the hash that stand for a key in a note."""
    public = str(key.keyval["public"])
    if key.scheme == "ed25519":
        material = kind + bytes.fromhex(public)
    else:
        material = _OTHER + key.scheme.encode() + b"\n" + public.encode()
    return hashlib.sha256(name.encode() + b"\n" + material).digest()[:_KEY_ID_BYTES]


def _cosigned(checkpoint: Checkpoint, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{checkpoint.text}".encode()


def _sign(signer: Signer, payload: bytes) -> bytes:
    try:
        signature = signer.sign(payload)
    except Exception as error:  # securesystemslib documents that signers raise anything
        remedy = "check the key's service and its credentials"
        raise KeyUnusableError(signer.public_key.keyid, f"signing failed: {error}", remedy=remedy) from error
    return bytes.fromhex(signature.signature)


def _holds(key: Key, signature: bytes, payload: bytes) -> bool:
    try:
        key.verify_signature(Signature(key.keyid, signature.hex()), payload)
    except (UnverifiedSignatureError, VerificationError):
        return False
    return True


def _signature(line: str) -> NoteSignature:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "\u2014" or not parts[1] or "+" in parts[1] or not parts[1].isprintable():
        raise ValueError("a signature is a dash, the name of a key, and base64")
    data = _decoded(parts[2])
    if len(data) <= _KEY_ID_BYTES:
        raise ValueError("a signature is cut off")
    return NoteSignature(name=parts[1], key_id=data[:_KEY_ID_BYTES], signature=data[_KEY_ID_BYTES:])


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"not base64: {error}") from None
    if _encoded(data) != text:
        raise ValueError("not base64 as it is written")
    return data

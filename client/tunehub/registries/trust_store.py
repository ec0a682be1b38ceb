"""Whom this user trusts: a TUF root for each registry, which registry a package name belongs to, and who attests.

A folder of small files, each written in one step, so that processes need no order among them for reading:
`roots/<hash of the address>.json`, `attesters/<key id>.pub` and `bindings.json`; `logs/<hash of the address>.json` is
what was last seen of a registry's log, and beside it lies what contradicts that. A binding protects from dependency
confusion: a name stays with the first configured registry that it came from, as long as that one is configured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta

from tunehub._files.atomic import open_regular, write_file
from tunehub._files.lock import locked
from tunehub.exceptions import HubError, TrustError
from tunehub.registries.embedded import embedded_registry
from tunehub_registry.target import TargetName

if TYPE_CHECKING:
    from securesystemslib.signer import Key

    from tunehub.options import Options

LOCK_TIMEOUT_S = 10.0
MAX_STATE_BYTES = 16 << 20
SHIPPED_ROOT = "packages/root.json"  # in the embedded registry
_BINDINGS = "bindings.json"
_ATTESTERS = "attesters"
_LOGS, _WITNESSES = "logs", "witnesses"
_REMEDY = "set TUNEHUB_TRUST to a folder that you can read and write"
_CAUSE = "bindings of names"
S = TypeVar("S", bound=msgspec.Struct)


class StoredRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A root of trust: the registry's normalised address, TUF's root.json as it is, and when it was added."""

    address: Annotated[str, Meta(min_length=1)]
    root: str
    added: str = ""

    @property
    def data(self) -> bytes:
        """The bytes of root.json."""
        return self.root.encode()


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The registry that a name belongs to, by its normalised address; `explicit` when the user said so."""

    registry: Annotated[str, Meta(min_length=1)]
    explicit: bool = False


class KnownLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was last seen of a registry's log: its head as a signed note, the tree and the newest entry by their hashes
    in hexadecimal, and when which witness cosigned a head that this one goes on from (by key id, seconds since 1970).
    """

    address: Annotated[str, Meta(min_length=1)]
    note: str
    nodes: tuple[str, ...]
    newest: str
    cosigned: dict[str, int] = {}


class Witnesses(msgspec.Struct, frozen=True, kw_only=True):
    """Whose cosignatures of a registry's log count, as the contents of `FILE.pub`, and how many are needed."""

    address: Annotated[str, Meta(min_length=1)]
    keys: tuple[str, ...] = ()
    needed: Annotated[int, Meta(ge=0, le=64)] = 0


class Bindings(msgspec.Struct, frozen=True, kw_only=True):
    """`bindings.json`."""

    schema_version: str = "1.0"
    names: dict[TargetName, Binding] = {}


P = TypeVar("P", KnownLog, Witnesses)


def log_size(log: KnownLog) -> int:
    """How many entries a log had."""
    return int(log.note.split("\n")[1])


class TrustStore:
    """The folder. Reading never writes; what cannot be written is told to the caller."""

    def __init__(self, folder: Path, shipped: Path | None = None) -> None:
        """`shipped` is the root that comes with tunehub, for registries without one of their own, if it exists."""
        self.folder = folder
        self._shipped = shipped

    def root(self, address: str) -> bytes | None:
        """The root.json that was added for an address. Raises TrustError when the file is damaged.

        A folder that this user may not even look into has none.
        """
        path = self._root_path(address)
        try:
            stored = _read(path, StoredRoot)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise _damaged(address, path, error) from error
        if stored.address != address:
            raise _damaged(address, path, ValueError(f"it is for {stored.address}"))
        return stored.data

    def shipped_root(self) -> bytes | None:
        """The root that comes with tunehub, or None."""
        try:
            return self._shipped.read_bytes() if self._shipped else None
        except OSError:
            return None

    def roots(self) -> Iterator[StoredRoot]:
        """Every root that was added. Raises TrustError for a damaged one."""
        for path in sorted((self.folder / "roots").glob("*.json")):
            try:
                yield _read(path, StoredRoot)
            except (OSError, msgspec.MsgspecError) as error:
                raise _damaged(str(path), path, error) from error

    def add_root(self, address: str, root: bytes) -> None:
        """Trust a root for an address, instead of what was there. The caller has checked it. What was seen of its log
        is forgotten. Raises OSError."""
        added = datetime.now(timezone.utc).isoformat(timespec="seconds")
        stored = StoredRoot(address=address, root=root.decode(), added=added)
        with self._locked():
            write_file(self._root_path(address), msgspec.json.format(msgspec.json.encode(stored)))
            self._place(_LOGS, address).unlink(missing_ok=True)

    def remove_root(self, address: str) -> bool:
        """Trust no root for an address any more; False when none was there. Raises OSError."""
        return self._removed(self._root_path(address))

    def attesters(self) -> list[Key]:
        """The keys whose attestations count. Raises KeyUnusableError for a damaged file."""
        from tunehub_registry.trust.keys import decode_public_key, normalised_key

        files = sorted((self.folder / _ATTESTERS).glob("*.pub"))
        return [
            normalised_key(decode_public_key(file.read_bytes()[:MAX_STATE_BYTES], str(file)), str(file))
            for file in files
        ]

    def add_attester(self, key: Key) -> None:
        """Count the attestations of a key, normalised by the caller. Raises OSError."""
        from tunehub_registry.trust.keys import encode_public_key

        with self._locked():
            write_file(self._attester_path(key.keyid), encode_public_key(key))

    def remove_attester(self, keyid: str) -> bool:
        """Count those of a key no more; False when they did not count. Raises OSError."""
        return self._removed(self._attester_path(keyid))

    def known_log(self, address: str) -> KnownLog | None:
        """What was last seen of a registry's log, None when nothing was. Raises TrustError when that is damaged."""
        return self._stored(_LOGS, address, KnownLog)

    def keep_log(self, log: KnownLog) -> None:
        """Keep what was seen, unless another process has seen as much or more. Raises OSError."""
        with self._locked():
            before = self._stored(_LOGS, log.address, KnownLog)
            if before is None or log_size(before) <= log_size(log):
                write_file(self._place(_LOGS, log.address), msgspec.json.format(msgspec.json.encode(log)))

    def keep_evidence(self, address: str, data: bytes) -> Path:
        """Keep what contradicts what was seen of a log; the same once. Returns its place. Raises OSError."""
        path = self._place(_LOGS, address)
        path = path.with_name(f"{path.stem}.fork-{hashlib.sha256(data).hexdigest()[:16]}.json")
        if not path.exists():
            with self._locked():
                write_file(path, data)
        return path

    def witnesses(self, address: str) -> Witnesses:
        """The witnesses of a registry's log. Raises TrustError when the file is damaged."""
        return self._stored(_WITNESSES, address, Witnesses) or Witnesses(address=address)

    def set_witnesses(self, witnesses: Witnesses) -> None:
        """Change them. Raises OSError."""
        with self._locked():
            data = msgspec.json.format(msgspec.json.encode(witnesses))
            write_file(self._place(_WITNESSES, witnesses.address), data)

    def _stored(self, folder: str, address: str, kind: type[P]) -> P | None:
        """A file about a registry. Raises TrustError when it is damaged; a folder that nobody may read has none."""
        path = self._place(folder, address)
        try:
            stored = _read(path, kind)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except (OSError, msgspec.MsgspecError) as error:
            reason = f"what is known of its log in {path} cannot be read: {error}"
            raise TrustError(address, reason, remedy="delete the file: it is then learnt anew") from error
        return stored if stored.address == address else None

    def _removed(self, path: Path) -> bool:
        with self._locked():
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True

    def bindings(self) -> Mapping[str, Binding]:
        """Every binding by name. Raises HubError when the file is damaged or cannot be read."""
        path = self.folder / _BINDINGS
        try:
            return _read(path, Bindings).names
        except FileNotFoundError:
            return {}
        except OSError as error:
            reason = f"the bindings of names to registries in {path} cannot be read: {error.strerror or error}"
            raise HubError(reason, remedy=_REMEDY, cause=_CAUSE) from error
        except msgspec.MsgspecError as error:
            reason = f"the bindings of names to registries in {path} are damaged: {error}"
            remedy = "delete the file, then bind again what matters with `tunehub trust bind`"
            raise HubError(reason, remedy=remedy, cause=_CAUSE) from error

    def bind(self, name: str, address: str, *, explicit: bool = False) -> None:
        """Bind a name to a registry, instead of where it was. Raises HubError, OSError or ValidationError."""
        self._change(lambda names: {**names, name: Binding(registry=address, explicit=explicit)})

    def bind_first(self, name: str, address: str) -> None:
        """Bind a name unless another process has just bound it elsewhere. Raises as `bind`."""
        self._change(lambda names: {name: Binding(registry=address), **names})

    def unbind(self, name: str) -> bool:
        """Let a name be bound anew; False when it was not bound. Raises as `bind`."""
        known = name in self.bindings()
        if known:
            self._change(lambda names: {key: value for key, value in names.items() if key != name})
        return known

    def _change(self, change: Callable[[Mapping[str, Binding]], dict[str, Binding]]) -> None:
        with self._locked():
            before = self.bindings()
            after = Bindings(names=change(before))
            if after.names != before:
                data = msgspec.json.format(msgspec.json.encode(after, order="sorted"))
                msgspec.json.decode(data, type=Bindings)  # a name that is none must not make the file unreadable
                write_file(self.folder / _BINDINGS, data)

    def _attester_path(self, keyid: str) -> Path:
        return self.folder / _ATTESTERS / f"{keyid}.pub"

    def _root_path(self, address: str) -> Path:
        return self._place("roots", address)

    def _place(self, folder: str, address: str) -> Path:
        return self.folder / folder / f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.json"

    def _locked(self) -> AbstractContextManager[None]:
        """Among processes, as far as the file system has locks. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder / ".lock", LOCK_TIMEOUT_S)


def not_kept(store: TrustStore, error: Exception) -> HubError:
    """The problem when a binding cannot be written."""
    reason = f"which registry package names belong to cannot be kept in {store.folder}: {error}"
    return HubError(reason, remedy=_REMEDY, cause=_CAUSE)


def _read(path: Path, kind: type[S]) -> S:
    with open_regular(path) as stream:
        data = stream.read(MAX_STATE_BYTES)
    try:
        return msgspec.json.decode(data, type=kind)
    except UnicodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def _damaged(address: str, path: Path, error: Exception) -> TrustError:
    reason = f"its trusted root in {path} cannot be read: {getattr(error, 'strerror', None) or error}"
    remedy = f"add it again: `tunehub trust add {address} ROOT.json`; without it the registry is not used"
    return TrustError(address, reason, remedy=remedy)


def trust_store(options: Options) -> TrustStore:
    """The trust store of the options, with the root that comes with tunehub."""
    return TrustStore(options.trust, shipped=embedded_registry() / SHIPPED_ROOT)

"""What the commands that write to a registry share: its keys, its root, its ledger, and how its errors end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tunehub.cli.output import say
from tunehub.options import read_options
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.stores.open import normalise_address, open_writable_store
from tunehub_registry.stores.port import WritableStore

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from tunehub.registries.trust_store import TrustStore
    from tunehub_registry.publishing.ledger import Ledger

KEY_VARIABLE = "TUNEHUB_KEY"
ONLINE_KEY_VARIABLE = "TUNEHUB_ONLINE_KEY"
KEY_REMEDY = "a PEM file, env:NAME, or a URI such as awskms:ID"
F = TypeVar("F", bound=Callable[..., Any])

store_argument: Callable[[F], F] = click.argument("store", metavar="STORE")
root_option: Callable[[F], F] = click.option(
    "--root",
    "root_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A trusted root of the registry (default: what `tunehub trust add` stored for it).",
)
key_option: Callable[[F], F] = click.option(
    "--key", "keys", multiple=True, metavar="URI", help=f"The publisher's private key (default: {KEY_VARIABLE})."
)
online_key_option: Callable[[F], F] = click.option(
    "--online-key", metavar="URI", help=f"The private online key (default: {ONLINE_KEY_VARIABLE})."
)
targets_key_option: Callable[[F], F] = click.option("--targets-key", metavar="URI", help="The private targets key.")
root_key_option: Callable[[F], F] = click.option(
    "--root-key", "root_keys", multiple=True, metavar="URI", help="A private root key; may be repeated."
)
unsigned_option: Callable[[F], F] = click.option(
    "--unsigned", is_flag=True, help="Write to a registry without signatures: whoever can write to it is trusted."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerAccess:
    """What the options of :func:`ledger_options` say: URIs of keys, a trusted root, or that there are no signatures."""

    keys: Sequence[str]
    online_key: str | None
    root_file: Path | None
    unsigned: bool


def ledger_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of who writes to a registry, which it takes as one argument ``access``."""

    @wraps(command)
    def collected(
        *given: object,
        keys: Sequence[str],
        online_key: str | None,
        root_file: Path | None,
        unsigned: bool,
        **others: object,
    ) -> None:
        access = LedgerAccess(keys=keys, online_key=online_key, root_file=root_file, unsigned=unsigned)
        command(*given, access=access, **others)

    return key_option(online_key_option(root_option(unsigned_option(collected))))


@contextmanager
def registry_errors() -> Iterator[None]:
    """Errors of registries, keys and files end the command with their message and exit code 1."""
    try:
        yield
    except RegistryError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'file'}: {error.strerror or error}") from None


def open_destination(address: str) -> WritableStore:
    """The store to write to. Raises StoreError."""
    return open_writable_store(address)


def private_key(uri: str | None, option: str, variable: str | None = None) -> Signer:
    """The signer for an option, or for its environment variable. Raises UsageError when neither is given."""
    from tunehub_registry.trust.keys import load_signer

    place = uri or (os.environ.get(variable) if variable else None)
    if not place:
        also = f" or {variable}" if variable else ""
        raise click.UsageError(f"this needs a key: give {option}{also} ({KEY_REMEDY})")
    return load_signer(place, ask_passphrase=ask_passphrase if sys.stdin.isatty() else None)


def private_keys(uris: Sequence[str], option: str, variable: str | None = None) -> list[Signer]:
    """Signers for an option that may be repeated. Raises UsageError when there is none."""
    return [private_key(uri, option) for uri in uris] or [private_key(None, option, variable)]


def ask_passphrase(place: str) -> str:
    """Ask on the terminal."""
    answer: str = click.prompt(f"Passphrase of {place}", hide_input=True, err=True)
    return answer


def trusted_root(address: str, root_file: Path | None) -> bytes:
    """The root that a publisher starts from: there is no trust on first use. Raises UsageError without one."""
    if root_file is not None:
        return root_file.read_bytes()
    known = known_root(address)
    if known is None:
        raise click.UsageError(
            f"no root is trusted for {address}: give --root FILE (the registry's metadata/1.root.json, from its "
            f"operator), or run `tunehub trust add {address} FILE` once "
            "(--unsigned is for registries without signatures)"
        )
    return known


def known_root(address: str) -> bytes | None:
    """The root in the user's trust store, or None."""
    return user_trust().root(normalise_address(address))


def user_trust() -> TrustStore:
    """The user's trust store."""
    from tunehub.registries.trust_store import trust_store

    return trust_store(read_options())


def open_ledger(address: str, access: LedgerAccess, *, role: str | None = None, reviewed: bool = True) -> Ledger:
    """The ledger of a registry, with the keys of the options and of the environment; see `SignedLedger`. Without an
    online key it proposes, which is said.

    Raises UsageError when keys or the root are missing, and what opening them raises.
    """
    store = open_destination(address)
    if access.unsigned:
        warn_unsigned(address)
        from tunehub_registry.publishing.unsigned import UnsignedLedger

        return UnsignedLedger(store)
    from tunehub_registry.publishing.proposals import ProposalLedger
    from tunehub_registry.publishing.signed import SignedLedger

    root = trusted_root(address, access.root_file)
    keys = private_keys(access.keys, "--key", KEY_VARIABLE)
    online = online_key_if_any(access.online_key)
    if online is None:
        return ProposalLedger(store, root, keys=keys, online=None, role=role, reviewed=reviewed)
    return SignedLedger(store, root, keys=keys, online=online, role=role, reviewed=reviewed)


def proposes(access: LedgerAccess) -> bool:
    """Whether what is written waits for the signing job: there is no online key."""
    return not access.unsigned and not has_online_key(access.online_key)


def has_online_key(uri: str | None) -> bool:
    """Whether an online key is given, by an option or the environment."""
    return bool(uri or os.environ.get(ONLINE_KEY_VARIABLE))


def online_key_if_any(uri: str | None) -> Signer | None:
    """The online key; None without one, and what that means is said: what is written is a proposal."""
    if has_online_key(uri):
        return private_key(uri, "--online-key", ONLINE_KEY_VARIABLE)
    text = "Note: without an online key this is a proposal: the registry's signing job (`tunehub timestamp`) "
    say(f"{text}publishes it", err=True)
    return None


def warn_unsigned(address: str) -> None:
    """Say each time what having no signatures means."""
    text = f"Warning: {address} has no signatures: its readers trust whoever can write to it, and the network to it"
    say(text, err=True)

"""Keys: new ones in encrypted files, and signers by URI, so that a key can as well lie in a KMS.

Private keys are PKCS#8 in PEM (RFC 5958, RFC 7468), encrypted with a passphrase; a public key is a JSON file `FILE.pub`
with what TUF metadata says of a key (TUF specification 4.2) and its key id, or inline `ed25519:HEX`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import (
    SIGNER_FOR_URI_SCHEME,
    AWSSigner,
    AzureSigner,
    CryptoSigner,
    GCPSigner,
    Key,
    Signer,
    SSlibKey,
    VaultSigner,
)

from tunehub_registry.trust.exceptions import KeyUnusableError

PASSPHRASE_VARIABLE = "TUNEHUB_KEY_PASSPHRASE"
PUBLIC_SUFFIX = ".pub"
MAX_KEY_BYTES = 65_536
AskPassphrase = Callable[[str], str]  # called with the place of the key

_FORMS = "give a PEM file, env:NAME, or awskms:ID, gcpkms:NAME, azurekms:VAULT/NAME, hv:NAME"
_PUBLIC_FORMS = "give the FILE.pub that `tunehub key new FILE` wrote, or ed25519:HEX"
_ED25519_PREFIX = "ed25519:"


def create_key(path: Path, passphrase: str | None) -> Key:
    """Make an ed25519 key: the private one in `path` (mode 0600), the public one beside it; returns the public one.

    `passphrase` None leaves the file unencrypted. Raises KeyUnusableError when one of the files exists or cannot be
    written: nothing is ever overwritten.
    """
    public_path = public_path_of(path)
    for file in (path, public_path):
        if os.path.lexists(file):
            raise KeyUnusableError(str(file), "the file exists", remedy="choose another name: keys are not overwritten")
    private = Ed25519PrivateKey.generate()
    encryption: KeySerializationEncryption = NoEncryption()
    if passphrase is not None:
        encryption = BestAvailableEncryption(_passphrase_bytes(path, passphrase))
    public = SSlibKey.from_crypto(private.public_key())
    _write_new(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), 0o600)
    try:
        _write_new(public_path, encode_public_key(public), 0o644)
    except KeyUnusableError:
        path.unlink()  # nobody has seen it
        raise
    return public


def public_path_of(path: Path) -> Path:
    """Where the public key of a private key's file lies."""
    return path.with_name(path.name + PUBLIC_SUFFIX)


def load_signer(
    uri: str, *, ask_passphrase: AskPassphrase | None = None, environ: Mapping[str, str] | None = None
) -> Signer:
    """The signer for a URI.

    `PATH` or `file:PATH`: a PEM file; `env:NAME`: PEM text in an environment variable. Their passphrase comes from
    TUNEHUB_KEY_PASSPHRASE or `ask_passphrase`. Other schemes are those of securesystemslib's signers for key services:
    `awskms:`, `gcpkms:`, `azurekms:`, `hv:`, whose credentials come from where their own libraries look for them.

    Raises KeyUnusableError when there is no such key, it cannot be decrypted, or its service refuses.
    """
    variables = os.environ if environ is None else environ
    scheme, separator, rest = uri.partition(":")
    if not separator or len(scheme) == 1:  # one letter: a drive of Windows
        return _signer_from_pem(_read(Path(uri)), uri, ask_passphrase, variables)
    if scheme == "file":
        return _signer_from_pem(_read(Path(rest)), rest, ask_passphrase, variables)
    if scheme == "env":
        if rest not in variables:
            raise KeyUnusableError(uri, "there is no such environment variable", remedy="set it to the PEM text")
        return _signer_from_pem(variables[rest].encode(), uri, ask_passphrase, variables)
    return _signer_of_service(uri, scheme, rest)


def load_public_key(text: str) -> Key:
    """A public key from `FILE.pub`, inline `ed25519:HEX`, or a key service's URI as for `load_signer`.

    Raises KeyUnusableError.
    """
    if text.startswith(_ED25519_PREFIX):
        return _inline_key(text)
    scheme, separator, rest = text.partition(":")
    if separator and scheme in _IMPORTERS:
        return _signer_of_service(text, scheme, rest).public_key
    return decode_public_key(_read(Path(text)), text)


def encode_public_key(key: Key) -> bytes:
    """The content of a `FILE.pub`."""
    return json.dumps({"keyid": key.keyid, **key.to_dict()}, sort_keys=True).encode() + b"\n"


def decode_public_key(data: bytes, source: str) -> Key:
    """Read a `FILE.pub`. Raises KeyUnusableError."""
    if b"PRIVATE KEY" in data:
        raise KeyUnusableError(source, "this is a private key", remedy=_PUBLIC_FORMS)
    try:
        fields = json.loads(data)
        keyid = fields.pop("keyid")
        if not isinstance(keyid, str) or not keyid.isalnum():
            raise ValueError("the key id is not hexadecimal")
        return Key.from_dict(keyid, fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"not a public key: {error or type(error).__name__}"
        raise KeyUnusableError(source, reason, remedy=_PUBLIC_FORMS) from None


def normalised_key(key: Key, source: str) -> Key:
    """The same public key with the id that follows from it: whatever files call it, it cannot pass for two.

    Raises KeyUnusableError for a kind of key that `load_signer` does not sign with.
    """
    public = key.keyval.get("public") if isinstance(key.keyval, dict) else None
    try:
        if key.scheme == "ed25519":
            return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(public or "")))
        return SSlibKey.from_crypto(load_pem_public_key((public or "").encode()), None, key.scheme)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyUnusableError(source, f"not a public key that signs: {error}", remedy=_PUBLIC_FORMS) from None


def public_text(key: Key) -> str:
    """A key for people: inline if it is short, else its type. `load_public_key` reads the inline form."""
    return f"{_ED25519_PREFIX}{key.keyval['public']}" if key.scheme == "ed25519" else f"{key.keytype} ({key.scheme})"


def _inline_key(text: str) -> Key:
    try:
        return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(text[len(_ED25519_PREFIX) :])))
    except ValueError:
        raise KeyUnusableError(text[:80], "not 64 hexadecimal digits", remedy=_PUBLIC_FORMS) from None


def _signer_from_pem(
    pem: bytes, place: str, ask_passphrase: AskPassphrase | None, variables: Mapping[str, str]
) -> Signer:
    if b"PRIVATE KEY" not in pem:
        raise KeyUnusableError(place, "not a private key in PEM form", remedy=_FORMS)
    private: PrivateKeyTypes
    try:
        private = load_pem_private_key(pem, None)
    except TypeError:  # it is encrypted
        private = _decrypt(pem, place, ask_passphrase, variables)
    except (ValueError, UnsupportedAlgorithm):
        raise KeyUnusableError(place, "the PEM text is damaged or of an unknown kind", remedy=_FORMS) from None
    try:
        return CryptoSigner(private)
    except ValueError as error:
        raise KeyUnusableError(place, str(error), remedy="make one with `tunehub key new FILE`") from None


def _decrypt(
    pem: bytes, place: str, ask_passphrase: AskPassphrase | None, variables: Mapping[str, str]
) -> PrivateKeyTypes:
    """Try the variable's passphrase, then the one that a person knows: keys may have different ones."""
    remedy = f"set {PASSPHRASE_VARIABLE} to the passphrase that the key was made with"
    reason = "it is encrypted, and there is no passphrase"
    given = variables.get(PASSPHRASE_VARIABLE)
    attempts: list[Callable[[], str]] = [] if given is None else [lambda: given]
    if ask_passphrase is not None:
        attempts.append(lambda: ask_passphrase(place))
    for attempt in attempts:
        try:
            return load_pem_private_key(pem, attempt().encode())
        except (ValueError, UnsupportedAlgorithm):
            reason = "the passphrase is wrong, or the file is damaged"
    raise KeyUnusableError(place, reason, remedy=remedy)


def _azure_names(rest: str) -> tuple[str, str]:
    vault, _, name = rest.strip("/").partition("/")
    return vault, name


# From what follows the scheme to securesystemslib's own URI and the public key: each asks its service for the key.
_IMPORTERS: dict[str, Callable[[str], tuple[str, SSlibKey]]] = {
    AWSSigner.SCHEME: lambda rest: AWSSigner.import_(rest),
    AzureSigner.SCHEME: lambda rest: AzureSigner.import_(*_azure_names(rest)),
    GCPSigner.SCHEME: lambda rest: GCPSigner.import_(rest),
    VaultSigner.SCHEME: lambda rest: VaultSigner.import_(rest),
}


def _signer_of_service(uri: str, scheme: str, rest: str) -> Signer:
    if scheme not in _IMPORTERS or scheme not in SIGNER_FOR_URI_SCHEME or not rest:
        raise KeyUnusableError(uri, f"there is no kind of key {scheme!r}", remedy=_FORMS)
    try:
        own_uri, public = _IMPORTERS[scheme](rest)
        return Signer.from_priv_key_uri(own_uri, public)
    except Exception as error:  # securesystemslib documents that signers raise anything
        remedy = "check the key's name, the service's credentials and its Python library"
        raise KeyUnusableError(uri, f"its service says: {error or type(error).__name__}", remedy=remedy) from error


def _passphrase_bytes(path: Path, passphrase: str) -> bytes:
    if not 1 <= len(passphrase.encode()) <= 1023:  # OpenSSL's limit
        remedy = "give another one, or --no-passphrase for a key that a secret store keeps"
        raise KeyUnusableError(str(path), "a passphrase has 1 to 1023 bytes", remedy=remedy)
    return passphrase.encode()


def _read(path: Path) -> bytes:
    try:
        with path.expanduser().open("rb") as stream:
            data = stream.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        remedy = "correct the path, or make one with `tunehub key new FILE`"
        raise KeyUnusableError(str(path), error.strerror or str(error), remedy=remedy) from error
    if len(data) > MAX_KEY_BYTES:
        raise KeyUnusableError(str(path), f"larger than {MAX_KEY_BYTES} bytes: not a key", remedy=_FORMS)
    return data


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            path.unlink()  # a part of a key, in the way of the next try
            raise
    except OSError as error:
        raise KeyUnusableError(
            str(path), error.strerror or str(error), remedy="give a path that can be written"
        ) from error

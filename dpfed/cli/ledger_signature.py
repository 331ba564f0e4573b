"""Signature of a ledger's head in PATH.sig: with the public key anyone can verify that no line was changed or removed.

The scheme is Ed25519 from the `cryptography` library, which is imported only when a signature is made or verified.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accounting.errors import LedgerError
from accounting.ledger import Ledger, backups, regular_file
from dpfed.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PURPOSE = b"dpfed-ledger-head-1\n"
_LONGEST_FILE = 1 << 12


@dataclass(frozen=True, kw_only=True)
class SignedHead:
    """Signed content: hashes of the ledger's header and of its last line, and the number of entries, when signed."""

    ledger: str
    head: str
    entries: int

    def signed_bytes(self) -> bytes:
        """Return the bytes that are signed."""
        return _PURPOSE + json.dumps(vars(self), sort_keys=True).encode()

    def entries_since(self, ledger: Ledger) -> int:
        """Return the number of entries added to the ledger after it was signed."""
        return len(ledger.entries) - self.entries

    def to_dict(self, ledger: Ledger) -> dict[str, Any]:
        """Return the record that `dpfed ledger verify --json` prints."""
        return {**vars(self), "entries_after": self.entries_since(ledger)}


def signature_path(ledger: Path) -> Path:
    """Return the path of the signature of the ledger at this path."""
    return ledger.with_name(f"{ledger.name}.sig")


def generate_key_pair(path: Path) -> Path:
    """Write a new private key to `path` and its public key to PATH.pub, both as PEM; return the path of the public key.

    ConfigError if one of the files exists.
    """
    keys, serialization, _ = _cryptography_modules()
    public = path.parent / f"{path.name}.pub"
    if taken := [str(one) for one in (path, public) if one.exists()]:
        raise ConfigError(f"{taken[0]}: exists already. Name another file.")
    key = keys.Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        regular_file.replace_content(path, private, mode=0o600)
        regular_file.replace_content(
            public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). Name another file.") from None
    return public


def sign(ledger: Ledger, key: Path) -> Path:
    """Sign the ledger's head with the private key in the file `key`, and return the path of the signature."""
    keys, serialization, _ = _cryptography_modules()
    private: Ed25519PrivateKey = _read_key(
        key, lambda pem: serialization.load_pem_private_key(pem, None), keys.Ed25519PrivateKey
    )
    head = SignedHead(ledger=ledger.identity, head=ledger.head, entries=len(ledger.entries))
    target = signature_path(ledger.path)
    content = {**vars(head), "signature": private.sign(head.signed_bytes()).hex()}
    try:
        regular_file.replace_content(target, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise LedgerError(f"{target}: cannot be written ({error.strerror}).") from None
    return target


def verified_head(ledger: Ledger, key: Path) -> SignedHead:
    """Return the head of the ledger that the owner of the public key in the file `key` signed.

    Raises LedgerError unless the signature is valid and the ledger contains every signed entry. Raises ConfigError if
    the file `key` holds no Ed25519 public key.
    """
    keys, serialization, exceptions = _cryptography_modules()
    public: Ed25519PublicKey = _read_key(key, serialization.load_pem_public_key, keys.Ed25519PublicKey)
    source = signature_path(ledger.path)
    head, signature = _read_signature(source)
    try:
        public.verify(signature, head.signed_bytes())
    except exceptions.InvalidSignature:
        raise LedgerError(f"{source}: is not signed by the key of {key}, or was changed after signing.") from None
    if head.ledger != ledger.identity:
        raise LedgerError(f"{source}: is the signature of a ledger other than {ledger.path}.")
    if head.entries + backups.entries_after(ledger, head.head) != len(ledger.entries):
        raise LedgerError(
            f"{source}: states {head.entries} entries up to its head, but {ledger.path} has a different number."
        )
    return head


def _read_signature(source: Path) -> tuple[SignedHead, bytes]:
    try:
        with open(source, "rb") as file:
            record = json.loads(file.read(_LONGEST_FILE))
        match record:
            case {"ledger": str(ledger), "head": str(head), "entries": int(entries), "signature": str(signature)}:
                return SignedHead(ledger=ledger, head=head, entries=entries), bytes.fromhex(signature)
    except FileNotFoundError:
        raise LedgerError(f"{source}: there is no signature. Make one with `dpfed ledger sign`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LedgerError(f"{source}: cannot be read as a signature ({error}).") from None
    raise LedgerError(f"{source}: is no signature: it needs ledger, head, entries and signature.")


def _read_key(path: Path, load: Any, kind: type) -> Any:
    _, _, exceptions = _cryptography_modules()
    try:
        with open(path, "rb") as file:
            key = load(file.read(_LONGEST_FILE))
    except (OSError, ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
        raise ConfigError(f"--key {path}: cannot be read as a key in PEM ({error}).") from None
    if not isinstance(key, kind):
        raise ConfigError(f"--key {path}: is no {kind.__name__}. Make one with `dpfed ledger keygen`.")
    return key


def _cryptography_modules() -> tuple[ModuleType, ModuleType, ModuleType]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError(f"signatures need the training extra ({error}): pip install 'dpfed[train]'.") from None
    return ed25519, serialization, exceptions

"""Signatures of a ledger's head, PATH.sig: holders of the public key can verify later that nothing was cut off or
changed.

Ed25519, by the `cryptography` library, which only this module loads, and only when a signature is made or verified.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accounting.errors import LedgerError
from accounting.ledger import Ledger, kept_head, regular_file
from dpfed.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PURPOSE = b"dpfed-ledger-head-1\n"
_LONGEST = 1 << 12


@dataclass(frozen=True, kw_only=True)
class SignedHead:
    """Signed content: hash of the ledger's header, hash of its last line when signed, and number of entries up to that
    line.
    """

    ledger: str
    head: str
    entries: int

    @classmethod
    def of(cls, ledger: Ledger) -> SignedHead:
        return cls(ledger=ledger.identity, head=ledger.head, entries=len(ledger.entries))

    def message(self) -> bytes:
        """Return the bytes that are signed."""
        return _PURPOSE + json.dumps(vars(self), sort_keys=True).encode()

    def follow(self, ledger: Ledger) -> int:
        """Return the number of entries added to the ledger after the signature."""
        return len(ledger.entries) - self.entries

    def to_dict(self, ledger: Ledger) -> dict[str, Any]:
        """Return the record that `dpfed ledger verify --json` prints."""
        return {**vars(self), "entries_after": self.follow(ledger)}


def path_of(ledger: Path) -> Path:
    """Path of the signature of the ledger at this path."""
    return ledger.with_name(f"{ledger.name}.sig")


def generate(path: Path) -> Path:
    """Write a new private key to this file and the public key to PATH.pub, as PEM; ConfigError if a file exists
    already.
    """
    keys, serialization, _ = _library()
    public = path.with_name(f"{path.name}.pub")
    if taken := [str(one) for one in (path, public) if one.exists()]:
        raise ConfigError(f"{taken[0]}: is there already. Name another file.")
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
    """Sign the ledger's head with the private key in this file. ConfigError, LedgerError."""
    keys, serialization, _ = _library()
    private: Ed25519PrivateKey = _key(
        key, lambda pem: serialization.load_pem_private_key(pem, None), keys.Ed25519PrivateKey
    )
    head, target = SignedHead.of(ledger), path_of(ledger.path)
    content = {**vars(head), "signature": private.sign(head.message()).hex()}
    try:
        regular_file.replace_content(target, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise LedgerError(f"{target}: cannot be written ({error.strerror}).") from None
    return target


def verified(ledger: Ledger, key: Path) -> SignedHead:
    """Return the part of the ledger that the owner of this public key signed. Raise LedgerError unless the signature
    is valid and the ledger still has all that was signed, ConfigError for a file that holds no such key."""
    keys, serialization, exceptions = _library()
    public: Ed25519PublicKey = _key(key, serialization.load_pem_public_key, keys.Ed25519PublicKey)
    source = path_of(ledger.path)
    head, signature = _read(source)
    try:
        public.verify(signature, head.message())
    except exceptions.InvalidSignature:
        raise LedgerError(f"{source}: is not signed by the key of {key}, or was changed since.") from None
    if head.ledger != ledger.identity:
        raise LedgerError(f"{source}: is the signature of another ledger than {ledger.path}.")
    if head.entries + kept_head.entries_after(ledger, head.head) != len(ledger.entries):
        raise LedgerError(f"{source}: says {head.entries} entries up to its head, {ledger.path} has another number.")
    return head


def _read(source: Path) -> tuple[SignedHead, bytes]:
    try:
        with open(source, "rb") as file:
            record = json.loads(file.read(_LONGEST))
        match record:
            case {"ledger": str(ledger), "head": str(head), "entries": int(entries), "signature": str(signature)}:
                return SignedHead(ledger=ledger, head=head, entries=entries), bytes.fromhex(signature)
    except FileNotFoundError:
        raise LedgerError(f"{source}: there is no signature. Make one with `dpfed ledger sign`.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LedgerError(f"{source}: cannot be read as a signature ({error}).") from None
    raise LedgerError(f"{source}: is no signature: it needs ledger, head, entries and signature.")


def _key(path: Path, load: Any, kind: type) -> Any:
    _, _, exceptions = _library()
    try:
        with open(path, "rb") as file:
            key = load(file.read(_LONGEST))
    except (OSError, ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
        raise ConfigError(f"--key {path}: cannot be read as a key in PEM ({error}).") from None
    if not isinstance(key, kind):
        raise ConfigError(f"--key {path}: is no {kind.__name__}. Make one with `dpfed ledger keygen`.")
    return key


def _library() -> tuple[ModuleType, ModuleType, ModuleType]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError(f"signatures need the training extra ({error}): pip install 'dpfed[train]'.") from None
    return ed25519, serialization, exceptions

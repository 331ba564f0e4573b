"""Keys that two clients agree on and nobody else has: X25519, then HKDF-SHA256 bound to the round and the two ids."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpfed.aggregation.messages import both_ids
from dpfed.errors import WireError

_NONCE = bytes(12)  # a key encrypts one message only: it is of one round, one sender and one receiver


def exchange(own: X25519PrivateKey, other: bytes) -> bytes:
    """The secret of a pair of clients, from either private key. WireError for a public key that lies."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise WireError("a public key of 32 bytes that no private key belongs to; drop its sender.") from None


def mask_seed(own: X25519PrivateKey, other: bytes, session: bytes, one: int, two: int) -> bytes:
    """The 32-byte seed of the mask that clients one and two share, the same from either end."""
    return _derive(exchange(own, other), b"mask", session, both_ids(min(one, two), max(one, two)))


def encrypt(plain: bytes, shared: bytes, session: bytes, sender: int, receiver: int) -> bytes:
    """AES-256-GCM under a key of this direction, with the round and the direction as associated data."""
    ends = both_ids(sender, receiver)
    return AESGCM(_derive(shared, b"share", session, ends)).encrypt(_NONCE, plain, session + ends)


def decrypt(sealed: bytes, shared: bytes, session: bytes, sender: int, receiver: int) -> bytes:
    """What `encrypt` sealed. WireError if it was for another round, other ends, another key, or was changed."""
    ends = both_ids(sender, receiver)
    try:
        return AESGCM(_derive(shared, b"share", session, ends)).decrypt(_NONCE, sealed, session + ends)
    except InvalidTag:
        raise WireError(
            f"shares from client {sender} to {receiver} do not open: damaged, or not of this round or key."
        ) from None


def _derive(shared: bytes, purpose: bytes, session: bytes, ends: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=session, info=b"dpfed secure sum 1 " + purpose + ends).derive(
        shared
    )

"""Ed25519 (RFC 8032): keys, signatures, and which keys are taken.

The one place that imports `cryptography`, and only when something is signed or verified: without the extra `proof` each
of these raises Misuse(`missing_extra`). What is secret here never leaves but as the PEM that is written to a file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from eventlog.errors import InvalidInput, Misuse
from eventlog.signing.curve_points import flaw_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["SEED_BYTES", "SIGNATURE_BYTES", "PrivateKey", "check_public_key", "is_signature"]

SEED_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


class PrivateKey:
    """A key that signs. Raises Misuse(`missing_extra`) without the extra `proof`."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key: Final = key
        self.public: Final = check_public_key(key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: bytes) -> PrivateKey:
        """Return the key of a seed of 32 random bytes. Raises InvalidInput(`key_unusable`)."""
        _check_installed()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if len(seed) != SEED_BYTES:
            raise InvalidInput("key_unusable", f"a private key is made of {SEED_BYTES} bytes, not of {len(seed)}")
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_pem(cls, pem: bytes) -> PrivateKey:
        """Return the key of an unencrypted PKCS #8 text, as OpenSSL writes it. Raises InvalidInput(`key_unusable`)."""
        _check_installed()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(pem, password=None)
        except (TypeError, ValueError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
            why = "it is encrypted" if isinstance(error, TypeError) else "it is no private key in PEM"
            raise InvalidInput("key_unusable", f"the key cannot be read: {why}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidInput("key_unusable", "the key is of another kind than Ed25519")
        return cls(key)

    def to_pem(self) -> bytes:
        """Return the key as an unencrypted PKCS #8 text: the secret itself."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, data: bytes) -> bytes:
        """Return the signature of the bytes: 64 bytes, the same each time."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"PrivateKey(public={self.public.hex()})"


@lru_cache(maxsize=256)
def check_public_key(raw: bytes) -> bytes:
    """Return a public key of 32 bytes, if only its holder can sign under it. Raises InvalidInput(`weak_key`)."""
    flaw = flaw_of(raw)
    if flaw is not None:
        raise InvalidInput("weak_key", f"the public key {raw[:40].hex()} {flaw}")
    return raw


def is_signature(public: bytes, signature: bytes, data: bytes) -> bool:
    """Say whether this is the signature of the bytes under this key. Under a key that is refused, nothing is one.

    Raises Misuse(`missing_extra`).
    """
    _check_installed()
    from cryptography.exceptions import InvalidSignature

    if len(signature) != SIGNATURE_BYTES:
        return False
    try:
        _loaded(check_public_key(public)).verify(signature, data)
    except (InvalidInput, InvalidSignature):
        return False
    return True


@lru_cache(maxsize=256)
def _loaded(public: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public)


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401  # asked for, so that its absence is told in our words
    except ImportError as error:
        message = "signatures need the extra `proof`: install `eventlog-engine[proof]`"
        raise Misuse("missing_extra", message) from error

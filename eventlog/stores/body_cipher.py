"""Encrypts the bodies of streams that are about one subject, and opens them again while that subject's key is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from eventlog.errors import Refused, StoreUnavailable
from eventlog.stores.entropy import random_bytes

if TYPE_CHECKING:
    from eventlog.stores.subject_keys import SubjectKeys

__all__ = ["BodyCipher", "BodyKey", "cipher_of"]

_NONCE: Final = 12


class BodyKey(msgspec.Struct, frozen=True, gc=False):
    """A subject's key: its id, which stands in the log, and 32 bytes, which do not."""

    key_id: bytes
    key: bytes


class BodyCipher:
    """Seals and opens bodies with the keys of subjects. Called on the threads of connections."""

    def __init__(self, keys: SubjectKeys) -> None:
        self._keys: Final = keys

    def new_key(self, subject: str) -> BodyKey:
        """Return the key of a subject, made if there is none yet. Raises Refused(`subject_erased`)."""
        key_id, key = self._keys.key_for(subject, may_create=True)
        return BodyKey(key_id, key)

    def key_id_of(self, subject: str) -> bytes:
        """Return the id of a subject's key, destroyed or not. Raises Refused(`unknown_subject`)."""
        return self._keys.key_id_of(subject)

    def has(self, key_id: bytes) -> bool:
        """Say whether the key of this id is here."""
        return self._keys.key(key_id) is not None

    def is_destroyed(self, key_id: bytes) -> bool:
        """Say whether the key of this id was here and was destroyed."""
        return self._keys.is_destroyed(key_id)

    def is_key_of(self, key_id: bytes, subject: str) -> bool:
        """Say whether this is the id of that subject's key."""
        try:
            return self._keys.key_id_of(subject) == key_id
        except Refused:
            return False

    def destroy(self, subject: str) -> None:
        """Destroy the key of a subject for good."""
        self._keys.destroy(subject)

    def key(self, key_id: bytes, stream: str) -> BodyKey:
        """Return the key of a stream that is encrypted.

        Raises Refused(`subject_erased`) where it was destroyed, StoreUnavailable(`subject_key_missing`).
        """
        key = self._keys.key(key_id)
        if key is not None:
            return BodyKey(key_id, key)
        if self._keys.is_destroyed(key_id):
            message = f"the subject of the stream {stream!r} was erased, and nothing can be added to it"
            raise Refused("subject_erased", message, stream=stream)
        raise _missing(stream)

    def seal(self, key: BodyKey, data: bytes, salt: bytes, body: bytes, type: str) -> bytes:
        """Return the stored bytes of a body with this associated data."""
        from eventlog.remainders import remainder_of
        from eventlog.stores.subject_keys import seal_body

        remainder = remainder_of(type, body)
        return seal_body(key.key, key.key_id, data, salt, body, remainder, random_bytes(_NONCE))

    def open(self, key_id: bytes, data: bytes, stored: bytes) -> tuple[bytes, bytes] | None:
        """Return salt and plain body of stored bytes; None if the key is not there. Raises LogCorrupt."""
        from eventlog.stores.subject_keys import open_sealed

        key = self._keys.key(key_id)
        return None if key is None else open_sealed(key, data, stored)


def cipher_of(cipher: BodyCipher | None, stream: str) -> BodyCipher:
    """Return the cipher, if there is one. Raises StoreUnavailable(`subject_key_missing`)."""
    if cipher is None:
        raise _missing(stream)
    return cipher


def _missing(stream: str) -> StoreUnavailable:
    message = f"the stream {stream!r} is encrypted under the key of its subject, and that key is not here"
    return StoreUnavailable("subject_key_missing", message, stream=stream)

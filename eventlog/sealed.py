"""The stored bytes of an encrypted body (body kind 1), layout 1.

    offset size field
         0    1 layout          1
         1   16 key_id          which key; it names nobody
        17   12 nonce           of AES-256-GCM
        29   32 content_commit  as in the entry: over salt and plain body
        61    4 remainder_len   u32, big-endian
        65    n remainder       JSON, or nothing: the fields of an engine event that say nothing of anybody
      then      ciphertext      of salt[16] and the plain body, with the 16-byte tag at its end

The associated data of the encryption is `associated_data(…)`, so that a body cannot be moved to another event. All of
these bytes are bound by `stored_hash` of the entry. GCM does not commit to its key, `content_commit` does.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final

import msgspec

from eventlog.entry import prefixed

__all__ = ["SealedBody", "associated_data", "parse_sealed", "stored_hash"]

_LAYOUT: Final = 1
_FIXED: Final = struct.Struct(">B16s12s32sI")
_STORED_LABEL: Final = b"eventlog/stored/v1\0"
_DATA_LABEL: Final = b"eventlog/sealed/v1\0"
_TAG: Final = 16
_SALT: Final = 16


class SealedBody(msgspec.Struct, frozen=True):
    """The fields of the layout."""

    key_id: bytes
    nonce: bytes
    content_commit: bytes
    remainder: bytes
    ciphertext: bytes

    def to_bytes(self) -> bytes:
        """Return the stored bytes. Raises struct.error for a field of another size."""
        fixed = _FIXED.pack(_LAYOUT, self.key_id, self.nonce, self.content_commit, len(self.remainder))
        return fixed + self.remainder + self.ciphertext


def parse_sealed(stored: bytes) -> SealedBody:
    """Return what `to_bytes` has spelled. Raises ValueError."""
    if len(stored) < _FIXED.size:
        raise ValueError("the sealed body is cut short")
    layout, key_id, nonce, commit, size = _FIXED.unpack_from(stored)
    end = _FIXED.size + size
    if layout != _LAYOUT or len(stored) < end + _SALT + _TAG:
        raise ValueError("not a sealed body of layout 1")
    return SealedBody(key_id, nonce, commit, stored[_FIXED.size : end], stored[end:])


def stored_hash(stored: bytes) -> bytes:
    """Return the `stored_hash` of an entry whose body is encrypted or external."""
    return sha256(_STORED_LABEL + stored).digest()


def associated_data(log_id: bytes, position: int, version: int, stream: str, type: str) -> bytes:
    """Return what an encrypted body is bound to: its place in the log, and what kind of event it is."""
    return _DATA_LABEL + log_id + struct.pack(">QQ", position, version) + prefixed(stream) + prefixed(type)

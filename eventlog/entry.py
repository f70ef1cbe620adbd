"""The entry: the byte string that is hashed for each event, and its hashes. Layout version 1.

All integers are big-endian. The fixed part has 193 bytes:

    offset size field
         0   18 label           ASCII "eventlog/entry/v1" and 0x00
        18   16 log_id          random at creation of the log, new after every restore
        34    8 position        u64, 1-based place in the whole log
        42    8 version         u64, 1-based place in the stream
        50    8 recorded_at_us  i64, microseconds UTC; the writer's claim
        58    2 schema_version  u16, of the event type
        60   16 event_id        never all zero
        76   16 causation_id    the event_id of the cause, or 16 zero bytes
        92    1 body_kind       u8: 0 plain, 1 encrypted, 2 external
        93    4 body_len        u32, length of the stored bytes
        97   32 content_commit  SHA-256("eventlog/content/v1" 0x00, salt, plain body)
       129   32 stored_hash     kind 0: zero; else SHA-256("eventlog/stored/v1" 0x00, stored bytes)
       161   32 prev_in_stream  leaf of the stream's previous event; zero at version 1
       193      stream, type, actor, correlation_id: each a u16 length and UTF-8

    leaf = SHA-256(0x00, entry)

There are no optional fields and nothing follows the last one, so an entry has exactly one spelling. The label keeps it
from being read as anything else; the leading 0x00 separates leaves from the inner nodes (0x01) of an RFC 6962 tree. The
body is bound through a salted commitment, so that body and salt can be erased later while every leaf stays valid.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final

import msgspec

__all__ = [
    "BODY_PLAIN",
    "FIXED_SIZE",
    "NO_HASH",
    "NO_ID",
    "SALT_SIZE",
    "Entry",
    "content_commitment",
    "encode",
    "leaf_hash",
    "parse",
    "prefixed",
    "seal",
]

LABEL: Final = b"eventlog/entry/v1\0"
CONTENT_LABEL: Final = b"eventlog/content/v1\0"
FIXED_SIZE: Final = 193
SALT_SIZE: Final = 16
NO_HASH: Final = bytes(32)
NO_ID: Final = bytes(16)
BODY_PLAIN: Final = 0
BODY_ENCRYPTED: Final = 1
BODY_EXTERNAL: Final = 2

_FIXED: Final = struct.Struct(">16sQQqH16s16sBI32s32s32s")
_LENGTH: Final = struct.Struct(">H")
_LEAF_LABEL: Final = b"\0" + LABEL


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """All fields of an entry, in the order of the layout."""

    log_id: bytes
    position: int
    version: int
    recorded_at_us: int
    schema_version: int
    event_id: bytes
    causation_id: bytes
    body_kind: int
    body_len: int
    content_commit: bytes
    stored_hash: bytes
    prev_in_stream: bytes
    stream: str
    type: str
    actor: str
    correlation_id: str


def prefixed(text: str) -> bytes:
    """Return the UTF-8 bytes of `text` behind their u16 length. Raises struct.error above 65,535 bytes."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def content_commitment(salt: bytes, body: bytes) -> bytes:
    """Return the 32-byte commitment to a plain body under a 16-byte salt."""
    return sha256(CONTENT_LABEL + salt + body).digest()


def seal(
    log_id: bytes,
    position: int,
    version: int,
    recorded_at_us: int,
    schema_version: int,
    event_id: bytes,
    causation_id: bytes,
    salt: bytes,
    body: bytes,
    prev_in_stream: bytes,
    texts: bytes,
) -> bytes:
    """Return the leaf of an event with a plain body: the one hash that is stored with it.

    `texts` is the concatenation of `prefixed` stream, type, actor and correlation_id. Positional, and the same as
    `leaf_hash(encode(Entry(…)))` in one step, because every append and every verified read passes here.
    """
    commit = sha256(CONTENT_LABEL + salt + body).digest()
    fixed = _FIXED.pack(
        log_id,
        position,
        version,
        recorded_at_us,
        schema_version,
        event_id,
        causation_id,
        BODY_PLAIN,
        len(body),
        commit,
        NO_HASH,
        prev_in_stream,
    )
    return sha256(_LEAF_LABEL + fixed + texts).digest()


def encode(entry: Entry) -> bytes:
    """Return the bytes of `entry`. Raises struct.error if a number does not fit, ValueError for what no entry holds."""
    _check(entry)
    fixed = _FIXED.pack(
        entry.log_id,
        entry.position,
        entry.version,
        entry.recorded_at_us,
        entry.schema_version,
        entry.event_id,
        entry.causation_id,
        entry.body_kind,
        entry.body_len,
        entry.content_commit,
        entry.stored_hash,
        entry.prev_in_stream,
    )
    texts = (entry.stream, entry.type, entry.actor, entry.correlation_id)
    return LABEL + fixed + b"".join(map(prefixed, texts))


def leaf_hash(entry: bytes) -> bytes:
    """Return the RFC 6962 leaf hash of an encoded entry."""
    return sha256(b"\0" + entry).digest()


def parse(data: bytes) -> Entry:
    """Return the entry whose bytes are `data`; the inverse of `encode`.

    Raises ValueError unless encoding the result gives exactly `data` again, and for what no entry holds.
    """
    if len(data) < FIXED_SIZE or not data.startswith(LABEL):
        raise ValueError("not an entry of layout version 1")
    fields = _FIXED.unpack_from(data, len(LABEL))
    texts, rest = _texts(data[FIXED_SIZE:])
    if rest:
        raise ValueError(f"{len(rest)} bytes follow the last field")
    entry = Entry(**dict(zip(Entry.__struct_fields__, (*fields, *texts), strict=True)))
    _check(entry)
    return entry


def _check(entry: Entry) -> None:
    ids, hashes = (entry.log_id, entry.event_id, entry.causation_id), (entry.content_commit, entry.stored_hash)
    if any(len(each) != 16 for each in ids) or any(len(each) != 32 for each in (*hashes, entry.prev_in_stream)):
        raise ValueError("an id has 16 bytes and a hash has 32")
    if entry.event_id == NO_ID or entry.body_kind not in (BODY_PLAIN, BODY_ENCRYPTED, BODY_EXTERNAL):
        raise ValueError("an entry has an event id, and a body that is plain, encrypted or external")


def _texts(data: bytes) -> tuple[list[str], bytes]:
    texts = []
    for _ in range(4):
        if len(data) < 2:
            raise ValueError("the entry is cut short")
        end = 2 + _LENGTH.unpack_from(data)[0]
        if len(data) < end:
            raise ValueError("the entry is cut short")
        texts.append(data[2:end].decode())
        data = data[end:]
    return texts, data

"""A line of a transcript: one event of a stream as JSON text, with a newline behind it.

    {"position":12,"stream":"run:run-1","version":3,"type":"approval_recorded","schema_version":1,
     "recorded_at":"2026-11-30T02:15:47.000001Z","recorded_at_us":1796004947000001,"actor":"ann",
     "event_id":"0193…","correlation_id":null,"causation_id":null,"leaf":"9f86…","data":{…},"sum":"5b1e…"}

One line, without the breaks shown here. Positions and versions are integers from 1 and stand as in the log; the n-th
line of a transcript has version n. `recorded_at` is UTC with six digits, `recorded_at_us` the same in microseconds. Ids
and `leaf` are hex; an id that is not there is null. `stored_type` stands behind `type` where the event was stored under
another name. `data` is what the program that wrote the line reads the event as, old shapes brought up to date, as exact
JSON: integers of any size, text with every character.

`sum` is the SHA-256 of the line's bytes in front of `,"sum"`, in hex. It says whether somebody has edited the line,
also after a program has learned another shape of the event and would write `data` differently today. It proves nothing
against somebody who makes a new one: for that there are the leaves, in the log.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

from eventlog.log import RecordedEvent
from eventlog.times import time_text

__all__ = ["Line", "line_of", "read_line"]

_SUM: Final = b',"sum":"'
_TAIL_BYTES: Final = len(_SUM) + 64 + len(b'"}')
_encode: Final = msgspec.json.Encoder().encode


class Line(NamedTuple):
    """A line and what tells its event from any other. `text` ends in a newline, and is empty where it is not needed."""

    stream: str
    version: int
    position: int
    event_id: str
    leaf: str
    text: bytes = b""

    @property
    def event(self) -> tuple[str, int, int, str, str]:
        """Which event this is, whatever the line says of it."""
        return self[:5]


class _Head(msgspec.Struct, frozen=True, gc=False):
    stream: str
    version: int
    position: int
    event_id: str
    leaf: str


_decode: Final = msgspec.json.Decoder(_Head).decode


def line_of(event: RecordedEvent) -> Line:
    """Return the line of an event."""
    text = _encode(
        {
            "position": event.position,
            "stream": event.stream,
            "version": event.version,
            "type": event.type,
            **({} if event.stored_type is None else {"stored_type": event.stored_type}),
            "schema_version": event.schema_version,
            "recorded_at": time_text(event.recorded_at_us),
            "recorded_at_us": event.recorded_at_us,
            "actor": event.actor,
            "event_id": event.event_id.hex(),
            "correlation_id": event.correlation_id,
            "causation_id": None if event.causation_id is None else event.causation_id.hex(),
            "leaf": event.leaf.hex(),
            "data": event.data,
        }
    )[:-1]
    text = b'%b%b%b"}\n' % (text, _SUM, hashlib.sha256(text).hexdigest().encode())
    return Line(event.stream, event.version, event.position, event.event_id.hex(), event.leaf.hex(), text)


def read_line(text: bytes) -> Line | None:
    """Return the line that this text is, without its newline; None if it is none, or not as it was written."""
    body, tail = text[:-_TAIL_BYTES], text[-_TAIL_BYTES:]
    if tail != b'%b%b"}' % (_SUM, hashlib.sha256(body).hexdigest().encode()):
        return None
    try:
        head = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Line(head.stream, head.version, head.position, head.event_id, head.leaf)

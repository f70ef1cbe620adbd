"""What is told of an event outside of its log, in the same words in every format.

    position               place in the log, from 1
    stream, version        its stream, and the place there, from 1
    type, schema_version   the event's type and the version of the shape of `data`, as the exporting program has them
    event_id               32 hex digits
    recorded_at            ISO 8601, UTC, microseconds; none for a time that no calendar holds
    recorded_at_us         the same as microseconds since 1970: what the log holds
    actor                  who appended it
    correlation_id         a text, or none
    causation_id           the event_id of its cause, 32 hex digits, or none
    leaf                   the hash of the event in its log, 64 hex digits
    log_id                 the log that the leaf was made in, 32 hex digits; another one behind a restore
    stored_type, stored_schema_version
                           what stands in the log, only where that differs from `type` and `schema_version`
    redacted               why `data` is not what was appended, only where that is so: erased, subject_erased (the key
                           of its subject is destroyed) or key_missing (the exporting program was not given its key)
    data                   JSON

`data` is what a reader of the log gets: old shapes have passed their upcasters. Of a type that the exporting program
does not know, or has retired, it is the stored text, byte for byte. Integers of any size and NUL characters are what
they were. Of what is redacted it is what remains, or null.

Artifacts, the large values that some events name by their digest, are not part of an event and not exported.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from eventlog.codec import Registry
from eventlog.errors import InvalidInput
from eventlog.log import RecordedEvent, Redacted, Retired
from eventlog.times import time_text

__all__ = ["FIELDS", "OPTIONAL_FIELDS", "ExportedEvent", "exported"]

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode


class ExportedEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event as it is given out. `data` is one JSON text without line breaks; the docstring above has the rest."""

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    event_id: str
    recorded_at: str | None
    recorded_at_us: int
    actor: str
    correlation_id: str | None
    causation_id: str | None
    leaf: str
    log_id: str
    stored_type: str | UnsetType = UNSET
    stored_schema_version: int | UnsetType = UNSET
    redacted: str | UnsetType = UNSET
    data: Raw


FIELDS: Final = ExportedEvent.__struct_fields__
"""The names of all fields, in the order in which every format has them."""

OPTIONAL_FIELDS: Final = frozenset({"stored_type", "stored_schema_version", "redacted"})
"""Those that an event has only where the log holds something else, or not all."""


def exported(event: RecordedEvent, *, log_id: bytes, registry: Registry) -> ExportedEvent:
    """Return the event as it is given out. `registry` is the one that it was read with."""
    schema_version = _schema_version(event, registry)
    return ExportedEvent(
        position=event.position,
        stream=event.stream,
        version=event.version,
        type=event.type,
        schema_version=schema_version,
        event_id=event.event_id.hex(),
        recorded_at=_time(event.recorded_at_us),
        recorded_at_us=event.recorded_at_us,
        actor=event.actor,
        correlation_id=event.correlation_id,
        causation_id=None if event.causation_id is None else event.causation_id.hex(),
        leaf=event.leaf.hex(),
        log_id=log_id.hex(),
        stored_type=UNSET if event.stored_type is None else event.stored_type,
        stored_schema_version=UNSET if event.schema_version == schema_version else event.schema_version,
        redacted=UNSET if event.redacted is None else event.redacted,
        data=Raw(_on_one_line(_data(event))),
    )


def _schema_version(event: RecordedEvent, registry: Registry) -> int:
    """Return the version of the shape that `data` has: today's for a registered Struct, else the stored one."""
    if not isinstance(event.data, msgspec.Struct):
        return event.schema_version
    try:
        return registry.type_of(type(event.data))[1]
    except InvalidInput:
        return event.schema_version


def _data(event: RecordedEvent) -> bytes:
    """Return the data as JSON: the stored text if it says just that, and the same text in every process if it does not.

    Members of sets come in another order in each process, so they and the keys of mappings are sorted then.
    """
    if isinstance(event.data, Redacted):
        return b"null"
    if not event.is_known or isinstance(event.data, Retired):
        return event.body
    text = _encode(event.data)
    return text if text == event.body else _sorted(event.data, text)


def _sorted(data: Any, text: bytes) -> bytes:
    try:
        return _encode_sorted(data)
    except TypeError:  # keys that are no texts are sorted by nobody
        return text


def _on_one_line(text: bytes) -> bytes:
    """Return JSON without line breaks: strings have none, but a field of raw JSON may be spread over several lines."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _time(at_us: int) -> str | None:
    text = time_text(at_us)
    return text if text.endswith("Z") else None

"""CloudEvents 1.0 in the JSON format, one structured event a line (JSON Lines), UTF-8.

    specversion        "1.0"
    id                 event_id, 32 hex digits
    source             "urn:uuid:" and the log_id. With `id` it names the event, in every copy of the log
    type, subject      the event's type, and its stream
    time               recorded_at; left out for a time that no calendar holds
    datacontenttype    "application/json"
    data               JSON

Extension attributes, whose names may hold no underscore. CloudEvents' own integers have 32 bits, so what may become
larger is a text of decimal digits:

    position           place in the log
    sequence           the same as 19 digits, so that texts are in order (the "sequence" extension of CloudEvents)
    streamversion      place in the stream
    schemaversion      of the shape of `data`, an integer
    recordedatus       microseconds since 1970
    actor              who appended it
    correlationid, causationid
                       left out where there is none (the "correlation" extension of CloudEvents)
    leaf               64 hex digits
    storedtype, storedschemaversion
                       only where the log holds another name or version
    redacted           only where `data` is not what was appended: erased, subject_erased or key_missing

There is no `dataschema`: nothing could be fetched from it. A text with a code point that is no character (U+FFFE and
the like) may not stand in an attribute; such an event is refused here, the other formats take it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from eventlog.audit.export.exported_event import ExportedEvent
from eventlog.errors import InvalidInput

__all__ = ["cloud_event_line"]

_encode: Final = msgspec.json.Encoder().encode
_SEQUENCE_DIGITS: Final = 19


def cloud_event_line(event: ExportedEvent) -> bytes:
    """Return the event as one line. Raises InvalidInput(`invalid_text`) for a name that no attribute may hold."""
    attributes = {
        "specversion": "1.0",
        "id": event.event_id,
        "source": _source(event.log_id),
        "type": event.type,
        "subject": event.stream,
        "time": event.recorded_at,
        "datacontenttype": "application/json",
        "position": str(event.position),
        "sequence": f"{event.position:0{_SEQUENCE_DIGITS}}",
        "streamversion": str(event.version),
        "schemaversion": event.schema_version,
        "recordedatus": str(event.recorded_at_us),
        "actor": event.actor,
        "correlationid": event.correlation_id,
        "causationid": event.causation_id,
        "leaf": event.leaf,
        "storedtype": event.stored_type,
        "storedschemaversion": event.stored_schema_version,
        "redacted": event.redacted,
    }
    given = {name: value for name, value in attributes.items() if value is not None and value is not UNSET}
    _check(given, event.position)
    return _encode({**given, "data": event.data}) + b"\n"


def _source(log_id: str) -> str:
    parts = (log_id[:8], log_id[8:12], log_id[12:16], log_id[16:20], log_id[20:])
    return "urn:uuid:" + "-".join(parts)


def _check(attributes: dict[str, Any], position: int) -> None:
    for name, value in attributes.items():
        if type(value) is str and not value.isascii() and any(map(_is_no_character, value)):
            raise InvalidInput(
                "invalid_text",
                f"position {position}: {name} {value!a:.80} holds a code point that is no character, which no "
                "CloudEvent may hold; export it in another format",
                position=position,
            )


def _is_no_character(character: str) -> bool:
    number = ord(character)
    return 0xFDD0 <= number <= 0xFDEF or number & 0xFFFE == 0xFFFE

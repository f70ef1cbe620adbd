"""A repeated append: the same ids again. Stored whole, it is answered as the first time; all else is a conflict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from eventlog.errors import Misuse
from eventlog.log import AppendResult
from eventlog.stores.requests import NO_BODY, EncodedEvent, Part

__all__ = ["Place", "original_results"]


class Place(Protocol):
    """Where a stored event is, and what it holds."""

    @property
    def position(self) -> int: ...
    @property
    def stream(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def schema_version(self) -> int: ...
    @property
    def body(self) -> bytes | None: ...
    @property
    def leaf(self) -> bytes: ...
    @property
    def recorded_at_us(self) -> int: ...


def original_results(parts: Sequence[Part], found: Sequence[Sequence[Place | None]]) -> list[AppendResult]:
    """Return the original results of a request of whose events some are stored; `found` has their places in its order.

    Raises Misuse(`event_id_conflict`) unless all are stored, with the same content, one behind the other.
    """
    results = []
    expected: int | None = None
    for part, places in zip(parts, found, strict=True):
        originals = []
        for event, place in zip(part.events, places, strict=True):
            if (
                place is None
                or not _is_same(event, part.stream, place)
                or place.position != (expected or place.position)
            ):
                raise _conflict(event.event_id, place)
            expected = place.position + 1
            originals.append(place)
        results.append(_result(part.stream, originals[0], originals[-1]))
    return results


def _result(stream: str, first: Place, last: Place) -> AppendResult:
    return AppendResult(
        stream=stream,
        version=last.version,
        first_position=first.position,
        last_position=last.position,
        leaf=last.leaf,
        recorded_at_us=last.recorded_at_us,
        deduplicated=True,
    )


def _is_same(event: EncodedEvent, stream: str, place: Place) -> bool:
    has_same_body = NO_BODY in (event.body, place.body) or event.body == place.body
    return has_same_body and (place.stream, place.type, place.schema_version) == (
        stream,
        event.type,
        event.schema_version,
    )


def _conflict(event_id: bytes, place: Place | None) -> Misuse:
    where = "is not stored, though others of the call are" if place is None else f"is at position {place.position}"
    return Misuse("event_id_conflict", f"the event id {event_id.hex()} {where}", event_id=event_id.hex())

"""What a fold says of an event that this program does not know."""

from __future__ import annotations

from eventlog.codec.declarations import REGISTRY
from eventlog.errors import EventTypeUnknown
from eventlog.log import RecordedEvent

__all__ = ["unknown_type"]


def unknown_type(event: RecordedEvent) -> EventTypeUnknown:
    """Return the error of a fold of a run's events that met `event`: what was found, and what is known here of it.

    The types of a run's events are the engine's own, which every registry knows alike.
    """
    known = REGISTRY.known_version(event.type)
    return EventTypeUnknown(event.stream, event.version, event.type, found=event.schema_version, known=known)

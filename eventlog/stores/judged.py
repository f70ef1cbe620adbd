"""What `verify` is given of an event that it judges by more than its hash."""

from __future__ import annotations

from msgspec.structs import replace

from eventlog.events import JUDGED_EVENTS, ActionExecuted, ActionRecovered
from eventlog.log import RecordedEvent

__all__ = ["to_judge"]


def to_judge(event: RecordedEvent) -> RecordedEvent | None:
    """Return the event if it is judged, None if it is not: results, which may be large, are left out of it."""
    if event.type not in JUDGED_EVENTS:
        return None
    match event.data:
        case ActionExecuted() as data:
            return replace(event, body=b"", data=replace(data, result=None))
        case ActionRecovered() as data:
            return replace(event, body=b"", data=replace(data, result=None, evidence=None))
        case _:
            return event

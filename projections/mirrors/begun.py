"""What an append is about, seen from in front of it: which streams, which events, and whether it may be refused.

A call may hold anything, for it has not been checked yet. What is no append at all is left to the log to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from eventlog.events import RUN_EVENTS
from eventlog.log import Append, NewEvent
from eventlog.plain import is_utf8
from projections.mirrors.evidence import MAX_IDS, Begun

__all__ = ["TELLING", "begun_in", "tells_of_the_past"]

TELLING: Final = frozenset(
    {
        "action_conflict",
        "action_executed",
        "action_failed",
        "action_recovered",
        "child_finished",
        "compensation_executed",
        "compensation_failed",
        "outcome_reconciled",
        "outcome_unknown",
        "result_rejected",
        "signal_received",
        "step_completed",
        "step_failed",
        "timer_fired",
    }
)
"""Events that tell of what has happened already, whether they are stored or not."""

_TELLING_CLASSES: Final = tuple(RUN_EVENTS[name] for name in TELLING)


def begun_in(appends: Any, wants: Callable[[str], bool]) -> list[Begun]:
    """Return the mirrored part of a call."""
    return [
        Begun(
            stream=append.stream,
            expect=str(append.expect),
            event_ids=[
                event.event_id.hex()
                for event in events[:MAX_IDS]
                if isinstance(event, NewEvent) and type(event.event_id) is bytes
            ],
            events=len(events),
        )
        for append, events in _parts(appends)
        if type(append.stream) is str and is_utf8(append.stream) and wants(append.stream)
    ]


def tells_of_the_past(appends: Any) -> bool:
    """Say whether any of the events tells of what has happened already."""
    return any(
        event.type in TELLING if isinstance(event, NewEvent) else isinstance(event, _TELLING_CLASSES)
        for _, events in _parts(appends)
        for event in events
    )


def _parts(appends: Any) -> Iterator[tuple[Any, list[Any]]]:
    for append in appends if isinstance(appends, list | tuple) else ():
        if isinstance(append, Append):
            yield append, list(append.events) if isinstance(append.events, list | tuple) else []

"""Plain appends, and what their callers were told of them: what must be in the log, must not, and may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from eventlog.log import AppendResult, RecordedEvent

__all__ = ["Note", "contradictions"]


@dataclass(slots=True)
class Note:
    """One event that somebody appends, perhaps several times."""

    stream: str
    event_id: bytes
    in_doubt: int = 0
    """How many appends ended as unknown, or without an answer."""
    places: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Version, position and hash, each time that it was acknowledged."""

    def acknowledge(self, result: AppendResult) -> None:
        """Remember an acknowledgement."""
        self.places.append((result.version, result.last_position, result.leaf))


def contradictions(notes: Sequence[Note], events: Sequence[RecordedEvent]) -> Iterator[tuple[str, str]]:
    """Yield what the log contradicts of that which callers were told: the invariant, and what."""
    found: dict[bytes, list[RecordedEvent]] = {}
    for event in events:
        found.setdefault(event.event_id, []).append(event)
    for note in notes:
        stored = found.get(note.event_id, [])
        name = f"the note {note.event_id.hex()} in {note.stream!r}"
        if len(stored) > 1:
            yield "I4", f"{name} is stored {len(stored)} times"
        if note.places:
            places = [(event.version, event.position, event.leaf) for event in stored]
            if set(note.places) != set(places):
                yield "I1", f"{name} was acknowledged at {note.places}, and is at {places}"
        elif stored and not note.in_doubt:
            yield "I3", f"{name} was refused, and is stored at position {stored[0].position}"

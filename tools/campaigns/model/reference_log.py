"""A log as simple as it can be: what every store has to answer, in lists.

It shares with the engine the values that a caller hands over, and nothing that decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from eventlog import Append, Expect, NewEvent

__all__ = ["Answer", "Kept", "Place", "ReferenceLog", "Refusal", "tree_root"]


class Kept(NamedTuple):
    """An event of the log."""

    position: int
    stream: str
    version: int
    type: str
    data: Any
    event_id: bytes
    correlation_id: str | None


class Place(NamedTuple):
    """What an append to one stream is answered."""

    stream: str
    version: int
    first: int
    last: int
    is_repeat: bool


class Refusal(NamedTuple):
    """Why an append was refused, and at which version the stream is, if it is because of that."""

    code: str
    actual: int | None = None


Answer = list[Place] | Refusal
Checks = Sequence[tuple[str, Expect]]


class ReferenceLog:
    """Streams, versions, positions, expectations, and ids that are stored once."""

    def __init__(self) -> None:
        self.events: Final[list[Kept]] = []
        self.by_id: Final[dict[bytes, Kept]] = {}
        self.versions: Final[dict[str, int]] = {}
        self.snapshots: Final[dict[str, tuple[int, bytes]]] = {}

    def append(self, appends: Sequence[Append], checks: Checks = (), *, reserved: bool = False) -> Answer:
        """Append all or nothing; `reserved` streams are the engine's own."""
        new = [(append.stream, event) for append in appends for event in append.events]
        answer = self._refusal(appends, new, reserved) or self._repeated(appends, new)
        return answer or self.conflict(appends, checks) or [self._store(append) for append in appends]

    def version(self, stream: str) -> int:
        return self.versions.get(stream, 0)

    def read(self, stream: str, after: int = 0, limit: int | None = None) -> list[Kept]:
        return [event for event in self.events if event.stream == stream and event.version > after][:limit]

    def read_back(self, stream: str, before: int | None = None, limit: int | None = None) -> list[Kept]:
        return [event for event in self.read(stream) if before is None or event.version < before][::-1][:limit]

    def read_all(
        self,
        after: int = 0,
        limit: int | None = None,
        types: Iterable[str] | None = None,
        prefix: str | None = None,
        streams: Iterable[str] | None = None,
    ) -> list[Kept]:
        wanted = [
            event
            for event in self.events[after:]
            if (types is None or event.type in types)
            and event.stream.startswith(prefix or "")
            and (streams is None or event.stream in streams)
        ]
        return wanted[:limit]

    def save_snapshot(self, stream: str, version: int, state: bytes) -> None:
        if version >= self.snapshots.get(stream, (0, b""))[0]:
            self.snapshots[stream] = (version, state)

    def _refusal(self, appends: Sequence[Append], new: Sequence[tuple[str, NewEvent]], reserved: bool) -> Answer | None:
        if not all(append.events for append in appends):
            return Refusal("invalid_argument")
        if not reserved and any(append.stream.startswith(("run:", "$")) for append in appends):
            return Refusal("reserved_stream")
        if len({append.stream for append in appends}) < len(appends):
            return Refusal("invalid_argument")
        if len({event.event_id for _, event in new}) < len(new):
            return Refusal("event_id_conflict")
        return None

    def _repeated(self, appends: Sequence[Append], new: Sequence[tuple[str, NewEvent]]) -> Answer | None:
        found = [self.by_id.get(event.event_id) for _, event in new]
        if not any(found):
            return None
        first = found[0].position if found[0] is not None else 0
        for number, (kept, (stream, event)) in enumerate(zip(found, new, strict=True)):
            if kept is None or kept.position != first + number:
                return Refusal("event_id_conflict")
            if (kept.stream, kept.type, kept.data) != (stream, event.type, event.data):
                return Refusal("event_id_conflict")
        places = []
        for append in appends:
            kept_events = [self.by_id[event.event_id] for event in append.events]
            one, last = kept_events[0], kept_events[-1]
            places.append(Place(append.stream, last.version, one.position, last.position, True))
        return places

    def conflict(self, appends: Sequence[Append], checks: Checks) -> Answer | None:
        """Return the refusal if a stream is not where it is expected."""
        for stream, expect in (*((append.stream, append.expect) for append in appends), *checks):
            actual = self.version(stream)
            is_there: Mapping[str, bool] = {
                "any": True,
                "no_stream": actual == 0,
                "exists": actual > 0,
                "at": actual == expect.version,
            }
            if not is_there[expect.kind]:
                return Refusal("version_conflict", actual)
        return None

    def _store(self, append: Append) -> Place:
        first = len(self.events) + 1
        for event in append.events:
            version = self.versions[append.stream] = self.version(append.stream) + 1
            position = len(self.events) + 1
            fields = (append.stream, version, event.type, event.data, event.event_id, event.correlation_id)
            kept = self.by_id[event.event_id] = Kept(position, *fields)
            self.events.append(kept)
        return Place(append.stream, self.version(append.stream), first, len(self.events), False)


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the Merkle tree hash of RFC 6962, section 2.1, word for word."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + tree_root(leaves[:half]) + tree_root(leaves[half:])).digest()

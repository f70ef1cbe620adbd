"""Is there an order of all calls, one after the other, that explains what everybody was told? In O(n log n).

In general that question (is the history linearisable?) is hard. A log makes it easy, for it says itself in which order
the appends took place; what is left is to look where each call can have been in that order:

* an append that was stored lies where its events are, so before it the log ended at `first - 1`, and at `last` after;
* a read to the end was made while the log ended where the read did;
* a read of a stream, and a conflict that names a version, while the stream was at that version: a range of ends;
* none of them in the middle of an append.

An order that keeps real time exists exactly if, going through all calls and answers by the clock, each call can be
placed at or behind everything that anybody had been told before it was called. Placing each as early as that allows
leaves the most room for the others, so one pass decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tools.campaigns.histories.operations import Appending, Conflict, Operation, Reading, Stored, StreamReading

__all__ = ["Fault", "check"]


class Fault(NamedTuple):
    """An invariant that the history contradicts, and how."""

    invariant: str
    what: str


class _Place(NamedTuple):
    """Where a call can have been: while the log ended between `first` and `last`; `after` it, if it moved the end."""

    operation: Operation
    first: int
    last: int
    after: int | None = None


def check(operations: Sequence[Operation], stored: Sequence[Stored]) -> list[Fault]:
    """Return what in a history is impossible for a log that ended as `stored`; nothing if it is linearisable."""
    log = _Log(stored, operations)
    faults = [*log.faults(), *_strangers(operations, log)]
    for operation in operations:
        faults += _faults_of(operation, log)
    if not faults:  # the places of events that are not where they should be say nothing
        faults += _out_of_order([place for each in operations if (place := _place(each, log)) is not None])
    return faults


class _Log:
    """The log as it was when all was over."""

    def __init__(self, stored: Sequence[Stored], operations: Sequence[Operation]) -> None:
        self.stored: Final = stored
        self.by_id: Final = {event.event_id: event for event in stored}
        self.inside: Final = dict(self._ends_inside(operations))
        self.streams: Final[dict[str, list[Stored]]] = {}
        for event in stored:
            self.streams.setdefault(event.stream, []).append(event)

    @property
    def end(self) -> int:
        return len(self.stored)

    def faults(self) -> Iterator[Fault]:
        """Find what no log may look like, whatever anybody did."""
        for number, event in enumerate(self.stored, start=1):
            if event.position != number:
                yield Fault("I2", f"event {number} of the log is at position {event.position}")
        for stream, events in self.streams.items():
            if [event.version for event in events] != list(range(1, len(events) + 1)):
                yield Fault("I2", f"the versions of {stream} are not 1, 2, 3, … in order of position")
        for event_id, count in Counter(event.event_id for event in self.stored).items():
            if count > 1:
                yield Fault("I4", f"event {event_id} is stored {count} times")

    def _ends_inside(self, operations: Sequence[Operation]) -> Iterator[tuple[int, tuple[int, int]]]:
        """Give each end that the log had only in the middle of an append, and the ends before and behind that."""
        for operation in operations:
            ids = operation.parts[0].event_ids if isinstance(operation, Appending) else ()
            if ids and ids[0] in self.by_id and isinstance(operation, Appending):
                before = self.by_id[ids[0]].position - 1
                behind = before + _size(operation)
                yield from ((end, (before, behind)) for end in range(before + 1, behind))

    def range_of(self, stream: str, version: int) -> tuple[int, int] | None:
        """Return the ends of the log between which the stream was at `version`; None if no one can have seen it."""
        events = self.streams.get(stream, [])
        if not 0 <= version <= len(events):
            return None
        first = events[version - 1].position if version else 0
        last = events[version].position - 1 if version < len(events) else self.end
        first, last = self.inside.get(first, (0, first))[1], self.inside.get(last, (last, 0))[0]
        return (first, last) if first <= last else None


# ── each call for itself ──────────────────────────────────────────────────────────────────────────────────────────────


def _faults_of(operation: Operation, log: _Log) -> Iterator[Fault]:
    match operation:
        case Appending(outcome="stored"):
            yield from _faults_of_stored(operation, log)
        case Appending(outcome="refused", is_repeat=True):
            return  # that this call wrote nothing says nothing of the one before it
        case Appending(outcome="refused"):
            yield from _appeared(operation, [each for part in operation.parts for each in part.event_ids], log)
        case Appending():
            yield from _faults_of_unknown(operation, log)
        case Conflict():
            yield from _appeared(operation, operation.event_ids, log)
            if log.range_of(operation.stream, operation.actual) is None:
                yield Fault("I8", f"{_who(operation)} was told that {operation.stream} is at {operation.actual}")
        case Reading():
            seen = [event.event_id for event in log.stored[operation.after :][: len(operation.event_ids)]]
            if operation.after + len(operation.event_ids) in log.inside:
                yield Fault("I2", f"{_who(operation)} read half of an append")
            elif seen != list(operation.event_ids):
                yield Fault("I1", f"{_who(operation)} read behind {operation.after} what the log has otherwise")
        case StreamReading():
            yield from _faults_of_stream_reading(operation, log)


def _faults_of_stored(append: Appending, log: _Log) -> Iterator[Fault]:
    next_position = append.parts[0].first_position
    for part in append.parts:
        count = len(part.event_ids)
        first_version = part.version - count + 1
        if part.expected is not None and not append.is_repeat and first_version != part.expected + 1:
            what = f"expected {part.stream} at {part.expected} and was stored behind {first_version - 1}"
            yield Fault("I2", f"{_who(append)} {what}")
        if part.first_position != next_position:
            yield Fault("I2", f"{_who(append)} was told of positions that are not one behind the other")
        next_position += count
        for number, event_id in enumerate(part.event_ids):
            told = Stored(part.first_position + number, part.stream, first_version + number, event_id)
            event = log.by_id.get(event_id)
            if event is None:
                yield Fault("I1", f"lost: {_who(append)} was told that {event_id} is stored")
            elif event != told:
                yield Fault("I1", f"moved: {_who(append)} was told of {told}, and the log has {event}")


def _faults_of_unknown(append: Appending, log: _Log) -> Iterator[Fault]:
    events = [log.by_id.get(event_id) for part in append.parts for event_id in part.event_ids]
    found = [event for event in events if event is not None]
    if not found:
        return
    if len(found) < len(events):
        yield Fault("I4", f"half there: {len(found)} of {len(events)} events of {_who(append)}")
    elif any(right.position != left.position + 1 for left, right in pairwise(found)):
        yield Fault("I4", f"torn apart: the events of {_who(append)} are not one behind the other")


def _appeared(operation: Operation, event_ids: Iterable[str], log: _Log) -> Iterator[Fault]:
    for event_id in event_ids:
        if event_id in log.by_id:
            yield Fault("I3", f"{_who(operation)} was told that {event_id} was refused, and it is stored")


def _faults_of_stream_reading(read: StreamReading, log: _Log) -> Iterator[Fault]:
    events = log.streams.get(read.stream, [])
    if log.range_of(read.stream, read.version) is None or read.version != read.after + len(read.event_ids):
        yield Fault("I1", f"{_who(read)} read {read.stream} at {read.version}, which it was not")
    elif [event.event_id for event in events[read.after : read.version]] != list(read.event_ids):
        yield Fault("I1", f"{_who(read)} read of {read.stream} what the log has otherwise")


def _strangers(operations: Sequence[Operation], log: _Log) -> Iterator[Fault]:
    asked = {
        event_id
        for operation in operations
        if isinstance(operation, Appending)
        for part in operation.parts
        for event_id in part.event_ids
    }
    asked.update(each for operation in operations if isinstance(operation, Conflict) for each in operation.event_ids)
    for event_id in log.by_id.keys() - asked:
        yield Fault("I3", f"event {event_id} is stored, and nobody has appended it")


# ── all together ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _place(operation: Operation, log: _Log) -> _Place | None:
    """Return where the call can have been; None if it says nothing of that."""
    match operation:
        case Appending():
            event = log.by_id.get(operation.parts[0].event_ids[0])
            if event is None:
                return None
            last = event.position + _size(operation) - 1
            if operation.is_repeat:  # by then it is there; whichever call stored it
                return _Place(operation, last, log.end) if operation.outcome == "stored" else None
            return _Place(operation, event.position - 1, event.position - 1, last)
        case Reading():
            end = operation.after + len(operation.event_ids)
            return _Place(operation, end, end)
        case Conflict():
            found = log.range_of(operation.stream, operation.actual)
        case StreamReading():
            found = log.range_of(operation.stream, operation.version)
    assert found is not None, "it is a fault by itself, and was looked for before"
    return _Place(operation, *found)


def _out_of_order(places: Sequence[_Place]) -> Iterator[Fault]:
    """Go through calls and answers by the clock; what was told of may not lie behind what is called later."""
    known = 0  # the end of the log that somebody has been told of
    teller: Operation | None = None
    ends: dict[int, int] = {}
    for _, is_answer, number in _moments(places):
        operation, first, last, after = places[number]
        if is_answer:
            if ends[number] > known:
                known, teller = ends[number], operation
            continue
        if known > last:
            told = f"called {_who(operation)} when {_who(teller)} had been told that the log ends at {known}"
            yield Fault("I8" if isinstance(operation, Conflict) else "I1", f"{told}; it knows {last}")
        ends[number] = after if after is not None else max(first, known)


def _moments(places: Sequence[_Place]) -> list[tuple[int, bool, int]]:
    """Return all calls and answers by time, as (time, is it an answer, whose); calls first where times are equal."""
    moments = []
    for number, place in enumerate(places):
        assert place.operation.answered_ns is None or place.operation.called_ns <= place.operation.answered_ns, place
        moments.append((place.operation.called_ns, False, number))
        if place.operation.answered_ns is not None:
            moments.append((place.operation.answered_ns, True, number))
    return sorted(moments)


def _size(append: Appending) -> int:
    return sum(len(part.event_ids) for part in append.parts)


def _who(operation: Operation | None) -> str:
    if operation is None:
        return "nobody"
    return f"{type(operation).__name__.lower()} of {operation.caller} at {operation.called_ns}"

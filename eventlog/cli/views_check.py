"""Compares the view of runs with the log, without writing: what is late is not what differs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeVar

from eventlog.audit.verify import SHOWN, Finding, Verdict
from eventlog.cli.wiring import Opened
from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, Misuse, StoreBusy
from eventlog.events import run_stream
from eventlog.log import Problem, RecordedEvent
from eventlog.stores import SqliteLog
from projections import Difference, Projection, Row, differences

__all__ = ["check_view", "check_view_of_run"]

T = TypeVar("T")

_TRIES: Final = 5
_MAX_DIFFERENCES: Final = 1000


async def check_view(opened: Opened) -> Finding:
    """Compare every row with the log up to the position that the view has reached."""
    try:
        return await _compare_all(opened)
    except Exception as error:
        return _not_compared(error)


async def check_view_of_run(opened: Opened, run_id: str) -> Finding:
    """Compare the row of one run with the run's own events."""
    try:
        return await _compare_one(opened, run_id)
    except Exception as error:
        return _not_compared(error)


class _Until:
    """A log that ends at a position, for `differences`."""

    def __init__(self, log: SqliteLog, position: int) -> None:
        self._log: Final = log
        self._position: Final = position

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> AsyncIterator[RecordedEvent]:
        return self._log.read(stream, after=after, limit=limit)

    def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[RecordedEvent]:
        left = self._position - after
        return self._log.read_all(after=after, limit=left if limit is None else min(limit, left))

    async def read_view(self, function: Callable[..., T], *args: Any) -> T:
        return await self._log.read_view(function, *args)

    async def write_view(self, function: Callable[..., T], *args: Any) -> T:
        return await self._log.write_view(function, *args)


async def _compare_all(opened: Opened) -> Finding:
    for _ in range(_TRIES):
        where = await _where(opened)
        if where is None:
            return Finding(verdict="absent")
        head, behind = where
        found = await differences(_Until(opened.log, head - behind), opened.view, limit=_MAX_DIFFERENCES)
        if found and behind:  # a single row may have been brought up to the head before the others
            ahead = await differences(_Until(opened.log, head), opened.view, limit=_MAX_DIFFERENCES)
            found = [each for each in found if each.key in {other.key for other in ahead}]
        if not found:
            return _late_or_ok(behind)
        if await _where(opened) == where:
            return _finding("differs", map(_described, found), len(found))
    return _finding("unknown", [_problem("log_changes", "the log grows faster than it can be compared")], 1)


async def _compare_one(opened: Opened, run_id: str) -> Finding:
    where = await _where(opened)
    if where is None:
        return Finding(verdict="absent")
    events = [event async for event in opened.log.read(run_stream(run_id))]
    row = await opened.log.read_view(opened.view.row, run_id)
    projection = opened.view.projection
    expected = _fold(projection, events)
    if row == expected:
        return Finding(verdict="ok")
    version = row["version"] if row is not None else 0
    if row == _fold(projection, (event for event in events if event.version <= version)) and where[1] > 0:
        return _late_or_ok(where[1])
    columns = [name for name in projection.columns if (row or {}).get(name) != (expected or {}).get(name)]
    difference = Difference(key=run_id, columns=columns, stored=row, expected=expected)
    return _finding("differs", [_described(difference)], 1)


async def _where(opened: Opened) -> tuple[int, int] | None:
    """Return the head and how far the view is behind it, or None if this log has no such view."""
    health = await opened.log.health()
    behind = health.views_behind.get(f"{opened.view.name}/{opened.view.revision}")
    return None if behind is None else (health.head, behind)


def _fold(projection: Projection, events: Iterable[RecordedEvent]) -> Row | None:
    row: Row | None = None
    for event in events:
        if event.type in projection.event_types:
            row = projection.apply(row, event)
    return row


def _late_or_ok(behind: int) -> Finding:
    if behind == 0:
        return Finding(verdict="ok")
    if behind < 0:
        message = f"the view has seen {-behind} events that the log does not hold any more"
        return _finding("differs", [_problem("view_ahead", message)], 1)
    message = f"the view is {behind} events late, and right up to there; `eventlog runs list` brings it up"
    return _finding("behind", [_problem("view_behind", message)], 1)


def _described(difference: Difference) -> Problem:
    run = repr(difference.key)
    if difference.stored is None:
        message = f"run {run} is in the log, but not in the view"
    elif difference.expected is None:
        message = f"run {run} is in the view, but not in the log"
    else:
        message = f"run {run} differs from its log in {', '.join(difference.columns)}"
    return _problem("view_differs", message, run_stream(difference.key))


def _not_compared(error: Exception) -> Finding:
    """Return the finding for a comparison that failed: because of the log itself, or of the view.

    A table that is not there is the view's: if it is one of the log's, the check of the log says so.
    """
    if isinstance(error, StoreBusy | Misuse):
        raise error
    is_gone = isinstance(error, LogCorrupt) and error.reason == "schema_changed"
    if isinstance(error, LogCorrupt | InvalidInput) and not is_gone:
        return _finding("unknown", [_problem("log_corrupt", f"the log itself is damaged: {error}")], 1)
    reason = error.code if isinstance(error, EventLogError) and not is_gone else "view_unreadable"
    return _finding("differs", [_problem(reason, f"the view cannot be read: {error}")], 1)


def _finding(verdict: Verdict, problems: Iterable[Problem], count: int) -> Finding:
    return Finding(verdict=verdict, problems=tuple(problems)[:SHOWN], count=count)


def _problem(reason: str, message: str, stream: str | None = None) -> Problem:
    return Problem(reason=reason, message=message, stream=stream)

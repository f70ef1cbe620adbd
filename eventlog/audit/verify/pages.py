"""Reads what is to be checked page by page, in constant memory, and goes on behind what is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from eventlog.audit.verify.findings import raise_if_not_damage, unreadable
from eventlog.log import ArtifactName, CheckedPage, EventReader, Problem, RecordedEvent
from eventlog.stores.artifacts import name_artifact
from eventlog.stores.judged import to_judge

__all__ = ["Progress", "pages_of_log", "pages_of_stream"]

_PAGE: Final = 1000
_MAX_UNREADABLE: Final = 100

Progress = Callable[[int, int], None]
"""Called with the position that is checked and the last one."""


async def pages_of_log(
    log: EventReader, head: int, progress: Progress | None, *, after: int = 0
) -> AsyncIterator[CheckedPage]:
    """Give the checked pages behind `after`, up to `head`.

    Around a place that cannot be read at all, pages shrink to single rows.
    """
    limit, unreadable_count = _PAGE, 0
    while after < head:
        try:
            page = await log.check_page(after=after, limit=min(limit, head - after))
        except Exception as error:  # whatever damage does to the reading of a row, it is a finding
            raise_if_not_damage(error)
            if limit > 1:
                limit = max(limit // 10, 1)
                continue
            after, unreadable_count = after + 1, unreadable_count + 1
            yield CheckedPage(position=after, events=0, problems=[unreadable(after, error)])
            if unreadable_count >= _MAX_UNREADABLE:
                yield CheckedPage(position=head, events=0, problems=[_gave_up(after, head)])
                return
        else:
            if page.events == 0:
                return  # the last rows became unreadable or were cut off just now
            yield page
            after, unreadable_count, limit = page.position, 0, min(limit * 10, _PAGE)
        if progress is not None:
            progress(min(after, head), head)


async def pages_of_stream(log: EventReader, stream: str) -> AsyncIterator[CheckedPage]:
    """Give one stream in checked pages: reading stops at the first contradiction, for what follows hangs on it."""
    page = _StreamPage(stream)
    try:
        async for event in log.read(stream):
            page.add(event)
            if page.events == _PAGE:
                yield page.checked()
                page = page.next()
    except Exception as error:
        raise_if_not_damage(error)
        page.problems.append(unreadable(None, error, stream))
    yield page.checked()


class _StreamPage:
    """What is noted of events of one stream while they are read."""

    def __init__(self, stream: str, position: int = 0, last_us: int = 0) -> None:
        self.events = 0
        self.problems: Final[list[Problem]] = []
        self._stream: Final = stream
        self._position = position
        self._last_us = last_us
        self._artifacts: Final[list[ArtifactName]] = []
        self._judged: Final[list[RecordedEvent]] = []
        self._redacted: Final[list[tuple[int, str]]] = []
        self._leaves: Final[list[bytes]] = []

    def add(self, event: RecordedEvent) -> None:
        """Note an event, and whether its place and its time follow those in front of it."""
        self.events += 1
        self._leaves.append(event.leaf)
        if (name := name_artifact(event)) is not None:
            self._artifacts.append(name)
        if (said := to_judge(event)) is not None:
            self._judged.append(said)
        if event.redacted is not None:
            self._redacted.append((event.position, event.redacted))
        if event.recorded_at_us < self._last_us or event.position <= self._position:
            message = f"position {event.position} is dated or placed before the event in front of it"
            self.problems.append(
                Problem(reason="time_backwards", message=message, position=event.position, stream=self._stream)
            )
        self._position, self._last_us = event.position, max(self._last_us, event.recorded_at_us)

    def checked(self) -> CheckedPage:
        """Return what was noted."""
        return CheckedPage(
            position=self._position,
            events=self.events,
            problems=self.problems,
            artifacts=self._artifacts,
            leaves=self._leaves,
            judged=self._judged,
            redacted=self._redacted,
        )

    def next(self) -> _StreamPage:
        """Return the page behind this one."""
        return _StreamPage(self._stream, self._position, self._last_us)


def _gave_up(after: int, head: int) -> Problem:
    message = f"{_MAX_UNREADABLE} positions in a row cannot be read; {head - after} behind them were not tried"
    return Problem(reason="store_corrupt", message=message, position=after + 1)

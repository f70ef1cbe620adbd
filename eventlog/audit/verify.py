"""Checks a log, or one run, and gives a verdict for each thing that can be wrong.

    integrity   every event is what its hash says, and the store's own files are sound
    order       positions and versions have no gaps, times do not run backwards
    artifacts   every large value that an event names is kept beside the log, and is what its name says
    snapshots   the state that a run may be resumed from is what its events add up to
    views       what people look at is what the log says

The log is read page by page in constant memory, and the check goes on behind what is wrong. Damage is a finding, never
an exception: an auditor wants all of it. What a check of this kind cannot see (a cut tail, a history whose every hash
was computed again) needs signed heads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, Misuse, Refused, StoreBusy, StoreUnavailable
from eventlog.events import run_stream
from eventlog.log import ArtifactName, Artifacts, CheckedPage, EventReader, Problem
from eventlog.stores.artifacts import name_artifact

__all__ = ["Finding", "Progress", "Verdict", "Verdicts", "ViewsCheck", "damage", "verify"]

Verdict = Literal["ok", "damaged", "differs", "behind", "absent", "not_checked", "unknown"]
"""`differs`, `behind` (late, but right so far) and `absent` are for views; `unknown` is what could not be checked.

Views that are there, none of which the caller knows, are `not_checked`: whoever knows them has to judge them.
"""

ORDER_REASONS: Final = frozenset({"position_gap", "version_gap", "time_backwards", "stream_empty"})
SHOWN: Final = 20
"""How many problems are kept of each kind; the rest is counted."""

_PAGE: Final = 1000
_MAX_UNREADABLE: Final = 100
_REMEMBERED: Final = 10_000

Progress = Callable[[int, int], None]
"""Called with the position that is checked and the last one."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict with the first problems behind it and how many there are in all.

    `details` say what it is made up of, as plain data by name; only that on views has any.
    """

    verdict: Verdict
    problems: Sequence[Problem] = ()
    count: int = 0
    details: Mapping[str, Any] = {}


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and over how many events. `head` is the last position that was there when the check began."""

    integrity: Finding
    order: Finding
    artifacts: Finding
    snapshots: Finding
    views: Finding
    events: int
    head: int

    @property
    def is_damaged(self) -> bool:
        return not {"damaged", "differs"}.isdisjoint(self._all)

    @property
    def is_known(self) -> bool:
        """Whether everything could be checked."""
        return "unknown" not in self._all

    @property
    def _all(self) -> tuple[Verdict, ...]:
        return (
            self.integrity.verdict,
            self.order.verdict,
            self.artifacts.verdict,
            self.snapshots.verdict,
            self.views.verdict,
        )


ViewsCheck = Callable[[], Awaitable[Finding]]
FilesCheck = Callable[[], Awaitable[Sequence[Problem]]]


async def verify(
    log: EventReader,
    *,
    run: str | None = None,
    files: FilesCheck | None = None,
    artifacts: Artifacts | None = None,
    snapshots: ViewsCheck | None = None,
    views: ViewsCheck | None = None,
    progress: Progress | None = None,
) -> Verdicts:
    """Check the log, or the one run that is named; `files`, `snapshots` and `views` check what is outside the events.

    Without the `artifacts` of the log, those that events name are unknown. Raises StoreUnavailable if the log cannot be
    read for another reason than damage, Refused(`unknown_run`).
    """
    problems = _Problems()
    named = _Named(artifacts)
    head = await _head(log, problems)
    pages = _pages(log, head, progress) if run is None else _stream_page(log, run_stream(run))
    events = 0
    async for page in pages:
        events += page.events
        problems.extend(page.problems)
        await named.check(page.artifacts)
    if run is not None and not problems.count and events == 0:
        raise Refused("unknown_run", f"there is no run {run!r}", subject=run, run_id=run)
    if files is not None:
        problems.extend(await files())
    return Verdicts(
        integrity=problems.finding(is_order=False),
        order=problems.finding(is_order=True),
        artifacts=named.finding(),
        snapshots=await snapshots() if snapshots is not None else Finding(verdict="ok"),
        views=await views() if views is not None else Finding(verdict="unknown"),
        events=events,
        head=head,
    )


def damage(error: EventLogError) -> Problem:
    """Return a coded error as a problem."""
    if isinstance(error, LogCorrupt):
        return Problem(reason=error.reason, message=str(error), position=error.position, stream=error.stream)
    return Problem(reason=error.code, message=str(error))


class _Problems:
    """The first problems of each kind, and the count of all."""

    def __init__(self) -> None:
        self._kept: dict[bool, list[Problem]] = {True: [], False: []}
        self._count = {True: 0, False: 0}

    @property
    def count(self) -> int:
        return sum(self._count.values())

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            is_order = problem.reason in ORDER_REASONS
            self._count[is_order] += 1
            if len(self._kept[is_order]) < SHOWN:
                self._kept[is_order].append(problem)

    def finding(self, *, is_order: bool) -> Finding:
        count = self._count[is_order]
        return Finding(verdict="damaged" if count else "ok", problems=tuple(self._kept[is_order]), count=count)


class _Named:
    """Checks the artifacts that events name, and remembers the last ones: several events may name the same."""

    def __init__(self, artifacts: Artifacts | None) -> None:
        self._artifacts: Final = artifacts
        self._problems: Final = _Problems()
        self._sound: Final[set[str]] = set()
        self._is_known = True

    async def check(self, names: Sequence[ArtifactName]) -> None:
        """Read each artifact and compare it with its name."""
        if self._artifacts is None:
            self._is_known = self._is_known and not names
            return
        for name in names:
            if name.digest not in self._sound:
                await self._check(self._artifacts, name)

    async def _check(self, artifacts: Artifacts, name: ArtifactName) -> None:
        try:
            await artifacts.get(name.digest)
        except InvalidInput as error:
            self._found("artifact_missing", str(error), name)
        except EventLogError as error:
            _raise_if_not_damage(error)
            self._found(damage(error).reason, str(error), name)
        else:
            if len(self._sound) >= _REMEMBERED:
                self._sound.clear()
            self._sound.add(name.digest)

    def _found(self, reason: str, message: str, name: ArtifactName) -> None:
        self._problems.extend([Problem(reason=reason, message=message, position=name.position, stream=name.stream)])

    def finding(self) -> Finding:
        return self._problems.finding(is_order=False) if self._is_known else Finding(verdict="unknown")


async def _head(log: EventReader, problems: _Problems) -> int:
    try:
        return (await log.head()).position
    except EventLogError as error:
        _raise_if_not_damage(error)
        problems.extend([damage(error)])
        return 0


async def _pages(log: EventReader, head: int, progress: Progress | None) -> AsyncIterator[CheckedPage]:
    """Give the checked pages up to `head`. Around a place that cannot be read at all, pages shrink to single rows."""
    after, limit, unreadable = 0, _PAGE, 0
    while after < head:
        try:
            page = await log.check_page(after=after, limit=min(limit, head - after))
        except Exception as error:  # whatever damage does to the reading of a row, it is a finding
            _raise_if_not_damage(error)
            if limit > 1:
                limit = max(limit // 10, 1)
                continue
            after, unreadable = after + 1, unreadable + 1
            yield CheckedPage(position=after, events=0, problems=[_unreadable(after, error)])
            if unreadable >= _MAX_UNREADABLE:
                yield CheckedPage(position=head, events=0, problems=[_gave_up(after, head)])
                return
        else:
            if page.events == 0:
                return  # the last rows became unreadable or were cut off just now
            yield page
            after, unreadable, limit = page.position, 0, min(limit * 10, _PAGE)
        if progress is not None:
            progress(min(after, head), head)


async def _stream_page(log: EventReader, stream: str) -> AsyncIterator[CheckedPage]:
    """Give one stream as one checked page: reading stops at the first contradiction, for what follows hangs on it."""
    events = position = last_us = 0
    problems: list[Problem] = []
    artifacts: list[ArtifactName] = []
    try:
        async for event in log.read(stream):
            events += 1
            artifacts += [name] if (name := name_artifact(event)) is not None else []
            if event.recorded_at_us < last_us or event.position <= position:
                message = f"position {event.position} is dated or placed before the event in front of it"
                problems.append(
                    Problem(reason="time_backwards", message=message, position=event.position, stream=stream)
                )
            position, last_us = event.position, max(last_us, event.recorded_at_us)
    except Exception as error:
        _raise_if_not_damage(error)
        problems.append(_unreadable(None, error, stream))
    yield CheckedPage(position=position, events=events, problems=problems, artifacts=artifacts)


def _raise_if_not_damage(error: Exception) -> None:
    """Raise what says nothing about the data: somebody else holds the lock, or the log was used wrongly."""
    is_elsewhere = isinstance(error, StoreUnavailable) and error.code != "store_io_error"
    if isinstance(error, StoreBusy | Misuse) or is_elsewhere:
        raise error


def _unreadable(position: int | None, error: Exception, stream: str | None = None) -> Problem:
    if isinstance(error, EventLogError):
        found = damage(error)
        where = found.position if found.position is not None else position
        return msgspec.structs.replace(found, position=where, stream=found.stream or stream)
    return Problem(
        reason="row_unreadable", message=f"{type(error).__name__}: {error}", position=position, stream=stream
    )


def _gave_up(after: int, head: int) -> Problem:
    message = f"{_MAX_UNREADABLE} positions in a row cannot be read; {head - after} behind them were not tried"
    return Problem(reason="store_corrupt", message=message, position=after + 1)

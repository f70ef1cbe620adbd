"""A log with a mirror: the log as before, and every append to a mirrored stream is driven through the mirror.

    prepare ──► the log's append ──► its durable commit ──► settle from the log ──► release
                     └─ refused: release, and nothing is left

**In front of the commit** the mirror may refuse: a folder that cannot be written is `mirror_unavailable`, and nothing
was done. One kind of append is let through all the same, and logged: what tells of something that has happened in the
world already (the result of an effect or a step, a person's verdict). Refusing that for the sake of a copy would leave
a run between its effect and its result.

**Behind the commit** the append has happened, and nothing may make a failure of it. Whoever calls `append` or
`append_many` is told by MirrorBehind, which carries the results; repeating the append is safe, and tries the mirror
again. The engine's own doors, `append_reserved` and `append_with`, return the results: a run that was interrupted
because of a copy would stop between intent and effect, and another resumer would have to find out what happened. There
the error is logged and remembered: `behind()` lists it, `require_current()` raises it, later appends try again, and
leaving the `async with` does so for the last time and raises if it still fails. A mirror that is behind is brought up
by the next append to its stream, and by the next start.

A call that is cancelled is "not told", as with any log; what it has begun goes on to its end behind it, in log and
mirror alike, and closing the log waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Self, overload

from eventlog.errors import CommitOutcomeUnknown, EventLogError, InvalidInput, MirrorBehind, Misuse, StoreUnavailable
from eventlog.log import Append, AppendResult, Expect, NewEvent, RunLog, TransactionalLog
from projections.mirrors.begun import begun_in, tells_of_the_past
from projections.mirrors.evidence import Begun
from projections.mirrors.handed_on import DatabaseHandedOn, DatabaseLog, DatabaseRunLog, HandedOn
from projections.mirrors.mirror import Mirror

__all__ = ["MirroredDatabaseLog", "MirroredLog", "MirroredTransactionalLog", "mirrored"]

_Append = Callable[[], Awaitable[list[AppendResult]]]

_MAX_AT_ONCE: Final = 128
"""How many appends are between prepare and release: each holds a file open."""
_MAX_KEPT: Final = 64
"""How many appends that are not settled keep their evidence here; that of more is left to the next start."""
_MAX_RETRIED: Final = 16
"""How many other streams that are behind an append tries to bring up."""
_logger: Final = logging.getLogger("eventlog.mirrors")


@overload
def mirrored(log: DatabaseRunLog, mirror: Mirror) -> MirroredDatabaseLog: ...
@overload
def mirrored(log: RunLog, mirror: Mirror) -> MirroredLog: ...
def mirrored(log: RunLog, mirror: Mirror) -> MirroredLog:
    """Return `log` with a mirror; also a TransactionalLog where `log` is one, and in a database where `log` is.

    So views of a log in SQLite are kept, built and checked over the mirrored one as well. Use it as an async context
    manager: entering opens the log, unless it is open, and compares the mirror with it, so that whatever a crash has
    left is settled before anything is appended. Raises MirrorDamaged where the mirror holds what the log does not,
    StoreUnavailable(`mirror_unavailable`), and what opening the log raises.
    """
    if isinstance(log, DatabaseLog):
        return MirroredDatabaseLog(log, mirror)
    return (MirroredTransactionalLog if isinstance(log, TransactionalLog) else MirroredLog)(log, mirror)


class MirroredLog(HandedOn):
    """A log whose appends are mirrored. See the module for who is told what."""

    def __init__(self, log: RunLog, mirror: Mirror) -> None:
        super().__init__(log)
        self._mirror: Final = mirror
        self._state = "new"
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._owns_log = False
        self._calls: Final[set[asyncio.Task[Any]]] = set()
        self._at_once: Final = asyncio.Semaphore(_MAX_AT_ONCE)
        self._behind: Final[dict[str, MirrorBehind]] = {}
        self._left: Final[list[tuple[Any, frozenset[str]]]] = []
        """Evidence of appends that are not settled, and of which streams."""

    # ── opening and closing ──────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise Misuse("engine_closed", "a mirrored log is entered once; make another with mirrored(…)")
        self._state = "opening"
        self._home = os.getpid(), asyncio.get_running_loop()
        try:
            await self._open_log()
            for error in await self._mirror.start(self.log):
                self._note(error)
        except BaseException:
            self._state = "closed"
            if self._owns_log:
                await self.log.close()
            raise
        self._state = "open"
        return self

    async def _open_log(self) -> None:
        try:
            await self.log.head()
        except StoreUnavailable as error:
            if error.code != "engine_closed" or not isinstance(self.log, AbstractAsyncContextManager):
                raise
            await self.log.__aenter__()
            self._owns_log = True

    async def __aexit__(self, *raised: object) -> None:
        try:
            await self._finish()
        finally:
            if self._owns_log:
                await self.log.close()
        if not any(raised):
            self.require_current()

    async def close(self) -> None:
        """Take no more work, finish what was taken, try once more what is behind, and close the log."""
        try:
            await self._finish()
        finally:
            await self.log.close()

    async def _finish(self) -> None:
        if self._state != "open":
            return
        self._state = "closed"
        while self._calls:
            await asyncio.wait(set(self._calls))
        await self._retry(list(self._behind))
        for evidence, _ in self._left:
            self._mirror.leave(evidence)
        self._left.clear()

    # ── what is behind ───────────────────────────────────────────────────────────────────────────────────────────────

    def behind(self) -> Sequence[MirrorBehind]:
        """Return for each stream whose mirror is known to be behind the error that says why. No results are in it."""
        return list(self._behind.values())

    def require_current(self) -> None:
        """Return if no mirror is known to be behind; raises MirrorBehind for the first that is."""
        for error in self._behind.values():
            raise error

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
        subject: str | None = None,
    ) -> AppendResult:
        """Append events to one stream; *durable* on return, in the log and in its mirror. Raises MirrorBehind.

        Raises InvalidInput(`invalid_argument`) for a subject of a stream that has a mirror: that holds it in clear.
        """

        async def append() -> list[AppendResult]:
            await self._refuse_subjects([Append(stream, events, expect, subject)])
            return [
                await self.log.append(
                    stream,
                    events,
                    expect=expect,
                    actor=actor,
                    correlation_id=correlation_id,
                    causation_id=causation_id,
                    subject=subject,
                )
            ]

        return (await self._told(append, begun_in([Append(stream, events, expect)], self._mirror.wants)))[0]

    async def append_many(
        self,
        appends: Sequence[Append],
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
    ) -> list[AppendResult]:
        """Append to several streams as one; *durable* on return, in the log and in all mirrors. Raises MirrorBehind."""

        async def append() -> list[AppendResult]:
            await self._refuse_subjects(appends)
            return await self.log.append_many(
                appends, checks=checks, actor=actor, correlation_id=correlation_id, causation_id=causation_id
            )

        return await self._told(append, begun_in(appends, self._mirror.wants))

    async def append_reserved(
        self,
        appends: Sequence[Append],
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: bytes | None = None,
        before_us: int | None = None,
    ) -> list[AppendResult]:
        """The engine's own door. A mirror that falls behind is remembered, not raised."""

        async def append() -> list[AppendResult]:
            await self._refuse_subjects(appends)
            return await self.log.append_reserved(
                appends,
                checks=checks,
                actor=actor,
                correlation_id=correlation_id,
                causation_id=causation_id,
                before_us=before_us,
            )

        begun = begun_in(appends, self._mirror.wants)
        results, _ = await self._through(append, begun, must_go_on=bool(begun) and tells_of_the_past(appends))
        return results

    async def _refuse_subjects(self, appends: Sequence[Append]) -> None:
        """Refuse what would be encrypted in the log and in clear in its mirror."""
        for append in appends:
            if type(append) is not Append or type(append.stream) is not str or not self._mirror.wants(append.stream):
                continue  # whatever is wrong with it, the append itself says
            is_named = append.subject is not None or append.subject_of is not None
            if is_named or await self._is_sealed(append.stream):
                message = f"the stream {append.stream!r} has a mirror, which would hold in clear what is encrypted here"
                raise InvalidInput("invalid_argument", message, path="$.subject")

    async def _is_sealed(self, stream: str) -> bool:
        try:
            return await self.log.is_sealed(stream)
        except (InvalidInput, StoreUnavailable, Misuse):
            return False  # whatever is wrong with the stream, or the log, the append itself says

    async def _told(self, append: _Append, begun: Sequence[Begun]) -> list[AppendResult]:
        results, error = await self._through(append, begun)
        if error is not None:
            raise MirrorBehind(
                error.stream, error.details["why"], version=error.version, mirrored=error.mirrored, results=results
            ) from error.__cause__
        return results

    async def _through(
        self, append: _Append, begun: Sequence[Begun], *, must_go_on: bool = False
    ) -> tuple[list[AppendResult], MirrorBehind | None]:
        """Carry an append out in a task of its own, which a cancelled caller leaves behind."""
        if self._home is not None and self._home != (os.getpid(), asyncio.get_running_loop()):
            return await append(), None  # which the log refuses, as it does from there
        if self._state != "open":
            raise StoreUnavailable("engine_closed", f"the mirrored log is {_NOT_OPEN.get(self._state, self._state)}")
        if not begun:
            return await append(), None
        task = asyncio.ensure_future(self._carry_out(append, begun, must_go_on))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    async def _carry_out(
        self, append: _Append, begun: Sequence[Begun], must_go_on: bool
    ) -> tuple[list[AppendResult], MirrorBehind | None]:
        async with self._at_once:
            evidence = await self._prepare(begun, must_go_on)
            try:
                results = await append()
            except BaseException as error:
                if isinstance(error, EventLogError) and not isinstance(error, CommitOutcomeUnknown):
                    await self._release(evidence)
                else:
                    self._leave(evidence, begun, error)
                raise
            return results, await self._settle(evidence, results)

    async def _prepare(self, begun: Sequence[Begun], must_go_on: bool) -> Any:
        try:
            return await self._mirror.prepare(begun)
        except Exception as error:
            if not must_go_on:
                raise
            _logger.error("mirror_not_prepared stream=%r why=%s", begun[0].stream, _said(error))
            return None

    async def _release(self, evidence: Any) -> None:
        """Leave nothing. What cannot be taken away harms nobody: the next start looks at it."""
        if evidence is not None:
            with suppress(EventLogError):
                await self._mirror.release(evidence)

    def _leave(self, evidence: Any, begun: Sequence[Begun], error: BaseException) -> None:
        """Keep in mind an append of which nobody knows what became of it."""
        for each in begun:
            self._note(_behind_by(each.stream, error))
        self._keep(evidence, [each.stream for each in begun])

    def _keep(self, evidence: Any, streams: Sequence[str]) -> None:
        """Keep evidence until its streams are settled, or leave it to the next start."""
        if evidence is None:
            return
        if len(self._left) < _MAX_KEPT:
            self._left.append((evidence, frozenset(streams)))
        else:
            self._mirror.leave(evidence)

    # ── behind the commit ────────────────────────────────────────────────────────────────────────────────────────────

    async def _settle(self, evidence: Any, results: Sequence[AppendResult]) -> MirrorBehind | None:
        """Bring up the mirrors of what was appended, and return the error of the first that could not be."""
        streams = [result.stream for result in results if self._mirror.wants(result.stream)]
        errors = [
            error
            for result in results
            if result.stream in streams and (error := await self._bring_up(result.stream, result.version)) is not None
        ]
        if errors:
            self._keep(evidence, streams)
            return errors[0]
        await self._release(evidence)
        if self._behind or self._left:
            await self._retry(list(self._behind)[:_MAX_RETRIED])
        return None

    async def _bring_up(self, stream: str, version: int | None) -> MirrorBehind | None:
        try:
            await self._mirror.settle(self.log, stream)
        except Exception as error:  # whatever it is, the append has happened
            return self._note(_behind_by(stream, error, version, await self._mirror.reached(stream)))
        if self._behind.pop(stream, None) is not None:
            _logger.info("mirror_current stream=%r", stream)
        return None

    async def _retry(self, streams: Sequence[str]) -> None:
        """Bring up what is behind, and let go of the evidence of appends whose streams no longer are."""
        for stream in streams:
            error = self._behind.get(stream)
            await self._bring_up(stream, error.version if error is not None else None)
        for each in [each for each in self._left if each[1].isdisjoint(self._behind)]:
            self._left.remove(each)
            await self._release(each[0])

    def _note(self, error: MirrorBehind) -> MirrorBehind:
        if error.stream not in self._behind:
            _logger.error(
                "mirror_behind stream=%r version=%r why=%s", error.stream, error.version, error.details["why"]
            )
        self._behind[error.stream] = error
        return error


_NOT_OPEN: Final = {"new": "not open yet", "opening": "not open yet"}


class MirroredTransactionalLog(MirroredLog):
    """A mirrored log that lives in a database."""

    async def append_with(
        self,
        stream: str,
        type: str,
        make: Callable[[Any], Any],
        *,
        expect: Expect,
        actor: str | None = None,
        correlation_id: str | None = None,
        event_id: bytes | None = None,
    ) -> AppendResult:
        """Append the event that `make(connection)` returns, in the transaction in which it is called.

        The mirror may refuse in front of it, for then nothing was written; one that falls behind is remembered, not
        raised.
        """
        log: Any = self.log

        async def append() -> list[AppendResult]:
            return [
                await log.append_with(
                    stream,
                    type,
                    make,
                    expect=expect,
                    actor=actor,
                    correlation_id=correlation_id,
                    event_id=event_id,
                )
            ]

        ids = [] if event_id is None else [NewEvent(type, None, event_id)]
        results, _ = await self._through(append, begun_in([Append(stream, ids, expect)], self._mirror.wants))
        return results[0]


class MirroredDatabaseLog(DatabaseHandedOn, MirroredTransactionalLog):
    """A mirrored log in whose database views are kept."""


def _behind_by(
    stream: str, cause: BaseException, version: int | None = None, mirrored: int | None = None
) -> MirrorBehind:
    error = MirrorBehind(stream, _said(cause), version=version, mirrored=mirrored)
    error.__cause__ = cause
    return error


def _said(error: BaseException) -> str:
    return f"{error.code if isinstance(error, EventLogError) else type(error).__name__}: {error}"

"""Keeps views up to date behind the log: each catches up, follows, and stops alone if its projection raises.

Views that are written in the append's own transaction (`eventlog.open(…, views=[…])`) need no runner. These follow:
they cost an append nothing, may lie in a database of their own or in memory, and whoever has to read his own writes
waits for a position. The code that folds is the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Final, Literal

import msgspec

from eventlog.codec import REGISTRY, Registry
from eventlog.errors import EventLogError, InvalidInput, Misuse
from eventlog.log import CaughtUp, CursorMoved, EventReader, FellBehind
from eventlog.stores.telemetry import logger
from eventlog.views import ViewProblem, described
from projections.memory_views import MemoryView, narrowed
from projections.sqlite_views import BuildProgress, SqliteView, ViewDatabase, ViewFile, ViewStore
from projections.sqlite_views.keeping import keep_view, position_of

__all__ = ["ProjectionRunner", "ViewStatus"]

View = SqliteView | MemoryView
State = Literal["starting", "building", "following", "stopped", "overtaken"]

_POLL_S: Final = 0.05
_RETRY_S: Final = 0.5


class ViewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a view of a runner is. `building` is how far its raised revision is built; `error` what stopped it.

    A view is `starting` while another process keeps it, and takes over when that ends.
    """

    name: str
    revision: int
    state: State
    position: int
    building: BuildProgress | None = None
    problem: ViewProblem | None = None
    error: str | None = None


class ProjectionRunner:
    """Keeps some views of one log. Use it as an async context manager; each view has a task of its own.

    `into` is the path of a database for the SQLite views, apart from the log's; None is the log's own. Two revisions of
    one projection may be given together: the lower one is kept up to date until the higher one is built.
    """

    def __init__(
        self,
        log: EventReader,
        views: Sequence[View],
        *,
        into: str | os.PathLike[str] | None = None,
        allows_unknown_types: bool = False,
    ) -> None:
        for view in views:
            if not isinstance(view, SqliteView | MemoryView):
                message = f"{type(view).__qualname__} is no view; wrap a projection: `SqliteView(…)` or `MemoryView(…)`"
                raise InvalidInput("invalid_argument", message)
        identities = [(view.name, view.revision) for view in views]
        if len(set(identities)) < len(identities):
            raise InvalidInput("invalid_argument", "a view is given twice with the same revision")
        self._log: Final = log
        self._into: Final = into
        self._allows_unknown_types: Final = allows_unknown_types
        self._kept: Final = {identity: _Kept(view) for identity, view in zip(identities, views, strict=True)}
        self._opened: Final = AsyncExitStack()
        self._database: ViewDatabase | None = None

    async def __aenter__(self) -> ProjectionRunner:
        try:
            if any(isinstance(kept.view, SqliteView) for kept in self._kept.values()):
                self._database = await self._open_database()
            for kept in self._kept.values():
                kept.task = asyncio.create_task(self._run(kept), name=f"view-{kept.view.name}")
        except BaseException:
            await self._opened.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all views where they are; the next runner goes on from there. May be called twice."""
        tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._opened.aclose()

    async def _open_database(self) -> ViewDatabase:
        log = self._log
        if not hasattr(log, "scan_of"):
            raise InvalidInput("invalid_argument", "views in SQLite follow a log in SQLite; take a MemoryView")
        store: ViewStore = log  # type: ignore[assignment]  # it has what the protocol asks for
        return store if self._into is None else await self._opened.enter_async_context(ViewFile(self._into, store))

    # ── what callers ask ─────────────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> list[ViewStatus]:
        """Return how each view is."""
        return [kept.status() for kept in self._kept.values()]

    async def wait_for(self, name: str, position: int, *, timeout_s: float = 5.0) -> None:
        """Return once everything up to `position` is folded into the (highest revision of the) view.

        With `AppendResult.last_position` one reads one's own writes. Raises EventLogError (`view_late` when the time is
        up, `view_failed` if the view has stopped), InvalidInput for a view that this runner does not keep.
        """
        if type(position) is not int or position < 0:
            raise InvalidInput("invalid_argument", f"a position is an int from 0, not {position!r:.80}")
        kept = self._find(name)
        if kept.task is None:
            raise Misuse("runner_not_entered", "the runner was not entered; use `async with ProjectionRunner(…)`")
        try:
            async with asyncio.timeout(timeout_s):
                while await self._position(kept) < position:
                    kept.raise_if_stopped()
                    await kept.moved(_POLL_S)
        except TimeoutError:
            message = f"the view {name!r} is at position {kept.position}, not yet at {position}, after {timeout_s} s"
            raise EventLogError("view_late", message, view=name, position=kept.position, wanted=position) from None

    async def resume(self, name: str) -> None:
        """Try a view that has stopped again, in front of the event that stopped it. Nothing happens to others."""
        for kept in self._kept.values():
            if kept.view.name == name and kept.state == "stopped":
                kept.begin()
                kept.again.set()

    def _find(self, name: str) -> _Kept:
        found = [kept for (each, _), kept in sorted(self._kept.items()) if each == name]
        if not found:
            known = ", ".join(sorted({each for each, _ in self._kept})) or "none"
            raise InvalidInput("invalid_argument", f"this runner keeps no view {name!r}; it keeps {known}")
        return found[-1]

    async def _position(self, kept: _Kept) -> int:
        if kept.state != "starting" or self._database is None or not isinstance(kept.view, SqliteView):
            return kept.position
        position = await position_of(self._database, kept.view)  # another process may be keeping it
        # One that is ahead of the log is of another history: that is found, and said, when it is begun here.
        return position if position <= (await self._log.head()).position else kept.position

    # ── the task of a view ───────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, kept: _Kept) -> None:
        while True:
            kept.begin()
            try:
                if isinstance(kept.view, MemoryView):
                    await self._follow_in_memory(kept, kept.view)
                else:
                    await self._keep(kept, kept.view)
            except Exception as failure:
                error = _coded(failure)
                if error.code == "view_overtaken" and await self._is_still_ours(kept.view):
                    continue  # somebody has built this very revision again
                kept.fail(error)
                if error.code == "engine_closed":
                    return
                logger.error("view_stopped", view=kept.view.name, code=error.code, why=str(error))
                if kept.state == "overtaken":
                    return
                if error.code in _PASSING:
                    await asyncio.sleep(_RETRY_S)
                    continue
            await kept.again.wait()

    async def _is_still_ours(self, view: View) -> bool:
        if self._database is None or not isinstance(view, SqliteView):
            return False
        return await position_of(self._database, view) >= 0

    async def _keep(self, kept: _Kept, view: SqliteView) -> None:
        assert self._database is not None, "there is a view in SQLite"
        log: ViewStore = self._log  # type: ignore[assignment]  # looked at when the database was opened
        entries = keep_view(
            log,
            self._database,
            view,
            allows_unknown_types=self._allows_unknown_types,
            on_progress=kept.build,
        )
        async with aclosing(entries):
            async for entry in entries:
                kept.follow(entry.position)
                if entry.problem is not None:
                    kept.stop(entry.problem)

    async def _follow_in_memory(self, kept: _Kept, view: MemoryView) -> None:
        selection = view.selection
        registry: Registry = getattr(self._log, "registry", REGISTRY)
        feed = self._log.subscribe(
            after=view.position, types=selection.types, stream_prefix=selection.stream_prefix or None, marks=True
        )
        async with aclosing(feed):
            async for each in feed:
                if isinstance(each, CaughtUp | CursorMoved | FellBehind):
                    view.position = max(view.position, each.position)
                    kept.follow(view.position)
                    continue
                try:
                    view.apply(narrowed(each, selection, registry), each.position)
                except Exception as error:
                    why = described(error)
                    kept.stop(ViewProblem(position=each.position, type=each.type, stream=each.stream, error=why))
                    return
                kept.follow(each.position)


_PASSING: Final = frozenset({"store_busy", "view_busy"})
"""What a view is tried again after by itself."""


def _coded(error: Exception) -> EventLogError:
    if isinstance(error, EventLogError):
        return error
    return EventLogError("unexpected", f"keeping the view failed: {type(error).__name__}: {error}")


class _Kept:
    """One view of a runner, and how it is."""

    def __init__(self, view: View) -> None:
        self.view: Final = view
        self.task: asyncio.Task[None] | None = None
        self.state: State = "starting"
        self.position = 0
        self.again: Final = asyncio.Event()
        self._building: BuildProgress | None = None
        self._problem: ViewProblem | None = None
        self._error: EventLogError | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def begin(self) -> None:
        self.state, self._problem, self._error, self._building = "starting", None, None, None
        self.again.clear()

    def build(self, progress: BuildProgress) -> None:
        self.state, self._building = "building", progress

    def follow(self, position: int) -> None:
        self.state, self.position, self._building = "following", position, None
        self._wake()

    def stop(self, problem: ViewProblem) -> None:
        self.state, self._problem = "stopped", problem
        logger.error("view_stopped", view=self.view.name, position=problem.position, why=problem.error)
        self._wake()

    def fail(self, error: EventLogError) -> None:
        self.state = "overtaken" if error.code == "view_overtaken" else "stopped"
        self._error = error
        self._wake()

    def raise_if_stopped(self) -> None:
        if self.state not in ("stopped", "overtaken"):
            return
        if self._error is not None:
            raise self._error
        assert self._problem is not None, "it was stopped by one or the other"
        problem = self._problem
        raise EventLogError(
            "view_failed",
            f"the view {self.view.name!r} stopped in front of position {problem.position}, a {problem.type!r}: "
            f"{problem.error}",
            view=self.view.name,
            position=problem.position,
        )

    async def moved(self, timeout_s: float) -> None:
        """Wait until the view has moved or stopped, or the time is up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=timeout_s)
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def status(self) -> ViewStatus:
        return ViewStatus(
            name=self.view.name,
            revision=self.view.revision,
            state=self.state,
            position=self.position,
            building=self._building,
            problem=self._problem,
            error=None if self._error is None else str(self._error),
        )

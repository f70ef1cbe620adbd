"""Durable subscriptions by name: the position is saved in the consumer's own transaction.

A consumer handles each event once: what its handler writes and the position behind the event become durable together,
or not at all. So whatever ends it, it goes on with the next event, none twice and none left out. That holds for what
the handler writes through the connection that it is given; what it does elsewhere (a mail) may happen again after a
crash. Unlike a projection, a consumer is never run over the past again.

The table of the positions is made when it is first needed, in the log's own database or in another one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from hashlib import sha256
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Final, Protocol

from eventlog.codec import REGISTRY, Registry
from eventlog.errors import EventLogError, InvalidInput
from eventlog.log import EventReader, Mark, RecordedEvent
from eventlog.plain import check_id
from projections.sqlite_views.build_lock import exclusive
from projections.sqlite_views.cursors import CursorDatabase, CursorFile, Handled, HandlerFailed, LogCursors, leaf_at

__all__ = ["Consumer", "Handler", "consumer_lock"]

MAX_NAME_BYTES: Final = 128
MAX_BATCH: Final = 200
"""How many events are handled in one transaction at the most."""
_LATER: Final = (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
"""Functions that do nothing when they are called, but later."""


class Handler(Protocol):
    """Handles events in a transaction, on a thread of its own."""

    def __call__(self, connection: Any, event: RecordedEvent, /) -> None:
        """Write what follows from `event` through `connection`, which has `execute` and `executemany`.

        Nothing is returned: what would do something later (a generator, a coroutine) is taken for a mistake.
        """


class Consumer:
    """A named subscription with a handler. `await consumer.run()` handles events for ever; cancel it to end it.

    `into` is the path of the database that the handler writes; None is the log's own, in which it may write any table
    but those of the log and its views. `start_after` is where a consumer that has never run begins: a position of the
    log, 0 for the whole past. Filters as in `subscribe`; a registered Struct stands for its event type. One process at
    a time runs a consumer; another waits and takes over.

    Raises InvalidInput(`invalid_argument`) for a handler that is no plain function, and for other such arguments.
    """

    def __init__(
        self,
        log: EventReader,
        name: str,
        handle: Handler,
        *,
        into: str | os.PathLike[str] | None = None,
        types: Iterable[str | type] | None = None,
        stream_prefix: str | None = None,
        start_after: int = 0,
    ) -> None:
        _check_handler(handle)
        _check_position(start_after)
        self._log: Final = log
        self.name: Final = check_id(name, "name of a consumer", max_bytes=MAX_NAME_BYTES)
        self._handle: Final = handle
        self._into: Final = into
        self._types: Final = None if types is None else _names(types, getattr(log, "registry", REGISTRY))
        self._stream_prefix: Final = stream_prefix
        self._start_after: Final = start_after
        self.position = 0
        """Up to which everything is handled, as far as this object knows."""
        self._waiting: Final[set[asyncio.Future[None]]] = set()
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Handle what comes, for ever.

        Raises EventLogError (`consumer_failed` with the position where the handler raised; `consumer_overtaken`;
        `store_rolled_back` where the log ends before the saved position, or has another event there), InvalidInput for
        a `start_after` beyond the end of the log, LogCorrupt, StoreUnavailable.
        """
        self._failure = None
        try:
            await self._run()
        except Exception as error:
            self._failure = error
            self._wake()
            raise

    async def _run(self) -> None:
        async with AsyncExitStack() as opened:
            database = await self._open(opened)
            await opened.enter_async_context(exclusive(database.place, consumer_lock(self.name), waits=True))
            start = Handled(self.name, self._start_after, await leaf_at(self._log, self._start_after))
            handled = await database.begin(start, (await self._log.head()).position)
            await self._check_is_of_this_log(handled)
            self._move(handled.position)
            feed = self._log.subscribe(
                after=handled.position, types=self._types, stream_prefix=self._stream_prefix, marks=True
            )
            async with aclosing(_batches(feed)) as batches:
                async for events, position in batches:
                    handled = await self._take(database, handled, events, position)

    async def wait_for(self, position: int, *, timeout_s: float = 5.0) -> None:
        """Return once everything up to `position` is handled by this object.

        Raises EventLogError(`view_late`), and what `run` raised, if that has ended before.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self.position < position:
                    if self._failure is not None:
                        raise self._failure
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.add(future)
                    future.add_done_callback(self._waiting.discard)
                    await future
        except TimeoutError:
            message = f"the consumer {self.name!r} is at position {self.position}, not yet at {position}"
            raise EventLogError("view_late", message, position=self.position, wanted=position) from None

    async def _open(self, opened: AsyncExitStack) -> CursorDatabase:
        if self._into is not None:
            self._check_not_the_log(self._into)
            return await opened.enter_async_context(CursorFile(self._into, getattr(self._log, "store_id", b"")))
        if not hasattr(self._log, "write_view"):
            raise InvalidInput("invalid_argument", "a log in memory has no database; say with `into` where to write")
        return LogCursors(self._log)

    def _check_not_the_log(self, into: str | os.PathLike[str]) -> None:
        place = getattr(self._log, "place", None)
        if place is not None and os.path.realpath(into) == os.path.realpath(place):
            message = "`into` is the log's own database; leave it away, and the log's tables are kept from the handler"
            raise InvalidInput("invalid_argument", message)

    async def _check_is_of_this_log(self, handled: Handled) -> None:
        """Raise EventLogError(`store_rolled_back`) unless the log has the event that was handled last."""
        head = (await self._log.head()).position
        if handled.position > head:
            raise self._rolled_back(handled.position, head, f"but the log ends at {head}")
        if handled.leaf is not None and await leaf_at(self._log, handled.position) not in (handled.leaf, None):
            raise self._rolled_back(handled.position, head, "where the log has another event now: it was restored")

    def _rolled_back(self, position: int, head: int, but: str) -> EventLogError:
        return EventLogError(
            "store_rolled_back",
            f"the consumer {self.name!r} has handled position {position}, {but}",
            consumer=self.name,
            position=position,
            head=head,
        )

    async def _take(
        self, database: CursorDatabase, handled: Handled, events: Sequence[RecordedEvent], position: int
    ) -> Handled:
        """Handle a batch, as much in one transaction as there is time for; where that fails, one event in each."""
        end = await self._end(handled, events, position)
        try:
            while handled.position < end.position:
                handled = await database.take(handled, self._handle, events, end)
                events = [event for event in events if event.position > handled.position]
                self._move(handled.position)
        except HandlerFailed:
            for event in events:
                handled = await self._take_one(database, handled, event)
            if handled.position < end.position:
                handled = await database.take(handled, self._handle, [], end)
                self._move(handled.position)
        return handled

    async def _end(self, handled: Handled, events: Sequence[RecordedEvent], position: int) -> Handled:
        """Return what will be handled when these events are, up to `position`."""
        if position <= handled.position:
            return handled
        if events and events[-1].position == position:
            return Handled(self.name, position, events[-1].leaf)
        return Handled(self.name, position, await leaf_at(self._log, position))

    async def _take_one(self, database: CursorDatabase, handled: Handled, event: RecordedEvent) -> Handled:
        try:
            end = Handled(self.name, event.position, event.leaf)
            handled = await database.take(handled, self._handle, [event], end)
        except HandlerFailed as error:
            raise EventLogError(
                "consumer_failed",
                f"the consumer {self.name!r} stopped in front of position {event.position}, a {event.type!r} of "
                f"stream {event.stream!r}: {error}",
                consumer=self.name,
                position=event.position,
                type=event.type,
                stream=event.stream,
            ) from error
        self._move(handled.position)
        return handled

    def _move(self, position: int) -> None:
        self.position = position
        self._wake()

    def _wake(self) -> None:
        for future in list(self._waiting):
            if not future.done():
                future.set_result(None)


async def _batches(
    feed: AsyncGenerator[RecordedEvent | Mark, None],
) -> AsyncGenerator[tuple[list[RecordedEvent], int], None]:
    """Give what is there at once as batches, with the position that each reaches; wait only for the first of each."""
    pending: asyncio.Task[RecordedEvent | Mark] | None = None
    async with aclosing(feed):
        try:
            while True:
                events: list[RecordedEvent] = []
                position = 0
                while len(events) < MAX_BATCH:
                    pending = pending or asyncio.ensure_future(anext(feed))
                    if position:
                        await asyncio.wait({pending}, timeout=0)
                        if not pending.done():
                            break
                    each = await pending
                    pending = None
                    position = max(position, each.position)
                    if isinstance(each, RecordedEvent):
                        events.append(each)
                yield events, position
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait({pending})


def _check_handler(handle: Any) -> None:
    for function in (handle, getattr(handle, "__call__", None)):  # noqa: B004 - an object may have an async one
        if not callable(handle) or any(is_later(function) for is_later in _LATER):
            message = "a handler is a plain function: it runs on a thread, in the transaction that saves the position"
            raise InvalidInput("invalid_argument", message)


def _check_position(start_after: Any) -> None:
    if type(start_after) is not int or start_after < 0:
        raise InvalidInput("invalid_argument", f"`start_after` is a position, an int from 0, not {start_after!r:.80}")


def _names(types: Any, registry: Registry) -> frozenset[str]:
    """Return the names of event types, of which some may be given as the Structs that stand for them."""
    if isinstance(types, (str, type)) or not isinstance(types, Iterable):
        raise InvalidInput("invalid_argument", f"`types` is several event types, not {types!r:.80}")
    return frozenset(each if isinstance(each, str) else _name(each, registry) for each in types)


def _name(given: Any, registry: Registry) -> str:
    if not isinstance(given, type):
        raise InvalidInput("invalid_argument", f"{given!r:.80} in `types` is no event type, nor a Struct of one")
    return registry.type_of(given)[0]


def consumer_lock(name: str) -> str:
    """Return what the lock is for that whoever runs the consumer holds; any name can stand in the name of a file so."""
    return f"consumer-{sha256(name.encode()).hexdigest()[:24]}"

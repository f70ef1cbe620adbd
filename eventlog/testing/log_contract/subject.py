"""What the tests of the suite have in common: a log that is checked when it closes, and the events that they append."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, Protocol

import msgspec
import pytest

from eventlog.codec import Registry, event
from eventlog.errors import EventLogError, StoreUnavailable
from eventlog.log import EventReader, Expect, Mark, NewEvent, RecordedEvent, RunLog

__all__ = [
    "ANY",
    "CONTRACT_REGISTRY",
    "MANY",
    "PATIENCE_S",
    "Colour",
    "NewLog",
    "OpenLog",
    "OpenableLog",
    "OrderPlaced",
    "ParcelSent",
    "Subject",
    "assert_sound",
    "everything",
    "note",
    "notes",
    "of_stream",
    "raises",
    "take",
    "take_events",
    "texts",
]

ANY: Final = Expect.any()
PATIENCE_S: Final = 20.0
"""How long the suite waits for something that must come."""
MANY: Final = 3_000
"""More events than a page of any store holds."""


class OpenableLog(RunLog, Protocol):
    """A log that is opened by `async with`."""

    async def __aenter__(self) -> RunLog: ...

    async def __aexit__(self, *_: object) -> None: ...


NewLog = Callable[..., OpenableLog]
OpenLog = Callable[..., Awaitable[RunLog]]
CONTRACT_REGISTRY: Final = Registry()


class Colour(enum.Enum):
    RED = "red"


@event("order_placed", registry=CONTRACT_REGISTRY)
class OrderPlaced(msgspec.Struct, frozen=True):
    total: int
    note: str = ""


@event("parcel_sent", registry=CONTRACT_REGISTRY)
class ParcelSent(msgspec.Struct, frozen=True):
    at: datetime.datetime
    label: uuid.UUID
    size: tuple[int, int, int]
    seal: bytes
    price: decimal.Decimal
    colour: Colour
    tags: frozenset[str] = frozenset()
    extra: Any = None


def note(text: str = "hello", **fields: Any) -> NewEvent:
    """Return an event of a type that nobody registered."""
    return NewEvent("note_taken", {"text": text}, **fields)


def notes(count: int) -> list[NewEvent]:
    return [note(str(number)) for number in range(1, count + 1)]


def texts(events: Sequence[RecordedEvent]) -> list[str]:
    return [event.data["text"] for event in events]


async def everything(log: EventReader) -> list[RecordedEvent]:
    return [event async for event in log.read_all()]


async def of_stream(log: EventReader, stream: str, **bounds: Any) -> list[RecordedEvent]:
    return [event async for event in log.read(stream, **bounds)]


async def take(feed: AsyncIterator[RecordedEvent | Mark], count: int) -> list[RecordedEvent | Mark]:
    """Return the next `count` things of a subscription; fails if they do not come."""
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(feed) for _ in range(count)]


async def take_events(feed: AsyncIterator[RecordedEvent | Mark], count: int) -> list[RecordedEvent]:
    taken = await take(feed, count)
    assert all(isinstance(each, RecordedEvent) for each in taken)
    return [each for each in taken if isinstance(each, RecordedEvent)]


@contextmanager
def raises(code: str) -> Iterator[pytest.ExceptionInfo[EventLogError]]:
    """Expect an error of the engine with this code."""
    with pytest.raises(EventLogError) as caught:
        yield caught
    assert caught.value.code == code


async def assert_sound(log: EventReader) -> int:
    """Assert that `check_page` finds nothing wrong in the whole log, and return how many events it looked at."""
    after = looked_at = 0
    while True:
        page = await log.check_page(after=after, limit=700)
        assert list(page.problems) == []
        looked_at += page.events
        if page.events == 0:
            return looked_at
        assert page.position > after
        after = page.position


class Subject:
    """What all parts of the suite start from."""

    @pytest.fixture
    def new_log(self) -> NewLog:
        """Replace this: a function that makes another log, empty and not opened yet, from keyword options."""
        raise NotImplementedError("a store's test class has to have the fixture `new_log`")

    @pytest.fixture
    async def open_log(self, new_log: NewLog) -> AsyncIterator[OpenLog]:
        """Open logs with options; all are verified and closed when the test ends."""
        async with AsyncExitStack() as stack:

            async def open_one(**options: Any) -> RunLog:
                log = await stack.enter_async_context(new_log(**{"registry": CONTRACT_REGISTRY, **options}))
                stack.push_async_callback(_verify, log)
                return log

            yield open_one

    @pytest.fixture
    async def log(self, open_log: OpenLog) -> RunLog:
        """An open, empty log."""
        return await open_log()


async def _verify(log: RunLog) -> None:
    try:
        head = await log.head()
    except StoreUnavailable as error:
        if error.code == "engine_closed":  # by the test itself
            return
        raise
    assert await assert_sound(log) == head.position

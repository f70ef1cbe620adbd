"""The real logs of one example: an SQLite file that one or two logs are open on, and a log in memory."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

import eventlog
from eventlog import AppendResult, NewEvent, RecordedEvent
from eventlog.codec import Registry, event
from eventlog.errors import EventLogError, WrongExpectedVersion
from eventlog.log import RunLog
from eventlog.merkle import Frontier, is_consistent, is_included
from eventlog.stores import MemoryLog, SqliteLog
from tools.campaigns.model.reference_log import Answer, Kept, Place, ReferenceLog, Refusal, tree_root

__all__ = ["REGISTRY", "Broken", "Home", "RowWritten", "Stores", "agree", "answered", "check_tree", "kept", "new_event"]

T = TypeVar("T")

REGISTRY: Final = Registry()
"""With the one type that is written together with a row."""


@event("row_written", registry=REGISTRY)
class RowWritten(msgspec.Struct, frozen=True):
    """That a row with this number was written, in the same transaction."""

    n: int


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        self.invariant: Final = invariant
        super().__init__(f"{invariant}: {what}")


def agree(invariant: str, what: str, found: object, expected: object) -> None:
    """Raise Broken unless what a log said is what the reference says."""
    if found != expected:
        if isinstance(found, list) and isinstance(expected, list):
            what += f", {len(found)} and not {len(expected)}" if len(found) != len(expected) else ""
            found, expected = _first_difference(found, expected)
        raise Broken(invariant, f"{what}: {found!r}, and it should be {expected!r}")


def _first_difference(found: list[Any], expected: list[Any]) -> tuple[Any, Any]:
    pairs = zip_longest(found, expected, fillvalue="nothing")
    return next((one, other) for one, other in pairs if one != other)


def new_event(number: int, text: object, **more: Any) -> NewEvent:
    """Return the event with that number as its id."""
    return NewEvent("noted", {"text": text}, number.to_bytes(16, "big"), **more)


def kept(event: RecordedEvent) -> Kept:
    """Return an event as the reference keeps it."""
    fields = (event.type, msgspec.to_builtins(event.data), event.event_id, event.correlation_id)
    return Kept(event.position, event.stream, event.version, *fields)


async def answered(call: Awaitable[Sequence[AppendResult] | AppendResult]) -> Answer:
    """Return what an append was answered, as the reference answers."""
    try:
        results = await call
    except EventLogError as error:
        return Refusal(error.code, error.actual if isinstance(error, WrongExpectedVersion) else None)
    several = [results] if isinstance(results, AppendResult) else results
    return [
        Place(each.stream, each.version, each.first_position, each.last_position, each.deduplicated) for each in several
    ]


class Home:
    """Where the files of all examples are, one after the other, and the loop that all of them run on."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self.path: Final = folder / "log.db"
        self._patience_s: Final = patience_s
        self._empty: Final = folder / "empty.db"
        self._runner: Final = asyncio.Runner()
        self.run(self._make_empty())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end. Raises Broken if it does not come to it, or with an error that has no code."""
        try:
            return self._runner.run(self._in_time(work))
        except TimeoutError as error:
            raise Broken("I9", f"not answered within {self._patience_s:g} s") from error
        except (Broken, EventLogError):
            raise
        except Exception as error:
            raise Broken("I8", f"{type(error).__name__}: {error}") from error

    def clean(self) -> Path:
        """Put an empty log in place of the last one."""
        for path in self.path.parent.glob("log.db*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
        shutil.copyfile(self._empty, self.path)
        return self.path

    def close(self) -> None:
        self._runner.close()

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(self._patience_s):
            return await work

    async def _make_empty(self) -> None:
        async with open_log(self._empty) as log:
            await log.create_table("CREATE TABLE rows_written (n INTEGER) STRICT")


def open_log(path: Path) -> SqliteLog:
    return eventlog.open(path, registry=REGISTRY)


class Stores:
    """The logs of one example, and what must be true of each at any time."""

    def __init__(self, home: Home) -> None:
        self.path: Final = home.clean()
        self.memory: Final[MemoryLog] = eventlog.open("memory:", registry=REGISTRY)
        self.files: Final[dict[int, SqliteLog]] = {}
        """0 is open from the beginning, 1 when it is asked for."""

    async def open(self) -> None:
        await self.memory.__aenter__()
        await self.file(0)

    async def file(self, number: int) -> SqliteLog:
        """Return the log on the file with that number, opened if it is not."""
        if number not in self.files:
            log = open_log(self.path)
            await log.__aenter__()
            self.files[number] = log
        return self.files[number]

    async def reopen(self, number: int) -> None:
        await (await self.file(number)).close()
        del self.files[number]
        await self.file(number)

    async def close(self) -> None:
        for log in self.files.values():
            await log.close()
        await self.memory.close()

    async def each(self, number: int, call: Callable[[RunLog], Awaitable[T]]) -> list[T]:
        """Return what the log on the file and that in memory give, in this order."""
        return [await call(log) for log in (await self.file(number), self.memory)]

    async def take(self, number: int, read: Callable[[RunLog], AsyncGenerator[Any, None]]) -> list[list[Kept]]:
        """As `each`, for a read."""
        return [[kept(event) async for event in read(log)] for log in (await self.file(number), self.memory)]

    async def check(self, reference: ReferenceLog) -> None:
        """Compare all of each log with the reference, and its hashes with the rules. Raises Broken."""
        logs: list[RunLog] = [*self.files.values(), self.memory]
        for log in logs:
            events = [event async for event in log.read_all()]
            agree("I1", "the events of the log", [kept(event) for event in events], reference.events)
            page = await log.check_page(after=0, limit=len(events) + 1)
            agree("I2", "what the check of all events finds", list(page.problems), [])
            await _check_hashes(log, events)
        rows = await self.files[0].read_view(_rows_written)
        recorded = [event.data["n"] for event in reference.events if event.type == "row_written"]
        agree("I6", "the rows that were written with events", rows, recorded)


def _rows_written(connection: Any) -> list[int]:
    return [n for (n,) in connection.execute("SELECT n FROM rows_written ORDER BY rowid")]


async def _check_hashes(log: RunLog, events: Sequence[RecordedEvent]) -> None:
    leaves = [event.leaf for event in events]
    entries = [entry.entry async for entry in log.read_entries()]
    agree("I2", "the leaves of the log", leaves, [hashlib.sha256(b"\0" + entry).digest() for entry in entries])
    last: dict[str, bytes] = {}
    for each in events:
        agree("I2", f"the link of {each.position}", each.prev_in_stream, last.get(each.stream, bytes(32)))
        last[each.stream] = each.leaf
    agree(
        "I2", "the root by the stored frontier", Frontier.from_bytes(*await log.tree_state()).root(), tree_root(leaves)
    )
    await check_tree(log, leaves, len(leaves), len(leaves) // 2)


async def check_tree(log: RunLog, leaves: Sequence[bytes], size: int, old_size: int) -> None:
    """Compare roots of two sizes, and the proofs between them, with RFC 6962. Raises Broken."""
    head, old = await log.tree_head(size), await log.tree_head(old_size)
    agree("I2", f"the root of {size}", head.root, tree_root(leaves[:size]))
    agree("I2", f"the root of {old_size}", old.root, tree_root(leaves[:old_size]))
    if old_size:
        proof = await log.prove_consistency(old_size, size)
        holds = is_consistent(old_size, old.root, size, head.root, proof)
        agree("I2", f"a proof from {old_size} to {size} holds", holds, True)
        proof = await log.prove_inclusion(old_size, size)
        holds = is_included(old_size - 1, leaves[old_size - 1], size, head.root, proof)
        agree("I2", f"a proof of {old_size} holds", holds, True)

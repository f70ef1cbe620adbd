"""One process of a history: several tasks that append, read and conflict, and note each call and each answer.

Every call is written to a file before it is made, and its answer when it is there, so that nothing that was told is
forgotten when the process is killed. Whoever comes after it repeats some of what was left open.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

import eventlog
from eventlog import Append, AppendResult, Expect, NewEvent, WrongExpectedVersion
from eventlog.errors import CommitOutcomeUnknown, EventLogError, StoreBusy
from eventlog.stores import SqliteLog
from tools.campaigns.histories.operations import Appending, Conflict, Operation, Part, Reading, StreamReading

__all__ = ["BUSY_TIMEOUT_S", "TASKS", "History", "Restart", "line_of_answer", "line_of_call", "load", "work"]

TASKS: Final = 4
BUSY_TIMEOUT_S: Final = 0.05
"""How long an append waits for the lock: so short that some do not get it, which is then told."""
_OPENING_S: Final = 30.0
_STREAMS: Final = ("a", "b", "c", "d")
_SHOWN: Final = 12
"""How far back reads begin, about."""


class _Called(msgspec.Struct, frozen=True, tag="called"):
    """An append that was called: whoever finds no answer behind it may repeat it."""

    number: int
    append: Appending


class _Answered(msgspec.Struct, frozen=True, tag="answered"):
    """What became of a call; that with `number`, if it was written down."""

    operation: Operation
    number: int = -1


_LINE: Final = msgspec.json.Decoder(_Called | _Answered)


class History(msgspec.Struct):
    """What a process has left behind: whole operations, and appends without an answer."""

    operations: list[Operation]
    open: list[Appending]


class Restart(msgspec.Struct, frozen=True):
    """What a process that comes after a killed one repeats."""

    appends: Sequence[Appending] = ()


def load(path: Path) -> History:
    """Return what a process has noted; a line that is not whole is no answer."""
    called: dict[int, Appending] = {}
    operations: list[Operation] = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        match _LINE.decode(line):
            case _Called(number, append):
                called[number] = append
            case _Answered(operation, number):
                called.pop(number, None)
                operations.append(operation)
    return History(operations, list(called.values()))


def line_of_call(number: int, append: Appending) -> bytes:
    """Return the line that says that an append is about to be called."""
    return msgspec.json.encode(_Called(number, append)) + b"\n"


def line_of_answer(operation: Operation, number: int = -1) -> bytes:
    """Return the line that says what became of a call; `number` is that of an append's first line."""
    return msgspec.json.encode(_Answered(operation, number)) + b"\n"


async def work(path: Path, notes: Path, caller: str, operations: int, restart: Restart, chance: random.Random) -> None:
    """Repeat what `restart` says, then do about so many operations, and note all of them in the file `notes`."""
    async with AsyncExitStack() as stack:
        log = await _opened(stack, path, caller)
        client = _Client(log, notes, caller, chance)
        for append in restart.appends:
            await client.repeat(append)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(client.act(operations // TASKS))


async def _opened(stack: AsyncExitStack, path: Path, caller: str) -> SqliteLog:
    """Open the log, however often it is busy."""
    give_up_s = time.monotonic() + _OPENING_S
    while True:
        try:
            return await stack.enter_async_context(eventlog.open(path, actor=caller, busy_timeout_s=BUSY_TIMEOUT_S))
        except StoreBusy:
            if time.monotonic() >= give_up_s:
                raise


class _Client:
    """A log in use, and the file in which that is noted."""

    def __init__(self, log: SqliteLog, notes: Path, caller: str, chance: random.Random) -> None:
        self._log: Final = log
        self._notes: Final = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._caller: Final = caller
        self._chance: Final = chance
        self._versions: dict[str, int] = {}
        """Where each stream was when it was last seen: often not any more."""
        self._end = 0
        self._number = 0
        self._stored: list[Appending] = []

    async def act(self, operations: int) -> None:
        """Do so many operations of all kinds, one after the other."""
        kinds = (self._append, self._append_at, self._append_to_two, self._read, self._read_stream, self._repeat_stored)
        weights = (35, 25, 6, 12, 12, 4)
        for _ in range(operations):
            (kind,) = self._chance.choices(kinds, weights)
            with suppress(StoreBusy):  # of a read: a connection for it was not opened in time
                await kind()
            if self._chance.random() < 0.05:
                await asyncio.sleep(self._chance.uniform(0, 0.002))

    async def repeat(self, append: Appending) -> None:
        """Ask again for what may be stored or not."""
        await self._call(msgspec.structs.replace(append, caller=self._caller, is_repeat=True))

    # ── appends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _append(self) -> None:
        appending = self._new([self._new_part(self._stream(), None)])
        if self._chance.random() < 0.1:
            await self._call_impatiently(appending)
        else:
            await self._call(appending)

    async def _append_at(self) -> None:
        stream = self._stream()
        version = self._versions.get(stream, 0)
        if self._chance.random() < 0.05:
            version = max(0, version + self._chance.choice((-1, 1, 5)))
        await self._call(self._new([self._new_part(stream, version)]))

    async def _append_to_two(self) -> None:
        streams = self._chance.sample(_STREAMS, 2)
        expected = [self._versions.get(stream, 0) if self._chance.random() < 0.5 else None for stream in streams]
        await self._call(self._new([self._new_part(*each) for each in zip(streams, expected, strict=True)]))

    async def _repeat_stored(self) -> None:
        if self._stored:
            await self.repeat(self._chance.choice(self._stored))

    async def _call_impatiently(self, appending: Appending) -> None:
        """Give up early: the answer is nobody's then, and half of the time it is asked for again."""
        task = asyncio.ensure_future(self._call(appending))
        for _ in range(self._chance.randint(0, 3)):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if task.cancelled() and self._chance.random() < 0.5:
            await self.repeat(appending)

    async def _call(self, appending: Appending) -> None:
        number = self._number = self._number + 1
        now_ns = time.monotonic_ns()  # of an earlier call of the same events nothing counts
        appending = msgspec.structs.replace(appending, called_ns=now_ns, answered_ns=None, outcome="unknown")
        self._note_call(appending, number)
        try:
            results = await self._append_as_asked(appending)
        except EventLogError as error:
            self._note(self._refused(appending, error), number)
            return
        parts = tuple(_told(part, result) for part, result in zip(appending.parts, results, strict=True))
        now_ns = time.monotonic_ns()
        stored = msgspec.structs.replace(appending, answered_ns=now_ns, parts=parts, outcome="stored")
        self._note(stored, number)
        self._stored = [*self._stored[-20:], stored]
        for result in results:
            self._versions[result.stream] = result.version

    def _append_as_asked(self, appending: Appending) -> Awaitable[list[AppendResult]]:
        appends = [Append(part.stream, list(map(_event, part.event_ids)), _expect(part)) for part in appending.parts]
        return self._log.append_many(appends)

    def _refused(self, appending: Appending, error: EventLogError) -> Operation:
        now_ns = time.monotonic_ns()
        if isinstance(error, CommitOutcomeUnknown):
            return appending
        if isinstance(error, WrongExpectedVersion):
            self._versions[error.stream] = error.actual
            ids = tuple(event_id for part in appending.parts for event_id in part.event_ids)
            return Conflict(self._caller, appending.called_ns, now_ns, ids, error.stream, error.actual)
        return msgspec.structs.replace(appending, answered_ns=now_ns, outcome="refused")

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        after = max(0, self._end - self._chance.randint(0, _SHOWN))
        called_ns = time.monotonic_ns()
        ids = tuple([event.event_id.hex() async for event in self._log.read_all(after=after)])
        self._note(Reading(self._caller, called_ns, time.monotonic_ns(), after, ids))
        self._end = after + len(ids)

    async def _read_stream(self) -> None:
        stream = self._stream()
        after = max(0, self._versions.get(stream, 0) - self._chance.randint(0, _SHOWN))
        called_ns = time.monotonic_ns()
        found = await self._log.read_stream(stream, after=after)
        now_ns = time.monotonic_ns()
        ids = tuple(event.event_id.hex() for event in found.events)
        self._note(StreamReading(self._caller, called_ns, now_ns, stream, after, found.version, ids))
        self._versions[stream] = found.version

    # ── drawing and noting ───────────────────────────────────────────────────────────────────────────────────────────

    def _new(self, parts: Sequence[Part]) -> Appending:
        return Appending(self._caller, 0, None, tuple(parts))

    def _new_part(self, stream: str, expected: int | None) -> Part:
        ids = [
            self._chance.getrandbits(128).to_bytes(16, "big").hex() for _ in range(self._chance.choice((1, 1, 2, 3)))
        ]
        return Part(stream, tuple(ids), expected)

    def _stream(self) -> str:
        return self._chance.choice(_STREAMS)

    def _note_call(self, appending: Appending, number: int) -> None:
        os.write(self._notes, line_of_call(number, appending))

    def _note(self, operation: Operation, number: int = -1) -> None:
        os.write(self._notes, line_of_answer(operation, number))


def _event(event_id: str) -> NewEvent:
    return NewEvent("noted", {"id": event_id}, event_id=bytes.fromhex(event_id))


def _expect(part: Part) -> Expect:
    return Expect.any() if part.expected is None else Expect.at(part.expected)


def _told(part: Part, result: AppendResult) -> Part:
    return msgspec.structs.replace(part, version=result.version, first_position=result.first_position)

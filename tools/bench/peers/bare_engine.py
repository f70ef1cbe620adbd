"""The bare engine: the same table, triggers, hashes and one thread hop a commit as the engine, and nothing else.

It says how much of a goal this machine and Python allow. It checks no input, no ids, no other process and no failure,
takes no lock and cannot be cancelled: each of its differences to the engine is the price of a promise.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import msgspec

from eventlog.entry import BODY_PLAIN, NO_HASH, NO_ID, SALT_SIZE, prefixed, seal
from eventlog.ids import new_event_id
from eventlog.stores.sqlite.schema import CREATE, INSERT_EVENT
from tools.bench.payloads import STEPS, StepRecorded, taken
from tools.bench.pragmas import read_back
from tools.bench.store import Settings, at_once, timed

__all__ = ["BareEngine", "open_store"]

_LOG_ID: Final = bytes(SALT_SIZE)
_TEXTS: Final = prefixed("bench_step_recorded") + prefixed("bench") + prefixed("")
_SELECT: Final = """
SELECT position, stream_id, version, schema_version, recorded_at_us, event_id, CAST(body AS BLOB), salt, leaf
FROM events WHERE stream_id = ? ORDER BY version"""
_PAGES: Final = 2000
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(StepRecorded).decode

_Waiting = tuple[str, bytes, bytes, int, "asyncio.Future[int]"]
"""Stream, body, event id, expected version, and the future of the new version."""


class _Head(msgspec.Struct):
    stream_id: int
    version: int
    leaf: bytes
    texts: bytes


class BareEngine:
    """A connection with the thread that owns it, and a queue of what is to be committed next."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: Final = connection
        self._waiting: list[_Waiting] = []
        self._is_busy = False
        self._heads: dict[str, _Head] = {}
        self._position = 0
        self._work: Final[SimpleQueue[Any]] = SimpleQueue()
        self._thread: Final = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def settings(self) -> Settings:
        """Return what the connection says of itself."""
        return read_back(self._connection)

    async def append(self, *, tasks: int, each: int) -> float:
        """Append one event a call, at exactly the version that the stream has."""

        async def work(number: int) -> None:
            stream = f"agent-{number}"
            head = self._heads.get(stream)
            version = head.version if head is not None else 0
            for step in taken(STEPS, each, first=number):
                version = await self._append(stream, step, version)

        return await at_once(tasks, work)

    async def fill(self, events: int) -> None:
        """Write the stream that `load` reads."""
        loop = asyncio.get_running_loop()
        batch = [
            ("history", _encode(step), new_event_id(), version, loop.create_future())
            for version, step in enumerate(taken(STEPS, events))
        ]
        self._commit(batch)

    async def load(self) -> float:
        """Read the stream: each leaf computed again and each body decoded, and no event made of it."""
        return await timed(lambda: asyncio.to_thread(self._load, "history"))

    def close(self) -> None:
        """End the thread and close the connection."""
        self._work.put(None)
        self._thread.join()
        self._connection.close()

    async def _append(self, stream: str, step: StepRecorded, version: int) -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if not self._waiting and not self._is_busy:
            loop.call_soon(self._start)
        self._waiting.append((stream, _encode(step), new_event_id(), version, future))
        return await future

    def _start(self) -> None:
        if self._waiting and not self._is_busy:
            batch, self._waiting = self._waiting, []
            self._is_busy = True
            self._work.put((batch, asyncio.get_running_loop()))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            batch, loop = work
            loop.call_soon_threadsafe(self._answer, batch, self._commit(batch))

    def _answer(self, batch: list[_Waiting], versions: list[int]) -> None:
        self._is_busy = False
        for (*_, future), version in zip(batch, versions, strict=True):
            future.set_result(version)
        asyncio.get_running_loop().call_soon(self._start)

    def _commit(self, batch: list[_Waiting]) -> list[int]:
        salts = os.urandom(SALT_SIZE * len(batch))
        now_us = time.time_ns() // 1000
        rows, versions = [], []
        for index, (stream, body, event_id, expected, _) in enumerate(batch):
            head = self._heads.get(stream)
            if head is None:
                head = self._heads[stream] = _Head(len(self._heads) + 1, 0, NO_HASH, prefixed(stream) + _TEXTS)
            assert head.version == expected, "the only writer knows where its streams are"
            salt = salts[SALT_SIZE * index : SALT_SIZE * (index + 1)]
            position = self._position = self._position + 1
            version = head.version = expected + 1
            leaf = head.leaf = seal(
                _LOG_ID, position, version, now_us, 1, event_id, NO_ID, salt, body, head.leaf, head.texts
            )
            numbers = (position, head.stream_id, version, 1, 1, 1, now_us)
            rows.append((*numbers, event_id, None, None, BODY_PLAIN, body.decode(), salt, leaf))
            versions.append(version)
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT_EVENT, rows)
        self._connection.execute("COMMIT")
        return versions

    def _load(self, stream: str) -> int:
        head = self._heads[stream]
        previous = NO_HASH
        for position, _, version, schema, at_us, event_id, body, salt, leaf in self._connection.execute(
            _SELECT, (head.stream_id,)
        ):
            sealed = seal(_LOG_ID, position, version, at_us, schema, event_id, NO_ID, salt, body, previous, head.texts)
            assert sealed == leaf, "what was just written is sound"
            _decode(body)
            previous = leaf
        return head.version


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[BareEngine]:
    """Create the engine's tables in a new file."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint={_PAGES}")
    connection.executescript(CREATE)
    engine = BareEngine(connection)
    try:
        yield engine
    finally:
        engine.close()

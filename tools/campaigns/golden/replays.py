"""What today's engine reads in a golden log, beside what was read in it when it was made."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

import eventlog
from eventlog.audit.verify import Finding, verify
from eventlog.codec import Registry
from eventlog.errors import EventLogError, EventTypeUnknown, StoreUnavailable
from eventlog.events import run_stream
from eventlog.log import Expect
from eventlog.progress import fold_stream
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from tools import golden, golden_schemas
from tools.campaigns.golden.entries import root_of, wrong_leaves
from tools.golden_proof import describe_proof

__all__ = ["difference", "expected_of", "replay_format", "replay_future", "replay_schemas"]


def expected_of(name: str) -> dict[str, Any]:
    """Return what was frozen when the golden log of this name was made."""
    found: dict[str, Any] = json.loads((golden.GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return found


def difference(now: Any, then: Any, path: str = "$") -> str | None:
    """Return the first place where what is read now is not what was read then, or None.

    Fields that a program of then did not know are passed over.
    """
    if isinstance(now, dict) and isinstance(then, dict):
        gone = next((name for name in then if name not in now), None)
        if gone is not None:
            return f"{path}.{gone} is gone"
        found = (difference(now[name], then[name], f"{path}.{name}") for name in then)
        return next((each for each in found if each is not None), None)
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        found = (difference(*each, f"{path}[{number}]") for number, each in enumerate(zip(now, then, strict=True)))
        return next((each for each in found if each is not None), None)
    is_same = type(now) is type(then) and now == then
    return None if is_same else f"{path} is {now!r:.80} now, and was {then!r:.80}"


async def replay_format(path: Path, name: str) -> AsyncIterator[str]:
    """Give what is wrong with a copy of the golden log of a format: refused, migrated, read, folded, gone on with."""
    expected = expected_of(name)
    if expected["format"] < FORMAT_VERSION:
        async for problem in _untouched(path, "migration_required", is_read_only=True):
            yield problem
    await _migrate(path)
    for is_read_only in (True, False):
        async with _opened(path, golden.GOLDEN_REGISTRY, is_read_only=is_read_only) as log:
            async for problem in _unlike_then(log, expected):
                yield f"{problem} (read only: {is_read_only})"
    for problem in wrong_leaves(path, expected["events"]):
        yield problem
    async with _opened(path, golden.GOLDEN_REGISTRY) as log:
        async for problem in _gone_on_with(log, expected):
            yield problem


async def replay_schemas(path: Path) -> AsyncIterator[str]:
    """Give what is wrong with a copy of the golden log of old schemas."""
    expected = expected_of("schemas")
    for problem in wrong_leaves(path, expected["events"]):
        yield problem
    async with _opened(path, golden_schemas.TODAY) as log:
        unlike = difference(json.loads(json.dumps(await golden_schemas.describe(log))), expected)
        if unlike is not None:
            yield unlike
        for problem in [*_unlike_of_today(await _sums(log), await _sums_of_today()), *await _unsound(log)]:
            yield problem
        for problem in await _served_of_a_later_day(log):
            yield problem


async def replay_future(path: Path) -> AsyncIterator[str]:
    """Give what is wrong with how a log of a format that is newer than this engine is met: refused, untouched."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    for is_read_only in (True, False):
        async for problem in _untouched(path, "schema_too_new", is_read_only=is_read_only):
            yield problem


async def _untouched(path: Path, code: str, *, is_read_only: bool) -> AsyncIterator[str]:
    before = _digest(path)
    try:
        async with _opened(path, golden.GOLDEN_REGISTRY, is_read_only=is_read_only):
            yield f"it opens, instead of being refused with {code}"
    except StoreUnavailable as refused:
        if refused.code != code:
            yield f"it is refused with {refused.code}, not {code}"
    if _digest(path) != before:
        yield f"refusing it with {code} has changed the file"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def _migrate(path: Path) -> None:
    """Bring the log to the current format, as whoever opens it for writing does."""
    async with _opened(path, golden.GOLDEN_REGISTRY):
        pass


async def _unlike_then(log: SqliteLog, expected: dict[str, Any]) -> AsyncIterator[str]:
    proof = await describe_proof(log)
    found = json.loads(json.dumps({**await golden.describe(log), "proof": proof}))
    then = {name: value for name, value in expected.items() if name in found}
    unlike = difference(found, then)
    if unlike is not None:
        yield unlike
    if (log.store_id.hex(), log.facts.format_version) != (expected["store_id"], FORMAT_VERSION):
        yield f"it is the store {log.store_id.hex()} of format {log.facts.format_version}"
    leaves = [bytes.fromhex(event["leaf"]) for event in expected["events"]]
    if proof["roots"] != [[size, root_of(leaves[:size]).hex()] for size, _ in proof["roots"]]:
        yield "its tree is not that of its leaves"
    for problem in await _unsound(log):
        yield problem


async def _unsound(log: SqliteLog) -> list[str]:
    async def no_views() -> Finding:
        return Finding(verdict="ok")

    verdicts = await verify(log, files=log.check_file, artifacts=log.artifacts, views=no_views)
    damaged = {name: verdicts.findings[name] for name in _SOUND if verdicts.findings[name].verdict == "damaged"}
    return [f"verify finds {name} damaged: {each.problems[:1]}" for name, each in damaged.items()]


_SOUND: Final = ("integrity", "order", "tree", "heads", "erasures")
"""What a golden log is beyond doubt. The artifacts that it names, and the approver's proof in it, are made up."""


async def _gone_on_with(log: SqliteLog, expected: dict[str, Any]) -> AsyncIterator[str]:
    """Append behind the last event of a stream of then."""
    stock = expected["stock"]
    result = await log.append("stock-7", [golden.Refilled(1, "box")], expect=Expect.at(stock["version"]))
    if (result.version, result.last_position) != (stock["version"] + 1, expected["head"][0] + 1):
        yield f"the next event stands at version {result.version}, position {result.last_position}"
    counter, _ = await eventlog.fold(log, "stock-7", golden.Counter, golden.count)
    if counter.total != stock["total"] + 1:
        yield f"with one more the stock is {counter.total}, and was {stock['total']}"
    for problem in await _unsound(log):
        yield problem


_Sums = dict[str, Any]


async def _sums(log: Any) -> _Sums:
    orders = await golden_schemas.fold_orders(log)
    run = await golden_schemas.fold_run_alike(log, golden_schemas.OLD_RUN)
    plain: _Sums = msgspec.json.decode(msgspec.json.encode({"orders": orders, "run": run}))
    return plain


async def _sums_of_today() -> _Sums:
    """Return what the same facts add up to where they were written in the shapes of today."""
    async with eventlog.open("memory:", registry=golden_schemas.TODAY) as today:
        await golden_schemas.write_in_todays_shapes(today)
        return await _sums(today)


def _unlike_of_today(old: _Sums, today: _Sums) -> Iterator[str]:
    unlike = difference(old, today)
    if unlike is not None or old == {}:
        yield f"old events add up to something else than those of today: {unlike}"


_LATER: Final = {
    "stream": "run:of-a-later-day",
    "version": 2,
    "type": "checkpoint_saved",
    "found": 4,
    "known": 1,  # by this engine, whose runs these would be
}


async def _served_of_a_later_day(log: SqliteLog) -> list[str]:
    """Return what is wrong with how events of a newer program are read: as plain data, and folded into nothing."""
    problems = []
    (newer,) = (await log.read_stream(golden_schemas.NEWER)).events
    if newer.is_known or newer.data != {"lines": [{"sku": "d"}]}:
        problems.append(f"an event of a later schema is read as {newer.data!r:.80}")
    head = await log.head()
    events = (await log.read_stream(run_stream(golden_schemas.FUTURE_RUN))).events
    try:
        fold_stream(golden_schemas.FUTURE_RUN, events)
        problems.append("a run with an event of a later schema is folded as if all of it were known")
    except EventTypeUnknown as unknown:
        if unknown.details != _LATER:
            problems.append(f"a run with an event of a later schema is refused with {unknown.details}")
    except EventLogError as error:
        problems.append(f"a run with an event of a later schema is refused with {error.code}")
    if await log.head() != head:
        problems.append("refusing to fold a run has written to its log")
    return problems


def _opened(path: Path, registry: Registry, *, is_read_only: bool = False) -> SqliteLog:
    log = eventlog.open(path, registry=registry, is_read_only=is_read_only)
    assert isinstance(log, SqliteLog)
    return log

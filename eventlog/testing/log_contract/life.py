"""The life of a log: what it says when it is not open, used by another process or loop, or closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from eventlog.errors import EventLogError, StoreUnavailable
from eventlog.log import Append, RunLog, Snapshot, StreamSlice
from eventlog.testing.log_contract.subject import ANY, MANY, PATIENCE_S, NewLog, Subject, note, notes, raises, take

__all__ = ["WAYS", "LifeContract"]


def _calls(log: RunLog) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return every way to ask something of a log."""

    async def first_of(feed: AsyncIterator[Any]) -> Any:
        return await anext(feed, None)

    return {
        "append": lambda: log.append("a", [note()], expect=ANY),
        "append_many": lambda: log.append_many([Append("a", [note()], ANY)]),
        "append_reserved": lambda: log.append_reserved([Append("run:a", [note()], ANY)]),
        "read": lambda: first_of(log.read("a")),
        "read_stream": lambda: log.read_stream("a"),
        "read_all": lambda: first_of(log.read_all()),
        "subscribe": lambda: first_of(log.subscribe()),
        "head": lambda: log.head(),
        "health": lambda: log.health(),
        "check_page": lambda: log.check_page(after=0),
        "artifacts.put": lambda: log.artifacts.put(b"data"),
        "artifacts.get": lambda: log.artifacts.get("0" * 64),
        "load_snapshot": lambda: log.load_snapshot("a"),
        "save_snapshot": lambda: log.save_snapshot("a", Snapshot(1, b"state")),
        "tree_head": lambda: log.tree_head(),
        "tree_state": lambda: log.tree_state(),
        "read_tiles": lambda: log.read_tiles(1, 0, 1),
        "prove_inclusion": lambda: log.prove_inclusion(1, 1),
        "prove_consistency": lambda: log.prove_consistency(0, 1),
        "read_entries": lambda: first_of(log.read_entries()),
        "signed_heads": lambda: log.signed_heads(),
        "log_ids": lambda: log.log_ids(),
        "sign_head": lambda: log.sign_head(),
    }


WAYS: Final = sorted(_calls(None))  # type: ignore[arg-type]


class LifeContract(Subject):
    """Opened once, used from one event loop, closed."""

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_log_that_is_not_open_yet_refuses_to(self, new_log: NewLog, way: str) -> None:
        with raises("engine_closed"):
            await _calls(new_log())[way]()

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_closed_log_refuses_to(self, log: RunLog, way: str) -> None:
        await log.append("a", [note()], expect=ANY)
        await log.close()
        with raises("engine_closed") as caught:
            await _calls(log)[way]()
        assert isinstance(caught.value, StoreUnavailable)

    @pytest.mark.parametrize("way", WAYS)
    async def test_another_event_loop_is_refused_to(self, log: RunLog, way: str) -> None:
        await log.append("a", [note()], expect=ANY)

        async def ask() -> Any:
            return await _calls(log)[way]()

        with raises("wrong_loop"):
            await asyncio.to_thread(lambda: asyncio.run(ask()))
        assert (await log.head()).position == 1

    async def test_a_log_may_be_closed_twice(self, log: RunLog) -> None:
        await log.close()
        await log.close()

    async def test_a_log_object_is_opened_once(self, new_log: NewLog) -> None:
        log = new_log()
        async with log:
            with raises("engine_closed"):
                await log.__aenter__()
            await log.append("a", [note()], expect=ANY)
        with raises("engine_closed"):
            await log.__aenter__()

    async def test_what_was_taken_before_closing_is_finished(self, new_log: NewLog) -> None:
        async with new_log() as log:
            tasks = [asyncio.create_task(log.append("a", [note()], expect=ANY)) for _ in range(50)]
            await asyncio.sleep(0)
            await log.close()
            results = await asyncio.gather(*tasks)
        assert sorted(each.version for each in results) == list(range(1, 51))

    async def test_a_waiting_subscriber_is_told_that_the_log_is_closed(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=ANY)
        feeds = [log.subscribe() for _ in range(5)]
        for feed in feeds:
            await take(feed, 1)
        waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        await asyncio.sleep(0.02)
        await log.close()
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(each, "code", each) for each in found] == ["engine_closed"] * 5

    async def test_readers_at_the_time_of_closing_are_answered(self, log: RunLog) -> None:
        await log.append("a", notes(MANY), expect=ANY)
        reading = [asyncio.ensure_future(log.read_stream("a")) for _ in range(20)]
        await asyncio.sleep(0)
        await log.close()
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*reading, return_exceptions=True)
        for each in found:
            if isinstance(each, EventLogError):
                assert each.code == "engine_closed"
            else:
                assert isinstance(each, StreamSlice)
                assert len(each.events) == MANY

    async def test_health_says_what_the_log_holds(self, log: RunLog) -> None:
        assert ((await log.health()).head, (await log.health()).state) == (0, "open")
        await log.append("a", notes(3), expect=ANY)
        health = await log.health()
        assert (health.head, health.queued, health.is_read_only) == (3, 0, False)
        assert (len(health.log_id), len(health.store_id)) == (32, 32)

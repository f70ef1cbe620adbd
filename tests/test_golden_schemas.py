"""What programs of earlier days wrote is read by today's, and adds up to the same as if it had been written today."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog.codec import Registry
from eventlog.errors import EventTypeUnknown
from eventlog.events import run_stream
from eventlog.log import Expect, NewEvent, fold
from eventlog.progress import fold_stream
from eventlog.testing.log_contract import assert_sound
from tools import golden_schemas as golden
from tools.campaigns.golden.replays import difference

ORIGINAL = golden.GOLDEN / "schemas.db"


@pytest.fixture
def expected() -> dict[str, Any]:
    """What was read in the golden log when it was made."""
    found: dict[str, Any] = json.loads((golden.GOLDEN / "schemas.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A copy of the golden log: the original is only ever read."""
    before = hashlib.sha256(ORIGINAL.read_bytes()).hexdigest()
    copy = tmp_path / "log.db"
    shutil.copyfile(ORIGINAL, copy)
    yield copy
    assert hashlib.sha256(ORIGINAL.read_bytes()).hexdigest() == before


async def test_the_log_of_old_schemas_is_read_as_when_it_was_made(path: Path, expected: dict[str, Any]) -> None:
    async with eventlog.open(path, registry=golden.TODAY) as log:
        assert difference(await golden.describe(log), expected) is None
        assert await assert_sound(log) == len(expected["events"])


async def test_old_events_add_up_to_what_those_of_today_add_up_to(path: Path) -> None:
    async with (
        eventlog.open(path, registry=golden.TODAY) as old,
        eventlog.open("memory:", registry=golden.TODAY) as today,
    ):
        await golden.write_in_todays_shapes(today)
        assert await golden.fold_orders(old) == await golden.fold_orders(today) != golden.Orders()
        runs = [await golden.fold_run_alike(log, golden.OLD_RUN) for log in (old, today)]
        assert msgspec.json.encode(runs[0]) == msgspec.json.encode(runs[1])


async def test_the_comparison_would_see_a_missing_upcaster(path: Path) -> None:
    """The negative control: a program that knows only the last names and shapes reads something else."""
    forgetful = Registry(knows_engine=False)
    forgetful.register(golden.OrderPlaced, "order_placed")
    async with eventlog.open(path, registry=forgetful) as log:
        found, _ = await fold(log, "orders", list[Any], lambda seen, event: [*seen, event.is_known])
        assert True not in found


async def test_the_stored_bytes_of_old_events_stay_as_they_were(path: Path, expected: dict[str, Any]) -> None:
    async with eventlog.open(path, registry=golden.TODAY) as log:
        await golden.describe(log)
        await log.append("orders", [golden.OrderMoved("Ulm")], expect=Expect.exists())
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "SELECT t.name, e.schema_version, CAST(e.body AS BLOB), e.leaf FROM events e JOIN types t USING (type_id) "
            "ORDER BY e.position"
        ).fetchall()
    stored = [(name, version, body.decode(), leaf.hex()) for name, version, body, leaf in rows[:-1]]
    assert stored == [
        (each["stored_type"] or each["type"], each["schema_version"], each["body"], each["leaf"])
        for each in expected["events"]
    ]
    assert '"{\\"x\\": NaN, \\"y\\": [Infinity, -Infinity]}"' in stored[0][2], "text is text, whatever it looks like"


async def test_a_run_with_an_event_of_a_later_schema_is_refused_untouched(path: Path) -> None:
    async with eventlog.open(path, registry=golden.TODAY) as log:
        head = await log.head()
        events = (await log.read_stream(run_stream(golden.FUTURE_RUN))).events
        assert [event.is_known for event in events] == [True, False]
        assert events[1].data == {"phase": "RUNNING"}
        with pytest.raises(EventTypeUnknown) as caught:
            fold_stream(golden.FUTURE_RUN, events)
        assert caught.value.details == {
            "stream": "run:of-a-later-day",
            "version": 2,
            "type": "checkpoint_saved",
            "found": 4,
            "known": 1,  # by this engine, whose runs these would be
        }
        assert await log.head() == head


async def test_an_event_of_a_later_schema_comes_back_as_plain_data(path: Path) -> None:
    async with eventlog.open(path, registry=golden.TODAY) as log:
        (event,) = (await log.read_stream(golden.NEWER)).events
    assert (event.type, event.schema_version, event.is_known) == ("order_placed", 4, False)
    assert event.data == {"lines": [{"sku": "d"}]}


async def test_todays_program_writes_no_old_shape_into_it(path: Path) -> None:
    async with eventlog.open(path, registry=golden.TODAY) as log:
        for old in (NewEvent("order_made", {}), NewEvent("order_placed", {}, schema_version=2)):
            with pytest.raises(eventlog.InvalidInput):
                await log.append("orders", [old], expect=Expect.exists())


def test_a_golden_file_is_never_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    before = ORIGINAL.read_bytes()
    assert golden.main() == 1
    assert "never made again" in capsys.readouterr().err
    assert ORIGINAL.read_bytes() == before


async def test_what_the_tool_makes_today_reads_like_the_golden_log(tmp_path: Path, expected: dict[str, Any]) -> None:
    made = await golden.make(tmp_path / "log.db")
    for description in (made, expected):
        for event in description["events"]:
            del event["leaf"]  # each log has its own
    assert difference(made, expected) is None

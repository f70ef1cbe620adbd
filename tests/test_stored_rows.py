"""Rows as events: read through a connection by readers and by views, whatever somebody did to them or declares of them.

What an editor can do to a row is in `test_sqlite_tamper`; here is what only a reader who reads on from what he has read
before meets, and how a view's scan and the events of a transaction are told apart by type.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from eventlog import EventLogError, Expect, InvalidInput, LogCorrupt, NewEvent, StoreUnavailable
from eventlog.codec import Registry
from eventlog.errors import EventTypeUnknown
from eventlog.stores.sqlite import rows as stored_rows
from eventlog.stores.sqlite import scan as stored_scan
from eventlog.stores.sqlite.database import read_facts
from eventlog.stores.sqlite.rows import LastLeaves, Rows
from eventlog.stores.sqlite.scan import Placed, Scan
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.views import Selection, ViewEvent
from tools.campaigns.bit_flips.damages import drop_guards
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()


class Moved(msgspec.Struct, frozen=True):
    """One of what `changed` was split into."""

    to: str


class Priced(msgspec.Struct, frozen=True):
    """The other one."""

    price: int


def _decide(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("moved", old) if "to" in old else ("priced", old)


def of_today() -> Registry:
    """Return a registry by which `changed` was split, `noted` is known, and `gone` was retired."""
    registry = Registry()
    registry.register(Moved, "moved")
    registry.register(Priced, "priced")
    registry.split(_decide, "changed", into=("moved", "priced"))
    registry.retire("gone")
    return registry


SAID: Final = [
    ("a", "changed", {"to": "x"}),
    ("b", "changed", {"price": 3}),
    ("a", "gone", {}),
    ("c", "noted", {"n": 1}),
    ("b", "moved", {"to": "y"}),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of a program that knew none of these types."""
    path = tmp_path_factory.mktemp("rows") / "log.db"

    async def make() -> None:
        async with open_file(path, registry=Registry()) as log:
            for stream, type_name, data in SAID:
                await log.append(stream, [NewEvent(type_name, data)], expect=ANY)

    asyncio.run(make())
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "log.db"))


@pytest.fixture
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the log on which everything may be edited."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        drop_guards(connection)
        yield connection


@pytest.fixture
def rows(raw: sqlite3.Connection) -> Rows:
    return Rows(read_facts(raw), of_today())


def scan(*types: str, prefix: str = "", keys: Any = None, registry: Registry | None = None) -> Scan:
    return Scan(Selection(frozenset(types), prefix), registry or of_today(), keys=keys)


def scanned(raw: sqlite3.Connection, one: Scan, after: int = 0) -> list[tuple[int, str]]:
    return [(event.position, event.type) for event in one.events(raw, after, one.head(raw))]


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("was", "is_now", "edit"),
    [
        ("schema_version INTEGER NOT NULL", "schema_version INTEGER         ", "schema_version = NULL"),
        ("salt BLOB", "salt ANY ", "salt = 7"),
        ("salt BLOB", "salt ANY ", "salt = 7, body = NULL"),
        ("salt BLOB", "salt ANY ", "salt = '0123456789abcdef'"),
        ("causation_id BLOB", "causation_id ANY ", "causation_id = 0"),
        ("correlation_id TEXT", "correlation_id ANY ", "correlation_id = 0"),
    ],
)
def test_a_cell_that_a_flipped_bit_has_given_another_type_is_damage(
    path: Path, rows: Rows, raw: sqlite3.Connection, was: str, is_now: str, edit: str
) -> None:
    raw.execute("PRAGMA writable_schema = ON")
    for before, after in ((was, is_now), (is_now, was)):
        raw.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'events'", (before, after))
        with closing(sqlite3.connect(path, isolation_level=None)) as editor:  # one that has read the schema by now
            if after == is_now:
                editor.execute("PRAGMA ignore_check_constraints = ON")
                assert editor.execute(f"UPDATE events SET {edit} WHERE position = 1").rowcount == 1
    with pytest.raises(LogCorrupt, match="position 1"):
        positions(rows, raw, {})
    with pytest.raises(LogCorrupt, match="position 1"):  # where events are read that are erased or encrypted, too
        rows.entry_page(raw, None, 0, len(SAID))


# ── readers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def positions(rows: Rows, raw: sqlite3.Connection, leaves: LastLeaves) -> list[int]:
    """Read the log as the tail of subscriptions does, a position at a time."""
    return [rows.tail_page(raw, after, 1, leaves)[0].position for after in range(len(SAID))]


def test_what_is_remembered_of_streams_is_bounded_and_read_again(
    rows: Rows, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_rows, "_MAX_KNOWN_LEAVES", 1)
    monkeypatch.setattr(stored_rows, "_MAX_KNOWN_STREAMS", 1)
    leaves: LastLeaves = {}
    assert positions(rows, raw, leaves) == [1, 2, 3, 4, 5]
    assert len(leaves) <= 2
    assert len(rows._streams) == 1


def test_position_that_is_missing_stops_the_tail_and_nothing_of_it_is_remembered(
    rows: Rows, raw: sqlite3.Connection
) -> None:
    leaves: LastLeaves = {}
    assert [event.position for event in rows.tail_page(raw, 0, 2, leaves)] == [1, 2]
    raw.execute("DELETE FROM events WHERE position = 4")
    with pytest.raises(LogCorrupt) as damage:
        rows.tail_page(raw, 2, 10, leaves)
    assert (damage.value.reason, damage.value.position, leaves) == ("position_gap", 4, {})


def test_stream_that_gets_another_name_between_two_pages_is_not_read_on_under_it(
    rows: Rows, raw: sqlite3.Connection
) -> None:
    events, _ = rows.stream_page(raw, "a", 0, 10)
    assert [event.position for event in events] == [1, 3]
    raw.execute("UPDATE streams SET name = 'z' WHERE name = 'a'")
    with pytest.raises(LogCorrupt) as damage:
        rows.stream_page(raw, "z", 0, 10)
    assert damage.value.reason == "name_changed"


@pytest.mark.parametrize(
    "edit", ["causation_id = zeroblob(16)", "correlation_id = ''", "schema_version = -1", "salt = zeroblob(15)"]
)
def test_entry_that_the_log_would_not_have_written_so_is_not_given_out(
    rows: Rows, raw: sqlite3.Connection, edit: str
) -> None:
    assert len(rows.entry_page(raw, None, 0, 10)) == 5
    raw.execute(f"UPDATE events SET {edit} WHERE position = 4")
    with pytest.raises(LogCorrupt) as damage:
        rows.entry_page(raw, None, 0, 10)
    assert (damage.value.reason, damage.value.position) == ("leaf_mismatch", 4)


@pytest.mark.parametrize("column", ["schema_version", "version", "recorded_at_us"])
def test_number_that_is_none_any_more_is_damage_of_its_row_alone(
    rows: Rows, raw: sqlite3.Connection, column: str
) -> None:
    """A flipped bit in the head of a row makes NULL of a number; no statement can, where the table forbids it."""
    raw.execute("CREATE TEMP TABLE events AS SELECT * FROM main.events")
    raw.execute(f"UPDATE temp.events SET {column} = NULL WHERE position = 4")
    events, _ = rows.log_page(raw, 0, 3)
    assert [event.position for event in events] == [1, 2, 3]
    with pytest.raises(LogCorrupt) as damage:
        rows.log_page(raw, 0, 10)
    assert (damage.value.reason, damage.value.position) == ("leaf_mismatch", 4)
    page = rows.check_page(raw, 0, 10)
    assert [(problem.reason, problem.position) for problem in page.problems] == [("leaf_mismatch", 4)]


# ── encrypted ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def keys(tmp_path: Path) -> SubjectKeys:
    return SubjectKeys(tmp_path / "keys", wrapping_key=bytes(range(32)))


@pytest.fixture
async def sealed(tmp_path: Path, keys: SubjectKeys) -> Path:
    """The same events, all about one subject."""
    path = tmp_path / "sealed.db"
    async with open_file(path, registry=Registry(), subject_keys=keys) as log:
        for stream, type_name, data in SAID:
            await log.append(stream, [NewEvent(type_name, data)], expect=ANY, subject="ann")
    return path


async def test_encrypted_events_are_told_apart_by_type_once_they_are_open(sealed: Path, keys: SubjectKeys) -> None:
    async with open_file(sealed, registry=of_today(), subject_keys=keys) as log:
        assert [event.type async for event in log.read("b")] == ["priced", "moved"]
        for types, found in ((["moved"], [1, 5]), (["priced"], [2]), (["noted"], [4]), (["absent"], [])):
            assert [event.position async for event in log.read_all(types=types)] == found
    async with open_file(sealed, registry=of_today()) as log:
        assert [event.redacted async for event in log.read("a")] == ["key_missing", "key_missing"]


async def test_encrypted_event_that_cannot_be_decoded_is_named_with_its_place(sealed: Path, keys: SubjectKeys) -> None:
    registry = Registry()
    registry.register(Priced, "noted")
    async with open_file(sealed, registry=registry, subject_keys=keys) as log:
        with pytest.raises(InvalidInput) as caught:
            [event async for event in log.read("c")]
        assert (caught.value.code, caught.value.details["position"]) == ("invalid_event", 4)


async def test_view_of_what_is_encrypted_is_not_folded_without_the_keys(sealed: Path, keys: SubjectKeys) -> None:
    async with open_file(sealed, registry=of_today(), subject_keys=keys) as log:
        assert await log.look(scanned, log.scan_of(Selection(frozenset({"moved"})))) == [(1, "moved"), (5, "moved")]
    async with open_file(sealed, registry=of_today()) as log:
        with pytest.raises(StoreUnavailable) as caught:
            await log.look(scanned, log.scan_of(Selection(frozenset({"moved"}))))
        assert (caught.value.code, caught.value.details["position"]) == ("subject_key_missing", 1)


# ── scans ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scan_gives_what_is_selected_by_the_name_of_today_and_nothing_that_was_retired(
    raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_scan, "_MAX_KNOWN_STREAMS", 1)
    assert scanned(raw, scan("moved")) == [(1, "moved"), (5, "moved")]
    assert scanned(raw, scan("priced")) == [(2, "priced")]
    assert scanned(raw, scan("moved", prefix="b")) == [(5, "moved")]
    everything = scan("moved", "priced", "changed", "gone", "noted")
    assert scanned(raw, everything) == [(1, "moved"), (2, "priced"), (4, "noted"), (5, "moved")]


def test_scan_of_everything_stops_at_a_position_that_is_missing(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM events WHERE position = 2")
    for one in (scan("moved", "priced", "changed", "gone", "noted"), scan("noted")):
        with pytest.raises(LogCorrupt) as damage:
            scanned(raw, one)
        assert damage.value.reason == "position_gap"


def test_scan_stops_at_an_event_whose_stream_has_no_name(raw: sqlite3.Connection) -> None:
    raw.execute("DELETE FROM streams WHERE name = 'c'")
    with pytest.raises(LogCorrupt) as damage:
        scanned(raw, scan("noted"))
    assert (damage.value.reason, damage.value.position) == ("name_missing", 4)


def test_scan_stops_at_an_event_that_cannot_be_decoded(raw: sqlite3.Connection) -> None:
    registry = Registry()
    registry.register(Priced, "noted")
    with pytest.raises(InvalidInput) as caught:
        scanned(raw, scan("noted", registry=registry))
    assert (caught.value.code, caught.value.details["position"]) == ("invalid_event", 4)


def test_view_that_is_built_anew_asks_only_for_the_types_that_stand_in_its_streams(raw: sqlite3.Connection) -> None:
    registry = Registry()
    registry.register(Moved, "moved")
    scan("moved", prefix="b", registry=registry)._learn_types(raw)
    scan("moved", prefix="none", registry=registry).require_known(raw, 0, 5)
    with pytest.raises(EventTypeUnknown) as caught:
        scan("moved", prefix="c", registry=registry).require_known(raw, 0, 5)
    assert "noted" in str(caught.value)


def placed(type_name: str, body: bytes, *, schema_version: int = 1, stream: str = "a") -> Placed:
    return (1, stream, 1, type_name, schema_version, 1, "test", body)


def test_events_of_a_transaction_are_selected_as_they_would_be_when_they_are_read() -> None:
    registry = of_today()
    registry.register(Priced, "charged", schema_version=2, upcast={1: dict})

    def given(*events: Placed, types: tuple[str, ...]) -> list[ViewEvent]:
        return list(scan(*types, registry=registry).view_events(events))

    to, price = placed("changed", b'{"to":"x"}'), placed("changed", b'{"price":3}')
    assert [event.data for event in given(to, price, types=("moved",))] == [Moved("x")]
    assert [event.type for event in given(to, price, types=("changed", "moved", "priced"))] == ["moved", "priced"]
    assert given(placed("gone", b"{}"), types=("gone",)) == []
    with pytest.raises(EventTypeUnknown) as caught:
        given(placed("charged", b"{}", schema_version=3), types=("charged",))
    assert isinstance(caught.value, EventLogError)
    assert "charged of schema version 3" in str(caught.value)

"""What happens to somebody who edits the database behind the log's back.

Through the triggers, nothing that is written can be changed. Behind dropped triggers everything can, and is found: by
`check_page` with the position, by reading the stream as `log_corrupt`, while the other streams stay readable.

Four edits are *not* found by the log alone, and are asserted here as what they are, limits: a cut tail of the log and
a history in which every hash was made again need signed heads; and one stream's cut tail, or a stream under another
name, is found by checking the log, but not by reading that stream.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog import EventLogError, Expect, LogCorrupt, NewEvent, RecordedEvent
from eventlog.audit.verify import verify
from eventlog.entry import NO_HASH, NO_ID, prefixed, seal
from eventlog.stores.sqlite.schema import EVENT_COLUMNS, INSERT_EVENT
from tools.campaigns.bit_flips.damages import drop_guards
from tools.campaigns.storage.log_files import open_file

VICTIM: Final = "victim"
BYSTANDER: Final = "bystander"
PAGE_BYTES: Final = 4096
EDITED: Final = 4
"""The position of the victim's middle event."""

# Streams take turns; each has a type and an actor of its own, so that the bystander shares no name with the victim.
ORDER: Final = (VICTIM, BYSTANDER, VICTIM, VICTIM, BYSTANDER, VICTIM, VICTIM, BYSTANDER)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of two streams that take turns."""
    path = tmp_path_factory.mktemp("tamper") / "log.db"
    asyncio.run(_make(path))
    return path


async def _make(path: Path) -> None:
    async with open_file(path) as log:
        for number, stream in enumerate(ORDER):
            event = NewEvent(f"{stream}_noted", {"n": number, "text": "x" * 40})
            await log.append(stream, [event], expect=Expect.any(), actor=f"svc:{stream}")


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy of that log, to be edited."""
    return Path(shutil.copy(original, tmp_path / "log.db"))


# ── through the triggers ──────────────────────────────────────────────────────────────────────────────────────────────


def _insert(verb: str, column: str, value: str) -> str:
    """Return an INSERT of a row that would be the next one of stream 1, but for one cell that another row has."""
    cells = {
        "position": "(SELECT max(position) + 1 FROM events)",
        "stream_id": "1",
        "version": "(SELECT max(version) + 1 FROM events WHERE stream_id = 1)",
        "type_id": "1",
        "schema_version": "1",
        "actor_id": "1",
        "recorded_at_us": "1",
        "event_id": "randomblob(16)",
        "causation_id": "NULL",
        "correlation_id": "NULL",
        "body_kind": "0",
        "body": "'{}'",
        "salt": "randomblob(16)",
        "leaf": "randomblob(32)",
    }
    cells[column] = value
    return f"{verb} INTO events ({', '.join(cells)}) VALUES ({', '.join(cells.values())})"


_TAKEN: Final = {
    "position": "4",
    "version": "2",
    "event_id": "(SELECT event_id FROM events WHERE position = 4)",
}
_INSERTS: Final = [
    _insert(verb, column, value)
    for column, value in _TAKEN.items()
    for verb in ("INSERT", "INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL", "INSERT OR ROLLBACK")
]
_UPSERTS: Final = [
    f"{_insert('INSERT', column, value)} ON CONFLICT DO UPDATE SET body = '[]'" for column, value in _TAKEN.items()
] + [f"{_insert('INSERT', column, value)} ON CONFLICT DO NOTHING" for column, value in _TAKEN.items()]
_GAPS: Final = [
    _insert("INSERT", "position", "1000"),
    _insert("INSERT", "version", "1000"),
    _insert("INSERT", "position", "NULL"),
]
_UPDATES: Final = [
    f"{verb} events SET {edit} WHERE position = 4"
    for verb in ("UPDATE", "UPDATE OR REPLACE", "UPDATE OR IGNORE")
    for edit in (
        "body = '[]'",
        "position = 5",
        "rowid = 1000",
        "version = 1",
        "event_id = (SELECT event_id FROM events WHERE position = 1)",
        "body = NULL",
        "body = NULL, salt = NULL, leaf = randomblob(32)",
    )
]
_DELETES: Final = ["DELETE FROM events WHERE position = 4", "DELETE FROM events"]
_NAMES: Final = [
    statement.format(table=table, key=key)
    for table, key in (("streams", "stream_id"), ("types", "type_id"), ("actors", "actor_id"))
    for statement in (
        "UPDATE {table} SET name = 'other'",
        "UPDATE OR REPLACE {table} SET {key} = 2 WHERE {key} = 1",
        "DELETE FROM {table}",
        "INSERT OR REPLACE INTO {table} ({key}, name) VALUES (1, 'other')",
        "INSERT OR REPLACE INTO {table} (name) SELECT name FROM {table} WHERE {key} = 1",
        "INSERT OR IGNORE INTO {table} ({key}, name) VALUES (1, 'other')",
        "INSERT INTO {table} ({key}, name) VALUES (1, 'other') ON CONFLICT DO UPDATE SET name = 'other'",
    )
]
_FACTS: Final = [
    "UPDATE meta SET value = x'00'",
    "DELETE FROM meta",
    "INSERT OR REPLACE INTO meta (name, value) VALUES ('store_id', randomblob(16))",
    "INSERT INTO meta (name, value) VALUES ('store_id', x'00') ON CONFLICT DO UPDATE SET value = x'00'",
    "UPDATE log_ids SET log_id = randomblob(16)",
    "DELETE FROM log_ids",
    "INSERT OR REPLACE INTO log_ids (first_position, log_id) VALUES (1, randomblob(16))",
    "INSERT OR REPLACE INTO log_ids (first_position, log_id) SELECT 3, log_id FROM log_ids",
]


@pytest.mark.parametrize("recursive_triggers", ["ON", "OFF"])
@pytest.mark.parametrize("statement", [*_INSERTS, *_UPSERTS, *_GAPS, *_UPDATES, *_DELETES, *_NAMES, *_FACTS])
def test_triggers_refuse_every_change_of_what_is_written(path: Path, statement: str, recursive_triggers: str) -> None:
    before = _dump(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA recursive_triggers={recursive_triggers}")
        with pytest.raises(sqlite3.IntegrityError, match="append_only"):
            other.execute(statement)
    assert _dump(path) == before


def test_statements_of_this_test_would_work_without_the_triggers(path: Path, tmp_path: Path) -> None:
    without_effect = []
    for statement in [*_INSERTS, *_UPSERTS, *_GAPS, *_UPDATES, *_DELETES, *_NAMES, *_FACTS]:
        copy = shutil.copy(path, tmp_path / "copy.db")
        before = _dump(Path(copy))
        try:
            _edit(Path(copy), statement)
        except sqlite3.IntegrityError:
            without_effect.append(statement)
            continue
        if _dump(Path(copy)) == before:
            without_effect.append(statement)
    replacing = [each for each in without_effect if "REPLACE" in each or "UPSERT" in each or "DO UPDATE" in each]
    assert replacing in ([], ["UPDATE OR REPLACE events SET body = 'x' WHERE position = 4"]), replacing


def test_next_event_may_be_inserted_and_triggers_alone_do_not_tell_it_from_a_forged_one(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(_insert("INSERT", "body", "'{}'"))
    # its leaf shows it: see the forged row below


def test_erasure_trigger_compares_every_other_column_of_the_table(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        columns = [row[1] for row in other.execute("PRAGMA table_xinfo(events)")]
        (trigger,) = other.execute("SELECT sql FROM sqlite_schema WHERE name = 'events_update'").fetchone()
        assert columns == list(EVENT_COLUMNS)
        for column in columns:
            is_compared = f"NEW.{column} IS OLD.{column}" in trigger
            assert is_compared == (column not in {"body", "salt"}), column
        other.execute("UPDATE events SET body = NULL, salt = NULL WHERE position = 4")


# ── behind dropped triggers ───────────────────────────────────────────────────────────────────────────────────────────

_EDITS: Final = {
    "position": ["1000", "-1"],
    "stream_id": ["99", "(SELECT stream_id FROM streams WHERE name = 'bystander')"],
    "version": ["1000", "0", "-1"],
    "type_id": ["99", "(SELECT type_id FROM types WHERE name = 'bystander_noted')"],
    "schema_version": ["2", "70000", "-1"],
    "actor_id": ["99", "(SELECT actor_id FROM actors WHERE name = 'svc:bystander')"],
    "recorded_at_us": ["recorded_at_us + 1", "recorded_at_us - 1", "0"],
    "event_id": ["randomblob(16)", "CAST(event_id || x'00' AS BLOB)", "substr(event_id, 1, 15)", "x''"],
    "causation_id": ["randomblob(16)", "zeroblob(16)", "x''"],
    "correlation_id": ["'other'", "''", "CAST(x'ff' AS TEXT)"],
    "body_kind": ["1", "2", "3"],
    "body": ["'{}'", "7", "body || ' '", "x''", "CAST(x'ff' AS TEXT)", "NULL"],
    "salt": ["randomblob(16)", "x''", "CAST(salt || x'00' AS BLOB)", "NULL"],
    "leaf": ["randomblob(32)", "x'00'", "(SELECT leaf FROM events WHERE position = 1)"],
}


def test_every_column_is_edited_below() -> None:
    assert list(_EDITS) == list(EVENT_COLUMNS)


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, values in _EDITS.items() for value in values]
)
async def test_edited_cell_is_found_with_its_position_and_other_streams_stay_readable(
    path: Path, column: str, value: str
) -> None:
    before = _dump(path)
    events = {event.position: event for event in (await _read_everything(path))[0]}
    if (column, value) == ("stream_id", _EDITS["stream_id"][1]):
        _edit(
            path, f"UPDATE events SET version = 4, stream_id = {value} WHERE position = {EDITED}"
        )  # behind the others
    else:
        _edit(path, f"UPDATE events SET {column} = {value} WHERE position = {EDITED}")
    assert _dump(path) != before, "the edit changed nothing"
    found = await _check(path)
    assert EDITED in found, found
    await _assert_is_corrupt(path, VICTIM)
    assert await _found(path, events[EDITED].event_id) is None
    for event in events.values():
        assert await _found(path, event.event_id) in (event, None)
    if column != "stream_id" or value == "99":
        await _assert_is_readable(path, BYSTANDER)
    if value == "NULL":
        assert found[EDITED] == {"body_missing"}


async def test_body_as_a_blob_of_the_same_bytes_reads_the_same(path: Path) -> None:
    _edit(path, f"UPDATE events SET body = CAST(body AS BLOB) WHERE position = {EDITED}")
    assert await _check(path) == {}
    await _assert_is_readable(path, VICTIM)


async def test_deleted_row_is_found_with_its_position(path: Path) -> None:
    _edit(path, f"DELETE FROM events WHERE position = {EDITED}")
    assert EDITED in await _check(path)
    await _assert_is_corrupt(path, VICTIM)
    await _assert_is_readable(path, BYSTANDER)


@pytest.mark.parametrize("limit", [1, 2, 3, None])
async def test_deleted_row_is_missed_by_every_page_that_is_read_back_over_it(path: Path, limit: int | None) -> None:
    _edit(path, f"DELETE FROM events WHERE position = {EDITED}")  # version 3 of the victim's 5
    async with open_file(path) as log:
        for before in (5, 4):
            with pytest.raises(LogCorrupt):
                async for _ in log.read_back(VICTIM, before=before, limit=limit):
                    pass
        assert (await anext(log.read_back(VICTIM, before=3, limit=limit))).version == 2


async def test_deleted_row_is_found_when_the_rows_behind_it_are_renumbered(path: Path) -> None:
    _edit(
        path,
        f"DELETE FROM events WHERE position = {EDITED}",
        f"UPDATE events SET version = version - 1 WHERE position > {EDITED} AND stream_id = 1",
        *(
            f"UPDATE events SET position = {position - 1} WHERE position = {position}"
            for position in range(EDITED + 1, 9)
        ),
    )
    found = await _check(path)
    assert EDITED in found
    await _assert_is_corrupt(path, VICTIM)


async def test_deleted_first_rows_are_found(path: Path) -> None:
    _edit(path, "DELETE FROM events WHERE position <= 3")
    assert 1 in await _check(path)
    await _assert_is_corrupt(path, VICTIM)


@pytest.mark.parametrize(
    "columns",
    [
        ("body",),
        ("body", "salt"),
        ("event_id",),
        ("position",),
        ("version",),
        tuple(column for column in EVENT_COLUMNS if column not in {"position", "version"}),
    ],
    ids=",".join,
)
async def test_two_rows_that_change_places_are_found_with_both_positions(path: Path, columns: tuple[str, ...]) -> None:
    other = EDITED + 2
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.row_factory = sqlite3.Row
        rows = raw.execute(f"SELECT * FROM events WHERE position IN ({EDITED}, {other})").fetchall()
        one, two = map(dict, rows)
        for column in columns:
            one[column], two[column] = two[column], one[column]
        drop_guards(raw)
        raw.execute(f"DELETE FROM events WHERE position IN ({EDITED}, {other})")
        raw.executemany(INSERT_EVENT, [tuple(row[column] for column in EVENT_COLUMNS) for row in (one, two)])
    found = await _check(path)
    assert {EDITED, other} <= set(found), found
    await _assert_is_corrupt(path, VICTIM)
    await _assert_is_readable(path, BYSTANDER)


@pytest.mark.parametrize("stream_id", [1, 2])
async def test_forged_row_at_the_end_is_found(path: Path, stream_id: int) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        version = f"(SELECT max(version) + 1 FROM events WHERE stream_id = {stream_id})"
        raw.execute(_insert("INSERT", "stream_id", str(stream_id)).replace(_versions(1), version))
    assert set(await _check(path)) == {9}
    await _assert_is_corrupt(path, VICTIM if stream_id == 1 else BYSTANDER)
    await _assert_is_readable(path, BYSTANDER if stream_id == 1 else VICTIM)


def _versions(stream_id: int) -> str:
    return f"(SELECT max(version) + 1 FROM events WHERE stream_id = {stream_id})"


async def test_row_that_is_pushed_in_between_is_found(path: Path) -> None:
    _edit(
        path,
        *(
            f"UPDATE events SET position = {position + 1} WHERE position = {position}"
            for position in range(8, EDITED - 1, -1)
        ),
        *(
            f"UPDATE events SET version = {version + 1} WHERE version = {version} AND stream_id = 1"
            for version in (5, 4, 3)
        ),
        f"""INSERT INTO events SELECT {EDITED}, stream_id, 3, type_id, schema_version, actor_id, recorded_at_us,
        randomblob(16), causation_id, correlation_id, body_kind, body, salt, leaf FROM events WHERE position = 3""",
    )
    assert EDITED in await _check(path)
    await _assert_is_corrupt(path, VICTIM)


@pytest.mark.parametrize("table", ["streams", "types", "actors"])
@pytest.mark.parametrize("name", ["'other'", "''", "CAST(x'ff' AS TEXT)"])
async def test_changed_name_is_found_at_each_event_that_has_it(path: Path, table: str, name: str) -> None:
    key = {"streams": "stream_id", "types": "type_id", "actors": "actor_id"}[table]
    _edit(path, f"UPDATE {table} SET name = {name} WHERE {key} = 1")
    assert set(await _check(path)) == {position for position, stream in enumerate(ORDER, 1) if stream == VICTIM}
    await _assert_is_readable(path, BYSTANDER)
    if table != "streams":
        await _assert_is_corrupt(path, VICTIM)
    elif name == "'other'":
        await _assert_is_corrupt(path, "other")


@pytest.mark.parametrize("table", ["streams", "types", "actors"])
async def test_name_that_is_null_is_found_and_comes_out_as_no_raw_error(path: Path, table: str) -> None:
    """As after one flipped bit of the record: the table itself allows no NULL."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        drop_guards(raw)
        raw.execute(f"CREATE TABLE other AS SELECT * FROM {table}")
        raw.execute(f"DROP TABLE {table}")
        raw.execute(f"ALTER TABLE other RENAME TO {table}")
        raw.execute(f"UPDATE {table} SET name = NULL WHERE {table[:-1]}_id = 1")
    async with open_file(path, is_read_only=True) as log:
        assert "name_missing" in {problem.reason for problem in (await log.check_page(after=0)).problems}
        with pytest.raises(LogCorrupt):
            async for _ in log.read_all():
                pass


@pytest.mark.parametrize("table", ["streams", "types", "actors"])
async def test_swapped_or_lost_names_are_found_at_every_event(path: Path, table: str) -> None:
    key = {"streams": "stream_id", "types": "type_id", "actors": "actor_id"}[table]
    copy = Path(shutil.copy(path, path.with_name("copy.db")))
    _edit(
        path,
        f"UPDATE {table} SET {key} = 50 WHERE {key} = 1",
        f"UPDATE {table} SET {key} = 1 WHERE {key} = 2",
        f"UPDATE {table} SET {key} = 2 WHERE {key} = 50",
    )
    assert set(await _check(path)) == set(range(1, 9))
    await _assert_is_corrupt(path, VICTIM)
    await _assert_is_corrupt(path, BYSTANDER)
    _edit(copy, f"DELETE FROM {table} WHERE {key} = 1")
    assert set(await _check(copy)) == {position for position, stream in enumerate(ORDER, 1) if stream == VICTIM}
    await _assert_is_readable(copy, BYSTANDER)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM meta",
        "DELETE FROM log_ids",
        "UPDATE log_ids SET first_position = 2",
        "UPDATE meta SET value = 'text'",
        "UPDATE meta SET value = x'00'",
    ],
)
async def test_log_that_does_not_know_who_it_is_does_not_open(path: Path, statement: str) -> None:
    _edit(path, statement)
    with pytest.raises(LogCorrupt) as corrupt:
        await open_file(path).__aenter__()
    assert corrupt.value.reason == "identity_missing"


async def test_other_log_id_is_found_at_every_event(path: Path) -> None:
    _edit(path, "UPDATE log_ids SET log_id = randomblob(16)")
    assert set(await _check(path)) == set(range(1, 9))
    await _assert_is_corrupt(path, VICTIM)


async def test_edited_stream_takes_no_further_event_that_would_hide_the_edit(path: Path) -> None:
    _edit(path, f"UPDATE events SET leaf = randomblob(32) WHERE position = {EDITED}")
    async with open_file(path) as log:
        await log.append(VICTIM, [NewEvent("noted", {})], expect=Expect.any())
    assert EDITED in await _check(path)
    await _assert_is_corrupt(path, VICTIM)


# ── limits: what the log alone cannot see ─────────────────────────────────────────────────────────────────────────────


async def test_limit_cut_tail_of_the_log_is_not_found_without_a_signed_head(path: Path) -> None:
    _edit(path, "DELETE FROM events WHERE position > 5")
    assert await _check(path) == {}
    await _assert_is_readable(path, VICTIM)
    await _assert_is_readable(path, BYSTANDER)


async def test_limit_history_with_every_hash_made_again_is_not_found_without_a_signed_head(path: Path) -> None:
    _edit(path, f"""UPDATE events SET body = '{{"n":3,"text":"forged"}}' WHERE position = {EDITED}""")
    assert EDITED in await _check(path), "the control: one edit alone is found"
    _hash_again(path)
    assert await _check(path) == {}
    async with open_file(path) as log:
        texts = [event.data["text"] async for event in log.read(VICTIM)]
    assert "forged" in texts


async def test_limit_cut_tail_of_one_stream_is_found_by_a_check_and_not_by_reading_that_stream(path: Path) -> None:
    _edit(path, "DELETE FROM events WHERE position = 7")
    assert 7 in await _check(path)
    await _assert_is_readable(path, VICTIM)


async def test_limit_renamed_stream_is_found_by_a_check_and_reads_as_absent_under_its_old_name(path: Path) -> None:
    _edit(path, "UPDATE streams SET name = 'other' WHERE stream_id = 1")
    assert 1 in await _check(path)
    async with open_file(path) as log:
        assert (await log.read_stream(VICTIM)).version == 0


async def test_no_page_that_has_lost_its_second_half_keeps_a_check_from_ending(tmp_path: Path) -> None:
    """Cells of zeros are rows at position 0, behind any other: going on from there would be going back for ever."""
    path = tmp_path / "log.db"
    async with open_file(path) as log:
        events = [NewEvent("noted", {"text": "x" * 100}) for _ in range(60)]
        await log.append(VICTIM, events, expect=Expect.no_stream())
    whole, found = path.read_bytes(), 0
    for start in range(PAGE_BYTES, len(whole), PAGE_BYTES):
        half = start + PAGE_BYTES // 2
        path.write_bytes(whole[:half] + bytes(PAGE_BYTES // 2) + whole[start + PAGE_BYTES :])
        try:
            async with asyncio.timeout(20), open_file(path) as log:
                verdicts = await verify(log)
        except EventLogError:
            continue
        found += verdicts.integrity.verdict == "damaged"
    assert found


# ── looking and editing ───────────────────────────────────────────────────────────────────────────────────────────────


async def _read_everything(path: Path) -> tuple[list[RecordedEvent], dict[str, Sequence[RecordedEvent]]]:
    async with open_file(path) as log:
        await log.health()
        await log.check_page(after=0)
        events = [event async for event in log.read_all()]
        return events, {stream: (await log.read_stream(stream)).events for stream in (VICTIM, BYSTANDER)}


async def _check(path: Path) -> dict[int | None, set[str]]:
    """Return the reasons that `check_page` gives, by position."""
    found: dict[int | None, set[str]] = {}
    async with open_file(path) as log:
        for problem in (await log.check_page(after=0)).problems:
            found.setdefault(problem.position, set()).add(problem.reason)
    return found


async def _assert_is_corrupt(path: Path, stream: str) -> None:
    async with open_file(path) as log:
        with pytest.raises(LogCorrupt):
            await log.read_stream(stream)
        with pytest.raises(LogCorrupt):
            async for _ in log.read(stream):
                pass
        with pytest.raises(LogCorrupt):
            async for _ in log.read_back(stream):
                pass
        with pytest.raises(LogCorrupt):
            async for _ in log.read_all():
                pass
        with pytest.raises(LogCorrupt):
            async for _ in log.read_all(stream_prefix="a stream that is not there", types=[]):
                pass


async def _found(path: Path, event_id: bytes) -> RecordedEvent | None:
    """Return what `find` finds; None also if it says that the log is corrupt."""
    async with open_file(path) as log:
        try:
            return await log.find(event_id)
        except LogCorrupt:
            return None


async def _assert_is_readable(path: Path, stream: str) -> None:
    async with open_file(path) as log:
        events = (await log.read_stream(stream)).events
    assert events
    for event in events:
        assert event.actor == f"svc:{stream}"
        assert event.type == f"{stream}_noted"
        assert event.data == {"n": event.position - 1, "text": "x" * 40}
        assert ORDER[event.position - 1] == stream


def _edit(path: Path, *statements: str) -> None:
    """Do what only somebody without respect does: drop the triggers, switch the checks off, and edit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        drop_guards(raw)
        for statement in statements:
            raw.execute(statement)


def _hash_again(path: Path) -> None:
    """Make every leaf again, as an editor would who has read the format."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        (log_id,) = raw.execute("SELECT log_id FROM log_ids").fetchone()
        rows = raw.execute(
            """SELECT e.position, s.name, e.version, t.name, a.name, e.schema_version, e.recorded_at_us, e.event_id,
            CAST(e.body AS BLOB), e.salt FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id)
            JOIN actors a USING (actor_id) ORDER BY e.position"""
        ).fetchall()
        previous: dict[str, bytes] = {}
        for position, stream, version, type_name, actor, schema_version, at_us, event_id, body, salt in rows:
            texts = b"".join(map(prefixed, (stream, type_name, actor, "")))
            leaf = seal(
                log_id,
                position,
                version,
                at_us,
                schema_version,
                event_id,
                NO_ID,
                salt,
                body,
                previous.get(stream, NO_HASH),
                texts,
            )
            raw.execute("UPDATE events SET leaf = ? WHERE position = ?", (leaf, position))
            previous[stream] = leaf


def _dump(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    tables = ("events", "streams", "types", "actors", "meta", "log_ids")
    with closing(sqlite3.connect(path)) as raw:
        raw.text_factory = bytes
        return {table: raw.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables}

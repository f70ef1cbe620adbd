"""A folder of keys that is lost, empty or another one's erases nobody, and no stream goes on in clear unnoticed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from eventlog import EventLogError, Expect, LogCorrupt, Misuse, NewEvent, Refused, StoreUnavailable
from eventlog.audit.erasure import erase_subject
from eventlog.stores import SqliteLog
from eventlog.stores.subject_keys import SubjectKeys
from tests.erasure_scene import known
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()
WRAPPING: Final = b"w" * 32
BASIS: Final = "asked for"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A log with streams about ann and bob, whose keys are in `keys`."""
    keys = SubjectKeys(tmp_path / "keys", wrapping_key=WRAPPING)
    async with open_file(tmp_path / "log.db", subject_keys=keys) as log:
        for subject in ("ann", "bob"):
            await append(log, subject)
    return tmp_path / "log.db"


async def append(log: SqliteLog, subject: str) -> None:
    await log.append(f"about-{subject}", [NewEvent("noted", {"of": subject})], expect=ANY, subject=subject)


async def swapped(path: Path) -> SubjectKeys:
    """Return a folder of another log, which knows a bob as well."""
    keys = SubjectKeys(path.parent / "others", wrapping_key=WRAPPING)
    async with open_file(path.parent / "other.db", subject_keys=keys) as other:
        await append(other, "bob")
    return keys


def emptied(path: Path) -> SubjectKeys:
    shutil.rmtree(path.parent / "keys")
    return SubjectKeys(path.parent / "keys", wrapping_key=WRAPPING)


@pytest.mark.parametrize("how", ["emptied", "swapped"])
async def test_subject_is_not_erased_with_a_folder_that_is_not_of_this_log(path: Path, how: str) -> None:
    keys = emptied(path) if how == "emptied" else await swapped(path)
    before = keys.key_ids()
    async with open_file(path, subject_keys=keys) as log:
        head = await log.head()
        for erasing in (
            erase_subject(log, "bob", legal_basis=BASIS, views=known(log)),
            log.erase_subject("bob", legal_basis=BASIS),
            log.subject_streams("bob"),
        ):
            with pytest.raises(StoreUnavailable) as refused:
                await erasing
            assert refused.value.code == "subject_key_missing"
        assert await log.head() == head
    assert keys.key_ids() == before


async def test_subject_is_erased_with_the_folder_of_this_log(path: Path) -> None:
    keys = SubjectKeys(path.parent / "keys", wrapping_key=WRAPPING)
    async with open_file(path, subject_keys=keys) as log:
        with pytest.raises(Refused) as refused:
            await log.erase_subject("nobody", legal_basis=BASIS)
        assert refused.value.code == "unknown_subject"
        done = await erase_subject(log, "bob", legal_basis=BASIS, views=known(log))
        assert done.streams == ("about-bob",)
        again = await erase_subject(log, "bob", legal_basis=BASIS, views=known(log))
        assert again.subject_key == done.subject_key
        await erase_subject(log, "ann", legal_basis=BASIS, views=known(log))
    assert keys.key_ids() == []


async def test_subject_whose_own_key_is_here_is_erased_though_other_keys_are_lost(path: Path) -> None:
    keys = SubjectKeys(path.parent / "keys", wrapping_key=WRAPPING)
    lost = keys.key_id_of("ann").hex()
    (path.parent / "keys" / "keys" / lost).unlink()
    async with open_file(path, subject_keys=keys) as log:
        assert (await log.erase_subject("bob", legal_basis=BASIS)).stream == "$log"


# ── another body with the id of an erased event ──────────────────────────────────────────────────────────────────────


async def test_repeat_of_an_erased_event_is_told_by_type_stream_and_schema_alone(path: Path) -> None:
    event = NewEvent("noted", {"n": 1}, event_id=b"e" * 16)
    async with open_file(path) as log:
        result = await log.append("clear", [event], expect=ANY)
        other_body = NewEvent("noted", {"n": 2}, event_id=event.event_id)
        with pytest.raises(Misuse) as refused:  # while there is something to compare
            await log.append("clear", [other_body], expect=ANY)
        assert refused.value.code == "event_id_conflict"
        await log.erase([result.last_position], legal_basis=BASIS)
        for repeat in (event, other_body):
            again = await log.append("clear", [repeat], expect=ANY)
            assert (again.last_position, again.deduplicated) == (result.last_position, True)
        for stream, other in (
            ("elsewhere", event),
            ("clear", NewEvent("said", {"n": 1}, event_id=event.event_id)),
            ("clear", NewEvent("noted", {"n": 1}, event_id=event.event_id, schema_version=2)),
        ):
            with pytest.raises(Misuse) as refused:
                await log.append(stream, [other], expect=ANY)
            assert refused.value.code == "event_id_conflict"


# ── the row that says under which key a stream is ────────────────────────────────────────────────────────────────────


def edit(path: Path, statement: str) -> None:
    """Write behind the triggers, as who owns the file can."""
    with closing(sqlite3.connect(path)) as database:
        names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?", (TABLE,))
        for (name,) in names.fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute(statement)
        database.commit()


TABLE: Final = "subject_streams"
OF_CLEAR: Final = "(SELECT stream_id FROM streams WHERE name = 'clear')"


@pytest.mark.parametrize(
    ("stream", "statement"),
    [
        ("about-ann", f"DELETE FROM {TABLE}"),
        ("clear", f"INSERT INTO {TABLE} SELECT {OF_CLEAR}, key_id FROM {TABLE} LIMIT 1"),
    ],
    ids=["in-clear-now", "encrypted-now"],
)
async def test_encrypted_stream_whose_key_is_not_noted_does_not_go_on_in_clear(
    path: Path, stream: str, statement: str
) -> None:
    keys = SubjectKeys(path.parent / "keys", wrapping_key=WRAPPING)
    async with open_file(path, subject_keys=keys) as log:
        for name in ("clear", "about-ann"):  # control: both go on
            await log.append(name, [NewEvent("noted", {"n": 1})], expect=ANY)
        head = await log.head()
    edit(path, statement)
    try:
        async with open_file(path, subject_keys=keys) as log:
            with pytest.raises(LogCorrupt) as refused:
                await log.append(stream, [NewEvent("noted", {"n": 2})], expect=ANY)
            assert refused.value.details["reason"] == "subject_changed"
            assert await log.head() == head
            await log.append("another", [NewEvent("noted", {"n": 3})], expect=ANY)
    except EventLogError as error:  # what opening says of a schema that was changed
        pytest.fail(f"{error.code}: {error}")

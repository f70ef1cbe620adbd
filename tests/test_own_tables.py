"""Tables of the program's own in the log's database: what may be made, and that nothing else gets in that way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import eventlog
from eventlog.errors import InvalidInput
from eventlog.stores import SqliteLog
from projections import runs_view
from tools.campaigns.storage.log_files import open_file

TABLE = "CREATE TABLE IF NOT EXISTS receipts (op_key TEXT UNIQUE, cents INTEGER)"


async def test_a_table_is_made_once_and_holds_rows_that_are_one_with_their_events(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db") as log:
        for _ in range(2):
            await log.create_table(TABLE)
        await log.create_table("CREATE INDEX IF NOT EXISTS by_cents ON receipts (cents)")
        runner = eventlog.Runner(log, actions=[eventlog.RecordRow("receipts")])
        proposal = eventlog.propose("record_row", {"cents": 5}, "receipts")
        await runner.propose("run-1", proposal)
        await runner.approve("run-1", proposal.hash)
        assert (await runner.resume("run-1")).value == {"rowid": 1}
        assert (await log.check_file(), (await log.check_page(after=0)).problems) == ([], [])
    with closing(sqlite3.connect(tmp_path / "log.db")) as database:
        assert database.execute("SELECT cents FROM receipts").fetchall() == [(5,)]


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE events",
        "DELETE FROM events",
        "INSERT INTO meta VALUES ('a', 1)",
        "CREATE TRIGGER t BEFORE INSERT ON events BEGIN SELECT 1; END",
        "CREATE TABLE events (a)",
        "CREATE TABLE Runs (a)",
        "CREATE TABLE approvals (a)",
        "CREATE INDEX i ON events (body)",
        "CREATE VIEW v AS SELECT * FROM events",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "CREATE TABLE a (b); CREATE TABLE c (d)",
        "ALTER TABLE events ADD COLUMN x",
        "PRAGMA synchronous=OFF",
        "ATTACH ':memory:' AS other",
        "COMMIT",
        "SELECT 1 FROM nothing",
        "not SQL",
    ],
)
async def test_nothing_else_is_run(statement: str, tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db", views=[runs_view()]) as log:
        before = await log.read_view(_schema)
        with pytest.raises(InvalidInput) as refused:
            await log.create_table(statement)
        assert refused.value.code == "invalid_argument"
        assert await log.read_view(_schema) == before
        await log.append("s", [eventlog.NewEvent("t", {})], expect=eventlog.Expect.no_stream())


async def test_the_log_goes_on_writing_its_own_tables(tmp_path: Path) -> None:
    async with open_file(tmp_path / "log.db") as log:
        assert isinstance(log, SqliteLog)
        await log.create_table(TABLE)
        await log.append("s", [eventlog.NewEvent("t", {})], expect=eventlog.Expect.no_stream())
        assert (await log.head()).position == 1


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()

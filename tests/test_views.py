"""The view `runs` in the log's database: kept in the append's transaction, caught up, begun anew when it must be."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.errors import EventLogError, LogCorrupt
from eventlog.log import Expect, NewEvent, RecordedEvent
from projections import RUNS, RunsProjection, RunsTable, SqliteView, differences, runs_view
from projections.projection import Row


class NextRevision(RunsProjection):
    """The projection `runs` as a later program might have it: one more column."""

    revision = 2  # type: ignore[misc]
    columns: Mapping[str, str] = {**RUNS.columns, "length": "INTEGER"}  # type: ignore[misc]

    def apply(self, row: Row | None, event: RecordedEvent) -> Row | None:
        applied = super().apply(row, event)
        return applied and {**applied, "length": len(applied["args"] or "")}


async def start_runs(path: Path, count: int, *, view: SqliteView | None = None, prefix: str = "run") -> None:
    async with eventlog.open(path, views=[view] if view else []) as log:
        runner = eventlog.Runner(log)
        for number in range(count):
            await runner.propose(f"{prefix}-{number}", eventlog.propose("write_file", {"content": "x"}, "draft.txt"))


async def rows_of(path: Path, view: SqliteView) -> list[Row]:
    async with eventlog.open(path, views=[view]) as log:
        assert await differences(log, view) == []
        return await RunsTable(log, view).page()


def edit(path: Path, statement: str) -> None:
    editor = sqlite3.connect(path)
    with editor:
        editor.execute(statement)
    editor.close()


async def test_a_program_that_does_not_know_the_view_leaves_it_behind_visibly(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 2, view=runs_view())
    await start_runs(path, 3, prefix="other")
    async with eventlog.open(path) as log:
        assert (await log.health()).views_behind == {"runs/1": 6}
    assert len(await rows_of(path, runs_view())) == 5


async def test_a_raised_revision_is_folded_afresh(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 3, view=runs_view())
    rows = await rows_of(path, SqliteView(NextRevision()))
    assert [row["length"] for row in rows] == [len('{"content":"x"}')] * 3


async def test_an_earlier_program_leaves_a_later_revision_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 1, view=SqliteView(NextRevision()))
    view = runs_view()
    async with eventlog.open(path, views=[view]) as log:
        await log.append("s", [NewEvent("happened", {})], expect=Expect.any())
        with pytest.raises(EventLogError, match="revision 2 is kept by a later program") as failure:
            await RunsTable(log, view).page()
        assert failure.value.code == "view_failed"
    assert len(await rows_of(path, SqliteView(NextRevision()))) == 1


@pytest.mark.parametrize("damage", ["DROP TABLE runs", "UPDATE views SET position = 1000", "DELETE FROM views"])
async def test_a_view_that_is_not_whole_is_begun_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 2, view=runs_view())
    edit(path, damage)
    assert len(await rows_of(path, runs_view())) == 2


async def test_the_bookkeeping_itself_taken_away_is_damage_and_appends_go_on_without_the_view(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 1, view=runs_view())
    edit(path, "DROP TABLE views")
    with pytest.raises(LogCorrupt) as damage:
        await start_runs(path, 1, view=runs_view(), prefix="other")
    assert damage.value.reason == "schema_changed"


class Failing(RunsProjection):
    """Raises at the third run."""

    def apply(self, row: Row | None, event: RecordedEvent) -> Row | None:
        if event.stream.endswith("-2"):
            raise ZeroDivisionError("the fold divides")
        return super().apply(row, event)


async def test_a_projection_that_raises_stays_behind_alone_and_goes_on_when_it_is_corrected(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = SqliteView(Failing())
    async with eventlog.open(path, views=[view]) as log:
        runner = eventlog.Runner(log)
        for number in range(4):
            await runner.propose(f"run-{number}", eventlog.propose("write_file", {"content": "x"}, "draft.txt"))
        assert (await log.head()).position == 8, "the appends went on"
        assert (await log.health()).views_behind == {"runs/1": 4}
        with pytest.raises(EventLogError, match="the fold divides") as failure:
            await RunsTable(log, view).page()
        assert failure.value.code == "view_failed"
    assert len(await rows_of(path, runs_view())) == 4


async def test_a_row_is_written_in_the_append_s_own_transaction(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = runs_view()
    async with eventlog.open(path, views=[view]) as log:
        await eventlog.Runner(log).propose("run-1", eventlog.propose("write_file", {"content": "x"}, "draft.txt"))

        def look(connection: sqlite3.Connection) -> tuple[Any, ...]:
            found: tuple[Any, ...] = connection.execute(
                "SELECT (SELECT max(position) FROM events), (SELECT position FROM views), (SELECT count(*) FROM runs)"
            ).fetchone()
            return found

        assert await log._reads.run(look) == (2, 2, 1)

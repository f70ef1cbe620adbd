"""Views over a mirrored log, and transcripts that somebody took away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

import eventlog
from eventlog.log import EventReader, Expect, NewEvent
from eventlog.proposal import propose
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.runner import Runner
from eventlog.stores import SqliteLog
from eventlog.views import ViewEvent
from projections import (
    Consumer,
    ProjectionRunner,
    RowProjection,
    RunsTable,
    SqliteView,
    TranscriptMirror,
    ViewFile,
    check_view,
    mirrored,
    rebuild_view,
    runs_view,
)
from projections.mirrors import MirroredDatabaseLog, transcript_repair
from projections.projection import Row
from tests.mirror_scenarios import faults_in, note
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()


class Counts(RowProjection):
    """How many notes each stream has."""

    name = "counts"
    event_types = frozenset({"noted"})
    columns: ClassVar[Mapping[str, str]] = {"stream": "TEXT PRIMARY KEY", "count": "INTEGER NOT NULL"}

    def key(self, event: ViewEvent) -> str:
        return event.stream

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        return {"stream": event.stream, "count": (row["count"] if row else 0) + 1}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "transcripts"


class TestATranscriptThatIsGone:
    @pytest.fixture
    async def starts(self, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Three streams with transcripts; the answer fills with the positions behind which a start reads the log."""
        async with mirrored(open_file(path), TranscriptMirror(folder, streams="")) as log:
            for stream in ("a", "b", "c"):
                await log.append(stream, [note()], expect=ANY)
        async with mirrored(open_file(path), TranscriptMirror(folder, streams="")):
            pass  # the second start has compared all of it
        starts: list[int] = []
        touched = transcript_repair._touched

        async def look(log: EventReader, after: int, prefix: str) -> dict[str, int]:
            starts.append(after)
            return await touched(log, after, prefix)

        monkeypatch.setattr(transcript_repair, "_touched", look)
        return starts

    async def faults(self, path: Path, folder: Path) -> list[str]:
        async with mirrored(open_file(path), TranscriptMirror(folder, streams="")) as log:
            return await faults_in(log, folder)

    async def test_it_is_made_again_at_the_next_start(self, path: Path, folder: Path, starts: list[int]) -> None:
        (folder / "b.jsonl").unlink()
        assert await self.faults(path, folder) == []
        assert starts == [3, 0]
        assert await self.faults(path, folder) == []
        assert starts == [3, 0, 3], "nothing is gone any more"

    async def test_without_the_count_nobody_would_see_it(
        self, path: Path, folder: Path, starts: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(transcript_repair, "_some_are_gone", lambda *found: False)
        (folder / "b.jsonl").unlink()
        assert await self.faults(path, folder) == ["b 1: missing"]

    async def test_a_new_stream_does_not_stand_for_it(self, path: Path, folder: Path, starts: list[int]) -> None:
        async with open_file(path) as plain:
            await plain.append("new", [note()], expect=ANY)
        async with mirrored(open_file(path), TranscriptMirror(folder, streams="")) as log:
            await log.append("newer", [note()], expect=ANY)
        assert starts == [3], "and nothing is gone because there are more"
        async with open_file(path) as plain:
            await plain.append("newest", [note()], expect=ANY)
        (folder / "a.jsonl").unlink()
        assert await self.faults(path, folder) == []
        assert starts == [3, 4, 0]

    async def test_one_that_was_appended_to_since_is_brought_up_without_reading_all(
        self, path: Path, folder: Path, starts: list[int]
    ) -> None:
        async with open_file(path) as plain:
            await plain.append("b", [note()], expect=ANY)
        (folder / "b.jsonl").unlink()
        assert await self.faults(path, folder) == []
        assert starts == [3]


ERASING = {
    "erase",
    "erase_subject",
    "has_unreadable_streams",
    "is_key_destroyed",
    "purge",
    "subject_key_id",
    "subject_streams",
}


class TestViewsOverAMirroredLog:
    async def test_they_are_followed_built_checked_and_read(self, path: Path, folder: Path) -> None:
        view = SqliteView(Counts())
        async with mirrored(eventlog.open(path), TranscriptMirror(folder, streams="")) as log:
            assert isinstance(log, MirroredDatabaseLog)
            await log.append("a", [note(), note()], expect=ANY)
            async with ProjectionRunner(log, [view]) as runner:
                result = await log.append("b", [note()], expect=ANY)
                await runner.wait_for("counts", result.last_position)
            assert (await rebuild_view(log, view)).position == 3
            checked = await check_view(log, view)
            assert checked is not None and (checked.rows, checked.differing) == (2, 0)
            assert await log.look(view.count) == await log.read_view(view.count) == 2
            async with ViewFile(path.parent / "v.db", log) as place:
                assert (await rebuild_view(place, view)).position == 3
            assert await log.backup(path.parent / "copy.db") == 3
            assert await log.check_file() == []
            assert await faults_in(log, folder) == []

    async def test_a_consumer_writes_beside_the_log(self, path: Path, folder: Path) -> None:
        def handle(connection: Any, event: Any) -> None:
            connection.execute("INSERT INTO letters VALUES (?)", (event.position,))

        async with mirrored(eventlog.open(path), TranscriptMirror(folder, streams="")) as log:
            await log.create_table("CREATE TABLE letters (position INTEGER)")
            result = await log.append("a", [note(), note()], expect=ANY)
            consumer = Consumer(log, "letters", handle)
            task = asyncio.create_task(consumer.run())
            await consumer.wait_for(result.last_position)
            task.cancel()
            await asyncio.wait({task})
            assert await log.look(lambda connection: connection.execute("SELECT * FROM letters").fetchall()) == [
                (1,),
                (2,),
            ]

    async def test_a_run_is_compared_with_its_row(self, path: Path, folder: Path) -> None:
        view = runs_view()
        async with mirrored(eventlog.open(path, views=[view]), TranscriptMirror(folder)) as log:
            table = RunsTable(log, view)
            runner = Runner(log, actions=[WriteFile(name="write")], view=table)
            await runner.propose("run-1", propose("write", {"content": "x"}, str(path.parent / "out")))
            assert [row["run_id"] for row in await table.page()] == ["run-1"]
            assert await faults_in(log, folder, "run:") == []

    async def test_all_that_a_log_in_a_database_can_do_is_handed_on(self, path: Path, folder: Path) -> None:
        public = {name for name in dir(SqliteLog) if not name.startswith("_")}
        assert public - set(dir(MirroredDatabaseLog)) == ERASING, "an erasure has to reach the mirror too, and cannot"

    async def test_a_log_in_memory_keeps_no_such_views(self, folder: Path) -> None:
        async with mirrored(eventlog.open("memory:"), TranscriptMirror(folder, streams="")) as log:
            await log.append("a", [NewEvent("noted", 1)], expect=ANY)
            assert not hasattr(log, "scan_of") and not hasattr(log, "write_view")

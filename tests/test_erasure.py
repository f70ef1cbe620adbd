"""Erasure: the words are gone from every file of the log, every proof goes on to hold, and a crash is finished."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.audit.erasure import STEPS, Erasure, erase, plan_erasure
from eventlog.audit.export import SPELLINGS, Selection, exported, selected, spelling
from eventlog.audit.verify import verify
from eventlog.codec import REGISTRY
from eventlog.errors import (
    CommitOutcomeUnknown,
    EventLogError,
    InvalidInput,
    LogCorrupt,
    Misuse,
    Refused,
    StoreUnavailable,
)
from eventlog.events import run_stream
from eventlog.log import RecordedEvent, Redacted, Snapshot
from eventlog.merkle import is_consistent, is_included
from eventlog.stores import SqliteLog
from eventlog.stores.erased_artifacts import ErasedArtifacts
from eventlog.stores.sqlite import whole
from projections import MemoryView, RebuildableViews, TranscriptMirror, built_in_views, check_view, mirrored
from projections.memory_views import narrowed
from projections.sqlite_views.build_lock import exclusive
from tests import erasure_scene
from tests.command_line import edit
from tests.erasure_scene import (
    BASIS,
    MARKS,
    NOTES,
    family,
    files_of,
    found_in,
    known,
    one_action,
    record,
    runner_on,
    views,
)
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import assert_whole, open_file

ANY: Final = Expect.any()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


async def erase_all(log: SqliteLog) -> list[Erasure]:
    """Erase everything that the scene has recorded."""
    return [
        await erase(log, run="family-1", legal_basis=BASIS, views=known(log)),
        await erase(log, run="act-1", legal_basis=BASIS, views=known(log)),
        await erase(log, stream="notes-1", legal_basis=BASIS, views=known(log)),
    ]


async def erase_notes(log: SqliteLog, **more: Any) -> Erasure:
    return await erase(log, stream="notes-1", legal_basis=BASIS, **{"views": known(log), **more})


async def add_notes(log: SqliteLog, count: int = 3, size: int = 1) -> list[NewEvent]:
    notes = [NewEvent("noted", {"text": MARKS["note"] * size}) for _ in range(count)]
    await log.append("notes-1", notes, expect=ANY)
    return notes


async def written_as(log: SqliteLog, form: str) -> bytes:
    """Return an export of the whole log in this format."""
    made = spelling(form)
    data = made.begin()
    async with aclosing(selected(log, Selection(up_to=(await log.head()).position), REGISTRY)) as events:
        async for event in events:
            data += made.add(exported(event, log_id=log.facts.log_id_at(event.position), registry=REGISTRY))
    return data + made.end()


class TestNothingIsLeft:
    async def test_every_marker_is_there_before(self, path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await record(log)
            found = found_in(files_of(path))
        assert {each.split(" in ")[0] for each in found} == set(MARKS.values())
        assert any("log.db-wal" in each for each in found)

    async def test_no_byte_of_any_marker_is_left_in_any_file(self, path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await record(log)
            await log.save_snapshot(run_stream("family-1"), Snapshot(2, MARKS["step"].encode()))
            done = await erase_all(log)
            assert found_in(files_of(path)) == []
            assert [each.is_complete for each in done] == [True, True, True]
            assert [len(each.artifacts) for each in done] == [2, 0, 0]
            assert await log.snapshot_streams() == []
            for view in views():
                checked = await check_view(log, view)
                assert checked is not None
                assert (checked.differing, checked.position) == (0, checked.head), view.name
            await assert_whole(log)
        assert found_in(files_of(path)) == []

    @pytest.mark.parametrize("form", [name for name in SPELLINGS if name != "parquet"])
    async def test_a_new_export_has_none_and_says_so(self, path: Path, form: str) -> None:
        async with open_file(path) as log:
            await record(log)
            before = await written_as(log, form)
            await erase_all(log)
            after = await written_as(log, form)
        assert all(mark.encode() in before for name, mark in MARKS.items() if name not in ("large", "signal"))
        assert not any(mark.encode() in after for mark in MARKS.values())
        assert after.count(b"erased") >= (before.count(b"\n") - 2)

    async def test_without_the_checkpoint_the_write_ahead_log_has_them_still(self, path: Path) -> None:
        async with open_file(path) as log:
            notes = await add_notes(log)
            await log.erase(range(1, len(notes) + 1), legal_basis=BASIS)
            assert found_in(files_of(path)) == [f"{MARKS['note']} in log.db-wal"]
            await erase_notes(log)
            assert found_in(files_of(path)) == []

    async def test_without_secure_delete_the_database_has_them_still(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log, size=500)
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA secure_delete=OFF")
            database.execute("UPDATE events SET body = NULL, salt = NULL")
            database.commit()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert found_in(files_of(path)) == [f"{MARKS['note']} in log.db"]

    async def test_what_an_interrupted_build_and_an_exchange_have_kept_goes_too(self, path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await record(log)
        edit(path, "CREATE TABLE timeline__g99 (said TEXT)")
        edit(path, "INSERT INTO timeline__g99 VALUES (?)", MARKS["note"])
        edit(
            path,
            "INSERT INTO views (name, state, revision, position, generation, shape)"
            " SELECT name, 'kept', revision, position, 99, shape FROM views WHERE name = 'timeline'",
        )
        async with open_file(path) as log:
            assert MARKS["note"] in str(found_in(files_of(path)))
            await erase_all(log)
        assert found_in(files_of(path)) == []

    async def test_rows_that_go_one_after_the_other_leave_nothing_in_the_gaps(self, path: Path) -> None:
        """Pages are put in order when rows around shrink; what is moved must not stay behind where it was."""
        async with open_file(path) as log:
            await log.append("s", [NewEvent("n", {"m": f"<{i:05}>" * (1 + i % 37)}) for i in range(300)], expect=ANY)
            for first in (7, 3, 11, 0, 5, 9, 1, 8, 2, 10, 4, 6):
                gone = range(1 + first, 301, 12)
                await log.erase(gone, legal_basis=BASIS)
                await log.purge()
                assert found_in([path], [f"<{position - 1:05}>" for position in gone]) == []


class TestProofs:
    async def test_every_proof_made_before_verifies_and_every_root_is_what_it_was(self, path: Path) -> None:
        async with open_file(path) as log:
            await record(log)
            size = (await log.head()).position
            leaves = [event.leaf async for event in log.read_all()]
            roots = [(await log.tree_head(each)).root for each in range(1, size + 1)]
            inclusion = [await log.prove_inclusion(position, size) for position in range(1, size + 1)]
            consistency = [await log.prove_consistency(old, size) for old in range(1, size + 1)]
            await erase_all(log)
            assert [event.leaf async for event in log.read_all(limit=size)] == leaves
            assert [(await log.tree_head(each)).root for each in range(1, size + 1)] == roots
            now = await log.tree_head()
            for index, leaf in enumerate(leaves):
                assert is_included(index, leaf, size, roots[-1], inclusion[index])
                assert is_consistent(index + 1, roots[index], size, roots[-1], consistency[index])
                proof = await log.prove_inclusion(index + 1, now.size)
                assert is_included(index, leaf, now.size, now.root, proof)

    async def test_verify_says_erased_and_finds_nothing_wrong(self, path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await record(log)
            done = await erase_all(log)
            verdicts = await verify(log, artifacts=log.artifacts)
        assert not verdicts.is_damaged
        assert (verdicts.integrity.verdict, verdicts.erasures.verdict) == ("ok", "ok")
        assert verdicts.erasures.details["erased"] == sum(each.erased for each in done)

    async def test_a_row_that_is_emptied_by_hand_is_lost(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log)
            await log.erase([1], legal_basis=BASIS)
        edit(path, "UPDATE events SET body = NULL, salt = NULL WHERE position = 2")
        async with open_file(path) as log:
            verdicts = await verify(log)
            with pytest.raises(LogCorrupt) as caught:
                [event async for event in log.read("notes-1")]
        assert (verdicts.erasures.verdict, caught.value.reason) == ("damaged", "body_missing")


class TestRefusals:
    async def refused(self, log: Any, code: str, **what: Any) -> EventLogError:
        """Assert that this is refused, and that nothing was written."""
        before = (await log.head()).position
        with pytest.raises(EventLogError) as caught:
            await erase(log, legal_basis=BASIS, **{"views": known(log), **what})
        assert caught.value.code == code
        assert (await log.head()).position == before
        return caught.value

    async def test_a_run_that_has_not_ended(self, path: Path) -> None:
        async with open_file(path) as log:
            await runner_on(log).start(family, "family-1", "x")
            await runner_on(log).propose("act-1", eventlog.propose("send", {}, "x"))
            for what in ({"run": "family-1"}, {"stream": "run:act-1"}, {"positions": [1]}):
                error = await self.refused(log, "run_open", **what)
            assert "family-1" in str(error)
            assert "cancel" in error.hint
            await runner_on(log).cancel("act-1")
            assert (await erase(log, run="act-1", legal_basis=BASIS, views=known(log))).is_complete

    async def test_a_child_whose_parent_goes_on_from_what_it_came_to(self, path: Path) -> None:
        @eventlog.workflow
        async def parent(run: eventlog.RunContext) -> None:
            await run.child(erasure_scene.child, "x")
            await run.wait_for_signal("go")

        async with open_file(path) as log:
            runner = eventlog.Runner(log, workflows=[parent, erasure_scene.child])
            await runner.start(parent, "p")
            (name,) = [each.run_id for each in (await runner.state("p")).progress.children.values()]
            error = await self.refused(log, "run_open", run=name)
            assert error.details["run_id"] == "p"
            await runner.signal("p", "go")
            await runner.resume("p")
            done = await erase(log, run=name, legal_basis=BASIS, views=known(log))
            assert set(done.streams) == {run_stream(name), run_stream("p")}

    async def test_a_view_that_nobody_here_knows(self, path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await add_notes(log)
        async with open_file(path) as log:
            shipped = RebuildableViews(log, built_in_views())
            error = await self.refused(log, "view_unknown_here", stream="notes-1", views=shipped)
            assert error.details["views"] == ["notes"]
            done = await erase_notes(log, views=shipped, drop_unknown_views=True)
            assert done.dropped_views == ("notes",)
        assert found_in(files_of(path)) == []

    async def test_a_view_whose_rows_lie_under_another_name_is_not_dropped_in_appearance_only(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log)
        edit(path, "INSERT INTO views (name, state, revision, position, shape) VALUES ('orders', 'live', 1, 1, '')")
        async with open_file(path) as log:
            await self.refused(log, "view_unknown_here", stream="notes-1")
            error = await self.refused(log, "view_unknown_here", stream="notes-1", drop_unknown_views=True)
            assert "not under that name" in str(error)

    async def test_what_is_not_there_and_what_is_about_the_log(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log)
            await log.erase([1], legal_basis=BASIS)
            await self.refused(log, "invalid_argument", positions=[5])
            await self.refused(log, "invalid_argument", positions=[2**70])
            await self.refused(log, "invalid_argument", positions=["1"])
            await self.refused(log, "invalid_argument", positions=[])
            await self.refused(log, "invalid_argument", stream="nobody")
            await self.refused(log, "invalid_argument")
            await self.refused(log, "invalid_argument", stream="notes-1", run="x")
            await self.refused(log, "unknown_run", run="nobody")
            await self.refused(log, "not_erasable", positions=[4])
            await self.refused(log, "not_erasable", stream="$log")
            with pytest.raises(InvalidInput):
                await erase(log, stream="notes-1", legal_basis=" ", views=known(log))

    async def test_what_the_log_itself_refuses_to_whoever_asks_without_a_plan(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log)
            await log.erase([1], legal_basis=BASIS)
            for position, code in ((0, "invalid_argument"), (5, "invalid_argument"), (4, "not_erasable")):
                with pytest.raises(EventLogError) as caught:
                    await log.erase([2, position], legal_basis=BASIS)
                assert caught.value.code == code
            with pytest.raises(InvalidInput) as missing:
                await log.erase([2], legal_basis=None)  # type: ignore[arg-type]
            assert missing.value.path == "$.legal_basis"
            assert [event.redacted async for event in log.read("notes-1")] == ["erased", None, None]

    async def test_a_log_that_is_only_read(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log)
        async with open_file(path, is_read_only=True) as log:
            for asked in (log.erase([1], legal_basis=BASIS), log.purge()):
                with pytest.raises(StoreUnavailable) as caught:
                    await asked
                assert caught.value.code == "store_readonly"

    async def test_a_log_with_a_mirror_and_one_in_memory(self, path: Path, tmp_path: Path) -> None:
        async with open_file(path) as log, mirrored(log, TranscriptMirror(tmp_path / "mirror")) as twin:
            await self.refused(twin, "erasure_unsupported", stream="notes-1", views=known(log))
        async with eventlog.open("memory:") as memory:
            with pytest.raises(Misuse) as caught:
                await erase(memory, stream="x", legal_basis=BASIS, views=None)  # type: ignore[arg-type]
        assert caught.value.code == "erasure_unsupported"

    async def test_a_run_that_goes_on_in_the_same_moment(self, path: Path) -> None:
        """It is asked whether it has ended when its bodies go, not only before."""
        async with open_file(path) as log:
            await one_action(log)
            plan = await plan_erasure(log, run="act-1", views=known(log))
            await runner_on(log).resume("act-1")
            with pytest.raises(eventlog.WrongExpectedVersion):
                await log.erase(plan.scope.positions, legal_basis=BASIS, checks=plan.scope.checks)
            assert not [event async for event in log.read("run:act-1") if event.redacted is not None]


class TestRepeats:
    async def test_erasing_twice_is_the_same_as_once(self, path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await record(log)
            first = await erase(log, run="family-1", legal_basis=BASIS, views=known(log))
            head = await log.head()
            second = await erase(log, run="family-1", legal_basis="another", views=known(log))
            assert await log.head() == head
        assert (second.erased, second.already) == (0, first.erased)
        assert second.is_complete

    @pytest.mark.campaign
    @pytest.mark.parametrize("step", STEPS)
    async def test_whatever_kills_it_the_next_call_ends_it(self, path: Path, step: str) -> None:
        async with open_file(path, views=views()) as log:
            await record(log)
        killed = child.run(erasure_scene.erase_and_die, path, step)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert bool(found_in(files_of(path), [MARKS["large"]])) is (step in ("noted", "erased"))
        async with open_file(path, views=views()) as log:
            done = await erase(log, run="family-1", legal_basis=BASIS, views=known(log))
            assert done.is_complete
            assert (done.erased > 0) is (step == "noted")
            assert (len(done.artifacts) == 2) is (step in ("noted", "erased"))
            assert not (await verify(log, artifacts=log.artifacts)).is_damaged
            assert list(Path(f"{path}.artifacts").glob("erasing-*")) == []
            await erase(log, run="act-1", legal_basis=BASIS, views=known(log))
            await erase_notes(log)
        assert found_in(files_of(path)) == []

    @pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "not kept"])
    async def test_bodies_whose_commit_gives_no_answer_are_erased_once_or_not_at_all_and_nobody_is_told_otherwise(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
    ) -> None:
        def gives_no_answer(connection: sqlite3.Connection) -> None:
            connection.execute("COMMIT" if is_kept else "ROLLBACK")
            raise whole._InDoubt("there was no answer")

        async with open_file(path) as log:
            await add_notes(log)
            with monkeypatch.context() as patch:
                patch.setattr(whole, "_commit", gives_no_answer)
                if is_kept:
                    assert [each.position for each in await log.erase([1, 2], legal_basis=BASIS)] == [1, 2]
                else:
                    with pytest.raises(CommitOutcomeUnknown, match="there was no answer"):
                        await log.erase([1, 2], legal_basis=BASIS)
            erased = ["erased", "erased", None] if is_kept else [None, None, None]
            assert [event.redacted async for event in log.read("notes-1")] == erased
            types = [event.type async for event in log.read("$log")]
            assert types.count("payload_erased") == 2 * is_kept
            assert "barrier_recorded" in types
            await assert_whole(log)

    async def test_an_artifact_that_another_run_names_stays_until_that_goes_too(self, path: Path) -> None:
        async with open_file(path) as log:
            await record(log)
            await runner_on(log).start(family, "family-2", "x")
            first = await erase(log, run="family-1", legal_basis=BASIS, views=known(log))
            assert (len(first.artifacts), len(first.kept_artifacts)) == (1, 1)
            await runner_on(log).cancel("family-2")
            assert not (await verify(log, artifacts=log.artifacts)).is_damaged
            second = await erase(log, run="family-2", legal_basis=BASIS, views=known(log))
            assert second.artifacts == first.kept_artifacts

    async def test_what_a_killed_writer_has_left_beside_the_artifacts_goes_too(self, path: Path) -> None:
        async with open_file(path) as log:
            await record(log)
            left = next(Path(f"{path}.artifacts").iterdir()) / ".0123.tmp"
            left.write_text(MARKS["large"])
            await erase_all(log)
            assert not left.exists()


class TestArtifacts:
    DIGEST: Final = "ab" * 32

    def test_what_lies_by_the_name_of_an_artifact_and_is_no_file_is_removed_and_not_written_to(
        self, tmp_path: Path
    ) -> None:
        place = tmp_path / "ab" / self.DIGEST
        place.parent.mkdir()
        os.mkfifo(place)
        reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert ErasedArtifacts(str(tmp_path)).erase([self.DIGEST]) == [self.DIGEST]
            assert os.read(reader, 1) == b""
        finally:
            os.close(reader)
        assert not os.path.lexists(place)

    def test_a_note_that_another_erasure_removes_meanwhile_names_nothing_any_more(self, tmp_path: Path) -> None:
        erased = ErasedArtifacts(str(tmp_path))
        erased.note([self.DIGEST])
        (tmp_path / f"erasing-{'0' * 16}").symlink_to("gone")  # it is listed, and not there when it is opened
        assert erased.noted() == {self.DIGEST}


class TestBesideOthers:
    async def test_a_reader_keeps_a_copy_and_the_answer_says_so(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.stores.sqlite.erasing._PURGES", 2)
        async with open_file(path) as log:
            await add_notes(log)
            with closing(sqlite3.connect(path)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM events").fetchone()
                done = await erase_notes(log)
                assert (done.is_purged, done.is_complete) == (False, False)
                assert found_in(files_of(path)) != []
            assert (await erase_notes(log)).is_complete
            assert found_in(files_of(path)) == []

    async def test_another_process_appends_and_reads_meanwhile(self, path: Path, tmp_path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await record(log)
        other = child.start(erasure_scene.append_until, path, tmp_path / "stop")
        async with open_file(path, views=views()) as log:
            async with aclosing(log.subscribe(streams=["others"])) as events:
                await anext(events)  # so that the other is at work
            for run in ("family-1", "act-1"):
                await erase(log, run=run, legal_basis=BASIS, views=known(log))
            await erase_notes(log)
            (tmp_path / "stop").touch()
            out, err = await asyncio.to_thread(other.communicate, timeout=60)
            assert other.returncode == 0, err
            assert (await log.purge(), found_in(files_of(path))) == (True, [])
            assert not (await verify(log, artifacts=log.artifacts)).is_damaged
            assert len([event async for event in log.read("others")]) == int(out.split()[-1])

    async def test_a_view_that_is_being_built_elsewhere_is_told_and_built_by_the_next_call(self, path: Path) -> None:
        async with open_file(path, views=views()) as log:
            await add_notes(log)
            async with exclusive(log.place, "notes-build", waits=False):
                done = await erase_notes(log)
            assert (list(done.failed_views), done.is_complete) == (["notes"], False)
            assert "view_busy" in done.failed_views["notes"]
            assert found_in(files_of(path)) != []
            assert (await erase_notes(log)).is_complete
        assert found_in(files_of(path)) == []


class TestReaders:
    async def test_a_retried_append_of_what_is_erased_is_a_duplicate(self, path: Path) -> None:
        async with open_file(path) as log:
            notes = await add_notes(log)
            await erase_notes(log)
            again = await log.append("notes-1", notes, expect=Expect.no_stream())
            assert (again.deduplicated, again.version, again.first_position) == (True, 3, 1)
            assert found_in(files_of(path)) == []

    async def test_a_fold_passes_over_it_and_knows_the_version(self, path: Path) -> None:
        def count(state: int, event: RecordedEvent) -> int:
            return state + len(event.data["text"])

        async with open_file(path) as log:
            await add_notes(log)
            await erase(log, positions=[2], legal_basis=BASIS, views=known(log))
            state, version = await eventlog.fold(log, "notes-1", lambda: 0, count)
        assert (state, version) == (2 * len(MARKS["note"]), 3)

    async def test_readers_and_subscribers_are_given_it_and_move_on(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log)
            await erase_notes(log)
            await log.append("notes-1", [NewEvent("noted", {"text": "new"})], expect=Expect.at(3))
            for read in (log.read("notes-1"), log.read_all(types=["noted"]), log.subscribe(types=["noted"])):
                seen = []
                async with aclosing(read) as events:
                    async for event in events:
                        assert isinstance(event, RecordedEvent)
                        seen.append((event.version, event.redacted, event.data))
                        if event.version == 4:
                            break
                gone = Redacted("erased")
                assert seen == [
                    (1, "erased", gone),
                    (2, "erased", gone),
                    (3, "erased", gone),
                    (4, None, {"text": "new"}),
                ]

    async def test_a_consumer_moves_over_it_with_and_without_a_filter(self, path: Path) -> None:
        handled: dict[str, list[int]] = {"all": [], "one": []}

        async with open_file(path) as log:
            await add_notes(log)
            await log.append("others", [NewEvent("counted", {"n": 1})], expect=ANY)
            await add_notes(log)
            await erase(log, positions=[2, 3, 5], legal_basis=BASIS, views=known(log))
            head = (await log.head()).position
            for name, types in (("all", None), ("one", ["noted"])):
                async with aclosing(log.subscribe(types=types, marks=True)) as items:
                    async for item in items:
                        if isinstance(item, RecordedEvent):
                            handled[name].append(item.position)
                        elif item.position == head:
                            break
        assert handled == {"all": [*range(1, 11)], "one": [1, 2, 3, 5, 6, 7]}

    async def test_a_view_in_memory_passes_over_it(self, path: Path) -> None:
        async with open_file(path) as log:
            await add_notes(log)
            await erase(log, positions=[2], legal_basis=BASIS, views=known(log))
            view = MemoryView(NOTES)
            async for event in log.read_all(limit=3):
                view.apply(narrowed(event, view.selection, REGISTRY), event.position)
        assert [row["said"] for row in view] == [2 * MARKS["note"]]

    async def test_a_run_is_folded_to_the_same_end_and_answers_as_before(self, path: Path) -> None:
        async with open_file(path) as log:
            await record(log)
            runner = runner_on(log)
            before = [await runner.state(name) for name in ("family-1", "act-1")]
            await erase_all(log)
            for old in before:
                now = await runner.state(old.run_id)
                same = ("status", "version", "op_key", "proposal_hash", "approval_hash", "attempts", "epoch")
                assert [getattr(now, name) for name in same] == [getattr(old, name) for name in same]
                assert (await runner.resume(old.run_id)).result == "already_completed"

    async def test_a_failed_run_does_not_go_on_from_nothing(self, path: Path) -> None:
        calls = []

        @eventlog.workflow
        async def fails(run: eventlog.RunContext, said: str) -> None:
            calls.append(said)
            raise ValueError(said)

        async with open_file(path) as log:
            runner = eventlog.Runner(log, workflows=[fails])
            await runner.start(fails, "f", MARKS["input"])
            await erase(log, run="f", legal_basis=BASIS, views=known(log))
            with pytest.raises(Refused) as caught:
                await runner.resume("f")
            assert caught.value.code == "run_erased"
        assert calls == [MARKS["input"]]

    async def test_a_transcript_is_built_again_without_it(self, path: Path, tmp_path: Path) -> None:
        mirror = TranscriptMirror(tmp_path / "mirror")
        async with open_file(path) as log:
            async with mirrored(log, mirror) as twin:
                await one_action(twin)  # type: ignore[arg-type]
            await erase(log, run="act-1", legal_basis=BASIS, views=known(log))
            for transcript in (tmp_path / "mirror").glob("*.jsonl"):
                transcript.unlink()
            await mirror.repair(log)
        assert len(list((tmp_path / "mirror").glob("*.jsonl"))) == 1
        assert found_in(each for each in (tmp_path / "mirror").rglob("*") if each.is_file()) == []

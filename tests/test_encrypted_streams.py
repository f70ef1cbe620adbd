"""Streams about a subject: encrypted from their first event, read with the key, and gone with it."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.audit.erasure import STEPS, erase, erase_subject
from eventlog.audit.verify import verify
from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, Refused, StoreUnavailable
from eventlog.log import Append, Redacted, Snapshot
from eventlog.runtime import tools
from eventlog.runtime.worker import Worker
from eventlog.sealed import parse_sealed
from eventlog.stores import SqliteLog
from eventlog.stores.subject_keys import SubjectKeys, seal_body
from projections import RUNS, SqliteView, check_view
from tests import erasure_scene
from tests.erasure_scene import (
    BASIS,
    MARKS,
    family,
    files_of,
    found_in,
    keys_in,
    known,
    record,
    runner_on,
    views,
)
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()
SAID: Final = MARKS["note"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def keys(tmp_path: Path) -> SubjectKeys:
    return keys_in(tmp_path)


@pytest.fixture
async def log(path: Path, keys: SubjectKeys) -> AsyncIterator[SqliteLog]:
    async with open_file(path, subject_keys=keys) as log:
        yield log


async def note(log: SqliteLog, subject: str | None = "ann", stream: str = "notes-1", text: str = SAID) -> None:
    await log.append(stream, [NewEvent("noted", {"text": text})], expect=ANY, subject=subject)


def edit_without_triggers(path: Path, statement: str, *arguments: Any) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TRIGGER events_update")
        assert database.execute(statement, arguments).rowcount == 1
        database.commit()


class TestReading:
    async def test_with_the_key_in_clear_and_without_it_not_at_all(
        self, log: SqliteLog, path: Path, keys: SubjectKeys
    ) -> None:
        await note(log)
        await note(log, None)
        assert [event.data async for event in log.read("notes-1")] == [{"text": SAID}] * 2
        assert found_in(files_of(path)) == []
        async with open_file(path, is_read_only=True) as blind:
            seen = [(event.redacted, event.data) async for event in blind.read_all()]
            assert not (await verify(blind)).is_damaged
        assert seen == [("key_missing", Redacted("key_missing"))] * 2

    async def test_another_folder_of_keys_has_none_of_this_log(
        self, log: SqliteLog, path: Path, tmp_path: Path
    ) -> None:
        await note(log)
        others = SubjectKeys(tmp_path / "others", wrapping_key=b"o" * 32)
        async with open_file(path, subject_keys=others, is_read_only=True) as blind:
            assert [event.redacted async for event in blind.read_all()] == ["key_missing"]

    async def test_a_key_that_is_another_is_found_out(
        self, log: SqliteLog, path: Path, keys: SubjectKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await note(log)
        await note(log, "ben", "notes-2")
        wrong, _ = keys.key_for("ben", may_create=False)
        monkeypatch.setattr(SubjectKeys, "key", lambda self, key_id: b"x" * 32 if key_id != wrong else None)
        with pytest.raises(LogCorrupt) as caught:
            [event async for event in log.read("notes-1")]
        assert caught.value.reason == "body_unreadable"

    async def test_after_destruction_nothing_reads_it_and_nothing_can_be_added(self, log: SqliteLog) -> None:
        await note(log)
        leaves = [event.leaf async for event in log.read_all()]
        await log.erase_subject("ann", legal_basis=BASIS)
        (event,) = [event async for event in log.read("notes-1")]
        assert (event.redacted, event.data) == ("subject_erased", Redacted("subject_erased"))
        assert [each.leaf async for each in log.read_all(limit=1)] == leaves
        with pytest.raises(Refused) as caught:
            await note(log, None)
        assert caught.value.code == "subject_erased"
        with pytest.raises(Refused) as caught:
            await note(log, "ann", "notes-2")
        assert caught.value.code == "subject_erased"
        assert (await verify(log)).erasures.details["subject_erased"] == 1


class TestWriting:
    async def test_without_the_keys_nothing_is_written(self, log: SqliteLog, path: Path) -> None:
        await note(log)
        head = await log.head()
        async with open_file(path) as blind:
            for stream, subject in (("notes-1", None), ("notes-2", "ann")):
                with pytest.raises(StoreUnavailable) as caught:
                    await note(blind, subject, stream)
                assert caught.value.code == "subject_key_missing"
                assert "--subject-keys" in caught.value.hint
            await note(blind, None, "others")
        assert (await log.head()).position == head.position + 1

    async def test_no_snapshot_of_it_is_saved_which_would_outlive_its_key(self, log: SqliteLog) -> None:
        await note(log)
        await note(log, None, "clear")
        for stream in ("notes-1", "clear"):
            await log.save_snapshot(stream, Snapshot(1, SAID.encode()))
        assert await log.snapshot_streams() == ["clear"]

    async def test_with_the_keys_of_others_nothing_is_added_to_it(self, log: SqliteLog, path: Path) -> None:
        await note(log)
        async with open_file(path, subject_keys=keys_in(path.parent / "others")) as stranger:
            with pytest.raises(StoreUnavailable) as caught:
                await note(stranger, None)
            assert caught.value.code == "subject_key_missing"

    async def test_an_older_copy_takes_nothing_about_a_subject_whose_key_is_destroyed_by_now(
        self, log: SqliteLog, path: Path, keys: SubjectKeys
    ) -> None:
        """The copy does not say that it was; the folder of the keys does."""
        await note(log)
        await log.backup(path.with_name("copy.db"))
        await log.erase_subject("ann", legal_basis=BASIS)
        async with open_file(path.with_name("copy.db"), subject_keys=keys) as copy:
            with pytest.raises(Refused) as caught:
                await note(copy, None)
            assert caught.value.code == "subject_erased"

    async def test_a_stream_keeps_the_subject_it_began_with(self, log: SqliteLog) -> None:
        await note(log)
        await note(log, None, "clear")
        for subject, stream in (("ben", "notes-1"), ("ann", "clear")):
            with pytest.raises(InvalidInput) as caught:
                await note(log, subject, stream)
            assert caught.value.path == "$.subject"
        await note(log, "ann")

    async def test_a_refused_batch_leaves_no_key_behind_for_what_comes_next(self, log: SqliteLog, path: Path) -> None:
        await note(log, "ben", "of-ben")
        await log.erase_subject("ben", legal_basis=BASIS)
        first, second = ([NewEvent("noted", {"text": SAID})] for _ in range(2))
        with pytest.raises(Refused):
            await log.append_many([Append("fresh", first, ANY, "ann"), Append("more-of-ben", second, ANY, "ben")])
        await note(log, None, "fresh", "in clear")
        assert found_in(files_of(path), ["in clear"]) != []

    async def test_a_new_stream_shares_the_subject_of_another(self, log: SqliteLog, path: Path) -> None:
        await note(log)
        event = [NewEvent("noted", {"text": SAID})]
        await log.append_many([Append("notes-2", event, ANY, subject_of="notes-1")])
        await log.append_many([Append("clear", [NewEvent("noted", {})], ANY, subject_of="nobody")])
        assert await log.subject_streams("ann") == ["notes-1", "notes-2"]
        assert [await log.is_sealed(name) for name in ("notes-1", "notes-2", "clear")] == [True, True, False]
        assert found_in(files_of(path)) == []

    async def test_a_retried_append_is_a_duplicate_with_and_without_the_key(self, log: SqliteLog) -> None:
        event = NewEvent("noted", {"text": SAID})
        await log.append("notes-1", [event], expect=Expect.no_stream(), subject="ann")
        again = await log.append("notes-1", [event], expect=Expect.no_stream(), subject="ann")
        assert again.deduplicated
        await log.erase_subject("ann", legal_basis=BASIS)
        assert (await log.append("notes-1", [event], expect=Expect.no_stream())).deduplicated


class TestDamage:
    async def damage(self, path: Path, keys: SubjectKeys, change: Callable[[bytes], bytes], at: int = 1) -> str:
        """Change the stored body at a position, and return how reading it fails."""
        with closing(sqlite3.connect(path)) as database:
            (stored,) = database.execute("SELECT body FROM events WHERE position = ?", (at,)).fetchone()
        edit_without_triggers(path, "UPDATE events SET body = ? WHERE position = ?", change(stored), at)
        async with open_file(path, subject_keys=keys, is_read_only=True) as log:
            assert (await verify(log)).is_damaged
            with pytest.raises(LogCorrupt) as caught:
                [event async for event in log.read_all()]
        return caught.value.reason

    async def test_a_body_that_is_moved_to_another_row_is_refused(self, path: Path, keys: SubjectKeys) -> None:
        async with open_file(path, subject_keys=keys) as log:
            await note(log)
            await note(log, text="b" * len(SAID))
        with closing(sqlite3.connect(path)) as database:
            (other,) = database.execute("SELECT body FROM events WHERE position = 2").fetchone()
        assert await self.damage(path, keys, lambda _: bytes(other)) == "body_unreadable"

    async def test_a_layout_that_nobody_knows_is_refused(self, path: Path, keys: SubjectKeys) -> None:
        async with open_file(path, subject_keys=keys) as log:
            await note(log)
        assert await self.damage(path, keys, lambda stored: b"\2" + stored[1:]) == "body_unreadable"

    async def test_every_byte_of_a_sealed_body_is_bound(self, path: Path, keys: SubjectKeys) -> None:
        """With the key and without it: the leaf commits to the stored bytes, whoever can read them."""
        async with open_file(path, subject_keys=keys) as log:
            await note(log)
        with closing(sqlite3.connect(path)) as database:
            (stored,) = database.execute("SELECT body FROM events").fetchone()
            database.execute("DROP TRIGGER events_update")
            database.commit()
        async with (
            open_file(path, subject_keys=keys, is_read_only=True) as log,
            open_file(path, is_read_only=True) as blind,
        ):
            for at in range(len(stored)):
                changed = bytearray(stored)
                changed[at] ^= 1 << (at % 8)
                with closing(sqlite3.connect(path)) as database:
                    database.execute("UPDATE events SET body = ?", (bytes(changed),))
                    database.commit()
                for reader in (log, blind):
                    with pytest.raises(LogCorrupt):
                        [event async for event in reader.read_all()]
            with closing(sqlite3.connect(path)) as database:
                database.execute("UPDATE events SET body = ?", (stored,))
                database.commit()
            assert [event.data async for event in log.read_all()] == [{"text": SAID}]


class TestRuns:
    async def test_nothing_of_a_run_lies_in_clear_beside_its_views(self, log: SqliteLog, path: Path) -> None:
        await record(log, subject="ann")
        assert found_in(files_of(path)) == []
        assert not os.path.exists(f"{path}.artifacts")
        assert set(await log.subject_streams("ann")) == {"run:family-1", "run:family-1/child", "run:act-1", "notes-1"}
        assert await log.snapshot_streams() == []
        assert (await runner_on(log).resume("family-1")).value == MARKS["input"] + MARKS["result"]

    async def test_another_process_with_the_keys_goes_on_and_one_without_them_is_told(
        self, path: Path, tmp_path: Path
    ) -> None:
        async with open_file(path, subject_keys=keys_in(tmp_path)) as log:
            await runner_on(log).start(family, "family-1", MARKS["input"], subject="ann")
            await runner_on(log).propose("act-1", eventlog.propose("send", {"a": 1}, "x"), subject="ann")
        async with open_file(path) as blind:
            head = await blind.head()
            runner = runner_on(blind)
            state = await runner.state("act-1")
            assert state.redacted == "key_missing"
            for call in (
                runner.signal("family-1", "go"),
                runner.resume("family-1"),
                runner.resume("act-1"),
                runner.cancel("act-1"),
                runner.approve("act-1", state.proposal_hash or ""),
            ):
                with pytest.raises(EventLogError) as caught:
                    await call
                assert caught.value.code == "subject_key_missing"
            assert await blind.head() == head
        async with open_file(path, subject_keys=keys_in(tmp_path)) as log:
            await runner_on(log).signal("family-1", "go", {"large": MARKS["signal"] * 10_000})
            outcome = await runner_on(log).resume("family-1")
            assert (outcome.status, outcome.run.redacted) == ("COMPLETED", None)
        assert found_in(files_of(path)) == []

    async def test_a_worker_without_the_keys_leaves_it_alone(self, path: Path, keys: SubjectKeys) -> None:
        async with open_file(path, subject_keys=keys) as log:
            await runner_on(log).submit(family, "family-1", "x", subject="ann")
        async with open_file(path) as blind:
            worker = Worker(runner_on(blind))
            await worker.run(until_idle=True)
            assert worker.driven == 0

    async def test_a_value_that_no_event_has_room_for_fails_its_step(
        self, log: SqliteLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tools, "SEALED_BYTES", tools.INLINE_BYTES + 10)

        @eventlog.workflow
        async def large(run: eventlog.RunContext) -> None:
            await run.step("large", lambda: "x" * (tools.INLINE_BYTES + 100))

        runner = eventlog.Runner(log, workflows=[large])
        outcome = await runner.start(large, "l", subject="ann")
        assert (outcome.status, outcome.run.failure is not None) == ("FAILED", True)
        assert "fit into its event" in str(outcome.run.failure)
        assert (await runner.start(large, "m")).status == "COMPLETED"


class TestErasingASubject:
    async def test_nothing_is_left_in_views_and_the_rest_of_the_log_is_as_it_was(
        self, path: Path, keys: SubjectKeys
    ) -> None:
        async with open_file(path, subject_keys=keys, views=views()) as log:
            await record(log, subject="ann")
            await note(log, "ben", "notes-2", "of ben")
            assert found_in(files_of(path)) != []  # views are in clear
            done = await erase_subject(log, "ann", legal_basis=BASIS, views=known(log))
            assert done.is_complete
            assert set(done.rebuilt_views) == {view.name for view in views()}
            assert found_in(files_of(path)) == []
            assert [event.data async for event in log.read("notes-2")] == [{"text": "of ben"}]
            for view in views():
                checked = await check_view(log, view)
                assert checked is not None
                assert checked.differing == 0
            assert not (await verify(log)).is_damaged
            for run_id in ("family-1", "act-1"):
                assert (await runner_on(log).resume(run_id)).result == "already_completed"
            again = await erase_subject(log, "ann", legal_basis="said otherwise", views=known(log))
            assert again.is_complete

    async def test_of_two_logs_with_equal_positions_only_one_changes(self, tmp_path: Path) -> None:
        both = [tmp_path / name for name in ("a", "b")]
        for folder in both:
            folder.mkdir()
            async with open_file(folder / "log.db", subject_keys=keys_in(folder)) as log:
                await note(log)
        before = (both[1] / "log.db").read_bytes()
        async with open_file(both[0] / "log.db", subject_keys=keys_in(both[0])) as log:
            await erase_subject(log, "ann", legal_basis=BASIS, views=known(log))
        assert (both[1] / "log.db").read_bytes() == before
        async with open_file(both[1] / "log.db", subject_keys=keys_in(both[1])) as log:
            assert [event.data async for event in log.read_all()] == [{"text": SAID}]
            assert not (await verify(log)).is_damaged

    async def test_a_crash_between_the_word_and_the_deed_is_ended_by_a_repeat(
        self, log: SqliteLog, keys: SubjectKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await note(log)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no power"):
            patch.setattr(SubjectKeys, "destroy", _fail)
            await log.erase_subject("ann", legal_basis=BASIS)
        assert keys.key_ids() != []
        with pytest.raises(Refused):
            await note(log, None)
        assert (await log.erase_subject("ann", legal_basis=BASIS)).deduplicated
        assert keys.key_ids() == []

    async def test_a_word_that_stands_in_the_log_is_kept_by_whoever_only_reads_it(
        self, log: SqliteLog, path: Path, keys: SubjectKeys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await note(log)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no power"):
            patch.setattr(SubjectKeys, "destroy", _fail)
            await log.erase_subject("ann", legal_basis=BASIS)
        async with open_file(path, subject_keys=keys, is_read_only=True) as reader:
            assert (await reader.erase_subject("ann", legal_basis=BASIS)).deduplicated
        assert keys.key_ids() == []

    async def test_without_the_keys_nobody_is_erased(self, log: SqliteLog, path: Path, keys: SubjectKeys) -> None:
        await note(log)
        async with open_file(path) as blind:
            with pytest.raises(StoreUnavailable) as caught:
                await blind.erase_subject("ann", legal_basis=BASIS)
        assert caught.value.code == "subject_key_missing"
        assert keys.key_ids() != []

    async def test_a_run_of_the_subject_that_has_not_ended(self, log: SqliteLog) -> None:
        await runner_on(log).start(family, "family-1", "x", subject="ann")
        head = await log.head()
        for _ in range(2):
            with pytest.raises(Refused) as caught:
                await erase_subject(log, "ann", legal_basis=BASIS, views=known(log))
            assert (caught.value.code, await log.head()) == ("run_open", head)

    async def test_views_that_need_the_keys_of_others_are_asked_for_before(self, path: Path, keys: SubjectKeys) -> None:
        async with open_file(path, subject_keys=keys, views=views()) as log:
            await note(log, "ben", "notes-2")
            await note(log, None, "clear")
        async with open_file(path) as blind:
            head = await blind.head()
            with pytest.raises(StoreUnavailable) as caught:
                await erase(blind, stream="clear", legal_basis=BASIS, views=known(blind))
            assert (caught.value.code, await blind.head()) == ("subject_key_missing", head)

    async def test_one_event_of_an_encrypted_stream_can_be_erased_alone(self, log: SqliteLog, path: Path) -> None:
        await note(log)
        await note(log, text="second")
        done = await erase(log, positions=[1], legal_basis=BASIS, views=known(log))
        assert done.is_complete
        seen = [(event.redacted, event.data) async for event in log.read("notes-1")]
        assert seen == [("erased", Redacted("erased")), (None, {"text": "second"})]
        assert not (await verify(log)).is_damaged

    @pytest.mark.campaign
    @pytest.mark.parametrize("step", STEPS)
    async def test_whatever_kills_it_the_next_call_ends_it(
        self, path: Path, keys: SubjectKeys, tmp_path: Path, step: str
    ) -> None:
        async with open_file(path, subject_keys=keys, views=views()) as log:
            await record(log, subject="ann")
        killed = child.run(erasure_scene.erase_subject_and_die, path, step)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        async with open_file(path, subject_keys=keys_in(tmp_path), views=views()) as log:
            assert (await erase_subject(log, "ann", legal_basis=BASIS, views=known(log))).is_complete
            assert not (await verify(log)).is_damaged
            async with aclosing(log.read("notes-1")) as events:
                assert (await anext(events)).redacted == "subject_erased"
        assert found_in(files_of(path)) == []


def _fail(*_: object) -> None:
    raise OSError("no power")


def test_a_sealed_body_names_its_key_and_nobody(tmp_path: Path) -> None:
    key_id, _ = keys_in(tmp_path).key_for("ann", may_create=True)
    stored = seal_body(b"k" * 32, key_id, b"", b"s" * 16, b"{}", b"", b"n" * 12)
    assert parse_sealed(stored).key_id == key_id
    assert b"ann" not in stored


async def test_a_backup_holds_nothing_in_clear_of_what_is_encrypted(tmp_path: Path) -> None:
    keys = SubjectKeys(tmp_path / "keys", wrapping_key=bytes(range(32)))
    view = SqliteView(RUNS)
    async with eventlog.open(tmp_path / "log.db", subject_keys=keys, views=[view]) as log:
        proposal = eventlog.propose("write_file", {"content": "THE-MARKER"}, "letter.txt")
        await eventlog.Runner(log).propose("letter-1", proposal, subject="customer-1")
        await log.backup(tmp_path / "copy.db")
        files = [path.read_bytes() for path in (tmp_path / "log.db", tmp_path / "log.db-wal") if path.exists()]
        assert any(b"THE-MARKER" in data for data in files), "the view here has it: the check would see it"
    assert not any(b"THE-MARKER" in path.read_bytes() for path in tmp_path.glob("copy.db*"))
    async with eventlog.open(tmp_path / "copy.db", subject_keys=keys, views=[SqliteView(RUNS)]) as copy:
        rows = await copy.read_view(lambda connection: connection.execute("SELECT args FROM runs").fetchall())
        assert "THE-MARKER" in str(rows), "and is built again with the keys"

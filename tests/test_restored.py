"""A restore that was declared begins a new incarnation of the log, and everybody reads on across it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog import EventLogError, Expect, InvalidInput, LogCorrupt, NewEvent, StoreUnavailable
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.entry import leaf_hash, parse
from eventlog.events import LogRestored
from eventlog.log import Append, RecordedEvent
from eventlog.merkle import is_consistent
from eventlog.stores import SqliteLog
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.testing.clock import FakeClock
from eventlog.testing.log_contract import assert_sound, assert_tree
from projections import RunsTable, runs_view
from tests import tree_scenarios
from tests.effect_runs import Looking, Receiver, approved, runner_of
from tests.signers import MemorySigner
from tests.test_head_keeper import NEVER
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()


def notes(count: int) -> list[NewEvent]:
    return [NewEvent("note_taken", {"n": number}) for number in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "log.key")
    return tmp_path / "log.key"


@pytest.fixture(params=["in memory", "with a key"])
def signer(request: pytest.FixtureRequest, key: Path) -> Any:
    return MemorySigner() if request.param == "in memory" else LocalSigner(key)


async def roll_back(path: Path, signer: Any) -> None:
    """Sign a head of 6 events, and put back the copy with 3."""
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
    shutil.copy(path, path.with_suffix(".copy"))
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
    shutil.copy(path.with_suffix(".copy"), path)


async def restored_event(log: SqliteLog, position: int) -> RecordedEvent:
    (event,) = [event async for event in log.read_all(after=position - 1, limit=1)]
    assert isinstance(event.data, LogRestored)
    return event


async def assert_entries(log: SqliteLog) -> None:
    """Assert that every entry is that of its event, under the id that was valid then."""
    ids = await log.log_ids()
    events = [event async for event in log.read_all()]
    entries = [entry async for entry in log.read_entries()]
    assert len(events) == len(entries)
    for event, stored in zip(events, entries, strict=True):
        entry = parse(stored.entry)
        assert leaf_hash(stored.entry) == event.leaf
        assert entry.log_id == next(log_id for first, log_id in reversed(ids) if first <= event.position)
        found = await log.find(event.event_id)
        assert found is not None and found.leaf == event.leaf


async def test_restore_that_is_declared_says_what_was_lost_and_is_signed_on(path: Path, signer: Any) -> None:
    await roll_back(path, signer)
    lost = signer.last()
    async with open_file(path, signer=signer, restored="the disk was lost", **NEVER) as log:
        (_, old_id), (first, new_id) = await log.log_ids()
        assert (lost.log_id, lost.head.size, first) == (old_id, 6, 4)
        event = await restored_event(log, 4)
        assert event.data == LogRestored(
            previous_log_id=old_id.hex(),
            size=6,
            root=lost.head.root.hex(),
            reason="the disk was lost",
            note=lost.note.decode(),
            is_from_signer=True,
        )
        assert (event.stream, event.position, (await log.health()).log_id) == ("$log", 4, new_id.hex())
        await log.append("a", notes(2), expect=Expect.at(3))
        signed = await log.sign_head()
        assert signed is not None and (signed.log_id, signed.head.size) == (new_id, 6)
        assert await assert_tree(log) == await assert_sound(log) == 6
        await assert_entries(log)
    async with open_file(path, signer=signer, **NEVER) as log:
        assert len(await log.log_ids()) == 2
        await log.append("a", notes(1), expect=ANY)
    async with open_file(path) as log:
        assert [kept.log_id for kept in await log.signed_heads()][-1] == new_id
        old, new = await log.tree_head(3), await log.tree_head()
        assert is_consistent(3, old.root, new.size, new.root, await log.prove_consistency(3, new.size))


async def test_every_reader_that_was_there_before_reads_on(path: Path, tmp_path: Path) -> None:
    signer = MemorySigner()
    keys = SubjectKeys(tmp_path / "subjects", wrapping_key=bytes(32))
    await roll_back(path, signer)
    view = runs_view()
    async with open_file(path, subject_keys=keys, views=[view]) as before:
        feed = before.subscribe()
        assert [(await anext(feed)).position for _ in range(3)] == [1, 2, 3]
        assert await assert_tree(before) == 3
        waiting = asyncio.ensure_future(anext(feed))
        async with open_file(
            path, signer=signer, restored="the disk was lost", subject_keys=keys, views=[view], **NEVER
        ) as log:
            runner = runner_of(log, FakeClock(), Looking(Receiver()), view=RunsTable(log, view))
            await log.append("secret", notes(2), expect=ANY, subject="customer-17")
            await log.erase([2, 5], legal_basis="GDPR 17")
            await approved(runner)
            async with asyncio.timeout(20):
                assert (await waiting).position == 4
                assert [(await anext(feed)).position for _ in range(4)] == [5, 6, 7, 8]
            for each in (before, log):
                assert await assert_tree(each) == await assert_sound(each) >= 9
                await assert_entries(each)
                slice_ = await each.read_stream("secret")
                assert [event.redacted for event in slice_.events] == ["erased", None]
                assert [event.version async for event in each.read_back("a")] == [3, 2, 1]
                rows = await each.read_view(lambda c: c.execute("SELECT count(*) FROM runs").fetchone()[0])
                assert rows == 1
                assert (await each.health()).log_id == (await each.log_ids())[-1][1].hex()
            result = await before.append("a", notes(1), expect=Expect.at(3))
            assert (await before.append("secret", notes(1), expect=Expect.at(2))).version == 3
            assert await assert_sound(log) == result.last_position + 1
            await assert_entries(log)
            with pytest.raises(EventLogError):
                await log.append("a", [NewEvent("other", 1, event_id=result.leaf[:16])], expect=Expect.at(99))
            copy = tmp_path / "copy.db"
            await before.backup(copy)
            await feed.aclose()
    done = await asyncio.to_thread(child.run, tree_scenarios.appends, path, "theirs", 3)
    assert done.result > 12
    async with open_file(copy, subject_keys=keys) as log:
        assert await assert_tree(log) == await assert_sound(log)
        await assert_entries(log)
        assert len(await log.log_ids()) == 2


async def test_many_threads_read_across_the_restore_at_once(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(50), expect=ANY)
    async with open_file(path) as before:
        feeds = [before.subscribe(after=50) for _ in range(8)]
        waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        await asyncio.sleep(0.02)
        async with open_file(path, restored="moved") as log:
            await log.append("a", notes(500), expect=ANY)
            async with asyncio.timeout(30):
                assert [(await each).position for each in waiting] == [51] * 8
                for feed in feeds:
                    assert [(await anext(feed)).position for _ in range(500)] == list(range(52, 552))
        for feed in feeds:
            await feed.aclose()


async def test_process_that_signs_follows_the_restore_of_another(path: Path, signer: Any) -> None:
    async with open_file(path, signer=signer, **NEVER) as before:
        await before.append("a", notes(3), expect=ANY)
        await before.sign_head()
        async with open_file(path, signer=signer, restored="moved", **NEVER) as log:
            (_, (_, new_id)) = await log.log_ids()
        await before.append("a", notes(1), expect=ANY)
        signed = await before.sign_head()
        assert signed is not None and (signed.log_id, signed.head.size) == (new_id, 5)


async def test_roll_back_behind_a_declared_restore_is_found(path: Path, signer: Any) -> None:
    await roll_back(path, signer)
    async with open_file(path, signer=signer, restored="the disk was lost", **NEVER) as log:
        await log.append("a", notes(2), expect=ANY)
    newest = path.read_bytes()
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(2), expect=ANY)
    path.write_bytes(newest)
    await assert_refused(path, signer, "store_rolled_back")
    shutil.copy(path.with_suffix(".copy"), path)
    await assert_refused(path, signer, "store_forked")


async def _restore_by_hand(log: SqliteLog, root: str) -> None:
    """Begin an incarnation without the signer, as who may write the database can."""
    old_id = log.facts.log_ids[-1][1]
    forged = LogRestored(previous_log_id=old_id.hex(), size=6, root=root, reason="trust me")
    request = log._request([Append("$log", [forged], ANY)], (), None, None, None, is_reserved_allowed=True)
    assert log._connection is not None
    worker, transactions = log._connection.worker, log._connection.transactions
    await worker.run(transactions.begin_incarnation, bytes(16), request)


async def assert_refused(path: Path, signer: Any, code: str) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable) as refused:
        async with open_file(path, signer=signer, **NEVER):
            pass
    assert (refused.value.code, path.read_bytes()) == (code, before)


async def test_copy_from_before_a_restore_may_be_declared_as_well(path: Path, signer: Any) -> None:
    await roll_back(path, signer)
    async with open_file(path, signer=signer, restored="the disk was lost", **NEVER) as log:
        await log.append("a", notes(2), expect=ANY)
    lost = signer.last()
    shutil.copy(path.with_suffix(".copy"), path)
    async with open_file(path, signer=signer, restored="it was lost again", **NEVER) as log:
        event = await restored_event(log, 4)
        assert event.data.previous_log_id == lost.log_id.hex()
        assert event.data.size == lost.head.size == 6
        await assert_entries(log)
    async with open_file(path, signer=signer, **NEVER) as log:
        assert [first for first, _ in await log.log_ids()] == [1, 4]
        assert await assert_tree(log) == 4
    assert signer.last().head.size == 4


async def test_restore_declared_twice_is_two_incarnations(path: Path, signer: Any) -> None:
    await roll_back(path, signer)
    for number in range(3):
        async with open_file(path, signer=signer, restored=f"restore {number}", **NEVER):
            pass
    async with open_file(path, signer=signer, **NEVER) as log:
        ids = await log.log_ids()
        assert [first for first, _ in ids] == [1, 4, 5, 6]
        said = [(await restored_event(log, position)).data for position in (4, 5, 6)]
        assert [each.previous_log_id for each in said] == [log_id.hex() for _, log_id in ids[:3]]
        assert [each.size for each in said] == [6, 4, 5]
        await assert_entries(log)


async def test_empty_log_was_not_restored(path: Path, signer: Any) -> None:
    async with open_file(path):
        pass
    before = path.read_bytes()
    for each in (None, signer):
        with pytest.raises(InvalidInput) as refused:
            async with open_file(path, signer=each, restored="the disk was lost"):
                pass
        assert refused.value.code == "invalid_argument"
    assert path.read_bytes() == before
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(1), expect=ANY)
        signed = await log.sign_head()
        assert signed is not None, "the signer was told of no other incarnation"


async def test_restore_without_a_signer_names_the_last_head_that_the_log_kept(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:  # which the triggers do not forbid
        connection.execute("INSERT INTO heads VALUES (5, randomblob(16), x'ff0aff0aff', 0)")
        connection.execute("INSERT INTO heads VALUES (6, randomblob(16), x'00', 0)")
    async with open_file(path, restored="moved") as log:
        event = await restored_event(log, 7)
        assert (event.data.size, event.data.root) == (3, signer.heads[0].head.root.hex())


async def test_restore_of_a_log_that_never_had_a_head_names_what_is_there(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
        head = await log.tree_head()
    async with open_file(path, restored="moved") as log:
        event = await restored_event(log, 4)
        assert (event.data.size, event.data.root, event.data.note) == (3, head.root.hex(), None)


async def test_restore_of_a_log_that_its_signer_has_never_seen_names_what_is_there(path: Path, signer: Any) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
        head = await log.tree_head()
    async with open_file(path, restored="moved", signer=signer, **NEVER) as log:
        event = await restored_event(log, 4)
        assert (event.data.root, event.data.is_from_signer) == (head.root.hex(), False)
    assert signer.last().head.size == 4


async def test_restore_whose_signer_cannot_be_told_is_not_declared(path: Path) -> None:
    class Unreachable(MemorySigner):
        def begin(self, log_id: bytes) -> None:
            raise OSError("no such device")

    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    with pytest.raises(StoreUnavailable) as refused:
        await open_file(path, restored="moved", signer=Unreachable()).__aenter__()
    assert refused.value.code == "signer_unavailable"
    async with open_file(path) as log:
        assert (len(await log.log_ids()), (await log.head()).position) == (1, 3)


async def test_restore_whose_signer_refuses_the_new_incarnation_is_declared_all_the_same(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the signer will sign is his affair; that the log was restored is a fact."""

    class Refusing(MemorySigner):
        def begin(self, log_id: bytes) -> None:
            raise StoreUnavailable("head_refused", "another incarnation has begun")

    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    async with open_file(path, restored="moved", signer=Refusing(), **NEVER) as log:
        assert (len(await log.log_ids()), (await log.head()).position) == (2, 4)
    assert "incarnation_not_begun" in caplog.text


async def test_restore_is_not_declared_in_a_log_whose_own_stream_was_tampered_with(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
        await log.erase([1], legal_basis="asked for")
    with closing(sqlite3.connect(path)) as database:
        stream = "SELECT stream_id FROM streams WHERE name = '$log'"
        database.execute(f"INSERT INTO subject_streams (stream_id, key_id) SELECT ({stream}), randomblob(16)")
        database.commit()
    with pytest.raises(LogCorrupt) as refused:
        await open_file(path, restored="moved").__aenter__()
    assert refused.value.reason == "subject_changed"
    async with open_file(path) as log:
        assert len(await log.log_ids()) == 1


async def test_incarnation_that_no_event_declares_is_a_fork_for_its_signer(path: Path) -> None:
    signer = MemorySigner()
    await roll_back(path, signer)
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO log_ids (first_position, log_id) VALUES (4, randomblob(16))")
        database.commit()
    await assert_refused(path, signer, "store_forked")
    async with open_file(path) as log:
        await log.append("a", notes(1), expect=ANY)
    await assert_refused(path, signer, "store_forked")


@pytest.mark.parametrize("note", [b"\xff", b"\xff\n3\n" + b64encode(bytes(32)) + b"\n\n"], ids=["no head", "no text"])
async def test_kept_head_that_nobody_can_have_signed_is_passed_over(path: Path, note: bytes) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO heads SELECT 3, log_id, ?, 1 FROM log_ids", (note,))
        database.commit()
    async with open_file(path, restored="moved") as log:
        event = await restored_event(log, 4)
        assert (event.data.note, event.data.size) == (None, 3)


@pytest.mark.parametrize("root", ["", "zz", "00" * 31, "00" * 32])
async def test_restore_that_somebody_else_wrote_is_a_fork(path: Path, root: str) -> None:
    signer = MemorySigner()
    await roll_back(path, signer)
    async with open_file(path) as log:
        await _restore_by_hand(log, root)
    await assert_refused(path, signer, "store_forked")


async def test_restore_that_the_signer_was_not_told_of_is_not_signed(path: Path, signer: Any) -> None:
    await roll_back(path, signer)
    before = signer.last()
    async with open_file(path) as log:
        await _restore_by_hand(log, before.head.root.hex())
    async with open_file(path, signer=signer, is_read_only=True):
        pass
    with pytest.raises(StoreUnavailable) as refused:
        async with open_file(path, signer=signer, **NEVER) as log:
            await log.sign_head()
    assert refused.value.code == "head_refused"
    assert signer.last() == before


@pytest.mark.campaign
def test_crash_at_any_statement_of_a_restore_leaves_the_old_log_or_the_new_one(path: Path, key: Path) -> None:
    asyncio.run(roll_back(path, LocalSigner(key)))
    found = child.run(tree_scenarios.dies_while_restoring, path, key, timeout_s=100).result
    assert [killed for killed, _, _ in found] == [True] * (len(found) - 1) + [False]
    assert len(found) > 8
    assert [said for _, incarnations, said in found if incarnations == 1] == ["store_rolled_back"] * (len(found) - 1)
    assert found[-1] == [False, 2, "ok"]

"""The Merkle tree that is written with every append: right after whatever happens, and never silently wrong."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from eventlog import Expect, LogCorrupt, NewEvent, Promise
from eventlog.codec import Registry, event
from eventlog.log import Append, ProvenLog
from eventlog.merkle import is_consistent, is_included
from eventlog.stores.sqlite.tree import prove_consistency, prove_inclusion, tree_head
from eventlog.testing.clock import FakeClock
from eventlog.testing.log_contract import assert_tree
from tests import tree_scenarios
from tests.effect_runs import Asked, Receiver, approved, runner_of
from tests.needs import need, need_command
from tests.signers import MemorySigner
from tools.campaigns.processes import child
from tools.campaigns.storage.libc_faults import build_shim, shim_environment
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()
SIZE: Final = 700
"""Two complete tiles, and a rest."""


REGISTRY: Final = Registry()


@event("counted", registry=REGISTRY)
class Counted(msgspec.Struct, frozen=True):
    n: int


def notes(count: int) -> list[NewEvent]:
    return [NewEvent("note_taken", {"n": number}) for number in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of `SIZE` events."""
    path = tmp_path_factory.mktemp("tree") / "log.db"
    asyncio.run(_make(path))
    return path


async def _make(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(SIZE), expect=ANY)


@pytest.fixture
def grown(original: Path, path: Path) -> Path:
    """A copy of that log, to be edited."""
    return Path(shutil.copy(original, path))


# ── after every kind of append ───────────────────────────────────────────────────────────────────────────────────────


async def test_writes_of_others_in_the_transaction_and_what_they_refuse_keep_the_tree_right(path: Path) -> None:
    async with open_file(path, registry=REGISTRY) as log:
        await log.create_table("CREATE TABLE counts (n INTEGER)")

        def count(connection: sqlite3.Connection) -> Counted:
            connection.execute("INSERT INTO counts VALUES (1)")
            return Counted(1)

        def fail(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO counts VALUES (1)")
            raise OSError("no")

        def end_all(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR ROLLBACK INTO events (position) VALUES (1)")

        await log.append_with("a", "counted", count, expect=ANY)
        assert await assert_tree(log) == 1
        results = await asyncio.gather(
            log.append("a", notes(255), expect=ANY),
            log.append_with("a", "counted", fail, expect=ANY),
            log.append_with("a", "counted", count, expect=ANY),
            log.append_with("a", "counted", end_all, expect=ANY),
            log.append("b", notes(3), expect=ANY),
            log.append("c", notes(3), expect=Expect.at(9)),
            return_exceptions=True,
        )
        assert [isinstance(each, BaseException) for each in results] == [False, True, False, True, False, True]
        assert await assert_tree(log) == 260


async def test_runs_keep_the_tree_right(path: Path) -> None:
    clock = FakeClock()
    async with open_file(path, clock=clock) as log:
        for number in range(10):
            runner = runner_of(log, clock, Asked(Receiver(), Promise.CHECKABLE))
            await approved(runner, f"run-{number}", n=number)
            assert (await runner.resume(f"run-{number}")).result == "executed"
            assert await assert_tree(log) >= 5 * number


async def test_processes_that_append_in_turn_grow_one_tree(path: Path) -> None:
    async with open_file(path) as log:
        for turn, count in enumerate((254, 300)):
            before = (await log.head()).position
            await log.append("ours", notes(3), expect=ANY)
            done = await asyncio.to_thread(child.run, tree_scenarios.appends, path, f"theirs-{turn}", count)
            assert done.result == before + 3 + count
        await log.append("ours", notes(1), expect=ANY)
        assert await assert_tree(log) == 561


def test_failed_writes_and_syncs_leave_a_right_tree(tmp_path: Path) -> None:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    shim = build_shim(tmp_path, need_command("gcc"))
    environment = shim_environment(shim, tmp_path / "faults")
    told = child.run(tree_scenarios.writes_fail_in_turn, tmp_path / "log.db", env=environment).result
    assert {(operation, bool(hits)) for operation, _, hits in told} >= {("write", True), ("sync", True)}
    assert "store_io_error" in [answer for _, answer, _ in told]


def test_process_that_is_killed_at_any_statement_leaves_a_right_tree(path: Path) -> None:
    found = child.run(tree_scenarios.dies_at_every_statement, path, timeout_s=100).result
    killed, sizes = zip(*found, strict=True)
    assert list(killed) == [True] * (len(found) - 1) + [False]
    assert len(found) > 12
    grown_by = {after - before for before, after in itertools.pairwise(sizes)}
    assert {1, 2, 5} <= grown_by <= {1, 2, 4, 5}, "killed before, between and behind the two commits"


async def test_tile_of_the_second_level_is_written(path: Path) -> None:
    async with open_file(path) as log:
        for _ in range(66):
            await log.append("a", notes(1000), expect=ANY)
        assert await assert_tree(log) == 66_000
        assert len(await log.read_tiles(2, 0, 10)) == 1
        head = await log.tree_head()
        old = await log.tree_head(65_537)
        assert is_consistent(65_537, old.root, 66_000, head.root, await log.prove_consistency(65_537, 66_000))


async def test_proofs_of_all_sizes_hold(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(300), expect=ANY)
        leaves = [event.leaf async for event in log.read_all()]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        roots = [tree_head(connection, size).root for size in range(301)]
        for size in range(1, 301):
            for at in sorted({size // 3, size - 1}):
                proof = prove_inclusion(connection, at + 1, size)
                assert is_included(at, leaves[at], size, roots[size], proof)
                proof = prove_consistency(connection, at + 1, size)
                assert is_consistent(at + 1, roots[at + 1], size, roots[size], proof)


# ── behind dropped triggers ──────────────────────────────────────────────────────────────────────────────────────────

_EDITS: Final = {
    "a tile is gone": "DELETE FROM tiles WHERE number = 0",
    "the last tile is gone": "DELETE FROM tiles WHERE number = 1",
    "a tile is another": "UPDATE tiles SET root = zeroblob(32) WHERE number = 0",
    "the last tile is another": "UPDATE tiles SET root = zeroblob(32) WHERE number = 1",
    "tiles have changed places": "UPDATE tiles SET root = (SELECT root FROM tiles t WHERE t.number = 1 - tiles.number)",
    "the frontier is another": "UPDATE tree SET frontier = zeroblob(length(frontier))",
    "a part of it is another": "UPDATE tree SET frontier = CAST(substr(frontier, 1, 160) || zeroblob(32) AS BLOB)",
    "the frontier is cut": "UPDATE tree SET frontier = substr(frontier, 1, 32)",
    "the frontier is cut in a hash": "UPDATE tree SET frontier = substr(frontier, 1, 33)",
    "the tree is smaller": "UPDATE tree SET size = 699",
    "the tree is larger": "UPDATE tree SET size = 701",
    "the tree is gone": "DELETE FROM tree",
    "a leaf below a tile is another": "UPDATE events SET leaf = zeroblob(32) WHERE position = 77",
    "a leaf behind the tiles is another": "UPDATE events SET leaf = zeroblob(32) WHERE position = 600",
    "the last leaf is another": "UPDATE events SET leaf = zeroblob(32) WHERE position = 700",
    "an event behind the tiles is gone": "DELETE FROM events WHERE position = 600",
    "the first event is gone": "DELETE FROM events WHERE position = 1",
}


def edit(path: Path, *statements: str) -> None:
    """Edit the database as its owner may: without its triggers."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


Question = Callable[[ProvenLog], Awaitable[Any]]

_QUESTIONS: Final[list[Question]] = [
    *[lambda log, n=n: log.tree_head(n) for n in (None, 0, 1, 77, 256, 300, 512, 599, 600, 699)],
    *[lambda log, n=n: log.prove_inclusion(n, 700) for n in (1, 77, 256, 257, 599, 600, 700)],
    *[lambda log, n=n: log.prove_inclusion(77, n) for n in (77, 256, 300, 600)],
    *[lambda log, n=n: log.prove_consistency(n, 700) for n in (0, 1, 77, 256, 300, 512, 600)],
    *[lambda log, n=n: log.prove_consistency(77, n) for n in (78, 256, 300, 600)],
]


async def _answers(log: ProvenLog) -> list[Any]:
    found: list[Any] = []
    for ask in _QUESTIONS:
        try:
            found.append(await ask(log))
        except LogCorrupt as error:
            found.append(error)
    return found


@pytest.mark.parametrize("statement", _EDITS.values(), ids=_EDITS)
async def test_tree_that_was_edited_gives_right_answers_or_none_and_is_not_signed(grown: Path, statement: str) -> None:
    async with open_file(grown) as log:
        right = await _answers(log)
        before = await log.tree_head()
    edit(grown, statement)
    async with open_file(grown) as log:
        found = await _answers(log)
    refused = [each for each in found if isinstance(each, LogCorrupt)]
    assert refused, "the edit was not noticed at all"
    assert {each.reason for each in refused} <= {"tree_mismatch", "position_gap"}
    assert [a for a, b in zip(found, right, strict=True) if a != b] == refused
    signer = MemorySigner()
    with pytest.raises(LogCorrupt):
        async with open_file(grown, signer=signer, head_every_s=60) as log:
            await log.sign_head()
    assert [signed.head for signed in signer.heads] in ([], [before])


@pytest.mark.parametrize("statement", _EDITS.values(), ids=_EDITS)
async def test_check_that_the_tests_make_of_a_tree_sees_that_it_was_edited(grown: Path, statement: str) -> None:
    edit(grown, statement)
    async with open_file(grown) as log:
        with pytest.raises((AssertionError, LogCorrupt)):
            await assert_tree(log)


@pytest.mark.parametrize("cut_at", [699, 600, 512, 1, 0])
@pytest.mark.parametrize("is_open", [False, True])
async def test_append_behind_a_tail_that_was_cut_by_hand_is_refused(grown: Path, cut_at: int, is_open: bool) -> None:
    cut = f"DELETE FROM events WHERE position > {cut_at}"
    if not is_open:
        edit(grown, cut)
    async with open_file(grown) as log:
        if is_open:
            await log.append("b", notes(1), expect=ANY)
            await asyncio.to_thread(edit, grown, cut)
        before = _dump(grown)
        for call in (
            lambda: log.append("a", notes(1), expect=ANY),
            lambda: log.append_many([Append("b", notes(300), ANY), Append("c", notes(1), ANY)]),
        ):
            with pytest.raises(LogCorrupt) as refused:
                await call()
            assert refused.value.reason == "tree_mismatch"
        assert _dump(grown) == before


async def test_append_to_a_tree_whose_frontier_was_cut_is_refused(grown: Path) -> None:
    edit(grown, "UPDATE tree SET frontier = substr(frontier, 1, 32)")
    before = _dump(grown)
    async with open_file(grown) as log:
        with pytest.raises(LogCorrupt, match="frontier"):
            await log.append("a", notes(1), expect=ANY)
    assert _dump(grown) == before


async def test_entries_behind_a_gap_are_not_given(grown: Path) -> None:
    edit(grown, "DELETE FROM events WHERE position = 600")
    async with open_file(grown) as log:
        for stream in (None, "a"):
            with pytest.raises(LogCorrupt) as refused:
                assert [entry async for entry in log.read_entries(stream, after=500)] == []
            assert refused.value.reason in ("position_gap", "version_gap")
        assert len([entry async for entry in log.read_entries("a", after=601)]) == 99


async def test_entries_of_a_stream_that_lost_its_events_are_not_none(grown: Path) -> None:
    edit(grown, "DELETE FROM events")
    async with open_file(grown) as log:
        with pytest.raises(LogCorrupt):
            assert [entry async for entry in log.read_entries("a")] == []


# ── through the triggers ─────────────────────────────────────────────────────────────────────────────────────────────

_ROWS: Final = {
    "tree": "(one, size, frontier) VALUES (1, 700, x'')",
    "tiles": "(level, number, root) VALUES (1, 0, zeroblob(32))",
    "heads": "(size, log_id, note, signed_at_us) VALUES (7, zeroblob(16), x'00', 1)",
    "erasures": "(position, erased_by) VALUES (7, 8)",
    "subject_streams": "(stream_id, key_id) VALUES (1, zeroblob(16))",
}
_CHANGES: Final = {
    "tree": ["frontier = x''", "size = 699", "size = 701", "size = 700, frontier = zeroblob(32)", "one = 1"],
    "tiles": ["root = zeroblob(32)", "number = 7", "level = 2"],
    "heads": ["note = x'00'", "size = 8", "signed_at_us = 2"],
    "erasures": ["erased_by = 9", "position = 9"],
    "subject_streams": ["key_id = randomblob(16)", "stream_id = 2"],
}
_STATEMENTS: Final = [
    *[f"DELETE FROM {table}" for table in _ROWS],
    *[f"{verb} INTO {table} {row}" for table, row in _ROWS.items() for verb in ("INSERT", "INSERT OR REPLACE")],
    *[f"INSERT OR IGNORE INTO {table} {row}" for table, row in _ROWS.items()],
    *[f"INSERT INTO {table} {row} ON CONFLICT DO NOTHING" for table, row in _ROWS.items()],
    *[
        f"INSERT INTO {table} {row} ON CONFLICT DO UPDATE SET {changes[0]}"
        for (table, row), changes in zip(_ROWS.items(), _CHANGES.values(), strict=True)
    ],
    *[
        f"{verb} {table} SET {change}"
        for table, changes in _CHANGES.items()
        for change in changes
        for verb in ("UPDATE", "UPDATE OR REPLACE", "UPDATE OR IGNORE")
    ],
    "INSERT INTO tiles (level, number, root) VALUES (1, 2, zeroblob(32))",
    "INSERT INTO tiles (level, number, root) VALUES (1, 9, zeroblob(32))",
    "INSERT INTO tiles (level, number, root) VALUES (2, 0, zeroblob(32))",
]


@pytest.fixture(scope="module")
def full(original: Path) -> Path:
    """That log with a row in every table of proof."""
    path = Path(shutil.copy(original, original.with_name("full.db")))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for table in ("heads", "erasures", "subject_streams"):
            connection.execute(f"INSERT INTO {table} {_ROWS[table]}")
    return path


@pytest.mark.parametrize("recursive_triggers", ["ON", "OFF"])
@pytest.mark.parametrize("statement", _STATEMENTS)
def test_triggers_refuse_every_change_of_what_proves_the_log(
    full: Path, path: Path, statement: str, recursive_triggers: str
) -> None:
    shutil.copy(full, path)
    before = _dump(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(f"PRAGMA recursive_triggers={recursive_triggers}")
        with pytest.raises(sqlite3.IntegrityError, match="append_only"):
            other.execute(statement)
    assert _dump(path) == before


def test_table_of_proof_without_its_triggers_would_take_those_changes(full: Path, path: Path) -> None:
    taken = 0
    some = _STATEMENTS[::6]
    for statement in some:
        shutil.copy(full, path)
        edit(path)
        before = _dump(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            try:
                other.execute(statement)
            except sqlite3.IntegrityError:
                continue
        taken += _dump(path) != before
    assert taken > len(some) // 2


def _dump(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return [(table, connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()) for table in tables]

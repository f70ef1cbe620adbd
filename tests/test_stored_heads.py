"""`verify` and the signed heads in the database, of which there may be millions: they are read page by page."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventlog.audit.heads.key_file import read_key_file
from eventlog.audit.verify import Trust, stored_heads, verify
from eventlog.audit.verify.tree import Roots
from eventlog.heads import SignedHead
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite import database
from tests.attacker import attacking
from tests.proven_log import ProvenLog, build, check
from tools.campaigns.storage.log_files import open_file


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProvenLog:
    return asyncio.run(build(tmp_path_factory.mktemp("original")))


@pytest.fixture
def world(original: ProvenLog, tmp_path: Path) -> ProvenLog:
    return original.copy_to(tmp_path / "copy")


def repeat_last_size(world: ProvenLog, count: int) -> None:
    """Add heads of other logs at the size of the last one, as only an attacker can."""
    with closing(sqlite3.connect(world.path)) as connection, connection:
        (size, note) = connection.execute("SELECT size, note FROM heads ORDER BY size DESC LIMIT 1").fetchone()
        for number in range(count):
            row = size, number.to_bytes(16, "big"), note, 1
            connection.execute("INSERT INTO heads (size, log_id, note, signed_at_us) VALUES (?, ?, ?, ?)", row)


async def test_a_page_ends_with_all_heads_of_its_last_size(world: ProvenLog) -> None:
    repeat_last_size(world, 3)
    async with open_file(world.path) as log:
        sizes = [each.head.size for each in await log.signed_heads()]
        assert sizes == [8, 11, 16, 18, 18, 18, 18]
        for limit, expected in ((1, sizes[:1]), (3, sizes[:3]), (4, sizes), (5, sizes), (100, sizes)):
            assert [each.head.size for each in await log.signed_heads(limit=limit)] == expected
        assert [each.head.size for each in await log.signed_heads(after=8, limit=1)] == [11]


@pytest.mark.parametrize("page", [1, 2, 3])
async def test_heads_that_are_read_in_pages_give_the_same_verdict(
    world: ProvenLog, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusts = (Trust(), Trust(log_keys=[world.log_key]), Trust(log_keys=[world.log_key], since_head=True))
    expected = [(await check(world.path, trust)).heads for trust in trusts]
    assert expected[0].details["in_database"] == 4 and expected[2].details["left_out"] == 3
    of_run = (await check(world.path, trusts[1], run="r1")).heads
    monkeypatch.setattr(stored_heads, "_PAGE", page)
    assert [(await check(world.path, trust)).heads for trust in trusts] == expected
    assert (await check(world.path, trusts[1], run="r1")).heads == of_run


@pytest.mark.parametrize("page", [1, 1000])
async def test_a_head_on_any_page_that_the_log_does_not_go_on_from_is_found(
    world: ProvenLog, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one head is of another history, and the key is the real one."""
    with attacking(world.path) as attacker:
        attacker.edit_body(13, b'{"n":7}')
        attacker.rehash()
        attacker.resign(read_key_file(world.key_path))
    assert not (await check(world.path)).heads.problems
    with attacking(world.path) as attacker:
        attacker.edit_body(5, b'{"n":7}')
        attacker.rehash()
    monkeypatch.setattr(stored_heads, "_PAGE", page)
    found = (await check(world.path)).heads
    assert [each.position for each in found.problems if each.reason == "store_forked"] == [8, 11, 16, 18]


async def test_all_heads_are_read_and_never_more_than_a_page_at_once_and_that_is_shown(
    world: ProvenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_heads, "_PAGE", 2)
    asked: list[Any] = []
    real = SqliteLog.signed_heads

    async def signed_heads(self: SqliteLog, **words: Any) -> Sequence[SignedHead]:
        asked.append(words.get("limit"))
        return await real(self, **words)

    monkeypatch.setattr(SqliteLog, "signed_heads", signed_heads)
    seen: list[tuple[int, int]] = []
    async with open_file(world.path, is_read_only=True) as log:
        verdicts = await verify(log, progress=lambda done, total: seen.append((done, total)))
    assert verdicts.heads.details["signed_to"] == 18
    assert set(asked) == {2}
    assert seen[-2:] == [(2, 4), (4, 4)]


def test_roots_are_found_by_their_size_and_no_other() -> None:
    roots = Roots()
    for size in (3, 7, 900):
        roots.add(size, size.to_bytes(32, "big"))
    assert dict(roots) == {size: size.to_bytes(32, "big") for size in (3, 7, 900)}
    assert [roots.get(size) for size in (0, 4, 901)] == [None, None, None]


@pytest.mark.parametrize("is_read_only", [True, False])
@pytest.mark.parametrize("values", ["size = -size", "log_id = x'00'"])
async def test_a_head_that_a_flipped_bit_has_put_out_of_sight_is_damage_for_readers_too(
    world: ProvenLog, values: str, is_read_only: bool
) -> None:
    with attacking(world.path) as attacker:
        attacker.run("PRAGMA ignore_check_constraints = ON")
        attacker.run(f"UPDATE heads SET {values} WHERE size = 8")
    async with open_file(world.path, is_read_only=is_read_only) as log:
        problems = await log.check_file()
    assert [(each.reason, each.message) for each in problems] == [("store_corrupt", "CHECK constraint failed in heads")]


def test_every_check_of_every_table_of_the_log_is_one_that_a_reader_looks_at() -> None:
    created = [sql for _, sql, _ in database._created()]
    assert sum(sql.count(b"CHECK") for sql in created) == sum(len(database._CHECK.findall(sql)) for sql in created) > 10

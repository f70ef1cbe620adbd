"""A log of an older format is brought to the current one as a whole, by whoever opens it for writing."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import eventlog
from eventlog.errors import StoreUnavailable
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from eventlog.testing.log_contract import assert_sound, assert_tree
from projections import runs_view
from tests import tree_scenarios
from tests.command_line import CommandLine
from tests.signers import MemorySigner
from tools import golden
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import open_file

ORIGINAL = golden.GOLDEN / "v1.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the golden log of format 1."""
    return Path(shutil.copy(ORIGINAL, tmp_path / "log.db"))


async def test_log_of_format_1_gets_the_tree_of_its_events(path: Path) -> None:
    async with open_file(path) as log:
        assert log.facts.format_version == FORMAT_VERSION == 2
        assert await assert_tree(log) == await assert_sound(log) > 100
        assert await log.check_file() == []
        assert await log.signed_heads() == []


async def test_log_of_format_1_takes_views(path: Path) -> None:
    async with open_file(path, views=[runs_view()]) as log:
        runs = await log.read_view(lambda connection: connection.execute("SELECT count(*) FROM runs").fetchone()[0])
        assert runs > 10
        assert await log.check_file() == []


async def test_log_of_format_1_whose_views_have_their_shape_of_today_keeps_them(path: Path) -> None:
    async with open_file(path.with_name("new.db"), views=[runs_view()]) as log:
        (columns,) = await log.look(_shape_of_views)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"DROP TABLE views; {columns};")
        database.execute("INSERT INTO views (name, state, revision, position, shape) VALUES ('x', 'live', 1, 1, '')")
        database.commit()
    async with open_file(path) as log:
        assert log.facts.format_version == FORMAT_VERSION
        assert await log.check_file() == []
        assert (await log.health()).views_behind == {"x/1": (await log.head()).position - 1}


def _shape_of_views(connection: sqlite3.Connection) -> tuple[str]:
    found: tuple[str] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'views'").fetchone()
    return found


async def test_empty_log_of_format_1_gets_the_empty_tree(path: Path) -> None:
    tree_scenarios.empty(path)
    async with open_file(path) as log:
        assert await assert_tree(log) == 0
        assert await log.check_file() == []
        await log.append("a", [eventlog.NewEvent("note_taken", 1)], expect=eventlog.Expect.any())
        assert await assert_tree(log) == 1


async def test_migrated_log_can_be_signed(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer) as log:
        head = await log.tree_head()
    assert [signed.head for signed in signer.heads] == [head]


@pytest.mark.campaign
def test_process_that_is_killed_in_a_migration_leaves_the_old_format_or_the_new_one(tmp_path: Path) -> None:
    formats = child.run(tree_scenarios.dies_in_a_migration, ORIGINAL, tmp_path, timeout_s=100).result
    assert sorted(formats) == formats, "first the old format, then the new one"
    assert formats.count(1) > 15
    assert formats[-1] == 2


async def test_processes_that_migrate_at_once_do_it_once(path: Path) -> None:
    done = await asyncio.gather(
        *(asyncio.to_thread(child.run, tree_scenarios.appends_beside_others, path, f"s{number}") for number in range(3))
    )
    assert all(each.returncode == 0 for each in done), [each.stderr for each in done]
    async with open_file(path) as log:
        assert await assert_tree(log) == await assert_sound(log) == max(each.result for each in done)


async def test_log_of_format_1_is_not_read_without_a_migration_and_not_changed(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable) as refused:
        async with open_file(path, is_read_only=True):
            pass
    assert refused.value.code == "migration_required"
    assert path.read_bytes() == before


@pytest.mark.processes
def test_command_line_migrates_when_it_is_told_to(path: Path) -> None:
    command_line = CommandLine(path.parent, "--db", str(path))
    before = path.read_bytes()
    for _ in range(2):
        card = command_line("db", "migrate", "--dry-run", "--json", status=0).json
        assert (card["result"], card["newest_known_format"]) == ("would be migrated", 2)
        assert path.read_bytes() == before
    card = command_line("db", "migrate", "--json", status=0).json
    assert (card["result"], card["format_version"]) == ("migrated", 2)
    card = command_line("db", "migrate", "--json", status=0).json
    assert (card["result"], card["format_version"]) == ("nothing to do", 2)

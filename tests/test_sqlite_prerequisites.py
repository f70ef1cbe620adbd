"""What a log needs of SQLite and of the file system, and that it is refused without, before anything is written."""

from __future__ import annotations

import ast
import sqlite3
from pathlib import Path
from typing import Final

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.errors import EventLogError
from tests.command_line import ROOT
from tests.fuse_mounts import mounted_without
from tools.campaigns.storage.log_files import open_file

ENGINE: Final = ROOT / "eventlog"


async def test_file_system_on_which_no_memory_can_be_shared_is_refused(tmp_path: Path) -> None:
    with mounted_without("shared memory", tmp_path) as mount:
        with pytest.raises(EventLogError) as refusal:
            async with eventlog.open(mount / "log.db") as log:
                await log.append("s", [NewEvent("noted", {})], expect=Expect.any())
        assert refusal.value.code == "wal_unavailable"


async def test_sqlite_without_strict_tables_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(EventLogError) as refusal:
        async with eventlog.open(tmp_path / "log.db"):
            pass
    assert refusal.value.code == "sqlite_too_old"
    assert not (tmp_path / "log.db").exists()


def begins_of(source: str) -> set[str]:
    """Return the statements in calls of `execute` in Python source that begin a transaction."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    executed = [call.args[0] for call in calls if ast.unparse(call.func).endswith("execute")]
    texts = [argument.value for argument in executed if isinstance(argument, ast.Constant)]
    return {text for text in texts if isinstance(text, str) and text.upper().split(maxsplit=1)[:1] == ["BEGIN"]}


class TestEveryTransaction:
    """One that begins by reading and then wants to write fails at once where somebody else has written meanwhile."""

    def test_that_writes_asks_for_the_lock_first(self) -> None:
        readers = {"rollback.py"}  # `one_snapshot`, for all of them
        for path in ENGINE.rglob("*.py"):
            begins = begins_of(path.read_text(encoding="utf-8"))
            assert begins <= ({"BEGIN"} if path.name in readers else {"BEGIN IMMEDIATE"}), path

    def test_control_another_way_to_begin_is_seen(self) -> None:
        assert begins_of('connection.execute("begin deferred")\nbegin("BEGIN")') == {"begin deferred"}

    async def test_that_only_reads_cannot_write(self, tmp_path: Path) -> None:
        async with open_file(tmp_path / "log.db") as log:
            with pytest.raises(EventLogError) as refusal:
                await log.read_view(lambda connection: connection.execute("CREATE TABLE t (x)"))
            assert refusal.value.code == "store_readonly"

"""Artifacts in files: durable and whole or not there, checked when they are read, copied and verified with the log."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import random
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog.audit.verify import Finding, Verdicts, verify
from eventlog.errors import EventLogError, LogCorrupt, StoreUnavailable
from eventlog.events import StepCompleted
from eventlog.log import Append, Expect, NewEvent
from eventlog.runtime.actions.log_files import belongs_to_log
from eventlog.stores import SqliteLog, exclusive_rename
from eventlog.stores.artifacts import artifact_in
from eventlog.stores.sqlite import backup
from tests import artifact_scenarios
from tests.artifact_scenarios import data_of, fill, unsound
from tests.command_line import CommandLine
from tests.needs import need, need_command
from tools.campaigns.processes import child
from tools.campaigns.storage.libc_faults import build_shim, shim_environment
from tools.campaigns.storage.log_files import assert_whole, open_file

DATA = b"a large value"
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log.db.artifacts"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    return build_shim(tmp_path_factory.mktemp("shim"), need_command("gcc"))


@pytest.fixture
def under_faults(shim: Path, tmp_path: Path) -> Callable[..., child.Done]:
    """Runs a scenario in a child whose system calls can be made to fail or to kill it."""

    def run(scenario: Callable[..., Any], *args: object) -> child.Done:
        return child.run(scenario, *args, env=shim_environment(shim, tmp_path / "faults"))

    return run


def place_of(folder: Path, digest: str = DIGEST) -> Path:
    return folder / digest[:2] / digest


def temps(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.tmp"))


async def refusal_of(asked: Any) -> tuple[str, str | None]:
    """Return the code of the error that is raised, and its reason if it speaks of damage."""
    with pytest.raises(EventLogError) as refused:
        await asked
    return refused.value.code, getattr(refused.value, "reason", None)


DAMAGED = ("log_corrupt", "artifact_damaged")
MISSING = ("log_corrupt", "artifact_missing")


WAYS = ["exclusive rename", "link", "claim"]


def leave_only(monkeypatch: pytest.MonkeyPatch, ways: list[str]) -> None:
    """Let a backup find none but these ways to give a file its name."""

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if "exclusive rename" not in ways:
        monkeypatch.setattr(exclusive_rename, "_SYMBOL", "rename_of_no_library")
    if "link" not in ways:
        monkeypatch.setattr(os, "link", refuses)


class TestFiles:
    async def test_an_artifact_is_a_private_file_named_by_its_digest(self, path: Path, folder: Path) -> None:
        async with open_file(path) as log:
            assert not folder.exists()
            assert await log.artifacts.put(DATA) == DIGEST
        assert place_of(folder).read_bytes() == DATA
        assert [found for found in folder.rglob("*") if not found.is_dir()] == [place_of(folder)]
        status = place_of(folder).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 1)
        assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, folder / DIGEST[:2])} == {0o700}

    async def test_an_artifact_outlives_its_log_object_and_is_there_for_others(self, path: Path) -> None:
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
        async with open_file(path) as log, open_file(path, is_read_only=True) as looking:
            assert await log.artifacts.get(DIGEST) == DATA
            assert await looking.artifacts.get(DIGEST) == DATA
            assert await refusal_of(looking.artifacts.put(DATA)) == ("store_readonly", None)

    async def test_putting_again_leaves_the_file_as_it_is(self, path: Path, folder: Path) -> None:
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
            before = place_of(folder).stat()
            await log.artifacts.put(DATA)
        after = place_of(folder).stat()
        assert (after.st_ino, after.st_mtime_ns, after.st_nlink) == (before.st_ino, before.st_mtime_ns, 1)

    async def test_a_log_that_is_opened_by_a_link_has_its_artifacts_beside_the_file(
        self, path: Path, folder: Path, tmp_path: Path
    ) -> None:
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
        (tmp_path / "elsewhere").mkdir()
        link = tmp_path / "elsewhere" / "link.db"
        link.symlink_to(path)
        async with open_file(link) as log:
            assert await log.artifacts.get(DIGEST) == DATA
            other = await log.artifacts.put(b"other")
        assert place_of(folder, other).exists()

    async def test_a_put_that_is_cancelled_leaves_a_whole_artifact_or_none(self, path: Path, folder: Path) -> None:
        chance = random.Random(7)
        async with open_file(path) as log:
            for number in range(40):
                putting = asyncio.ensure_future(log.artifacts.put(data_of(number)))
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                putting.cancel()
                await asyncio.gather(putting, return_exceptions=True)
            assert unsound(folder) == []
            for number in range(40):
                assert await log.artifacts.get(await log.artifacts.put(data_of(number))) == data_of(number)

    async def test_many_at_once_are_all_kept(self, path: Path, folder: Path) -> None:
        async with open_file(path) as log:
            digests = await asyncio.gather(*(log.artifacts.put(data_of(number % 50)) for number in range(200)))
            found = await asyncio.gather(*map(log.artifacts.get, digests))
        assert found == [data_of(number % 50) for number in range(200)]
        assert temps(folder) == []

    async def test_no_action_writes_among_the_artifacts(self, path: Path, folder: Path) -> None:
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
            assert log.place is not None
            for inside in (folder, folder / DIGEST[:2]):
                descriptor = os.open(inside, os.O_RDONLY)
                assert belongs_to_log(log.place, descriptor, b"anything")
                os.close(descriptor)
            descriptor = os.open(path.parent, os.O_RDONLY)
            assert belongs_to_log(log.place, descriptor, b"log.db.artifacts")
            assert not belongs_to_log(log.place, descriptor, b"anything")
            os.close(descriptor)


class TestDamage:
    @pytest.mark.parametrize("content", [b"", DATA[:-1], DATA + b"!", DATA.upper()], ids=ascii)
    async def test_what_is_not_what_its_name_says_is_neither_served_nor_replaced(
        self, path: Path, folder: Path, content: bytes
    ) -> None:
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
            place_of(folder).write_bytes(content)
            assert await refusal_of(log.artifacts.get(DIGEST)) == DAMAGED
            assert await refusal_of(log.artifacts.put(DATA)) == DAMAGED
            assert place_of(folder).read_bytes() == content
            place_of(folder).unlink()
            assert await refusal_of(log.artifacts.get(DIGEST)) == MISSING
            assert await log.artifacts.put(DATA) == DIGEST
            assert await log.artifacts.get(DIGEST) == DATA

    @pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "fifo"])
    async def test_what_is_no_regular_file_is_neither_followed_nor_opened(
        self, path: Path, folder: Path, tmp_path: Path, kind: str
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        place = place_of(folder)
        place.parent.mkdir(parents=True)
        match kind:
            case "link":
                elsewhere.write_bytes(DATA)
                place.symlink_to(elsewhere)
            case "dangling link":
                place.symlink_to(elsewhere)
            case "directory":
                place.mkdir()
            case _:
                os.mkfifo(place)
        async with open_file(path) as log:
            assert await refusal_of(log.artifacts.get(DIGEST)) == DAMAGED
            assert await refusal_of(log.artifacts.put(DATA)) == DAMAGED
        assert elsewhere.exists() == (kind == "link")
        assert temps(folder) == []

    @pytest.mark.parametrize("is_whole_folder", [True, False])
    async def test_no_directory_on_the_way_may_be_a_link(
        self, path: Path, folder: Path, tmp_path: Path, is_whole_folder: bool
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
            moved = folder if is_whole_folder else folder / DIGEST[:2]
            moved.rename(elsewhere)
            moved.symlink_to(elsewhere)
            before = sorted(elsewhere.rglob("*"))
            assert await refusal_of(log.artifacts.get(DIGEST)) == DAMAGED
            assert await refusal_of(log.artifacts.put(DATA)) == ("store_cannot_open", None)
        assert sorted(elsewhere.rglob("*")) == before


class TestRemnants:
    async def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(
        self, path: Path, folder: Path
    ) -> None:
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
        place = place_of(folder)
        left, written, published = (place.parent / f".{name}.tmp" for name in ("left", "written", "published"))
        left.write_bytes(b"half")
        written.write_bytes(b"half")
        os.link(place, published)  # a writer that was killed between giving the name and removing the temporary one
        descriptor = os.open(written, os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
            assert temps(folder) == [written]
            assert await log.artifacts.get(DIGEST) == DATA
        os.close(descriptor)
        async with open_file(path) as log:
            await log.artifacts.put(DATA)
        assert temps(folder) == []


@pytest.mark.processes
class TestKilled:
    async def test_what_was_said_to_be_durable_is_whole_after_kill_9_and_nothing_else_has_a_name(
        self, path: Path, folder: Path, is_long: bool
    ) -> None:
        chance = random.Random(11)
        promised: set[str] = set()
        for _ in range(100 if is_long else 8):
            process = child.start(artifact_scenarios.puts_for_ever, path)
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 40)):
                promised.add(process.stdout.readline().strip())
            process.send_signal(signal.SIGKILL)
            promised |= {line for line in process.communicate()[0].splitlines() if len(line) == 64}
            assert process.returncode == -signal.SIGKILL
            assert unsound(folder) == []
            if chance.random() < 0.3:
                shutil.rmtree(folder)
                promised.clear()
        async with open_file(path) as log:
            for digest in promised:
                await log.artifacts.get(digest)
            digests = [await log.artifacts.put(data_of(number)) for number in range(300)]
        assert {os.path.dirname(temp) for temp in temps(folder)}.isdisjoint(
            str(place_of(folder, digest).parent) for digest in digests
        )

    @pytest.mark.parametrize("operation", ["sync", "write"])
    async def test_killed_at_any_call_a_put_leaves_nothing_that_passes_for_an_artifact(
        self, under_faults: Callable[..., child.Done], path: Path, folder: Path, operation: str, is_long: bool
    ) -> None:
        killed = 0
        for skip in range(0, 100, 1 if is_long else 3):
            shutil.rmtree(folder, ignore_errors=True)
            done = under_faults(artifact_scenarios.puts_and_is_killed, path, operation, skip)
            assert unsound(folder) == []
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
            killed += 1
            if killed % 4 == 1:
                async with open_file(path) as log:
                    for number in range(artifact_scenarios.COUNT):
                        assert await log.artifacts.get(await log.artifacts.put(data_of(number))) == data_of(number)
                assert temps(folder) == []
        assert killed >= 3
        assert len(done.result) == artifact_scenarios.COUNT

    def test_a_store_that_writes_under_the_final_name_would_be_found(
        self, under_faults: Callable[..., child.Done], path: Path, folder: Path
    ) -> None:
        assert under_faults(artifact_scenarios.tears, path).returncode == -signal.SIGKILL
        assert unsound(folder) == [hashlib.sha256(data_of(4)).hexdigest()]

    @pytest.mark.parametrize(
        ("operation", "error", "code"),
        [("write", errno.ENOSPC, "store_full"), ("write", errno.EIO, "store_io_error"),
         ("sync", errno.EIO, "store_io_error"), ("sync", errno.ENOSPC, "store_full")],
    )  # fmt: skip
    def test_content_that_cannot_be_written_or_flushed_gets_no_name(
        self, under_faults: Callable[..., child.Done], path: Path, operation: str, error: int, code: str
    ) -> None:
        seen = under_faults(artifact_scenarios.put_fails, path, operation, error, ".tmp").result
        assert seen.pop("hits") >= 1, "the fault was not injected"
        assert seen == {"told": code, "is_there": False, "temps": [], "again": "ok", "is_whole": True}

    @pytest.mark.parametrize("files", ["/{shard}", ".artifacts", ""], ids=["its directory", "the folder", "any"])
    def test_a_put_is_not_done_before_every_name_on_the_way_is_flushed(
        self, under_faults: Callable[..., child.Done], path: Path, files: str
    ) -> None:
        seen = under_faults(artifact_scenarios.put_fails, path, "sync", errno.EIO, files).result
        assert seen.pop("hits") >= 1, "the fault was not injected"
        assert (seen["told"], seen["again"], seen["is_whole"], seen["temps"]) == ("store_io_error", "ok", True, [])

    async def test_several_processes_put_the_same(self, path: Path, folder: Path) -> None:
        async with open_file(path):
            pass
        processes = [child.start(artifact_scenarios.puts_the_same, path) for _ in range(4)]
        ended = [(process.communicate(timeout=60), process.returncode) for process in processes]
        assert [code for _, code in ended] == [0] * 4, ended
        assert unsound(folder) == []
        assert len([each for each in folder.rglob("*") if not each.is_dir()]) == 40


class TestBackup:
    async def test_a_copy_has_exactly_the_artifacts_that_it_names(self, path: Path, tmp_path: Path) -> None:
        copied = tmp_path / "copy" / "b.db"
        copied.parent.mkdir()
        async with open_file(path) as log:
            digests = await fill(log)
            await fill(log, "run-2")  # which names the same ones
            nobodys = await log.artifacts.put(b"named by no event")
            await log.append("a", [NewEvent("mine", {"artifact": nobodys})], expect=Expect.any())
            position = await log.backup(copied)
        assert sorted(os.listdir(copied.parent)) == ["b.db", "b.db.artifacts"]
        files = [each for each in Path(f"{copied}.artifacts").rglob("*") if not each.is_dir()]
        assert sorted(each.name for each in files) == sorted(digests)
        assert {stat.S_IMODE(each.stat().st_mode) for each in (*files, copied)} == {0o600}
        async with open_file(copied) as log:
            assert (await log.head()).position == position == 17
            assert [await log.artifacts.get(digest) for digest in digests] == [data_of(n) for n in range(len(digests))]
            assert await refusal_of(log.artifacts.get(nobodys)) == MISSING
            assert (await verdicts(log)).artifacts.verdict == "ok"

    async def test_a_log_without_artifacts_is_copied_without_a_folder(self, path: Path, tmp_path: Path) -> None:
        async with open_file(path) as log:
            await log.append("a", [NewEvent("mine", {})], expect=Expect.any())
            step = StepCompleted(name="s", key="s", output=msgspec.Raw(b'{"artifact":1}'))
            await log.append_reserved([Append("run:a", [step], Expect.any())])
            await log.backup(tmp_path / "b.db")
        assert not (tmp_path / "b.db.artifacts").exists()
        async with open_file(tmp_path / "b.db") as log:
            await assert_whole(log)

    @pytest.mark.parametrize("is_missing", [True, False])
    async def test_an_artifact_that_cannot_be_copied_is_named_and_nothing_is_left(
        self, path: Path, folder: Path, tmp_path: Path, is_missing: bool
    ) -> None:
        async with open_file(path) as log:
            digests = await fill(log)
            if is_missing:
                place_of(folder, digests[5]).unlink()
            else:
                place_of(folder, digests[5]).write_bytes(b"something else")
            before = sorted(os.listdir(tmp_path))
            with pytest.raises(LogCorrupt) as refused:
                await log.backup(tmp_path / "b.db")
            assert refused.value.reason == ("artifact_missing" if is_missing else "artifact_damaged")
            assert (refused.value.position, refused.value.details["artifact"]) == (6, digests[5])
            assert digests[5] in str(refused.value)
            assert sorted(os.listdir(tmp_path)) == before

    async def test_an_event_that_names_no_digest_is_told_as_a_missing_artifact(
        self, path: Path, tmp_path: Path
    ) -> None:
        async with open_file(path) as log:
            step = StepCompleted(name="s", key="s", artifact="../../etc/passwd")
            await log.append_reserved([Append("run:a", [step], Expect.any())])
            with pytest.raises(LogCorrupt) as refused:
                await log.backup(tmp_path / "b.db")
            assert (refused.value.reason, refused.value.position) == ("artifact_missing", 1)
            assert [each.reason for each in (await verdicts(log)).artifacts.problems] == ["artifact_missing"]

    @pytest.mark.parametrize("name", ["b.db", "b.db-wal", "b.db-journal", "b.db.artifacts"])
    async def test_what_would_belong_to_the_copy_is_never_overwritten(
        self, path: Path, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name).write_bytes(b"mine")
        async with open_file(path) as log:
            await fill(log)
            before = sorted(os.listdir(tmp_path))
            assert await refusal_of(log.backup(tmp_path / "b.db")) == ("store_cannot_open", None)
            assert sorted(os.listdir(tmp_path)) == before
        assert (tmp_path / name).read_bytes() == b"mine"

    async def test_of_two_copies_to_one_file_one_is_made_and_the_other_refused(
        self, path: Path, tmp_path: Path
    ) -> None:
        async with open_file(path) as log, open_file(path, is_read_only=True) as other:
            await fill(log)
            both = (log.backup(tmp_path / "b.db"), other.backup(tmp_path / "b.db"))
            told = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(each) is int for each in told) == [False, True]
        assert [each.code for each in told if isinstance(each, StoreUnavailable)] == ["store_cannot_open"]
        await assert_copy(tmp_path / "b.db")

    @pytest.mark.parametrize("ways", [WAYS[1:], WAYS[2:]], ids=["by a link", "by a claim"])
    async def test_a_copy_gets_its_name_where_there_is_no_exclusive_rename(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: list[str]
    ) -> None:
        target = tmp_path / "copy" / "b.db"
        target.parent.mkdir()
        async with open_file(path) as log:
            await fill(log)
            leave_only(monkeypatch, ways)
            await log.backup(target)
            monkeypatch.undo()
        assert sorted(os.listdir(target.parent)) == ["b.db", "b.db.artifacts"]
        await assert_copy(target)

    @pytest.mark.parametrize("name", ["b.db", "b.db.artifacts/mine"])
    @pytest.mark.parametrize("ways", [WAYS, WAYS[1:], WAYS[2:]], ids=["by a rename", "by a link", "by a claim"])
    async def test_what_comes_by_its_name_in_the_last_moment_is_not_replaced(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: list[str], name: str
    ) -> None:
        folder = tmp_path / "copy"
        (folder / name).parent.mkdir(parents=True)
        async with open_file(path) as log:
            await fill(log)
            leave_only(monkeypatch, ways)
            (folder / name).write_bytes(b"mine")
            monkeypatch.setattr(backup, "_check_free", lambda _: None)
            assert await refusal_of(log.backup(folder / "b.db")) == ("store_cannot_open", None)
            monkeypatch.undo()
        assert [found.relative_to(folder) for found in folder.rglob("*") if found.is_file()] == [Path(name)]
        assert (folder / name).read_bytes() == b"mine"

    @pytest.mark.parametrize(
        ("ways", "call"), [(WAYS[1:], "link"), (WAYS[2:], "rename")], ids=["by a link", "by a claim"]
    )
    async def test_a_copy_that_cannot_be_given_its_name_is_not_there(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: list[str], call: str
    ) -> None:
        def fails(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        target = tmp_path / "copy" / "b.db"
        target.parent.mkdir()
        async with open_file(path) as log:
            await log.append("a", [NewEvent("mine", {})], expect=Expect.any())
            leave_only(monkeypatch, ways)
            monkeypatch.setattr(os, call, fails)
            assert await refusal_of(log.backup(target)) == ("store_io_error", None)
            monkeypatch.undo()
            assert os.listdir(target.parent) == []
            await log.backup(target)

    async def test_a_copy_that_failed_where_no_folder_can_be_opened_is_in_the_way_of_no_other(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        async with open_file(path) as log:
            await fill(log)
            monkeypatch.setattr(backup, "_give_name", fails)
            monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # it opens what it removes
            assert await refusal_of(log.backup(tmp_path / "b.db")) == ("store_io_error", None)
            monkeypatch.undo()
            await log.backup(tmp_path / "b.db")
        await assert_copy(tmp_path / "b.db")

    async def test_a_folder_that_can_neither_be_given_back_its_name_is_removed_as_it_is(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = tmp_path / "copy" / "b.db"
        target.parent.mkdir()

        def fails(*_: object) -> None:
            monkeypatch.setattr(os, "rename", fails)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        async with open_file(path) as log:
            await fill(log)
            monkeypatch.setattr(backup, "_give_name", fails)
            assert await refusal_of(log.backup(target)) == ("store_io_error", None)
            monkeypatch.undo()
            assert os.listdir(target.parent) == []
            await log.backup(target)

    async def test_a_folder_that_is_not_there_is_a_coded_error(self, path: Path, tmp_path: Path) -> None:
        async with open_file(path) as log:
            assert await refusal_of(log.backup(tmp_path / "none" / "b.db")) == ("store_cannot_open", None)

    @pytest.mark.processes
    @pytest.mark.parametrize("operation", ["sync", "write"])
    async def test_killed_at_any_call_a_copy_is_whole_or_not_there(
        self, under_faults: Callable[..., child.Done], path: Path, tmp_path: Path, operation: str, is_long: bool
    ) -> None:
        async with open_file(path) as log:
            await fill(log)
        killed = whole = 0
        step = 1 if is_long else 3
        for skip in range(0, 300, step):
            target = tmp_path / f"copy-{operation}-{skip}" / "b.db"
            target.parent.mkdir()
            done = under_faults(artifact_scenarios.backs_up_and_is_killed, path, target, operation, skip)
            left = sorted(os.listdir(target.parent))
            if target.exists():
                await assert_copy(target)
                whole += 1
            if done.returncode == 0:
                assert left == ["b.db", "b.db.artifacts"]
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
            killed += 1
            if not target.exists() and killed % 5 == 1:
                async with open_file(path) as log:
                    await log.backup(target)
                await assert_copy(target)
        assert killed >= 3
        assert whole >= 1

    @pytest.mark.parametrize(
        ("operation", "files", "skip", "works"),
        [
            ("rename", "b.db", 0, "works"),  # it has its name, and the answer was lost
            ("sync", "/copy", 2, "does not"),  # it has its name, and nobody knows whether that is durable
            ("rename", ".artifacts", 0, "works"),
        ],
        ids=["name", "sync", "artifacts"],
    )
    async def test_copy_that_was_told_to_have_failed_is_not_there(
        self,
        under_faults: Callable[..., child.Done],
        path: Path,
        tmp_path: Path,
        operation: str,
        files: str,
        skip: int,
        works: str,
    ) -> None:
        async with open_file(path) as log:
            await fill(log)
        folder = tmp_path / "copy"
        folder.mkdir()
        scenario = artifact_scenarios.backup_fails_as_it_gets_its_name
        seen = under_faults(scenario, path, folder, operation, files, skip, works).result
        assert seen == {"told": "store_io_error", "hits": 1, "left": [], "again": "ok"}
        await assert_copy(folder / "b.db")

    async def test_a_copy_that_lacks_an_artifact_would_be_found(self, path: Path, tmp_path: Path) -> None:
        async with open_file(path) as log:
            digests = await fill(log)
            await log.backup(tmp_path / "b.db")
        place_of(tmp_path / "b.db.artifacts", digests[0]).unlink()
        with pytest.raises(AssertionError):
            await assert_copy(tmp_path / "b.db")


class TestVerify:
    async def test_artifacts_that_are_there_are_ok(self, path: Path) -> None:
        async with open_file(path) as log:
            await fill(log)
            assert await verdict_of(log) == ("ok", [])
            assert await verdict_of(log, run="run-1") == ("ok", [])

    async def test_a_removed_artifact_is_found_at_every_event_that_names_it(self, path: Path, folder: Path) -> None:
        async with open_file(path) as log:
            digests = await fill(log)
            await fill(log, "run-2", count=4)
            place_of(folder, digests[2]).unlink()
            place_of(folder, digests[6]).write_bytes(b"")
            missing, damaged = "artifact_missing", "artifact_damaged"
            assert await verdict_of(log) == ("damaged", [(missing, 3), (damaged, 7), (missing, 11)])
            assert await verdict_of(log, run="run-2") == ("damaged", [(missing, 11)])
            found = await verdicts(log)
            assert found.is_damaged
            assert (found.integrity.verdict, found.order.verdict) == ("ok", "ok")
            assert digests[2] in found.artifacts.problems[0].message
            assert found.artifacts.problems[0].stream == "run:run-1"

    async def test_without_the_artifacts_only_a_log_that_names_none_is_known(self, path: Path) -> None:
        async with open_file(path) as log:
            await log.append("a", [NewEvent("mine", {"artifact": DIGEST})], expect=Expect.any())
            assert (await verify(log)).artifacts.verdict == "ok"
            await fill(log)
            assert (await verify(log)).artifacts.verdict == "unknown"

    async def test_the_artifacts_of_a_log_in_memory_are_checked_as_well(self) -> None:
        async with eventlog.open("memory:") as log:
            digest = await log.artifacts.put(DATA)
            steps = [StepCompleted(name="s", key=key, artifact=name) for key, name in [("a", digest), ("b", "0" * 64)]]
            await log.append_reserved([Append("run:a", steps, Expect.any())])
            found = await verify(log, artifacts=log.artifacts)
        assert [(each.reason, each.position) for each in found.artifacts.problems] == [("artifact_missing", 2)]

    @pytest.mark.parametrize("named", ["3", "[" * 5000, '"' + DIGEST], ids=["number", "deep", "cut"])
    async def test_an_event_that_no_program_has_written_names_none(self, named: str) -> None:
        """That it cannot be read is for others to say, who read the whole of it."""
        assert artifact_in("run:a", "step_completed", f'{{"artifact":"{DIGEST}"}}'.encode()) == DIGEST
        assert artifact_in("run:a", "step_completed", f'{{"artifact":{named}}}'.encode()) is None

    @pytest.mark.processes
    async def test_the_command_line_says_which_artifact_is_gone(self, path: Path, folder: Path, tmp_path: Path) -> None:
        async with open_file(path) as log:
            digests = await fill(log)
        cli = CommandLine(tmp_path, "--db", "log.db")
        assert cli("verify", "--json").json["artifacts"] == {"verdict": "ok", "problems": [], "problem_count": 0}
        place_of(folder, digests[1]).unlink()
        found = cli("verify", "--json", status=3).json["artifacts"]
        assert (found["verdict"], found["problem_count"]) == ("damaged", 1)
        assert (found["problems"][0]["reason"], found["problems"][0]["position"]) == ("artifact_missing", 2)
        assert digests[1] in cli("verify", "--format", "human", status=3).text
        refused = cli("db", "backup", "b.db", "--json")
        assert refused.status != 0
        assert digests[1] in refused.json["message"]


async def verdicts(log: SqliteLog, run: str | None = None) -> Verdicts:
    async def no_views() -> Finding:
        return Finding(verdict="ok")

    return await verify(log, run=run, artifacts=log.artifacts, views=no_views)


async def verdict_of(log: SqliteLog, run: str | None = None) -> tuple[str, list[tuple[str, int | None]]]:
    found = (await verdicts(log, run)).artifacts
    return found.verdict, [(problem.reason, problem.position) for problem in found.problems]


async def assert_copy(path: Path) -> None:
    """Assert that this is a whole copy of a log of one run with its artifacts."""
    async with open_file(path, may_create=False) as log:
        await assert_whole(log)
        assert (await log.head()).position == artifact_scenarios.COUNT
        found = await verdicts(log)
        assert (found.integrity.verdict, found.artifacts.verdict) == ("ok", "ok")

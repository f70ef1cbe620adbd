"""`eventlog doctor`: whether this machine, and the folder of the log, can keep what the log promises."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import click

from eventlog.cli.advice import advice, spelled
from eventlog.cli.commands import Command
from eventlog.cli.kept_views import SHIPPED, is_brought_up_when_asked_for
from eventlog.cli.options import Options
from eventlog.cli.output import counted, grouped, show_lines, time_text, write_document
from eventlog.cli.projections.consumers import ConsumerState, consumers_of
from eventlog.cli.projections.states import percent, spell_entry, spell_problem
from eventlog.cli.signer_state import behind_of
from eventlog.cli.text import visible
from eventlog.cli.wiring import complete, open_log, signer_of
from eventlog.errors import CODES, EventLogError
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.connection import SQLITE_FLOOR, SQLITE_VERSION, sqlite_has_wal_reset_fix
from projections.sqlite_views.entries import ViewEntries, read_entries

__all__ = ["doctor"]

_NETWORK: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3"}
)
_OLDEST_CLOCK_US: Final = 1_767_225_600_000_000
"""2026-01-01: no event of this program is older, so no clock is right that is before it."""
_OLDEST_PYTHON: Final = (3, 11)
_MAY_NOT_READ: Final = "Run this as the user who resumes the runs; what cannot be opened may have been left by a crash."
_LITTLE_BYTES: Final = 256 * 1024 * 1024
"""Less is nearly nothing: a view that is built again, a backup, a write-ahead log that nobody can shorten."""
_ACCESS: Final = "Give this user write access."
_NOT_WRITTEN: Final = {errno.ENOSPC: "Free some space.", errno.EROFS: "Mount it for writing."}

State = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One thing that was looked at."""

    state: State
    name: str
    found: str
    hint: str | None = None


@click.command("doctor", cls=Command)
@click.pass_obj
def doctor(options: Options) -> int:
    """Check Python, SQLite and the clock, and with --db the log's folder, its locks, views and consumers.

    With --signer also whether the signer answers, and the log goes on from the head that it has signed last.

    Appends nothing and changes no data; the side files of SQLite and of the lock may appear beside the log.

    Exit status 1 if something fails; a warning does not.
    """
    checks = [*_machine(), *(complete(options, _collect(options)) if options.db_or_none is not None else ())]
    if options.db_or_none is None:
        checks.append(Check("warn", "log", "not looked at", "Name it with --db."))
    _show(options, checks)
    return 1 if any(check.state == "fail" for check in checks) else 0


def _machine() -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield _check(sys.version_info >= _OLDEST_PYTHON, "python", python, "Use Python 3.11 or newer.")
    version = ".".join(map(str, SQLITE_VERSION))
    yield _check(SQLITE_VERSION >= SQLITE_FLOOR, "sqlite", version, "Use SQLite 3.37.0 or newer.")
    yield _check(
        sqlite_has_wal_reset_fix(),
        "sqlite_wal_reset_fix",
        "has the fix" if sqlite_has_wal_reset_fix() else f"SQLite {version} lacks it",
        "This program's lock covers it; let no other program write to the database, or use SQLite 3.51.3.",
        otherwise="warn",
    )
    now_us = time.time_ns() // 1000
    yield _check(now_us >= _OLDEST_CLOCK_US, "clock", time_text(now_us), "Set the clock; events carry its time.")


async def _collect(options: Options) -> list[Check]:
    folder = Path(os.path.realpath(options.db)).parent
    checks = list(_folder(folder))
    if checks[0].state != "fail" and os.path.exists(options.db):
        checks += [check async for check in _log(options)]
    elif checks[0].state != "fail":
        checks.append(Check("warn", "log", f"there is none at {options.db}", "`eventlog start` creates it."))
    return checks


def _folder(folder: Path) -> Iterator[Check]:
    if not folder.is_dir():
        yield Check("fail", "folder", f"there is no folder {folder}", "Create it.")
        return
    kind = _file_system(folder)
    yield _check(
        kind not in _NETWORK, "file_system", kind, "Keep the log on a local disk: locks and write-ahead logs need one."
    )
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".eventlog-doctor-") as file:
            yield Check("ok", "folder_writable", str(folder))
            yield _flock_works(file.name)
    except OSError as error:
        yield Check(
            "fail", "folder_writable", f"{folder}: {error.strerror}", _NOT_WRITTEN.get(error.errno or 0, _ACCESS)
        )
    yield _disk(folder)


def _disk(folder: Path) -> Check:
    """Say how much room there is for this user, on a file system that counts it."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if not disk.f_blocks:
        return Check("ok", "disk", "it does not say how much is free")
    hint = "Free some space: a log that cannot be written refuses every append."
    return _check(free >= _LITTLE_BYTES, "disk", f"{grouped(free)} bytes free", hint, otherwise="warn")


def _flock_works(path: str) -> Check:
    first, second = (os.open(path, os.O_RDWR | os.O_CLOEXEC) for _ in range(2))
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return Check("ok", "flock", "keeps others out")
            raise
        return Check("fail", "flock", "two holders at once", "Keep the log on a local disk.")
    except OSError as error:
        return Check("fail", "flock", str(error.strerror), "Keep the log on a local disk.")
    finally:
        os.close(first)
        os.close(second)


async def _log(options: Options) -> AsyncIterator[Check]:
    try:
        async with open_log(options, is_read_only=True) as opened:
            health = await opened.log.health()
            yield Check("ok", "log", f"format {health.format_version}, {health.head} events")
            yield await _last_event(opened.log, health.head)
            if options.signer is not None:
                yield await _signer(options, opened.log, health.head)
            yield _views(options, health.views_behind)
            for check in _unfinished_views(options, await read_entries(opened.log)):
                yield check
            for check in _consumers(await consumers_of(options, opened.log)):
                yield check
            yield _owners(f"{opened.log.place}.owners")
    except EventLogError as error:
        yield Check("fail", "log", f"{error.code}: {error}", error.hint)


async def _last_event(log: SqliteLog, head: int) -> Check:
    now_us = time.time_ns() // 1000
    at_us = [event.recorded_at_us async for event in log.read_all(after=max(head - 1, 0), limit=1)]
    is_past = not at_us or at_us[0] <= now_us
    found = f"last event at {time_text(at_us[0])}" if at_us else "no events"
    return _check(
        is_past,
        "clock_against_log",
        found,
        "The clock ran ahead then, or is behind now.",
        otherwise="warn",
    )


async def _signer(options: Options, log: SqliteLog, size: int) -> Check:
    """Say whether the signer answers, and whether the log goes on from the head that it has signed last."""
    try:
        signer = signer_of(options)
        last = None if signer is None else await asyncio.to_thread(signer.last)
    except EventLogError as error:
        return Check("fail", "signer", f"{error.code}: {error}", advice(error, options))
    behind = await behind_of(log, last)
    if behind is not None:
        hint = "Find its file of heads; `eventlog verify --head FILE` compares the log with what was kept elsewhere."
        return Check("fail", "signer", f"signer_behind: {behind}", hint)
    if last is None:
        return Check("warn", "signer", "has signed no head yet", "`eventlog head --sign` has one signed.")
    found = f"has signed {grouped(last.head.size)} of {counted(size, 'event')}"
    if last.head.size > size:
        return Check("fail", "signer", f"store_rolled_back: {found}", CODES["store_rolled_back"].hint)
    if (
        last.log_id not in {log_id for _, log_id in log.facts.log_ids}
        or await log.tree_head(last.head.size) != last.head
    ):
        return Check("fail", "signer", f"store_forked: {found}, of another log than this", CODES["store_forked"].hint)
    return Check("ok", "signer", found)


def _views(options: Options, behind: dict[str, int]) -> Check:
    if not behind:
        return Check("ok", "views", "none yet")
    found = ", ".join(f"{name} is {counted(count, 'event')} behind" for name, count in behind.items())
    late = [name.partition("/")[0] for name, count in behind.items() if count]
    wanted = [name for name in late if not is_brought_up_when_asked_for(name)]
    brings_up = ", ".join(f"`{spelled(options, 'resume', name)}`" for name in wanted)
    own = "" if SHIPPED.issuperset(wanted) else "; name your own with --projections MODULE:NAME"
    return _check(not wanted, "views", found, f"Brought up by {brings_up}{own}", otherwise="warn")


def _consumers(states: Sequence[ConsumerState]) -> Iterator[Check]:
    """Say which consumers stand behind the log while nobody runs them; nothing where none does."""
    for each in states:
        if each.condition == "behind":
            found = f"{each.name} has handled {grouped(each.position)} of {counted(each.head, 'event')}; nobody runs it"
            yield Check("warn", "consumer_stopped", found, "Start its program; what stopped it is said there.")


def _unfinished_views(options: Options, found: ViewEntries) -> Iterator[Check]:
    """Say which views have stopped, and which builds there are; nothing where there is neither."""
    for entry in found.entries:
        hint = f"What goes on from there:  {spelled(options, 'status', entry.name)}"
        if entry.problem is not None:
            yield Check("warn", "view_stopped", f"{spell_entry(entry)} {spell_problem(entry.problem)}", hint)
        elif entry.state not in ("live", "kept"):
            share = f"{spell_entry(entry)} is built up to {percent(entry.position, found.head)} %"
            yield Check("warn", "view_building", share, hint)


def _owners(folder: str) -> Check:
    """Count the lock files of resumers. One that nobody holds was left by a crash; resuming its run clears it."""
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".lock")]
    except FileNotFoundError:
        paths = []
    except OSError as error:
        return Check("warn", "owner_locks", f"{folder}: {error.strerror}", _MAY_NOT_READ)
    states = Counter(map(_lock_state, paths))
    found = f"{states['held']} at work, {states['free']} left by a crash"
    if states["unknown"]:
        return Check("warn", "owner_locks", f"{found}, {states['unknown']} cannot be opened", _MAY_NOT_READ)
    return _check(not states["free"], "owner_locks", found, "Resume the runs that crashed.", otherwise="warn")


def _lock_state(path: str) -> Literal["held", "free", "gone", "unknown"]:
    """Say whether a living process holds the lock file, as far as it can be opened."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "unknown"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return "held" if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else "unknown"
    else:
        return "free"
    finally:
        os.close(descriptor)


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, where the system says so."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    best, kind = "", "unknown"
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind


def _check(is_good: bool, name: str, found: str, hint: str, *, otherwise: State = "fail") -> Check:
    return Check("ok", name, found) if is_good else Check(otherwise, name, found, hint)


def _show(options: Options, checks: list[Check]) -> None:
    if options.is_json:
        documents: list[dict[str, Any]] = [check._asdict() for check in checks]
        write_document({"checks": documents, "failed": sum(check.state == "fail" for check in checks)})
    elif options.format == "plain":
        fields = (map(visible, (check.state, check.name, check.found, check.hint or "-")) for check in checks)
        show_lines(["\t".join(each) for each in fields], tabs=True)
    else:
        show_lines([line for check in checks for line in _lines(check)])


def _lines(check: Check) -> list[str]:
    line = f"{check.state:<5} {check.name:<21} {check.found}"
    return [line] if check.hint is None else [line, f"      hint: {check.hint}"]

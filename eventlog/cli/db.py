"""`eventlog db`: the database behind the log."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Final

import click
from msgspec import to_builtins

from eventlog.cli.commands import Group
from eventlog.cli.options import Options
from eventlog.cli.output import Progress, progress, show_card
from eventlog.cli.projections.states import percent, spell_entry, spell_problem
from eventlog.cli.wiring import complete, open_log
from eventlog.errors import InvalidInput, LogCorrupt, StoreUnavailable
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from projections.sqlite_views.entries import read_entries

__all__ = ["db"]

_BESIDE: Final = {"database_bytes": "", "wal_bytes": "-wal", "shared_memory_bytes": "-shm"}


@click.group("db", cls=Group)
def db() -> None:
    """The database: facts, copies, formats."""


@db.command("info")
@click.pass_obj
def info(options: Options) -> None:
    """Show the state of the store, sizes, the format, and how many events of each type there are."""
    complete(options, _info(options))


@db.command("backup")
@click.argument("target", metavar="FILE")
@click.pass_obj
def backup(options: Options, target: str) -> None:
    """Copy the log to a new file while it is in use. An existing file is never overwritten."""
    complete(options, _backup(options, target))


@db.command("migrate")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@click.pass_obj
def migrate(options: Options, dry_run: bool) -> None:
    """Bring a log of an older format to the current one, in one transaction."""
    complete(options, _migrate(options, dry_run))


async def _info(options: Options) -> None:
    async with open_log(options, is_read_only=True) as opened:
        health: dict[str, Any] = to_builtins(await opened.log.health())
        views = await _views(opened.log)
        with progress(options, "counting") as bar:
            counts = await _count_types(opened.log, health["head"], bar)
        sizes = _sizes(opened.log.place)
    del health["is_read_only"], health["state"], health["queued"]  # of this command's own connection
    card = {
        "path": options.db,
        **health,
        **views,
        **sizes,
        "newest_known_format": FORMAT_VERSION,
        "events_by_type": counts,
    }
    show_card(options, card)


async def _views(log: SqliteLog) -> dict[str, Any]:
    """Return what a look at the views has to say beyond how far they are behind: what stopped one, what is built."""
    found = await read_entries(log)
    problems = {
        spell_entry(entry): spell_problem(entry.problem) for entry in found.entries if entry.problem is not None
    }
    built = [entry for entry in found.entries if entry.state not in ("live", "kept") and entry.problem is None]
    shares = {spell_entry(entry): f"{percent(entry.position, found.head)} %" for entry in built}
    return {"views_stopped": problems, "views_building": shares}


async def _count_types(log: SqliteLog, head: int, bar: Progress) -> dict[str, int] | str:
    """Return how many events there are of each type, or why that cannot be said of a damaged log."""
    counts: Counter[str] = Counter()
    try:
        async for event in log.read_all():
            counts[event.type] += 1
            if event.position % 1000 == 0:
                bar(event.position, head)
    except (LogCorrupt, InvalidInput) as error:
        return f"unknown, the log is damaged: {error}; run `eventlog verify`"
    return dict(sorted(counts.items()))


def _sizes(path: str | None) -> dict[str, int]:
    assert path is not None, "the log is a file"
    return {name: _size(path + suffix) for name, suffix in _BESIDE.items()}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


async def _backup(options: Options, target: str) -> None:
    if not target or "\0" in target:
        raise InvalidInput("invalid_argument", f"{target!r:.80} names no file")
    async with open_log(options, is_read_only=True) as opened:
        position = await opened.log.backup(target)
    show_card(options, {"path": target, "position": position, "size_bytes": _size(target)})


async def _migrate(options: Options, dry_run: bool) -> None:
    found = await _current_format(options)
    if found is None and not dry_run:
        async with open_log(options) as opened:  # opening for writing migrates
            found = opened.log.facts.format_version
        done = "migrated"
    else:
        done = "would be migrated" if found is None else "nothing to do"
    show_card(
        options,
        {"path": options.db, "format_version": found, "newest_known_format": FORMAT_VERSION, "result": done},
    )


async def _current_format(options: Options) -> int | None:
    """Return the format of a log that needs no migration, or None. Raises what opening raises."""
    try:
        async with open_log(options, is_read_only=True) as opened:
            return opened.log.facts.format_version
    except StoreUnavailable as error:
        if error.code == "migration_required":
            return None
        raise

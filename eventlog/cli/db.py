"""`eventlog db`: the database behind the log."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import aclosing
from typing import Any, Final

import click
from msgspec import to_builtins

import eventlog
from eventlog.cli.commands import Group
from eventlog.cli.log_events import read_log_story
from eventlog.cli.options import Options
from eventlog.cli.output import Progress, note, progress, show_card
from eventlog.cli.projections.states import percent, spell_entry, spell_problem
from eventlog.cli.signer_state import signer_behind
from eventlog.cli.wiring import complete, open_log, signer_of
from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, Misuse, StoreUnavailable
from eventlog.events import LogRestored
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from projections.sqlite_views.entries import read_entries

__all__ = ["db"]

_BESIDE: Final = {"database_bytes": "", "wal_bytes": "-wal", "shared_memory_bytes": "-shm"}


@click.group("db", cls=Group)
def db() -> None:
    """The database: facts, copies, formats, restores."""


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


@db.command("restored")
@click.option("--reason", metavar="TEXT", required=True, help="Why an older copy stands here now.")
@click.option("--force", is_flag=True, help="Declare it although nothing shows that an older copy stands here.")
@click.pass_obj
def restored(options: Options, reason: str, force: bool) -> None:
    """Declare that an older copy of the log was put here: it goes on as a new incarnation, and says so for ever.

    What was recorded since the copy was made is lost; the head that was signed last stays in the log as its witness.
    This cannot be taken back. So it is refused unless the signer (--signer) shows it: opening the log with it is
    refused, as store_rolled_back or store_forked. What nobody can show is declared with --force.
    """
    complete(options, _restored(options, reason, force))


async def _info(options: Options) -> None:
    async with open_log(options, is_read_only=True) as opened:
        health: dict[str, Any] = to_builtins(await opened.log.health())
        views = await _views(opened.log)
        with progress(options, "counting") as bar:
            counts = await _count_types(opened.log, health["head"], bar)
        sizes = _sizes(opened.log.place)
        signed = await opened.log.signed_heads()
        try:
            behind = await signer_behind(options, opened.log)
        except EventLogError as error:  # who only looks needs nobody who answers
            behind = f"unknown, {error.code}: {error}"
    for name in ("is_read_only", "state", "queued", "head_error"):  # of this command's own connection
        del health[name]
    health["signed_size"] = signed[-1].head.size if signed else None
    if behind is not None:
        health["signer_behind"] = behind
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


async def _restored(options: Options, reason: str, force: bool) -> None:
    if not reason.strip():
        raise InvalidInput("invalid_argument", "--reason is empty: say why an older copy of the log stands here")
    if not force:
        await _require_shown(options)
    async with open_log(options, restored=reason) as opened:
        log_ids = await opened.log.log_ids()
        first, log_id = log_ids[-1]
        async with aclosing(opened.log.read_all(after=first - 1, limit=1)) as events:
            event = await anext(events)
    said = event.data
    named = await _name_key_again(options, log_id)
    assert isinstance(said, LogRestored), "it was declared just now"
    show_card(
        options,
        {
            "path": options.db,
            "log_id": log_id.hex(),
            "previous_log_id": said.previous_log_id,
            "first_position": first,
            **_lost(said, first - 1),
            **named,
        },
    )


def _lost(said: LogRestored, size: int) -> dict[str, int | None]:
    """Return what is known of what was lost. Only the signer knows of it: what the copy says is no measure."""
    return {
        "last_known_size": said.size if said.is_from_signer else None,
        "lost_events": said.size - size if said.is_from_signer and said.size > size else None,
    }


async def _require_shown(options: Options) -> None:
    """Raise Misuse(`restore_not_needed`) unless the signer refuses the log as it is. Nothing is written here."""
    signer = signer_of(options)
    if signer is None:
        raise Misuse("restore_not_needed", await _why_not_shown(options))
    log = eventlog.open(options.db, is_read_only=True, signer=signer)
    try:
        async with log:
            pass
    except StoreUnavailable as error:
        if error.code not in ("store_rolled_back", "store_forked"):
            raise
        return
    raise Misuse("restore_not_needed", "the log goes on from the head that the signer has signed last")


async def _why_not_shown(options: Options) -> str:
    """Say why nobody can tell, without a signer."""
    async with open_log(options, is_read_only=True) as opened:
        is_signed = bool(await opened.log.signed_heads()) or bool((await read_log_story(opened.log)).keys.keys)
    if is_signed:
        return "the heads of this log are signed, and only its signer can say what was lost: name it with --signer"
    return "the heads of this log are not signed, so nothing shows that an older copy stands here"


async def _name_key_again(options: Options, log_id: bytes) -> dict[str, Any]:
    """Name the key that signs from here on in the new incarnation, where this process holds it."""
    signer = signer_of(options)
    if signer is None:
        return {}
    from eventlog.audit.heads.local_signer import LocalSigner
    from eventlog.cli.keys import find_story, name_key

    found = await find_story(options)
    if not isinstance(signer, LocalSigner) or found is None:
        how = f"`eventlog signer begin --heads FILE {log_id.hex()}`"
        note(options, f"nothing is signed until the signer's operator begins the new incarnation of the log: {how}")
        note(options, "then name its key in the log again: `eventlog keys declare`, with the same --signer")
        return {}
    return await name_key(options, found, signer)


async def _current_format(options: Options) -> int | None:
    """Return the format of a log that needs no migration, or None. Raises what opening raises."""
    try:
        async with open_log(options, is_read_only=True) as opened:
            return opened.log.facts.format_version
    except StoreUnavailable as error:
        if error.code == "migration_required":
            return None
        raise

"""Puts the parts together: the log with its views, and the runner with the actions of this command line."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

import click

import eventlog
from eventlog.cli.build_line import build_line
from eventlog.cli.kept_views import KEPT
from eventlog.cli.options import Options
from eventlog.cli.subject_keys import subject_keys_of
from eventlog.cli.text import visible
from eventlog.decide import check_run_id, require_run
from eventlog.errors import EventLogError, InvalidInput, LogCorrupt, Refused, StoreUnavailable
from eventlog.events import run_stream
from eventlog.heads import HeadSigner
from eventlog.log import EventReader, RecordedEvent
from eventlog.progress import fold_stream, is_workflow
from eventlog.run import Run
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.failpoints import FAILPOINTS, Reach, crash_at, pass_by
from eventlog.runtime.runner import Runner
from eventlog.stores import SqliteLog
from eventlog.times import time_text
from projections import RUNS, Projection, RunsTable, SqliteView

__all__ = [
    "Opened",
    "check_not_beyond",
    "complete",
    "log_to_standard_error",
    "open_existing",
    "open_log",
    "open_to_look",
    "open_views_as_they_are",
    "read_run",
    "signer_of",
    "version_of",
]

T = TypeVar("T")

ACTION: Final = "write_draft"
"""The action that this command line can perform: it writes the content that was approved to the target."""


_FAILPOINT: Final = "EVENTLOG_FAILPOINT"
_NOT_WRITABLE: Final = frozenset({"store_cannot_open", "store_readonly"})


class Opened(NamedTuple):
    """An open log, its views by name, that of runs, and a runner on it: that of `--app`, or one that writes drafts."""

    log: SqliteLog
    views: Mapping[str, SqliteView]
    view: SqliteView
    table: RunsTable
    runner: Runner


def complete(options: Options, work: Coroutine[Any, Any, T]) -> T:
    """Run the work of one command to its end."""
    if options.verbosity:
        log_to_standard_error(logging.INFO if options.verbosity == 1 else logging.DEBUG)
    return asyncio.run(work)


@asynccontextmanager
async def open_log(
    options: Options,
    *,
    may_create: bool = False,
    is_read_only: bool = False,
    only_looks: bool = False,
    asked_for: Sequence[Projection] = (),
    reach: Reach = pass_by,
    signer: HeadSigner | None = None,
    restored: str | None = None,
) -> AsyncIterator[Opened]:
    """Open the log that `--db` names, with the views that are kept and those that are `asked_for` brought up.

    A log that is written is signed by `signer`, or by the one that `--signer` names; `restored` as in `eventlog.open`.

    Raises StoreUnavailable(`store_not_found`), or creates it where allowed.
    Raises Misuse(`app_unusable`) where `--app` gives no Runner; who `only_looks` needs none, and its code is not run.
    Raises click.UsageError where EVENTLOG_FAILPOINT asks for a crash that the Runner of `--app` would pass by.
    """
    app = None if is_read_only or only_looks else options.app
    if app is not None and os.environ.get(_FAILPOINT):
        raise click.UsageError(f"{_FAILPOINT} works without --app (EVENTLOG_APP) only; nothing was done.")
    views = {projection.name: SqliteView(projection) for projection in (*KEPT, *asked_for)}
    log = eventlog.open(
        options.db,
        views=views.values(),
        may_create=may_create,
        is_read_only=is_read_only,
        signer=None if is_read_only or only_looks else signer or signer_of(options),
        restored=restored,
        subject_keys=subject_keys_of(options, may_create=may_create),
    )
    assert isinstance(log, SqliteLog), "the command line has refused memory:"
    async with AsyncExitStack() as stack:
        with build_line(options) as show:
            log.tells_builds(show)
            await stack.enter_async_context(log)
        table = RunsTable(log, views[RUNS.name])
        yield Opened(log, views, views[RUNS.name], table, await _runner(app, log, table, reach))


@asynccontextmanager
async def open_views_as_they_are(options: Options, *, is_read_only: bool = False) -> AsyncIterator[SqliteLog]:
    """Open the log that `--db` names without bringing any of its views up, for commands that are about the views.

    The types of events of `--app` are registered, if it is given. Raises as `open_log`.
    """
    if options.app is not None:
        from eventlog.cli.application import load_types

        load_types(options.app)
    signer = None if is_read_only else signer_of(options)
    log = eventlog.open(
        options.db,
        may_create=False,
        is_read_only=is_read_only,
        signer=signer,
        subject_keys=subject_keys_of(options),
    )
    assert isinstance(log, SqliteLog), "the command line has refused memory:"
    async with log:
        yield log


def signer_of(options: Options) -> HeadSigner | None:
    """Return who signs heads of the log, if anybody was named. Who only looks at a log needs nobody.

    Raises InvalidInput: `key_exposed`, `key_unusable`; Misuse(`missing_extra`).
    """
    if options.signer is None:
        return None
    from eventlog.audit.heads import signer_from

    return signer_from(options.signer)


async def _runner(app: str | None, log: SqliteLog, table: RunsTable, reach: Reach) -> Runner:
    if app is None:
        return Runner(log, actions=[WriteFile(name=ACTION, shows_content=True)], view=table, reach=reach)
    from eventlog.cli.application import load_runner

    runner = await load_runner(app, log)
    runner.shows(table)
    return runner


@asynccontextmanager
async def open_existing(options: Options, run_id: str, *, only_reads: bool = False) -> AsyncIterator[Opened]:
    """Open the log of an existing run: in a log that does not exist there is no such run, and none is created.

    Where the run is refused something, `options` are told whether it is one of a workflow.
    """
    check_run_id(run_id)
    opening = open_to_look if only_reads else open_log
    try:
        async with opening(options, reach=failpoint()) as opened:
            try:
                yield opened
            except EventLogError:
                options.is_about_workflow = await _is_workflow(opened.log, run_id)
                raise
    except StoreUnavailable as error:
        if error.code != "store_not_found":
            raise
        raise Refused("unknown_run", f"there is no log at {options.db!r}", subject=run_id, run_id=run_id) from error


async def _is_workflow(log: EventReader, run_id: str) -> bool:
    """Say whether this is a run of a workflow, as far as the log can be read."""
    try:
        return is_workflow((await log.read_stream(run_stream(run_id))).events[:1])
    except EventLogError:
        return False


@asynccontextmanager
async def open_to_look(
    options: Options, *, follows: bool = False, asked_for: Sequence[Projection] = (), reach: Reach = pass_by
) -> AsyncIterator[Opened]:
    """Open the log for a command that only reads: with its views brought up, or, where it cannot be written, as it is.

    Raises StoreUnavailable as `open_log`, and for one that `follows` if it would never see what others append.
    """
    async with AsyncExitStack() as stack:
        try:
            opened = await stack.enter_async_context(
                open_log(options, only_looks=True, asked_for=asked_for, reach=reach)
            )
        except StoreUnavailable as error:
            if error.code not in _NOT_WRITABLE:
                raise
            opened = await stack.enter_async_context(
                open_log(options, is_read_only=True, asked_for=asked_for, reach=reach)
            )
            if follows and not (await opened.log.health()).is_locked_by_file:
                why = "nothing new can be seen of a log in a folder that cannot be written; leave -f away"
                raise StoreUnavailable("store_cannot_open", why, path=options.db) from error
        yield opened


async def check_not_beyond(log: EventReader, position: int, argument: str) -> None:
    """Raise InvalidInput(`invalid_argument`) if the log ends before the position that `argument` gave."""
    head = (await log.head()).position
    if position > head:
        raise InvalidInput("invalid_argument", f"{argument} is {position}, but the log ends at position {head}")


def failpoint() -> Reach:
    """Return what EVENTLOG_FAILPOINT asks for. Raises click.UsageError for a name that is none."""
    name = os.environ.get(_FAILPOINT)
    if not name:
        return pass_by
    try:
        return crash_at(name)
    except ValueError:
        known = ", ".join(FAILPOINTS)
        raise click.UsageError(f"{_FAILPOINT}={name!r} is not NAME[:COUNT][=kill] with one of {known}.") from None


async def version_of(log: SqliteLog, run_id: str) -> int:
    """Return the version that a run is at, without reading its story. Raises Refused(`unknown_run`)."""
    newest = [event async for event in log.read_back(run_stream(check_run_id(run_id)), limit=1)]
    version = newest[0].version if newest else 0
    require_run(Run(run_id=run_id, version=version))
    return version


async def read_run(
    log: EventReader, run_id: str, *, at_version: int | None = None, at_us: int | None = None
) -> tuple[Run, Sequence[RecordedEvent]]:
    """Return a run and the events it is folded from, from one snapshot.

    Up to `at_version` if given, or up to the last event that was recorded at `at_us` or before. Raises
    Refused(`unknown_run`), EventTypeUnknown, LogCorrupt; InvalidInput for a version that is not reached yet, and for a
    time at which the run had not begun.
    """
    stream = await log.read_stream(run_stream(check_run_id(run_id)))
    require_run(Run(run_id=run_id, version=stream.version))
    if at_version is not None and at_version > stream.version:
        raise InvalidInput(
            "invalid_argument", f"run {run_id!r} is at version {stream.version}, not yet at {at_version}"
        )
    events = stream.events[:at_version]
    if at_us is not None:
        events = [event for event in events if event.recorded_at_us <= at_us]
        if not events:
            began = time_text(stream.events[0].recorded_at_us)
            raise InvalidInput("invalid_argument", f"run {run_id!r} began at {began}, not yet at {time_text(at_us)}")
    try:
        return fold_stream(run_id, events), events
    except InvalidInput as error:
        raise LogCorrupt("event_malformed", str(error), stream=run_stream(run_id)) from error


def log_to_standard_error(level: int) -> None:
    """Show the engine's log lines. This is the one place that configures logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_VisibleLines("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("eventlog")
    logger.addHandler(handler)
    logger.setLevel(level)


class _VisibleLines(logging.Formatter):
    """Makes every character of a log line visible: its facts may come from the log's events."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return "\n".join(map(visible, super().format(record).split("\n")))

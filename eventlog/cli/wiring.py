"""Puts the parts together: the log with its views, and the runner with the actions of this command line."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

import click

import eventlog
from eventlog.cli.options import Options
from eventlog.decide import check_run_id, require_run
from eventlog.errors import InvalidInput, LogCorrupt
from eventlog.events import run_stream
from eventlog.log import EventReader, RecordedEvent
from eventlog.run import Run, fold_run
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.failpoints import FAILPOINTS, Reach, exit_at, pass_by
from eventlog.runtime.runner import Runner
from eventlog.stores import SqliteLog
from projections import RunsTable, SqliteView, runs_view

__all__ = ["Opened", "complete", "open_log", "read_run"]

T = TypeVar("T")

ACTION: Final = "write_draft"
"""The action that this command line can perform: it writes the content that was approved to the target."""


class Opened(NamedTuple):
    """An open log, its view of runs, and a runner on it."""

    log: SqliteLog
    view: SqliteView
    table: RunsTable
    runner: Runner


def complete(options: Options, work: Coroutine[Any, Any, T]) -> T:
    """Run the work of one command to its end."""
    if options.verbosity:
        _log_to_standard_error(logging.INFO if options.verbosity == 1 else logging.DEBUG)
    return asyncio.run(work)


@asynccontextmanager
async def open_log(
    options: Options, *, may_create: bool = False, is_read_only: bool = False, reach: Reach = pass_by
) -> AsyncIterator[Opened]:
    """Open the log that `--db` names. Raises StoreUnavailable(`store_not_found`), or creates it where allowed."""
    view = runs_view()
    log = eventlog.open(options.db, views=[view], may_create=may_create, is_read_only=is_read_only)
    assert isinstance(log, SqliteLog), "the command line has refused memory:"
    async with log:
        table = RunsTable(log, view)
        yield Opened(log, view, table, Runner(log, actions=[WriteFile(name=ACTION, shows_content=True)], view=table, reach=reach))


def failpoint() -> Reach:
    """Return what EVENTLOG_FAILPOINT asks for. Raises click.UsageError for a name that is none."""
    name = os.environ.get("EVENTLOG_FAILPOINT")
    if not name:
        return pass_by
    if name not in FAILPOINTS:
        raise click.UsageError(f"EVENTLOG_FAILPOINT={name!r} is none of {', '.join(FAILPOINTS)}.")
    return exit_at(name)


async def read_run(
    log: EventReader, run_id: str, *, at_version: int | None = None
) -> tuple[Run, Sequence[RecordedEvent]]:
    """Return a run and the events it is folded from, up to `at_version` if given, from one snapshot.

    Raises Refused(`unknown_run`), EventTypeUnknown, LogCorrupt; InvalidInput for a version that is not reached yet.
    """
    stream = await log.read_stream(run_stream(check_run_id(run_id)))
    require_run(Run(run_id=run_id, version=stream.version))
    if at_version is not None and at_version > stream.version:
        raise InvalidInput(
            "invalid_argument", f"run {run_id!r} is at version {stream.version}, not yet at {at_version}"
        )
    events = stream.events[:at_version]
    try:
        return fold_run(run_id, events), events
    except InvalidInput as error:
        raise LogCorrupt("event_malformed", str(error), stream=run_stream(run_id)) from error


def _log_to_standard_error(level: int) -> None:
    """Show the engine's log lines. This is the one place that configures logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("eventlog")
    logger.addHandler(handler)
    logger.setLevel(level)

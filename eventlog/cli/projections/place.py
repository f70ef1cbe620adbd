"""Where the views of a command are: in the log's own database, or in the one that `--into` names."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import click

from eventlog.cli.options import Options
from eventlog.cli.wiring import open_views_as_they_are
from eventlog.errors import StoreUnavailable
from eventlog.stores import SqliteLog
from projections import ViewFile
from projections.sqlite_views.database import ViewDatabase

__all__ = ["Place", "open_place", "place_of_views"]

_MAGIC: Final = b"SQLite format 3\0"


class Place(NamedTuple):
    """The log, and the database of its views: the log's own, or `file`."""

    log: SqliteLog
    database: ViewDatabase
    file: ViewFile | None


@asynccontextmanager
async def open_place(options: Options, *, is_read_only: bool = False, may_create: bool = False) -> AsyncIterator[Place]:
    """Open the log, no view of which is brought up, and the database of its views.

    Only who `may_create` makes a database that is not there; else StoreUnavailable(`store_not_found`) is raised. Raises
    what `open_views_as_they_are` and `ViewFile` raise.
    """
    async with open_views_as_they_are(options, is_read_only=is_read_only or options.into is not None) as log:
        path = place_of_views(options, log)
        if path is None:
            yield Place(log, log, None)
            return
        if not may_create and not os.path.exists(path):
            raise StoreUnavailable("store_not_found", f"there is no database of views at {path!r}", path=path)
        async with ViewFile(path, log) as file:
            yield Place(log, file, file)


def place_of_views(options: Options, log: SqliteLog) -> str | None:
    """Return the path that `--into` gives, None for the log's own database.

    Raises click.UsageError if it gives just that, StoreUnavailable(`store_not_eventlog`) for what is no database.
    """
    path = options.into
    if path is None:
        return None
    if os.path.realpath(path) == log.place:
        raise click.UsageError("--into is for a database apart from the log; leave it away for views in the log's own.")
    if not _may_be_a_database(path):
        raise StoreUnavailable("store_not_eventlog", f"{path!r} is no database", path=path)
    return path


def _may_be_a_database(path: str) -> bool:
    """Say whether a file begins as a database does, or is empty, or not there; who opens it says what else is wrong."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) in (b"", _MAGIC)
    except OSError:
        return not os.path.isdir(path)

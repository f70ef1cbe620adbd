"""What is read in a log, part by part: in one go without threads, and through all of the engine.

A part is what was read, or a `Reported`: the coded error that was raised instead. The quick way opens a connection as
the engine does and calls what the engine calls on it; it is what makes many thousands of damages affordable, and every
answer of it that is not "all as it was" is asked for again through `eventlog.open`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, NamedTuple

from eventlog.cli.views_check import check_views
from eventlog.codec import REGISTRY
from eventlog.errors import EventLogError
from eventlog.heads import SignedHead
from eventlog.log import RecordedEvent
from eventlog.merkle import TreeHead
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.connection import Settings
from eventlog.stores.sqlite.database import open_for_reading, read_facts
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.rows import Rows
from eventlog.stores.sqlite.tree import read_heads
from tools.campaigns.bit_flips.scene import Scene, views
from tools.campaigns.storage.log_files import open_file

__all__ = [
    "EVENTS",
    "PAGES",
    "Reading",
    "Reported",
    "compare_views",
    "open_reader",
    "read_quickly",
    "read_through",
    "stream_part",
]

EVENTS: Final = "events"
PAGES: Final = "pages"
_ALL: Final = 1000

Reading = dict[str, Any]


class Reported(NamedTuple):
    """The code of the error that stood in the place of a part."""

    code: str


def stream_part(stream: str) -> str:
    """Return the name of the part that is a stream."""
    return f"stream {stream}"


def read_quickly(path: Path, streams: Iterable[str], known: Container[bytes] = ()) -> Reading:
    """Return all parts, and the SHA-256 of the database as SQLite sees it: that alone, if it is one of the `known`.

    Raises what is no coded error.
    """
    settings = Settings(str(path), durability="full", busy_timeout_s=5.0)
    opened = _caught(lambda: open_for_reading(settings, None))
    if isinstance(opened, Reported):
        return {"opened": opened}
    with closing(opened):
        pages = _caught(lambda: sha256(opened.serialize()).digest())
        if isinstance(pages, bytes) and pages in known:
            return {PAGES: pages}
        facts = _caught(lambda: read_facts(opened))
        if isinstance(facts, Reported):
            return {"facts": facts}
        return {"facts": facts, PAGES: pages, **_parts(opened, Rows(facts, REGISTRY), streams)}


def _parts(connection: Connection, rows: Rows, streams: Iterable[str]) -> Reading:
    parts: Reading = {
        EVENTS: _caught(lambda: rows.log_page(connection, 0, _ALL)[0]),
        "head": _caught(lambda: rows.head(connection)),
        "heads": _caught(lambda: _signed(read_heads(connection, 0, None))),
    }
    for view in views():
        parts[f"view {view.name}"] = _caught(lambda view=view: view.rows(connection))  # type: ignore[misc]
    for stream in streams:
        page = _caught(lambda stream=stream: rows.stream_page(connection, stream, 0, _ALL))  # type: ignore[misc]
        parts[stream_part(stream)] = page if isinstance(page, Reported) else page[0]
    return parts


def _signed(heads: Iterable[SignedHead]) -> list[tuple[bytes, TreeHead, bytes]]:
    """Return heads without the time that stands beside them: no signed byte holds it, and no verdict rests on it."""
    return [(each.log_id, each.head, each.note) for each in heads]


def _caught(read: Callable[[], Any]) -> Any:
    """Return what is read, or the coded error; the driver's are made coded ones as the engine does."""
    try:
        return read()
    except DRIVER_ERRORS as error:
        return Reported(translate(error, "cannot read").code)
    except EventLogError as error:
        return Reported(error.code)


def open_reader(scene: Scene, path: Path) -> SqliteLog:
    """Return the log, to be opened for reading. It has no keys of subjects: what is encrypted stays that."""
    assert path.parent == scene.folder
    return open_file(path, is_read_only=True)


async def read_through(log: SqliteLog, events: Iterable[RecordedEvent]) -> Reading:
    """Return all parts as the engine's own calls give them; `events` are those that were there before the damage."""
    parts: Reading = {"facts": log.facts, EVENTS: await _listed(log)}
    parts["head"] = await _awaited(log.head())
    heads = await _awaited(log.signed_heads())
    parts["heads"] = heads if isinstance(heads, Reported) else _signed(heads)
    for view in views():
        parts[f"view {view.name}"] = await _awaited(log.look(view.rows))
    for stream in dict.fromkeys(event.stream for event in events):
        found = await _awaited(log.read_stream(stream))
        parts[stream_part(stream)] = found if isinstance(found, Reported) else list(found.events)
    parts["found"] = [await _awaited(log.find(event.event_id)) for event in events]
    return parts


async def _listed(log: SqliteLog) -> Any:
    """Return all events, or those in front of the damage and then a Reported."""
    events: list[Any] = []
    try:
        async for event in log.read_all():
            events.append(event)
    except EventLogError as error:
        events.append(Reported(error.code))
    return events


async def _awaited(reading: Any) -> Any:
    try:
        return await reading
    except EventLogError as error:
        return Reported(error.code)


async def compare_views(log: SqliteLog) -> Any:
    """Return the verdict on the views in the log's own database."""
    return await check_views(log, {view.name: view for view in views()})

"""The format of a log in an SQLite database. Format version 2.

The database is identified by `application_id` 0x45764C67 ("EvLg") and `user_version` (the format version). Tables:

    meta      name → value: `store_id`, 16 random bytes that survive a restore
    log_ids   16 random bytes for each incarnation of the log, valid from its first position on; one row until a restore
    streams   stream names as small integers, in the order of their first event
    types     event types, likewise
    actors    actors, likewise
    events    one row an event, clustered by position
    views     which views are written here, and up to which position (`view_registry.py`)
    tree      the frontier of the Merkle tree over the leaves (`eventlog/merkle.py`); one row, of the size of the log
    tiles     the root of each complete subtree of 256, 256**2, … leaves: level 1, 2, … and its number from 0
    heads     signed heads, by size and log_id: the note, and when it was signed
    erasures  for each erased event the position of the `payload_erased` event that says so
    subject_streams   streams whose bodies are encrypted, and under which key

and, made when it is first needed, `snapshots` (`snapshots.py`), which is no part of the log: it may be dropped. Beside
the file lie the artifacts that events name (`eventlog/stores/artifacts.py`).

A row of `events` holds every field of the entry (`eventlog/entry.py`) or what it is derived from:

    position, version, schema_version, recorded_at_us, event_id, body_kind   as in the entry
    stream_id, type_id, actor_id    the names, interned
    causation_id, correlation_id    NULL for none (16 zero bytes and "" in the entry)
    body                            the stored JSON; TEXT when plain, so that the `sqlite3` shell reads it, else BLOB
    salt                            16 random bytes; with the body it gives content_commit
    leaf                            SHA-256(0x00, entry)

`body_len` is the body's length, `stored_hash` is derivable from the body, `prev_in_stream` is the leaf of the version
before. An encrypted body is spelled as in `eventlog/sealed.py`, has its content_commit and its salt within, and no salt
beside it. For an erased event the erasure event has `body_len`, `content_commit` and `stored_hash`; they are not stored
twice for all others. Tree and tiles are written in the append's own transaction; all of both can be computed again from
the leaves.

Rows are append-only: triggers refuse UPDATE, DELETE, and every INSERT that is not exactly the next position and the
next version of its stream with a new event id, so INSERT OR REPLACE cannot replace either (delete triggers do not
fire for it). The one update allowed is erasure: body and salt to NULL, all else unchanged. The tree can only grow to
the last position, and by tiles that are complete, in their order. Triggers prevent; the leaves are the evidence.

Format 1 had no `tree`, `tiles`, `heads`, `erasures` and `subject_streams`. A new format version adds an entry to
`MIGRATIONS`; a migration runs in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

from eventlog.merkle import Frontier

__all__ = [
    "APPLICATION_ID",
    "CREATE",
    "CREATE_VIEWS",
    "EVENT_COLUMNS",
    "FORMAT_VERSION",
    "INSERT_EVENT",
    "INSERT_TILE",
    "MIGRATIONS",
    "OWN_TABLES",
    "UPDATE_TREE",
    "Migration",
    "statements_of",
]

APPLICATION_ID: Final = 0x45764C67
FORMAT_VERSION: Final = 2

Migration = Callable[[sqlite3.Connection], None]
EVENT_COLUMNS: Final = (
    "position",
    "stream_id",
    "version",
    "type_id",
    "schema_version",
    "actor_id",
    "recorded_at_us",
    "event_id",
    "causation_id",
    "correlation_id",
    "body_kind",
    "body",
    "salt",
    "leaf",
)

OWN_TABLES: Final = frozenset(
    {
        "meta",
        "log_ids",
        "streams",
        "types",
        "actors",
        "events",
        "views",
        "tree",
        "tiles",
        "heads",
        "erasures",
        "subject_streams",
        "consumers",
        "snapshots",
        "sqlite_master",
        "sqlite_schema",
        "sqlite_sequence",
    }
)
"""What only the log itself writes."""

INSERT_EVENT: Final = f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join('?' * len(EVENT_COLUMNS))})"

INSERT_TILE: Final = "INSERT INTO tiles (level, number, root) VALUES (?, ?, ?)"
UPDATE_TREE: Final = "UPDATE tree SET size = ?, frontier = ?"

_ERASABLE: Final = ("body", "salt")
_UNCHANGED: Final = " AND ".join(f"NEW.{name} IS OLD.{name}" for name in EVENT_COLUMNS if name not in _ERASABLE)


def _append_only(table: str) -> str:
    return f"""
CREATE TRIGGER {table}_update BEFORE UPDATE ON {table} BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER {table}_delete BEFORE DELETE ON {table} BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER {table}_insert BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE rowid = NEW.rowid OR name = NEW.name)
BEGIN SELECT raise(ABORT, 'append_only'); END;
"""


def _written_once(table: str, key: str) -> str:
    return f"""
CREATE TRIGGER {table}_update BEFORE UPDATE ON {table} BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER {table}_delete BEFORE DELETE ON {table} BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER {table}_insert BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE {key}) BEGIN SELECT raise(ABORT, 'append_only'); END;
"""


CREATE_PROOF: Final = f"""
CREATE TABLE tree (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  size INTEGER NOT NULL CHECK (size >= 0),
  frontier BLOB NOT NULL
) STRICT;
CREATE TRIGGER tree_update BEFORE UPDATE ON tree WHEN NEW.size <= OLD.size
  OR NEW.size IS NOT (SELECT max(position) FROM events)
BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER tree_delete BEFORE DELETE ON tree BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER tree_insert BEFORE INSERT ON tree WHEN EXISTS (SELECT 1 FROM tree)
BEGIN SELECT raise(ABORT, 'append_only'); END;

CREATE TABLE tiles (
  level INTEGER NOT NULL CHECK (level BETWEEN 1 AND 8),
  number INTEGER NOT NULL CHECK (number >= 0),
  root BLOB NOT NULL CHECK (length(root) = 32),
  PRIMARY KEY (level, number)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER tiles_update BEFORE UPDATE ON tiles BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER tiles_delete BEFORE DELETE ON tiles BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER tiles_insert BEFORE INSERT ON tiles WHEN
     NEW.number IS NOT (SELECT coalesce(max(number), -1) + 1 FROM tiles WHERE level = NEW.level)
  OR (NEW.number + 1) << (8 * NEW.level) > (SELECT coalesce(max(position), 0) FROM events)
BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TABLE heads (
  size INTEGER NOT NULL CHECK (size >= 1),
  log_id BLOB NOT NULL CHECK (length(log_id) = 16),
  note BLOB NOT NULL,
  signed_at_us INTEGER NOT NULL,
  PRIMARY KEY (size, log_id)
) STRICT, WITHOUT ROWID;
{_written_once("heads", "size = NEW.size AND log_id = NEW.log_id")}
CREATE TABLE erasures (position INTEGER PRIMARY KEY, erased_by INTEGER NOT NULL) STRICT;
{_written_once("erasures", "position = NEW.position")}
CREATE TABLE subject_streams (
  stream_id INTEGER PRIMARY KEY,
  key_id BLOB NOT NULL CHECK (length(key_id) = 16)
) STRICT;
{_written_once("subject_streams", "stream_id = NEW.stream_id")}
INSERT INTO tree (one, size, frontier) VALUES (1, 0, x'');
"""

CREATE_VIEWS: Final = """
CREATE TABLE views (
  name TEXT NOT NULL,
  state TEXT NOT NULL,
  revision INTEGER NOT NULL,
  position INTEGER NOT NULL CHECK (position >= 0),
  generation INTEGER PRIMARY KEY AUTOINCREMENT,
  shape TEXT NOT NULL,
  problem TEXT,
  leaf BLOB,
  UNIQUE (name, state)
) STRICT;
"""

CREATE: Final = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER meta_update BEFORE UPDATE ON meta BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER meta_delete BEFORE DELETE ON meta BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER meta_insert BEFORE INSERT ON meta WHEN EXISTS (SELECT 1 FROM meta WHERE name = NEW.name)
BEGIN SELECT raise(ABORT, 'append_only'); END;

CREATE TABLE log_ids (
  first_position INTEGER PRIMARY KEY CHECK (first_position >= 1),
  log_id BLOB NOT NULL UNIQUE CHECK (length(log_id) = 16)
) STRICT;
CREATE TRIGGER log_ids_update BEFORE UPDATE ON log_ids BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER log_ids_delete BEFORE DELETE ON log_ids BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER log_ids_insert BEFORE INSERT ON log_ids
WHEN EXISTS (SELECT 1 FROM log_ids WHERE first_position >= NEW.first_position OR log_id = NEW.log_id)
  OR NEW.first_position IS NOT (SELECT coalesce(max(position), 0) + 1 FROM events)
BEGIN SELECT raise(ABORT, 'append_only'); END;

CREATE TABLE streams (stream_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE types (type_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE actors (actor_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
{_append_only("streams")}{_append_only("types")}{_append_only("actors")}
CREATE TABLE events (
  position INTEGER PRIMARY KEY,
  stream_id INTEGER NOT NULL,
  version INTEGER NOT NULL,
  type_id INTEGER NOT NULL,
  schema_version INTEGER NOT NULL CHECK (schema_version BETWEEN 1 AND 65535),
  actor_id INTEGER NOT NULL,
  recorded_at_us INTEGER NOT NULL,
  event_id BLOB NOT NULL UNIQUE CHECK (length(event_id) = 16),
  causation_id BLOB CHECK (length(causation_id) = 16),
  correlation_id TEXT,
  body_kind INTEGER NOT NULL CHECK (body_kind BETWEEN 0 AND 2),
  body ANY,
  salt BLOB CHECK (length(salt) = 16),
  leaf BLOB NOT NULL CHECK (length(leaf) = 32),
  UNIQUE (stream_id, version)
) STRICT;
CREATE TRIGGER events_insert BEFORE INSERT ON events WHEN
     NEW.position IS NOT (SELECT coalesce(max(position), 0) + 1 FROM events)
  OR NEW.version IS NOT (SELECT coalesce(max(version), 0) + 1 FROM events WHERE stream_id = NEW.stream_id)
  OR EXISTS (SELECT 1 FROM events WHERE event_id = NEW.event_id)
BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER events_delete BEFORE DELETE ON events BEGIN SELECT raise(ABORT, 'append_only'); END;
CREATE TRIGGER events_update BEFORE UPDATE ON events WHEN NOT (
  NEW.body IS NULL AND NEW.salt IS NULL AND {_UNCHANGED})
BEGIN SELECT raise(ABORT, 'append_only'); END;

{CREATE_VIEWS}{CREATE_PROOF}"""


def statements_of(script: str) -> list[str]:
    """Split a script at its complete statements: `executescript` would commit the transaction."""
    statements, current = [], ""
    for line in script.splitlines():
        current += line + "\n"
        if line.strip() and sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    return statements


def _grow_tree(connection: sqlite3.Connection) -> None:
    """Format 1 → 2: tables for proofs, and the tree over the leaves that are there."""
    _complete_views(connection)
    for statement in statements_of(CREATE_PROOF):
        connection.execute(statement)
    frontier = Frontier()
    tiles: list[tuple[int, int, bytes]] = []
    frontier.extend((leaf for (leaf,) in connection.execute("SELECT leaf FROM events ORDER BY position")), tiles)
    connection.executemany(INSERT_TILE, tiles)
    if frontier.size:
        connection.execute(UPDATE_TREE, (frontier.size, frontier.to_bytes()))


def _complete_views(connection: sqlite3.Connection) -> None:
    """Give `views` the shape that it has now: the first logs of format 1 had it without `leaf`."""
    if any(column[1] == "leaf" for column in connection.execute("PRAGMA table_info(views)")):
        return
    connection.execute("ALTER TABLE views RENAME TO older_views")
    connection.execute(CREATE_VIEWS)
    columns = "name, state, revision, position, generation, shape, problem"
    connection.execute(f"INSERT INTO views ({columns}) SELECT {columns} FROM older_views")
    connection.execute("DROP TABLE older_views")


MIGRATIONS: Final[Mapping[int, Migration]] = {1: _grow_tree}
"""`MIGRATIONS[n]` turns a database of format n into one of format n + 1, inside the transaction it is called in."""

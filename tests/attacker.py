"""Somebody who owns the database file: removes the triggers, edits what he likes, and computes every hash again.

He knows the format as well as the log does, and leaves nothing behind that he can put right: triggers, leaves, links,
frontier and tiles are whole when he is done, unless he is told not to (`rehash=False`). What he does not have is given
to him by the test: the key of the heads (`resign`). He never has the key of an approver.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from eventlog.entry import NO_HASH, NO_ID, Entry, content_commitment, encode, leaf_hash
from eventlog.events import PayloadErased
from eventlog.merkle import Frontier, TreeHead
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.head_text import head_text, origin_of
from eventlog.signing.notes import sign_note

__all__ = ["Attacker", "attacking"]

PREFIX: Final = "eventlog.local/log"


@contextmanager
def attacking(path: Path) -> Iterator[Attacker]:
    """Let the attacker work on a closed log, and put the triggers back afterwards."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        connection.execute("BEGIN")
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield Attacker(connection)
        for _, sql in triggers:
            connection.execute(sql)
        connection.execute("COMMIT")
    finally:
        connection.close()


class Attacker:
    """Edits rows and makes the log consistent again."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: Final = connection

    def run(self, statement: str, *arguments: Any) -> None:
        """Run one statement."""
        self._connection.execute(statement, arguments)

    def value(self, statement: str, *arguments: Any) -> Any:
        """Return the first value that a query gives."""
        return self._connection.execute(statement, arguments).fetchone()[0]

    @property
    def size(self) -> int:
        """The last position."""
        size: int = self.value("SELECT coalesce(max(position), 0) FROM events")
        return size

    @property
    def origin(self) -> str:
        """The origin of the log's heads."""
        return origin_of(PREFIX, self.value("SELECT log_id FROM log_ids ORDER BY 1 DESC LIMIT 1"))

    # ── editing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def edit_body(self, position: int, body: bytes) -> None:
        """Let an event say something else."""
        self.run("UPDATE events SET body = ? WHERE position = ?", body.decode(), position)

    def truncate(self, size: int) -> None:
        """Cut off everything behind a size."""
        self.run("DELETE FROM events WHERE position > ?", size)
        self.forget_unused_names()

    def remove(self, position: int) -> None:
        """Take an event out, and let those behind it take its place, in its stream and in the log."""
        stream_id = self.value("SELECT stream_id FROM events WHERE position = ?", position)
        version = self.value("SELECT version FROM events WHERE position = ?", position)
        self.run("DELETE FROM events WHERE position = ?", position)
        self._shift("version", "stream_id = ? AND version > ?", (stream_id, version), -1)
        self._shift("position", "position > ?", (position,), -1)
        self.forget_unused_names()

    def insert_copy(self, of: int, at: int) -> None:
        """Put a copy of an event, with another id, at a position, at the end of its stream up to there."""
        self._shift("position", "position >= ?", (at,), 1)
        source = of if of < at else of + 1
        stream_id = self.value("SELECT stream_id FROM events WHERE position = ?", source)
        version = self.value(
            "SELECT coalesce(max(version), 0) + 1 FROM events WHERE stream_id = ? AND position < ?", stream_id, at
        )
        self._shift("version", "stream_id = ? AND version >= ?", (stream_id, version), 1)
        self.run(
            "INSERT INTO events SELECT ?, stream_id, ?, type_id, schema_version, actor_id, "
            "(SELECT recorded_at_us FROM events WHERE position = ?), randomblob(16), causation_id, correlation_id, "
            "body_kind, body, salt, leaf FROM events WHERE position = ?",
            *(at, version, at - 1, source),
        )

    def swap(self, one: int, other: int) -> None:
        """Let two events of a stream take each other's place."""
        columns = ("type_id", "schema_version", "event_id", "causation_id", "correlation_id", "body", "salt")
        chosen = f"SELECT {', '.join(columns)} FROM events WHERE position = ?"
        rows = {at: self._connection.execute(chosen, (at,)).fetchone() for at in (one, other)}
        self.run("UPDATE events SET event_id = randomblob(16) WHERE position = ?", one)
        for at, row in ((other, rows[one]), (one, rows[other])):
            self.run(f"UPDATE events SET {', '.join(f'{name} = ?' for name in columns)} WHERE position = ?", *row, at)

    def move(self, position: int, stream: str) -> None:
        """Let an event be the last one of another stream."""
        target = self.value("SELECT stream_id FROM streams WHERE name = ?", stream)
        version = self.value("SELECT coalesce(max(version), 0) + 1 FROM events WHERE stream_id = ?", target)
        self.run("UPDATE events SET stream_id = ?, version = ? WHERE position = ?", target, version, position)

    def append_erasure(self, position: int) -> None:
        """Append an event that says that a body was erased, with a commitment that is not the body's; hashed well."""
        at, at_us = self.size + 1, self.value("SELECT max(recorded_at_us) FROM events")
        body = {
            "position": position,
            "body_kind": 0,
            "body_len": 7,
            "content_commit": "00" * 32,
            "stored_hash": "00" * 32,
            "legal_basis": "none",
        }
        self.run("INSERT OR IGNORE INTO types (name) VALUES ('payload_erased')")
        self.run(
            "INSERT INTO events SELECT ?, stream_id, max(version) + 1, (SELECT type_id FROM types WHERE name = "
            "'payload_erased'), 1, actor_id, ?, randomblob(16), NULL, NULL, 0, ?, randomblob(16), zeroblob(32) "
            "FROM events WHERE stream_id = (SELECT stream_id FROM streams WHERE name = '$log')",
            *(at, at_us, msgspec.json.encode(body).decode()),
        )
        self.run("INSERT INTO erasures (position, erased_by) VALUES (?, ?)", position, at)
        self.rehash_only(at)

    def drop_heads(self, *, beyond: int = 0) -> None:
        """Delete the signed heads that the database keeps."""
        self.run("DELETE FROM heads WHERE size > ?", beyond)

    def forget_unused_names(self) -> None:
        """Delete names that no event has."""
        for table, column in (("streams", "stream_id"), ("types", "type_id"), ("actors", "actor_id")):
            self.run(f"DELETE FROM {table} WHERE {column} NOT IN (SELECT {column} FROM events)")

    def _shift(self, column: str, where: str, arguments: Sequence[Any], by: int) -> None:
        """Add to a unique column: through negative numbers, so that no row meets another on the way."""
        self.run(f"UPDATE events SET {column} = -({column} + ?) WHERE {where}", by, *arguments)
        self.run(f"UPDATE events SET {column} = -{column} WHERE {column} < 0")

    # ── putting right ────────────────────────────────────────────────────────────────────────────────────────────────

    def rehash(self) -> None:
        """Compute every leaf again, each behind the one before it in its stream, and the tree over them."""
        last: dict[int, bytes] = {}
        for row in self._connection.execute(_ROWS).fetchall():
            last[row[1]] = leaf = self._leaf(row, last.get(row[1], NO_HASH))
            self.run("UPDATE events SET leaf = ? WHERE position = ?", leaf, row[0])
        self.replant()

    def rehash_only(self, position: int) -> None:
        """Compute the leaf of one event again, behind the stored one in front of it in its stream."""
        (row,) = (row for row in self._connection.execute(_ROWS).fetchall() if row[0] == position)
        before = self._connection.execute(
            "SELECT leaf FROM events WHERE stream_id = ? AND version = ?", (row[1], row[2] - 1)
        ).fetchone()
        leaf = self._leaf(row, NO_HASH if before is None else before[0])
        self.run("UPDATE events SET leaf = ? WHERE position = ?", leaf, position)

    def replant(self) -> None:
        """Make the tree that is stored that of the stored leaves."""
        rows = self._connection.execute("SELECT leaf FROM events ORDER BY position").fetchall()
        self.plant([leaf for (leaf,) in rows])

    def plant(self, leaves: Iterable[bytes]) -> None:
        """Store the tree over these leaves."""
        frontier = Frontier()
        tiles: list[tuple[int, int, bytes]] = []
        frontier.extend(leaves, tiles)
        self.run("DELETE FROM tiles")
        self._connection.executemany("INSERT INTO tiles (level, number, root) VALUES (?, ?, ?)", tiles)
        self.run("UPDATE tree SET size = ?, frontier = ?", frontier.size, frontier.to_bytes())

    def resign(self, key: PrivateKey) -> None:
        """Sign again every head that was kept, for the log as it is now, with a key; drop those of sizes it has not."""
        self.run("DELETE FROM heads WHERE size > ?", self.size)
        leaves = [leaf for (leaf,) in self._connection.execute("SELECT leaf FROM events ORDER BY position")]
        for size, log_id in self._connection.execute("SELECT size, log_id FROM heads").fetchall():
            frontier = Frontier()
            frontier.extend(leaves[:size])
            origin = origin_of(PREFIX, log_id)
            note = sign_note(head_text(origin, TreeHead(size, frontier.root())), origin, key)
            self.run("UPDATE heads SET note = ? WHERE size = ? AND log_id = ?", note, size, log_id)

    def _leaf(self, row: Sequence[Any], previous: bytes) -> bytes:
        (
            position,
            _,
            version,
            at_us,
            schema,
            event_id,
            cause,
            correlation,
            kind,
            body,
            salt,
            stream,
            type_name,
            actor,
        ) = row
        erased = self._erasure(position) if body is None else None
        log_id = self.value("SELECT log_id FROM log_ids WHERE first_position <= ? ORDER BY 1 DESC LIMIT 1", position)
        return leaf_hash(
            encode(
                Entry(
                    log_id=log_id,
                    position=position,
                    version=version,
                    recorded_at_us=at_us,
                    schema_version=schema,
                    event_id=event_id,
                    causation_id=cause or NO_ID,
                    body_kind=kind,
                    body_len=len(body) if body is not None else erased.body_len if erased else 0,
                    content_commit=content_commitment(salt, body)
                    if body is not None
                    else bytes.fromhex(erased.content_commit)
                    if erased
                    else NO_HASH,
                    stored_hash=NO_HASH,
                    prev_in_stream=previous,
                    stream=stream,
                    type=type_name,
                    actor=actor,
                    correlation_id=correlation or "",
                )
            )
        )

    def _erasure(self, position: int) -> PayloadErased | None:
        row = self._connection.execute(_ERASURE, (position,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=PayloadErased)


_ROWS: Final = """
SELECT e.position, e.stream_id, e.version, e.recorded_at_us, e.schema_version, e.event_id, e.causation_id,
  e.correlation_id, e.body_kind, CAST(e.body AS BLOB), e.salt, s.name, t.name, a.name
FROM events e JOIN streams s USING (stream_id) JOIN types t USING (type_id) JOIN actors a USING (actor_id)
ORDER BY e.position"""
_ERASURE: Final = """
SELECT CAST(e.body AS BLOB) FROM erasures x JOIN events e ON e.position = x.erased_by WHERE x.position = ?"""

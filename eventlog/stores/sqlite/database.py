"""Opening a database: create it, recognise it, migrate it, or refuse it untouched."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from typing import Final

import msgspec

from eventlog.errors import LogCorrupt, StoreUnavailable
from eventlog.log import Problem
from eventlog.stores.entropy import random_bytes
from eventlog.stores.sqlite.connection import Settings, connect
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.file_lock import FileLock
from eventlog.stores.sqlite.rollback import roll_back
from eventlog.stores.sqlite.schema import (
    APPLICATION_ID,
    CREATE,
    FORMAT_VERSION,
    MIGRATIONS,
    Migration,
    statements_of,
)

__all__ = ["Facts", "check_file", "migrate", "open_for_reading", "open_for_writing", "read_facts"]

_SMALLEST_PAGE: Final = 512
_OBJECTS: Final = """
SELECT type || ' ' || name, CAST(sql AS BLOB), tbl_name FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"""
_CHECK: Final = re.compile(rb"CHECK (\((?:[^()]|\([^()]*\))*\))")
_IS_EMPTY: Final = "SELECT count(*) = 0 FROM sqlite_schema"
_NOT_ERASED: Final = """
SELECT e.position FROM erasures e LEFT JOIN events v USING (position)
WHERE v.position IS NULL OR v.body IS NOT NULL ORDER BY 1 LIMIT 20"""
_OTHERWISE_SEALED: Final = """
SELECT n.name, e.position FROM streams n CROSS JOIN events e ON e.stream_id = n.stream_id AND e.version = 1
WHERE e.body_kind = 1 AND NOT EXISTS (SELECT 1 FROM subject_streams s WHERE s.stream_id = n.stream_id)
UNION ALL
SELECT n.name, min(e.position)
FROM subject_streams s CROSS JOIN events e USING (stream_id) JOIN streams n USING (stream_id)
WHERE e.body_kind IS NOT 1 OR (e.body IS NOT NULL AND substr(CAST(e.body AS BLOB), 2, 16) IS NOT s.key_id)
GROUP BY s.stream_id LIMIT 20"""
_NOT_DECLARED: Final = """
SELECT l.first_position FROM log_ids l
LEFT JOIN events e ON e.position = l.first_position LEFT JOIN types t USING (type_id)
WHERE l.first_position > 1 AND t.name IS NOT 'log_restored' ORDER BY 1 LIMIT 20"""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a database says of itself. `log_ids` are (first_position, log_id), ascending."""

    store_id: bytes
    log_ids: tuple[tuple[int, bytes], ...]
    format_version: int

    def log_id_at(self, position: int) -> bytes:
        """Return the log id that was valid when the event at `position` was appended."""
        return next((log_id for first, log_id in reversed(self.log_ids) if first <= position), self.log_ids[0][1])


def open_for_writing(
    settings: Settings, lock: FileLock, *, may_create: bool, migrations: Mapping[int, Migration] = MIGRATIONS
) -> sqlite3.Connection:
    """Return a connection to a database of the current format, creating or migrating it in one transaction.

    Raises StoreUnavailable (`store_not_eventlog`, `schema_too_new`, …); the file is untouched then.
    """
    with lock, _looked_at(settings, may_create):
        connection = connect(settings, "rwc" if may_create else "rw")
        try:
            migrate(connection, migrations=migrations)
        except BaseException:
            connection.close()
            raise
        return connection


def open_for_reading(settings: Settings, lock: FileLock | None) -> sqlite3.Connection:
    """Return a read-only connection to a database of the current format."""
    if lock is None:
        return _checked_reader(settings)
    with lock:
        return _checked_reader(settings)


def migrate(connection: sqlite3.Connection, *, migrations: Mapping[int, Migration] = MIGRATIONS) -> None:
    """Bring an empty database or one of an older format to the current format, in one transaction."""
    target = max(FORMAT_VERSION, *(version + 1 for version in migrations)) if migrations else FORMAT_VERSION
    try:
        if _format_of(connection) == target:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            _migrate_inside(connection, target, migrations)
        except BaseException:
            roll_back(connection)
            raise
        connection.execute("COMMIT")
    except DRIVER_ERRORS as error:
        raise translate(error, "cannot create or migrate the log") from error


def read_facts(connection: sqlite3.Connection) -> Facts:
    """Return what the database says of itself. Raises LogCorrupt if that is missing."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()
    log_ids = tuple(connection.execute("SELECT first_position, log_id FROM log_ids ORDER BY first_position"))
    ids = [row and row[0], *(log_id for _, log_id in log_ids)]
    if not log_ids or log_ids[0][0] != 1 or not all(type(each) is bytes and len(each) == 16 for each in ids):
        raise LogCorrupt("identity_missing", "the log does not say which store and which log it is")
    return Facts(store_id=row[0], log_ids=log_ids, format_version=_user_version(connection))


@cache
def _created() -> list[tuple[str, bytes, str]]:
    """Return the tables and triggers that this program creates: what each is, its SQL, and its table."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(CREATE)
        return fresh.execute(_OBJECTS).fetchall()


def check_schema(connection: sqlite3.Connection) -> list[Problem]:
    """Return how the tables and triggers differ from those that this program creates, other programs' tables apart."""
    expected = {what: sql for what, sql, _ in _created()}
    tables = {table for _, _, table in _created()}
    objects = connection.execute(_OBJECTS).fetchall()
    found = {what: sql for what, sql, _ in objects}
    missing = [f"the {what} is missing" for what in expected if what not in found]
    changed = [f"the {what} is not as created" for what, sql in expected.items() if found.get(what, sql) != sql]
    foreign = [f"there is a foreign {what}" for what, _, table in objects if table in tables and what not in expected]
    return [Problem(reason="schema_changed", message=message) for message in (*missing, *changed, *foreign)]


@contextmanager
def _looked_at(settings: Settings, may_create: bool) -> Iterator[None]:
    """Refuse a foreign or newer database through a connection that cannot write, so that it stays byte for byte.

    That connection stays open meanwhile: the first one to a database whose last program died reads its whole
    write-ahead log to make an index of it, and the last one that is closed throws that index away.
    """
    looking = _look_before_writing(settings, may_create)
    try:
        yield
    finally:
        if looking is not None:
            looking.close()


def _look_before_writing(settings: Settings, may_create: bool) -> sqlite3.Connection | None:
    if not os.path.exists(settings.path):
        if not may_create:
            raise StoreUnavailable("store_not_found", f"there is no log at {settings.path!r}", path=settings.path)
        return None
    if not os.access(settings.path, os.W_OK):  # SQLite would open it for reading only, and say so at the first append
        raise StoreUnavailable("store_readonly", f"{settings.path!r} cannot be written", path=settings.path)
    size_bytes = os.path.getsize(settings.path)
    if size_bytes == 0:
        return None
    if size_bytes < _SMALLEST_PAGE:  # SQLite takes a file of one byte for an empty database, and would write over it
        raise StoreUnavailable("store_not_eventlog", "the file is not an SQLite database")
    looking = connect(settings, "ro")
    try:
        _format_of(looking)
    except DRIVER_ERRORS as error:
        looking.close()
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise translate(error, f"cannot read {settings.path!r}") from error
        _look_past_the_journal(settings)
        return None
    except BaseException:
        looking.close()
        raise
    return looking


def _look_past_the_journal(settings: Settings) -> None:
    """Look at a database in the middle of a transaction whose program died: only a writer can roll it back.

    A log is in that state if it died while it was created. The file is read as it is, and refused if it says whose it
    is.
    """
    as_it_is = Settings(
        settings.path, durability=settings.durability, busy_timeout_s=settings.busy_timeout_s, is_immutable=True
    )
    looking = connect(as_it_is, "ro")
    try:
        _format_of(looking)
    except (*DRIVER_ERRORS, LogCorrupt):
        pass  # half written, as the journal says; what it was before will show behind the rollback
    finally:
        looking.close()


def _checked_reader(settings: Settings) -> sqlite3.Connection:
    if not os.path.exists(settings.path):
        raise StoreUnavailable("store_not_found", f"there is no log at {settings.path!r}", path=settings.path)
    connection = connect(settings, "ro")
    try:
        found = _format_of(connection)
        if found != FORMAT_VERSION:
            code = "migration_required" if found else "store_not_eventlog"
            raise StoreUnavailable(code, f"the log has format {found}, this program reads format {FORMAT_VERSION}")
    except DRIVER_ERRORS as error:
        connection.close()
        raise translate(error, f"cannot read {settings.path!r}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _format_of(connection: sqlite3.Connection) -> int:
    """Return the format version, 0 for an empty database. Raises StoreUnavailable for what is not ours or too new."""
    try:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        is_empty = connection.execute(_IS_EMPTY).fetchone()[0]
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise StoreUnavailable("store_not_eventlog", "the file is not an SQLite database") from error
        raise
    if is_empty and application_id == 0:
        return 0
    if application_id != APPLICATION_ID:
        raise StoreUnavailable("store_not_eventlog", "the SQLite database belongs to another program")
    found = _user_version(connection)
    if found > FORMAT_VERSION:
        raise StoreUnavailable(
            "schema_too_new",
            f"the log has format {found}, this program knows formats up to {FORMAT_VERSION}",
            found=found,
            known=FORMAT_VERSION,
        )
    if found < 1:
        raise LogCorrupt("store_corrupt", f"the log says that it has format {found}, which never was")
    return found


def _migrate_inside(connection: sqlite3.Connection, target: int, migrations: Mapping[int, Migration]) -> None:
    found = _format_of(connection)  # again, inside the transaction: another process may have been first
    if found == 0:
        _create(connection)
        found = FORMAT_VERSION
    for version in range(found, target):
        migrations[version](connection)
    connection.execute(f"PRAGMA user_version={target}")


def _create(connection: sqlite3.Connection) -> None:
    for statement in statements_of(CREATE):
        connection.execute(statement)
    connection.execute("INSERT INTO meta (name, value) VALUES ('store_id', ?)", (random_bytes(16),))
    connection.execute("INSERT INTO log_ids (first_position, log_id) VALUES (1, ?)", (random_bytes(16),))
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _user_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def check_file(connection: sqlite3.Connection) -> list[Problem]:
    """Return what SQLite's own check finds wrong with the file, and what in it is not the log's.

    That is tables or triggers, and rows of the tables beside the events that the events do not bear out.
    """
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(100)")]
        found += [text for text in _failed_checks(connection) if text not in found]
        problems = [Problem(reason="store_corrupt", message=text) for text in found if text != "ok"]
        return [*problems, *check_schema(connection), *_check_rows(connection)]
    except DRIVER_ERRORS as error:
        return [Problem(reason="store_corrupt", message=str(translate(error, "cannot check the file")))]


def _failed_checks(connection: sqlite3.Connection) -> Iterator[str]:
    """Find rows that no insert could have made, and say so as SQLite does.

    Its own check leaves CHECK constraints out where the connection cannot write: they are dropped as the schema is read
    (`sqlite3AddCheckConstraint`). A table that is not as created is left to `check_schema`.
    """
    created = {sql: table for what, sql, table in _created() if what == f"table {table}"}
    for (sql,) in connection.execute("SELECT CAST(sql AS BLOB) FROM sqlite_schema WHERE type = 'table'").fetchall():
        checks = b" AND ".join(_CHECK.findall(sql)).decode() if sql in created else ""
        if checks and connection.execute(f"SELECT 1 FROM {created[sql]} WHERE NOT ({checks}) LIMIT 1").fetchone():
            yield f"CHECK constraint failed in {created[sql]}"


def _check_rows(connection: sqlite3.Connection) -> Iterator[Problem]:
    """Find erasures of what is there, streams that are encrypted otherwise than noted, incarnations nobody declared."""
    for (position,) in connection.execute(_NOT_ERASED):
        message = f"position {position} is noted as erased, and is not"
        yield Problem(reason="not_erased", message=message, position=position)
    for name, position in connection.execute(_OTHERWISE_SEALED):
        message = f"the stream {name!r:.80} is not encrypted as its subject is noted, at position {position} first"
        yield Problem(reason="subject_changed", message=message, position=position)
    for (position,) in connection.execute(_NOT_DECLARED):
        message = f"an incarnation of the log is noted from position {position} on, and no event declares it"
        yield Problem(reason="log_id_changed", message=message, position=position)

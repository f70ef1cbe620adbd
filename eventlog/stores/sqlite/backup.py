"""A copy of a log, with the artifacts that it names, made while others read and write.

How a copy comes to be, so that nothing that is cut off passes for a whole:

    1  the database is copied through SQLite's backup API, to `<target>.<random>.partial`; views of a log with
       encrypted streams, which hold them in clear, are dropped from the copy
    2  the artifacts that the copy names are copied beside it, each checked against its name
    3  all of it is durable; the folder of the artifacts gets its name, `<target>.artifacts`
    4  the database gets its name by a rename that never replaces anything   <- from here on there is a copy

What a crash leaves is no log by its name, and may be removed.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Final

from eventlog.errors import InvalidInput, LogCorrupt, StoreUnavailable, code_of_os_error
from eventlog.events import RUN_PREFIX
from eventlog.stores.artifacts import (
    ARTIFACT_EVENTS,
    ArtifactFolder,
    artifact_in,
    artifacts_beside,
    coded_os_errors,
    flush,
)
from eventlog.stores.entropy import random_bytes
from eventlog.stores.exclusive_rename import NO_EXCLUSIVE_RENAME, rename_exclusively
from eventlog.stores.sqlite.failures import DRIVER_ERRORS, translate
from eventlog.stores.sqlite.view_registry import all_entries
from eventlog.stores.sqlite.view_tables import drop_page

__all__ = ["copy_log"]

_BESIDE: Final = ("", "-wal", "-shm", "-journal")
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_ALL_ROWS: Final = -1
_NAMES: Final = f"""
SELECT e.position, s.name, t.name, CAST(e.body AS BLOB)
FROM types t JOIN events e USING (type_id) JOIN streams s USING (stream_id)
WHERE t.name IN ({", ".join("?" * len(ARTIFACT_EVENTS))}) AND instr(e.body, '"artifact"')
AND substr(s.name, 1, {len(RUN_PREFIX)}) = '{RUN_PREFIX}' ORDER BY e.position"""


def copy_log(connection: sqlite3.Connection, artifacts: ArtifactFolder, target: str) -> int:
    """Copy the log to the new file `target`, durably, and return the last position in the copy.

    Raises StoreUnavailable(`store_cannot_open`) if the target, or a file that would belong to it, exists or cannot be
    made, and LogCorrupt (`artifact_missing`, `artifact_damaged`) with the position of the event that names the
    artifact, and what the driver raises as a coded error. Nothing is left behind then.
    """
    _check_free(target)
    try:
        return _copy_to(connection, artifacts, target)
    except DRIVER_ERRORS as error:
        raise translate(error, f"cannot make the copy {target!r}") from error


def _copy_to(connection: sqlite3.Connection, artifacts: ArtifactFolder, target: str) -> int:
    partial = f"{target}.{random_bytes(8).hex()}.partial"
    with coded_os_errors(f"cannot make {target!r}"):
        try:
            _make(partial, target)
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                connection.backup(copy)
                copy.execute("PRAGMA journal_mode=WAL")
                _drop_views_in_clear(copy)
                position: int = copy.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()[0]
                has_artifacts = _copy_artifacts(copy, artifacts, ArtifactFolder(artifacts_beside(partial)))
            _flush(partial)
            _publish(partial, target, has_artifacts=has_artifacts)
        finally:
            _remove(partial)
    return position


def _drop_views_in_clear(copy: sqlite3.Connection) -> None:
    """Drop the views of a log with encrypted streams: they hold in clear what has to end with a key.

    Whoever opens the copy with the keys builds them again.
    """
    if not copy.execute("SELECT EXISTS (SELECT 1 FROM subject_streams)").fetchone()[0]:
        return
    copy.execute("PRAGMA secure_delete=ON")
    copy.execute("BEGIN IMMEDIATE")
    for entry in all_entries(copy):
        while drop_page(copy, entry.name, entry.state, _ALL_ROWS):
            pass
    copy.execute("COMMIT")
    copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _check_free(target: str) -> None:
    """Refuse a target that is there, and one beside which files of an older log lie: they would be taken for its."""
    for path in (*(target + end for end in _BESIDE), artifacts_beside(target)):
        if os.path.lexists(path):
            raise _exists(path)


def _exists(path: str) -> StoreUnavailable:
    return StoreUnavailable("store_cannot_open", f"cannot create {path!r}: it exists", path=path)


def _make(partial: str, target: str) -> None:
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        message = f"cannot create {target!r}: {error.strerror}"
        raise StoreUnavailable(code_of_os_error(error, "store_cannot_open"), message, path=target) from error


def _copy_artifacts(copy: sqlite3.Connection, source: ArtifactFolder, target: ArtifactFolder) -> bool:
    """Copy what the copied log names, each once; say whether there was anything."""
    copied: set[str] = set()
    for position, digest in _named(copy):
        if digest in copied:
            continue
        try:
            target.put(source.get(digest))
        except LogCorrupt as error:
            message = f"position {position} names what cannot be copied: {error}"
            raise LogCorrupt(error.reason, message, position=position, artifact=digest) from error
        except InvalidInput as error:
            message = f"position {position} names {digest!r:.80}, which can be no artifact"
            raise LogCorrupt("artifact_missing", message, position=position) from error
        copied.add(digest)
    return bool(copied)


def _named(copy: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    for position, stream, type, body in copy.execute(_NAMES, sorted(ARTIFACT_EVENTS)):
        digest = artifact_in(stream, type, body)
        if digest is not None:
            yield position, digest


def _publish(partial: str, target: str, *, has_artifacts: bool) -> None:
    folder = artifacts_beside(target)
    if has_artifacts:
        _publish_artifacts(artifacts_beside(partial), folder)
    made = os.stat(partial)
    try:
        _give_name(partial, target)
        _flush(os.path.dirname(target) or ".")
    except BaseException as error:
        _take_back(target, made)
        if has_artifacts:
            _take_back_artifacts(folder, artifacts_beside(partial))
        if isinstance(error, FileExistsError):
            raise _exists(target) from error
        raise


def _publish_artifacts(partial: str, folder: str) -> None:
    made = os.stat(partial)
    try:
        os.rename(partial, folder)  # fails if there is one by now that holds anything
    except OSError as error:
        if _is_at(folder, made):
            _take_back_artifacts(folder, partial)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _exists(folder) from error
        raise


def _give_name(partial: str, target: str) -> None:
    """Give the file its name instead of its first one: no log is opened that has two."""
    directory = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rename_exclusively(directory, os.fsencode(os.path.basename(partial)), os.fsencode(os.path.basename(target)))
    except OSError as error:
        if error.errno not in NO_EXCLUSIVE_RENAME:
            raise
        _link(partial, target)
    finally:
        os.close(directory)


def _link(partial: str, target: str) -> None:
    """Give it its name by a link. A crash in between leaves both names, of which the first may be removed."""
    try:
        os.link(partial, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _claim_and_rename(partial, target)
    else:
        os.unlink(partial)  # a log has one name only


def _claim_and_rename(partial: str, target: str) -> None:
    """Give the file its name where there are no links: the name is claimed first, so that nothing is replaced."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        os.rename(partial, target)
    except BaseException:
        with suppress(OSError):  # the error that brought us here counts more
            os.unlink(target)
        raise


def _take_back(target: str, made: os.stat_result) -> None:
    """Remove the copy again by its name, if it has got that: one that was told to have failed must not be there."""
    if _is_at(target, made):
        with suppress(OSError):  # an error that brought us here counts more
            os.unlink(target)


def _take_back_artifacts(folder: str, partial: str) -> None:
    """Give the folder its first name again, under which it is in nobody's way, should it not be removed."""
    try:
        os.rename(folder, partial)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _is_at(path: str, made: os.stat_result) -> bool:
    """Say whether what was made has this name. A call that failed may have given it, and so may others by now."""
    try:
        return os.path.samestat(os.lstat(path), made)
    except OSError:
        return False


def _remove(partial: str) -> None:
    """Remove what is left of the copy under its first name."""
    for end in _BESIDE:
        with suppress(OSError):  # an error that brought us here counts more
            os.unlink(partial + end)
    shutil.rmtree(artifacts_beside(partial), ignore_errors=True)


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)

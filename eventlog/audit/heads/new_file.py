"""A file that comes into being whole, for its owner alone, and takes nobody's place.

It is written under a name of its own in the same folder (`.eventlog-<16 hex digits>.tmp`), made durable, and only then
linked to the name that was asked for, which fails where something is there. What a crash leaves may be removed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from eventlog.errors import InvalidInput, Misuse, StoreUnavailable, code_of_os_error
from eventlog.stores.entropy import random_bytes

__all__ = ["flush_folder_of", "write_all", "write_new_file"]


def write_new_file(path: str, data: bytes, *, like: str | None = None) -> None:
    """Make the file with mode 0600; *durable* on return. Made by root in the place of `like`, it is its owner's.

    So whoever had the old one has the new one, with the same rights.

    Raises Misuse(`target_exists`) if something is there, InvalidInput(`invalid_argument`) for a path that names no
    file, StoreUnavailable(`store_cannot_open`, `store_full`) if it cannot be made.
    """
    folder, name = os.path.split(path)
    if name in ("", ".", "..") or "\0" in path:
        raise InvalidInput("invalid_argument", f"{path!r:.80} names no file")
    draft = os.path.join(folder, f".eventlog-{random_bytes(8).hex()}.tmp")
    try:
        _write_draft(draft, data, like)
        os.link(draft, path)
        flush_folder_of(path)
    except FileExistsError:
        raise Misuse("target_exists", f"{path!r} exists", path=path) from None
    except OSError as error:
        message = f"cannot make {path!r}: {error.strerror or error}"
        raise StoreUnavailable(code_of_os_error(error, "store_cannot_open"), message, path=path) from error
    finally:
        with suppress(OSError):  # it was never made, or cannot be removed either
            os.unlink(draft)


def _write_draft(path: str, data: bytes, like: str | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if like is not None and os.geteuid() == 0:
            old = os.stat(like)
            os.fchown(descriptor, old.st_uid, old.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, however many the system takes at a time. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def flush_folder_of(path: str) -> None:
    """Make the names in the folder of this path durable. Raises OSError."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

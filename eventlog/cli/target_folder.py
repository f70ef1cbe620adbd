"""A folder that a command makes: whole under its name, or not there at all.

It is filled under a name of its own beside it (`.eventlog-<16 hex digits>.tmp`), made durable, and only then gets the
name that was asked for. What a crash leaves behind bears the first name and may be removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
from types import TracebackType
from typing import Final

from eventlog.errors import InvalidInput, Misuse
from eventlog.runtime.actions.directories import flush
from eventlog.stores.artifacts import coded_os_errors

__all__ = ["TargetFolder"]


class TargetFolder:
    """The folder to be made at `path`: `with TargetFolder(…) as folder: folder.write(name, data); folder.publish()`.

    Without `publish` nothing is made; what is there already is refused. Raises Misuse(`target_exists`),
    InvalidInput(`invalid_argument`) for a path where nothing can be made, and StoreUnavailable (`store_full`, …).
    """

    def __init__(self, path: str) -> None:
        self.path: Final = path.rstrip("/")
        self.size_bytes = 0
        parent, name = os.path.split(self.path)
        if name in ("", ".", "..") or "\0" in path:
            raise InvalidInput("invalid_argument", f"{path!r:.80} names no folder")
        self._parent: Final = parent or "."
        self._temp: Final = os.path.join(self._parent, f".eventlog-{secrets.token_hex(8)}.tmp")

    def __enter__(self) -> TargetFolder:
        self._check()
        try:
            os.mkdir(self._temp)
        except OSError as error:
            message = f"cannot create {self.path!r}: {error.strerror or error}"
            raise InvalidInput("invalid_argument", message) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._temp, ignore_errors=True)  # it has the name that was asked for by now, or goes away

    def write(self, name: str, data: bytes) -> None:
        """Write a file; `name` is its path in the folder, of parts that are plain names."""
        path = os.path.join(self._temp, *name.split("/"))
        with coded_os_errors(f"cannot write {self.path!r}"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                flush(file.fileno())
        self.size_bytes += len(data)

    def publish(self) -> None:
        """Give the folder its name; *durable* on return."""
        with coded_os_errors(f"cannot make {self.path!r}"):
            for folder, _, _ in os.walk(self._temp):
                _flush_folder(folder)
            self._check()  # again: something may have come meanwhile
            os.rename(self._temp, self.path)
            _flush_folder(self._parent)

    def _check(self) -> None:
        if os.path.lexists(self.path):
            raise Misuse("target_exists", f"{self.path!r} exists", path=self.path)


def _flush_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)

"""A file that a command makes: whole under its name, or not there at all.

It is written under a name of its own in the same folder (`.eventlog-<16 hex digits>.tmp`), made durable, and only then
gets the name that was asked for. What a crash leaves behind bears the first name and may be removed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from types import TracebackType
from typing import Final

from eventlog.errors import InvalidInput, Misuse
from eventlog.runtime.actions.directories import flush
from eventlog.runtime.actions.log_files import belongs_to_log
from eventlog.stores.artifacts import coded_os_errors

__all__ = ["TargetFile"]

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class TargetFile:
    """The file to be made at `path`: `with TargetFile(…) as file: file.write(…); file.publish()`.

    Without `publish` nothing is made. What is there already is refused; a regular file is replaced in one step with
    `force`, unless it belongs to the log at `place`.

    Raises Misuse(`target_exists`), InvalidInput(`invalid_argument`) for a path where nothing can be made, and
    StoreUnavailable (`store_full`, …) if it cannot be written.
    """

    def __init__(self, path: str, *, force: bool = False, place: str | None = None) -> None:
        self.path: Final = path
        self.size_bytes = 0
        self._force: Final = force
        self._folder, self._name = _parts(path)
        self._temp: Final = f".eventlog-{secrets.token_hex(8)}.tmp"
        self._directory = -1
        self._descriptor = -1
        self._place: Final = place

    def __enter__(self) -> TargetFile:
        try:
            self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._check()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._temp, flags, 0o666, dir_fd=self._directory)
        except OSError as error:
            self._close()
            message = f"cannot create {self.path!r}: {error.strerror or error}"
            raise InvalidInput("invalid_argument", message) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # it has the name that was asked for by now, or it cannot be removed either
            os.unlink(self._temp, dir_fd=self._directory)
        self._close()

    def write(self, data: bytes) -> None:
        """Write the next bytes."""
        with coded_os_errors(f"cannot write {self.path!r}"):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        self.size_bytes += len(data)

    def publish(self) -> None:
        """Give the file its name; *durable* on return."""
        with coded_os_errors(f"cannot make {self.path!r}"):
            flush(self._descriptor)
            self._check()  # again: something may have come meanwhile
            self._rename()
            flush(self._directory)

    def _check(self) -> None:
        if self._place is not None and belongs_to_log(self._place, self._directory, os.fsencode(self._name)):
            raise InvalidInput("invalid_argument", f"{self.path!r} belongs to the log and is not replaced")
        try:
            mode = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if not self._force:
            raise self._exists()
        if not stat.S_ISREG(mode):
            raise InvalidInput("invalid_argument", f"{self.path!r} is no regular file and is not replaced")

    def _exists(self) -> Misuse:
        return Misuse("target_exists", f"{self.path!r} exists", path=self.path)

    def _rename(self) -> None:
        here = self._directory
        if not self._force:
            try:
                os.link(self._temp, self._name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
                return
            except FileExistsError:
                raise self._exists() from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
        os.rename(self._temp, self._name, src_dir_fd=here, dst_dir_fd=here)

    def _close(self) -> None:
        for descriptor in (self._descriptor, self._directory):
            if descriptor >= 0:
                with suppress(OSError):  # what was written is durable, or goes away
                    os.close(descriptor)


def _parts(path: str) -> tuple[str, str]:
    """Return folder and name. Raises InvalidInput(`invalid_argument`) for what can be no file."""
    folder, name = os.path.split(path)
    if name in ("", ".", "..") or "\0" in path:
        raise InvalidInput("invalid_argument", f"{path!r:.80} names no file")
    return folder or ".", name

"""The approver's own memory: the heads that he has signed, in a file beside his key, where no writer of a log gets at.

A line of JSON for each head, {"log_id", "size", "root"}, appended and made durable before the signature leaves the
process; the last one of a log counts. A last line that a crash has cut short is passed over, and what it would have
said was never signed. Whoever has the file open holds it alone.
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType
from typing import Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.merkle import TreeHead
from eventlog.stores.artifacts import coded_os_errors

__all__ = ["SeenHeads"]

_MAX_BYTES: Final = 64 * 1024 * 1024


class _Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log_id: str
    size: int
    root: str


class SeenHeads:
    """The file at `path`: `with SeenHeads(path) as seen: seen.last(log_id); seen.keep(log_id, head)`.

    It is made, for its owner alone, if it is not there. Raises InvalidInput(`invalid_argument`) for a file that cannot
    be opened or is none of these, StoreUnavailable (`store_full`, …) if it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._descriptor = -1
        self._last: dict[str, TreeHead] = {}

    def __enter__(self) -> SeenHeads:
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._read()
        except (OSError, ValueError) as error:
            self._close()
            raise InvalidInput("invalid_argument", f"cannot use the file of heads {self._path!r}: {error}") from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def last(self, log_id: str) -> TreeHead | None:
        """Return the head of this log that was signed last, None if none was."""
        return self._last.get(log_id)

    def keep(self, log_id: str, head: TreeHead) -> None:
        """Keep a head; *durable* on return."""
        line = msgspec.json.encode(_Seen(log_id, head.size, head.root.hex())) + b"\n"
        with coded_os_errors(f"cannot write {self._path!r}"):
            os.write(self._descriptor, line)
            os.fsync(self._descriptor)
            self._flush_folder()
        self._last[log_id] = head

    def _read(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size > _MAX_BYTES:
            raise ValueError("it is too long to be one")
        text = os.pread(self._descriptor, size, 0)
        end = text.rfind(b"\n") + 1
        os.ftruncate(self._descriptor, end)  # what a crash has cut short was never signed
        for line in text[:end].splitlines():
            try:
                seen = msgspec.json.decode(line, type=_Seen)
                self._last[seen.log_id] = TreeHead(seen.size, bytes.fromhex(seen.root))
            except (msgspec.DecodeError, RecursionError, ValueError) as error:
                raise ValueError(f"a line of it is no head: {error}") from None

    def _flush_folder(self) -> None:
        folder = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

"""A file system that passes everything through to a folder behind it, and records what is done: a `Trace`.

It is served by a process of its own, one request after the other, so that there is one order. The engine that works on
it is the real one: its shared memory, its locks and its threads are the kernel's business as on any file system.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

from tools.campaigns.power_cuts.trace import (
    ROOT,
    TOLD,
    Changed,
    Made,
    Operation,
    Start,
    Synced,
    Told,
    Trace,
    Truncated,
    Wrote,
)

__all__ = ["Recording", "hide_mounts", "lacks", "memory", "recording"]

_START_S: Final = 20.0
_END_S: Final = 60.0
_SHARED_MEMORY: Final = "-shm"
"""SQLite makes it anew after a crash: what is in it is never read, nor is it flushed."""
_STATUS: Final = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
_NEW_MOUNTS: Final = 0x00020000
_PRIVATE: Final = 0x00040000 | 0x00004000


def lacks() -> str | None:
    """Return what this machine lacks for recordings, or None."""
    if sys.platform != "linux" or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse"
    if os.geteuid() != 0:
        return "root, who may mount"
    if shutil.which("fusermount3") is None:
        return "fusermount3 (package fuse3)"
    return None if importlib.util.find_spec("mfusepy") else "mfusepy, which the extra `dev` brings"


def hide_mounts() -> None:
    """Let what this process mounts from now on vanish with it, however it ends. It must have one thread only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def memory(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount an empty file system in memory at a new folder."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), f"size={size_bytes}".encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=False, capture_output=True)
        folder.rmdir()


class Recording:
    """A recording that is going on; it has its `trace` when it has ended."""

    def __init__(self) -> None:
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        assert self._trace is not None, "the recording goes on"
        return self._trace

    def end(self, trace: Trace) -> None:
        self._trace = trace


@contextmanager
def recording(behind: Path, mount: Path) -> Iterator[Recording]:
    """Show the folder `behind` at the folder `mount`, and record what is done there until the block ends.

    Whatever uses the mount must have ended by then.
    """
    into = behind.parent / f"{behind.name}.trace"
    server = os.fork()
    if server == 0:
        _serve(behind, mount, into)
    found = Recording()
    try:
        _await_mount(mount, server)
        yield found
    finally:
        subprocess.run(["umount", str(mount)], check=False, capture_output=True)
        ended = _await_end(server)
    if ended != 0:
        raise RuntimeError(f"the recording file system ended with {ended}")
    found.end(pickle.loads(into.read_bytes()))
    into.unlink()


def _await_mount(mount: Path, server: int) -> None:
    until_s = time.monotonic() + _START_S
    while not os.path.ismount(mount):
        if time.monotonic() > until_s or os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise RuntimeError("the recording file system did not start")
        time.sleep(0.001)


def _await_end(server: int) -> int:
    until_s = time.monotonic() + _END_S
    while time.monotonic() < until_s:
        done, status = os.waitpid(server, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(server, 9)
    os.waitpid(server, 0)
    return -9


def _serve(behind: Path, mount: Path, into: Path) -> NoReturn:
    status = 1
    try:
        mfusepy: Any = import_module("mfusepy")  # Here, for it loads a library that may be missing.
        recorder = _recorder(mfusepy.Operations, str(behind))
        mfusepy.FUSE(recorder, str(mount), foreground=True, nothreads=True, hard_remove=True, use_ino=True)
        into.write_bytes(pickle.dumps(recorder.trace()))
        status = 0
    finally:
        os._exit(status)


class _Numbers:
    """The numbers of files and directories, by the inodes behind them."""

    def __init__(self, folder: str) -> None:
        self._numbers: Final = {os.stat(folder).st_ino: ROOT}
        self._last = ROOT

    def of(self, path: str) -> int:
        return self._numbers[os.lstat(path).st_ino]

    def of_open(self, descriptor: int) -> int | None:
        return self._numbers.get(os.fstat(descriptor).st_ino)

    def take(self, inode: int) -> int:
        self._last += 1
        self._numbers[inode] = self._last
        return self._last

    def known(self, inode: int) -> int | None:
        return self._numbers.get(inode)


def _start_of(folder: str, numbers: _Numbers) -> Start:
    files: dict[int, bytes] = {}
    directories: dict[int, dict[str, int]] = {}
    for path, folders, names in os.walk(folder):
        entries: dict[str, int] = {}
        for name in (*folders, *names):
            full = os.path.join(path, name)
            inode = os.lstat(full).st_ino
            number = numbers.known(inode)
            entries[name] = numbers.take(inode) if number is None else number
            if name in names:
                files[entries[name]] = Path(full).read_bytes()
        directories[numbers.of(path)] = entries
    return Start(files, directories)


def _recorder(operations: Any, folder: str) -> Any:
    """Return the recorder; its base class is known only where FUSE is."""

    class Recorder(operations):  # type: ignore[misc]  # the package has no types
        use_ns: Final = True

        def __init__(self) -> None:
            self._numbers: Final = _Numbers(folder)
            self._start: Final = _start_of(folder, self._numbers)
            self._done: Final[list[Operation]] = []

        def trace(self) -> Trace:
            return Trace(self._start, self._done)

        # ── what changes nothing ──────────────────────────────────────────────────────────────────────────────────

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            seen = os.fstat(fh) if fh is not None else os.lstat(folder + path)
            return {**{name: getattr(seen, name) for name in _STATUS}, "st_mtime": seen.st_mtime_ns}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(folder + path)]

        def open(self, path: str, flags: int) -> int:
            return os.open(folder + path, flags & ~(os.O_APPEND | os.O_NOFOLLOW))

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def chmod(self, path: str, mode: int) -> int:
            os.chmod(folder + path, mode)
            return 0

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
            os.utime(folder + path, ns=times or (time.time_ns(),) * 2)
            return 0

        # ── what changes names ────────────────────────────────────────────────────────────────────────────────────

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            descriptor = os.open(folder + path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
            if not self._is_left_out(path):
                number = self._numbers.take(os.fstat(descriptor).st_ino)
                self._done.append(Made(number, False))
                self._change(path, number)
            return descriptor

        def mkdir(self, path: str, mode: int) -> int:
            os.mkdir(folder + path, mode)
            number = self._numbers.take(os.lstat(folder + path).st_ino)
            self._done.append(Made(number, True))
            self._change(path, number)
            return 0

        def link(self, target: str, source: str) -> int:
            os.link(folder + source, folder + target)
            self._change(target, self._numbers.of(folder + source))
            return 0

        def unlink(self, path: str) -> int:
            os.unlink(folder + path)
            if not self._is_left_out(path):
                self._change(path, None)
            return 0

        def rmdir(self, path: str) -> int:
            os.rmdir(folder + path)
            self._change(path, None)
            return 0

        def rename(self, old: str, new: str) -> int:
            if os.path.dirname(old) != os.path.dirname(new):
                raise OSError(errno.EXDEV, "a rename between directories would be two changes")
            number = self._numbers.of(folder + old)
            os.rename(folder + old, folder + new)
            entries = ((os.path.basename(old), None), (os.path.basename(new), number))
            self._done.append(Changed(self._numbers.of(folder + os.path.dirname(new)), entries))
            return 0

        def _change(self, path: str, number: int | None) -> None:
            above, name = os.path.split(path)
            self._done.append(Changed(self._numbers.of(folder + above), ((name, number),)))

        def _is_left_out(self, path: str) -> bool:
            return path == f"/{TOLD}" or path.endswith(_SHARED_MEMORY)

        # ── what changes contents ─────────────────────────────────────────────────────────────────────────────────

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            count = os.pwrite(fh, data, offset)
            number = self._numbers.of_open(fh)
            if path == f"/{TOLD}":
                self._done.append(Told(data[:count]))
            elif number is not None:
                self._done.append(Wrote(number, offset, data[:count]))
            return count

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            os.truncate(fh if fh is not None else folder + path, length)
            number = self._numbers.known((os.fstat(fh) if fh is not None else os.lstat(folder + path)).st_ino)
            if number is not None:
                self._done.append(Truncated(number, length))
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            number = self._numbers.of_open(fh)
            if number is not None:
                self._done.append(Synced(number))
            return 0

        def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
            self._done.append(Synced(self._numbers.of(folder + path)))
            return 0

    return Recorder()

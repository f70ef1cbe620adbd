"""Who may resume a run: proof that an earlier resumer is dead.

Each attempt to perform an effect holds one lock file of its own, beside the database, from before its intent is
appended until its result is. Only a living process can hold it: the kernel frees a `flock` when its holder dies, which
a process id in a file cannot promise. The intent names the holder by host, boot and lock file, so that another process
on the same host knows at once whether the intent is orphaned; on another host it has to wait for the deadline.

The log alone keeps two resumers apart (an intent is appended at exactly the version that was read). A lock only says
who may try; a wrong answer here could cost time, never a second effect.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from typing import Final

from eventlog.errors import StoreUnavailable
from eventlog.events import Owner
from eventlog.run import Intent
from eventlog.stores.entropy import random_bytes

__all__ = ["hold", "is_orphaned", "this_host"]

_LIVING_HERE: Final[set[str]] = set()
"""The lock ids held by this process for logs without a place on disk."""

_HELD: Final[set[int]] = set()
"""The descriptors of lock files that this process holds; a forked child gives its copies up at once."""


@contextmanager
def hold(place: str | None) -> Iterator[Owner]:
    """Hold a new lock and give its name; free it on exit, whatever happens. `place` is the database's path or None."""
    lock = random_bytes(16).hex()
    host, boot = this_host()
    owner = Owner(host=host, boot=boot, lock=lock)
    if place is None:
        _LIVING_HERE.add(lock)
        try:
            yield owner
        finally:
            _LIVING_HERE.discard(lock)
        return
    path = _path(place, lock)
    descriptor = _lock_file(path)
    _HELD.add(descriptor)
    try:
        yield owner
    finally:
        _unlink(path)
        if descriptor in _HELD:  # in a forked child it is closed already, and the number may be somebody else's
            _HELD.discard(descriptor)
            os.close(descriptor)


def is_orphaned(intent: Intent, place: str | None, now_us: int) -> bool:
    """Say whether nobody can be performing this intent any more: its owner is dead, or its deadline has passed."""
    if now_us > intent.deadline_us:
        return True
    host, boot = this_host()
    if intent.owner.host != host:
        return False
    if intent.owner.boot != boot:
        return True  # this host has been restarted since
    if place is None:
        return intent.owner.lock not in _LIVING_HERE
    return _is_free(_path(place, intent.owner.lock))


@cache
def this_host() -> tuple[str, str]:
    """Return opaque names of this host and of its present boot, 16 hex digits each."""
    host = _first_line("/etc/machine-id") + "\0" + platform.node()
    boot = _first_line("/proc/sys/kernel/random/boot_id") or _boot_session_of_macos()
    return _digest(host), _digest(boot or host)


def _lock_file(path: str) -> int:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        message = f"cannot make the lock file {path!r}, by which others see that this process lives"
        raise StoreUnavailable("store_cannot_open", f"{message}: {error.strerror}", path=path) from error
    return descriptor


def _give_up_in_child() -> None:
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_give_up_in_child)


def _is_free(path: str) -> bool:
    """Say whether no living process holds this lock file, and remove it then."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True  # its holder removed it when it was done
    except OSError:
        return False  # it cannot be asked, so nothing is proved, and the deadline decides
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    else:
        _unlink(path)
        return True
    finally:
        os.close(descriptor)


def _path(place: str, lock: str) -> str:
    # The name comes from an event: basename keeps an edited one from pointing anywhere else.
    return os.path.join(f"{place}.owners", os.path.basename(lock) + ".lock")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _boot_session_of_macos() -> str:
    if platform.system() != "Darwin":
        return ""
    import ctypes

    buffer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(64)
    ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0)
    return buffer.value.decode(errors="replace")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]

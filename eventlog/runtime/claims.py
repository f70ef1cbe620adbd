"""Who may resume a run: proof that an earlier resumer is dead.

Each attempt to perform an effect holds one lock file of its own, beside the database, from before its intent is
appended until its result is. Only a living process can hold it: the kernel frees a `flock` when its holder dies, which
a process id in a file cannot promise. The intent names the holder by host, boot and lock file, so that another process
on the same host knows at once whether the intent is orphaned; on another host it has to wait for the deadline.

What the file of a holder says:

    held      it lives, whatever boot it names
    free      it is dead, or has ended; on its own host only, because not every shared file system shares its locks
    missing   nothing. A cleaner of folders removes the file of a living holder as well as any other

So a file outlives its holder, and asking leaves it there: who asks may die before the answer is recorded, and a holder
that was overruled is asked about for as long as its run is open. It goes when nobody can ask any more (`forget`), or
a month after it was made.

The log alone keeps two resumers apart (an intent is appended at exactly the version that was read). A lock says who may
try at once. A wrong "alive" or "nothing" costs time or a person's look; a wrong "dead" could cost a second effect.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from typing import Final, Literal

from eventlog.errors import StoreUnavailable
from eventlog.events import Owner
from eventlog.run import Intent
from eventlog.stores.entropy import random_bytes

__all__ = ["forget", "hold", "is_orphaned", "is_proved_alive", "is_proved_dead", "this_host"]

_LIVING_HERE: Final[set[str]] = set()
"""The lock ids held by this process for logs without a place on disk."""

_HELD: Final[set[int]] = set()
"""The descriptors of lock files that this process holds; a forked child gives its copies up at once."""

_KEPT_S: Final = 30 * 24 * 3600
"""How long a free lock file is kept as proof: a machine that stopped over the holidays still finds it."""

_LOOKED_AT: Final = 20
"""How many other lock files a new holder looks at, to sweep old ones."""

_LockState = Literal["held", "free", "unknown"]


@contextmanager
def hold(place: str | None) -> Iterator[Owner]:
    """Hold a new lock and give its name; free it on exit, whatever happens. `place` is the database's path or None.

    The file stays, as proof of this holder's end. Who knows that no intent of it is open calls `forget` as well.
    """
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
        _sweep(path, descriptor)
        yield owner
    finally:
        if descriptor in _HELD:  # in a forked child it is closed already, and the number may be somebody else's
            _HELD.discard(descriptor)
            os.close(descriptor)


def forget(owner: Owner, place: str | None) -> None:
    """Remove the owner's lock file, because nobody will ask about it: its intents have results or fences in the log.

    Inside `hold` or after it. Too early is harmless: without the file nothing is proved, and the deadline decides.
    """
    if place is not None:
        with suppress(OSError, ValueError):  # What stays is swept when it is old.
            os.unlink(_path(place, owner.lock))


def is_orphaned(intent: Intent, place: str | None, now_us: int) -> bool:
    """Say whether nobody can be performing this intent any more: its owner is dead, or its deadline has passed."""
    return now_us > intent.deadline_us or is_proved_dead(intent.owner, place)


def is_proved_dead(owner: Owner, place: str | None) -> bool:
    """Say whether the owner of an intent is certain not to live any more. One that is only late may still act."""
    # Its boot is not looked at: of two machines made from one image each would take the other for its own past.
    return owner.host == this_host()[0] and _state(owner, place) == "free"


def is_proved_alive(owner: Owner, place: str | None) -> bool:
    """Say whether the owner of an intent is certain to live still, and so may still act."""
    return _state(owner, place) == "held"


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


def _state(owner: Owner, place: str | None) -> _LockState:
    if place is None:
        return "held" if owner.lock in _LIVING_HERE else "free"
    return _state_of_file(_path(place, owner.lock))


def _state_of_file(path: str) -> _LockState:
    """Say what the lock file proves. Anything but an answer of the lock itself proves nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):  # ValueError: an edited event may name a lock with a NUL in it
        return "unknown"
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "unknown"
        # Shared, so that two who ask at the same time do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return "held" if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else "unknown"
    else:
        return "free"
    finally:
        os.close(descriptor)


def _sweep(path: str, descriptor: int) -> None:
    """Remove free lock files that are old. What cannot be looked at, or removed, is left to somebody else."""
    folder, own = os.path.split(path)
    with suppress(OSError):
        # The time of the file system, by which the others are dated too.
        made_before_s = os.fstat(descriptor).st_mtime - _KEPT_S
        # The names behind one's own, and round the end: names are random, so in time every file is looked at.
        for name in heapq.nsmallest(_LOOKED_AT, os.listdir(folder), key=lambda name: (name <= own, name)):
            other = os.path.join(folder, name)
            with suppress(OSError):
                is_old = name.endswith(".lock") and os.lstat(other).st_mtime < made_before_s
                if is_old and _state_of_file(other) == "free":
                    os.unlink(other)


def _path(place: str, lock: str) -> str:
    # The name comes from an event: basename keeps an edited one from pointing anywhere else.
    return os.path.join(f"{place}.owners", os.path.basename(lock) + ".lock")


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

"""Who may resume a run: proof that an earlier resumer is dead.

Whoever performs an effect or drives a run holds a lock file beside the database, from before its intent or claim is
appended until nothing of it is open. Only a living process can hold it: the kernel frees a `flock` when its holder
dies, which a process id in a file cannot promise. The event names the holder by host, boot and lock, so that another
process on the same host knows at once whether it is orphaned; on another host it has to wait for the deadline.

    hold      one file for one attempt; the lock is the file's id, 32 hex digits
    Holder    one file for a whole process, however many runs it drives; the lock of its n-th claim is `<file id>.<n>`

What a file says of every lock on it, whatever boot it names:

    held      its process lives, and so may whoever made any of its claims
    free      all of them are dead, or have ended; on their own host only, as not every shared file system shares locks
    missing   nothing. A cleaner of folders removes the file of a living holder as well as any other

Of a claim on a file that this very process holds the file is not asked, but the process's own memory, which knows more:
a claim that was given and not released is alive, one that was released is dead, and a number that was not given yet
proves nothing. Other processes take a claim for alive as long as its file is held, also when it has been released.

A wrong "dead" cannot come of this, for a file is

    1  locked before its id is in any lock that is handed out, and its id is random and never used again
    2  let go only by the death of its process, or when no claim on it lives any more; never unlocked, only closed
    3  out of reach of its process's children: a forked child closes its copies and owns nothing, and a program that is
       started gets none, so that no child can free the file, nor keep it held beyond the death of its parent

and one process's memory cannot be wrong about itself: a claim counts as alive before its name is handed out, and as
dead only once its own user has said that it acts no more. That is the one thing asked of users: to release afterwards.

So a file outlives its holder, and asking leaves it there: who asks may die before the answer is recorded, and a holder
that was overruled is asked about for as long as its run is open. It goes when nobody can ask any more, or a month after
it was last dated. Of an attempt's own file that is known when its intents have results or fences (`forget`). A
`Holder` removes its file when it lets it go and nothing that was claimed on it is open in the log; any other stays as
proof for all the claims on it, because one that is settled says nothing about its siblings.

The log alone keeps two resumers apart (an intent is appended at exactly the version that was read). A lock says who may
try at once. A wrong "alive" or "nothing" costs time or a person's look; a wrong "dead" could cost a second effect.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import os
import platform
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from typing import Final, Literal

from eventlog.errors import StoreUnavailable, code_of_os_error
from eventlog.events import Owner
from eventlog.run import Intent
from eventlog.stores.entropy import random_bytes

__all__ = ["Holder", "forget", "hold", "is_orphaned", "is_proved_alive", "is_proved_dead", "this_host"]

_GUARD: Final = threading.RLock()
"""Held to change what is below, and while this process forks. Reentrant: a finalizer may release a claim anywhere."""

_LIVING_HERE: Final[set[str]] = set()
"""The lock ids that `hold` holds in this process for logs without a place on disk."""

_HELD: Final[dict[str, int]] = {}
"""The paths of the lock files that this process holds, and their descriptors; a forked child closes them at once."""

_SWEPT_UNTIL_S: Final[dict[str, float]] = {}
"""The places whose old lock files this process has swept, and when (monotonic time) it may do so again."""

_KEPT_S: Final = 30 * 24 * 3600
"""How long a free lock file is kept as proof: a machine that stopped over the holidays still finds it."""

_SWEEP_PAUSE_S: Final = 60.0
"""How long a place is not swept again by this process: a sweep lists a whole folder."""

_LOOKED_AT: Final = 20
"""How many lock files a sweep looks at."""

_CLAIM: Final = re.compile(r"([0-9a-f]{32})\.([1-9][0-9]{0,17})")
"""The lock of a claim: the file's id and the claim's number."""

_LockState = Literal["held", "free", "unknown"]


class Holder:
    """Claims of this process on runs of one log, on one lock file. `place` is the database's path or None.

    The file is made with the first claim and let go with the last, so that an idle holder holds nothing, and a thousand
    claims cost one descriptor. Any thread may claim and release. In a forked child a holder has no claims, and its next
    one is on a file of the child's own. Nothing has to be closed: what is not released ends with the process.
    """

    def __init__(self, place: str | None) -> None:
        self._place: Final = place
        self._file: _LockFile | None = None
        self._is_closed = False

    def claim(self) -> Owner:
        """Return an owner that lives, for everyone who asks, until it is released or this process dies.

        Raises StoreUnavailable(`store_cannot_open`, `store_full`) if no lock file can be made, (`engine_closed`) after
        `close`.
        """
        host, boot = this_host()
        with _GUARD:
            file, number = self._give()
            swept_s = file.date() if self._place is not None and _is_sweep_due(self._place) else None
        if self._place is not None and swept_s is not None:
            _sweep(self._place, swept_s)
        return Owner(host=host, boot=boot, lock=f"{file.file_id}.{number}")

    def release(self, owner: Owner, is_settled: bool) -> None:
        """End a claim, whose user acts no more. `is_settled` if nothing of it is open in the log, so nobody will ask.

        A claim that is not settled is proved dead: in this process at once, for others as soon as the last claim of
        this holder is released. An owner that does not live here (it was released, it is another holder's, a parent's)
        is left as it is.
        """
        file_id, number = _parts(owner.lock)
        with _GUARD:
            file = self._file
            if file is None or file.is_inherited or file.file_id != file_id or number not in file.living:
                return
            if not is_settled:
                file.unsettled.add(number)
            file.living.discard(number)
            if not file.living:
                self._let_go(file)

    def close(self) -> None:
        """End every claim that is left, without its being settled: nothing of them acts any more. It gives no more."""
        with _GUARD:
            self._is_closed = True
            file = self._file
            if file is not None and not file.is_inherited:
                file.unsettled.update(file.living)
                self._let_go(file)

    def _give(self) -> tuple[_LockFile, int]:
        while True:
            if self._is_closed:
                raise StoreUnavailable("engine_closed", "what claimed runs here is closed")
            file = self._file
            if file is None or file.is_inherited:
                file = self._file = _LockFile(self._place)
            number = file.give()
            # Anywhere above, a finalizer may have released what was the last claim then, and so let the file go.
            if _OWN.get(file.file_id) is file:
                return file, number

    def _let_go(self, file: _LockFile) -> None:
        self._file = None
        file.end()


class _LockFile:
    """A lock file of this process and the claims on it; a mere name in memory for a log without a place.

    Made and used under `_GUARD` alone. It is in `_OWN` for as long as it is held.
    """

    def __init__(self, place: str | None) -> None:
        self.file_id: Final = random_bytes(16).hex()
        self.given = 0
        self.living: Final[set[int]] = set()
        self.unsettled: Final[set[int]] = set()
        """The claims that were released while something of them was open in the log."""
        self.is_inherited = False
        """Whether it is a parent's: this process is its forked child."""
        self._path: Final = None if place is None else _path(place, self.file_id)
        if self._path is not None:
            _take(self._path)
        _OWN[self.file_id] = self

    def give(self) -> int:
        number = self.given + 1
        self.living.add(number)
        self.given = number
        return number

    def state_of(self, number: int) -> _LockState:
        if number in self.living:
            return "held"
        return "free" if number <= self.given else "unknown"

    def date(self) -> float:
        """Date the file anew, that its month as proof begins again, and return the time of its file system."""
        assert self._path is not None, "only a file has a date"
        try:
            os.utime(_HELD[self._path])
            return os.fstat(_HELD[self._path]).st_mtime
        except OSError:
            return 0.0  # With its old date it may be swept early, and is of use until then. Nothing else is swept now.

    def leave_to_parent(self) -> None:
        """Go on in a forked child, as a parent's: the file answers for itself, and a name in memory cannot."""
        self.is_inherited = True
        if self._path is not None:
            del _OWN[self.file_id]

    def end(self) -> None:
        """Let the file go, as no claim on it lives; it stays as proof if anybody may ask."""
        if _OWN.pop(self.file_id, None) is None or self._path is None:
            return
        if self.unsettled:
            self.date()
        else:
            _remove(self._path)
        _release(self._path)


_OWN: Final[dict[str, _LockFile]] = {}
"""The lock files that the holders of this process hold, by their ids."""


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
    descriptor = _take(path)
    try:
        if _is_sweep_due(place):
            with suppress(OSError):
                _sweep(place, os.fstat(descriptor).st_mtime)
        yield owner
    finally:
        _release(path)


def forget(owner: Owner, place: str | None) -> None:
    """Say that nobody will ask about this owner: its intents have results or fences in the log.

    Inside `hold` or after it, that removes the lock file. Too early is harmless: without the file nothing is proved,
    and the deadline decides. The file of a `Holder` stays, as it is the proof of other claims too; but its own process
    removes it in the end if all that ended without being settled have been forgotten.
    """
    file_id, number = _parts(owner.lock)
    if number is not None:
        with _GUARD:
            if file_id in _OWN:
                _OWN[file_id].unsettled.discard(number)
    elif place is not None:
        _remove(_path(place, file_id))


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


def _take(path: str) -> int:
    """Make a lock file and hold it."""
    with _GUARD:
        descriptor = _HELD[path] = _lock_file(path)
    return descriptor


def _release(path: str) -> None:
    """Let a lock file go; not in a forked child, which has closed its copy already."""
    with _GUARD:
        descriptor = _HELD.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)  # It is never unlocked: that would free it for a parent and its child alike.


def _remove(path: str) -> None:
    with suppress(OSError, ValueError):  # What stays is swept when it is old.
        os.unlink(path)


def _lock_file(path: str) -> int:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        message = f"cannot make the lock file {path!r}, by which others see that this process lives"
        code = code_of_os_error(error, "store_cannot_open")
        raise StoreUnavailable(code, f"{message}: {error.strerror}", path=path) from error
    return descriptor


def _give_up_in_child() -> None:
    """Close this child's copies of lock files, and forget the claims on them.

    What is known of a log in memory stays as it was when the process forked: no file would tell the child of an end.
    """
    try:
        while _HELD:
            with suppress(OSError):
                os.close(_HELD.popitem()[1])
        for file in [*_OWN.values()]:
            file.leave_to_parent()
    finally:
        _GUARD.release()


# The guard is held meanwhile, lest the child get a copy of a file that another thread is just about to hold.
os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_give_up_in_child)


def _state(owner: Owner, place: str | None) -> _LockState:
    file_id, number = _parts(owner.lock)
    if number is not None:
        with _GUARD:
            if file_id in _OWN:
                return _OWN[file_id].state_of(number)
    if place is None:
        return "held" if owner.lock in _LIVING_HERE else "free"
    return _state_of_file(_path(place, file_id))


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


def _is_sweep_due(place: str) -> bool:
    """Say whether this process has not swept the place for a while; if so, the caller sweeps it now."""
    now_s = time.monotonic()
    with _GUARD:
        if now_s < _SWEPT_UNTIL_S.get(place, now_s):
            return False
        for swept in [swept for swept, until_s in _SWEPT_UNTIL_S.items() if until_s <= now_s]:
            del _SWEPT_UNTIL_S[swept]
        _SWEPT_UNTIL_S[place] = now_s + _SWEEP_PAUSE_S
        return True


def _sweep(place: str, now_s: float) -> None:
    """Remove free lock files that are old. What cannot be looked at, or removed, is left to somebody else.

    `now_s` is the time of the file system, by which the files are dated too.
    """
    folder = _folder(place)
    # The names behind a random one, and round the end: names are random, so in time every file is looked at.
    first = random_bytes(16).hex()
    with suppress(OSError):
        for name in heapq.nsmallest(_LOOKED_AT, os.listdir(folder), key=lambda name: (name <= first, name)):
            other = os.path.join(folder, name)
            with suppress(OSError):
                is_old = name.endswith(".lock") and os.lstat(other).st_mtime < now_s - _KEPT_S
                if is_old and _state_of_file(other) == "free":
                    os.unlink(other)


def _parts(lock: str) -> tuple[str, int | None]:
    """Return the id of the lock's file, and the claim's number if it is one of several on it."""
    match = _CLAIM.fullmatch(lock)
    return (match[1], int(match[2])) if match is not None else (lock, None)


def _path(place: str, file_id: str) -> str:
    # The name comes from an event: basename keeps an edited one from pointing anywhere else.
    return os.path.join(_folder(place), os.path.basename(file_id) + ".lock")


def _folder(place: str) -> str:
    return f"{place}.owners"


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _boot_session_of_macos() -> str:
    if sys.platform == "darwin":
        import ctypes

        buffer = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(64)
        ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0)
        return buffer.value.decode(errors="replace")
    return ""


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]

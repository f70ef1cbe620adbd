"""A disk that has a little room left, from none at all to enough: at each level a program works until it is full.

The disk is a small file system of its own. Each storage scenario begins with so much room, meets the end of it where it
will (while the log is created, in a commit, in an artifact, in the temporary file of an effect), and does all of it
again after room was made. Every refusal has to be a definite one.

A case is `file system/scenario/bytes that are free`.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.storage.runs import Ran, Runs
from tools.campaigns.storage.scenarios import FOR_SMALL_DISKS
from tools.campaigns.storage.small_disks import Filler, lacks_ext4, lacks_mounts, on_ext4, on_tmpfs, with_own_mounts

__all__ = ["CAMPAIGN"]

_FILL: Final = ("filling", "creation", "large_effect")
_MOST_BYTES: Final = 1024 * 1024
"""With so much room no scenario meets the end of it, but the one that goes on until it does."""
_ROOM: Final = 4096
"""File systems give room by the page."""

_DEFINITE: Final = frozenset({"store_full", "action_failed", "mirror_unavailable"})
"""What a full disk may be told as; where the log is not open yet, also that it cannot be opened."""
_OPENING: Final = frozenset({"store_cannot_open"})


class _Case(NamedTuple):
    """A scenario on a disk with so much room."""

    disk: str
    scenario: str
    room_bytes: int

    @property
    def name(self) -> str:
        return f"{self.disk}/{self.scenario}/{self.room_bytes}"


class _Disk(NamedTuple):
    """A file system, and what is done on it."""

    make: Callable[[Path], AbstractContextManager[Path]]
    levels: str
    """The goal that says how many levels there are."""
    scenarios: tuple[str, ...]
    """In the long tier."""
    may_die_by: frozenset[signal.Signals] = frozenset()
    needs_loop: bool = False
    """It is in a file, which takes loop mounts."""


_DISKS: Final[dict[str, _Disk]] = {
    "tmpfs": _Disk(on_tmpfs, "levels", tuple(FOR_SMALL_DISKS)),
    "ext4": _Disk(on_ext4, "levels_ext4", _FILL, needs_loop=True),
    "small_blocks": _Disk(
        partial(on_ext4, block_bytes=1024), "levels_small_blocks", _FILL, frozenset({signal.SIGBUS}), needs_loop=True
    ),
}
"""On the last one a program may be ended where the disk is full (see `on_ext4`): what holds is what holds of a kill."""
_CONTROLS: Final = {
    "failed_commit_acknowledged": "filling",
    "full_told_otherwise": "filling",
    "half_file": "large_effect",
}


def _run(work: Work) -> None:
    with_own_mounts()
    began_s = time.monotonic()
    for name, disk in _DISKS.items():
        if not _is_wanted(work, name, disk):
            continue
        lacking = lacks_ext4() if disk.needs_loop else None
        try:
            if lacking is None:
                with disk.make(work.folder) as place:
                    _sweep(work, name, disk, place)
        except subprocess.CalledProcessError as error:
            lacking = error.stderr.decode(errors="replace").strip()
        if lacking is not None:
            work.leave_out(disk.levels, f"this machine lacks {lacking}")
    work.notes["rate"] = f"{work.counts['runs'] / (time.monotonic() - began_s):.1f} runs/s"


def _is_wanted(work: Work, name: str, disk: _Disk) -> bool:
    if work.case is not None:
        return work.case.startswith(f"{name}/")
    return not disk.needs_loop or work.control is None


def _sweep(work: Work, name: str, disk: _Disk, place: Path) -> None:
    filler = Filler(place)
    prepared = work.folder / f"{name}.prepared"
    prepared.mkdir()
    with Runs(prepared) as runs:
        for level in _levels(work, disk):
            work.count(disk.levels)
            for scenario in _scenarios(work, disk):
                case = _Case(name, scenario, level)
                if work.wants(case.name):
                    _one(work, runs, filler, place, case)


def _levels(work: Work, disk: _Disk) -> Iterator[int]:
    """Give how many bytes are left, by the page: from none on evenly, with a part of chance."""
    if work.case is not None:
        yield int(work.case.rpartition("/")[2])
        return
    wanted = work.goal(disk.levels)
    pages = _MOST_BYTES // _ROOM
    for index in range(wanted):
        first, end = index * pages // wanted, max((index + 1) * pages // wanted, index * pages // wanted + 1)
        yield _ROOM * (0 if index == 0 else work.chance(f"level {index}").randrange(first, end))


def _scenarios(work: Work, disk: _Disk) -> tuple[str, ...]:
    if work.control is not None:
        return (_CONTROLS[work.control],)
    if work.case is not None:
        return tuple(FOR_SMALL_DISKS)
    return _FILL if work.tier == "fast" else disk.scenarios


def _one(work: Work, runs: Runs, filler: Filler, place: Path, case: _Case) -> None:
    ran = runs.run(
        case.scenario,
        lambda _: filler.leave(case.room_bytes),
        filler.remove,
        may_die_by=_DISKS[case.disk].may_die_by,
        place=place,
    )
    work.count("runs")
    work.count("full", any(call.told == "failed" for call in ran.calls))
    work.count("ended_by_the_disk", ran.status < 0)
    for invariant, what in ran.wrong:
        work.violation(invariant, case.name, what)
    for what in _indefinite(ran):
        work.violation("I8", case.name, what)


def _indefinite(ran: Ran) -> Iterator[str]:
    """Give the refusals of a full disk that leave open what has happened, or do not say that it is full."""
    for call in ran.calls:
        if call.is_second or call.told not in ("failed", "unknown"):
            continue
        allowed = _DEFINITE | _OPENING if call.what in ("open", "backup", "keys") else _DEFINITE
        if call.what == "sign" and os.strerror(errno.ENOSPC) in str(call):
            allowed |= {"signer_unavailable"}  # the file of heads, which says so
        if call.code not in allowed:
            yield f"a full disk was told as: {call}"


CAMPAIGN: Final = Campaign(
    name="disk_full",
    title="a disk with a little room, from none to enough, is worked on until it is full",
    promise="it is told as a definite failure, reads go on, and it works again when there is room",
    faults=("F15", "F16", "F73"),
    invariants=("I1", "I2", "I3", "I5", "I6", "I8", "I9", "I10"),
    run=_run,
    goals={
        "levels": Goal(fast=20, long=256, control=20),
        "levels_ext4": Goal(fast=2, long=256, control=1),
        "levels_small_blocks": Goal(fast=2, long=64, control=1),
        "full": Goal(fast=20, long=500, control=1),
    },
    controls=(
        Control(
            "failed_commit_acknowledged",
            "an error of COMMIT is swallowed, and the events are acknowledged",
            (
                Break(
                    "eventlog/stores/sqlite/transaction.py",
                    '                return _all(batch, translate(error, "cannot commit"), poison=poison)\n',
                    "                pass\n",
                ),
                Break(
                    "eventlog/stores/sqlite/transaction.py",
                    '            return BatchOutcome(unknown=str(error), poison=f"COMMIT failed: {error}")\n',
                    "",
                ),
            ),
            r"I1 tmpfs/filling/",
        ),
        Control(
            "full_told_otherwise",
            "a full disk is told as an error of the disk",
            (
                Break(
                    "eventlog/stores/sqlite/failures.py",
                    '            return StoreUnavailable("store_full", message)\n',
                    '            return StoreUnavailable("store_io_error", message)\n',
                ),
            ),
            r"I8 tmpfs/filling/.*a full disk was told as: append",
        ),
        Control(
            "half_file",
            "an effect goes on with what could be written of its file",
            (
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "        with nothing_done(call):\n            _write_temp(effect)\n",
                    "        with suppress(OSError):\n            _write_temp(effect)\n",
                ),
            ),
            r"I5 tmpfs/large_effect/.*not what was approved",
        ),
    ),
    limit_s=Goal(fast=400, long=3000, control=120),
    lacks=lacks_mounts,
)

"""Who may take a run over: liveness is proved by a lock that only a living process can hold."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from msgspec.structs import replace

from eventlog.events import Owner
from eventlog.run import Intent
from eventlog.runtime.claims import hold, is_orphaned, this_host

FAR_US = 4_102_444_800_000_000
NOW_US = 1_700_000_000_000_000


def intent_of(owner: Owner, *, deadline_us: int = FAR_US) -> Intent:
    return Intent(op_key="0" * 64, attempt=1, epoch=0, owner=owner, deadline_us=deadline_us)


def child_that_holds(place: str) -> tuple[int, Owner]:
    """Fork a process that holds a lock until it is killed; return its pid and the lock's name."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with hold(place) as owner:
            os.write(writing, owner.lock.encode() + b"\n")
            signal.pause()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lock = pipe.readline().strip()
    host, boot = this_host()
    return child, Owner(host=host, boot=boot, lock=lock)


def test_an_intent_of_a_living_process_is_left_alone_until_its_deadline(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    child, owner = child_that_holds(place)
    try:
        assert not is_orphaned(intent_of(owner), place, NOW_US)
        assert is_orphaned(intent_of(owner, deadline_us=NOW_US - 1), place, NOW_US)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_an_intent_of_a_killed_process_is_orphaned_at_once(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    child, owner = child_that_holds(place)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert is_orphaned(intent_of(owner), place, NOW_US)
    assert list((tmp_path / "log.db.owners").iterdir()) == [], "the dead holder's lock file is swept"


def test_a_stopped_process_is_alive(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    child, owner = child_that_holds(place)
    try:
        os.kill(child, signal.SIGSTOP)
        assert not is_orphaned(intent_of(owner), place, NOW_US)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_within_one_process_a_held_lock_counts_as_alive_and_a_released_one_as_dead(tmp_path: Path) -> None:
    for place in (str(tmp_path / "log.db"), None):
        with hold(place) as owner:
            assert not is_orphaned(intent_of(owner), place, NOW_US)
        assert is_orphaned(intent_of(owner), place, NOW_US)


def test_an_intent_of_another_host_waits_for_its_deadline(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        elsewhere = replace(owner, host="another")
    assert not is_orphaned(intent_of(elsewhere), place, NOW_US)
    assert is_orphaned(intent_of(elsewhere, deadline_us=NOW_US - 1), place, NOW_US)


def test_an_intent_from_before_a_restart_of_this_host_is_orphaned(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        assert is_orphaned(intent_of(replace(owner, boot="earlier")), place, NOW_US)


def test_a_lock_name_from_an_edited_event_points_nowhere_else(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    victim = tmp_path / "victim.lock"
    victim.write_text("")
    with hold(place) as owner:
        assert is_orphaned(intent_of(replace(owner, lock="../victim")), place, NOW_US)
    assert victim.exists()

"""Who may take a run over: liveness is proved by a lock that only a living process can hold."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

import eventlog
from eventlog.errors import RunConflict
from eventlog.events import Owner
from eventlog.run import Intent
from eventlog.runtime.claims import forget, hold, is_orphaned, is_proved_alive, is_proved_dead, this_host
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Asked, Receiver, inside_its_effect, runner_of

FAR_US = 4_102_444_800_000_000
NOW_US = 1_700_000_000_000_000
DAY_S = 24 * 3600


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
        assert not is_proved_dead(owner, place), "late is not dead"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_an_intent_of_a_killed_process_is_orphaned_at_once(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    child, owner = child_that_holds(place)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert is_proved_dead(owner, place)
    assert is_orphaned(intent_of(owner), place, NOW_US)
    assert is_proved_dead(owner, place), "who asks may die before the answer is recorded, so asking takes nothing away"


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
            assert not is_proved_dead(owner, place)
        assert is_orphaned(intent_of(owner), place, NOW_US)
        assert is_proved_dead(owner, place)


def test_an_intent_of_another_host_waits_for_its_deadline(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        elsewhere = replace(owner, host="another")
    assert not is_orphaned(intent_of(elsewhere), place, NOW_US)
    assert is_orphaned(intent_of(elsewhere, deadline_us=NOW_US - 1), place, NOW_US)
    assert not is_proved_dead(elsewhere, place), "nobody can see it from here"


def test_an_intent_from_before_a_restart_of_this_host_is_orphaned(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        earlier = replace(owner, boot="earlier")
    assert is_orphaned(intent_of(earlier), place, NOW_US)
    assert is_proved_dead(earlier, place)


def test_a_holder_of_another_boot_that_holds_its_lock_lives_for_machines_may_share_one_name(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        twin = replace(owner, boot="of a machine made from the same image")
        assert is_proved_alive(twin, place)
        assert not is_proved_dead(twin, place)
        assert not is_orphaned(intent_of(twin), place, NOW_US)


def test_another_boot_alone_proves_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    host, _ = this_host()
    unseen = Owner(host=host, boot="earlier", lock="0" * 32)
    assert not is_proved_dead(unseen, place)
    assert not is_proved_alive(unseen, place)
    assert is_orphaned(intent_of(unseen, deadline_us=NOW_US - 1), place, NOW_US)


def test_a_living_holder_whose_lock_file_was_removed_is_not_dead(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    child, owner = child_that_holds(place)
    try:
        shutil.rmtree(f"{place}.owners")
        assert not is_proved_dead(owner, place)
        assert not is_orphaned(intent_of(owner), place, NOW_US)
        assert is_orphaned(intent_of(owner, deadline_us=NOW_US - 1), place, NOW_US)
        with hold(place):  # which makes the folder again
            assert not is_proved_dead(owner, place)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not is_proved_dead(owner, place), "the proof is gone for good, and the deadline decides"


async def test_whoever_removes_the_lock_files_causes_no_second_effect(tmp_path: Path) -> None:
    receiver, clock = Receiver(), FakeClock()
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        holder, gate = await inside_its_effect(runner_of(log, clock, action := Asked(receiver)), action)
        shutil.rmtree(tmp_path / "log.db.owners")
        with pytest.raises(RunConflict):
            await runner_of(log, clock, Asked(receiver)).resume("run-1")
        gate.open()
        assert (await holder).result == "executed"
    assert len(receiver.effects) == 1


def test_only_a_lock_file_answers(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        pass
    path = lock_file(place, owner)
    assert is_proved_dead(owner, place)
    path.rename(tmp_path / "elsewhere.lock")
    path.symlink_to(tmp_path / "elsewhere.lock")
    assert not is_proved_dead(owner, place)
    path.unlink()
    os.mkfifo(path)
    assert not is_proved_dead(owner, place)
    path.unlink()
    path.mkdir()
    assert not is_proved_dead(owner, place)
    assert not is_proved_dead(replace(owner, lock="a\0b"), place)
    forget(replace(owner, lock="a\0b"), place)


def test_two_who_ask_at_once_do_not_take_each_other_for_the_holder(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        pass
    with locked(lock_file(place, owner), fcntl.LOCK_SH):  # as another process holds it while it asks
        assert is_proved_dead(owner, place)
    with locked(lock_file(place, owner), fcntl.LOCK_EX):
        assert is_proved_alive(owner, place)


def test_a_holder_leaves_proof_of_its_end_until_it_is_forgotten(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with pytest.raises(ZeroDivisionError), hold(place) as owner:
        raise ZeroDivisionError
    assert is_proved_dead(owner, place)
    forget(owner, place)
    assert list(Path(f"{place}.owners").iterdir()) == []
    assert not is_proved_dead(owner, place)
    forget(owner, place)
    forget(owner, None)


def test_a_holder_may_be_forgotten_while_it_holds(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as owner:
        forget(owner, place)
        assert not is_proved_dead(owner, place)
    assert list(Path(f"{place}.owners").iterdir()) == []


def test_a_new_lock_sweeps_those_that_are_free_and_older_than_a_month(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with hold(place) as old, hold(place) as young, hold(place) as held:
        pass
    for owner, age_s in ((old, 31 * DAY_S), (young, 29 * DAY_S), (held, 31 * DAY_S)):
        make_older(lock_file(place, owner), age_s)
    foreign = Path(f"{place}.owners", "notes.txt")
    foreign.write_text("not ours", encoding="utf-8")
    make_older(foreign, 31 * DAY_S)
    with locked(lock_file(place, held), fcntl.LOCK_EX), hold(place) as new:
        assert set(Path(f"{place}.owners").iterdir()) == {
            foreign,
            *(lock_file(place, owner) for owner in (young, held, new)),
        }


def test_one_new_lock_looks_at_twenty_others_and_many_look_at_all(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    folder = Path(f"{place}.owners")
    folder.mkdir()
    for number in range(256):
        path = folder / f"{number:02x}{'0' * 30}.lock"
        path.touch()
        make_older(path, 31 * DAY_S)
    with hold(place) as owner:
        forget(owner, place)
    assert len(list(folder.iterdir())) == 236
    for _ in range(2_000):
        with hold(place) as owner:
            forget(owner, place)
        if not list(folder.iterdir()):
            return
    pytest.fail("some old files are never looked at")


def test_a_lock_name_from_an_edited_event_points_nowhere_else(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    victim = tmp_path / "victim.lock"
    victim.write_text("")
    with hold(place) as owner:
        for lock in ("../victim", str(tmp_path / "victim")):
            edited = replace(owner, lock=lock)
            assert not is_proved_dead(edited, place), "that free file is not one of ours"
            forget(edited, place)
    assert victim.exists()


# ── lock files ────────────────────────────────────────────────────────────────────────────────────────────────────────
def lock_file(place: str, owner: Owner) -> Path:
    return Path(f"{place}.owners", f"{owner.lock}.lock")


def make_older(path: Path, age_s: float) -> None:
    made_s = path.stat().st_mtime - age_s
    os.utime(path, (made_s, made_s))


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold a lock file as another process would, by a descriptor of one's own."""
    with path.open("r+b") as file:
        fcntl.flock(file, how)
        yield

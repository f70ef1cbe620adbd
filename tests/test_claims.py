"""Who may take a run over: liveness is proved by a lock that only a living process can hold."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import eventlog
from eventlog.errors import RunConflict, StoreUnavailable
from eventlog.events import Owner
from eventlog.run import Intent
from eventlog.runtime import claims
from eventlog.runtime.claims import Holder, forget, hold, is_orphaned, is_proved_alive, is_proved_dead, this_host
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Asked, Receiver, inside_its_effect, runner_of

# 3.12 warns of a fork where there are threads, and a process that pytest-xdist hands tests to has one of its own.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

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


def test_a_new_lock_sweeps_those_that_are_free_and_older_than_a_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_SWEEP_PAUSE_S", 0.0)
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


def test_one_sweep_looks_at_twenty_files_and_many_look_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "log.db")
    folder = Path(f"{place}.owners")
    folder.mkdir()
    for number in range(256):
        path = folder / f"{number:02x}{'0' * 30}.lock"
        path.touch()
        make_older(path, 31 * DAY_S)
    with hold(place) as owner:
        forget(owner, place)
    assert len(list(folder.iterdir())) in (236, 237), "one's own file may be among them"
    monkeypatch.setattr(claims, "_SWEEP_PAUSE_S", 0.0)
    claims._SWEPT_UNTIL_S.clear()
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


# ── one file for a whole process ──────────────────────────────────────────────────────────────────────────────────────
PLACES = ("file", "memory")


def place_of(kind: str, folder: Path) -> str | None:
    return str(folder / "log.db") if kind == "file" else None


def test_all_claims_of_a_killed_process_are_dead_at_once_and_stay_so(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with process_that_claims(place, 3) as (process, owners):
        assert lock_files(place) == {claim_file(place, owners[0])}, "one file for all"
        assert seen_by_another_process(place, owners) == ["alive"] * 3
        process.kill()
        process.wait()
        assert seen_by_another_process(place, owners) == ["dead"] * 3
        assert all(is_proved_dead(owner, place) and not is_proved_alive(owner, place) for owner in owners)
        assert all(is_orphaned(intent_of(owner), place, NOW_US) for owner in owners)
        forget(owners[0], place)
        assert [is_proved_dead(owner, place) for owner in owners[1:]] == [True, True], "nobody has settled those"


def test_all_claims_of_a_stopped_process_are_alive(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with process_that_claims(place, 3) as (process, owners):
        process.send_signal(signal.SIGSTOP)
        assert all(is_proved_alive(owner, place) and not is_proved_dead(owner, place) for owner in owners)
        assert not any(is_orphaned(intent_of(owner), place, NOW_US) for owner in owners)
        late = intent_of(owners[0], deadline_us=NOW_US - 1)
        assert is_orphaned(late, place, NOW_US) and not is_proved_dead(owners[0], place), "late is not dead"


def test_claims_of_another_host_wait_for_their_deadline(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    with process_that_claims(place, 1) as (process, [owner]):
        process.kill()
        process.wait()
        elsewhere = replace(owner, host="another")
        assert not is_proved_dead(elsewhere, place)
        assert is_proved_dead(replace(owner, boot="earlier"), place)


@pytest.mark.parametrize("kind", PLACES)
def test_a_released_claim_is_dead_in_its_own_process_while_its_siblings_live(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    check_a_released_sibling(place)


def check_a_released_sibling(place: str | None) -> None:
    with closing(Holder(place)) as holder:
        first, second, third = (holder.claim() for _ in range(3))
        holder.release(second, is_settled=False)
        assert is_proved_alive(first, place) and is_proved_alive(third, place)
        assert not is_proved_dead(first, place) and not is_proved_dead(third, place)
        assert is_proved_dead(second, place) and not is_proved_alive(second, place)


def test_a_released_claim_counts_as_alive_elsewhere_until_the_last_one_is_released(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    holder = Holder(place)
    unsettled, settled, last = (holder.claim() for _ in range(3))
    holder.release(unsettled, is_settled=False)
    holder.release(settled, is_settled=True)
    assert seen_by_another_process(place, [unsettled, settled, last]) == ["alive"] * 3
    holder.release(last, is_settled=True)
    assert seen_by_another_process(place, [unsettled, settled, last]) == ["dead"] * 3
    assert is_proved_dead(unsettled, place), "and its own process goes by the file again"


def test_a_file_whose_claims_are_all_settled_goes_and_the_next_claim_is_on_another(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    holder = Holder(place)
    assert not Path(f"{place}.owners").exists(), "nothing is claimed yet"
    first, second = holder.claim(), holder.claim()
    for owner in (first, second):
        assert lock_files(place) == {claim_file(place, owner)}
        holder.release(owner, is_settled=True)
    assert lock_files(place) == set()
    assert not is_proved_dead(first, place) and not is_proved_alive(first, place), "there is nothing to ask"
    third = holder.claim()
    assert lock_files(place) == {claim_file(place, third)} and claim_file(place, third) != claim_file(place, first)
    holder.release(third, is_settled=True)


def test_a_claim_that_ended_without_being_settled_leaves_proof_until_it_is_forgotten(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    holder = Holder(place)
    forgotten, other = holder.claim(), holder.claim()
    holder.release(forgotten, is_settled=False)
    forget(forgotten, place)
    assert is_proved_dead(forgotten, place) and is_proved_alive(other, place), "the file is the other's too"
    holder.release(other, is_settled=True)
    assert lock_files(place) == set(), "nobody can ask any more"

    unsettled, other = holder.claim(), holder.claim()
    holder.release(unsettled, is_settled=False)
    forget(other, place)  # too early, and of no effect
    assert is_proved_alive(other, place)
    holder.release(other, is_settled=True)
    assert lock_files(place) == {claim_file(place, unsettled)}
    assert is_proved_dead(unsettled, place)
    forget(unsettled, place)
    assert is_proved_dead(unsettled, place), "of a file that is let go nobody knows who else may be asked about"


def test_proof_of_the_end_of_a_claim_is_kept_a_month_from_that_end(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    holder = Holder(place)
    owner = holder.claim()
    path = claim_file(place, owner)
    make_older(path, 31 * DAY_S)
    holder.release(owner, is_settled=False)
    claims._SWEPT_UNTIL_S.clear()
    with hold(place):
        assert is_proved_dead(owner, place)
    make_older(path, 31 * DAY_S)
    claims._SWEPT_UNTIL_S.clear()
    with hold(place):
        assert not path.exists()


@pytest.mark.parametrize("kind", PLACES)
def test_whoever_closes_a_holder_ends_what_is_left_of_it(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    holder = Holder(place)
    owners = [holder.claim() for _ in range(3)]
    holder.release(owners[0], is_settled=True)
    holder.close()
    assert all(is_proved_dead(owner, place) for owner in owners)
    holder.close()
    holder.release(owners[1], is_settled=True)
    assert all(is_proved_dead(owner, place) for owner in owners), "that was too late"
    with pytest.raises(StoreUnavailable) as refused:
        holder.claim()
    assert refused.value.code == "engine_closed"


@pytest.mark.parametrize("kind", PLACES)
def test_a_claim_is_ended_by_its_own_holder_alone(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    mine, other = Holder(place), Holder(place)
    owner, neighbour = mine.claim(), other.claim()
    other.release(owner, is_settled=True)
    other.release(replace(owner, lock="0" * 32 + ".1"), is_settled=True)
    assert is_proved_alive(owner, place)
    other.close()
    assert is_proved_alive(owner, place) and is_proved_dead(neighbour, place)
    mine.release(owner, is_settled=True)
    mine.release(owner, is_settled=True)


@pytest.mark.parametrize("kind", PLACES)
def test_a_claim_that_was_not_given_yet_is_not_dead(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    holder = Holder(place)
    owner = holder.claim()
    coming = replace(owner, lock=owner.lock.removesuffix(".1") + ".2")
    assert not is_proved_dead(coming, place) and not is_proved_alive(coming, place)
    assert holder.claim() == coming
    assert is_proved_alive(coming, place)
    holder.close()


def test_a_claim_name_from_an_edited_event_proves_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    victim = tmp_path / f"{'0' * 32}.lock"
    victim.write_text("")
    with process_that_claims(place, 1) as (process, [owner]):
        process.kill()
        process.wait()
        file_id = owner.lock.partition(".")[0]
        names = [f"{file_id}.{number}" for number in ("0", "01", "-1", "1.1", "٣", "", "1\n", "9" * 5_000, "a\0b")]
        for lock in (*names, f"../{'0' * 32}.1", str(tmp_path / f"{'0' * 32}.1")):
            edited = replace(owner, lock=lock)
            assert not is_proved_dead(edited, place) and not is_proved_alive(edited, place)
            forget(edited, place)
        assert is_proved_dead(owner, place)
    assert victim.exists()


def test_a_living_claim_whose_file_was_removed_is_not_dead(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    holder = Holder(place)
    owner = holder.claim()
    shutil.rmtree(f"{place}.owners")
    assert seen_by_another_process(place, [owner]) == ["unknown"]
    assert is_proved_alive(owner, place), "its own process knows better"
    holder.release(owner, is_settled=False)
    assert not is_proved_dead(owner, place), "the proof is gone for good, and the deadline decides"
    later = holder.claim()
    assert seen_by_another_process(place, [later]) == ["alive"]
    holder.release(later, is_settled=True)


def test_a_thousand_claims_cost_one_descriptor_and_one_file(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")

    def claims_all() -> None:
        leave_descriptors(20)
        holder = Holder(place)
        owners = [holder.claim() for _ in range(1_000)]
        assert lock_files(place) == {claim_file(place, owners[0])}
        assert all(is_proved_alive(owner, place) for owner in owners)
        for owner in owners:
            holder.release(owner, is_settled=True)
        assert lock_files(place) == set()

    def holds_all() -> None:  # the control: that many files of their own are too many
        leave_descriptors(20)
        with ExitStack() as stack:
            for _ in range(1_000):
                stack.enter_context(hold(place))

    assert succeeds_in_child(claims_all)
    assert not succeeds_in_child(holds_all)


def test_a_place_in_which_no_file_can_be_made_refuses_the_claim_and_the_next_one_may_work(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    Path(f"{place}.owners").write_text("in the way", encoding="utf-8")
    holder = Holder(place)
    with pytest.raises(StoreUnavailable) as refused:
        holder.claim()
    assert refused.value.code == "store_cannot_open"
    Path(f"{place}.owners").unlink()
    owner = holder.claim()
    assert is_proved_alive(owner, place)
    holder.release(owner, is_settled=True)


# ── sweeping ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_place_is_swept_at_most_once_in_a_while_however_often_something_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [str(tmp_path / name) for name in ("one.db", "other.db")]
    for place in places:
        with hold(place):
            pass
        old = leave_an_old_file(place)
        holder = Holder(place)
        for _ in range(20):
            with hold(place) as owner:  # few files, so that a sweep looks at all of them
                forget(owner, place)
                holder.release(holder.claim(), is_settled=True)
        assert old.exists()
    monkeypatch.setattr(claims, "_SWEEP_PAUSE_S", 0.0)
    claims._SWEPT_UNTIL_S.clear()
    for place in places:
        old = leave_an_old_file(place)
        with hold(place):
            assert not old.exists()
    assert len(claims._SWEPT_UNTIL_S) == 1, "places whose time has passed are not remembered"


def test_a_holder_sweeps_while_it_lives_and_never_looks_old_itself(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    holder = Holder(place)
    first = holder.claim()
    make_older(claim_file(place, first), 40 * DAY_S)
    old = leave_an_old_file(place)
    claims._SWEPT_UNTIL_S.clear()
    holder.claim()
    assert not old.exists()
    claims._SWEPT_UNTIL_S.clear()
    with hold(place):
        assert seen_by_another_process(place, [first]) == ["alive"]
    holder.close()
    assert is_proved_dead(first, place), "it was dated when it claimed, so the month of its proof has only begun"


# ── children ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_forked_child_owns_nothing_of_its_parent(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    holder = Holder(place)
    living, released = holder.claim(), holder.claim()
    holder.release(released, is_settled=False)

    def child() -> None:
        assert open_lock_files(place) == []
        assert is_proved_alive(living, place) and not is_proved_dead(released, place), "the child asks the file"
        holder.release(living, is_settled=False)
        assert is_proved_alive(living, place)
        own = holder.claim()
        assert claim_file(place, own) != claim_file(place, living)
        assert is_proved_alive(own, place)
        holder.release(own, is_settled=True)
        assert is_proved_dead(own, place) is False and is_proved_alive(living, place)
        holder.close()

    assert succeeds_in_child(child)
    assert is_proved_alive(living, place) and is_proved_dead(released, place)
    assert seen_by_another_process(place, [living]) == ["alive"]
    holder.release(living, is_settled=True)


def test_a_child_of_a_log_in_memory_never_takes_a_living_claim_of_its_parent_for_dead() -> None:
    holder, other = Holder(None), Holder(None)
    living, released, of_other = holder.claim(), holder.claim(), other.claim()
    holder.release(released, is_settled=False)

    def child() -> None:
        other.close()
        assert is_proved_alive(of_other, None) and not is_proved_dead(of_other, None)
        holder.release(living, is_settled=True)
        own = holder.claim()
        assert own.lock.partition(".")[0] != living.lock.partition(".")[0]
        holder.close()
        assert is_proved_dead(own, None) and is_proved_dead(released, None)
        assert is_proved_alive(living, None) and not is_proved_dead(living, None)

    assert succeeds_in_child(child)
    holder.close()
    other.close()


def test_a_forked_child_that_leaves_what_its_parent_holds_keeps_what_it_holds_itself(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    of_parent = hold(place)
    owner = of_parent.__enter__()

    def child() -> None:
        with hold(place) as own:  # on the descriptor whose number was the parent's
            of_parent.__exit__(None, None, None)
            assert is_proved_alive(own, place)
        assert is_proved_alive(owner, place)

    assert succeeds_in_child(child)
    of_parent.__exit__(None, None, None)
    assert is_proved_dead(owner, place)


@pytest.mark.parametrize("keeps_a_copy", [False, True], ids=["as it is", "control: the child keeps a copy"])
def test_a_killed_parent_is_dead_while_its_forked_child_lives(tmp_path: Path, keeps_a_copy: bool) -> None:
    place = str(tmp_path / "log.db")
    reading, writing = os.pipe()
    until, end = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(end)
        owner = Holder(place).claim()
        if keeps_a_copy:
            os.dup(next(iter(claims._HELD.values())))
        if os.fork() == 0:
            os.write(writing, owner.lock.encode() + b"\n")
            os.read(until, 1)  # returns when the test has closed the other end
            os._exit(0)
        signal.pause()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        owner = owner_of(pipe.readline().strip())
        try:
            os.kill(parent, signal.SIGKILL)
            os.waitpid(parent, 0)
            assert is_proved_dead(owner, place) is not keeps_a_copy
        finally:
            os.close(end)
            os.close(until)
        assert pipe.read() == "", "the child has ended"


def test_a_child_forked_while_threads_claim_has_no_copy_of_any_lock_file(tmp_path: Path, is_long: bool) -> None:
    """Thirty children; with `--long` three hundred."""
    place = str(tmp_path / "log.db")
    ends = threading.Event()

    def claims_and_holds() -> None:
        holder = Holder(place)
        while not ends.is_set():
            owner = holder.claim()
            with hold(place) as held:
                forget(held, place)
            holder.release(owner, is_settled=True)

    def has_none() -> None:
        assert open_lock_files(place) == []
        own = Holder(place)
        own.release(own.claim(), is_settled=True)  # and no other thread has taken the guard into the child

    with running([claims_and_holds] * 3, ends):
        assert all(succeeds_in_child(has_none) for _ in range(300 if is_long else 30))
    with hold(place):
        assert len(open_lock_files(place)) == 1, "the control: one that is open is seen"


# ── threads, finalizers, the end of a process ─────────────────────────────────────────────────────────────────────────
def test_holders_on_several_threads_do_not_confuse_each_other(tmp_path: Path) -> None:
    check_holders_on_threads(str(tmp_path / "log.db"), rounds=150)
    assert lock_files(str(tmp_path / "log.db")) == set()


def check_holders_on_threads(place: str, rounds: int) -> None:
    """Have two holders used by two threads each, and what they claim looked at by each of them."""
    failures: list[str] = []

    def uses(holder: Holder) -> None:
        try:
            for _ in range(rounds):
                living = [holder.claim() for _ in range(3)]
                while living:
                    require(all(is_proved_alive(owner, place) for owner in living), "it lives")
                    require(not any(is_proved_dead(owner, place) for owner in living), "it lives")
                    require(file_says(place, living[0]) == "held", "it lives, as others see")
                    holder.release(ended := living.pop(), is_settled=True)
                    require(not is_proved_alive(ended, place), "it has ended")
        except Exception as error:
            failures.append(repr(error))

    holders = Holder(place), Holder(place)
    with running([partial(uses, holder) for holder in (*holders, *holders)], threading.Event()):
        pass
    for holder in holders:
        holder.close()
    assert not failures, failures


def test_two_event_loops_with_a_holder_each_claim_at_once(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    seen: list[bool] = []

    async def drives() -> None:
        holder = Holder(place)
        owners = [holder.claim() for _ in range(50)]
        await asyncio.sleep(0)
        seen.append(all(is_proved_alive(owner, place) for owner in owners))
        for owner in owners:
            holder.release(owner, is_settled=True)
        seen.append(not any(is_proved_alive(owner, place) for owner in owners))
        holder.close()

    with running([lambda: asyncio.run(drives())] * 2, threading.Event()):
        pass
    assert seen == [True] * 4


def test_a_claim_lives_though_the_last_other_one_is_released_by_a_finalizer_in_the_midst_of_it(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    lines = claim_interrupted_at_every_line(place)
    assert lines > 5


def claim_interrupted_at_every_line(place: str) -> int:
    """Claim once for every line of claiming, each time releasing the only other claim there; return how many."""
    line = 0
    while True:
        with closing(Holder(place)) as holder:
            last = holder.claim()
            with at_line(line, partial(holder.release, last, is_settled=False)) as has_come:
                owner = holder.claim()
            require(is_proved_alive(owner, place) and file_says(place, owner) == "held", f"it lives, line {line}")
            require(not has_come or is_proved_dead(last, place), f"the other does not, line {line}")
        if not has_come:
            return line
        line += 1


def test_a_holder_that_is_dropped_frees_nothing_that_may_still_be_at_work(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")

    def drops() -> None:
        holder = Holder(place)
        owner = holder.claim()
        del holder
        gc.collect()
        assert is_proved_alive(owner, place)
        assert seen_by_another_process(place, [owner]) == ["alive"]

    assert succeeds_in_child(drops)
    [path] = lock_files(place)
    assert is_proved_dead(owner_of(f"{path.stem}.1"), place), "its process has ended"


def test_a_program_that_ends_without_closing_ends_at_once_and_in_silence(tmp_path: Path) -> None:
    place = str(tmp_path / "log.db")
    program = """
import sys, threading
from eventlog.runtime.claims import Holder
holders = [Holder(sys.argv[1]), Holder(None)]
owners = [holder.claim() for holder in holders]
threading.Thread(target=holders[0].claim).start()
del holders[1]
print(owners[0].lock)
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program, place]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
    assert is_proved_dead(owner_of(ended.stdout.strip()), place)


# ── random walks, and what they would not let pass ────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", PLACES)
def test_whatever_is_claimed_and_released_in_whatever_order_nothing_wrong_is_said(kind: str, tmp_path: Path) -> None:
    walks(place_of(kind, tmp_path))


def walks(place: str | None) -> None:
    for seed in range(20):
        walk(place, Random(seed))


def walk(place: str | None, chance: Random) -> None:
    """Claim, release and forget at random by two holders, and compare what is said of every claim with what is true."""
    with closing(Holder(place)) as one, closing(Holder(place)) as other:
        living: dict[Owner, Holder] = {}
        ended: dict[Owner, bool] = {}  # whether nobody will ask about it
        for _ in range(60):
            step(place, chance, chance.choice((one, other)), living, ended)
            compare(place, living, ended)
        for owner, holder in living.items():
            holder.release(owner, is_settled=True)
        require(place is None or open_lock_files(place) == [], "nothing is claimed, and nothing is held")


def step(
    place: str | None, chance: Random, holder: Holder, living: dict[Owner, Holder], ended: dict[Owner, bool]
) -> None:
    match chance.choice(("claim", "claim", "release", "release", "forget")):
        case "claim":
            living[holder.claim()] = holder
        case "release" if living:
            owner = chance.choice([*living])
            ended[owner] = chance.random() < 0.7
            living.pop(owner).release(owner, is_settled=ended[owner])
        case "forget" if ended:
            owner = chance.choice([*ended])
            ended[owner] = True
            forget(owner, place)


def compare(place: str | None, living: dict[Owner, Holder], ended: dict[Owner, bool]) -> None:
    for owner in living:
        require(is_proved_alive(owner, place) and not is_proved_dead(owner, place), "a living claim is alive")
        require(place is None or file_says(place, owner) == "held", "a living claim is alive for others")
    for owner, is_settled in ended.items():
        require(not is_proved_alive(owner, place), "an ended claim is not alive in its own process")
        require(is_settled or is_proved_dead(owner, place), "the end of an unsettled claim can be proved")
    require(place is None or len(open_lock_files(place)) <= 2, "one descriptor a holder")


def test_a_state_told_by_the_name_of_the_file_alone_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_file_alone(owner: Owner, place: str | None) -> str:
        return claims._state_of_file(str(claim_file(str(place), owner)))

    monkeypatch.setattr(claims, "_state", of_file_alone)
    place = str(tmp_path / "log.db")
    with pytest.raises(AssertionError):
        check_a_released_sibling(place)
    with pytest.raises(Broken, match="an ended claim is not alive"):
        walks(place)


def test_a_state_told_by_whether_the_file_exists_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_existence(owner: Owner, place: str | None) -> str:
        return "held" if claim_file(str(place), owner).exists() else "free"

    monkeypatch.setattr(claims, "_state", of_existence)
    with pytest.raises(Broken, match="an ended claim is not alive"):
        walks(str(tmp_path / "log.db"))


def test_a_file_that_is_let_go_while_siblings_live_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lets_go_with_any(holder: Holder, owner: Owner, is_settled: bool) -> None:
        file = holder._file
        if file is not None and owner.lock.startswith(file.file_id):
            file.unsettled.update(file.living)
            holder._let_go(file)

    monkeypatch.setattr(Holder, "release", lets_go_with_any)
    with pytest.raises(Broken, match="a living claim is alive"):
        walks(str(tmp_path / "log.db"))
    with pytest.raises(AssertionError, match="it lives"):
        check_holders_on_threads(str(tmp_path / "other.db"), rounds=20)


def test_forgetting_that_takes_the_file_from_under_siblings_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removes(owner: Owner, place: str | None) -> None:
        claim_file(str(place), owner).unlink(missing_ok=True)

    monkeypatch.setattr(sys.modules[__name__], "forget", removes)
    with pytest.raises(Broken, match="a living claim is alive for others"):
        walks(str(tmp_path / "log.db"))


def test_a_file_that_goes_with_unsettled_claims_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def goes(file: claims._LockFile) -> None:
        file.unsettled.clear()
        ends(file)

    ends = claims._LockFile.end
    monkeypatch.setattr(claims._LockFile, "end", goes)
    with pytest.raises(Broken, match="the end of an unsettled claim can be proved"):
        walks(str(tmp_path / "log.db"))


def test_a_claim_on_a_file_that_a_finalizer_has_let_go_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gives_once(holder: Holder) -> tuple[claims._LockFile, int]:
        file = holder._file
        if file is None or file.is_inherited:
            file = holder._file = claims._LockFile(holder._place)
        return file, file.give()

    monkeypatch.setattr(Holder, "_give", gives_once)
    with pytest.raises(Broken, match="it lives, line"):
        claim_interrupted_at_every_line(str(tmp_path / "log.db"))


class Broken(Exception):
    """What was said of a claim is not so."""


def require(is_so: bool, what: str) -> None:
    if not is_so:
        raise Broken(what)


# ── processes and threads of the test ─────────────────────────────────────────────────────────────────────────────────
CLAIMS_AND_WAITS = """
import sys
from eventlog.runtime.claims import Holder
holder = Holder(sys.argv[1])
print(*(holder.claim().lock for _ in range(int(sys.argv[2]))), flush=True)
sys.stdin.read()
"""

SAYS_WHAT_IT_SEES = """
import sys, msgspec
from eventlog.events import Owner
from eventlog.runtime.claims import is_proved_alive, is_proved_dead
for owner in msgspec.json.decode(sys.stdin.read(), type=list[Owner]):
    alive, dead = is_proved_alive(owner, sys.argv[1]), is_proved_dead(owner, sys.argv[1])
    print("both" if alive and dead else "alive" if alive else "dead" if dead else "unknown")
"""


@contextmanager
def process_that_claims(place: str, count: int) -> Iterator[tuple[subprocess.Popen[str], list[Owner]]]:
    """Start a program that claims so often with one holder, and then waits; end it afterwards if it still runs."""
    command = [sys.executable, "-c", CLAIMS_AND_WAITS, place, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, [owner_of(lock) for lock in process.stdout.readline().split()]
        finally:
            process.kill()


def seen_by_another_process(place: str, owners: list[Owner]) -> list[str]:
    """Ask a program that has never heard of these owners."""
    command = [sys.executable, "-c", SAYS_WHAT_IT_SEES, place]
    answer = subprocess.run(
        command, input=msgspec.json.encode(owners).decode(), capture_output=True, text=True, timeout=60, check=True
    )
    return answer.stdout.split()


def succeeds_in_child(act: Callable[[], None]) -> bool:
    """Fork, act, and say whether that raised nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


@contextmanager
def running(acts: Sequence[Callable[[], None]], ends: threading.Event) -> Iterator[None]:
    """Run these on a thread each, and wait for them in the end; `ends` tells those that go on until then."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


@contextmanager
def at_line(number: int, act: Callable[[], None]) -> Iterator[list[bool]]:
    """Act once, before the line of this number of those that `claim` goes through; what is yielded says if it came."""
    has_come: list[bool] = []
    left = number

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal left
        if frame.f_code.co_filename != claims.__file__:
            return None
        if event == "line" and not has_come:
            left -= 1
            if left < 0:
                has_come.append(True)
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield has_come
    finally:
        sys.settrace(before)


def leave_descriptors(count: int) -> None:
    """Let this process open only so many files more."""
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def open_lock_files(place: str) -> list[str]:
    """Return the lock files that are open in this process, as the kernel says and whatever the process believes."""
    paths = [path_of(int(name)) for name in os.listdir("/dev/fd")]
    return [path for path in paths if path.startswith(f"{os.path.realpath(place)}.owners/")]


def path_of(descriptor: int) -> str:
    try:
        if sys.platform == "darwin":
            return fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1_024)).rstrip(b"\0").decode()
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def owner_of(lock: str) -> Owner:
    host, boot = this_host()
    return Owner(host=host, boot=boot, lock=lock)


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


def claim_file(place: str, owner: Owner) -> Path:
    return Path(f"{place}.owners", f"{owner.lock.partition('.')[0]}.lock")


def lock_files(place: str) -> set[Path]:
    return set(Path(f"{place}.owners").iterdir())


def file_says(place: str, owner: Owner) -> str:
    """Return what the file of a claim says by itself, as to another process: by a descriptor that was opened anew."""
    return claims._state_of_file(str(claim_file(place, owner)))


def leave_an_old_file(place: str) -> Path:
    """Leave a free lock file behind that may be swept."""
    path = Path(f"{place}.owners", f"{'0' * 32}.lock")
    path.touch()
    make_older(path, 31 * DAY_S)
    return path

"""Whatever way a program ends, it ends: within two seconds, in silence, with no lock and no transaction left behind.

The programs are real processes. Afterwards another process, this one, must be able to append at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import EventLogError, Expect, NewEvent
from tools.campaigns.lifecycle import endings, forks
from tools.campaigns.processes import child
from tools.campaigns.processes.stepping import CancelledAt, cancel_at
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.log_files import file_lock_held, is_lock_free, open_file

LIMIT_S: Final = 2.0
CALLS: Final = 14
"""How many calls a forked child tries."""

_HOLD_LOCK: Final = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("program", "returncode"),
    [
        (endings.never_closes, 0),
        (endings.never_closes_and_forgets, 0),
        (endings.exits_inside, 3),
        (endings.raises_inside, 1),
        (endings.returns_with_appends_in_flight, 0),
    ],
)
async def test_program_that_ends_with_an_open_log_ends_at_once_and_in_silence(
    path: Path, program: Callable[..., Any], returncode: int
) -> None:
    done = child.run(program, path)
    assert done.returncode == returncode, done.stderr
    assert done.exit_s < LIMIT_S
    assert done.stderr == ""
    await _assert_usable_at_once(path)


async def test_loop_that_is_closed_under_an_append_keeps_no_process_alive(path: Path) -> None:
    done = child.run(endings.closes_the_loop_under_an_append, path)
    assert done.returncode == 0, done.stderr
    assert done.exit_s < LIMIT_S
    # asyncio itself complains of each task that was never cancelled; nothing else may be said.
    noise = [
        line for line in done.stderr.splitlines() if not line.startswith(("Task was destroyed", "task: <Task pending"))
    ]
    assert noise == []
    await _assert_usable_at_once(path)


@pytest.mark.parametrize(
    ("program", "number", "returncodes"),
    [
        (endings.appends_until_interrupted, signal.SIGINT, {-signal.SIGINT, 130, 1}),
        (endings.appends_until_interrupted_and_never_closes, signal.SIGINT, {-signal.SIGINT, 130, 1}),
        (endings.cancelled_by_sigterm, signal.SIGTERM, {0}),
        (endings.exits_in_a_sigterm_handler, signal.SIGTERM, {4}),
        (endings.appends_until_interrupted, signal.SIGTERM, {-signal.SIGTERM}),
    ],
)
async def test_signal_in_the_middle_of_appends_ends_the_program_at_once(
    path: Path, program: Callable[..., Any], number: signal.Signals, returncodes: set[int]
) -> None:
    process = child.start(program, path)
    _read_line(process, "READY")
    began_s = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began_s < LIMIT_S
    assert process.returncode in returncodes, errors
    lines = errors.splitlines()
    if number == signal.SIGINT:  # Python shows where it was interrupted, once
        assert lines[-1] == "KeyboardInterrupt"
        assert sum("Traceback" in line for line in lines) <= 2
    elif program is endings.exits_in_a_sigterm_handler:
        # A handler that raises in the middle of a task ends that task, and asyncio shows the exception it ended with.
        assert lines == [] or "SystemExit: 4" in lines, errors
    else:
        assert lines == []
    await _assert_usable_at_once(path)


@contextmanager
def _stopped_lock_holder(path: Path) -> Iterator[None]:
    """Let a process take the file lock and stop it, so that it never gives the lock back by itself."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, f"{path}.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        _read_line(holder, "held")
        holder.send_signal(signal.SIGSTOP)
        yield
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("ending", ["closed", "not closed", "in the middle"])
async def test_program_ends_though_a_stopped_process_holds_the_lock(path: Path, ending: str) -> None:
    process = child.start(endings.cannot_get_the_lock, path, ending)
    _read_line(process, "READY")
    with _stopped_lock_holder(path):
        out, errors = process.communicate("go on\n", timeout=20)
        done = child.Done(process.returncode, out, errors, time.monotonic())
        assert done.exit_s < LIMIT_S
        assert errors == ""
        assert done.result == ([] if ending == "in the middle" else ["store_busy", "store_busy"])
    await _assert_usable_at_once(path)


async def test_program_that_cannot_open_ends_though_a_stopped_process_holds_the_lock(path: Path) -> None:
    with _stopped_lock_holder(path):
        done = child.run(endings.cannot_get_the_lock_at_open, path)
        assert done.result == "store_busy"
        assert done.exit_s < LIMIT_S
        assert done.stderr == ""


@pytest.mark.parametrize("ending", ["_exit", "_exit in a transaction"])
async def test_fork_is_detected_in_the_child_and_does_not_harm_the_parent(path: Path, ending: str) -> None:
    done = child.run(forks.forks, path, ending)
    assert done.returncode == 0, done.stderr
    seen = done.result
    assert seen["child"] == ["fork_detected"] * CALLS
    assert seen["status"] == 0
    assert seen["is_lock_held"] == (ending == "_exit in a transaction")
    assert (seen["state"], seen["head"]) == ("open", 21)
    await _assert_usable_at_once(path)


async def test_forked_child_that_ends_like_any_program_does_not_harm_the_parent(path: Path) -> None:
    done = child.run(forks.forks_between_two_runs_of_the_loop, path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.result == {"status": 5, "state": "open", "head": 21}
    await _assert_usable_at_once(path)


async def test_forked_child_does_not_keep_the_lock_of_a_parent_that_was_killed(path: Path) -> None:
    process = child.start(forks.forks_and_waits_in_a_transaction, path)
    try:
        _read_line(process, "READY")
        assert not is_lock_free(path)
        process.kill()
        process.wait()
        await until(lambda: is_lock_free(path))  # at once, as soon as the child has got to run at all
        await _assert_usable_at_once(path)
    finally:
        process.communicate()  # ends the input of the child, and with it the child


# ── misuse ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_use_from_another_loop_is_refused_at_once(path: Path) -> None:
    async with open_file(path) as log:
        for call in _calls(log):
            assert await asyncio.to_thread(_in_another_loop, call) == "wrong_loop"
        assert await asyncio.to_thread(_in_another_loop, log.close) == "wrong_loop"
        await log.append("s", [_event()], expect=Expect.no_stream())


async def test_use_before_open_and_after_close_is_refused_and_close_may_be_called_twice(path: Path) -> None:
    log = open_file(path)
    for call in _calls(log):
        assert await _code(call) == "engine_closed"
    await log.close()
    async with log:
        pass
    for call in _calls(log):
        assert await _code(call) == "engine_closed"
    await log.close()
    await log.close()
    assert await _code(log.__aenter__) == "engine_closed"


async def test_exception_inside_the_with_block_comes_out_and_the_log_is_closed(path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        async with open_file(path) as log:
            await log.append("s", [_event()], expect=Expect.any())
            raise ZeroDivisionError
    assert await _code(log.head) == "engine_closed"
    assert threading.active_count() == threads
    await _assert_usable_at_once(path)


# ── close ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_close_answers_every_append_that_is_queued_and_each_answer_is_true(path: Path) -> None:
    events = [_event() for _ in range(500)]
    async with open_file(path) as log:
        appends = [
            asyncio.create_task(log.append(f"s{index}", [event], expect=Expect.any()))
            for index, event in enumerate(events)
        ]
        await asyncio.sleep(0)
        await log.close()
        async with asyncio.timeout(1):
            answers = await asyncio.gather(*appends, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, EventLogError)]
    assert {error.code for error in refused} <= {"engine_closed"}
    async with open_file(path) as log:
        stored = {event.event_id async for event in log.read_all()}
    told_stored = {
        event.event_id for event, answer in zip(events, answers, strict=True) if not isinstance(answer, BaseException)
    }
    assert stored == told_stored


async def test_close_answers_appends_that_wait_for_a_lock_which_is_never_free(path: Path) -> None:
    log = open_file(path, busy_timeout_s=60)
    async with log:
        with file_lock_held(path):
            appends = [asyncio.create_task(log.append("s", [_event()], expect=Expect.any())) for _ in range(3)]
            await asyncio.sleep(0.05)
            appends += [asyncio.create_task(log.append("s", [_event()], expect=Expect.any())) for _ in range(3)]
            await asyncio.sleep(0)
            began_s = time.monotonic()
            await log.close()
            assert time.monotonic() - began_s < LIMIT_S
            async with asyncio.timeout(1):
                answers = await asyncio.gather(*appends, return_exceptions=True)
    assert {answer.code for answer in answers if isinstance(answer, EventLogError)} <= {"store_busy", "engine_closed"}
    assert all(isinstance(answer, EventLogError) for answer in answers)
    await until(lambda: _threads() == 0)
    async with open_file(path) as log:
        assert (await log.head()).position == 0


async def test_reads_in_flight_are_answered_when_the_log_is_closed(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("s", [_event() for _ in range(1000)], expect=Expect.any())
        reads = [asyncio.create_task(_code(lambda: log.read_stream("s"))) for _ in range(20)]
        subscription = asyncio.create_task(_drain(log.subscribe()))
        await asyncio.sleep(0.01)
        await log.close()
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*reads)
            assert await subscription == "engine_closed"
    assert set(answers) <= {"ok", "engine_closed"}


async def test_cancelled_close_still_closes(path: Path) -> None:
    threads = threading.active_count()
    await _warm_up(path)
    number = 0
    while True:
        number += 1
        seen = CancelledAt()
        log = await open_file(path).__aenter__()
        appends = [asyncio.create_task(_code(partial(log.append, "s", [_event()], expect=Expect.any())))]
        closing = asyncio.create_task(cancel_at(log.close(), number, seen))
        await asyncio.wait({closing})
        assert closing.cancelled() == seen.was_cancelled
        async with asyncio.timeout(2):
            assert set(await asyncio.gather(*appends)) <= {"ok", "engine_closed"}
        assert await _code(log.head) == "engine_closed"
        await until(lambda: threading.active_count() == threads)
        if not seen.was_cancelled:
            break
    assert number > 1
    await _assert_usable_at_once(path)


# ── open ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_new", [True, False])
async def test_open_that_is_cancelled_at_any_of_its_awaits_leaves_nothing_behind(tmp_path: Path, is_new: bool) -> None:
    threads = threading.active_count()
    await _warm_up(tmp_path / "existing.db")
    files = _open_files()
    number = 0
    while True:
        number += 1
        path = tmp_path / (f"new{number}.db" if is_new else "existing.db")
        seen = CancelledAt()
        log = open_file(path)
        opening = asyncio.create_task(cancel_at(log.__aenter__(), number, seen))
        await asyncio.wait({opening})
        assert opening.cancelled() == seen.was_cancelled
        if not seen.was_cancelled:
            await log.close()
        await until(lambda: threading.active_count() == threads)
        assert _open_files() == files
        assert _writers() == 0
        await _assert_usable_at_once(path)
        if not seen.was_cancelled:
            break
    assert number >= 3, "opening waits for the writer's connection and for a reader's at least"


async def test_threads_and_files_stay_the_same_over_200_openings(path: Path) -> None:
    await _warm_up(path)
    threads, files = threading.active_count(), _open_files()
    for number in range(200):
        async with open_file(path) as log:
            if number % 20 == 0:
                await asyncio.gather(
                    log.append("s", [_event()], expect=Expect.any()), log.head(), log.head(), log.health()
                )
    assert threading.active_count() == threads
    assert _open_files() == files
    assert _writers() == 0


async def test_failed_open_leaves_no_thread_and_no_file_open(path: Path) -> None:
    path.write_text("no database\n" * 1000)
    threads, files = threading.active_count(), _open_files()
    for _ in range(20):
        assert await _code(open_file(path).__aenter__) == "store_not_eventlog"
    await until(lambda: threading.active_count() == threads)
    assert _open_files() == files


# ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _assert_usable_at_once(path: Path) -> None:
    """Check that no lock and no transaction is left, and that the log is whole."""
    if path.exists():
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            raw.execute("ROLLBACK")
    async with open_file(path, busy_timeout_s=1) as log:
        await log.append("after", [_event()], expect=Expect.any())
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
        assert (page.events, list(page.problems)) == (head, [])


def _calls(log: eventlog.stores.SqliteLog) -> list[Callable[[], Any]]:
    return [
        lambda: log.append("s", [_event()], expect=Expect.any()),
        lambda: log.read_stream("s"),
        lambda: _drain(log.read("s"), is_raising=True),
        lambda: _drain(log.read_all(), is_raising=True),
        lambda: _drain(log.subscribe(), is_raising=True),
        lambda: log.check_page(after=0),
        log.head,
        log.health,
    ]


def _in_another_loop(call: Callable[[], Any]) -> str:
    return asyncio.run(_code(call))


async def _code(call: Callable[[], Any]) -> str:
    try:
        await call()
    except EventLogError as error:
        return error.code
    return "ok"


async def _drain(events: AsyncIterator[Any], *, is_raising: bool = False) -> str:
    try:
        async for _ in events:
            pass
    except EventLogError as error:
        if is_raising:
            raise
        return error.code
    return "ok"


async def _warm_up(path: Path) -> None:
    """Open and close once, so that what Python keeps for good is counted before."""
    async with open_file(path) as log:
        await log.append("s", [_event()], expect=Expect.any())


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))


def _threads() -> int:
    return sum("_connection_worker_thread" in thread.name for thread in threading.enumerate())


def _writers() -> int:
    return sum(task.get_name() == "eventlog-writer" for task in asyncio.all_tasks())


def _read_line(process: subprocess.Popen[str], expected: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line == expected, process.communicate()


def _event() -> NewEvent:
    return NewEvent("noted", {"text": "x" * 100})

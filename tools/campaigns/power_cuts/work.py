"""What the engine does on the recorded disk, unmodified: work, and recovery after a cut.

Everything that a call has told its caller is written to the file `told` of that disk, one JSON line an event: it was
acknowledged by then.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Expect, NewEvent, RecordedEvent, Runner, Status
from eventlog.errors import EventLogError, Refused
from eventlog.runtime.actions import write_file
from eventlog.stores import SqliteLog
from eventlog.stores.clock import SystemClock
from tools.campaigns.power_cuts.scene import (
    ABOUT,
    REPORT,
    SUBJECT,
    Effect,
    effects_of,
    make_report,
    open_log,
    prepare,
    runner_on,
)
from tools.campaigns.power_cuts.trace import TOLD

__all__ = ["recover", "reopen", "work", "work_until_killed"]

_HOUR_US: Final = 3600 * 1_000_000
_SESSIONS: Final = (6, 12)
"""How many steps are done each time the log is opened."""


class _Told:
    """The file in which this program notes what it was told."""

    def __init__(self, disk: Path) -> None:
        self._file: Final = os.open(disk / TOLD, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._size = 0

    def note(self, facts: Iterable[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(each) + "\n" for each in facts).encode()
        self._size += os.pwrite(self._file, lines, self._size)

    def note_events(self, events: Iterable[RecordedEvent]) -> None:
        self.note(
            {
                "id": event.event_id.hex(),
                "stream": event.stream,
                "version": event.version,
                "position": event.position,
                "leaf": event.leaf.hex(),
            }
            for event in events
        )


# ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def work(disk: Path, seed: str) -> None:
    """Append, and let runs come to their effects, several at a time; close the log in between and open it again."""
    chance = random.Random(f"{seed}/work")
    prepare(disk, seed)
    told = _Told(disk)
    left = {effect.run_id: [effect] * 3 for effect in effects_of(seed)}
    report_at = chance.randrange(_SESSIONS[0])
    for session, steps in enumerate(_SESSIONS):
        async with open_log(disk, seed) as log:
            runner = runner_on(log, disk)
            for number in range(steps):
                await _step(log, runner, told, left, chance, makes_report=session == 0 and number == report_at)


async def _step(
    log: SqliteLog,
    runner: Runner,
    told: _Told,
    left: dict[str, list[Effect]],
    chance: random.Random,
    *,
    makes_report: bool,
) -> None:
    """Do a few things at the same time."""
    async with asyncio.TaskGroup() as tasks:
        for stream in chance.sample(["s1", "s2", ABOUT], k=chance.randint(0, 2)):
            tasks.create_task(_append(log, told, stream, chance.randint(1, 3), chance.choice([0, 50, 600])))
        for run_id in chance.sample(sorted(left), k=min(len(left), chance.randint(1, 2))):
            effect = left[run_id].pop()
            if not left[run_id]:
                del left[run_id]
            tasks.create_task(_go_on(runner, told, effect))
        if makes_report:
            tasks.create_task(_report(runner, told))


async def _append(log: SqliteLog, told: _Told, stream: str, count: int, size: int) -> None:
    events = [NewEvent("noted", {"number": number, "text": "x" * size}) for number in range(count)]
    subject = SUBJECT if stream == ABOUT else None
    result = await log.append(stream, events, expect=Expect.any(), subject=subject)
    told.note(
        {
            "id": event.event_id.hex(),
            "stream": stream,
            "version": result.version - count + 1 + number,
            "position": result.first_position + number,
            "leaf": result.leaf.hex() if number == count - 1 else None,
        }
        for number, event in enumerate(events)
    )


async def _go_on(runner: Runner, told: _Told, effect: Effect) -> None:
    """Take the next step of a run: propose, approve, resume."""
    proposal = eventlog.propose("write_file", {"content": effect.text}, effect.path)
    status = await _status(runner, effect.run_id)
    if status is None:
        await runner.propose(effect.run_id, proposal)
    elif status is Status.WAITING_FOR_USER:
        await runner.approve(effect.run_id, proposal.hash, reason="read it")
    else:
        await runner.resume(effect.run_id)
    told.note_events(await runner.trace(effect.run_id))


async def _report(runner: Runner, told: _Told) -> None:
    """Begin the workflow run, or go on with it."""
    if await _status(runner, REPORT) is None:
        await runner.start(make_report, REPORT)
    else:
        await runner.resume(REPORT)
    told.note_events(await runner.trace(REPORT))


async def _status(runner: Runner, run_id: str) -> Status | None:
    try:
        return (await runner.state(run_id)).status
    except Refused as refusal:
        if refusal.code == "unknown_run":
            return None
        raise


async def work_until_killed(disk: Path, seed: str) -> None:
    """As `work`, and end by SIGKILL behind the link of one of the first effects, before its name is flushed.

    The machine lives on: the next process finds a file that is not durable.
    """
    publish, left = write_file._publish, random.Random(f"{seed}/killed").randint(1, 3)

    def publish_and_end(effect: Any) -> bool:
        nonlocal left
        is_published = publish(effect)
        left -= is_published
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return is_published

    write_file._publish = publish_and_end
    await work(disk, seed)


# ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Later(SystemClock):
    """Hours later: whoever held a run's lease when the power was cut holds it no more."""

    def __init__(self, hours: int = 2) -> None:
        self._by_us: Final = hours * _HOUR_US

    def now_us(self) -> int:
        return super().now_us() + self._by_us


async def recover(disk: Path, seed: str, is_whole: bool, hours: int = 2) -> dict[str, Any]:
    """Open what was left, hours later, check it, let every run come to its end, and append something.

    Returns what is wrong with the log as it was found, and how every run ended; of some of them only unless `is_whole`.
    """
    prepare(disk, seed)
    told = _Told(disk)
    clock = _Later(hours)
    async with open_log(disk, seed, clock) as log:
        head = (await log.head()).position
        problems = await _problems(log, head)
        runner = runner_on(log, disk, clock)
        effects = effects_of(seed)
        ends = {
            effect.run_id: await _finish(runner, told, effect) for effect in (effects if is_whole else effects[::2])
        }
        if is_whole:
            await _report(runner, told)
            ends[REPORT] = _named(await _status(runner, REPORT))
        await _append(log, told, "s1", 1, 50)
        await _append(log, told, ABOUT, 1, 50)
    return {"head": head, "problems": problems, "ends": ends}


async def reopen(disk: Path, seed: str) -> dict[str, Any]:
    """Open what was left, and close it again. Returns how many events it has, or the code with which it was refused."""
    said: dict[str, Any] = {}
    try:
        async with open_log(disk, seed, _Later()) as log:
            said["head"] = (await log.head()).position
    except EventLogError as error:
        said.setdefault("refused", error.code)
    return said


async def _problems(log: SqliteLog, head: int) -> list[str]:
    page = await log.check_page(after=0, limit=head + 1)
    about = await log.read_stream(ABOUT)
    unread = [f"{each.stream} {each.version} is {each.redacted}" for each in about.events if each.redacted is not None]
    return [*(problem.message for problem in (*page.problems, *await log.check_file())), *unread]


async def _finish(runner: Runner, told: _Told, effect: Effect) -> str:
    for _ in range(3):
        try:
            await _go_on(runner, told, effect)
        except EventLogError as error:
            return f"{error.code}: {error}"
    return _named(await _status(runner, effect.run_id))


def _named(status: Status | None) -> str:
    return "unknown" if status is None else status.name

"""Campaign `clocks`: clocks jump back and forward, within a process and between processes, and no order follows them.

Inside one process a clock is handed in, and jumps between all calls. End to end, each process is run with a time of its
own by `faketime`, and, where the machine lets one, with a monotonic clock of its own by `unshare --time`, as one has
behind a suspend. Whatever they read: what has expired stays expired, nothing is done without an approval that counts,
an effect is had at most once, events stay in order with ids of their own, and a clock that is behind the log is said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import eventlog
from eventlog import EventLogError, Expect, NewEvent, Policy, Runner
from eventlog.errors import Refused
from eventlog.run import Status
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import open_file

__all__ = ["CAMPAIGN"]

EXPIRES_IN_S: Final = 600
_MICRO: Final = 1_000_000
_YEAR_S: Final = 365 * 24 * 3600
_JUMPS_S: Final = (1, 5, 60, 599, 601, 3600, 86_400, 30 * 86_400, _YEAR_S, 10 * _YEAR_S)
_PROCESS_S: Final = 120


def run(work: Work) -> None:
    """Let clocks jump inside one process, and then between processes."""
    regressions = 0
    for number in range(work.goal("histories")):
        case = f"jumps/{number}"
        if work.wants(case):
            regressions += asyncio.run(_jump_about(work, case))
            work.count("histories")
    can_suspend = _can_shift_monotonic()
    for number in range(work.goal("end to end")):
        case = f"faketime/{number}"
        if work.wants(case):
            regressions += _live_end_to_end(work, case, can_suspend=can_suspend)
            work.count("end to end")
    work.notes["regressions said"] = str(regressions)
    if not can_suspend:
        work.notes["skipped"] = "shifted monotonic clocks: `unshare --time` is not allowed here"


# ── inside one process ────────────────────────────────────────────────────────────────────────────────────────────────


class _Act:
    """An effect that counts how often it was had, by the run."""

    name = "clocked"
    promise = eventlog.Promise.OPAQUE

    def __init__(self) -> None:
        self.had: list[str] = []

    def check(self, call: eventlog.Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: eventlog.Call) -> eventlog.Executed:
        self.had.append(call.output)
        return eventlog.Executed(result={})


async def _jump_about(work: Work, case: str) -> int:
    """Propose, approve and resume runs while the clock jumps; return how often it was said to be behind."""
    chance, clock, act = work.chance(case), FakeClock(), _Act()
    path = work.folder / f"{case.replace('/', '-')}.db"
    with _Regressions() as said:
        async with open_file(path, clock=clock, durability="normal") as log:
            runner = Runner(
                log, actions=[act], policies={"clocked": Policy(expires_in_s=EXPIRES_IN_S)}, clock=clock, lease_s=60
            )
            history = _History(work, case, log, runner, clock, act)
            for number in range(20):
                await history.go_on(chance, number)
            await history.judge()
    path.unlink()
    return said.count


class _History:
    """Runs of one action, what was seen of them, and the clock that jumps between all calls."""

    def __init__(self, work: Work, case: str, log: SqliteLog, runner: Runner, clock: FakeClock, act: _Act) -> None:
        self._work: Final = work
        self._case: Final = case
        self._log: Final = log
        self._runner: Final = runner
        self._clock: Final = clock
        self._act: Final = act
        self._latest_us = clock.now_us()
        """The latest time at which an event can have been recorded by now."""
        self._until_us: dict[str, int] = {}
        """By the run: until when it can be decided on, at the latest."""

    async def go_on(self, chance: Random, number: int) -> None:
        """Begin a run, and do something to any of them."""
        await self._begin(f"run-{number}")
        for _ in range(3):
            self._jump(chance)
            await self._note()
            run_id = chance.choice(list(self._until_us))
            await self._decide(run_id, chance.choice(("approve", "approve", "resume", "expire")))

    async def _begin(self, run_id: str) -> None:
        proposal = eventlog.propose("clocked", {}, run_id)
        run = (await self._runner.propose(run_id, proposal)).run
        assert run.expires_at_us is not None
        self._until_us[run_id] = run.expires_at_us
        self._work.count("decisions")

    def _jump(self, chance: Random) -> None:
        by_s = chance.choice(_JUMPS_S) * chance.choice((-1, 1))
        self._clock.set(max(_MICRO, self._clock.now_us() + by_s * _MICRO))
        self._work.count("jumps")

    async def _note(self) -> None:
        await self._log.append("notes", [NewEvent("noted", {})], expect=Expect.any())
        self._latest_us = max(self._latest_us, self._clock.now_us())

    async def _decide(self, run_id: str, what: str) -> None:
        """Try it. Behind the end of a request nobody decides, wherever the clock stands. The act has no end."""
        before = await self._runner.state(run_id)
        is_over = self._latest_us >= self._until_us[run_id]
        had = len(self._act.had)
        try:
            if what == "approve":
                await self._runner.approve(run_id, before.proposal_hash or "")
            elif what == "resume":
                await self._runner.resume(run_id)
            else:
                await self._runner.expire(run_id)
        except Refused:
            pass
        self._work.count("decisions")
        after = await self._runner.state(run_id)
        where = f"{what} {run_id} with the clock {(self._clock.now_us() - self._latest_us) / _MICRO:.0f} s off"
        if is_over and (before.status, after.status) == _DECIDED:
            self._work.violation("I7", self._case, f"{where}: it was approved behind the end of its request")
        if len(self._act.had) > had and before.status is not Status.APPROVED:
            self._work.violation("I7", self._case, f"{where}: it was done, and was {before.status.value}")
        if before.status is Status.EXPIRED and after.status is not Status.EXPIRED:
            self._work.violation("I7", self._case, f"{where}: it was EXPIRED and is {after.status.value}")

    async def judge(self) -> None:
        """Check order, ids and effects."""
        for run_id in set(self._act.had):
            if self._act.had.count(run_id) > 1:
                self._work.violation("I5", self._case, f"{run_id} was done {self._act.had.count(run_id)} times")
        for invariant, what in await flaws_of(self._log):
            self._work.violation(invariant, self._case, what)


_DECIDED: Final = (Status.WAITING_FOR_USER, Status.APPROVED)


async def flaws_of(log: SqliteLog) -> list[tuple[str, str]]:
    """Return what is wrong with the order of the log."""
    head = (await log.head()).position
    found = [("I2", str(problem)) for problem in (await log.check_page(after=0, limit=head + 1)).problems]
    events = [event async for event in log.read_all()]
    if [event.position for event in events] != list(range(1, head + 1)):
        found.append(("I2", "positions have a gap"))
    if len({event.event_id for event in events}) != head:
        found.append(("I2", "two events have one id"))
    times = [event.recorded_at_us for event in events]
    if times != sorted(times):
        found.append(("I2", "times run backwards"))
    return found


# ── end to end ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _live_end_to_end(work: Work, case: str, *, can_suspend: bool) -> int:
    """Let processes with times of their own work on one log; return how often a clock was said to be behind."""
    chance = work.chance(case)
    folder = work.folder / case.replace("/", "-")
    folder.mkdir()
    ahead_s = chance.choice((3600, 86_400, _YEAR_S))
    back_s = -chance.choice((1, 3600, 86_400, 10 * _YEAR_S))
    shift_s = 1_000_000 if can_suspend else 0
    first = _told(work, case, 0, proposes, folder)
    lapsed = _told(work, case, ahead_s, decides, folder, "late")
    again = _told(work, case, back_s, decides, folder, "late")
    done = _told(work, case, back_s, decides, folder, "done", shift_s=shift_s)
    fresh = _told(work, case, 0, looks, folder)
    told = [each["told"] if each else None for each in (first, lapsed, again, done)]
    if told[1] not in (["approval_expired", "approval_expired"], None):
        work.violation("I7", case, f"{ahead_s} s later it was told {told[1]}, not approval_expired")
    if told[2] is not None and not set(told[2]) <= {"approval_expired", "approval_not_pending"}:
        work.violation("I7", case, f"{back_s} s before that it was told {told[2]}: it is not expired any more")
    if told[3] not in (["approval_expired", "ok"], ["approval_not_pending", "ok"], ["ok", "ok"], None):
        work.violation("I8", case, f"{back_s} s before, what had been approved was told {told[3]}")
    for invariant, what in fresh["flaws"] if fresh else ():
        work.violation(invariant, case, what)
    had = (folder / "receipts").read_text().split() if (folder / "receipts").exists() else []
    if had != ["done"]:
        work.violation("I5", case, f"the effects that were had are {had}, not the one that was approved in time")
    said = [each["regressions"] if each else 0 for each in (lapsed, again, done)]
    if again is not None and back_s < -2 and not said[1]:
        work.violation("I8", case, f"a clock that was {ahead_s - back_s} s behind the log was not said to be")
    shutil.rmtree(folder)
    return sum(said)


def _told(
    work: Work, case: str, offset_s: int, program: Any, folder: Path, *args: str, shift_s: int = 0
) -> dict[str, Any] | None:
    """Run a program in a process whose wall clock is off by so much, and its monotonic one by `shift_s`."""
    command: Sequence[str] = child.command(program, folder, *args)
    if offset_s:
        command = ["faketime", "-f", f"{offset_s:+d}s", *command]
    if shift_s:
        command = ["unshare", "--time", f"--monotonic={shift_s}", "--fork", *command]
    try:
        done = subprocess.run(
            command, cwd=child.ROOT, env=child.environment(), capture_output=True, text=True, timeout=_PROCESS_S
        )
    except subprocess.TimeoutExpired:
        work.violation("I9", case, f"{program.__name__} {offset_s:+d} s did not end in {_PROCESS_S} s")
        return None
    if done.returncode:
        work.violation("I8", case, f"{program.__name__} {offset_s:+d} s: {done.stderr[-1000:]}")
        return None
    found: dict[str, Any] = json.loads(done.stdout.rpartition(child.RESULT)[2])
    return found


async def proposes(folder: str) -> dict[str, Any]:
    """Ask for two things, and approve the second of them in time."""
    async with open_file(f"{folder}/log.db") as log:
        runner = _runner(log)
        for run_id in ("late", "done"):
            await runner.propose(run_id, eventlog.propose("receipt", {"as": run_id}, folder))
        await runner.approve("done", (await runner.state("done")).proposal_hash or "")
    return {"told": ["ok"], "regressions": 0}


async def decides(folder: str, run_id: str) -> dict[str, Any]:
    """Append, and try to approve the run, and to resume it."""
    with _Regressions() as said:
        async with open_file(f"{folder}/log.db") as log:
            runner = _runner(log)
            await log.append("notes", [NewEvent("noted", {})], expect=Expect.any())
            told = []
            for attempt in (
                runner.approve(run_id, (await runner.state(run_id)).proposal_hash or ""),
                runner.resume(run_id),
            ):
                try:
                    await attempt
                    told.append("ok")
                except EventLogError as error:
                    told.append(error.code)
    return {"told": told, "regressions": said.count}


async def looks(folder: str) -> dict[str, Any]:
    """Look at the log as a process whose clock is right."""
    async with open_file(f"{folder}/log.db") as log:
        return {"flaws": await flaws_of(log)}


@eventlog.action("receipt", promise="opaque")
async def _receipt(call: eventlog.Call) -> str:
    with (Path(call.output) / "receipts").open("a") as file:
        file.write(f"{call.args['as']}\n")
    return "had"


def _runner(log: SqliteLog) -> Runner:
    # What was approved in time may be done at any time: its policy has an end for the decision, and none for the act.
    return Runner(log, actions=[_receipt], policies={"receipt": Policy(expires_in_s=EXPIRES_IN_S)})


class _Regressions(logging.Handler):
    """Counts how often the engine has said that the clock is behind. A context manager."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def __enter__(self) -> _Regressions:
        logging.getLogger("eventlog").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("eventlog").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("clock_regression")


def _can_shift_monotonic() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--time", "--monotonic=1000", "--fork", sys.executable, "-S", "-c", ""]
    return subprocess.run(command, capture_output=True, timeout=_PROCESS_S).returncode == 0


CAMPAIGN: Final = Campaign(
    name="clocks",
    title="wall clocks jump back and forward, within a process and between processes",
    promise="what has expired stays expired, order and ids do not follow a clock, and no effect is had twice",
    faults=("F80", "F81", "F82"),
    invariants=("I2", "I5", "I7", "I8", "I9"),
    run=run,
    goals={
        "histories": Goal(5, 200, 5),
        "jumps": Goal(300, 12_000, 0),
        "decisions": Goal(300, 12_000, 0),
        "end to end": Goal(5, 20, 0),
    },
    controls=(
        Control(
            "wall_clock_alone",
            "an event is recorded at what the clock says, though the log is further",
            (Break("eventlog/stores/sqlite/plan.py", "return max(now_us, self.time_us)", "return now_us"),),
            shows="I7 ",
        ),
    ),
    lacks=lambda: None if shutil.which("faketime") else "`faketime`",
)

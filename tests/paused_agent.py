"""The agent of an article on pausing, and the processes that it lives in: each function here runs in a child.

It searches logs; then it prepares a patch while a person decides whether one may be applied; then it applies it.

    World         what happens outside the log: calls of steps and receipts of effects, a line each in files, whole
                  whatever process is killed, so that a test need not believe the engine about them
    fix_incident  the workflow
    CrashingLog   ends its process right before or right after one durable append
    campaign      lets that happen at every append of a whole history, and says what was wrong afterwards
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Absent, Append, AppendResult, Call, Executed, Expect, Promise, Recovered, RunContext, Runner
from eventlog.audit import verify
from eventlog.errors import EventLogError, Refused
from eventlog.events import CheckpointSaved, StepCompleted
from eventlog.progress import Stored
from eventlog.run import Run
from eventlog.runtime.effects import Finding
from eventlog.runtime.failpoints import crash_at, pass_by
from eventlog.stores import SqliteLog
from eventlog.stores.clock import SystemClock
from tools.campaigns.processes.in_child import Ended, in_child
from tools.campaigns.storage.log_files import open_file

__all__ = [
    "RUN",
    "ApplyPatch",
    "CrashingLog",
    "LateLog",
    "World",
    "approves",
    "campaign",
    "fix_incident",
    "open_agent",
    "repeated",
    "resumes",
    "saw",
    "shown",
    "starts",
    "wrong_with",
]

RUN: Final = "r-42"
INCIDENT: Final = "INC-7"
LARGE_BYTES: Final = 80 * 1024
_EXIT_STATUS: Final = 91
_MAX_PROCESSES: Final = 20


# ── the world outside the log ─────────────────────────────────────────────────────────────────────────────────────────


class World:
    """What really happened, in the order in which it did: a line a fact, each written by one system call."""

    def __init__(self, folder: str | Path) -> None:
        self.folder: Final = Path(folder)

    @property
    def log(self) -> Path:
        """The log of the agent."""
        return self.folder / "log.db"

    def note(self, *fact: str) -> None:
        """Add a fact."""
        self._add("facts", " ".join(fact))

    def facts(self) -> list[tuple[str, ...]]:
        """Return all facts: `called STEP`, `saw STEP DIGEST` and `durable STEP`, each behind the process's id."""
        return [tuple(line.split()) for line in self._lines("facts")]

    def calls(self, step: str) -> int:
        """Return how often a step's function was called."""
        return sum(fact[1:] == ("called", step) for fact in self.facts())

    def receipts(self) -> list[str]:
        """Return the op_key of every effect that happened, in order."""
        return self._lines("receipts")

    def apply(self, op_key: str, *, knows_keys: bool) -> None:
        """Let the effect happen; a receiver that knows its keys does nothing twice."""
        with self._locked():
            if not (knows_keys and op_key in self.receipts()):
                self._add("receipts", op_key)

    def _add(self, name: str, line: str) -> None:
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def wrong_with(world: World) -> list[str]:
    """Return what must not be: a step called again though its output was durable or seen, two effects, or none."""
    effects = len(world.receipts())
    return repeated(world) + ([] if effects == 1 else [f"{effects} effects"])


def repeated(world: World) -> list[str]:
    """Return which steps were called again though their output was durable or seen, or were seen with another one."""
    wrong: list[str] = []
    seen: dict[str, str] = {}
    settled: set[str] = set()
    for _, verb, step, *digests in world.facts():
        if verb == "called" and step in settled:
            wrong.append(f"{step} was called again")
        elif verb != "called":
            settled.add(step)
        for digest in digests:
            if seen.setdefault(step, digest) != digest:
                wrong.append(f"{step} was seen with another output")
    return wrong


# ── the agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def search_logs(folder: str, incident: str) -> list[str]:
    World(folder).note(str(os.getpid()), "called", "search_logs")
    return [f"{incident} began in process {os.getpid()}"]


async def prepare_patch(folder: str, incident: str, size_bytes: int) -> dict[str, str]:
    """Return a patch by this very process, which no later call could return again."""
    World(folder).note(str(os.getpid()), "called", "prepare_patch")
    return {"of": incident, "by": str(os.getpid()), "lines": "+" * size_bytes}


@eventlog.workflow
async def fix_incident(run: RunContext, folder: str, incident: str, size_bytes: int) -> dict[str, str]:
    found = await run.step("search_logs", search_logs, folder, incident)
    saw(folder, "search_logs", found)
    patch, applied = await run.gather(
        run.step("prepare_patch", prepare_patch, folder, incident, size_bytes),
        run.act("apply_patch", {"incident": incident, "found": found}, output=folder),
    )
    saw(folder, "prepare_patch", patch)
    return {"patch_by": patch["by"], "applied_to": applied["applied_to"], "found": found[0]}


def saw(folder: str, step: str, output: object) -> None:
    """Note that a workflow has been given this output of a step."""
    digest = hashlib.sha256(json.dumps(output).encode()).hexdigest()
    World(folder).note(str(os.getpid()), "saw", step, digest)


class ApplyPatch:
    """Applies a patch by leaving a receipt. A receiver that `forgets` knows nothing of what it did."""

    name = "apply_patch"
    key_lifetime_s = 24 * 3600.0

    def __init__(self, promise: str, *, forgets: bool = False) -> None:
        self.promise = Promise(promise)
        self._forgets = forgets
        if self.promise is Promise.CHECKABLE:
            self.inspect = self._inspect

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Apply it."""
        knows_keys = self.promise is Promise.KEYED and not self._forgets
        World(call.output).apply(call.op_key, knows_keys=knows_keys)
        return Executed(result=_result_of(call.args))

    async def _inspect(self, call: Call) -> Finding:
        if self._forgets or call.op_key not in World(call.output).receipts():
            return Absent()
        return Recovered(evidence="a receipt", result=_result_of(call.args))


def _result_of(args: dict[str, Any]) -> dict[str, str]:
    return {"applied_to": args["incident"]}


# ── logs that crash, and one that lies ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Crash:
    """Where a process ends: at the append `at`, 1 for the first, on one `side` of it, and `how`."""

    at: int
    side: str
    how: str


class CrashingLog:
    """Counts durable appends, and ends its process at one of them."""

    def __init__(self, log: SqliteLog, crash: Crash | None = None) -> None:
        self._log = log
        self._crash = crash
        self.appends = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        self._reach("before")
        results = await self._log.append_reserved(appends, **options)
        self.appends += 1
        self._reach("after")
        return results

    async def append_with(self, *args: Any, **options: Any) -> AppendResult:
        self._reach("before")
        result = await self._log.append_with(*args, **options)
        self.appends += 1
        self._reach("after")
        return result

    def _reach(self, side: str) -> None:
        number = self.appends + (side == "before")
        if self._crash is None or (self._crash.at, self._crash.side) != (number, side):
            return
        if self._crash.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(_EXIT_STATUS)


class LateLog:
    """The negative control: says that the output of a step is stored, and stores it only with the next append."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._held: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        first, *rest = appends
        version = first.expect.version
        if all(isinstance(event.data, StepCompleted) for event in first.events):
            self._held += first.events
            return [_lie(first.stream, version + len(first.events))]
        late, self._held = self._held, []
        whole = Append(first.stream, [*late, *first.events], Expect.at(version - len(late)))
        results: list[AppendResult] = await self._log.append_reserved([whole, *rest], **options)
        return results


def _lie(stream: str, version: int) -> AppendResult:
    at_us = SystemClock().now_us()
    return AppendResult(
        stream=stream, version=version, first_position=0, last_position=0, leaf=b"", recorded_at_us=at_us
    )


# ── its processes ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _LaterClock(SystemClock):
    """The clock of a machine some hours later."""

    def __init__(self, hours: float) -> None:
        self._later_us = round(hours * 3600e6)

    def now_us(self) -> int:
        return super().now_us() + self._later_us


@dataclass(frozen=True)
class Agent:
    """The world of an agent, what its receiver promises, and what is broken on purpose."""

    world: World
    promise: str = "checkable"
    control: str = ""
    size_bytes: int = 10

    def runner(self, log: Any, clock: SystemClock, failpoint: str = "") -> Runner:
        reach = crash_at(failpoint) if failpoint else pass_by
        actions = [ApplyPatch(self.promise, forgets=self.control == "forgetful")]
        return Runner(log, workflows=[fix_incident], actions=actions, clock=clock, reach=reach)


def open_agent(folder: str | Path, hours: float = 0) -> tuple[SqliteLog, SystemClock]:
    """Return the log of an agent, to be opened, and the clock that it goes by, some hours later."""
    clock = _LaterClock(hours)
    return open_file(World(folder).log, clock=clock), clock


async def starts(folder: str, promise: str, size_bytes: str) -> dict[str, Any]:
    """Start the run, and end when it pauses."""
    log, clock = open_agent(folder)
    async with log:
        runner = Agent(World(folder), promise).runner(log, clock)
        run = (await runner.start(fix_incident, RUN, folder, INCIDENT, int(size_bytes))).run
        return shown(run)


async def approves(folder: str, hours: str) -> str:
    """Approve what the run waits for. This program knows no workflow and no action."""
    log, clock = open_agent(folder, float(hours))
    async with log:
        runner = Runner(log, clock=clock)
        run = await runner.state(RUN)
        request = run.progress.requests["apply_patch"]
        outcome = await runner.approve(RUN, request.proposal_hash, request=request.request_id, actor="ann")
        return outcome.status


async def resumes(folder: str, promise: str, hours: str, failpoint: str = "") -> dict[str, Any]:
    """Resume the run, crashing at a failpoint if one is named."""
    log, clock = open_agent(folder, float(hours))
    async with log:
        runner = Agent(World(folder), promise).runner(log, clock, failpoint)
        try:
            outcome = await runner.resume(RUN)
        except Refused as error:
            return {"refused": error.code}
        return {"status": outcome.status, "value": outcome.value, "result": outcome.result}


def shown(run: Run) -> dict[str, Any]:
    """Return the snapshot of a paused run as the article shows it."""
    progress, waiting = run.progress, run.waiting
    return {
        "run_id": run.run_id,
        "state_version": run.state_version,
        "status": run.status.value,
        "committed": list(progress.committed),
        "pending_writes": {key: _reference(stored) for key, stored in progress.pending_writes().items()},
        "waiting": waiting and {name: getattr(waiting, name) for name in ("type", "node_id", "approval_id")},
    }


def _reference(value: Stored | Any) -> Any:
    if not isinstance(value, Stored):
        return value
    return f"artifact://{value.artifact}" if value.artifact is not None else json.loads(bytes(value.json))


# ── a crash at every append ───────────────────────────────────────────────────────────────────────────────────────────


def campaign(promise: str, control: str = "", extent: str = "short") -> dict[str, Any]:
    """End the process at every append of a history, right before it and right after it.

    `short`   before each append by SIGKILL while the patch is an artifact, after each by an exit while it is small
    `first`   likewise, until something is wrong: for the controls
    `long`    before and after each append, in both ways, with either patch
    `double`  before and after each append by SIGKILL, with either patch; and the next process as well, at each of its
              first appends
    """
    with tempfile.TemporaryDirectory() as folder:
        return _campaign(Path(folder), promise, control, extent)


def _campaign(folder: Path, promise: str, control: str, extent: str) -> dict[str, Any]:
    report: dict[str, Any] = {"plays": 0, "crashes": 0, "appends": [], "ends": {}, "wrong": []}
    for size_bytes in (LARGE_BYTES, 10):
        calm = _play(Agent(_new_world(folder, f"calm-{size_bytes}"), promise, "", size_bytes), [])
        report["appends"].append(calm.appends)
        report["wrong"] += calm.wrong
        for crashes in _crashes(calm.appends, size_bytes, extent):
            world = _new_world(folder, str(report["plays"]))
            played = _play(Agent(world, promise, control, size_bytes), crashes)
            name = " + ".join(f"{crash.how} {crash.side} {crash.at}" for crash in crashes)
            report["plays"] += 1
            report["crashes"] += played.crashes
            report["ends"][played.end] = report["ends"].get(played.end, 0) + 1
            report["wrong"] += [f"{name}: {each}" for each in played.wrong]
            if extent == "first" and played.wrong:
                return report
    return report


def _crashes(appends: int, size_bytes: int, extent: str) -> Iterator[list[Crash]]:
    sides = ("before", "after")
    short = ("before", "kill") if size_bytes == LARGE_BYTES else ("after", "exit")
    for at, side, how in product(range(1, appends + 1), sides, ("kill", "exit")):
        first = Crash(at, side, how)
        if extent == "double":
            if how == "kill":
                yield from ([first, Crash(*second, how)] for second in product(range(1, 5), sides))
        elif extent == "long" or (side, how) == short:
            yield [first]


def _new_world(folder: Path, name: str) -> World:
    (folder / name).mkdir()
    return World(folder / name)


@dataclass(frozen=True)
class Played:
    """One run that was played to its end, or for as long as anybody would."""

    appends: int
    crashes: int
    end: str
    wrong: list[str]


def _play(agent: Agent, crashes: Sequence[Crash]) -> Played:
    """Play a run in one process after the other.

    The first crash counts the appends of all processes, each further one those from the crash on; when the run ends
    before, it does not come.
    """
    left = list(crashes)
    appends, hours, status = 0, 0, ""
    was_unknown = False
    for _ in range(_MAX_PROCESSES):
        looked = _said(in_child(partial(_look, agent)))
        status = looked["status"]
        was_unknown = was_unknown or status == "OUTCOME_UNKNOWN"
        for step in looked["durable"]:
            agent.world.note("0", "durable", step)
        if status == "COMPLETED":
            break
        hours = 2 if status == "WAITING_FOR_USER" else hours
        crash = Crash(left[0].at - appends, left[0].side, left[0].how) if left else None
        ended = in_child(partial(_work, agent, _COMMANDS.get(status, _resume), hours, crash))
        if ended.status == 0:
            appends += ended.said
        elif crash is not None and ended.status in (-signal.SIGKILL, _EXIT_STATUS):
            left.pop(0)
            appends = 0
        else:
            return Played(appends, len(crashes) - len(left), status, [f"a process ended with {ended.status}"])
    wrong = wrong_with(agent.world)
    wrong += _said(in_child(partial(_check, agent))) if status == "COMPLETED" else [f"it is {status}"]
    if crashes and len(left) == len(crashes):
        wrong.append("it did not crash")
    return Played(appends, len(crashes) - len(left), "reconciled" if was_unknown else status, wrong)


def _said(ended: Ended) -> Any:
    if ended.status != 0:
        raise RuntimeError(f"a process that only looks ended with {ended.status}")
    return ended.said


async def _look(agent: Agent) -> dict[str, Any]:
    """Say how the run stands, and of which steps the log holds the output."""
    log, clock = open_agent(agent.world.folder)
    async with log:
        try:
            runner = agent.runner(log, clock)
            run, events = await runner.state(RUN), await runner.trace(RUN)
        except Refused as error:
            return {"status": error.code, "durable": []}
    durable = [event.data.key for event in events if isinstance(event.data, StepCompleted)]
    return {"status": run.status.value, "durable": durable}


async def _work(agent: Agent, command: Callable[[Agent, Runner], Any], hours: float, crash: Crash | None) -> int:
    """Carry out one command, or crash in it; return how many appends it took."""
    log, clock = open_agent(agent.world.folder, hours)
    async with log:
        counted = CrashingLog(log, crash)
        seen = LateLog(counted) if agent.control == "late" else counted
        await command(agent, agent.runner(seen, clock))
        return counted.appends


async def _check(agent: Agent) -> list[str]:
    """Resume the run that has ended, verify the log, and say what is wrong."""
    log, clock = open_agent(agent.world.folder, 2)
    async with log:
        wrong = []
        runner = agent.runner(log, clock)
        value = (await runner.state(RUN)).progress.value
        again = [await runner.resume(RUN) for _ in range(2)]
        if [(each.result, each.value) for each in again] != [("already_completed", json.loads(bytes(value.json)))] * 2:
            wrong.append(f"another result: {again}")
        events = await runner.trace(RUN)
        committed = [key for event in events if isinstance(event.data, CheckpointSaved) for key in event.data.committed]
        if len(committed) != len(set(committed)):
            wrong.append(f"committed twice: {committed}")
        found = await verify(log, artifacts=log.artifacts)
        return wrong + [str(each) for each in (found.integrity, found.order, found.artifacts) if each.verdict != "ok"]


async def _start(agent: Agent, runner: Runner) -> None:
    await runner.start(fix_incident, RUN, str(agent.world.folder), INCIDENT, agent.size_bytes)


async def _approve(agent: Agent, runner: Runner) -> None:
    request = (await runner.state(RUN)).progress.requests["apply_patch"]
    await runner.approve(RUN, request.proposal_hash, actor="ann")


async def _reconcile(agent: Agent, runner: Runner) -> None:
    """Settle by what a person sees at the receiver."""
    if agent.world.receipts():
        await runner.reconcile(RUN, "executed", evidence="the receipt", result={"applied_to": INCIDENT}, actor="ann")
    else:
        version = (await runner.state(RUN)).version
        await runner.reconcile(RUN, "not_executed", evidence="no receipt", at_version=version, actor="ann")


async def _resume(agent: Agent, runner: Runner) -> None:
    try:
        await runner.resume(RUN)
    except EventLogError as error:
        if agent.control != "late":
            raise
        print(f"the engine that is broken on purpose says {error.code}")


_COMMANDS: Final[dict[str, Callable[[Agent, Runner], Any]]] = {
    "unknown_run": _start,
    "WAITING_FOR_USER": _approve,
    "OUTCOME_UNKNOWN": _reconcile,
}

"""One cell of the matrix: an approved run, crashed once or several times in a row, resumed, and settled.

The run is approved here. Then every step is a process of its own: each crash is one, one resumes, one settles what is
left. After each of them the log and the receiver are looked at and compared with what
`tools.campaigns.effects.expected` says. The log is read from a copy, so that the next process finds exactly what the
crash left.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import eventlog
from eventlog.errors import EventLogError
from eventlog.events import ResumeStarted
from eventlog.runtime.effects import Executed
from eventlog.runtime.failpoints import CRASH_STATUS, EFFECT_AFTER, Reach, crash_at, pass_by
from tools.campaigns.effects.expected import APPROVED, State, crashed, passed, resumed
from tools.campaigns.effects.subjects import Subject, copy_of, database
from tools.campaigns.processes.in_child import Ended, Work, in_child

__all__ = ["HOWS", "Cell", "Crash", "How", "Wrong", "perform", "records_result_first"]

How = Literal["exit", "SIGKILL"]
HOWS: Final[tuple[How, ...]] = ("exit", "SIGKILL")

RUN: Final = "run-1"

_SPEC_END: Final[dict[How, str]] = {"exit": "", "SIGKILL": "=kill"}
_STATUS: Final[dict[How, int]] = {"exit": CRASH_STATUS, "SIGKILL": -signal.SIGKILL}


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of a process at a failpoint."""

    point: str
    how: How = "exit"

    @property
    def spec(self) -> str:
        """What `crash_at` and EVENTLOG_FAILPOINT take."""
        return self.point + _SPEC_END[self.how]


@dataclass(frozen=True, slots=True)
class Wrong:
    """What was not as it must be: the invariant that it breaks (`frame/campaign.py`), and what was seen."""

    invariant: str
    what: str


@dataclass(slots=True)
class Cell:
    """What was done in a cell, and what came of it. `wrong` is empty if everything was as expected."""

    subject: Subject
    crashes: Sequence[Crash]
    before: State = APPROVED
    after: State = APPROVED
    result: str = ""
    value: Any = None
    settled: dict[str, Any] | None = None
    marks: set[str] = field(default_factory=set)
    crashed: list[str] = field(default_factory=list)
    """The failpoints at which a process really ended."""
    wrong: list[Wrong] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What tells the cell from others; the name of its folder as well."""
        return "-".join([self.subject.name, *(f"{crash.point}-{crash.how}" for crash in self.crashes)])

    @property
    def is_unknown(self) -> bool:
        """Whether the resume left an outcome that nobody knows."""
        return self.after.status == "OUTCOME_UNKNOWN"

    def line(self) -> dict[str, Any]:
        """Return the cell as it is printed."""
        return {
            "promise": self.subject.promise.value,
            "action": self.subject.name,
            "point": " ".join(crash.point for crash in self.crashes),
            "how": " ".join(crash.how for crash in self.crashes),
            "before": self.before.plain(),
            "after": self.after.plain(),
            "effects": len(self.marks),
            "result": self.result,
            **({"reconciled": self.settled} if self.settled is not None else {}),
            **({"wrong": [each.what for each in self.wrong]} if self.wrong else {}),
        }


Break = Callable[[], None]
"""Something that breaks the engine in the child before it works: for negative controls."""


def perform(
    subject: Subject,
    crashes: Sequence[Crash],
    parent: Path,
    spoil: Break | None = None,
    *,
    recover: Callable[[Work], Ended] = in_child,
    keeps: bool = True,
) -> Cell:
    """Do everything that belongs to a cell, in a new folder of `parent`.

    `recover` runs what no crash ends. With `here` that is this process, which is another one than the crashed as well.
    The folder is removed again if nothing was wrong, unless it is kept.
    """
    cell = Cell(subject, crashes)
    folder = parent / cell.name
    folder.mkdir(parents=True)
    _Performance(cell, folder, spoil or (lambda: None), recover).all()
    if not (keeps or cell.wrong):
        shutil.rmtree(folder)
    return cell


class _Performance:
    """The steps of one cell."""

    def __init__(self, cell: Cell, folder: Path, spoil: Break, recover: Callable[[Work], Ended]) -> None:
        self._cell: Final = cell
        self._subject: Final = cell.subject
        self._folder: Final = folder
        self._spoil: Final = spoil
        self._recover: Final = recover
        self._expected = APPROVED

    def all(self) -> None:
        cell = self._cell
        asyncio.run(self._prepare())
        for crash in cell.crashes:
            cell.before = self._crash(crash)
        self._resume()
        cell.after = self._look("after the resume", self._expected)
        self._settle()
        cell.wrong += asyncio.run(_audit(self._folder))

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _prepare(self) -> None:
        async with eventlog.open(database(self._folder)) as log:
            runner = eventlog.Runner(log)
            args, output = self._subject.request(self._folder)
            proposal = eventlog.propose(self._subject.name, args, output)
            await runner.propose(RUN, proposal)
            await runner.approve(RUN, proposal.hash)
        self._subject.prepare(self._folder)

    def _crash(self, crash: Crash) -> State:
        ended = self._end(in_child, lambda: self._answer(_resume, crash_at(crash.spec)))
        if crash.point in passed(self._subject, self._expected):
            self._expect_status(f"the crash at {crash.spec}", ended, _STATUS[crash.how])
            self._cell.crashed += [crash.point] if ended.status == _STATUS[crash.how] else []
            self._expected = crashed(self._subject, self._expected, crash.point)
        else:
            self._expect_status(f"the resume that does not pass {crash.spec}", ended, 0)
            result, self._expected = resumed(self._subject, self._expected)
            self._expect_result(f"the resume that does not pass {crash.spec}", ended, result)
        return self._look(f"after {crash.spec}", self._expected)

    def _resume(self) -> None:
        ended = self._end(self._recover, lambda: self._answer(_resume))
        self._expect_status("the resume", ended, 0)
        result, self._expected = resumed(self._subject, self._expected)
        self._expect_result("the resume", ended, result)
        if ended.said is not None:
            self._cell.result, self._cell.value = ended.said["result"], ended.said["value"]
            if result != "outcome_unknown" and not self._subject.is_of_first(self._folder, self._cell.value):
                self._wrong("I6", f"the resume returned {self._cell.value!r}, which is not what the first did")

    def _settle(self) -> None:
        """Let a person settle an unknown outcome; see that a run that has ended gives the same result again."""
        cell = self._cell
        if cell.is_unknown:
            verdict = "executed" if cell.after.effects else "not_executed"
            ended = self._end(self._recover, lambda: self._answer(_reconciling(verdict)))
            self._expect_status("the reconciling", ended, 0)
            left = self._look("after the reconciling", State("COMPLETED", _intents_after(verdict, cell.after), 1))
            cell.settled = {"verdict": verdict, **left.plain()}
            return
        again = self._end(self._recover, lambda: self._answer(_resume))
        self._expect_result("the last resume", again, "already_completed")
        if again.said is not None and again.said["value"] != cell.value:
            self._wrong("I1", f"the last resume returned {again.said['value']!r}, not {cell.value!r}")
        self._look("after the last resume", self._expected)

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, run: Callable[[Work], Ended], work: Work) -> Ended:
        async def spoilt() -> Any:
            self._spoil()
            return await work()

        return run(spoilt)

    async def _answer(
        self, ask: Callable[[eventlog.Runner], Coroutine[Any, Any, eventlog.Outcome]], reach: Reach = pass_by
    ) -> dict[str, Any]:
        async with eventlog.open(database(self._folder)) as log:
            runner = eventlog.Runner(log, actions=[self._subject.action(self._folder)], reach=reach)
            try:
                outcome = await ask(runner)
            except EventLogError as error:
                return {"result": error.code, "value": None}
            return {"result": outcome.result, "value": outcome.value}

    # ── looking and comparing ────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, when: str, expected: State) -> State:
        marks = self._subject.marks(self._folder)
        self._cell.marks |= marks
        seen = asyncio.run(_state(self._folder, len(marks)))
        if seen != expected:
            self._wrong(_broken_by(seen, expected), f"{when}: {seen.plain()}, not {expected.plain()}")
        if len(self._cell.marks) > 1:
            self._wrong("I5", f"{when}: the effect was done again: {sorted(self._cell.marks)}")
        return seen

    def _expect_status(self, what: str, ended: Ended, status: int) -> None:
        if ended.status != status:
            invariant = "I9" if ended.status == -signal.SIGALRM else "I8"
            self._wrong(invariant, f"{what} ended with {ended.status}, not {status}")

    def _expect_result(self, what: str, ended: Ended, result: str) -> None:
        if ended.said is None or ended.said["result"] != result:
            self._wrong("I8", f"{what} answered {ended.said}, not {result}")

    def _wrong(self, invariant: str, what: str) -> None:
        self._cell.wrong.append(Wrong(invariant, what))


def _broken_by(seen: State, expected: State) -> str:
    """Return the invariant that is broken where `seen` was found instead of what was expected."""
    if seen.effects > expected.effects:
        return "I5"
    return "I6" if seen.status == "COMPLETED" and not seen.effects else "I1"


async def _resume(runner: eventlog.Runner) -> eventlog.Outcome:
    return await runner.resume(RUN)


def _reconciling(verdict: str) -> Callable[[eventlog.Runner], Coroutine[Any, Any, eventlog.Outcome]]:
    async def reconcile(runner: eventlog.Runner) -> eventlog.Outcome:
        evidence = "looked at the receiver"
        version = (await runner.state(RUN)).version
        outcome = await runner.reconcile(RUN, verdict, evidence=evidence, at_version=version)
        return outcome if verdict == "executed" else await runner.resume(RUN)

    return reconcile


def _intents_after(verdict: str, state: State) -> int:
    return state.intents if verdict == "executed" else state.intents + 1


# ── the log, read from a copy ─────────────────────────────────────────────────────────────────────────────────────────


async def _state(folder: Path, effects: int) -> State:
    with copy_of(database(folder)) as path:
        async with eventlog.open(path) as log:
            run = await eventlog.Runner(log).state(RUN)
    return State(run.status.value, run.attempts, effects)


async def _audit(folder: Path) -> list[Wrong]:
    """Return what contradicts itself in the log (events and hashes, intents and op_keys), and what was left behind."""
    with copy_of(database(folder)) as path:
        async with eventlog.open(path) as log:
            head = (await log.head()).position
            page = await log.check_page(after=0, limit=head + 1)
            events = await eventlog.Runner(log).trace(RUN)
    wrong = [Wrong("I2", problem.message) for problem in page.problems]
    if page.events != head:
        wrong.append(Wrong("I2", f"{page.events} events lie at {head} positions"))
    keys = {event.data.op_key for event in events if isinstance(event.data, ResumeStarted)}
    if len(keys) != 1:
        wrong.append(Wrong("I5", f"the attempts had {len(keys)} op_keys"))
    return wrong + [Wrong("I5", f"left behind: {path.name}") for path in folder.rglob("*-tmp")]


# ── a negative control ────────────────────────────────────────────────────────────────────────────────────────────────


def records_result_first() -> None:
    """Break the engine of this process: it records that the effect was done, and then does it."""
    from eventlog.runtime.attempts import _Attempt

    async def execute(self: Any, action: Any) -> str:
        await self._record_report(Executed())
        await action.execute(self._call())
        self._attempts._reach(EFFECT_AFTER)
        return "executed"

    _Attempt._execute = execute  # type: ignore[method-assign]

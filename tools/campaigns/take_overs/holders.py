"""Holders of an effect that are stopped past their lease, taken over, and woken up again.

A holder stops itself at a failpoint from the durable intent on, or is stopped from outside at a random moment: inside a
transaction, with the lock of the log in its hands, or between two failpoints. When its lease has run out, another
process, the taker, resumes the run. Then the holder goes on. It must learn that its claim is lost, unless it had
finished, and there must be no second effect: none at a receiver that can refuse, and where none can, because the taker
left the outcome unknown. At the end a person settles by what is there what nobody could tell, and every run is
completed with exactly one effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import eventlog
from eventlog.errors import EventLogError
from eventlog.runtime.failpoints import (
    EFFECT_INSIDE,
    FAILPOINTS,
    INTENT_AFTER_COMMIT,
    INTENT_BEFORE_COMMIT,
    RESULT_AFTER_COMMIT,
    Reach,
    pass_by,
)
from eventlog.stores import SqliteLog
from tools.campaigns.effects import counting_receivers as receivers
from tools.campaigns.frame.campaign import Work
from tools.campaigns.take_overs.stopping import StuckError, end, fork, has_stopped, kill, stop_at, stop_soon

__all__ = ["take_over"]

POINTS: Final = FAILPOINTS[FAILPOINTS.index(INTENT_AFTER_COMMIT) :]
RUN: Final = "run-1"
ANYWHERE: Final = ("anywhere behind " + INTENT_BEFORE_COMMIT, "anywhere behind " + INTENT_AFTER_COMMIT)
TOLD_ANYWHERE: Final = {
    # `lease_used_up`: it had used up half of its lease before it could begin, and did nothing
    "holder": {"already_completed", "claim_lost", "executed", "lease_used_up", "run_conflict"},
    # `store_busy`: the holder sleeps with the lock of the log
    "taker": {"already_completed", "executed", "outcome_unknown", "recovered", "store_busy"},
}
_LEASE_S: Final = 0.5
_LOCK_WAIT_S: Final = 0.5
_LAST_MOMENT_S: Final = 0.008
_MAX_TRIES: Final = 4
_MAX_ROUNDS: Final = 1000


@dataclass(frozen=True, slots=True)
class _TakeOver:
    """One holder that is stopped at `point` while it acts on `receiver`, in a folder and a log of its own."""

    receiver: str
    point: str
    folder: Path
    case: str

    @property
    def database(self) -> Path:
        return self.folder / "runs.db"

    def told(self, who: str) -> str:
        """Return what the process `who` was told."""
        path = self.folder / f"{who}.told"
        return path.read_text() if path.exists() else "nothing"

    def effects(self) -> int:
        return receivers.effects(self.receiver, self.folder, self.database)[RUN]


def take_over(work: Work, folder: Path) -> None:
    """Take holders over, as many at a time as there are points, until enough of them were stopped."""
    answers: Counter[str] = Counter()
    for round_number in range(_MAX_ROUNDS):
        left_to_do = work.goal("take_overs") - work.counts["take_overs"]
        if left_to_do <= 0:
            break
        receiver, points = _round(work, round_number)
        wanted = [f"{receiver}-{round_number}-{number}" for number in range(len(points))]
        left = {name: point for name, point in zip(wanted, points, strict=True) if work.wants(name)}
        left = dict(list(left.items())[:left_to_do])
        for attempt in range(_MAX_TRIES if left else 0):
            place = folder / f"{round_number}-{attempt}"
            batch = [_TakeOver(receiver, point, place / name, name) for name, point in left.items()]
            for stopped in _take_over_all(batch, work):
                _judge(stopped, work, answers)
                del left[stopped.case]
                work.count("take_overs")
            answers["ended before they were stopped"] += len(left)
            if not left:
                break
    work.notes["holders and takers"] = "; ".join(f"{count} {what}" for what, count in answers.most_common())


def _round(work: Work, number: int) -> tuple[str, list[str]]:
    """Return a receiver and the points that holders are stopped at: every second time somewhere between them."""
    named = {"forgetful_receiver": ("http",), "unfenced": ("file",)}.get(work.control or "", receivers.RECEIVERS)
    receiver = named[(number + work.seed) % len(named)]
    return receiver, list(POINTS) if number % 2 == 0 or work.control else list(ANYWHERE * 2)


def _take_over_all(batch: list[_TakeOver], work: Work) -> list[_TakeOver]:
    """Let every holder of the batch be stopped, taken over, woken and settled; return those that were stopped."""
    holders: dict[int, _TakeOver] = {}
    with ExitStack() as servers:
        ports = {each: _prepare(each, servers, is_forgetful=work.control == "forgetful_receiver") for each in batch}
        try:
            for each in batch:
                holders[holder := fork(partial(_hold, each, ports[each]))] = each
                if each.point in ANYWHERE:
                    after_s = work.chance(each.case).uniform(0, _LAST_MOMENT_S)
                    stop_soon(holder, each.folder / "begun", after_s)
            stopped = [pid for pid in holders if has_stopped(pid)]
            time.sleep(_LEASE_S + 0.05)
            takers = {fork(partial(_take, holders[pid], ports[holders[pid]])): holders[pid] for pid in stopped}
            _end_all(takers, work, "taker")
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            _end_all({pid: holders[pid] for pid in stopped}, work, "holder")
        except StuckError as error:
            work.violation("I9", batch[0].case, str(error))
            return []
        finally:
            for pid in holders:
                kill(pid)
        finished = [holders[pid] for pid in stopped]
        for each in finished:
            if each.effects() > 1:
                work.violation("I5", each.case, f"stopped at {each.point}: {each.effects()} effects")
        _end_all({fork(partial(_settle, each, ports[each])): each for each in finished}, work, "settler")
    return finished


def _end_all(pids: Mapping[int, _TakeOver], work: Work, who: str) -> None:
    """Wait until each process has ended. Raises StuckError."""
    for pid, take_over in pids.items():
        status = end(pid)
        if status != 0:
            work.violation("I8", take_over.case, f"stopped at {take_over.point}: the {who} ended with {status}")


# ── what must be true afterwards ──────────────────────────────────────────────────────────────────────────────────────
def _judge(take_over: _TakeOver, work: Work, answers: Counter[str]) -> None:
    where = f"stopped at {take_over.point}"
    for who, expected in _expected(take_over).items():
        told = take_over.told(who)
        answers[f"{who} {told}"] += 1
        if told not in expected:
            work.violation("I5", take_over.case, f"{where}: the {who} was told {told}, not {' or '.join(expected)}")
    if (effects := take_over.effects()) != 1:
        work.violation("I5" if effects else "I6", take_over.case, f"{where}: {effects} effects at the end")
    for invariant, problem in asyncio.run(_audit(take_over)):
        work.violation(invariant, take_over.case, f"{where}: {problem}")


def _expected(take_over: _TakeOver) -> Mapping[str, Collection[str]]:
    """Return what the taker and the holder may be told."""
    if take_over.point in ANYWHERE:
        return TOLD_ANYWHERE
    taker, holder = _expected_at_point(take_over.receiver, take_over.point)
    return {"taker": (taker,), "holder": (holder,)}


def _expected_at_point(receiver: str, point: str) -> tuple[str, str]:
    """Return what the taker and the holder are told."""
    if point == RESULT_AFTER_COMMIT:
        return "already_completed", "executed"  # it only slept after its work
    has_acted = point not in (INTENT_AFTER_COMMIT, EFFECT_INSIDE)
    match receiver:
        case "table" if point != INTENT_AFTER_COMMIT:
            return "store_busy", "executed"  # it sleeps inside the transaction, and nobody can get in between
        case "line":
            return "outcome_unknown", "claim_lost"
        case "asked" if not has_acted:
            return "outcome_unknown", "claim_lost"  # "not there" is no answer while somebody may still do it
        case "row" if point == EFFECT_INSIDE:
            return "outcome_unknown", "claim_lost"  # the holder has locked the other database, so nobody can look
        case _:
            return "recovered" if has_acted else "executed", "claim_lost"


async def _audit(take_over: _TakeOver) -> list[tuple[str, str]]:
    """Return what is wrong in the log: damage, a run that is not completed, or one with two results."""
    async with eventlog.open(take_over.database) as log:
        assert isinstance(log, SqliteLog)
        page = await log.check_page(after=0)
        runner = eventlog.Runner(log)
        run = await runner.state(RUN)
        types = Counter(event.type for event in await runner.trace(RUN))
    wrong = [("I2", f"position {problem.position}: {problem.message}") for problem in page.problems]
    if run.status != "COMPLETED":
        wrong.append(("I9", f"the run ended as {run.status}"))
    results = sum(types[name] for name in ("action_executed", "action_recovered"))
    if results > 1:
        wrong.append(("I5", f"{results} results were recorded"))
    return wrong


# ── what each process does ────────────────────────────────────────────────────────────────────────────────────────────
def _prepare(take_over: _TakeOver, servers: ExitStack, *, is_forgetful: bool) -> int | None:
    """Approve a run and make its receiver; return the port of the server, where it is one."""
    take_over.folder.mkdir(parents=True)
    port = None
    if take_over.receiver == "http":
        port = servers.enter_context(receivers.Server(take_over.folder, is_forgetful=is_forgetful)).port
    asyncio.run(_approve(take_over, port))
    receivers.prepare(take_over.folder, take_over.database)
    return port


async def _approve(take_over: _TakeOver, port: int | None) -> None:
    async with eventlog.open(take_over.database) as log:
        runner = eventlog.Runner(log)
        proposal = receivers.proposal(take_over.receiver, RUN, take_over.folder, port)
        await runner.propose(RUN, proposal)
        await runner.approve(RUN, proposal.hash)


async def _hold(take_over: _TakeOver, port: int | None) -> None:
    async with _open(take_over.database) as log:
        reach = _tell_of_intent(take_over) if take_over.point in ANYWHERE else stop_at(take_over.point)
        answer = await _answer(_runner(take_over, log, port, reach, _LEASE_S))
        (take_over.folder / "holder.told").write_text(answer)


def _tell_of_intent(take_over: _TakeOver) -> Reach:
    """Return a `reach` that says when this process passes the point from which on it is to be stopped."""

    def reach(name: str) -> None:
        if take_over.point.endswith(name):
            (take_over.folder / "begun").touch()

    return reach


async def _take(take_over: _TakeOver, port: int | None) -> None:
    try:
        async with _open(take_over.database, busy_timeout_s=_LOCK_WAIT_S) as log:
            answer = await _answer(_runner(take_over, log, port))
    except EventLogError as error:
        answer = error.code
    (take_over.folder / "taker.told").write_text(answer)


async def _settle(take_over: _TakeOver, port: int | None) -> None:
    """Resume once more; if nobody can tell, be the person who looks and says so."""
    async with _open(take_over.database) as log:
        runner = _runner(take_over, log, port)
        answer = await _answer(runner)
        if answer == "outcome_unknown":
            if await _reconcile(runner, take_over) == "verdict_stale":  # it was looked too early: he looks again
                await _reconcile(runner, take_over)
            await _answer(runner)


async def _reconcile(runner: eventlog.Runner, take_over: _TakeOver) -> str:
    """Look at the receiver and say what happened; return what was told to that."""
    version = (await runner.state(RUN)).version
    verdict = "executed" if take_over.effects() else "not_executed"
    try:
        await runner.reconcile(RUN, verdict, evidence="counted at the receiver", at_version=version)
    except EventLogError as error:
        return error.code
    return "settled"


def _open(path: Path, busy_timeout_s: float = 30) -> SqliteLog:
    log = eventlog.open(path, busy_timeout_s=busy_timeout_s)
    assert isinstance(log, SqliteLog)
    return log


def _runner(
    take_over: _TakeOver, log: SqliteLog, port: int | None, reach: Reach = pass_by, lease_s: float = 300
) -> eventlog.Runner:
    return eventlog.Runner(log, actions=receivers.actions(take_over.folder, port), lease_s=lease_s, reach=reach)


async def _answer(runner: eventlog.Runner) -> str:
    try:
        return (await runner.resume(RUN)).result or ""
    except EventLogError as error:
        return error.code

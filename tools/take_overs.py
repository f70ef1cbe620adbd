"""Processes that are stopped in the middle of an effect, taken over when their lease has run out, and woken up again.

    python tools/take_overs.py [--count N] [--receiver NAME] [--lease-s S] [--anywhere [--seed N]] [--control NAME]

A holder stops itself (SIGSTOP) at a failpoint from the durable intent on. When its lease has run out, another process,
the taker, resumes the run. Then the holder goes on (SIGCONT). It must learn that its claim is lost, unless it had
finished, and there must be no second effect: none at a receiver that can refuse, and where none can, because the taker
left the outcome unknown. At the end a person settles by what is there what nobody could tell, and every run is
completed with exactly one effect. With `--anywhere` holders are stopped from outside, at random moments: inside a
transaction, with the lock of the log in their hands, or between two failpoints.

`--control` breaks something on purpose, and the campaign must say so. `forgetful`: the HTTP receiver keeps no keys, so
effects are doubled. `unfenced`: the holder appends without an expected version, so it records a result after its claim.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this is a program: it runs from a clone

from tools.environment import continue_in_environment

if __name__ == "__main__":
    continue_in_environment()

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
from tools import receivers
from tools.race_resumers import UncheckedLog

__all__ = ["POINTS", "main", "stop_at"]

POINTS: Final = FAILPOINTS[FAILPOINTS.index(INTENT_AFTER_COMMIT) :]
RUN: Final = "run-1"
ANYWHERE: Final = ("anywhere behind " + INTENT_BEFORE_COMMIT, "anywhere behind " + INTENT_AFTER_COMMIT)
TOLD_ANYWHERE: Final = {
    # `lease_used_up`: it had used up half of its lease before it could begin, and did nothing
    "holder": {"already_completed", "claim_lost", "executed", "lease_used_up", "run_conflict"},
    # `store_busy`: the holder sleeps with the lock of the log
    "taker": {"already_completed", "executed", "outcome_unknown", "recovered", "store_busy"},
}
_LOCK_WAIT_S: Final = 0.5
_LAST_MOMENT_S: Final = 0.008
_CHILD_S: Final = 30
_MAX_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class TakeOver:
    """One holder that is stopped at `point` while it acts on `receiver`, in a folder and a log of its own."""

    receiver: str
    point: str
    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "runs.db"

    @property
    def name(self) -> str:
        return f"{self.receiver} stopped at {self.point}"

    def told(self, who: str) -> str:
        """Return what the process `who` was told."""
        path = self.folder / f"{who}.told"
        return path.read_text() if path.exists() else "nothing"

    def effects(self) -> int:
        return receivers.effects(self.receiver, self.folder, self.database)[RUN]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign and print one JSON object; the exit status says whether it found nothing wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--receiver", choices=receivers.RECEIVERS, action="append")
    parser.add_argument("--lease-s", type=float, default=0.5)
    parser.add_argument("--anywhere", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", choices=("forgetful", "unfenced"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = _campaign(Path(folder), options)
    print(json.dumps(report, sort_keys=True))
    return 1 if report["wrong"] else 0


def _campaign(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Take holders over, as many at a time as there are points, until `count` of them were stopped."""
    named = options.receiver or receivers.RECEIVERS
    generator = random.Random(options.seed)
    all_points = tuple(islice(cycle(ANYWHERE), len(POINTS))) if options.anywhere else POINTS
    wrong: list[str] = []
    moments: Counter[str] = Counter()
    told: dict[str, Counter[str]] = {who: Counter() for who in ("holder", "taker", "settler")}
    round_number = done = 0
    while done < options.count and not wrong:
        receiver = named[round_number % len(named)]
        points: list[str] = list(islice(all_points, options.count - done))
        done += len(points)
        for attempt in range(_MAX_TRIES):
            place = folder / f"{round_number}-{attempt}"
            batch = [TakeOver(receiver, point, place / f"{n}-{point}") for n, point in enumerate(points)]
            finished = _take_over_all(batch, options, generator, wrong)
            for take_over in finished:
                _judge(take_over, moments, wrong)
                for who, counter in told.items():
                    counter[take_over.told(who)] += 1
            points = [take_over.point for take_over in batch if take_over not in finished]
            moments["not stopped"] += len(points)
            if not points:
                break
        wrong += [f"{receiver} stopped at {point}: nobody passed it" for point in points]
        round_number += 1
    return {
        "take_overs": done,
        "receivers": list(named),
        "seed": options.seed if options.anywhere else None,
        "claims": moments["run_claimed"],
        "ended_before_they_were_stopped": moments["not stopped"],
        "told": {who: dict(counter) for who, counter in told.items()},
        "wrong": wrong[:20],
    }


def _take_over_all(
    batch: list[TakeOver], options: argparse.Namespace, generator: random.Random, wrong: list[str]
) -> list[TakeOver]:
    """Let every holder of the batch be stopped, taken over, woken and settled; return those that were stopped."""
    holders: dict[int, TakeOver] = {}
    with ExitStack() as servers:
        ports = {each: _prepare(each, servers, is_forgetful=options.control == "forgetful") for each in batch}
        try:
            for each in batch:
                holders[holder := _fork(partial(_hold, each, ports[each], options))] = each
                if each.point in ANYWHERE:
                    _stop_soon(holder, each, generator.uniform(0, _LAST_MOMENT_S))
            stopped = [pid for pid in holders if _is_stopped(pid)]
            time.sleep(options.lease_s + 0.05)
            _end_all([_fork(partial(_take, holders[pid], ports[holders[pid]])) for pid in stopped], wrong)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            _end_all(stopped, wrong)
        finally:
            for pid in holders:
                _kill(pid)
        finished = [holders[pid] for pid in stopped]
        wrong += [f"{each.name}: {each.effects()} effects" for each in finished if each.effects() > 1]
        _end_all([_fork(partial(_settle, each, ports[each])) for each in finished], wrong)
    return finished


# ── what must be true afterwards ──────────────────────────────────────────────────────────────────────────────────────
def _judge(take_over: TakeOver, moments: Counter[str], wrong: list[str]) -> None:
    for who, expected in _expected(take_over).items():
        if take_over.told(who) not in expected:
            wrong.append(f"{take_over.name}: the {who} was told {take_over.told(who)}, not {' or '.join(expected)}")
    if (effects := take_over.effects()) != 1:
        wrong.append(f"{take_over.name}: {effects} effects at the end")
    wrong += [f"{take_over.name}: {problem}" for problem in asyncio.run(_audit(take_over, moments))]


def _expected(take_over: TakeOver) -> Mapping[str, Collection[str]]:
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


async def _audit(take_over: TakeOver, moments: Counter[str]) -> list[str]:
    """Return what is wrong in the log: damage, a run that is not completed, or one with two results."""
    async with eventlog.open(take_over.database) as log:
        page = await log.check_page(after=0)
        runner = eventlog.Runner(log)
        run = await runner.state(RUN)
        types = Counter(event.type for event in await runner.trace(RUN))
    moments.update(types)
    wrong = [f"position {problem.position}: {problem.message}" for problem in page.problems]
    if run.status != "COMPLETED":
        wrong.append(f"the run ended as {run.status}")
    results = sum(types[name] for name in ("action_executed", "action_recovered"))
    if results > 1:
        wrong.append(f"{results} results were recorded")
    return wrong


# ── what each process does ────────────────────────────────────────────────────────────────────────────────────────────
def _prepare(take_over: TakeOver, servers: ExitStack, *, is_forgetful: bool) -> int | None:
    """Approve a run and make its receiver; return the port of the server, where it is one."""
    take_over.folder.mkdir(parents=True)
    port = None
    if take_over.receiver == "http":
        port = servers.enter_context(receivers.Server(take_over.folder, is_forgetful=is_forgetful)).port
    asyncio.run(_approve(take_over, port))
    receivers.prepare(take_over.folder, take_over.database)
    return port


async def _approve(take_over: TakeOver, port: int | None) -> None:
    async with eventlog.open(take_over.database) as log:
        runner = eventlog.Runner(log)
        proposal = receivers.proposal(take_over.receiver, RUN, take_over.folder, port)
        await runner.propose(RUN, proposal)
        await runner.approve(RUN, proposal.hash)


def stop_at(target: str) -> Reach:
    """Return a `reach` that stops this process at the point `target`, once, until somebody continues it.

    One that was too slow to begin its effect, and only records that, is not stopped: it is no holder worth taking over.
    """
    has_begun, is_done = target == INTENT_AFTER_COMMIT, False

    def reach(name: str) -> None:
        nonlocal has_begun, is_done
        has_begun = has_begun or name == EFFECT_INSIDE
        if name == target and has_begun and not is_done:
            is_done = True
            # To this very thread: it stops before the next instruction, wherever the others are.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    return reach


async def _hold(take_over: TakeOver, port: int | None, options: argparse.Namespace) -> None:
    async with eventlog.open(take_over.database) as log:
        used: Any = UncheckedLog(log) if options.control == "unfenced" else log
        reach = _tell_of_intent(take_over) if take_over.point in ANYWHERE else stop_at(take_over.point)
        answer = await _answer(_runner(take_over, used, port, reach, options.lease_s))
        (take_over.folder / "holder.told").write_text(answer)


def _tell_of_intent(take_over: TakeOver) -> Reach:
    """Return a `reach` that says when this process passes the point from which on it is to be stopped."""

    def reach(name: str) -> None:
        if take_over.point.endswith(name):
            (take_over.folder / "begun").touch()

    return reach


async def _take(take_over: TakeOver, port: int | None) -> None:
    try:
        async with eventlog.open(take_over.database, busy_timeout_s=_LOCK_WAIT_S) as log:
            answer = await _answer(_runner(take_over, log, port))
    except EventLogError as error:
        answer = error.code
    (take_over.folder / "taker.told").write_text(answer)


async def _settle(take_over: TakeOver, port: int | None) -> None:
    """Resume once more; if nobody can tell, be the person who looks and says so."""
    async with eventlog.open(take_over.database) as log:
        runner = _runner(take_over, log, port)
        answer = await _answer(runner)
        if answer == "outcome_unknown":
            verdict = "executed" if take_over.effects() else "not_executed"
            await runner.reconcile(RUN, verdict, evidence="counted at the receiver")
            answer = f"reconciled as {verdict}, then {await _answer(runner)}"
        (take_over.folder / "settler.told").write_text(answer)


def _runner(
    take_over: TakeOver, log: SqliteLog, port: int | None, reach: Reach = pass_by, lease_s: float = 300
) -> eventlog.Runner:
    return eventlog.Runner(log, actions=receivers.actions(take_over.folder, port), lease_s=lease_s, reach=reach)


async def _answer(runner: eventlog.Runner) -> str:
    try:
        return (await runner.resume(RUN)).result or ""
    except EventLogError as error:
        return error.code


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _fork(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `work` in a forked process; nobody has a log open yet. Return its id."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            asyncio.run(work())
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    return child


def _stop_soon(holder: int, take_over: TakeOver, after_s: float) -> None:
    """Stop the holder from outside, so long after it has passed the point."""
    until_s = time.monotonic() + _CHILD_S
    while not (take_over.folder / "begun").exists():
        assert time.monotonic() < until_s, "the holder did not begin"
        time.sleep(0.0002)
    time.sleep(after_s)
    os.kill(holder, signal.SIGSTOP)


def _is_stopped(pid: int) -> bool:
    """Wait until a process stops or ends, and say whether it stopped."""
    return os.WIFSTOPPED(_change_of(pid, os.WUNTRACED))


def _end_all(pids: Sequence[int], wrong: list[str]) -> None:
    """Wait until each process has ended."""
    for pid in pids:
        status = os.waitstatus_to_exitcode(_change_of(pid, 0))
        if status != 0:
            wrong.append(f"a process ended with {status}")


def _change_of(pid: int, options: int) -> int:
    until_s = time.monotonic() + _CHILD_S
    while time.monotonic() < until_s:
        found, status = os.waitpid(pid, options | os.WNOHANG)
        if found:
            return status
        time.sleep(0.002)
    raise TimeoutError(f"process {pid} neither stopped nor ended in {_CHILD_S} s")


def _kill(pid: int) -> None:
    """End a process of ours that is still there: a stopped one would stay for ever."""
    try:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # it has ended, and that was seen


if __name__ == "__main__":
    raise SystemExit(main())

"""Two processes that say opposite things about one run at the same moment: the order of the log decides.

    approve, reject    one of them is recorded, and the other is told `approval_not_pending`
    approve, expire    in the moment in which nobody may decide any more: it was approved in time, or it expired
    approve, cancel    what is cancelled is not approved any more; what was approved before is cancelled as well
    resume, cancel     an effect that has begun before the cancellation is recorded; none begins behind it

Both are told what became of what they said, and the run, its events and its effects must agree with that. Before them
somebody approves something else than was asked, which counts for nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import eventlog
from eventlog import Policy
from eventlog.errors import EventLogError
from eventlog.run import Run
from eventlog.stores import SqliteLog
from tools.campaigns.effects import counting_receivers as receivers
from tools.campaigns.frame.campaign import Work
from tools.campaigns.processes.barrier import Barrier
from tools.campaigns.processes.in_child import leave

__all__ = ["race_verdicts"]

KINDS: Final = (("approve", "reject"), ("approve", "expire"), ("approve", "cancel"), ("resume", "cancel"))
_AT_ONCE: Final = 5
_EXPIRES_S: Final = 0.4
_LAST_MOMENT_S: Final = 0.004
_DONE: Final = "done"
_OTHER_HASH: Final = "0" * 64
_NOT_THAT: Final = frozenset({"proposal_hash_mismatch", "approval_expired"})
"""What is told to who approves something else than was asked, on a slow machine too late at that."""


@dataclass(frozen=True, slots=True)
class _Heat:
    """Some runs about which two processes say this and that."""

    folder: Path
    kind: tuple[str, str]
    proposals: Mapping[str, eventlog.Proposal]

    @property
    def database(self) -> Path:
        return self.folder / "runs.db"

    @property
    def policies(self) -> dict[str, Policy]:
        """The terms on which is asked."""
        return {"line": Policy(expires_in_s=_EXPIRES_S)} if "expire" in self.kind else {}


def race_verdicts(work: Work, folder: Path) -> None:
    """Race until there were enough, each kind in turn."""
    number, told = 0, Counter[str]()
    while work.counts["verdict_races"] < work.goal("verdict_races") and number < work.goal("verdict_races"):
        kind = KINDS[number % len(KINDS)]
        case = f"{kind[0]}-{kind[1]}-{number}"
        number += 1
        if work.wants(case):
            place = folder / case
            place.mkdir()
            _race(work, place, kind, case, told)
    work.notes["verdicts"] = "; ".join(f"{count} {what}" for what, count in told.most_common())


def _race(work: Work, folder: Path, kind: tuple[str, str], case: str, told: Counter[str]) -> None:
    names = [f"run-{number}" for number in range(_AT_ONCE)]
    heat = _Heat(folder, kind, {name: receivers.proposal("line", name, folder) for name in names})
    until_us, told_of_other = asyncio.run(_prepare(heat))
    if not told_of_other <= _NOT_THAT:
        work.violation("I7", case, f"who approved something else was told {sorted(told_of_other)}")
    answers = _say_both(work, heat, until_us, case)
    if answers is None:
        return
    runs = asyncio.run(_settled(heat))
    effects = receivers.effects("line", folder, heat.database)
    for name, (run, types) in runs.items():
        first, second = (each[name] for each in answers)
        work.count("verdict_races")
        told[f"{kind[0]} {first}, {kind[1]} {second}"] += 1
        for invariant, what in _wrong(_EXPECTED[kind].get((first, second)), run, types, effects[name]):
            both = f"{kind[0]} was told {first}, {kind[1]} {second}"
            seen = f"{name} is {run.status.value} with {effects[name]} effects"
            work.violation(invariant, case, f"{seen}; {both}: {what}")


async def _prepare(heat: _Heat) -> tuple[int, set[str]]:
    """Propose the runs, and approve them if they are to be resumed.

    Return when the last of them expires, and what was told to who approved something else.
    """
    until_us, told = 0, set()
    async with _open(heat) as log:
        runner = eventlog.Runner(log, policies=heat.policies, actions=receivers.actions(heat.folder))
        for name, proposal in heat.proposals.items():
            outcome = await runner.propose(name, proposal)
            until_us = outcome.run.expires_at_us or 0
            told.add(await _told(runner, "approve", name, _OTHER_HASH))
            if heat.kind[0] == "resume":
                await runner.approve(name, proposal.hash)
    return until_us, told


def _say_both(work: Work, heat: _Heat, until_us: int, case: str) -> list[dict[str, str]] | None:
    """Let both processes speak; return what each was told about each run."""
    barrier = Barrier(2)
    children = {}
    for party, verb in enumerate(heat.kind):
        # What is said takes its time until it is in the log, so who approves begins earlier.
        after_s = work.chance(f"{case}-{party}").uniform(-_LAST_MOMENT_S * (15, 1)[party], _LAST_MOMENT_S)
        path = heat.folder / f"{verb}.told"
        child = os.fork()
        if child == 0:
            leave(partial(_speak, heat, verb, barrier, party, until_us + round(after_s * 1e6), path))
        children[child] = path
    answers: list[dict[str, str]] = []
    for child, path in children.items():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            work.violation("I9" if status == -signal.SIGALRM else "I8", case, f"a process ended with {status}")
        else:
            answers.append(json.loads(path.read_text()))
    return answers if len(answers) == len(children) else None


async def _speak(heat: _Heat, verb: str, barrier: Barrier, party: int, at_us: int, path: Path) -> None:
    async with _open(heat) as log:
        runner = eventlog.Runner(log, policies=heat.policies, actions=receivers.actions(heat.folder))
        barrier.wait(party, 1)
        while "expire" in heat.kind and time.time_ns() // 1000 < at_us:
            os.sched_yield()
        told = await asyncio.gather(*(_told(runner, verb, name, each.hash) for name, each in heat.proposals.items()))
    path.write_text(json.dumps(dict(zip(heat.proposals, told, strict=True))))


def _open(heat: _Heat) -> SqliteLog:
    return eventlog.open(heat.database, durability="normal", busy_timeout_s=30)


async def _told(runner: eventlog.Runner, verb: str, name: str, digest: str) -> str:
    verbs: dict[str, Callable[[], Awaitable[object]]] = {
        "approve": lambda: runner.approve(name, digest, actor="anna"),
        "reject": lambda: runner.reject(name, digest, actor="bert"),
        "expire": lambda: runner.expire(name),
        "cancel": lambda: runner.cancel(name),
        "resume": lambda: runner.resume(name),
    }
    try:
        await verbs[verb]()
    except EventLogError as error:
        return error.code
    return _DONE


async def _settled(heat: _Heat) -> dict[str, tuple[Run, list[str]]]:
    """Return each run as both have left it, and the types of its events once somebody has tried to resume it."""
    async with _open(heat) as log:
        runner = eventlog.Runner(log, policies=heat.policies, actions=receivers.actions(heat.folder))
        runs = {}
        for name in heat.proposals:
            run = await runner.state(name)
            await _told(runner, "resume", name, "")
            runs[name] = run, [event.type for event in await runner.trace(name)]
        return runs


# ── what must be true afterwards ──────────────────────────────────────────────────────────────────────────────────────
_Told = tuple[str, str]
"""What two processes were told, or what they said."""
_Outcome = tuple[tuple[str, ...], int]
"""How a run may stand then, and how many effects there are once it was resumed."""
_EXPECTED: Final[Mapping[_Told, Mapping[_Told, _Outcome]]] = {
    ("approve", "reject"): {
        (_DONE, "approval_not_pending"): (("APPROVED",), 1),
        ("approval_not_pending", _DONE): (("REJECTED",), 0),
    },
    ("approve", "expire"): {
        (_DONE, _DONE): (("APPROVED",), 1),
        ("approval_expired", _DONE): (("EXPIRED",), 0),
        ("approval_not_pending", _DONE): (("EXPIRED",), 0),
    },
    ("approve", "cancel"): {
        (_DONE, _DONE): (("CANCELLED",), 0),
        ("approval_not_pending", _DONE): (("CANCELLED",), 0),
    },
    ("resume", "cancel"): {
        (_DONE, "cannot_cancel"): (("COMPLETED",), 1),
        (_DONE, _DONE): (("CANCELLED",), 1),  # it had begun, and what came of it is recorded
        ("run_conflict", _DONE): (("CANCELLED",), 0),
        ("cannot_resume", _DONE): (("CANCELLED",), 0),
    },
}


def _wrong(expected: _Outcome | None, run: Run, types: list[str], effects: int) -> list[tuple[str, str]]:
    """Return what does not agree with what both were told."""
    status = run.status.value
    if expected is None:
        return [("I8", "neither of them may be told that together with the other")]
    statuses, count = expected
    wrong: list[tuple[str, str]] = []
    if status not in statuses:
        wrong.append(("I1", f"it should be {' or '.join(statuses)}"))
    ends = [number for number, type in enumerate(types) if type in ("run_cancelled", "approval_expired")]
    if ends and "resume_started" in types[ends[0] :]:
        wrong.append(("I7", f"an effect began behind the end: {types}"))
    if effects != count:
        wrong.append(("I7" if effects > count else "I6", f"there should be {count} effects"))
    return wrong

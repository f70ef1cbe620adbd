"""What a simulated process does: it starts runs, resumes them, lets people say things, and works until it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from eventlog.errors import CommitOutcomeUnknown, EventLogError, StoreBusy
from eventlog.events import Owner
from eventlog.log import Expect, NewEvent
from eventlog.progress import requests_of
from eventlog.proposal import propose
from eventlog.run import Run
from eventlog.runtime import claims
from eventlog.runtime.runner import Runner
from eventlog.runtime.worker import Worker
from tools.campaigns.simulation import kernel
from tools.campaigns.simulation.kernel import PLACE
from tools.campaigns.simulation.notes import Note
from tools.campaigns.simulation.plan import Start
from tools.campaigns.simulation.store import Port
from tools.campaigns.simulation.stories import STORIES
from tools.campaigns.simulation.world import CANCELLED, Living

__all__ = ["live", "requests", "verdict"]

_LEAST: Final = {"mixed": 0.0, "eager": 0.0, "dissenting": 0.5}
"""Where the range begins from which its next operation is drawn."""

_PEOPLE: Final = ("anna", "bert", "cleo")
_PONDERED_S: Final = (0.0, 0.5, 20.0)


async def live(process: Living) -> None:
    """Do what the plan says for this process, in a random order, much of it at the same time."""
    world, machine = process.world, process.machine
    await asyncio.sleep(machine.begins_at_s)
    async with Port(world.disk, process) as port:
        runner = world.runner(port)
        worker = Worker(runner, grace_s=5.0) if machine.is_worker else None
        working = asyncio.ensure_future(world.call(process, "work", worker.run())) if worker is not None else None
        doing = [
            asyncio.ensure_future(_start(process, runner, start))
            for start in world.plan.starts
            if machine.name == f"process-{start.machine}"
        ]
        for _ in range(machine.operations):
            await asyncio.sleep(world.chance.expovariate(1 / machine.pause_s))
            doing.append(asyncio.ensure_future(_operate(process, runner)))
            if world.chance.random() < 0.6:
                await asyncio.wait(doing[-1:])
        await asyncio.gather(*doing)
        if worker is not None and working is not None:
            worker.stop()
            await working


async def _start(process: Living, runner: Runner, start: Start) -> None:
    world = process.world
    if start.story is None:
        (kind,) = start.args
        await world.call(process, "propose", runner.propose(start.run_id, propose(kind, {"n": 0}, kind)))
        return
    begin = runner.start if world.chance.random() < 0.7 else runner.submit
    await world.call(process, "start", begin(STORIES[start.story], start.run_id, *start.args), _timeout_s(process))


def _timeout_s(process: Living) -> float | None:
    """Return how long the caller waits, None if he does so to the end."""
    chance = process.world.chance
    return chance.random() * 2.0 if chance.random() < 0.1 else None


async def _operate(process: Living, runner: Runner) -> None:
    """Do one thing to one run."""
    world, chance = process.world, process.world.chance
    run_id = world.plan.starts[int(chance.random() * len(world.plan.starts))].run_id
    if world.plan.has_notes and chance.random() < 0.4:
        await _note(process, runner.log)
        return
    drawn = _LEAST[process.machine.mood] + chance.random() * (1.0 - _LEAST[process.machine.mood])
    if process.machine.mood == "eager":
        drawn *= 0.7
    if drawn < 0.45:
        await world.call(process, f"resume {run_id}", runner.resume(run_id), _timeout_s(process))
    elif drawn < 0.5:
        await world.call(process, f"signal {run_id}", runner.signal(run_id, "go", chance.choice((1, 2))))
    elif drawn < 0.54:
        await world.call(process, f"expire {run_id}", runner.expire(run_id))
    elif drawn < 0.58:
        await world.call(process, f"cancel {run_id}", runner.cancel(run_id))
    else:
        await _say(process, runner, run_id)


async def _say(process: Living, runner: Runner, run_id: str) -> None:
    """Let a person look at the run, and say something about one of its requests."""
    world, chance = process.world, process.world.chance
    run = await world.call(process, f"state {run_id}", runner.state(run_id))
    if not isinstance(run, Run):
        return
    asked = requests(run)
    if not asked:
        return
    request = asked[int(chance.random() * len(asked))]
    if _is_at_stake(request):
        await _reconcile(process, runner, request, run.version)
        return
    person, named = chance.choice(_PEOPLE), request.request_id
    drawn = chance.random() * (0.3 if process.machine.mood == "dissenting" else 1.0)
    if drawn < 0.15:
        await world.call(process, f"revoke {run_id}", runner.revoke(run_id, request=named, actor=person))
    elif drawn < 0.27:
        args = {"n": int(chance.random() * 100)}
        edit = runner.edit(run_id, request=named, args=args, approves=chance.random() < 0.5, actor=person)
        await world.call(process, f"edit {run_id}", edit)
    else:
        decide = runner.reject if drawn < 0.34 else runner.approve
        say = decide(run_id, request.proposal_hash or "", request=named, actor=person)
        answer = await world.call(process, f"decide {run_id}", say)
        if answer is not CANCELLED and not isinstance(answer, EventLogError) and chance.random() < 0.7:
            await world.call(process, f"resume {run_id}", runner.resume(run_id), _timeout_s(process))


async def _reconcile(process: Living, runner: Runner, request: Run, version: int) -> None:
    """Look what became of an effect of which nobody knows, and say so, if that could be seen: after a while.

    `version` is that of the run that was read. Meanwhile others look, say and do as well.
    """
    world, run_id = process.world, request.run_id
    said = verdict(process, request)
    if said is None:
        return
    await asyncio.sleep(world.chance.random() * world.chance.choice(_PONDERED_S))
    settle = runner.reconcile(run_id, said, evidence="somebody looked", request=request.request_id, at_version=version)
    answer = await world.call(process, f"reconcile {run_id} {said}", settle)
    world.counts["verdicts"] += 1
    world.counts["stale verdicts"] += getattr(answer, "code", None) == "verdict_stale"


def requests(run: Run) -> Sequence[Run]:
    """Return the requests of a run; a run of one action is one itself."""
    return requests_of(run) if run.progress is not None else (run,)


def _is_at_stake(request: Run) -> bool:
    return request.is_unknown or request.open_intent is not None


def verdict(process: Living, request: Run) -> str | None:
    """Return what became of the effect, as its receiver shows it; None while nobody can know.

    That it has happened stays true. That it has not is what somebody sees who looks when nothing is under way and
    nobody who was overruled lives. Whether that is still so when it is said is for the engine to know.
    """
    world = process.world
    op_key = request.op_key or ""
    world.receivers.collect_rows()
    if world.receivers.holds(op_key):
        return "executed"
    if world.is_calm:
        return "not_executed"
    may_come = world.receivers.under_way[op_key] or any(map(_may_live, request.strays))
    return None if may_come else "not_executed"


def _may_live(owner: Owner) -> bool:
    file_id, _ = claims._parts(owner.lock)
    return kernel.lock_state(claims._path(PLACE, file_id)) == "held"


async def _note(process: Living, log: Any) -> None:
    """Append something that is no event of a run, and remember what was said of it."""
    world, chance = process.world, process.world.chance
    event = NewEvent("noted", {"by": process.name, "step": process.steps})
    note = Note(stream=f"notes-{int(chance.random() * 2)}", event_id=event.event_id)
    world.notes.append(note)
    for _ in range(1 + int(chance.random() * 3)):
        note.in_doubt += 1  # also if its process dies, and is told nothing
        append = log.append(note.stream, [event], expect=Expect.any())
        answer = await world.call(process, "note", append, _timeout_s(process))
        if isinstance(answer, StoreBusy):
            note.in_doubt -= 1
        elif not isinstance(answer, EventLogError) and answer is not CANCELLED:
            note.acknowledge(answer)
            return
        elif isinstance(answer, EventLogError) and not isinstance(answer, CommitOutcomeUnknown):
            world.wrong.append(("I8", f"a note was refused: {answer!r}"))

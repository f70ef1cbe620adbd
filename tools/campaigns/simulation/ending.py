"""The end of a simulation: all faults have stopped, and everybody does what is left until nothing is.

Clocks are set right, which behind a clock that was years ahead means: to the time of the log, which never runs back.
People decide on what is asked, and find out from the receivers what became of an effect of which nobody knows.
"""

from __future__ import annotations

import asyncio
from typing import Final

from eventlog.errors import EventLogError
from eventlog.progress import requests_of
from eventlog.run import Run, Status
from eventlog.runtime.runner import Runner
from tools.campaigns.simulation.kernel import NOON_US
from tools.campaigns.simulation.living import requests, verdict
from tools.campaigns.simulation.plan import Machine
from tools.campaigns.simulation.store import Port
from tools.campaigns.simulation.world import Living, World

__all__ = ["finish"]

_MAX_ROUNDS: Final = 40
_MAX_FAILURES: Final = 3
_PATIENT: Final = 3
"""How many leases in a row somebody waits who is told that the run is held, before he looks until when."""

_ENDED: Final = (Status.COMPLETED, Status.REJECTED, Status.EXPIRED, Status.CANCELLED, Status.COMPENSATED)
_PEOPLE: Final = ("dora", "emil", "fred")
_MICRO: Final = 1_000_000


async def finish(world: World) -> None:
    """Drive everything to its end, in one last process. What does not come there is noted as wrong."""
    world.calm()
    for process in world.living:
        world.loop.kill(process)
    await asyncio.sleep(world.receivers.longest_s + 1.0)
    host = world.plan.machines[0].host
    last = world.begin(Machine("the last", host, 0.0, 0.0, 0, "mixed", 0.0, False, ()), _end_all)
    await last.over


async def _end_all(process: Living) -> None:
    world = process.world
    async with Port(world.disk, process) as port:
        head_us = (await port.head()).recorded_at_us
        true_us = NOON_US + round(world.loop.time() * _MICRO)
        process.clock.ahead_us = max(0, head_us - true_us + 1)
        runner = world.runner(port)
        for start in world.plan.starts:
            await _end(process, runner, start.run_id)


async def _end(process: Living, runner: Runner, run_id: str) -> None:
    """Drive one run to its end."""
    world, failures, conflicts = process.world, 0, 0
    answer: object = None
    for _ in range(_MAX_ROUNDS):
        run = getattr(answer, "run", None) or await world.call(process, f"state {run_id}", runner.state(run_id))
        if isinstance(run, EventLogError):
            if run.code != "unknown_run":  # whoever was to start it had died
                world.wrong.append(("I9", f"{run_id} cannot be read at the end: {run!r}"))
            return
        failures += run.status is Status.FAILED
        if run.status in _ENDED or (failures and run.progress is None) or failures > _MAX_FAILURES:
            world.counts[f"runs {run.status.value}"] += 1
            return
        await _help(process, runner, run)
        answer = await world.call(process, f"resume {run_id}", runner.resume(run_id))
        if isinstance(answer, EventLogError) and answer.code in ("run_conflict", "claim_lost"):
            await asyncio.sleep(world.plan.lease_s + 1.0)
            conflicts += 1
            if conflicts == _PATIENT:
                _outlast(process, run)
    world.wrong.append(("I9", f"{run_id} does not end: it is {run.status.value}, and was told {answer!r}"))


def _outlast(process: Living, run: Run) -> None:
    """Let time pass until nobody holds the run any more.

    A clock that is set back between the moment when it is read for a claim and that when the claim is recorded makes
    the claim longer than a lease: by no more than it was set back.
    """
    plan = process.world.plan
    ends_us = [intent.deadline_us for each in requests(run) if (intent := each.open_intent) is not None]
    if run.progress is not None and run.progress.owner is not None:
        ends_us.append(run.progress.deadline_us)
    left_us = max(ends_us, default=0) - process.clock.now_us()
    if left_us > (plan.lease_s + plan.clock_error_s) * _MICRO:
        process.world.wrong.append(("I9", f"{run.run_id} is held for {left_us} µs, longer than any clock accounts for"))
    process.clock.ahead_us += max(0, left_us + 1)


async def _help(process: Living, runner: Runner, run: Run) -> None:
    """Do what the run waits for."""
    world = process.world
    for request in requests(run):
        if request.status is Status.WAITING_FOR_USER:
            await _decide(process, runner, request)
        elif request.is_unknown or request.open_intent is not None:
            said = verdict(process, request)
            assert said is not None, "all is calm"
            await _settle(process, runner, run, request, said)
    for wait in run.progress.waits if run.progress is not None else ():
        if wait.type == "signal":
            await world.call(process, f"signal {run.run_id}", runner.signal(run.run_id, "go", 7))
        elif wait.due_us is not None and wait.type in ("timer", "retry"):
            # It may be years away, if a clock jumped back in between: time passes on the clock alone.
            process.clock.ahead_us += max(0, wait.due_us - process.clock.now_us())


async def _settle(process: Living, runner: Runner, run: Run, request: Run, said: str) -> None:
    """Say what became of an effect. Nothing of it can change any more: who has to look again sees the same."""
    version = run.version
    for _ in range(2):
        settle = runner.reconcile(
            run.run_id, said, evidence="somebody looked", request=request.request_id, at_version=version
        )
        answer = await process.world.call(process, f"reconcile {run.run_id} {said}", settle)
        if getattr(answer, "code", None) != "verdict_stale":
            return
        again = await process.world.call(process, f"state {run.run_id}", runner.state(run.run_id))
        version = again.version


async def _decide(process: Living, runner: Runner, request: Run) -> None:
    """Let people approve until it is decided."""
    for person in _PEOPLE:
        approve = runner.approve(request.run_id, request.proposal_hash or "", request=request.request_id, actor=person)
        answer = await process.world.call(process, f"approve {request.run_id}", approve)
        if isinstance(answer, EventLogError):
            return
        run: Run = answer.run
        now = run if request.step is None else next(each for each in requests_of(run) if each.step == request.step)
        if now.status is not Status.WAITING_FOR_USER:
            return

"""What the other processes of the public cases do. Each function runs in a child of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import eventlog
from eventlog import Absent, Call, Executed, Expect, NewEvent, Promise, Recovered, WrongExpectedVersion
from eventlog.errors import ActionFailed, EventLogError, Refused
from eventlog.runtime.effects import Finding
from eventlog.runtime.failpoints import EFFECT_INSIDE, crash_at, pass_by
from projections import RunsTable, runs_view
from tools.campaigns.storage.log_files import open_file
from tools.campaigns.take_overs.stopping import stop_at

__all__ = [
    "Pay",
    "approves_or_rejects_many",
    "approves_or_rejects_one_in_threads",
    "fails_once_and_dies",
    "fails_once_or_pays",
    "insists_on_three_events",
    "lists_pending",
    "proposes",
    "resumes",
    "resumes_all",
    "resumes_and_is_stopped",
]


class Pay:
    """Adds a receipt to the target: run, op_key and amount. A checkable one can be asked."""

    name = "pay"

    def __init__(self, promise: str) -> None:
        self.promise = Promise(promise)
        if self.promise is Promise.CHECKABLE:
            self.inspect = self._inspect

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Pay."""
        call.reach(EFFECT_INSIDE)
        _add_receipt(call)
        return Executed(result={"paid": call.args["amount"]})

    async def _inspect(self, call: Call) -> Finding:
        path = Path(call.output)
        receipts = path.read_text().splitlines() if path.exists() else []
        found = [line for line in receipts if call.op_key in line]
        return Recovered(evidence=found[0], result={"paid": call.args["amount"]}) if found else Absent()


def _add_receipt(call: Call) -> None:
    with open(call.output, "a", encoding="utf-8") as receipts:
        receipts.write(f"{call.run_id} {call.op_key} {call.args['amount']}\n")


def _wait_for_the_start() -> None:
    print("READY", flush=True)
    sys.stdin.readline()


async def _answer(runner: eventlog.Runner, run_id: str) -> str:
    try:
        return (await runner.resume(run_id)).result or ""
    except EventLogError as error:
        return error.code


async def resumes(path: str, run_id: str, promise: str, crash: str = "") -> str:
    """Resume a payment, crashing at the point `crash` if there is one; return what was told."""
    async with open_file(path) as log:
        reach = crash_at(crash) if crash else pass_by
        return await _answer(eventlog.Runner(log, actions=[Pay(promise)], reach=reach), run_id)


async def resumes_all(path: str, promise: str, *run_ids: str) -> list[str]:
    """Resume payments one after the other; return what was told."""
    async with open_file(path) as log:
        runner = eventlog.Runner(log, actions=[Pay(promise)])
        return [await _answer(runner, run_id) for run_id in run_ids]


async def resumes_and_is_stopped(path: str, run_id: str, promise: str, point: str, lease_s: str) -> str:
    """Resume a payment, and stop at the point until somebody continues this process."""
    async with open_file(path) as log:
        runner = eventlog.Runner(log, actions=[Pay(promise)], lease_s=float(lease_s), reach=stop_at(point))
        return await _answer(runner, run_id)


class _FailsOnce(Pay):
    """Fails definitely at its first attempt."""

    async def execute(self, call: Call) -> Executed:
        if call.attempt == 1:
            raise ActionFailed("action_failed", "the bank is closed; nothing was sent")
        return await super().execute(call)


async def fails_once_and_dies(path: str, run_id: str, crash: str) -> str:
    """Resume a payment whose first attempt fails, and crash."""
    async with open_file(path) as log:
        runner = eventlog.Runner(log, actions=[_FailsOnce(Promise.OPAQUE)], reach=crash_at(crash))
        return await _answer(runner, run_id)


async def fails_once_or_pays(path: str, run_id: str) -> str:
    """Resume a payment of which only the first attempt fails."""
    async with open_file(path) as log:
        return await _answer(eventlog.Runner(log, actions=[_FailsOnce(Promise.OPAQUE)]), run_id)


async def proposes(path: str, run_id: str) -> list[Any]:
    """Pause a run for a decision, and end."""
    async with open_file(path, views=[runs_view()]) as log:
        proposal = eventlog.propose("pay", {"amount": 25}, "receipts")
        run = (await eventlog.Runner(log).propose(run_id, proposal)).run
        return [run.request_id, run.proposal_hash, (await log.head()).position]


async def lists_pending(path: str) -> dict[str, Any]:
    """List what waits for a decision, before anything else is done."""
    view = runs_view()
    async with open_file(path, views=[view]) as log:
        rows = await RunsTable(log, view).page()
        pending = [[row["request_id"], row["proposal_hash"], row["args"]] for row in rows if row["approval"] is None]
        return {"pending": pending, "position": (await log.head()).position}


async def approves_or_rejects_many(path: str, decision: str, count: str, proposal_hash: str) -> list[str]:
    """Decide on run-0, run-1, … as fast as possible; return what was told for each."""
    told = []
    async with open_file(path, busy_timeout_s=30) as log:
        runner = eventlog.Runner(log)
        _wait_for_the_start()
        for number in range(int(count)):
            told.append(await _decide(runner, decision, f"run-{number}", proposal_hash))
    return told


def approves_or_rejects_one_in_threads(path: str, run_id: str, proposal_hash: str, threads: str) -> list[str]:
    """Let every thread of this process wait at a barrier, and then decide on one run, one approving, one rejecting."""
    barrier = threading.Barrier(int(threads) + 1)
    told: list[str] = []

    async def decide(number: int) -> None:
        async with open_file(path, busy_timeout_s=30) as log:
            await asyncio.to_thread(barrier.wait)
            told.append(
                await _decide(eventlog.Runner(log), "reject" if number % 2 else "approve", run_id, proposal_hash)
            )

    started = [threading.Thread(target=lambda n=number: asyncio.run(decide(n))) for number in range(int(threads))]
    for thread in started:
        thread.start()
    _wait_for_the_start()
    barrier.wait()
    for thread in started:
        thread.join()
    return told


async def _decide(runner: eventlog.Runner, decision: str, run_id: str, proposal_hash: str) -> str:
    """Return `decided`, or the refusal with the decision that stands."""
    try:
        await (runner.approve if decision == "approve" else runner.reject)(run_id, proposal_hash)
    except Refused as error:
        return f"{error.code}:{error.details.get('existing_approval')}"
    return f"decided:{decision}"


async def insists_on_three_events(path: str, stream: str, version: str) -> dict[str, Any]:
    """Append three events where the stream was; after a refusal read it again, and send the same once more."""
    refusals: Counter[str] = Counter()
    events = [NewEvent("noted", {"n": number}) for number in range(3)]
    async with open_file(path, busy_timeout_s=30) as log:
        _wait_for_the_start()
        for _ in range(2):
            try:
                await log.append(stream, events, expect=Expect.at(int(version)))
            except WrongExpectedVersion as error:
                refusals[f"{error.expected}, actual {error.actual}"] += 1
                await log.read_stream(stream)
            else:
                break
    return {"ids": [event.event_id.hex() for event in events], "refusals": dict(refusals)}

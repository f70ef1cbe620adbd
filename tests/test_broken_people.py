"""What people do, and do twice, to runs that have ended, failed, or asked the same before: each by its symptom."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import Policy, RunContext, Worker
from eventlog.errors import EventLogError, Refused
from eventlog.events import (
    CheckpointSaved,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    SignalReceived,
    Status,
    run_stream,
)
from eventlog.log import RunLog, StreamSlice
from eventlog.progress import fold, requests_of
from eventlog.run import Run
from eventlog.testing.clock import FakeClock
from tests.effect_runs import give_verdict
from tests.test_progress import (
    ASKING,
    BEGUN,
    CLAIMED,
    FAILURE,
    LISTENING,
    asks,
    decides,
    folded,
    intends,
    pauses,
    samples,
)
from tests.workflow_runs import Calls, effect, events_of, progress_of, runner_for, state_of, types_in

KEYS = ("apply", "other", "new")


async def refused(command: Awaitable[Any]) -> EventLogError:
    """Return what refuses the command."""
    with pytest.raises(Refused) as refusal:
        await command
    return refusal.value


async def ask_of(runner: eventlog.Runner, step: str) -> Run:
    """Return the request of this step of run-1."""
    return next(request for request in requests_of(await state_of(runner)) if request.step == step)


# ── an end is an end ─────────────────────────────────────────────────────────────────────────────────────────────────

ENDS: dict[str, RunEvent] = {
    "COMPLETED": RunCompleted(),
    "FAILED": RunFailed(error=FAILURE),
    "REJECTED": RunFailed(error=FAILURE, status=Status.REJECTED),
    "EXPIRED": RunFailed(error=FAILURE, status=Status.EXPIRED),
    "CANCELLED": RunCancelled(actor_source="os"),
}

BEFORE: dict[str, tuple[RunEvent, ...]] = {
    "nothing was asked": (),
    "a request waits": (asks(), asks("other")),
    "a request is approved": (asks(), asks("other"), decides()),
    "an effect is under way": (asks(), asks("other"), decides(), intends()),
    "it pauses": (asks(), asks("other"), pauses(ASKING, LISTENING)),
}


def ended(before: str, end: str) -> Run:
    return folded(BEGUN, CLAIMED, *BEFORE[before], ENDS[end])


def those_that_move(end: str) -> list[Sequence[RunEvent]]:
    """Return the pairs of events behind an end after which the run stands otherwise, of all there can be."""
    found: list[Sequence[RunEvent]] = []
    takes_up = RunClaimed if end == "FAILED" else ()
    for before, key in product(BEFORE, KEYS):
        stood = ended(before, end)
        value = progress_of(stood).value
        behind = [event for event in samples(key) if not isinstance(event, takes_up)]
        for pair in product(behind, behind if key == "apply" else [ENDS[end]]):
            run = folded(*pair, start=ended(before, end))
            progress = progress_of(run)
            rests = progress.owner is None and not progress.waits and not progress.arrived
            if not rests or (run.status, run.failure, progress.value) != (stood.status, stood.failure, value):
                found.append(pair)
    return found


@pytest.mark.parametrize("end", ENDS)
def test_nothing_that_comes_behind_the_end_of_a_run_changes_how_it_ended(end: str) -> None:
    assert those_that_move(end) == []


@pytest.mark.parametrize("end", ENDS)
def test_a_fold_that_does_not_keep_an_end_is_found_out(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(fold, "_still_ended", lambda progress, changes: changes)
    moved = {type(event).__name__ for pair in those_that_move(end) for event in pair}
    assert {"RunCompleted", "RunCancelled", "CheckpointSaved", "ApprovalRevoked"} <= moved


@pytest.mark.parametrize("before", BEFORE)
def test_a_claim_takes_up_a_run_that_failed_and_no_other(before: str) -> None:
    for end in ENDS:
        run = folded(CLAIMED, start=ended(before, end))
        is_taken_up = run.status is Status.RUNNING and progress_of(run).owner is not None
        assert is_taken_up == (end == "FAILED")


IN_ITS_EFFECT = """
import asyncio, os, sys, eventlog

@eventlog.action("one", promise="opaque")
async def one(call):
    os.kill(os.getpid(), 9)

@eventlog.workflow
async def acts(run):
    await run.act("one", {}, output="x")

async def main():
    async with eventlog.open(sys.argv[1]) as log:
        runner = eventlog.Runner(log, workflows=[acts], actions=[one], policies={"one": eventlog.Policy(auto=True)})
        await runner.start(acts, "run-1")

asyncio.run(main())
"""


@eventlog.workflow
async def acts(run: RunContext) -> None:
    """The workflow of the process that dies, and something that it would do next."""
    try:
        await run.act("one", {}, output="x")
    except EventLogError:
        await run.act("two", {}, output="y")


@pytest.mark.parametrize("verdict", ["executed", "not_executed", "abandoned"])
async def test_a_run_that_was_cancelled_stays_so_when_a_person_settles_the_effect_whose_process_was_killed(
    tmp_path: Path, verdict: str
) -> None:
    path = tmp_path / "log.db"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", IN_ITS_EFFECT, str(path))
    assert await process.wait() == -9
    calls = Calls()
    async with eventlog.open(path) as log:
        policies = {"one": Policy(auto=True), "two": Policy(auto=True)}
        code = eventlog.workflow(name="acts", continues=[(await state_in(log)).progress.definition.fingerprint])
        runner = eventlog.Runner(
            log,
            workflows=[code(acts.function)],
            actions=[effect(calls, "one"), effect(calls, "two")],
            policies=policies,
        )
        assert (await runner.cancel("run-1")).status == "CANCELLED"
        settled = await give_verdict(runner, verdict, evidence="looked")
        assert settled.status == "CANCELLED" and progress_of(settled.run).owner is None
        assert (await refused(runner.resume("run-1"))).code == "cannot_resume"
        await Worker(runner).run(until_idle=True)
        assert calls.names == [] and (await state_of(runner)).status == "CANCELLED"
        early = ["transition_rejected"] if verdict == "not_executed" else []  # it was looked at too early, and again
        behind = ["run_claimed", "outcome_unknown", *early, "outcome_reconciled", "resume_rejected"]
        assert (await types_in(log))[-len(behind) :] == behind


async def state_in(log: RunLog) -> Run:
    return await eventlog.Runner(log).state("run-1")


async def test_a_run_that_failed_stays_so_when_a_person_settles_its_effect_and_says_why_it_failed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", IN_ITS_EFFECT, str(path))
    assert await process.wait() == -9
    async with eventlog.open(path) as log:
        await log.append_reserved(
            [eventlog.Append(run_stream("run-1"), [RunFailed(error=FAILURE)], eventlog.Expect.exists())]
        )
        settled = await give_verdict(eventlog.Runner(log), "not_executed", evidence="looked")
        assert (settled.status, settled.failure) == ("FAILED", FAILURE)
        assert [request.status for request in requests_of(settled.run)] == ["APPROVED"]


@eventlog.workflow
async def asks_two(run: RunContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(run.act("one", {}, output="x"))
        group.create_task(run.act("two", {}, output="y"))


async def test_an_edit_or_a_decision_does_not_bring_a_rejected_run_back_to_life(log: RunLog, clock: FakeClock) -> None:
    calls = Calls()
    runner = runner_for(log, clock, asks_two, actions=[effect(calls, "one"), effect(calls, "two")])
    first, second = (await runner.start(asks_two, "run-1")).requests
    await runner.reject("run-1", first.proposal_hash or "", request=first.request_id)
    assert (await runner.resume("run-1")).status == "REJECTED"
    asked = second.request_id
    for command in (
        runner.edit("run-1", args={"n": 1}, request=asked),
        runner.approve("run-1", second.proposal_hash or "", request=asked),
        runner.reject("run-1", second.proposal_hash or "", request=asked),
    ):
        assert (await refused(command)).code == "approval_not_pending"
    assert (await refused(runner.revoke("run-1", request=asked))).code == "cannot_revoke"
    assert (await state_of(runner)).status == "REJECTED" and calls.names == []


async def test_an_edit_in_a_run_that_failed_leaves_it_failed_and_a_resume_tries_what_failed_again(
    log: RunLog, clock: FakeClock
) -> None:
    calls = Calls()

    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.step("flaky", calls("flaky", fails=1)))
            group.create_task(run.act("one", {}, output="x"))

    runner = runner_for(log, clock, flow, actions=[effect(calls, "one")])
    assert (await runner.start(flow, "run-1")).status == "FAILED"
    edited = await runner.edit("run-1", args={"n": 2}, approves=True)
    assert (edited.status, edited.failure and edited.failure.code) == ("FAILED", "step_failed")
    assert (await runner.resume("run-1")).status == "COMPLETED"
    assert calls.counts() == {"flaky": 2, "one": 1}


def test_an_edit_in_a_run_that_was_given_free_in_the_middle_does_not_let_it_wait_for_that_alone() -> None:
    """A worker that stopped has left other work in it, which waits for nobody."""
    free = CheckpointSaved(status=Status.RUNNING, state_version=2, is_released=True)
    edit = asks(supersedes="approval:run-1:apply")
    run = folded(BEGUN, CLAIMED, asks(), free, edit)
    assert (run.status, progress_of(run).waits) == (Status.RUNNING, ())
    run = folded(BEGUN, CLAIMED, asks(), pauses(ASKING, LISTENING), SignalReceived(name="go"), edit)
    assert (run.status, progress_of(run).is_ready) == (Status.WAITING_FOR_USER, True)


# ── what is asked anew ───────────────────────────────────────────────────────────────────────────────────────────────


@eventlog.workflow
async def applies(run: RunContext) -> Any:
    return await run.act("apply", {"bad": True}, output="x")


def checked(calls: Calls) -> Any:
    """Return an action that refuses bad arguments before its effect."""

    def check(call: eventlog.Call) -> None:
        if call.args.get("bad"):
            raise eventlog.ActionFailed("too_bad", "no")

    @eventlog.action("apply", promise="opaque", check=check)
    async def apply(call: eventlog.Call) -> Any:
        calls.names.append("apply")
        return call.args

    return apply


async def test_what_was_edited_and_approved_after_a_check_refused_runs_at_the_next_resume(
    log: RunLog, clock: FakeClock
) -> None:
    """It used to tell the failure of what had been asked before, and to do nothing."""
    calls = Calls()
    runner = runner_for(log, clock, applies, actions=[checked(calls)])
    (request,) = (await runner.start(applies, "run-1")).requests
    await runner.approve("run-1", request.proposal_hash or "")
    assert (await runner.resume("run-1")).status == "FAILED"
    assert (await runner.revoke("run-1")).status == "FAILED"
    assert not progress_of(await state_of(runner)).failures
    await runner.edit("run-1", args={"bad": False}, approves=True)
    outcome = await runner.resume("run-1")
    assert (outcome.status, outcome.value, calls.names) == ("COMPLETED", {"bad": False}, ["apply"])


@eventlog.workflow
async def pays_twice(run: RunContext) -> None:
    await run.act("pay", {"to": "Ann"}, output="o")
    await run.act("pay", {"to": "Ann"}, output="o")


async def test_an_approval_that_is_sent_twice_does_not_approve_the_next_request_that_asks_the_same(
    log: RunLog, clock: FakeClock
) -> None:
    calls = Calls()
    runner = runner_for(log, clock, pays_twice, actions=[effect(calls, "pay")])
    (first,) = (await runner.start(pays_twice, "run-1")).requests
    hash = first.proposal_hash or ""
    await runner.approve("run-1", hash)
    (second,) = (await runner.resume("run-1")).requests
    assert second.proposal_hash == hash and second.request_id != first.request_id
    for again in (runner.approve("run-1", hash), runner.reject("run-1", hash)):
        error = await refused(again)
        assert error.code == "request_ambiguous"
        assert error.details["requests"] == [first.request_id, second.request_id]
    assert (await state_of(runner)).status == "WAITING_FOR_USER" and calls.names == ["pay"]
    await runner.approve("run-1", hash, request=second.request_id)
    assert (await runner.resume("run-1")).status == "COMPLETED"


async def test_nor_does_one_of_what_an_edit_has_closed(log: RunLog, clock: FakeClock) -> None:
    """However often the first was edited, somebody may still have sent an approval of what it asked at some time."""
    calls = Calls()

    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        await run.act("pay", {"n": 1}, output="o")
        await run.act("pay", {"n": 2}, output="o")

    runner = runner_for(log, clock, flow, actions=[effect(calls, "pay")])
    await runner.start(flow, "run-1")
    for amount in (2, 3):
        await runner.edit("run-1", args={"n": amount})
    await runner.approve("run-1", (await ask_of(runner, "pay")).proposal_hash or "")
    (second,) = (await runner.resume("run-1")).requests
    assert (await refused(runner.approve("run-1", second.proposal_hash or ""))).code == "request_ambiguous"
    assert calls.names == ["pay"]


async def test_a_decision_that_is_sent_twice_is_told_what_became_of_it_though_another_request_waits(
    log: RunLog, clock: FakeClock
) -> None:
    calls = Calls()

    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        await run.act("pay", {"n": 1}, output="o")
        await run.act("pay", {"n": 2}, output="o")

    runner = runner_for(log, clock, flow, actions=[effect(calls, "pay")])
    (first,) = (await runner.start(flow, "run-1")).requests
    await runner.approve("run-1", first.proposal_hash or "", actor="ann")
    await runner.resume("run-1")
    again = await refused(runner.approve("run-1", first.proposal_hash or "", actor="ann"))
    assert (again.code, again.details["decided_by"]) == ("approval_not_pending", "ann")


@pytest.mark.parametrize("other", ["k/edit-1", "k#edit-1", "k##edit-1"])
async def test_no_two_requests_of_a_run_have_one_id_whatever_the_keys_are(
    log: RunLog, clock: FakeClock, other: str
) -> None:
    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        await run.gather(*(run.act("pay", {}, output="o", key=key) for key in ("k", "k#", other)))

    runner = runner_for(log, clock, flow, actions=[effect(Calls(), "pay")])
    for request in (await runner.start(flow, "run-1")).requests:
        await runner.edit("run-1", request=request.request_id, args={"n": 1})
    found = requests_of(await state_of(runner))
    ids = [id for request in found for id in (request.request_id, *request.superseded)]
    assert len(set(ids)) == len(ids) == 6


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@eventlog.workflow
async def listens(run: RunContext) -> list[int]:
    return [await run.wait_for_signal("go", type=int) for _ in range(3)]


class _Counted:
    """A log that counts the events that are read of it."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read_stream(self, stream: str, **options: Any) -> StreamSlice:
        found = await self._log.read_stream(stream, **options)
        self.read += len(found.events)
        return found

    async def read_from_snapshot(self, stream: str) -> tuple[Any, StreamSlice]:
        snapshot, tail = await self._log.read_from_snapshot(stream)
        self.read += len(tail.events)
        return snapshot, tail


async def test_a_signal_reads_what_is_new_and_not_all_signals_before_it(log: RunLog, clock: FakeClock) -> None:
    counted = _Counted(log)
    runner = runner_for(counted, clock, listens)  # type: ignore[arg-type]
    await runner.start(listens, "run-1")
    before = counted.read
    for number in range(100):
        outcome = await runner.signal("run-1", "other", number)
        assert outcome.run.version == (await log.read_stream(run_stream("run-1"))).events[-1].version
    assert counted.read - before < 3 * 100


async def test_what_a_signal_has_returned_is_not_changed_by_the_next_one(log: RunLog, clock: FakeClock) -> None:
    runner = runner_for(log, clock, listens)
    await runner.start(listens, "run-1")
    outcomes = [await runner.signal("run-1", "other", number) for number in range(3)]
    assert [len(progress_of(outcome.run).signals["other"]) for outcome in outcomes] == [1, 2, 3]
    await runner.signal("run-1", "go", 1)
    assert [outcome.status for outcome in outcomes] == ["WAITING"] * 3


async def test_a_run_that_ended_or_moved_elsewhere_meanwhile_is_seen_by_the_next_signal(
    log: RunLog, clock: FakeClock
) -> None:
    runner, elsewhere = runner_for(log, clock, listens), runner_for(log, clock, listens)
    await runner.start(listens, "run-1")
    await runner.signal("run-1", "go", 1)
    assert (await elsewhere.resume("run-1")).status == "WAITING"
    await elsewhere.signal("run-1", "go", 2)
    signalled = (await runner.signal("run-1", "go", 3)).run
    assert signalled == await state_of(runner)
    assert (await elsewhere.resume("run-1")).value == [1, 2, 3]
    error = await refused(runner.signal("run-1", "go", 4))
    assert (error.code, (await types_in(log))[-1]) == ("cannot_signal", "transition_rejected")
    assert (await refused(runner.signal("run-2", "go", 4))).code == "unknown_run"


async def test_signals_of_many_senders_at_once_are_all_kept_once(log: RunLog, clock: FakeClock) -> None:
    runner = runner_for(log, clock, listens)
    await runner.start(listens, "run-1")
    await asyncio.gather(*(runner.signal("run-1", "other", number) for number in range(20)))
    sent = [event.payload for event in await events_of(log) if isinstance(event, SignalReceived)]
    assert sorted(int(bytes(payload)) for payload in sent) == list(range(20))
    assert (await runner.signal("run-1", "other", 20)).run == await state_of(runner)


# ── families ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@eventlog.workflow
async def kid(run: RunContext) -> None: ...


async def test_a_child_with_the_id_of_its_parent_is_told_that_the_run_exists(log: RunLog, clock: FakeClock) -> None:
    @eventlog.workflow
    async def own(run: RunContext, hands_off: bool) -> str | None:
        start = run.hand_off if hands_off else run.child
        try:
            await start(kid, run_id=run.run_id)
        except eventlog.StepFailed as error:
            return error.error_type
        return None

    runner = runner_for(log, clock, own, kid)
    for number, hands_off in enumerate((False, True)):
        outcome = await runner.start(own, f"run-{number}", hands_off)
        assert (outcome.status, outcome.value) == ("COMPLETED", "run_exists")


@pytest.mark.parametrize("is_handled", [True, False])
async def test_a_child_that_failed_and_was_taken_up_by_itself_is_cancelled_with_its_parent(
    log: RunLog, clock: FakeClock, is_handled: bool
) -> None:
    calls = Calls()

    @eventlog.workflow
    async def grandchild(run: RunContext) -> None:
        await run.step("flaky", calls("flaky", fails=1))
        await run.act("pay", {}, output="x")

    @eventlog.workflow
    async def child(run: RunContext) -> None:
        await run.child(grandchild)

    @eventlog.workflow
    async def parent(run: RunContext) -> None:
        try:
            await run.child(child)
        except eventlog.StepFailed:
            if not is_handled:
                raise
        await run.wait_for_signal("never")

    runner = runner_for(log, clock, parent, child, grandchild, actions=[effect(calls, "pay")])
    outcome = await runner.start(parent, "run-1")
    assert outcome.status == ("WAITING" if is_handled else "FAILED")
    leaf = "run-1/child/grandchild"
    (request,) = (await runner.resume(leaf)).requests
    if not is_handled:
        assert (await runner.resume("run-1")).status == "WAITING"
    await runner.cancel("run-1")
    assert (await runner.state(leaf)).status == "CANCELLED"
    assert (await refused(runner.approve(leaf, request.proposal_hash or ""))).code == "approval_not_pending"
    assert calls.count("pay") == 0


async def test_a_verdict_that_is_sent_twice_does_not_settle_the_next_effect_that_nobody_knows_of(
    log: RunLog, clock: FakeClock
) -> None:
    @eventlog.action("pay", promise="opaque")
    async def pay(call: eventlog.Call) -> None:
        raise TimeoutError("no answer")

    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        await run.gather(run.act("pay", {"to": "ann"}, output="bank"), run.act("pay", {"to": "bob"}, output="bank"))

    runner = runner_for(log, clock, flow, actions=[pay], policies={"pay": Policy(auto=True)})
    first, second = requests_of((await runner.start(flow, "run-1")).run)
    assert (first.status, second.status) == ("OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN")
    settle = {"evidence": "looked", "request": first.request_id}
    await give_verdict(runner, "not_executed", **settle)  # type: ignore[arg-type]
    for again, code in ((settle, "outcome_not_unknown"), ({"evidence": "looked"}, "request_ambiguous")):
        with pytest.raises(Refused) as refusal:
            await give_verdict(runner, "not_executed", **again)
        assert refusal.value.code == code
    assert requests_of(await runner.state("run-1"))[1].status == "OUTCOME_UNKNOWN"

"""The state of a workflow run: a pure fold of its events, the same in pieces, and the same from a snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

import eventlog
from eventlog import Policy, Retry, RunContext
from eventlog.errors import EventTypeUnknown, InvalidInput, StepFailed
from eventlog.events import (
    NOTHING,
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ActionReplayed,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    ClaimRenewed,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    Definition,
    Failure,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    Parent,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResultRejected,
    ResumeRejected,
    ResumeStarted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    SignalReceived,
    SignalRejected,
    Status,
    StepCompleted,
    StepStarted,
    TimerFired,
    TimerSet,
    TransitionRejected,
    Waiting,
    run_stream,
)
from eventlog.events import StepFailed as StepFailedEvent
from eventlog.log import Append, Expect, RunLog, Snapshot
from eventlog.progress import Progress, advance, fold_stream, is_workflow, request_of, requests_of
from eventlog.proposal import propose
from eventlog.run import Run
from eventlog.runtime.drive.checkpoints import RUN_TAIL
from eventlog.snapshots import encode_snapshot, restore, snapshot_hash
from eventlog.testing.clock import FakeClock
from tests.workflow_runs import Calls, effect, progress_of, runner_for, state_of

RUN = "run-1"
PROPOSAL = propose("apply", {"n": 1}, "x")
HASH = PROPOSAL.hash
OWNER = Owner(host="h", boot="b", lock="l")
FAILURE = Failure(code="step_failed", message="no", type="OSError")
BEGUN = CheckpointSaved(
    status=Status.RUNNING,
    state_version=1,
    definition=Definition(workflow="flow", fingerprint="f" * 64),
    input=msgspec.Raw(b"[1]"),
)
CLAIMED = RunClaimed(epoch=2, owner=OWNER, deadline_us=9)


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def folded(*events: RunEvent, start: Run | None = None) -> Run:
    """Return the run after these events, the first of which is at the next version."""
    run = start or Run(run_id=RUN)
    for event in events:
        run = advance(run, event, version=run.version + 1, at_us=run.version + 1, actor="ann")
    return run


def asks(key: str = "apply", **options: Any) -> ProposalRecorded:
    return ProposalRecorded(
        step=key,
        request_id=f"approval:{RUN}:{key}",
        proposal=msgspec.Raw(PROPOSAL.canonical),
        proposal_hash=HASH,
        **options,
    )


def decides(key: str = "apply", decision: str = "approve", **options: Any) -> ApprovalRecorded:
    return ApprovalRecorded(
        step=key,
        request_id=f"approval:{RUN}:{key}",
        decision=decision,
        approval_hash=HASH,
        actor_source="os",
        **options,
    )


def intends(key: str = "apply") -> ResumeStarted:
    return ResumeStarted(
        step=key,
        op_key="k",
        attempt=1,
        epoch=2,
        owner=OWNER,
        deadline_us=9,
        approval_hash=HASH,
        input_hash=HASH,
    )


def done(key: str, *, group: str | None = None, output: str = '"v"') -> StepCompleted:
    return StepCompleted(name=key, key=key, output=raw(output), group=group)


def failed(key: str, *, group: str | None = None, attempt: int = 1, is_final: bool = True) -> StepFailedEvent:
    return StepFailedEvent(name=key, key=key, attempt=attempt, error=FAILURE, is_final=is_final, group=group)


def pauses(*waits: Waiting, status: Status = Status.WAITING) -> CheckpointSaved:
    return CheckpointSaved(status=status, state_version=5, waiting=waits[0], also_waiting=waits[1:])


ASKING = Waiting(type="approval", node_id="apply", approval_id=f"approval:{RUN}:apply")
LISTENING = Waiting(type="signal", node_id="go:signal", signal="go")


class TestSteps:
    def test_one_that_stands_alone_is_committed_by_its_own_event(self) -> None:
        progress = progress_of(folded(BEGUN, CLAIMED, done("a")))
        assert progress.committed == {"a": 2} and progress.pending_writes() == {}
        assert bytes(progress.steps["a"].value.json) == b'"v"'

    def test_those_of_a_group_are_pending_until_a_checkpoint_commits_them(self) -> None:
        run = folded(BEGUN, CLAIMED, done("a", group="g"), done("b", group="g"))
        assert list(progress_of(run).pending_writes()) == ["a", "b"] and run.state_version == 1
        run = folded(CheckpointSaved(status=Status.RUNNING, state_version=2, committed=("a", "b")), start=run)
        assert progress_of(run).committed == {"a": 2, "b": 2} and not progress_of(run).pending_writes()
        assert run.state_version == 2

    def test_a_failure_that_no_checkpoint_committed_is_forgotten_when_a_failed_run_is_taken_up_again(self) -> None:
        run = folded(BEGUN, CLAIMED, failed("a", attempt=3), failed("b"))
        run = folded(CheckpointSaved(status=Status.RUNNING, state_version=2, committed=("b",)), start=run)
        run = folded(RunFailed(error=FAILURE), start=run)
        assert run.failure == FAILURE and list(progress_of(run).failures) == ["a", "b"]
        run = folded(CLAIMED, start=run)
        progress = progress_of(run)
        assert run.status is Status.RUNNING and run.failure is None
        assert list(progress.failures) == ["b"]
        assert (progress.steps["a"].attempts, progress.steps["a"].forgotten) == (3, 3)

    def test_a_failure_stays_when_a_run_is_taken_over_that_had_not_failed(self) -> None:
        run = folded(BEGUN, CLAIMED, failed("a"), CLAIMED)
        assert list(progress_of(run).failures) == ["a"]

    def test_an_attempt_that_is_not_the_last_is_no_failure(self) -> None:
        run = folded(BEGUN, CLAIMED, StepStarted(name="a", key="a", attempt=1), failed("a", is_final=False))
        assert not progress_of(run).failures and progress_of(run).steps["a"].attempts == 1

    def test_signals_are_taken_in_the_order_of_their_coming(self) -> None:
        signals = [SignalReceived(name="go", payload=raw(text)) for text in ("1", "2")]
        run = folded(BEGUN, *signals, StepCompleted(name="go", key="go:signal", kind="signal"))
        progress = progress_of(run)
        assert bytes(progress.steps["go:signal"].value.json) == b"1"
        assert [bytes(each.json) for each in progress.signals["go"]] == [b"2"]


class TestPauses:
    def test_what_comes_makes_a_paused_run_ready(self) -> None:
        run = folded(BEGUN, CLAIMED, pauses(LISTENING))
        assert run.status is Status.WAITING and progress_of(run).owner is None
        assert not progress_of(run).is_ready
        run = folded(SignalReceived(name="other"), start=run)
        assert run.status is Status.WAITING and not progress_of(run).is_ready
        run = folded(SignalReceived(name="go"), start=run)
        assert run.status is Status.RUNNING and progress_of(run).is_ready and run.waiting is None

    def test_people_that_are_still_waited_for_are_shown_though_it_can_go_on(self) -> None:
        run = folded(BEGUN, CLAIMED, asks(), asks("other"))
        other = Waiting(type="approval", node_id="other", approval_id=f"approval:{RUN}:other")
        run = folded(pauses(ASKING, other, status=Status.WAITING_FOR_USER), decides(), start=run)
        assert run.status is Status.WAITING_FOR_USER and run.waiting == other
        assert progress_of(run).is_ready

    def test_a_vote_that_does_not_decide_leaves_it_waiting(self) -> None:
        run = folded(BEGUN, CLAIMED, asks(), pauses(ASKING, status=Status.WAITING_FOR_USER))
        run = folded(decides(is_deciding=False), start=run)
        assert run.status is Status.WAITING_FOR_USER and not progress_of(run).is_ready

    def test_an_approval_that_is_revoked_is_waited_for_again(self) -> None:
        run = folded(BEGUN, CLAIMED, asks(), pauses(ASKING, status=Status.WAITING_FOR_USER), decides())
        assert run.status is Status.RUNNING
        run = folded(ApprovalRevoked(step="apply", request_id="approval:run-1:apply", actor_source="os"), start=run)
        assert run.status is Status.WAITING_FOR_USER and run.waiting == ASKING
        assert not progress_of(run).is_ready

    def test_a_run_is_ready_as_long_as_something_has_come_that_was_not_taken_back(self) -> None:
        revoked = ApprovalRevoked(step="apply", request_id="approval:run-1:apply", actor_source="os")
        paused = (BEGUN, CLAIMED, asks(), pauses(ASKING, LISTENING, status=Status.WAITING_FOR_USER))
        run = folded(*paused, decides(), revoked)
        assert run.status is Status.WAITING_FOR_USER and not progress_of(run).is_ready
        run = folded(*paused, decides(), SignalReceived(name="go"), revoked)
        assert run.status is Status.WAITING_FOR_USER and progress_of(run).is_ready
        run = folded(*paused, SignalReceived(name="go"), decides(), revoked)
        assert run.status is Status.WAITING_FOR_USER and progress_of(run).is_ready

    def test_an_edit_while_it_is_driven_does_not_pause_it(self) -> None:
        run = folded(BEGUN, CLAIMED, asks(), asks(supersedes="approval:run-1:apply"))
        assert run.status is Status.RUNNING and run.waiting is None
        assert progress_of(run).first_hashes == {"apply": HASH}

    def test_a_timer_says_when_it_is_due(self) -> None:
        timer = Waiting(type="timer", node_id="sleep", due_us=70)
        late = Waiting(type="retry", node_id="a", due_us=90)
        run = folded(BEGUN, CLAIMED, TimerSet(key="sleep", due_us=70), pauses(late, timer))
        assert progress_of(run).due_us == 70
        run = folded(CLAIMED, TimerFired(key="sleep"), start=run)
        assert progress_of(run).timers["sleep"].has_fired and progress_of(run).due_us is None
        assert "sleep" in progress_of(run).committed


class TestEnds:
    def test_a_cancelled_run_holds_no_request_open(self) -> None:
        run = folded(BEGUN, CLAIMED, asks(), RunCancelled(actor_source="os"))
        assert run.status is Status.CANCELLED
        request = request_of(run, "apply")
        assert request is not None and request.status is Status.CANCELLED

    def test_what_an_effect_comes_to_after_the_cancellation_is_kept(self) -> None:
        run = folded(BEGUN, CLAIMED, asks(), decides(), intends(), RunCancelled(actor_source="os"))
        run = folded(ActionExecuted(step="apply", action="apply", op_key="k", result=1), start=run)
        assert run.status is Status.CANCELLED
        request = request_of(run, "apply")
        assert request is not None and request.executed and request.result == 1

    def test_a_failure_of_a_child_that_nobody_can_take_up_again_is_kept(self) -> None:
        for status, keys in ((Status.FAILED, []), (Status.REJECTED, ["it"]), (Status.CANCELLED, ["it"])):
            run = folded(
                BEGUN,
                CLAIMED,
                ChildStarted(key="it", child_run_id="run-2", workflow="it"),
                ChildFinished(key="it", child_run_id="run-2", status=status, error=FAILURE),
                RunFailed(error=FAILURE),
                CLAIMED,
            )
            assert list(progress_of(run).failures) == keys

    def test_the_end_of_a_run_that_took_over_is_nothing_to_its_first(self) -> None:
        run = folded(
            BEGUN,
            CLAIMED,
            ChildStarted(key="it", child_run_id="run-2", workflow="it", relation="handoff"),
            ChildFinished(key="it", child_run_id="run-2", status=Status.FAILED, error=FAILURE),
        )
        assert not progress_of(run).failures and "it" in progress_of(run).committed


class TestRequests:
    def test_each_has_the_version_of_the_whole_stream(self) -> None:
        run = folded(BEGUN, CLAIMED, asks(), asks("other"), done("a"))
        assert [(each.step, each.version, each.epoch) for each in requests_of(run)] == [
            ("apply", 5, 2),
            ("other", 5, 2),
        ]
        assert request_of(run, "nothing") is None

    def test_a_run_of_one_action_is_its_own_request(self) -> None:
        run = Run(run_id=RUN, proposal=PROPOSAL)
        assert requests_of(run) == (run,) and requests_of(Run(run_id=RUN)) == ()

    def test_a_claim_hands_over_the_effects_that_are_under_way(self) -> None:
        other = Owner(host="h", boot="b", lock="other")
        run = folded(BEGUN, CLAIMED, asks(), decides(), intends())
        run = folded(RunClaimed(epoch=6, owner=other, deadline_us=99, is_stray=True), start=run)
        request = request_of(run, "apply")
        assert request is not None and request.intent is not None
        assert (request.intent.owner, request.intent.epoch, request.strays) == (other, 6, (OWNER,))


class TestShapes:
    def test_the_first_event_has_to_be_a_checkpoint_with_a_definition(self) -> None:
        with pytest.raises(InvalidInput):
            advance(Run(run_id=RUN), done("a"), version=1, at_us=1, actor="ann")

    async def test_an_event_of_a_newer_program_is_refused(self, log: RunLog, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None: ...

        await runner_for(log, clock, flow).start(flow, RUN)
        events = list((await log.read_stream(run_stream(RUN))).events)
        assert is_workflow(events) and not is_workflow(events[1:])
        strange = msgspec.structs.replace(events[-1], type="from_the_future", data=None, is_known=False)
        with pytest.raises(EventTypeUnknown):
            fold_stream(RUN, [*events, strange])


LONG = '"' + "x" * 1000 + '"'
"""A value that a snapshot leaves to its event once it is committed."""


def samples(key: str) -> list[RunEvent]:
    """Return an event of each type about this key."""
    request: dict[str, Any] = {"step": key}
    effect = {**request, "action": "apply", "op_key": "k"}
    undo = {**effect, "compensates": "k"}
    return [
        CheckpointSaved(status=Status.RUNNING, state_version=3, committed=(key,)),
        CheckpointSaved(status=Status.RUNNING, state_version=3, is_released=True, snapshot_hash="0" * 64),
        pauses(Waiting(type="approval", node_id=key, approval_id="r"), Waiting(type="timer", node_id=key, due_us=5)),
        asks(key),
        asks(key, supersedes="approval:run-1:x", group="g"),
        ProposalVerified(**request, phase="resume", proposal_hash=HASH),
        ProposalRejected(**request, phase="resume", reason="r", action="apply"),
        decides(key),
        decides(key, "reject"),
        decides(key, is_deciding=False),
        ApprovalExpired(**request, request_id="r", expires_at_us=1),
        ApprovalRevoked(**request, request_id="r", actor_source="os"),
        TransitionRejected(**request, reason="r", attempted_decision="approve", current_status="RUNNING"),
        ResumeRejected(**request, reason="r", status="RUNNING"),
        intends(key),
        ActionExecuted(**effect, result=[1]),
        ActionRecovered(**effect, evidence="e"),
        ActionReplayed(reason="already_completed"),
        ActionConflict(**effect, reason="r"),
        ActionConflict(**effect, reason="r", code="idempotency_conflict"),
        ActionFailed(**effect, error=FAILURE),
        ActionFailed(**effect, error=FAILURE, is_final=True),
        OutcomeUnknown(**effect, why="w"),
        ResultRejected(**request, reason="r", rejected="action_executed", op_key="k", epoch=2, attempt=1),
        OutcomeReconciled(**effect, verdict="executed", status=Status.COMPLETED, evidence="e", actor_source="os"),
        CompensationStarted(**undo, attempt=1, epoch=2, owner=OWNER, deadline_us=9, input_hash=HASH),
        CompensationExecuted(**undo),
        CompensationFailed(**undo, error=FAILURE),
        CLAIMED,
        RunClaimed(epoch=9, owner=OWNER, deadline_us=9, is_stray=True),
        ClaimRenewed(epoch=2, deadline_us=99),
        StepStarted(name=key, key=key, attempt=1),
        done(key),
        done(key, group="g"),
        done(key, output=LONG),
        StepCompleted(name="go", key=key, kind="signal"),
        StepCompleted(name=key, key=key, artifact="a" * 64),
        failed(key),
        failed(key, group="g", is_final=False),
        SignalReceived(name="go", payload=raw("1")),
        SignalReceived(name="go"),
        SignalReceived(name="go", payload=raw(LONG)),
        SignalRejected(name="go", key=key, reason="r"),
        TimerSet(key=key, due_us=5, group="g"),
        TimerFired(key=key),
        ChildStarted(key=key, child_run_id="run-2", workflow="it"),
        ChildFinished(key=key, child_run_id="run-2", status=Status.COMPLETED, result=raw("2")),
        ChildFinished(key=key, child_run_id="run-2", status=Status.COMPLETED, result=raw(LONG)),
        ChildFinished(key=key, child_run_id="run-2", status=Status.FAILED),
        RunCompleted(result=raw("1")),
        RunFailed(error=FAILURE, status=Status.REJECTED),
        RunCancelled(actor_source="os"),
    ]


def test_there_is_a_sample_of_every_event_of_a_run() -> None:
    assert {type(event) for event in samples("a")} == set(get_args(RunEvent))


def restored(run: Run) -> Run:
    """Return the run as a snapshot of it is read again."""
    state = encode_snapshot(run)
    commit = CheckpointSaved(status=run.status, state_version=0, snapshot_hash=snapshot_hash(state))
    found = restore(run.run_id, run.version + 1, state, commit)
    assert found is not None
    return found


class TestEveryOrder:
    @settings(max_examples=300, deadline=None)
    @for_all(st.lists(st.sampled_from([*samples("a"), *samples("b")]), max_size=25), st.integers(0, 25))
    def test_no_order_of_events_fails_and_a_snapshot_anywhere_makes_no_difference(
        self, events: Sequence[RunEvent], place: int
    ) -> None:
        """A fold never fails: what has happened has happened. And the state is the same bytes, snapshot or none."""
        whole = folded(BEGUN, *events)
        part = restored(folded(BEGUN, *events[:place]))
        assert encode_snapshot(folded(*events[place:], start=part)) == encode_snapshot(whole)

    @pytest.mark.parametrize("event", samples("a"), ids=lambda event: type(event).__name__)
    def test_each_event_leaves_a_state_that_a_snapshot_can_hold(self, event: RunEvent) -> None:
        for past in ([], [asks("a")], [asks("a"), decides("a"), intends("a")]):
            run = folded(BEGUN, CLAIMED, *past, event)
            again = restored(run)
            assert encode_snapshot(again) == encode_snapshot(run)
            assert (again.status, again.waiting, again.version) == (run.status, run.waiting, run.version)
            assert list(progress_of(again).requests) == list(progress_of(run).requests)

    def test_a_state_of_another_run_or_version_is_not_taken_whatever_its_hash(self) -> None:
        run = folded(BEGUN, done("a"))
        state = encode_snapshot(run)
        commit = CheckpointSaved(status=run.status, state_version=0, snapshot_hash=snapshot_hash(state))
        assert restore(RUN, 3, state, commit) is not None
        assert restore(RUN, 4, state, commit) is None
        assert restore("run-2", 3, state, commit) is None
        assert restore(RUN, 3, state, done("b")) is None
        nonsense = CheckpointSaved(status=run.status, state_version=0, snapshot_hash=snapshot_hash(b"[]"))
        with pytest.raises(InvalidInput):
            restore(RUN, 3, b"[]", nonsense)

    def test_the_check_fires_for_a_fold_that_forgets(self) -> None:
        """The negative control: a state without one of its events is told from the whole."""
        events = [done("a"), done("b")]
        assert encode_snapshot(folded(BEGUN, *events)) != encode_snapshot(folded(BEGUN, *events[:1]))

    def test_values_that_are_null_are_told_from_none_at_all(self) -> None:
        progress = progress_of(restored(folded(BEGUN, done("a", output="null"), SignalReceived(name="go"))))
        assert bytes(progress.steps["a"].value.json) == b"null"
        assert bytes(progress.signals["go"][0].json) == bytes(NOTHING)

    def test_a_parent_is_part_of_the_state(self) -> None:
        parent = Parent(run_id="p", step="s", root_run_id="r")
        run = restored(folded(msgspec.structs.replace(BEGUN, parent=parent)))
        assert progress_of(run).parent == parent and run.root_run_id == "r"


# ── snapshots of real runs ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def discarded(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """Says how many snapshots have been thrown away."""
    caplog.set_level(logging.WARNING, "eventlog")
    return lambda: sum("snapshot_discarded" in record.getMessage() for record in caplog.records)


@eventlog.workflow(name="long")
async def long(run: RunContext, steps: int) -> Any:
    """Do a bit of everything, and many steps."""
    calls = Calls()
    for number in range(steps):
        await run.step("work", calls("work"), key=str(number))
    await run.gather(run.step("left", calls("left")), run.step("right", calls("right")))
    try:
        await run.step("broken", calls("broken", fails=9), retry=Retry(attempts=2, first_delay_s=0))
    except StepFailed:
        pass
    await run.act("auto", {}, output="x")
    value = await run.act("apply", {"n": 1}, output="x")
    return [value, await run.wait_for_signal("go"), (await run.now()).year]


def runner_of(log: RunLog, clock: FakeClock) -> eventlog.Runner:
    actions = [effect(Calls()), effect(Calls(), "auto")]
    return runner_for(log, clock, long, actions=actions, policies={"auto": Policy(auto=True)})


async def from_the_start(log: RunLog) -> Run:
    """Return the run folded from its first event."""
    return fold_stream(RUN, (await log.read_stream(run_stream(RUN))).events)


class TestSnapshots:
    @pytest.mark.parametrize(("steps", "is_taken"), [(5, False), (60, True)])
    async def test_a_pause_takes_one_if_many_events_are_behind_the_last(
        self, log: RunLog, clock: FakeClock, discarded: Callable[[], int], steps: int, is_taken: bool
    ) -> None:
        runner = runner_of(log, clock)
        outcome = await runner.start(long, RUN, steps)
        snapshot = await log.load_snapshot(run_stream(RUN))
        assert (snapshot is not None) is is_taken
        assert (progress_of(outcome.run).snapshot_version > 0) is is_taken
        if snapshot is not None:
            event = (await log.read_stream(run_stream(RUN), after=snapshot.version - 1)).events[0]
            assert event.data.snapshot_hash == snapshot_hash(snapshot.state)
        state = await state_of(runner)
        assert encode_snapshot(state) == encode_snapshot(await from_the_start(log))
        await runner.approve(RUN, outcome.requests[0].proposal_hash or "")
        await runner.resume(RUN)
        await runner.signal(RUN, "go", 3)
        outcome = await runner.resume(RUN)
        assert outcome.value[:2] == [{"done": {"n": 1}}, 3]
        assert encode_snapshot(await state_of(runner)) == encode_snapshot(await from_the_start(log))
        assert discarded() == 0

    async def test_a_long_run_takes_them_while_it_is_running_and_not_behind_its_end(self, clock: FakeClock) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            for number in range(RUN_TAIL + 150):
                await run.step("work", lambda: None, key=str(number))

        async with eventlog.open("memory:", clock=clock) as log:
            runner = runner_for(log, clock, flow)
            assert (await runner.start(flow, RUN)).status == "COMPLETED"
            events = (await log.read_stream(run_stream(RUN))).events
            taken = [event.version for event in events if getattr(event.data, "snapshot_hash", None)]
            assert len(taken) == 1 and RUN_TAIL <= taken[0] <= RUN_TAIL + 100
            assert events[-1].type == "run_completed"
            snapshot = await log.load_snapshot(run_stream(RUN))
            assert snapshot is not None and snapshot.version == taken[0]
            assert encode_snapshot(await state_of(runner)) == encode_snapshot(await from_the_start(log))

    async def test_long_values_that_it_leaves_out_are_read_from_their_events(
        self, log: RunLog, clock: FakeClock, calls: Calls, discarded: Callable[[], int]
    ) -> None:
        def long_text(name: str) -> str:
            return name * 1000

        @eventlog.workflow
        async def child(run: RunContext) -> str:
            return long_text("child")

        @eventlog.workflow
        async def flow(run: RunContext, text: str) -> Any:
            values = [text, await run.wait_for_signal("early"), await run.child(child)]
            values += [await run.step("work", calls("work", long_text(str(each))), key=str(each)) for each in range(60)]
            pending = run.step("pending", calls("pending", long_text("pending")))
            values += await run.gather(pending, run.wait_for_signal("go"))
            return values

        runner = runner_for(log, clock, flow, child)
        await runner.submit(flow, RUN, long_text("input"))
        for name in ("early", "later"):
            await runner.signal(RUN, name, long_text(name))
        assert (await runner.resume(RUN)).status == "WAITING"
        snapshot = await log.load_snapshot(run_stream(RUN))
        assert snapshot is not None and len(snapshot.state) < 60 * 1000
        assert encode_snapshot(await state_of(runner)) == encode_snapshot(await from_the_start(log))
        await runner.signal(RUN, "go", long_text("go"))
        outcome = await runner_for(log, clock, flow, child).resume(RUN)
        names = ["input", "early", "child", *map(str, range(60)), "pending", "go"]
        assert outcome.value == [long_text(name) for name in names]
        assert calls.counts() == {"work": 60, "pending": 1} and discarded() == 0

    async def test_a_drive_that_is_cancelled_while_it_reads_such_values_leaves_nothing_behind(
        self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @eventlog.workflow
        async def flow(run: RunContext) -> None:
            for _ in range(60):
                await run.step("work", lambda: "long" * 1000)
            await run.wait_for_signal("go")

        async with eventlog.open("memory:", clock=clock) as log:
            await runner_for(log, clock, flow).start(flow, RUN)
            await runner_for(log, clock, flow).signal(RUN, "go")
            read_stream, is_reading, others = log.read_stream, asyncio.Event(), asyncio.all_tasks()

            async def stands_still(stream: str, *, after: int = 0) -> Any:
                if after == 0:
                    is_reading.set()
                    await asyncio.Event().wait()
                return await read_stream(stream, after=after)

            monkeypatch.setattr(log, "read_stream", stands_still)
            resuming = asyncio.create_task(runner_for(log, clock, flow).resume(RUN))
            await is_reading.wait()
            resuming.cancel()
            await asyncio.wait([resuming])
            await asyncio.sleep(0)
            assert resuming.cancelled() and asyncio.all_tasks() <= others

    @pytest.mark.parametrize("damage", ["altered", "nonsense", "empty", "moved", "behind", "of another run", "stale"])
    async def test_one_that_is_not_what_the_log_commits_to_is_thrown_away(
        self, log: RunLog, clock: FakeClock, discarded: Callable[[], int], damage: str
    ) -> None:
        runner = runner_of(log, clock)
        outcome = await runner.start(long, RUN, 60)
        stream = run_stream(RUN)
        snapshot = await log.load_snapshot(stream)
        assert snapshot is not None
        state = snapshot.state
        match damage:
            case "altered":
                wrong = Snapshot(snapshot.version, state.replace(b'"work:1"', b'"work:x"'))
                assert wrong.state != state
            case "nonsense":
                wrong = Snapshot(snapshot.version, b"\x00\xff{")
            case "empty":
                wrong = Snapshot(snapshot.version, b"")
            case "moved":
                wrong = Snapshot(snapshot.version - 1, state)
            case "behind":
                wrong = Snapshot(snapshot.version + 1000, state)
            case "of another run":
                await runner.start(long, "run-2", 60)
                other = await log.load_snapshot(run_stream("run-2"))
                assert other is not None
                wrong = other
            case _:
                early = fold_stream(RUN, (await log.read_stream(stream)).events[:10])
                wrong = Snapshot(11, encode_snapshot(early))
        before = encode_snapshot(await from_the_start(log))
        await log.save_snapshot(stream, wrong)
        assert encode_snapshot(await state_of(runner)) == before
        assert discarded() > 0 or damage in ("stale", "moved", "behind")
        request = outcome.requests[0]
        await runner.approve(RUN, request.proposal_hash or "")
        await runner.resume(RUN)
        await runner.signal(RUN, "go", 3)
        assert (await runner.resume(RUN)).value[1] == 3

    @pytest.mark.parametrize("forged", ["no snapshot", "an approval that is not in the log"])
    async def test_one_that_the_log_commits_to_by_mistake_is_thrown_away(
        self, log: RunLog, clock: FakeClock, discarded: Callable[[], int], forged: str
    ) -> None:
        runner = runner_of(log, clock)
        await runner.start(long, RUN, 5)
        run = await from_the_start(log)
        state = b"[]"
        if forged != "no snapshot":
            evidence = {key: (10_000, *versions[1:]) for key, versions in progress_of(run).evidence.items()}
            state = encode_snapshot(replace(run, progress=replace(progress_of(run), evidence=evidence)))
        commits = CheckpointSaved(
            status=run.status, state_version=run.state_version, snapshot_hash=snapshot_hash(state)
        )
        await log.append_reserved([Append(run_stream(RUN), [commits], Expect.at(run.version))])
        await log.save_snapshot(run_stream(RUN), Snapshot(run.version + 1, state))
        assert encode_snapshot(await state_of(runner)) == encode_snapshot(await from_the_start(log))
        assert discarded() == 1

    async def test_one_that_cannot_be_saved_does_not_stop_the_run(
        self, log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fails(stream: str, snapshot: Snapshot) -> None:
            raise eventlog.StoreUnavailable("store_readonly", "not now")

        monkeypatch.setattr(log, "save_snapshot", fails)
        runner = runner_of(log, clock)
        outcome = await runner.start(long, RUN, 60)
        assert outcome.status == "WAITING_FOR_USER"
        assert encode_snapshot(await state_of(runner)) == encode_snapshot(await from_the_start(log))

    async def test_the_state_is_the_same_in_pieces_at_every_version(self, clock: FakeClock) -> None:
        async with eventlog.open("memory:", clock=clock) as log:
            runner = runner_of(log, clock)
            outcome = await runner.start(long, RUN, 3)
            await runner.edit(RUN, args={"n": 2})
            (request,) = requests_of(await state_of(runner))[1:]
            await runner.approve(RUN, request.proposal_hash or "")
            await runner.resume(RUN)
            await runner.signal(RUN, "go", 3)
            outcome = await runner.resume(RUN)
            assert outcome.status == "COMPLETED"
            events = (await log.read_stream(run_stream(RUN))).events
            whole = encode_snapshot(fold_stream(RUN, events))
            for place in range(1, len(events)):
                part = restored(fold_stream(RUN, events[:place]))
                assert encode_snapshot(fold_stream(RUN, events[place:], part)) == whole, place


def test_progress_is_changed_in_place_by_one_fold_only() -> None:
    """A fold owns its progress; another fold of the same events has one of its own."""
    one, two = folded(BEGUN, done("a")), folded(BEGUN, done("a"))
    progress: Progress = progress_of(one)
    folded(done("b"), start=one)
    assert "b" in progress.steps and "b" not in progress_of(two).steps

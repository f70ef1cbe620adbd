"""A run of one action, driven over real logs: what is approved is what runs, once, and every refusal leaves a trace."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eventlog
from eventlog.decide import start
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    ClaimLost,
    EventLogError,
    EventTypeUnknown,
    InvalidInput,
    LogCorrupt,
    Misuse,
    OutcomeUnknown,
    Refused,
    RunConflict,
)
from eventlog.events import CheckpointSaved, Owner, ProposalVerified, RunClaimed, Status, run_stream
from eventlog.log import Append, Expect, NewEvent, RunLog
from eventlog.proposal import Proposal, stored_proposal
from eventlog.run import Run
from eventlog.runtime.effects import Call, Conflicted, Executed, Promise, Recovered, Report
from eventlog.runtime.failpoints import EFFECT_AFTER, INTENT_AFTER_COMMIT, INTENT_BEFORE_COMMIT, RESULT_BEFORE_COMMIT
from eventlog.stores import MemoryLog, SqliteLog
from projections import RunsTable, built_in_views, runs_view
from projections.sqlite_views.checking import differences
from tests.effect_runs import Crash, assert_refused_as_unknown, crash_at, whole_log
from tools.campaigns.storage.log_files import open_file

CONTENT = "approved technical brief"


class Scripted:
    """An action that counts its effects and does what the test tells it."""

    name = "scripted"

    def __init__(self, promise: Promise = Promise.CHECKABLE) -> None:
        self.promise = promise
        self.calls: list[Call] = []
        self.answer: Callable[[Call], Report] = lambda call: Executed(result={"n": 1})

    def check(self, call: Call) -> None:
        if call.args.get("is_forbidden"):
            raise ActionFailed("path_not_allowed", "forbidden by the test")

    async def execute(self, call: Call) -> Report:
        self.calls.append(call)
        await asyncio.sleep(0)
        return self.answer(call)


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryLog | SqliteLog]:
    async with whole_log(request.param, tmp_path) as log:
        yield log


@pytest.fixture
def action() -> Scripted:
    return Scripted()


@pytest.fixture
def runner(log: RunLog, action: Scripted) -> eventlog.Runner:
    return eventlog.Runner(log, actions=[action])


def proposal_of(output: str = "target", **args: Any) -> Proposal:
    return eventlog.propose("scripted", args, output)


async def approved(runner: eventlog.Runner, run_id: str = "run-1", **args: Any) -> Proposal:
    proposal = proposal_of(**args)
    await runner.propose(run_id, proposal)
    await runner.approve(run_id, proposal.hash)
    return proposal


async def types(runner: eventlog.Runner, run_id: str = "run-1") -> list[str]:
    return [event.type for event in await runner.trace(run_id)]


# ── the straight path ─────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_run_is_proposed_approved_executed_and_then_replayed(runner: eventlog.Runner, action: Scripted) -> None:
    proposal = proposal_of(text="x")
    assert (await runner.propose("run-1", proposal)).status == "WAITING_FOR_USER"
    assert (await runner.approve("run-1", proposal.hash)).status == "APPROVED"
    first = await runner.resume("run-1")
    assert (first.result, first.status, first.run.executed) == ("executed", "COMPLETED", True)
    second = await runner.resume("run-1")
    assert (second.result, second.status) == ("already_completed", "COMPLETED")
    assert len(action.calls) == 1
    assert await types(runner) == [
        "checkpoint_saved",
        "proposal_recorded",
        "proposal_verified",
        "approval_recorded",
        "proposal_verified",
        "resume_started",
        "action_executed",
        "action_replayed",
    ]


async def test_what_runs_is_decoded_from_the_bytes_that_were_hashed(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner, number=1.0, text="草稿")
    await runner.resume("run-1")
    args = action.calls[0].args
    assert args == {"number": 1, "text": "草稿"}
    assert type(args["number"]) is int, "RFC 8785 writes 1.0 as 1, and that is what was approved"


async def test_every_attempt_has_the_same_op_key(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner)
    action.answer = lambda call: Conflicted(reason="taken")
    for _ in range(2):
        with pytest.raises(ActionConflict):
            await runner.resume("run-1")
    action.answer = lambda call: Executed()
    await runner.resume("run-1")
    assert len({call.op_key for call in action.calls}) == 1
    assert [call.attempt for call in action.calls] == [1, 2, 3]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_run_id_is_used_once(runner: eventlog.Runner) -> None:
    await runner.propose("run-1", proposal_of())
    with pytest.raises(Refused) as refusal:
        await runner.propose("run-1", proposal_of(other=1))
    assert refusal.value.label == "run_exists:run-1"


async def test_a_command_on_an_unknown_run_creates_no_stream(runner: eventlog.Runner, log: RunLog) -> None:
    for command in (
        runner.resume("nope"),
        runner.approve("nope", "0" * 64),
        runner.state("nope"),
        runner.trace("nope"),
    ):
        with pytest.raises(Refused) as refusal:
            await command
        assert refusal.value.label == "unknown_run:nope"
    assert (await log.head()).position == 0


async def test_an_unapproved_run_is_not_resumed_and_the_refusal_is_recorded(
    runner: eventlog.Runner, action: Scripted
) -> None:
    await runner.propose("run-1", proposal_of())
    with pytest.raises(Refused, match="nobody has approved") as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == "approval_required"
    event = (await runner.trace("run-1"))[-1]
    assert (event.type, event.data.reason, event.data.status) == (
        "resume_rejected",
        "approval_required",
        "WAITING_FOR_USER",
    )
    assert action.calls == []


async def test_a_wrong_hash_approves_nothing_and_is_recorded_as_supplied(runner: eventlog.Runner) -> None:
    proposal = proposal_of()
    await runner.propose("run-1", proposal)
    with pytest.raises(Refused) as refusal:
        await runner.approve("run-1", "0" * 64)
    assert refusal.value.code == "proposal_hash_mismatch"
    event = (await runner.trace("run-1"))[-1]
    assert (event.data.supplied_hash, event.data.current_hash) == ("0" * 64, proposal.hash)
    assert (await runner.state("run-1")).status == "WAITING_FOR_USER"


async def test_the_first_decision_stands_and_a_later_one_is_told_which_it_was(runner: eventlog.Runner) -> None:
    proposal = proposal_of()
    await runner.propose("run-1", proposal)
    await runner.reject("run-1", proposal.hash, reason="not today")
    with pytest.raises(Refused) as refusal:
        await runner.approve("run-1", proposal.hash)
    assert refusal.value.code == "approval_not_pending"
    assert refusal.value.details["existing_approval"] == "reject"
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == "approval_rejected"
    assert (await types(runner))[-2:] == ["transition_rejected", "resume_rejected"]


async def test_of_twenty_decisions_at_once_one_is_recorded(runner: eventlog.Runner) -> None:
    proposal = proposal_of()
    await runner.propose("run-1", proposal)
    commands = [runner.approve if n % 2 else runner.reject for n in range(20)]
    answers = await asyncio.gather(*(command("run-1", proposal.hash) for command in commands), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert len(refused) == 19
    assert {refusal.code for refusal in refused} == {"approval_not_pending"}
    assert (await types(runner)).count("approval_recorded") == 1


async def test_another_target_is_refused(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner)
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1", output="elsewhere")
    assert refusal.value.code == "output_mismatch"
    event = (await runner.trace("run-1"))[-1]
    assert (event.data.current_output, event.data.approved_output) == ("elsewhere", "target")
    assert action.calls == []


async def test_a_completed_run_answers_so_before_it_looks_at_the_target(runner: eventlog.Runner) -> None:
    await approved(runner)
    await runner.resume("run-1")
    assert (await runner.resume("run-1", output="elsewhere")).result == "already_completed"


async def test_an_action_that_nobody_registered_is_refused_before_any_intent(log: RunLog) -> None:
    runner = eventlog.Runner(log)
    await approved(runner)
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == "unknown_action"
    assert "resume_started" not in await types(runner)


async def test_what_an_action_refuses_is_refused_before_any_intent(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner, is_forbidden=True)
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == "path_not_allowed"
    assert (await types(runner))[-1] == "resume_rejected"
    assert action.calls == []


async def test_a_status_that_a_later_program_wrote_is_not_resumed(log: RunLog, runner: eventlog.Runner) -> None:
    proposal = await approved(runner)
    run = await runner.state("run-1")
    saved = CheckpointSaved(status=Status.RUNNING, state_version=2)
    await log.append_reserved([Append(run_stream("run-1"), [saved], Expect.at(run.version))])
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.label == "cannot_resume:RUNNING"
    with pytest.raises(Refused) as refusal:
        await runner.approve("run-1", proposal.hash)
    assert refusal.value.code == "approval_not_pending"


async def test_an_event_of_a_later_program_makes_the_run_read_only(log: RunLog, runner: eventlog.Runner) -> None:
    await approved(runner)
    await log.append_reserved([Append(run_stream("run-1"), [NewEvent("from_the_future", {"x": 1})], Expect.any())])
    with pytest.raises(EventTypeUnknown) as refusal:
        await runner.resume("run-1")
    assert refusal.value.details["type"] == "from_the_future"
    assert len(await runner.trace("run-1")) == 5


@pytest.mark.parametrize("run_id", ["", " ", "a\0b", "x" * 501, "a\u202eb", "run\n1", "\ud800", " run-1", None, 7])
async def test_an_id_that_people_could_confuse_is_refused(runner: eventlog.Runner, run_id: Any) -> None:
    for command in (runner.propose(run_id, proposal_of()), runner.resume(run_id), runner.approve(run_id, "0" * 64)):
        with pytest.raises(InvalidInput) as refusal:
            await command
        assert refusal.value.code == "invalid_id"


async def test_a_supplied_hash_that_cannot_be_recorded_is_refused_as_input(runner: eventlog.Runner) -> None:
    await runner.propose("run-1", proposal_of())
    for supplied, code in (("\ud800", "invalid_text"), ("0" * 2000, "payload_too_large")):
        with pytest.raises(InvalidInput) as refusal:
            await runner.approve("run-1", supplied)
        assert refusal.value.code == code
    assert await types(runner) == ["checkpoint_saved", "proposal_recorded"]


async def test_nobody_forges_an_approval_through_the_public_door(log: RunLog, runner: eventlog.Runner) -> None:
    await runner.propose("run-1", proposal_of())
    with pytest.raises(Misuse) as refusal:
        await log.append(run_stream("run-1"), [NewEvent("approval_recorded", {})], expect=Expect.any())
    assert refusal.value.code == "reserved_stream"


# ── the proposal that a caller gives ─────────────────────────────────────────────────────────────────────────────────

TWO_PEOPLE = eventlog.Policy(required=2, separation_of_duties=True)
DOUBLED = b'{"action":"scripted","args":{"cents":1,"cents":1000000},"output":"bank"}'


async def assert_never_asked(runner: eventlog.Runner, log: RunLog, proposal: Proposal, code: str) -> None:
    before = await log.head()
    with pytest.raises(InvalidInput) as refusal:
        await runner.propose("run-1", proposal)
    assert refusal.value.code == code
    assert await log.head() == before, "nothing is written"
    with pytest.raises(Refused) as unknown:
        await runner.resume("run-1")
    assert unknown.value.code == "unknown_run"


async def test_an_action_that_two_people_approve_is_not_asked_on_the_terms_of_another(
    log: RunLog, action: Scripted
) -> None:
    policies = {"scripted": TWO_PEOPLE, "note": eventlog.Policy(auto=True)}
    note = Scripted()
    note.name = "note"
    runner = eventlog.Runner(log, actions=[action, note], policies=policies)
    await assert_never_asked(runner, log, replace(proposal_of(), action="note"), "invalid_argument")
    assert action.calls == note.calls == []
    assert (await runner.propose("run-1", proposal_of())).status == "WAITING_FOR_USER"


@pytest.mark.parametrize("change", [{"output": "bob"}, {"args": {"cents": 2}}, {"hash": "0" * 64}])
async def test_what_is_shown_to_the_caller_is_what_is_asked(
    runner: eventlog.Runner, log: RunLog, change: dict[str, Any]
) -> None:
    await assert_never_asked(runner, log, replace(proposal_of(cents=1), **change), "invalid_argument")


async def test_args_that_changed_after_they_were_hashed_are_not_asked_silently(
    runner: eventlog.Runner, log: RunLog
) -> None:
    proposal = proposal_of(cents=1)
    proposal.args["cents"] = 10**6
    await assert_never_asked(runner, log, proposal, "invalid_argument")


async def test_bytes_with_a_key_twice_are_never_asked(runner: eventlog.Runner, log: RunLog) -> None:
    await assert_never_asked(runner, log, stored_proposal(DOUBLED), "invalid_event")


async def test_what_an_earlier_program_recorded_in_another_spelling_can_still_be_read_and_decided(
    runner: eventlog.Runner, log: RunLog, action: Scripted
) -> None:
    asked = start(Run(run_id="run-1"), stored_proposal(DOUBLED))
    await log.append_reserved([Append(run_stream("run-1"), asked.events, Expect.no_stream())])
    run = await runner.state("run-1")
    assert run.proposal is not None
    assert (run.proposal.canonical, run.proposal.args) == (DOUBLED, {"cents": 1000000})
    assert len(await runner.trace("run-1")) == 2
    await runner.reject("run-1", run.proposal.hash)
    assert (await runner.state("run-1")).status is Status.REJECTED
    assert action.calls == []


async def test_views_show_what_an_earlier_program_recorded_in_another_spelling(tmp_path: Path) -> None:
    views = built_in_views()
    async with open_file(tmp_path / "log.db", views=views) as log:
        asked = start(Run(run_id="run-1"), stored_proposal(DOUBLED))
        await log.append_reserved([Append(run_stream("run-1"), asked.events, Expect.no_stream())])
        for view in views:
            assert await differences(log, view) == []
        names = [
            each for (each,) in await log.read_view(lambda found: found.execute("SELECT action FROM runs").fetchall())
        ]
        assert names == ["scripted"]


# ── how an effect ends ────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_conflict_leaves_the_run_approved_and_is_recorded_with_both_hashes(
    runner: eventlog.Runner, action: Scripted
) -> None:
    await approved(runner)
    action.answer = lambda call: Conflicted(
        reason="taken", expected_content_hash="a" * 64, existing_content_hash="b" * 64
    )
    with pytest.raises(ActionConflict) as conflict:
        await runner.resume("run-1")
    assert conflict.value.code == "output_conflict"
    event = (await runner.trace("run-1"))[-1]
    assert (event.type, event.data.expected_content_hash, event.data.existing_content_hash) == (
        "action_conflict",
        "a" * 64,
        "b" * 64,
    )
    action.answer = lambda call: Recovered(evidence="cleared")
    assert (await runner.resume("run-1")).result == "recovered"


async def test_a_definite_failure_leaves_the_run_approved(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner)

    def fail(call: Call) -> Report:
        raise ActionFailed("action_failed", "nothing was sent", errno=5)

    action.answer = fail
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert failure.value.details["errno"] == 5
    assert (await types(runner))[-1] == "action_failed"
    action.answer = lambda call: Executed()
    assert (await runner.resume("run-1")).result == "executed"


async def test_an_error_that_proves_nothing_is_an_unknown_outcome(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner)

    def fail(call: Call) -> Report:
        raise TimeoutError("no answer")

    action.answer = fail
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert (await runner.state("run-1")).status == "OUTCOME_UNKNOWN"
    action.answer = lambda call: Recovered(evidence="asked")
    assert (await runner.resume("run-1")).result == "recovered", "a checkable action is asked"


async def test_an_opaque_action_with_an_unknown_outcome_is_never_tried_again(log: RunLog) -> None:
    action = Scripted(Promise.OPAQUE)
    runner = eventlog.Runner(log, actions=[action])
    await approved(runner)

    def fail(call: Call) -> Report:
        raise TimeoutError("no answer")

    action.answer = fail
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    await assert_refused_as_unknown(runner)
    assert len(action.calls) == 1
    assert (await types(runner))[-1] == "resume_rejected"


# ── crashes and rivals ────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("point", [INTENT_AFTER_COMMIT, EFFECT_AFTER, RESULT_BEFORE_COMMIT])
async def test_an_orphaned_intent_is_taken_over_at_once_and_fenced(log: RunLog, action: Scripted, point: str) -> None:
    await approved(eventlog.Runner(log, actions=[action]))
    with pytest.raises(Crash):
        await eventlog.Runner(log, actions=[action], reach=crash_at(point)).resume("run-1")
    action.answer = lambda call: Recovered() if call.attempt == 2 else Executed()
    runner = eventlog.Runner(log, actions=[action])
    assert (await runner.resume("run-1")).result == "recovered"
    assert (await types(runner))[4:] == [
        "proposal_verified",
        "resume_started",
        "run_claimed",
        "proposal_verified",
        "resume_started",
        "action_recovered",
    ]
    claim = next(event for event in await runner.trace("run-1") if event.type == "run_claimed")
    assert claim.data.epoch == claim.version


async def test_an_orphaned_intent_of_an_opaque_action_becomes_an_unknown_outcome(log: RunLog) -> None:
    action = Scripted(Promise.OPAQUE)
    await approved(eventlog.Runner(log, actions=[action]))
    with pytest.raises(Crash):
        await eventlog.Runner(log, actions=[action], reach=crash_at(EFFECT_AFTER)).resume("run-1")
    runner = eventlog.Runner(log, actions=[action])
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert len(action.calls) == 1
    assert (await types(runner))[-2:] == ["run_claimed", "outcome_unknown"]


async def test_a_crash_before_the_intent_leaves_the_run_as_it_was(log: RunLog, action: Scripted) -> None:
    await approved(eventlog.Runner(log, actions=[action]))
    with pytest.raises(Crash):
        await eventlog.Runner(log, actions=[action], reach=crash_at(INTENT_BEFORE_COMMIT)).resume("run-1")
    assert action.calls == []
    assert (await eventlog.Runner(log, actions=[action]).resume("run-1")).result == "executed"


async def test_many_resumers_in_one_process_perform_one_effect(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner)
    answers = await asyncio.gather(*(runner.resume("run-1") for _ in range(20)), return_exceptions=True)
    assert len(action.calls) == 1
    executed = [answer for answer in answers if not isinstance(answer, BaseException) and answer.result == "executed"]
    assert len(executed) == 1
    others = {answer.code if isinstance(answer, EventLogError) else "already_completed" for answer in answers}
    assert others <= {"run_conflict", "already_completed"}


async def test_a_living_holder_is_left_alone(log: RunLog, action: Scripted) -> None:
    runner = eventlog.Runner(log, actions=[action])
    await approved(runner)
    is_inside, may_end = asyncio.Event(), asyncio.Event()

    class Slow(Scripted):
        async def execute(self, call: Call) -> Report:
            is_inside.set()
            await may_end.wait()
            return Executed()

    holder = asyncio.create_task(eventlog.Runner(log, actions=[Slow()]).resume("run-1"))
    await is_inside.wait()
    with pytest.raises(RunConflict):
        await runner.resume("run-1")
    may_end.set()
    assert (await holder).result == "executed"
    assert action.calls == []


async def test_a_refused_approval_during_the_effect_does_not_cost_the_result(log: RunLog, action: Scripted) -> None:
    runner = eventlog.Runner(log, actions=[action])
    proposal = await approved(runner)

    class Meddled(Scripted):
        async def execute(self, call: Call) -> Report:
            with pytest.raises(Refused):
                await runner.approve("run-1", proposal.hash)
            return Executed()

    assert (await eventlog.Runner(log, actions=[Meddled()]).resume("run-1")).result == "executed"
    assert (await types(runner))[-2:] == ["transition_rejected", "action_executed"]


async def test_a_holder_that_was_fenced_meanwhile_is_told_and_records_nothing(log: RunLog) -> None:
    runner = eventlog.Runner(log)
    await approved(runner)

    class Fenced(Scripted):
        async def execute(self, call: Call) -> Report:
            run = await runner.state("run-1")
            rival = Owner(host="elsewhere", boot="b", lock="l")
            claim = RunClaimed(epoch=run.version + 1, owner=rival, deadline_us=0)
            append = Append(run_stream("run-1"), [claim, verified(run)], Expect.at(run.version))
            await log.append_reserved([append])
            return Executed()

    with pytest.raises(ClaimLost):
        await eventlog.Runner(log, actions=[Fenced()]).resume("run-1")
    assert "action_executed" not in await types(runner)


def verified(run: Run) -> ProposalVerified:
    return ProposalVerified(phase="resume", proposal_hash=run.proposal_hash or "")


async def test_a_cancelled_resume_leaves_an_intent_that_the_next_one_settles(log: RunLog, action: Scripted) -> None:
    runner = eventlog.Runner(log, actions=[action])
    await approved(runner)
    is_inside = asyncio.Event()

    class Endless(Scripted):
        async def execute(self, call: Call) -> Report:
            is_inside.set()
            await asyncio.Event().wait()
            return Executed()

    holder = asyncio.create_task(eventlog.Runner(log, actions=[Endless()]).resume("run-1"))
    await is_inside.wait()
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    assert (await runner.resume("run-1")).result == "executed"


# ── the view that people decide from ──────────────────────────────────────────────────────────────────────────────────
async def edited_run(path: Path, change: str) -> tuple[EventLogError | eventlog.Outcome, list[Any], Path]:
    """Approve a run, edit its row in the table `runs` behind the engine, resume; return the end, trace and target."""
    view = runs_view()
    target = path / "draft.txt"
    async with eventlog.open(path / "log.db", views=[view]) as log:
        runner = eventlog.Runner(log)
        proposal = eventlog.propose("write_draft", {"content": CONTENT}, str(target))
        await runner.propose("run-1", proposal)
        await runner.approve("run-1", proposal.hash)
    editor = sqlite3.connect(path / "log.db")
    with editor:
        editor.execute(change)
    editor.close()
    async with eventlog.open(path / "log.db", views=[view]) as log:
        action = eventlog.WriteFile(name="write_draft")
        runner = eventlog.Runner(log, actions=[action], view=RunsTable(log, view))
        try:
            end: EventLogError | eventlog.Outcome = await runner.resume("run-1")
        except EventLogError as error:
            end = error
        return end, list(await runner.trace("run-1")), target


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("UPDATE runs SET request_id = 'approval:run-2'", "approval_request_mismatch"),
        ('UPDATE runs SET args = \'{"content":"other"}\'', "proposal_hash_mismatch"),
        ("UPDATE runs SET args = 'no json'", "proposal_hash_mismatch"),
        ("UPDATE runs SET action = 'other'", "proposal_hash_mismatch"),
        ("UPDATE runs SET output = 'other'", "proposal_hash_mismatch"),
        (f"UPDATE runs SET proposal_hash = '{'0' * 64}'", "proposal_hash_mismatch"),
        ("UPDATE runs SET proposal_hash = NULL", "proposal_hash_mismatch"),
        (f"UPDATE runs SET approval_hash = '{'0' * 64}'", "view_mismatch"),
        ("UPDATE runs SET approval_request_id = 'approval:run-2'", "view_mismatch"),
        ("UPDATE runs SET status = 'COMPLETED', executed = 1", "view_mismatch"),
        ("UPDATE runs SET approval = 'reject'", "view_mismatch"),
    ],
)
async def test_an_edited_row_stops_the_effect_and_the_refusal_holds_what_was_found(
    tmp_path: Path, change: str, code: str
) -> None:
    end, trace, target = await edited_run(tmp_path, change)
    assert isinstance(end, Refused)
    assert end.code == code
    assert trace[-1].data.reason == code
    assert trace[-1].data.viewed["run_id"] == "run-1"
    assert not target.exists()


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM runs",
        "UPDATE views SET position = 0",
        "UPDATE runs SET version = 2, status = 'WAITING_FOR_USER', approval = NULL, approval_request_id = NULL,"
        " approval_hash = NULL",
    ],
)
async def test_a_missing_or_late_row_is_caught_up_first(tmp_path: Path, change: str) -> None:
    end, _, target = await edited_run(tmp_path, change)
    assert isinstance(end, eventlog.Outcome)
    assert (end.result, target.read_text()) == ("executed", CONTENT)


async def test_an_edited_event_is_damage_for_its_run_and_for_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with eventlog.open(path) as log:
        for run_id in ("run-1", "run-2"):
            await approved(eventlog.Runner(log), run_id)
    editor = sqlite3.connect(path)
    with editor:
        editor.execute("DROP TRIGGER events_update")
        editor.execute("UPDATE events SET body = replace(body, 'target', 'tarGet') WHERE position = 2")
    editor.close()
    action = Scripted()
    async with eventlog.open(path) as log:
        runner = eventlog.Runner(log, actions=[action])
        with pytest.raises(LogCorrupt) as damage:
            await runner.resume("run-1")
        assert damage.value.position == 2
        assert (await runner.resume("run-2")).result == "executed"
    assert [call.run_id for call in action.calls] == ["run-2"]


# ── what an action does wrong ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("promise", ["Opaque", None, "", 1])
async def test_an_action_without_a_known_promise_is_refused(log: RunLog, promise: Any) -> None:
    action = Scripted()
    action.promise = promise
    with pytest.raises(InvalidInput, match="a promise is one of transactional, checkable, keyed, opaque"):
        eventlog.Runner(log, actions=[action])


async def test_a_promise_may_be_spelled_as_text(log: RunLog) -> None:
    action = Scripted()
    action.promise = "opaque"  # type: ignore[assignment]
    await approved(eventlog.Runner(log, actions=[action]))
    with pytest.raises(Crash):
        await eventlog.Runner(log, actions=[action], reach=crash_at(EFFECT_AFTER)).resume("run-1")
    for _ in range(2):
        with pytest.raises(Refused):
            await eventlog.Runner(log, actions=[action]).resume("run-1")
    assert len(action.calls) == 1


@pytest.mark.parametrize("answer", [None, Executed, {"done": True}])
async def test_what_is_no_report_is_an_unknown_outcome(runner: eventlog.Runner, action: Scripted, answer: Any) -> None:
    await approved(runner)
    action.answer = lambda call: answer
    with pytest.raises(OutcomeUnknown, match="which is no report"):
        await runner.resume("run-1")
    assert (await types(runner))[-1] == "outcome_unknown"


@pytest.mark.parametrize(
    "report",
    [
        Executed(result=object()),
        Executed(result=float("nan")),
        Executed(result="\ud800"),
        Executed(result="x" * 17_000_000),
        Recovered(evidence={1: 2}),
    ],
)
async def test_an_effect_whose_result_cannot_be_stored_is_recorded_without_it(
    runner: eventlog.Runner, action: Scripted, report: Report
) -> None:
    await approved(runner)
    action.answer = lambda call: report
    await runner.resume("run-1")
    event = (await runner.trace("run-1"))[-1]
    assert event.data.not_stored.partition(" at ")[2].startswith("$")
    assert (await runner.state("run-1")).not_stored == event.data.not_stored
    assert (await runner.resume("run-1")).result == "already_completed"
    assert len(action.calls) == 1


async def test_text_that_cannot_be_stored_is_recorded_as_far_as_it_can(
    runner: eventlog.Runner, action: Scripted
) -> None:
    await approved(runner)
    action.answer = lambda call: Conflicted(reason="taken \ud800", existing_content="\ud800")
    with pytest.raises(ActionConflict):
        await runner.resume("run-1")

    def fail(call: Call) -> Report:
        raise ActionFailed("action_failed", "because \ud800")

    action.answer = fail
    with pytest.raises(ActionFailed):
        await runner.resume("run-1")
    assert [event.data for event in (await runner.trace("run-1")) if event.type.startswith("action_")]


async def test_an_action_may_fail_with_a_code_of_its_own(runner: eventlog.Runner, action: Scripted) -> None:
    await approved(runner)

    def fail(call: Call) -> Report:
        raise ActionFailed("card_declined", "the bank said no")

    action.answer = fail
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert failure.value.code == "card_declined"
    assert failure.value.hint
    assert (await runner.trace("run-1"))[-1].data.error.code == "card_declined"
    assert (await runner.state("run-1")).status == "APPROVED"


@pytest.mark.parametrize("error", [KeyError("x"), ActionFailed("card_declined", "no")])
async def test_whatever_a_check_raises_is_a_recorded_refusal(log: RunLog, error: Exception) -> None:
    class Checked(Scripted):
        def check(self, call: Call) -> None:
            raise error

    runner = eventlog.Runner(log, actions=[Checked()])
    await approved(runner)
    with pytest.raises(Refused):
        await runner.resume("run-1")
    event = (await runner.trace("run-1"))[-1]
    assert event.type == "resume_rejected"
    assert event.data.detail


@pytest.mark.parametrize("lease_s", [0, -1, float("nan"), float("inf"), 10**12, 10**400, "300", None, True])
def test_a_lease_is_a_time_that_ends(lease_s: Any) -> None:
    with pytest.raises(InvalidInput, match="lease_s"):
        eventlog.Runner(eventlog.open("memory:"), lease_s=lease_s)


# ── where a target is ─────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_relative_target_is_the_same_file_wherever_the_run_is_resumed(
    log: RunLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    action = eventlog.WriteFile()
    runner = eventlog.Runner(log, actions=[action])
    proposal = eventlog.propose("write_file", {"content": CONTENT}, "draft.txt")
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    with pytest.raises(Crash):
        await eventlog.Runner(log, actions=[action], reach=crash_at(EFFECT_AFTER)).resume("run-1")
    monkeypatch.chdir(there)
    assert (await eventlog.Runner(log, actions=[action]).resume("run-1")).result == "recovered"
    assert (here / "draft.txt").exists()
    assert not (there / "draft.txt").exists()


async def test_a_root_stays_the_folder_that_it_was(
    log: RunLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    runner = eventlog.Runner(log, actions=[eventlog.WriteFile(root=".")])
    monkeypatch.chdir(tmp_path / "elsewhere")
    proposal = eventlog.propose("write_file", {"content": CONTENT}, "draft.txt")
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    await runner.resume("run-1")
    assert (tmp_path / "draft.txt").exists()


@pytest.mark.parametrize(
    "target",
    [
        "log.db",
        "log.db-wal",
        "log.db-shm",
        "log.db-journal",
        "log.db.lock",
        "LOG.DB-journal",
        "log.db.owners/x",
        "link",
    ],
)
async def test_no_effect_touches_the_files_of_the_log_itself(tmp_path: Path, target: str) -> None:
    async with eventlog.open(tmp_path / "log.db") as log:
        (tmp_path / "link").hardlink_to(tmp_path / "log.db-shm")
        runner = eventlog.Runner(log, actions=[eventlog.WriteFile(root=tmp_path)])
        proposal = eventlog.propose("write_file", {"content": CONTENT}, target)
        await runner.propose("run-1", proposal)
        await runner.approve("run-1", proposal.hash)
        with pytest.raises(ActionFailed, match="belongs to the log") as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "path_not_allowed"
        assert not (tmp_path / "log.db-journal").exists()


async def test_a_conflict_copies_no_content_into_the_log_unless_it_is_asked_to(log: RunLog, tmp_path: Path) -> None:
    (tmp_path / "secret.env").write_text("PASSWORD=hunter2")
    for run_id, shows_content in (("run-1", False), ("run-2", True)):
        action = eventlog.WriteFile(root=tmp_path, shows_content=shows_content)
        runner = eventlog.Runner(log, actions=[action])
        proposal = eventlog.propose("write_file", {"content": CONTENT}, "secret.env")
        await runner.propose(run_id, proposal)
        await runner.approve(run_id, proposal.hash)
        with pytest.raises(ActionConflict):
            await runner.resume(run_id)
        event = (await runner.trace(run_id))[-1]
        assert event.data.existing_content_hash
        assert (b"hunter2" in event.body) is shows_content


async def test_another_store_id_under_a_begun_effect_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    action = Scripted()
    async with eventlog.open(path) as log:
        await approved(eventlog.Runner(log, actions=[action]))
        with pytest.raises(Crash):
            await eventlog.Runner(log, actions=[action], reach=crash_at(EFFECT_AFTER)).resume("run-1")
    editor = sqlite3.connect(path)
    with editor:
        editor.execute("DROP TRIGGER meta_update")
        editor.execute("UPDATE meta SET value = zeroblob(16) WHERE name = 'store_id'")
    editor.close()
    async with eventlog.open(path) as log:
        with pytest.raises(LogCorrupt) as damage:
            await eventlog.Runner(log, actions=[action]).resume("run-1")
    assert damage.value.reason == "op_key_changed"
    assert len(action.calls) == 1

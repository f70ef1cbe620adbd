"""A run from end to end, without a store: given its past, when a command comes, then these events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from eventlog import decide
from eventlog.decide import Refusal, proofs
from eventlog.decide.answers import time_text
from eventlog.decide.requests import choose_request
from eventlog.errors import EventTypeUnknown, InvalidInput, RunConflict
from eventlog.events import (
    RUN_EVENTS,
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
    Failure,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    PolicyTerms,
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
    StepCompleted,
    StepFailed,
    StepStarted,
    TimerFired,
    TimerSet,
    TransitionRejected,
    Waiting,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal, propose
from eventlog.run import Compensation, Intent, Run, Status, evolve, fold_run
from eventlog.testing.given import Command, given

PROPOSAL = propose("write_draft", {"content": "approved text"}, "out/draft.txt")
HASH = PROPOSAL.hash
OTHER = propose("write_draft", {"content": "other text"}, "out/draft.txt")
REQUEST = "approval:run-1"
OWNER = Owner(host="h", boot="b", lock="l")
OTHER_OWNER = Owner(host="h", boot="b", lock="m")
KEY = "k" * 64
UNDO_KEY = "u" * 64

WAITS = CheckpointSaved(
    status=Status.WAITING_FOR_USER,
    state_version=1,
    waiting=Waiting(type="approval", node_id="write_draft", approval_id=REQUEST),
)
RECORDED = ProposalRecorded(request_id=REQUEST, proposal=msgspec.Raw(PROPOSAL.canonical), proposal_hash=HASH)
CHECKED = ProposalVerified(phase="approval", proposal_hash=HASH)
RECHECKED = ProposalVerified(phase="resume", proposal_hash=HASH)
APPROVED = ApprovalRecorded(request_id=REQUEST, decision="approve", approval_hash=HASH, actor_source="cli")
REJECTED = ApprovalRecorded(request_id=REQUEST, decision="reject", approval_hash=HASH, actor_source="cli")
INTENT = ResumeStarted(op_key=KEY, attempt=1, epoch=0, owner=OWNER, deadline_us=9, approval_hash=HASH, input_hash=HASH)
DONE = ActionExecuted(action="write_draft", op_key=KEY, result={"bytes": 13})

STARTED = (WAITS, RECORDED)
AGREED = (*STARTED, CHECKED, APPROVED)
BEGUN = (*AGREED, RECHECKED, INTENT)
UNKNOWN = OutcomeUnknown(action="write_draft", op_key=KEY, why="it died")
UNDOING = CompensationStarted(
    action="undo_draft",
    op_key=UNDO_KEY,
    compensates=KEY,
    attempt=1,
    epoch=0,
    owner=OWNER,
    deadline_us=9,
    input_hash=HASH,
)
UNDONE = CompensationExecuted(action="undo_draft", op_key=UNDO_KEY, compensates=KEY)
NOT_UNDONE = CompensationFailed(
    action="undo_draft", op_key=UNDO_KEY, compensates=KEY, error=Failure(code="action_failed", message="no")
)
UNDO_UNKNOWN = OutcomeUnknown(action="undo_draft", op_key=UNDO_KEY, why="it died")


def start(proposal: Proposal = PROPOSAL) -> Command:
    return lambda run: decide.start(run, proposal)


def approve(supplied_hash: str = HASH, **options: Any) -> Command:
    return lambda run: decide.record_decision(run, "approve", supplied_hash, actor_source="cli", **options)


def reject(supplied_hash: str = HASH, **options: Any) -> Command:
    return lambda run: decide.record_decision(run, "reject", supplied_hash, actor_source="cli", **options)


def resume(output: str | None = None) -> Command:
    return lambda run: decide.resume(run, output)


def begin(
    owner: Owner = OWNER, *, takes_over: bool = False, is_stray: bool = False, key_until_us: int | None = None
) -> Command:
    def command(run: Run) -> tuple[RunEvent, ...]:
        claims = decide.claim(run, owner=owner, deadline_us=9, is_stray=is_stray) if takes_over else None
        return decide.begin_effect(
            run, op_key=KEY, owner=owner, deadline_us=9, key_until_us=key_until_us, claims=claims
        )

    return command


def compensate(undoing: str | None = "undo_draft") -> Command:
    return lambda run: decide.compensate(run, undoing)


def begin_undoing(owner: Owner = OWNER, *, takes_over: bool = False, reason: str | None = None) -> Command:
    def command(run: Run) -> tuple[RunEvent, ...]:
        claims = decide.claim(run, owner=owner, deadline_us=9, is_stray=False) if takes_over else None
        return decide.begin_compensation(
            run,
            "undo_draft",
            op_key=UNDO_KEY,
            owner=owner,
            deadline_us=9,
            key_until_us=None,
            claims=claims,
            reason=reason,
        )

    return command


def reconcile(verdict: str, evidence: str = "I looked", *, takes_over: bool = False, result: Any = None) -> Command:
    def command(run: Run) -> Any:
        claims = decide.claim(run, owner=OTHER_OWNER, deadline_us=9, is_stray=False) if takes_over else None
        return decide.reconcile(run, verdict, evidence, actor_source="os", result=result, claims=claims)

    return command


def settled(verdict: str, status: Status, **fields: Any) -> OutcomeReconciled:
    options: dict[str, Any] = {"action": "write_draft", "op_key": KEY, "evidence": "I looked", "actor_source": "os"}
    return OutcomeReconciled(verdict=verdict, status=status, **{**options, **fields})


def not_reconciled(verdict: str, status: Status) -> TransitionRejected:
    return TransitionRejected(
        reason="outcome_not_unknown",
        attempted_decision=f"reconcile:{verdict}",
        current_status=status.value,
        existing_approval=None if status is Status.WAITING_FOR_USER else "approve",
    )


def not_compensated(status: Status) -> TransitionRejected:
    return TransitionRejected(
        reason="cannot_compensate",
        attempted_decision="compensate",
        current_status=status.value,
        existing_approval=None if status is Status.WAITING_FOR_USER else "approve",
    )


def not_resumed(reason: str, status: Status) -> ResumeRejected:
    return ResumeRejected(reason=reason, status=status.value)


# ── whole lives ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_started_approved_resumed_and_completed() -> None:
    (
        given()
        .has(version=0, request_id=None, proposal=None)
        .when(start())
        .then(*STARTED)
        .has(status=Status.WAITING_FOR_USER, version=2, state_version=1, request_id=REQUEST, proposal_hash=HASH)
        .has(proposal=PROPOSAL, waiting=Waiting(type="approval", node_id="write_draft", approval_id=REQUEST))
        .when(approve())
        .then(CHECKED, APPROVED)
        .has(status=Status.APPROVED, approval="approve", approval_hash=HASH, approval_request_id=REQUEST, waiting=None)
        .when(resume("out/draft.txt"))
        .then(RECHECKED)
        .when(begin())
        .then(RECHECKED, INTENT)
        .has(attempts=1, epoch=0, executed=False)
        .has(intent=Intent(op_key=KEY, attempt=1, epoch=0, owner=OWNER, deadline_us=9))
        .and_given(DONE)
        .has(status=Status.COMPLETED, executed=True, intent=None)
        .when(resume())
        .then_replayed(ActionReplayed(reason="already_completed"))
        .has(status=Status.COMPLETED, executed=True)
    )


def test_a_rejection_is_final() -> None:
    (
        given(*STARTED)
        .when(reject(reason="not now"))
        .then(CHECKED, replace(REJECTED, reason="not now"))
        .has(status=Status.REJECTED, approval="reject", waiting=None, executed=False)
        .when(resume())
        .then_refused("approval_rejected", not_resumed("approval_rejected", Status.REJECTED))
        .when(approve())
        .then_refused(
            "approval_not_pending",
            TransitionRejected(
                reason="approval_not_pending",
                attempted_decision="approve",
                current_status="REJECTED",
                existing_approval="reject",
                supplied_hash=HASH,
            ),
        )
        .has(status=Status.REJECTED)
        .when(start())
        .then_raises("run_exists")
    )


def test_a_conflict_leaves_the_run_approved_to_be_resumed_again() -> None:
    (
        given(*BEGUN, ActionConflict(action="write_draft", op_key=KEY, reason="output_conflict"))
        .has(status=Status.APPROVED, intent=None, executed=False, attempts=1)
        .when(resume())
        .then(RECHECKED)
        .when(begin())
        .then(RECHECKED, replace(INTENT, attempt=2))
        .and_given(DONE)
        .has(status=Status.COMPLETED, attempts=2)
    )


def test_a_definite_failure_leaves_the_run_approved() -> None:
    failure = Failure(code="action_failed", message="no space")
    given(*BEGUN, ActionFailed(action="write_draft", op_key=KEY, error=failure)).has(
        status=Status.APPROVED, intent=None, executed=False
    ).when(resume()).then(RECHECKED)


def test_an_unknown_outcome_is_a_status_of_its_own() -> None:
    given(*BEGUN, OutcomeUnknown(action="write_draft", op_key=KEY, why="it died")).has(
        status=Status.OUTCOME_UNKNOWN, intent=None, executed=False
    ).when(approve()).then_refused(
        "approval_not_pending",
        TransitionRejected(
            reason="approval_not_pending",
            attempted_decision="approve",
            current_status="OUTCOME_UNKNOWN",
            existing_approval="approve",
            supplied_hash=HASH,
        ),
    )


def test_an_unknown_outcome_that_is_settled_as_not_done_leaves_the_run_approved() -> None:
    unknown = OutcomeUnknown(action="write_draft", op_key=KEY, why="it died")
    failure = ActionFailed(action="write_draft", op_key=KEY, error=Failure(code="action_failed", message="not there"))
    for settled in (failure, ActionConflict(action="write_draft", op_key=KEY, reason="output_conflict")):
        given(*BEGUN, unknown, settled).has(status=Status.APPROVED, executed=False).when(resume()).then(RECHECKED)


def test_an_effect_that_an_earlier_attempt_did_completes_the_run() -> None:
    given(*BEGUN, ActionRecovered(action="write_draft", op_key=KEY, evidence={"sha256": "x"})).has(
        status=Status.COMPLETED, executed=True, intent=None
    )


def test_a_resumer_that_takes_over_fences_the_earlier_one() -> None:
    claim = RunClaimed(epoch=7, owner=OTHER_OWNER, deadline_us=9)
    (
        given(*BEGUN)
        .has(version=6)
        .when(begin(OTHER_OWNER, takes_over=True))
        .then(claim, RECHECKED, replace(INTENT, attempt=2, epoch=7, owner=OTHER_OWNER))
        .has(epoch=7, attempts=2, version=9)
        .has(intent=Intent(op_key=KEY, attempt=2, epoch=7, owner=OTHER_OWNER, deadline_us=9))
    )


# ── effects that end otherwise ───────────────────────────────────────────────────────────────────────────────────────


def test_what_an_effect_returned_is_kept_in_the_run() -> None:
    given(*BEGUN, DONE).has(result={"bytes": 13}, failure=None, unknown=None)
    recovered = ActionRecovered(action="write_draft", op_key=KEY, evidence="there", result={"bytes": 13})
    given(*BEGUN, recovered).has(result={"bytes": 13}, status=Status.COMPLETED)


def test_a_failure_that_is_final_ends_the_run_and_is_replayed() -> None:
    failure = Failure(code="card_declined", message="no")
    (
        given(*BEGUN, ActionFailed(action="write_draft", op_key=KEY, error=failure, is_final=True))
        .has(status=Status.FAILED, executed=False, intent=None, failure=failure)
        .when(resume())
        .then_replayed(ActionReplayed(reason="already_failed"))
        .when(resume("elsewhere"))
        .then_replayed(ActionReplayed(reason="already_failed"))
        .when(compensate())
        .then_refused("cannot_compensate", not_compensated(Status.FAILED))
        .when(reconcile("executed"))
        .then_refused("outcome_not_unknown", not_reconciled("executed", Status.FAILED))
    )


def test_an_unknown_outcome_may_be_resumed_and_a_new_intent_makes_it_open_again() -> None:
    (
        given(*BEGUN, UNKNOWN)
        .has(unknown="it died")
        .when(resume())
        .then(RECHECKED)
        .when(begin())
        .then(RECHECKED, replace(INTENT, attempt=2))
        .has(status=Status.APPROVED, unknown=None, attempts=2)
    )


def test_until_when_a_key_is_known_is_kept_from_the_intent_on() -> None:
    (
        given(*AGREED)
        .when(begin(key_until_us=77))
        .then(RECHECKED, replace(INTENT, key_until_us=77))
        .has(key_until_us=77)
        .and_given(UNKNOWN)
        .has(key_until_us=77)
    )


def test_an_open_intent_is_handed_to_who_claims_it_and_a_stray_is_never_forgotten() -> None:
    claim = RunClaimed(epoch=7, owner=OTHER_OWNER, deadline_us=11, is_stray=True)
    (
        given(*BEGUN)
        .when(begin(OTHER_OWNER, takes_over=True, is_stray=True))
        .then(replace(claim, deadline_us=9), RECHECKED, replace(INTENT, attempt=2, epoch=7, owner=OTHER_OWNER))
        .has(is_stray=True)
        .and_given(UNKNOWN, DONE)
        .has(is_stray=True)
    )
    (
        given(*BEGUN, claim)
        .has(
            intent=Intent(op_key=KEY, attempt=1, epoch=7, owner=OTHER_OWNER, deadline_us=11), is_stray=True, attempts=1
        )
        .and_given(RunClaimed(epoch=8, owner=OWNER, deadline_us=12))
        .has(is_stray=True, epoch=8)
    )
    given(*BEGUN, UNKNOWN, claim).has(intent=None, status=Status.OUTCOME_UNKNOWN, epoch=7)


# ── what a person settles ────────────────────────────────────────────────────────────────────────────────────────────

VERDICTS = [("executed", Status.COMPLETED), ("not_executed", Status.APPROVED), ("abandoned", Status.CANCELLED)]


@pytest.mark.parametrize(("verdict", "status"), VERDICTS)
def test_a_verdict_settles_an_unknown_outcome(verdict: str, status: Status) -> None:
    (
        given(*BEGUN, UNKNOWN)
        .when(reconcile(verdict))
        .then(settled(verdict, status))
        .has(status=status, executed=verdict == "executed", unknown=None, intent=None, result=None, attempts=1)
        .when(reconcile(verdict))
        .then_refused("outcome_not_unknown", not_reconciled(verdict, status))
    )


def test_a_verdict_that_it_was_executed_may_say_what_it_returned() -> None:
    (
        given(*BEGUN, UNKNOWN)
        .when(reconcile("executed", result={"bytes": 13}))
        .then(settled("executed", Status.COMPLETED, result={"bytes": 13}))
        .has(result={"bytes": 13}, executed=True)
        .when(resume())
        .then_replayed(ActionReplayed(reason="already_completed"))
    )


@pytest.mark.parametrize(("verdict", "status"), VERDICTS)
def test_a_verdict_on_an_open_intent_fences_its_owner_first(verdict: str, status: Status) -> None:
    (
        given(*BEGUN)
        .when(reconcile(verdict, takes_over=True))
        .then(
            RunClaimed(epoch=7, owner=OTHER_OWNER, deadline_us=9),
            replace(UNKNOWN, why="the attempt ended without a result"),
            settled(verdict, status),
        )
        .has(status=status, epoch=7, intent=None, unknown=None)
    )


@pytest.mark.parametrize(
    ("past", "status"),
    [
        (STARTED, Status.WAITING_FOR_USER),
        (AGREED, Status.APPROVED),
        (BEGUN, Status.APPROVED),
        ((*BEGUN, DONE), Status.COMPLETED),
        ((*BEGUN, UNKNOWN, RECHECKED, INTENT), Status.APPROVED),
    ],
    ids=["waiting", "approved", "at work", "completed", "at work again"],
)
def test_an_outcome_that_is_not_unknown_is_not_settled(past: tuple[RunEvent, ...], status: Status) -> None:
    given(*past).when(reconcile("executed")).then_refused("outcome_not_unknown", not_reconciled("executed", status))


def test_a_claim_without_an_open_intent_settles_nothing() -> None:
    given(*AGREED).when(reconcile("executed", takes_over=True)).then_refused(
        "outcome_not_unknown", not_reconciled("executed", Status.APPROVED)
    )


@pytest.mark.parametrize("verdict", ["", "Executed", "executed ", "yes", None])
def test_a_verdict_is_one_of_three_words(verdict: Any) -> None:
    given(*BEGUN, UNKNOWN).when(reconcile(verdict)).then_raises("invalid_verdict")


@pytest.mark.parametrize(
    ("evidence", "code"),
    [
        ("", "invalid_argument"),
        (" \n", "invalid_argument"),
        (None, "invalid_argument"),
        (7, "invalid_argument"),
        ("\ud800", "invalid_text"),
        ("x" * 1025, "payload_too_large"),
    ],
)
def test_a_verdict_says_how_it_was_found_out(evidence: Any, code: str) -> None:
    given(*BEGUN, UNKNOWN).when(reconcile("executed", evidence)).then_raises(code)


@pytest.mark.parametrize("verdict", ["not_executed", "abandoned"])
def test_only_an_executed_effect_has_a_result(verdict: str) -> None:
    given(*BEGUN, UNKNOWN).when(reconcile(verdict, result=1)).then_raises("invalid_argument")


def test_a_run_that_does_not_exist_is_neither_settled_nor_undone() -> None:
    for command in (reconcile("executed"), compensate()):
        given().when(command).then_raises("unknown_run")


# ── undoing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_executed_effect_is_undone_by_an_effect_of_its_own() -> None:
    (
        given(*BEGUN, DONE)
        .when(compensate())
        .then()
        .when(begin_undoing(reason="wrong draft"))
        .then(replace(UNDOING, reason="wrong draft"))
        .has(status=Status.COMPLETED, attempts=1, op_key=KEY, executed=True)
        .has(
            compensation=Compensation(
                action="undo_draft",
                op_key=UNDO_KEY,
                attempts=1,
                intent=Intent(op_key=UNDO_KEY, attempt=1, epoch=0, owner=OWNER, deadline_us=9),
            )
        )
        .and_given(UNDONE)
        .has(status=Status.COMPENSATED, executed=True, result={"bytes": 13})
        .when(resume())
        .then_refused("cannot_resume", not_resumed("cannot_resume", Status.COMPENSATED))
        .when(compensate())
        .then_refused("cannot_compensate", not_compensated(Status.COMPENSATED))
    )


def test_undoing_that_failed_may_be_tried_again_under_the_same_key() -> None:
    (
        given(*BEGUN, DONE, UNDOING, NOT_UNDONE)
        .has(status=Status.COMPLETED)
        .when(compensate())
        .then()
        .when(begin_undoing())
        .then(replace(UNDOING, attempt=2))
        .and_given(UNDONE)
        .has(status=Status.COMPENSATED)
    )


def test_undoing_that_failed_for_good_is_not_tried_again() -> None:
    (
        given(*BEGUN, DONE, UNDOING, replace(NOT_UNDONE, is_final=True))
        .has(status=Status.COMPLETED)
        .when(compensate())
        .then_refused("cannot_compensate", not_compensated(Status.COMPLETED))
        .when(resume())
        .then_replayed(ActionReplayed(reason="already_completed"))
    )


def test_nobody_knows_whether_it_was_undone_until_it_is_settled() -> None:
    unknown = given(*BEGUN, DONE, UNDOING, UNDO_UNKNOWN).has(status=Status.OUTCOME_UNKNOWN, executed=True)
    unknown.when(resume()).then_refused("outcome_unknown", not_resumed("outcome_unknown", Status.OUTCOME_UNKNOWN))
    unknown.when(compensate()).then()
    unknown.when(compensate("other")).then_refused("cannot_compensate", not_compensated(Status.OUTCOME_UNKNOWN))
    undo = {"action": "undo_draft", "op_key": UNDO_KEY}
    for verdict, status in (
        ("executed", Status.COMPENSATED),
        ("not_executed", Status.COMPLETED),
        ("abandoned", Status.COMPLETED),
    ):
        after = unknown.when(reconcile(verdict)).then(settled(verdict, status, **undo))
        after.has(status=status, executed=True, result={"bytes": 13}, unknown=None)
        again = after.when(compensate())
        if verdict == "not_executed":
            again.then().when(begin_undoing()).then(replace(UNDOING, attempt=2))
        else:
            again.then_refused("cannot_compensate", not_compensated(status))


def test_a_verdict_on_open_undoing_fences_its_owner_first() -> None:
    (
        given(*BEGUN, DONE, UNDOING)
        .when(reconcile("executed", takes_over=True))
        .then(
            RunClaimed(epoch=9, owner=OTHER_OWNER, deadline_us=9),
            replace(UNDO_UNKNOWN, why="the attempt ended without a result"),
            settled("executed", Status.COMPENSATED, action="undo_draft", op_key=UNDO_KEY),
        )
        .has(status=Status.COMPENSATED, epoch=9)
    )


def test_who_takes_open_undoing_over_fences_the_earlier_one() -> None:
    (
        given(*BEGUN, DONE, UNDOING)
        .when(compensate())
        .then()
        .when(begin_undoing(OTHER_OWNER, takes_over=True))
        .then(
            RunClaimed(epoch=9, owner=OTHER_OWNER, deadline_us=9),
            replace(UNDOING, attempt=2, epoch=9, owner=OTHER_OWNER),
        )
        .has(epoch=9, attempts=1)
    )


@pytest.mark.parametrize(
    ("past", "status"),
    [
        (STARTED, Status.WAITING_FOR_USER),
        (AGREED, Status.APPROVED),
        (BEGUN, Status.APPROVED),
        ((*BEGUN, UNKNOWN), Status.OUTCOME_UNKNOWN),
        ((*BEGUN, UNKNOWN, settled("abandoned", Status.CANCELLED)), Status.CANCELLED),
    ],
    ids=["waiting", "approved", "at work", "unknown", "abandoned"],
)
def test_what_was_not_executed_cannot_be_undone(past: tuple[RunEvent, ...], status: Status) -> None:
    given(*past).when(compensate()).then_refused("cannot_compensate", not_compensated(status))


def test_an_action_that_names_no_other_or_meanwhile_another_cannot_undo() -> None:
    given(*BEGUN, DONE).when(compensate(None)).then_refused("cannot_compensate", not_compensated(Status.COMPLETED))
    given(*BEGUN, DONE, UNDOING, NOT_UNDONE).when(compensate("another")).then_refused(
        "cannot_compensate", not_compensated(Status.COMPLETED)
    )


def test_what_a_person_says_was_executed_can_be_undone() -> None:
    given(*BEGUN, UNKNOWN, settled("executed", Status.COMPLETED)).when(compensate()).then()


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", [approve, reject])
@pytest.mark.parametrize("supplied", ["0" * 64, "", HASH.upper(), HASH[:-1], f"{HASH} ", OTHER.hash])
def test_a_decision_on_another_hash_is_refused_and_keeps_both(command: Any, supplied: str) -> None:
    (
        given(*STARTED)
        .when(command(supplied))
        .then_refused(
            "proposal_hash_mismatch",
            ProposalRejected(
                phase="approval",
                reason="proposal_hash_mismatch",
                action="write_draft",
                output="out/draft.txt",
                supplied_hash=supplied,
                current_hash=HASH,
                stored_hash=HASH,
            ),
        )
        .has(status=Status.WAITING_FOR_USER, approval=None)
        .when(approve())
        .then(CHECKED, APPROVED)
    )


@pytest.mark.parametrize("supplied", [HASH, OTHER.hash])
def test_a_stored_proposal_that_is_not_what_its_hash_says_is_not_approved(supplied: str) -> None:
    forged = replace(RECORDED, proposal=msgspec.Raw(OTHER.canonical))
    rejected = ProposalRejected(
        phase="approval",
        reason="proposal_hash_mismatch",
        action="write_draft",
        output="out/draft.txt",
        supplied_hash=supplied,
        current_hash=OTHER.hash,
        stored_hash=HASH,
    )
    given(WAITS, forged).when(approve(supplied)).then_refused("proposal_hash_mismatch", rejected)


@pytest.mark.parametrize("first", [approve, reject])
@pytest.mark.parametrize("second", [approve, reject])
def test_the_first_decision_stands(first: Any, second: Any) -> None:
    decided = given(*STARTED).and_given(CHECKED, APPROVED if first is approve else REJECTED)
    before = decided.run
    after = decided.when(second()).then_refused(
        "approval_not_pending",
        TransitionRejected(
            reason="approval_not_pending",
            attempted_decision="approve" if second is approve else "reject",
            current_status=before.status.value,
            existing_approval=before.approval,
            supplied_hash=HASH,
        ),
    )
    assert replace(after.run, version=0) == replace(before, version=0)


def test_a_run_that_does_not_exist_is_neither_decided_nor_resumed() -> None:
    for command in (approve(), reject(), resume(), resume("x")):
        given().when(command).then_raises("unknown_run")


@pytest.mark.parametrize("decision", ["", "Approve", "approve ", "yes", "approved", None])
def test_a_decision_is_one_of_two_words(decision: Any) -> None:
    given(*STARTED).when(lambda run: decide.record_decision(run, decision, HASH, actor_source="cli")).then_raises(
        "invalid_decision"
    )


def test_what_could_not_even_be_recorded_is_an_error() -> None:
    run = given(*STARTED)
    run.when(approve("\ud800")).then_raises("invalid_text")
    run.when(approve(reason="\ud800")).then_raises("invalid_text")
    run.when(approve("x" * 1025)).then_raises("payload_too_large")
    run.when(approve(reason="x" * 1025)).then_raises("payload_too_large")
    run.when(approve(reason="é" * 1024)).then(CHECKED, replace(APPROVED, reason="é" * 1024))


@pytest.mark.parametrize("run_id", ["", " ", "a\nb", "x" * 501, "\ud800", 7, None])
def test_a_run_id_that_people_cannot_read_is_refused(run_id: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        decide.check_run_id(run_id)
    assert caught.value.code == "invalid_id"
    assert decide.check_run_id("x" * 500) == "x" * 500


# ── resuming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("past", "code", "status"),
    [
        (STARTED, "approval_required", Status.WAITING_FOR_USER),
        ((*STARTED, CHECKED, REJECTED), "approval_rejected", Status.REJECTED),
    ],
    ids=["waiting", "rejected"],
)
@pytest.mark.parametrize("output", [None, "out/draft.txt", "elsewhere"])
def test_the_status_is_looked_at_before_the_output(
    past: tuple[RunEvent, ...], code: str, status: Status, output: str | None
) -> None:
    given(*past).when(resume(output)).then_refused(code, not_resumed(code, status))


def test_a_completed_run_is_replayed_whatever_output_is_named() -> None:
    for output in (None, "out/draft.txt", "elsewhere"):
        given(*BEGUN, DONE).when(resume(output)).then_replayed(ActionReplayed(reason="already_completed"))


@pytest.mark.parametrize("output", ["elsewhere", "", "./out/draft.txt", "out/draft.txt/", "OUT/draft.txt"])
def test_another_output_is_refused(output: str) -> None:
    rejected = ProposalRejected(
        phase="resume",
        reason="output_mismatch",
        action="write_draft",
        current_output=output,
        approved_output="out/draft.txt",
    )
    given(*AGREED).when(resume(output)).then_refused("output_mismatch", rejected).has(status=Status.APPROVED)


def test_an_output_that_cannot_be_recorded_is_an_error() -> None:
    given(*AGREED).when(resume("\ud800")).then_raises("invalid_text")


def test_an_approval_of_another_request_is_not_spent() -> None:
    rejected = ProposalRejected(
        phase="resume",
        reason="approval_request_mismatch",
        action="write_draft",
        current_request_id=REQUEST,
        approved_request_id="approval:run-2",
    )
    other = replace(APPROVED, request_id="approval:run-2")
    given(*STARTED, CHECKED, other).when(resume()).then_refused("approval_request_mismatch", rejected)


@pytest.mark.parametrize(
    ("recorded", "approved", "current", "stored"),
    [
        (replace(RECORDED, proposal=msgspec.Raw(OTHER.canonical)), APPROVED, OTHER.hash, HASH),
        (RECORDED, replace(APPROVED, approval_hash=OTHER.hash), HASH, HASH),
        (replace(RECORDED, proposal_hash=OTHER.hash), APPROVED, HASH, OTHER.hash),
    ],
    ids=["other bytes", "other approval", "other stored hash"],
)
def test_a_proposal_that_is_not_the_approved_one_is_not_run(
    recorded: ProposalRecorded, approved: ApprovalRecorded, current: str, stored: str
) -> None:
    rejected = ProposalRejected(
        phase="resume",
        reason="proposal_hash_mismatch",
        action="write_draft",
        current_hash=current,
        stored_hash=stored,
        approval_hash=approved.approval_hash,
    )
    given(WAITS, recorded, CHECKED, approved).when(resume()).then_refused("proposal_hash_mismatch", rejected)


def test_the_output_is_compared_before_the_request_and_the_request_before_the_hash() -> None:
    wrong_hash = replace(APPROVED, approval_hash=OTHER.hash)
    wrong_both = replace(wrong_hash, request_id="approval:run-2")
    for past, output, code in (
        (wrong_both, "elsewhere", "output_mismatch"),
        (wrong_both, None, "approval_request_mismatch"),
        (wrong_hash, None, "proposal_hash_mismatch"),
    ):
        outcome = given(*STARTED, CHECKED, past).when(resume(output)).outcome
        assert isinstance(outcome, Refusal)
        assert outcome.error.code == code


OTHER_STATUSES = [
    Status.RUNNING,
    Status.WAITING,
    Status.FAILED,
    Status.CANCELLED,
    Status.COMPENSATED,
]


@pytest.mark.parametrize("status", OTHER_STATUSES)
def test_a_status_that_cannot_be_resumed_is_refused_by_name(status: Status) -> None:
    past = given(*AGREED, CheckpointSaved(status=status, state_version=2)).has(status=status)
    past.when(resume()).then_refused("cannot_resume", not_resumed("cannot_resume", status))


# ── the view that people saw ─────────────────────────────────────────────────────────────────────────────────────────


def row(run: Run, **edited: Any) -> dict[str, Any]:
    return {**decide.view_columns(run), **edited}


def approved_run() -> Run:
    return given(*AGREED).run


def test_the_row_of_a_view_is_spelled_from_the_log() -> None:
    assert decide.view_columns(approved_run()) == {
        "run_id": "run-1",
        "status": "APPROVED",
        "request_id": REQUEST,
        "action": "write_draft",
        "args": '{"content":"approved text"}',
        "output": "out/draft.txt",
        "proposal_hash": HASH,
        "approval": "approve",
        "approval_request_id": REQUEST,
        "approval_hash": HASH,
        "executed": 0,
    }


def test_a_row_that_equals_the_log_lets_the_effect_run() -> None:
    for past in (STARTED, AGREED, BEGUN, (*BEGUN, DONE)):
        run = given(*past).run
        assert decide.compare_view(run, row(run)) is None
        assert decide.compare_view(run, {**row(run), "updated_at": 7}) is None, "a view may have more columns"


@pytest.mark.parametrize(
    ("edited", "code"),
    [
        ({"request_id": "approval:run-2"}, "approval_request_mismatch"),
        ({"request_id": None}, "approval_request_mismatch"),
        ({"request_id": "x", "args": "{}"}, "approval_request_mismatch"),
        ({"action": "delete_all"}, "proposal_hash_mismatch"),
        ({"args": '{"content":"other text"}'}, "proposal_hash_mismatch"),
        ({"args": '{"content": "approved text"}'}, "proposal_hash_mismatch"),
        ({"args": "no JSON"}, "proposal_hash_mismatch"),
        ({"args": None}, "proposal_hash_mismatch"),
        ({"args": b'{"content":"approved text"}'}, "proposal_hash_mismatch"),
        ({"args": '{"n":1e400}'}, "proposal_hash_mismatch"),
        ({"output": "elsewhere"}, "proposal_hash_mismatch"),
        ({"output": 7}, "proposal_hash_mismatch"),
        ({"proposal_hash": "0" * 64}, "proposal_hash_mismatch"),
        ({"proposal_hash": None}, "proposal_hash_mismatch"),
        ({"proposal_hash": b"\0"}, "proposal_hash_mismatch"),
        ({"status": "COMPLETED"}, "view_mismatch"),
        ({"approval": "reject"}, "view_mismatch"),
        ({"approval_hash": "0" * 64}, "view_mismatch"),
        ({"approval_request_id": "x"}, "view_mismatch"),
        ({"executed": 1}, "view_mismatch"),
        ({"executed": False}, "view_mismatch"),
        ({"executed": 0.0}, "view_mismatch"),
        ({"run_id": "run-2"}, "view_mismatch"),
        ({"status": "x" * 1_000_000}, "view_mismatch"),
        ({"status": "\ud800"}, "view_mismatch"),
        ({"status": float("nan")}, "view_mismatch"),
    ],
    ids=lambda each: each if isinstance(each, str) else ascii(each)[:50],
)
def test_an_edited_row_keeps_the_effect_from_running(edited: dict[str, Any], code: str) -> None:
    run = approved_run()
    refusal = decide.compare_view(run, row(run, **edited))
    assert refusal is not None
    assert refusal.error.code == code
    assert isinstance(refusal.event, ProposalRejected | ResumeRejected)
    assert refusal.event.reason == code
    assert refusal.event.viewed is not None
    assert refusal.event.viewed.keys() == row(run).keys()
    assert len(msgspec.json.encode(refusal.event)) < 20_000, "whoever edited the row chose its size"


@pytest.mark.parametrize("missing", decide.view_columns(given(*AGREED).run))
def test_a_row_without_a_column_keeps_the_effect_from_running(missing: str) -> None:
    run = approved_run()
    shortened = {name: value for name, value in row(run).items() if name != missing}
    assert decide.compare_view(run, shortened) is not None


def test_a_row_of_another_valid_proposal_is_recorded_with_its_own_hash() -> None:
    run = approved_run()
    edited = row(run, args='{"content":"other text"}')
    refusal = decide.compare_view(run, edited)
    assert refusal is not None
    assert isinstance(refusal.event, ProposalRejected)
    assert (refusal.event.current_hash, refusal.event.stored_hash, refusal.event.approval_hash) == (
        OTHER.hash,
        HASH,
        HASH,
    )


# ── folding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def recorded(version: int, data: Any, *, is_known: bool = True) -> RecordedEvent:
    return RecordedEvent(
        position=version,
        stream="run:run-1",
        version=version,
        type="some_type",
        schema_version=1,
        event_id=bytes(16),
        recorded_at_us=1000 + version,
        actor="os:7",
        correlation_id=None,
        causation_id=None,
        body=b"{}",
        data=data,
        is_known=is_known,
        leaf=bytes(32),
        prev_in_stream=bytes(32),
    )


def test_a_stream_is_folded_to_the_run_at_its_version() -> None:
    run = fold_run("run-1", [recorded(version, event) for version, event in enumerate(BEGUN, 1)])
    assert (run.version, run.recorded_at_us) == (6, 1006)
    pure = given(*BEGUN).run
    signed = tuple(replace(vote, actor="os:7") for vote in pure.votes)
    assert replace(run, recorded_at_us=0) == replace(
        pure, proposed_by="os:7", proposers=("os:7",), votes=signed, decided_by="os:7", decided_at_us=1004
    ), "who and when are in the envelopes"


def test_a_stream_without_events_is_no_run() -> None:
    assert fold_run("run-1", []) == Run(run_id="run-1")


def test_a_run_with_an_event_of_a_newer_program_is_not_folded() -> None:
    stream = [recorded(1, WAITS), recorded(2, {"from": "the future"}, is_known=False)]
    with pytest.raises(EventTypeUnknown) as caught:
        fold_run("run-1", stream)
    assert caught.value.code == "event_type_unknown"
    assert caught.value.details == {"stream": "run:run-1", "version": 2, "type": "some_type", "found": 1, "known": None}


EVENTS: list[RunEvent] = [
    WAITS,
    RECORDED,
    CHECKED,
    APPROVED,
    REJECTED,
    RECHECKED,
    INTENT,
    DONE,
    ActionRecovered(action="a", op_key=KEY),
    ActionReplayed(reason="already_completed"),
    ActionConflict(action="a", op_key=KEY, reason="output_conflict"),
    ActionFailed(action="a", op_key=KEY, error=Failure(code="action_failed", message="no")),
    ActionFailed(action="a", op_key=KEY, error=Failure(code="action_failed", message="no"), is_final=True),
    OutcomeUnknown(action="a", op_key=KEY, why="it died"),
    *(settled(verdict, status) for verdict, status in VERDICTS),
    UNDOING,
    UNDONE,
    NOT_UNDONE,
    UNDO_UNKNOWN,
    RunClaimed(epoch=3, owner=OTHER_OWNER, deadline_us=9),
    RunClaimed(epoch=3, owner=OTHER_OWNER, deadline_us=9, is_stray=True),
    ProposalRejected(phase="resume", reason="output_mismatch", action="a"),
    TransitionRejected(reason="approval_not_pending", attempted_decision="approve", current_status="APPROVED"),
    ResumeRejected(reason="approval_required", status="WAITING_FOR_USER"),
    replace(APPROVED, is_deciding=False, roles=("a",)),
    replace(RECORDED, request_id=f"{REQUEST}#edit-1", supersedes=REQUEST, policy=PolicyTerms(required=2)),
    ApprovalExpired(request_id=REQUEST, expires_at_us=5),
    ApprovalRevoked(request_id=REQUEST, actor_source="os"),
    RunCancelled(actor_source="os"),
    StepStarted(name="look", key="look", attempt=1),
    StepCompleted(name="look", key="look"),
    StepFailed(name="look", key="look", attempt=1, error=Failure(code="step_failed", message="no")),
    SignalReceived(name="go"),
    SignalRejected(name="go", key="go:signal", reason="it is no number"),
    TimerSet(key="sleep", due_us=7),
    TimerFired(key="sleep"),
    ChildStarted(key="child", child_run_id="run-2", workflow="other"),
    ChildFinished(key="child", child_run_id="run-2", status=Status.COMPLETED),
    ClaimRenewed(epoch=3, deadline_us=9),
    RunCompleted(),
    RunFailed(error=Failure(code="step_failed", message="no")),
]


def test_every_event_of_a_run_is_among_those_that_are_folded_here() -> None:
    assert {type(event) for event in EVENTS} | {ResultRejected} == set(RUN_EVENTS.values())


@for_all(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_a_fold_never_fails_and_changes_nothing_it_was_given(events: list[RunEvent]) -> None:
    run = Run(run_id="run-1")
    for event in events:
        before = msgspec.json.encode(run)
        after = evolve(run, event)
        assert msgspec.json.encode(run) == before
        assert after.version == run.version, "the version is the stream's affair"
        run = after
    assert isinstance(run.status, Status)


@for_all(st.lists(st.sampled_from(EVENTS), max_size=20), st.integers(0, 20))
def test_a_fold_may_stop_anywhere_and_go_on(events: list[RunEvent], cut: int) -> None:
    assert given(*events[:cut]).and_given(*events[cut:]).run == given(*events).run


OF_WORKFLOWS = (
    StepStarted,
    StepCompleted,
    StepFailed,
    SignalReceived,
    SignalRejected,
    TimerSet,
    TimerFired,
    ChildStarted,
    ChildFinished,
    ClaimRenewed,
    RunCompleted,
    RunFailed,
)


@for_all(st.lists(st.sampled_from(EVENTS), max_size=20))
def test_refusals_verifications_and_what_is_told_in_the_progress_change_no_state(events: list[RunEvent]) -> None:
    kinds = (ProposalVerified, ProposalRejected, TransitionRejected, ResumeRejected, ActionReplayed, *OF_WORKFLOWS)
    kept = given(*(event for event in events if not isinstance(event, kinds))).run
    assert replace(given(*events).run, version=0) == replace(kept, version=0)


ATTEMPTS = [event for event in EVENTS if isinstance(event, ProposalRejected | TransitionRejected | ResumeRejected)]


@for_all(st.lists(st.sampled_from([*ATTEMPTS, CHECKED, RECHECKED]), max_size=12))
def test_no_number_of_attempts_resumes_a_run_that_nobody_approved(attempts: list[RunEvent]) -> None:
    required = not_resumed("approval_required", Status.WAITING_FOR_USER)
    given(*STARTED, *attempts).when(resume()).then_refused("approval_required", required)


# ── what only a damaged log, or a program's own mistake, asks for ─────────────────────────────────────────────────────


def test_a_time_that_no_calendar_holds_is_shown_as_a_number() -> None:
    assert time_text(0) == "1970-01-01T00:00:00+00:00"
    assert time_text(1_500_000) == "1970-01-01T00:00:01.500000+00:00"
    assert time_text(2**62) == f"{2**62} µs"


def test_a_run_that_has_asked_for_nothing_has_nothing_to_decide_on() -> None:
    refusal = choose_request(Run(run_id="run-1", version=1), [], "approve")
    assert isinstance(refusal, Refusal)
    assert refusal.error.code == "approval_not_pending"
    assert "has not asked for anything" in str(refusal.error)


def test_a_request_whose_event_has_gone_is_a_conflict() -> None:
    with pytest.raises(RunConflict, match="its request is gone"):
        proofs.event_of_request([], Run(run_id="run-1", request_id="request-1"))


def test_what_is_not_byte_for_byte_what_was_proposed_is_refused() -> None:
    proposal = propose("send", {}, "target")
    other = propose("send", {}, "another target")
    run = Run(run_id="run-1", version=1, proposal=proposal, proposal_hash=proposal.hash)
    for canonical in (proposal.canonical, other.canonical):
        data = ProposalRecorded(request_id="r", proposal=msgspec.Raw(canonical), proposal_hash=proposal.hash)
        asked: Any = SimpleNamespace(data=data, position=7)
        refusal = proofs.refuse_other_proposal(run, asked)
        assert (refusal is None) == (canonical == proposal.canonical)
        if refusal is not None:
            assert refusal.error.code == "proposal_hash_mismatch"
    assert proofs.refuse_other_proposal(replace(run, proposal=None), asked) is not None

"""How each event changes a run, field by field: what it sets, what it clears, and that it leaves all else as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace

from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    Failure,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    PolicyTerms,
    ProposalRecorded,
    ResultRejected,
    ResumeStarted,
    RunCancelled,
    RunClaimed,
    RunEvent,
    Status,
    Waiting,
)
from eventlog.proposal import propose
from eventlog.run import Compensation, Intent, Run, Vote, evolve, fold_fact

PROPOSAL = propose("pay", {"amount": 25}, "account")
OTHER = propose("pay", {"amount": 20}, "account")
OWNER = Owner(host="h", boot="b", lock="l")
SECOND = Owner(host="h", boot="b", lock="m")
INTENT = Intent(op_key="k", attempt=3, epoch=4, owner=OWNER, deadline_us=9)
UNDOING = Compensation(action="undo", op_key="u", attempts=2, key_until_us=6, intent=replace(INTENT, op_key="u"))
NO = Failure(code="action_failed", message="no")
LATE = ResultRejected(reason="epoch_stale", rejected="action_executed", op_key="k", epoch=1, attempt=1)
WAITS = Waiting(type="approval", node_id="pay", approval_id="r")
FULL = Run(
    run_id="run-1",
    version=9,
    status=Status.APPROVED,
    state_version=5,
    waiting=WAITS,
    request_id="r",
    proposal=PROPOSAL,
    proposal_hash=PROPOSAL.hash,
    proposed_by="agent",
    proposers=("agent",),
    folder="/work",
    policy=PolicyTerms(required=2),
    expires_at_us=11,
    votes=(Vote(decision="approve", actor="alice"),),
    approval="approve",
    decided_by="alice",
    decided_at_us=12,
    decision_reason="fine",
    approval_request_id="r",
    approval_hash=PROPOSAL.hash,
    executed=True,
    epoch=4,
    attempts=3,
    op_key="k",
    key_until_us=13,
    intent=INTENT,
    strays=(SECOND,),
    strays_are_over=True,
    is_vouched_for=True,
    result={"old": 1},
    failure=NO,
    not_stored="it was too large",
    unknown="it died",
    unknown_since_us=14,
    problem=NO,
    late=LATE,
    recorded_at_us=15,
)
"""A run of which every field says something, so that it is seen what an event leaves alone."""

UNDONE = replace(FULL, intent=None, compensation=UNDOING)


def changed(run: Run, event: RunEvent) -> dict[str, Any]:
    """Return the fields that are others after an event."""
    after = asdict(evolve(run, event))
    return {name: value for name, value in after.items() if value != getattr(run, name)}


def begun(kind: type[Any], **fields: Any) -> Any:
    facts: dict[str, Any] = {"attempt": 4, "epoch": 5, "owner": SECOND, "deadline_us": 10, "input_hash": "i"}
    return kind(**facts, **fields)


RESUMED = begun(ResumeStarted, op_key="K", approval_hash="a", key_until_us=20)
COMPENSATES = begun(CompensationStarted, op_key="U", action="undo", compensates="k", key_until_us=20)
SETTLED = OutcomeReconciled(
    action="pay",
    op_key="k",
    verdict="executed",
    status=Status.COMPLETED,
    evidence="I looked",
    actor_source="os",
    result=7,
)
UNDO_SETTLED = replace(SETTLED, op_key="u", status=Status.COMPENSATED)
AT_REST = replace(UNDOING, intent=None)


@pytest.mark.parametrize(
    ("run", "event", "fields"),
    [
        (
            FULL,
            CheckpointSaved(status=Status.RUNNING, state_version=6),
            {"status": Status.RUNNING, "state_version": 6, "waiting": None},
        ),
        (FULL, ApprovalExpired(request_id="r", expires_at_us=11), {"status": Status.EXPIRED, "waiting": None}),
        (
            replace(FULL, waiting=None),
            ApprovalRevoked(request_id="r", actor_source="os"),
            {
                "status": Status.WAITING_FOR_USER,
                "waiting": WAITS,
                "votes": (),
                "approval": None,
                "decided_by": None,
                "decided_at_us": None,
                "decision_reason": None,
                "approval_request_id": None,
                "approval_hash": None,
            },
        ),
        (
            replace(FULL, status=Status.OUTCOME_UNKNOWN),
            RESUMED,
            {
                "status": Status.APPROVED,
                "problem": None,
                "is_vouched_for": False,
                "intent": Intent(op_key="K", attempt=4, epoch=5, owner=SECOND, deadline_us=10),
                "attempts": 4,
                "op_key": "K",
                "key_until_us": 20,
                "unknown": None,
            },
        ),
        (
            replace(FULL, executed=False),
            ActionExecuted(action="pay", op_key="k", result=7, not_stored="lost"),
            {
                "status": Status.COMPLETED,
                "executed": True,
                "intent": None,
                "unknown": None,
                "result": 7,
                "not_stored": "lost",
            },
        ),
        (
            replace(FULL, executed=False),
            ActionRecovered(action="pay", op_key="k", result=7),
            {
                "status": Status.COMPLETED,
                "executed": True,
                "intent": None,
                "unknown": None,
                "result": 7,
                "not_stored": None,
            },
        ),
        (
            replace(FULL, failure=None),
            ActionFailed(action="pay", op_key="k", error=NO, is_final=True),
            {"status": Status.FAILED, "intent": None, "unknown": None, "failure": NO},
        ),
        (
            replace(FULL, status=Status.OUTCOME_UNKNOWN, problem=None),
            ActionFailed(action="pay", op_key="k", error=NO),
            {"status": Status.APPROVED, "intent": None, "unknown": None, "problem": NO},
        ),
        (
            replace(FULL, status=Status.OUTCOME_UNKNOWN),
            ActionConflict(action="pay", op_key="k", reason="there is another", code="output_conflict"),
            {
                "status": Status.APPROVED,
                "intent": None,
                "unknown": None,
                "problem": Failure(code="output_conflict", message="there is another"),
            },
        ),
        (
            FULL,
            ActionConflict(action="pay", op_key="k", reason="used", code="idempotency_conflict"),
            {
                "status": Status.OUTCOME_UNKNOWN,
                "intent": None,
                "unknown": "used",
                "problem": Failure(code="idempotency_conflict", message="used"),
            },
        ),
        (
            FULL,
            OutcomeUnknown(action="pay", op_key="k", why="lost"),
            {"status": Status.OUTCOME_UNKNOWN, "unknown": "lost", "intent": None},
        ),
        (
            replace(FULL, strays_are_over=False),
            OutcomeUnknown(action="pay", op_key="k", why="lost", strays_are_over=True),
            {"status": Status.OUTCOME_UNKNOWN, "unknown": "lost", "intent": None, "strays_are_over": True},
        ),
        (
            UNDONE,
            OutcomeUnknown(action="undo", op_key="u", why="lost"),
            {"status": Status.OUTCOME_UNKNOWN, "unknown": "lost", "compensation": AT_REST},
        ),
        (
            replace(FULL, executed=False),
            SETTLED,
            {
                "status": Status.COMPLETED,
                "unknown": None,
                "is_vouched_for": False,
                "executed": True,
                "intent": None,
                "result": 7,
            },
        ),
        (
            replace(FULL, is_vouched_for=False),
            replace(SETTLED, verdict="not_executed", status=Status.CANCELLED),
            {"status": Status.CANCELLED, "unknown": None, "is_vouched_for": True, "intent": None},
        ),
        (
            FULL,
            replace(SETTLED, verdict="abandoned", status=Status.CANCELLED),
            {"status": Status.CANCELLED, "unknown": None, "is_vouched_for": False, "intent": None},
        ),
        (
            UNDONE,
            UNDO_SETTLED,
            {
                "status": Status.COMPENSATED,
                "unknown": None,
                "is_vouched_for": False,
                "compensation": replace(AT_REST, is_settled=True, result=7),
            },
        ),
        (
            replace(UNDONE, is_vouched_for=False),
            replace(UNDO_SETTLED, verdict="not_executed", status=Status.COMPLETED, result=None),
            {"status": Status.COMPLETED, "unknown": None, "is_vouched_for": True, "compensation": AT_REST},
        ),
        (
            FULL,
            COMPENSATES,
            {
                "status": Status.COMPLETED,
                "unknown": None,
                "problem": None,
                "is_vouched_for": False,
                "compensation": Compensation(
                    action="undo",
                    op_key="U",
                    attempts=4,
                    key_until_us=20,
                    intent=Intent(op_key="U", attempt=4, epoch=5, owner=SECOND, deadline_us=10),
                ),
            },
        ),
        (
            UNDONE,
            CompensationExecuted(action="undo", op_key="u", compensates="k", result=7),
            {
                "status": Status.COMPENSATED,
                "unknown": None,
                "compensation": replace(AT_REST, is_settled=True, result=7),
            },
        ),
        (
            replace(UNDONE, problem=None),
            CompensationFailed(action="undo", op_key="u", compensates="k", error=NO, is_final=True),
            {
                "status": Status.COMPLETED,
                "unknown": None,
                "problem": NO,
                "compensation": replace(AT_REST, is_settled=True),
            },
        ),
        (
            replace(UNDONE, problem=None),
            CompensationFailed(action="undo", op_key="u", compensates="k", error=NO),
            {"status": Status.COMPLETED, "unknown": None, "problem": NO, "compensation": AT_REST},
        ),
        (FULL, replace(LATE, attempt=2), {"late": replace(LATE, attempt=2)}),
        (FULL, RunCancelled(actor_source="os"), {"status": Status.CANCELLED, "is_cancelled": True, "waiting": None}),
        (
            replace(FULL, status=Status.OUTCOME_UNKNOWN),
            RunCancelled(actor_source="os"),
            {"is_cancelled": True},
        ),
        (replace(FULL, status=Status.COMPLETED), RunCancelled(actor_source="os"), {}),
        (
            FULL,
            RunClaimed(epoch=8, owner=SECOND, deadline_us=20),
            {"epoch": 8, "intent": replace(INTENT, epoch=8, owner=SECOND, deadline_us=20)},
        ),
        (
            FULL,
            RunClaimed(epoch=8, owner=SECOND, deadline_us=20, is_stray=True),
            {
                "epoch": 8,
                "intent": replace(INTENT, epoch=8, owner=SECOND, deadline_us=20),
                "strays": (SECOND, OWNER),
                "strays_are_over": False,
            },
        ),
        (
            UNDONE,
            RunClaimed(epoch=8, owner=SECOND, deadline_us=20, is_stray=True),
            {
                "epoch": 8,
                "compensation": replace(
                    UNDOING, intent=Intent(op_key="u", attempt=3, epoch=8, owner=SECOND, deadline_us=20)
                ),
                "strays": (SECOND, OWNER),
                "strays_are_over": False,
            },
        ),
        (
            replace(FULL, intent=None),
            RunClaimed(epoch=8, owner=SECOND, deadline_us=20, is_stray=True),
            {"epoch": 8},
        ),
        (
            replace(FULL, intent=None, compensation=AT_REST),
            RunClaimed(epoch=8, owner=SECOND, deadline_us=20),
            {"epoch": 8},
        ),
    ],
)
def test_an_event_changes_what_it_says_and_nothing_else(run: Run, event: RunEvent, fields: dict[str, Any]) -> None:
    assert changed(run, event) == fields


@pytest.mark.parametrize(
    ("decision", "status"), [("approve", Status.APPROVED), ("reject", Status.REJECTED)], ids=["yes", "no"]
)
def test_a_decision_that_decides_is_the_decision_of_the_run_and_a_vote_is_not(decision: str, status: Status) -> None:
    event = ApprovalRecorded(
        request_id="R",
        decision=decision,
        approval_hash="h",
        actor_source="os",
        reason="because",
        roles=("lead",),
        level=2,
        envelope=None,
    )
    vote = Vote(decision=decision, actor_source="os", roles=("lead",), reason="because", level=2)
    asked = replace(FULL, status=Status.WAITING_FOR_USER, approval="?")
    assert changed(asked, replace(event, is_deciding=False)) == {"votes": (*FULL.votes, vote)}
    assert changed(asked, event) == {
        "votes": (*FULL.votes, vote),
        "status": status,
        "waiting": None,
        "approval": decision,
        "decision_reason": "because",
        "approval_request_id": "R",
        "approval_hash": "h",
    }


def test_an_edit_asks_anew_and_forgets_all_that_was_said_and_done_about_the_request_before() -> None:
    event = ProposalRecorded(
        request_id="r#edit-1",
        proposal=msgspec.Raw(OTHER.canonical),
        proposal_hash=OTHER.hash,
        folder="/elsewhere",
        policy=PolicyTerms(),
        expires_at_us=30,
        supersedes="r",
    )
    run = replace(FULL, superseded=("first",), compensation=UNDOING, waiting=None)
    kept: dict[str, Any] = {"run_id": "run-1", "version": 9, "state_version": 5, "epoch": 4, "recorded_at_us": 15}
    kept |= {"proposed_by": "agent", "proposers": ("agent",)}
    kept |= {"strays": (SECOND,), "strays_are_over": True, "is_vouched_for": True}
    asked: dict[str, Any] = {
        "request_id": "r#edit-1",
        "proposal": OTHER,
        "proposal_hash": OTHER.hash,
        "folder": "/elsewhere",
        "policy": PolicyTerms(),
        "expires_at_us": 30,
        "superseded": ("first", "r"),
        "waiting": Waiting(type="approval", node_id="pay", approval_id="r#edit-1"),
    }
    after = evolve(run, event)
    assert after == Run(**kept, **asked)
    assert after.supersedes == "r"
    first = evolve(Run(run_id="run-1", executed=True), replace(event, supersedes=None))
    assert first.executed and first.waiting is None and first.supersedes is None


def test_a_step_of_a_workflow_waits_under_its_own_name() -> None:
    revoked = ApprovalRevoked(request_id="r", actor_source="os", step="look")
    waiting = evolve(replace(FULL, step="look"), revoked).waiting
    assert waiting == Waiting(type="approval", node_id="look", approval_id="r")
    nameless = evolve(replace(FULL, proposal=None), revoked).waiting
    assert nameless == Waiting(type="approval", node_id="", approval_id="r")


@pytest.mark.parametrize("status", [Status.WAITING_FOR_USER, Status.APPROVED, Status.RUNNING, Status.WAITING], ids=str)
def test_a_run_that_has_not_ended_is_cancelled_and_stays_so_whatever_comes(status: Status) -> None:
    cancelled = evolve(replace(FULL, status=status), RunCancelled(actor_source="os"))
    assert cancelled.is_cancelled and cancelled.status is Status.CANCELLED
    done = evolve(cancelled, ActionExecuted(action="pay", op_key="k", result=7))
    assert (done.status, done.result, done.intent) == (Status.CANCELLED, 7, None)
    assert evolve(cancelled, replace(LATE)).status is Status.CANCELLED


def test_what_is_open_and_what_is_unknown_is_asked_of_the_effect_or_of_its_undoing() -> None:
    assert FULL.open_intent is INTENT
    assert UNDONE.open_intent is UNDOING.intent
    assert replace(FULL, compensation=AT_REST).open_intent is None
    assert FULL.is_stray and not replace(FULL, strays=()).is_stray
    assert FULL.is_unknown and not replace(FULL, unknown=None).is_unknown
    assert replace(FULL, unknown=None, status=Status.OUTCOME_UNKNOWN).is_unknown


# ── who and when ─────────────────────────────────────────────────────────────────────────────────────────────────────


def folded(run: Run, event: RunEvent, actor: str = "bob", at_us: int = 99) -> Run:
    return fold_fact(run, event, version=10, at_us=at_us, actor=actor)


def test_the_envelope_says_who_proposed_and_everybody_who_ever_did_is_kept_once() -> None:
    event = ProposalRecorded(request_id="r", proposal=msgspec.Raw(OTHER.canonical), proposal_hash=OTHER.hash)
    run = replace(FULL, proposers=("agent", "bob"))
    by_bob, by_eve = folded(run, event), folded(run, event, "eve")
    assert (by_bob.proposed_by, by_bob.proposers) == ("bob", ("agent", "bob"))
    assert (by_eve.proposed_by, by_eve.proposers) == ("eve", ("agent", "bob", "eve"))
    assert (by_bob.version, by_bob.recorded_at_us) == (10, 99)


def test_the_envelope_says_who_decided_and_when_but_a_rule_is_nobody() -> None:
    event = ApprovalRecorded(request_id="r", decision="approve", approval_hash="h", actor_source="os")
    decided = folded(FULL, event)
    assert (decided.decided_by, decided.decided_at_us) == ("bob", 99)
    assert [vote.actor for vote in decided.votes] == ["alice", "bob"]
    by_rule = folded(FULL, replace(event, actor_source="policy"))
    assert (by_rule.decided_by, by_rule.decided_at_us, by_rule.votes[-1].actor) == (None, 99, None)
    voted = folded(FULL, replace(event, is_deciding=False))
    assert (voted.decided_by, voted.decided_at_us, voted.votes[-1].actor) == ("alice", 12, "bob")


def test_an_outcome_is_unknown_since_it_was_said_first_or_since_nobody_else_may_act() -> None:
    unknown = OutcomeUnknown(action="pay", op_key="k", why="lost")
    known = replace(FULL, unknown=None, strays_are_over=False)
    assert folded(known, unknown).unknown_since_us == 99
    assert folded(replace(known, unknown="it died"), unknown).unknown_since_us == 14
    over = replace(unknown, strays_are_over=True)
    assert folded(replace(known, unknown="it died"), over).unknown_since_us == 99
    assert folded(FULL, over).unknown_since_us == 14
    assert folded(replace(known, unknown="it died"), LATE).unknown_since_us == 14
    assert folded(known, LATE).unknown_since_us == 14

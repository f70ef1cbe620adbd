"""What people do about a request: decide by a policy, edit, revoke, cancel, or nothing in time.

First without a store, given a past; then through a runner on real logs; then against each other in real processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import eventlog
from eventlog import decide
from eventlog.decide import Accepted, Refusal, Terms
from eventlog.errors import ApprovalExpired, ApprovalRejected, EventLogError, InvalidInput, Refused
from eventlog.events import (
    ActionExecuted,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    Definition,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    PolicyTerms,
    ProposalRecorded,
    ProposalVerified,
    ResumeRejected,
    ResumeStarted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    TransitionRejected,
    Waiting,
)
from eventlog.events import ApprovalExpired as ApprovalExpiredEvent
from eventlog.log import Append, Expect, RunLog
from eventlog.progress import requests_of
from eventlog.proposal import Proposal, propose
from eventlog.run import Run, Status, Vote, fold_fact
from eventlog.runtime.policies import Policy
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from eventlog.testing.given import Given
from projections import RunsTable, runs_view
from tests import people_scenarios
from tests.effect_runs import Crash, Receiver, Sending, crash_at, inside_its_effect, runner_of, trace_of, types_of
from tools.campaigns.processes import child

REQUEST = "approval:run-1"
PROPOSAL = propose("pay", {"amount": 25}, "account")
OTHER = propose("pay", {"amount": 20}, "account")
HASH = PROPOSAL.hash
TWO = PolicyTerms(required=2)
KEY = "k" * 64
OWNER = Owner(host="h", boot="b", lock="l")

WAITS = CheckpointSaved(
    status=Status.WAITING_FOR_USER,
    state_version=1,
    waiting=Waiting(type="approval", node_id="pay", approval_id=REQUEST),
)
CHECKED = ProposalVerified(phase="approval", proposal_hash=HASH)
YES = ApprovalRecorded(request_id=REQUEST, decision="approve", approval_hash=HASH, actor_source="asserted")
NO = replace(YES, decision="reject")
VOTE = replace(YES, is_deciding=False)
INTENT = ResumeStarted(op_key=KEY, attempt=1, epoch=0, owner=OWNER, deadline_us=9, approval_hash=HASH, input_hash=HASH)
DONE = ActionExecuted(action="pay", op_key=KEY, result=1)
UNKNOWN = OutcomeUnknown(action="pay", op_key=KEY, why="it died")
CANCELLED = RunCancelled(actor_source="os")

Fact = RunEvent | tuple[str, RunEvent]
Command = Callable[[Run], Any]


def asked(policy: PolicyTerms | None = None, expires_at_us: int | None = None, **fields: Any) -> ProposalRecorded:
    return ProposalRecorded(
        request_id=REQUEST,
        proposal=msgspec.Raw(PROPOSAL.canonical),
        proposal_hash=HASH,
        policy=policy,
        expires_at_us=expires_at_us,
        **fields,
    )


def past(*facts: Fact, proposer: str = "agent") -> Given:
    """Return the run with these events; those in a pair are by somebody named, the others by the proposer."""
    run = Run(run_id="run-1")
    for version, fact in enumerate(facts, 1):
        actor, event = fact if isinstance(fact, tuple) else (proposer, fact)
        run = fold_fact(run, event, version=version, at_us=version, actor=actor)
    return Given(run)


def decides(actor: str, decision: str = "approve", supplied_hash: str = HASH, **options: Any) -> Command:
    return lambda run: decide.record_decision(
        run, decision, supplied_hash, actor_source="asserted", actor=actor, **options
    )


def edits(proposal: Proposal = OTHER, terms: Terms | None = None, **options: Any) -> Command:
    return lambda run: decide.edit(run, proposal, terms or Terms(), actor_source="asserted", **options)


def revokes(**options: Any) -> Command:
    return lambda run: decide.revoke(run, actor_source="os", **options)


def cancels(**options: Any) -> Command:
    return lambda run: decide.cancel(run, actor_source="os", **options)


def refusal_of(given: Given, command: Command) -> Refusal:
    outcome = given.when(command).outcome
    assert isinstance(outcome, Refusal)
    return outcome


def not_allowed(code: str, attempted: str, status: Status = Status.WAITING_FOR_USER, **fields: Any) -> RunEvent:
    return TransitionRejected(reason=code, attempted_decision=attempted, current_status=status.value, **fields)


# ── votes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_terms_one_decision_by_anybody_decides_and_says_nothing_more_than_it_used_to() -> None:
    accepted = past(WAITS, asked()).when(decides("agent", reason="fine")).outcome
    assert accepted == Accepted((CHECKED, replace(YES, reason="fine")))
    assert msgspec.json.encode(accepted.events[1]) == msgspec.json.encode(
        {
            "request_id": REQUEST,
            "decision": "approve",
            "approval_hash": HASH,
            "actor_source": "asserted",
            "reason": "fine",
        }
    )


def test_the_second_of_two_approvals_decides() -> None:
    (
        past(WAITS, asked(TWO))
        .when(decides("ann"))
        .then(CHECKED, VOTE)
        .has(status=Status.WAITING_FOR_USER, approval=None, approval_hash=None)
    )
    (
        past(WAITS, asked(TWO), CHECKED, ("ann", VOTE))
        .has(votes=(Vote(decision="approve", actor="ann", actor_source="asserted"),), decided_by=None)
        .when(decides("bob"))
        .then(CHECKED, YES)
        .has(status=Status.APPROVED, approval="approve", approval_hash=HASH, approval_request_id=REQUEST, waiting=None)
    )
    run = past(WAITS, asked(TWO), CHECKED, ("ann", VOTE), CHECKED, ("bob", YES)).run
    assert ([vote.actor for vote in run.votes], run.decided_by, run.decided_at_us) == (["ann", "bob"], "bob", 6)


def test_one_rejection_decides_however_many_approvals_were_asked_for() -> None:
    (
        past(WAITS, asked(PolicyTerms(required=3)), CHECKED, ("ann", VOTE))
        .when(decides("bob", "reject", reason="no"))
        .then(CHECKED, replace(NO, reason="no"))
        .has(status=Status.REJECTED, approval="reject", decision_reason="no")
    )


@pytest.mark.parametrize("second", ["approve", "reject"])
def test_nobody_votes_twice(second: str) -> None:
    (
        past(WAITS, asked(TWO), CHECKED, ("ann", VOTE))
        .when(decides("ann", second))
        .then_refused("already_voted", not_allowed("already_voted", second, supplied_hash=HASH))
        .has(status=Status.WAITING_FOR_USER)
        .when(decides("bob"))
        .then(CHECKED, YES)
    )


def test_a_decision_that_comes_later_is_told_the_one_that_stands() -> None:
    decided = past(WAITS, asked(), CHECKED, ("ann", replace(YES, reason="looks right")))
    refusal = refusal_of(decided, decides("bob", "reject"))
    assert refusal.event == not_allowed(
        "approval_not_pending", "reject", Status.APPROVED, existing_approval="approve", supplied_hash=HASH
    )
    assert refusal.error.code == "approval_not_pending"
    assert refusal.error.details == {
        "run_id": "run-1",
        "status": "APPROVED",
        "existing_approval": "approve",
        "decided_by": "ann",
        "decided_at": "1970-01-01T00:00:00.000004+00:00",
        "reason": "looks right",
    }


# ── who may approve ──────────────────────────────────────────────────────────────────────────────────────────────────

WITH_ROLES = PolicyTerms(roles=("finance", "legal"))


@pytest.mark.parametrize("brought", [(), ("sales",), ("Finance",), ("sales", "support")])
def test_an_approver_brings_one_of_the_roles(brought: tuple[str, ...]) -> None:
    refusal = refusal_of(past(WAITS, asked(WITH_ROLES)), decides("ann", roles=brought))
    assert refusal.event == not_allowed(
        "role_required", "approve", supplied_hash=HASH, detail=", ".join(brought) or None
    )
    assert refusal.error.code == "role_required"
    assert refusal.error.details["required_roles"] == ["finance", "legal"]


def test_the_roles_that_an_approver_brought_are_recorded_with_the_approval() -> None:
    given = past(WAITS, asked(WITH_ROLES))
    given.when(decides("ann", roles=("sales", "legal", "sales"))).then(CHECKED, replace(YES, roles=("sales", "legal")))
    given.when(decides("ann", roles=["legal"])).then(CHECKED, replace(YES, roles=("legal",)))


def test_anybody_may_say_no() -> None:
    terms = PolicyTerms(required=2, roles=("finance",), separation_of_duties=True)
    past(WAITS, asked(terms)).when(decides("agent", "reject")).then(CHECKED, NO).has(status=Status.REJECTED)


def test_who_proposed_does_not_approve_where_duties_are_separated() -> None:
    given = past(WAITS, asked(PolicyTerms(separation_of_duties=True)), proposer="ann").has(proposed_by="ann")
    given.when(decides("ann")).then_refused(
        "separation_of_duties", not_allowed("separation_of_duties", "approve", supplied_hash=HASH)
    )
    given.when(decides("bob")).then(CHECKED, YES)


@pytest.mark.parametrize("roles", ["finance", ("",), ("a\nb",), (7,), [f"role-{number}" for number in range(33)]])
def test_roles_that_could_not_be_recorded_are_an_error(roles: Any) -> None:
    given = past(WAITS, asked(WITH_ROLES))
    with pytest.raises(InvalidInput):
        decide.record_decision(given.run, "approve", HASH, actor_source="os", actor="ann", roles=roles)


# ── nobody in time ───────────────────────────────────────────────────────────────────────────────────────────────────

EXPIRED = ApprovalExpiredEvent(request_id=REQUEST, expires_at_us=100)
LATE: list[Command] = [
    decides("ann", now_us=100),
    decides("ann", "reject", now_us=101),
    decides("ann", supplied_hash="0" * 64, now_us=100),
    edits(now_us=100),
    revokes(now_us=100),
    lambda run: decide.resume(run, None, 100),
]


@pytest.mark.parametrize("late", LATE, ids=["approve", "reject", "other hash", "edit", "revoke", "resume"])
def test_whoever_comes_too_late_records_that_nobody_decided_in_time(late: Command) -> None:
    given = past(WAITS, asked(TWO, 100), CHECKED, ("ann", VOTE))
    assert isinstance(refusal_of(given, late).error, ApprovalExpired)
    given.when(late).then_refused("approval_expired", EXPIRED).has(
        status=Status.EXPIRED, approval=None, waiting=None, executed=False
    )


def test_an_expired_request_is_neither_decided_nor_resumed_and_never_called_a_no() -> None:
    expired = past(WAITS, asked(None, 100), EXPIRED)
    for decision in ("approve", "reject"):
        expired.when(decides("ann", decision)).then_refused(
            "approval_expired", not_allowed("approval_expired", decision, Status.EXPIRED, supplied_hash=HASH)
        )
    expired.when(edits()).then_refused("approval_expired", not_allowed("approval_expired", "edit", Status.EXPIRED))
    refusal = refusal_of(expired, lambda run: decide.resume(run, None))
    assert refusal.event == ResumeRejected(reason="approval_expired", status="EXPIRED")
    assert isinstance(refusal.error, ApprovalExpired)
    assert "reject" not in str(refusal.error)


def test_a_decision_in_time_stays_valid() -> None:
    given = past(WAITS, asked(None, 100))
    given.when(decides("ann", now_us=99)).then(CHECKED, YES)
    approved = past(WAITS, asked(None, 100), CHECKED, ("ann", YES))
    approved.when(lambda run: decide.resume(run, None, 10**9)).then(
        ProposalVerified(phase="resume", proposal_hash=HASH)
    )
    assert decide.expire(approved.run, 10**9) is None


def test_that_nobody_decided_in_time_is_recorded_once() -> None:
    given = past(WAITS, asked(None, 100))
    assert decide.expire(given.run, 99) is None
    given.when(lambda run: decide.expire(run, 100)).then(EXPIRED)
    assert decide.expire(given.and_given(EXPIRED).run, 101) is None
    assert decide.expire(past(WAITS, asked()).run, 10**18) is None, "a request without an end waits for ever"


def test_a_rejection_is_told_by_whom_and_why() -> None:
    rejected = past(WAITS, asked(), CHECKED, ("ann", replace(NO, reason="not now")))
    error = refusal_of(rejected, lambda run: decide.resume(run, None)).error
    assert isinstance(error, ApprovalRejected)
    assert (error.code, error.actor, error.reason) == ("approval_rejected", "ann", "not now")


# ── edits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def edited(number: int = 1, proposal: Proposal = OTHER, supersedes: str = REQUEST, **fields: Any) -> ProposalRecorded:
    return ProposalRecorded(
        request_id=f"{REQUEST}#edit-{number}",
        proposal=msgspec.Raw(proposal.canonical),
        proposal_hash=proposal.hash,
        supersedes=supersedes,
        **fields,
    )


def test_an_edit_asks_anew_under_a_request_of_its_own() -> None:
    (
        past(WAITS, asked(TWO, 100), CHECKED, ("ann", VOTE))
        .when(edits(terms=Terms(policy=WITH_ROLES, expires_at_us=500), reason="too much", folder="/work"))
        .then(edited(policy=WITH_ROLES, expires_at_us=500, reason="too much", folder="/work"))
        .has(status=Status.WAITING_FOR_USER, proposal=OTHER, proposal_hash=OTHER.hash, policy=WITH_ROLES)
        .has(request_id=f"{REQUEST}#edit-1", supersedes=REQUEST, votes=(), expires_at_us=500, folder="/work")
        .has(waiting=Waiting(type="approval", node_id="pay", approval_id=f"{REQUEST}#edit-1"))
        .when(decides("ann"))
        .then_refused("proposal_hash_mismatch", other_hash(HASH))
        .when(decides("ann", supplied_hash=OTHER.hash, roles=("legal",)))
        .then(
            replace(CHECKED, proposal_hash=OTHER.hash),
            replace(YES, request_id=f"{REQUEST}#edit-1", approval_hash=OTHER.hash, roles=("legal",)),
        )
        .has(status=Status.APPROVED, approval_request_id=f"{REQUEST}#edit-1", approval_hash=OTHER.hash)
        .when(lambda run: decide.resume(run, None))
        .then(ProposalVerified(phase="resume", proposal_hash=OTHER.hash))
    )


def other_hash(supplied_hash: str) -> RunEvent:
    outcome = decide.record_decision(past(WAITS, edited()).run, "approve", supplied_hash, actor_source="os")
    assert isinstance(outcome, Refusal)
    return outcome.event


def test_edits_are_counted_from_the_first_request_and_all_earlier_ones_stay_closed() -> None:
    third = propose("pay", {"amount": 1}, "account")
    given = (
        past(WAITS, asked())
        .when(edits())
        .then(edited())
        .when(edits(third))
        .then(edited(2, third, f"{REQUEST}#edit-1"))
        .has(superseded=(REQUEST, f"{REQUEST}#edit-1"), supersedes=f"{REQUEST}#edit-1")
    )
    for closed in (REQUEST, f"{REQUEST}#edit-1"):
        refusal = chosen(given.run, request_id=closed, supplied_hash=third.hash)
        assert isinstance(refusal, Refusal)
        assert refusal.event == not_allowed("approval_not_pending", "approve", supplied_hash=third.hash, detail=closed)
        assert refusal.error.code == "approval_not_pending"
        assert refusal.error.details["superseded_by"] == f"{REQUEST}#edit-2"


def test_an_edit_takes_nothing_over_of_what_was_said_or_done_about_the_original() -> None:
    # Such a past cannot come about by commands; whatever it was, none of it belongs to the new request.
    after = past(WAITS, asked(), CHECKED, ("ann", YES), INTENT, DONE, ("bob", edited())).run
    fresh = past(WAITS, ("bob", edited())).run
    assert after.proposers == ("agent", "bob")  # but who asked first stays one who asked
    assert replace(after, version=0, recorded_at_us=0, proposers=()) == replace(
        fresh, version=0, recorded_at_us=0, proposers=()
    )


def test_an_editor_may_approve_in_the_same_append_and_is_the_proposer_of_what_he_wrote() -> None:
    yes = replace(YES, request_id=f"{REQUEST}#edit-1", approval_hash=OTHER.hash, reason="less")
    verified = replace(CHECKED, proposal_hash=OTHER.hash)
    given = past(WAITS, asked())
    options: dict[str, Any] = {"approves": True, "actor": "ann", "reason": "less"}
    given.when(edits(**options)).then(edited(reason="less"), verified, yes).has(status=Status.APPROVED)
    given.when(edits(terms=Terms(policy=TWO), **options)).then(
        edited(reason="less", policy=TWO), verified, replace(yes, is_deciding=False)
    ).has(status=Status.WAITING_FOR_USER)
    apart = PolicyTerms(separation_of_duties=True)
    refused = refusal_of(given, edits(terms=Terms(policy=apart), **options))
    assert (refused.error.code, refused.error.details["actor"]) == ("separation_of_duties", "ann")
    unnamed = refusal_of(given, edits(terms=Terms(policy=apart), approves=True))
    assert unnamed.error.code == "separation_of_duties", "nobody named is not somebody else"
    assert refusal_of(given, edits(terms=Terms(policy=WITH_ROLES), **options)).error.code == "role_required"
    with_role = given.when(edits(terms=Terms(policy=WITH_ROLES), roles=("legal",), **options)).outcome
    assert isinstance(with_role, Accepted)


def test_what_a_rule_approves_needs_no_approval_of_its_editor() -> None:
    given = past(WAITS, asked())
    for approves in (False, True):
        given.when(edits(terms=Terms(auto="small"), approves=approves, actor="ann")).then(
            edited(),
            replace(CHECKED, proposal_hash=OTHER.hash),
            replace(
                YES,
                request_id=f"{REQUEST}#edit-1",
                approval_hash=OTHER.hash,
                actor_source="policy",
                reason="small",
            ),
        ).has(status=Status.APPROVED)


def test_an_edit_that_changes_nothing_is_an_error() -> None:
    past(WAITS, asked()).when(edits(PROPOSAL)).then_raises("invalid_argument")
    past(WAITS, asked()).when(edits(reason="x" * 1025)).then_raises("payload_too_large")


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ((CHECKED, ("ann", YES)), Status.APPROVED),
        ((CHECKED, ("ann", NO)), Status.REJECTED),
        ((CHECKED, ("ann", YES), INTENT, DONE), Status.COMPLETED),
        ((CANCELLED,), Status.CANCELLED),
    ],
    ids=["approved", "rejected", "completed", "cancelled"],
)
def test_only_what_waits_is_edited(facts: tuple[Fact, ...], status: Status) -> None:
    given = past(WAITS, asked(), *facts)
    given.when(edits()).then_refused(
        "approval_not_pending",
        not_allowed("approval_not_pending", "edit", status, existing_approval=given.run.approval),
    )


# ── revocations ──────────────────────────────────────────────────────────────────────────────────────────────────────

REVOKED = ApprovalRevoked(request_id=REQUEST, actor_source="os")


def test_an_approval_is_withdrawn_before_the_act_and_may_be_given_again() -> None:
    (
        past(WAITS, asked(TWO), CHECKED, ("ann", VOTE), CHECKED, ("bob", YES))
        .when(revokes(reason="wait"))
        .then(replace(REVOKED, reason="wait"))
        .has(status=Status.WAITING_FOR_USER, approval=None, approval_hash=None, approval_request_id=None, votes=())
        .has(decided_by=None, decided_at_us=None, decision_reason=None, policy=TWO)
        .has(waiting=Waiting(type="approval", node_id="pay", approval_id=REQUEST))
        .when(lambda run: decide.resume(run, None))
        .then_refused("approval_required", ResumeRejected(reason="approval_required", status="WAITING_FOR_USER"))
        .when(decides("ann"))
        .then(CHECKED, VOTE)
        .when(decides("bob"))
        .then(CHECKED, YES)
        .has(status=Status.APPROVED)
    )


def test_votes_that_have_not_decided_are_withdrawn_too() -> None:
    (
        past(WAITS, asked(TWO), CHECKED, ("ann", VOTE))
        .when(revokes())
        .then(REVOKED)
        .has(votes=())
        .when(decides("ann"))
        .then(CHECKED, VOTE)
    )


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ((INTENT,), Status.APPROVED),
        ((INTENT, DONE), Status.COMPLETED),
        ((INTENT, UNKNOWN), Status.OUTCOME_UNKNOWN),
        (
            (
                INTENT,
                UNKNOWN,
                OutcomeReconciled(
                    action="pay",
                    op_key=KEY,
                    verdict="not_executed",
                    status=Status.APPROVED,
                    evidence="I looked",
                    actor_source="os",
                ),
            ),
            Status.APPROVED,
        ),
    ],
    ids=["at work", "done", "unknown", "known not to be done"],
)
def test_an_approval_is_spent_once_the_effect_has_begun(facts: tuple[Fact, ...], status: Status) -> None:
    (
        past(WAITS, asked(), CHECKED, ("ann", YES), *facts)
        .when(revokes())
        .then_refused("approval_spent", not_allowed("approval_spent", "revoke", status, existing_approval="approve"))
    )


@pytest.mark.parametrize(
    ("facts", "status", "existing"),
    [
        ((), Status.WAITING_FOR_USER, None),
        ((CHECKED, ("ann", NO)), Status.REJECTED, "reject"),
        ((EXPIRED,), Status.EXPIRED, None),
        ((CHECKED, ("ann", YES), CANCELLED), Status.CANCELLED, "approve"),
    ],
    ids=["waiting", "rejected", "expired", "cancelled"],
)
def test_where_nobody_approved_nothing_is_withdrawn(
    facts: tuple[Fact, ...], status: Status, existing: str | None
) -> None:
    past(WAITS, asked(), *facts).when(revokes()).then_refused(
        "cannot_revoke", not_allowed("cannot_revoke", "revoke", status, existing_approval=existing)
    )


# ── cancellations ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("facts", [(), (CHECKED, ("ann", YES))], ids=["waiting", "approved"])
def test_a_run_that_has_not_ended_is_cancelled_for_good(facts: tuple[Fact, ...]) -> None:
    existing = "approve" if facts else None
    (
        past(WAITS, asked(), *facts)
        .when(cancels(reason="enough"))
        .then(replace(CANCELLED, reason="enough"))
        .has(status=Status.CANCELLED, is_cancelled=True, waiting=None, executed=False)
        .when(lambda run: decide.resume(run, None))
        .then_refused("cannot_resume", ResumeRejected(reason="cannot_resume", status="CANCELLED"))
        .when(decides("ann"))
        .then_refused(
            "approval_not_pending",
            not_allowed(
                "approval_not_pending",
                "approve",
                Status.CANCELLED,
                existing_approval=existing,
                supplied_hash=HASH,
            ),
        )
        .when(cancels())
        .then_refused(
            "cannot_cancel", not_allowed("cannot_cancel", "cancel", Status.CANCELLED, existing_approval=existing)
        )
    )


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ((CHECKED, ("ann", NO)), Status.REJECTED),
        ((EXPIRED,), Status.EXPIRED),
        ((CHECKED, ("ann", YES), INTENT, DONE), Status.COMPLETED),
        ((CHECKED, ("ann", YES), INTENT, UNKNOWN), Status.OUTCOME_UNKNOWN),
    ],
    ids=["rejected", "expired", "completed", "unknown"],
)
def test_what_has_ended_or_is_unknown_is_not_cancelled(facts: tuple[Fact, ...], status: Status) -> None:
    given = past(WAITS, asked(None, 100), *facts)
    given.when(cancels()).then_refused(
        "cannot_cancel", not_allowed("cannot_cancel", "cancel", status, existing_approval=given.run.approval)
    )


def test_what_an_effect_has_come_to_is_known_of_a_cancelled_run_and_leaves_it_cancelled() -> None:
    at_work = past(WAITS, asked(), CHECKED, ("ann", YES), INTENT).when(cancels()).then(CANCELLED)
    at_work.has(status=Status.CANCELLED, executed=False)
    assert at_work.run.intent is not None, "it is still under way"
    at_work.and_given(DONE).has(status=Status.CANCELLED, executed=True, result=1, intent=None)
    unknown = at_work.and_given(UNKNOWN).has(status=Status.CANCELLED, unknown="it died", intent=None)
    (
        unknown.when(lambda run: decide.reconcile(run, "not_executed", "I looked", actor_source="os"))
        .then(
            OutcomeReconciled(
                action="pay",
                op_key=KEY,
                verdict="not_executed",
                status=Status.CANCELLED,
                evidence="I looked",
                actor_source="os",
            )
        )
        .has(status=Status.CANCELLED, unknown=None)
        .when(lambda run: decide.resume(run, None))
        .then_refused("cannot_resume", ResumeRejected(reason="cannot_resume", status="CANCELLED"))
    )


def test_a_cancellation_changes_nothing_of_what_has_ended() -> None:
    # As when a workflow is cancelled some of whose requests have ended.
    done = past(WAITS, asked(), CHECKED, ("ann", YES), INTENT, DONE)
    done.and_given(CANCELLED).has(status=Status.COMPLETED, is_cancelled=False)
    unknown = past(WAITS, asked(), CHECKED, ("ann", YES), INTENT, UNKNOWN, CANCELLED)
    unknown.has(status=Status.OUTCOME_UNKNOWN, is_cancelled=True).and_given(DONE).has(
        status=Status.CANCELLED, executed=True
    )


# ── which request ────────────────────────────────────────────────────────────────────────────────────────────────────


def chosen(run: Run, *requests: Run, **how: Any) -> Run | Refusal:
    return decide.choose_request(run, requests or (run,), "approve", **how)


def request_at(step: str, proposal: Proposal = PROPOSAL, *facts: Fact) -> Run:
    recorded = ProposalRecorded(
        request_id=f"{REQUEST}:{step}", proposal=msgspec.Raw(proposal.canonical), proposal_hash=proposal.hash
    )
    return replace(past(recorded, *facts).run, step=step)


def test_the_request_that_is_named_is_the_one_that_is_meant() -> None:
    first, second = request_at("a"), request_at("b")
    run = Run(run_id="run-1", version=4)
    assert chosen(run, first, second, request_id=f"{REQUEST}:b", supplied_hash=HASH) is second
    assert chosen(run, first, request_id=f"{REQUEST}:a", supplied_hash="0" * 64) is first


def test_without_a_name_the_only_pending_one_with_the_hash_is_meant_or_the_only_pending_one() -> None:
    first, second, decided = request_at("a"), request_at("b", OTHER), request_at("c", PROPOSAL, CHECKED, ("ann", YES))
    run = Run(run_id="run-1", version=9)
    assert chosen(run, first, second, decided, supplied_hash=OTHER.hash) is second
    assert chosen(run, first, second, supplied_hash=HASH) is first
    assert chosen(run, first, decided, supplied_hash="0" * 64) is first
    assert chosen(run, second, decided, supplied_hash=HASH) is decided, "and not the one that is pending"
    assert chosen(run, decided, supplied_hash=HASH) is decided, "so that the refusal says what became of it"


def test_who_does_not_say_which_of_several_requests_is_told_them_all() -> None:
    run = Run(run_id="run-1", version=9)
    alike = request_at("a"), request_at("b")
    decided = request_at("b", PROPOSAL, CHECKED, ("ann", YES))
    for requests, supplied in (
        (alike, HASH),
        (alike, None),
        ((request_at("a"), request_at("b", OTHER)), "0" * 64),
        ((request_at("a"), decided), HASH),
    ):
        refusal = chosen(run, *requests, supplied_hash=supplied)
        assert isinstance(refusal, Refusal)
        assert refusal.error.code == "request_ambiguous"
        assert refusal.error.details["requests"] == [f"{REQUEST}:a", f"{REQUEST}:b"]
        assert isinstance(refusal.event, TransitionRejected)


def test_a_request_that_the_run_never_asked_is_unknown() -> None:
    refusal = chosen(past(WAITS, asked()).run, request_id="approval:run-2")
    assert isinstance(refusal, Refusal)
    assert refusal.event == not_allowed("unknown_request", "approve", detail="approval:run-2")
    with pytest.raises(InvalidInput):
        chosen(past(WAITS, asked()).run, request_id="\ud800")


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def terms_of(**policy: Any) -> Terms:
    return Policy(**policy).terms(PROPOSAL, 1_000_000)


def test_a_policy_asks_for_nothing_by_default() -> None:
    assert terms_of() == Terms()
    assert terms_of(auto=False) == Terms()


def test_a_policy_is_frozen_as_terms() -> None:
    assert terms_of(required=2, roles=["a", "b"], separation_of_duties=True, expires_in_s=1.5) == Terms(
        policy=PolicyTerms(required=2, roles=("a", "b"), separation_of_duties=True), expires_at_us=2_500_000
    )


def test_a_rule_gives_the_reason_why_nobody_is_asked() -> None:
    def small(proposal: Proposal) -> bool:
        return int(proposal.args["amount"]) < 30

    assert terms_of(auto=True).auto == "its policy approves every pay"
    assert re.search(r"^the rule .*small approves it$", terms_of(auto=small).auto or "")
    assert Policy(auto=small).terms(propose("pay", {"amount": 31}, "account"), 0).auto is None
    assert terms_of(auto=lambda proposal: "it is small").auto == "it is small"
    assert terms_of(auto=lambda proposal: "").auto is None
    assert len(terms_of(auto=lambda proposal: "x" * 9999).auto or "") == 1024


def test_a_rule_that_fails_or_gives_no_answer_asks_people() -> None:
    def fails(proposal: Proposal) -> bool:
        raise ValueError("no")

    async def waits() -> bool:
        return True

    for rule in (fails, lambda proposal: None, lambda proposal: 1, lambda proposal: waits(), lambda proposal: object()):
        assert terms_of(auto=rule).auto is None


def test_a_rule_cannot_change_what_is_asked() -> None:
    def meddles(proposal: Proposal) -> bool:
        proposal.args["amount"] = 10**6
        return True

    proposal = propose("pay", {"amount": 25}, "account")
    Policy(auto=meddles).terms(proposal, 0)
    assert proposal == PROPOSAL


async def rule_that_waits(proposal: Proposal) -> bool:
    return True


@pytest.mark.parametrize(
    "wrong",
    [
        {"required": 0},
        {"required": True},
        {"required": 1.0},
        {"required": 1001},
        {"roles": "finance"},
        {"roles": ("",)},
        {"expires_in_s": 0},
        {"expires_in_s": -1},
        {"expires_in_s": float("nan")},
        {"expires_in_s": float("inf")},
        {"expires_in_s": True},
        {"expires_in_s": "1"},
        {"separation_of_duties": 1},
        {"auto": 1},
        {"auto": "yes"},
        pytest.param({"auto": rule_that_waits}, id="a rule that waits"),
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_meant_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Policy(**wrong)


# ── through a runner, on real logs ───────────────────────────────────────────────────────────────────────────────────

AnyLog = MemoryLog | SqliteLog


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def send(receiver: Receiver) -> Sending:
    return Sending(receiver)


def sends(amount: int = 1) -> Proposal:
    return propose("send", {"amount": amount}, "target")


async def refused(command: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await command
    return caught.value


def runner_with(log: RunLog, clock: FakeClock, send: Sending, **policy: Any) -> eventlog.Runner:
    return runner_of(log, clock, send, policies={"send": Policy(**policy)})


async def test_two_people_approve_and_the_terms_hold_in_a_program_without_policies(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    proposal = sends()
    await runner_with(log, clock, send, required=2, separation_of_duties=True).propose("run-1", proposal, actor="agent")
    plain = runner_of(log, clock, send)
    assert (await refused(plain.approve("run-1", proposal.hash, actor="agent"))).code == "separation_of_duties"
    assert (await plain.approve("run-1", proposal.hash, actor="ann")).status == "WAITING_FOR_USER"
    assert (await refused(plain.resume("run-1"))).code == "approval_required"
    assert (await refused(plain.approve("run-1", proposal.hash, actor="ann"))).code == "already_voted"
    assert receiver.effects == []
    assert (await plain.approve("run-1", proposal.hash, actor="bob")).status == "APPROVED"
    later = await refused(plain.reject("run-1", proposal.hash, actor="cid"))
    assert (later.code, later.details["decided_by"]) == ("approval_not_pending", "bob")
    assert (await plain.resume("run-1")).status == "COMPLETED"
    assert len(receiver.effects) == 1
    assert (await types_of(log)).count("transition_rejected") == 3


async def test_who_names_nobody_is_the_one_that_the_log_was_opened_by(
    log: AnyLog, clock: FakeClock, send: Sending
) -> None:
    runner = runner_with(log, clock, send, required=2, separation_of_duties=True)
    proposal = sends()
    await runner.propose("run-1", proposal)
    assert (await refused(runner.approve("run-1", proposal.hash))).code == "separation_of_duties"
    assert (await refused(runner.approve("run-1", proposal.hash, actor=log.actor))).code == "separation_of_duties"
    await runner.propose("run-2", proposal, actor="agent")
    await runner.approve("run-2", proposal.hash)
    assert (await refused(runner.approve("run-2", proposal.hash, actor=log.actor))).code == "already_voted"


async def test_what_a_rule_approves_runs_at_once_and_says_so(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    runner = runner_with(
        log, clock, send, required=2, auto=lambda proposal: "small" if proposal.args["amount"] < 5 else False
    )
    outcome = await runner.propose("run-1", sends(1), actor="agent")
    assert (outcome.status, outcome.run.decided_by, outcome.run.decision_reason) == ("APPROVED", None, "small")
    approval = next(event for event in await trace_of(log) if event.type == "approval_recorded")
    assert (approval.data.actor_source, approval.data.reason) == ("policy", "small")
    assert (await runner.resume("run-1")).status == "COMPLETED"
    assert (await runner.propose("run-2", sends(5), actor="agent")).status == "WAITING_FOR_USER"
    assert (await refused(runner.resume("run-2"))).code == "approval_required"
    assert len(receiver.effects) == 1


async def test_what_a_rule_approved_waits_for_people_once_it_is_revoked(
    log: AnyLog, clock: FakeClock, send: Sending
) -> None:
    runner = runner_with(log, clock, send, auto=True, required=2)
    proposal = sends()
    await runner.propose("run-1", proposal, actor="agent")
    assert (await runner.revoke("run-1", actor="ann", reason="let me see")).status == "WAITING_FOR_USER"
    assert (await refused(runner.resume("run-1"))).code == "approval_required"
    assert (await runner.approve("run-1", proposal.hash, actor="agent")).status == "WAITING_FOR_USER"
    assert (await runner.approve("run-1", proposal.hash, actor="ann")).status == "APPROVED"


@pytest.mark.parametrize("command", ["approve", "reject", "edit", "revoke", "resume"])
async def test_a_request_expires_when_somebody_comes_too_late(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver, command: str
) -> None:
    runner = runner_with(log, clock, send, expires_in_s=60)
    proposal = sends()
    await runner.propose("run-1", proposal)
    clock.advance(60)
    commands: dict[str, Callable[[], Any]] = {
        "approve": lambda: runner.approve("run-1", proposal.hash),
        "reject": lambda: runner.reject("run-1", proposal.hash),
        "edit": lambda: runner.edit("run-1", args={"amount": 2}),
        "revoke": lambda: runner.revoke("run-1"),
        "resume": lambda: runner.resume("run-1"),
    }
    error = await refused(commands[command]())
    assert isinstance(error, ApprovalExpired)
    assert (await types_of(log))[-1] == "approval_expired"
    run = await runner.state("run-1")
    assert (run.status, run.approval, run.waiting) == ("EXPIRED", None, None)
    assert (await refused(runner.approve("run-1", proposal.hash))).code == "approval_expired"
    assert (await refused(runner.resume("run-1"))).code == "approval_expired"
    assert (await types_of(log))[-2:] == ["transition_rejected", "resume_rejected"]
    assert receiver.effects == []


async def test_expiry_is_recorded_once_and_only_when_it_is_due(log: AnyLog, clock: FakeClock, send: Sending) -> None:
    runner = runner_with(log, clock, send, expires_in_s=60)
    await runner.propose("run-1", sends())
    clock.advance(59)
    assert (await runner.expire("run-1")).status == "WAITING_FOR_USER"
    clock.advance(1)
    assert (await runner.expire("run-1")).status == "EXPIRED"
    assert (await runner.expire("run-1")).status == "EXPIRED"
    assert (await types_of(log)).count("approval_expired") == 1
    assert (await refused(runner.expire("run-2"))).code == "unknown_run"


async def test_a_clock_that_was_set_back_gives_nobody_more_time(log: AnyLog, clock: FakeClock, send: Sending) -> None:
    runner = runner_with(log, clock, send, expires_in_s=60)
    proposal = sends()
    await runner.propose("run-1", proposal)
    start_us = clock.now_us()
    clock.advance(61)
    assert (await refused(runner.approve("run-1", proposal.hash, request="another"))).code == "unknown_request"
    clock.set(start_us)
    assert (await refused(runner.approve("run-1", proposal.hash))).code == "approval_expired"


async def test_an_approval_that_was_given_in_time_is_spent_later(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    runner = runner_with(log, clock, send, expires_in_s=60)
    proposal = sends()
    await runner.propose("run-1", proposal)
    clock.advance(59.9)
    await runner.approve("run-1", proposal.hash)
    clock.advance(10**6)
    assert (await runner.expire("run-1")).status == "APPROVED"
    assert (await runner.resume("run-1")).status == "COMPLETED"
    assert len(receiver.effects) == 1


async def test_what_was_edited_runs_and_what_was_asked_first_does_not(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    runner = runner_of(log, clock, send)
    first = sends(100)
    await runner.propose("run-1", first, actor="agent")
    edited = await runner.edit("run-1", args={"amount": 7}, actor="ann", reason="less")
    second = edited.run.proposal
    assert second is not None
    assert (edited.status, second, edited.run.request_id) == ("WAITING_FOR_USER", sends(7), f"{REQUEST}#edit-1")
    assert edited.run.proposed_by == "ann"
    assert (await refused(runner.approve("run-1", first.hash))).code == "proposal_hash_mismatch"
    closed = await refused(runner.approve("run-1", second.hash, request=REQUEST))
    assert (closed.code, closed.details["superseded_by"]) == ("approval_not_pending", f"{REQUEST}#edit-1")
    await runner.approve("run-1", second.hash, request=f"{REQUEST}#edit-1")
    assert (await runner.resume("run-1")).status == "COMPLETED"
    assert [call.args for call in send.calls] == [{"amount": 7}]
    assert len(receiver.effects) == 1


async def test_an_edit_keeps_the_folder_in_which_it_was_proposed(log: AnyLog, clock: FakeClock, send: Sending) -> None:
    await runner_of(log, clock, send, folder="/work/agent").propose("run-1", sends(1))
    edited = await runner_of(log, clock, send, folder="/home/ann").edit("run-1", output="draft.txt")
    assert edited.run.folder == "/work/agent"


async def test_an_edit_and_its_approval_are_one_append(log: AnyLog, clock: FakeClock, send: Sending) -> None:
    runner = runner_of(log, clock, send)
    await runner.propose("run-1", sends(100))
    before = (await runner.state("run-1")).version
    assert (await runner.edit("run-1", args={"amount": 7}, approves=True, actor="ann")).status == "APPROVED"
    assert await types_of(log, after=before) == ["proposal_recorded", "proposal_verified", "approval_recorded"]
    apart = runner_with(log, clock, send, separation_of_duties=True)
    await apart.propose("run-2", sends(100), actor="agent")
    error = await refused(apart.edit("run-2", args={"amount": 7}, approves=True, actor="ann"))
    assert error.code == "separation_of_duties"
    assert (await apart.state("run-2")).proposal == sends(100), "nothing of it was done"


async def test_an_edit_of_a_request_that_was_edited_meanwhile_is_refused(
    log: AnyLog, clock: FakeClock, send: Sending
) -> None:
    runner = runner_of(log, clock, send)
    await runner.propose("run-1", sends(100))
    meddled = Meddled(log, partial(runner.edit, "run-1", args={"amount": 1}), is_careless=False)
    error = await refused(runner_of(meddled, clock, send).edit("run-1", output="elsewhere", approves=True))
    assert (error.code, meddled.has_meddled) == ("approval_not_pending", True), "who approves has seen the original"
    run = await runner.state("run-1")
    assert (run.status, run.proposal) == ("WAITING_FOR_USER", sends(1))
    await runner.propose("run-2", sends(100))
    await runner.edit("run-2", args={"amount": 1})
    error = await refused(runner.edit("run-2", request="approval:run-2", output="elsewhere"))
    assert (error.code, error.details["superseded_by"]) == ("approval_not_pending", "approval:run-2#edit-1")


async def test_an_edit_that_names_nothing_or_nothing_new_is_an_error(
    log: AnyLog, clock: FakeClock, send: Sending
) -> None:
    runner = runner_of(log, clock, send)
    await runner.propose("run-1", sends())
    before = (await runner.state("run-1")).version
    for edit in ({}, {"args": {"amount": 1}}, {"output": ""}, {"args": {"amount": float("nan")}}):
        with pytest.raises(InvalidInput):
            await runner.edit("run-1", **edit)
    assert (await runner.state("run-1")).version == before


async def test_a_program_without_policies_edits_the_arguments_on_the_terms_that_were_frozen(
    log: AnyLog, clock: FakeClock, send: Sending
) -> None:
    await runner_with(log, clock, send, required=2, expires_in_s=60).propose("run-1", sends(100))
    edited = (await runner_of(log, clock).edit("run-1", args={"amount": 7}, approves=True, actor="ann")).run
    assert (edited.status, edited.policy) == ("WAITING_FOR_USER", PolicyTerms(required=2))
    assert edited.expires_at_us == clock.now_us() + 60_000_000


async def test_an_approval_that_is_revoked_in_time_stops_the_effect(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    runner = runner_of(log, clock, send)
    proposal = sends()
    await runner.propose("run-1", proposal)
    assert (await refused(runner.revoke("run-1"))).code == "cannot_revoke"
    await runner.approve("run-1", proposal.hash)
    assert (await runner.revoke("run-1", reason="wait")).status == "WAITING_FOR_USER"
    assert (await refused(runner.resume("run-1"))).code == "approval_required"
    assert receiver.effects == []
    await runner.approve("run-1", proposal.hash)
    assert (await runner.resume("run-1")).status == "COMPLETED"
    assert (await refused(runner.revoke("run-1"))).code == "approval_spent"
    assert (await types_of(log))[-1] == "transition_rejected"


@pytest.mark.parametrize("care", ["careful", "careless"])
@pytest.mark.parametrize("takes_back", ["revoke", "cancel"])
async def test_what_is_taken_back_between_the_look_and_the_intent_is_not_done(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver, takes_back: str, care: str
) -> None:
    """The negative control appends the intent without minding where the run is: then the effect happens."""
    runner = runner_of(log, clock, send)
    proposal = sends()
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    take_back = partial(runner.revoke if takes_back == "revoke" else runner.cancel, "run-1")
    meddled = Meddled(log, take_back, is_careless=care == "careless")
    if care == "careless":
        await runner_of(meddled, clock, send).resume("run-1")
        assert len(receiver.effects) == 1
        return
    with pytest.raises(EventLogError) as caught:
        await runner_of(meddled, clock, send).resume("run-1")
    assert (caught.value.code, meddled.has_meddled) == ("run_conflict", True)
    assert receiver.effects == []
    assert (await runner.state("run-1")).attempts == 0


class Meddled:
    """A log on which somebody else is quicker than the first append, and one that `is_careless` does not notice."""

    def __init__(self, log: AnyLog, meddle: Callable[[], Any], *, is_careless: bool) -> None:
        self._log = log
        self._meddle = meddle
        self._is_careless = is_careless
        self.has_meddled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> Any:
        if not self.has_meddled:
            self.has_meddled = True
            await self._meddle()
        if self._is_careless:
            appends = [Append(append.stream, append.events, Expect.exists()) for append in appends]
        return await self._log.append_reserved(appends, **options)


async def test_a_run_is_cancelled_before_and_after_it_is_approved(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    runner = runner_of(log, clock, send)
    proposal = sends()
    for run_id in ("run-1", "run-2"):
        await runner.propose(run_id, proposal)
    await runner.approve("run-2", proposal.hash)
    for run_id in ("run-1", "run-2"):
        assert (await runner.cancel(run_id, reason="enough", actor="ann")).status == "CANCELLED"
        labels = [
            (await refused(command)).label
            for command in (
                runner.resume(run_id),
                runner.approve(run_id, proposal.hash),
                runner.cancel(run_id),
                runner.revoke(run_id),
                runner.edit(run_id, output="elsewhere"),
                runner.compensate(run_id),
            )
        ]
        assert labels == [
            "cannot_resume:CANCELLED",
            "approval_not_pending",
            "cannot_cancel",
            "cannot_revoke",
            "approval_not_pending",
            "cannot_compensate",
        ]
        assert (await types_of(log, run_id))[-6:].count("transition_rejected") == 5, "each is an event"
    assert receiver.effects == []
    assert (await refused(runner.cancel("run-3"))).code == "unknown_run"


async def test_the_result_of_an_effect_that_was_under_way_when_its_run_was_cancelled_is_recorded(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    runner = runner_of(log, clock, send)
    holder, gate = await inside_its_effect(runner, send)
    assert (await runner.cancel("run-1")).status == "CANCELLED"
    gate.open()
    outcome = await holder
    assert (outcome.status, outcome.run.executed, outcome.value) == ("CANCELLED", True, {"number": 1})
    assert (await types_of(log))[-2:] == ["run_cancelled", "action_executed"]
    assert (await refused(runner.resume("run-1"))).label == "cannot_resume:CANCELLED"
    assert len(receiver.effects) == 1


async def test_what_became_of_a_cancelled_effect_whose_process_died_is_settled_by_a_person(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    runner = runner_of(log, clock, send)
    proposal = sends()
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    with pytest.raises(Crash):
        await runner_of(log, clock, send, reach=crash_at("effect.after")).resume("run-1")
    await runner.cancel("run-1")
    assert (await refused(runner.resume("run-1"))).label == "cannot_resume:CANCELLED"
    outcome = await runner.reconcile("run-1", "executed", evidence="I looked", result=1)
    assert (outcome.status, outcome.run.executed, outcome.run.open_intent) == ("CANCELLED", True, None)
    assert len(receiver.effects) == 1


async def test_the_row_that_people_see_is_the_log_s_after_votes_edits_and_revocations(
    tmp_path: Path, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    view = runs_view()
    async with eventlog.open(tmp_path / "log.db", views=[view], clock=clock) as log:
        table = RunsTable(log, view)
        policies = {"send": Policy(required=2)}
        runner = runner_of(log, clock, send, policies=policies, view=table)
        statuses = []

        async def see(run: Run) -> None:
            statuses.append(run.status.value)
            assert decide.compare_view(run, await table.row(run)) is None

        await see((await runner.propose("run-1", sends(9))).run)
        await see((await runner.approve("run-1", sends(9).hash, actor="ann")).run)
        await see((await runner.edit("run-1", args={"amount": 1}, actor="bob", approves=True)).run)
        await see((await runner.approve("run-1", sends(1).hash, actor="ann")).run)
        await see((await runner.revoke("run-1")).run)
        for actor in ("ann", "bob"):
            await see((await runner.approve("run-1", sends(1).hash, actor=actor)).run)
        await see((await runner.resume("run-1")).run)
        assert statuses == [
            *["WAITING_FOR_USER"] * 3,
            "APPROVED",
            *["WAITING_FOR_USER"] * 2,
            "APPROVED",
            "COMPLETED",
        ]
        await runner.propose("run-2", sends(9))
        await see((await runner.cancel("run-2")).run)
        late = runner_of(log, clock, send, policies={"send": Policy(expires_in_s=1)}, view=table)
        await late.propose("run-3", sends(9))
        clock.advance(1)
        await see((await late.expire("run-3")).run)
        assert statuses[-2:] == ["CANCELLED", "EXPIRED"]
    assert len(receiver.effects) == 1


# ── workflow runs ────────────────────────────────────────────────────────────────────────────────────────────────────


async def asks_twice(log: AnyLog, *, expires_at_us: int | None = None, second: Proposal | None = None) -> None:
    """Append a workflow run that waits for the decision on two requests."""
    steps = {"pay": sends(1), "pay#2": second or sends(1)}
    requests = [
        ProposalRecorded(
            step=step,
            request_id=f"{REQUEST}:{step}",
            proposal=msgspec.Raw(proposal.canonical),
            proposal_hash=proposal.hash,
            expires_at_us=expires_at_us,
        )
        for step, proposal in steps.items()
    ]
    waits = [Waiting(type="approval", node_id=step, approval_id=f"{REQUEST}:{step}") for step in steps]
    events = [
        CheckpointSaved(
            status=Status.RUNNING,
            state_version=1,
            definition=Definition(workflow="pays", fingerprint="f" * 64),
            input=msgspec.Raw(b"[]"),
        ),
        *requests,
        CheckpointSaved(
            status=Status.WAITING_FOR_USER, state_version=2, waiting=waits[0], also_waiting=tuple(waits[1:])
        ),
    ]
    await log.append_reserved([Append("run:run-1", events, Expect.no_stream())])


def request_in(run: Run, step: str) -> Run:
    return next(request for request in requests_of(run) if request.step == step)


async def test_of_two_requests_that_ask_the_same_one_has_to_be_named(log: AnyLog, clock: FakeClock) -> None:
    await asks_twice(log)
    runner = runner_of(log, clock)
    named = await refused(runner.approve("run-1", sends(1).hash))
    assert (named.code, named.details["requests"]) == ("request_ambiguous", [f"{REQUEST}:pay", f"{REQUEST}:pay#2"])
    run = (await runner.approve("run-1", sends(1).hash, request=f"{REQUEST}:pay#2", actor="ann")).run
    assert (request_in(run, "pay#2").status, request_in(run, "pay").status) == ("APPROVED", "WAITING_FOR_USER")
    assert (run.status, run.waiting and run.waiting.approval_id) == ("WAITING_FOR_USER", f"{REQUEST}:pay")
    again = await refused(runner.reject("run-1", sends(1).hash, request=f"{REQUEST}:pay#2"))
    assert (again.code, again.details["decided_by"]) == ("approval_not_pending", "ann")
    assert (await refused(runner.reject("run-1", sends(1).hash))).code == "request_ambiguous", "pending or not"
    run = (await runner.reject("run-1", sends(1).hash, request=f"{REQUEST}:pay")).run
    assert request_in(run, "pay").status == "REJECTED"
    steps = [event.data.step for event in await trace_of(log) if event.type == "approval_recorded"]
    assert steps == ["pay#2", "pay"]


async def test_of_two_requests_the_hash_says_which_is_meant(log: AnyLog, clock: FakeClock) -> None:
    await asks_twice(log, second=sends(2))
    run = (await runner_of(log, clock).approve("run-1", sends(2).hash)).run
    assert (request_in(run, "pay#2").status, request_in(run, "pay").status) == ("APPROVED", "WAITING_FOR_USER")
    run = (await runner_of(log, clock).revoke("run-1")).run
    assert request_in(run, "pay#2").status == "WAITING_FOR_USER", "it is the only one that can be revoked"


async def test_one_request_of_a_workflow_is_edited_and_the_other_stays_as_it_is(log: AnyLog, clock: FakeClock) -> None:
    await asks_twice(log)
    runner = runner_of(log, clock)
    assert (await refused(runner.edit("run-1", args={"amount": 5}))).code == "request_ambiguous"
    run = (await runner.edit("run-1", request=f"{REQUEST}:pay", args={"amount": 5}, approves=True)).run
    edited = request_in(run, "pay")
    assert (edited.request_id, edited.status) == (f"{REQUEST}:pay#edit-1", "APPROVED")
    assert request_in(run, "pay#2").proposal == sends(1)


async def test_every_request_of_a_workflow_that_is_overdue_expires(log: AnyLog, clock: FakeClock) -> None:
    await asks_twice(log, expires_at_us=clock.now_us() + 60_000_000)
    clock.advance(60)
    run = (await runner_of(log, clock).expire("run-1")).run
    assert [request.status for request in requests_of(run)] == ["EXPIRED", "EXPIRED"]
    assert (await types_of(log)).count("approval_expired") == 2


async def test_a_request_that_a_workflow_has_not_waited_for_is_not_decided_behind_its_end(
    log: AnyLog, clock: FakeClock
) -> None:
    await asks_twice(log)
    await log.append_reserved([Append("run:run-1", [RunCompleted()], Expect.exists())])
    runner = runner_of(log, clock)
    error = await refused(runner.approve("run-1", sends(1).hash, request=f"{REQUEST}:pay"))
    assert (error.code, error.details["status"]) == ("approval_not_pending", "COMPLETED")


async def test_no_request_of_a_cancelled_workflow_is_decided_any_more(log: AnyLog, clock: FakeClock) -> None:
    await asks_twice(log)
    runner = runner_of(log, clock)
    await runner.approve("run-1", sends(1).hash, request=f"{REQUEST}:pay#2")
    assert (await runner.cancel("run-1")).status == "CANCELLED"
    codes = [
        (await refused(command)).code
        for command in (
            runner.approve("run-1", sends(1).hash, request=f"{REQUEST}:pay"),
            runner.reject("run-1", sends(1).hash, request=f"{REQUEST}:pay"),
            runner.edit("run-1", request=f"{REQUEST}:pay", output="elsewhere"),
            runner.revoke("run-1", request=f"{REQUEST}:pay#2"),
            runner.cancel("run-1"),
        )
    ]
    assert codes == [*["approval_not_pending"] * 3, "cannot_revoke", "cannot_cancel"]
    assert (await runner.expire("run-1")).status == "CANCELLED"
    assert (await runner.state("run-1")).status == "CANCELLED"


# ── public cases ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_proposed_again_on_replay_is_never_what_was_approved(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    """run-16 (extra-org/extra#139): the reviewer approved one value, another was executed after a second proposal."""
    runner = runner_with(log, clock, send, required=2)
    reviewed, changed = sends(25), sends(2500)
    await runner.propose("run-1", reviewed)
    await runner.approve("run-1", reviewed.hash, actor="ann")
    assert (await refused(runner.propose("run-1", changed))).code == "run_exists"
    assert (await refused(runner.approve("run-1", changed.hash, actor="bob"))).code == "proposal_hash_mismatch"
    assert (await types_of(log))[-1] == "proposal_rejected"
    assert receiver.effects == []
    await runner.approve("run-1", reviewed.hash, actor="bob")
    await runner.resume("run-1")
    assert [call.args for call in send.calls] == [{"amount": 25}]


async def test_a_run_with_too_few_votes_is_pending_and_nothing_else(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    """run-18 (pydantic/pydantic-ai#3350, PR #3355): a history that merely ends in an unapproved call was approved."""
    runner = runner_with(log, clock, send, required=2)
    proposal = sends()
    await runner.propose("run-1", proposal)
    for actor in ("nobody", "ann"):
        if actor == "ann":
            await runner.approve("run-1", proposal.hash, actor=actor)
        for output in (None, "target"):
            assert (await refused(runner.resume("run-1", output=output))).code == "approval_required"
    run = await runner.state("run-1")
    assert (run.status, run.waiting and run.waiting.approval_id) == ("WAITING_FOR_USER", REQUEST)
    assert receiver.effects == []


@pytest.mark.parametrize("approves", [False, True])
async def test_a_call_that_is_edited_into_a_gated_one_waits_for_the_approval_of_that(
    log: AnyLog, clock: FakeClock, receiver: Receiver, approves: bool
) -> None:
    """run-20 (langchain-ai/langchain#40166): an edit changed the tool's name and so skipped the new tool's policy."""
    send = Sending(receiver)
    note = eventlog.action("note", promise="opaque")(taking_note)
    policies = {"send": Policy(required=2, roles=("finance",)), "note": Policy(auto=lambda proposal: False)}
    runner = runner_of(log, clock, send, note, policies=policies)
    harmless = propose("note", {}, "target")
    await runner.propose("run-1", harmless, actor="agent")
    edit = runner.edit("run-1", action="send", args={"amount": 9}, approves=approves, actor="ann", roles=["finance"])
    edited = (await edit).run
    assert (edited.status, edited.policy) == ("WAITING_FOR_USER", PolicyTerms(required=2, roles=("finance",)))
    assert edited.supersedes == REQUEST
    assert (await refused(runner.resume("run-1"))).code == "approval_required"
    assert (await refused(runner.approve("run-1", harmless.hash, actor="bob"))).code == "proposal_hash_mismatch"
    gated = edited.proposal_hash or ""
    assert (await refused(runner.approve("run-1", gated, actor="bob"))).code == "role_required"
    assert receiver.effects == []
    for actor in ("bob",) if approves else ("bob", "cid"):
        await runner.approve("run-1", gated, actor=actor, roles=["finance"])
    assert (await runner.resume("run-1")).status == "COMPLETED"


async def taking_note(call: eventlog.Call) -> None:
    """Do nothing that anybody would have to approve."""


async def test_a_program_that_does_not_know_an_action_edits_nothing_into_it(
    log: AnyLog, clock: FakeClock, send: Sending
) -> None:
    """run-20 (langchain-ai/langchain#40166): nor does who knows no policies edit around them."""
    await runner_with(log, clock, send, required=2).propose("run-1", propose("note", {}, "target"))
    stranger = runner_of(log, clock)
    error = await refused(stranger.edit("run-1", action="send", args={"amount": 9}, approves=True))
    assert error.code == "unknown_action"
    assert (await types_of(log))[-1] == "transition_rejected"
    assert (await stranger.state("run-1")).request_id == REQUEST


async def test_a_rejection_by_one_of_several_is_final(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    """run-24 (langchain4j-demo#265): a rejected run could be started again and then executed what was rejected."""
    runner = runner_with(log, clock, send, required=2)
    proposal = sends()
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash, actor="ann")
    await runner.reject("run-1", proposal.hash, actor="bob", reason="no")
    labels = [
        (await refused(command)).label
        for command in (
            runner.propose("run-1", proposal),
            runner.resume("run-1"),
            runner.approve("run-1", proposal.hash, actor="cid"),
            runner.edit("run-1", output="elsewhere", approves=True, actor="cid"),
            runner.revoke("run-1", actor="bob"),
        )
    ]
    assert labels == [
        "run_exists:run-1",
        "approval_rejected",
        "approval_not_pending",
        "approval_not_pending",
        "cannot_revoke",
    ]
    error = await refused(runner.resume("run-1"))
    assert isinstance(error, ApprovalRejected)
    assert (error.actor, error.reason) == ("bob", "no")
    assert receiver.effects == []


THREADS = 10


@pytest.mark.processes
@pytest.mark.parametrize("care", ["careful", "careless"])
async def test_of_twenty_decisions_at_once_in_two_processes_one_is_recorded_and_the_others_are_told_it(
    tmp_path: Path, care: str
) -> None:
    """run-26 (Growth-Circle/cadis#1736, useautumn/autumn PR #2903): conflicting approve and deny were processed both.

    All threads of a process have read the run, and decided that it is pending, before the first of them appends. The
    negative control appends without minding where the run is.
    """
    path, proposal = tmp_path / "log.db", sends()
    async with eventlog.open(path) as log:
        await eventlog.Runner(log).propose("run-1", proposal)
    told = in_two_processes(people_scenarios.decides_in_threads, path, "run-1", proposal.hash, THREADS, care)
    decided = [answer for answer in told if answer[1] == "decided"]
    async with eventlog.open(path) as log:
        recorded = [event for event in await trace_of(log) if event.type == "approval_recorded"]
        run = await eventlog.Runner(log).state("run-1")
    if care == "careless":
        assert len(decided) > 1, "the race is one: without the expectation it shows"
        return
    ((winner, _, decision),) = decided
    assert [(event.actor, event.data.decision) for event in recorded] == [(winner, decision)]
    standing = ["approval_not_pending", decision, winner, f"because of {winner}"]
    assert [answer[1:] for answer in told if answer[1] != "decided"] == [standing] * 19
    assert (run.approval, run.decided_by) == (decision, winner)


@pytest.mark.processes
@pytest.mark.parametrize("care", ["careful", "careless"])
async def test_of_twenty_approvals_at_once_where_three_are_needed_three_are_recorded(tmp_path: Path, care: str) -> None:
    """run-26 (Growth-Circle/cadis#1736): the same where the third vote decides, and with the same negative control."""
    path, proposal = tmp_path / "log.db", sends()
    async with eventlog.open(path) as log:
        policies = {"send": Policy(required=3)}
        await eventlog.Runner(log, policies=policies).propose("run-1", proposal)
    told = in_two_processes(people_scenarios.approves_one_in_threads, path, "run-1", proposal.hash, THREADS, care)
    async with eventlog.open(path) as log:
        votes = [event for event in await trace_of(log) if event.type == "approval_recorded"]
        run = await eventlog.Runner(log).state("run-1")
    if care == "careless":
        assert len(votes) > 3
        return
    assert [event.data.is_deciding for event in votes] == [False, False, True]
    assert sorted(event.actor for event in votes) == sorted(answer[0] for answer in told if answer[1] == "decided")
    assert (run.status, run.decided_by) == ("APPROVED", votes[-1].actor)


def in_two_processes(scenario: Callable[..., Any], *args: object) -> list[Any]:
    """Run a scenario in two processes at once, and return what was told in both."""
    processes = [child.start(scenario, *args) for _ in range(2)]
    try:
        told: list[Any] = []
        for name, process in zip(("one", "two"), processes, strict=True):
            assert process.stdin is not None
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
        for process in processes:
            out, err = process.communicate(timeout=60)
            done = child.Done(process.returncode, out, err, 0.0)
            assert process.returncode == 0, err
            told += done.result
        return told
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def test_a_name_that_a_caller_gives_is_recorded_as_given_and_not_as_vouched_for(
    log: AnyLog, clock: FakeClock, send: Sending
) -> None:
    """run-28 (gents-ai/gents#845): an approver's id that the caller supplied was trusted.

    As far as approvals without signatures go: the log says who vouches for the name. That a signature is needed, and
    whose it is, belongs to signed approvals.
    """
    runner = runner_with(log, clock, send, required=2)
    proposal = sends()
    await runner.propose("run-1", proposal, actor="agent")
    await runner.approve("run-1", proposal.hash, actor="the boss", roles=["boss"])
    await runner.approve("run-1", proposal.hash)
    votes = (await runner.state("run-1")).votes
    assert votes == (
        Vote(decision="approve", actor="the boss", actor_source="asserted", roles=("boss",)),
        Vote(decision="approve", actor=log.actor, actor_source="os"),
    )


@pytest.mark.processes
async def test_terms_votes_and_ends_are_there_in_a_new_process(tmp_path: Path) -> None:
    """run-32 (microsoft/agent-framework#2485) and run-38 (pydantic/pydantic-ai#4830, #8181): state of approvals lost.

    A new process knows of a request what the log knows, however little the program itself was told.
    """
    path, proposal = tmp_path / "log.db", sends()
    async with eventlog.open(path) as log:
        runner = eventlog.Runner(log, policies={"send": Policy(required=2, expires_in_s=3600)})
        await runner.propose("run-1", proposal)
        before = (await runner.approve("run-1", proposal.hash, actor="ann")).run
    assert child.run(people_scenarios.resumes, path, "run-1").result == "approval_required"
    async with eventlog.open(path) as log:
        after = await eventlog.Runner(log).state("run-1")
        assert (after.request_id, after.votes, after.policy) == (before.request_id, before.votes, before.policy)
        assert (after.expires_at_us, after.proposal) == (before.expires_at_us, before.proposal)
        assert (
            await refused(eventlog.Runner(log).approve("run-1", proposal.hash, actor="ann"))
        ).code == "already_voted"
        assert (await eventlog.Runner(log).approve("run-1", proposal.hash, actor="bob")).status == "APPROVED"


async def test_an_approval_of_one_run_is_of_no_use_to_another_that_asks_the_same(
    log: AnyLog, clock: FakeClock, send: Sending, receiver: Receiver
) -> None:
    """run-34 (strands-agents/harness-sdk#3076): each request is answered for itself, by the run that asked it."""
    runner = runner_of(log, clock, send)
    proposal = sends()
    for run_id in ("run-1", "run-2"):
        await runner.propose(run_id, proposal)
    await runner.approve("run-1", proposal.hash, request="approval:run-1")
    crossed = await refused(runner.approve("run-2", proposal.hash, request="approval:run-1"))
    assert (crossed.code, crossed.details["requests"]) == ("unknown_request", ["approval:run-2"])
    assert (await refused(runner.resume("run-2"))).code == "approval_required"
    await runner.resume("run-1")
    assert (await runner.resume("run-1")).result == "already_completed"
    assert len(receiver.effects) == 1

"""What a refusal says: its label, its facts and its sentence, for programs and people. Pure.

That a command is refused, and which event records it, is tested where the command is; here it is what its caller gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from eventlog import decide
from eventlog.decide import Accepted, Refusal, Terms
from eventlog.decide.answers import MAX_SUPPLIED, check_supplied, decision_facts, proposal_of, request_id_of
from eventlog.decide.decisions import too_late
from eventlog.errors import ApprovalRejected, InvalidInput, Refused
from eventlog.events import (
    ApprovalRecorded,
    CheckpointSaved,
    Envelope,
    Owner,
    PolicyTerms,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResumeRejected,
    TransitionRejected,
    Waiting,
)
from eventlog.proposal import propose
from eventlog.run import Compensation, Run, Status, Vote

PROPOSAL = propose("pay", {"amount": 25}, "account")
OTHER = propose("pay", {"amount": 20}, "account")
HASH = PROPOSAL.hash
OWNER = Owner(host="h", boot="b", lock="l")
ASKED = Run(
    run_id="run-1",
    version=2,
    status=Status.WAITING_FOR_USER,
    request_id="r",
    proposal=PROPOSAL,
    proposal_hash=HASH,
    proposers=("agent",),
)
APPROVED = replace(
    ASKED,
    status=Status.APPROVED,
    votes=(Vote(decision="approve", actor="alice"),),
    approval="approve",
    decided_by="alice",
    decided_at_us=1_500_000,
    decision_reason="fine",
    approval_request_id="r",
    approval_hash=HASH,
)
DECIDED = {
    "existing_approval": "approve",
    "decided_by": "alice",
    "decided_at": "1970-01-01T00:00:01.500000+00:00",
    "reason": "fine",
}
DONE = replace(APPROVED, status=Status.COMPLETED, executed=True, attempts=1, op_key="k" * 64)
UNDOING = Compensation(action="undo", op_key="u" * 64, attempts=1)


def decides(decision: str = "approve", supplied: str = HASH, **options: Any) -> Callable[[Run], Any]:
    return lambda run: decide.record_decision(run, decision, supplied, actor_source="os", **options)


def edits(**options: Any) -> Callable[[Run], Any]:
    return lambda run: decide.edit(run, OTHER, Terms(), actor_source="os", **options)


def revokes(**options: Any) -> Callable[[Run], Any]:
    return lambda run: decide.revoke(run, actor_source="os", **options)


def cancels(**options: Any) -> Callable[[Run], Any]:
    return lambda run: decide.cancel(run, actor_source="os", **options)


def resumes(output: str | None = None, now_us: int = 0) -> Callable[[Run], Any]:
    return lambda run: decide.resume(run, output, now_us)


def compensates(undoing: str | None = "undo", **options: Any) -> Callable[[Run], Any]:
    return lambda run: decide.compensate(run, undoing, **options)


def refused(run: Run, command: Callable[[Run], Any]) -> Refusal:
    outcome = command(run)
    assert isinstance(outcome, Refusal)
    return outcome


# ── facts ────────────────────────────────────────────────────────────────────────────────────────────────────────────

LATE = replace(ASKED, expires_at_us=5)
LATE_FACTS = {
    "run_id": "run-1",
    "status": "EXPIRED",
    "request_id": "r",
    "expires_at": "1970-01-01T00:00:00.000005+00:00",
}
POLICY = PolicyTerms(required=2, roles=("lead", "boss"), separation_of_duties=True, level=2)
ON_TERMS = replace(ASKED, policy=POLICY, votes=(Vote(decision="approve", actor="alice"),))


@pytest.mark.parametrize(
    ("run", "command", "label", "facts"),
    [
        (DONE, decides(), "approval_not_pending", {"status": "COMPLETED", **DECIDED}),
        (DONE, edits(), "approval_not_pending", {"status": "COMPLETED", **DECIDED}),
        (DONE, revokes(), "approval_spent", {"status": "COMPLETED", **DECIDED}),
        (replace(APPROVED, status=Status.REJECTED), revokes(), "cannot_revoke", {"status": "REJECTED", **DECIDED}),
        (DONE, cancels(), "cannot_cancel", {"status": "COMPLETED"}),
        (ASKED, resumes(), "approval_required", {"status": "WAITING_FOR_USER"}),
        (replace(APPROVED, status=Status.CANCELLED), resumes(), "cannot_resume:CANCELLED", {"status": "CANCELLED"}),
        (
            replace(DONE, status=Status.OUTCOME_UNKNOWN, compensation=UNDOING),
            resumes(),
            "outcome_unknown",
            {"status": "OUTCOME_UNKNOWN"},
        ),
        (
            replace(APPROVED, status=Status.REJECTED),
            resumes(),
            "approval_rejected",
            {"status": "REJECTED", "reason": "fine", "actor": "alice"},
        ),
        (LATE, decides(now_us=5), "approval_expired", LATE_FACTS),
        (LATE, edits(now_us=5), "approval_expired", LATE_FACTS),
        (LATE, revokes(now_us=5), "approval_expired", LATE_FACTS),
        (LATE, resumes(now_us=5), "approval_expired", LATE_FACTS),
        (replace(LATE, status=Status.EXPIRED), decides(), "approval_expired", LATE_FACTS),
        (replace(LATE, status=Status.EXPIRED), resumes(), "approval_expired", LATE_FACTS),
        (ASKED, compensates(), "cannot_compensate", {"status": "WAITING_FOR_USER"}),
        (
            ASKED,
            decides(supplied=OTHER.hash),
            "proposal_hash_mismatch",
            {"supplied_hash": OTHER.hash, "current_hash": HASH},
        ),
        (
            APPROVED,
            resumes("elsewhere"),
            "output_mismatch",
            {"current_output": "elsewhere", "approved_output": "account"},
        ),
        (
            replace(APPROVED, approval_request_id="s"),
            resumes(),
            "approval_request_mismatch",
            {"current_request_id": "r", "approved_request_id": "s"},
        ),
        (
            replace(APPROVED, request_id=None),
            resumes(),
            "approval_request_mismatch",
            {"current_request_id": "", "approved_request_id": "r"},
        ),
        (
            replace(APPROVED, approval_hash=OTHER.hash),
            resumes(),
            "proposal_hash_mismatch",
            {"current_hash": HASH, "approval_hash": OTHER.hash},
        ),
        (ON_TERMS, decides(actor="alice"), "already_voted", {"status": "WAITING_FOR_USER", "actor": "alice"}),
        (
            ON_TERMS,
            decides(actor="agent", level=2, roles=("lead",)),
            "separation_of_duties",
            {"status": "WAITING_FOR_USER", "actor": "agent"},
        ),
        (
            ON_TERMS,
            decides(level=2, roles=("lead",)),
            "separation_of_duties",
            {"status": "WAITING_FOR_USER", "actor": None},
        ),
        (
            ON_TERMS,
            decides(actor="bob", level=1, roles=("lead",)),
            "level_required",
            {"status": "WAITING_FOR_USER", "actor": "bob", "required_level": 2, "level": 1},
        ),
        (
            ON_TERMS,
            decides(actor="bob", level=2, roles=("clerk", "cook")),
            "role_required",
            {
                "status": "WAITING_FOR_USER",
                "actor": "bob",
                "required_roles": ["lead", "boss"],
                "roles": ["clerk", "cook"],
            },
        ),
    ],
)
def test_a_refusal_tells_programs_its_facts_and_no_others(
    run: Run, command: Callable[[Run], Any], label: str, facts: dict[str, Any]
) -> None:
    refusal = refused(run, command)
    assert refusal.error.label == label
    assert refusal.error.details == {"run_id": "run-1", **facts}


def test_two_refusals_are_recorded_nowhere_and_name_the_run() -> None:
    for label, command in (
        ("unknown_run:run-1", lambda: decide.require_run(Run(run_id="run-1"))),
        ("run_exists:run-1", lambda: decide.start(ASKED, PROPOSAL)),
    ):
        with pytest.raises(Refused) as caught:
            command()
        assert (caught.value.label, caught.value.details) == (label, {"run_id": "run-1"})


def test_a_rejection_is_raised_with_who_and_why() -> None:
    error = refused(replace(APPROVED, status=Status.REJECTED), resumes()).error
    assert isinstance(error, ApprovalRejected)
    assert (error.actor, error.reason) == ("alice", "fine")


def test_where_nobody_has_decided_there_is_nothing_to_tell_of_a_decision() -> None:
    assert decision_facts(ASKED) == {}
    assert decision_facts(replace(APPROVED, decided_at_us=None))["decided_at"] is None
    assert decision_facts(replace(APPROVED, decided_at_us=0))["decided_at"] == "1970-01-01T00:00:00+00:00"
    assert too_late(ASKED).details["expires_at"] is None


def test_a_run_that_asks_says_what_it_asks() -> None:
    assert proposal_of(ASKED) is PROPOSAL
    assert request_id_of(ASKED) == "r"
    for field, question in (("proposal", proposal_of), ("request_id", request_id_of)):
        with pytest.raises(AssertionError):
            question(replace(ASKED, **{field: None}))


# ── sentences ────────────────────────────────────────────────────────────────────────────────────────────────────────

NOT_STORED = replace(DONE, not_stored="it was too large")


@pytest.mark.parametrize(
    ("run", "undoing", "why"),
    [
        (replace(DONE, executed=False), "undo", "run 'run-1' has nothing to undo: it is COMPLETED"),
        (
            replace(DONE, status=Status.OUTCOME_UNKNOWN),
            "undo",
            "run 'run-1' has nothing to undo: it is OUTCOME_UNKNOWN",
        ),
        (replace(DONE, status=Status.COMPENSATED), "undo", "run 'run-1' has nothing to undo: it is COMPENSATED"),
        (DONE, None, "the action 'pay' names no action that undoes it"),
        (
            replace(DONE, compensation=replace(UNDOING, is_settled=True)),
            "other",
            "undoing the effect of run 'run-1' has been given up",
        ),
        (replace(DONE, compensation=UNDOING), "other", "undoing run 'run-1' has begun with 'undo', not 'other'"),
        (
            replace(NOT_STORED, compensation=UNDOING),
            "undo",
            "the log does not hold what the effect of run 'run-1' returned: it was too large",
        ),
        (NOT_STORED, "undo", "the log does not hold what the effect of run 'run-1' returned: it was too large"),
    ],
)
def test_why_an_effect_is_not_undone_is_said_by_the_first_reason_that_holds(
    run: Run, undoing: str | None, why: str
) -> None:
    assert str(refused(run, compensates(undoing)).error) == why


def test_what_is_undone_has_to_be_what_was_approved() -> None:
    assert decide.compensate(DONE, "undo") is None
    assert decide.compensate(replace(DONE, status=Status.OUTCOME_UNKNOWN, compensation=UNDOING), "undo") is None
    assert refused(replace(DONE, approval_hash=OTHER.hash), compensates()).error.code == "proposal_hash_mismatch"


@pytest.mark.parametrize(
    ("run", "command", "message"),
    [
        (DONE, decides(), "the request of run 'run-1' is decided already: approve"),
        (
            replace(ASKED, status=Status.CANCELLED),
            decides(),
            "the request of run 'run-1' waits for no decision: the run is CANCELLED",
        ),
        (DONE, cancels(), "run 'run-1' has ended: it is COMPLETED"),
        (
            replace(APPROVED, status=Status.OUTCOME_UNKNOWN),
            cancels(),
            "nobody knows what became of the effect of run 'run-1'; settle that first",
        ),
        (ON_TERMS, decides(actor="alice"), "'alice' has decided on the request of run 'run-1' already"),
        (
            ON_TERMS,
            decides(),
            "nobody named has proposed or edited what run 'run-1' asks, and cannot approve it",
        ),
        (
            ON_TERMS,
            decides(actor="bob", level=2),
            "the request of run 'run-1' takes an approver with one of the roles lead, boss",
        ),
    ],
)
def test_a_refusal_tells_people_why(run: Run, command: Callable[[Run], Any], message: str) -> None:
    assert str(refused(run, command).error) == message


# ── what is recorded of it ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_event_holds_what_was_supplied_and_what_stood() -> None:
    assert refused(DONE, decides(supplied=OTHER.hash)).event == TransitionRejected(
        reason="approval_not_pending",
        attempted_decision="approve",
        current_status="COMPLETED",
        existing_approval="approve",
        supplied_hash=OTHER.hash,
    )
    event = refused(ON_TERMS, decides(actor="bob", level=2, roles=("clerk", "cook"))).event
    assert isinstance(event, TransitionRejected)
    assert (event.detail, event.supplied_hash) == ("clerk, cook", HASH)
    event = refused(ON_TERMS, decides(actor="bob", level=2)).event
    assert isinstance(event, TransitionRejected)
    assert event.detail is None
    many = tuple(f"{number:0128}" for number in range(32))
    event = refused(ON_TERMS, decides(actor="bob", level=2, roles=many)).event
    assert isinstance(event, TransitionRejected)
    assert event.detail == ", ".join(many)[:MAX_SUPPLIED]
    expired = refused(replace(LATE, status=Status.EXPIRED), resumes()).event
    assert expired == ResumeRejected(reason="approval_expired", status="EXPIRED")


def test_details_are_for_the_event_and_facts_for_the_error() -> None:
    resume = decide.refuse_resume(ASKED, "view_mismatch", "no", detail="status", viewed={"a": 1}, more=2)
    assert resume.event == ResumeRejected(
        reason="view_mismatch", status="WAITING_FOR_USER", detail="status", viewed={"a": 1}
    )
    assert resume.error.details == {"run_id": "run-1", "status": "WAITING_FOR_USER", "viewed": {"a": 1}, "more": 2}
    command = decide.refuse_transition(ASKED, "cannot_cancel", "cancel", "no", detail="d", more=2)
    assert command.event == TransitionRejected(
        reason="cannot_cancel", attempted_decision="cancel", current_status="WAITING_FOR_USER", detail="d"
    )
    assert command.error.details == {"run_id": "run-1", "status": "WAITING_FOR_USER", "more": 2}


# ── what is supplied ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_as_much_is_taken_as_an_event_holds_and_no_more() -> None:
    check_supplied("reason", "x" * 1024)
    with pytest.raises(InvalidInput) as caught:
        check_supplied("reason", "x" * 1025)
    assert (caught.value.code, caught.value.path) == ("payload_too_large", "$.reason")
    with pytest.raises(InvalidInput) as caught:
        check_supplied("reason", "\ud800")
    assert (caught.value.code, caught.value.path) == ("invalid_text", "$.reason")


@pytest.mark.parametrize(
    "command", [decides(reason="\ud800"), edits(reason="\ud800"), revokes(reason="\ud800"), cancels(reason="\ud800")]
)
def test_a_reason_that_no_event_could_hold_is_an_error_wherever_one_is_given(command: Callable[[Run], Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        command(ASKED)
    assert (caught.value.code, caught.value.path) == ("invalid_text", "$.reason")
    for run in (DONE, ASKED):
        with pytest.raises(InvalidInput) as caught:
            decide.compensate(run, "undo", "x" * 1025)
        assert caught.value.path == "$.reason"


def test_the_path_says_which_argument_is_wrong() -> None:
    cases: list[tuple[Callable[[], object], str, str]] = [
        (lambda: decide.check_roles("lead"), "invalid_argument", "$.roles"),
        (lambda: decide.check_roles([str(number) for number in range(33)]), "invalid_argument", "$.roles"),
        (lambda: decides(supplied="\ud800")(ASKED), "invalid_text", "$.proposal_hash"),
        (lambda: resumes("\ud800")(APPROVED), "invalid_text", "$.output"),
        (
            lambda: decide.choose_request(ASKED, [ASKED], "approve", request_id="\ud800"),
            "invalid_text",
            "$.request",
        ),
    ]
    for command, code, path in cases:
        with pytest.raises(InvalidInput) as caught:
            command()
        assert (caught.value.code, caught.value.path) == (code, path)


def test_roles_are_each_brought_once_and_at_most_thirty_two() -> None:
    assert decide.check_roles(["a", "b", "a"]) == ("a", "b")
    assert len(decide.check_roles([str(number) for number in range(32)])) == 32
    assert decide.check_roles(["x" * 128]) == ("x" * 128,)
    with pytest.raises(InvalidInput, match="role"):
        decide.check_roles(["x" * 129])


# ── what is asked, and what begins ───────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_recorded_with_all_its_terms() -> None:
    terms = Terms(policy=POLICY, expires_at_us=9, rule_failed="it broke", action_sha256="1" * 64)
    accepted = decide.start(Run(run_id="run-1"), PROPOSAL, "/work", terms)
    waiting = Waiting(type="approval", node_id="pay", approval_id="approval:run-1")
    assert accepted.events == (
        CheckpointSaved(status=Status.WAITING_FOR_USER, state_version=1, waiting=waiting),
        ProposalRecorded(
            request_id="approval:run-1",
            proposal=msgspec.Raw(PROPOSAL.canonical),
            proposal_hash=HASH,
            folder="/work",
            policy=POLICY,
            expires_at_us=9,
            rule_failed="it broke",
            action_sha256="1" * 64,
        ),
    )


@pytest.mark.parametrize(("now_us", "is_over"), [(4, False), (5, True), (6, True)])
def test_the_time_for_a_decision_ends_at_its_microsecond(now_us: int, is_over: bool) -> None:
    assert decide.has_expired(LATE, now_us) is is_over
    assert (decide.expire(LATE, now_us) is not None) is is_over
    assert not decide.has_expired(ASKED, now_us)
    assert not decide.has_expired(replace(LATE, status=Status.APPROVED), now_us)


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_decision_is_recorded_with_all_that_its_maker_brought(decision: str) -> None:
    envelope = Envelope(payload="e30=", payload_type="text", signatures=())
    options: dict[str, Any] = {"reason": "fine", "roles": ("lead", "boss"), "level": 2, "envelope": envelope}
    accepted = decides(decision, actor="bob", **options)(replace(ASKED, policy=POLICY))
    assert isinstance(accepted, Accepted)
    assert accepted.events == (
        ProposalVerified(phase="approval", proposal_hash=HASH),
        ApprovalRecorded(
            request_id="r",
            decision=decision,
            approval_hash=HASH,
            actor_source="os",
            is_deciding=decision == "reject",
            **options,
        ),
    )


def test_undoing_that_begins_again_counts_its_attempts_and_takes_the_epoch_of_its_claim() -> None:
    claims = decide.claim(DONE, owner=OWNER, deadline_us=9, is_stray=True)
    assert (claims.epoch, claims.owner, claims.deadline_us, claims.is_stray) == (3, OWNER, 9, True)
    options: dict[str, Any] = {"op_key": "u", "owner": OWNER, "deadline_us": 7, "key_until_us": 8, "reason": "wrong"}
    (begun,) = decide.begin_compensation(replace(DONE, epoch=6), "undo", claims=None, **options)
    assert msgspec.to_builtins(begun) == {
        "action": "undo",
        "op_key": "u",
        "compensates": "k" * 64,
        "attempt": 1,
        "epoch": 6,
        "owner": {"host": "h", "boot": "b", "lock": "l"},
        "deadline_us": 7,
        "input_hash": HASH,
        "reason": "wrong",
        "key_until_us": 8,
    }
    again = replace(DONE, op_key=None, compensation=replace(UNDOING, attempts=4))
    first, begun = decide.begin_compensation(again, "undo", claims=claims, **options)
    assert first is claims
    assert (msgspec.structs.asdict(begun) | {"owner": None})["attempt"] == 5
    assert (getattr(begun, "compensates", None), getattr(begun, "epoch", None)) == ("", 3)


def test_an_effect_that_begins_says_on_what_it_rests() -> None:
    run = replace(APPROVED, attempts=2, epoch=6)
    checked, begun = decide.begin_effect(run, op_key="k", owner=OWNER, deadline_us=7, key_until_us=8, claims=None)
    assert checked == ProposalVerified(phase="resume", proposal_hash=HASH)
    assert msgspec.to_builtins(begun) == {
        "op_key": "k",
        "attempt": 3,
        "epoch": 6,
        "owner": {"host": "h", "boot": "b", "lock": "l"},
        "deadline_us": 7,
        "approval_hash": HASH,
        "input_hash": HASH,
        "key_until_us": 8,
    }


# ── which request ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_that_was_edited_is_told_by_what() -> None:
    edited = replace(ASKED, request_id="r#edit-1", superseded=("r",))
    refusal = decide.choose_request(ASKED, [edited], "approve", request_id="r", supplied_hash=HASH)
    assert isinstance(refusal, Refusal)
    assert refusal.event == TransitionRejected(
        reason="approval_not_pending",
        attempted_decision="approve",
        current_status="WAITING_FOR_USER",
        supplied_hash=HASH,
        detail="r",
    )
    assert refusal.error.details["superseded_by"] == "r#edit-1"


def test_a_request_that_is_not_there_is_told_with_those_that_are() -> None:
    other = replace(ASKED, request_id="s")
    unknown = decide.choose_request(ASKED, [ASKED, other], "revoke", request_id="t", supplied_hash="h")
    assert isinstance(unknown, Refusal)
    assert unknown.event == TransitionRejected(
        reason="unknown_request",
        attempted_decision="revoke",
        current_status="WAITING_FOR_USER",
        supplied_hash="h",
        detail="t",
    )
    assert unknown.error.details["requests"] == ["r", "s"]
    several = decide.choose_request(ASKED, [ASKED, other], "approve", supplied_hash=HASH)
    assert isinstance(several, Refusal)
    assert several.event == TransitionRejected(
        reason="request_ambiguous",
        attempted_decision="approve",
        current_status="WAITING_FOR_USER",
        supplied_hash=HASH,
    )
    assert several.error.details["requests"] == ["r", "s"]
    nothing = decide.choose_request(ASKED, [], "approve", supplied_hash=HASH)
    assert isinstance(nothing, Refusal)
    assert nothing.event == TransitionRejected(
        reason="approval_not_pending",
        attempted_decision="approve",
        current_status="WAITING_FOR_USER",
        supplied_hash=HASH,
    )


def test_where_several_are_there_a_command_that_has_to_name_one_is_refused_though_only_one_is_meant() -> None:
    decided = replace(APPROVED, request_id="s")
    assert decide.choose_request(ASKED, [ASKED, decided], "revoke") is ASKED
    assert isinstance(decide.choose_request(ASKED, [ASKED, decided], "revoke", has_to_name=True), Refusal)
    assert decide.choose_request(ASKED, [decided], "revoke", has_to_name=True) is decided
    approved = decide.choose_request(
        ASKED, [ASKED, decided], "revoke", is_candidate=lambda run: run.status is Status.APPROVED
    )
    assert approved is decided


# ── the view ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def viewed(**cells: Any) -> Refusal:
    refusal = decide.compare_view(APPROVED, {**decide.view_columns(APPROVED), **cells})
    assert refusal is not None
    return refusal


def test_what_differs_in_the_view_is_recorded_as_it_was_seen() -> None:
    event = viewed(status=b"\xff" * 5000, approval="x" * 5000, executed=1.5, approval_hash=None).event
    assert isinstance(event, ResumeRejected)
    assert event.detail == "status, approval, approval_hash, executed"
    assert event.viewed is not None
    assert event.viewed["status"] == "ff" * 4096
    assert event.viewed["approval"] == "x" * 4096
    assert (event.viewed["executed"], event.viewed["approval_hash"], event.viewed["run_id"]) == ("1.5", None, "run-1")
    lone = viewed(status="a\ud800b").event
    assert isinstance(lone, ResumeRejected)
    assert lone.viewed is not None
    assert lone.viewed["status"] == "a?b"


def test_a_view_of_another_request_or_proposal_is_recorded_as_such() -> None:
    other = viewed(request_id="s")
    assert isinstance(other.event, ProposalRejected)
    assert (other.event.action, other.event.current_request_id, other.event.approved_request_id) == ("pay", "s", "r")
    assert other.event.viewed is not None
    assert other.event.viewed["request_id"] == "s"
    edited = viewed(args='{"amount":20}', proposal_hash=OTHER.hash)
    assert edited.event == ProposalRejected(
        phase="resume",
        reason="proposal_hash_mismatch",
        action="pay",
        current_hash=OTHER.hash,
        stored_hash=OTHER.hash,
        approval_hash=HASH,
        viewed={**decide.view_columns(APPROVED), "args": '{"amount":20}', "proposal_hash": OTHER.hash},
    )
    assert edited.error.details == {"run_id": "run-1", "current_hash": OTHER.hash, "approval_hash": HASH}
    broken = viewed(proposal_hash=None).event
    assert isinstance(broken, ProposalRejected)
    assert (broken.stored_hash, broken.current_hash) == (None, HASH)
    numbered = viewed(proposal_hash=7).event
    assert isinstance(numbered, ProposalRejected)
    assert numbered.stored_hash == "7"
    differs = viewed(status="COMPLETED")
    assert differs.error.details["viewed"]["status"] == "COMPLETED"


def test_an_editor_who_may_not_approve_is_refused_and_nothing_is_asked() -> None:
    refusal = decide.edit(ASKED, OTHER, Terms(policy=PolicyTerms(level=1)), actor_source="os", approves=True)
    assert isinstance(refusal, Refusal)
    assert refusal.error.code == "level_required"
    accepted = decide.edit(
        ASKED, OTHER, Terms(), actor_source="os", approves=True, actor="bob", roles=("lead",), reason="cheaper"
    )
    assert isinstance(accepted, Accepted)
    asked, _, approval = accepted.events
    assert isinstance(asked, ProposalRecorded)
    assert (asked.supersedes, asked.request_id, asked.reason) == ("r", "r#edit-1", "cheaper")
    assert msgspec.to_builtins(approval) == {
        "request_id": "r#edit-1",
        "decision": "approve",
        "approval_hash": OTHER.hash,
        "actor_source": "os",
        "reason": "cheaper",
        "roles": ("lead",),
    }

"""Approvals as they are stored, looked at again before the effect: which count, and what refuses the effect. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from eventlog.decide import Refusal, proofs
from eventlog.errors import RunConflict
from eventlog.events import (
    ApprovalRecorded,
    ApprovalRevoked,
    Envelope,
    Owner,
    PolicyTerms,
    ProposalRecorded,
    ResumeRejected,
    ResumeStarted,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import propose
from eventlog.run import Compensation, Intent, Run, Status, Vote
from eventlog.signing.envelopes import make_envelope
from eventlog.signing.signed_decisions import Flaw
from eventlog.signing.statements import ApprovalStatement, Displayed, SeenHead, encode_approval

PROPOSAL = propose("pay", {"amount": 25}, "account")
HASH = PROPOSAL.hash
OWNER = Owner(host="h", boot="b", lock="l")
ASKED = ProposalRecorded(
    request_id="r", proposal=msgspec.Raw(PROPOSAL.canonical), proposal_hash=HASH, action_sha256="1" * 64
)
YES = ApprovalRecorded(request_id="r", decision="approve", approval_hash=HASH, actor_source="os")
REVOKED = ApprovalRevoked(request_id="r", actor_source="os")
INTENT = ResumeStarted(
    op_key="k" * 64, attempt=1, epoch=0, owner=OWNER, deadline_us=9, approval_hash=HASH, input_hash=HASH
)
OPEN = Intent(op_key="k" * 64, attempt=1, epoch=0, owner=OWNER, deadline_us=9)
REQUEST = Run(
    run_id="run-1",
    version=4,
    status=Status.APPROVED,
    request_id="r",
    proposal=PROPOSAL,
    proposal_hash=HASH,
    approval="approve",
)
MAY_HAVE_HAPPENED = "; an earlier attempt may have happened: find out, and reconcile"
STATEMENT = ApprovalStatement(
    decision="approve",
    request_id="r",
    log_id="0" * 32,
    run_id="run-1",
    proposal_position=2,
    proposal_leaf="1" * 64,
    proposal_sha256=HASH,
    action="pay",
    action_sha256=None,
    output="account",
    policy_id="pay",
    policy_sha256="2" * 64,
    requester="agent",
    approver="alice",
    key_id="3" * 64,
    roles=(),
    reason=None,
    nonce="4" * 32,
    not_after_us=77,
    max_uses=1,
    displayed=Displayed(media_type="text/plain", sha256="5" * 64),
    head=SeenHead(size=2, root="6" * 64),
)


def stored(position: int, data: Any, **fields: Any) -> RecordedEvent:
    event = RecordedEvent(
        position=position,
        stream="run:run-1",
        version=position,
        type="some_type",
        schema_version=1,
        event_id=bytes(16),
        recorded_at_us=1000 + position,
        actor="alice",
        correlation_id=None,
        causation_id=None,
        body=b"{}",
        data=data,
        is_known=True,
        leaf=bytes(32),
        prev_in_stream=bytes(32),
    )
    return replace(event, **fields)


def signed(not_after_us: int) -> Envelope:
    payload = encode_approval(replace(STATEMENT, not_after_us=not_after_us))
    return make_envelope(payload, STATEMENT.key_id, bytes(64))


NO_STATEMENT = make_envelope(b"{}", STATEMENT.key_id, bytes(64))


def facts_of(refusal: Refusal | None) -> tuple[str, str | None, dict[str, Any]]:
    """Return the code, the detail that is recorded, and the facts of the error beside those of every refusal."""
    assert refusal is not None
    assert isinstance(refusal.event, ResumeRejected)
    assert refusal.event.reason == refusal.error.code
    assert refusal.event.status == "APPROVED"
    details = dict(refusal.error.details)
    assert (details.pop("run_id"), details.pop("status")) == ("run-1", "APPROVED")
    return refusal.error.code, refusal.event.detail, details


# ── what is looked at ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, False),
        ({"policy": PolicyTerms()}, False),
        ({"policy": PolicyTerms(level=1)}, True),
        ({"votes": (Vote(decision="approve"),)}, False),
        ({"votes": (Vote(decision="approve"), Vote(decision="approve", level=1))}, True),
        ({"votes": (Vote(decision="approve", is_signed=True),)}, True),
        ({"policy": PolicyTerms(level=1), "votes": (Vote(decision="approve"),)}, True),
    ],
    ids=["nothing", "no level", "a level", "a vote", "a vote of a level", "a signed vote", "a level and a vote"],
)
def test_approvals_are_looked_at_again_where_a_level_is_asked_for_or_given(
    fields: dict[str, Any], needed: bool
) -> None:
    assert proofs.needs_proof(replace(REQUEST, **fields)) is needed


def test_the_event_of_a_request_is_the_last_that_asked_for_it() -> None:
    events = [
        stored(1, ASKED),
        stored(2, ASKED),
        stored(3, replace(ASKED, request_id="other")),
        stored(4, YES),
    ]
    assert proofs.event_of_request(events, REQUEST) is events[1]
    with pytest.raises(RunConflict) as caught:
        proofs.event_of_request(events, replace(REQUEST, request_id="r#edit-1"))
    assert caught.value.details["run_id"] == "run-1"


def test_approvals_are_those_of_the_request_behind_its_event_that_nobody_withdrew() -> None:
    asked = stored(2, ASKED)
    events = [
        stored(1, YES),
        asked,
        stored(3, YES),
        stored(4, replace(YES, decision="reject")),
        stored(5, replace(YES, request_id="other")),
        stored(6, replace(YES, step="look")),
        stored(7, replace(REVOKED, step="look")),
        stored(8, {"no": "fact of a request"}),
        stored(9, YES),
    ]
    assert [event.position for event in proofs.approvals_of(events, asked, REQUEST)] == [3, 9]
    withdrawn = [*events, stored(10, REVOKED)]
    assert proofs.approvals_of(withdrawn, asked, REQUEST) == []
    assert [each.position for each in proofs.approvals_of([*withdrawn, stored(11, YES)], asked, REQUEST)] == [11]
    assert [each.position for each in proofs.approvals_of(events, asked, replace(REQUEST, step="look"))] == []
    assert [each.position for each in proofs.approvals_of(events[:6], asked, replace(REQUEST, step="look"))] == [6]


def test_the_first_intent_behind_the_request_says_when_its_effect_began() -> None:
    asked = stored(2, ASKED)
    before = [stored(1, INTENT), asked, stored(2, INTENT), stored(3, YES), stored(4, replace(INTENT, step="look"))]
    assert proofs.began_at_us(before, asked, REQUEST) is None
    assert proofs.began_at_us([*before, stored(5, INTENT), stored(6, INTENT)], asked, REQUEST) == 1005
    assert proofs.began_at_us(before, asked, replace(REQUEST, step="look")) == 1004


def test_the_earliest_end_is_that_of_the_statement_whose_time_is_over_first() -> None:
    approvals = [
        stored(3, YES),
        stored(4, replace(YES, envelope=signed(88))),
        stored(5, replace(YES, envelope=signed(77))),
        stored(6, replace(YES, envelope=NO_STATEMENT)),
    ]
    assert proofs.earliest_end(approvals) == 77
    assert proofs.earliest_end(approvals[:2]) == 88
    assert proofs.earliest_end([approvals[0], approvals[3]]) is None
    assert proofs.earliest_end([]) is None
    assert proofs.statement_of(approvals[2]) == STATEMENT


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mismatch_is_told_with_both_values() -> None:
    assert proofs.flaw_facts(Flaw(code="approver_unknown", message="nobody")) == {}
    mismatch = Flaw(code="statement_mismatch", message="no", field="output", supplied="here", expected="there")
    assert proofs.flaw_facts(mismatch) == {"field": "output", "supplied": "here", "expected": "there"}


def test_an_action_that_is_another_one_now_is_refused_where_both_digests_are_known() -> None:
    asked = stored(2, ASKED)
    looked_up: list[str] = []

    def now(digest: str | None) -> Any:
        def digest_of(action: str) -> str | None:
            looked_up.append(action)
            return digest

        return digest_of

    assert proofs.refuse_changed_action(REQUEST, asked, now("1" * 64)) is None
    assert proofs.refuse_changed_action(REQUEST, asked, now(None)) is None
    assert proofs.refuse_changed_action(REQUEST, stored(2, replace(ASKED, action_sha256=None)), now("2" * 64)) is None
    assert facts_of(proofs.refuse_changed_action(REQUEST, asked, now("2" * 64))) == (
        "definition_mismatch",
        f"action_sha256: {'2' * 64}, not {'1' * 64}",
        {"action": "pay", "approved_sha256": "1" * 64, "current_sha256": "2" * 64},
    )
    assert looked_up == ["pay"] * 4
    gone = proofs.refuse_changed_action(replace(REQUEST, proposal=None), asked, now("2" * 64))
    assert facts_of(gone)[2]["action"] == ""


def test_an_approval_that_does_not_count_refuses_the_effect_and_says_why() -> None:
    refusal = proofs.refuse_unproved(REQUEST, Flaw(code="approver_revoked", message="its key is gone"), 7)
    assert facts_of(refusal) == ("approver_revoked", "the approval at position 7", {"position": 7})
    assert str(refusal.error) == "the approval at position 7 does not count: its key is gone"
    mismatch = Flaw(code="statement_mismatch", message="no", field="output", supplied="here", expected="x" * 400)
    code, detail, facts = facts_of(proofs.refuse_unproved(REQUEST, mismatch, 7))
    assert code == "statement_mismatch"
    assert detail == f"the approval at position 7; output: 'here', not '{'x' * 299}"
    assert facts == {"position": 7, "field": "output", "supplied": "here", "expected": "x" * 400}


@pytest.mark.parametrize(
    ("fields", "is_said"),
    [
        ({}, False),
        ({"intent": OPEN}, True),
        ({"unknown": "it died"}, True),
        ({"compensation": Compensation(action="undo", op_key="u", attempts=1), "intent": OPEN}, False),
    ],
    ids=["not begun", "under way", "unknown", "what is undone has ended"],
)
def test_who_is_refused_is_told_that_an_earlier_attempt_may_have_happened(
    fields: dict[str, Any], is_said: bool
) -> None:
    request = replace(REQUEST, **fields)
    unproved = proofs.refuse_unproved(request, Flaw(code="approver_revoked", message="no"), 7)
    erased = proofs.refuse_erased(request, [stored(3, YES, redacted="erased")])
    assert erased is not None
    for refusal in (unproved, erased):
        assert str(refusal.error).endswith(MAY_HAVE_HAPPENED) is is_said


def test_an_effect_does_not_begin_on_what_is_erased() -> None:
    asked, approved = stored(2, ASKED), stored(3, YES)
    assert proofs.refuse_erased(REQUEST, [asked, approved]) is None
    refusal = proofs.refuse_erased(REQUEST, [asked, replace(approved, redacted="subject_erased")])
    assert facts_of(refusal) == ("run_erased", "subject_erased: the approval at position 3", {"position": 3})
    refusal = proofs.refuse_erased(
        REQUEST, [replace(asked, redacted="key_missing"), replace(approved, redacted="erased")]
    )
    assert facts_of(refusal) == ("run_erased", "key_missing: the proposal at position 2", {"position": 2})
    assert refusal is not None
    assert str(refusal.error) == "run 'run-1' cannot act: its proposal at position 2 is not there (key_missing)"


@pytest.mark.parametrize(("policy", "frozen"), [(None, 0), (PolicyTerms(level=1), 1)])
def test_an_effect_that_was_asked_on_a_lower_level_is_refused(policy: PolicyTerms | None, frozen: int) -> None:
    refusal = proofs.refuse_lower_level(replace(REQUEST, policy=policy), 2)
    assert facts_of(refusal) == ("level_required", f"level {frozen}, not 2", {"required_level": 2, "level": frozen})


@pytest.mark.parametrize(
    ("attempts", "way_out"),
    [(0, "revoke the approval, and approve it again"), (1, "cancel the run, and ask anew")],
)
def test_an_approval_before_a_restore_is_refused_with_a_way_out(attempts: int, way_out: str) -> None:
    refusal = proofs.refuse_lost(replace(REQUEST, attempts=attempts), 3, 9)
    assert facts_of(refusal) == (
        "approval_before_restore",
        "the approval at position 3, the restore at position 9",
        {"position": 3, "restored_at": 9},
    )
    assert str(refusal.error).endswith(way_out)


def test_what_runs_is_byte_for_byte_what_was_proposed() -> None:
    asked = stored(2, ASKED)
    assert proofs.refuse_other_proposal(REQUEST, asked) is None
    other = replace(REQUEST, proposal=propose("pay", {"amount": 26}, "account"))
    for request in (other, replace(REQUEST, proposal=None)):
        assert facts_of(proofs.refuse_other_proposal(request, asked)) == ("proposal_hash_mismatch", None, {})


def test_fewer_people_than_the_terms_ask_for_are_too_few() -> None:
    two = stored(2, replace(ASKED, policy=PolicyTerms(required=2)))
    alice, bob = stored(3, YES), stored(4, YES, actor="bob")
    assert proofs.refuse_too_few(REQUEST, stored(2, ASKED), [alice]) is None
    assert proofs.refuse_too_few(REQUEST, two, [alice, bob]) is None
    for asked, approvals in ((stored(2, ASKED), []), (two, [alice]), (two, [alice, alice])):
        assert facts_of(proofs.refuse_too_few(REQUEST, asked, approvals)) == ("approval_required", None, {})

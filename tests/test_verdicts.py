"""Verdicts of a person on an effect that nobody knows of: what they rest on, and what follows. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from eventlog import decide
from eventlog.decide import Accepted, Refusal
from eventlog.events import OutcomeReconciled, OutcomeUnknown, Owner, ResultRejected, TransitionRejected
from eventlog.proposal import propose
from eventlog.run import Compensation, Run, Status

PROPOSAL = propose("pay", {"amount": 25}, "account")
OWNER = Owner(host="h", boot="b", lock="l")
UNDOING = Compensation(action="undo", op_key="u" * 64, attempts=1)
UNKNOWN = Run(
    run_id="run-1",
    version=8,
    status=Status.OUTCOME_UNKNOWN,
    request_id="r",
    proposal=PROPOSAL,
    proposal_hash=PROPOSAL.hash,
    approval="approve",
    attempts=2,
    op_key="k" * 64,
    unknown="it died",
)
AT_WORK = replace(UNKNOWN, status=Status.APPROVED, unknown=None, version=7)
UNDO_UNKNOWN = replace(UNKNOWN, executed=True, compensation=UNDOING)


@pytest.mark.parametrize(
    ("run", "seen", "strays_are_over", "stale"),
    [
        (UNKNOWN, None, False, ()),
        (UNKNOWN, UNKNOWN, False, ()),
        (UNKNOWN, replace(UNKNOWN, attempts=1), False, ("executed", "not_executed", "abandoned")),
        (UNKNOWN, replace(UNKNOWN, op_key="other"), False, ("executed", "not_executed", "abandoned")),
        (UNKNOWN, AT_WORK, False, ("not_executed",)),
        (UNKNOWN, UNKNOWN, True, ("not_executed",)),
        (UNKNOWN, replace(UNKNOWN, strays_are_over=True), True, ()),
        (UNDO_UNKNOWN, UNDO_UNKNOWN, False, ()),
        (UNDO_UNKNOWN, UNKNOWN, False, ("executed", "not_executed", "abandoned")),
        (
            UNDO_UNKNOWN,
            replace(UNDO_UNKNOWN, compensation=replace(UNDOING, attempts=3)),
            False,
            ("executed", "not_executed", "abandoned"),
        ),
    ],
    ids=[
        "nobody says when",
        "the same",
        "an earlier attempt",
        "another effect",
        "it was at work",
        "others were at work",
        "nobody was",
        "the same undoing",
        "the effect",
        "another undoing",
    ],
)
def test_a_verdict_is_about_what_the_person_saw(
    run: Run, seen: Run | None, strays_are_over: bool, stale: tuple[str, ...]
) -> None:
    refused_verdicts = []
    for verdict in decide.VERDICTS:
        outcome = decide.reconcile(
            run, verdict, "I looked", actor_source="os", seen=seen, strays_are_over=strays_are_over
        )
        if isinstance(outcome, Refusal):
            assert outcome.error.code == "verdict_stale"
            refused_verdicts.append(verdict)
    assert tuple(refused_verdicts) == stale


def test_who_has_looked_too_early_is_told_at_what_to_look_again() -> None:
    outcome = decide.reconcile(UNKNOWN, "not_executed", "I looked", actor_source="os", seen=AT_WORK)
    assert isinstance(outcome, Refusal)
    assert outcome.event == TransitionRejected(
        reason="verdict_stale",
        attempted_decision="reconcile:not_executed",
        current_status="OUTCOME_UNKNOWN",
        existing_approval="approve",
        detail="version 7",
    )
    assert outcome.error.details == {"run_id": "run-1", "status": "OUTCOME_UNKNOWN", "attempt": 2}


@pytest.mark.parametrize(
    ("late", "is_known"),
    [
        ({}, True),
        ({"rejected": "action_recovered"}, True),
        ({"rejected": "compensation_executed"}, True),
        ({"rejected": "action_failed"}, False),
        ({"op_key": "other"}, False),
    ],
    ids=["executed", "recovered", "undone", "failed", "another effect"],
)
def test_what_is_reported_to_have_happened_is_not_settled_as_not_done(late: dict[str, Any], is_known: bool) -> None:
    report = ResultRejected(
        **{"reason": "fenced", "rejected": "action_executed", "op_key": "k" * 64, "epoch": 1, "attempt": 1, **late}
    )
    for verdict in decide.VERDICTS:
        outcome = decide.reconcile(replace(UNKNOWN, late=report), verdict, "I looked", actor_source="os")
        is_refused = isinstance(outcome, Refusal) and outcome.error.code == "verdict_contradicted"
        assert is_refused is (is_known and verdict == "not_executed")


def test_what_was_found_out_is_recorded_with_the_verdict_on_it() -> None:
    claims = decide.claim(AT_WORK, owner=OWNER, deadline_us=9, is_stray=False)
    assert decide.found_out(AT_WORK, None, strays_are_over=False) == ()
    assert decide.found_out(replace(UNKNOWN, strays_are_over=True), None, strays_are_over=True) == ()
    over = OutcomeUnknown(action="pay", op_key="k" * 64, why="it died", strays_are_over=True)
    assert decide.found_out(UNKNOWN, None, strays_are_over=True) == (over,)
    ended = replace(over, why="the attempt ended without a result", strays_are_over=False)
    assert decide.found_out(AT_WORK, claims, strays_are_over=False) == (claims, ended)
    undoing = replace(ended, action="undo", op_key="u" * 64)
    assert decide.found_out(replace(AT_WORK, compensation=UNDOING), claims, strays_are_over=False)[1] == undoing
    keyless = decide.found_out(replace(AT_WORK, op_key=None), claims, strays_are_over=True)[1]
    assert keyless == replace(ended, op_key="", strays_are_over=True)


@pytest.mark.parametrize(
    ("run", "statuses"),
    [
        (UNKNOWN, (Status.COMPLETED, Status.APPROVED, Status.CANCELLED)),
        (UNDO_UNKNOWN, (Status.COMPENSATED, Status.COMPLETED, Status.COMPLETED)),
        (replace(UNKNOWN, is_cancelled=True), (Status.CANCELLED,) * 3),
    ],
    ids=["the effect", "its undoing", "cancelled"],
)
def test_a_verdict_says_what_the_run_is_then(run: Run, statuses: tuple[Status, ...]) -> None:
    for verdict, status in zip(decide.VERDICTS, statuses, strict=True):
        outcome = decide.reconcile(run, verdict, "I looked", actor_source="os")
        assert isinstance(outcome, Accepted)
        (settled,) = outcome.events
        assert isinstance(settled, OutcomeReconciled)
        assert (settled.verdict, settled.status, settled.evidence) == (verdict, status, "I looked")

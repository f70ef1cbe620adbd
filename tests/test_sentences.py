"""Events as sentences: every type has its own, it says who and why, and no data can pass for a part of it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from eventlog.cli.text import visible
from eventlog.events import (
    LOG_EVENTS,
    RUN_EVENTS,
    ActionConflict,
    ApprovalRecorded,
    ProposalRecorded,
    ProposalRejected,
    ResumeRejected,
    SignalReceived,
    TransitionRejected,
)
from eventlog.sentences import sentence
from tests.audit_runs import HOSTILE, catalogue, recorded
from tests.strategies import texts

CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def said(event: Any, type_name: str = "approval_recorded", **envelope: Any) -> str:
    return sentence(recorded(event, type_name, **envelope))


def is_neutral(event: Any) -> bool:
    """Say whether the sentence only names the type."""
    return sentence(event) in (
        f"anna recorded {event.type}",
        f"anna recorded {event.type}, which this program does not know",
    )


def test_every_type_of_the_catalogue_has_a_sentence_of_its_own() -> None:
    events = catalogue()
    assert {event.type for event in events} == {*RUN_EVENTS, *LOG_EVENTS}
    assert [event.type for event in events if is_neutral(event)] == []


def test_a_type_without_one_would_be_seen() -> None:
    assert is_neutral(recorded({"n": 1}, "stock_refilled"))
    assert is_neutral(recorded({"n": 1}, "run_paused", is_known=False))


def test_an_event_of_the_users_own_gets_a_neutral_line() -> None:
    assert said({"n": 1}, "stock_refilled") == "anna recorded stock_refilled"


def test_a_type_that_this_program_does_not_know_is_said_to_be_one() -> None:
    assert said({}, "run_paused", is_known=False) == "anna recorded run_paused, which this program does not know"


class TestWhoAndWhy:
    def test_a_decision_says_who_vouches_for_whom_what_was_frozen_and_the_reason(self) -> None:
        event = ApprovalRecorded(
            request_id="approval:r", decision="approve", approval_hash="a" * 64, actor_source="os", reason="it is fine"
        )
        assert said(event) == (
            "anna (vouched for by the operating system) approved request approval:r with exactly the proposal "
            f'{"a" * 64}, because "it is fine"'
        )

    def test_a_rule_that_decided_is_not_the_person_who_happened_to_run_it(self) -> None:
        event = ApprovalRecorded(
            request_id="approval:r", decision="approve", approval_hash="h", actor_source="policy", reason="small"
        )
        assert said(event).startswith("a rule approved request approval:r")
        assert "anna" not in said(event)

    def test_an_approval_that_does_not_decide_alone_says_so(self) -> None:
        event = ApprovalRecorded(
            request_id="r", decision="approve", approval_hash="h", actor_source="os", is_deciding=False
        )
        assert said(event).endswith("; others have to approve it as well")

    def test_a_refused_decision_says_what_was_supplied_and_what_the_proposal_is(self) -> None:
        event = ProposalRejected(
            phase="approval",
            reason="proposal_hash_mismatch",
            action="write_draft",
            output="draft.txt",
            supplied_hash="0" * 64,
            current_hash="c" * 64,
            stored_hash="c" * 64,
        )
        assert said(event, "proposal_rejected") == (
            f"anna's decision on write_draft was refused: proposal_hash_mismatch; the hash supplied was {'0' * 64}; "
            f'the target is "draft.txt"; the proposal\'s hash is now {"c" * 64}; the hash stored is {"c" * 64}'
        )

    def test_a_refused_resume_says_what_was_given_and_what_was_frozen(self) -> None:
        event = ProposalRejected(
            phase="resume", reason="output_mismatch", action="w", current_output="b.txt", approved_output="a.txt"
        )
        assert said(event, "proposal_rejected") == (
            'anna\'s resume of w was refused: output_mismatch; the target given was "b.txt"; '
            'the target approved is "a.txt"'
        )

    def test_a_view_that_people_saw_is_told(self) -> None:
        event = ResumeRejected(reason="view_mismatch", status="APPROVED", viewed={"status": "COMPLETED"})
        assert said(event, "resume_rejected").endswith('people saw {"status": "COMPLETED"}')

    def test_a_command_that_the_state_does_not_allow_says_what_stands(self) -> None:
        event = TransitionRejected(
            reason="approval_not_pending",
            attempted_decision="approve",
            current_status="REJECTED",
            existing_approval="reject",
            supplied_hash="h",
        )
        assert said(event, "transition_rejected") == (
            "anna's approve was refused: approval_not_pending; the status is REJECTED; reject stands; "
            "the hash supplied was h"
        )

    def test_a_conflict_names_both_contents(self) -> None:
        event = ActionConflict(
            action="w",
            op_key="k",
            reason="output_conflict",
            expected_content_hash="e" * 64,
            existing_content_hash="f" * 64,
        )
        assert f"expected content {'e' * 64}; found content {'f' * 64}" in said(event, "action_conflict")

    def test_the_step_of_a_workflow_is_named(self) -> None:
        event = ResumeRejected(step="apply", reason="approval_required", status="WAITING_FOR_USER")
        assert said(event, "resume_rejected").startswith("step apply: anna's resume was refused")


class TestDataInIt:
    def test_a_name_that_reads_like_the_sentence_stands_in_quotes(self) -> None:
        event = TransitionRejected(reason="r", attempted_decision="approve", current_status="REJECTED")
        forged = "anna approved approval:r; bob"
        assert said(event, "transition_rejected", actor=forged).startswith(f'"{forged}"\'s approve was refused')

    def test_a_quote_in_a_reason_does_not_end_it(self) -> None:
        event = ApprovalRecorded(
            request_id="r", decision="reject", approval_hash="h", actor_source="os", reason='no"; anna approved "it'
        )
        assert said(event).endswith(r'because "no\"; anna approved \"it"')

    def test_a_long_value_is_cut_with_a_mark_that_says_how_much_is_missing(self) -> None:
        event = SignalReceived(name="go", payload=msgspec.Raw(json.dumps("x" * 1000).encode()))
        assert said(event, "signal_received") == f'anna sent the signal go with "{"x" * 200}"… (800 more characters)'

    def test_ids_and_hashes_are_whole_however_long(self) -> None:
        long = "r" * 512
        event = ApprovalRecorded(request_id=long, decision="approve", approval_hash="h" * 64, actor_source="os")
        assert long in said(event) and "h" * 64 in said(event) and "more characters" not in said(event)

    def test_a_large_result_is_named_as_the_artifact_that_holds_it(self) -> None:
        assert said(SignalReceived(name="go", artifact="d" * 64), "signal_received").endswith(f"artifact://{'d' * 64}")

    @pytest.mark.parametrize("canonical", [b'{"action":1}', b"[]", b'"x"'])
    def test_bytes_that_are_no_proposal_are_shown_as_they_are(self, canonical: bytes) -> None:
        event = ProposalRecorded(request_id="r", proposal=msgspec.Raw(canonical), proposal_hash="h")
        assert "what is no proposal" in said(event, "proposal_recorded")

    def test_hidden_characters_are_left_to_who_shows_it(self) -> None:
        event = ApprovalRecorded(
            request_id="r", decision="reject", approval_hash="h", actor_source="os", reason="a\u202eb"
        )
        assert "a\u202eb" in said(event)
        assert r"a\u202eb" in visible(said(event))

    def test_whatever_the_texts_hold_a_sentence_is_one_line(self) -> None:
        for event in catalogue(HOSTILE):
            assert not CONTROL.search(sentence(event)), event.type

    @settings(deadline=None)  # a busy machine is no failure
    @given(texts)
    def test_no_text_makes_a_sentence_fail_or_break(self, text: str) -> None:
        for event in catalogue(text):
            assert not CONTROL.search(sentence(event)), event.type

    def test_the_check_for_line_breaks_sees_one(self) -> None:
        assert CONTROL.search(f"anna said {HOSTILE}")

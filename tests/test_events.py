"""The catalogue: what each event is called and how its body is spelled. Released spellings stay for ever."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args

import msgspec
import pytest

from eventlog import events
from eventlog.codec import REGISTRY
from eventlog.events import (
    LOG_EVENTS,
    RUN_EVENTS,
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ActionReplayed,
    ApprovalRecorded,
    BarrierRecorded,
    CheckpointSaved,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    Failure,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResultRejected,
    ResumeRejected,
    ResumeStarted,
    RunClaimed,
    RunEvent,
    Status,
    TransitionRejected,
    Waiting,
    run_stream,
)
from eventlog.plain import Limits

LIMITS = Limits()
OWNER = Owner(host="h", boot="b", lock="l")
OWNER_JSON = '{"host":"h","boot":"b","lock":"l"}'

# One line is one released spelling of schema version 1. Lines are added, never changed: logs in the field hold them.
RELEASED: list[tuple[str, msgspec.Struct, str]] = [
    (
        "checkpoint_saved",
        CheckpointSaved(
            status=Status.WAITING_FOR_USER,
            state_version=1,
            waiting=Waiting(type="approval", node_id="write", approval_id="approval:r"),
        ),
        '{"status":"WAITING_FOR_USER","state_version":1,'
        '"waiting":{"type":"approval","node_id":"write","approval_id":"approval:r"}}',
    ),
    (
        "checkpoint_saved",
        CheckpointSaved(status=Status.COMPLETED, state_version=2),
        '{"status":"COMPLETED","state_version":2}',
    ),
    (
        "proposal_recorded",
        ProposalRecorded(
            request_id="approval:r",
            proposal=msgspec.Raw(b'{"action":"a","args":{"n":1},"output":"o"}'),
            proposal_hash="p",
            folder="/home/agent",
        ),
        '{"request_id":"approval:r","proposal":{"action":"a","args":{"n":1},"output":"o"},"proposal_hash":"p",'
        '"folder":"/home/agent"}',
    ),
    (
        "proposal_verified",
        ProposalVerified(phase="approval", proposal_hash="p"),
        '{"phase":"approval","proposal_hash":"p"}',
    ),
    (
        "proposal_rejected",
        ProposalRejected(phase="resume", reason="output_mismatch", action="a", current_output="x", approved_output="o"),
        '{"phase":"resume","reason":"output_mismatch","action":"a","current_output":"x","approved_output":"o"}',
    ),
    (
        "proposal_rejected",
        ProposalRejected(
            phase="approval",
            reason="proposal_hash_mismatch",
            action="a",
            output="o",
            supplied_hash="s",
            current_hash="c",
            stored_hash="t",
            approval_hash="h",
            current_request_id="q",
            approved_request_id="r",
            viewed={"args": "{}", "executed": 0, "approval": None},
        ),
        '{"phase":"approval","reason":"proposal_hash_mismatch","action":"a","output":"o","supplied_hash":"s",'
        '"current_hash":"c","stored_hash":"t","approval_hash":"h","current_request_id":"q","approved_request_id":"r",'
        '"viewed":{"args":"{}","executed":0,"approval":null}}',
    ),
    (
        "approval_recorded",
        ApprovalRecorded(request_id="approval:r", decision="approve", approval_hash="p", actor_source="cli"),
        '{"request_id":"approval:r","decision":"approve","approval_hash":"p","actor_source":"cli"}',
    ),
    (
        "approval_recorded",
        ApprovalRecorded(
            request_id="approval:r", decision="reject", approval_hash="p", actor_source="cli", reason="nein – not now"
        ),
        '{"request_id":"approval:r","decision":"reject","approval_hash":"p","actor_source":"cli",'
        '"reason":"nein – not now"}',
    ),
    (
        "transition_rejected",
        TransitionRejected(
            reason="approval_not_pending",
            attempted_decision="approve",
            current_status="REJECTED",
            existing_approval="reject",
            supplied_hash="s",
        ),
        '{"reason":"approval_not_pending","attempted_decision":"approve","current_status":"REJECTED",'
        '"existing_approval":"reject","supplied_hash":"s"}',
    ),
    (
        "resume_rejected",
        ResumeRejected(reason="approval_required", status="WAITING_FOR_USER"),
        '{"reason":"approval_required","status":"WAITING_FOR_USER"}',
    ),
    (
        "resume_rejected",
        ResumeRejected(reason="view_mismatch", status="APPROVED", detail="status", viewed={"status": "x"}),
        '{"reason":"view_mismatch","status":"APPROVED","detail":"status","viewed":{"status":"x"}}',
    ),
    (
        "resume_started",
        ResumeStarted(op_key="k", attempt=1, epoch=0, owner=OWNER, deadline_us=7, approval_hash="p", input_hash="i"),
        '{"op_key":"k","attempt":1,"epoch":0,"owner":' + OWNER_JSON + ',"deadline_us":7,"approval_hash":"p",'
        '"input_hash":"i"}',
    ),
    (
        "resume_started",
        ResumeStarted(
            op_key="k",
            attempt=2,
            epoch=7,
            owner=OWNER,
            deadline_us=7,
            approval_hash="p",
            input_hash="i",
            key_until_us=9,
        ),
        '{"op_key":"k","attempt":2,"epoch":7,"owner":' + OWNER_JSON + ',"deadline_us":7,"approval_hash":"p",'
        '"input_hash":"i","key_until_us":9}',
    ),
    (
        "action_executed",
        ActionExecuted(action="a", op_key="k", result={"bytes": 3}),
        '{"action":"a","op_key":"k","result":{"bytes":3}}',
    ),
    ("action_executed", ActionExecuted(action="a", op_key="k"), '{"action":"a","op_key":"k"}'),
    (
        "action_executed",
        ActionExecuted(action="a", op_key="k", not_stored="invalid_text at $"),
        '{"action":"a","op_key":"k","not_stored":"invalid_text at $"}',
    ),
    (
        "action_recovered",
        ActionRecovered(action="a", op_key="k", not_stored="invalid_text at $"),
        '{"action":"a","op_key":"k","not_stored":"invalid_text at $"}',
    ),
    (
        "compensation_executed",
        CompensationExecuted(action="u", op_key="v", compensates="k", not_stored="invalid_text at $"),
        '{"action":"u","op_key":"v","compensates":"k","not_stored":"invalid_text at $"}',
    ),
    (
        "action_recovered",
        ActionRecovered(action="a", op_key="k", evidence="same content"),
        '{"action":"a","op_key":"k","evidence":"same content"}',
    ),
    (
        "action_recovered",
        ActionRecovered(action="a", op_key="k", evidence={"status": 200}, result={"id": 7}),
        '{"action":"a","op_key":"k","evidence":{"status":200},"result":{"id":7}}',
    ),
    ("action_replayed", ActionReplayed(reason="already_completed"), '{"reason":"already_completed"}'),
    (
        "action_conflict",
        ActionConflict(
            action="a",
            op_key="k",
            reason="output_conflict",
            expected_content_hash="e",
            existing_content_hash="x",
            expected_content="mine",
            existing_content="yours",
        ),
        '{"action":"a","op_key":"k","reason":"output_conflict","expected_content_hash":"e",'
        '"existing_content_hash":"x","expected_content":"mine","existing_content":"yours"}',
    ),
    (
        "action_failed",
        ActionFailed(action="a", op_key="k", error=Failure(code="action_failed", message="no space")),
        '{"action":"a","op_key":"k","error":{"code":"action_failed","message":"no space"}}',
    ),
    (
        "action_failed",
        ActionFailed(
            action="a",
            op_key="k",
            error=Failure(code="card_declined", message="no", details={"status": 402}),
            is_final=True,
        ),
        '{"action":"a","op_key":"k","error":{"code":"card_declined","message":"no","details":{"status":402}},'
        '"is_final":true}',
    ),
    (
        "outcome_unknown",
        OutcomeUnknown(action="a", op_key="k", why="it died"),
        '{"action":"a","op_key":"k","why":"it died"}',
    ),
    (
        "outcome_reconciled",
        OutcomeReconciled(
            action="a",
            op_key="k",
            verdict="executed",
            status=Status.COMPLETED,
            evidence="it is in the ledger",
            actor_source="os",
            result={"id": 7},
        ),
        '{"action":"a","op_key":"k","verdict":"executed","status":"COMPLETED","evidence":"it is in the ledger",'
        '"actor_source":"os","result":{"id":7}}',
    ),
    (
        "outcome_reconciled",
        OutcomeReconciled(
            action="a",
            op_key="k",
            verdict="abandoned",
            status=Status.CANCELLED,
            evidence="nobody knows",
            actor_source="asserted",
        ),
        '{"action":"a","op_key":"k","verdict":"abandoned","status":"CANCELLED","evidence":"nobody knows",'
        '"actor_source":"asserted"}',
    ),
    (
        "compensation_started",
        CompensationStarted(
            action="u",
            op_key="v",
            compensates="k",
            attempt=1,
            epoch=0,
            owner=OWNER,
            deadline_us=7,
            input_hash="i",
        ),
        '{"action":"u","op_key":"v","compensates":"k","attempt":1,"epoch":0,"owner":' + OWNER_JSON + ',"deadline_us":7,'
        '"input_hash":"i"}',
    ),
    (
        "compensation_started",
        CompensationStarted(
            action="u",
            op_key="v",
            compensates="k",
            attempt=2,
            epoch=9,
            owner=OWNER,
            deadline_us=7,
            input_hash="i",
            reason="ordered twice",
            key_until_us=9,
        ),
        '{"action":"u","op_key":"v","compensates":"k","attempt":2,"epoch":9,"owner":' + OWNER_JSON + ',"deadline_us":7,'
        '"input_hash":"i","reason":"ordered twice","key_until_us":9}',
    ),
    (
        "compensation_executed",
        CompensationExecuted(action="u", op_key="v", compensates="k"),
        '{"action":"u","op_key":"v","compensates":"k"}',
    ),
    (
        "compensation_executed",
        CompensationExecuted(action="u", op_key="v", compensates="k", result={"id": 8}, evidence=True),
        '{"action":"u","op_key":"v","compensates":"k","result":{"id":8},"evidence":true}',
    ),
    (
        "compensation_failed",
        CompensationFailed(
            action="u", op_key="v", compensates="k", error=Failure(code="action_failed", message="too late")
        ),
        '{"action":"u","op_key":"v","compensates":"k","error":{"code":"action_failed","message":"too late"}}',
    ),
    (
        "compensation_failed",
        CompensationFailed(
            action="u",
            op_key="v",
            compensates="k",
            error=Failure(code="refund_refused", message="too late", details={"days": 90}),
            is_final=True,
        ),
        '{"action":"u","op_key":"v","compensates":"k","error":{"code":"refund_refused","message":"too late",'
        '"details":{"days":90}},"is_final":true}',
    ),
    (
        "action_conflict",
        ActionConflict(action="a", op_key="k", reason="another row", code="idempotency_conflict"),
        '{"action":"a","op_key":"k","reason":"another row","code":"idempotency_conflict"}',
    ),
    (
        "result_rejected",
        ResultRejected(
            reason="claim_lost", rejected="action_executed", op_key="k", epoch=3, attempt=1, result={"result": 1}
        ),
        '{"reason":"claim_lost","rejected":"action_executed","op_key":"k","epoch":3,"attempt":1,"result":{"result":1}}',
    ),
    (
        "run_claimed",
        RunClaimed(epoch=7, owner=OWNER, deadline_us=9, is_stray=True),
        '{"epoch":7,"owner":' + OWNER_JSON + ',"deadline_us":9,"is_stray":true}',
    ),
    (
        "run_claimed",
        RunClaimed(epoch=7, owner=OWNER, deadline_us=9),
        '{"epoch":7,"owner":' + OWNER_JSON + ',"deadline_us":9}',
    ),
    ("barrier_recorded", BarrierRecorded(reason="disk I/O error"), '{"reason":"disk I/O error"}'),
]

ALL: dict[str, Any] = {**RUN_EVENTS, **LOG_EVENTS}
IDS = [f"{name}-{index}" for index, (name, _, _) in enumerate(RELEASED)]


@pytest.mark.parametrize(("name", "event", "body"), RELEASED, ids=IDS)
def test_a_released_spelling_is_written_and_read(name: str, event: msgspec.Struct, body: str) -> None:
    assert REGISTRY.encode(event, LIMITS) == body.encode()
    assert REGISTRY.decode(name, 1, body.encode()) == event
    assert type(REGISTRY.decode(name, 1, body.encode())) is ALL[name]


def test_every_event_has_a_released_spelling() -> None:
    assert {name for name, _, _ in RELEASED} == set(ALL)


def test_every_field_of_every_event_has_a_released_spelling() -> None:
    spelled = {(name, field) for name, _, body in RELEASED for field in msgspec.json.decode(body)}
    unreleased = {("proposal_recorded", "policy"), ("proposal_recorded", "supersedes")}  # not written by anything yet
    declared = {(name, field) for name, cls in ALL.items() for field in cls.__struct_fields__}
    assert declared - spelled == unreleased


@pytest.mark.parametrize(("name", "event", "body"), RELEASED, ids=IDS)
def test_a_field_of_the_future_is_refused_rather_than_dropped(name: str, event: msgspec.Struct, body: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `future`"):
        msgspec.json.decode(body[:-1] + ',"future":1}', type=type(event))


@pytest.mark.parametrize(("name", "cls"), ALL.items(), ids=ALL)
def test_an_event_is_called_by_its_class_name_in_snake_case(name: str, cls: type[msgspec.Struct]) -> None:
    assert name == re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    assert REGISTRY.type_of(cls) == (name, 1)


@pytest.mark.parametrize("cls", [*ALL.values(), Owner, Waiting, Failure], ids=lambda cls: cls.__name__)
def test_an_event_is_immutable_compact_closed_and_explained(cls: type[msgspec.Struct]) -> None:
    config = cls.__struct_config__
    assert config.frozen
    assert {each.kind for each in inspect.signature(cls).parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert config.omit_defaults
    assert config.forbid_unknown_fields
    assert cls.__doc__
    assert cls.__doc__ != events._Fact.__doc__


def test_the_events_of_a_run_are_one_union_and_one_table() -> None:
    assert set(get_args(RunEvent)) == set(RUN_EVENTS.values())
    assert not set(RUN_EVENTS) & set(LOG_EVENTS)


def test_the_stream_of_a_run_is_the_engines() -> None:
    assert run_stream("run-1") == "run:run-1"

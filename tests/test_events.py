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
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    ApproverEnrolled,
    ApproverRevoked,
    BarrierRecorded,
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    ClaimRenewed,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    Definition,
    Envelope,
    EnvelopeSignature,
    Failure,
    LogKeyDeclared,
    LogKeyRevoked,
    LogKeyRotated,
    LogRestored,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    Parent,
    PayloadErased,
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
    Status,
    StepCompleted,
    StepFailed,
    StepStarted,
    SubjectErased,
    TimerFired,
    TimerSet,
    TransitionRejected,
    Waiting,
    run_stream,
)
from eventlog.plain import Limits

LIMITS = Limits()
OWNER = Owner(host="h", boot="b", lock="l")
OWNER_JSON = '{"host":"h","boot":"b","lock":"l"}'
ENVELOPE = Envelope(
    payload="e30=",
    payload_type="application/vnd.in-toto+json",
    signatures=(EnvelopeSignature(keyid="k", sig="c2ln"),),
)
ENVELOPE_BODY = (
    '{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"k","sig":"c2ln"}]}'
)

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
        "outcome_unknown",
        OutcomeUnknown(action="a", op_key="k", why="it died", strays_are_over=True),
        '{"action":"a","op_key":"k","why":"it died","strays_are_over":true}',
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
    (
        "checkpoint_saved",
        CheckpointSaved(
            status=Status.RUNNING,
            state_version=1,
            definition=Definition(workflow="w", fingerprint="f", version="2", steps=("a", "b")),
            input=msgspec.Raw(b'["x",1]'),
            parent=Parent(run_id="p", step="w", root_run_id="r"),
        ),
        '{"status":"RUNNING","state_version":1,"definition":{"workflow":"w","fingerprint":"f","version":"2",'
        '"steps":["a","b"]},"input":["x",1],"parent":{"run_id":"p","step":"w","root_run_id":"r"}}',
    ),
    (
        "checkpoint_saved",
        CheckpointSaved(
            status=Status.RUNNING,
            state_version=1,
            definition=Definition(workflow="w", fingerprint="f"),
            artifact="s",
            parent=Parent(run_id="p", step="w", root_run_id="r", relation="handoff"),
        ),
        '{"status":"RUNNING","state_version":1,"definition":{"workflow":"w","fingerprint":"f"},"artifact":"s",'
        '"parent":{"run_id":"p","step":"w","root_run_id":"r","relation":"handoff"}}',
    ),
    (
        "checkpoint_saved",
        CheckpointSaved(
            status=Status.WAITING_FOR_USER,
            state_version=4,
            waiting=Waiting(type="approval", node_id="a", approval_id="approval:r:a", due_us=9),
            also_waiting=(
                Waiting(type="signal", node_id="go:signal", signal="go", due_us=9),
                Waiting(type="child", node_id="c", child_run_id="r/c"),
                Waiting(type="outcome", node_id="b"),
            ),
            committed=("x", "y"),
        ),
        '{"status":"WAITING_FOR_USER","state_version":4,'
        '"waiting":{"type":"approval","node_id":"a","approval_id":"approval:r:a","due_us":9},'
        '"also_waiting":[{"type":"signal","node_id":"go:signal","signal":"go","due_us":9},'
        '{"type":"child","node_id":"c","child_run_id":"r/c"},{"type":"outcome","node_id":"b"}],'
        '"committed":["x","y"]}',
    ),
    (
        "checkpoint_saved",
        CheckpointSaved(status=Status.RUNNING, state_version=5, is_released=True, snapshot_hash="h"),
        '{"status":"RUNNING","state_version":5,"is_released":true,"snapshot_hash":"h"}',
    ),
    (
        "proposal_recorded",
        ProposalRecorded(
            step="a",
            request_id="approval:r:a#edit-1",
            proposal=msgspec.Raw(b'{"action":"a","args":{},"output":"o"}'),
            proposal_hash="p",
            policy=PolicyTerms(required=2, roles=("ops", "dev"), separation_of_duties=True),
            expires_at_us=9,
            supersedes="approval:r:a",
            reason="nein – another",
            rule_failed="the rule r raised KeyError",
            group="gather",
        ),
        '{"step":"a","request_id":"approval:r:a#edit-1","proposal":{"action":"a","args":{},"output":"o"},'
        '"proposal_hash":"p","policy":{"required":2,"roles":["ops","dev"],"separation_of_duties":true},'
        '"expires_at_us":9,"supersedes":"approval:r:a","reason":"nein – another",'
        '"rule_failed":"the rule r raised KeyError","group":"gather"}',
    ),
    (
        "approval_recorded",
        ApprovalRecorded(
            step="a",
            request_id="approval:r:a",
            decision="approve",
            approval_hash="p",
            actor_source="asserted",
            roles=("ops",),
            is_deciding=False,
        ),
        '{"step":"a","request_id":"approval:r:a","decision":"approve","approval_hash":"p","actor_source":"asserted",'
        '"roles":["ops"],"is_deciding":false}',
    ),
    (
        "approval_recorded",
        ApprovalRecorded(
            request_id="approval:r",
            decision="approve",
            approval_hash="p",
            actor_source="signed",
            level=2,
            envelope=ENVELOPE,
        ),
        '{"request_id":"approval:r","decision":"approve","approval_hash":"p","actor_source":"signed","level":2,'
        f'"envelope":{ENVELOPE_BODY}}}',
    ),
    (
        "proposal_recorded",
        ProposalRecorded(
            request_id="approval:r",
            proposal=msgspec.Raw(b'{"action":"a","args":{},"output":"o"}'),
            proposal_hash="p",
            policy=PolicyTerms(level=2),
            action_sha256="d",
        ),
        '{"request_id":"approval:r","proposal":{"action":"a","args":{},"output":"o"},"proposal_hash":"p",'
        '"policy":{"level":2},"action_sha256":"d"}',
    ),
    (
        "approval_expired",
        ApprovalExpired(step="a", request_id="approval:r:a", expires_at_us=9),
        '{"step":"a","request_id":"approval:r:a","expires_at_us":9}',
    ),
    (
        "approval_revoked",
        ApprovalRevoked(step="a", request_id="approval:r:a", actor_source="os", reason="not yet"),
        '{"step":"a","request_id":"approval:r:a","actor_source":"os","reason":"not yet"}',
    ),
    *(
        (name, of_step, '{"step":"a",' + body[1:])
        for name, of_step, body in (
            (
                "proposal_verified",
                ProposalVerified(step="a", phase="resume", proposal_hash="p"),
                '{"phase":"resume","proposal_hash":"p"}',
            ),
            (
                "proposal_rejected",
                ProposalRejected(step="a", phase="resume", reason="r", action="b"),
                '{"phase":"resume","reason":"r","action":"b"}',
            ),
            (
                "transition_rejected",
                TransitionRejected(
                    step="a", reason="r", attempted_decision="approve", current_status="APPROVED", detail="ops"
                ),
                '{"reason":"r","attempted_decision":"approve","current_status":"APPROVED","detail":"ops"}',
            ),
            (
                "resume_rejected",
                ResumeRejected(step="a", reason="r", status="APPROVED"),
                '{"reason":"r","status":"APPROVED"}',
            ),
            (
                "resume_started",
                ResumeStarted(
                    step="a",
                    op_key="k",
                    attempt=1,
                    epoch=0,
                    owner=OWNER,
                    deadline_us=7,
                    approval_hash="p",
                    input_hash="i",
                ),
                '{"op_key":"k","attempt":1,"epoch":0,"owner":'
                + OWNER_JSON
                + ',"deadline_us":7,"approval_hash":"p","input_hash":"i"}',
            ),
            ("action_executed", ActionExecuted(step="a", action="b", op_key="k"), '{"action":"b","op_key":"k"}'),
            ("action_recovered", ActionRecovered(step="a", action="b", op_key="k"), '{"action":"b","op_key":"k"}'),
            ("action_replayed", ActionReplayed(step="a", reason="already_completed"), '{"reason":"already_completed"}'),
            (
                "action_conflict",
                ActionConflict(step="a", action="b", op_key="k", reason="r"),
                '{"action":"b","op_key":"k","reason":"r"}',
            ),
            (
                "action_failed",
                ActionFailed(step="a", action="b", op_key="k", error=Failure(code="c", message="m")),
                '{"action":"b","op_key":"k","error":{"code":"c","message":"m"}}',
            ),
            (
                "outcome_unknown",
                OutcomeUnknown(step="a", action="b", op_key="k", why="w"),
                '{"action":"b","op_key":"k","why":"w"}',
            ),
            (
                "result_rejected",
                ResultRejected(step="a", reason="r", rejected="action_executed", op_key="k", epoch=3, attempt=1),
                '{"reason":"r","rejected":"action_executed","op_key":"k","epoch":3,"attempt":1}',
            ),
            (
                "outcome_reconciled",
                OutcomeReconciled(
                    step="a",
                    action="b",
                    op_key="k",
                    verdict="executed",
                    status=Status.COMPLETED,
                    evidence="e",
                    actor_source="os",
                ),
                '{"action":"b","op_key":"k","verdict":"executed","status":"COMPLETED","evidence":"e","actor_source":"os"}',
            ),
            (
                "compensation_started",
                CompensationStarted(
                    step="a",
                    action="b",
                    op_key="k",
                    compensates="j",
                    attempt=1,
                    epoch=0,
                    owner=OWNER,
                    deadline_us=7,
                    input_hash="i",
                ),
                '{"action":"b","op_key":"k","compensates":"j","attempt":1,"epoch":0,"owner":'
                + OWNER_JSON
                + ',"deadline_us":7,"input_hash":"i"}',
            ),
            (
                "compensation_executed",
                CompensationExecuted(step="a", action="b", op_key="k", compensates="j"),
                '{"action":"b","op_key":"k","compensates":"j"}',
            ),
            (
                "compensation_failed",
                CompensationFailed(
                    step="a", action="b", op_key="k", compensates="j", error=Failure(code="c", message="m")
                ),
                '{"action":"b","op_key":"k","compensates":"j","error":{"code":"c","message":"m"}}',
            ),
        )
    ),
    ("claim_renewed", ClaimRenewed(epoch=7, deadline_us=9), '{"epoch":7,"deadline_us":9}'),
    ("step_started", StepStarted(name="s", key="s#2", attempt=2), '{"name":"s","key":"s#2","attempt":2}'),
    (
        "step_completed",
        StepCompleted(name="s", key="s#2", output=msgspec.Raw(b'{"n": 1}'), attempt=2, input="i", group="gather"),
        '{"name":"s","key":"s#2","output":{"n": 1},"attempt":2,"input":"i","group":"gather"}',
    ),
    (
        "step_completed",
        StepCompleted(name="s", key="s", output=msgspec.Raw(b"null")),
        '{"name":"s","key":"s","output":null}',
    ),
    (
        "step_completed",
        StepCompleted(name="go", key="go:signal", kind="signal"),
        '{"name":"go","key":"go:signal","kind":"signal"}',
    ),
    ("step_completed", StepCompleted(name="s", key="s", artifact="d"), '{"name":"s","key":"s","artifact":"d"}'),
    (
        "step_failed",
        StepFailed(
            name="s",
            key="s",
            kind="child",
            attempt=1,
            error=Failure(code="step_failed", message="m", type="ValueError", traceback="t"),
            is_final=False,
            retry_at_us=9,
            input="i",
            group="gather",
        ),
        '{"name":"s","key":"s","kind":"child","attempt":1,"error":{"code":"step_failed","message":"m","type":"ValueError",'
        '"traceback":"t"},"is_final":false,"retry_at_us":9,"input":"i","group":"gather"}',
    ),
    (
        "step_failed",
        StepFailed(name="s", key="s", attempt=3, error=Failure(code="step_failed", message="m")),
        '{"name":"s","key":"s","attempt":3,"error":{"code":"step_failed","message":"m"}}',
    ),
    ("signal_received", SignalReceived(name="go", payload=msgspec.Raw(b"[1]")), '{"name":"go","payload":[1]}'),
    ("signal_received", SignalReceived(name="go", artifact="d"), '{"name":"go","artifact":"d"}'),
    (
        "signal_rejected",
        SignalRejected(name="go", key="go:signal", reason="Expected `int`, got `str`"),
        '{"name":"go","key":"go:signal","reason":"Expected `int`, got `str`"}',
    ),
    ("timer_set", TimerSet(key="sleep", due_us=9, group="gather"), '{"key":"sleep","due_us":9,"group":"gather"}'),
    ("timer_fired", TimerFired(key="sleep"), '{"key":"sleep"}'),
    (
        "child_started",
        ChildStarted(key="c", child_run_id="r/c", workflow="w", relation="handoff", input="i", group="gather"),
        '{"key":"c","child_run_id":"r/c","workflow":"w","relation":"handoff","input":"i","group":"gather"}',
    ),
    (
        "child_started",
        ChildStarted(key="c", child_run_id="r/c", workflow="w"),
        '{"key":"c","child_run_id":"r/c","workflow":"w"}',
    ),
    (
        "child_finished",
        ChildFinished(key="c", child_run_id="r/c", status=Status.COMPLETED, result=msgspec.Raw(b"7")),
        '{"key":"c","child_run_id":"r/c","status":"COMPLETED","result":7}',
    ),
    (
        "child_finished",
        ChildFinished(key="c", child_run_id="r/c", status=Status.COMPLETED, artifact="d"),
        '{"key":"c","child_run_id":"r/c","status":"COMPLETED","artifact":"d"}',
    ),
    (
        "child_finished",
        ChildFinished(
            key="c", child_run_id="r/c", status=Status.FAILED, error=Failure(code="step_failed", message="m")
        ),
        '{"key":"c","child_run_id":"r/c","status":"FAILED","error":{"code":"step_failed","message":"m"}}',
    ),
    ("run_completed", RunCompleted(result=msgspec.Raw(b'"done"')), '{"result":"done"}'),
    ("run_completed", RunCompleted(artifact="d"), '{"artifact":"d"}'),
    (
        "run_failed",
        RunFailed(error=Failure(code="workflow_failed", message="m", type="KeyError")),
        '{"error":{"code":"workflow_failed","message":"m","type":"KeyError"}}',
    ),
    (
        "run_failed",
        RunFailed(error=Failure(code="approval_rejected", message="m"), status=Status.REJECTED),
        '{"error":{"code":"approval_rejected","message":"m"},"status":"REJECTED"}',
    ),
    ("run_cancelled", RunCancelled(actor_source="os", reason="too late"), '{"actor_source":"os","reason":"too late"}'),
    ("barrier_recorded", BarrierRecorded(reason="disk I/O error"), '{"reason":"disk I/O error"}'),
    ("log_key_declared", LogKeyDeclared(verifier_key="log+1+a"), '{"verifier_key":"log+1+a"}'),
    (
        "log_key_rotated",
        LogKeyRotated(verifier_key="log+2+b", replaces="log+1+a", signature="c2ln"),
        '{"verifier_key":"log+2+b","replaces":"log+1+a","signature":"c2ln"}',
    ),
    (
        "log_key_revoked",
        LogKeyRevoked(verifier_key="log+1+a", from_size=7, reason="stolen"),
        '{"verifier_key":"log+1+a","from_size":7,"reason":"stolen"}',
    ),
    (
        "log_restored",
        LogRestored(previous_log_id="0" * 32, size=9, root="r", reason="disk lost", note="n", is_from_signer=True),
        '{"previous_log_id":"00000000000000000000000000000000","size":9,"root":"r","reason":"disk lost","note":"n",'
        '"is_from_signer":true}',
    ),
    (
        "approver_enrolled",
        ApproverEnrolled(
            approver="anna",
            key_id="k",
            kind="ssh-ed25519",
            public_key="ssh-ed25519 A",
            proof=ENVELOPE,
            level=3,
            roles=("cfo",),
        ),
        '{"approver":"anna","key_id":"k","kind":"ssh-ed25519","public_key":"ssh-ed25519 A",'
        f'"proof":{ENVELOPE_BODY},"level":3,"roles":["cfo"]}}',
    ),
    (
        "approver_enrolled",
        ApproverEnrolled(approver="anna", key_id="k", kind="ed25519", public_key="QQ==", proof=ENVELOPE),
        f'{{"approver":"anna","key_id":"k","kind":"ed25519","public_key":"QQ==","proof":{ENVELOPE_BODY}}}',
    ),
    ("approver_revoked", ApproverRevoked(key_id="k", reason="left"), '{"key_id":"k","reason":"left"}'),
    ("approver_revoked", ApproverRevoked(key_id="k"), '{"key_id":"k"}'),
    (
        "payload_erased",
        PayloadErased(
            position=3,
            body_kind=0,
            body_len=12,
            content_commit="c",
            stored_hash="s",
            legal_basis="GDPR art. 17",
            remainder=msgspec.Raw(b'{"n":1}'),
            reason="asked for",
        ),
        '{"position":3,"body_kind":0,"body_len":12,"content_commit":"c","stored_hash":"s","legal_basis":"GDPR art. 17",'
        '"remainder":{"n":1},"reason":"asked for"}',
    ),
    (
        "subject_erased",
        SubjectErased(key_id="k", legal_basis="GDPR art. 17", reason="asked for"),
        '{"key_id":"k","legal_basis":"GDPR art. 17","reason":"asked for"}',
    ),
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
    declared = {(name, field) for name, cls in ALL.items() for field in cls.__struct_fields__}
    assert declared - spelled == set()


@pytest.mark.parametrize(("name", "event", "body"), RELEASED, ids=IDS)
def test_a_field_of_the_future_is_refused_rather_than_dropped(name: str, event: msgspec.Struct, body: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `future`"):
        msgspec.json.decode(body[:-1] + ',"future":1}', type=type(event))


@pytest.mark.parametrize(("name", "cls"), ALL.items(), ids=ALL)
def test_an_event_is_called_by_its_class_name_in_snake_case(name: str, cls: type[msgspec.Struct]) -> None:
    assert name == re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    assert REGISTRY.type_of(cls) == (name, 1)


@pytest.mark.parametrize(
    "cls",
    [*ALL.values(), Owner, Waiting, Failure, Definition, Parent, PolicyTerms, Envelope, EnvelopeSignature],
    ids=lambda cls: cls.__name__,
)
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

"""The catalogue: every event of a run, a frozen Struct each.

An event's name is its past-tense fact in snake_case; `RUN_EVENTS` maps the names to the Structs. The body that is
stored is the Struct's JSON; fields that hold their default are left out. Fields that the envelope has already (who,
when, which stream) are not repeated here. A released shape never changes: a new shape is a new schema version with an
upcaster in `codec.py`, and unknown fields are refused, so that an older program never reads half of a newer event.

Hashes are 64 hex digits (SHA-256), times are integer microseconds UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

__all__ = [
    "JUDGED_EVENTS",
    "LOG_EVENTS",
    "LOG_STREAM",
    "NOTHING",
    "RUN_EVENTS",
    "RUN_PREFIX",
    "ActionConflict",
    "ActionExecuted",
    "ActionFailed",
    "ActionRecovered",
    "ActionReplayed",
    "ApprovalExpired",
    "ApprovalRecorded",
    "ApprovalRevoked",
    "ApproverEnrolled",
    "ApproverRevoked",
    "BarrierRecorded",
    "CheckpointSaved",
    "ChildFinished",
    "ChildStarted",
    "ClaimRenewed",
    "CompensationExecuted",
    "CompensationFailed",
    "CompensationStarted",
    "Definition",
    "Envelope",
    "EnvelopeSignature",
    "Failure",
    "LogEvent",
    "LogKeyDeclared",
    "LogKeyRevoked",
    "LogKeyRotated",
    "LogRestored",
    "OfRequest",
    "OutcomeReconciled",
    "OutcomeUnknown",
    "Owner",
    "Parent",
    "PayloadErased",
    "PolicyTerms",
    "ProposalRecorded",
    "ProposalRejected",
    "ProposalVerified",
    "ResultRejected",
    "ResumeRejected",
    "ResumeStarted",
    "RunCancelled",
    "RunClaimed",
    "RunCompleted",
    "RunEvent",
    "RunFailed",
    "SignalReceived",
    "SignalRejected",
    "Status",
    "StepCompleted",
    "StepFailed",
    "StepStarted",
    "SubjectErased",
    "TimerFired",
    "TimerSet",
    "TransitionRejected",
    "Waiting",
    "run_stream",
]

RUN_PREFIX: Final = "run:"


NOTHING: Final = msgspec.Raw()
"""No value at all, as opposed to the JSON text `null`."""


def run_stream(run_id: str) -> str:
    """Return the name of the stream that holds the events of run `run_id`."""
    return RUN_PREFIX + run_id


class Status(StrEnum):
    """Where a run is; spelled as people read it."""

    WAITING_FOR_USER = "WAITING_FOR_USER"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    COMPLETED = "COMPLETED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    EXPIRED = "EXPIRED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    COMPENSATED = "COMPENSATED"


class _Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all event bodies have in common: immutable, compact, and closed against fields of the future."""


class OfRequest(_Fact, frozen=True, kw_only=True):
    """A fact about one request of a run and its effect. `step` is the step key; absent in a run of one action."""

    step: str | None = None


class Owner(_Fact, frozen=True, kw_only=True):
    """Who holds an intent or a claim: a host, one boot of it, and one lock file that only a living process can hold.

    `host` and `boot` are opaque digests, never names; `lock` is the random id of the file of one attempt, or that of a
    whole process and the number of its claim (`<id>.<n>`).
    """

    host: str
    boot: str
    lock: str


class Waiting(_Fact, frozen=True, kw_only=True):
    """What a paused run waits for. `node_id` is the step key, or the action's name in a run of one action.

    type        and then
    approval    `approval_id`, the request that a person has to decide
    outcome     an effect of which nobody knows; a person has to reconcile it
    signal      `signal`, its name; until `due_us` if that is set
    timer       `due_us`, when it is due
    retry       `due_us`, when the next attempt at the step is due
    child       `child_run_id`, the run that has to end first
    """

    type: str
    node_id: str
    approval_id: str | None = None
    signal: str | None = None
    due_us: int | None = None
    child_run_id: str | None = None


class Definition(_Fact, frozen=True, kw_only=True):
    """The workflow that a run follows, as it was when the run began.

    `fingerprint` is a digest of its source text, 64 hex digits; `steps` are the names of steps, actions, signals and
    children that the text spells out, in its order.
    """

    workflow: str
    fingerprint: str
    version: str | None = None
    steps: tuple[str, ...] = ()


class Parent(_Fact, frozen=True, kw_only=True):
    """The run that started this one, and by which step of it. `root_run_id` is where the family began.

    `relation` is `child`, whose end the parent waits for, or `handoff`, which has taken the work over.
    """

    run_id: str
    step: str
    root_run_id: str
    relation: str = "child"


class PolicyTerms(_Fact, frozen=True, kw_only=True):
    """On what terms a request is decided; frozen when it is asked.

    `required` approvals by different people; each by somebody in one of `roles`, if any are named; with
    `separation_of_duties` not by who proposed. `level` is the least that an approval has to be, as in
    `ApprovalRecorded`.
    """

    required: int = 1
    roles: tuple[str, ...] = ()
    separation_of_duties: bool = False
    level: int = 0


class EnvelopeSignature(_Fact, frozen=True, kw_only=True):
    """One signature of an envelope. `keyid` is a hint and is signed by nobody; `sig` is base64.

    `sig` is the 64 bytes of an Ed25519 signature, or the body of an SSH signature (what stands in its armour).
    """

    keyid: str
    sig: str


class Envelope(_Fact, frozen=True, kw_only=True, rename="camel"):
    """A DSSE envelope: `payload` is base64 of the exact bytes that were signed, as `payloadType`."""

    payload: str
    payload_type: str
    signatures: tuple[EnvelopeSignature, ...]


class Failure(_Fact, frozen=True, kw_only=True):
    """Why an effect definitely did not happen, or why a step or a run failed: a code and a sentence.

    `details` are the facts that the action gave, as the answer of the receiver that refused it. `type` is the name of
    the exception that a step raised, `traceback` where, if the runner was told to keep that.
    """

    code: str
    message: str
    details: Any = None
    type: str | None = None
    traceback: str | None = None


class CheckpointSaved(_Fact, frozen=True, kw_only=True):
    """A consistent cut of the run: a state that is safe to resume from. It carries only what is new.

    The first one of a workflow run has its `definition`, its `input` (a JSON list of the arguments, or the digest of
    that text as an `artifact`) and its `parent`, if another run started it. Later ones have the step keys
    that they newly commit, as one group. A pause has what the run waits for, the oldest wait first, and gives the run
    free, as does `is_released`. `snapshot_hash` is the SHA-256 of the state as it was in front of this event, spelled
    as `snapshots.encode_snapshot` spells it.
    """

    status: Status
    state_version: int
    waiting: Waiting | None = None
    also_waiting: tuple[Waiting, ...] = ()
    definition: Definition | None = None
    input: msgspec.Raw = NOTHING
    artifact: str | None = None
    parent: Parent | None = None
    committed: tuple[str, ...] = ()
    is_released: bool = False
    snapshot_hash: str | None = None


class ProposalRecorded(OfRequest, frozen=True, kw_only=True):
    """The run asks to act. `proposal` holds the RFC 8785 bytes of {"action", "args", "output"} exactly as hashed.

    `folder` is the absolute folder in which it was proposed: a relative target means the same file wherever it is
    resumed. `policy` are the terms of the decision, if any are asked for, `expires_at_us` until when it may be made.
    `supersedes` is the request that an edit has closed for good, `reason` why. `rule_failed` says
    why the rule that might have approved it could not be asked. `group` as in a step. `action_sha256` is the digest of
    the action's definition, where whoever asked knew the action: a signed approval is for that one and no other.
    """

    request_id: str
    proposal: msgspec.Raw
    proposal_hash: str
    folder: str | None = None
    policy: PolicyTerms | None = None
    expires_at_us: int | None = None
    supersedes: str | None = None
    reason: str | None = None
    rule_failed: str | None = None
    group: str | None = None
    action_sha256: str | None = None


class ProposalVerified(OfRequest, frozen=True, kw_only=True):
    """The hashes were recomputed from the stored bytes and equal. `phase` is `approval` or `resume`."""

    phase: str
    proposal_hash: str


class ProposalRejected(OfRequest, frozen=True, kw_only=True):
    """Something differs from what was frozen. The fields that belong to the reason are set, the others absent.

    `viewed` is the row of a view as it was found, where a view was compared with the log.
    """

    phase: str
    reason: str
    action: str
    output: str | None = None
    supplied_hash: str | None = None
    current_hash: str | None = None
    stored_hash: str | None = None
    approval_hash: str | None = None
    current_output: str | None = None
    approved_output: str | None = None
    current_request_id: str | None = None
    approved_request_id: str | None = None
    viewed: dict[str, Any] | None = None


class ApprovalRecorded(OfRequest, frozen=True, kw_only=True):
    """A person decided. `approval_hash` freezes what was decided on; the actor is in the envelope.

    `actor_source` says who vouches for the actor: `os`, `asserted` by the program, `authenticated` by a server that the
    program is, `signed` by the approver himself, or `policy` where a rule of the program decided and nobody was asked.
    An approval that is not `is_deciding` needs others beside it.

    `level` says how sure it is who that was: 0 asserted, 1 authenticated by a server, 2 signed with a key that only the
    approver holds, 3 with one in hardware. `envelope` is what was signed, for levels from 2 on; its nonce is the id of
    this event.
    """

    request_id: str
    decision: str
    approval_hash: str
    actor_source: str
    reason: str | None = None
    roles: tuple[str, ...] = ()
    is_deciding: bool = True
    level: int = 0
    envelope: Envelope | None = None


class ApprovalExpired(OfRequest, frozen=True, kw_only=True):
    """Nobody decided in time. That is no "no": nobody said anything."""

    request_id: str
    expires_at_us: int


class ApprovalRevoked(OfRequest, frozen=True, kw_only=True):
    """The approvals of a request were withdrawn before the act; it waits for a decision again."""

    request_id: str
    actor_source: str
    reason: str | None = None


class TransitionRejected(OfRequest, frozen=True, kw_only=True):
    """A decision or command that the state does not allow, with what was attempted and what stands.

    `detail` is what was supplied beside the hash: the request that was named, or the roles.
    """

    reason: str
    attempted_decision: str
    current_status: str
    existing_approval: str | None = None
    supplied_hash: str | None = None
    detail: str | None = None


class ResumeRejected(OfRequest, frozen=True, kw_only=True):
    """A resume that the state does not allow. `viewed` as in `ProposalRejected`."""

    reason: str
    status: str
    detail: str | None = None
    viewed: dict[str, Any] | None = None


class ResumeStarted(OfRequest, frozen=True, kw_only=True):
    """The intent: from here on the effect may have happened. It also spends the approval.

    `key_until_us` is until when the receiver knows the op_key, counted from the first intent; absent if it need not.
    """

    op_key: str
    attempt: int
    epoch: int
    owner: Owner
    deadline_us: int
    approval_hash: str
    input_hash: str
    key_until_us: int | None = None


class ActionExecuted(OfRequest, frozen=True, kw_only=True):
    """The effect was done by this attempt. `not_stored` says why the log does not hold its result, if it cannot."""

    action: str
    op_key: str
    result: Any = None
    not_stored: str | None = None


class ActionRecovered(OfRequest, frozen=True, kw_only=True):
    """The effect had been done by an earlier attempt; that was proved, and it was not repeated.

    `result` is what the first attempt would have returned, where the receiver keeps it. `not_stored` as in
    `ActionExecuted`, of both.
    """

    action: str
    op_key: str
    evidence: Any = None
    result: Any = None
    not_stored: str | None = None


class ActionReplayed(OfRequest, frozen=True, kw_only=True):
    """A run that has ended was resumed again; nothing was done. `already_completed`, `_failed` or `_compensated`."""

    reason: str


class ActionConflict(OfRequest, frozen=True, kw_only=True):
    """The target holds something else. Contents are text cut to a few kilobytes, or absent where they are no text.

    `code` is `idempotency_conflict` where the receiver knows this op_key with another payload.
    """

    action: str
    op_key: str
    reason: str
    code: str = "output_conflict"
    expected_content_hash: str | None = None
    existing_content_hash: str | None = None
    expected_content: str | None = None
    existing_content: str | None = None


class ActionFailed(OfRequest, frozen=True, kw_only=True):
    """The effect definitely did not happen. If `is_final`, no attempt can do better, and the run has failed."""

    action: str
    op_key: str
    error: Failure
    is_final: bool = False


class OutcomeUnknown(OfRequest, frozen=True, kw_only=True):
    """An intent without a result that nobody can settle automatically.

    `strays_are_over`: every resumer that was overruled before is proved dead by now.
    """

    action: str
    op_key: str
    why: str
    strays_are_over: bool = False


class ResultRejected(OfRequest, frozen=True, kw_only=True):
    """A resumer that no longer held the run came with the result of its effect. It changes nothing, and is evidence.

    `rejected` is the type of the event that it would have been, `result` what that would have said; `epoch` is the one
    under which the resumer held the run.
    """

    reason: str
    rejected: str
    op_key: str
    epoch: int
    attempt: int
    result: Any = None


class OutcomeReconciled(OfRequest, frozen=True, kw_only=True):
    """A person settled what nobody else could. The actor is in the envelope.

    `verdict` is `executed` (with its `result`), `not_executed` (it may be tried again, under the same op_key) or
    `abandoned` (it will never be known, and nothing more is done). `status` is where that leaves the run.
    """

    action: str
    op_key: str
    verdict: str
    status: Status
    evidence: str
    actor_source: str
    result: Any = None


class CompensationStarted(OfRequest, frozen=True, kw_only=True):
    """The intent to undo an effect by another one. `compensates` is the op_key of the effect, `op_key` its own."""

    action: str
    op_key: str
    compensates: str
    attempt: int
    epoch: int
    owner: Owner
    deadline_us: int
    input_hash: str
    reason: str | None = None
    key_until_us: int | None = None


class CompensationExecuted(OfRequest, frozen=True, kw_only=True):
    """The effect `compensates` is undone. With `evidence` that had been done by an earlier attempt."""

    action: str
    op_key: str
    compensates: str
    result: Any = None
    evidence: Any = None
    not_stored: str | None = None


class CompensationFailed(OfRequest, frozen=True, kw_only=True):
    """The effect `compensates` is definitely not undone: the attempt failed, or its target holds something else."""

    action: str
    op_key: str
    compensates: str
    error: Failure
    is_final: bool = False


class RunClaimed(_Fact, frozen=True, kw_only=True):
    """Another resumer takes the run over. `epoch` is this event's own version; earlier epochs are fenced by it.

    `is_stray`: the resumer that is fenced was not proved dead, only late, and may still be at work.
    """

    epoch: int
    owner: Owner
    deadline_us: int
    is_stray: bool = False


class ClaimRenewed(_Fact, frozen=True, kw_only=True):
    """Who holds the run under `epoch` is still at work, and holds it until `deadline_us`."""

    epoch: int
    deadline_us: int


class StepStarted(_Fact, frozen=True, kw_only=True):
    """An attempt at a step that may be tried more than once begins; durable before it does."""

    name: str
    key: str
    attempt: int


class StepCompleted(_Fact, frozen=True, kw_only=True):
    """A step has its output, once and for all.

    `output` is its JSON text, or NOTHING where `artifact` is the SHA-256 of that text, which is kept beside the log.
    `input` is a digest of its arguments, where they have one. A step of a `group` is a pending write until a checkpoint
    commits the group; any other is committed by this event. `kind` is what was recorded: the end of a `step`, a
    `value` that the world gave (the time, chance), or that the first `signal` of this name, of those that no step has
    taken, was taken; its payload is the output.
    """

    name: str
    key: str
    kind: str = "step"
    output: msgspec.Raw = NOTHING
    artifact: str | None = None
    attempt: int = 1
    input: str | None = None
    group: str | None = None


class StepFailed(_Fact, frozen=True, kw_only=True):
    """An attempt at a step failed. If `is_final` the workflow is told, else the next one is due at `retry_at_us`.

    `kind` is `step`, or the `relation` of a run that could not be started.
    """

    name: str
    key: str
    kind: str = "step"
    attempt: int
    error: Failure
    is_final: bool = True
    retry_at_us: int | None = None
    input: str | None = None
    group: str | None = None


class SignalReceived(_Fact, frozen=True, kw_only=True):
    """Somebody sent the run a signal; it is kept until the run takes it. `payload` and `artifact` as in a step."""

    name: str
    payload: msgspec.Raw = NOTHING
    artifact: str | None = None


class SignalRejected(_Fact, frozen=True, kw_only=True):
    """The oldest signal of this name is no value of the type that the step `key` waits for; the step waits on."""

    name: str
    key: str
    reason: str


class TimerSet(_Fact, frozen=True, kw_only=True):
    """The step `key` waits until `due_us`, or, if it waits for something else, no longer than that."""

    key: str
    due_us: int
    group: str | None = None


class TimerFired(_Fact, frozen=True, kw_only=True):
    """The timer of the step `key` was due, and the run goes on from there."""

    key: str


class ChildStarted(_Fact, frozen=True, kw_only=True):
    """The step `key` started another run, in the same transaction. `relation` as in `Parent`."""

    key: str
    child_run_id: str
    workflow: str
    relation: str = "child"
    input: str | None = None
    group: str | None = None


class ChildFinished(_Fact, frozen=True, kw_only=True):
    """The run that the step `key` started has ended, in the transaction that says so there."""

    key: str
    child_run_id: str
    status: Status
    result: msgspec.Raw = NOTHING
    artifact: str | None = None
    error: Failure | None = None


class RunCompleted(_Fact, frozen=True, kw_only=True):
    """The workflow returned. `result` and `artifact` as in a step."""

    result: msgspec.Raw = NOTHING
    artifact: str | None = None


class RunFailed(_Fact, frozen=True, kw_only=True):
    """The workflow raised. `status` is FAILED, or says which refusal it did not handle: REJECTED or EXPIRED."""

    error: Failure
    status: Status = Status.FAILED


class RunCancelled(_Fact, frozen=True, kw_only=True):
    """Somebody cancelled the run. What is under way is stopped, and what it has come to is still recorded."""

    actor_source: str
    reason: str | None = None


class BarrierRecorded(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: the store was reopened after a failure; what a read finds from here on is settled."""

    reason: str


class LogKeyDeclared(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: the heads of this log are signed by this key from now on.

    `verifier_key` is a C2SP verifier key, `<name>+<key id>+<base64>`. A reader takes the key that he was given by
    another way; this one is a hint.
    """

    verifier_key: str


class LogKeyRotated(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: another key signs from now on. `signature` is that of the key before it, as base64.

    It covers the UTF-8 bytes of `eventlog/log-key/v1`, a newline, `replaces`, a newline, `verifier_key`, a newline.
    """

    verifier_key: str
    replaces: str
    signature: str


class LogKeyRevoked(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: no head that is larger than `from_size` is taken from this key, whatever date it bears."""

    verifier_key: str
    from_size: int
    reason: str | None = None


class LogRestored(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: the first event of a new incarnation of the log, after an older copy was put in its place.

    `size` and `root` (64 hex digits) are those of the last head that is known of the incarnation before, whose id is
    `previous_log_id`; `note` is that head, signed, if it was. `is_from_signer` says that its signer gave it; else it is
    what the copy says of itself, which cannot know what was lost. The events between here and `size` are lost.
    """

    previous_log_id: str
    size: int
    root: str
    reason: str
    note: str | None = None
    is_from_signer: bool = False


class ApproverEnrolled(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: the approver, an opaque id, holds this key, and has proved it.

    `roles` are those in which it counts, as whoever enrols it says; without any, what its approver claims counts where
    the terms ask for less than level 2.
    `kind` is `ed25519` (`public_key` is base64 of 32 bytes), `ssh-ed25519` or, for a FIDO token,
    `sk-ssh-ed25519@openssh.com` (a line of an OpenSSH public key, without its comment). `proof` is a signature of the
    key over `approver`, `key_id` and the log. `level` is that of an approval signed by it: 2, or 3 for one in hardware.
    """

    approver: str
    key_id: str
    kind: str
    public_key: str
    proof: Envelope
    level: int = 2
    roles: tuple[str, ...] = ()


class ApproverRevoked(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: nothing that this key signs counts from this position on."""

    key_id: str
    reason: str | None = None


class PayloadErased(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: body and salt of the event at `position` are gone for good, and what its leaf needs is here.

    `content_commit` and `stored_hash` are 64 hex digits (see `eventlog/entry.py`), `body_len` is bytes. `remainder` is
    what stays of the body: the fields of an event of the engine that say nothing of anybody, or NOTHING.
    """

    position: int
    body_kind: int
    body_len: int
    content_commit: str
    stored_hash: str
    legal_basis: str
    remainder: msgspec.Raw = NOTHING
    reason: str | None = None


class SubjectErased(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: the key under which the events about one subject were encrypted is destroyed.

    `key_id`, 32 hex digits, stands in those events; it names nobody.
    """

    key_id: str
    legal_basis: str
    reason: str | None = None


LogEvent = (
    BarrierRecorded
    | LogKeyDeclared
    | LogKeyRotated
    | LogKeyRevoked
    | LogRestored
    | ApproverEnrolled
    | ApproverRevoked
    | PayloadErased
    | SubjectErased
)


RunEvent = (
    CheckpointSaved
    | ProposalRecorded
    | ProposalVerified
    | ProposalRejected
    | ApprovalRecorded
    | ApprovalExpired
    | ApprovalRevoked
    | TransitionRejected
    | ResumeRejected
    | ResumeStarted
    | ActionExecuted
    | ActionRecovered
    | ActionReplayed
    | ActionConflict
    | ActionFailed
    | OutcomeUnknown
    | ResultRejected
    | OutcomeReconciled
    | CompensationStarted
    | CompensationExecuted
    | CompensationFailed
    | RunClaimed
    | ClaimRenewed
    | StepStarted
    | StepCompleted
    | StepFailed
    | SignalReceived
    | SignalRejected
    | TimerSet
    | TimerFired
    | ChildStarted
    | ChildFinished
    | RunCompleted
    | RunFailed
    | RunCancelled
)

LOG_STREAM: Final = "$log"
"""The stream of events about the log itself."""

LOG_EVENTS: Final[Mapping[str, type[LogEvent]]] = {
    "approver_enrolled": ApproverEnrolled,
    "approver_revoked": ApproverRevoked,
    "barrier_recorded": BarrierRecorded,
    "log_key_declared": LogKeyDeclared,
    "log_key_revoked": LogKeyRevoked,
    "log_key_rotated": LogKeyRotated,
    "log_restored": LogRestored,
    "payload_erased": PayloadErased,
    "subject_erased": SubjectErased,
}

JUDGED_EVENTS: Final = frozenset(
    {
        *LOG_EVENTS,
        "action_executed",
        "action_recovered",
        "approval_recorded",
        "approval_revoked",
        "proposal_recorded",
        "resume_started",
    }
)
"""What `verify` judges by more than its hash: keys, erasures, restores, who approved what, and what was done on it."""

RUN_EVENTS: Final[Mapping[str, type[RunEvent]]] = {
    "action_conflict": ActionConflict,
    "action_executed": ActionExecuted,
    "action_failed": ActionFailed,
    "action_recovered": ActionRecovered,
    "action_replayed": ActionReplayed,
    "approval_expired": ApprovalExpired,
    "approval_recorded": ApprovalRecorded,
    "approval_revoked": ApprovalRevoked,
    "checkpoint_saved": CheckpointSaved,
    "child_finished": ChildFinished,
    "child_started": ChildStarted,
    "claim_renewed": ClaimRenewed,
    "compensation_executed": CompensationExecuted,
    "compensation_failed": CompensationFailed,
    "compensation_started": CompensationStarted,
    "outcome_reconciled": OutcomeReconciled,
    "outcome_unknown": OutcomeUnknown,
    "proposal_recorded": ProposalRecorded,
    "proposal_rejected": ProposalRejected,
    "proposal_verified": ProposalVerified,
    "result_rejected": ResultRejected,
    "resume_rejected": ResumeRejected,
    "resume_started": ResumeStarted,
    "run_cancelled": RunCancelled,
    "run_claimed": RunClaimed,
    "run_completed": RunCompleted,
    "run_failed": RunFailed,
    "signal_received": SignalReceived,
    "signal_rejected": SignalRejected,
    "step_completed": StepCompleted,
    "step_failed": StepFailed,
    "step_started": StepStarted,
    "timer_fired": TimerFired,
    "timer_set": TimerSet,
    "transition_rejected": TransitionRejected,
}

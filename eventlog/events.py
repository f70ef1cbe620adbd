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
    "LOG_EVENTS",
    "LOG_STREAM",
    "RUN_EVENTS",
    "RUN_PREFIX",
    "ActionConflict",
    "ActionExecuted",
    "ActionFailed",
    "ActionRecovered",
    "ActionReplayed",
    "ApprovalRecorded",
    "BarrierRecorded",
    "CheckpointSaved",
    "CompensationExecuted",
    "CompensationFailed",
    "CompensationStarted",
    "Failure",
    "OutcomeReconciled",
    "OutcomeUnknown",
    "Owner",
    "ProposalRecorded",
    "ProposalRejected",
    "ProposalVerified",
    "ResultRejected",
    "ResumeRejected",
    "ResumeStarted",
    "RunClaimed",
    "RunEvent",
    "Status",
    "TransitionRejected",
    "Waiting",
    "run_stream",
]

RUN_PREFIX: Final = "run:"


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


class Owner(_Fact, frozen=True, kw_only=True):
    """Who holds an intent or a claim: a host, one boot of it, and one lock file that only a living process can hold.

    `host` and `boot` are opaque digests, never names; `lock` is a random id, one for each attempt.
    """

    host: str
    boot: str
    lock: str


class Waiting(_Fact, frozen=True, kw_only=True):
    """What a paused run waits for."""

    type: str
    node_id: str
    approval_id: str


class Failure(_Fact, frozen=True, kw_only=True):
    """Why an effect definitely did not happen: a code of `errors.CODES` and a sentence.

    `details` are the facts that the action gave, as the answer of the receiver that refused it.
    """

    code: str
    message: str
    details: Any = None


class CheckpointSaved(_Fact, frozen=True, kw_only=True):
    """A consistent cut of the run: a state that is safe to resume from."""

    status: Status
    state_version: int
    waiting: Waiting | None = None


class ProposalRecorded(_Fact, frozen=True, kw_only=True):
    """The run asks to act. `proposal` holds the RFC 8785 bytes of {"action", "args", "output"} exactly as hashed.

    `folder` is the absolute folder in which it was proposed: a relative target means the same file wherever it is
    resumed.
    """

    request_id: str
    proposal: msgspec.Raw
    proposal_hash: str
    folder: str | None = None
    policy: str | None = None
    supersedes: str | None = None


class ProposalVerified(_Fact, frozen=True, kw_only=True):
    """The hashes were recomputed from the stored bytes and equal. `phase` is `approval` or `resume`."""

    phase: str
    proposal_hash: str


class ProposalRejected(_Fact, frozen=True, kw_only=True):
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


class ApprovalRecorded(_Fact, frozen=True, kw_only=True):
    """A person decided. `approval_hash` freezes what was decided on; the actor is in the envelope."""

    request_id: str
    decision: str
    approval_hash: str
    actor_source: str
    reason: str | None = None


class TransitionRejected(_Fact, frozen=True, kw_only=True):
    """A decision that the state does not allow, with what was attempted and what stands."""

    reason: str
    attempted_decision: str
    current_status: str
    existing_approval: str | None = None
    supplied_hash: str | None = None


class ResumeRejected(_Fact, frozen=True, kw_only=True):
    """A resume that the state does not allow. `viewed` as in `ProposalRejected`."""

    reason: str
    status: str
    detail: str | None = None
    viewed: dict[str, Any] | None = None


class ResumeStarted(_Fact, frozen=True, kw_only=True):
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


class ActionExecuted(_Fact, frozen=True, kw_only=True):
    """The effect was done by this attempt. `not_stored` says why the log does not hold its result, if it cannot."""

    action: str
    op_key: str
    result: Any = None
    not_stored: str | None = None


class ActionRecovered(_Fact, frozen=True, kw_only=True):
    """The effect had been done by an earlier attempt; that was proved, and it was not repeated.

    `result` is what the first attempt would have returned, where the receiver keeps it. `not_stored` as in
    `ActionExecuted`, of both.
    """

    action: str
    op_key: str
    evidence: Any = None
    result: Any = None
    not_stored: str | None = None


class ActionReplayed(_Fact, frozen=True, kw_only=True):
    """A run that has ended was resumed again; nothing was done. `already_completed`, `_failed` or `_compensated`."""

    reason: str


class ActionConflict(_Fact, frozen=True, kw_only=True):
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


class ActionFailed(_Fact, frozen=True, kw_only=True):
    """The effect definitely did not happen. If `is_final`, no attempt can do better, and the run has failed."""

    action: str
    op_key: str
    error: Failure
    is_final: bool = False


class OutcomeUnknown(_Fact, frozen=True, kw_only=True):
    """An intent without a result that nobody can settle automatically."""

    action: str
    op_key: str
    why: str


class ResultRejected(_Fact, frozen=True, kw_only=True):
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


class OutcomeReconciled(_Fact, frozen=True, kw_only=True):
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


class CompensationStarted(_Fact, frozen=True, kw_only=True):
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


class CompensationExecuted(_Fact, frozen=True, kw_only=True):
    """The effect `compensates` is undone. With `evidence` that had been done by an earlier attempt."""

    action: str
    op_key: str
    compensates: str
    result: Any = None
    evidence: Any = None
    not_stored: str | None = None


class CompensationFailed(_Fact, frozen=True, kw_only=True):
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


class BarrierRecorded(_Fact, frozen=True, kw_only=True):
    """Stream `$log`: the store was reopened after a failure; what a read finds from here on is settled."""

    reason: str


RunEvent = (
    CheckpointSaved
    | ProposalRecorded
    | ProposalVerified
    | ProposalRejected
    | ApprovalRecorded
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
)

LOG_STREAM: Final = "$log"
"""The stream of events about the log itself."""

LOG_EVENTS: Final[Mapping[str, type[BarrierRecorded]]] = {"barrier_recorded": BarrierRecorded}

RUN_EVENTS: Final[Mapping[str, type[RunEvent]]] = {
    "action_conflict": ActionConflict,
    "action_executed": ActionExecuted,
    "action_failed": ActionFailed,
    "action_recovered": ActionRecovered,
    "action_replayed": ActionReplayed,
    "approval_recorded": ApprovalRecorded,
    "checkpoint_saved": CheckpointSaved,
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
    "run_claimed": RunClaimed,
    "transition_rejected": TransitionRejected,
}

"""One pure function for each command: the state of a run in, events out, or a refusal that is itself an event.

The runtime appends what comes out at exactly the version of the run that went in. A `Refusal` is appended the same way,
and then its error is raised: no "no" without a trace. Two refusals have no run to be recorded in, or would only repeat
its first event, and are errors alone: `unknown_run` and `run_exists`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from eventlog.errors import InvalidInput, Refused
from eventlog.events import (
    ActionReplayed,
    ApprovalRecorded,
    CheckpointSaved,
    CompensationStarted,
    OutcomeReconciled,
    OutcomeUnknown,
    Owner,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResumeRejected,
    ResumeStarted,
    RunClaimed,
    RunEvent,
    TransitionRejected,
    Waiting,
)
from eventlog.plain import check_id, check_text
from eventlog.proposal import Proposal, canonical_args, canonical_bytes, hash_of, request_id_for
from eventlog.run import Run, Status

__all__ = [
    "Accepted",
    "Refusal",
    "Replay",
    "begin_compensation",
    "begin_effect",
    "check_run_id",
    "claim",
    "compare_view",
    "compensate",
    "reconcile",
    "record_decision",
    "refuse_resume",
    "require_run",
    "resume",
    "start",
    "view_columns",
]

DECISIONS: Final = ("approve", "reject")
_HAPPENED: Final = frozenset({"action_executed", "action_recovered", "compensation_executed"})
VERDICTS: Final = ("executed", "not_executed", "abandoned")
MAX_SUPPLIED: Final = 1024
_MAX_VIEWED: Final = 4096


class Accepted(msgspec.Struct, frozen=True):
    """The command is allowed; these events say what it changes."""

    events: tuple[RunEvent, ...]


class Refusal(msgspec.Struct, frozen=True):
    """The command is refused: append `event`, then raise `error`."""

    event: RunEvent
    error: Refused


class Replay(msgspec.Struct, frozen=True):
    """The run has ended, and how is stored in it; append `event` and do nothing else."""

    event: ActionReplayed


def check_run_id(run_id: object) -> str:
    """Return `run_id` if it can name a run; raises InvalidInput(`invalid_id`)."""
    return check_id(run_id, "run id", max_bytes=500)


def require_run(run: Run) -> None:
    """Raise Refused(`unknown_run`) if the run has no events."""
    if run.version == 0:
        raise Refused("unknown_run", f"there is no run {run.run_id!r}", subject=run.run_id, run_id=run.run_id)


def start(run: Run, proposal: Proposal, folder: str | None = None) -> Accepted:
    """Begin a run of one action: its first checkpoint and its proposal. Raises Refused(`run_exists`).

    `folder` is what a relative target of the proposal is relative to.
    """
    if run.version != 0:
        raise Refused("run_exists", f"the run {run.run_id!r} exists already", subject=run.run_id, run_id=run.run_id)
    request_id = request_id_for(run.run_id)
    waiting = Waiting(type="approval", node_id=proposal.action, approval_id=request_id)
    return Accepted(
        (
            CheckpointSaved(status=Status.WAITING_FOR_USER, state_version=1, waiting=waiting),
            ProposalRecorded(
                request_id=request_id,
                proposal=msgspec.Raw(proposal.canonical),
                proposal_hash=proposal.hash,
                folder=folder,
            ),
        )
    )


def record_decision(
    run: Run, decision: str, supplied_hash: str, *, actor_source: str, reason: str | None = None
) -> Accepted | Refusal:
    """Approve or reject exactly the proposal whose hash is supplied.

    Raises InvalidInput(`invalid_decision`, `invalid_text`, `payload_too_large`) for what could not even be recorded.
    """
    require_run(run)
    _check_decision(decision, supplied_hash, reason)
    if run.status is not Status.WAITING_FOR_USER:
        return _not_pending(run, decision, supplied_hash)
    proposal = _proposal(run)
    current_hash = hash_of(proposal.canonical)
    if not supplied_hash == current_hash == run.proposal_hash:
        return _other_hash(run, proposal, supplied_hash, current_hash)
    return Accepted(
        (
            ProposalVerified(phase="approval", proposal_hash=current_hash),
            ApprovalRecorded(
                request_id=_request_id(run),
                decision=decision,
                approval_hash=current_hash,
                actor_source=actor_source,
                reason=reason,
            ),
        )
    )


def resume(run: Run, output: str | None) -> Accepted | Refusal | Replay:
    """Decide whether the approved effect may run now, on the log alone.

    `output` is the target that the caller names, None for the frozen one. The order of the checks is fixed: rejected,
    not yet approved, completed, output, request, hash. Accepted carries the `proposal_verified` of the resume.
    """
    require_run(run)
    if output is not None:
        check_text(output, "$.output")
    match run.status:
        case Status.REJECTED:
            return refuse_resume(run, "approval_rejected", f"the proposal of run {run.run_id!r} was rejected")
        case Status.WAITING_FOR_USER:
            return refuse_resume(run, "approval_required", f"nobody has approved run {run.run_id!r} yet")
        case Status.COMPLETED:
            return Replay(ActionReplayed(reason="already_completed"))
        case Status.FAILED if run.failure is not None:
            return Replay(ActionReplayed(reason="already_failed"))
        case Status.OUTCOME_UNKNOWN if run.compensation is not None:
            undoing = f"undoing by {run.compensation.action!r} the effect of run {run.run_id!r}"
            return refuse_resume(run, "outcome_unknown", f"{undoing} may have happened")
        case Status.APPROVED | Status.OUTCOME_UNKNOWN:
            return _compare_frozen(run, output)
        case other:
            message = f"run {run.run_id!r} cannot be resumed: it is {other.value}"
            return refuse_resume(run, "cannot_resume", message, subject=other.value)


def begin_effect(
    run: Run, *, op_key: str, owner: Owner, deadline_us: int, key_until_us: int | None, claims: RunClaimed | None
) -> tuple[RunEvent, ...]:
    """Return the events that make the intent durable: a claim first if another resumer held the run.

    The epoch of a claim is its own version, so this is valid only when appended at exactly `run.version`.
    """
    proposal = _proposal(run)
    return (
        *((claims,) if claims is not None else ()),
        ProposalVerified(phase="resume", proposal_hash=proposal.hash),
        ResumeStarted(
            op_key=op_key,
            attempt=run.attempts + 1,
            epoch=claims.epoch if claims is not None else run.epoch,
            owner=owner,
            deadline_us=deadline_us,
            approval_hash=run.approval_hash or "",
            input_hash=proposal.hash,
            key_until_us=key_until_us,
        ),
    )


def claim(run: Run, *, owner: Owner, deadline_us: int, is_stray: bool) -> RunClaimed:
    """Return the claim of another resumer; valid only when appended at exactly `run.version`."""
    return RunClaimed(epoch=run.version + 1, owner=owner, deadline_us=deadline_us, is_stray=is_stray)


def reconcile(
    run: Run, verdict: str, evidence: str, *, actor_source: str, result: Any = None, claims: RunClaimed | None = None
) -> Accepted | Refusal:
    """Settle an outcome that nobody knows, by what a person has found out.

    `claims` fences a resumer that has ended without a result and has not been found out yet: its outcome is unknown
    too. Raises InvalidInput (`invalid_verdict`, `invalid_argument`, `invalid_text`, `payload_too_large`).
    """
    require_run(run)
    _check_verdict(verdict, evidence, result)
    action, key = _action_at_stake(run)
    if run.status is not Status.OUTCOME_UNKNOWN and (claims is None or run.open_intent is None):
        message = f"the outcome of run {run.run_id!r} is not unknown: it is {run.status.value}"
        return _refuse_transition(run, "outcome_not_unknown", f"reconcile:{verdict}", message)
    if verdict == "not_executed" and _is_known_to_have_happened(run, key):
        message = f"a resumer of run {run.run_id!r} that came late has reported that the effect happened"
        return _refuse_transition(run, "verdict_contradicted", f"reconcile:{verdict}", message)
    ended = "the attempt ended without a result"
    fence = (claims, OutcomeUnknown(action=action, op_key=key, why=ended)) if claims is not None else ()
    settled = OutcomeReconciled(
        action=action,
        op_key=key,
        verdict=verdict,
        status=_status_after(run, verdict),
        evidence=evidence,
        actor_source=actor_source,
        result=result,
    )
    return Accepted((*fence, settled))


def compensate(run: Run, undoing: str | None, reason: str | None = None) -> Refusal | None:
    """Decide whether the run's effect may be undone by the action `undoing`; None if it may.

    Raises InvalidInput (`invalid_text`, `payload_too_large`) for a reason that could not be recorded.
    """
    require_run(run)
    _check_supplied("reason", reason or "")
    is_unknown = run.status is Status.OUTCOME_UNKNOWN and run.compensation is not None
    if not is_unknown and (run.status is not Status.COMPLETED or not run.executed):
        why = f"run {run.run_id!r} has nothing to undo: it is {run.status.value}"
    elif undoing is None:
        why = f"the action {_proposal(run).action!r} names no action that undoes it"
    elif run.compensation is not None and run.compensation.is_settled:
        why = f"undoing the effect of run {run.run_id!r} has been given up"
    elif run.compensation is not None and run.compensation.action != undoing:
        why = f"undoing run {run.run_id!r} has begun with {run.compensation.action!r}, not {undoing!r}"
    elif run.not_stored is not None:
        why = f"the log does not hold what the effect of run {run.run_id!r} returned: {run.not_stored}"
    else:
        # Whether the receiver of an unknown outcome can be asked is for the runtime to know.
        frozen = _compare_frozen(run, None)
        return frozen if isinstance(frozen, Refusal) else None
    return _refuse_transition(run, "cannot_compensate", "compensate", why)


def begin_compensation(
    run: Run,
    undoing: str,
    *,
    op_key: str,
    owner: Owner,
    deadline_us: int,
    key_until_us: int | None,
    claims: RunClaimed | None,
    reason: str | None,
) -> tuple[RunEvent, ...]:
    """Return the events that make the intent to undo the effect durable; valid as those of `begin_effect`."""
    attempts = run.compensation.attempts if run.compensation is not None else 0
    return (
        *((claims,) if claims is not None else ()),
        CompensationStarted(
            action=undoing,
            op_key=op_key,
            compensates=run.op_key or "",
            attempt=attempts + 1,
            epoch=claims.epoch if claims is not None else run.epoch,
            owner=owner,
            deadline_us=deadline_us,
            input_hash=_proposal(run).hash,
            reason=reason,
            key_until_us=key_until_us,
        ),
    )


def refuse_resume(run: Run, code: str, message: str, **facts: Any) -> Refusal:
    """Return the refusal of a resume for the reason `code`."""
    return Refusal(
        ResumeRejected(
            reason=code, status=run.status.value, detail=facts.pop("detail", None), viewed=facts.get("viewed")
        ),
        Refused(code, message, run_id=run.run_id, status=run.status.value, **facts),
    )


def view_columns(run: Run) -> dict[str, Any]:
    """Return the row that the `runs` view must hold for this run."""
    proposal = _proposal(run)
    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "request_id": run.request_id,
        "action": proposal.action,
        "args": canonical_args(proposal.canonical),
        "output": proposal.output,
        "proposal_hash": run.proposal_hash,
        "approval": run.approval,
        "approval_request_id": run.approval_request_id,
        "approval_hash": run.approval_hash,
        "executed": int(run.executed),
    }


def compare_view(run: Run, row: Mapping[str, Any]) -> Refusal | None:
    """Compare what people saw with the log, before the effect. None if the row is the one the log says.

    A row that differs in the request is `approval_request_mismatch`; in action, args, output or hash
    `proposal_hash_mismatch`; in anything else `view_mismatch`.
    """
    expected = view_columns(run)
    differing = [name for name, value in expected.items() if not _is_exactly(row.get(name), value)]
    if not differing:
        return None
    viewed = {name: _viewed(row.get(name)) for name in expected}
    if "request_id" in differing:
        return _other_request(run, str(viewed["request_id"]), viewed)
    if not {"action", "args", "output", "proposal_hash"}.isdisjoint(differing):
        return _other_viewed_proposal(run, row, viewed)
    return refuse_resume(
        run,
        "view_mismatch",
        f"the view of run {run.run_id!r} differs from its log in {', '.join(differing)}",
        detail=", ".join(differing),
        viewed=viewed,
    )


def _compare_frozen(run: Run, output: str | None) -> Accepted | Refusal:
    proposal = _proposal(run)
    if output is not None and output != proposal.output:
        return _other_output(run, proposal, output)
    if run.request_id != run.approval_request_id:
        return _other_request(run, run.request_id or "", None)
    current_hash = hash_of(proposal.canonical)
    if not current_hash == run.proposal_hash == run.approval_hash:
        return _changed_since_approval(run, proposal, current_hash, run.proposal_hash, None)
    return Accepted((ProposalVerified(phase="resume", proposal_hash=current_hash),))


def _check_decision(decision: str, supplied_hash: str, reason: str | None) -> None:
    if decision not in DECISIONS:
        raise InvalidInput("invalid_decision", f"a decision is approve or reject, not {decision!r:.80}")
    _check_supplied("proposal_hash", supplied_hash)
    _check_supplied("reason", reason or "")


def _check_supplied(name: str, text: str) -> None:
    check_text(text, f"$.{name}")
    if len(text) > MAX_SUPPLIED:
        raise InvalidInput("payload_too_large", f"more than {MAX_SUPPLIED} characters", path=f"$.{name}")


def _check_verdict(verdict: str, evidence: object, result: Any) -> None:
    if verdict not in VERDICTS:
        raise InvalidInput("invalid_verdict", f"a verdict is one of {', '.join(VERDICTS)}, not {verdict!r:.80}")
    if not isinstance(evidence, str) or not evidence.strip():
        raise InvalidInput("invalid_argument", "a verdict needs evidence: say how it was found out")
    _check_supplied("evidence", evidence)
    if result is not None and verdict != "executed":
        raise InvalidInput("invalid_argument", f"only an executed effect has a result, not one that was {verdict}")


def _action_at_stake(run: Run) -> tuple[str, str]:
    """Return action and op_key of what is under way or unknown: the effect, or its undoing."""
    if run.compensation is not None:
        return run.compensation.action, run.compensation.op_key
    return _proposal(run).action, run.op_key or ""


def _is_known_to_have_happened(run: Run, key: str) -> bool:
    late = run.late
    return late is not None and late.op_key == key and late.rejected in _HAPPENED


def _status_after(run: Run, verdict: str) -> Status:
    if run.compensation is not None:
        return Status.COMPENSATED if verdict == "executed" else Status.COMPLETED
    return {"executed": Status.COMPLETED, "not_executed": Status.APPROVED}.get(verdict, Status.CANCELLED)


def _refuse_transition(run: Run, code: str, attempted: str, message: str) -> Refusal:
    return Refusal(
        TransitionRejected(
            reason=code,
            attempted_decision=attempted,
            current_status=run.status.value,
            existing_approval=run.approval,
        ),
        Refused(code, message, run_id=run.run_id, status=run.status.value),
    )


def _not_pending(run: Run, decision: str, supplied_hash: str) -> Refusal:
    return Refusal(
        TransitionRejected(
            reason="approval_not_pending",
            attempted_decision=decision,
            current_status=run.status.value,
            existing_approval=run.approval,
            supplied_hash=supplied_hash,
        ),
        Refused(
            "approval_not_pending",
            f"the request of run {run.run_id!r} is decided already: {run.approval}",
            run_id=run.run_id,
            status=run.status.value,
            existing_approval=run.approval,
        ),
    )


def _other_hash(run: Run, proposal: Proposal, supplied_hash: str, current_hash: str) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="approval",
            reason="proposal_hash_mismatch",
            action=proposal.action,
            output=proposal.output,
            supplied_hash=supplied_hash,
            current_hash=current_hash,
            stored_hash=run.proposal_hash,
        ),
        Refused(
            "proposal_hash_mismatch",
            f"the supplied hash is not that of the current proposal of run {run.run_id!r}",
            run_id=run.run_id,
            supplied_hash=supplied_hash,
            current_hash=current_hash,
        ),
    )


def _other_output(run: Run, proposal: Proposal, output: str) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="resume",
            reason="output_mismatch",
            action=proposal.action,
            current_output=output,
            approved_output=proposal.output,
        ),
        Refused(
            "output_mismatch",
            f"run {run.run_id!r} was approved for {proposal.output!r}, not for {output!r}",
            run_id=run.run_id,
            current_output=output,
            approved_output=proposal.output,
        ),
    )


def _other_request(run: Run, current_request_id: str, viewed: dict[str, Any] | None) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="resume",
            reason="approval_request_mismatch",
            action=_proposal(run).action,
            current_request_id=current_request_id,
            approved_request_id=run.approval_request_id,
            viewed=viewed,
        ),
        Refused(
            "approval_request_mismatch",
            f"run {run.run_id!r} asks {current_request_id!r}, but {run.approval_request_id!r} was approved",
            run_id=run.run_id,
            current_request_id=current_request_id,
            approved_request_id=run.approval_request_id,
        ),
    )


def _other_viewed_proposal(run: Run, row: Mapping[str, Any], viewed: dict[str, Any]) -> Refusal:
    try:
        args = msgspec.json.decode(row["args"])
        current_hash = hash_of(canonical_bytes({"action": row["action"], "args": args, "output": row["output"]}))
    except (InvalidInput, ValueError, TypeError, KeyError):
        current_hash = None  # the row is no proposal at all; what it holds is in `viewed`
    stored_hash = viewed["proposal_hash"]
    return _changed_since_approval(
        run, _proposal(run), current_hash, None if stored_hash is None else str(stored_hash), viewed
    )


def _changed_since_approval(
    run: Run, proposal: Proposal, current_hash: str | None, stored_hash: str | None, viewed: dict[str, Any] | None
) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="resume",
            reason="proposal_hash_mismatch",
            action=proposal.action,
            current_hash=current_hash,
            stored_hash=stored_hash,
            approval_hash=run.approval_hash,
            viewed=viewed,
        ),
        Refused(
            "proposal_hash_mismatch",
            f"what run {run.run_id!r} holds now is not what was approved",
            run_id=run.run_id,
            current_hash=current_hash,
            approval_hash=run.approval_hash,
        ),
    )


def _is_exactly(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and bool(found == expected)


def _viewed(value: Any) -> Any:
    """Return a cell of a view as plain data that is safe to store: whoever edited it chose its bytes."""
    if isinstance(value, bytes):
        return value[:_MAX_VIEWED].hex()
    if isinstance(value, str):
        return value[:_MAX_VIEWED].encode(errors="replace").decode()
    return value if value is None or isinstance(value, int) else repr(value)


def _proposal(run: Run) -> Proposal:
    assert run.proposal is not None, "the first append of a run records its proposal"
    return run.proposal


def _request_id(run: Run) -> str:
    assert run.request_id is not None, "the first append of a run records its request"
    return run.request_id

"""An effect of a workflow: asked for, decided by people, done once, and its result given from the log ever after."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from eventlog.decide import Refusal, ask, expire, refuse_resume
from eventlog.decide.decisions import too_late
from eventlog.decide.frozen import compare_frozen
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    AppendTooLate,
    ApprovalRejected,
    EventLogError,
    OutcomeUnknown,
    Refused,
    RunConflict,
    WrongExpectedVersion,
)
from eventlog.events import ActionFailed as ActionFailedEvent
from eventlog.events import Failure, ProposalRejected, RunEvent, Waiting
from eventlog.progress import request_of
from eventlog.proposal import Proposal, op_key, propose
from eventlog.run import Run, Status
from eventlog.runtime.attempts import AnyAction, Attempts, described
from eventlog.runtime.calls import call_of, failed_check
from eventlog.runtime.detached import detached
from eventlog.runtime.drive import Asked, Drive
from eventlog.runtime.effect_events import Doing
from eventlog.runtime.effect_grounds import Versions
from eventlog.runtime.run_streams import MAX_REDECISIONS, of_step, printable
from eventlog.runtime.session import RequestStreams

__all__ = ["act"]

_CONFLICTS: Final = ("output_conflict", "idempotency_conflict")
_HEAD_NOT_SIGNED: Final = "head_not_signed"
_LATE: Final = "lease_used_up"
_MAX_LATE: Final = 3
"""As often an effect is attempted at once again that has come too late for its lease: who stood still does so once. A
store that is too slow for the lease stays it, and every attempt is written to the log."""
_UNTOLD: Final = (_HEAD_NOT_SIGNED, "approval_lost")
"""What says nothing of the effect and nothing to the workflow: the run stops, and tries again when it is resumed."""


async def act(drive: Drive, asked: Asked, action: str, args: dict[str, Any], output: str) -> Any:
    """Return the result of the effect, once it is approved and done.

    Raises ApprovalRejected, ApprovalExpired, ActionFailed, ActionConflict or OutcomeUnknown (given up) into the
    workflow, the same on every replay; the run pauses while people are wanted.
    """
    drive.require_kind(asked, "act")
    proposal = propose(action, args, output)
    if request_of(drive.run, asked.key) is None:
        await _ask(drive, asked, proposal)
    else:
        await _require_same(drive, asked, proposal)
    while True:
        request = request_of(drive.run, asked.key)
        assert request is not None, "it was asked"
        told = _told(drive, asked, request)
        if told is not None:
            drive.deliver(asked)
            raise told
        match request.status:
            case Status.COMPLETED | Status.COMPENSATED:
                return detached(request.result)
            case Status.WAITING_FOR_USER:
                await _wait_for_people(drive, asked, request)
            case other:
                assert other in (Status.APPROVED, Status.OUTCOME_UNKNOWN), "the others are told to the workflow"
                await _perform_or_wait(drive, asked, request)


async def _ask(drive: Drive, asked: Asked, proposal: Proposal) -> None:
    if proposal.action not in drive.tools.actions:
        raise drive.halt(_unknown_action(drive.run, proposal.action))
    await drive.before_new()
    with drive.working():
        await drive.accept(asked)
        for _ in range(MAX_REDECISIONS):
            try:
                return await _record_request(drive, asked, proposal)
            except AppendTooLate:
                pass
        raise RunConflict(drive.run.run_id, "the time of the log changes faster than a request can be recorded")


async def _record_request(drive: Drive, asked: Asked, proposal: Proposal) -> None:
    """Append the request. Raises AppendTooLate if a rule has approved what would be over when it is recorded."""
    # An end is counted from when the request is recorded: not before the last event of the log.
    may_expire = drive.tools.policies.may_expire(proposal.action)
    floor_us = (await drive.tools.log.head()).recorded_at_us if may_expire else 0
    terms = drive.tools.policies.terms(proposal, max(drive.session.now_us(), floor_us))
    request_id = f"approval:{drive.run.run_id}:{asked.key}"
    asks = ask(request_id, proposal, drive.tools.folder(), terms, step=asked.key, group=asked.group)
    events = of_step(Run(run_id=drive.run.run_id, step=asked.key), asks)
    if terms.decided_before_us is None:
        await drive.session.add(*events)
    else:
        await drive.session.append(lambda _: events, before_us=terms.decided_before_us)


async def _require_same(drive: Drive, asked: Asked, proposal: Proposal) -> None:
    """Stop the run if the workflow proposes something else now than what people were asked."""
    first = drive.progress.first_hashes.get(asked.key)
    if first == proposal.hash:
        return
    request = request_of(drive.run, asked.key)
    assert request is not None and request.proposal is not None, "it was asked"
    refusal = ProposalRejected(
        step=asked.key,
        phase="resume",
        reason="proposal_hash_mismatch",
        action=proposal.action,
        output=proposal.output,
        current_hash=proposal.hash,
        stored_hash=first,
        approval_hash=request.approval_hash,
    )
    with drive.working():
        await drive.session.add(refusal)
    message = f"run {drive.run.run_id!r} is replayed, and its step {asked.key!r} proposes something else than it did"
    raise drive.halt(
        Refused(
            "proposal_hash_mismatch",
            message,
            run_id=drive.run.run_id,
            step=asked.key,
            current_hash=proposal.hash,
            stored_hash=first,
        )
    )


def _told(drive: Drive, asked: Asked, request: Run) -> EventLogError | None:
    """Return what the workflow is told, if the request has come to an end that it has to know of."""
    run_id = drive.run.run_id
    match request.status:
        case Status.REJECTED:
            message = f"the request {request.request_id!r} of run {run_id!r} was rejected"
            reason, actor = request.decision_reason, request.decided_by
            return ApprovalRejected(message, reason=reason, actor=actor, run_id=run_id, step=asked.key)
        case Status.EXPIRED:
            return too_late(request)
        case Status.CANCELLED:
            return OutcomeUnknown(run_id, "a person has given it up")
        case Status.FAILED if request.failure is not None:
            return _failed(run_id, asked, request.failure, is_final=True)
    failure = drive.progress.failures.get(asked.key)
    if failure is None or failure.code in _UNTOLD:
        return None
    return _failed(run_id, asked, failure, is_final=False)


def _failed(run_id: str, asked: Asked, failure: Failure, *, is_final: bool) -> EventLogError:
    details = detached(failure.details) if isinstance(failure.details, dict) else {}
    details = {name: value for name, value in details.items() if isinstance(name, str)} | {"run_id": run_id}
    details["step"] = asked.key
    if failure.code in _CONFLICTS:
        return ActionConflict(failure.code, failure.message, **details)
    details.pop("is_final", None), details.pop("covers_earlier", None)
    return ActionFailed(failure.code, failure.message, is_final=is_final, **details)


async def _wait_for_people(drive: Drive, asked: Asked, request: Run) -> None:
    expired = expire(request, drive.session.now_us())
    if expired is not None:
        with drive.working():
            await _append(drive, request, expired.events)
        return
    await drive.block(
        Waiting(type="approval", node_id=asked.key, approval_id=request.request_id, due_us=request.expires_at_us)
    )


async def _append(drive: Drive, request: Run, events: tuple[RunEvent, ...]) -> None:
    """Append about the request as it is; if others have just changed it, the caller looks again."""
    streams = RequestStreams(drive.session, drive.tools.log, drive.tools.reach)
    try:
        await streams.append(request, events, drive.tools.actor)
    except WrongExpectedVersion:
        return


async def _perform_or_wait(drive: Drive, asked: Asked, request: Run) -> None:
    """Perform the approved effect; or wait for a person, if nobody can tell what became of an earlier attempt."""
    assert request.proposal is not None and request.step is not None, "it was asked"
    action = drive.tools.actions.get(request.proposal.action)
    if action is None:
        raise drive.halt(_unknown_action(drive.run, request.proposal.action))
    key = op_key(drive.tools.log.store_id, request.run_id, request.step, request.approval_hash or "")
    effect = Doing(request.proposal.action, key)
    attempts = _attempts(drive)
    waiting = Waiting(type="outcome", node_id=asked.key)
    if effect.is_unknown(request) and attempts.recourse(action, effect, request) == "unknown":
        await drive.block(waiting)
        return
    await drive.before_new()
    await _require_frozen(drive, request)
    if await _is_refused(drive, asked, request, effect, action):
        return
    asked_for = partial(call_of, request, effect, drive.tools.log, drive.tools.reach)
    tools, holder = drive.tools, drive.session.owner
    prove = tools.grounds.prover(action, _evidence(drive, asked.key))
    make = partial(attempts.make, request, effect, action, asked_for, tools.actor, holder=holder, prove=prove)
    with drive.working():
        stopped: Refused | None = None
        try:
            await drive.effect(asked, make)
        except (ActionConflict, ActionFailed, OutcomeUnknown) as error:
            # it is in the log, and is read from there
            stopped = error if isinstance(error, ActionFailed) and _stops(asked, error) else None
        except Refused as error:
            stopped = error  # the approvals of the request do not count any more
        except RunConflict:
            if drive.is_cancelled:
                raise
            # others have changed the request before the effect began: look again
    if stopped is not None:
        raise drive.halt(stopped)
    now = request_of(drive.run, asked.key)
    if now is not None and effect.is_unknown(now):
        await drive.block(waiting)  # asked or tried once: again when something has come, or the run is resumed


def _stops(asked: Asked, error: ActionFailed) -> bool:
    """Say whether the run stops here, to try again when it is resumed: this says nothing to the workflow."""
    asked.late += error.code == _LATE
    return error.code == _HEAD_NOT_SIGNED or asked.late >= _MAX_LATE


async def _require_frozen(drive: Drive, request: Run) -> None:
    """Stop the run if what would run now is not the request and the proposal that were approved, as it was approved."""
    decision = compare_frozen(request, None)
    if not isinstance(decision, Refusal):
        decision = await drive.tools.grounds.refusal_before_effect(request) or decision
    if isinstance(decision, Refusal):
        with drive.working():
            await _append(drive, request, (decision.event,))
        raise drive.halt(decision.error)


def _evidence(drive: Drive, key: str) -> Versions:
    """Return what gives the versions of the proposal and the decisions of a request, as they are when it is asked."""
    return lambda: drive.progress.evidence.get(key, ())


async def _is_refused(drive: Drive, asked: Asked, request: Run, effect: Doing, action: AnyAction) -> bool:
    """Say whether the action refuses, before any intent; that is in the log then."""
    error = failed_check(drive.tools.log, action, call_of(request, effect, drive.tools.log, drive.tools.reach, 1))
    if error is None:
        return False
    why = described(error, named=False)
    if effect.intent(request) is not None or effect.is_unknown(request):
        refusal = refuse_resume(request, "outcome_unknown", f"an earlier attempt may have happened: {why}", detail=why)
        with drive.working():
            await _append(drive, request, (refusal.event,))
        await drive.block(Waiting(type="outcome", node_id=asked.key))
        return True
    failure = Failure(code=printable(str(error.code)), message=why)
    failed = ActionFailedEvent(action=effect.action, op_key=effect.op_key, error=failure, is_final=error.is_final)
    with drive.working():
        await _append(drive, request, (failed,))
    return True


def _attempts(drive: Drive) -> Attempts:
    tools = drive.tools
    streams = RequestStreams(drive.session, tools.log, tools.reach)
    return Attempts(
        streams,
        tools.clock,
        tools.reach,
        place=tools.log.place,
        lease_s=tools.lease_s,
        sign_head=tools.log.sign_head,
    )


def _unknown_action(run: Run, action: str) -> Refused:
    return Refused("unknown_action", f"no action {action!r} is registered here", run_id=run.run_id, action=action)

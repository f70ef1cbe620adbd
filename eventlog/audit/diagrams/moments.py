"""What the events of a run show in a picture: a moment each, between those who take part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, assert_never, get_args

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ActionReplayed,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    ClaimRenewed,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    OfRequest,
    OutcomeReconciled,
    OutcomeUnknown,
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
    StepCompleted,
    StepFailed,
    StepStarted,
    TimerFired,
    TimerSet,
    TransitionRejected,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal, stored_proposal
from eventlog.text import shortened
from eventlog.times import time_text

__all__ = ["Kind", "Moment", "Part", "Role", "moments_of"]

Role = Literal["actor", "run", "effect", "other_run"]
Kind = Literal["course", "step", "request", "check", "decision", "effect", "refusal", "unknown", "other_run"]
"""What a moment is about; what did not go as it was wanted is a `refusal`, or `unknown`."""

_LONGEST: Final = 80
_REDACTED: Final = {
    "erased": "words erased",
    "subject_erased": "words erased",
    "key_missing": "words encrypted, key not here",
}
_RUN_EVENTS: Final = get_args(RunEvent)


class Part(msgspec.Struct, frozen=True):
    """Who takes part: somebody who acts, the run itself, an effect by the name of its action, another run."""

    role: Role
    name: str


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What one event shows. `lines` are its words; ids and hashes in them are whole, other long texts cut, as marked.

    `source` did it to `target`; the two are the same where something happened within the run.
    """

    version: int
    kind: Kind
    source: Part
    target: Part
    lines: tuple[str, ...]


def moments_of(run_id: str, events: Iterable[RecordedEvent]) -> Iterator[Moment]:
    """Give a moment for each event of the run, in order; of an unknown type, its name."""
    run = Part("run", run_id)
    actions: dict[str | None, str] = {}
    for event in events:
        if not isinstance(event.data, _RUN_EVENTS):
            words = (event.type,) if event.is_known else (event.type, "a type that this program does not know")
            yield Moment(version=event.version, kind="course", source=run, target=run, lines=words)
            continue
        step = event.data.step if isinstance(event.data, OfRequest) else None
        if isinstance(event.data, ProposalRecorded):
            actions[step] = _action_of(event.data)
        scene = _Scene(run=run, actor=Part("actor", event.actor), action=actions.get(step, step or "the action"))
        kind, source, target, lines = _moment(scene, event.data)
        named = lines if step is None else [f"step {step}", *lines]
        named += [] if event.redacted is None else [_REDACTED[event.redacted]]
        yield Moment(version=event.version, kind=kind, source=source, target=target, lines=tuple(named))


class _Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Who is there when an event happens. `action` is that of the request it is about."""

    run: Part
    actor: Part
    action: str

    @property
    def effect(self) -> Part:
        return Part("effect", self.action)


_Found = tuple[Kind, Part, Part, list[str]]


def _found(kind: Kind, source: Part, target: Part, *lines: str | None) -> _Found:
    return kind, source, target, [line for line in lines if line is not None]


def _moment(at: _Scene, event: RunEvent) -> _Found:
    match event:
        case ProposalRecorded():
            return _found("request", at.run, at.run, *_request_lines(event))
        case ProposalVerified(phase=phase, proposal_hash=digest):
            return _found("check", at.run, at.run, f"hash checked ({phase})", digest)
        case ApprovalRecorded():
            who = Part("actor", "a rule") if event.actor_source == "policy" else at.actor
            what = f"{event.decision} {event.request_id}"
            level = f"level {event.level}" if event.level else None
            return _found("decision", who, at.run, what, event.approval_hash, level, _reason(event.reason))
        case ApprovalExpired(request_id=request_id):
            return _found("refusal", at.run, at.run, f"expired {request_id}", "nobody decided in time")
        case ApprovalRevoked(request_id=request_id, reason=reason):
            return _found("decision", at.actor, at.run, f"withdraw the approvals of {request_id}", _reason(reason))
        case ProposalRejected(phase=phase, reason=reason):
            what = "decision" if phase == "approval" else "resume"
            return _found("refusal", at.actor, at.run, f"{what} refused: {reason}")
        case TransitionRejected(reason=reason, attempted_decision=attempted, current_status=status):
            return _found("refusal", at.actor, at.run, f"{attempted} refused: {reason}", f"status {status}")
        case ResumeRejected(reason=reason, status=status):
            return _found("refusal", at.actor, at.run, f"resume refused: {reason}", f"status {status}")
        case CheckpointSaved() | RunClaimed() | ClaimRenewed() | RunCompleted() | RunFailed() | RunCancelled():
            return _course(at, event)
        case StepStarted() | StepCompleted() | StepFailed() | SignalReceived() | SignalRejected():
            return _step(at, event)
        case TimerSet() | TimerFired() | ChildStarted() | ChildFinished():
            return _wait(at, event)
        case _:
            return _effect(at, event)


def _effect(
    at: _Scene,
    event: ResumeStarted
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
    | CompensationFailed,
) -> _Found:
    match event:
        case ResumeStarted(attempt=attempt, op_key=op_key):
            return _found("effect", at.run, at.effect, f"attempt {attempt}", op_key)
        case ActionExecuted():
            return _found("effect", at.effect, at.run, "executed")
        case ActionRecovered():
            return _found("effect", at.effect, at.run, "recovered: an earlier attempt had done it")
        case ActionReplayed(reason=reason):
            return _found("check", at.actor, at.run, f"resumed again, nothing done: {reason}")
        case ActionConflict(code=code, reason=reason):
            return _found("refusal", at.effect, at.run, f"not done: {code}", _cut(reason) if reason != code else None)
        case ActionFailed(error=error):
            return _found("refusal", at.effect, at.run, f"not done: {error.code}", _cut(error.message))
        case OutcomeUnknown(why=why):
            return _found("unknown", at.effect, at.run, "outcome unknown", _cut(why))
        case ResultRejected(rejected=rejected, reason=reason):
            return _found("refusal", at.actor, at.run, f"came late with {rejected}: {reason}")
        case OutcomeReconciled(verdict=verdict, evidence=evidence):
            return _found("decision", at.actor, at.run, f"settled: {verdict}", _cut(evidence))
        case CompensationStarted(action=action, attempt=attempt, op_key=op_key):
            return _found("effect", at.run, Part("effect", action), f"undo, attempt {attempt}", op_key)
        case CompensationExecuted(action=action):
            return _found("effect", Part("effect", action), at.run, "undone")
        case CompensationFailed(action=action, error=error):
            return _found("refusal", Part("effect", action), at.run, f"not undone: {error.code}", _cut(error.message))
        case _:
            assert_never(event)


def _course(
    at: _Scene, event: CheckpointSaved | RunClaimed | ClaimRenewed | RunCompleted | RunFailed | RunCancelled
) -> _Found:
    match event:
        case CheckpointSaved(definition=definition) if definition is not None:
            source = at.actor if event.parent is None else Part("other_run", event.parent.run_id)
            return _found("course", source, at.run, f"start workflow {definition.workflow}")
        case CheckpointSaved(state_version=1, status=status):
            return _found("course", at.actor, at.run, "start", status.value)
        case CheckpointSaved(state_version=number, status=status):
            return _found("course", at.run, at.run, f"checkpoint {number}", status.value)
        case RunClaimed(epoch=epoch):
            return _found("course", at.actor, at.run, f"take over, epoch {epoch}")
        case ClaimRenewed(deadline_us=deadline_us):
            return _found("course", at.actor, at.run, f"still at work until {time_text(deadline_us)}")
        case RunCompleted():
            return _found("course", at.run, at.run, "completed")
        case RunFailed(status=status, error=error):
            return _found("refusal", at.run, at.run, f"ended as {status.value}: {error.code}", _cut(error.message))
        case RunCancelled(reason=reason):
            return _found("decision", at.actor, at.run, "cancel", _reason(reason))
        case _:
            assert_never(event)


def _step(at: _Scene, event: StepStarted | StepCompleted | StepFailed | SignalReceived | SignalRejected) -> _Found:
    match event:
        case StepStarted(key=key, attempt=attempt):
            return _found("step", at.run, at.run, f"step {key}", f"attempt {attempt}")
        case StepCompleted(key=key, kind=kind):
            return _found("step", at.run, at.run, f"{kind} {key}", "completed")
        case StepFailed(key=key, attempt=attempt, error=error):
            failed = f"step {key} failed: {error.code}"
            return _found("refusal", at.run, at.run, failed, f"attempt {attempt}", _cut(error.message))
        case SignalReceived(name=name):
            return _found("step", at.actor, at.run, f"signal {name}")
        case SignalRejected(name=name, key=key, reason=reason):
            return _found("refusal", at.run, at.run, f"signal {name} does not fit step {key}", _cut(reason))
        case _:
            assert_never(event)


def _wait(at: _Scene, event: TimerSet | TimerFired | ChildStarted | ChildFinished) -> _Found:
    match event:
        case TimerSet(key=key, due_us=due_us):
            return _found("step", at.run, at.run, f"timer {key}", f"due {time_text(due_us)}")
        case TimerFired(key=key):
            return _found("step", at.run, at.run, f"timer {key}", "was due")
        case ChildStarted(child_run_id=child_run_id, workflow=workflow, relation=relation):
            return _found(
                "other_run", at.run, Part("other_run", child_run_id), f"start {relation}", f"workflow {workflow}"
            )
        case ChildFinished(child_run_id=child_run_id, status=status):
            return _found("other_run", Part("other_run", child_run_id), at.run, f"ended as {status.value}")
        case _:
            assert_never(event)


def _request_lines(event: ProposalRecorded) -> list[str]:
    lines = [f"request {event.request_id}", f"{_action_of(event)} to {_output_of(event)}", event.proposal_hash]
    return lines if event.supersedes is None else [*lines, f"in place of {event.supersedes}"]


def _proposal(event: ProposalRecorded) -> Proposal | None:
    try:
        return stored_proposal(bytes(event.proposal))
    except InvalidInput:
        return None


def _action_of(event: ProposalRecorded) -> str:
    proposal = _proposal(event)
    return "what is no proposal" if proposal is None else proposal.action


def _output_of(event: ProposalRecorded) -> str:
    proposal = _proposal(event)
    return "nothing" if proposal is None else _cut(proposal.output)


def _reason(reason: str | None) -> str | None:
    return None if reason is None else f"because {_cut(reason)}"


def _cut(text: str) -> str:
    return shortened(text, _LONGEST)

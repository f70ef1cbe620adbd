"""The state of a run, and how each event changes it. Pure.

    WAITING_FOR_USER ──approve──▶ APPROVED ──effect──▶ COMPLETED
           └────────reject──────▶ REJECTED
                                   APPROVED ──nobody can tell──▶ OUTCOME_UNKNOWN

A conflict or a definite failure leaves a run APPROVED: clear the cause and resume.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec
from msgspec.structs import replace

from eventlog.errors import EventTypeUnknown
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    ActionReplayed,
    ApprovalRecorded,
    CheckpointSaved,
    OutcomeUnknown,
    Owner,
    ProposalRecorded,
    ProposalRejected,
    ProposalVerified,
    ResumeRejected,
    ResumeStarted,
    RunClaimed,
    RunEvent,
    Status,
    TransitionRejected,
    Waiting,
)
from eventlog.log import RecordedEvent
from eventlog.proposal import Proposal

__all__ = ["Intent", "Run", "Status", "evolve", "fold_run"]


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that has begun and has no result yet."""

    op_key: str
    attempt: int
    epoch: int
    owner: Owner
    deadline_us: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its events leave it. `version` 0 means that there is no such run.

    `approval` is the decision, `approve` or `reject`; `approval_request_id` and `approval_hash` are what it froze.
    `epoch` is the version of the last `run_claimed`, 0 before the first; `attempts` counts the intents.
    """

    run_id: str
    version: int = 0
    status: Status = Status.WAITING_FOR_USER
    state_version: int = 0
    waiting: Waiting | None = None
    request_id: str | None = None
    proposal: Proposal | None = None
    proposal_hash: str | None = None
    folder: str | None = None
    """The folder that a relative target was meant in, absolute."""
    approval: str | None = None
    approval_request_id: str | None = None
    approval_hash: str | None = None
    executed: bool = False
    epoch: int = 0
    attempts: int = 0
    op_key: str | None = None
    """The identity of the effect, as the last intent recorded it."""
    intent: Intent | None = None
    recorded_at_us: int = 0
    """When the last event was recorded."""


def fold_run(run_id: str, events: Iterable[RecordedEvent]) -> Run:
    """Return the run that these events, all of its stream in order, add up to.

    Raises EventTypeUnknown for an event that this program does not know: acting on half a state is worse than not
    acting.
    """
    run = Run(run_id=run_id)
    for event in events:
        if not event.is_known:
            raise EventTypeUnknown(event.stream, event.version, event.type)
        run = replace(evolve(run, event.data), version=event.version, recorded_at_us=event.recorded_at_us)
    return run


def evolve(run: Run, event: RunEvent) -> Run:
    """Return the run as it is after `event`. Never fails: the event has happened."""
    match event:
        case CheckpointSaved(status=status, state_version=state_version, waiting=waiting):
            return replace(run, status=status, state_version=state_version, waiting=waiting)
        case ProposalRecorded():
            return _proposed(run, event)
        case ApprovalRecorded():
            return _decided(run, event)
        case ResumeStarted():
            return _begun(run, event)
        case RunClaimed(epoch=epoch):
            return replace(run, epoch=epoch)
        case ActionExecuted() | ActionRecovered():
            return replace(run, status=Status.COMPLETED, executed=True, intent=None)
        case ActionConflict() | ActionFailed():
            return replace(run, status=Status.APPROVED, intent=None)
        case OutcomeUnknown():
            return replace(run, status=Status.OUTCOME_UNKNOWN, intent=None)
        case ProposalVerified() | ProposalRejected() | TransitionRejected() | ResumeRejected() | ActionReplayed():
            return run
        case _:
            assert_never(event)


def _decided(run: Run, event: ApprovalRecorded) -> Run:
    return replace(
        run,
        status=Status.APPROVED if event.decision == "approve" else Status.REJECTED,
        waiting=None,
        approval=event.decision,
        approval_request_id=event.request_id,
        approval_hash=event.approval_hash,
    )


def _proposed(run: Run, event: ProposalRecorded) -> Run:
    return replace(
        run,
        request_id=event.request_id,
        proposal=Proposal.decode(bytes(event.proposal)),
        proposal_hash=event.proposal_hash,
        folder=event.folder,
    )


def _begun(run: Run, event: ResumeStarted) -> Run:
    intent = Intent(
        op_key=event.op_key,
        attempt=event.attempt,
        epoch=event.epoch,
        owner=event.owner,
        deadline_us=event.deadline_us,
    )
    return replace(run, intent=intent, attempts=event.attempt, op_key=event.op_key, status=Status.APPROVED)

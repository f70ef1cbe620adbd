"""Which workflow runs can go on, as the feed of the log tells it: what a worker has to do next. Pure.

    ready      nobody drives it, and something that it waited for has come; or nobody has begun it
    held       somebody drives it, and is to be looked after: whoever died leaves it behind
    waiting    for a person, a signal or another run; or until a time. Something from outside makes it ready as well,
               and it goes on waiting: it may be something else that has come
    refused    waiting, because a program could not drive it. Another program may: each tries once when it begins

It is a hint and no truth: who picks a run up reads it, and finds out there; and puts it back where the log says that it
is (`found`) if it is not for him to drive. A run that can go on is ready or held, or its timer is no later than that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import msgspec

from eventlog.events import (
    RUN_PREFIX,
    ApprovalExpired,
    ApprovalRecorded,
    ApprovalRevoked,
    CheckpointSaved,
    ChildFinished,
    ClaimRenewed,
    OutcomeReconciled,
    Owner,
    ProposalRecorded,
    ResumeRejected,
    ResumeStarted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunFailed,
    SignalReceived,
    Status,
)
from eventlog.log import RecordedEvent
from eventlog.progress import ENDED, Progress
from eventlog.run import Run

__all__ = ["TYPES", "Agenda", "Held"]

TYPES: Final = frozenset(
    {
        "approval_expired",
        "approval_recorded",
        "approval_revoked",
        "checkpoint_saved",
        "child_finished",
        "claim_renewed",
        "outcome_reconciled",
        "proposal_recorded",
        "resume_rejected",
        "resume_started",
        "run_cancelled",
        "run_claimed",
        "run_completed",
        "run_failed",
        "signal_received",
    }
)
"""The events that an agenda is made of."""

_FROM_OUTSIDE: Final = frozenset(
    {
        "approval_expired",
        "approval_recorded",
        "approval_revoked",
        "child_finished",
        "outcome_reconciled",
        "run_cancelled",
        "run_claimed",
        "signal_received",
    }
)


_MIN_TIMERS: Final = 1000
"""So many timers are kept without asking whether they still mean anything."""


class Held(msgspec.Struct):
    """Who drives a run, and until when that is certain."""

    owner: Owner
    deadline_us: int


class Agenda:
    """The runs of one log, folded from its feed in order."""

    def __init__(self) -> None:
        self.ready: Final[dict[str, None]] = {}
        self.held: Final[dict[str, Held]] = {}
        self._seen: Final[dict[str, int]] = {}
        """The version of the last event of each workflow run that has not ended for good. Others are none of this."""
        self._waiting: Final[dict[str, int]] = {}
        """By run: the version of the pause that it is in, or of what changed since when it is due."""
        self._timers: Final[list[tuple[int, str, int]]] = []
        self._refused: Final[dict[str, None]] = {}
        self._just_refused: str | None = None
        """The run that the last event refused to go on with."""

    def note(self, event: RecordedEvent) -> str | None:
        """Fold an event; return the run whose drive, if it is here, has to see what others have done to it."""
        run_id = event.stream.removeprefix(RUN_PREFIX)
        if isinstance(event.data, CheckpointSaved) and event.data.definition is not None:
            self._seen[run_id] = event.version
        if run_id not in self._seen:
            return None
        self._seen[run_id] = event.version
        self._fold(run_id, event)
        is_edit = isinstance(event.data, ProposalRecorded) and event.data.supersedes is not None
        return run_id if is_edit or event.type in _FROM_OUTSIDE else None

    def _fold(self, run_id: str, event: RecordedEvent) -> None:
        just_refused, self._just_refused = self._just_refused, None
        match event.data:
            case CheckpointSaved(is_released=True) if run_id == just_refused:
                self._leave(run_id)
                self._refuse(run_id, event.version)
            case CheckpointSaved():
                self._note_checkpoint(run_id, event.version, event.data)
            case ResumeRejected():
                self._just_refused = run_id
                if run_id not in self.ready and run_id not in self.held and run_id not in self._waiting:
                    self._refuse(run_id, event.version)
            case RunClaimed(owner=owner, deadline_us=deadline_us):
                self._leave(run_id)
                self.held[run_id] = Held(owner, deadline_us)
            case ClaimRenewed(deadline_us=deadline_us) | ResumeStarted(deadline_us=deadline_us):
                if run_id in self.held:
                    self.held[run_id].deadline_us = max(deadline_us, self.held[run_id].deadline_us)
            case RunFailed(status=Status.FAILED):
                self._leave(run_id)  # it can be taken up again
            case RunCompleted() | RunFailed() | RunCancelled():
                self._leave(run_id)
                del self._seen[run_id]
            case ApprovalRecorded(is_deciding=True) | ApprovalExpired() | OutcomeReconciled():
                self._wake(run_id)
            case SignalReceived() | ChildFinished():
                self._wake(run_id)
            case ApprovalRevoked():
                self._wake(run_id)  # it may have to be decided by a time that only the log knows
            case ProposalRecorded(supersedes=str(), expires_at_us=due_us):
                self._due_earlier(run_id, due_us)

    def try_refused(self) -> None:
        """Make ready what other programs, or this one's earlier code, could not drive."""
        for run_id in self._refused:
            self.ready[run_id] = None
        self._refused.clear()

    def due(self, now_us: int) -> int | None:
        """Make ready what is due, and return when the next is; None if nothing waits for a time."""
        while self._timers:
            due_us, run_id, version = self._timers[0]
            is_over = self._waiting.get(run_id) != version
            if not is_over and due_us > now_us:
                return due_us
            heapq.heappop(self._timers)
            if not is_over:
                self._wake(run_id)
        return None

    def abandoned(self, run_id: str) -> None:
        """Make ready a run whose holder is known to be gone."""
        self.held.pop(run_id, None)
        self.ready[run_id] = None

    def take(self, run_id: str) -> None:
        """Take a run from what is ready; the log says what becomes of it, or `found` or `again`."""
        self.ready.pop(run_id, None)
        self._refused.pop(run_id, None)

    def found(self, run: Run) -> None:
        """Put a run that was taken and not driven where it is by the log, as it was read since."""
        progress: Progress | None = run.progress
        run_id, seen = run.run_id, self._seen.get(run.run_id)
        if seen is None or run_id in self.ready or run_id in self.held:
            return
        if seen > run.version:  # what came since may be what it waits for
            self.ready[run_id] = None
        elif progress is None or run.status in ENDED:
            return  # nothing can come of it but by a claim, which the feed tells
        elif progress.owner is not None:
            self.held[run_id] = Held(progress.owner, progress.deadline_us)
        elif progress.is_ready or not progress.waits:
            self.ready[run_id] = None
        else:
            self._wait(run_id, run.version, progress.due_us)

    def again(self, run_id: str) -> None:
        """Make ready a run that was taken and could not be read or driven; unless it is held, or the log says why."""
        if run_id in self._seen and run_id not in self.held and run_id not in self._refused:
            self.ready[run_id] = None

    def others(self) -> Iterator[tuple[str, Held]]:
        """Give the runs that are held, with who holds them."""
        yield from list(self.held.items())

    def _note_checkpoint(self, run_id: str, version: int, event: CheckpointSaved) -> None:
        if event.waiting is not None:
            self._leave(run_id)
            dues = [wait.due_us for wait in (event.waiting, *event.also_waiting) if wait.due_us is not None]
            self._wait(run_id, version, min(dues, default=None))
        elif event.definition is not None or event.is_released:
            self._leave(run_id)
            self.ready[run_id] = None

    def _wait(self, run_id: str, version: int, due_us: int | None) -> None:
        """Let it wait from `version` on, which ends every earlier timer of it, until a time if there is one."""
        self._waiting[run_id] = version
        if due_us is None:
            return
        if len(self._timers) > _MIN_TIMERS + 2 * len(self._waiting):
            self._timers[:] = [timer for timer in self._timers if self._waiting.get(timer[1]) == timer[2]]
            heapq.heapify(self._timers)
        heapq.heappush(self._timers, (due_us, run_id, version))

    def _due_earlier(self, run_id: str, due_us: int | None) -> None:
        """Note a time that may be before the one that the run is known to wait for; it is looked at then as well."""
        if run_id in self._waiting and due_us is not None:
            heapq.heappush(self._timers, (due_us, run_id, self._waiting[run_id]))

    def _refuse(self, run_id: str, version: int) -> None:
        self._waiting[run_id] = version
        self._refused[run_id] = None

    def _wake(self, run_id: str) -> None:
        if run_id in self._waiting:
            self.ready[run_id] = None

    def _leave(self, run_id: str) -> None:
        self._refused.pop(run_id, None)
        self.ready.pop(run_id, None)
        self.held.pop(run_id, None)
        self._waiting.pop(run_id, None)

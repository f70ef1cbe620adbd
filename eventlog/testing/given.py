"""Given, when, then: a run's past, a command, what comes out. Nothing is stored and nothing waits.

    given(*started, run_id="run-1")
        .when(lambda run: decide.record_decision(run, "approve", HASH, actor_source="cli"))
        .then(ProposalVerified(…), ApprovalRecorded(…))
        .when(lambda run: decide.resume(run, "/other/place"))
        .then_refused("output_mismatch", ProposalRejected(…))

What came out becomes the past of the next command, so a whole life of a run reads from top to bottom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from eventlog.decide import Accepted, Refusal, Replay
from eventlog.errors import EventLogError
from eventlog.events import RunEvent
from eventlog.run import Run, evolve

__all__ = ["Given", "When", "given"]

Outcome = Accepted | Refusal | Replay | tuple[RunEvent, ...] | None
Command = Callable[[Run], Outcome]


def given(*events: RunEvent, run_id: str = "run-1") -> Given:
    """Return the run whose stream holds exactly these events."""
    return Given(Run(run_id=run_id)).and_given(*events)


class Given:
    """A run with a past. `run` is its state."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def and_given(self, *events: RunEvent) -> Given:
        """Return the same run with more events behind."""
        run = self.run
        for event in events:
            run = replace(evolve(run, event), version=run.version + 1)
        return Given(run)

    def has(self, **fields: Any) -> Given:
        """Assert that fields of the state have these values."""
        found = {name: getattr(self.run, name) for name in fields}
        assert found == fields
        return self

    def when(self, command: Command) -> When:
        """Give the run to a command of `eventlog.decide`."""
        try:
            return When(self, command(self.run), None)
        except EventLogError as error:
            return When(self, None, error)


class When:
    """What a command made of a run. Each assertion returns the run with what was decided appended."""

    def __init__(self, past: Given, outcome: Outcome | None, raised: EventLogError | None) -> None:
        self.past = past
        self.outcome = outcome
        self.raised = raised

    def then(self, *events: RunEvent) -> Given:
        """Assert that the command was accepted, with exactly these events; none where it only does not refuse."""
        assert self.raised is None
        assert not isinstance(self.outcome, Refusal | Replay)
        found = self.outcome.events if isinstance(self.outcome, Accepted) else self.outcome or ()
        assert found == events
        return self.past.and_given(*events)

    def then_refused(self, code: str, event: RunEvent) -> Given:
        """Assert that the command was refused with this code, and that exactly this event records the refusal."""
        assert self.raised is None
        assert isinstance(self.outcome, Refusal)
        assert (self.outcome.error.code, self.outcome.event) == (code, event)
        return self.past.and_given(event)

    def then_replayed(self, event: RunEvent) -> Given:
        """Assert that the run had ended already, and that exactly this event records the replay."""
        assert self.raised is None
        assert isinstance(self.outcome, Replay)
        assert self.outcome.event == event
        return self.past.and_given(event)

    def then_raises(self, code: str) -> Given:
        """Assert that the command raised an error with this code: nothing can be recorded, and the run is as it was."""
        assert self.raised is not None
        assert self.raised.code == code
        return self.past

"""What is known of a workflow run: its steps, requests, waits, children and claim."""

from __future__ import annotations

from copy import copy
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from eventlog.events import NOTHING, Definition, Failure, Owner, Parent, Status, Waiting
from eventlog.run import Run

__all__ = ["ENDED", "Child", "Progress", "Step", "Stored", "Timer", "as_of_now", "request_of", "requests_of"]

ENDED: Final = frozenset({Status.COMPLETED, Status.CANCELLED, Status.FAILED, Status.REJECTED, Status.EXPIRED})
"""How a workflow run can have ended. One that FAILED can be taken up again, by a claim; the others stay as they are."""


class Stored(msgspec.Struct, omit_defaults=True, gc=False):
    """A value as the log has it: its JSON text, or the digest of that text where it is kept as an artifact.

    `version` is that of the event that has it. A snapshot leaves large texts out: then neither is there, and the event
    is read when somebody asks.
    """

    json: msgspec.Raw = NOTHING
    artifact: str | None = None
    version: int = 0

    @property
    def is_left_out(self) -> bool:
        """Whether the text has to be read from the event."""
        return self.artifact is None and self.version > 0 and self.json == NOTHING


class Step(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """A step, or something else that was recorded once: a value of the world, a signal that was taken."""

    name: str
    kind: str = "step"
    attempts: int = 0
    forgotten: int = 0
    """How many of the attempts belong to failures that were forgotten."""
    is_done: bool = False
    value: Stored = msgspec.field(default_factory=Stored)
    input: str | None = None
    retry_at_us: int | None = None


class Timer(msgspec.Struct, gc=False):
    """A timer of a step, or the time-out of its wait."""

    due_us: int
    has_fired: bool = False


class Child(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run that this one has started."""

    run_id: str
    workflow: str
    relation: str
    input: str | None = None
    status: Status | None = None
    """How it has ended, once it has."""
    value: Stored = msgspec.field(default_factory=Stored)


class Progress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The state of a workflow run beyond what every `Run` has. All dicts are in the order of the log."""

    definition: Definition
    input: Stored
    parent: Parent | None = None
    owner: Owner | None = None
    """Who drives the run; None while nobody does."""
    deadline_us: int = 0
    steps: dict[str, Step] = {}
    requests: dict[str, Run] = {}
    """The requests of the run by step key, each as of its own last event; `requests_of` gives them as of now."""
    first_hashes: dict[str, str] = {}
    """What each request asked for before a person edited it."""
    closed_hashes: dict[str, tuple[str, ...]] = {}
    """What each request asked for, the current proposal aside, if people have edited it: the oldest first."""
    timers: dict[str, Timer] = {}
    children: dict[str, Child] = {}
    signals: dict[str, list[Stored]] = {}
    """Signals by name that no step has taken yet, the oldest first."""
    groups: dict[str, str] = {}
    """The group of each step that belongs to one."""
    failures: dict[str, Failure] = {}
    """What the workflow is told of each step, effect or child that failed."""
    committed: dict[str, int] = {}
    """The step keys that are committed, and the state version that each was committed in."""
    waits: tuple[Waiting, ...] = ()
    """What the paused run waits for, the oldest first."""
    arrived: tuple[str, ...] = ()
    """The step keys of what the paused run waited for and what has come since."""
    value: Stored = msgspec.field(default_factory=Stored)
    """What the workflow returned."""
    evidence: dict[str, list[int]] = {}
    """The versions of the proposal and the decisions of each request."""
    snapshot_version: int = 0
    """The version of the last checkpoint with a snapshot."""

    @property
    def is_ready(self) -> bool:
        """Whether something that the paused run waited for has come."""
        return bool(self.arrived)

    @property
    def due_us(self) -> int | None:
        """When the paused run can go on by itself, if it can."""
        return min((wait.due_us for wait in self.waits if wait.due_us is not None), default=None)

    def copied(self) -> Progress:
        """Return the progress as it is now, which no later fold of this one changes."""
        return replace(
            self,
            steps={key: copy(step) for key, step in self.steps.items()},
            requests=dict(self.requests),
            first_hashes=dict(self.first_hashes),
            closed_hashes=dict(self.closed_hashes),
            timers={key: copy(timer) for key, timer in self.timers.items()},
            children={key: copy(child) for key, child in self.children.items()},
            signals={name: list(kept) for name, kept in self.signals.items()},
            groups=dict(self.groups),
            failures=dict(self.failures),
            committed=dict(self.committed),
            evidence={key: list(versions) for key, versions in self.evidence.items()},
        )

    def known_keys(self) -> set[str]:
        """Return the keys of all that the workflow has asked for so far and that has left a trace."""
        return {*self.steps, *self.requests, *self.timers, *self.children}

    def kind_of(self, key: str) -> str | None:
        """Return what the workflow has asked for under this key: `step`, `value`, `signal`, `timer`, `act`, …"""
        if key in self.requests:
            return "act"
        if key in self.children:
            return self.children[key].relation
        if key in self.steps:
            return self.steps[key].kind
        return "timer" if key in self.timers else None

    def pending_writes(self) -> dict[str, Stored | Any]:
        """Return what is done and not committed: the value of a step or child, the result of an effect."""
        done: dict[str, Any] = {key: step.value for key, step in self.steps.items() if step.is_done}
        done |= {key: run.result for key, run in self.requests.items() if run.executed}
        done |= {key: child.value for key, child in self.children.items() if child.status is Status.COMPLETED}
        return {key: value for key, value in done.items() if key not in self.committed}


def requests_of(run: Run) -> tuple[Run, ...]:
    """Return the requests of a run as of now, the oldest first: in a run of one action the run itself."""
    if run.progress is None:
        return (run,) if run.proposal is not None else ()
    return tuple(as_of_now(run, request) for request in run.progress.requests.values())


def request_of(run: Run, key: str) -> Run | None:
    """Return the request of step `key` as of now, or None if it has asked nothing yet."""
    found = run.progress.requests.get(key) if run.progress is not None else None
    return as_of_now(run, found) if found is not None else None


def as_of_now(run: Run, request: Run) -> Run:
    """Return a request with the version, epoch and time of the whole stream, at which decisions on it are appended."""
    return replace(
        request,
        version=run.version,
        epoch=run.epoch,
        state_version=run.state_version,
        recorded_at_us=run.recorded_at_us,
        root_run_id=run.root_run_id,
        redacted=run.redacted,
    )

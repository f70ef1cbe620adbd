"""What a worker does next is what the log says can go on: the agenda beside the fold, on random histories. Pure.

A history is made event by event, as drives, people, other runs and verdicts would append them, and each state of the
run is kept. The agenda is told late, and what a worker has read is sometimes old by then. Whenever it knows all, a run
that can go on has to be ready or held, and one that waits for a time has to be ready by then.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random

import pytest
from msgspec.structs import replace

from eventlog.events import (
    RUN_EVENTS,
    ApprovalExpired,
    ApprovalRevoked,
    CheckpointSaved,
    ChildFinished,
    ChildStarted,
    ClaimRenewed,
    OutcomeReconciled,
    ResumeRejected,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    SignalReceived,
    Status,
    Waiting,
    run_stream,
)
from eventlog.log import RecordedEvent
from eventlog.progress import ENDED, requests_of
from eventlog.run import Run
from eventlog.runtime.agenda import TYPES, Agenda
from tests.test_progress import BEGUN, CLAIMED, FAILURE, OWNER, asks, decides, done, folded
from tests.workflow_runs import progress_of

RUN = "run-1"
STEPS = 60
SEEDS = 400
KEYS = ("a", "b")
TYPE_OF = {cls: name for name, cls in RUN_EVENTS.items()}


def recorded(event: RunEvent, version: int, run_id: str = RUN) -> RecordedEvent:
    """Return the event as the feed tells it."""
    return RecordedEvent(
        position=version,
        stream=run_stream(run_id),
        version=version,
        type=TYPE_OF[type(event)],
        schema_version=1,
        event_id=b"",
        recorded_at_us=0,
        actor="ann",
        correlation_id=None,
        causation_id=None,
        body=b"",
        data=event,
        is_known=True,
        leaf=b"",
        prev_in_stream=b"",
    )


class History:
    """One run: its events, the states that they lead to, and an agenda that is told of them."""

    def __init__(self, chance: Random, agenda: Agenda) -> None:
        self.chance = chance
        self.agenda = agenda
        self.events: list[RunEvent] = []
        self.states: list[Run] = [Run(run_id=RUN)]
        self.told = 0
        self.now_us = 0
        self.add(BEGUN)

    @property
    def run(self) -> Run:
        """The run as it is now."""
        return self.states[-1]

    def add(self, *events: RunEvent) -> None:
        """Append events to the log; the agenda is not told yet."""
        for event in events:
            before = self.run
            if before.progress is not None:
                before = replace(before, progress=before.progress.copied())
            self.events.append(event)
            self.states.append(folded(event, start=before))

    def tell(self) -> None:
        """Tell the agenda all that it has not been told."""
        for version, event in enumerate(self.events[self.told :], self.told + 1):
            if TYPE_OF[type(event)] in TYPES:
                self.agenda.note(recorded(event, version))
        self.told = len(self.events)

    def happen(self) -> None:
        """Let something happen that may happen now."""
        run, chance = self.run, self.chance
        if chance.random() < 0.25:
            self.now_us += chance.randrange(40)
            return
        outside: list[Callable[[], None]] = [self.hear_from_outside] * 2
        if run.status in ENDED:
            if run.status is Status.FAILED or chance.random() < 0.2:
                outside.append(self.settle)
            if run.status is Status.FAILED:
                outside.append(self.claim)
        elif progress_of(run).owner is not None:
            outside += [self.drive] * 4 + [self.settle]
        else:
            outside += [self.claim, self.settle]
        chance.choice(outside)()

    def claim(self) -> None:
        self.add(RunClaimed(epoch=self.run.version + 1, owner=OWNER, deadline_us=self.now_us + 50))

    def settle(self) -> None:
        """Say what became of an effect whose owner is dead, as `Verdicts` does."""
        run = self.run
        self.claim()
        if run.status is Status.FAILED:
            self.add(RunFailed(error=FAILURE))
        elif run.status not in ENDED:
            self.add(CheckpointSaved(status=Status.RUNNING, state_version=run.state_version, is_released=True))

    def drive(self) -> None:
        """Let who holds the run do the next thing."""
        chance, key = self.chance, self.chance.choice(KEYS)
        match chance.randrange(9):
            case 0:
                if not any(request.step == key for request in requests_of(self.run)):
                    self.add(asks(key, expires_at_us=chance.choice([None, self.now_us + chance.randrange(60)])))
            case 1 | 2 | 3 | 4:
                self.pause()
            case 5:
                self.add(CheckpointSaved(status=Status.RUNNING, state_version=2, is_released=True))
            case 6:
                self.add(ClaimRenewed(epoch=self.run.epoch, deadline_us=self.now_us + 90))
            case 7:
                self.add(done(f"step-{len(self.events)}"))
            case _:
                if chance.random() < 0.5:
                    self.add(RunFailed(error=FAILURE, status=chance.choice([Status.FAILED, Status.REJECTED])))
                elif chance.random() < 0.2:
                    self.add(RunCompleted())
                self.add(ChildStarted(key="child", child_run_id="run-2", workflow="it"))

    def pause(self) -> None:
        waits = [
            Waiting(
                type="approval",
                node_id=request.step or "",
                approval_id=request.request_id,
                due_us=request.expires_at_us,
            )
            for request in requests_of(self.run)
            if request.status is Status.WAITING_FOR_USER
        ]
        others = [
            Waiting(type="signal", node_id="go:signal", signal="go"),
            Waiting(type="timer", node_id="nap", due_us=self.now_us + self.chance.randrange(60)),
            Waiting(type="child", node_id="child", child_run_id="run-2"),
        ]
        waits += self.chance.sample(others, self.chance.randrange(3))
        if waits:
            self.add(
                CheckpointSaved(status=Status.WAITING, state_version=2, waiting=waits[0], also_waiting=tuple(waits[1:]))
            )

    def hear_from_outside(self) -> None:
        """Let a person, another run or the time say something."""
        chance = self.chance
        requests = [each for each in requests_of(self.run) if each.status in ("WAITING_FOR_USER", "APPROVED")]
        if chance.random() < 0.3 or not requests:
            heard: list[RunEvent] = [
                SignalReceived(name="go"),
                SignalReceived(name="other"),
                ChildFinished(key="child", child_run_id="run-2", status=Status.COMPLETED),
                *([RunCancelled(actor_source="os")] if chance.random() < 0.1 else []),
            ]
            self.add(chance.choice(heard))
            return
        request = chance.choice(requests)
        key, request_id = request.step or "", request.request_id or ""
        if request.status is Status.APPROVED:
            self.add(ApprovalRevoked(step=key, request_id=request_id, actor_source="os"))
            return
        due_us = chance.choice([None, self.now_us + chance.randrange(60)])
        said: list[RunEvent] = [
            decides(key),
            decides(key, is_deciding=False),
            ApprovalExpired(step=key, request_id=request_id, expires_at_us=self.now_us),
            asks(key, supersedes=request_id, expires_at_us=due_us),
        ]
        self.add(chance.choice(said))

    def look(self) -> None:
        """Let a worker take the run, find that it is not for him to drive, and put it back; others act meanwhile."""
        if RUN not in self.agenda.ready:
            return
        self.agenda.take(RUN)
        self.happen_and_perhaps_tell()
        if self.chance.random() < 0.2:
            self.agenda.again(RUN)
            return
        read = self.run
        self.happen_and_perhaps_tell()
        self.agenda.found(read)

    def happen_and_perhaps_tell(self) -> None:
        for _ in range(self.chance.randrange(3)):
            self.happen()
        if self.chance.random() < 0.5:
            self.tell()

    def find_dead(self) -> None:
        """Let a worker see that who held the run is dead."""
        if RUN in self.agenda.held:
            self.agenda.abandoned(RUN)

    def lost(self) -> str | None:
        """Say what nobody would ever do, by what the agenda knows now; None if there is nothing."""
        run, progress = self.run, progress_of(self.run)
        self.agenda.due(self.now_us)
        if run.status in ENDED or RUN in self.agenda.ready:
            return None
        if progress.owner is not None:
            return None if RUN in self.agenda.held else "nobody looks after who holds it"
        due_us = progress.due_us
        if progress.is_ready or not progress.waits or (due_us is not None and due_us <= self.now_us):
            return "it can go on"
        if due_us is None:
            return None
        later = deepcopy(self.agenda)
        later.due(due_us)
        return None if RUN in later.ready else f"it can go on at {due_us}"


def first_loss(agenda: type[Agenda]) -> str | None:
    """Return what is lost in the first of many histories in which an agenda of this class loses anything."""
    for seed in range(SEEDS):
        history = History(Random(seed), agenda())
        for step in range(STEPS):
            history.chance.choice([history.happen, history.happen, history.look, history.look, history.find_dead])()
            if history.chance.random() < 0.7:
                history.tell()
                why = history.lost()
                if why is not None:
                    return f"history {seed}, step {step}: {why}; {history.events}"
    return None


def test_a_run_that_can_go_on_is_never_lost() -> None:
    assert first_loss(Agenda) is None


class _PutsNothingBack(Agenda):
    def found(self, run: Run) -> None: ...


class _TriesNothingAgain(Agenda):
    def again(self, run_id: str) -> None: ...


class _SeesNoEdit(Agenda):
    def _due_earlier(self, run_id: str, due_us: int | None) -> None: ...


class _BelievesWhatIsOld(Agenda):
    def found(self, run: Run) -> None:
        super().found(replace(run, version=10**6))


class _SeesNoRevocation(Agenda):
    def note(self, event: RecordedEvent) -> str | None:
        return None if event.type == "approval_revoked" else super().note(event)


@pytest.mark.parametrize(
    "broken", [_PutsNothingBack, _TriesNothingAgain, _SeesNoEdit, _BelievesWhatIsOld, _SeesNoRevocation]
)
def test_an_agenda_that_forgets_something_is_found_out(broken: type[Agenda]) -> None:
    """The negative control."""
    assert first_loss(broken) is not None


def test_runs_of_one_action_and_runs_that_have_ended_leave_nothing_behind() -> None:
    agenda = Agenda()
    first = CheckpointSaved(
        status=Status.WAITING_FOR_USER, state_version=1, waiting=Waiting(type="approval", node_id="a")
    )
    of_one_action: list[RunEvent] = [first, decides(), CLAIMED]
    of_a_workflow: list[RunEvent] = [BEGUN, CLAIMED, RunCompleted(), CLAIMED]
    for number in range(50):
        for version, event in enumerate(of_one_action, 1):
            agenda.note(recorded(event, version, f"one-{number}"))
        for version, event in enumerate(of_a_workflow, 1):
            agenda.note(recorded(event, version, f"flow-{number}"))
    kept = [each for each in vars(agenda).values() if each is not None]
    assert len(kept) == 6 and not any(kept)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_run_whose_log_says_why_it_cannot_be_driven_is_not_tried_again_by_itself(is_told_first: bool) -> None:
    """The error ends the drive, and what it has left in the log may be told before that or behind it."""
    agenda = Agenda()
    refused: list[RunEvent] = [
        CLAIMED,
        ResumeRejected(reason="log_corrupt", status="RUNNING"),
        CheckpointSaved(status=Status.RUNNING, state_version=1, is_released=True),
    ]
    agenda.note(recorded(BEGUN, 1))
    agenda.take(RUN)
    if not is_told_first:
        agenda.again(RUN)
    for version, event in enumerate(refused, 2):
        agenda.note(recorded(event, version))
    if is_told_first:
        agenda.again(RUN)
    assert not agenda.ready and not agenda.held
    agenda.note(recorded(SignalReceived(name="go"), 5))
    assert RUN in agenda.ready, "but when something new has happened"
    agenda.take(RUN)
    agenda.again(RUN)
    assert RUN in agenda.ready, "and then as often as it takes"


def test_a_run_that_is_refused_before_it_is_claimed_waits_for_a_program_that_can_drive_it() -> None:
    """As one whose code is not registered here: a worker took it, and the log says why it was not driven."""
    agenda = Agenda()
    agenda.note(recorded(BEGUN, 1))
    agenda.take(RUN)
    agenda.note(recorded(ResumeRejected(reason="unknown_workflow", status="RUNNING"), 2))
    agenda.again(RUN)
    assert not agenda.ready and not agenda.held, "it would be refused again at once"
    agenda.try_refused()
    assert RUN in agenda.ready, "another program, or later code, may know it"


def test_timers_that_mean_nothing_any_more_are_thrown_away() -> None:
    agenda = Agenda()
    agenda.note(recorded(BEGUN, 1))
    nap = Waiting(type="timer", node_id="nap", due_us=10**9)
    for version in range(2, 20_000):
        agenda.note(recorded(CheckpointSaved(status=Status.WAITING, state_version=2, waiting=nap), version))
    assert len(agenda._timers) < 2000 and agenda.due(0) == 10**9


def test_a_verdict_on_a_run_that_has_ended_does_not_make_it_ready() -> None:
    agenda = Agenda()
    reconciled = OutcomeReconciled(
        step="apply",
        action="apply",
        op_key="k",
        verdict="executed",
        status=Status.CANCELLED,
        evidence="e",
        actor_source="os",
    )
    events: list[RunEvent] = [BEGUN, RunCancelled(actor_source="os"), CLAIMED, reconciled]
    for version, event in enumerate(events, 1):
        agenda.note(recorded(event, version))
    assert not agenda.ready and not agenda.held

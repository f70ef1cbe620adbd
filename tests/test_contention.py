"""A run that changes faster than anything can be decided on it: whoever tries is told so, after so many tries.

And what happens to a result that cannot be recorded as it is: it is recorded without what the log cannot hold, or the
resumer is told, and never that nothing happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog.errors import (
    ClaimLost,
    CommitOutcomeUnknown,
    EventLogError,
    InvalidInput,
    LogCorrupt,
    OutcomeUnknown,
    Refused,
    RunConflict,
    StoreBusy,
    StoreUnavailable,
)
from eventlog.events import (
    ActionExecuted,
    ActionFailed,
    ActionReplayed,
    Failure,
    Owner,
    ProposalRecorded,
    RunEvent,
    run_stream,
)
from eventlog.log import Append, Expect, RunLog
from eventlog.plain import Limits
from eventlog.run import Run, Status
from eventlog.runtime.failpoints import EFFECT_AFTER, INTENT_AFTER_COMMIT, pass_by
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams
from eventlog.testing.clock import FakeClock
from tests.effect_runs import Crash, Receiver, Sending, approved, crash_at, intent_of, runner_of, types_of


class Contended:
    """A log in which another program is quicker: it notes something in the run before each append of ours.

    It gives up after `times`.
    """

    def __init__(self, log: RunLog, times: int = 1000) -> None:
        self._log = log
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> Any:
        """Let the other one in first."""
        await self._is_overtaken(appends[-1].stream)
        return await self._log.append_reserved(appends, **options)

    async def append_with(self, stream: str, *arguments: Any, **options: Any) -> Any:
        """Let the other one in first."""
        await self._is_overtaken(stream)
        return await self._log.append_with(stream, *arguments, **options)  # type: ignore[attr-defined]

    async def _is_overtaken(self, stream: str) -> None:
        if self.left:
            self.left -= 1
            note = ActionReplayed(reason="already_completed")
            await self._log.append_reserved([Append(stream, [note], Expect.any())])


class Failing:
    """A log whose appends fail with `error`."""

    def __init__(self, log: RunLog, error: EventLogError) -> None:
        self._log = log
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> Any:
        """Fail."""
        raise self._error


class Busy:
    """A log that answers each result that came too late with one of these errors first."""

    def __init__(self, log: RunLog, *errors: EventLogError) -> None:
        self._log = log
        self.errors = list(errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, appends: Sequence[Append], **options: Any) -> Any:
        """Fail, or append."""
        if appends[0].events[0].type == "result_rejected" and self.errors:
            raise self.errors.pop(0)
        return await self._log.append_reserved(appends, **options)


async def executed(log: RunLog, clock: FakeClock, action: Sending) -> None:
    await approved(runner_of(log, clock))
    await runner_of(log, clock, action).resume("run-1")


async def begun(log: RunLog, clock: FakeClock) -> Run:
    """Return the run, whose effect has begun and has no result yet."""
    runner = runner_of(log, clock, Sending(Receiver()), reach=crash_at(INTENT_AFTER_COMMIT))
    await approved(runner)
    with pytest.raises(Crash):
        await runner.resume("run-1")
    return await runner.state("run-1")


def result_of(run: Run, result: Any = None) -> ActionExecuted:
    assert run.op_key is not None
    return ActionExecuted(action="send", op_key=run.op_key, result=result)


async def resume_what_has_ended(log: RunLog, clock: FakeClock, contended: Any) -> object:
    await executed(log, clock, Sending(Receiver()))
    return await runner_of(contended, clock, Sending(Receiver())).resume("run-1")


async def resume_what_is_not_approved(log: RunLog, clock: FakeClock, contended: Any) -> object:
    await runner_of(log, clock).propose("run-1", eventlog.propose("send", {}, "target"))
    return await runner_of(contended, clock, Sending(Receiver())).resume("run-1")


async def undo_what_cannot_be_undone(log: RunLog, clock: FakeClock, contended: Any) -> object:
    await executed(log, clock, Sending(Receiver()))
    return await runner_of(contended, clock, Sending(Receiver())).compensate("run-1")


async def undo_what_is_undone(log: RunLog, clock: FakeClock, contended: Any) -> object:
    first, undo = Sending(Receiver(), compensation="undo"), Sending(Receiver())
    undo.name = "undo"
    await executed(log, clock, first)
    await runner_of(log, clock, first, undo).compensate("run-1")
    return await runner_of(contended, clock, first, undo).compensate("run-1")


async def settle_what_is_known(log: RunLog, clock: FakeClock, contended: Any) -> object:
    await executed(log, clock, Sending(Receiver()))
    return await runner_of(contended, clock, Sending(Receiver())).reconcile("run-1", "executed", evidence="seen")


async def settle_what_is_unknown(log: RunLog, clock: FakeClock, contended: Any) -> object:
    action = Sending(Receiver())
    await approved(runner_of(log, clock))
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(EFFECT_AFTER)).resume("run-1")
    with pytest.raises(OutcomeUnknown):
        await runner_of(log, clock, action).resume("run-1")
    return await runner_of(contended, clock, action).reconcile("run-1", "executed", evidence="seen")


async def settle_what_nobody_asked_for(log: RunLog, clock: FakeClock, contended: Any) -> object:
    await executed(log, clock, Sending(Receiver()))
    runner = runner_of(contended, clock, Sending(Receiver()))
    return await runner.reconcile("run-1", "executed", evidence="seen", request="another")


COMMANDS = [
    resume_what_has_ended,
    resume_what_is_not_approved,
    undo_what_cannot_be_undone,
    undo_what_is_undone,
    settle_what_is_known,
    settle_what_is_unknown,
    settle_what_nobody_asked_for,
]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=[each.__name__ for each in COMMANDS])


@each_command
async def test_a_run_that_changes_faster_than_it_can_be_decided_on_is_a_conflict(
    log: RunLog, clock: FakeClock, command: Any
) -> None:
    contended = Contended(log)
    with pytest.raises(RunConflict, match="changes faster than"):
        await command(log, clock, contended)
    assert 1000 - contended.left == MAX_REDECISIONS


@each_command
async def test_whoever_is_overtaken_once_decides_anew_and_comes_to_the_same(
    log: RunLog, clock: FakeClock, command: Any
) -> None:
    try:
        came_to = type(await command(log, clock, Contended(log, times=1))).__name__
    except EventLogError as error:
        came_to = error.code
    expected = {
        resume_what_has_ended: "Outcome",
        resume_what_is_not_approved: "approval_required",
        undo_what_cannot_be_undone: "cannot_compensate",
        undo_what_is_undone: "Outcome",
        settle_what_is_known: "outcome_not_unknown",
        settle_what_is_unknown: "Outcome",
        settle_what_nobody_asked_for: "unknown_request",
    }
    assert came_to == expected[command]


async def test_a_result_that_is_overtaken_again_and_again_is_a_conflict(log: RunLog, clock: FakeClock) -> None:
    run = await begun(log, clock)
    contended: Any = Contended(log)
    with pytest.raises(RunConflict, match="changes faster than a result can be recorded"):
        await RunStreams(contended, pass_by).record(run, result_of(run), None)
    assert 1000 - contended.left == MAX_REDECISIONS


async def test_a_result_that_is_written_with_its_effect_and_overtaken_again_and_again_is_a_conflict(
    log: RunLog, clock: FakeClock
) -> None:
    if not hasattr(log, "append_with"):
        pytest.skip("a log in memory has no database")
    run = await begun(log, clock)
    contended: Any = Contended(log)
    with pytest.raises(RunConflict, match="changes faster than a result can be recorded"):
        await RunStreams(contended, pass_by).record_with(run, ActionExecuted, lambda _: result_of(run), None)


async def test_a_verdict_whose_append_fails_leaves_the_proof_of_its_claim(log: RunLog, clock: FakeClock) -> None:
    await settle_what_is_unknown(log, clock, log)
    broken: Any = Failing(log, StoreUnavailable("store_io_error", "the disk is broken"))
    await approved(runner_of(log, clock), "run-2")
    action = Sending(Receiver())
    with pytest.raises(Crash):
        await runner_of(log, clock, action, reach=crash_at(EFFECT_AFTER)).resume("run-2")
    with pytest.raises(StoreUnavailable):
        await runner_of(broken, clock, action).reconcile("run-2", "executed", evidence="seen")
    assert (await runner_of(log, clock).state("run-2")).open_intent is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda run: ActionExecuted(action="send", op_key="\ud800", result=[1]),
        lambda run: ActionFailed(action="send", op_key=run.op_key, error=Failure(code="x", message="\ud800")),
    ],
    ids=["of no key", "a failure"],
)
async def test_a_result_that_cannot_be_stored_even_without_its_payload_is_refused(
    log: RunLog, clock: FakeClock, make: Any
) -> None:
    run = await begun(log, clock)
    event: RunEvent = make(run)
    with pytest.raises(InvalidInput):
        await RunStreams(log, pass_by).record(run, event, None)
    assert (await types_of(log))[-1] == "resume_started"


async def test_a_late_result_that_is_too_deep_for_its_trace_leaves_a_trace_without_it(
    log: RunLog, clock: FakeClock
) -> None:
    run = await begun(log, clock)
    deep: Any = 0
    for _ in range(Limits().depth - 1):  # as deep as it may be, and in its trace one deeper
        deep = [deep]
    other = await runner_of(log, clock).state("run-1")
    await intent_of(log, other, Owner(host="h", boot="b", lock="l"), op_key=run.op_key or "", deadline_us=2**50)
    with pytest.raises(ClaimLost):
        await RunStreams(log, pass_by).record(run, result_of(run, deep), None)
    stored = (await log.read_stream(run_stream("run-1"))).events[-1]
    assert (stored.type, stored.data.result["not_stored"]) == ("result_rejected", "payload_too_deep")


@pytest.mark.parametrize("tries", [1, 2, 3, 4])
async def test_a_late_result_leaves_its_trace_though_the_store_is_busy_or_does_not_know(
    log: RunLog, clock: FakeClock, tries: int
) -> None:
    """The fourth error is told: nothing is left to try."""
    run = await begun(log, clock)
    other = await runner_of(log, clock).state("run-1")
    await intent_of(log, other, Owner(host="h", boot="b", lock="l"), op_key=run.op_key or "", deadline_us=2**50)
    errors = [StoreBusy("not now"), CommitOutcomeUnknown([], "perhaps")] * 2
    busy: Any = Busy(log, *errors[:tries])
    with pytest.raises(EventLogError) as raised:
        await RunStreams(busy, pass_by).record(run, result_of(run, "sent"), None)
    assert isinstance(raised.value, ClaimLost if tries < 4 else CommitOutcomeUnknown)
    assert not busy.errors
    stored = (await log.read_stream(run_stream("run-1"))).events[-1]
    assert stored.type == ("result_rejected" if tries < 4 else "resume_started")


async def test_a_note_that_is_refused_for_another_reason_than_an_erased_subject_is_told(
    log: RunLog, clock: FakeClock
) -> None:
    await executed(log, clock, Sending(Receiver()))
    closed: Any = Failing(log, Refused("run_erased", "nothing of it is left"))
    with pytest.raises(Refused) as raised:
        await runner_of(closed, clock, Sending(Receiver())).resume("run-1")
    assert raised.value.code == "run_erased"


async def test_a_run_whose_proposal_cannot_be_read_is_a_damaged_log(log: RunLog) -> None:
    event = ProposalRecorded(request_id="r", proposal=msgspec.Raw(b"{}"), proposal_hash="0" * 64)
    await log.append_reserved([Append(run_stream("run-1"), [event], Expect.any())])
    with pytest.raises(LogCorrupt) as caught:
        await RunStreams(log, pass_by).load("run-1")
    assert caught.value.reason == "event_malformed"


async def test_a_run_can_be_read_as_it_was_at_a_version(log: RunLog, clock: FakeClock) -> None:
    await executed(log, clock, Sending(Receiver()))
    before = await runner_of(log, clock).state("run-1", at_version=1)
    assert (before.version, before.status) == (1, Status.WAITING_FOR_USER)

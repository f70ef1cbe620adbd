"""What a resumer knows of its effect is not lost: not when it comes late, lies, cannot be stored, or the store is busy.

Nobody else may ever know it. So a result that no longer counts is noted as `result_rejected`, one that the log cannot
hold is recorded without what it cannot hold, and one that meets a busy store is offered again under the same event id.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import eventlog
from eventlog.errors import (
    ActionFailed,
    CommitOutcomeUnknown,
    EventTypeUnknown,
    OutcomeUnknown,
    StoreBusy,
)
from eventlog.events import ActionExecuted, ResultRejected, run_stream
from eventlog.log import Append, AppendResult, Expect, NewEvent, RunLog
from eventlog.run import Run, Status
from eventlog.runtime import run_streams
from eventlog.runtime.effects import Call, Conflicted, Executed, Recovered, Report
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import (
    LEASE_S,
    Gate,
    Receiver,
    Sending,
    approved,
    assert_refused_as_unknown,
    end_of,
    give_verdict,
    inside_its_effect,
    late_owner,
    runner_of,
    trace_of,
    types_of,
)
from tools.campaigns.storage.log_files import open_file


class Saying(Sending):
    """Does its effect, and then ends as `say` ends."""

    def __init__(self, say: Callable[[], Any], **rest: Any) -> None:
        super().__init__(Receiver(), **rest)
        self.say = say

    async def execute(self, call: Call) -> Report:
        """Act, and say what is to be said."""
        await super().execute(call)
        report: Report = self.say()
        return report


def raises(error: BaseException) -> Callable[[], Any]:
    def say() -> Any:
        raise error

    return say


async def fenced(log: RunLog, clock: FakeClock, action: Sending) -> tuple[Run, str | None]:
    """Let a late owner of `run-1` end behind the resumer that overruled it; return the run before, and its end."""
    holder, gate = await late_owner(log, clock, action)
    other = runner_of(log, clock, action)
    assert await end_of(other.resume("run-1")) == "outcome_unknown"
    before = await other.state("run-1")
    gate.open()
    return before, await end_of(holder)


# ── a result that comes too late ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_that_comes_too_late_is_noted_with_everything_it_says(log: RunLog, clock: FakeClock) -> None:
    action = Saying(lambda: Executed(result={"number": 7}))
    _, end = await fenced(log, clock, action)
    assert end == "claim_lost"
    started = next(event.data for event in await trace_of(log) if event.type == "resume_started")
    last = (await trace_of(log))[-1]
    assert last.type == "result_rejected"
    assert last.data == ResultRejected(
        reason="claim_lost",
        rejected="action_executed",
        op_key=started.op_key,
        epoch=0,
        attempt=1,
        result={"result": {"number": 7}},
    )
    assert last.data.op_key == action.calls[0].op_key


async def test_a_late_result_says_under_which_epoch_and_in_which_attempt_it_was_made(
    log: RunLog, clock: FakeClock
) -> None:
    action = Saying(raises(TimeoutError("no answer")))
    runner = runner_of(log, clock, action)
    await approved(runner)
    assert await end_of(runner.resume("run-1")) == "outcome_unknown"
    await give_verdict(runner, "not_executed", evidence="I looked")
    action.say = lambda: Recovered(evidence="seen")
    gate = action.gate = Gate()
    holder = asyncio.create_task(runner.resume("run-1"))
    await gate.wait_until_reached()
    action.gate = None
    clock.advance(LEASE_S + 1)
    assert await end_of(runner.resume("run-1")) == "outcome_unknown"
    gate.open()
    assert await end_of(holder) == "claim_lost"
    last = (await trace_of(log))[-1].data
    assert (last.rejected, last.attempt, last.result) == ("action_recovered", 2, {"evidence": "seen"})


async def test_a_result_that_comes_too_late_changes_nothing_but_what_is_known_to_be_late(
    log: RunLog, clock: FakeClock
) -> None:
    action = Saying(lambda: Executed(result=7))
    before, _ = await fenced(log, clock, action)
    after = await runner_of(log, clock).state("run-1")
    assert before.late is None
    assert after.late is not None
    assert after.version == before.version + 1
    assert replace(after, late=None, version=before.version, recorded_at_us=before.recorded_at_us) == before
    await assert_refused_as_unknown(runner_of(log, clock, action))
    assert len(action.receiver.effects) == 1


async def test_an_undoing_that_comes_too_late_is_noted_as_well(log: RunLog, clock: FakeClock) -> None:
    first, undo = Sending(Receiver(), compensation="undo"), Saying(lambda: Executed(result="refunded"))
    undo.name = "undo"
    runner = runner_of(log, clock, first, undo)
    await approved(runner)
    await runner.resume("run-1")
    gate = undo.gate = Gate()
    holder = asyncio.create_task(runner.compensate("run-1"))
    await gate.wait_until_reached()
    undo.gate = None
    clock.advance(LEASE_S + 1)
    assert await end_of(runner.compensate("run-1")) == "outcome_unknown"
    before = await runner.state("run-1")
    gate.open()
    assert await end_of(holder) == "claim_lost"
    last = (await trace_of(log))[-1].data
    assert (last.rejected, last.op_key, last.attempt) == ("compensation_executed", undo.calls[0].op_key, 1)
    assert last.result["result"] == "refunded"
    after = await runner.state("run-1")
    assert replace(after, late=None, version=before.version, recorded_at_us=before.recorded_at_us) == before


class Opaque:
    """No plain data."""


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


UNSTORABLE: list[tuple[str, Callable[[], Any]]] = [
    ("a cycle", cyclic),
    ("no number", lambda: float("nan")),
    ("a lone surrogate", lambda: "\ud800"),
    ("an object", Opaque),
    ("a set", lambda: {1}),
    ("too large", lambda: "x" * (17 << 20)),
    ("a huge number", lambda: 1 << 20_000),
    ("keys that are no text", lambda: {1: 2}),
]

unstorable = pytest.mark.parametrize("make", [each[1] for each in UNSTORABLE], ids=[each[0] for each in UNSTORABLE])


@unstorable
@pytest.mark.parametrize("kind", ["executed", "recovered"])
async def test_a_late_result_that_cannot_be_stored_leaves_word_of_itself(
    log: RunLog, clock: FakeClock, make: Callable[[], Any], kind: str
) -> None:
    value = make()
    action = Saying(lambda: Executed(result=value) if kind == "executed" else Recovered(evidence=value))
    _, end = await fenced(log, clock, action)
    assert end == "claim_lost"
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.rejected) == ("result_rejected", f"action_{kind}")
    assert last.data.result.keys() & {"not_stored"}
    assert (await runner_of(log, clock).state("run-1")).late == last.data


@unstorable
async def test_a_result_in_time_that_cannot_be_stored_is_recorded_without_it(
    log: RunLog, clock: FakeClock, make: Callable[[], Any]
) -> None:
    runner = runner_of(log, clock, Saying(lambda: Executed(result=make())))
    await approved(runner)
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value) == ("executed", None)
    assert outcome.run.not_stored is not None


# ── reports and errors that are no clear word ────────────────────────────────────────────────────────────────────────


async def end_and_last(log: RunLog, clock: FakeClock, say: Callable[[], Any], is_undoing: bool) -> tuple[Any, Any]:
    """Return how an action ends that says this, as the effect of `run-1` or as its undoing, and the last event."""
    action = Saying(say)
    if not is_undoing:
        runner = runner_of(log, clock, action)
        await approved(runner)
        return await end_of(runner.resume("run-1")), (await trace_of(log))[-1]
    action.name = "undo"
    runner = runner_of(log, clock, Sending(Receiver(), compensation="undo"), action)
    await approved(runner)
    await runner.resume("run-1")
    return await end_of(runner.compensate("run-1")), (await trace_of(log))[-1]


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("a reason that is no text", {"reason": 5}),
    ("no reason", {"reason": None}),
    ("a hash that is no text", {"reason": "x", "existing_content_hash": 5}),
    ("a code that nobody knows", {"reason": "x", "code": "weird code"}),
    ("a code that is no text", {"reason": "x", "code": 5}),
    ("a content that is no text", {"reason": "x", "expected_content": 7}),
    ("a content that is an object", {"reason": "x", "existing_content": Opaque()}),
]

both = pytest.mark.parametrize("is_undoing", [False, True], ids=["the effect", "its undoing"])


@both
@pytest.mark.parametrize("fields", [each[1] for each in MALFORMED], ids=[each[0] for each in MALFORMED])
async def test_a_conflict_with_something_else_than_texts_in_it_is_an_unknown_outcome(
    log: RunLog, clock: FakeClock, fields: dict[str, Any], is_undoing: bool
) -> None:
    end, last = await end_and_last(log, clock, lambda: Conflicted(**fields), is_undoing)
    assert (end, last.type) == ("outcome_unknown", "outcome_unknown")
    assert "something else than texts" in last.data.why


@both
@pytest.mark.parametrize("member", ["reason", "existing_content_hash", "expected_content"])
async def test_a_conflict_whose_text_cannot_be_stored_is_a_conflict_all_the_same(
    log: RunLog, clock: FakeClock, member: str, is_undoing: bool
) -> None:
    fields: dict[str, Any] = {"reason": "x", member: "\ud800"}
    end, last = await end_and_last(log, clock, lambda: Conflicted(**fields), is_undoing)
    assert (end, last.type) == ("output_conflict", "compensation_failed" if is_undoing else "action_conflict")


class Liar(Exception):
    """Raises when it is read."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Garbled(Exception):
    """Cannot be stored as it reads."""

    def __str__(self) -> str:
        return "\ud800x"


LIES: list[tuple[str, Exception, str, str]] = [
    ("a text that raises", Liar(), "outcome_unknown", "Liar: its text cannot be read"),
    ("a text that no log holds", Garbled(), "outcome_unknown", "Garbled: ?x"),
    ("a code that is no text", ActionFailed(5, "x"), "5", "x"),  # type: ignore[arg-type]
    ("a message that is no text", ActionFailed("action_failed", 5), "action_failed", "5"),  # type: ignore[arg-type]
    ("a code that no log holds", ActionFailed("\ud800", "x"), "?", "x"),
    ("facts that are objects", ActionFailed("action_failed", "x", a=Opaque()), "action_failed", "x"),
    ("facts that go in a circle", ActionFailed("action_failed", "\ud800", a=cyclic()), "action_failed", "?"),
    ("facts that no log holds", ActionFailed("action_failed", "x", a="\ud800"), "action_failed", "x"),
]


@both
@pytest.mark.parametrize(("error", "code", "text"), [each[1:] for each in LIES], ids=[each[0] for each in LIES])
async def test_an_error_that_lies_about_itself_ends_the_attempt_as_any_other(
    log: RunLog, clock: FakeClock, error: Exception, code: str, text: str, is_undoing: bool
) -> None:
    end, last = await end_and_last(log, clock, raises(error), is_undoing)
    assert end == code
    if code == "outcome_unknown":
        assert (last.type, last.data.why) == ("outcome_unknown", text)
    else:
        assert last.type == ("compensation_failed" if is_undoing else "action_failed")
        assert (last.data.error.code, last.data.error.message, last.data.error.details) == (code, text, None)


@pytest.mark.parametrize("error", [each[1] for each in LIES], ids=[each[0] for each in LIES])
async def test_a_late_error_that_lies_about_itself_is_noted(log: RunLog, clock: FakeClock, error: Exception) -> None:
    _, end = await fenced(log, clock, Saying(raises(error)))
    assert end == "claim_lost"
    last = (await trace_of(log))[-1]
    assert last.type == "result_rejected"
    assert last.data.rejected == ("action_failed" if isinstance(error, ActionFailed) else "outcome_unknown")


# ── an event of a newer program ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_behind_an_event_that_this_program_does_not_know_is_noted(log: RunLog, clock: FakeClock) -> None:
    action = Saying(lambda: Executed(result={"number": 7}))
    holder, gate = await inside_its_effect(runner_of(log, clock, action), action)
    newer = Append(run_stream("run-1"), [NewEvent("note_added_by_a_newer_program", {})], Expect.any())
    await log.append_reserved([newer])
    gate.open()
    with pytest.raises(EventTypeUnknown):
        await holder
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason, last.data.rejected) == (
        "result_rejected",
        "event_type_unknown",
        "action_executed",
    )
    assert last.data.result == {"result": {"number": 7}}
    assert len(action.receiver.effects) == 1


async def test_without_the_note_nothing_in_the_log_says_that_the_effect_happened(
    log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a late effect that the log knows nothing of is done again after a wrong verdict."""

    async def note_nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(run_streams.RunStreams, "note_rejected", note_nothing)
    action = Sending(Receiver())
    _, end = await fenced(log, clock, action)
    assert end == "claim_lost"
    runner = runner_of(log, clock, action)
    await give_verdict(runner, "not_executed", evidence="I think not")
    await runner.resume("run-1")
    assert len(action.receiver.effects) == 2


# ── a store that is busy ─────────────────────────────────────────────────────────────────────────────────────────────


class Offers:
    """Watches what is appended to a log: the event ids under which `kind` was offered, and how each offer ended.

    `before` is called ahead of each offer, and `behind` after one that was taken.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, log: MemoryLog | SqliteLog, kind: type = ActionExecuted
    ) -> None:
        self.ids: list[Any] = []
        self.ends: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self.behind: Callable[[], None] = lambda: None
        append_reserved = type(log).append_reserved

        async def watched(log: Any, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
            (new, *_) = appends[0].events
            if not isinstance(new.data, kind):
                return await append_reserved(log, appends, **options)
            self.ids.append(new.event_id)
            self.before()
            try:
                results = await append_reserved(log, appends, **options)
            except eventlog.EventLogError as error:
                self.ends.append(error.code)
                raise
            self.ends.append("taken")
            self.behind()
            return results

        monkeypatch.setattr(type(log), "append_reserved", watched)


async def test_a_busy_store_is_offered_the_result_again_under_the_same_event_id(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    async with open_file(path, clock=clock, busy_timeout_s=0.1) as log:
        action = Sending(Receiver())
        holder, gate = await inside_its_effect(runner_of(log, clock, action), action)
        offers = Offers(monkeypatch, log)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            def let_the_third_in() -> None:
                if len(offers.ids) == 3:
                    other.execute("ROLLBACK")

            offers.before = let_the_third_in
            gate.open()
            assert (await holder).result == "executed"
        assert offers.ends == ["store_busy", "store_busy", "taken"]
        assert len(set(offers.ids)) == 1
        assert (await types_of(log)).count("action_executed") == 1
        assert len(action.receiver.effects) == 1


async def test_a_store_that_stays_busy_is_told_to_the_caller_and_the_run_is_as_after_a_death(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    async with open_file(path, clock=clock, busy_timeout_s=0.1) as log:
        action = Sending(Receiver())
        runner = runner_of(log, clock, action)
        holder, gate = await inside_its_effect(runner, action)
        offers = Offers(monkeypatch, log)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            gate.open()
            with pytest.raises(StoreBusy):
                await holder
            other.execute("ROLLBACK")
        assert offers.ends == ["store_busy"] * run_streams._MAX_BUSY
        assert len(set(offers.ids)) == 1
        assert (await types_of(log))[-1] == "resume_started"
        with pytest.raises(OutcomeUnknown):
            await runner.resume("run-1")
        assert len(action.receiver.effects) == 1


async def test_a_busy_store_is_offered_the_note_of_a_late_result_again(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    async with open_file(path, clock=clock, busy_timeout_s=0.1) as log:
        offers = Offers(monkeypatch, log, ResultRejected)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:

            def let_only_the_second_in() -> None:
                other.execute("BEGIN IMMEDIATE" if len(offers.ids) == 1 else "ROLLBACK")

            offers.before = let_only_the_second_in
            before, end = await fenced(log, clock, Sending(Receiver()))
        assert (end, offers.ends, len(set(offers.ids))) == ("claim_lost", ["store_busy", "taken"], 1)
        assert await types_of(log, after=before.version) == ["result_rejected"]


async def test_a_note_that_is_offered_only_once_is_lost_in_a_busy_store(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(run_streams, "_MAX_BUSY", 1)
    path = tmp_path / "log.db"
    async with open_file(path, clock=clock, busy_timeout_s=0.1) as log:
        offers = Offers(monkeypatch, log, ResultRejected)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:

            def keep_it_busy() -> None:
                other.execute("BEGIN IMMEDIATE")

            offers.before = keep_it_busy
            before, end = await fenced(log, clock, Sending(Receiver()))
            other.execute("ROLLBACK")
        assert (end, offers.ends) == ("store_busy", ["store_busy"])
        assert await types_of(log, after=before.version) == []


async def behind_an_unknown_commit(log: MemoryLog | SqliteLog, offers: Offers, runner: eventlog.Runner) -> str | None:
    """Resume `run-1`; the first offer of its result is taken, and the caller is told that nobody knows."""

    def forget_once() -> None:
        if len(offers.ids) == 1:
            raise CommitOutcomeUnknown([], "the commit was not heard of")

    offers.behind = forget_once
    await approved(runner)
    return await end_of(runner.resume("run-1"))


async def test_behind_a_commit_that_nobody_heard_of_the_result_is_there_once(
    log: MemoryLog | SqliteLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = Offers(monkeypatch, log)
    runner = runner_of(log, clock, Sending(Receiver()))
    assert await behind_an_unknown_commit(log, offers, runner) == "executed"
    assert (offers.ends, len(set(offers.ids))) == (["taken", "taken"], 1)
    assert (await types_of(log)).count("action_executed") == 1
    assert (await runner.state("run-1")).status is Status.COMPLETED


async def test_offered_under_another_id_a_result_that_is_there_is_taken_for_anothers(
    log: MemoryLog | SqliteLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the second offer does not find the first."""
    offers = Offers(monkeypatch, log)
    append_reserved = type(log).append_reserved

    async def under_another_id(log: Any, appends: Sequence[Append], **options: Any) -> list[AppendResult]:
        new = [NewEvent(event.type, event.data) for event in appends[0].events]
        return await append_reserved(log, [replace(appends[0], events=new)], **options)

    monkeypatch.setattr(type(log), "append_reserved", under_another_id)
    runner = runner_of(log, clock, Sending(Receiver()))
    assert await behind_an_unknown_commit(log, offers, runner) == "claim_lost"
    assert len(set(offers.ids)) == 2

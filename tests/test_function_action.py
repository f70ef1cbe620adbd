"""An action made of an async function: ten lines, and the options that its promise takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import Call, Executed, Promise
from eventlog.errors import ActionConflict, ActionFailed, InvalidInput, OutcomeUnknown, Refused
from eventlog.events import Owner
from eventlog.log import RunLog
from eventlog.runtime.actions.threads import run_to_the_end
from eventlog.runtime.claims import is_proved_dead
from eventlog.runtime.effects import (
    Absent,
    Finding,
    Inconclusive,
    Inspectable,
    compensation_of,
    key_lifetime_s_of,
    request_life_s_of,
)
from eventlog.runtime.failpoints import EFFECT_AFTER, INTENT_AFTER_COMMIT
from tests.effect_runs import Crash, Receiver, approved, crash_at, types_of

MAILBOX: list[str] = []


@eventlog.action()
async def send_mail(call: Call) -> dict[str, int]:
    """Send a mail, and nobody can ask later whether it went out."""
    MAILBOX.append(call.args["text"])
    return {"number": len(MAILBOX)}


@pytest.fixture
async def log() -> AsyncIterator[RunLog]:
    async with eventlog.open("memory:") as log:
        yield log


async def test_ten_lines_are_an_action(log: RunLog) -> None:
    MAILBOX.clear()
    runner = eventlog.Runner(log, actions=[send_mail])
    proposal = eventlog.propose("send_mail", {"text": "hello"}, "ada")
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value, MAILBOX) == ("executed", {"number": 1}, ["hello"])
    assert (await runner.resume("run-1")).value == {"number": 1}
    assert MAILBOX == ["hello"]


def test_without_options_it_is_called_as_the_function_and_promises_nothing() -> None:
    assert (send_mail.name, send_mail.promise) == ("send_mail", Promise.OPAQUE)
    assert send_mail.__doc__ == "Send a mail, and nobody can ask later whether it went out."
    assert not isinstance(send_mail, Inspectable)
    assert (key_lifetime_s_of(send_mail), request_life_s_of(send_mail), compensation_of(send_mail)) == (None, 0.0, None)


async def test_the_function_can_be_called_by_itself() -> None:
    MAILBOX.clear()
    call = Call(run_id="r", action="send_mail", args={"text": "hi"}, output="ada", op_key="k" * 64, attempt=1)
    assert await send_mail(call) == {"number": 1}


@pytest.mark.parametrize(
    ("on_a_thread", "is_behind"),
    [pytest.param(run_to_the_end, False, id="to the end"), pytest.param(asyncio.to_thread, True, id="control")],
)
async def test_blocking_code_that_runs_to_the_end_leaves_nothing_behind_a_cancelled_resume(
    tmp_path: Path, on_a_thread: Callable[[Callable[[], Any]], Awaitable[Any]], is_behind: bool
) -> None:
    is_inside, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def send_slowly() -> None:
        is_inside.set()
        may_end.wait(20)
        has_ended.set()

    @eventlog.action("send")
    async def send(call: Call) -> None:
        await on_a_thread(send_slowly)

    async with eventlog.open(tmp_path / "log.db") as log:
        runner = eventlog.Runner(log, actions=[send])
        await approved(runner)
        resuming = asyncio.create_task(runner.resume("run-1"))
        try:
            await asyncio.to_thread(is_inside.wait, 20)
            resuming.cancel()
            await asyncio.wait({resuming}, timeout=0.2)
            intent = (await runner.state("run-1")).intent
            assert intent is not None
            owner: Owner = intent.owner
            assert not has_ended.is_set(), "the effect is under way still"
            assert is_proved_dead(owner, log.place) == is_behind
        finally:
            may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await resuming
        if not is_behind:
            assert has_ended.is_set()
        assert await asyncio.to_thread(has_ended.wait, 20)


def test_the_way_to_call_blocking_code_is_named_where_actions_are_made() -> None:
    assert f"`{run_to_the_end.__module__}.{run_to_the_end.__name__}`" in (eventlog.action.__doc__ or "")


async def test_an_opaque_function_is_called_once_whatever_happens(log: RunLog) -> None:
    MAILBOX.clear()
    await approved(eventlog.Runner(log), action="send_mail", text="hello")
    with pytest.raises(Crash):
        await eventlog.Runner(log, actions=[send_mail], reach=crash_at(EFFECT_AFTER)).resume("run-1")
    runner = eventlog.Runner(log, actions=[send_mail])
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == "outcome_unknown"
    assert MAILBOX == ["hello"]


@pytest.mark.parametrize(
    ("answer", "result", "value"),
    [
        (None, "executed", None),
        ([1, "a", None], "executed", [1, "a", None]),
        (Executed(result=7), "executed", 7),
        (eventlog.Recovered(evidence="there", result=8), "recovered", 8),
    ],
)
async def test_what_the_function_returns_is_the_result_or_the_report(
    log: RunLog, answer: Any, result: str, value: Any
) -> None:
    @eventlog.action("send")
    async def send(call: Call) -> Any:
        return answer

    runner = eventlog.Runner(log, actions=[send])
    await approved(runner)
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value) == (result, value)


async def test_a_function_may_report_a_conflict_or_a_definite_failure_and_all_else_is_unknown(log: RunLog) -> None:
    @eventlog.action("send", promise="keyed", key_lifetime_s=60)
    async def send(call: Call) -> Any:
        match call.attempt:
            case 1:
                return eventlog.Conflicted(reason="taken")
            case 2:
                raise ActionFailed("card_declined", "no")
            case _:
                raise OSError("cable cut")

    runner = eventlog.Runner(log, actions=[send])
    await approved(runner)
    for expected in (ActionConflict, ActionFailed, OutcomeUnknown):
        with pytest.raises(expected):
            await runner.resume("run-1")
    ends = ["action_conflict", "action_failed", "outcome_unknown"]
    assert [each for each in await types_of(log) if each in ends] == ends


async def test_a_check_refuses_before_any_intent(log: RunLog) -> None:
    called: list[Call] = []

    def check(call: Call) -> None:
        if call.args.get("amount", 0) > 100:
            raise ActionFailed("too_much", "more than 100")

    @eventlog.action("send", check=check)
    async def send(call: Call) -> None:
        called.append(call)

    runner = eventlog.Runner(log, actions=[send])
    await approved(runner, amount=101)
    with pytest.raises(ActionFailed, match="more than 100"):
        await runner.resume("run-1")
    assert ((await types_of(log))[-1], called) == ("resume_rejected", [])
    await approved(runner, "run-2", amount=100)
    await runner.resume("run-2")
    assert len(called) == 1


async def test_a_function_with_inspect_is_asked_before_it_is_called_again(log: RunLog) -> None:
    receiver = Receiver()

    async def inspect(call: Call) -> eventlog.Absent | eventlog.Recovered:
        return eventlog.Recovered(result=receiver.answer(call)) if receiver.knows(call) else eventlog.Absent()

    @eventlog.action("send", promise=Promise.CHECKABLE, inspect=inspect)
    async def send(call: Call) -> dict[str, Any]:
        return receiver.receive(call)

    assert isinstance(send, Inspectable)
    for run_id, point, result in (
        ("run-1", INTENT_AFTER_COMMIT, "executed"),
        ("run-2", EFFECT_AFTER, "recovered"),
    ):
        await approved(eventlog.Runner(log), run_id)
        with pytest.raises(Crash):
            await eventlog.Runner(log, actions=[send], reach=crash_at(point)).resume(run_id)
        assert (await eventlog.Runner(log, actions=[send]).resume(run_id)).result == result
    assert len(receiver.effects) == 2


async def test_a_keyed_function_is_called_again_with_the_same_key(log: RunLog) -> None:
    receiver = Receiver(is_refusing=True)

    @eventlog.action("send", promise="keyed", key_lifetime_s=3600, request_life_s=30)
    async def send(call: Call) -> dict[str, Any]:
        return receiver.receive(call)

    assert (key_lifetime_s_of(send), request_life_s_of(send)) == (3600, 30)
    await approved(eventlog.Runner(log))
    with pytest.raises(Crash):
        await eventlog.Runner(log, actions=[send], reach=crash_at(EFFECT_AFTER)).resume("run-1")
    outcome = await eventlog.Runner(log, actions=[send]).resume("run-1")
    assert (outcome.value, len(receiver.effects), receiver.requests) == ({"number": 1}, 1, 2)


async def test_a_function_may_name_the_action_that_undoes_it(log: RunLog) -> None:
    undone: list[Any] = []

    @eventlog.action("send", compensation="take_back")
    async def send(call: Call) -> dict[str, int]:
        return {"id": 7}

    @eventlog.action()
    async def take_back(call: Call) -> None:
        undone.append(call.args)

    runner = eventlog.Runner(log, actions=[send, take_back])
    await approved(runner, text="x")
    await runner.resume("run-1")
    assert (await runner.compensate("run-1")).status == "COMPENSATED"
    assert undone == [{"args": {"text": "x"}, "result": {"id": 7}}]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


async def does_nothing(call: Call) -> None:
    """Do nothing."""


@pytest.mark.parametrize("promise", ["Opaque", "", 7])
def test_an_unknown_promise_is_refused_where_it_is_written(promise: Any) -> None:
    with pytest.raises(InvalidInput, match="a promise is one of transactional, checkable, keyed, opaque"):
        eventlog.action(promise=promise)


def test_who_can_be_asked_is_checkable_unless_it_promises_more() -> None:
    async def find(call: Call) -> Finding:
        return Absent()

    assert eventlog.action(inspect=find)(does_nothing).promise == "checkable"
    assert eventlog.action(inspect=find, promise="keyed", key_lifetime_s=1)(does_nothing).promise == "keyed"
    assert eventlog.action()(does_nothing).promise == "opaque"
    with pytest.raises(InvalidInput, match="never asked"):
        eventlog.action(inspect=find, promise="opaque")
    with pytest.raises(InvalidInput, match="needs `inspect=`"):
        eventlog.action(promise="checkable")


def test_a_check_that_would_have_to_be_awaited_is_refused() -> None:
    async def check(call: Call) -> None:
        raise ActionFailed("too_much", "never heard")

    with pytest.raises(InvalidInput, match="no async function"):
        eventlog.action(check=check)  # type: ignore[arg-type]


def test_the_decorator_wants_its_parentheses() -> None:
    with pytest.raises(InvalidInput, match="parentheses"):
        eventlog.action(does_nothing)  # type: ignore[arg-type]


async def test_a_plain_function_is_no_action(log: RunLog) -> None:
    with pytest.raises(InvalidInput, match="is no action"):
        eventlog.Runner(log, actions=[does_nothing])  # type: ignore[list-item]


async def test_a_check_refuses_by_raising_and_a_returned_no_is_not_taken_for_a_yes(log: RunLog) -> None:
    called: list[Call] = []

    @eventlog.action("send", check=lambda call: False)  # type: ignore[arg-type]
    async def send(call: Call) -> None:
        called.append(call)

    runner = eventlog.Runner(log, actions=[send])
    await approved(runner)
    with pytest.raises(ActionFailed, match="returned a bool"):
        await runner.resume("run-1")
    assert (called, (await types_of(log))[-1]) == ([], "resume_rejected")


@pytest.mark.parametrize("answer", [Absent(), Inconclusive(why="who knows"), ActionFailed("action_failed", "no")])
async def test_what_a_function_may_not_return_says_nothing_of_an_effect(log: RunLog, answer: Any) -> None:
    @eventlog.action("send")
    async def send(call: Call) -> Any:
        return answer

    runner = eventlog.Runner(log, actions=[send])
    await approved(runner)
    with pytest.raises(OutcomeUnknown, match="the function returned"):
        await runner.resume("run-1")


def test_a_function_cannot_promise_a_transaction() -> None:
    with pytest.raises(InvalidInput, match="make it a class"):
        eventlog.action(promise="transactional")


@pytest.mark.parametrize("function", [lambda call: None, None, "send", 7, print])
def test_what_is_no_async_function_is_refused(function: Any) -> None:
    with pytest.raises(InvalidInput, match="is not an async function"):
        eventlog.action("send")(function)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 129, "\ud800"])
def test_a_name_that_people_cannot_read_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        eventlog.action(name)(does_nothing)
    assert refusal.value.code == "invalid_id"


async def test_a_keyed_function_without_a_lifetime_is_refused_by_the_runner(log: RunLog) -> None:
    with pytest.raises(InvalidInput, match="key_lifetime_s"):
        eventlog.Runner(log, actions=[eventlog.action("send", promise="keyed")(does_nothing)])

"""Actions that end with what no `except Exception` catches, though nobody has ended their run: nobody knows, and it is
recorded so. Least of all does a workflow go on behind such an effect, and ask for it again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import ActionFailed, Call, OutcomeUnknown, Policy, Promise, Retry, RunContext
from eventlog.log import RunLog
from eventlog.runtime.drive.suspension import Suspended
from eventlog.runtime.foreign import Interruptions
from eventlog.testing.clock import FakeClock
from tests.effect_runs import approved, trace_of, types_of, whole_log
from tools.campaigns.storage.log_files import open_file

AUTO = Policy(auto=True)


class Odd(BaseException):
    """What a library raises that means to pass every handler."""


async def cancelled_inside() -> None:
    """Await what somebody else cancels, as a client whose connection is closed under it."""
    reader = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(reader.cancel)
    await reader


async def cancelled_by_itself() -> None:
    raise asyncio.CancelledError("the pool was closed")


async def cancelled_in_a_group() -> None:
    raise BaseExceptionGroup("two readers", [asyncio.CancelledError(), ValueError("gone")])


async def odd() -> None:
    raise Odd


async def suspended() -> None:
    raise Suspended


async def closed() -> None:
    raise GeneratorExit


TYPES = {
    cancelled_inside: "CancelledError",
    cancelled_by_itself: "CancelledError",
    cancelled_in_a_group: "BaseExceptionGroup",
    odd: "Odd",
    suspended: "Suspended",
    closed: "GeneratorExit",
}
ENDS = list(TYPES)


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RunLog]:
    async with whole_log(request.param, tmp_path) as log:
        yield log


@eventlog.workflow
async def insistent(run: RunContext) -> Any:
    """Send, and take everything for a reason to send again."""
    for _ in range(3):
        try:
            return await run.act("send", {}, output="x")
        except Suspended:
            raise
        except BaseException:
            pass
    return "not sent"


def sending(end: Callable[[], Any], sent: list[str], **options: Any) -> Any:
    @eventlog.action("send", **options)
    async def send(call: Call) -> str:
        sent.append(call.op_key)
        await end()
        return "sent"

    return send


@pytest.mark.parametrize("end", ENDS)
async def test_an_action_that_ends_so_leaves_an_outcome_that_nobody_knows(log: RunLog, end: Any) -> None:
    sent: list[str] = []
    runner = eventlog.Runner(log, actions=[sending(end, sent)])
    await approved(runner)
    with pytest.raises(OutcomeUnknown) as unknown:
        await runner.resume("run-1")
    assert type(unknown.value.__cause__).__name__ in str(unknown.value)
    with pytest.raises(eventlog.Refused, match="may have happened"):
        await runner.resume("run-1")
    assert len(sent) == 1
    assert (await types_of(log))[-3:] == ["resume_started", "outcome_unknown", "resume_rejected"]


@pytest.mark.parametrize("end", ENDS)
async def test_a_workflow_that_takes_everything_for_a_failure_does_not_go_on_behind_it(log: RunLog, end: Any) -> None:
    sent: list[str] = []

    @eventlog.workflow
    async def gathering(run: RunContext) -> Any:
        return len(await asyncio.gather(run.act("send", {}, output="x"), return_exceptions=True))

    runner = eventlog.Runner(
        log, workflows=[insistent, gathering], actions=[sending(end, sent)], policies={"send": AUTO}
    )
    for number, workflow in enumerate((insistent, gathering), start=1):
        outcome = await runner.start(workflow, f"run-{number}")
        assert (outcome.status, len(sent)) == ("OUTCOME_UNKNOWN", number)
        assert (await types_of(log, f"run-{number}"))[-3:] == ["resume_started", "outcome_unknown", "checkpoint_saved"]
        await runner.reconcile(f"run-{number}", "executed", evidence="it is there", result="sent")
        assert (await runner.resume(f"run-{number}")).status == "COMPLETED"


@pytest.mark.parametrize("end", ENDS)
async def test_a_receiver_that_is_asked_and_ends_so_cannot_tell(log: RunLog, end: Any) -> None:
    sent: list[str] = []

    async def lost() -> None:
        raise TimeoutError

    async def ask(call: Call) -> Any:
        await end()

    @eventlog.workflow
    async def flow(run: RunContext) -> Any:
        try:
            return await run.act("send", {}, output="x")
        except asyncio.CancelledError:
            return await run.step("another", odd)

    action = sending(lost, sent, inspect=ask)
    runner = eventlog.Runner(log, workflows=[flow], actions=[action], policies={"send": AUTO})
    for outcome in (await runner.start(flow, "run-1"), await runner.resume("run-1")):
        assert outcome.status == "OUTCOME_UNKNOWN"
    (*_, last) = [each.data for each in await trace_of(log) if each.type == "outcome_unknown"]
    assert last.why.startswith("the receiver was asked and cannot tell: ")
    assert len(sent) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, Odd])
async def test_a_check_that_ends_so_refuses_and_a_rule_that_does_leaves_it_to_people(log: RunLog, error: Any) -> None:
    def fail(_: object) -> bool:
        raise error

    async def nothing() -> None:
        pass

    sent: list[str] = []
    runner = eventlog.Runner(log, actions=[sending(nothing, sent, check=fail)], policies={"send": Policy(auto=fail)})
    proposal = eventlog.propose("send", {}, "x")
    assert (await runner.propose("run-1", proposal)).status == "WAITING_FOR_USER"
    await runner.approve("run-1", proposal.hash)
    with pytest.raises(ActionFailed, match=f"the action's own check failed: {error.__name__}"):
        await runner.resume("run-1")
    assert (sent, (await types_of(log))[-1]) == ([], "resume_rejected")


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, Odd])
async def test_a_write_in_the_transaction_that_ends_so_has_failed_and_is_taken_back(tmp_path: Path, error: Any) -> None:
    path = tmp_path / "log.db"

    class Note:
        name = "note"
        promise = Promise.TRANSACTIONAL

        def check(self, call: Call) -> None:
            pass

        def write(self, connection: sqlite3.Connection, call: Call) -> Any:
            connection.execute("INSERT INTO notes VALUES ('one')")
            raise error

    async with open_file(path) as log:
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE notes (note TEXT)")
        runner = eventlog.Runner(log, actions=[Note()])
        await approved(runner, action="note")
        with pytest.raises(ActionFailed, match=f"nothing was written: {error.__name__}"):
            await runner.resume("run-1")
        assert (await types_of(log))[-1] == "action_failed"
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM notes").fetchone() == (0,)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_program_passes_a_check_a_rule_a_write_and_an_action(tmp_path: Path, error: Any) -> None:
    def fail(*_: object) -> bool:
        raise error

    async def end() -> None:
        raise error

    async with open_file(tmp_path / "log.db") as log:
        sent: list[str] = []
        ruled = eventlog.Runner(log, actions=[sending(end, sent)], policies={"send": Policy(auto=fail)})
        with pytest.raises(error):
            await ruled.propose("run-1", eventlog.propose("send", {}, "x"))
        for run_id, action in (("run-2", sending(end, sent, check=fail)), ("run-3", sending(end, sent))):
            runner = eventlog.Runner(log, actions=[action])
            await approved(runner, run_id)
            with pytest.raises(error):
                await runner.resume(run_id)
        assert (len(sent), await types_of(log, "run-1"), (await types_of(log, "run-3"))[-1]) == (
            1,
            [],
            "resume_started",
        )


@pytest.mark.parametrize("end", ENDS)
async def test_a_step_that_ends_so_has_failed_and_is_replayed_as_failed(log: RunLog, end: Any) -> None:
    tried: list[str] = []

    async def step() -> None:
        tried.append("step")
        await end()

    async def fall_back() -> str:
        return "the second best"

    async def nothing() -> None:
        pass

    @eventlog.workflow
    async def careful(run: RunContext) -> Any:
        try:
            await run.step("try", step, retry=Retry(attempts=2, first_delay_s=0))
        except eventlog.StepFailed as failed:
            found = [failed.error_type, await run.step("fall back", fall_back)]
        return [*found, await run.act("send", {}, output="x")]

    runner = eventlog.Runner(log, workflows=[careful], actions=[sending(nothing, [])])
    outcome = await runner.start(careful, "run-1")
    assert (outcome.status, len(tried)) == ("WAITING_FOR_USER", 2)
    await runner.approve("run-1", outcome.requests[0].proposal_hash or "")
    assert (await runner.resume("run-1")).value == [TYPES[end], "the second best", "sent"]
    assert (await types_of(log)).count("step_failed") == len(tried) == 2


@pytest.mark.parametrize("options", [{}, {"secrets": {"TOKEN": "the marker of a secret"}}], ids=["", "secrets"])
async def test_a_caller_that_is_cancelled_ends_the_action_and_is_told_nothing_else(
    log: RunLog, options: dict[str, Any]
) -> None:
    begun = asyncio.Event()
    sent: list[str] = []

    async def waits() -> None:
        begun.set()
        await asyncio.sleep(60)

    runner = eventlog.Runner(log, actions=[sending(waits, sent, **options)])
    await approved(runner)
    resuming = asyncio.create_task(runner.resume("run-1"))
    await begun.wait()
    resuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resuming
    assert (await types_of(log))[-1] == "resume_started"
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert len(sent) == 1


async def test_a_caller_that_was_cancelled_before_is_no_reason_to_take_every_end_for_that(log: RunLog) -> None:
    """A program resumes a run in its `except CancelledError`."""
    runner = eventlog.Runner(log, actions=[sending(cancelled_inside, [])])
    await approved(runner)

    async def resume_at_the_end() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await runner.resume("run-1")

    ending = asyncio.create_task(resume_at_the_end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(OutcomeUnknown):
        await ending
    assert (await types_of(log))[-1] == "outcome_unknown"


async def test_an_effect_that_waits_longer_than_its_workflow_is_recorded_all_the_same(log: RunLog) -> None:
    """The wait for it is cancelled, and the effect is not."""
    sent: list[str] = []

    async def slowly() -> None:
        await asyncio.sleep(0.05)

    @eventlog.workflow
    async def impatient(run: RunContext) -> Any:
        try:
            async with asyncio.timeout(0.01):
                return await run.act("send", {}, output="x")
        except TimeoutError:
            return "gave up"

    runner = eventlog.Runner(log, workflows=[impatient], actions=[sending(slowly, sent)], policies={"send": AUTO})
    await runner.start(impatient, "run-1")
    assert "action_executed" in await types_of(log)
    assert len(sent) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError, Odd, ValueError])
async def test_a_run_stops_where_the_engine_itself_ends_so_around_an_effect(log: RunLog, error: Any) -> None:
    """Whatever that is, it is not the workflow's to handle: what may have been done is in the log, and found later."""
    sent: list[str] = []
    ended: list[str] = []

    async def nothing() -> None:
        pass

    def reach(point: str) -> None:
        if point == "effect.after" and not ended:
            ended.append(point)
            raise error

    action = sending(nothing, sent)
    runner = eventlog.Runner(log, workflows=[insistent], actions=[action], policies={"send": AUTO}, reach=reach)
    with pytest.raises(error):
        await runner.start(insistent, "run-1")
    assert (await runner.resume("run-1")).status == "OUTCOME_UNKNOWN"
    assert len(sent) == 1


async def test_a_secret_in_what_an_action_ends_with_is_taken_out() -> None:
    secret = "the marker of a secret"

    async with eventlog.open("memory:") as log:

        @eventlog.action("send", secrets={"TOKEN": secret})
        async def send(call: Call) -> None:
            raise asyncio.CancelledError(f"cancelled with {call.args['by']}")

        runner = eventlog.Runner(log, actions=[send], clock=FakeClock())
        await approved(runner, by=eventlog.secret_ref("TOKEN"))
        with pytest.raises(OutcomeUnknown) as unknown:
            await runner.resume("run-1")
        assert secret not in str(unknown.value) + repr(unknown.value.__cause__)
        assert secret not in repr([each.data for each in await trace_of(log)])


@pytest.mark.parametrize("is_loop_over", [False, True])
def test_a_coroutine_that_is_closed_from_outside_is_let_go(is_loop_over: bool) -> None:
    """As by whoever collects it: nothing may be awaited in it any more."""
    seen: list[bool] = []

    async def waiting() -> None:
        interruptions = Interruptions()
        try:
            await asyncio.sleep(60)
        except GeneratorExit as error:
            seen.append(interruptions.include(error))
            raise

    async def begin() -> None:
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        if not is_loop_over:
            work.close()

    work = waiting()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    work.close()
    assert seen == [True]


def test_outside_of_any_task_a_cancellation_or_a_close_is_what_it_says() -> None:
    for error in (asyncio.CancelledError(), GeneratorExit(), SystemExit()):
        assert Interruptions().include(error)
    assert not Interruptions().include(Odd())

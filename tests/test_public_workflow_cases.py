"""Bugs that users met in other engines, tried on workflows of this one: pauses, siblings, failures, changed code.

Each docstring names the case and the public thread in which the symptom was reported. Every stretch of a run is a
process of its own, and what happened is counted in files beside the log. `tests/test_public_cases.py` has the cases
about effects, approvals and the log.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import Call, Executed, Policy, Promise, Retry, RunContext, Runner, workflow
from eventlog.errors import InvalidInput, Refused
from eventlog.log import RunLog
from eventlog.progress import request_of
from eventlog.run import Run
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tests import public_workflow_scenarios as scenarios
from tests.paused_agent import World
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import assert_whole, open_file

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def log(world: World) -> AsyncIterator[SqliteLog]:
    async with open_file(world.log) as log:
        yield log
        await assert_whole(log)


@pytest.fixture
def runner(log: SqliteLog) -> Runner:
    return Runner(log)


def go_on(world: World, name: str, *args: object) -> list[Any]:
    """Start or resume a run in a new process; return its status and value."""
    result: list[Any] = child.run(scenarios.goes_on, world.folder, name, *args).result
    return result


def crash(world: World, kill: str, name: str, *args: object) -> None:
    ended = child.run(scenarios.crashes, world.folder, kill, name, *args)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


async def approve(runner: Runner, run_id: str, key: str) -> None:
    request = request_of(await runner.state(run_id), key)
    assert request is not None and request.proposal_hash is not None
    await runner.approve(run_id, request.proposal_hash, request=request.request_id)


async def types(runner: Runner, run_id: str) -> list[str]:
    return [event.type for event in await runner.trace(run_id)]


def waits(run: Run) -> list[str | None]:
    return [wait.approval_id for wait in run.progress.waits]


# ── pauses ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_three_questions_in_a_loop_take_three_resumes(runner: Runner, world: World) -> None:
    """run-02 (langchain-ai/langgraph#7780): a loop of questions took more resumes than there were questions."""
    name = "asks_in_a_loop"
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    for number, key in enumerate(("act", "act#2", "act#3")):
        assert waits(await runner.state(name)) == [f"approval:{name}:{key}"]
        assert len(world.receipts()) == number
        await approve(runner, name, key)
        told = go_on(world, name)
    assert told == ["COMPLETED", [0, 1, 2]]
    assert len(set(world.receipts())) == len(world.receipts()) == 3
    assert (await types(runner, name)).count("proposal_recorded") == 3


async def test_a_result_is_durable_before_the_checkpoint_that_builds_on_it(runner: Runner, world: World) -> None:
    """run-04 (langchain-ai/langgraph#8039): the next state could be durable before the result of a finished task.

    Every append of a result is held up; the process is killed as soon as a checkpoint commits one.
    """
    name = "steps_then_asks"
    crash(world, "commit", name)
    events = [event.data for event in await runner.trace(name)]
    done = {event.key for event in events if hasattr(event, "output")}
    committed = {key for event in events for key in getattr(event, "committed", ())}
    assert committed == done == {"one", "two"}
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    await approve(runner, name, "act")
    assert go_on(world, name) == ["COMPLETED", ["one", "two"]]
    assert (world.calls("one"), world.calls("two"), len(world.receipts())) == (1, 1, 1)


async def test_of_three_calls_that_wait_only_the_approved_one_runs(runner: Runner, world: World) -> None:
    """run-06 (langchain-ai/langgraph#6626, #6624, PR #3126): parallel calls shared one id; an answer re-ran all."""
    name = "asks_three_at_once"
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    first, second, third = waits(await runner.state(name))
    assert [first, second, third] == [f"approval:{name}:{key}" for key in ("act", "act#2", "act#3")]
    await approve(runner, name, "act#2")
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    assert len(world.receipts()) == 1
    assert waits(await runner.state(name)) == [first, third]
    await approve(runner, name, "act")
    await approve(runner, name, "act#3")
    assert go_on(world, name) == ["COMPLETED", [0, 1, 2]]
    assert len(set(world.receipts())) == len(world.receipts()) == 3
    assert (await types(runner, name)).count("proposal_recorded") == 3


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workflow_that_fails_behind_a_payment_and_is_retried_twice_pays_once(
    runner: Runner, world: World
) -> None:
    """run-08 (crewAIInc/crewAI#5802): a retry of a task repeated tool calls that had already paid or mailed."""
    name = "pays_and_fails_twice"
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    await approve(runner, name, "act")
    assert go_on(world, name) == ["FAILED", "step_failed"]
    assert go_on(world, name) == ["FAILED", "step_failed"]
    assert go_on(world, name) == ["COMPLETED", "mail"]
    assert (len(world.receipts()), world.calls("mail")) == (1, 3)


async def test_a_failed_step_is_tried_again_and_what_was_done_before_it_is_not(runner: Runner, world: World) -> None:
    """run-14 (microsoft/agent-framework#3758): resume took a failed step for done, and skipped it."""
    name = "five_of_which_the_third_fails"
    assert go_on(world, name) == ["FAILED", "step_failed"]
    assert [world.calls(f"step-{number}") for number in range(1, 6)] == [1, 1, 1, 0, 0]
    assert set((await runner.state(name)).progress.committed) == {"step-1", "step-2"}
    assert go_on(world, name) == ["COMPLETED", [f"step-{number}" for number in range(1, 6)]]
    assert [world.calls(f"step-{number}") for number in range(1, 6)] == [1, 1, 2, 1, 1]


@pytest.mark.parametrize(("times", "end", "calls"), [(1, "try", 2), (9, "gave up after 3", 3)])
async def test_a_process_that_dies_between_two_attempts_leaves_the_rest_of_them_to_the_next(
    runner: Runner, world: World, times: int, end: str, calls: int
) -> None:
    """run-48 (dbos-inc/dbos-transact-py#805, #260): recovery between two attempts found neither result nor error."""
    name = "tries_three_times"
    crash(world, "first_failure", name, times)
    assert (await runner.state(name)).progress.steps["try"].attempts == 1
    assert go_on(world, name) == ["COMPLETED", end]
    assert world.calls("try") == calls


class LosesAnswers:
    """Acts once for each op_key, and loses the answers to the first two requests."""

    name = "act"
    promise = Promise.KEYED
    key_lifetime_s = 3600.0

    def __init__(self) -> None:
        self.requests: list[str] = []

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        self.requests.append(call.op_key)
        if len(self.requests) <= 2:
            raise TimeoutError("no answer came")
        return Executed(result="acted")


@workflow
async def acts_once(run: RunContext) -> str:
    done: str = await run.act("act", {}, output="x")
    return done


async def test_an_effect_whose_answer_is_lost_is_sent_once_by_each_resume_and_always_under_its_key(
    log: SqliteLog,
) -> None:
    """run-12 (ComposioHQ/composio#3654): a retry after a read time-out duplicated the action."""
    action = LosesAnswers()
    runner = Runner(log, workflows=[acts_once], actions=[action], policies={"act": Policy(auto=True)})
    assert (await runner.start(acts_once, "run-1")).status == "OUTCOME_UNKNOWN"
    assert len(action.requests) == 1
    assert (await runner.resume("run-1")).status == "OUTCOME_UNKNOWN"
    assert (await runner.resume("run-1")).value == "acted"
    assert len(action.requests) == 3 and len(set(action.requests)) == 1


# ── what was approved, and the code that goes on ──────────────────────────────────────────────────────────────────────


async def test_a_model_that_proposes_something_else_on_replay_changes_nothing(runner: Runner, world: World) -> None:
    """run-16 (extra-org/extra#139): the reviewer approved one value, and another one was executed."""
    name = "proposes_anew"
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    await approve(runner, name, "act")
    for _ in range(2):
        assert go_on(world, name) == ["proposal_hash_mismatch", None]
    (refusal, _) = [event.data for event in await runner.trace(name) if event.type == "proposal_rejected"]
    request = request_of(await runner.state(name), "act")
    assert request is not None and request.proposal is not None
    assert (refusal.reason, refusal.stored_hash) == ("proposal_hash_mismatch", request.proposal_hash)
    assert request.proposal.args == {"value": "reviewed-value"}
    assert world.receipts() == []


async def test_a_run_does_not_go_on_with_another_selection_of_steps(runner: Runner, world: World) -> None:
    """run-30 (TauricResearch/TradingAgents#1089): resume with another selection of steps continued the wrong run."""
    assert go_on(world, "report") == ["WAITING", None]
    before = world.facts()
    (first, *_) = await runner.trace("report")
    assert first.data.definition.fingerprint
    await runner.signal("report", "go")
    refused = child.run(scenarios.goes_on_as_b, world.folder, "report").result
    assert refused == ["definition_mismatch", None]
    assert world.facts() == before
    assert go_on(world, "report") == ["COMPLETED", ["a", "b", "c"]]


# ── siblings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_results_of_free_calls_reach_the_next_turn_with_that_of_the_gated_one(
    runner: Runner, world: World
) -> None:
    """run-36 (openai/openai-agents-python#3004, PR #3006): results of siblings were lost when the approval came."""
    name = "a_free_and_a_gated_call"
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    assert (world.calls("free"), world.calls("last"), world.calls("model")) == (1, 1, 0)
    await approve(runner, name, "act")
    assert go_on(world, name) == ["COMPLETED", ["free", {"amount": 25}, "last"]]
    assert (world.calls("free"), world.calls("last"), world.calls("model")) == (1, 1, 1)


async def test_an_answer_from_outside_and_an_approval_come_in_any_process_and_both_count(
    runner: Runner, world: World
) -> None:
    """run-38 (pydantic/pydantic-ai#4830, #8181): a page that was loaded anew lost approvals and outside results.

    Whoever approves knows nothing but the log: what was answered before is not sent again.
    """
    name = "approved_here_and_answered_elsewhere"
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    assert {wait.type for wait in (await runner.state(name)).progress.waits} == {"approval", "signal"}
    await runner.signal(name, "answer", "42")
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    assert waits(await runner.state(name)) == [f"approval:{name}:act"]
    await approve(runner, name, "act")
    assert go_on(world, name) == ["COMPLETED", [{"amount": 25}, "42"]]
    assert len(world.receipts()) == 1


async def test_a_reader_sees_every_result_that_a_state_builds_on_wherever_it_reads(
    runner: Runner, world: World
) -> None:
    """run-44 (PostHog/posthog PR #34648): a saved state was visible without its data; the order was not guaranteed.

    One result comes before the checkpoint of the pause, another behind it.
    """
    name, late = "writes_early_and_late", "writes_early_and_late/answers"
    assert go_on(world, name) == ["WAITING_FOR_USER", None]
    assert set((await runner.state(name)).progress.pending_writes()) == {"early"}
    await runner.signal(late, "go")
    assert go_on(world, late) == ["COMPLETED", "late"]
    assert set((await runner.state(name)).progress.pending_writes()) == {"early", "answers"}
    await approve(runner, name, "act")
    assert go_on(world, name) == ["COMPLETED", ["early", {"amount": 25}, "late"]]
    assert world.calls("early") == 1
    last = (await runner.state(name)).version
    for version in range(1, last + 1):
        progress = (await runner.state(name, at_version=version)).progress
        done = {key for key, step in progress.steps.items() if step.is_done}
        done |= {key for key, request in progress.requests.items() if request.executed}
        done |= {key for key, each in progress.children.items() if each.status == "COMPLETED"}
        assert set(progress.committed) <= done, f"version {version} builds on what is not there"


@workflow
async def ten_checkpoints(run: RunContext) -> None:
    for number in range(10):
        await run.gather(run.step("count", _number, number))
    await run.wait_for_signal("go")


def _number(number: int) -> int:
    return number


async def test_the_state_of_a_run_is_that_of_its_highest_version_when_all_times_are_equal(tmp_path: Path) -> None:
    """run-46 (langchain-ai/langgraph#7179, #6869; microsoft/agent-framework#8513): equal times made it arbitrary."""
    clock = FakeClock()
    async with open_file(tmp_path / "log.db", clock=clock) as log:
        runner = Runner(log, workflows=[ten_checkpoints], clock=clock)
        run = (await runner.start(ten_checkpoints, "run-1")).run
        assert len({event.recorded_at_us for event in await runner.trace("run-1")}) == 1
    assert (run.state_version, len(run.progress.committed)) == (12, 10)
    for _ in range(2):
        async with open_file(tmp_path / "log.db", clock=clock) as log:
            runner = Runner(log, workflows=[ten_checkpoints], clock=clock)
            for _ in range(50):
                assert await runner.state("run-1") == run


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_object_that_a_step_returned_is_the_same_in_another_process(runner: Runner, world: World) -> None:
    """run-50 (langchain-ai/langgraph#6970, #9021, #6718): dataclasses and enums came back as None without a word."""
    assert go_on(world, "reports") == ["WAITING", None]
    await runner.signal("reports", "go")
    made = scenarios.Report("five!", {"seen": [scenarios.Colour.RED]})
    assert go_on(world, "reports") == ["COMPLETED", repr(made)]
    assert world.calls("report") == 1


DEEP = {"a": [{"b": {"c": object()}}]}


async def returns_deep() -> Any:
    return DEEP


@workflow
async def stores(run: RunContext, what: str) -> Any:
    if what == "arguments":
        await run.act("act", DEEP, output="x")
    return await run.step("deep", returns_deep, retry=Retry(attempts=5, first_delay_s=0))


async def test_a_value_that_cannot_be_stored_is_named_by_its_whole_path(log: RunLog) -> None:
    """run-52 (langchain-ai/langgraph#8606): the error named only the outermost type."""
    runner = Runner(log, workflows=[stores], actions=[scenarios.Act()])
    with pytest.raises(InvalidInput) as refused:
        await runner.start(stores, "run-0", DEEP)
    assert "object" in str(refused.value) and refused.value.path == "$[0].a[0].b.c"
    for run_id, what, path in (("run-1", "arguments", "$.args.a[0].b.c"), ("run-2", "output", "$.a[0].b.c")):
        failure = (await runner.start(stores, run_id, what)).failure
        assert failure is not None
        assert f"builtins.object is not plain data (at {path})" in failure.message
    assert (await types(runner, "run-1"))[-1] == "run_failed"
    assert (await types(runner, "run-2")).count("step_failed") == 1, "another attempt would not help"


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_was_cancelled_in_a_step_stays_cancelled_though_its_process_is_killed(
    runner: Runner, world: World
) -> None:
    """run-66 (langchain-ai/langgraph#5672, PR #8634): a cancellation was lost where state is saved only at the end."""
    name = "waits_in_step"
    process = child.start(scenarios.goes_on, world.folder, name)
    try:
        assert process.stdout is not None and process.stdout.readline() == "READY\n"
        await runner.cancel(name, reason="not needed")
    finally:
        process.kill()
        process.communicate()
    assert (await runner.state(name)).status == "CANCELLED"
    assert go_on(world, name) == ["cannot_resume", None]
    with pytest.raises(Refused):
        await runner.signal(name, "go")
    assert world.receipts() == []

"""Several processes on the workflow runs of one log: who drives, who takes over, and what is never done twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventlog import Runner, Workflow
from eventlog.events import StepCompleted
from eventlog.log import RecordedEvent
from eventlog.runtime.failpoints import EFFECT_AFTER, EFFECT_INSIDE
from eventlog.stores import SqliteLog
from eventlog.stores.clock import SystemClock
from tests import workflow_process_scenarios as scenarios
from tests.paused_agent import World, repeated
from tools.campaigns.processes import child
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.log_files import assert_whole, open_file

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def log(world: World) -> AsyncIterator[SqliteLog]:
    async with open_file(world.log, busy_timeout_s=30) as log:
        yield log
        await assert_whole(log)


async def submit(log: SqliteLog, world: World, workflow: Workflow, count: int) -> Runner:
    runner = scenarios.runner_of(log)
    for number in range(count):
        await runner.submit(workflow, f"run-{number}", str(world.folder))
    return runner


@contextmanager
def processes(count: int, function: Callable[..., Any], *args: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes, and end those that are left however the block ends."""
    started = [child.start(function, *args) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def begin(*started: subprocess.Popen[str]) -> None:
    """Let processes go on at the same moment, once all are ready."""
    for process in started:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "READY\n", line or process.communicate()[1]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def result_of(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    return child.Done(process.returncode, out, err, 0.0).result


def calls(world: World) -> Counter[str]:
    """Return how often each step of each run was called."""
    return Counter(step for _, verb, step, *_ in world.facts() if verb == "called")


async def events(log: SqliteLog, run_id: str) -> list[RecordedEvent]:
    return list(await Runner(log).trace(run_id))


async def statuses(runner: Runner, count: int) -> Counter[str]:
    return Counter([(await runner.state(f"run-{number}")).status.value for number in range(count)])


# ── two at once ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_two_processes_that_resume_one_run_at_once_one_drives_it_and_the_other_has_done_nothing(
    log: SqliteLog, world: World, is_long: bool
) -> None:
    """Both have read the run before either claims it; the winner waits in its first step until the loser was told."""
    rounds = 100 if is_long else 15
    runner = await submit(log, world, scenarios.meet, rounds)
    with processes(2, scenarios.resumes_in_rounds, world.folder, rounds, "careful") as both:
        for _ in range(rounds):
            begin(*both)
        told = list(zip(*map(result_of, both), strict=True))
    for first, second in told:
        assert sorted([first[0], second[0]]) == ["WAITING_FOR_USER", "run_conflict"]
    assert set(calls(world).values()) == {1}
    for number in range(rounds):
        await approve(runner, f"run-{number}")
        assert (await runner.resume(f"run-{number}")).value > 0, "the loser came while the winner was at work"
    assert len(world.receipts()) == len(set(world.receipts())) == rounds


async def test_two_processes_that_do_not_mind_who_has_claimed_are_reported_by_the_same_check(
    log: SqliteLog, world: World
) -> None:
    """The negative control."""
    await submit(log, world, scenarios.meet, 1)
    with processes(2, scenarios.resumes_in_rounds, world.folder, 1, "careless") as both:
        begin(*both)
        told = [result_of(process) for process in both]
    assert "run_conflict" not in {answer[0] for answers in told for answer in answers}
    assert calls(world)["run-0/meet"] == 2


# ── stopped, overruled, and woken up ──────────────────────────────────────────────────────────────────────────────────


async def taken_over(log: SqliteLog, world: World, kind: str, point: str) -> tuple[list[Any], list[Any]]:
    """Let one process stop in run-0, another take it over, and the first go on; return what both were told."""
    with processes(1, scenarios.resumes_slowly, world.folder, "run-0", kind, point) as (holder,):
        _, status = await asyncio.to_thread(os.waitpid, holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the holder has ended"
        deadline_us = (await Runner(log).state("run-0")).progress.deadline_us
        await until(lambda: SystemClock().now_us() > deadline_us, timeout_s=60)
        taker = child.run(scenarios.resumes_slowly, world.folder, "run-0", kind, "", timeout_s=60).result
        os.kill(holder.pid, signal.SIGCONT)
        return result_of(holder), taker


async def approve(runner: Runner, run_id: str = "run-0") -> None:
    await runner.approve(run_id, (await runner.state(run_id)).progress.requests["send"].proposal_hash)


async def assert_late_result_is_kept(log: SqliteLog, kind: str = "action_executed") -> None:
    recorded = [event.type for event in await events(log, "run-0")]
    assert recorded.count("result_rejected") == 1
    late = (await Runner(log).state("run-0")).progress.requests["send"].late
    assert late is not None and (late.reason, late.rejected) == ("claim_lost", kind)
    assert late.result is not None and late.result["result"] == {"sent": "asked"}


@pytest.mark.parametrize("point", [EFFECT_INSIDE, EFFECT_AFTER])
async def test_a_driver_that_is_stopped_in_an_effect_past_its_lease_loses_the_run_and_its_late_result_is_kept(
    log: SqliteLog, world: World, point: str
) -> None:
    """run-40 (langchain-ai/langgraph#8796): two processes wrote one run, its history forked, both claimed success."""
    runner = await submit(log, world, scenarios.ask_first, 1)
    assert (await runner.resume("run-0")).status == "WAITING_FOR_USER"
    await approve(runner)
    holder, taker = await taken_over(log, world, "fenced", point)
    assert (holder, taker) == (["claim_lost", None], ["COMPLETED", {"sent": "asked"}])
    assert len(world.receipts()) == 1
    await assert_late_result_is_kept(log, "action_executed" if point == EFFECT_AFTER else "action_recovered")
    assert [event.type for event in await events(log, "run-0")].count("run_completed") == 1


async def test_who_takes_over_asks_once_and_leaves_the_rest_to_people_while_the_stopped_driver_may_still_act(
    log: SqliteLog, world: World
) -> None:
    """The receiver says no, but only who asks: a second effect beside the stopped one would not be refused."""
    runner = await submit(log, world, scenarios.ask_first, 1)
    await runner.resume("run-0")
    await approve(runner)
    holder, taker = await taken_over(log, world, "askable", EFFECT_INSIDE)
    assert (holder, taker) == (["claim_lost", None], ["OUTCOME_UNKNOWN", None])
    assert len(world.receipts()) == 1
    await assert_late_result_is_kept(log)
    assert [event.type for event in await events(log, "run-0")].count("outcome_unknown") == 1
    outcome = await scenarios.runner_of(log, kind="askable").resume("run-0")
    assert (outcome.status, outcome.value) == ("COMPLETED", {"sent": "asked"})
    assert [event.type for event in await events(log, "run-0")].count("action_recovered") == 1
    assert len(world.receipts()) == 1


async def test_a_driver_that_wakes_up_past_its_lease_calls_nothing_that_was_called_meanwhile(
    log: SqliteLog, world: World
) -> None:
    runner = await submit(log, world, scenarios.sends, 1)
    holder, taker = await taken_over(log, world, "fenced", scenarios.CLAIMED)
    assert (holder[0], taker[0]) == ("claim_lost", "WAITING_FOR_USER")
    await approve(runner)
    assert (await runner.resume("run-0")).status == "COMPLETED"
    assert repeated(world) == []
    assert calls(world) == {f"run-0/{step}": 1 for step in ("first", "left", "right", "last")}


async def test_a_driver_that_is_stopped_in_a_step_past_its_lease_adds_nothing_to_the_run(
    log: SqliteLog, world: World
) -> None:
    runner = scenarios.runner_of(log)
    await submit(log, world, scenarios.stops_in_step, 1)
    holder, taker = await taken_over(log, world, "fenced", "")
    assert (holder[0], taker[0]) == ("claim_lost", "WAITING_FOR_USER")
    await approve(runner)
    value = (await runner.resume("run-0")).value
    done = [event.data for event in await events(log, "run-0") if isinstance(event.data, StepCompleted)]
    assert [bytes(each.output) for each in done] == [str(value).encode()], "of two outputs the run has seen one"
    assert calls(world)["run-0/stop"] == 2
    assert len(world.receipts()) == 1


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_runs_of_a_worker_that_was_killed_are_finished_by_another_without_waiting_for_a_lease(
    log: SqliteLog, world: World
) -> None:
    """The lease is an hour: the other worker has proof that the first is dead."""
    runner = await submit(log, world, scenarios.two, 20)
    with processes(1, scenarios.works, world.folder, 20) as (killed,):
        begin(killed)
        await until(lambda: len(calls(world)) == 20, timeout_s=60)
        killed.kill()
        killed.wait()
    assert await statuses(runner, 20) == {"RUNNING": 20}
    scenarios.go_on(world)
    with processes(1, scenarios.works, world.folder, 20) as (other,):
        begin(other)
        assert result_of(other) == 20
    assert await statuses(runner, 20) == {"COMPLETED": 20}
    assert calls(world) == Counter({f"run-{n}/one": 2 for n in range(20)} | {f"run-{n}/2": 1 for n in range(20)})


async def test_four_worker_processes_complete_every_run_and_call_no_step_twice(log: SqliteLog, world: World) -> None:
    runner = await submit(log, world, scenarios.five, 200)
    with processes(4, scenarios.works, world.folder, 5) as workers:
        begin(*workers)
        driven = [result_of(worker) for worker in workers]
    print("driven by each worker:", driven)
    assert sum(driven) == 200
    assert await statuses(runner, 200) == {"COMPLETED": 200}
    assert calls(world) == Counter({f"run-{n}/{step}": 1 for n in range(200) for step in range(5)})


async def test_workers_that_do_not_mind_who_has_claimed_are_reported_by_the_same_check(
    log: SqliteLog, world: World
) -> None:
    """The negative control."""
    await submit(log, world, scenarios.five, 10)
    with processes(2, scenarios.works, world.folder, 10, "careless") as workers:
        begin(*workers)
        await until(lambda: len(calls(world)) == 50, timeout_s=60)
        for worker in workers:
            worker.kill()
            worker.wait()
    assert max(calls(world).values()) > 1


async def test_a_worker_that_is_told_to_end_finishes_its_steps_and_gives_its_runs_free_for_others(
    log: SqliteLog, world: World
) -> None:
    runner = await submit(log, world, scenarios.two, 10)
    with processes(1, scenarios.works_until_told, world.folder, 10) as (told,):
        begin(told)
        await until(lambda: len(calls(world)) == 10, timeout_s=60)
        told.send_signal(signal.SIGTERM)
        assert told.stdout is not None and told.stdout.readline() == "STOPPING\n"
        scenarios.go_on(world)
        assert result_of(told) == 10
    for number in range(10):
        progress = (await runner.state(f"run-{number}")).progress
        assert (progress.owner, list(progress.steps)) == (None, ["one"])
    with processes(1, scenarios.works, world.folder, 10) as (other,):
        begin(other)
        assert result_of(other) == 10
    assert await statuses(runner, 10) == {"COMPLETED": 10}
    assert set(calls(world).values()) == {1}


@pytest.mark.campaign
@pytest.mark.timeout(600)
async def test_workers_that_are_killed_at_random_again_and_again_leave_every_run_with_one_effect(
    log: SqliteLog, world: World, is_long: bool
) -> None:
    """What a step returned is never made again once a workflow has seen it, and no run sends twice or not at all."""
    seed = random.randrange(2**32)
    chance, rounds = random.Random(seed), 100 if is_long else 12
    count = 5 * rounds
    print("seed", seed)
    runner = await submit(log, world, scenarios.sends, count)
    killed = 0
    for _ in range(rounds):
        with processes(2, scenarios.sends_until_idle, world.folder, 8) as workers:
            begin(*workers)
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            killed += sum(worker.poll() is None for worker in workers)
    with processes(2, scenarios.sends_until_idle, world.folder, 20) as workers:
        begin(*workers)
        for worker in workers:
            result_of(worker)
    assert await statuses(runner, count) == {"COMPLETED": count}
    assert repeated(world) == []
    assert len(world.receipts()) == len(set(world.receipts())) == count
    assert killed > 0, "nobody was killed at work"
    print("killed", killed, "calls", sum(calls(world).values()), "of", 4 * count)


# ── parent and child ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_child_that_is_finished_by_another_process_lets_its_parent_go_on_in_a_third(
    log: SqliteLog, world: World
) -> None:
    """run-34 (strands-agents/harness-sdk#3076): questions of a nested agent vanished in a stateless process."""
    runner = await submit(log, world, scenarios.parent, 1)
    assert child.run(scenarios.resumes, world.folder, "run-0").result[0] == "WAITING"
    waiting = (await runner.state("run-0")).waiting
    assert waiting is not None and waiting.child_run_id == "run-0/ask_first"
    await approve(runner, "run-0/ask_first")
    finished = child.run(scenarios.resumes, world.folder, "run-0/ask_first").result
    assert finished == ["COMPLETED", {"sent": "asked"}]
    assert child.run(scenarios.resumes, world.folder, "run-0").result == ["COMPLETED", "asked 2"]
    assert calls(world) == {"run-0/ask_first/1": 1, "run-0/2": 1}
    assert len(world.receipts()) == 1


async def test_workers_of_several_processes_drive_parents_and_children_to_the_end(log: SqliteLog, world: World) -> None:
    runner = await submit(log, world, scenarios.parent, 10)
    with processes(2, scenarios.works, world.folder, 3) as workers:
        begin(*workers)
        for worker in workers:
            result_of(worker)
    assert await statuses(runner, 10) == {"WAITING": 10}
    for number in range(10):
        await approve(runner, f"run-{number}/ask_first")
    with processes(2, scenarios.works, world.folder, 3) as workers:
        begin(*workers)
        for worker in workers:
            result_of(worker)
    assert await statuses(runner, 10) == {"COMPLETED": 10}
    assert set(calls(world).values()) == {1}
    assert len(world.receipts()) == len(set(world.receipts())) == 10

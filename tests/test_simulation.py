"""The simulation itself: a seed gives the same history each time, and what its judge and its loop are to notice."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eventlog.log import Expect, NewEvent, RecordedEvent
from eventlog.proposal import propose
from eventlog.runtime.context import RunContext
from eventlog.runtime.definitions import workflow
from eventlog.runtime.effects import Call, Executed, Promise
from eventlog.runtime.runner import Runner
from eventlog.stores import MemoryLog
from tools.campaigns.simulation.batches import run_seeds
from tools.campaigns.simulation.judge import judge
from tools.campaigns.simulation.loop import PROCESS, Queue, SimulatedLoop, Stuck
from tools.campaigns.simulation.notes import Note, contradictions
from tools.campaigns.simulation.receivers import Effect

ROOT = Path(__file__).resolve().parent.parent
_DIGESTS = """
from tools.campaigns.simulation.batches import run_seeds
for outcome in run_seeds([f"1/{number}" for number in range(40)], processes=1):
    print(outcome.digest)
"""


def _digests(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-W", "error", "-c", _DIGESTS]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(120)
def test_same_seeds_give_the_same_histories_in_another_process_with_other_hashes() -> None:
    first = _digests("1").split()
    assert len(set(first)) == 40
    assert first == _digests("2").split()


def test_seed_gives_the_same_history_whatever_ran_before() -> None:
    alone = [outcome.digest for outcome in run_seeds(["3/17"], processes=1)]
    behind = [outcome.digest for outcome in run_seeds(["3/4", "3/5", "3/17"], processes=1)]
    assert behind[-1:] == alone


# ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _loop() -> SimulatedLoop:
    return SimulatedLoop(random.Random(1), is_fair=False)  # type: ignore[abstract]  # nothing calls the rest


def test_time_passes_only_as_it_is_waited_for() -> None:
    loop = _loop()

    async def main() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        return loop.time()

    assert loop.run(main(), limit_s=10_000, limit_steps=1000) == 7200


def test_simulation_in_which_somebody_waits_for_ever_is_stuck() -> None:
    loop = _loop()

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing is ready"):
        loop.run(main(), limit_s=10, limit_steps=1000)


def test_simulation_that_goes_round_and_round_is_stuck() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="after 1000 steps"):
        _loop().run(main(), limit_s=10, limit_steps=1000)


def test_process_that_dies_runs_nothing_more_and_one_that_is_suspended_goes_on_later() -> None:
    loop = _loop()
    seen: list[str] = []

    async def live(name: str) -> None:
        try:
            for _ in range(3):
                await asyncio.sleep(1)
                seen.append(name)
        finally:
            seen.append(f"{name} ends")

    def begin(name: str) -> tuple[Queue, asyncio.Task[None]]:
        queue, context = Queue(), loop.context.copy()
        context.run(PROCESS.set, queue)
        return queue, loop.create_task(live(name), context=context)

    async def main() -> None:
        dying, unended = begin("dying")
        sleeping, ending = begin("sleeping")
        await asyncio.sleep(1.5)
        loop.kill(dying)
        loop.suspend(sleeping)
        loop.later(10, loop.go_on, sleeping)
        await ending
        seen.append(f"{loop.time():.1f} {unended.done()}")
        unended.get_coro().close()

    loop.run(main(), limit_s=100, limit_steps=1000)
    assert seen[:-1].count("dying") == 1
    assert seen[-4:] == ["sleeping", "sleeping ends", "12.5 False", "dying ends"]  # the last by `close` alone


# ── the judge ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Line:
    """An effect that happens nowhere."""

    name = "line"
    promise = Promise.OPAQUE

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Say that it is done."""
        return Executed()


async def _approved_and_done(log: MemoryLog) -> tuple[list[RecordedEvent], Effect]:
    """Return the log of a run that was approved and done, and the effect that its receiver would have noted."""
    runner = Runner(log, actions=[_Line()], folder="/")
    proposal = propose("line", {"n": 1}, "here")
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    done = await runner.resume("run-1")
    events = [event async for event in log.read_all()]
    position = next(event.position for event in events if event.type == "resume_started")
    return events, Effect("line", done.run.op_key or "", "run-1", {"n": 1}, "here", position, 0.0)


async def test_judge_finds_nothing_wrong_with_an_effect_that_was_approved_and_done_once() -> None:
    async with MemoryLog(actor="test") as log:
        events, effect = await _approved_and_done(log)
    assert judge(events, [effect]) == []


@pytest.mark.parametrize(
    ("spoil", "invariant"),
    [
        pytest.param(lambda events, effect: (events, [effect, effect]), "I5", id="it happened twice"),
        pytest.param(lambda events, effect: (events, []), "I6", id="it never happened"),
        pytest.param(
            lambda events, effect: (events, [dataclasses.replace(effect, position=1)]), "I5", id="before its intent"
        ),
        pytest.param(
            lambda events, effect: (events, [dataclasses.replace(effect, args={"n": 2})]), "I7", id="something else"
        ),
        pytest.param(
            lambda events, effect: ([each for each in events if each.type != "approval_recorded"], [effect]),
            "I7",
            id="nobody approved it",
        ),
        pytest.param(lambda events, effect: (events[1:], [effect]), "I2", id="the first event is gone"),
    ],
)
async def test_judge_says_what_is_wrong(spoil: Callable[[Any, Any], tuple[Any, Any]], invariant: str) -> None:
    async with MemoryLog(actor="test") as log:
        events, effect = await _approved_and_done(log)
    assert invariant in [found for found, _ in judge(*spoil(events, effect))]


async def test_judge_says_that_who_holds_a_run_has_claimed_it_again() -> None:
    @workflow
    async def nothing(run: RunContext) -> None:
        """Do nothing."""

    async with MemoryLog(actor="test") as log:
        await Runner(log, workflows=[nothing], folder="/").start(nothing, "run-1")
        events = [event async for event in log.read_all()]
        claimed = events.pop(1)
    assert [found for found, _ in judge([events[0], claimed, events[1]], [])] == []
    again = structs.replace(claimed, position=3, version=3, prev_in_stream=claimed.leaf, event_id=b"another")
    assert [found for found, _ in judge([events[0], claimed, again], [])] == ["I9"]


async def test_notes_that_were_acknowledged_refused_or_in_doubt_are_held_against_the_log() -> None:
    async with MemoryLog(actor="test") as log:
        event = NewEvent("noted", {})
        result = await log.append("notes", [event], expect=Expect.any())
        events = [each async for each in log.read_all()]
    told = Note("notes", event.event_id)
    told.acknowledge(result)
    refused, doubtful = Note("notes", event.event_id), Note("notes", event.event_id, in_doubt=1)
    assert list(contradictions([told, doubtful], events)) == []
    assert [found for found, _ in contradictions([told], [])] == ["I1"]
    assert [found for found, _ in contradictions([refused], events)] == ["I3"]
    assert [found for found, _ in contradictions([doubtful], [*events, *events])] == ["I4"]

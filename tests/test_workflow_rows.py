"""The rows of workflow runs: after every event that anybody appended they say what the whole fold of the run says."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Call, Policy, Refused, RunContext, Runner
from eventlog.errors import ActionFailed, EventLogError, OutcomeUnknown
from eventlog.events import RUN_PREFIX, Status, run_stream
from eventlog.log import RecordedEvent, RunLog
from eventlog.progress import fold_stream
from eventlog.proposal import canonical_args
from eventlog.run import Run
from eventlog.testing.clock import FakeClock
from eventlog.views import as_view_event
from projections import RUNS, RunsTable, differences, runs_view, wanted_requests
from projections.projection import Row

SEEDS: Final = range(100)
COMMANDS: Final = 25
OF_WORKFLOWS: Final = sorted(RUNS.event_types - {"action_conflict", "action_recovered"} - {"compensation_started"})


async def guarded(operation: Awaitable[Any]) -> Any:
    """Let a refusal be one of the things that can come back."""
    try:
        return await operation
    except Refused as error:
        return error.code


@eventlog.workflow
async def small(run: RunContext) -> str:
    """A child that asks for something itself."""
    return str(await guarded(run.act("send", {"to": "child"}, output="box")))


@eventlog.workflow
async def many(run: RunContext, is_careful: bool) -> list[Any]:
    """Ask for everything that a run can wait for, at the same time and one after the other."""
    wrap: Callable[[Awaitable[Any]], Awaitable[Any]] = guarded if is_careful else _bare
    first = await run.gather(
        wrap(run.act("pay", {"n": 1}, output="bank")),
        wrap(run.act("send", {"n": 2}, output="box")),
        wrap(run.wait_for_signal("go", timeout_s=500)),
        wrap(run.child(small)),
    )
    await run.sleep(30)
    last = await wrap(run.act("pay", {"n": 3}, output="bank"))
    return [*first, last]


async def _bare(operation: Awaitable[Any]) -> Any:
    return await operation


def make_runner(log: RunLog, clock: FakeClock, chance: random.Random, view: RunsTable | None = None) -> Runner:
    """Make a runner whose effects do what chance says: they work, fail, or are never heard of again."""

    async def performs(call: Call) -> Any:
        match chance.randrange(4):
            case 0:
                raise ConnectionResetError("the line went dead")
            case 1:
                raise ActionFailed("card_declined", "no", is_final=chance.random() < 0.5)
            case _:
                return {"n": 1}

    return Runner(
        log,
        workflows=[many, small],
        actions=[eventlog.action(name, promise="opaque")(performs) for name in ("pay", "send")],
        policies={"pay": Policy(required=2, expires_in_s=900)},
        view=view,
        clock=clock,
        patience_s=0.0,
    )


async def live(log: RunLog, clock: FakeClock, chance: random.Random, view: RunsTable | None = None) -> list[str]:
    """Let a run be told at random what a run can be told; return the ids of the family."""
    runner = make_runner(log, clock, chance, view)
    await _quietly(runner.start(many, "run-1", chance.random() < 0.5))
    for _ in range(COMMANDS):
        family = [run_id for run_id in ("run-1", "run-1/small") if await _exists(log, run_id)]
        run = await runner.state(chance.choice(family))
        await _quietly(_told(runner, run, clock, chance))
    return [run_id for run_id in ("run-1", "run-1/small") if await _exists(log, run_id)]


async def _told(runner: Runner, run: Run, clock: FakeClock, chance: random.Random) -> None:
    requests = list(run.progress.requests.values())
    request = chance.choice(requests) if requests else None
    named = {"request": request.request_id} if request is not None else {}
    match chance.randrange(12):
        case 0 | 1 | 2:
            await runner.resume(run.run_id)
        case 3 | 4 | 5 if request is not None:
            actor = chance.choice(["ada", "bob", "eve"])
            await runner.approve(run.run_id, request.proposal_hash or "", actor=actor, **named)
        case 6 if request is not None and chance.random() < 0.4:
            await runner.reject(run.run_id, request.proposal_hash or "", **named)
        case 7 if request is not None:
            await runner.revoke(run.run_id, **named)
        case 8 if request is not None:
            await runner.edit(run.run_id, args={"n": chance.random()}, approves=chance.random() < 0.5, **named)
        case 9 if request is not None:
            verdict = chance.choice(["executed", "not_executed", "abandoned"])
            await runner.reconcile(run.run_id, verdict, evidence="seen", at_version=run.version, **named)
        case 10:
            clock.advance(chance.choice([1, 40, 1000]))
            await runner.expire(run.run_id)
        case 11 if chance.random() < 0.2:
            await runner.cancel(run.run_id)
        case _:
            await runner.signal(run.run_id, "go", 1)


async def _quietly(command: Awaitable[Any]) -> None:
    try:
        await command
    except (Refused, EventLogError, OutcomeUnknown):
        pass  # what is refused leaves a trace too


async def _exists(log: RunLog, run_id: str) -> bool:
    return (await log.read_stream(run_stream(run_id))).version > 0


def differing(run_id: str, events: Sequence[RecordedEvent], known: Collection[str] = RUNS.event_types) -> list[str]:
    """Return the types of the events behind which the row is not what the fold of all events says."""
    found = []
    row: Row | None = None
    for count, event in enumerate(events, 1):
        if event.type in known:
            row = RUNS.apply(row, as_view_event(event))
        if not is_what_the_run_says(row, fold_stream(run_id, events[:count])):
            found.append(event.type)
    return found


def is_what_the_run_says(row: Row | None, run: Run) -> bool:
    """Compare what a row shows with the run; spelled out here, and not by the view's own functions."""
    wanted = wanted_requests(run)
    pending = [request for request in wanted if request.status is Status.WAITING_FOR_USER]
    proposal = pending[0].proposal if pending else None
    expected = {
        "status": run.status.value,
        "workflow": run.progress.definition.workflow,
        "parent_run_id": run.progress.parent.run_id if run.progress.parent is not None else None,
        "root_run_id": "run-1",
        "asks": len(wanted),
        "request_id": pending[0].request_id if pending else None,
        "action": proposal.action if proposal is not None else None,
        "args": canonical_args(proposal.canonical) if proposal is not None else None,
        "output": proposal.output if proposal is not None else None,
        "proposal_hash": proposal.hash if proposal is not None else None,
        "expires_at_us": pending[0].expires_at_us if pending else None,
    }
    row = row or {}
    waits = len((row.get("waiting_for") or "").split("; ")) if row.get("waiting_for") else 0
    return {name: row.get(name) for name in expected} == expected and waits == len(run.progress.waits)


async def lives(seed: int) -> dict[str, Sequence[RecordedEvent]]:
    """Return the events of the runs of one random life."""
    chance, clock = random.Random(seed), FakeClock()
    async with eventlog.open("memory:", clock=clock) as log:
        return {
            run_id: (await log.read_stream(RUN_PREFIX + run_id)).events for run_id in await live(log, clock, chance)
        }


@pytest.fixture(scope="module")
def all_lives() -> dict[int, dict[str, Sequence[RecordedEvent]]]:
    import asyncio

    return {seed: asyncio.run(lives(seed)) for seed in SEEDS}


def test_after_every_event_of_every_life_the_row_is_what_the_run_says(
    all_lives: dict[int, dict[str, Sequence[RecordedEvent]]],
) -> None:
    met: set[str] = set()
    statuses: set[str] = set()
    for seed, streams in all_lives.items():
        for run_id, events in streams.items():
            assert differing(run_id, events) == [], f"seed {seed}, {run_id}"
            met |= {event.type for event in events}
            statuses |= {fold_stream(run_id, events[:count]).status for count in range(1, len(events) + 1)}
    assert set(OF_WORKFLOWS) - met <= {"compensation_executed", "compensation_failed"}
    assert statuses == set(Status) - {"APPROVED", "COMPENSATED"}


@pytest.mark.parametrize(
    "forgotten",
    [
        "approval_expired",
        "approval_recorded",
        "approval_revoked",
        "checkpoint_saved",
        "child_finished",
        "outcome_reconciled",
        "outcome_unknown",
        "proposal_recorded",
        "run_cancelled",
        "run_claimed",
        "run_completed",
        "run_failed",
        "signal_received",
    ],
)
def test_a_view_that_did_not_know_one_of_its_types_would_be_found_out(
    all_lives: dict[int, dict[str, Sequence[RecordedEvent]]], forgotten: str
) -> None:
    known = RUNS.event_types - {forgotten}
    assert any(
        _differs_or_fails(run_id, events, known) for streams in all_lives.values() for run_id, events in streams.items()
    )


def _differs_or_fails(run_id: str, events: Sequence[RecordedEvent], known: Collection[str]) -> bool:
    try:
        return bool(differing(run_id, events, known))
    except (EventLogError, KeyError):
        return True


@pytest.mark.parametrize("seed", [3, 7])
async def test_the_stored_row_is_the_same_and_the_view_can_be_folded_afresh(tmp_path: Path, seed: int) -> None:
    chance, clock, view = random.Random(seed), FakeClock(), runs_view()
    async with eventlog.open(tmp_path / "log.db", views=[view], clock=clock) as log:
        table = RunsTable(log, view)
        family = await live(log, clock, chance, table)
        rows = {row["run_id"]: row for row in await table.page()}
        assert list(rows) == family
        for run_id in family:
            run = fold_stream(run_id, (await log.read_stream(run_stream(run_id))).events)
            assert is_what_the_run_says(rows[run_id], run)
        assert await differences(log, view) == []


async def test_a_row_keeps_nothing_of_steps_and_results_that_nobody_decides_on(tmp_path: Path) -> None:
    view = runs_view()

    @eventlog.workflow
    async def works(run: RunContext) -> str:
        for number in range(50):
            await run.step("one", str, f"{number}" * 100)
        await run.act("pay", {"n": 1}, output="bank")
        return "x" * 1000

    async def pays(call: Call) -> str:
        return "y" * 1000

    async with eventlog.open(tmp_path / "log.db", views=[view]) as log:
        runner = Runner(
            log,
            workflows=[works],
            actions=[eventlog.action("pay")(pays)],
            policies={"pay": Policy(auto=True)},
        )
        await runner.start(works, "run-1")
        (row,) = await RunsTable(log, view).page()
    assert row["status"] == "COMPLETED"
    assert len(row["state"]) < 2000


async def test_what_somebody_edited_in_a_row_is_not_mended_by_the_next_event(tmp_path: Path) -> None:
    view = runs_view()
    clock, chance = FakeClock(), random.Random(1)
    async with eventlog.open(tmp_path / "log.db", views=[view], clock=clock) as log:
        runner = make_runner(log, clock, chance)
        await runner.start(small, "run-1")
        await log.write_view(lambda connection: connection.execute('UPDATE runs SET args = \'{"to":"eve"}\''))
        await runner.signal("run-1", "go")
        assert [each.columns for each in await differences(log, view)] == [["args"]]

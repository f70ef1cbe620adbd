"""The view `runs`: what the fold of a run says, kept in the append's transaction, caught up, begun anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import pytest

import eventlog
from eventlog import decide
from eventlog.decide import VERDICTS, Accepted, Refusal, Replay
from eventlog.errors import ActionFailed, EventLogError, LogCorrupt, Refused
from eventlog.events import (
    RUN_EVENTS,
    ActionReplayed,
    Failure,
    Owner,
    PolicyTerms,
    ResultRejected,
    ResumeRejected,
    ResumeStarted,
    RunClaimed,
    RunEvent,
    run_stream,
)
from eventlog.log import Expect, NewEvent, RecordedEvent
from eventlog.progress import ENDED
from eventlog.proposal import propose
from eventlog.run import Run, Status, fold_fact
from eventlog.runtime.effect_events import Doing, Hold, Undoing
from eventlog.runtime.effects import Call, Conflicted, Executed, Recovered
from eventlog.runtime.runner import Runner
from eventlog.views import ViewEvent, as_view_event
from projections import RUNS, RunsProjection, RunsTable, SqliteView, differences, runs_view, wanted_requests
from projections.projection import Row
from tests.effect_runs import give_verdict


class NextRevision(RunsProjection):
    """The projection `runs` as a later program might have it: one more column."""

    revision = RUNS.revision + 1
    columns: ClassVar[Mapping[str, str]] = {**RUNS.columns, "length": "INTEGER"}

    def apply(self, row: Row | None, event: ViewEvent) -> Row | None:
        applied = super().apply(row, event)
        return applied and {**applied, "length": len(applied["args"] or "")}


async def start_runs(path: Path, count: int, *, view: SqliteView | None = None, prefix: str = "run") -> None:
    async with eventlog.open(path, views=[view] if view else []) as log:
        runner = eventlog.Runner(log)
        for number in range(count):
            await runner.propose(f"{prefix}-{number}", eventlog.propose("write_file", {"content": "x"}, "draft.txt"))


async def rows_of(path: Path, view: SqliteView) -> list[Row]:
    async with eventlog.open(path, views=[view]) as log:
        assert await differences(log, view) == []
        return await RunsTable(log, view).page()


def edit(path: Path, statement: str) -> None:
    editor = sqlite3.connect(path)
    with editor:
        editor.execute(statement)
    editor.close()


async def test_a_program_that_does_not_know_the_view_leaves_it_behind_visibly(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 2, view=runs_view())
    await start_runs(path, 3, prefix="other")
    async with eventlog.open(path) as log:
        assert (await log.health()).views_behind == {f"runs/{RUNS.revision}": 6}
    assert len(await rows_of(path, runs_view())) == 5


async def test_a_raised_revision_is_folded_afresh(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 3, view=runs_view())
    rows = await rows_of(path, SqliteView(NextRevision()))
    assert [row["length"] for row in rows] == [len('{"content":"x"}')] * 3


async def test_an_earlier_program_leaves_a_later_revision_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 1, view=SqliteView(NextRevision()))
    view = runs_view()
    async with eventlog.open(path, views=[view]) as log:
        await log.append("s", [NewEvent("happened", {})], expect=Expect.any())
        with pytest.raises(EventLogError, match=f"revision {RUNS.revision + 1} is kept by a later program") as failure:
            await RunsTable(log, view).page()
        assert failure.value.code == "view_failed"
    assert len(await rows_of(path, SqliteView(NextRevision()))) == 1


@pytest.mark.parametrize("damage", ["DROP TABLE runs", "UPDATE views SET position = 1000", "DELETE FROM views"])
async def test_a_view_that_is_not_whole_is_begun_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 2, view=runs_view())
    edit(path, damage)
    assert len(await rows_of(path, runs_view())) == 2


async def test_the_bookkeeping_itself_taken_away_is_damage_and_appends_go_on_without_the_view(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await start_runs(path, 1, view=runs_view())
    edit(path, "DROP TABLE views")
    with pytest.raises(LogCorrupt) as damage:
        await start_runs(path, 1, view=runs_view(), prefix="other")
    assert damage.value.reason == "schema_changed"


class Failing(RunsProjection):
    """Raises at the third run."""

    def apply(self, row: Row | None, event: ViewEvent) -> Row | None:
        if event.stream.endswith("-2"):
            raise ZeroDivisionError("the fold divides")
        return super().apply(row, event)


async def test_a_projection_that_raises_stays_behind_alone_and_goes_on_when_it_is_corrected(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = SqliteView(Failing())
    async with eventlog.open(path, views=[view]) as log:
        runner = eventlog.Runner(log)
        for number in range(4):
            await runner.propose(f"run-{number}", eventlog.propose("write_file", {"content": "x"}, "draft.txt"))
        assert (await log.head()).position == 8, "the appends went on"
        assert (await log.health()).views_behind == {f"runs/{RUNS.revision}": 4}
        with pytest.raises(EventLogError, match="the fold divides") as failure:
            await RunsTable(log, view).page()
        assert failure.value.code == "view_failed"
    assert len(await rows_of(path, runs_view())) == 4


async def test_a_row_is_written_in_the_append_s_own_transaction(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    view = runs_view()
    async with eventlog.open(path, views=[view]) as log:
        await eventlog.Runner(log).propose("run-1", eventlog.propose("write_file", {"content": "x"}, "draft.txt"))

        def look(connection: sqlite3.Connection) -> tuple[Any, ...]:
            found: tuple[Any, ...] = connection.execute(
                "SELECT (SELECT max(position) FROM events), (SELECT position FROM views), (SELECT count(*) FROM runs)"
            ).fetchone()
            return found

        assert await log._reads.run(look) == (2, 2, 1)


# ── the same fold as the run's ───────────────────────────────────────────────────────────────────────────────────────

PROPOSAL: Final = propose("pay", {"to": "Ada"}, "bank")
EDITED: Final = propose("pay", {"to": "Bob"}, "bank")
ON_TERMS: Final = decide.Terms(policy=PolicyTerms(required=2), expires_at_us=50)
TOO_LATE_US: Final = 60
OF_WORKFLOWS: Final = {"child_finished", "run_claimed", "run_completed", "run_failed", "signal_received"}
"""The types that change nothing in the row of a run of one action."""
DOING: Final = Doing("pay", "d" * 64)
UNDOING: Final = Undoing("refund", "u" * 64, "d" * 64, None)
OWNER: Final = Owner(host="h", boot="b", lock="l")
FAILURE: Final = Failure(code="card_declined", message="no")
MOST_ATTEMPTS: Final = 2
NAMES: Final = {kind: name for name, kind in RUN_EVENTS.items()}

Batch = tuple[RunEvent, ...]


class Walk(NamedTuple):
    """What was met on a walk through all states of a run."""

    states: int
    types: set[str]
    statuses: set[str]
    differing: list[str]
    """The types of the events after which the row was not what the run says."""


def walk(known: Collection[str] = RUNS.event_types) -> Walk:
    """Go through every state that a run can reach, with up to two attempts at its effect and two at undoing it.

    Each event is folded into the run and, if its type is one of the `known`, into the row.
    """
    start = Run(run_id="run-1")
    found = Walk(0, set(), set(), [])
    seen = {state_key(start)}
    left: list[tuple[Run, Row | None, str | None]] = [(start, None, None)]
    while left:
        here, row_here, refusal_here = left.pop()
        for batch in moves(here):
            run, row, refusal = here, row_here, refusal_here
            for event in batch:
                run = fold_fact(run, event, version=run.version + 1, at_us=run.version + 1, actor="os:7")
                refusal = refusal_after(refusal, run, event)
                if NAMES[type(event)] in known:
                    row = RUNS.apply(row, as_view_event(recorded(run.version, event)))
                found.types.add(NAMES[type(event)])
                is_told = run.proposal is None or _is_all_the_run_says(row, run)
                if not is_told or (row or {}).get("refusal") != refusal:
                    found.differing.append(NAMES[type(event)])
            found.statuses.add(run.status.value)
            if state_key(run) not in seen:
                seen.add(state_key(run))
                left.append((run, row, refusal))
    return found._replace(states=len(seen))


def refusal_after(before: str | None, run: Run, event: RunEvent) -> str | None:
    """Return the last refusal that says more than the status does, until the run goes on or has ended."""
    if isinstance(event, RunClaimed | ResumeStarted) or run.status in ENDED:
        return None
    is_said = isinstance(event, ResumeRejected) and event.reason == "view_mismatch"
    return "view_mismatch" if is_said else before


def _is_what_the_run_says(row: Row | None, run: Run) -> bool:
    columns = {name: (row or {}).get(name) for name in decide.view_columns(run)}
    return columns == decide.view_columns(run)


def _is_all_the_run_says(row: Row | None, run: Run) -> bool:
    row = row or {}
    more = (row.get("asks"), row.get("expires_at_us"), row.get("waiting_for") is not None, row.get("workflow"))
    is_wanted = run.status in ("WAITING_FOR_USER", "OUTCOME_UNKNOWN")
    return _is_what_the_run_says(row, run) and more == (
        len(wanted_requests(run)),
        run.expires_at_us,
        is_wanted,
        None,
    )


def state_key(run: Run) -> str:
    """Return what tells states apart in which different things may happen next."""
    undoing = run.compensation
    undone = undoing and (undoing.attempts, undoing.intent is None, undoing.is_settled)
    facts = (run.version == 0, run.status, run.approval, run.executed, run.attempts, run.intent is None, run.failure)
    asked = (run.policy is None, run.expires_at_us, len(run.votes), len(run.superseded), run.is_cancelled)
    return repr((*facts, *asked, run.unknown is None, run.result, undone, run.late is None))


def moves(run: Run) -> Iterator[Batch]:
    """Give everything that the engine may append to this run in one transaction."""
    if run.version == 0:
        yield decide.start(run, PROPOSAL).events
        yield decide.start(run, PROPOSAL, terms=ON_TERMS).events
        yield decide.start(run, PROPOSAL, terms=decide.Terms(auto="it is small")).events
        return
    yield from _withdrawals(run)
    claims = decide.claim(run, owner=OWNER, deadline_us=9, is_stray=False)
    for decision in ("approve", "reject"):
        for supplied in (run.proposal_hash or "", "0" * 64):
            yield _appended(decide.record_decision(run, decision, supplied, actor_source="os"))
    for verdict in VERDICTS:
        result = {"n": 1} if verdict == "executed" else None
        for fence in (None, claims) if run.intent or (run.compensation and run.compensation.intent) else (None,):
            yield _appended(decide.reconcile(run, verdict, "seen", actor_source="os", result=result, claims=fence))
    yield (ActionReplayed(reason="already_compensated"),)
    yield (ResumeRejected(reason="view_mismatch", status=run.status.value),)
    resumed = decide.resume(run, None)
    refused = decide.compensate(run, UNDOING.action)
    yield _appended(decide.resume(run, "elsewhere"))
    if not isinstance(resumed, Accepted):
        yield _appended(resumed)
    if refused is not None:
        yield (refused.event,)
    if run.compensation is None:
        yield from _attempts(run, DOING, may_begin=isinstance(resumed, Accepted))
    if run.executed:
        yield from _attempts(run, UNDOING, may_begin=refused is None)


def _withdrawals(run: Run) -> Iterator[Batch]:
    """Give what people may take back, and that nobody said anything in time."""
    yield _appended(decide.revoke(run, actor_source="os"))
    yield _appended(decide.cancel(run, actor_source="os"))
    if not run.superseded:
        for approves in (False, True):
            yield _appended(decide.edit(run, EDITED, decide.Terms(), actor_source="os", approves=approves))
    expired = decide.expire(run, TOO_LATE_US)
    if expired is not None:
        yield expired.events


def _attempts(run: Run, effect: Doing | Undoing, *, may_begin: bool) -> Iterator[Batch]:
    claims = decide.claim(run, owner=OWNER, deadline_us=9, is_stray=True)
    is_open = effect.intent(run) is not None
    if may_begin and effect.attempts(run) < MOST_ATTEMPTS:
        for each in (claims,) if is_open else (None, claims):
            yield effect.begin(run, Hold(owner=OWNER, deadline_us=9, claims=each, key_until_us=None))
    if not is_open and not effect.is_unknown(run):
        return
    yield (claims,)
    for event in (
        effect.executed(Executed(result={"n": 1})),
        effect.recovered(Recovered(evidence="seen", result={"n": 1})),
        effect.conflict(Conflicted(reason="output_conflict")),
        effect.conflict(Conflicted(reason="used otherwise", code="idempotency_conflict")),
        ResultRejected(reason="claim_lost", rejected="action_executed", op_key=effect.op_key, epoch=0, attempt=1),
        effect.failed(FAILURE, is_final=False),
        effect.failed(FAILURE, is_final=True),
        effect.unknown("the line went dead"),
    ):
        yield (event,)
        yield (claims, event)


def _appended(decision: Accepted | Refusal | Replay) -> Batch:
    return decision.events if isinstance(decision, Accepted) else (decision.event,)


def recorded(version: int, event: RunEvent) -> RecordedEvent:
    return RecordedEvent(
        position=version,
        stream=run_stream("run-1"),
        version=version,
        type=NAMES[type(event)],
        schema_version=1,
        event_id=bytes(16),
        recorded_at_us=version,
        actor="os:7",
        correlation_id=None,
        causation_id=None,
        body=b"{}",
        data=event,
        is_known=True,
        leaf=bytes(32),
        prev_in_stream=bytes(32),
    )


def test_after_every_event_that_can_happen_to_a_run_its_row_is_what_the_run_says() -> None:
    walked = walk()
    assert walked.differing == []
    assert walked.types == RUN_EVENTS.keys() - {
        "child_finished",
        "child_started",
        "claim_renewed",
        "run_completed",
        "run_failed",
        "signal_received",
        "signal_rejected",
        "step_completed",
        "step_failed",
        "step_started",
        "timer_fired",
        "timer_set",
    }
    assert walked.statuses == set(Status) - {"RUNNING", "WAITING"}, "those of a run of one action"
    assert walked.states > 100


@pytest.mark.parametrize("forgotten", sorted(RUNS.event_types - OF_WORKFLOWS))
def test_a_view_that_did_not_know_one_of_its_types_would_be_found_out(forgotten: str) -> None:
    assert walk(RUNS.event_types - {forgotten}).differing


async def pays(call: Call) -> Any:
    return {"n": 1}


async def breaks_off(call: Call) -> Any:
    raise ConnectionResetError("the line went dead")


async def is_declined(call: Call) -> Any:
    raise ActionFailed("card_declined", "no", is_final=True)


async def finds_another(call: Call) -> Any:
    return Conflicted(reason="output_conflict")


async def has_been_paid(call: Call) -> Any:
    return Recovered(result={"n": 1})


Perform = Callable[[Call], Awaitable[Any]]
Command = Callable[[Runner], Awaitable[Any]]


async def resumes(runner: Runner) -> Any:
    return await runner.resume("run-1")


async def compensates(runner: Runner) -> Any:
    return await runner.compensate("run-1")


def settles(verdict: str) -> Command:
    return lambda runner: give_verdict(runner, verdict, evidence="seen")


@pytest.mark.parametrize(
    ("pay", "refund", "commands", "status"),
    [
        (pays, pays, [resumes], "COMPLETED"),
        (has_been_paid, pays, [resumes], "COMPLETED"),
        (finds_another, pays, [resumes], "APPROVED"),
        (is_declined, pays, [resumes, resumes], "FAILED"),
        (breaks_off, pays, [resumes], "OUTCOME_UNKNOWN"),
        (breaks_off, pays, [resumes, settles("executed")], "COMPLETED"),
        (breaks_off, pays, [resumes, settles("not_executed"), resumes], "OUTCOME_UNKNOWN"),
        (breaks_off, pays, [resumes, settles("abandoned"), resumes], "CANCELLED"),
        (breaks_off, pays, [resumes, settles("executed"), compensates], "COMPENSATED"),
        (pays, pays, [resumes, compensates, compensates], "COMPENSATED"),
        (pays, is_declined, [resumes, compensates], "COMPLETED"),
        (pays, breaks_off, [resumes, compensates], "OUTCOME_UNKNOWN"),
        (pays, breaks_off, [resumes, compensates, settles("executed"), resumes], "COMPENSATED"),
        (pays, breaks_off, [resumes, compensates, settles("abandoned"), compensates], "COMPLETED"),
    ],
)
async def test_a_stored_row_follows_its_run_to_every_end(
    tmp_path: Path, pay: Perform, refund: Perform, commands: list[Command], status: str
) -> None:
    view = runs_view()
    async with eventlog.open(tmp_path / "log.db", views=[view]) as log:
        table = RunsTable(log, view)
        actions = [eventlog.action("pay", compensation="refund")(pay), eventlog.action("refund")(refund)]
        runner = Runner(log, actions=actions, view=table)
        await runner.propose("run-1", PROPOSAL)
        await runner.approve("run-1", PROPOSAL.hash)
        for command in commands:
            try:
                await command(runner)
            except Refused:
                pass
            run = await runner.state("run-1")
            (row,) = await table.page()
            assert _is_what_the_run_says(row, run)
        assert run.status.value == status
        assert await differences(log, view) == []

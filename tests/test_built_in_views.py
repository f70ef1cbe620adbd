"""The views that ship, `approvals`, `effects`, `timeline`, `usage` and `runs`: after every event what the fold says."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

import eventlog
from eventlog import Policy, RunContext, Runner
from eventlog.cli.workflow_state import last_refusal
from eventlog.codec import REGISTRY
from eventlog.errors import EventLogError, Refused
from eventlog.events import (
    RUN_EVENTS,
    CheckpointSaved,
    ClaimRenewed,
    Definition,
    ProposalRecorded,
    ResumeRejected,
    ResumeStarted,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunEvent,
    RunFailed,
    Status,
    run_stream,
)
from eventlog.log import Append, Expect, RecordedEvent
from eventlog.progress import advance, fold_stream, requests_of
from eventlog.proposal import canonical_args, propose
from eventlog.run import Run, fold_fact
from eventlog.sentences import sentence
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from eventlog.views import as_view_event
from projections import (
    APPROVALS,
    EFFECTS,
    RUNS,
    TIMELINE,
    Key,
    MemoryView,
    Projection,
    Row,
    RunsTable,
    SqliteView,
    built_in_views,
    check_view,
    crashed_effects,
    inbox,
    wanted_requests,
)
from projections.folding import fold_events
from projections.memory_views import narrowed
from tests.audit_runs import approve
from tests.command_line import CommandLine, HereCommandLine
from tests.test_views import FAILURE, OWNER, PROPOSAL, moves, recorded, state_key
from tests.test_workflow_rows import live

SEEDS: Final = range(24)
NAMES: Final = {kind: name for name, kind in RUN_EVENTS.items()}
MINUTE_US: Final = 60_000_000
CLOSED: Final = frozenset({Status.COMPLETED, Status.REJECTED, Status.EXPIRED})

BEGUN: Final = CheckpointSaved(
    status=Status.RUNNING, state_version=1, definition=Definition(workflow="flow", fingerprint="f" * 64)
)
ASKED: Final = ProposalRecorded(
    step="pay",
    request_id="approval:run-1:pay",
    proposal=msgspec.Raw(PROPOSAL.canonical),
    proposal_hash=PROPOSAL.hash,
)
CLAIM: Final[Mapping[str, Any]] = {"epoch": 4, "owner": OWNER, "deadline_us": 9}
NOT_ANSWERED: Final = [
    [recorded(version, event) for version, event in enumerate((BEGUN, ASKED, *ends), 1)]
    for ends in (
        [RunCompleted()],
        [RunFailed(error=FAILURE, status=Status.REJECTED)],
        [RunFailed(error=FAILURE), RunClaimed(**CLAIM), RunCompleted()],
    )
]
"""Workflows that end without waiting for who decides; one is taken up again in between."""

Rows = Mapping[Key, Row]
Says = Callable[[Rows, Run], bool]


class Folded:
    """The rows of one view, folded event by event; without the types that it is made to forget."""

    def __init__(self, projection: Projection, forgotten: str | None = None) -> None:
        self.view: Final = MemoryView(projection)
        self._types: Final = projection.selection().types - {forgotten}
        self._selection: Final = projection.selection()

    @property
    def rows(self) -> Rows:
        return self.view.rows

    def add(self, event: RecordedEvent) -> None:
        if event.type in self._types:
            shape = self._selection.shapes.get(event.type)
            data = None if shape is None else msgspec.json.decode(msgspec.json.encode(event.data), type=shape)
            self.view.apply([as_view_event(event, data)], event.position)


def of_status(run: Run, request: Run) -> str:
    """Return the status that the view of approvals has to show of a request; spelled out here once more."""
    if request.attempts > 0:
        return "spent"
    match request.status:
        case Status.WAITING_FOR_USER | Status.APPROVED if run.progress is not None and run.status in CLOSED:
            return "closed"
        case Status.WAITING_FOR_USER:
            return "waiting"
        case other:
            return other.value.lower()


def approvals_say_it(rows: Rows, run: Run) -> bool:
    """Compare the view of approvals with all requests of a run."""
    wanted = {request.request_id: request for request in wanted_requests(run)}
    expected: dict[Any, Any] = {}
    for request in requests_of(run):
        assert request.proposal is not None
        for superseded in request.superseded:
            expected[superseded] = ("superseded", None)
        is_wanted = wanted.get(request.request_id)
        policy = request.policy
        expected[request.request_id] = (
            of_status(run, request),
            None if is_wanted is None else "reconcile" if request.is_unknown else "decide",
            request.step or "",
            request.proposal.action,
            canonical_args(request.proposal.canonical),
            request.proposal.output,
            request.proposal_hash,
            1 if policy is None else policy.required,
            sum(vote.decision == "approve" for vote in request.votes),
            request.expires_at_us,
            request.supersedes,
            request.approval,
            request.decided_by,
            request.decided_at_us,
            request.decision_reason,
        )
    names = (
        *("status", "wanted", "step", "action", "args", "output", "proposal_hash", "required", "given"),
        *("expires_at_us", "supersedes", "decision", "decided_by", "decided_at_us", "reason"),
    )
    found = {
        row["request_id"]: tuple(row[name] for name in names[: 2 if row["status"] == "superseded" else None])
        for row in rows.values()
        if row["run_id"] == run.run_id
    }
    return found == expected


def effects_say_it(rows: Rows, run: Run) -> bool:
    """Compare the view of effects with the effect of each request of a run, and with what undoes it."""
    mine = {row["effect"]: row for row in rows.values() if row["run_id"] == run.run_id}
    expected: set[Any] = set()
    for request in requests_of(run):
        expected |= {request.request_id, *request.superseded}
        if not all(mine.get(each, {}).get("status") == "superseded" for each in request.superseded):
            return False
        row = mine.get(request.request_id)
        if row is None or not _says_effect(row, request):
            return False
        undoing = request.compensation
        if undoing is not None:
            expected.add(undoing.op_key)
            if not _says_undoing(mine.get(undoing.op_key), row, request):
                return False
    return mine.keys() == expected


def _says_effect(row: Row, request: Run) -> bool:
    intent, problem = request.intent, request.problem
    late = request.late  # the last one, whatever it was about
    if (row["late"] is not None) != (late is not None) and (late is None or late.op_key == request.op_key):
        return False
    if (row["attempts"], row["op_key"], row["status"] == "open") != (
        request.attempts,
        request.op_key,
        intent is not None,
    ):
        return False
    if intent is not None:
        holder = (intent.epoch, intent.deadline_us, intent.owner.host, intent.owner.boot, intent.owner.lock)
        return tuple(row[name] for name in ("epoch", "until_us", "host", "boot", "lock")) == holder
    if request.executed:
        is_done = row["status"] in ("executed", "recovered", "compensated") or row["verdict"] == "executed"
        is_undone: bool = row["status"] == "compensated"
        return bool(is_done) and is_undone == (request.status is Status.COMPENSATED)
    if request.unknown is not None:
        return (row["status"], row["problem"]) == ("unknown", request.unknown)
    if request.failure is not None:
        return (row["status"], row["is_final"], row["problem_code"]) == ("failed", 1, request.failure.code)
    if row["status"] in ("conflict", "failed"):
        return problem is not None and bool(row["problem_code"] == problem.code)
    status: str = row["status"]
    return status == ("not_begun" if request.attempts == 0 else "reconciled")


def _says_undoing(row: Row | None, undone: Row, request: Run) -> bool:
    undoing = request.compensation
    if row is None or undoing is None:
        return False
    is_known = row["undoes"] == undone["op_key"] and row["attempts"] == undoing.attempts
    is_open = (row["status"] == "open") == (undoing.intent is not None)
    is_unknown = (row["status"] == "unknown") == (request.unknown is not None)
    return is_known and is_open and is_unknown and (row["action"], row["output"]) == (undoing.action, undone["output"])


SAY: Final[Mapping[str, tuple[Projection, Says]]] = {
    "approvals": (APPROVALS, approvals_say_it),
    "effects": (EFFECTS, effects_say_it),
}

# ── histories ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def lived(seed: int) -> Sequence[RecordedEvent]:
    """Return the events of the log of one random life of a workflow and its child."""
    chance, clock = random.Random(seed), FakeClock()
    async with eventlog.open("memory:", clock=clock) as log:
        await live(log, clock, chance)
        return [event async for event in log.read_all()]


@pytest.fixture(scope="module")
def lives() -> list[Sequence[RecordedEvent]]:
    return [asyncio.run(lived(seed)) for seed in SEEDS]


Way = tuple[tuple[RunEvent, ...], tuple[RunEvent, ...]]


def ways() -> list[Way]:
    """Return a way to every state that a run of one action can reach, with everything that may be appended there."""
    start = Run(run_id="run-1")
    seen = {state_key(start)}
    left: list[tuple[Run, tuple[RunEvent, ...]]] = [(start, ())]
    found = []
    while left:
        here, past = left.pop()
        for batch in moves(here):
            run = after(here, batch)
            found.append((past, batch))
            if state_key(run) not in seen:
                seen.add(state_key(run))
                left.append((run, (*past, *batch)))
    return found


def after(run: Run, events: Iterable[RunEvent]) -> Run:
    for event in events:
        run = fold_fact(run, event, version=run.version + 1, at_us=run.version + 1, actor="os:7")
    return run


class History(NamedTuple):
    """Events, of which the first were looked at in another history that begins so."""

    events: Sequence[RecordedEvent]
    seen: int = 0


@pytest.fixture(scope="module")
def histories(lives: list[Sequence[RecordedEvent]]) -> list[History]:
    of_one_action = [
        History([recorded(version, event) for version, event in enumerate((*past, *batch), 1)], len(past))
        for past, batch in ways()
    ]
    assert len(of_one_action) > 1000
    return [*map(History, NOT_ANSWERED), *of_one_action, *map(History, lives)]


def differing(name: str, history: History, forgotten: str | None = None) -> list[str]:
    """Return the types of the events behind which the rows of a run are not what the fold of all its events says."""
    projection, say_it = SAY[name]
    folded = Folded(projection, forgotten)
    runs: dict[str, Run] = {}
    found = []
    for count, event in enumerate(history.events):
        run = runs.get(event.stream) or Run(run_id=event.stream.removeprefix("run:"))
        step = advance if run.progress is not None or getattr(event.data, "definition", None) else fold_fact
        run = step(run, event.data, version=event.version, at_us=event.recorded_at_us, actor=event.actor)
        runs[event.stream] = run
        folded.add(event)
        if count >= history.seen and not say_it(folded.rows, run):
            found.append(event.type)
    return found


@pytest.mark.parametrize("name", SAY)
def test_after_every_event_that_can_happen_the_rows_are_what_the_requests_of_the_runs_are(
    histories: list[History], name: str
) -> None:
    met: set[str] = set()
    for history in histories:
        assert differing(name, history) == [], [event.type for event in history.events]
        met |= {event.type for event in history.events}
    assert met >= SAY[name][0].selection().types - {"claim_renewed"}


@pytest.mark.parametrize(
    ("name", "forgotten"),
    [(name, each) for name, (view, _) in SAY.items() for each in sorted(view.event_types) if each != "claim_renewed"],
)
def test_a_view_that_did_not_know_one_of_its_types_would_be_found_out(
    histories: list[History], name: str, forgotten: str
) -> None:
    with_it = (each for each in histories if forgotten in {event.type for event in each.events})
    assert any(differing(name, each, forgotten) for each in with_it)


def test_the_row_of_a_run_has_the_last_refusal_that_the_events_have(lives: list[Sequence[RecordedEvent]]) -> None:
    for events in lives:
        folded = Folded(RUNS)
        streams: dict[str, list[RecordedEvent]] = {}
        for event in events:
            folded.add(event)
            stream = streams.setdefault(event.stream, [])
            stream.append(event)
            run_id = event.stream.removeprefix("run:")
            refusal = last_refusal(fold_stream(run_id, stream), stream)
            assert folded.rows[run_id]["refusal"] == (None if refusal is None else refusal["code"])


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Reading:
    """Gives no rows, and remembers of which groups they were asked for."""

    def __init__(self) -> None:
        self.asked: Final[list[tuple[str | int, ...]]] = []

    def row(self, key: Key) -> Row | None:
        raise AssertionError("rows are asked for by group")

    def group(self, prefix: tuple[str | int, ...]) -> dict[Key, Row]:
        self.asked.append(prefix)
        return {}


@pytest.mark.parametrize("projection", [APPROVALS, EFFECTS])
def test_an_event_of_one_step_reads_the_rows_of_that_step_alone_however_many_a_run_has(projection: Projection) -> None:
    asked = [replace(ASKED, step=f"pay#{number}", request_id=f"approval:run-1:pay#{number}") for number in range(5)]
    whole_run = RunCancelled(actor_source="os") if projection is APPROVALS else RunClaimed(**CLAIM)
    events: list[RunEvent] = [*asked, asked[2], whole_run, asked[4]]
    seen = [as_view_event(recorded(version, event)) for version, event in enumerate(events, 1)]
    reading = Reading()
    changes = fold_events(projection, seen, reading, {})
    assert reading.asked == [*(("run-1", each.step) for each in asked), ("run-1",)], "each group once"
    assert len(changes) == 5
    if projection is APPROVALS:
        statuses = [(row or {})["status"] for row in changes.values()]
        assert statuses == ["cancelled"] * 4 + ["waiting"], "those that were only in the cache, too"


# ── timeline ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_timeline_has_a_row_with_its_sentence_for_every_event_of_a_run(
    lives: list[Sequence[RecordedEvent]],
) -> None:
    for events in lives:
        folded = Folded(TIMELINE)
        for event in events:
            folded.add(event)
        assert [tuple(row.values()) for row in folded.rows.values()] == [
            (
                event.position,
                event.stream.removeprefix("run:"),
                event.version,
                event.recorded_at_us,
                event.actor,
                event.type,
                sentence(event),
            )
            for event in events
        ]


def test_a_sentence_of_what_a_view_sees_of_an_event_is_that_of_the_event() -> None:
    for history in NOT_ANSWERED:
        for event in history:
            assert sentence(as_view_event(event)) == sentence(event)


# ── in a log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [3, 7])
async def test_every_view_that_was_written_with_its_events_equals_a_fresh_fold(tmp_path: Path, seed: int) -> None:
    chance, clock, views = random.Random(seed), FakeClock(), built_in_views()
    async with eventlog.open(tmp_path / "log.db", views=views, clock=clock) as log:
        assert isinstance(log, SqliteLog)
        await live(log, clock, chance, RunsTable(log, views[0]))
        head = (await log.head()).position
        for view in views:
            checked = await check_view(log, view)
            assert checked is not None
            assert (checked.differing, checked.position) == (0, head), checked.differences[:3]
            assert checked.rows > 0
            held = MemoryView(view.projection)
            async for event in log.read_all():
                if event.type in view.selection.types:
                    held.apply(narrowed(event, view.selection, REGISTRY), event.position)
            stored = await log.read_view(view.rows, None, 10_000)
            assert sorted(held, key=str) == sorted(stored, key=str)


async def test_a_row_that_was_edited_by_hand_is_found_in_each_view(tmp_path: Path) -> None:
    views = built_in_views()
    async with eventlog.open(tmp_path / "log.db", views=views) as log:
        assert isinstance(log, SqliteLog)
        runner = Runner(log, actions=[eventlog.action("pay")(_pays)])
        await runner.propose("run-1", PROPOSAL)
        await runner.approve("run-1", PROPOSAL.hash)
        await runner.resume("run-1")
        edits = ("runs SET status", "approvals SET decided_by", "effects SET result", "timeline SET sentence")
        for edit in (*edits, "usage SET cost"):
            await log.write_view(lambda connection, sql: connection.execute(sql), f"UPDATE {edit} = 'x'")
        for view in views:
            checked = await check_view(log, view)
            assert checked is not None and checked.differing > 0


async def _pays(call: eventlog.Call) -> Any:
    return {"n": 1}


async def looked_at(path: Path) -> tuple[list[Row], list[Row]]:
    """Return the rows of the approvals and effects of a log, both brought up to its head."""
    async with eventlog.open(path, views=[SqliteView(APPROVALS), SqliteView(EFFECTS)]) as log:
        assert isinstance(log, SqliteLog)
        approvals, effects = SqliteView(APPROVALS), SqliteView(EFFECTS)
        return await log.read_view(approvals.rows), await log.read_view(effects.rows)


def test_a_crash_that_nobody_has_looked_after_is_an_open_effect_whose_time_passes(tmp_path: Path) -> None:
    here = HereCommandLine(tmp_path, "--db", "a.db")
    approve(here)
    process = CommandLine(tmp_path, "--db", "a.db")
    process("resume", "run-1", env={"EVENTLOG_FAILPOINT": "effect.after"}, status=91)
    approvals, (effect,) = asyncio.run(looked_at(tmp_path / "a.db"))
    assert [(row["status"], row["wanted"]) for row in approvals] == [("spent", None)], "nobody is asked"
    assert (effect["status"], effect["action"], effect["output"]) == ("open", "write_draft", "draft.txt")
    assert effect["attempts"] == 1
    assert effect["began_at_us"] < effect["until_us"], "from then on it is nobody's"
    here("resume", "run-1", status=0)
    _, (effect,) = asyncio.run(looked_at(tmp_path / "a.db"))
    assert (effect["status"], effect["until_us"], effect["lock"]) == ("recovered", None, None)


async def test_listing_what_waits_for_a_person_appends_nothing_and_has_it_whole(tmp_path: Path) -> None:
    path, args = tmp_path / "log.db", {"to": "Ada", "note": "x" * 5000}
    asked = propose("pay", args, "bank")
    async with eventlog.open(path, clock=FakeClock()) as log:
        runner = Runner(
            log, clock=FakeClock(), policies={"pay": Policy(required=2, roles=("lead", "bank"), expires_in_s=60)}
        )
        await runner.propose("run-1", asked)
        head = await log.head()
    (row,), _ = await looked_at(path)
    assert (row["request_id"], row["proposal_hash"], row["args"]) == (
        "approval:run-1",
        asked.hash,
        canonical_args(asked.canonical),
    )
    assert (row["status"], row["wanted"], row["required"], row["given"]) == ("waiting", "decide", 2, 0)
    assert (row["roles"], row["separation_of_duties"]) == ('["lead","bank"]', 0)
    assert row["expires_at_us"] == row["asked_at_us"] + MINUTE_US
    async with eventlog.open(path) as log:
        assert await log.head() == head


@pytest.mark.parametrize("seed", [1, 4, 8])
async def test_the_inbox_is_what_all_folds_together_want_a_person_for_and_page_by_page_the_same(
    tmp_path: Path, seed: int
) -> None:
    chance, clock = random.Random(seed), FakeClock()
    async with eventlog.open(tmp_path / "log.db", views=built_in_views(), clock=clock) as log:
        assert isinstance(log, SqliteLog)
        family = await live(log, clock, chance)
        await Runner(log, clock=clock).propose("run-2", PROPOSAL)
        head = await log.head()
        rows = await log.read_view(inbox)
        wanted = []
        for run_id in [*family, "run-2"]:
            run = fold_stream(run_id, (await log.read_stream(run_stream(run_id))).events)
            wanted += [(run_id, request.request_id, run.progress is not None) for request in wanted_requests(run)]
        assert [(row["run_id"], row["request_id"], row["workflow"] is not None) for row in rows] == sorted(wanted)
        assert rows[-1]["run_id"] == "run-2", "somebody is wanted"
        by_page, after = [], ("", "")
        while page := await log.read_view(inbox, after, 1):
            by_page += page
            after = page[-1]["run_id"], page[-1]["request_id"]
        assert by_page == rows
        assert await log.head() == head


async def test_the_inbox_looks_at_the_requests_that_wait_and_at_no_others(tmp_path: Path) -> None:
    async with eventlog.open(tmp_path / "log.db", views=built_in_views()) as log:
        assert isinstance(log, SqliteLog)
        statements: list[str] = []

        def look(connection: sqlite3.Connection) -> list[str]:
            connection.set_trace_callback(statements.append)
            inbox(connection)
            connection.set_trace_callback(None)
            return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statements[-1]}")]

        plan = await log.look(look)
    assert any(line.startswith("SEARCH a USING INDEX approvals__g") for line in plan), plan


def test_who_holds_an_open_effect_holds_it_longer_with_each_renewal() -> None:
    intent = ResumeStarted(
        step="pay", op_key="k", attempt=1, epoch=0, owner=OWNER, deadline_us=9, approval_hash="a", input_hash="b"
    )
    held = [ClaimRenewed(epoch=0, deadline_us=20), ClaimRenewed(epoch=0, deadline_us=15)]
    folded = Folded(EFFECTS)
    until = []
    events: list[RunEvent] = [BEGUN, ASKED, intent, *held]
    for version, event in enumerate(events, 1):
        folded.add(recorded(version, event))
        until += [row["until_us"] for row in folded.rows.values()]
    assert until == [None, 9, 20, 20]


def test_a_request_of_a_workflow_that_failed_is_waited_for_until_it_has_ended_for_good() -> None:
    shown = []
    for history in NOT_ANSWERED:
        folded = Folded(APPROVALS)
        for event in history:
            folded.add(event)
            shown += [row["status"] for row in folded.rows.values()]
    assert Counter(shown) == {"waiting": 5, "closed": 3}


async def test_why_nobody_could_take_a_run_up_is_in_its_row_until_somebody_does(tmp_path: Path) -> None:
    @eventlog.workflow(name="flow")
    async def before(run: RunContext) -> Any:
        return await run.wait_for_signal("go")

    @eventlog.workflow(name="flow")
    async def changed(run: RunContext) -> Any:
        return await run.wait_for_signal("go"), "and more"

    view = SqliteView(RUNS)
    async with eventlog.open(tmp_path / "log.db", views=[view]) as log:
        assert isinstance(log, SqliteLog)
        await Runner(log, workflows=[before]).start(before, "run-1")
        await Runner(log, workflows=[before]).signal("run-1", "go", 1)
        with pytest.raises(EventLogError, match="flow"):
            await Runner(log, workflows=[changed]).resume("run-1")
        (row,) = await log.read_view(view.rows)
        assert (row["refusal"], row["status"]) == ("definition_mismatch", "RUNNING")
        assert row["refusal_detail"]
        assert row["refused_at_us"] > 0
        checked = await check_view(log, view)
        assert checked is not None and checked.differing == 0
        await Runner(log, workflows=[before]).resume("run-1")
        (row,) = await log.read_view(view.rows)
        assert (row["refusal"], row["refused_at_us"], row["status"]) == (None, None, "COMPLETED")


async def test_a_run_of_one_action_that_differs_from_what_people_saw_says_so_until_it_goes_on(tmp_path: Path) -> None:
    view = SqliteView(RUNS)
    async with eventlog.open(tmp_path / "log.db", views=[view]) as log:
        assert isinstance(log, SqliteLog)
        table = RunsTable(log, view)
        runner = Runner(log, actions=[eventlog.action("pay")(_pays)], view=table)
        await runner.propose("run-1", PROPOSAL)
        await runner.approve("run-1", PROPOSAL.hash)
        await log.write_view(lambda connection: connection.execute("UPDATE runs SET executed = 1"))
        with pytest.raises(Refused, match="executed"):
            await runner.resume("run-1")
        assert [row["refusal"] for row in await table.page()] == ["view_mismatch"]
        await log.write_view(lambda connection: connection.execute("UPDATE runs SET executed = 0"))
        await runner.resume("run-1")
        assert [row["refusal"] for row in await table.page()] == [None]


async def test_more_rows_may_be_asked_for_than_sqlite_counts(tmp_path: Path) -> None:
    view = SqliteView(RUNS)
    async with eventlog.open(tmp_path / "log.db", views=[view, SqliteView(APPROVALS), SqliteView(EFFECTS)]) as log:
        assert isinstance(log, SqliteLog)
        await Runner(log).propose("run-1", PROPOSAL)
        for limit in (2**63, 10**20):
            assert len(await log.read_view(view.rows, None, limit)) == 1
            assert len(await log.read_view(view.rows_where, "run_id", "run-1", limit)) == 1
            assert len(await RunsTable(log, view).page(limit=limit)) == 1
            assert len(await log.read_view(inbox, ("", ""), limit)) == 1
            assert await log.read_view(crashed_effects, 0, ("", ""), limit) == []


async def test_the_list_of_runs_says_it_without_reading_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @eventlog.workflow(name="flow")
    async def flow(run: RunContext) -> Any:
        return await run.wait_for_signal("go")

    async with eventlog.open(tmp_path / "a.db") as log:
        await Runner(log, workflows=[flow]).start(flow, "run-1")
        refusal = ResumeRejected(reason="definition_mismatch", status="WAITING", detail="it is another now")
        stream = run_stream("run-1")
        version = (await log.read_stream(stream)).version
        await log.append_reserved([Append(stream, [refusal], Expect.at(version))])

    async def read_stream(*_: Any, **__: Any) -> Any:
        raise AssertionError("a stream is read")

    monkeypatch.setattr(SqliteLog, "read_stream", read_stream)
    here = HereCommandLine(tmp_path, "--db", "a.db")
    (row,) = await asyncio.to_thread(lambda: here("runs", "list", "--json", status=0).json["runs"])
    assert row["refused"] == "definition_mismatch (it is another now)"
    assert "refusal" not in row

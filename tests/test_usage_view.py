"""The view `usage`: what results report is counted exactly, and the rows of two parts of a log make those of both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

import eventlog
from eventlog import Policy, Retry, RunContext, Runner
from eventlog.log import RecordedEvent
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from eventlog.views import ViewEvent, as_view_event
from projections import TIMELINE, USAGE, Key, MemoryView, Projection, Row, SqliteView, check_view, rebuild_in_ranges
from projections.reported_usage import Reported, added_costs, reported_usage
from tests.test_built_in_views import lived
from tests.test_workflow_rows import live


@pytest.mark.parametrize(
    ("result", "reported"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, Reported(input_tokens=3, output_tokens=4, total_tokens=7)),
        ({"usage": {"input_tokens": 3, "total_tokens": 9}}, Reported(input_tokens=3, total_tokens=9)),
        (
            {"usage": {"prompt_tokens": 3, "completion_tokens": 4}, "model": "m"},
            Reported(input_tokens=3, output_tokens=4, total_tokens=7, model="m"),
        ),
        ({"usage": {"input_tokens": 1}, "input_tokens": 5}, Reported(input_tokens=1, total_tokens=1)),
        ({"usage": {"model": "inner"}, "model": "outer", "cost": 1}, Reported(cost="1", model="inner")),
        ({"cost": 0.1, "cost_usd": "0.10"}, Reported(cost="0.1", cost_usd="0.1")),
        ({"cost": 1.5e-07}, Reported(cost="0.00000015")),
        ({"cost": "-2.50"}, Reported(cost="-2.5")),
        ({"cost": 1e300}, Reported(malformed=1)),
        ({"cost": "1e-99"}, Reported(malformed=1)),
        ({"cost": "NaN", "cost_usd": "1_000"}, Reported(malformed=2)),
        ({"cost": True, "input_tokens": 1.0, "output_tokens": "4"}, Reported(malformed=3)),
        ({"input_tokens": -1, "output_tokens": 10**13, "total_tokens": 2}, Reported(total_tokens=2, malformed=2)),
        ({"input_tokens": None, "cost": [], "usage": "none"}, Reported(malformed=1)),
        ({"cost": "1" * 5000}, Reported(malformed=1)),
    ],
)
def test_what_a_result_reports_is_read_exactly_and_what_is_no_number_is_counted_as_such(
    result: Any, reported: Reported
) -> None:
    assert reported_usage(msgspec.json.encode(result)) == reported


@pytest.mark.parametrize("result", [None, 7, "input_tokens", ["cost"], {}, {"model": "m"}, {"input_tokens": None}])
def test_a_result_without_the_fields_reports_nothing(result: Any) -> None:
    assert reported_usage(msgspec.json.encode(result)) is None
    assert reported_usage(b"") is None


costs = st.tuples(st.integers(-(10**20), 10**20), st.integers(0, 10**12 - 1)).map(
    lambda pair: f"{pair[0]}.{pair[1]:012}"
)


@for_all(st.lists(costs, max_size=20))
def test_costs_add_up_to_the_last_digit_in_any_order(costs: list[str]) -> None:
    spelled = [reported.cost for cost in costs if (reported := reported_usage(msgspec.json.encode({"cost": cost})))]
    forwards = backwards = "0"
    for cost in spelled:
        forwards = added_costs(forwards, cost)
    for cost in reversed(spelled):
        backwards = added_costs(cost, backwards)
    assert forwards == backwards
    assert Fraction(forwards) == sum(map(Fraction, costs))


def test_floats_would_have_drifted() -> None:
    assert 0.1 + 0.2 != 0.3
    assert added_costs("0.1", "0.2") == "0.3"


SHAPE: Final = USAGE.selection().shapes["step_started"]
RESULTS: Final = st.sampled_from(
    [None, "text", {"input_tokens": 5, "cost": "0.1"}, {"usage": {"total_tokens": 2, "cost_usd": 0.2, "model": "m"}}]
)
BODIES: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    **{kind: st.fixed_dictionaries({"step": st.none()}) for kind in ("resume_started", "outcome_unknown")},
    "action_executed": st.fixed_dictionaries({"action": st.just("pay"), "result": RESULTS}),
    "action_recovered": st.fixed_dictionaries({"action": st.just("pay"), "result": RESULTS}),
    "action_conflict": st.just({"action": "pay"}),
    "action_failed": st.just({"action": "pay"}),
    "checkpoint_saved": st.sampled_from([{}, {"definition": {"workflow": "flow"}}]),
    "compensation_started": st.just({"action": "refund"}),
    "compensation_executed": st.sampled_from([{"action": "refund"}, {"action": "refund", "evidence": 1}]),
    "compensation_failed": st.just({"action": "refund"}),
    "outcome_reconciled": st.sampled_from(
        [{"action": "pay", "verdict": verdict, "result": {"cost": 2}} for verdict in ("executed", "abandoned")]
    ),
    "run_completed": st.just({"result": {"input_tokens": 9}}),
    "step_started": st.just({"name": "ask", "key": "ask"}),
    "step_completed": st.fixed_dictionaries(
        {"name": st.just("ask"), "key": st.just("ask"), "output": RESULTS, "kind": st.sampled_from(["step", "value"])}
    ),
    "step_failed": st.just({"name": "ask", "key": "ask"}),
}


@st.composite
def used(draw: st.DrawFn) -> list[ViewEvent]:
    """Draw events of any order, also of one that no run has: the rows are sums, whatever comes."""
    events = []
    at_us = 0
    for position in range(1, draw(st.integers(1, 14)) + 1):
        kind = draw(st.sampled_from([each for each in BODIES if each in USAGE.event_types]))
        at_us += draw(st.integers(0, 9))
        data = msgspec.json.decode(msgspec.json.encode(draw(BODIES[kind])), type=SHAPE)
        actor = draw(st.sampled_from(["ada", "bob"]))
        events.append(ViewEvent(position, "run:run-1", position, kind, at_us, actor, data))
    return events


def usage_of(events: Iterable[ViewEvent]) -> dict[Key, Row]:
    view = MemoryView(USAGE)
    view.apply(events, 1)
    return dict(view.rows)


def merged(earlier: Mapping[Key, Row], later: Mapping[Key, Row]) -> dict[Key, Row]:
    both = {key: USAGE.merge(earlier[key], later[key]) for key in earlier.keys() & later.keys()}
    return {**earlier, **later, **both}


@settings(max_examples=150, deadline=None)
@for_all(used())
def test_the_rows_of_two_parts_of_a_log_are_put_together_wherever_it_is_cut(events: list[ViewEvent]) -> None:
    whole = usage_of(events)
    for cut in range(len(events) + 1):
        assert merged(usage_of(events[:cut]), usage_of(events[cut:])) == whole
    for cut in range(1, len(events)):
        middle = merged(usage_of(events[1:cut]), usage_of(events[cut:]))
        assert merged(usage_of(events[:1]), middle) == whole


def test_the_usage_of_random_lives_is_put_together_wherever_they_are_cut() -> None:
    shapes = USAGE.selection().shapes
    for seed in range(6):
        events: Sequence[RecordedEvent] = asyncio.run(lived(seed))
        seen = [_narrowed(event, shapes[event.type]) for event in events if event.type in shapes]
        whole = usage_of(seen)
        assert all(merged(usage_of(seen[:cut]), usage_of(seen[cut:])) == whole for cut in range(len(seen) + 1))


def test_rows_that_were_only_added_would_miss_an_attempt_that_the_cut_divides() -> None:
    started = ViewEvent(1, "run:r", 1, "step_started", 10, "ada", SHAPE(name="ask", key="ask"))
    completed = ViewEvent(2, "run:r", 2, "step_completed", 17, "ada", SHAPE(name="ask", key="ask"))
    (row,) = merged(usage_of([started]), usage_of([completed])).values()
    assert (row["timed"], row["time_us"]) == (1, 7)
    assert sum(row["timed"] for part in ([started], [completed]) for row in usage_of(part).values()) == 0


async def test_what_steps_and_effects_report_and_how_long_they_took_is_added_up_by_agent(tmp_path: Path) -> None:
    clock, view, fails = FakeClock(), SqliteView(USAGE), [True]

    def thinks() -> Any:
        clock.advance(2)
        if fails and fails.pop():
            raise OSError("the model is out of order")
        used = {"input_tokens": 100, "output_tokens": 20, "cost_usd": "0.0030"}
        return {"text": "x" * 300, "usage": used, "model": "m"}

    async def pays(call: eventlog.Call) -> Any:
        clock.advance(5)
        return {"cost": 0.1, "input_tokens": "many"}

    @eventlog.workflow
    async def flow(run: RunContext) -> None:
        for _ in range(2):
            await run.step("think", thinks, retry=Retry(attempts=3, first_delay_s=0))
        await run.act("pay", {"n": 1}, output="bank")

    async with eventlog.open(tmp_path / "log.db", views=[view], clock=clock, actor="researcher") as log:
        assert isinstance(log, SqliteLog)
        actions = [eventlog.action("pay")(pays)]
        runner = Runner(log, workflows=[flow], actions=actions, policies={"pay": Policy(auto=True)}, clock=clock)
        outcome = await runner.start(flow, "run-1")
        while outcome.status == "WAITING":
            clock.advance(60)
            outcome = await runner.resume("run-1")
        assert outcome.status == "COMPLETED"
        rows = await log.read_view(view.rows)
    named = {(row["kind"], row["step"]): row for row in rows}
    assert {row["agent"] for row in rows} == {"researcher"}
    assert named.keys() == {("run", ""), ("step", "think"), ("step", "think#2"), ("action", "pay")}
    assert named["run", ""]["workflow"] == "flow"
    first, again, paid = named["step", "think"], named["step", "think#2"], named["action", "pay"]
    assert (first["results"], first["failures"], first["timed"], first["time_us"]) == (1, 1, 2, 4_000_000)
    assert (again["results"], again["failures"], again["model"], again["cost_usd"]) == (1, 0, "m", "0.003")
    assert (again["input_tokens"], again["output_tokens"], again["total_tokens"]) == (100, 20, 120)
    assert (paid["cost"], paid["malformed"], paid["input_tokens"], paid["time_us"]) == ("0.1", 1, 0, 5_000_000)


@pytest.mark.campaign
@pytest.mark.parametrize("projection", [USAGE, TIMELINE])
async def test_two_processes_that_fold_half_of_a_log_each_come_to_the_same_view(
    tmp_path: Path, projection: Projection
) -> None:
    chance, clock, view = random.Random(4), FakeClock(), SqliteView(projection)
    async with eventlog.open(tmp_path / "log.db", clock=clock) as log:
        assert isinstance(log, SqliteLog)
        await live(log, clock, chance)
        rebuilt = await rebuild_in_ranges(log, view, processes=2)
        checked = await check_view(log, view)
        assert checked is not None
        assert (checked.differing, checked.position) == (0, rebuilt.position)
        assert checked.rows > 3


def _narrowed(event: RecordedEvent, shape: type[msgspec.Struct]) -> ViewEvent:
    """Return the event with what the view decodes of it: these have no bodies."""
    return as_view_event(event, msgspec.json.decode(msgspec.json.encode(event.data), type=shape))

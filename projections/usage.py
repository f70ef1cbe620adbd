"""The view `usage`: what runs have used: tokens, cost and time by run, agent and what was done.

A row is one step, action or undoing (`kind`: `step`, `action`, `compensation`) of a run, as far as one agent did it.
`agent` is the actor who recorded the events: a program says who it is with `eventlog.open(…, actor="researcher")`.
`step` is the step key, empty in a run of one action; `action` the name of the step or action. Results that a person
supplied about an effect that nobody knew of are rows of their own (`reconciled`), and the row of the kind `run` has the
workflow's name and when the run began and ended.

    results          how many results were recorded; `failures` how many attempts failed
    reported         how many results carried usage, in the fields of `projections.reported_usage`
    malformed        how many of those fields were there and were no number; they are not counted
    unread           how many results are kept beside the log, as artifacts, where they are not looked into
    time_us          how long those attempts took whose beginning and end are in the log; there are `timed` of them
    cost, cost_usd   decimal text, summed exactly; in SQL, CAST(cost AS REAL) is near enough for a chart

A step that is tried only once has no event when it begins, so it has no time: only one with retries does, and each
effect. Nor has an attempt that crashed: what was recovered, is unknown, or came to a conflict may have been found out
long afterwards. What a run took from end to end, waiting included, is the time between its first and its last event:

    SELECT run_id, sum(total_tokens), max(last_at_us) - min(first_at_us) FROM usage GROUP BY run_id

`open_since_us` (an attempt that has begun and not ended) and `first_end_us` (the first end, where no beginning is
before it) are there so that the rows of two parts of a log can be put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from eventlog.events import NOTHING, RUN_PREFIX
from eventlog.views import ViewEvent
from projections.projection import Key, Row, RowProjection
from projections.reported_usage import NO_COST, added_costs, reported_usage

__all__ = ["USAGE", "UsageProjection"]

_COLUMNS: Final[Mapping[str, str]] = {
    "run_id": "TEXT NOT NULL",
    "agent": "TEXT NOT NULL",
    "step": "TEXT NOT NULL",
    "kind": "TEXT NOT NULL",
    "action": "TEXT",
    "workflow": "TEXT",
    "model": "TEXT",
    "results": "INTEGER NOT NULL",
    "failures": "INTEGER NOT NULL",
    "reported": "INTEGER NOT NULL",
    "malformed": "INTEGER NOT NULL",
    "unread": "INTEGER NOT NULL",
    "input_tokens": "INTEGER NOT NULL",
    "output_tokens": "INTEGER NOT NULL",
    "total_tokens": "INTEGER NOT NULL",
    "cost": "TEXT NOT NULL",
    "cost_usd": "TEXT NOT NULL",
    "timed": "INTEGER NOT NULL",
    "time_us": "INTEGER NOT NULL",
    "first_at_us": "INTEGER NOT NULL",
    "last_at_us": "INTEGER NOT NULL",
    "open_since_us": "INTEGER",
    "first_end_us": "INTEGER",
}
_COUNTED: Final = (
    "results",
    "failures",
    "reported",
    "malformed",
    "unread",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "timed",
    "time_us",
)
_COSTS: Final = ("cost", "cost_usd")
_NAMES: Final = ("action", "workflow", "model")


class _Named(msgspec.Struct):
    """Of the definition of a workflow, its name."""

    workflow: str


class _Said(msgspec.Struct):
    """What any of the events says that is counted here. A value stays the JSON text that it is in the log."""

    name: str | None = None
    key: str | None = None
    kind: str = "step"
    output: msgspec.Raw = NOTHING
    artifact: str | None = None
    action: str | None = None
    step: str | None = None
    result: msgspec.Raw = NOTHING
    evidence: msgspec.Raw = NOTHING
    verdict: str = "executed"
    definition: _Named | None = None


_KINDS: Final[Mapping[str, str]] = {
    "action_conflict": "action",
    "action_executed": "action",
    "action_failed": "action",
    "action_recovered": "action",
    "checkpoint_saved": "run",
    "compensation_executed": "compensation",
    "compensation_failed": "compensation",
    "compensation_started": "compensation",
    "outcome_reconciled": "reconciled",
    "resume_started": "action",
    "run_cancelled": "run",
    "run_completed": "run",
    "run_failed": "run",
    "step_completed": "step",
    "step_failed": "step",
    "step_started": "step",
}
_BEGIN: Final = frozenset({"compensation_started", "resume_started", "step_started"})
_SUCCEED: Final = frozenset(
    {"action_executed", "action_recovered", "compensation_executed", "outcome_reconciled", "step_completed"}
)
_FAIL: Final = frozenset({"action_conflict", "action_failed", "compensation_failed", "step_failed"})
_TIMED: Final = frozenset(
    {"action_executed", "action_failed", "compensation_executed", "step_completed", "step_failed"}
)
"""Ends that are recorded by whoever began the attempt, when it is over."""


class UsageProjection(RowProjection):
    """Adds up what results report, and how long attempts took. The rows of two parts of a log can be put together."""

    name = "usage"
    columns = _COLUMNS
    key_columns = 4
    stream_prefix = RUN_PREFIX
    event_types = dict.fromkeys(_KINDS, _Said)

    def key(self, event: ViewEvent) -> Key | None:
        """Return run, agent, step and kind, or None for an event that says nothing of use."""
        kind, said = _KINDS[event.type], event.data
        if kind == "step" and said.kind != "step":
            return None  # a signal, a value of the world, a run that was not started
        if event.type == "checkpoint_saved" and said.definition is None:
            return None
        if kind == "reconciled" and said.verdict != "executed":
            return None
        return event.stream.removeprefix(RUN_PREFIX), event.actor, said.key or said.step or "", kind

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Return the row with the event added."""
        said: _Said = event.data
        after = _first(self.key(event), event) if row is None else dict(row)
        after["last_at_us"] = event.recorded_at_us
        if said.definition is not None:
            after["workflow"] = said.definition.workflow
        after["action"] = said.name or said.action or after["action"]
        if event.type in _BEGIN:
            after["open_since_us"] = event.recorded_at_us
        elif event.type in _SUCCEED or event.type in _FAIL:
            _end(after, event)
        return after

    @staticmethod
    def merge(earlier: Row, later: Row) -> Row:
        """Return the row of both parts of the log. An attempt may have begun in the one and ended in the other."""
        row = dict(later)
        for name in _COUNTED:
            row[name] += earlier[name]
        for name in _COSTS:
            row[name] = added_costs(earlier[name], later[name])
        for name in _NAMES:
            row[name] = earlier[name] if later[name] is None else later[name]
        row["first_at_us"] = earlier["first_at_us"]
        begun_us, end_us = earlier["open_since_us"], later["first_end_us"]
        if begun_us is not None and end_us is not None:
            row["timed"] += 1
            row["time_us"] += end_us - begun_us
        row["open_since_us"] = later["open_since_us"] if _has_attempts(later) else begun_us
        row["first_end_us"] = earlier["first_end_us"] if _has_attempts(earlier) else end_us
        return row


USAGE: Final = UsageProjection()


def _first(key: Any, event: ViewEvent) -> Row:
    run_id, agent, step, kind = key
    return {
        **dict.fromkeys(_COLUMNS),
        **dict.fromkeys(_COUNTED, 0),
        **dict.fromkeys(_COSTS, NO_COST),
        "run_id": run_id,
        "agent": agent,
        "step": step,
        "kind": kind,
        "first_at_us": event.recorded_at_us,
    }


def _has_attempts(row: Row) -> bool:
    """Say whether the row has seen an attempt begin or end."""
    return row["open_since_us"] is not None or row["results"] + row["failures"] > 0


# Both of these change a row that is not handed out yet.


def _end(row: Row, event: ViewEvent) -> None:
    """Count an attempt that has ended, and how long it took."""
    said: _Said = event.data
    if event.type in _TIMED and not bytes(said.evidence):
        begun_us = row["open_since_us"]
        if begun_us is not None:
            row["timed"] += 1
            row["time_us"] += event.recorded_at_us - begun_us
        elif not _has_attempts(row):
            row["first_end_us"] = event.recorded_at_us
    row["open_since_us"] = None
    if event.type in _FAIL:
        row["failures"] += 1
    else:
        row["results"] += 1
        row["unread"] += int(said.artifact is not None)
        _report(row, bytes(said.output) or bytes(said.result))


def _report(row: Row, result: bytes) -> None:
    """Add what a result reports."""
    reported = reported_usage(result)
    if reported is None:
        return
    row["reported"] += 1
    row["malformed"] += reported.malformed
    row["input_tokens"] += reported.input_tokens
    row["output_tokens"] += reported.output_tokens
    row["total_tokens"] += reported.total_tokens
    row["cost"] = added_costs(row["cost"], reported.cost)
    row["cost_usd"] = added_costs(row["cost_usd"], reported.cost_usd)
    row["model"] = reported.model or row["model"]

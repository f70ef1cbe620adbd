"""The view that rebuilds are measured with: six columns, one row an agent, folded from steps of 461 bytes."""

from __future__ import annotations

from typing import Final

import msgspec

from eventlog import Append, Expect
from eventlog.stores import SqliteLog
from eventlog.views import ViewEvent
from projections import Row, RowProjection
from tools.bench.payloads import STEPS, taken

__all__ = ["EVENTS_OF_AN_AGENT", "StepsOfAgents", "write_steps"]

EVENTS_OF_AN_AGENT: Final = 100
_AGENTS_A_CALL: Final = 50


class _Step(msgspec.Struct, gc=False):
    """What the view needs of a step."""

    tokens: int
    seconds: float


class StepsOfAgents(RowProjection):
    """What each agent has done so far."""

    name = "bench_steps"
    columns = {
        "agent": "TEXT PRIMARY KEY",
        "steps": "INTEGER NOT NULL",
        "tokens": "INTEGER NOT NULL",
        "slowest_s": "REAL NOT NULL",
        "first_at_us": "INTEGER NOT NULL",
        "last_at_us": "INTEGER NOT NULL",
    }
    event_types = {"bench_step_recorded": _Step}

    def key(self, event: ViewEvent) -> str:
        """Return the agent."""
        return event.stream

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Count the step."""
        step, at_us = event.data, event.recorded_at_us
        if row is None:
            return {
                "agent": event.stream,
                "steps": 1,
                "tokens": step.tokens,
                "slowest_s": step.seconds,
                "first_at_us": at_us,
                "last_at_us": at_us,
            }
        return {
            "agent": event.stream,
            "steps": row["steps"] + 1,
            "tokens": row["tokens"] + step.tokens,
            "slowest_s": max(row["slowest_s"], step.seconds),
            "first_at_us": row["first_at_us"],
            "last_at_us": at_us,
        }

    @staticmethod
    def merge(earlier: Row, later: Row) -> Row:
        """Add up."""
        return {
            "agent": later["agent"],
            "steps": earlier["steps"] + later["steps"],
            "tokens": earlier["tokens"] + later["tokens"],
            "slowest_s": max(earlier["slowest_s"], later["slowest_s"]),
            "first_at_us": earlier["first_at_us"],
            "last_at_us": later["last_at_us"],
        }


async def write_steps(log: SqliteLog, count: int) -> None:
    """Append so many steps, 100 of each agent, the agents one after the other."""
    steps = list(taken(STEPS, EVENTS_OF_AN_AGENT))
    agents = count // EVENTS_OF_AN_AGENT
    for first in range(0, agents, _AGENTS_A_CALL):
        numbers = range(first, min(agents, first + _AGENTS_A_CALL))
        await log.append_many([Append(f"agent-{number}", steps, Expect.no_stream()) for number in numbers])

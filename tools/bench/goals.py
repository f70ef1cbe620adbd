"""What is good enough: each goal as a figure of one case, or as the paired ratio of two.

A ratio is the median of the ratios of every round. py-event-sourcing is rated as it comes, though it does not flush
each commit then; DBOS in its faster WAL mode for many tasks, and as it comes for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from tools.bench.cases.appends import APPEND_1, APPEND_100, APPEND_1000, X1, X1000
from tools.bench.cases.history import AT_NONE, HISTORY, WITH_HISTORY
from tools.bench.cases.processes import LARGEST_SHARE, LOCK_ERRORS, PROCESSES, WORST_WAIT
from tools.bench.cases.proof import PRICE, PROOF
from tools.bench.cases.reads import LOAD, VERIFY
from tools.bench.cases.rebuild import FEED_OF_EVENTSOURCING, REBUILD
from tools.bench.cases.recovery import RECOVERY
from tools.bench.cases.resume import AGET_TUPLE, RESUME
from tools.bench.cases.size import SIZE
from tools.bench.cases.storage import STORAGE, twice
from tools.bench.cases.workflows import WORKFLOWS
from tools.bench.peers import BARE, DBOS_WAL, LANGGRAPH, OURS
from tools.bench.ratios import Summary, paired_ratio, summary
from tools.bench.rounds import Series

__all__ = ["GOALS", "Goal", "Rating", "rate", "rate_all"]

Direction = Literal["at least", "at most", "below"]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A goal. `number` is that of the notes; `over` is the side that is divided by, if it is a ratio.

    The numbers `w` and `p` are of goals for workflows and for proof that the notes do not have.
    `is_worst` goals are about every single round, not about the middle one.
    """

    number: str
    text: str
    case: str
    side: str
    over: str | None = None
    direction: Direction = "at least"
    bound: float
    is_worst: bool = False


class Rating(msgspec.Struct, frozen=True, kw_only=True):
    """A goal and what was found: the figure that is compared with the bound, and the ends of all rounds.

    `bare` is the same figure of the bare engine in the same rounds: what this machine allows, whatever the bound.
    """

    number: str
    text: str
    value: float
    low: float
    high: float
    direction: Direction
    bound: float
    is_met: bool
    bare: float | None = None


def _ratio(number: str, text: str, case: str, over: str, bound: float) -> Goal:
    return Goal(number=number, text=text, case=case, side=OURS, over=over, bound=bound)


_1: Final = APPEND_1.name
_100: Final = APPEND_100.name

GOALS: Final[tuple[Goal, ...]] = (
    _ratio("1", "1 task ÷ sqlite3, one insert a transaction", _1, X1, 0.55),
    _ratio("2", "100 tasks ÷ sqlite3, one insert a transaction", _100, X1, 10),
    _ratio("3", "1000 tasks ÷ sqlite3, 1000 inserts a transaction", APPEND_1000.name, X1000, 0.45),
    _ratio("4", "100 tasks ÷ langgraph", _100, "langgraph", 70),
    _ratio("4", "100 tasks ÷ DBOS (WAL)", _100, "dbos (WAL)", 250),
    _ratio("4", "100 tasks ÷ openai-agents", _100, "openai-agents", 25),
    _ratio("4", "100 tasks ÷ py-event-sourcing", _100, "py-event-sourcing", 40),
    _ratio("4", "100 tasks ÷ eventsourcing (10 threads)", _100, "eventsourcing", 15),
    _ratio("5", "1 task ÷ langgraph", _1, "langgraph", 3.5),
    _ratio("5", "1 task ÷ DBOS", _1, "dbos", 8),
    _ratio("5", "1 task ÷ openai-agents", _1, "openai-agents", 2.5),
    _ratio("5", "1 task ÷ py-event-sourcing", _1, "py-event-sourcing", 2.5),
    Goal(
        number="6",
        text="batches of 1000 behind a long history ÷ behind none",
        case=HISTORY.name,
        side=WITH_HISTORY,
        over=AT_NONE,
        bound=0.6,
    ),
    _ratio("7", "load and verify 1000 events ÷ eventsourcing repository.get", LOAD.name, "eventsourcing", 8),
    _ratio("7", "load and verify 1000 events ÷ py-event-sourcing", LOAD.name, "py-event-sourcing", 5),
    _ratio("7", "load and verify 1000 events ÷ openai-agents", LOAD.name, "openai-agents", 2),
    Goal(
        number="8",
        text="resume of 1000 events ÷ langgraph aget_tuple",
        case=RESUME.name,
        side=OURS,
        over=AGET_TUPLE,
        direction="at most",
        bound=0.6,
    ),
    Goal(
        number="9",
        text="recovery of 1000 steps ÷ DBOS (WAL)",
        case=RECOVERY.name,
        side=OURS,
        over=DBOS_WAL,
        direction="at most",
        bound=0.02,
    ),
    Goal(number="10", text="full verify, events in a second of one core", case=VERIFY.name, side=OURS, bound=150_000),
    Goal(
        number="p",
        text="leaf, tree, scanner and signed heads for an event of 1 KiB, µs",
        case=PROOF.name,
        side=PRICE,
        direction="at most",
        bound=10,
    ),
    Goal(number="11", text="rebuild of a view of six columns, events/s", case=REBUILD.name, side=OURS, bound=400_000),
    _ratio("11", "rebuild ÷ reading eventsourcing's feed", REBUILD.name, FEED_OF_EVENTSOURCING, 2.2),
    Goal(
        number="12",
        text="bytes on the disk for an event, less its body",
        case=SIZE.name,
        side=OURS,
        direction="at most",
        bound=185,
    ),
    Goal(
        number="13",
        text="four processes: lock errors",
        case=PROCESSES.name,
        side=LOCK_ERRORS,
        direction="at most",
        bound=0,
        is_worst=True,
    ),
    Goal(
        number="13",
        text="four processes: longest wait, s",
        case=PROCESSES.name,
        side=WORST_WAIT,
        direction="below",
        bound=0.5,
        is_worst=True,
    ),
    Goal(
        number="13",
        text="four processes: largest share",
        case=PROCESSES.name,
        side=LARGEST_SHARE,
        direction="at most",
        bound=0.5,
        is_worst=True,
    ),
    Goal(
        number="14",
        text="storage: twice the steps ÷ once",
        case=STORAGE.name,
        side=twice(OURS),
        direction="at most",
        bound=2.1,
    ),
    Goal(
        number="w",
        text="workflows, steps/s ÷ DBOS (WAL)",
        case=WORKFLOWS.name,
        side=f"{OURS}: steps/s",
        over=f"{DBOS_WAL}: steps/s",
        bound=5,
    ),
    Goal(
        number="w",
        text="workflows, steps/s ÷ langgraph",
        case=WORKFLOWS.name,
        side=f"{OURS}: steps/s",
        over=f"{LANGGRAPH}: steps/s",
        bound=5,
    ),
)


def rate_all(results: Mapping[str, Series], goals: Sequence[Goal] = GOALS) -> list[Rating]:
    """Return the ratings of the goals whose sides were measured."""
    ratings = (rate(goal, results.get(goal.case, {})) for goal in goals)
    return [rating for rating in ratings if rating is not None]


def rate(goal: Goal, series: Series) -> Rating | None:
    """Return what became of a goal, or None if one of its sides was not measured."""
    values = series.get(goal.side)
    others = series.get(goal.over) if goal.over is not None else None
    if values is None or (goal.over is not None and others is None):
        return None
    found = _found(values, others)
    bare = series.get(BARE) if goal.side == OURS else None
    value = _figure(goal, found)
    return Rating(
        number=goal.number,
        text=goal.text,
        value=value,
        low=found.low,
        high=found.high,
        direction=goal.direction,
        bound=goal.bound,
        is_met=_is_met(goal, value),
        bare=None if bare is None else _figure(goal, _found(bare, others)),
    )


def _found(values: Sequence[float], others: Sequence[float] | None) -> Summary:
    return summary(values) if others is None else paired_ratio(values, others)


def _figure(goal: Goal, found: Summary) -> float:
    if not goal.is_worst:
        return found.median
    return found.low if goal.direction == "at least" else found.high


def _is_met(goal: Goal, value: float) -> bool:
    match goal.direction:
        case "at least":
            return value >= goal.bound
        case "at most":
            return value <= goal.bound
        case "below":
            return value < goal.bound

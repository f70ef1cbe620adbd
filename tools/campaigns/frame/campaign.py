"""What a campaign is: faults that are caused many times, what must hold after each, and controls of its own check.

A campaign is a function that is handed a `Work`. It causes faults, counts what it did, and reports every violation of
an invariant (I1 … I10, README "Reliability") with the name of the case that shows it again. It decides nothing else:
how often, from which seed, in which tier, and what the counts have to reach is said by the `Work` and by its `goals`.

A control breaks something on purpose: source text in a copy of the engine (`Break`), or something that the campaign
itself does otherwise when `work.control` names it, such as a receiver that forgets. Under a control the campaign has to
report a violation; one that stays silent proves nothing, and fails.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

__all__ = ["ALONE", "INVARIANTS", "Break", "Campaign", "Control", "Goal", "Tier", "Violation", "Work", "WorkDone"]

Tier: TypeAlias = Literal["fast", "long"]

INVARIANTS: Final[Mapping[str, str]] = {
    "I1": "an acknowledged event stays at its version and position, with the same hash",
    "I2": "versions and positions have no gap; hashes and links are right",
    "I3": "what a caller was told has failed never appears",
    "I4": "what a caller was told is unknown appears at most once, and stays as it was settled",
    "I5": "no effect without a durable intent; at most one effect for each op_key",
    "I6": "if there is a result event, the effect is durable",
    "I7": "no effect without a matching approval that is neither expired nor revoked",
    "I8": "every refusal is an event or a coded error",
    "I9": "nothing hangs: every call is bounded, the process ends",
    "I10": "damage is reported, never served as truth",
}


ALONE: Final = 1_000
"""Cores enough that nothing else runs beside it."""


@dataclass(frozen=True, slots=True)
class Goal:
    """How often a thing is done in each tier, and under a control (at most: a control ends when it has fired)."""

    fast: int
    long: int
    control: int


@dataclass(frozen=True, slots=True)
class Break:
    """Source text of a copy of the engine that is replaced; `old` has to occur exactly once in `file`."""

    file: str
    """Relative to the project, such as `eventlog/runtime/run_streams.py`."""
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Control:
    """A way to break things on purpose that the campaign has to notice."""

    name: str
    what: str
    """What is broken, as half a sentence: `the intent is appended at any version`."""
    breaks: tuple[Break, ...] = ()
    shows: str = ""
    """A regular expression that the violation has to match, as `I5 case: what`; any violation if empty."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """One campaign. `run` is called in a process of its own, with an empty folder of its own."""

    name: str
    title: str
    """What is done, as half a sentence: `a writer is killed at random moments`."""
    promise: str
    """What is promised under these faults, as half a sentence."""
    faults: tuple[str, ...]
    invariants: tuple[str, ...]
    run: Callable[[Work], None]
    goals: Mapping[str, Goal]
    """By the name of what is counted; the verdict compares them with the counts."""
    controls: tuple[Control, ...]
    limit_s: Goal = field(default_factory=lambda: Goal(fast=120, long=2400, control=120))
    """Seconds after which the process is ended and the campaign has failed: something hangs."""
    cores: int = 1
    """How many cores it keeps busy: 2 for one whose pressure comes from processes that work at the same time; `ALONE`
    for one that measures."""
    cases: str = ".+"
    """A regular expression that the names of its cases match: `part [0-9]+`."""
    lacks: Callable[[], str | None] = lambda: None
    """What this machine lacks for it, or None; it is skipped then with a visible line, and in CI has failed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold, and the case that shows it: `faults.py --seed SEED --case CASE CAMPAIGN`."""

    case: str
    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.case}: {self.what}"

    def matches(self, shows: str) -> bool:
        """Return whether this is what a control has to show."""
        return re.search(shows, str(self)) is not None


class WorkDone(BaseException):  # it must pass the `except Exception` of what is under test
    """Ends a campaign early: a control has fired, or there are too many violations to go on."""


MOST_VIOLATIONS: Final = 20


@dataclass(slots=True)
class Work:
    """What a campaign is told to do, and what it reports."""

    tier: Tier
    seed: int
    folder: Path
    """An empty folder on a real disk; removed afterwards."""
    memory: Path
    """An empty folder in memory, where there is such a place; removed afterwards."""
    goals: Mapping[str, Goal]
    control: str | None = None
    """The name of the control under which this runs, or None."""
    shows: str = ""
    case: str | None = None
    """The only case to run again, or None for all."""
    scale: float = 1.0
    """All goals are multiplied by it: for a look at less, or at more."""
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """Other facts worth a line in the report, such as a rate or a share."""
    has_met_case: bool = False
    """Whether the one case that is to run again was come to: what was not run shows nothing."""

    def goal(self, name: str) -> int:
        """Return how often `name` is to be done."""
        goal = self.goals[name]
        if self.control is not None:
            return goal.control
        return max(1, round((goal.fast if self.tier == "fast" else goal.long) * self.scale))

    def count(self, name: str, by: int = 1) -> None:
        """Count what was done; every name in `goals` has to reach its goal."""
        self.counts[name] += by

    def chance(self, case: str) -> random.Random:
        """Return the source of chance of one case: the same for the same seed, whatever ran before."""
        return random.Random(f"{self.seed}/{case}")

    def wants(self, case: str) -> bool:
        """Return whether this case is to run: all are, unless one is named."""
        self.has_met_case = self.has_met_case or self.case == case
        return self.case is None or self.case == case

    def violation(self, invariant: str, case: str, what: str) -> None:
        """Report that an invariant did not hold. Raises WorkDone where that is enough to know.

        What is broken on purpose breaks more than it is to show: under a control only what it shows is enough.
        """
        assert invariant in INVARIANTS, invariant
        violation = Violation(case, invariant, what)
        is_shown = self.control is not None and violation.matches(self.shows)
        if is_shown or len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(violation)
        if is_shown or (self.control is None and len(self.violations) >= MOST_VIOLATIONS):
            raise WorkDone

    def leave_out(self, name: str, why: str) -> None:
        """Do not ask for a goal that this machine cannot reach; the reason is shown in the report."""
        self.notes[name] = f"left out: {why}"
        self.goals = {each: goal for each, goal in self.goals.items() if each != name}

    def missed_goals(self) -> list[str]:
        """Return which goals the counts have not reached; for one case whether it was run, under a control nothing."""
        if self.case is not None:
            is_run = self.has_met_case or self.violations
            return [] if is_run else [f"no case {self.case!r} was run: is it of another tier or scale?"]
        if self.control is not None:
            return []
        goals = {name: self.goal(name) for name in self.goals}
        return [f"{self.counts[name]} {name} of {goal}" for name, goal in goals.items() if self.counts[name] < goal]

"""Deterministic simulation: whole histories of several processes with every fault that a seed draws, judged at the end.

The engine's own runner, workers, workflows, claims, approvals and verdicts run on a loop that is simulated, over a
store, clocks, locks and receivers that are, too. A seed decides all of it: the same seed gives the same history.

    loop        the event loop: simulated time, random order, processes that die or stand still
    kernel      clocks, chance and lock files, as processes have them
    store       the log, and the port by which a process appends and reads
    receivers   what effects really do, and the actions that ask for them
    stories     the workflows
    plan        what is drawn from the seed
    world       one simulation under way
    living      what its processes do; notes: the plain appends among it
    ending      all faults stop, and everything is driven to its end
    judge       what must be true then
    seeds       one seed from its beginning to its verdict
    batches     many of them, in real processes
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.simulation.batches import Outcome, run_seeds
from tools.campaigns.simulation.kept_seeds import KEPT_SEEDS

__all__ = ["CAMPAIGN", "KEPT_SEEDS"]

_KEPT: Final = "kept:"
_SHOWN: Final = 40
_MAX_PROCESSES: Final = 2


def _run(work: Work) -> None:
    """Run the kept seeds, then as many others as are wanted."""
    began_s = time.monotonic()
    outcomes = run_seeds(_seeds(work), processes=_processes(), control=work.control)
    try:
        for outcome in outcomes:
            _report(work, outcome)
    finally:
        outcomes.close()
        seconds = time.monotonic() - began_s
        work.notes["rate"] = f"{work.counts['seeds'] / max(seconds, 0.001):.0f} seeds/s in {_processes()} processes"


def _processes() -> int:
    """Return how many processes run batches."""
    return min(_MAX_PROCESSES, os.cpu_count() or 1)


def _seeds(work: Work) -> Iterator[str]:
    """Yield the seeds that are to run. That of a case is `<seed>/<case>`; a kept one is named as it is."""
    kept = [] if work.control is not None else list(KEPT_SEEDS)
    yield from (seed for seed in kept if work.wants(_KEPT + seed))
    yield from (f"{work.seed}/{number}" for number in range(work.goal("seeds")) if work.wants(str(number)))
    case = work.case
    if case is not None and not case.startswith(_KEPT) and int(case) >= work.goal("seeds") and work.wants(case):
        yield f"{work.seed}/{case}"


def _report(work: Work, outcome: Outcome) -> None:
    work.count("seeds")
    for name, count in outcome.counts.items():
        work.count(name, count)
    seed, _, number = outcome.seed.partition("/")
    case = number if seed == str(work.seed) else _KEPT + outcome.seed
    if outcome.wrong and (work.case is not None or not work.violations) and work.control is None:
        print("\n".join([f"seed {outcome.seed!r}:", *outcome.told[-_SHOWN:], *outcome.log[-_SHOWN:]]))
    for invariant, what in outcome.wrong:
        work.violation(invariant, case, what)


CAMPAIGN: Final = Campaign(
    name="simulation",
    title="whole histories of up to four processes are simulated, with all faults that a seed draws",
    promise=(
        "every effect happens at most once and only as approved, every acknowledged event stays, and everything ends"
    ),
    faults=("F43", "F44", "F49", "F50", "F78", "F79", "F80", "F81", "F82", "F86"),
    invariants=("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9"),
    run=_run,
    cases=f"[0-9]+|{_KEPT}.+",
    cores=2,
    goals={
        "seeds": Goal(fast=3_000, long=300_000, control=3_000),
        "clock jumps": Goal(fast=1_000, long=100_000, control=1),
        "crashes": Goal(fast=300, long=30_000, control=1),
        "suspensions": Goal(fast=300, long=30_000, control=1),
    },
    controls=(
        Control(
            name="unguarded",
            what="the events of a run are appended at whatever version it has by then",
            breaks=(
                Break(
                    file="eventlog/runtime/run_streams.py",
                    old="append = Append(run_stream(run.run_id), events, Expect.at(run.version), subject)",
                    new=(
                        "append = Append(run_stream(run.run_id), events, "
                        "Expect.exists() if run.version else Expect.at(0), subject)"
                    ),
                ),
            ),
            shows="^I5 ",
        ),
        Control(
            name="overhasty",
            what="whoever is at work on this host is taken for dead",
            breaks=(
                Break(
                    file="eventlog/runtime/claims.py",
                    old='return owner.host == this_host()[0] and _state(owner, place) == "free"',
                    new="return owner.host == this_host()[0]",
                ),
            ),
            shows="^I5 ",
        ),
        Control(
            name="unheeding",
            what="a drive does not notice that its claim is lost",
            breaks=(
                Break(
                    file="eventlog/runtime/session.py",
                    old="if self.run.epoch != self.epoch:",
                    new="if self.run.epoch < self.epoch:",
                ),
            ),
        ),
        Control(
            name="unlooking",
            what="an intent of a workflow is appended whatever was said of its request meanwhile",
            breaks=(
                Break(
                    file="eventlog/runtime/session.py",
                    old="            _require_unchanged(run, request)\n",
                    new="",
                ),
            ),
            shows="^I7 ",
        ),
        Control(
            name="eager",
            what="an effect that may have happened, and that nobody can ask about, is tried again",
            breaks=(
                Break(
                    file="eventlog/runtime/effects.py",
                    old='        case Promise.OPAQUE:\n            return "unknown"',
                    new='        case Promise.OPAQUE:\n            return "ask" if can_ask else "retry"',
                ),
                Break(
                    file="eventlog/runtime/attempts.py",
                    old="return promise in (Promise.TRANSACTIONAL, Promise.KEYED) or is_fenced(self._action)",
                    new="return True",
                ),
            ),
            shows="^I5 ",
        ),
        Control(
            name="outdated",
            what="a verdict is taken whatever has happened since the person who gives it looked",
            breaks=(
                Break(
                    file="eventlog/decide/effects.py",
                    old="if seen is not None and _is_stale(",
                    new="if seen is None and _is_stale(",
                ),
            ),
            shows="^I5 ",
        ),
        Control(
            name="forgetful",
            what="the receiver does not keep the keys that it was given",
            shows="^I5 ",
        ),
        Control(
            name="lying",
            what="the store says that it was busy, and stores all the same",
            shows="^I3 ",
        ),
        Control(
            name="tearing",
            what="of an append whose caller is cancelled only the first event is stored",
        ),
    ),
)

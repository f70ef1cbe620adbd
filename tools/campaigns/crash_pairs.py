"""A crash, and then a crash of the recovery: at every pair of points of every action, at triples, and in workflows.

The first process resumes an approved run and ends at a point, the next one, which finds what that left, at another, a
third of three as well; then nobody crashes any more. Each way to end comes in each place. What must hold after each
of them is said by the promise of the action alone (`tools/campaigns/effects/expected.py`). A point that the recovery
does not pass, because there is nothing left to do, is one at which it has to come to its end instead.

In workflows the first crash is at any point or append of a whole history, and the second at any of the history that
the next process makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Final

from eventlog.runtime.failpoints import FAILPOINTS
from tools.campaigns.effects.cells import HOWS, Crash, perform
from tools.campaigns.effects.http_receiver import receiving
from tools.campaigns.effects.reached import passed_by
from tools.campaigns.effects.subjects import Subject, subjects
from tools.campaigns.failpoints import RESULT_FIRST
from tools.campaigns.failpoints.actions import ABOUT
from tools.campaigns.failpoints.plays import crash_pairs_of_plays
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.processes.in_child import here
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN"]

STRIDE: Final = 1009
"""A prime that divides the number of no list of chains, so steps of it come to every place of one once."""


def run(work: Work) -> None:
    """Perform pairs, triples and pairs in workflows."""
    with a_folder(work.memory) as folder, receiving(forgets=work.control == "forgetful_receiver") as receiver:
        known = [each for each in subjects(receiver) if ABOUT.get(work.control or "", each.name) == each.name]
        passed_by(known, folder / "calm")
        for name, length in (("pairs", 2), ("triples", 3)):
            for subject, crashes in _spread(list(_chains(known, length)), work.goal(name), work.seed):
                if work.wants(case := _name(subject, crashes)):
                    _perform(work, case, subject, crashes, folder)
                    work.count(name)
        if work.control is None:
            crash_pairs_of_plays(work, folder)


def _chains(known: Sequence[Subject], length: int) -> Iterator[tuple[Subject, list[Crash]]]:
    """Yield every chain of crashes of that length of every action."""
    for points in product(FAILPOINTS, repeat=length):
        for hows in product(HOWS, repeat=length):
            for subject in known:
                yield subject, [Crash(point, how) for point, how in zip(points, hows, strict=True)]


def _spread(chains: list[tuple[Subject, list[Crash]]], count: int, seed: int) -> Iterator[tuple[Subject, list[Crash]]]:
    """Yield so many of them, each once, spread over the list so that everything comes early."""
    for number in range(min(count, len(chains))):
        yield chains[(seed + number * STRIDE) % len(chains)]


def _name(subject: Subject, crashes: Sequence[Crash]) -> str:
    return "-".join([subject.name, *(f"{crash.point}-{crash.how}" for crash in crashes)])


def _perform(work: Work, case: str, subject: Subject, crashes: Sequence[Crash], folder: Path) -> None:
    cell = perform(subject, crashes, folder, recover=here, keeps=False)
    work.count("crashes in recovery", max(len(cell.crashed) - 1, 0))
    for each in cell.wrong:
        work.violation(each.invariant, case, each.what)


CAMPAIGN: Final = Campaign(
    name="crash_pairs",
    title="a process ends at a named point, and the one that recovers what it left ends at another",
    promise="a recovery that is interrupted is recovered like anything else, with one effect",
    faults=("F08",),
    invariants=("I1", "I2", "I5", "I6", "I8", "I9"),
    run=run,
    goals={
        "pairs": Goal(fast=36, long=6 * 36 * 4, control=864),
        "triples": Goal(fast=6, long=1_000, control=1),
        "pairs in workflows": Goal(fast=12, long=600, control=1),
    },
    controls=(
        Control(
            "result_first",
            "the result is recorded before the effect is done",
            breaks=(RESULT_FIRST,),
            shows="^I6 .*'COMPLETED'.*'effects': 0",
        ),
        Control(
            "opaque_is_retried",
            "an effect that nobody can ask about is tried again",
            breaks=(
                Break(
                    "eventlog/runtime/effects.py",
                    'case Promise.OPAQUE:\n            return "unknown"',
                    'case Promise.OPAQUE:\n            return "retry"',
                ),
            ),
            shows="^I5 opaque_function",
        ),
        Control("forgetful_receiver", "the HTTP receiver forgets the keys that it has seen", shows="^I5 http_request"),
    ),
    limit_s=Goal(fast=300, long=3600, control=180),
)

"""Processes that stand in for each other: a holder that sleeps past its lease, people who disagree, dead workers.

holders     stopped in the middle of an effect, taken over, and woken up again
verdicts    two processes that say opposite things about one run at the same moment
workers     killed while they drive workflows
stopping    stopping processes, and waiting for them
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.storage.shared_memory import a_folder
from tools.campaigns.take_overs.holders import take_over
from tools.campaigns.take_overs.verdicts import race_verdicts
from tools.campaigns.take_overs.workers import kill_workers

__all__ = ["CAMPAIGN"]


def run(work: Work) -> None:
    """Do all three; under a control the one that it is about."""
    with a_folder(work.memory) as folder:
        for name, part in (("holders", take_over), ("verdicts", race_verdicts), ("workers", kill_workers)):
            place: Path = folder / name
            place.mkdir()
            if _ABOUT.get(work.control or "", name) == name:
                part(work, place)


_ABOUT: Final = {
    "forgetful_receiver": "holders",
    "unfenced": "holders",
    "any_version": "verdicts",
    "any_hash": "verdicts",
}

CAMPAIGN: Final = Campaign(
    name="take_overs",
    title="holders are stopped past their lease and wake up again, people decide at once, workers are killed",
    promise="who was taken over learns it and does no second effect, and of two verdicts the log has one",
    faults=("F49", "F50", "F78"),
    invariants=("I1", "I2", "I5", "I6", "I7", "I8", "I9"),
    run=run,
    goals={
        "take_overs": Goal(fast=14, long=500, control=5),
        "verdict_races": Goal(fast=80, long=1500, control=40),
        "workers_killed": Goal(fast=12, long=300, control=20),
    },
    controls=(
        Control(
            "forgetful_receiver",
            "the HTTP receiver keeps no keys",
            shows="^I5 http.*effect.inside: 2 effects",
        ),
        Control(
            "unfenced",
            "a result is recorded at whatever version the run has by then",
            breaks=(
                Break(
                    "eventlog/runtime/run_streams.py",
                    "await self._offer(Append(run_stream(run.run_id), [new], Expect.at(version)), actor,",
                    "await self._offer(Append(run_stream(run.run_id), [new], Expect.any()), actor,",
                ),
            ),
            shows="^I5 file.*effect.after: the holder was told executed, not claim_lost",
        ),
        Control(
            "any_version",
            "a decision is appended at whatever version the run has by then",
            breaks=(
                Break(
                    "eventlog/runtime/run_streams.py",
                    "append = Append(run_stream(run.run_id), events, Expect.at(run.version), subject)",
                    "append = Append(run_stream(run.run_id), events, Expect.any(), subject)",
                ),
            ),
            shows="^I[18] approve-",
        ),
        Control(
            "any_hash",
            "an approval counts whatever hash it names",
            breaks=(
                Break(
                    "eventlog/decide/decisions.py",
                    "    if not supplied_hash == current_hash == run.proposal_hash:\n",
                    "    if False:\n",
                ),
            ),
            shows="^I7 .*something else",
        ),
    ),
    limit_s=Goal(fast=300, long=2400, control=180),
)

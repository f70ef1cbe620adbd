"""Processes that end at each point of their work, and what the next process makes of what they left.

actions    each action at each named point, in both ways (the crash matrix)
plays      a workflow with everything in it, and an effect that is undone: each named point each time that it is
           passed, and each append from both sides
scenes     what else is done to the storage: a new log, a migration, artifacts, signed heads, copies, erasures, views
steps      the points of that, heard of by audit hook and statement trace: there the engine has no names for them
storage    each scene at each step

A named point at which no process has ended fails the campaign, whatever any list says. What happens inside one commit
is a matter of power cuts and killed system calls (`power_cuts`, `syscall_kills`).
"""

from __future__ import annotations

from typing import Final

from eventlog.runtime.failpoints import FAILPOINTS
from tools.campaigns.failpoints.actions import crash_actions
from tools.campaigns.failpoints.plays import crash_plays
from tools.campaigns.failpoints.storage import crash_storage
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN", "RESULT_FIRST"]

RESULT_FIRST: Final = Break(
    "eventlog/runtime/attempts.py",
    "        try:\n            report = await action.execute(self._call())\n",
    "        await self._streams.record(self._run, self._effect.executed(Executed()), self._actor)\n"
    "        try:\n            report = await action.execute(self._call())\n"
    "            self._attempts._reach(EFFECT_AFTER)\n            return 'executed'\n",
)
"""Records that the effect was done, and does it then."""


def run(work: Work) -> None:
    """Crash everything everywhere; under a control the part that it is about comes first."""
    with a_folder(work.memory) as folder:
        if work.control != "migration_in_pieces":
            crashed = crash_actions(work, folder) | crash_plays(work, folder)
            for point in FAILPOINTS if work.case is None else ():
                if point not in crashed:
                    work.violation("I9", point, "no process has ended at this failpoint: nothing is shown of it")
                work.count("named points", point in crashed)
        crash_storage(work, folder)


CAMPAIGN: Final = Campaign(
    name="failpoints",
    title="a process ends at each named point, at each append and at each step of its storage",
    promise="the next process comes to what would have been without it, with one effect",
    faults=("F01", "F02", "F05", "F07", "F40", "F76"),
    invariants=("I1", "I2", "I4", "I5", "I6", "I8", "I9", "I10"),
    run=run,
    goals={
        "named points": Goal(fast=len(FAILPOINTS), long=len(FAILPOINTS), control=1),
        "crashes at named points": Goal(fast=90, long=110, control=1),
        "crashes at appends": Goal(fast=40, long=80, control=1),
        "crashes in storage": Goal(fast=70, long=2200, control=1),
    },
    controls=(
        Control(
            "result_first",
            "the result is recorded before the effect is done",
            breaks=(RESULT_FIRST,),
            shows="^I6 ",
        ),
        Control(
            "forgetful_receiver",
            "the HTTP receiver forgets the keys that it has seen",
            shows="^I5 http_request.*done again",
        ),
        Control(
            "point_that_nobody_passes",
            "the engine does not pass the failpoint behind the intent",
            breaks=(
                Break(
                    "eventlog/runtime/attempts.py",
                    "                self._attempts._reach(INTENT_AFTER_COMMIT)\n",
                    "",
                ),
            ),
            shows="intent.after_commit",
        ),
        Control(
            "migration_in_pieces",
            "a migration commits between its statements",
            breaks=(
                Break(
                    "eventlog/stores/sqlite/database.py",
                    "            _migrate_inside(connection, target, migrations)\n        except",
                    "            connection.execute('COMMIT')\n"
                    "            _migrate_inside(connection, target, migrations)\n"
                    "            connection.execute('BEGIN IMMEDIATE')\n        except",
                ),
            ),
            shows="^I2 migration.*of the five tables",
        ),
    ),
    limit_s=Goal(fast=300, long=1800, control=180),
)

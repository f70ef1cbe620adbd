"""A program is killed at its system calls: in front of the n-th, behind it, in the middle of a write.

The calls of a whole scenario are counted first; then the scenario is run once for each point, and the process ends by
SIGKILL exactly there. Another process then does what the next one would, and the audit compares: nothing that was
acknowledged is lost, nothing is half there, an effect is there once.

The shim in front of libc sees every call that SQLite and Python make, so that no tracer is needed, and a point costs a
tenth of what it would. A kill in the middle of a write leaves the first half of it.

A case is `scenario/operation/where/n`.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.storage.faulty_program import KILLS, FaultyProgram, Order, lacks_shim, operations_of
from tools.campaigns.storage.libc_faults import Operation
from tools.campaigns.storage.scenarios import SCENARIOS
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN"]


class _Point(NamedTuple):
    """A call at which the process ends."""

    scenario: str
    operation: Operation
    where: str
    number: int

    @property
    def case(self) -> str:
        return f"{self.scenario}/{self.operation}/{self.where}/{self.number}"

    @property
    def order(self) -> Order:
        return Order(self.scenario, self.operation, KILLS[self.where], self.number)


_CONTROLS: Final = {
    "result_before_effect": ("file_effect", "link", "before"),
    "file_written_in_place": ("file_effect", "write", "torn"),
    "append_in_two_transactions": ("growth", "write", "before"),
}
"""Where each of them shows."""


def _scenarios(work: Work) -> list[str]:
    if work.control is not None:
        return [_CONTROLS[work.control][0]]
    if work.case is not None:
        return [work.case.partition("/")[0]]
    return ["file_effect"] if work.tier == "fast" else list(SCENARIOS)


def _points(work: Work, program: FaultyProgram) -> list[_Point]:
    """Count the calls of each scenario, and return the points of all of them, evenly spread if they are to be fewer."""
    points: list[_Point] = []
    for scenario in _scenarios(work):
        counts = program.run(Order(scenario)).counts
        for where, fault in KILLS.items():
            for operation in operations_of(fault):
                if work.control is not None and (scenario, operation, where) != _CONTROLS[work.control]:
                    continue
                numbers = range(1, counts[operation] + 1)
                points += [_Point(scenario, operation, where, number) for number in numbers]
    wanted = work.goal("points") if work.case is None and work.tier == "fast" else len(points)
    if work.control is not None:
        return points[::-1]  # what they break comes late in a scenario
    if wanted >= len(points):
        return points
    share = len(points) / wanted
    first = work.chance("points").random() * share
    return [points[int(first + index * share)] for index in range(wanted)]


def _run(work: Work) -> None:
    began_s = time.monotonic()
    with a_folder(work.memory) as folder, FaultyProgram(folder) as program:
        points = _points(work, program)
        for point in points:
            if work.wants(point.case):
                _kill(work, program, point)
    work.count("scenarios", len({point.scenario for point in points}))
    work.notes["rate"] = f"{work.counts['points'] / (time.monotonic() - began_s):.1f} points/s"


def _kill(work: Work, program: FaultyProgram, point: _Point) -> None:
    outcome = program.run(point.order)
    work.count("points")
    work.count("kills", outcome.hits)
    told = [call for call in outcome.ran.calls if call.told == "ok"]
    work.count("acknowledged", len(told))
    for invariant, what in outcome.ran.wrong:
        work.violation(invariant, point.case, what)


CAMPAIGN: Final = Campaign(
    name="syscall_kills",
    title="a program is killed at its system calls: in front of one, behind it, in the middle of a write",
    promise="nothing acknowledged is lost, nothing is half there, an effect is there at most once",
    faults=("F03", "F04", "F05", "F06", "F07", "F40"),
    invariants=("I1", "I2", "I4", "I5", "I6", "I8", "I9"),
    run=_run,
    cases=f"({'|'.join(SCENARIOS)})/.+",
    goals={
        "points": Goal(fast=60, long=2_500, control=1),
        "kills": Goal(fast=55, long=2_400, control=1),
        "scenarios": Goal(fast=1, long=len(SCENARIOS), control=1),
    },
    controls=(
        Control(
            "result_before_effect",
            "the result of an effect is recorded before the effect",
            (
                Break(
                    "eventlog/runtime/attempts.py",
                    "            report = await action.execute(self._call())\n",
                    "            await self._record_report(Executed())\n"
                    "            await action.execute(self._call())\n"
                    "            return 'executed'\n",
                ),
            ),
            r"I6 file_effect/link/.*the log has its result",
        ),
        Control(
            "file_written_in_place",
            "the file is written under its own name",
            (
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "    temp = effect.temp(effect.call.attempt)\n    try:\n        return os.open(",
                    "    temp = effect.name\n    try:\n        return os.open(",
                ),
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "        return _link(effect) or _rename(effect)\n",
                    "        return True\n",
                ),
            ),
            r"I5 file_effect/write/torn/.*not what was approved",
        ),
        Control(
            "append_in_two_transactions",
            "the first event of an append is committed by itself",
            (
                Break(
                    "eventlog/stores/sqlite/transaction.py",
                    "            connection.executemany(INSERT_EVENT, plan.rows)\n",
                    "            connection.executemany(INSERT_EVENT, plan.rows[:1])\n"
                    "            connection.execute('COMMIT')\n"
                    "            connection.execute('BEGIN IMMEDIATE')\n"
                    "            connection.executemany(INSERT_EVENT, plan.rows[1:])\n",
                ),
            ),
            r"I2 growth/write/",
        ),
    ),
    limit_s=Goal(fast=400, long=3000, control=120),
    lacks=lacks_shim,
)

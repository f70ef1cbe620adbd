"""Campaign `lifecycle`: programs end in every way there is, with a log open; they end, and the log is whole.

Each scenario is a small program in a process of its own. It says when it has nothing left to do but to end; from there
on it has to be gone, with the right status, in silence, and another process has to be able to write at once, without a
lock or a transaction that was left behind, and find all that was acknowledged. Whether it hangs is judged by what it
does: a process that waits for a processor is late, one that sleeps hangs.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from eventlog import EventLogError, Expect
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.lifecycle.keeping import ACKNOWLEDGED, event
from tools.campaigns.lifecycle.scenarios import BEGIN_S, MODULES, SCENARIOS, Scenario, Scene
from tools.campaigns.processes.warm import Started, Warm
from tools.campaigns.storage.log_files import is_lock_free, open_file

__all__ = ["CAMPAIGN"]

LIMIT_S: Final = 10.0
"""For a process that is at work all the time; on a machine that is not busy it is gone in a fraction of a second."""

IDLE_LIMIT_S: Final = 2.0
"""For a process that only sleeps: `close` gives up by then whatever it waits for."""


def run(work: Work) -> None:
    """Run the scenarios, all of them in turn, as often as is wanted."""
    slowest = (0.0, "")
    wanted = [scenario for scenario in SCENARIOS if work.control is None or scenario.name == _CONTROLS[work.control][0]]
    rounds = max(1, -(-work.goal("scenarios") // len(wanted)))
    with Warm(MODULES) as warm:
        for number in range(rounds):
            for scenario in wanted:
                case = f"{scenario.name}/{number}"
                if work.wants(case):
                    slowest = max(slowest, (_play(work, warm, scenario, case), scenario.name))
                    work.count("scenarios")
    work.notes["slowest end"] = f"{slowest[0]:.2f} s behind its last work ({slowest[1]})"


def _play(work: Work, warm: Warm, scenario: Scenario, case: str) -> float:
    """Run one scenario and look at what it leaves; return how long its end took."""
    folder = work.folder / "scenario"
    folder.mkdir()
    path = folder / "log.db"
    try:
        if scenario.before is not None:
            asyncio.run(scenario.before(str(path)))
        with warm.start(scenario.program, path, *scenario.args, folder=folder) as child:
            try:
                scenario.drive(Scene(child, path, work.chance(case)))
            except AssertionError as error:
                work.violation("I9", case, str(error))
            _judge_end(work, scenario, case, child)
        _judge_log(work, scenario, case, path)
        return child.exit_s
    finally:
        shutil.rmtree(folder)


def _judge_end(work: Work, scenario: Scenario, case: str, child: Started) -> None:
    if not child.waits_to_end(limit_s=LIMIT_S, idle_limit_s=IDLE_LIMIT_S, before_s=BEGIN_S):
        work.violation("I9", case, f"the process does not end; it slept for {child.idle_s:.1f} s. {_said(child)}")
        return
    if child.exit_s > LIMIT_S:
        work.violation("I9", case, f"the process took {child.exit_s:.1f} s to end. {_said(child)}")
    if child.returncode not in scenario.returncodes:
        work.violation("I9", case, f"exit status {child.returncode}, not {scenario.returncodes}. {_said(child)}")
    elif scenario.returns is not ... and child.result != scenario.returns:
        work.violation("I8", case, f"told {child.result!r}, not {scenario.returns!r}. {_said(child)}")
    if re.fullmatch(scenario.says, child.stderr) is None:
        work.violation("I8", case, f"it did not end in silence. {_said(child)}")


def _said(child: Started) -> str:
    return f"It said: {child.stderr[-1500:].strip() or 'nothing'}"


def _judge_log(work: Work, scenario: Scenario, case: str, path: Path) -> None:
    """Write at once, as another process, and look for what was acknowledged."""
    try:
        if path.exists():
            _require_free(path)
        acknowledged = _acknowledged(path) if scenario.keeps_the_log else {}
        for invariant, what in asyncio.run(_flaws(path, acknowledged)):
            work.violation(invariant, case, what)
        work.count("acknowledged events", len(acknowledged))
        if scenario.after is not None:
            left = asyncio.run(scenario.after(str(path)))
            if left != scenario.leaves:
                work.violation("I4", case, f"afterwards there was {left!r}, not {scenario.leaves!r}")
    except (EventLogError, sqlite3.Error) as error:
        work.violation("I9", case, f"the log cannot be used: {type(error).__name__}: {error}")


def _require_free(path: Path) -> None:
    """Take both locks without waiting."""
    if not is_lock_free(path):
        raise sqlite3.OperationalError("the file lock is still held")
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("ROLLBACK")


async def _flaws(path: Path, acknowledged: Mapping[str, int]) -> list[tuple[str, str]]:
    async with open_file(path, busy_timeout_s=5) as log:
        await log.append("after", [event()], expect=Expect.any())
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
        flaws = [("I2", str(problem)) for problem in page.problems]
        if page.events != head:
            flaws.append(("I2", f"{page.events} events up to position {head}"))
        stored = {each.event_id.hex(): each.position async for each in log.read_all()}
    for event_id, position in acknowledged.items():
        if stored.get(event_id) != position:
            flaws.append(("I1", f"{event_id} was acknowledged at {position} and is at {stored.get(event_id)}"))
    return flaws


def _acknowledged(path: Path) -> dict[str, int]:
    notes = Path(f"{path}{ACKNOWLEDGED}")
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    return {first: int(second) for first, second in lines if first != "told"}


_CONTROLS: Final = {
    "thread_keeps_alive": (
        "never closed",
        Control(
            "thread_keeps_alive",
            "the thread of a connection is no daemon",
            (
                Break(
                    "eventlog/stores/sqlite/connection.py",
                    "        self._aiosqlite._thread.daemon = True\n",
                    "        self._aiosqlite._thread.daemon = False\n",
                ),
            ),
            shows="I9 .*does not end",
        ),
    ),
    "fork_unnoticed": (
        "fork: the child tries everything, _exit",
        Control(
            "fork_unnoticed",
            "a forked child is not told from its parent",
            (Break("eventlog/stores/guard.py", "if os.getpid() != self._pid:", "if self._pid < 0:"),),
            shows="I8 .*RuntimeError",
        ),
    ),
    "fork_keeps_lock": (
        "fork: the parent is killed in a transaction",
        Control(
            "fork_keeps_lock",
            "a forked child keeps its copy of the file lock",
            (
                Break(
                    "eventlog/stores/sqlite/file_lock.py", "os.register_at_fork(after_in_child=_close_in_child)\n", ""
                ),
            ),
            shows="I9 .*keeps the lock",
        ),
    ),
    "fork_keeps_claim": (
        "fork: the parent is killed in an effect",
        Control(
            "fork_keeps_claim",
            "a forked child keeps its copy of the lock by which its parent is known to live",
            (
                Break(
                    "eventlog/runtime/claims.py",
                    "os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, "
                    "after_in_child=_give_up_in_child)\n",
                    "",
                ),
            ),
            shows="I9 .*keeps the claim",
        ),
    ),
    "files_unwatched": (
        "the write-ahead log is deleted",
        Control(
            "files_unwatched",
            "nobody notices behind a commit that the write-ahead log is gone",
            (
                Break(
                    "eventlog/stores/sqlite/identity.py",
                    'raise self._changed(f"{error.filename} is gone") from error',
                    "return 0",
                ),
            ),
            shows="I8 .*told",
        ),
    ),
}
"""The controls by name, each with the scenario that has to show it."""

CAMPAIGN: Final = Campaign(
    name="lifecycle",
    title="programs end in every way but the right one while a log is open",
    promise="they end at once and in silence, and leave a log that is whole, with no lock and no transaction",
    faults=tuple(sorted({fault for scenario in SCENARIOS for fault in scenario.faults})),
    invariants=("I1", "I2", "I4", "I8", "I9"),
    run=run,
    goals={
        "scenarios": Goal(len(SCENARIOS), 20 * len(SCENARIOS), 1),
        "acknowledged events": Goal(50, 1_000, 0),
    },
    controls=tuple(control for _, control in _CONTROLS.values()),
)

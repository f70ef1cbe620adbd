"""Campaign `model`: whatever can be asked of a log, in any order, at real logs and at a reference that is just lists.

    reference_log    what every store has to answer
    stores           the real logs: a file that two logs may be open on, and a log in memory
    doomed           a process that dies in the middle of an append
    machine          the steps that Hypothesis puts one behind the other

An example that fails is made as short as it gets, and printed as the calls that show it again.
"""

from __future__ import annotations

import time
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.model.doomed import undertaking
from tools.campaigns.model.machine import LogMachine
from tools.campaigns.model.stores import Broken, Home
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN"]

_EXAMPLES_OF_PART: Final = 50
_STEPS: Final = 50
_PATIENCE_S: Final = 30.0
_PLAN: Final = "eventlog/stores/sqlite/plan.py"


def _run(work: Work) -> None:
    began_s = time.monotonic()
    with a_folder(work.memory) as folder, undertaking() as undertaker:
        home = Home(folder, _PATIENCE_S if work.control is None else _PATIENCE_S / 10)
        LogMachine.work, LogMachine.home, LogMachine.undertaker = work, home, undertaker
        try:
            _run_parts(work)
        finally:
            home.close()
    work.notes["rate"] = f"{work.counts['steps'] / (time.monotonic() - began_s):.0f} steps/s"


def _run_parts(work: Work) -> None:
    number = 0
    while any(work.counts[name] < work.goal(name) for name in ("examples", "steps")):
        case = f"part {number}"
        number += 1
        if work.wants(case):
            _run_part(work, case)
        if work.case == case:
            return


def _run_part(work: Work, case: str) -> None:
    """Run some examples, all of chance that the seed and the case decide; report the shortest that fails."""
    shown: list[object] = []
    machine = seed(work.chance(case).getrandbits(64))(LogMachine)
    finds = (Phase.generate,) if work.control is not None else (Phase.generate, Phase.shrink)
    chosen = settings(
        max_examples=min(_EXAMPLES_OF_PART, work.goal("examples")),
        stateful_step_count=_STEPS,
        database=None,
        deadline=None,
        derandomize=False,
        phases=finds,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        with with_reporter(shown.append):
            run_state_machine_as_test(machine, settings=chosen)
    except Broken as broken:
        example = [*map(str, shown), *getattr(broken, "__notes__", ())]
        work.violation(broken.invariant, case, "\n".join([str(broken), *example]))
    except Flaky as flaky:
        work.violation("I1", case, f"it fails, and not each time: {flaky}")


_CONTROLS: Final = (
    Control(
        "retries_forgotten",
        "an append that is repeated is not looked for in the log",
        (
            Break(
                _PLAN,
                "        if all(place is None for places in found for place in places):\n            return None",
                "        if True:\n            return None",
            ),
        ),
        shows="^I[12] ",
    ),
    Control(
        "no_expectation",
        "an append is stored whatever version it expected",
        (
            Break(
                _PLAN,
                "if not part.expect.allows(actual):",
                "if False:",
            ),
        ),
        shows="^I[16] ",
    ),
    Control(
        "gap",
        "the events of an append to several streams leave a position out between them",
        (
            Break(
                _PLAN,
                "        self._parts += 1\n",
                "        self._parts += 1\n        self.position += self._parts > 1\n",
            ),
        ),
        shows="^I[129] ",
    ),
    Control(
        "half_a_call",
        "a call that expects a wrong version of its last stream is stored in the others",
        (
            Break(
                _PLAN,
                "        for part in request.parts:\n            actual = (heads.get",
                "        for part in request.parts[:1]:\n            actual = (heads.get",
            ),
        ),
        shows="^I[16] ",
    ),
    Control(
        "row_without_event",
        "what is written with an event stays though the event is not stored",
        (
            Break(
                "eventlog/stores/sqlite/foreign_write.py",
                '            connection.execute("ROLLBACK TO own_write")',
                "            pass",
            ),
        ),
        shows="^I6 ",
    ),
)

CAMPAIGN: Final = Campaign(
    name="model",
    title="calls of all kinds, in any order, at real logs and at a reference of some lists",
    promise="each answer, and the log after all of them, are those of the reference",
    faults=("F05", "F06", "F07", "F24", "F25", "F31", "F43", "F54", "F77"),
    invariants=("I1", "I2", "I3", "I4", "I6", "I8", "I9"),
    run=_run,
    cases="part [0-9]{1,5}",
    goals={
        "examples": Goal(fast=300, long=5_000, control=300),
        "steps": Goal(fast=15_000, long=250_000, control=15_000),
    },
    controls=_CONTROLS,
    limit_s=Goal(fast=180, long=2400, control=90),
)

"""Every call of the system fails in turn: the first one of a run, the second one, and so on until a run is clean.

For each storage scenario, each kind of call and each way to fail, run number n has its n-th call of that kind fail,
once or from there on for ever. The loop is over when a run has come to its end without a fault: then there is no call
left that was not tried. After each run another process opens the same folder without faults and compares what is there
with what the callers were told; and the program that met the fault tries again when it is over.

A case is `scenario/operation/error/once/n`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import groupby
from typing import Final, NamedTuple

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Tier, Work
from tools.campaigns.storage.faulty_program import ERRORS, NO_LINKS, FaultyProgram, Order, lacks_shim, operations_of
from tools.campaigns.storage.libc_faults import Operation
from tools.campaigns.storage.runs import Ran
from tools.campaigns.storage.scenarios import SCENARIOS
from tools.campaigns.storage.shared_memory import a_folder

__all__ = ["CAMPAIGN"]

_MOST_CALLS: Final = 2_000
"""No scenario makes nearly as many calls of a kind; a loop that gets there does not end."""
_LASTING: Final = {False: "once", True: "for_ever"}


class _Loop(NamedTuple):
    """One n-until-clean loop: a kind of call in a scenario, and how it fails."""

    scenario: str
    operation: Operation
    error: str
    for_ever: bool

    @property
    def name(self) -> str:
        return f"{self.scenario}/{self.operation}/{self.error}/{_LASTING[self.for_ever]}"

    def order(self, number: int) -> Order:
        return Order(self.scenario, self.operation, ERRORS[self.error], number, self.for_ever)

    def case(self, number: int) -> str:
        return f"{self.name}/{number}"


_FAST: Final = ("growth", "file_effect", "artifacts")
_NOT_FAST: Final = frozenset({"read"})
"""Most reads are of pages that SQLite has read before; their errors are for the long tier."""

_CONTROLS: Final = {
    "definite_after_failed_sync": _Loop("growth", "sync", "EIO", True),
    "failed_commit_acknowledged": _Loop("growth", "write", "EIO", False),
    "raw_error": _Loop("artifacts", "sync", "EIO", False),
    "failure_told_behind_link": _Loop("file_effect", "sync", "EIO", False),
    "short_write_taken_for_whole": _Loop("artifacts", "write", "short", False),
    "links_needed": _Loop("file_effect", "link", "EPERM", False),
}

_LINKS_NEEDED: Final = frozenset({"subject"})
"""Keys are made by a link or not at all; all others do without links where the file system has none."""


def _all_loops(tier: Tier) -> list[_Loop]:
    """Return the loops of a tier: fast ones are of some scenarios, and of errors that come once."""
    is_fast = tier == "fast"
    return [
        _Loop(scenario, operation, error, for_ever)
        for scenario in (_FAST if is_fast else SCENARIOS)
        for error in (("EIO",) if is_fast else ERRORS)
        for operation in operations_of(ERRORS[error])
        for for_ever in ((False,) if is_fast else (False, True))
        if not (is_fast and operation in _NOT_FAST)
    ]


def _loops(work: Work) -> list[_Loop]:
    """Return the loops that are to be gone through: also those in which a control shows, or that hold one case."""
    if work.control is not None:
        return [_CONTROLS[work.control]]
    if work.case is not None:
        return [loop for loop in _all_loops("long") if work.case.startswith(f"{loop.name}/")]
    return _all_loops(work.tier)


def _run(work: Work) -> None:
    began_s, slowest = time.monotonic(), (0.0, "")
    with a_folder(work.memory) as folder, FaultyProgram(folder) as program:
        for scenario, loops in groupby(_loops(work), lambda loop: loop.scenario):
            calls = _calls(work, program, scenario)
            for loop in loops:
                slowest = max(slowest, _until_clean(work, program, loop, calls[loop.operation]))
            work.count("scenarios")
    if work.counts["runs"]:
        work.notes["rate"] = f"{work.counts['runs'] / (time.monotonic() - began_s):.1f} runs/s"
        work.notes["slowest"] = f"{slowest[0]:.1f} s, {slowest[1]}"


def _calls(work: Work, program: FaultyProgram, scenario: str) -> Mapping[Operation, int]:
    """Return how many calls of each kind a run makes in which nothing fails."""
    outcome = program.run(Order(scenario))
    _report(work, f"{scenario}/counted", outcome.ran)
    assert outcome.counts["write"] > 0, "no scenario does without writing: the shim sees nothing"
    return outcome.counts


def _until_clean(work: Work, program: FaultyProgram, loop: _Loop, calls: int) -> tuple[float, str]:
    """Fail the n-th call for n = 1, 2, … until a run meets no fault; return how long the slowest took, and its case.

    A run may make a call less than another, so that no loop ends before as many were tried as were counted. One that
    has met no fault though there are calls was no loop, and is not counted.
    """
    slowest, faults = (0.0, ""), 0
    for number in range(1, _MOST_CALLS):
        case = loop.case(number)
        if not work.wants(case):
            continue
        outcome = program.run(loop.order(number))
        work.count("runs")
        slowest = max(slowest, (outcome.ran.seconds, case))
        _report(work, case, outcome.ran)
        _report_refusals(work, case, loop, outcome.ran)
        faults += outcome.hits
        if outcome.hits == 0 and number > calls:
            work.count("faults", faults)
            work.count("clean_loops", faults > 0 or calls == 0)
            return slowest
    if work.case is None:
        work.violation("I9", loop.case(_MOST_CALLS), "the loop has not come to a run without a fault")
    return slowest


def _report_refusals(work: Work, case: str, loop: _Loop, ran: Ran) -> None:
    """Where a file system has no links, that is no failure: there are other ways to make a name once."""
    if loop.error not in NO_LINKS or loop.scenario in _LINKS_NEEDED:
        return
    for call in ran.calls:
        if call.told in ("failed", "unknown"):
            work.violation("I8", case, f"refused, though it can be done without links: {call}")


def _report(work: Work, case: str, ran: Ran) -> None:
    for call in ran.calls:
        if call.told in ("failed", "unknown"):
            work.count(f"told_{call.told}")
    for invariant, what in ran.wrong:
        work.violation(invariant, case, what)


CAMPAIGN: Final = Campaign(
    name="io_errors",
    title="every system call of a program fails in turn: once or for ever, by EIO, ENOSPC, EINTR, half done",
    promise="a caller is told what is so, nothing is half there, and it works again when the fault is over",
    faults=("F15", "F17", "F18", "F19", "F20", "F40", "F71", "F73", "F74"),
    invariants=("I1", "I2", "I3", "I4", "I5", "I6", "I8", "I9", "I10"),
    run=_run,
    goals={
        "scenarios": Goal(fast=len(_FAST), long=len(SCENARIOS), control=1),
        "clean_loops": Goal(fast=len(_all_loops("fast")), long=len(_all_loops("long")), control=1),
    },
    controls=(
        Control(
            "definite_after_failed_sync",
            "a commit whose sync has failed is told as a definite failure",
            (
                Break(
                    "eventlog/stores/sqlite/transaction.py",
                    "            if is_definite_at_commit(error):\n",
                    "            if True:\n",
                ),
            ),
            r"I3 growth/sync/",
        ),
        Control(
            "failed_commit_acknowledged",
            "an error of COMMIT is swallowed, and the events are acknowledged",
            (
                Break(
                    "eventlog/stores/sqlite/transaction.py",
                    '            return BatchOutcome(unknown=str(error), poison=f"COMMIT failed: {error}")\n',
                    "",
                ),
                Break(
                    "eventlog/stores/sqlite/transaction.py",
                    '                return _all(batch, translate(error, "cannot commit"), poison=poison)\n',
                    "                pass\n",
                ),
            ),
            r"I1 growth/write/",
        ),
        Control(
            "raw_error",
            "an error of the operating system is let through as it is",
            (
                Break(
                    "eventlog/stores/artifacts.py",
                    '        raise StoreUnavailable(code, f"{doing}: {error.strerror or error}") from error\n',
                    "        raise\n",
                ),
            ),
            r"I8 artifacts/sync/.*an error without a code",
        ),
        Control(
            "failure_told_behind_link",
            "a directory that cannot be flushed behind the link is told as an effect that has failed",
            (
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "        if _publish(effect):\n            flush(effect.directory)\n",
                    "        if _publish(effect):\n            with nothing_done(call):\n"
                    "                flush(effect.directory)\n",
                ),
            ),
            r"I3 file_effect/sync/.*its attempt was told to have failed",
        ),
        Control(
            "short_write_taken_for_whole",
            "a write that wrote a part is taken for the whole",
            (
                Break(
                    "eventlog/stores/artifacts.py",
                    "        rest, at = rest[written:], at + written\n",
                    "        rest, at = rest[len(rest) :], at + written\n",
                ),
            ),
            r"artifacts/write/short/",
        ),
        Control(
            "links_needed",
            "a file system without links is one on which no file can be made",
            (
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "        if error.errno in _NO_LINKS:\n            return False\n",
                    "",
                ),
            ),
            r"I8 file_effect/link/EPERM/.*without links",
        ),
    ),
    limit_s=Goal(fast=600, long=4500, control=120),
    lacks=lacks_shim,
)

"""Each action at each of its failpoints: the crash matrix, in both ways to end a process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from eventlog.runtime.failpoints import FAILPOINTS
from tools.campaigns.effects.cells import HOWS, Crash, perform
from tools.campaigns.effects.http_receiver import receiving
from tools.campaigns.effects.reached import passed_by
from tools.campaigns.effects.subjects import Subject, subjects
from tools.campaigns.frame.campaign import Work
from tools.campaigns.processes.in_child import here

__all__ = ["ABOUT", "crash_actions"]

ABOUT: Final = {
    "forgetful_receiver": "http_request",
    "opaque_is_retried": "opaque_function",
    "point_that_nobody_passes": "write_file",
    "result_first": "write_file",
}
"""The action that a control is about: it alone is crashed then."""


def crash_actions(work: Work, folder: Path) -> set[str]:
    """Crash every action at every point that it passes; return the points at which a process really ended."""
    crashed: set[str] = set()
    with receiving(forgets=work.control == "forgetful_receiver") as receiver:
        known = [each for each in subjects(receiver) if ABOUT.get(work.control or "", each.name) == each.name]
        passed = passed_by(known, folder / "calm")
        for subject in known:
            if set(passed[subject.name]) != set(FAILPOINTS):
                work.violation("I5", subject.name, f"without a crash it passes {passed[subject.name]}")
            for point in FAILPOINTS:
                for how in HOWS:
                    crashed |= _crash(work, subject, Crash(point, how), folder)
    return crashed


def _crash(work: Work, subject: Subject, crash: Crash, folder: Path) -> set[str]:
    case = f"{subject.name}-{crash.point}-{crash.how}"
    if not work.wants(case):
        return set()
    cell = perform(subject, [crash], folder, recover=here, keeps=False)
    for each in cell.wrong:
        work.violation(each.invariant, case, each.what)
    work.count("crashes at named points")
    return set(cell.crashed)

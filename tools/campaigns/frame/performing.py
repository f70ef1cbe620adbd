"""Performs campaigns and their controls: each in a process of its own, several at a time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tools.campaigns.frame.campaign import Campaign, Control, Tier, Violation, Work, WorkDone
from tools.campaigns.frame.copies import ROOT, BreakDoesNotFit, broken_copy
from tools.campaigns.frame.results import Result, Shown
from tools.campaigns.storage.shared_memory import make_folder

__all__ = ["Task", "WorkOrder", "perform", "perform_all", "work_here"]

_POLL_S: Final = 0.05
_END_OF_OUTPUT: Final = 4000
_SHOWN_CHARACTERS: Final = 2000


class Task(msgspec.Struct, frozen=True):
    """One campaign, or one control of it, with what was chosen on the command line."""

    campaign: Campaign
    control: Control | None
    tier: Tier
    seed: int
    case: str | None = None
    scale: float = 1.0

    @property
    def limit_s(self) -> float:
        limit = self.campaign.limit_s
        if self.control is not None:
            return limit.control
        return (limit.fast if self.tier == "fast" else limit.long) * max(1.0, self.scale)


class WorkOrder(msgspec.Struct, frozen=True):
    """What the process that performs a task is told, as JSON."""

    campaign: str
    control: str | None
    tier: Tier
    seed: int
    case: str | None
    scale: float
    folder: str
    memory: str
    answer: str


class _Answer(msgspec.Struct, frozen=True):
    counts: dict[str, int]
    notes: dict[str, str]
    violations: list[Shown]
    missed: list[str]


def perform_all(
    tasks: Sequence[Task], cores: int, tell: Callable[[Result], Any], check: Callable[[], Any] = lambda: None
) -> list[Result]:
    """Perform the tasks in order, side by side while there are cores left, and return their results in order.

    `check` is called in between, and may raise: then what runs is ended.
    """
    waiting = list(enumerate(tasks))
    running: list[tuple[int, _Running]] = []
    results: dict[int, Result] = {}
    try:
        while waiting or running:
            check()
            free = cores - sum(each.cores for _, each in running)
            number = next((n for n, (_, task) in enumerate(waiting) if _cores(task, cores) <= free), None)
            if number is not None:
                index, task = waiting.pop(number)
                running.append((index, _Running(task, _cores(task, cores))))
                continue
            time.sleep(_POLL_S)
            for index, each in [(index, each) for index, each in running if each.is_over()]:
                running.remove((index, each))
                results[index] = each.finish()
                tell(results[index])
    finally:
        for _, each in running:
            each.end()
    return [results[index] for index in range(len(tasks))]


def perform(task: Task) -> Result:
    """Perform one task and return its result."""
    (result,) = perform_all([task], 1, lambda _: None)
    return result


def _cores(task: Task, most: int) -> int:
    return min(task.campaign.cores, most)


class _Running:
    """A task at work in a process group of its own, in folders of its own."""

    def __init__(self, task: Task, cores: int) -> None:
        self.task: Final = task
        self.cores: Final = cores
        self._began_s: Final = time.monotonic()
        self._folder: Final = Path(tempfile.mkdtemp(prefix="eventlog-faults-"))
        self._memory: Final = make_folder("eventlog-faults-")
        self._process: subprocess.Popen[bytes] | None = None
        self._told: Result | None = None
        lacking = task.campaign.lacks()
        if lacking is not None:
            self._told = self._result("skipped", f"this machine lacks {lacking}")
            return
        try:
            self._start()
        except (BreakDoesNotFit, OSError) as error:
            self._told = self._result("died", str(error))

    def _start(self) -> None:
        task = self.task
        breaks = task.control.breaks if task.control is not None else ()
        root = broken_copy(self._folder, breaks) if breaks else ROOT
        (self._folder / "work").mkdir()
        order = WorkOrder(
            task.campaign.name,
            task.control.name if task.control is not None else None,
            task.tier,
            task.seed,
            task.case,
            task.scale,
            str(self._folder / "work"),
            str(self._memory),
            str(self._folder / "answer.json"),
        )
        with open(self._folder / "said.txt", "wb") as said:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(root / "tools" / "faults.py"),
                    "--work-order",
                    msgspec.json.encode(order).decode(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"},
                start_new_session=True,
            )

    def is_over(self) -> bool:
        """Return whether the process has ended; end it if it takes too long."""
        if self._process is None or self._process.poll() is not None:
            return True
        if time.monotonic() - self._began_s < self.task.limit_s:
            return False
        self._end_process()
        self._told = self._result("stuck", f"not done after {self.task.limit_s:g} s; it said: {self._said()}")
        return True

    def finish(self) -> Result:
        """Return the result, and remove the folders."""
        try:
            return self._told or self._judged()
        finally:
            self.end()

    def end(self) -> None:
        """End the process and all that it has started, and remove the folders."""
        self._end_process()
        for folder in (self._folder, self._memory):
            shutil.rmtree(folder, ignore_errors=True)

    def _end_process(self) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _judged(self) -> Result:
        assert self._process is not None
        path = self._folder / "answer.json"
        if self._process.returncode != 0 or not path.exists():
            return self._result("died", f"exit status {self._process.returncode}; it said: {self._said()}")
        answer = msgspec.json.decode(path.read_bytes(), type=_Answer)
        if self.task.control is not None:
            fired = [each for each in answer.violations if _matches(self.task.control, each)]
            return self._result("fired" if fired else "silent", "; ".join(answer.missed), answer)
        if answer.violations:
            return self._result("violated", "", answer)
        return self._result("short" if answer.missed else "held", "; ".join(answer.missed), answer)

    def _result(self, verdict: Any, why: str, answer: _Answer | None = None) -> Result:
        task = self.task
        return Result(
            campaign=task.campaign.name,
            control=task.control.name if task.control is not None else None,
            seed=task.seed,
            tier=task.tier,
            scale=task.scale,
            verdict=verdict,
            seconds=round(time.monotonic() - self._began_s, 1),
            counts=answer.counts if answer is not None else {},
            notes=answer.notes if answer is not None else {},
            violations=answer.violations if answer is not None else [],
            why=why,
        )

    def _said(self) -> str:
        text = (self._folder / "said.txt").read_text(encoding="utf-8", errors="replace").strip()
        return text[-_END_OF_OUTPUT:] or "nothing"


def _matches(control: Control, shown: Shown) -> bool:
    return Violation(shown.case, shown.invariant, shown.what).matches(control.shows)


def work_here(order: WorkOrder, campaign: Campaign) -> None:
    """Perform a task in this process, and write the answer; whatever the campaign raises comes out."""
    import structlog  # noqa: F401 - the engine imports it for its first line, which would be once in each child

    # Where the tool runs in the background Ctrl-C is ignored, and programs that are to end by it would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    control = next((each for each in campaign.controls if each.name == order.control), None)
    work = Work(
        tier=order.tier,
        seed=order.seed,
        folder=Path(order.folder),
        memory=Path(order.memory),
        goals=campaign.goals,
        control=order.control,
        shows=control.shows if control is not None else "",
        case=order.case,
        scale=order.scale,
    )
    with _stopping_early():
        campaign.run(work)
    violations = [Shown(each.invariant, each.case, each.what[:_SHOWN_CHARACTERS]) for each in work.violations]
    answer = _Answer(dict(work.counts), work.notes, violations, work.missed_goals())
    Path(order.answer).write_bytes(msgspec.json.encode(answer))


@contextmanager
def _stopping_early() -> Iterator[None]:
    try:
        yield
    except WorkDone:
        pass
    except BaseExceptionGroup as group:  # from a task group: WorkDone, and what it has interrupted
        if group.subgroup(WorkDone) is None:
            raise

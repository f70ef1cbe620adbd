"""The campaign itself: trace after trace is recorded, cut, and recovered from, until the goals are reached."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools.campaigns.frame.campaign import Work
from tools.campaigns.power_cuts.children import Died, in_a_child
from tools.campaigns.power_cuts.disk import Cut, Disk, Kept
from tools.campaigns.power_cuts.draws import draw, draws
from tools.campaigns.power_cuts.history import History, Wrong, content_at
from tools.campaigns.power_cuts.judge import Judge, read_log
from tools.campaigns.power_cuts.kept_heads import HeadJudge
from tools.campaigns.power_cuts.recorder import hide_mounts, memory, recording
from tools.campaigns.power_cuts.scene import LOG, effects_of, is_killed, is_signed
from tools.campaigns.power_cuts.tails import check_refusal, lose_tail
from tools.campaigns.power_cuts.trace import ROOT, Made, Start, Trace
from tools.campaigns.power_cuts.work import recover, reopen, work, work_until_killed

__all__ = ["run"]

_TRIES: Final = 16
"""Random draws at each operation; those that come out alike count once."""
_MOST_RECOVERIES: Final = 1_000
_MARKS: Final = "+~-"
"""In the name of a case, what is done with a trace: recovery and record, recovery alone, loss of a tail."""
_IMAGES_OF_A_TRACE: Final = 12_000
"""About as many."""
_BYTES: Final = 512 * 1024 * 1024


def run(work_order: Work) -> None:
    """Perform the campaign in this process, which has one thread only and nothing mounted that others need."""
    hide_mounts()
    os.umask(0o077)  # for what is put back: keys that others can read are refused
    with memory(work_order.folder / "memory", _BYTES) as folder:
        cuts = _PowerCuts(work_order, folder)
        began_s = time.process_time()
        for number in itertools.count(1):
            if cuts.is_done(number):
                break
            if work_order.case is None or _trace_of(work_order.case) == f"t{number}":
                cuts.perform(f"t{number}")
        cuts.note_rate(time.process_time() - began_s)


def _trace_of(case: str) -> str:
    return re.split(f"[@{re.escape(_MARKS)}]", case)[0]


class _PowerCuts:
    """Records, cuts and recovers in `folder`, which is in memory: it is not its durability that is looked at."""

    def __init__(self, work_order: Work, folder: Path) -> None:
        self._work: Final = work_order
        self._folder: Final = folder
        self._behind: Final = folder / "behind"
        self._disk: Final = folder / "disk"
        """Where the recording is mounted; what the engine recovers without one is put there, too: one path for both."""
        self._distinct = 0
        self._judging_s = 0.0
        self._refused = 0

    def is_done(self, number: int) -> bool:
        """Return whether the goals are reached, or the trace of the one case that is wanted was performed."""
        if self._work.case is not None:
            return number > int(_trace_of(self._work.case).removeprefix("t"))
        return all(self._work.counts[name] >= self._work.goal(name) for name in self._work.goals)

    def note_rate(self, seconds: float) -> None:
        images = self._work.counts["images"] + self._work.counts["compound"]
        self._work.notes["distinct"] = f"{self._distinct} of {images} images had contents of their own in the log"
        self._work.notes["refused"] = (
            f"{self._refused} of {self._work.counts['tails']} logs without their tail, for a signed head"
        )
        self._work.notes["rate"] = f"{images / max(self._judging_s, 0.001):.0f} images/s judged, {seconds:.0f} s in all"

    def perform(self, case: str) -> None:
        """Record one trace, cut it at every operation, and recover from a share of what is left."""
        self._work.wants(case)
        seed = f"{self._work.seed}/{case}"
        trace = self._record_killed(case, seed) if is_killed(seed) else self._record(case, Start(), seed, work, {})
        history = self._history(case, trace, seed, 0, self._behind)
        if history is None:
            return
        for number in range(_MOST_RECOVERIES if is_signed(seed) else 0):
            if not self._goes_on(f"{case}-{number}", number < self._tails_of_a_trace()):
                break
            self._lose_tail(f"{case}-{number}", trace, history, seed)
        self._cut(case, trace, history, "images")
        share = min(1.0, self._work.counts["images"] / self._work.goal("images"))
        for number in range(_MOST_RECOVERIES):
            is_due = self._work.counts["compound"] < share * self._work.goal("compound")
            if not self._goes_on(f"{case}+{number}", is_due):
                break
            self._recover_recorded(f"{case}+{number}", trace, history, seed)
        for number in range(_MOST_RECOVERIES):
            is_due = self._work.counts["recoveries"] < share * self._work.goal("recoveries")
            if not self._goes_on(f"{case}~{number}", is_due):
                break
            self._recover(f"{case}~{number}", trace, history, seed)

    def _tails_of_a_trace(self) -> int:
        """Return how many tails each second trace has to lose, so that all are lost when all images are judged."""
        return math.ceil(2 * _IMAGES_OF_A_TRACE * self._work.goal("tails") / self._work.goal("images"))

    def _goes_on(self, case: str, is_due: bool) -> bool:
        """Return whether the next one of a kind is to be done: while it is due, or up to the one that is wanted."""
        wanted = self._work.case
        if wanted is None:
            return is_due
        mark = next(mark for mark in _MARKS if mark in case)
        number, upto = case.partition(mark)[2], wanted.partition("@")[0].partition(mark)[2]
        is_wanted = self._work.wants(case)
        return is_wanted or (upto != "" and int(number) <= int(upto))

    # ── traces ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, case: str, start: Start, seed: str, function: Any, said: dict[str, Any], *more: Any) -> Trace:
        """Record what the engine does on a disk that begins as `start`; what it returns is put into `said`."""
        _put(start, self._behind)
        self._disk.mkdir(exist_ok=True)
        with recording(self._behind, self._disk) as found:
            said.update(self._ask(case, function, seed, *more))
        return found.trace

    def _record_killed(self, case: str, seed: str) -> Trace:
        """Record a process that is killed in an effect, and the next one, which finds what nobody has flushed."""
        _put(Start(), self._behind)
        self._disk.mkdir(exist_ok=True)
        with recording(self._behind, self._disk) as found:
            try:
                in_a_child(work_until_killed, self._disk, seed, answer=self._folder / "answer.json")
            except Died as died:
                self._work.count("killed in an effect", died.is_killed)
                if not died.is_killed:
                    self._work.violation("I9" if died.is_stuck else "I8", case, str(died))
            said = self._ask(case, recover, seed, True, 1)  # those behind a cut of this come later still
        for run_id, end in said.get("ends", {}).items():
            if end != "COMPLETED":
                self._work.violation("I6", case, f"{run_id} does not come to its end behind the kill: {end}")
        return found.trace

    def _ask(self, case: str, function: Any, seed: str, *more: Any) -> dict[str, Any]:
        try:
            return in_a_child(function, self._disk, seed, *more, answer=self._folder / "answer.json") or {}
        except Died as died:
            self._work.violation("I9" if died.is_stuck else "I8", case, str(died))
            return {}

    def _history(self, case: str, trace: Trace, seed: str, durable: int, folder: Path) -> History | None:
        try:
            history = History(read_log(folder / LOG), trace, effects_of(seed), folder, durable)
            history.check_files(len(history.rows.events), lambda path: content_at(folder / path))
            return history
        except Wrong as wrong:
            self._work.violation(wrong.invariant, case, f"at the end: {wrong.what}")
            return None

    # ── cuts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cut(self, case: str, trace: Trace, history: History, counted: str) -> None:
        """Cut the power before every operation of a trace and behind the last one."""
        began_s = time.process_time()
        judge, heads = Judge(self._folder / "judge", history), HeadJudge(self._folder / "judge")
        try:
            for moment, disk in _moments(trace):
                name = f"{case}@{moment}"
                if self._work.wants(name):
                    chance = self._work.chance(name)
                    for kept in draws(disk, chance, _TRIES):
                        self._judge(name, judge, heads, history, moment, Cut(disk, kept))
                        self._work.count(counted)
        finally:
            judge.close()
            self._distinct += judge.distinct
            self._judging_s += time.process_time() - began_s

    def _judge(self, case: str, judge: Judge, heads: HeadJudge, history: History, moment: int, cut: Cut) -> int:
        """Report what is wrong with an image, and return how many events it holds."""
        try:
            count = judge.events_of(cut)
            told = history.told_at(moment)
            if count < told:
                raise Wrong("I1", f"events were acknowledged up to position {told}, {count} are left")
            signed = heads.check(cut, count)
            history.check_files(count, cut.content_at)
            if is_signed(_trace_of(case)):
                history.check_heads(signed, cut.content_at)
        except Wrong as wrong:
            self._work.violation(wrong.invariant, case, wrong.what)
            return 0
        return count

    # ── recoveries ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recover_recorded(self, case: str, trace: Trace, history: History, seed: str) -> None:
        """Let the engine recover from a cut on a recording disk, and cut that recovery at every operation."""
        start, count = self._any_cut(case, trace, history)
        said: dict[str, Any] = {}
        second = self._record(case, start, seed, recover, said, self._work.chance(f"{case}/runs").random() < 0.5)
        end = self._check_recovery(case, second, history, seed, count, said, self._behind)
        if end is not None:
            self._cut(case, second, end, "compound")

    def _recover(self, case: str, trace: Trace, history: History, seed: str) -> None:
        """Let the engine recover from a cut, and check what comes of it."""
        start, count = self._any_cut(case, trace, history)
        _put(start, self._disk)
        said = self._ask(case, recover, seed, True)
        self._check_recovery(case, Trace(start, []), history, seed, count, said, self._disk)
        shutil.rmtree(self._disk)
        self._work.count("recoveries")

    def _any_cut(self, case: str, trace: Trace, history: History) -> tuple[Start, int]:
        """Return what is left by a cut at some moment, and how many events of the log.

        Each file and directory has its share of the moments at which something of it is not durable: most are rare.
        """
        chance = self._work.chance(case)
        moments = _unsafe_moments(trace)
        at = chance.choice(moments[chance.choice(sorted(moments))])
        disk = next(disk for moment, disk in _moments(trace) if moment == at)
        cut = Cut(disk, draw(disk, chance))
        judge = Judge(self._folder / "judge", history)
        try:
            count = self._judge(case, judge, HeadJudge(self._folder / "judge"), history, at, cut)
            return cut.tree(), count
        finally:
            judge.close()

    def _lose_tail(self, case: str, trace: Trace, history: History, seed: str) -> None:
        """Damage the write-ahead log of a disk that was left whole, and let the engine open it."""
        chance = self._work.chance(case)
        lost = None
        for _ in range(_TRIES):
            at = chance.randint(0, len(trace.operations))
            disk = next(disk for moment, disk in _moments(trace) if moment >= at)
            cut = Cut(disk, disk.everything())
            lost = lose_tail(cut.tree(), chance)
            if lost is not None:  # else there is nothing in the write-ahead log at that moment
                break
        else:
            return
        self._work.count("tails")
        how, start = lost
        _put(start, self._disk)
        left = self._left_in(start, history)
        said = self._ask(case, reopen, seed)
        try:
            check_refusal(said, left, HeadJudge(self._folder / "judge").signed_in(cut))
        except Wrong as wrong:
            self._work.violation(wrong.invariant, case, f"the write-ahead log {how}: {wrong.what}")
        self._refused += "refused" in said
        shutil.rmtree(self._disk)

    def _left_in(self, start: Start, history: History) -> int | None:
        judge = Judge(self._folder / "judge", history)
        try:
            return judge.events_of(Cut(Disk(start), Kept()))
        except Wrong:
            return None
        finally:
            judge.close()

    def _check_recovery(
        self, case: str, trace: Trace, before: History, seed: str, count: int, said: Mapping[str, Any], folder: Path
    ) -> History | None:
        """Report what is wrong behind a recovery, and return the history that it has made."""
        if not said:
            return None
        for problem in said["problems"]:
            self._work.violation("I10", case, f"the engine finds in what was left: {problem}")
        if said["head"] != count:
            self._work.violation("I1", case, f"the engine finds {said['head']} events, SQLite {count}")
        for run_id, end in said["ends"].items():
            if end != "COMPLETED":
                self._work.violation("I6", case, f"{run_id} does not come to its end behind the cut: {end}")
        after = self._history(case, trace, seed, count, folder)
        if after is None:
            return None
        if after.rows.events[:count] != before.rows.events[:count]:
            self._work.violation("I1", case, f"recovery has changed one of the first {count} events")
        return after


def _moments(trace: Trace) -> Iterator[tuple[int, Disk]]:
    """Replay a trace: before each operation, and behind the last one, its number and the disk at that moment."""
    disk = Disk(trace.start)
    for moment, operation in enumerate(trace.operations):
        if moment == 0 or not isinstance(trace.operations[moment - 1], Made):  # it alone has changed nothing to be cut
            yield moment, disk
        disk.apply(operation)
    yield len(trace.operations), disk


def _unsafe_moments(trace: Trace) -> dict[int, list[int]]:
    """Return for each file and directory the moments at which something of it was done and not flushed."""
    found: dict[int, list[int]] = {}
    for moment, disk in _moments(trace):
        for number in {*disk.writes, *disk.changes}:
            found.setdefault(number, []).append(moment)
    return found


def _put(start: Start, folder: Path) -> None:
    """Make a folder that holds exactly this; a file with several names is one file."""
    shutil.rmtree(folder, ignore_errors=True)
    made: dict[int, Path] = {}

    def put(number: int, path: Path) -> None:
        if number in start.directories:
            path.mkdir()
            for name, below in start.directories[number].items():
                put(below, path / name)
        elif number in made:
            os.link(made[number], path)
        else:
            path.write_bytes(start.files[number])
            made[number] = path

    put(ROOT, folder)

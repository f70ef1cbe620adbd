"""Campaign `bit_flips`: the files of a log are damaged while nobody has it open, and somebody opens it then.

One bit, a cut or zeroed sector, the write-ahead log or the database of another log, a cell of a row: after each, all
reads as it was, or damage is reported by a coded error or by `verify`, which knows the heads that were signed. Events
that were never appended are never served, a loss of signed events is never silent, and a signer's log is not gone on
with behind a loss. Damage is laid out in two logs: in pages of 1 KiB, where nearly every byte means something and each
is flipped in the long tier, and in pages of 4 KiB as everybody has them.

A case names the log and the damage (`small:flip:log.db:4711:3`); see `tools.campaigns.bit_flips.damages`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.campaigns.bit_flips.damages import all_cells, all_cuts, all_flips, forge, some_flips, spoil
from tools.campaigns.bit_flips.judging import Judge
from tools.campaigns.bit_flips.links import problems_of_links
from tools.campaigns.bit_flips.scene import FILES, Scene, make_scene
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work

__all__ = ["CAMPAIGN", "run"]

_PAGE_BYTES: Final = {"small": 1024, "usual": 4096}
_THOROUGHLY_EACH: Final = 100
"""One of so many is judged through all of the engine, whatever the quick look at it says."""


def run(work: Work) -> None:
    """Make the logs, and damage them again and again. Files are in memory where there is room: nothing is synced."""
    folder = tempfile.mkdtemp(dir=work.memory)
    try:
        for name, page_bytes in _PAGE_BYTES.items():
            _Damaging(work, name, Path(folder) / name, page_bytes).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Damaging:
    """One of the two logs, whole, and what becomes of it."""

    def __init__(self, work: Work, name: str, folder: Path, page_bytes: int) -> None:
        folder.mkdir()
        self._work: Final = work
        self._name: Final = name
        self._scene: Final = make_scene(folder / "log", f"{work.seed}/{name}", page_bytes=page_bytes)
        self._files: Final = _files_of(self._scene)
        self._others: Final = _files_of(make_scene(folder / "other", f"{work.seed}/{name}/2", page_bytes=page_bytes))
        self._judge: Final = Judge(self._scene)
        asyncio.run(self._judge.learn(self._scene.lay_out(self._files, signer=True)))

    def run(self) -> None:
        """Do all that the tier asks for, or the one case."""
        began_s = time.perf_counter()
        damages = self._all() if self._work.case is None else self._named(self._work.case)
        done: Counter[str] = Counter()
        for number, damage in enumerate(damages):
            kind = self._meet(damage, thoroughly=number % _THOROUGHLY_EACH == 0 or self._work.case is not None)
            done[kind] += 1
            self._work.count(kind)
        if done:
            rate = done.total() / (time.perf_counter() - began_s)
            met = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self._judge.outcomes.items()))
            self._work.notes[self._name] = f"{rate:.0f}/s; {met}"

    def _named(self, case: str) -> Iterator[str]:
        """Give the damage that a case names, if it is one of this log."""
        name, _, damage = case.partition(":")
        if name == self._name and self._work.wants(case):
            yield damage

    def _all(self) -> Iterator[str]:
        """Give the damages of the tier; half of each goal for each of the two logs."""
        work, chance = self._work, self._work.chance(self._name)
        if work.tier == "long" and work.control is None and self._name == "small" and work.scale >= 1:
            yield from all_flips(self._files, chance)
        else:
            yield from some_flips(self._files, -(-work.goal("flips") // 2), chance)
        cuts = list(all_cuts(self._files))
        yield from chance.sample(cuts, min(len(cuts), -(-work.goal("sectors") // 2)))
        cells = list(all_cells(len(self._judge.events), chance))
        enough = work.counts["cells"] + -(-work.goal("cells") // 2)
        for cell in chance.sample(cells, len(cells)):
            if work.tier == "fast" and work.counts["cells"] >= enough:  # the long tier edits every cell
                break
            yield cell
        yield from ("link:hard", "link:symbolic", "mixed:log.db", "mixed:log.db-wal", "without:log.db-wal")

    def _meet(self, damage: str, *, thoroughly: bool) -> str:
        """Let the engine meet one damage, report what is wrong, and return what is counted."""
        kind, case = damage.partition(":")[0], f"{self._name}:{damage}"
        if kind == "link":
            path = self._scene.lay_out(self._files, signer=True)
            for problem in problems_of_links(path, self._judge.events, is_hard=damage == "link:hard"):
                self._work.violation("I10", case, problem)
            return "links"
        files = self._forged(damage) if kind in ("row", "swap") else spoil(damage, self._files, self._others)
        if not files:
            return "cells that stayed as they were"
        for invariant, what in self._judge.judge(
            lambda: self._scene.lay_out(files, signer=True), thoroughly=thoroughly, may_be_another=kind == "mixed"
        ):
            self._work.violation(invariant, case, what)
        return _COUNTED[kind]

    def _forged(self, damage: str) -> dict[str, bytes]:
        """Return the files behind an edit, none if it changed nothing: SQLite makes it, and closes the database."""
        path = self._scene.lay_out(self._files, signer=True)
        return {"log.db": path.read_bytes()} if forge(path, damage) else {}


_COUNTED: Final = {
    "flip": "flips",
    "cut": "sectors",
    "zero": "sectors",
    "row": "cells",
    "swap": "cells",
    "mixed": "swapped files",
    "without": "swapped files",
}


def _files_of(scene: Scene) -> dict[str, bytes]:
    return {name: scene.data[name] for name in FILES}


CAMPAIGN: Final = Campaign(
    name="bit_flips",
    title="bits, sectors, cells and whole files of a log are damaged",
    promise="all reads as it was, or damage is reported; events that were never appended are never served",
    faults=("F28", "F30", "F32", "F33", "F36", "F37", "F64"),
    invariants=("I1", "I8", "I9", "I10"),
    run=run,
    goals={
        "flips": Goal(fast=2000, long=100_000, control=2000),
        "sectors": Goal(fast=100, long=800, control=100),
        "cells": Goal(fast=120, long=800, control=100),
        "swapped files": Goal(fast=6, long=6, control=1),
        "links": Goal(fast=4, long=4, control=1),
    },
    controls=(
        Control(
            name="leaves_are_not_compared",
            what="an event that is read is not compared with its leaf",
            breaks=(Break("eventlog/stores/sqlite/rows.py", "        if not is_sealed:", "        if False:"),),
            shows="I10 .*never appended",
        ),
        Control(
            name="signer_is_not_asked",
            what="a log that is shorter than its last signed head is opened and gone on with",
            breaks=(
                Break(
                    "eventlog/stores/head_keeper.py",
                    "        if last.head.size > size:\n            raise _rolled_back(last.head.size, size)\n",
                    "        if last.head.size > size:\n            return\n",
                ),
            ),
            shows="I1 .*written at position",
        ),
        Control(
            name="lost_tail_is_no_problem",
            what="verify does not say that a signed head is of more events than the log has",
            breaks=(
                Break(
                    "eventlog/audit/verify/head_continuity.py",
                    '            self._problems.add("store_rolled_back", message, position=own.last)',
                    "            pass",
                ),
            ),
            shows="I10 .*nothing reports it",
        ),
        Control(
            name="driver_errors_come_out",
            what="errors of SQLite come out as they are",
            breaks=(
                Break(
                    "eventlog/stores/sqlite/failures.py",
                    "SQLITE_ERRORS: Final = (sqlite3.Error, MemoryError)",
                    "SQLITE_ERRORS: Final = (MemoryError,)",
                ),
            ),
            shows="I8 .*raw (Database|Operational)Error",
        ),
    ),
)

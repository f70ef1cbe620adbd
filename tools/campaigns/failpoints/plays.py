"""Whole runs that are played by one process after the other: crashed once, taken on by the next one, and compared.

A play is made anew in a folder for each crash. It is crashed at each named point, at each time that it passes it
(`effect.after:2`), and in front of and behind each of its appends (`append:-7`, `append:7`). The next process takes up
what the log has; what must hold then is said by the play.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from eventlog.errors import EventLogError
from eventlog.log import RecordedEvent
from eventlog.runtime.failpoints import CRASH_STATUS, Reach, crash_at, pass_by
from eventlog.stores.sqlite import SqliteLog
from eventlog.testing.history import difference, outcomes
from eventlog.testing.ledger import read_ledger, violations
from eventlog.testing.life import live
from tools.campaigns.failpoints.site import scenario
from tools.campaigns.failpoints.undoing import undo
from tools.campaigns.frame.campaign import Work
from tools.campaigns.processes.in_child import here, in_child

__all__ = ["Crash", "crash_pairs_of_plays", "crash_plays"]

APPEND: Final = "append"


@dataclass(frozen=True, slots=True)
class Crash:
    """Where a process ends: at a named point, the n-th time that it passes it; or at an append, before it if -n."""

    point: str
    number: int
    how: str = "SIGKILL"

    def __str__(self) -> str:
        return f"{self.point}:{self.number}-{self.how}"

    @property
    def status(self) -> int:
        """How the process ends."""
        return CRASH_STATUS if self.how == "exit" else -signal.SIGKILL

    @property
    def reach(self) -> Reach:
        """What ends it at a named point."""
        if self.point == APPEND:
            return pass_by
        return crash_at(f"{self.point}:{self.number}{'=kill' if self.how == 'SIGKILL' else ''}")

    @property
    def die_at(self) -> int | None:
        """The append at which it ends."""
        return self.number if self.point == APPEND else None


Live = Callable[[Path, int, int | None, Reach], Coroutine[Any, Any, int]]
"""Plays on from what is in the folder, to the end or to the crash; returns how many appends it took."""


async def _work(folder: Path, life: int, die_at: int | None, reach: Reach) -> int:
    ending = await live(scenario(folder), folder, life, die_at, is_process=True, reach=reach)
    return ending.appends


PLAYS: Final[dict[str, Live]] = {"workflow": _work, "undoing": undo}


def crash_plays(work: Work, folder: Path) -> set[str]:
    """Crash each play wherever it can be crashed; return the named points at which a process really ended."""
    crashed: set[str] = set()
    for name, play in PLAYS.items():
        calm = _Calm(play, folder / f"{name}-calm")
        for crash in calm.crashes(is_long=work.tier == "long"):
            case = f"{name}-{crash}"
            if work.wants(case):
                work.count("crashes at appends" if crash.point == APPEND else "crashes at named points")
                crashed |= {each.point for each in _play(work, calm, [crash], folder / case)}
    return crashed


def crash_pairs_of_plays(work: Work, folder: Path) -> None:
    """Crash a play, and the process that goes on with it, at pairs of places that chance draws."""
    calms = [_Calm(play, folder / f"{name}-calm") for name, play in PLAYS.items()]
    names = list(PLAYS)
    for number in range(work.goal("pairs in workflows")):
        chance = work.chance(f"pair-{number}")
        which = chance.randrange(len(calms))
        places = list(calms[which].crashes(is_long=True))
        crashes = [chance.choice(places), chance.choice(places)]
        case = f"pair-{number}"
        if work.wants(case):
            crashed = _play(work, calms[which], crashes, folder / f"{names[which]}-{number}", case)
            work.count("pairs in workflows")
            work.count("second crashes in workflows", len(crashed) - 1)


class _Calm:
    """A play that nothing has disturbed: what it passes, and what it comes to."""

    def __init__(self, play: Live, folder: Path) -> None:
        self.play: Final = play
        folder.mkdir(parents=True)
        self.passed: Final[list[str]] = []
        self.appends: Final = asyncio.run(play(folder, 1, None, self.passed.append))
        self.seen: Final = asyncio.run(_seen(folder))

    def crashes(self, *, is_long: bool) -> Iterator[Crash]:
        """Yield every crash; of two ways to end, and two sides of an append, one in turn if it is not the long tier."""
        times: Counter[str] = Counter()
        for index, point in enumerate(self.passed):
            times[point] += 1
            for how in ("exit", "SIGKILL") if is_long else (("exit", "SIGKILL")[index % 2],):
                yield Crash(point, times[point], how)
        for number in range(1, self.appends + 1):
            for side in (1, -1) if is_long else (1 if number % 2 else -1,):
                yield Crash(APPEND, side * number)


def _play(work: Work, calm: _Calm, crashes: Sequence[Crash], folder: Path, case: str | None = None) -> list[Crash]:
    """Crash a play so often, let the next process end it, and judge; return the crashes at which a process ended.

    The first one has to: it is where it was passed without a crash. The next process may have less to do.
    """
    case = case or folder.name
    folder.mkdir()
    crashed: list[Crash] = []
    for life, crash in enumerate(crashes, start=1):
        ended = in_child(partial(calm.play, folder, life, crash.die_at, crash.reach))
        if ended.status == crash.status:
            crashed.append(crash)
        elif life == 1 or ended.status != 0:
            work.violation("I8", case, f"the process of {crash} ended with {ended.status}")
    again = here(lambda: calm.play(folder, len(crashes) + 1, None, pass_by))
    if again.status != 0:
        invariant = "I9" if again.status == -signal.SIGALRM else "I8"
        work.violation(invariant, case, f"the last process ended with {again.status}")
    else:
        for invariant, what in _found(calm, folder):
            work.violation(invariant, case, what)
    shutil.rmtree(folder)
    return crashed


def _found(calm: _Calm, folder: Path) -> list[tuple[str, str]]:
    """Return how what the play came to differs from what is right; a log that cannot be read is found wanting."""
    try:
        return list(_wrong(calm.seen, asyncio.run(_seen(folder))))
    except EventLogError as error:
        return [("I2", f"it cannot be looked at: {error}")]


# ── what is compared ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a play has come to."""

    lines: list[str]
    receipts: dict[str, int]
    problems: list[str]
    wrong: list[str]


async def _seen(folder: Path) -> _Seen:
    events: list[RecordedEvent] = []
    async with SqliteLog(str(folder / "log.db"), actor="audit", is_read_only=True) as log:
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
        events = [event async for event in log.read_all()]
    problems = [f"position {problem.position}: {problem.message}" for problem in page.problems]
    if (page.position, page.events) != (head, head):
        problems.append(f"{page.events} events lie at {head} positions")
    receipts = Counter(line for book in ("orders", "paint", "van") for line in _receipts(folder / book))
    return _Seen(outcomes(events), dict(receipts), problems, violations(read_ledger(folder / "ledger.jsonl")))


def _receipts(path: Path) -> list[str]:
    """Return what a receiver has seen, with its own name in front: op_keys differ from log to log."""
    return [f"{path.name}: {line}" for line in path.read_text().splitlines()] if path.exists() else []


def _wrong(calm: _Seen, seen: _Seen) -> Iterator[tuple[str, str]]:
    for problem in seen.problems:
        yield "I2", problem
    for receipt, count in seen.receipts.items():
        if count > 1:
            yield "I5", f"{count} effects at {receipt}"
    if len(seen.receipts) < len(calm.receipts):
        yield "I6", f"{len(seen.receipts)} effects, and {len(calm.receipts)} without a crash"
    if len(seen.receipts) > len(calm.receipts):
        yield "I5", f"{len(seen.receipts)} effects, and {len(calm.receipts)} without a crash"
    for what in seen.wrong:
        yield "I1", what
    parted = difference(calm.lines, seen.lines, ("without a crash", "with it"))
    if parted:
        yield "I1", f"it did not come to the same:\n{parted}"

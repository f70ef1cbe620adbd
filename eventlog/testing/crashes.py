"""Runs a workflow again and again, crashing it at each of its appends, and shows that it comes to the same each time.

    async def test_it_survives(tmp_path: Path) -> None:
        report = await crash_after_every_event(
            fix_incident, args=["INC-7"], actions=[apply_patch], script=Script(signals={"go": None}), folder=tmp_path
        )
        assert report.crashes > 20

First the workflow is run without a crash. Then for k = 1, 2, 3, … it is run from the start and crashes as soon as its
k-th append is durable; another life takes up what the log has, until all has ended. The same once more with a crash in
front of the k-th append, so that what was done since the one before is done and nowhere recorded. What has to hold:

    the same end    every run of the family ends as it did without a crash, with the same result
    at most once    no step's function is called again once its output is in the log
    not too early   the workflow is given no answer that a crash could still take back
    exactly once    no effect is done twice, as the action sees it, and as its receivers do where `receipts` asks them
    the same past   what was done once and for all is the same, whatever claims and attempts it took
    a whole log     every event of it is verified

If something does not, an AssertionError says what, after which append, and shows both histories.

A life is one event loop in a thread: fast, and what is in the memory of your modules lives on. With `in_processes` each
is a process of its own that is ended by SIGKILL; then the scenario is a function at the top of a module that can be
imported. A scenario is made anew for each history, with a folder of its own for the world outside:

    def incident(folder: Path) -> Scenario:
        book = ReceiptBook(folder / "receipts")
        return Scenario(workflow=fix_incident, args=["INC-7"], actions=[book.action], receipts=book.read)

Each attempt at a step with a `retry` that a crash interrupts counts as one, so let it have more than it needs.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eventlog.errors import InvalidInput
from eventlog.log import RecordedEvent
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.policies import Policy
from eventlog.stores.sqlite import SqliteLog
from eventlog.testing.history import difference, outcomes, printed
from eventlog.testing.ledger import Entry, read_ledger, violations
from eventlog.testing.life import Answering, Ending, Scenario, Script, World, live
from eventlog.testing.nursery import Nursery, Order

__all__ = ["CrashReport", "Scenario", "Script", "World", "crash_after_every_event"]

_LIFE_S: Final = 60.0
_MAX_LIVES: Final = 50
_SEED: Final = 20_260_101

Make = Callable[[Path], Scenario]


@dataclass(frozen=True, kw_only=True)
class CrashReport:
    """What was tried. `appends` of a history without a crash; all other numbers are of all histories together.

    `calls` are those of steps' functions, `repeated` those of them that were made again because the function had not
    returned, or its output was not in the log yet, when the crash came.
    """

    appends: int
    histories: int
    crashes: int
    calls: int
    repeated: int
    effects: int
    deliveries: int

    def __str__(self) -> str:
        return (
            f"{self.histories} histories of {self.appends} appends and more, {self.crashes} crashes: "
            f"{self.calls} calls of steps, {self.repeated} of them again, {self.effects} effects, "
            f"{self.deliveries} answers to the workflow, and each history came to the same"
        )


async def crash_after_every_event(
    what: Workflow | Make,
    *,
    args: Sequence[Any] = (),
    actions: Sequence[AnyAction] = (),
    workflows: Sequence[Workflow] = (),
    policies: Mapping[str, Policy] | None = None,
    script: Answering | None = None,
    receipts: Callable[[], Sequence[Any]] | None = None,
    varies: Sequence[str] = (),
    folder: Path | None = None,
    in_processes: bool = False,
    also_before: bool = True,
    every: int = 1,
    pairs: int = 0,
    seed: int = _SEED,
) -> CrashReport:
    """Crash behind each append in turn, and in front of each; then at `pairs` pairs of them, drawn by `seed`.

    `what` is a workflow, with what belongs to it, or a function that makes a `Scenario` in a folder. `every` takes only
    each n-th append, `also_before=False` only the crashes behind one. The second of a pair hits the life that takes up
    what the first has left. What is made lies in `folder`, and is removed where all is well. Raises AssertionError.
    """
    make = what if not isinstance(what, Workflow) else None
    if make is None:
        assert isinstance(what, Workflow)
        scenario = Scenario(
            workflow=what,
            args=args,
            actions=actions,
            workflows=workflows,
            policies=policies or {},
            script=script or Script(),
            receipts=receipts,
            varies=varies,
        )
        make = _always(scenario)
    elif any((args, actions, workflows, policies, script, receipts, varies)):
        raise InvalidInput("invalid_argument", "what belongs to a workflow is in the scenario that the function makes")
    own = folder is None
    where = Path(tempfile.mkdtemp(prefix="eventlog-crashes-")) if folder is None else folder
    campaign = _Campaign(make, where)
    try:
        with ExitStack() as stack:
            if in_processes:
                campaign.nursery = stack.enter_context(Nursery(make))
            return await campaign.run(every, pairs, random.Random(seed), also_before=also_before)
    finally:
        if own:
            shutil.rmtree(where, ignore_errors=True)


def _always(scenario: Scenario) -> Make:
    def make(_: Path) -> Scenario:
        return scenario

    return make


@dataclass(frozen=True)
class _History:
    """One history of the workflow, over all its lives."""

    place: Path
    crashes: tuple[int, ...]
    endings: list[Ending]
    events: list[RecordedEvent]
    lines: list[str]
    ledger: list[Entry]

    @property
    def name(self) -> str:
        if not self.crashes:
            return "without a crash"
        return "with a crash " + ", then ".join(map(_named, self.crashes))


class _Campaign:
    """All histories of one scenario."""

    def __init__(self, make: Make, folder: Path) -> None:
        self._make: Final = make
        self._folder: Final = folder
        self.nursery: Nursery | None = None
        self._count: Counter[str] = Counter()

    async def run(self, every: int, pairs: int, chance: random.Random, *, also_before: bool) -> CrashReport:
        first = await self._history(())
        _check_alone(first)
        shutil.rmtree(first.place)
        appends = first.endings[-1].appends
        sides = (1, -1) if also_before else (1,)
        for k in range(1, appends + 1, every):
            for side in sides:
                await self._compare(first, (side * k,))
        for crashes in _pairs(appends, sides, pairs, chance):
            await self._compare(first, crashes)
        return CrashReport(
            appends=appends,
            histories=self._count["histories"],
            crashes=self._count["crashes"],
            calls=self._count["called"],
            repeated=self._count["repeated"],
            effects=self._count["effect"],
            deliveries=self._count["delivered"],
        )

    async def _compare(self, first: _History, crashes: tuple[int, ...]) -> None:
        history = await self._history(crashes)
        _check_alone(history)
        parted = difference(first.lines, history.lines, (first.name, history.name))
        if parted:
            raise _wrong(history, f"it did not come to the same:\n{parted}")
        before, after = (each.endings[-1].receipts for each in (first, history))
        if len(before) != len(after):  # what they say may differ, as keys of effects do from log to log
            raise _wrong(history, f"the receivers have seen {after}, and {before} without a crash")
        shutil.rmtree(history.place)

    async def _history(self, crashes: tuple[int, ...]) -> _History:
        place = self._folder / ("crash-" + "-".join(map(str, crashes)) if crashes else "no-crash")
        place.mkdir(parents=True)
        scenario = self._make(place)
        endings: list[Ending] = []
        for life in range(1, _MAX_LIVES):
            die_at = crashes[life - 1] if life <= len(crashes) else None
            ending = await asyncio.to_thread(self._live, scenario, place, life, die_at)
            endings.append(ending)
            if ending.error is not None or not ending.has_died:
                break
        events = await _verified(place / "log.db")
        lines = outcomes(events, scenario.varies)
        history = _History(place, crashes, endings, events, lines, read_ledger(place / "ledger.jsonl"))
        self._add(history)
        return history

    def _live(self, scenario: Scenario, place: Path, life: int, die_at: int | None) -> Ending:
        if self.nursery is not None:
            return self.nursery.live(Order(str(place), life, die_at))
        return _in_a_thread(lambda: live(scenario, place, life, die_at, is_process=False))

    def _add(self, history: _History) -> None:
        self._count["histories"] += 1
        self._count["crashes"] += sum(ending.has_died for ending in history.endings)
        seen: set[tuple[str, str]] = set()
        for entry in history.ledger:
            self._count[entry.what] += 1
            if entry.what == "called" and (entry.run, entry.key) in seen and entry.life > 1:
                self._count["repeated"] += 1
            if entry.what == "called":
                seen.add((entry.run, entry.key))


def _named(crash: int) -> str:
    return f"{'after' if crash > 0 else 'in front of'} append {abs(crash)}"


def _pairs(appends: int, sides: Sequence[int], count: int, chance: random.Random) -> Iterator[tuple[int, ...]]:
    for _ in range(count):
        first = chance.randint(1, appends)
        second = chance.randint(1, appends - first + 2)
        yield first * chance.choice(sides), second * chance.choice(sides)


def _in_a_thread(make: Callable[[], Awaitable[Ending]]) -> Ending:
    """Run one life on a loop of its own, in this thread, which runs no other."""

    async def bounded() -> Ending:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with asyncio.timeout(_LIFE_S):
            return await make()

    assert threading.current_thread() is not threading.main_thread(), "the caller's loop runs there"
    try:
        return asyncio.run(bounded())
    except Exception:
        return Ending(error=traceback.format_exc())


async def _verified(path: Path) -> list[RecordedEvent]:
    if not path.exists():
        return []
    async with SqliteLog(str(path), actor="crash-test", is_read_only=True) as log:
        position = 0
        while (page := await log.check_page(after=position)).events:
            assert not page.problems, f"the log is damaged: {page.problems}"
            position = page.position
        return [event async for event in log.read_all()]


def _check_alone(history: _History) -> None:
    """Check what has to hold in one history, whatever happens in others."""
    error = next((ending.error for ending in history.endings if ending.error is not None), None)
    if error is not None:
        raise _wrong(history, f"it did not come to an end:\n{error}")
    found = violations(history.ledger)
    if found:
        raise _wrong(history, "\n".join(found))
    twice = _repeated(history.endings[-1].receipts)
    if twice:
        raise _wrong(history, f"a receiver has seen more than once: {', '.join(twice)}")


def _repeated(receipts: Iterable[str]) -> list[str]:
    return [receipt for receipt, count in Counter(receipts).items() if count > 1]


def _wrong(history: _History, why: str) -> AssertionError:
    return AssertionError(f"The workflow was run {history.name}.\n{why}\n\nIts log:\n{printed(history.events)}")

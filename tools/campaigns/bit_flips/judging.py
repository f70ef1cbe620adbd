"""Whether a damaged log is met as it has to be: all as it was, or reported; never other events, never a raw error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from eventlog.audit.verify import verify
from eventlog.errors import EventLogError
from eventlog.log import Expect, NewEvent, RecordedEvent
from tools.campaigns.bit_flips.readings import (
    EVENTS,
    PAGES,
    Reading,
    Reported,
    compare_views,
    open_reader,
    read_quickly,
    read_through,
    stream_part,
)
from tools.campaigns.bit_flips.scene import Scene
from tools.campaigns.storage.log_files import open_file

__all__ = ["Judge", "Problem"]

Problem = tuple[str, str]
"""The invariant, and what does not hold."""

_CPU_S: Final = 5.0
_LIMIT_S: Final = 60.0


@dataclass
class Judge:
    """Knows what the log was. `outcomes` counts how damages were met."""

    scene: Scene
    truth: Reading = field(default_factory=dict)
    quick_truth: Reading = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    _known: dict[bytes, str] = field(default_factory=dict)
    """How damage was met, by what SQLite saw in the database. Most damage of a write-ahead log comes to one of a few,
    that of a log without its last events; they are judged once, and then now and then."""

    async def learn(self, path: Path) -> None:
        """Read the log while it is whole. What was not read then is nothing that damage could change."""
        self.quick_truth = read_quickly(path, [])
        events: list[RecordedEvent] = self.quick_truth[EVENTS]
        self.quick_truth = read_quickly(path, dict.fromkeys(event.stream for event in events))
        del self.quick_truth[PAGES]
        async with open_reader(self.scene, path) as log:
            self.truth = await read_through(log, events)
            damaged = await self._damage(log)
        assert not damaged, damaged
        assert len(events) > 20
        assert self.truth[EVENTS] == events, "both ways read the same"
        assert not any(isinstance(part, Reported) for part in (*self.truth.values(), *self.quick_truth.values()))

    @property
    def events(self) -> list[RecordedEvent]:
        """The events of the whole log."""
        found: list[RecordedEvent] = self.truth[EVENTS]
        return found

    @property
    def streams(self) -> list[str]:
        """The names of the streams."""
        return list(dict.fromkeys(event.stream for event in self.events))

    def judge(self, lay_out: Callable[[], Path], *, thoroughly: bool, may_be_another: bool = False) -> list[Problem]:
        """Return what is wrong with how the engine meets the log that `lay_out` lays out, each time anew.

        `may_be_another`: a file of another whole log stands there, whose events may be served where that is reported.
        """
        began_s = time.process_time()
        try:
            problems = self._judge(lay_out, thoroughly or may_be_another, may_be_another)
        except EventLogError as error:
            problems = [("I8", f"a {error.code} came out of where it should be an answer: {error}")]
        except TimeoutError:
            problems = [("I9", f"it has not ended after {_LIMIT_S} s")]
        except Exception as error:
            problems = [("I8", f"a raw {type(error).__name__}: {error!s:.300}")]
        if time.process_time() - began_s > _CPU_S:
            problems.append(("I9", f"it took {time.process_time() - began_s:.1f} s of a processor"))
        return problems

    def _judge(self, lay_out: Callable[[], Path], thoroughly: bool, may_be_another: bool) -> list[Problem]:
        quick = read_quickly(lay_out(), self.streams, () if thoroughly else self._known)
        pages = quick.pop(PAGES, None)
        if not quick:
            self._count(self._known[pages])
            return []
        problems = [] if may_be_another else self._altered(quick, self.quick_truth)
        if problems:
            return problems
        outcome = _outcome(quick, self.quick_truth)
        self._count(outcome)
        if isinstance(pages, bytes):
            self._known[pages] = outcome
        if not thoroughly and outcome != _SILENT:
            return []
        return asyncio.run(asyncio.wait_for(self._judge_through(lay_out, may_be_another), _LIMIT_S))

    async def _judge_through(self, lay_out: Callable[[], Path], may_be_another: bool) -> list[Problem]:
        reading, reported = await self._read(lay_out())
        changed = [part for part, whole in self.truth.items() if reading and reading[part] != whole]
        problems = [] if may_be_another and reported else self._altered(reading, self.truth)
        if changed and not reported:
            problems.append(("I10", f"{', '.join(changed)} read otherwise, and nothing reports it"))
        return [*problems, *await self._written(lay_out())]

    async def _read(self, path: Path) -> tuple[Reading, list[str]]:
        """Return what is read by a reader who has kept a head, and what tells him of damage."""
        try:
            async with open_reader(self.scene, path) as log:
                reading = await read_through(log, self.events)
                told = [part.code for part in reading.values() if isinstance(part, Reported)]
                return reading, [*told, *await self._damage(log)]
        except EventLogError as error:
            return {}, [error.code]

    async def _damage(self, log: Any) -> list[str]:
        """Return what `verify` finds, or the code that it ends with."""

        async def views() -> Any:
            return await compare_views(log)

        try:
            verdicts = await verify(
                log, files=log.check_file, artifacts=log.artifacts, views=views, trust=self.scene.trust()
            )
        except EventLogError as error:
            return [error.code]
        bad = ("damaged", "differs", "unknown")
        return [f"{name} {each.verdict}" for name, each in verdicts.findings.items() if each.verdict in bad]

    async def _written(self, path: Path) -> list[Problem]:
        """Open the log as a writer whose signer knows the last head, go on with it, and read what is there then."""
        size = len(self.events)
        try:
            async with open_file(path, signer=self.scene.signer(), head_every_s=3600.0) as log:
                result = await log.append("notes", [NewEvent("noted", {"text": "behind it"})], expect=Expect.any())
                if result.last_position <= size:
                    return [("I1", f"an event is written at position {result.last_position} of {size} signed ones")]
                reading = await read_through(log, self.events)
        except EventLogError:
            return []
        reading[EVENTS] = [event for event in reading[EVENTS] if _place(event) <= size]
        notes = stream_part("notes")
        if not isinstance(reading[notes], Reported):
            reading[notes] = [event for event in reading[notes] if _place(event) <= size]
        return self._altered(reading, self.truth)

    def _altered(self, reading: Reading, truth: Reading) -> list[Problem]:
        """Return which events are served that never were: each part has to be the beginning of what it was."""
        problems = []
        for part, whole in truth.items():
            found = reading.get(part)
            if part != EVENTS and not part.startswith("stream ") and part != "found":
                continue
            if found is None or isinstance(found, Reported):
                continue
            served = [event for event in found if not isinstance(event, Reported)]
            if part == "found":
                wrong = any(event not in (None, whole[at]) for at, event in enumerate(found) if _is_event(event))
            else:
                wrong = served != whole[: len(served)]
            if wrong:
                problems.append(("I10", f"{part}: events are served that were never appended"))
        return problems

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def _outcome(quick: Reading, truth: Reading) -> str:
    """Return how damage was met: every part as it was, or its error told, or something read otherwise in silence."""
    if quick == truth:
        return "as it was"
    if any(isinstance(quick.get(name), Reported) for name in ("opened", "facts")):
        return "reported"
    is_told = all(quick[part] == whole or isinstance(quick[part], Reported) for part, whole in truth.items())
    return "reported" if is_told else _SILENT


_SILENT: Final = "read otherwise"


def _is_event(found: object) -> bool:
    return isinstance(found, RecordedEvent)


def _place(event: RecordedEvent | Reported) -> int:
    """Return the position of an event; of what stands for one that could not be read, 0."""
    return event.position if isinstance(event, RecordedEvent) else 0

"""What is done to a log in one example, step by step: whatever Hypothesis thinks of, at real logs and the reference."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec.structs import replace

from eventlog import Append, AppendResult, Expect, NewEvent
from eventlog.log import CaughtUp, RecordedEvent, RunLog, Snapshot
from tools.campaigns.frame.campaign import Work
from tools.campaigns.model.doomed import Doom, DoomedEvent, Undertaker
from tools.campaigns.model.reference_log import Answer, Kept, Place, ReferenceLog, Refusal
from tools.campaigns.model.stores import Broken, Home, RowWritten, Stores, agree, answered, check_tree, kept, new_event

__all__ = ["LogMachine"]

_STREAMS: Final = st.sampled_from(["a", "b", "ab", "c'; --"])
_TEXTS: Final[st.SearchStrategy[list[Any]]] = st.lists(
    st.sampled_from(["", "x", "é\u0301\0", "'; --", "x" * 5000, 7, None, 1.5, True, [{"a": []}]]),
    min_size=1,
    max_size=3,
)
_EXPECTED: Final = st.sampled_from(
    [("any", 0), ("any", 0), ("at", 0), ("at", 0), ("at", -1), ("at", 1), ("at", 5), ("no_stream", 0), ("exists", 0)]
)
"""A kind, and how far off the true version is what `at` says."""
_PARTS: Final = st.lists(st.tuples(_STREAMS, _TEXTS, _EXPECTED), min_size=1, max_size=3)
_CHECKS: Final = st.lists(st.tuples(_STREAMS, _EXPECTED), max_size=1)
_FILE: Final = st.sampled_from([0, 0, 1])
_NUMBERS: Final = st.integers(0, 60)
_LIMITS: Final = st.none() | st.integers(0, 5)
_MOMENTS: Final = st.sampled_from(["statement", "statement", "committed", "answered"])
_CHANGES: Final = st.sampled_from(
    ["nothing", "nothing", "expectation", "text", "type", "less", "more", "stream", "order"]
)
_MOST_DEATHS: Final = 1
_MOST_LIVES: Final = 3

Call = tuple[list[Append], list[tuple[str, Expect]]]
Wanted = tuple[str, Expect]


class LogMachine(RuleBasedStateMachine):
    """One example: an empty log, and what is done to it."""

    work: ClassVar[Work]
    home: ClassVar[Home]
    undertaker: ClassVar[Undertaker]

    def __init__(self) -> None:
        super().__init__()
        self.work.count("examples")
        self.reference: Final = ReferenceLog()
        self.stores: Final = Stores(self.home)
        self._calls: Final[list[list[Append]]] = []
        """What was asked for until now, stored or not."""
        self._row_calls: Final[list[tuple[Append, int]]] = []
        self._feeds: list[tuple[Any, int, int]] = []
        """Subscriptions, the file that each is of, and up to which position it has given all."""
        self._ids = 0
        self._deaths = 0
        self._lives = 1
        self._steps = -1
        self.home.run(self.stores.open())

    def check_invariants(self, *args: Any) -> None:
        """Count the steps: it is called at the beginning, and after each; an invariant would be printed each time."""
        super().check_invariants(*args)
        self._steps += 1

    def teardown(self) -> None:
        self.work.count("steps", max(0, self._steps))
        try:
            if not isinstance(sys.exception(), Broken):  # what a step has found says more than what came of it
                self.home.run(self._end())
        finally:
            self.home.run(self.stores.close())

    async def _end(self) -> None:
        for number in range(len(self._feeds)):
            await self._pull(number)
        await self._close_feeds()
        await self.stores.check(self.reference)

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(parts=_PARTS, checks=_CHECKS, file=_FILE)
    def append(self, parts: list[Any], checks: list[Any], file: int) -> None:
        appends, checked = self._new(parts, checks)
        self._calls.append(appends)
        self._both(file, appends, checked)

    @rule(stream=st.sampled_from(["run:r", "$log"]), texts=_TEXTS, by_engine=st.booleans(), file=_FILE)
    def append_to_a_reserved_stream(self, stream: str, texts: list[Any], by_engine: bool, file: int) -> None:
        appends, _ = self._new([(stream, texts, ("any", 0))], [])
        if by_engine:
            expected = self.reference.append(appends, reserved=True)
            self._compare(file, lambda log: log.append_reserved(appends), expected)
        else:
            self._both(file, appends, [])

    @precondition(lambda self: self._calls)
    @rule(which=_NUMBERS, change=_CHANGES, file=_FILE)
    def repeat(self, which: int, change: str, file: int) -> None:
        """Ask again for what was asked for before, perhaps not quite the same."""
        self._both(file, self._changed(self._calls[which % len(self._calls)], change), [])

    @rule(calls=st.lists(st.tuples(_PARTS, _CHECKS), min_size=2, max_size=4), repeats=st.booleans(), file=_FILE)
    def append_together(self, calls: list[tuple[list[Any], list[Any]]], repeats: bool, file: int) -> None:
        """Several calls at once: they are committed together, and each is answered as if they came one by one."""
        asked: list[Call] = [self._new(*call) for call in calls]
        if repeats:
            asked.append(asked[0])
        self._calls.extend(appends for appends, _ in asked)
        expected = [self.reference.append(appends, checks) for appends, checks in asked]

        async def call() -> None:
            log = await self.stores.file(file)
            several = await asyncio.gather(*(answered(log.append_many(each, checks=more)) for each, more in asked))
            agree("I1", "answers to calls at once", several, expected)
            for (each, more), answer in zip(asked, expected, strict=True):
                agree(
                    "I1",
                    "the answer in memory",
                    await answered(self.stores.memory.append_many(each, checks=more)),
                    answer,
                )

        self.home.run(call())

    @rule(parts=_PARTS, turns=st.integers(0, 3), file=_FILE)
    def append_and_give_up(self, parts: list[Any], turns: int, file: int) -> None:
        """A call that is cancelled may be carried out or not; asking again settles it."""
        appends, _ = self._new(parts, [])
        self._calls.append(appends)
        expected = self.reference.append(appends)

        async def call() -> Answer:
            log = await self.stores.file(file)
            task = asyncio.ensure_future(log.append_many(appends))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
            return await answered(log.append_many(appends))

        agree("I4", "what was asked for again", _as_first_time(self.home.run(call())), expected)
        agree("I1", "the answer in memory", self.home.run(answered(self.stores.memory.append_many(appends))), expected)

    @rule(stream=_STREAMS, expected=_EXPECTED, fails=st.booleans(), file=_FILE)
    def append_with_a_row(self, stream: str, expected: Any, fails: bool, file: int) -> None:
        append, n = self._new_row(stream, self._expect(stream, expected))
        answer = self.reference.conflict([append], ()) if fails else None
        if answer is None:
            answer = Refusal("action_failed") if fails else self.reference.append([append])
        self._append_row(file, append, n, answer, fails=fails)
        if not fails:
            self._row_calls.append((append, n))

    @precondition(lambda self: self._row_calls)
    @rule(which=_NUMBERS, file=_FILE)
    def repeat_with_a_row(self, which: int, file: int) -> None:
        append, n = self._row_calls[which % len(self._row_calls)]
        answer = self.reference.append([append])
        self._append_row(file, append, n, answer, fails=False)

    @precondition(lambda self: self._deaths < _MOST_DEATHS)
    @rule(stream=_STREAMS, texts=_TEXTS, moment=_MOMENTS, statement=st.integers(1, 14))
    def die_while_appending(self, stream: str, texts: list[Any], moment: Any, statement: int) -> None:
        """Another process dies in its append: nothing of it is stored before the COMMIT, and all of it behind that."""
        self._deaths += 1
        self.work.count("deaths")
        appends, _ = self._new([(stream, texts, ("any", 0))], [])
        self._calls.append(appends)
        events = tuple(
            DoomedEvent(event.type, event.data, event.event_id, event.correlation_id) for event in appends[0].events
        )
        ended = self.undertaker.perform(Doom(str(self.stores.path), stream, events, statement, moment))
        agree("I9", "a process that was to die", ended in ("died", "answered"), True)
        if ended == "answered" or moment == "committed":
            self.reference.append(appends)
            self.home.run(answered(self.stores.memory.append_many(appends)))
        self._compare_ends()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(stream=_STREAMS, at=_NUMBERS, limit=_LIMITS, file=_FILE)
    def read(self, stream: str, at: int, limit: int | None, file: int) -> None:
        after = at % (self.reference.version(stream) + 2)
        expected = self.reference.read(stream, after, limit)
        self._compare_reads(file, lambda log: log.read(stream, after=after, limit=limit), expected)

    @rule(stream=_STREAMS, at=st.none() | _NUMBERS, limit=_LIMITS, file=_FILE)
    def read_back(self, stream: str, at: int | None, limit: int | None, file: int) -> None:
        before = None if at is None else at % (self.reference.version(stream) + 3)
        expected = self.reference.read_back(stream, before, limit)
        self._compare_reads(file, lambda log: log.read_back(stream, before=before, limit=limit), expected)

    @rule(
        at=_NUMBERS,
        limit=_LIMITS,
        types=st.sampled_from([None, ["noted"], ["row_written", "other"], []]),
        prefix=st.sampled_from([None, "a", "run:"]),
        file=_FILE,
    )
    def read_all(self, at: int, limit: int | None, types: list[str] | None, prefix: str | None, file: int) -> None:
        after = at % (len(self.reference.events) + 2)
        expected = self.reference.read_all(after, limit, types, prefix)
        bounds = {"after": after, "limit": limit, "types": types, "stream_prefix": prefix}
        self._compare_reads(file, lambda log: log.read_all(**bounds), expected)  # type: ignore[arg-type]

    @rule(stream=_STREAMS, which=_NUMBERS, file=_FILE)
    def look(self, stream: str, which: int, file: int) -> None:
        """The head of the log, one event by its id, and a stream with its version."""
        event_id = (which + 1).to_bytes(16, "big")
        expected = self.reference.by_id.get(event_id)

        async def look(log: RunLog) -> None:
            found = await log.find(event_id)
            agree("I1", "what is found by an id", None if found is None else kept(found), expected)
            agree("I1", "the position of the head", (await log.head()).position, len(self.reference.events))
            part = await log.read_stream(stream)
            agree("I1", f"the version of {stream}", part.version, self.reference.version(stream))
            agree("I1", f"the events of {stream}", list(map(kept, part.events)), self.reference.read(stream))

        self.home.run(self.stores.each(file, look))

    @rule(size=_NUMBERS, old=_NUMBERS, file=_FILE)
    def prove(self, size: int, old: int, file: int) -> None:
        size %= len(self.reference.events) + 1
        old %= size + 1

        async def prove(log: RunLog) -> None:
            leaves = [event.leaf async for event in log.read_all()]
            await check_tree(log, leaves, size, old)

        self.home.run(self.stores.each(file, prove))

    @rule(stream=_STREAMS, version=st.integers(0, 5), saves=st.booleans(), file=_FILE)
    def keep_a_snapshot(self, stream: str, version: int, saves: bool, file: int) -> None:
        state = f"{stream} {version} {self._ids}".encode()
        if saves:
            self.reference.save_snapshot(stream, version, state)
        expected = self.reference.snapshots.get(stream)

        async def keep(log: RunLog) -> None:
            if saves:
                await log.save_snapshot(stream, Snapshot(version, state))
            found = await log.load_snapshot(stream)
            agree("I1", f"the snapshot of {stream}", found, Snapshot(*expected) if expected else None)

        self.home.run(self.stores.each(file, keep))

    # ── subscriptions, and other lives of the log ────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self._feeds) < 2)
    @rule(at=_NUMBERS, file=_FILE)
    def subscribe(self, at: int, file: int) -> None:
        after = at % (len(self.reference.events) + 1)

        async def begin() -> None:
            feed = (await self.stores.file(file)).subscribe(after=after, marks=True)
            self._feeds.append((feed, file, after))

        self.home.run(begin())

    @precondition(lambda self: self._feeds)
    @rule(which=st.integers(0, 1))
    def follow(self, which: int) -> None:
        self.home.run(self._pull(which % len(self._feeds)))

    @precondition(lambda self: self._lives < _MOST_LIVES)
    @rule(file=_FILE)
    def reopen(self, file: int) -> None:
        self._lives += 1

        async def reopen() -> None:
            await self._close_feeds(file)
            await self.stores.reopen(file)

        self.home.run(reopen())
        self._compare_ends()

    async def _pull(self, number: int) -> None:
        """Take what is new from a subscription: each event once, in order, up to the end of the log."""
        feed, file, after = self._feeds[number]
        head = len(self.reference.events)
        events: list[Kept] = []
        while after + len(events) < head:
            item = await anext(feed)
            if isinstance(item, RecordedEvent):
                events.append(kept(item))
            elif isinstance(item, CaughtUp) and item.position > after + len(events):
                agree("I1", "the end of a subscription", item.position, after + len(events))
        agree("I1", "what a subscription gives", events, self.reference.read_all(after))
        self._feeds[number] = (feed, file, head)

    async def _close_feeds(self, of_file: int | None = None) -> None:
        for feed, file, _ in self._feeds:
            if of_file in (None, file):
                await feed.aclose()
        self._feeds = [each for each in self._feeds if of_file not in (None, each[1])]

    # ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _both(self, file: int, appends: list[Append], checks: list[Wanted]) -> None:
        expected = self.reference.append(appends, checks)
        self._compare(file, lambda log: log.append_many(appends, checks=checks), expected)

    def _compare(
        self, file: int, call: Callable[[RunLog], Awaitable[Sequence[AppendResult]]], expected: Answer
    ) -> None:
        for answer in self.home.run(self.stores.each(file, lambda log: answered(call(log)))):
            agree("I1", "the answer", answer, expected)

    def _compare_reads(self, file: int, read: Callable[[RunLog], Any], expected: list[Kept]) -> None:
        for events in self.home.run(self.stores.take(file, read)):
            agree("I1", "what was read", events, expected)

    def _compare_ends(self) -> None:
        for file in list(self.stores.files):
            for head in self.home.run(self.stores.each(file, lambda log: log.head())):
                agree("I1", "the position of the head", head.position, len(self.reference.events))

    def _append_row(self, file: int, append: Append, n: int, expected: Answer, *, fails: bool) -> None:
        (event,) = append.events

        def make(connection: Any) -> RowWritten:
            connection.execute("INSERT INTO rows_written VALUES (?)", (n,))
            if fails:
                raise ValueError("on purpose")
            return RowWritten(n)

        async def call() -> Answer:
            log = await self.stores.file(file)
            options: dict[str, Any] = {"expect": append.expect, "event_id": event.event_id}
            return await answered(log.append_with(append.stream, event.type, make, **options))

        agree("I6", "the answer to a row and an event", self.home.run(call()), expected)
        if not fails:
            in_memory = self.home.run(answered(self.stores.memory.append_many([append])))
            agree("I1", "the answer in memory", in_memory, expected)

    # ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _new(self, parts: Sequence[Any], checks: Sequence[Any]) -> Call:
        appends = [
            Append(stream, [self._new_event(text) for text in texts], self._expect(stream, expected))
            for stream, texts, expected in parts
        ]
        return appends, [(stream, self._expect(stream, expected)) for stream, expected in checks]

    def _new_event(self, text: object) -> NewEvent:
        self._ids += 1
        return new_event(self._ids, text, correlation_id="c" if self._ids % 3 == 0 else None)

    def _new_row(self, stream: str, expect: Expect) -> tuple[Append, int]:
        event = self._new_event("")
        return Append(
            stream, [replace(event, type="row_written", data={"n": self._ids}, correlation_id=None)], expect
        ), self._ids

    def _expect(self, stream: str, expected: tuple[str, int]) -> Expect:
        kind, off = expected
        plain = {"any": Expect.any, "no_stream": Expect.no_stream, "exists": Expect.exists}
        return plain[kind]() if kind in plain else Expect.at(max(0, self.reference.version(stream) + off))

    def _changed(self, appends: list[Append], change: str) -> list[Append]:
        first, *others = appends
        one, *more = first.events
        match change:
            case "expectation":
                return [replace(first, expect=Expect.at(77)), *others]
            case "text":
                return [replace(first, events=[replace(one, data={"text": "another"}), *more]), *others]
            case "type":
                return [replace(first, events=[replace(one, type="other"), *more]), *others]
            case "less":
                return [replace(first, events=[one])]
            case "more":
                return [replace(first, events=[*first.events, self._new_event("more")]), *others]
            case "stream":
                return [replace(first, stream="elsewhere"), *others]
            case "order":
                return appends[::-1]
            case _:
                return appends


def _as_first_time(answer: Answer) -> Answer:
    """Return the answer as if the call had not been carried out before: nobody knows whether it was."""
    return answer if isinstance(answer, Refusal) else [Place(*place[:4], False) for place in answer]

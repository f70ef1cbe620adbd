"""Conditional appends give the same answers as UmaDB, a server written for them, in random sequences of calls.

Each example is played to an empty log and to an empty server on the loopback interface. Compared are: stored or
refused, the positions, what a read returns and its head, and what a call that is repeated returns.

UmaDB recognises a repeated call only if its events have ids, it has a condition, and all of its own events match that;
the log does whenever the ids are the same. So what is repeated here has such a condition.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final, NamedTuple, Protocol
from uuid import UUID, uuid4

import pytest
import umadb
from eventsourcing.dcb.api import DCBAppendCondition, DCBEvent, DCBQuery, DCBQueryItem
from eventsourcing.persistence import IntegrityError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.dcb import LogDcbRecorder, matches
from tests.conformance.suites import Suite, suite

SERVER: Final = "from umadb.umadb_server_cli import main; main()"
PATIENCE_S: Final = 20.0
REFUSED: Final = "refused"


# ── What is played ───────────────────────────────────────────────────────────────────────────────────────────────────


class Append(NamedTuple):
    """Append these events under this condition."""

    events: list[DCBEvent]
    condition: DCBAppendCondition | None


class Repeat(NamedTuple):
    """Repeat one of the appends that can be repeated, the `number`th modulo how many there are."""

    number: int


class Read(NamedTuple):
    """Read what this query finds."""

    query: DCBQuery
    after: int | None
    limit: int | None


Step = Append | Repeat | Read

types = st.sampled_from(["opened", "changed", "closed"])
tags = st.lists(st.sampled_from(["x", "y", "z"]), max_size=2, unique=True)
events = st.builds(DCBEvent, types, st.binary(max_size=4), tags)
items = st.builds(DCBQueryItem, st.lists(types, max_size=2, unique=True), tags)
queries = st.builds(DCBQuery, st.lists(items, max_size=2))
positions = st.none() | st.integers(0, 12)
conditions = st.none() | st.builds(DCBAppendCondition, queries, positions)
appends = st.builds(Append, st.lists(events, min_size=1, max_size=3), conditions)
reads = st.builds(Read, queries, positions, st.none() | st.integers(0, 4))
steps: st.SearchStrategy[list[Step]] = st.lists(
    appends | st.builds(Repeat, st.integers(0, 5)) | reads, min_size=1, max_size=30
)


# ── Who plays it ─────────────────────────────────────────────────────────────────────────────────────────────────────

Answer = int | str | tuple[list[tuple[int, str, bytes, list[str]]], int | None]


class Player(Protocol):
    """Asks a store."""

    def append(self, append: Append, ids: Sequence[UUID]) -> Answer: ...

    def read(self, read: Read) -> Answer: ...


class LogPlayer:
    """Asks the log."""

    def __init__(self, recorder: LogDcbRecorder) -> None:
        self._recorder: Final = recorder

    def append(self, append: Append, ids: Sequence[UUID]) -> Answer:
        try:
            return self._recorder.append(append.events, append.condition, event_ids=ids)
        except IntegrityError:
            return REFUSED

    def read(self, read: Read) -> Answer:
        response = self._recorder.read(read.query, after=read.after, limit=read.limit)
        found = [(each.position, each.event.type, each.event.data, each.event.tags) for each in response]
        return found, response.head


class UmaDbPlayer:
    """Asks the server."""

    def __init__(self, client: umadb.Client) -> None:
        self._client: Final = client

    def append(self, append: Append, ids: Sequence[UUID]) -> Answer:
        events = [
            umadb.Event(event.type, event.data, event.tags, id) for event, id in zip(append.events, ids, strict=True)
        ]
        try:
            return self._client.append(events, _condition(append.condition))
        except umadb.IntegrityError:
            return REFUSED

    def read(self, read: Read) -> Answer:
        start = None if read.after is None else read.after + 1
        found, head = self._client.read(_query(read.query), start=start, limit=read.limit).collect_with_head()
        return [(each.position, each.event.event_type, each.event.data, each.event.tags) for each in found], head


def _condition(condition: DCBAppendCondition | None) -> umadb.AppendCondition | None:
    if condition is None:
        return None
    return umadb.AppendCondition(_query(condition.fail_if_events_match), condition.after)


def _query(query: DCBQuery) -> umadb.Query:
    return umadb.Query([umadb.QueryItem(item.types, item.tags) for item in query.items])


def compare(log: Player, oracle: Player, steps: Sequence[Step]) -> None:
    """Play steps to both and assert that they answer alike."""
    repeatable: list[tuple[Append, list[UUID]]] = []
    for step in steps:
        match step:
            case Append():
                ids = [uuid4() for _ in step.events]
                answer = oracle.append(step, ids)
                assert log.append(step, ids) == answer, step
                if _refuses_itself(step, answer):
                    repeatable.append((step, ids))
            case Repeat(number=number):
                if repeatable:
                    append, ids = repeatable[number % len(repeatable)]
                    assert log.append(append, ids) == oracle.append(append, ids), append
            case Read():
                assert log.read(step) == oracle.read(step), step


def _refuses_itself(append: Append, answer: Answer) -> bool:
    """Say whether this call was stored, and its condition would refuse it now because of every one of its events."""
    if append.condition is None or not isinstance(answer, int):
        return False
    query, after = append.condition.fail_if_events_match, append.condition.after or 0
    first = answer - len(append.events) + 1
    return all(number > after and matches(query, event) for number, event in enumerate(append.events, first))


def play(steps: Sequence[Step]) -> None:
    """Play steps to an empty log and an empty server."""
    with (
        TemporaryDirectory() as folder,
        umadb_server(Path(folder)) as client,
        closing(LogDcbRecorder(Path(folder) / "log.db")) as recorder,
    ):
        compare(LogPlayer(recorder), UmaDbPlayer(client), steps)


# ── The server ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def umadb_server(folder: Path) -> Iterator[umadb.Client]:
    """Run a server on an empty database and a free port, and give a client of it."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-c", SERVER, "--listen", address, "--db-path", str(folder / "uma.db")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with _connected(f"http://{address}", server) as client:
            yield client
    finally:
        server.terminate()
        try:
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _connected(url: str, server: subprocess.Popen[bytes]) -> umadb.Client:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            client = umadb.Client(url)
            client.head()
            return client
        except umadb.TransportError:
            assert server.poll() is None, "the server ended before it answered"
            assert time.monotonic() < end_s, "the server does not answer"
            time.sleep(0.01)


# ── The tests ────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestConditionalAppends:
    suite: ClassVar[Suite] = suite("differential test of conditional appends")

    @settings(max_examples=25, deadline=None, database=None)
    @given(steps)
    def test_conditional_appends_are_answered_as_umadb_answers_them(self, steps: list[Step]) -> None:
        play(steps)


@pytest.mark.long
@pytest.mark.timeout(900)
@settings(max_examples=1_000, deadline=None, database=None)
@given(steps)
def test_many_more_conditional_appends_are_answered_as_umadb_answers_them(steps: list[Step]) -> None:
    play(steps)


EVERYTHING: Final = DCBQuery()
OPENED: Final = DCBQuery([DCBQueryItem(["opened"])])
OPEN_ONCE: Final = Append([DCBEvent("opened", b"")], DCBAppendCondition(OPENED))


def test_a_call_that_is_repeated_returns_what_it_returned() -> None:
    play([OPEN_ONCE, Append([DCBEvent("changed", b"", ["x"])], None), Repeat(0), Read(EVERYTHING, None, None)])


class Careless(LogPlayer):
    """Appends whatever the condition says."""

    def append(self, append: Append, ids: Sequence[UUID]) -> Answer:
        return super().append(Append(append.events, None), ids)


def test_a_log_that_ignored_conditions_would_be_found_out(tmp_path: Path) -> None:
    with (
        umadb_server(tmp_path) as client,
        closing(LogDcbRecorder(tmp_path / "log.db")) as recorder,
        pytest.raises(AssertionError),
    ):
        compare(Careless(recorder), UmaDbPlayer(client), [OPEN_ONCE, OPEN_ONCE])

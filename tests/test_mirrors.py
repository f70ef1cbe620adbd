"""Transcripts: never ahead of the log, brought up from it after whatever has happened, and never a failed append."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.errors import EventLogError, InvalidInput, MirrorBehind, MirrorDamaged, StoreUnavailable
from eventlog.log import Append, Expect, NewEvent, RunLog, TransactionalLog
from eventlog.progress import requests_of
from eventlog.proposal import propose
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.testing.log_contract import assert_sound
from projections.mirrors import Begun, Mirror, MirroredLog, TranscriptMirror, mirrored
from projections.mirrors.transcript_lines import line_of, read_line
from projections.mirrors.transcript_names import file_name, stream_of
from tests import mirror_scenarios
from tests.mirror_scenarios import (
    STREAM,
    WINDOWS,
    EarlyMirror,
    ForgetfulMirror,
    faults_in,
    note,
    runner_of,
    telling,
    transcript,
)
from tests.needs import need, need_command
from tools.campaigns.processes import child
from tools.campaigns.storage.libc_faults import build_shim, shim_environment
from tools.campaigns.storage.log_files import open_file

ANY = Expect.any()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "transcripts"


@pytest.fixture
def mirror(folder: Path) -> TranscriptMirror:
    return TranscriptMirror(folder, streams="")


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, path: Path, mirror: TranscriptMirror) -> AsyncIterator[MirroredLog]:
    """A log with transcripts of all streams, which are compared with it in the end."""
    inner = eventlog.open("memory:" if request.param == "memory" else path)
    async with mirrored(inner, mirror) as log:
        yield log
        await assert_sound(log)
        assert await faults_in(log, Path(mirror.path("")).parent) == []


@asynccontextmanager
async def opened(path: Path, mirror: Mirror) -> AsyncIterator[MirroredLog]:
    async with mirrored(open_file(path), mirror) as log:
        yield log


async def write(path: Path, mirror: Mirror, count: int = 3) -> None:
    """Append notes one by one."""
    async with opened(path, mirror) as log:
        for number in range(count):
            await log.append(STREAM, [note(number)], expect=Expect.at(number))


def evidence_in(folder: Path) -> list[Path]:
    return [found for found in folder.iterdir() if ".prepared" in found.name]


def code_of(error: BaseException) -> str:
    assert isinstance(error, EventLogError)
    return error.code


class TestAppending:
    async def test_each_append_is_in_the_transcript_when_it_returns(
        self, log: MirroredLog, mirror: TranscriptMirror, folder: Path
    ) -> None:
        for number in range(3):
            await log.append("notes", [note(number), note(number)], expect=Expect.at(2 * number))
            assert [line["version"] for line in transcript(mirror.path("notes"))] == list(range(1, 2 * number + 3))
        assert evidence_in(folder) == []

    async def test_a_line_says_what_the_event_says(self, log: MirroredLog, mirror: TranscriptMirror) -> None:
        data = {"a\x00": "b\x00", "big": 2**200, "text": "é\u202e\u2028\n😀", "deep": [[None, True, 1.5]]}
        event = NewEvent("noted", data, correlation_id="why", causation_id=b"c" * 16)
        await log.append("notes", [event], expect=ANY, actor="ann")
        (line,) = transcript(mirror.path("notes"))
        (stored,) = [each async for each in log.read("notes")]
        assert line["data"] == data
        assert (line["actor"], line["correlation_id"], line["causation_id"]) == ("ann", "why", (b"c" * 16).hex())
        assert line["recorded_at"].endswith("Z")
        assert line["leaf"] == stored.leaf.hex()

    async def test_an_append_over_several_streams_is_in_all_transcripts(
        self, log: MirroredLog, mirror: TranscriptMirror
    ) -> None:
        await log.append_many([Append("a", [note(1)], ANY), Append("b", [note(2), note(3)], ANY)])
        assert [len(transcript(mirror.path(stream))) for stream in ("a", "b")] == [1, 2]

    async def test_only_the_streams_that_are_wanted_are_mirrored(self, path: Path, folder: Path) -> None:
        async with opened(path, TranscriptMirror(folder)) as log:
            await log.append("notes", [note()], expect=ANY)
            await log.append_reserved([Append("run:a", [note()], ANY), Append("$own", [note()], ANY)])
        assert [found.name for found in folder.glob("*.jsonl")] == ["run%3aa.jsonl"]

    async def test_what_is_not_through_the_mirror_gets_there_with_the_next_append(
        self, log: MirroredLog, mirror: TranscriptMirror
    ) -> None:
        await log.append("notes", [note(1)], expect=ANY)
        await log.log.append("notes", [note(2), note(3)], expect=ANY)
        assert len(transcript(mirror.path("notes"))) == 1
        await log.append("notes", [note(4)], expect=ANY)
        assert [line["data"]["n"] for line in transcript(mirror.path("notes"))] == [1, 2, 3, 4]

    async def test_more_than_fits_into_memory_at_once_is_written_in_pieces(
        self, log: MirroredLog, mirror: TranscriptMirror
    ) -> None:
        await log.append("notes", [note(number, 300_000) for number in range(12)], expect=ANY)
        await log.append("notes", [note(12)], expect=ANY)
        assert [line["data"]["n"] for line in transcript(mirror.path("notes"))] == list(range(13))

    async def test_tasks_on_one_stream_and_on_many_leave_no_gap_and_no_double(self, log: MirroredLog) -> None:
        async def work(number: int) -> None:
            for turn in range(3):
                await log.append(f"s{(number + turn) % 3}", [note(number), note(turn)], expect=ANY)

        await asyncio.gather(*map(work, range(30)))
        assert (await log.head()).position == 180

    async def test_a_mirrored_log_is_a_transactional_log_where_its_log_is_one(self, log: MirroredLog) -> None:
        assert isinstance(log, TransactionalLog) == isinstance(log.log, TransactionalLog)

    def test_what_is_handed_on_is_what_the_contract_asks_for(self) -> None:
        for name, member in inspect.getmembers(RunLog, inspect.isfunction):
            if not name.startswith("_"):
                own = inspect.signature(getattr(MirroredLog, name))
                assert own.parameters == inspect.signature(member).parameters, name

    @pytest.mark.parametrize(
        ("refused", "code"),
        [
            (lambda log: log.append("notes", [note()], expect=Expect.at(7)), "version_conflict"),
            (lambda log: log.append("notes", [NewEvent("noted", float("nan"))], expect=ANY), "non_finite_number"),
            (lambda log: log.append("run:x", [note()], expect=ANY), "reserved_stream"),
            (lambda log: log.append("a\x00b", [note()], expect=ANY), "invalid_id"),
            (lambda log: log.append("notes", [], expect=ANY), "invalid_argument"),
            (
                lambda log: log.append_many([Append("new", [note()], ANY)], checks=[("a", Expect.at(3))]),
                "version_conflict",
            ),
            (lambda log: log.append_many("notes"), "invalid_argument"),
        ],
        ids=["version", "data", "reserved", "name", "nothing", "a check", "no append"],
    )
    async def test_an_append_that_is_refused_leaves_nothing(
        self, log: MirroredLog, folder: Path, refused: Callable[[MirroredLog], Any], code: str
    ) -> None:
        await log.append("other", [note()], expect=ANY)
        before = sorted(found.name for found in folder.iterdir())
        with pytest.raises(EventLogError) as caught:
            await refused(log)
        assert caught.value.code == code
        assert sorted(found.name for found in folder.iterdir()) == before
        assert log.behind() == []

    async def test_a_cancelled_append_is_told_nothing_and_its_mirror_is_whole(self, log: MirroredLog) -> None:
        events = [[note(number)] for number in range(25)]
        for number, each in enumerate(events):
            task = asyncio.create_task(log.append("notes", each, expect=ANY))
            await asyncio.sleep(number / 4000)
            task.cancel()
            await asyncio.wait({task})
        for each in events:
            await log.append("notes", each, expect=ANY)
        assert (await log.read_stream("notes")).version == 25

    async def test_closing_waits_for_what_cancelled_callers_have_begun(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        async with opened(path, mirror) as log:
            tasks = [asyncio.create_task(log.append("notes", [note(n)], expect=ANY)) for n in range(20)]
            await asyncio.sleep(0.003)
            for task in tasks:
                task.cancel()
        async with open_file(path) as plain:
            assert await faults_in(plain, folder) == []


HOSTILE = [
    "run:../../x",
    "run:/etc/passwd",
    "run:.",
    "run:..",
    "..",
    ".",
    "CON",
    "con",
    "nul",
    "com1",
    "mirror.json",
    "a.jsonl",
    "A.JSONL",
    "x.",
    "x..",
    "a b",
    "a%2e",
    "a~b",
    "é",
    "e\u0301",
    "ß",
    "SS",
    "ＲＵＮ:x",
    "😀" * 128,
    "a" * 512,
    "a" * 511 + "b",
    "A" * 512,
    "-rf",
    "--",
    "$(rm)",
    "`x`",
    "*",
    "x\\y",
    "c:\\x",
    '"quoted"',
    "notes.1.replaced",
    "x.prepared",
]


class TestNames:
    def test_no_two_streams_share_a_file_on_any_file_system(self) -> None:
        names = [file_name(stream) for stream in HOSTILE]
        assert len({unicodedata.normalize("NFKC", name).casefold() for name in names}) == len(HOSTILE)

    @pytest.mark.parametrize("stream", HOSTILE, ids=range(len(HOSTILE)))
    def test_a_name_is_safe(self, stream: str) -> None:
        name = file_name(stream)
        stem = name.removesuffix(".jsonl")
        assert name.isascii() and len(name) < 200 and name == name.lower()
        assert not set(stem) - set("abcdefghijklmnopqrstuvwxyz0123456789_-%~")
        assert stem not in ("con", "nul", "com1")
        assert stream_of(name) == (None if "~" in name else stream)

    async def test_each_has_its_transcript(self, log: MirroredLog, mirror: TranscriptMirror, folder: Path) -> None:
        for number, stream in enumerate(HOSTILE):
            await log.append_reserved([Append(stream, [note(number)], Expect.no_stream())])
        assert len(list(folder.glob("*.jsonl"))) == len(HOSTILE)
        for number, stream in enumerate(HOSTILE):
            assert [line["data"]["n"] for line in transcript(mirror.path(stream))] == [number]
        assert {found.parent for found in folder.rglob("*")} == {folder}


class TestStarting:
    async def test_what_was_appended_without_the_mirror_is_brought_up(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        await write(path, mirror)
        async with open_file(path) as plain:
            await plain.append(STREAM, [note(3)], expect=ANY)
            await plain.append("new", [note(4)], expect=ANY)
        async with opened(path, TranscriptMirror(folder, streams="")) as log:
            assert await faults_in(log, folder) == []

    async def test_a_log_that_had_no_mirror_gets_one(self, path: Path, folder: Path) -> None:
        async with open_file(path) as plain:
            for number in range(30):
                await plain.append(f"s{number % 4}", [note(number)] * 1, expect=ANY)
            done = await TranscriptMirror(folder, streams="").repair(plain)
            assert [(each.was, each.lines) for each in done] == [
                ("behind", 8),
                ("behind", 8),
                ("behind", 7),
                ("behind", 7),
            ]
            assert await faults_in(plain, folder) == []

    @pytest.mark.parametrize("cut", [1, 2, 60, 500])
    async def test_a_torn_line_is_cut_and_written_again(
        self, path: Path, mirror: TranscriptMirror, folder: Path, cut: int
    ) -> None:
        await write(path, mirror)
        file = Path(mirror.path(STREAM))
        file.write_bytes(file.read_bytes()[:-cut])
        async with opened(path, TranscriptMirror(folder, streams="")) as log:
            assert await faults_in(log, folder) == []

    async def test_a_first_line_that_was_torn_is_found_by_its_stream(self, path: Path, folder: Path) -> None:
        stream = "long" * 100
        async with opened(path, TranscriptMirror(folder, streams="")) as log:
            await log.append("other", [note()], expect=ANY)
        async with open_file(path) as plain:
            await plain.append(stream, [note()], expect=ANY)
        (folder / file_name(stream)).write_bytes(b'{"position":2,')
        async with opened(path, TranscriptMirror(folder, streams="")) as log:
            assert await faults_in(log, folder) == []

    async def test_a_file_that_does_not_say_whose_it_is_is_damage(self, path: Path, folder: Path) -> None:
        await write(path, TranscriptMirror(folder, streams=""))
        lost = folder / file_name("long" * 100)
        lost.write_bytes(b"hello\n")
        async with open_file(path) as plain:
            again = TranscriptMirror(folder, streams="")
            with pytest.raises(MirrorDamaged, match="of which stream"):
                await again.repair(plain)
            await again.repair(plain, force=True)
            assert not lost.exists()
            assert await faults_in(plain, folder) == []

    async def test_what_a_rebuild_has_left_that_was_killed_is_taken_away(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        await write(path, mirror)
        (folder / f"{file_name(STREAM)}.1-1.tmp").write_bytes(b"half")
        async with opened(path, mirror) as log:
            assert await faults_in(log, folder) == []

    async def test_a_transcript_is_built_again_by_one_call(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        await write(path, mirror)
        before = Path(mirror.path(STREAM)).read_bytes()
        async with opened(path, mirror) as log:
            rebuilt = await mirror.rebuild(log, STREAM)
            assert (rebuilt.was, rebuilt.lines) == ("rebuilt", 3)
            assert Path(rebuilt.replaced or "").read_bytes() == Path(mirror.path(STREAM)).read_bytes() == before
            await log.append(STREAM, [note(3)], expect=ANY)
            assert await faults_in(log, folder) == []

    async def test_a_transcript_that_is_gone_is_found_missing_by_the_next_append(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        await write(path, mirror)
        async with opened(path, mirror) as log:
            Path(mirror.path(STREAM)).unlink()
            await log.append(STREAM, [note(3)], expect=ANY)
            assert await faults_in(log, folder) == []

    @pytest.mark.parametrize(
        "edit",
        [
            lambda text: text.replace(b'"n":1', b'"n":7'),
            lambda text: b"".join(text.splitlines(keepends=True)[1:]),
            lambda text: b"".join(text.splitlines(keepends=True)[::-1]),
            lambda text: text + text.splitlines(keepends=True)[-1],
            lambda text: b"\n" + text,
            lambda text: b"hello\n",
            lambda text: text.replace(b'"actor"', b'"Actor"', 1),
        ],
        ids=["a value", "a line gone", "another order", "a line twice", "an empty line", "another text", "a key"],
    )
    async def test_a_transcript_that_somebody_edited_is_refused_and_left_as_it_is(
        self, path: Path, mirror: TranscriptMirror, folder: Path, edit: Callable[[bytes], bytes]
    ) -> None:
        await write(path, mirror)
        async with opened(path, mirror) as log:
            await log.append("other", [note()], expect=ANY)
        file = Path(mirror.path(STREAM))
        edited = edit(file.read_bytes())
        file.write_bytes(edited)
        again = TranscriptMirror(folder, streams="")
        for _ in range(2):
            with pytest.raises(MirrorDamaged) as caught:
                async with opened(path, again):
                    pytest.fail("it was taken")
            assert caught.value.code in ("mirror_damaged", "mirror_ahead")
            assert (caught.value.path, caught.value.stream) == (str(file), STREAM)
            assert file.read_bytes() == edited
        async with open_file(path) as plain:
            (repaired,) = await again.repair(plain, force=True)
            assert (repaired.was, repaired.lines) == ("rebuilt", 3)
            assert Path(repaired.replaced or "").read_bytes() == edited
            assert await faults_in(plain, folder) == []
        async with opened(path, again):
            pass

    async def test_a_line_with_a_sum_of_its_own_is_not_the_logs(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        await write(path, mirror)
        async with open_file(path) as plain:
            event = [each async for each in plain.read(STREAM)][1]
        forged = line_of(eventlog.RecordedEvent(**{**_fields(event), "leaf": b"f" * 32})).text
        lines = Path(mirror.path(STREAM)).read_bytes().splitlines(keepends=True)
        assert read_line(forged[:-1]) is not None
        Path(mirror.path(STREAM)).write_bytes(b"".join([lines[0], forged, lines[2]]))
        with pytest.raises(MirrorDamaged, match="another event"):
            async with opened(path, TranscriptMirror(folder, streams="")):
                pytest.fail("it was taken")

    async def test_an_older_log_put_underneath_is_seen(
        self, path: Path, mirror: TranscriptMirror, folder: Path, tmp_path: Path
    ) -> None:
        await write(path, mirror, 2)
        async with open_file(path) as plain:
            await plain.backup(tmp_path / "older.db")
        async with opened(path, mirror) as log:
            await log.append(STREAM, [note(2)], expect=ANY)
        before = Path(mirror.path(STREAM)).read_bytes()
        with pytest.raises(MirrorDamaged) as caught:
            async with opened(tmp_path / "older.db", TranscriptMirror(folder, streams="")):
                pytest.fail("it was taken")
        assert caught.value.code == "mirror_ahead"
        async with open_file(tmp_path / "older.db") as plain:  # which goes on, and overtakes
            await plain.append(STREAM, [note(7), note(8)], expect=ANY)
            await plain.append("beside", [note(9)], expect=ANY)
        with pytest.raises(MirrorDamaged) as caught:
            async with opened(tmp_path / "older.db", TranscriptMirror(folder, streams="")):
                pytest.fail("it was taken")
        assert caught.value.code == "mirror_damaged"
        assert Path(mirror.path(STREAM)).read_bytes() == before
        async with open_file(tmp_path / "older.db") as plain:
            await TranscriptMirror(folder, streams="").repair(plain, force=True)
            assert await faults_in(plain, folder) == []

    async def test_the_folder_of_another_log_is_refused(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        await write(path, mirror)
        with pytest.raises(MirrorDamaged, match="of the store"):
            async with mirrored(eventlog.open("memory:"), TranscriptMirror(folder, streams="")):
                pytest.fail("it was taken")

    async def test_what_the_log_cannot_read_is_behind_and_stops_nothing_else(self, path: Path, folder: Path) -> None:
        async with open_file(path) as plain:
            await plain.append(STREAM, [NewEvent("eventlog_test_mirror_bad", {"a": 1})], expect=ANY)
            await plain.append("other", [note()], expect=ANY)
        registry = eventlog.Registry()
        _register_bad(registry)
        log = mirrored(open_file(path, registry=registry), TranscriptMirror(folder, streams=""))
        with pytest.raises(MirrorBehind):
            async with log:
                assert [each.stream for each in log.behind()] == [STREAM]
                await log.append("other", [note()], expect=ANY)
        async with opened(path, TranscriptMirror(folder, streams="")) as again:
            assert await faults_in(again, folder) == []


def _fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def _register_bad(registry: Any) -> None:
    import msgspec

    class Bad(msgspec.Struct, frozen=True):
        b: int

    registry.register(Bad, "eventlog_test_mirror_bad")


class BreakableMirror(TranscriptMirror):
    """Fails where a test says so, as a disk would."""

    fails_at = ""

    async def prepare(self, appends: Any) -> Any:
        if self.fails_at == "prepare":
            raise StoreUnavailable("mirror_unavailable", "it cannot be written")
        return await super().prepare(appends)

    async def settle(self, log: RunLog, stream: str) -> None:
        if self.fails_at == "settle":
            raise StoreUnavailable("mirror_unavailable", "it cannot be written")
        await super().settle(log, stream)


@pytest.fixture(params=["memory", "sqlite"])
async def broken(
    request: pytest.FixtureRequest, path: Path, folder: Path
) -> AsyncIterator[tuple[MirroredLog, BreakableMirror]]:
    mirror = BreakableMirror(folder, streams="")
    async with mirrored(eventlog.open("memory:" if request.param == "memory" else path), mirror) as log:
        yield log, mirror
        mirror.fails_at = ""
        for error in log.behind():
            await log.append_reserved([Append(error.stream, [note()], ANY)])
        assert await faults_in(log, folder) == []


class TestFailing:
    async def test_a_mirror_that_cannot_be_written_refuses_in_front_of_the_log(
        self, broken: tuple[MirroredLog, BreakableMirror]
    ) -> None:
        log, mirror = broken
        mirror.fails_at = "prepare"
        for refused in (
            lambda: log.append("notes", [note()], expect=ANY),
            lambda: log.append_many([Append("notes", [note()], ANY)]),
            lambda: log.append_reserved([Append("run:x", [note()], ANY)]),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                await refused()
            assert caught.value.code == "mirror_unavailable"
        assert (await log.head()).position == 0

    async def test_one_that_fails_behind_the_commit_is_no_failed_append(
        self, broken: tuple[MirroredLog, BreakableMirror]
    ) -> None:
        log, mirror = broken
        await log.append("notes", [note(0)], expect=ANY)
        mirror.fails_at = "settle"
        events = [note(1), note(2)]
        with pytest.raises(MirrorBehind) as caught:
            await log.append("notes", events, expect=Expect.at(1))
        error = caught.value
        assert (error.code, error.stream, error.version, error.mirrored) == ("mirror_behind", "notes", 3, 1)
        assert [(each.version, each.deduplicated) for each in error.results] == [(3, False)]
        assert isinstance(error.__cause__, StoreUnavailable)
        assert (await log.read_stream("notes")).version == 3
        with pytest.raises(MirrorBehind):
            log.require_current()
        with pytest.raises(MirrorBehind) as caught:
            await log.append("notes", events, expect=Expect.at(1))
        assert [each.deduplicated for each in caught.value.results] == [True]
        mirror.fails_at = ""
        assert (await log.append("notes", events, expect=Expect.at(1))).deduplicated
        log.require_current()
        assert len(transcript(mirror.path("notes"))) == 3

    async def test_the_engines_own_door_gets_its_results(self, broken: tuple[MirroredLog, BreakableMirror]) -> None:
        log, mirror = broken
        mirror.fails_at = "settle"
        (result,) = await log.append_reserved([Append("run:x", [note()], ANY)])
        assert result.version == 1
        assert [(each.stream, each.version, each.mirrored) for each in log.behind()] == [("run:x", 1, 0)]
        mirror.fails_at = ""
        await log.append("other", [note()], expect=ANY)  # brings up what is behind beside it
        assert log.behind() == []
        assert len(transcript(mirror.path("run:x"))) == 1

    async def test_leaving_tries_once_more_and_says_so_if_it_still_fails(self, path: Path, folder: Path) -> None:
        mirror = BreakableMirror(folder, streams="")
        with pytest.raises(MirrorBehind):
            async with opened(path, mirror) as log:
                mirror.fails_at = "settle"
                await log.append_reserved([Append("run:x", [note()], ANY)])
        assert len(evidence_in(folder)) == 1
        with pytest.raises(ZeroDivisionError):  # which counts more
            mirror.fails_at = ""
            async with opened(path, mirror) as log:
                mirror.fails_at = "settle"
                await log.append_reserved([Append("run:x", [note()], ANY)])
                raise ZeroDivisionError
        mirror.fails_at = ""
        async with opened(path, mirror) as log:
            mirror.fails_at = "settle"
            await log.append_reserved([Append("run:x", [note()], ANY)])
            mirror.fails_at = ""
        async with open_file(path) as plain:
            assert await faults_in(plain, folder) == []

    async def test_a_run_goes_on_when_its_mirror_breaks_within_an_effect(self, path: Path, folder: Path) -> None:
        mirror = BreakableMirror(folder)

        @eventlog.action("break", promise="opaque")
        async def break_mirror(call: eventlog.Call) -> Any:
            mirror.fails_at = "prepare"
            return {"broken": True}

        async with opened(path, mirror) as log:
            runner = eventlog.Runner(log, actions=[break_mirror])
            proposal = propose("break", {}, "mirror")
            outcome = await runner.propose("run-1", proposal)
            await runner.approve("run-1", outcome.requests[0].proposal_hash or "")
            assert (await runner.resume("run-1")).status == "COMPLETED"
            with pytest.raises(StoreUnavailable) as caught:
                await runner.propose("run-2", proposal)
            assert caught.value.code == "mirror_unavailable"
            mirror.fails_at = ""
            await runner.propose("run-2", proposal)
        async with open_file(path) as plain:
            assert await faults_in(plain, folder, "run:") == []

    @pytest.mark.parametrize(
        "how", ["a file in its place", "a folder as transcript", "a link as transcript", "no room"]
    )
    async def test_what_stands_in_the_way_is_named_and_left_alone(
        self, path: Path, folder: Path, tmp_path: Path, how: str
    ) -> None:
        mirror = TranscriptMirror(folder, streams="", room_bytes=1 << 60 if how == "no room" else 0)
        victim = tmp_path / "victim"
        victim.write_text("mine")
        async with opened(path, mirror) as log:
            if how == "a file in its place":
                (folder / "mirror.json").unlink()
                folder.rmdir()
                folder.write_text("mine")
            elif how == "a folder as transcript":
                Path(mirror.path("notes")).mkdir()
            elif how == "a link as transcript":
                Path(mirror.path("notes")).symlink_to(victim)
            with pytest.raises(StoreUnavailable) as caught:
                await log.append("notes", [note()], expect=ANY)
            assert caught.value.code == "mirror_unavailable"
            assert str(folder) in str(caught.value)
            assert (await log.head()).position == 0
        assert victim.read_text() == "mine"


class TestRuns:
    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    async def test_a_real_run_has_its_transcript_at_every_pause(
        self, path: Path, folder: Path, tmp_path: Path, kind: str
    ) -> None:
        mirror = TranscriptMirror(folder)
        async with mirrored(eventlog.open("memory:" if kind == "memory" else path), mirror) as log:
            runner = runner_of(log)
            outcome = await runner.start(telling, "run-1", "smoke", str(tmp_path / "told"))
            assert await faults_in(log, folder, "run:") == []
            await runner.approve("run-1", outcome.requests[0].proposal_hash or "", actor="ann")
            assert await faults_in(log, folder, "run:") == []
            assert (await runner.resume("run-1")).status == "COMPLETED"
            assert await faults_in(log, folder, "run:") == []
            lines = transcript(mirror.path("run:run-1"))
        assert [line["actor"] for line in lines if line["type"] == "approval_recorded"] == ["ann"]
        assert lines[-1]["type"] == "run_completed"
        assert len((tmp_path / "told").read_text().splitlines()) == 1

    @pytest.mark.processes
    @pytest.mark.parametrize(("window", "left"), [("committed", 2), ("written", 4), ("torn", 5), ("prepared", 6)])
    async def test_a_run_whose_process_dies_at_its_mirror_goes_on_in_another(
        self, path: Path, folder: Path, tmp_path: Path, window: str, left: int
    ) -> None:
        told = tmp_path / "told"
        done = child.run(mirror_scenarios.runs_and_dies, path, folder, told, window, left)
        assert done.returncode in (-signal.SIGKILL, -signal.SIGXFSZ), done.stderr
        async with opened(path, TranscriptMirror(folder)) as log:
            assert await faults_in(log, folder, "run:") == []
            runner = runner_of(log)
            for request in requests_of(await runner.state("run-1")):
                if request.status == "WAITING_FOR_USER":
                    await runner.approve("run-1", request.proposal_hash or "")
            outcome = await runner.resume("run-1")
            if outcome.requests:
                await runner.approve("run-1", outcome.requests[0].proposal_hash or "")
                outcome = await runner.resume("run-1")
            assert outcome.status in ("COMPLETED", "OUTCOME_UNKNOWN")
            assert await faults_in(log, folder, "run:") == []
        assert not told.exists() or len(told.read_text().splitlines()) == 1


@pytest.mark.processes
class TestCrashes:
    @pytest.mark.parametrize("window", WINDOWS)
    async def test_a_crash_between_the_two_facts_is_settled_at_the_next_start(
        self, path: Path, folder: Path, window: str
    ) -> None:
        done = child.run(mirror_scenarios.appends_and_dies, path, folder, window)
        assert "ARMED" in done.stdout, done.stderr
        assert done.returncode == (-signal.SIGXFSZ if window == "torn" else -signal.SIGKILL), done.stderr
        async with open_file(path) as plain:
            before = await faults_in(plain, folder)
            assert before, "the crash has left something"
            assert not any("not in the log" in fault for fault in before), "never ahead"
            assert ("torn" in str(before)) == (window == "torn")
            assert (await plain.read_stream(STREAM)).version == (2 if window == "prepared" else 3)
        (evidence,) = evidence_in(folder)
        begun = json.loads(evidence.read_bytes())["appends"]
        assert [(each["stream"], each["expect"], len(each["event_ids"])) for each in begun] == [
            (STREAM, "at version 2", 1)
        ]
        async with opened(path, TranscriptMirror(folder, streams="")) as log:
            assert await faults_in(log, folder) == []
            await log.append(STREAM, [note(9)], expect=ANY)
            assert await faults_in(log, folder) == []

    async def test_what_a_lost_power_may_leave_behind_evidence_is_written_again(self, path: Path, folder: Path) -> None:
        child.run(mirror_scenarios.appends_and_dies, path, folder, "committed")
        file = folder / file_name(STREAM)
        file.write_bytes(file.read_bytes() + bytes(100) + b"\n" + bytes(50))
        async with opened(path, TranscriptMirror(folder, streams="")) as log:
            assert await faults_in(log, folder) == []

    async def test_the_same_in_front_of_what_was_acknowledged_is_damage(self, path: Path, folder: Path) -> None:
        child.run(mirror_scenarios.appends_and_dies, path, folder, "committed")
        file = folder / file_name(STREAM)
        data = file.read_bytes()
        file.write_bytes(data[:100] + bytes(20) + data[120:])
        with pytest.raises(MirrorDamaged):
            async with opened(path, TranscriptMirror(folder, streams="")):
                pytest.fail("it was taken")

    async def test_evidence_of_a_process_that_lives_is_left_to_it(
        self, path: Path, mirror: TranscriptMirror, folder: Path
    ) -> None:
        async with opened(path, mirror):
            evidence = await mirror.prepare([Begun(stream="a", expect="any", event_ids=[], events=1)])
            async with opened(path, TranscriptMirror(folder, streams="")):
                assert len(evidence_in(folder)) == 1
            await mirror.release(evidence)
        assert evidence_in(folder) == []

    async def test_a_mirror_that_writes_in_front_of_the_commit_is_caught(self, path: Path, folder: Path) -> None:
        """Negative control of "never ahead"."""
        child.run(mirror_scenarios.appends_and_dies, path, folder, "prepared", EarlyMirror.__name__)
        async with open_file(path) as plain:
            assert any("not in the log" in fault for fault in await faults_in(plain, folder))

    async def test_a_mirror_that_does_not_look_at_the_start_is_caught(self, path: Path, folder: Path) -> None:
        """Negative control of the repair."""
        child.run(mirror_scenarios.appends_and_dies, path, folder, "committed")
        async with opened(path, ForgetfulMirror(folder, streams="")) as log:
            faults = await faults_in(log, folder)
        assert any("missing" in fault for fault in faults)
        assert any("left over" in fault for fault in faults)


@pytest.mark.processes
class TestProcesses:
    async def test_two_processes_write_each_line_once(self, path: Path, folder: Path) -> None:
        children = [
            child.start(mirror_scenarios.appends_at_the_same_time, path, folder, name, 10) for name in ("a", "b")
        ]
        for each in children:
            assert each.stdout is not None
            assert each.stdout.readline() == "READY\n"
        for each in children:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        for each in children:
            out, err = await asyncio.to_thread(each.communicate, timeout=60)
            assert each.returncode == 0, err
            assert "RESULT 40" in out
        async with open_file(path) as plain:
            assert (await plain.head()).position == 80
            assert await faults_in(plain, folder) == []


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    return build_shim(tmp_path_factory.mktemp("shim"), need_command("gcc"))


@pytest.fixture
def under_faults(shim: Path, tmp_path: Path) -> Callable[..., child.Done]:
    """Runs a scenario in a child whose system calls can be made to fail or to kill it."""

    def run(scenario: Callable[..., Any], *args: object) -> child.Done:
        return child.run(scenario, *args, env=shim_environment(shim, tmp_path / "faults"))

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs Linux and the right to do so")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def _mount(options: str, place: Path) -> None:
    process = await asyncio.create_subprocess_exec("mount", "-o", options, str(place))
    assert await process.wait() == 0


@pytest.mark.processes
class TestDisks:
    @pytest.mark.parametrize(
        ("operation", "error", "files"),
        [("sync", "EIO", ".prepared"), ("write", "ENOSPC", ".prepared"), ("sync", "EIO", "/transcripts")],
    )
    async def test_evidence_that_is_not_durable_refuses_the_append(
        self, path: Path, folder: Path, under_faults: Callable[..., child.Done], operation: str, error: str, files: str
    ) -> None:
        done = under_faults(mirror_scenarios.appends_on_a_failing_disk, path, folder, operation, error, files).result
        assert done == {
            "first": ["mirror_unavailable", []],
            "hits": 1,
            "second": ["stored", [2]],
            "behind": [],
            "stored": 2,
            "faults": [],
        }

    @pytest.mark.parametrize(("operation", "error"), [("sync", "EIO"), ("write", "ENOSPC"), ("write", "EIO")])
    async def test_a_transcript_that_is_not_durable_is_behind(
        self, path: Path, folder: Path, under_faults: Callable[..., child.Done], operation: str, error: str
    ) -> None:
        done = under_faults(mirror_scenarios.appends_on_a_failing_disk, path, folder, operation, error, ".jsonl").result
        assert done == {
            "first": ["mirror_behind", [2]],
            "hits": 1,
            "second": ["deduplicated", [2]],
            "behind": [],
            "stored": 2,
            "faults": [],
        }

    async def test_a_mirror_that_forgets_to_flush_is_caught(
        self, path: Path, folder: Path, under_faults: Callable[..., child.Done]
    ) -> None:
        """Negative control of the test before."""
        scenario = mirror_scenarios.appends_on_a_failing_disk
        done = under_faults(scenario, path, folder, "sync", "EIO", ".jsonl", "flush").result
        assert (done["first"], done["hits"]) == (["stored", [2]], 0)

    @pytest.mark.parametrize(
        ("operation", "files", "skip"),
        [
            *itertools.product(["sync"], [".prepared", ".jsonl", "/transcripts"], [0, 2]),
            *itertools.product(["write"], [".prepared", ".jsonl"], [0, 2]),
        ],
    )
    async def test_killed_at_any_call_on_its_files_it_is_brought_up(
        self, path: Path, folder: Path, under_faults: Callable[..., child.Done], operation: str, files: str, skip: int
    ) -> None:
        done = under_faults(mirror_scenarios.killed_by_the_system, path, folder, operation, files, skip)
        assert done.returncode == -signal.SIGKILL, done.stderr
        async with open_file(path) as plain:
            assert not any("not in the log" in fault for fault in await faults_in(plain, folder))
        async with opened(path, TranscriptMirror(folder, streams="")) as log:
            assert await faults_in(log, folder) == []

    async def test_a_full_disk_behind_the_commit_is_no_failed_append(self, path: Path, small_disk: Path) -> None:
        mirror = TranscriptMirror(small_disk, streams="", room_bytes=0)
        with pytest.raises(MirrorBehind):
            async with opened(path, mirror) as log:
                await log.append("notes", [note(0)], expect=ANY)
                with pytest.raises(MirrorBehind) as caught:
                    await log.append("notes", [note(1, 300_000)], expect=ANY)
                assert (caught.value.version, caught.value.mirrored) == (2, 1)
                assert len(transcript(mirror.path("notes"))) == 1, "what did not fit has left nothing"
        await _mount("remount,size=2m", small_disk)
        async with opened(path, mirror) as log:
            assert await faults_in(log, small_disk) == []

    async def test_a_disk_without_room_refuses_in_front_of_the_log(self, path: Path, small_disk: Path) -> None:
        async with opened(path, TranscriptMirror(small_disk, streams="")) as log:
            with pytest.raises(StoreUnavailable) as caught:
                await log.append("notes", [note()], expect=ANY)
            assert caught.value.code == "mirror_unavailable"
            assert (await log.head()).position == 0

    async def test_a_folder_that_cannot_be_written_refuses_in_front_of_the_log(
        self, path: Path, small_disk: Path
    ) -> None:
        async with opened(path, TranscriptMirror(small_disk, streams="", room_bytes=0)) as log:
            await _mount("remount,ro", small_disk)
            with pytest.raises(StoreUnavailable) as caught:
                await log.append("notes", [note()], expect=ANY)
            assert caught.value.code == "mirror_unavailable"
            assert (await log.head()).position == 0


async def test_what_is_encrypted_in_the_log_gets_into_no_mirror(tmp_path: Path) -> None:
    keys = SubjectKeys(tmp_path / "keys", wrapping_key=bytes(range(32)))
    async with eventlog.open(tmp_path / "a.db", subject_keys=keys) as log:
        await log.append("letters-1", [NewEvent("letter_sent", {"to": "ada"})], expect=Expect.any(), subject="c-1")
    again = eventlog.open(tmp_path / "a.db", subject_keys=keys)
    async with mirrored(again, TranscriptMirror(tmp_path / "out", streams="letters-")) as both:
        for appends in (
            [Append("letters-1", [NewEvent("letter_sent", {})], Expect.any())],
            [Append("letters-2", [NewEvent("letter_sent", {})], Expect.any(), "c-1")],
            [Append("letters-2", [NewEvent("letter_sent", {})], Expect.any(), None, "letters-1")],
        ):
            with pytest.raises(InvalidInput) as refused:
                await both.append_many(appends)
            assert (refused.value.code, refused.value.path) == ("invalid_argument", "$.subject")

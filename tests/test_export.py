"""`eventlog export`: what other programs read is what the log holds, whole or not at all, however long the log is.

DuckDB, pandas and the SDK of CloudEvents read what is written here; they are tools of the tests, not of the engine.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pandas
import pytest
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

import eventlog
from eventlog.audit.export import SPELLINGS, ExportedEvent, Selection, Spelling, exported, selected, spelling
from eventlog.audit.export.cloudevents import cloud_event_line
from eventlog.audit.export.csv import CSV_HEADER, csv_line, guarded, unguarded
from eventlog.audit.export.exported_event import FIELDS, OPTIONAL_FIELDS
from eventlog.audit.export.jsonl import json_line
from eventlog.audit.export.parquet import ROWS
from eventlog.codec import REGISTRY, Registry
from eventlog.log import Expect, NewEvent, RecordedEvent
from tests.command_line import CommandLine, Ended, HereCommandLine, edit, environment
from tests.needs import need, need_command

MANY: Final = 50_000
TEXT: Final = "x" * 300
FORMS: Final = tuple(SPELLINGS)

HOSTILE: Final[list[Any]] = [
    {"value": "a\0b", "a\0b": "key", "text": "\\u0000 is no NUL"},
    "\u202egnp.exe\u2066\u200b\ufeff",
    "😀 👩‍👩‍👧 草稿 𝔘",
    "line\nline\r\nline\r\u2028\u2029\x85\x0b",
    '"quoted", ""twice"", \'single\'; semicolon\t',
    '=HYPERLINK("http://x","y")',
    {"=1+1": "@SUM(A1)", "-": ["+1", "-1"], "": ""},
    {"large": 10**40, "small": -(10**40), "edge": [2**53 + 1, 2**63, -(2**63)], "float": [0.1, 1e300, -0.0]},
    [],
    {},
    None,
    True,
    -5,
    1.5,
    "",
    "</script><!-- \\ \\n \x1b[31m",
]
"""Plain data that some format, or some reader, might take for something else."""


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


@pytest.fixture
def hostile(here: HereCommandLine) -> HereCommandLine:
    """A log with hostile events in two streams, and a run."""
    event = [NewEvent("noted", data, correlation_id="=cmd|'/c calc'!A1") for data in HOSTILE]
    fill(here.folder / "a.db", ('-notes, "so" called', event[:4]), ("@plain", event[4:]))
    here("start", "run-1", "--output", "draft.txt", status=0)
    return here


def fill(path: Path, *streams: tuple[str, Sequence[NewEvent]]) -> None:
    async def append() -> None:
        async with eventlog.open(path) as log:
            for stream, events in streams:
                await log.append(stream, events, expect=Expect.any())

    asyncio.run(append())


def events_of(path: Path, *, registry: Registry = REGISTRY) -> list[RecordedEvent]:
    async def read() -> list[RecordedEvent]:
        async with eventlog.open(path, is_read_only=True, registry=registry) as log:
            return [event async for event in log.read_all()]

    return asyncio.run(read())


def temps(folder: Path) -> list[Path]:
    """Return what exports that were cut off have left."""
    return list(folder.glob(".eventlog-*.tmp"))


def lines(ended: Ended) -> list[Any]:
    return [json.loads(line) for line in ended.out.splitlines()]


def an_event(**fields: Any) -> ExportedEvent:
    """Return an exported event as no log gives it: its names may hold anything."""
    given = {
        "position": 7,
        "stream": "notes",
        "version": 1,
        "type": "noted",
        "schema_version": 1,
        "event_id": "0a" * 16,
        "recorded_at": "2026-11-30T02:15:47.000001Z",
        "recorded_at_us": 1796004947000001,
        "actor": "os:0",
        "correlation_id": None,
        "causation_id": None,
        "leaf": "0b" * 32,
        "log_id": "0c" * 16,
        "data": Raw(b"null"),
    }
    return ExportedEvent(**{**given, **fields})


def cells_of(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode(), newline=""), strict=True))


class TestJsonLines:
    def test_every_field_is_what_the_log_holds(self, hostile: HereCommandLine) -> None:
        found = lines(hostile("export", "--format", "jsonl", "--to", "-", status=0))
        log_id = hostile("db", "info", "--json", status=0).json["log_id"]
        recorded = events_of(hostile.folder / "a.db")
        assert len(found) == len(recorded) == len(HOSTILE) + 2
        for line, event in zip(found, recorded, strict=True):
            assert line == {
                "position": event.position,
                "stream": event.stream,
                "version": event.version,
                "type": event.type,
                "schema_version": event.schema_version,
                "event_id": event.event_id.hex(),
                "recorded_at": line["recorded_at"],
                "recorded_at_us": event.recorded_at_us,
                "actor": event.actor,
                "correlation_id": event.correlation_id,
                "causation_id": None,
                "leaf": event.leaf.hex(),
                "log_id": log_id,
                "data": json.loads(event.body),
            }
            assert list(line) == [name for name in FIELDS if name not in OPTIONAL_FIELDS]
        assert [line["data"] for line in found[: len(HOSTILE)]] == HOSTILE
        assert pandas.Timestamp(found[0]["recorded_at"]).value // 1000 == found[0]["recorded_at_us"]

    def test_a_line_can_be_appended_to_another_log_and_nothing_is_lost(self, hostile: HereCommandLine) -> None:
        """run-54: NUL as value and as key; in metadata it is refused when it is written."""
        other = HereCommandLine(hostile.folder, "--db", "b.db")
        for stream in ('-notes, "so" called', "@plain"):
            given = hostile("export", "--format", "jsonl", "--stream", stream, "--to", "-", status=0)
            words = ("events", "append", "--from", "-", "--expect", "no-stream", "--", stream)
            other(*words, stdin=given.out, status=0)
            assert other(*words, stdin=given.out, status=0).json["deduplicated"] is True
        ours, theirs = (events_of(hostile.folder / name) for name in ("a.db", "b.db"))
        kept = ("stream", "version", "type", "schema_version", "event_id", "correlation_id", "causation_id", "body")
        for left, right in zip(ours[: len(HOSTILE)], theirs, strict=True):
            assert {name: getattr(left, name) for name in kept} == {name: getattr(right, name) for name in kept}
            assert left.leaf != right.leaf
        assert [event.data for event in theirs] == HOSTILE

    def test_a_nul_in_metadata_is_refused(self, here: HereCommandLine) -> None:
        line = json_line(an_event(correlation_id="a\0b"))
        words = ("events", "append", "notes", "--from", "-", "--expect", "any", "--json")
        assert here(*words, stdin=line, status=2).json["error"] == "invalid_id"

    def test_a_line_of_ones_own_may_say_what_it_is_about(self, here: HereCommandLine) -> None:
        line = {"type": "noted", "data": 1, "schema_version": 3, "correlation_id": "c", "causation_id": "0d" * 16}
        words = ("events", "append", "notes", "--from", "-", "--expect", "any")
        here(*words, stdin=json.dumps(line).encode(), status=0)
        (found,) = lines(here("export", "--format", "jsonl", "--to", "-", status=0))
        assert {name: found[name] for name in line} == line
        for wrong in ({"schema_version": 0}, {"schema_version": "3"}, {"causation_id": "x"}, {"correlation_id": 5}):
            ended = here(*words, stdin=json.dumps({**line, **wrong}).encode(), status=2)
            assert ended.error.startswith(("error[invalid_argument]", "error[invalid_id]")), wrong

    def test_only_a_whole_exported_line_may_tell_what_is_not_taken_over(self, here: HereCommandLine) -> None:
        line = {"type": "noted", "data": 1, "actor": "somebody"}
        words = ("events", "append", "notes", "--from", "-", "--expect", "any", "--json")
        assert here(*words, stdin=json.dumps(line).encode(), status=2).json["error"] == "invalid_event"

    def test_raw_json_over_several_lines_becomes_one(self) -> None:
        assert json_line(an_event(data=Raw(b'{"a":1}'))).count(b"\n") == 1
        event = events_like(b'{"a":\n 12345678901234567890123,\r\n "b": "\\n"}')
        data = bytes(exported(event, log_id=bytes(16), registry=REGISTRY).data)
        assert b"\n" not in data and b"\r" not in data
        assert json.loads(data) == {"a": 12345678901234567890123, "b": "\n"}


def events_like(body: bytes, **fields: Any) -> RecordedEvent:
    """Return an event of a type that nobody knows, with this body."""
    facts = {"type": "noted", "schema_version": 1, "data": msgspec.json.decode(body), "is_known": False, **fields}
    return RecordedEvent(
        position=1,
        stream="notes",
        version=1,
        event_id=b"\1" * 16,
        recorded_at_us=facts.pop("recorded_at_us", 0),
        actor="os:0",
        correlation_id=None,
        causation_id=None,
        body=body,
        leaf=bytes(32),
        prev_in_stream=bytes(32),
        **facts,
    )


class TestTimes:
    def test_a_time_that_no_calendar_holds_is_none_and_the_number_is_kept(self) -> None:
        event = exported(events_like(b"1", recorded_at_us=2**62), log_id=bytes(16), registry=REGISTRY)
        assert (event.recorded_at, event.recorded_at_us) == (None, 2**62)
        assert "time" not in json.loads(cloud_event_line(event))
        assert cells_of(CSV_HEADER + csv_line(event))[0]["recorded_at"] == ""
        parquet = spelling("parquet")
        assert parquet.begin() + parquet.add(event) + parquet.end()


FORMULAS: Final = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\tx",
    "\rx",
    "  =1",
    " \t +1",
    "\xa0=1",
    "\u3000@x",
    "\u200b=1",
    "\ufeff=1",
    "\u202e-1",
    "\0=1",
    "＝1+1",
    "＋1",
    "－1",
    "＠x",
    "=cmd|'/c calc'!A1",
    "'=1",
    "''",
]
HARMLESS: Final = ["a=1", "os:0", "run-1", "a@b", "1-1", "x\n=1", "日本", " x", "1", "#x", "/x", "\\=1"]


class TestCsv:
    @pytest.mark.parametrize("text", FORMULAS, ids=ascii)
    def test_no_text_is_a_formula_and_the_text_comes_back(self, text: str) -> None:
        (row,) = cells_of(CSV_HEADER + csv_line(an_event(stream=text, actor=text, type=text, correlation_id=text)))
        for name in ("stream", "actor", "type", "correlation_id"):
            assert row[name].startswith("'")
            assert unguarded(row[name]) == text

    @pytest.mark.parametrize("text", HARMLESS, ids=ascii)
    def test_what_is_harmless_is_left_as_it_is(self, text: str) -> None:
        assert guarded(text) == unguarded(text) == text

    @settings(max_examples=50)
    @given(text=st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=20))
    def test_any_text_comes_back_from_a_cell_that_no_formula_begins(self, text: str) -> None:
        (row,) = cells_of(CSV_HEADER + csv_line(an_event(actor=text)))
        assert unguarded(row["actor"]) == text
        assert is_harmless(row["actor"])

    def test_the_check_finds_a_formula(self) -> None:
        assert not any(map(is_harmless, ("=1", "  +1", "\t", "@x", "\n=1")))

    def test_numbers_stay_numbers(self) -> None:
        for number in ("-5", "1.5", "-1e-7", "0", "123456789012345678901234567890"):
            (row,) = cells_of(CSV_HEADER + csv_line(an_event(data=Raw(number.encode()))))
            assert row["data"] == number
        assert cells_of(CSV_HEADER + csv_line(an_event(data=Raw(b"-Infinity"))))[0]["data"] == "'-Infinity"

    def test_it_is_rfc_4180(self) -> None:
        line = csv_line(an_event(stream='a,"b"\r\nc', data=Raw(b'{"a":1}')))
        assert b'7,"a,""b""\r\nc",1,noted' in line and line.endswith(b',,,"{""a"":1}"\r\n')
        assert CSV_HEADER.decode() == ",".join(FIELDS) + "\r\n"

    def test_hostile_events_come_back_from_it(self, hostile: HereCommandLine) -> None:
        rows = cells_of(hostile("export", "--format", "csv", "--to", "-", status=0).out)
        expected = lines(hostile("export", "--format", "jsonl", "--to", "-", status=0))
        assert all(is_harmless(cell) or cell.lstrip("-").isdigit() for row in rows for cell in row.values())
        for row, event in zip(rows, expected, strict=True):
            for name, value in event.items():
                cell = unguarded(row[name])
                assert json.loads(cell) == value if name == "data" else cell == ("" if value is None else str(value))


def is_harmless(cell: str) -> bool:
    """Say whether a spreadsheet takes the cell for text or a number, whatever it passes over in front."""
    return not cell.startswith(("\t", "\r", "\n")) and cell.strip()[:1] not in set("=+-@＝＋－＠")


class TestCloudEvents:
    def test_the_official_sdk_takes_every_event(self, hostile: HereCommandLine) -> None:
        found = hostile("export", "--format", "cloudevents", "--to", "-", status=0).out.splitlines()
        expected = lines(hostile("export", "--format", "jsonl", "--to", "-", status=0))
        for line, event in zip(found, expected, strict=True):
            read = as_cloud_event(line)
            assert read.get_data() == event["data"]
            assert (read.get_id(), read.get_type()) == (event["event_id"], event["type"])
            assert (read.get_subject(), read.get_specversion()) == (event["stream"], "1.0")
            assert read.get_datacontenttype() == "application/json"
            at = read.get_time()
            assert at is not None and pandas.Timestamp(at).value // 1000 == event["recorded_at_us"]
            assert read.get_source().replace("-", "") == f"urn:uuid:{event['log_id']}"
            assert read.get_extension("position") == str(event["position"])
            assert read.get_extension("streamversion") == str(event["version"])
            assert read.get_extension("correlationid") == event["correlation_id"]
        sequences = [as_cloud_event(line).get_extension("sequence") for line in found]
        assert sequences == sorted(sequences) and len(set(sequences)) == len(found)

    def test_attributes_are_lower_case_and_integers_have_32_bits(self) -> None:
        event = an_event(position=2**62, version=2**61, correlation_id="c", causation_id="0d" * 16, stored_type="old")
        attributes = json.loads(cloud_event_line(event))
        del attributes["data"]
        assert all(name.isascii() and name.isalnum() and name == name.lower() for name in attributes)
        assert all(type(value) is str or abs(value) < 2**31 for value in attributes.values())
        assert (attributes["position"], attributes["storedtype"]) == (str(2**62), "old")

    @pytest.mark.parametrize(
        "broken",
        [{"id": ""}, {"source": None}, {"type": ""}, {"Position": "1"}, {"event_id": "1"}, {"specversion": ""}],
    )
    def test_the_sdk_finds_what_is_wrong(self, broken: dict[str, Any]) -> None:
        attributes = json.loads(cloud_event_line(an_event()))
        with pytest.raises(CloudEventValidationError):
            as_cloud_event(json.dumps({**attributes, **broken}).encode())

    def test_a_name_with_a_code_point_that_is_no_character_is_refused(self, here: HereCommandLine) -> None:
        fill(here.folder / "a.db", ("notes", [NewEvent("noted", "\ufffe")]), ("no\ufdd0tes", [NewEvent("noted", 1)]))
        ended = here("export", "--format", "cloudevents", "--to", "out", status=2)
        assert ended.error.startswith("error[invalid_text]: position 2: subject 'no\\ufdd0tes'")
        assert os.listdir(here.folder).count("out") == 0 and not temps(here.folder)
        here("export", "--format", "jsonl", "--to", "out", status=0)


def as_cloud_event(line: bytes) -> CloudEvent:
    read = JSONFormat().read(CloudEvent, line)
    assert isinstance(read, CloudEvent)
    return read


class TestParquet:
    def test_its_columns_are_typed_and_hold_what_the_log_holds(self, hostile: HereCommandLine) -> None:
        hostile("export", "--format", "parquet", "--to", "a.parquet", status=0)
        path = str(hostile.folder / "a.parquet")
        with closing(duckdb.connect()) as database:
            database.execute("SET TimeZone = 'UTC'")
            described = database.execute("DESCRIBE SELECT * FROM read_parquet(?)", [path]).fetchall()
            found = database.execute("SELECT * FROM read_parquet(?) ORDER BY position", [path]).fetchall()
            times = database.execute("SELECT epoch_us(recorded_at) - recorded_at_us FROM read_parquet(?)", [path])
            assert set(times.fetchall()) == {(0,)}
        types = {name: kind for name, kind, *_ in described}
        assert list(types) == list(FIELDS)
        assert {types[name] for name in ("position", "version", "recorded_at_us")} == {"BIGINT"}
        assert (types["recorded_at"], types["leaf"]) == ("TIMESTAMP WITH TIME ZONE", "BLOB")
        assert (types["schema_version"], types["data"]) == ("INTEGER", "VARCHAR")
        for row, event in zip(found, events_of(hostile.folder / "a.db"), strict=True):
            cells = dict(zip(FIELDS, row, strict=True))
            assert json.loads(cells["data"]) == json.loads(event.body)
            assert (cells["leaf"], cells["position"], cells["stream"]) == (event.leaf, event.position, event.stream)
            assert (cells["correlation_id"], cells["stored_type"]) == (event.correlation_id, None)

    def test_it_is_given_out_row_group_by_row_group(self) -> None:
        parquet = spelling("parquet")
        written = [parquet.begin()] + [parquet.add(an_event(position=each)) for each in range(1, ROWS + 2)]
        assert [number for number, piece in enumerate(written) if piece] == [0, ROWS]
        large = an_event(data=Raw(b'"' + b"x" * 9_000_000 + b'"'))
        assert spelling("parquet").add(large)

    def test_without_its_library_one_line_names_the_extra(self, hostile: HereCommandLine) -> None:
        program = "import sys; sys.modules['pyarrow'] = None; from eventlog.cli import main; main()"
        command = [sys.executable, "-c", program, "--db", "a.db", "export", "--format", "parquet", "--to", "out"]
        ended = subprocess.run(command, cwd=hostile.folder, env=environment(), capture_output=True, check=False)
        assert (ended.returncode, ended.stdout) == (2, b"")
        assert ended.stderr.startswith(b"error[missing_extra]: the format parquet needs the extra `parquet`")
        assert not (hostile.folder / "out").exists()


class TestDuckdb:
    @pytest.mark.parametrize(
        ("form", "table"),
        [
            ("jsonl", "read_json_auto(?, format='newline_delimited')"),
            ("csv", "read_csv(?)"),
            ("cloudevents", "read_json_auto(?, format='newline_delimited')"),
            ("parquet", "read_parquet(?)"),
        ],
    )
    def test_it_reads_hostile_events_as_they_are(self, hostile: HereCommandLine, form: str, table: str) -> None:
        hostile("export", "--format", form, "--to", "out", status=0)
        with closing(duckdb.connect()) as database:
            query = f"SELECT position::BIGINT, type, data FROM {table}"
            found = database.execute(query, [str(hostile.folder / "out")]).fetchall()
        for (position, type_name, data), event in zip(found, events_of(hostile.folder / "a.db"), strict=True):
            assert (position, type_name) == (event.position, event.type)
            text = unguarded(data) if form == "csv" else data
            assert (None if text is None else json.loads(text)) == json.loads(event.body)


class TestSelection:
    @pytest.fixture
    def cli(self, here: HereCommandLine) -> HereCommandLine:
        noted, moved = NewEvent("noted", 1), NewEvent("moved", 2)
        fill(here.folder / "a.db", ("a-1", [noted]), ("a-2", [moved]), ("b", [NewEvent("noted_late", 3)]))
        here("start", "run-1", "--output", "draft.txt", status=0)
        return here

    @pytest.mark.parametrize(
        ("words", "positions"),
        [
            ((), [1, 2, 3, 4, 5]),
            (("--run", "run-1"), [4, 5]),
            (("--run", "run-1", "--after", "4"), [5]),
            (("--stream", "a-2"), [2]),
            (("--stream-prefix", "a-"), [1, 2]),
            (("--type", "noted"), [1]),
            (("--type", "noted*"), [1, 3]),
            (("--type", "noted", "--type", "moved"), [1, 2]),
            (("--type", "m?ved", "--type", "*_late"), [2, 3]),
            (("--type", "nothing"), []),
            (("--stream", "b", "--type", "noted"), []),
            (("--after", "2", "--limit", "2"), [3, 4]),
            (("--limit", "9"), [1, 2, 3, 4, 5]),
            (("--after", "5"), []),
        ],
    )
    def test_each_filter_leaves_the_events_that_it_names(
        self, cli: HereCommandLine, words: tuple[str, ...], positions: list[int]
    ) -> None:
        ended = cli("export", "--format", "jsonl", "--to", "-", *words, status=0)
        assert [line["position"] for line in lines(ended)] == positions
        for form in ("csv", "parquet"):
            assert cli("export", "--format", form, "--to", f"out.{form}", *words, status=0).text.split()[5] == str(
                len(positions)
            )

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("--run", "run-2"), "unknown_run"),
            (("--stream", "c"), "invalid_argument"),
            (("--after", "6"), "invalid_argument"),
            (("--run", " "), "invalid_id"),
            (("--stream", ""), "invalid_id"),
        ],
    )
    def test_what_there_is_not_is_refused_and_no_file_is_made(
        self, cli: HereCommandLine, words: tuple[str, ...], code: str
    ) -> None:
        ended = cli("export", "--format", "jsonl", "--to", "out", *words, status=2)
        assert ended.error.startswith(f"error[{code}")
        assert not (cli.folder / "out").exists()

    @pytest.mark.parametrize(
        "words",
        [
            ("--to", "-", "--run", "run-1", "--stream", "b"),
            ("--to", "-", "--force"),
            ("--to", "-", "--json"),
            ("--to", "-", "--limit", "0"),
            ("--to", "-", "--format", "xml"),
            (),
        ],
    )
    def test_what_makes_no_sense_is_a_usage_error(self, cli: HereCommandLine, words: tuple[str, ...]) -> None:
        assert b'"position"' not in cli("export", "--format", "jsonl", *words, status=2).out

    def test_what_is_appended_meanwhile_is_not_in_it(
        self, cli: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Appending:
            def begin(self) -> bytes:
                CommandLine(cli.folder, "--db", "a.db")("start", "run-2", "--output", "x", status=0)
                return b""

            def add(self, event: ExportedEvent) -> bytes:
                return json_line(event)

            def end(self) -> bytes:
                return b""

        def appending(_: str) -> Spelling:
            return Appending()

        monkeypatch.setattr("eventlog.cli.export.spelling", appending)
        ended = cli("export", "--format", "jsonl", "--to", "-", status=0)
        assert [line["position"] for line in lines(ended)] == [1, 2, 3, 4, 5]
        assert len(events_of(cli.folder / "a.db")) == 7


class Tagged(msgspec.Struct, frozen=True):
    tags: set[str]


class Placed(msgspec.Struct, frozen=True):
    cents: int


def today() -> Registry:
    """Return a registry in which one type has another name now, one has become two, and one is gone."""
    registry = Registry()
    upcast = {1: lambda old: {"cents": old["euros"] * 100}}
    registry.register(Placed, "placed", schema_version=2, upcast=upcast, renamed_from=("made",))
    registry.register(Tagged, "tagged")
    registry.split(
        lambda old: ("placed" if "cents" in old else "tagged", old), "changed", into={"placed": 2, "tagged": 1}
    )
    registry.retire("flagged")
    return registry


class TestTypesOfBefore:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        old = [("made", {"euros": 3}), ("changed", {"cents": 5}), ("changed", {"tags": []}), ("flagged", {"a": 1})]
        fill(tmp_path / "a.db", ("orders", [NewEvent(name, data) for name, data in [*old, ("placed", {"euros": 1})]]))
        return tmp_path / "a.db"

    @pytest.mark.parametrize(
        ("patterns", "positions"),
        [
            (("placed",), [1, 2, 5]),
            (("made",), [1, 2, 5]),
            (("changed",), [1, 2, 3, 5]),
            (("tagged",), [3]),
            (("flagged",), [4]),
            (("pl*",), [1, 2, 5]),
            (("mad?",), [1]),
            (("made", "flag*"), [1, 2, 4, 5]),
            (("other",), []),
        ],
    )
    async def test_a_former_name_means_what_became_of_it(
        self, path: Path, patterns: tuple[str, ...], positions: list[int]
    ) -> None:
        registry = today()
        async with eventlog.open(path, is_read_only=True, registry=registry) as log:
            for stream in (None, "orders"):
                selection = Selection(up_to=5, patterns=patterns, stream=stream)
                found = [event.position async for event in selected(log, selection, registry)]
                assert found == positions, stream

    def test_they_are_told_by_the_name_and_in_the_shape_of_today_and_what_is_stored_beside_it(self, path: Path) -> None:
        registry = today()
        events = [exported(event, log_id=bytes(16), registry=registry) for event in events_of(path, registry=registry)]
        told = [json.loads(json_line(event)) for event in events]
        names = ("type", "schema_version", "stored_type", "stored_schema_version", "data")
        assert [tuple(line.get(name) for name in names) for line in told] == [
            ("placed", 2, "made", 1, {"cents": 300}),
            ("placed", 2, "changed", 1, {"cents": 5}),
            ("tagged", 1, "changed", None, {"tags": []}),
            ("flagged", 1, None, None, {"a": 1}),
            ("placed", 2, None, 1, {"cents": 100}),
        ]
        rows = cells_of(CSV_HEADER + b"".join(map(csv_line, events)))
        assert [row["stored_type"] for row in rows] == ["made", "changed", "changed", "", ""]
        assert as_cloud_event(cloud_event_line(events[0])).get_extension("storedtype") == "made"


SHOP: Final = """
import eventlog, msgspec

@eventlog.event("order_placed", schema_version=2, upcast={1: lambda old: {"cents": old["euros"] * 100, "tags": []}})
class OrderPlaced(msgspec.Struct, frozen=True):
    cents: int
    tags: set[str]

def runner(log):
    raise AssertionError("an export makes no Runner")
"""


@pytest.mark.processes
class TestOldShapes:
    @pytest.fixture
    def shop(self, tmp_path: Path) -> CommandLine:
        (tmp_path / "shop.py").write_text(SHOP)
        old, new = NewEvent("order_placed", {"euros": 3}), {"cents": 5, "tags": ["a", "b"]}
        fill(tmp_path / "a.db", ("orders", [old, NewEvent("order_placed", new, schema_version=2)]))
        return CommandLine(tmp_path, "--db", "a.db", "--app", "shop:runner")

    def test_they_have_passed_their_upcasters(self, shop: CommandLine) -> None:
        first, second = lines(shop("export", "--format", "jsonl", "--to", "-", status=0))
        assert (first["data"], first["schema_version"], first["stored_schema_version"]) == (
            {"cents": 300, "tags": []},
            2,
            1,
        )
        assert (second["data"], second["schema_version"]) == ({"cents": 5, "tags": ["a", "b"]}, 2)
        assert "stored_schema_version" not in second
        plain = CommandLine(shop.folder, "--db", "a.db")("export", "--format", "jsonl", "--to", "-", status=0)
        assert [(line["data"], line["schema_version"]) for line in lines(plain)] == [
            ({"euros": 3}, 1),
            ({"cents": 5, "tags": ["a", "b"]}, 2),
        ]

    def test_appended_to_another_log_they_are_in_the_shape_that_their_version_says(self, shop: CommandLine) -> None:
        given = shop("export", "--format", "jsonl", "--to", "-", status=0)
        other = CommandLine(shop.folder, "--db", "b.db")
        other("events", "append", "orders", "--from", "-", "--expect", "0", stdin=given.out, status=0)
        again = CommandLine(shop.folder, "--db", "b.db", "--app", "shop:runner")(
            "export", "--format", "jsonl", "--to", "-"
        )
        assert [line["data"] for line in lines(again)] == [line["data"] for line in lines(given)]

    def test_one_that_cannot_be_decoded_is_an_error_with_its_position(self, shop: CommandLine) -> None:
        fill(shop.folder / "a.db", ("orders", [NewEvent("order_placed", {"cents": "many"}, schema_version=2)]))
        ended = shop("export", "--format", "csv", "--to", "out", status=2)
        assert ended.error.startswith("error[invalid_event]: position 3 of stream 'orders'")
        assert not (shop.folder / "out").exists() and not temps(shop.folder)
        shop("export", "--format", "csv", "--to", "out", "--limit", "2", status=0)

    def test_members_of_a_set_are_in_the_same_order_in_every_process(self) -> None:
        registry = Registry()
        registry.register(Tagged, "tagged")
        names = {f"tag-{number}" for number in range(20)}
        body = msgspec.json.encode(Tagged(names), order="deterministic")
        event = events_like(body, type="tagged", data=Tagged(names), is_known=True)
        assert bytes(exported(event, log_id=bytes(16), registry=registry).data) == body


class TestTarget:
    def test_an_existing_file_is_refused_unless_it_may_be_replaced(self, hostile: HereCommandLine) -> None:
        target = hostile.folder / "out"
        target.write_text("mine")
        words = ("export", "--format", "jsonl", "--to", "out")
        assert hostile(*words, status=2).error.startswith("error[target_exists]: 'out' exists")
        assert target.read_text() == "mine"
        card = hostile("--json", *words, "--force", status=0).json
        assert card["events"] == len(target.read_bytes().splitlines()) == card["last_position"]
        assert card["size_bytes"] == target.stat().st_size
        assert not temps(hostile.folder)

    @pytest.mark.parametrize(
        "name", ["folder", "link", "fifo", "a.db", "a.db-wal", "a.db.lock", "A.DB", "/dev/null", "no/x", "folder/", ""]
    )
    def test_what_is_no_file_of_ours_is_never_replaced(self, hostile: HereCommandLine, name: str) -> None:
        (hostile.folder / "folder").mkdir()
        (hostile.folder / "link").symlink_to("elsewhere")
        os.mkfifo(hostile.folder / "fifo")
        before = sorted(os.listdir(hostile.folder)), (hostile.folder / "a.db").read_bytes()
        ended = hostile("export", "--format", "jsonl", "--to", name, "--force", status=2)
        assert ended.error.startswith("error[invalid_argument]")
        assert {*os.listdir(hostile.folder)} - {*before[0]} <= {"a.db-shm", "a.db-wal"}
        assert (hostile.folder / "a.db").read_bytes() == before[1]
        assert os.readlink(hostile.folder / "link") == "elsewhere"

    def test_whoever_is_first_keeps_the_name(self, hostile: HereCommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.link

        def late(source: str, target: str, **options: Any) -> None:
            (hostile.folder / "out").write_text("theirs")
            real(source, target, **options)

        monkeypatch.setattr("eventlog.cli.target_file.os.link", late)
        ended = hostile("export", "--format", "jsonl", "--to", "out", status=2)
        assert ended.error.startswith("error[target_exists]")
        assert (hostile.folder / "out").read_text() == "theirs" and not temps(hostile.folder)

    def test_damage_ends_it_with_the_position_and_leaves_what_was_there(self, hostile: HereCommandLine) -> None:
        (hostile.folder / "out").write_text("mine")
        edit(hostile.folder / "a.db", "DROP TRIGGER events_update")
        assert edit(hostile.folder / "a.db", "UPDATE events SET body = '6' WHERE position = 13") == 1
        for form in FORMS:
            words = ("--json", "export", "--format", form, "--to")
            for ended in (hostile(*words, "new", status=3), hostile(*words, "out", "--force", status=3)):
                assert (ended.json["error"], ended.json["details"]["position"]) == ("log_corrupt", 13)
        assert (hostile.folder / "out").read_text() == "mine"
        assert not (hostile.folder / "new").exists() and not temps(hostile.folder)

    def test_a_full_disk_is_a_coded_error_and_leaves_nothing(self, hostile: HereCommandLine) -> None:
        small = hostile.folder / "small"
        small.mkdir()
        mount = [need_command("mount"), "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(small)]
        need(subprocess.run(mount, capture_output=True, check=False).returncode == 0, "the permission to mount")
        try:
            ended = hostile("export", "--format", "jsonl", "--to", "small/out", status=1)
            assert ended.error.startswith("error[store_full]: cannot write 'small/out': No space left on device")
            assert os.listdir(small) == []
        finally:
            subprocess.run(["umount", str(small)], check=True)

    def test_a_limit_of_the_file_size_is_a_coded_error_and_leaves_nothing(self, hostile: HereCommandLine) -> None:
        fill(hostile.folder / "a.db", ("large", [NewEvent("noted", "x" * 200_000)]))
        ended = subprocess.run(
            hostile.argv("export", "--format", "csv", "--to", "out"),
            cwd=hostile.folder,
            env=environment(),
            capture_output=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (1, b"")
        assert ended.stderr.startswith(b"error[store_io_error]: cannot write 'out': File too large")
        assert not (hostile.folder / "out").exists() and not temps(hostile.folder)


class TestStandardOutput:
    def test_hidden_characters_are_escaped_on_a_terminal_and_parquet_is_refused_there(
        self, hostile: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = hostile("export", "--format", "jsonl", "--to", "-", status=0)
        monkeypatch.setattr(io, "TextIOWrapper", _Terminal)
        shown = hostile("export", "--format", "jsonl", "--to", "-", status=0)
        assert "exporting" in shown.error and "exporting" not in plain.error
        assert "\u202e" in plain.text and "\u202e" not in shown.text
        assert lines(shown) == lines(plain)
        assert "exporting" not in hostile("export", "--format", "csv", "--to", "x", "--no-progress", status=0).error
        ended = hostile("export", "--format", "parquet", "--to", "-", status=2)
        assert ended.out == b"" and "not written to a terminal" in ended.error

    def test_one_that_takes_nothing_is_said_and_is_no_success(self, hostile: HereCommandLine) -> None:
        command = hostile.argv("export", "--format", "csv", "--to", "-")
        with open("/dev/full", "wb") as full:
            ended = subprocess.run(
                command, cwd=hostile.folder, env=environment(), stdout=full, stderr=subprocess.PIPE, check=False
            )
        assert (ended.returncode, ended.stderr) == (
            1,
            b"error: cannot write to standard output: No space left on device\n",
        )

    def test_parquet_goes_through_a_pipe(self, hostile: HereCommandLine) -> None:
        out = hostile("export", "--format", "parquet", "--to", "-", status=0).out
        (hostile.folder / "piped.parquet").write_bytes(out)
        assert len(pandas.read_parquet(hostile.folder / "piped.parquet")) == len(HOSTILE) + 2


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


# ── many events ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A log of `MANY` events with the numbers from 0."""
    folder = tmp_path_factory.mktemp("many")
    streams = [
        (f"sensor-{start}", [NewEvent("measured", {"n": start + each, "text": TEXT}) for each in range(10_000)])
        for start in range(0, MANY, 10_000)
    ]
    fill(folder / "a.db", *streams)
    return CommandLine(folder, "--db", "a.db")


MEASURED: Final = """
import json, sys
from eventlog.cli import export
from eventlog.cli.app import run
{change}
def highest():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
def exported(name, form, *words):
    assert run(["--db", "a.db", "export", "--format", form, "--to", f"{{name}}.{{form}}", "-q", *words]) == 0
grown = {{}}
for form in {forms}:  # the one that takes most comes last, where its peak hides nobody's
    if form in ("jsonl", "parquet"):
        exported("some", form, "--limit", "{some}", "--force")
    some = highest()
    exported("all", form, "--force")
    grown[form] = highest() - some
print(json.dumps(grown))
"""
COLLECTING: Final = """
real = export.selected
async def collecting(*args):
    for event in [event async for event in real(*args)]:
        yield event
export.selected = collecting
"""
SOME: Final = 11_000
"""More than a row group has."""
BOUND_KB: Final = 16 * 1024
"""How much more memory all events may take than some; the bodies of the others alone have 12 MB."""


def grown_kb(many: CommandLine, *forms: str, change: str = "") -> dict[str, int]:
    """Export some and then all events, in one process; return how much more memory all have taken in each format."""
    need(Path("/proc/self/status").exists(), "/proc/self/status")
    program = MEASURED.format(forms=forms, some=SOME, change=change)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=many.folder, env=environment(), capture_output=True, text=True, check=True
    )
    grown: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    return grown


@pytest.fixture(scope="module")
def grown(many: CommandLine) -> dict[str, int]:
    """How much more memory each `all.FORM` has taken than the first `SOME` events."""
    return grown_kb(many, *FORMS)


TABLES: Final = {
    "jsonl": ("read_json_auto(?, format='newline_delimited')", "data.n"),
    "csv": ("read_csv(?)", "json_extract(data, '$.n')::BIGINT"),
    "cloudevents": ("read_json_auto(?, format='newline_delimited')", "data.n"),
    "parquet": ("read_parquet(?)", "json_extract(data, '$.n')::BIGINT"),
}


@pytest.mark.timeout(300)
@pytest.mark.processes
class TestMany:
    def test_memory_does_not_grow_with_the_log(self, grown: dict[str, int]) -> None:
        print(f"all {MANY} events took more memory than the first {SOME} by, in kB: {grown}")
        assert list(grown) == list(FORMS) and max(grown.values()) < BOUND_KB

    def test_one_that_collects_is_found(self, many: CommandLine, grown: dict[str, int]) -> None:
        collected = grown_kb(many, "jsonl", change=COLLECTING)
        print(f"collected, in kB: {collected}")
        assert collected["jsonl"] > 2 * BOUND_KB

    @pytest.mark.parametrize("form", TABLES)
    @pytest.mark.usefixtures("grown")
    def test_duckdb_counts_and_adds_up_what_was_appended(self, many: CommandLine, form: str) -> None:
        table, number = TABLES[form]
        query = f"SELECT count(*), sum(position::BIGINT), sum({number}), count(DISTINCT leaf) FROM {table}"
        with closing(duckdb.connect()) as database:
            found = database.execute(query, [str(many.folder / f"all.{form}")]).fetchone()
        assert found == (MANY, MANY * (MANY + 1) // 2, MANY * (MANY - 1) // 2, MANY)

    @pytest.mark.usefixtures("grown")
    def test_pandas_counts_and_adds_up_what_was_appended(self, many: CommandLine) -> None:
        tables = {
            "csv": pandas.read_csv(many.folder / "all.csv", nrows=SOME),
            "jsonl": pandas.read_json(many.folder / "some.jsonl", lines=True),
            "parquet": pandas.read_parquet(many.folder / "some.parquet"),
        }
        for form, table in tables.items():
            data = table["data"] if form == "jsonl" else table["data"].map(json.loads)
            assert len(table) == SOME
            assert table["position"].sum() == SOME * (SOME + 1) // 2
            assert sum(each["n"] for each in data) == SOME * (SOME - 1) // 2

    def test_kill_9_in_the_middle_leaves_no_file_of_that_name(self, many: CommandLine) -> None:
        folder = many.folder
        before = set(temps(folder))
        words = ("export", "--format", "jsonl", "--to", "killed")
        with subprocess.Popen(many.argv(*words), cwd=folder, env=environment(), stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while not (new := [temp for temp in temps(folder) if temp not in before and temp.stat().st_size]):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            assert process.wait(timeout=10) == -signal.SIGKILL
        assert not (folder / "killed").exists()
        assert [temp for temp in temps(folder) if temp not in before] == new
        assert new[0].read_bytes().count(b"\n") < MANY

    def test_a_reader_that_leaves_is_a_broken_pipe(self, many: CommandLine) -> None:
        command = many.argv("export", "--format", "jsonl", "--to", "-")
        with subprocess.Popen(
            command, cwd=many.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert (process.stderr.read(), process.wait(timeout=30)) == (b"", 141)

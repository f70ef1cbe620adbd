"""What the command line says and does where something about views is wrong, and that what it advises works.

Also what commands that show events know of the caller's own types.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.cli import doctor as doctors
from eventlog.cli import tail as tails
from eventlog.cli.advice import advice
from eventlog.cli.options import Options
from eventlog.errors import EventLogError
from eventlog.log import RecordedEvent
from eventlog.views import ViewEvent
from projections import Consumer, RowProjection, SqliteView
from projections.projection import Row
from tests.command_line import CommandLine, Ended, HereCommandLine, edit
from tests.test_cli_projections import Program, building, follow, place_orders, rows, views_of


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """A program with projections of its own in the folder of the log."""
    program = Program(tmp_path)
    yield program
    for name in program.names:
        sys.modules.pop(name, None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


@pytest.fixture
def cli(tmp_path: Path) -> HereCommandLine:
    """A log of one run, positions 1 and 2."""
    here = HereCommandLine(tmp_path, "--db", "a.db")
    here("start", "run-1", "--output", "draft.txt", status=0)
    return here


def state_of(cli: CommandLine, view: str, *words: str) -> dict[str, Any]:
    """Return what `status` says of a table of a view, as `orders live`."""
    return views_of(cli("projections", "status", *words, "--json", status=0))[view]


def tables_of(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    finally:
        connection.close()


TYPES: Final = """
import eventlog, msgspec
from projections import RowProjection

def in_euros(data):
    return {{"amount": data["cents"]}}

@eventlog.event("{new}", schema_version=2, renamed_from=("{old}",), upcast={{1: in_euros}})
class Payment(msgspec.Struct, frozen=True):
    amount: int

class Payments(RowProjection):
    name = "payments"
    event_types = frozenset({{"{new}"}})
    columns = {{"stream": "TEXT PRIMARY KEY"}}
    def key(self, event):
        return event.stream
    def apply(self, row, event):
        return {{"stream": event.stream}}

def make(log):
    raise RuntimeError("nobody asked for a Runner")
"""


class TestOwnTypes:
    """Names of types and modules are new each time: what is registered is so for the whole process."""

    @pytest.mark.parametrize(
        ("option", "name"), [("--app", ":make"), ("--app", ""), ("--projections", ":Payments"), ("--projections", "")]
    )
    def test_tail_and_events_show_know_the_types_of_the_callers_program(
        self, cli: HereCommandLine, program: Program, option: str, name: str
    ) -> None:
        old, new, module = (f"{word}_{uuid4().hex[:8]}" for word in ("paid", "payment_received", "own"))
        program.names.append(module)
        (cli.folder / f"{module}.py").write_text(TYPES.format(old=old, new=new), encoding="utf-8")
        line = json.dumps({"type": old, "data": {"cents": 7}}).encode()
        cli("events", "append", "till", "--from", "-", "--expect", "0", stdin=line, status=0)
        assert cli("tail", "--type", new, "--json", status=0).json == {"events": []}

        own = (option, f"{module}{name}")
        (found,) = cli("tail", "--type", new, *own, "--json", status=0).json["events"]
        shown = cli("events", "show", "3", *own, "--json", status=0).json
        exported = json.loads(cli("export", "--format", "jsonl", "--to", "-", "--stream", "till", *own, status=0).out)
        for event in (found, shown, exported):
            assert (event["type"], event["schema_version"], event["data"]) == (new, 2, {"amount": 7})
        assert found["stored_type"] == old

    @pytest.mark.parametrize(
        "words",
        [("tail",), ("events", "show", "1"), ("export", "--format", "jsonl", "--to", "-")],
        ids=lambda words: words[0],
    )
    def test_a_program_that_cannot_be_imported_is_refused(self, cli: HereCommandLine, words: tuple[str, ...]) -> None:
        asking = () if words[0] == "export" else ("--json",)
        for option, code in (("--app", "app_unusable"), ("--projections", "projections_unusable")):
            ended = cli(*words, option, "not_there:X", *asking, status=2)
            said = ended.error if words[0] == "export" else ended.json["error"]
            assert code in said
            assert words[0] == "export" or "cannot import 'not_there'" in ended.json["message"]

    def test_a_module_alone_gives_no_runner(self, cli: HereCommandLine) -> None:
        ended = cli(
            "reconcile", "run-1", "--verdict", "executed", "--evidence", "x", "--app", "json", "--json", status=2
        )
        assert (ended.json["error"], "that is not MODULE:RUNNER" in ended.json["message"]) == ("app_unusable", True)


class TestAProjectionThatRaises:
    def test_a_build_that_failed_is_gone_on_with_by_the_command_in_its_hint(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        place_orders(cli, {"total": 3, "bad": True})
        ended = cli("projections", "rebuild", "orders", *own, "--json", status=2)
        assert (ended.json["error"], "NAME" in ended.json["hint"]) == ("view_failed", False)
        (cli.folder / "mended").touch()
        follow(cli, command_in(ended.json["hint"]))
        assert rows(cli, "orders") == [("ann", 3, 1)]

    def test_a_live_view_that_stopped_is_brought_up_by_the_command_in_its_hint(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 3, "bad": True})
        ended = cli("projections", "resume", "orders", *own, "--json", status=2)
        assert (ended.json["error"], "NAME" in ended.json["hint"]) == ("view_failed", False)
        (view,) = cli("projections", "check", "orders", *own, "--json", status=0).json["views"]
        assert command_in(ended.json["hint"]) in view["message"]
        (cli.folder / "mended").touch()
        follow(cli, command_in(ended.json["hint"]))
        assert rows(cli, "orders") == [("ann", 3, 1)]

    def test_a_stopped_view_of_an_earlier_revision_is_not_to_be_resumed(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 3, "bad": True})
        cli("projections", "resume", "orders", *own, status=2)
        (cli.folder / "mended").touch()
        state = state_of(cli, "orders live", *program.named(revision=2))
        assert state["condition"] == "stopped"
        follow(cli, state["next"])
        assert rows(cli, "orders") == [("ann", 3, 1)]

    def test_a_build_of_a_later_revision_is_left_to_a_later_program(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        cli("projections", "rebuild", "orders", *program.named(), status=0)
        place_orders(cli, {"total": 3, "bad": True})
        cli("projections", "rebuild", "orders", *program.named(revision=3), status=2)
        earlier = program.named()
        state = state_of(cli, "orders building", *earlier)
        assert (state["condition"], state["next"]) == ("stopped", None)
        said = cli("projections", "status", "orders", *earlier, "--format", "human", status=0).text
        assert "a later program builds it, and goes on with it" in said

    def test_who_is_overtaken_learns_by_whom(self, cli: HereCommandLine, program: Program) -> None:
        cli("projections", "rebuild", "orders", *program.named(revision=2), status=0)
        earlier = program.named()
        for words in (("rebuild",), ("resume",)):
            ended = cli("projections", *words, "orders", *earlier, "--json", status=2)
            assert (ended.json["error"], "upgrade it" in ended.json["hint"]) == ("view_overtaken", True)
        options = Options([])
        options.given["db"] = "a.db"
        hint = advice(EventLogError("view_overtaken", "somebody else writes it", view="orders", position=3), options)
        assert "stop one of the two" in hint and hint.endswith("eventlog --db a.db projections status orders")

    @pytest.mark.parametrize(
        ("state", "command"), [("live", "resume"), ("building", "rebuild"), ("part-0-9", "rebuild"), (None, "status")]
    )
    def test_who_reads_a_view_that_failed_is_told_what_goes_on(self, state: str | None, command: str) -> None:
        options = Options([])
        options.given.update({"db": "a.db", "projections": "own:Orders"})
        facts = {} if state is None else {"state": state}
        hint = advice(EventLogError("view_failed", "it stopped", view="orders", **facts), options)
        assert command_in(hint) == f"eventlog --db a.db projections {command} orders --projections own:Orders"

    def test_check_and_verify_name_commands_that_can_be_pasted(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 3})
        (problem,) = cli("verify", *own, "--json", status=0).json["views"]["problems"]
        follow(cli, problem["message"].split("`")[1])
        raised = program.named(revision=2)
        (view,) = cli("projections", "check", "orders", *raised, "--json", status=4).json["views"]
        (left,) = cli("verify", *raised, "--json", status=0).json["views"]["not_checked"]
        assert view["message"] == left["why"]
        follow(cli, view["message"].split("`")[1])
        cli("projections", "check", "orders", *raised, status=0)

    def test_an_event_of_an_unknown_type_is_passed_over_by_the_command_in_the_hint(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        lines = b'{"type": "order_placed", "data": {"total": 3}}\n{"type": "strange", "data": 1}'
        cli("events", "append", "x", "--from", "-", "--expect", "0", stdin=lines, status=0)
        ended = cli("projections", "rebuild", "orders", *own, "--json", status=2)
        assert ended.json["message"] == "version 2 of stream 'x' is an event of the unknown type 'strange'"
        assert "--allow-unknown" in ended.json["hint"]
        follow(cli, command_in(ended.json["hint"]))
        assert rows(cli, "orders") == [("x", 3, 1)]


class TestNothingIsKnownHere:
    @pytest.fixture
    def cli(self, tmp_path: Path) -> HereCommandLine:
        """A log with one view, of which the command line knows nothing."""
        asyncio.run(append_notes(tmp_path / "a.db", [SqliteView(Notes())]))
        return HereCommandLine(tmp_path, "--db", "a.db")

    def test_a_check_that_compared_nothing_is_no_success(self, cli: HereCommandLine) -> None:
        ended = cli("projections", "check", "--json", status=4)
        assert ended.json == {"views": [], "not_checked": ["notes"]}
        assert "the view notes is not checked" in ended.error

    def test_verify_says_that_nothing_was_checked(self, cli: HereCommandLine) -> None:
        views = cli("verify", "--json", status=0).json["views"]
        assert (views["verdict"], [each["name"] for each in views["not_checked"]]) == ("not_checked", ["notes"])
        assert "views\tnot_checked\t0\n" in cli("verify", status=0).text

    def test_a_view_whose_code_is_gone_is_dropped(self, cli: HereCommandLine) -> None:
        gone = {"EVENTLOG_PROJECTIONS": "not_there:X"}
        assert cli("projections", "drop", "notes", env=gone, status=0).text.endswith("dropped\t[]\n")
        ended = cli("projections", "drop", "notes", "--live", "--yes", "--json", env=gone, status=0)
        assert ended.json == {"name": "notes", "dropped": ["live"]}
        assert not {name for name in tables_of(cli.folder / "a.db") if name.startswith("notes")}
        assert "notes live" not in views_of(cli("projections", "status", "--json", status=0))
        assert cli("verify", "--json", status=0).json["integrity"]["verdict"] == "ok"

    def test_a_table_that_is_no_views_is_never_dropped(self, cli: HereCommandLine) -> None:
        path = cli.folder / "a.db"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (a)")
        connection.close()
        ended = cli("projections", "drop", "mine", "--live", "--yes", "--json", status=2)
        assert ended.json["error"] == "unknown_view"
        edit(path, "UPDATE views SET name = 'events'")  # what no program of ours writes
        cli("projections", "drop", "events", "--live", "--yes", status=3)
        assert {"mine", "events"} <= tables_of(path)
        assert cli("verify", "--json", status=0).json["events"] == 3


class TestATableThatIsGone:
    @pytest.fixture
    def own(self, cli: HereCommandLine, program: Program) -> tuple[str, str]:
        """A view whose table somebody has dropped by hand."""
        own = program.named()
        place_orders(cli, {"total": 3})
        cli("projections", "rebuild", "orders", *own, status=0)
        connection = sqlite3.connect(cli.folder / "a.db")
        connection.execute("DROP TABLE orders")
        connection.close()
        return own

    def test_list_and_status_say_that_it_is_gone(self, cli: HereCommandLine, own: tuple[str, str]) -> None:
        for words in (("list",), ("status",)):
            state = views_of(cli("projections", *words, *own, "--json", status=0))["orders live"]
            assert (state["condition"], state["rows"]) == ("gone", None)
        assert "its table is gone" in cli("projections", "status", *own, "--format", "human", status=0).text
        follow(cli, state["next"])
        assert rows(cli, "orders") == [("ann", 3, 1)]

    @pytest.mark.parametrize("how", [(), ("--compare",), ("--drop-old",)])
    def test_nothing_old_is_kept_of_it(self, cli: HereCommandLine, own: tuple[str, str], how: tuple[str, ...]) -> None:
        place_orders(cli, {"total": 4})
        (rebuilt,) = cli("projections", "rebuild", "orders", *own, *how, "--json", status=0).json["views"]
        assert rebuilt["old"] == "none"
        states = views_of(cli("projections", "status", "orders", *own, "--json", status=0))
        assert {name: state["condition"] for name, state in states.items()} == {"orders live": "ok"}

    def test_check_and_resume_say_what_builds_it(self, cli: HereCommandLine, own: tuple[str, str]) -> None:
        place_orders(cli, {"total": 4})
        ended = cli("projections", "resume", "orders", *own, "--json", status=2)
        assert (ended.json["error"], "is gone" in ended.json["message"]) == ("view_outdated", True)
        (view,) = cli("projections", "check", "orders", *own, "--json", status=3).json["views"]
        assert "the table of the view 'orders' is gone" in view["message"]
        follow(cli, view["message"].split("`")[1])
        follow(cli, command_in(ended.json["hint"]))
        cli("projections", "check", "orders", *own, status=0)


class TestInterrupted:
    def test_a_build_says_so_in_one_json_document(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        place_orders(cli, *({"total": number} for number in range(2000)))
        (cli.folder / "held").touch()
        with building(cli, *own, "--json") as process:
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=30)
        said = json.loads(out)
        assert (process.returncode, said["error"], said["details"]["position"]) == (130, "interrupted", 1000)
        (cli.folder / "held").unlink()
        follow(cli, command_in(said["hint"]))
        assert rows(cli, "orders") == [("ann", sum(range(2000)), 2000)]

    def test_any_other_command_does_unless_its_answer_has_begun(
        self, cli: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = 1

        def document(event: RecordedEvent) -> dict[str, Any]:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return {"position": event.position}

        monkeypatch.setattr(tails, "as_document", document)
        assert cli("tail", "--json", status=130).out == b'{"events": [{"position": 1}'
        assert cli("tail", "--format", "jsonl", status=130).out == b""
        for words in (("runs", "show", "run-1", "--json"), ("show-trace", "run-1")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("asyncio.run", interrupted)
                ended = cli(*words, status=130)
            assert (ended.out and ended.json["error"]) == ("interrupted" if "--json" in words else b"")


def interrupted(work: Any) -> None:
    """Be interrupted before anything is done."""
    work.close()
    raise KeyboardInterrupt


class TestDropOfABuild:
    @pytest.mark.parametrize("how", ["--build", "--live"])
    def test_a_build_that_stopped_is_dropped(self, cli: HereCommandLine, program: Program, how: str) -> None:
        cli("projections", "rebuild", "orders", *program.named(), status=0)
        place_orders(cli, {"total": 3, "bad": True})
        cli("projections", "rebuild", "orders", *program.named(revision=2), status=2)
        dropped = cli("projections", "drop", "orders", how, "--yes", "--json", status=0).json["dropped"]
        assert dropped == (["building"] if how == "--build" else ["live", "building"])
        left = {name for name in tables_of(cli.folder / "a.db") if name.startswith("orders")}
        assert left == ({"orders"} if how == "--build" else set())

    def test_one_that_is_at_work_is_not(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        place_orders(cli, *({"total": number} for number in range(2000)))
        (cli.folder / "held").touch()
        with building(cli, *own):
            for words in (("drop", "orders", "--build"), ("rebuild", "orders")):
                said = cli("projections", *words, *own, "--json", status=5).json
                assert (said["error"], said["message"]) == (
                    "view_busy",
                    "another process is building the view 'orders'",
                )
                follow(cli, command_in(said["hint"]))

    def test_either_a_build_or_everything(self, cli: HereCommandLine) -> None:
        assert "Either --build or --live" in cli("projections", "drop", "runs", "--build", "--live", status=2).error


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """Give a disk of 3 MiB."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs Linux and the right to do so")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class TestAFullDisk:
    def test_a_view_is_dropped_where_it_fits_no_transaction(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk") as disk:
            asyncio.run(append_notes(disk / "a.db", [SqliteView(Notes())], count=2000, text="x" * 200))
            fill(disk, left=100_000)
            here = HereCommandLine(disk, "--db", "a.db")
            ended = here("projections", "drop", "notes", "--live", "--yes", "--json", status=0)
            assert ended.json["dropped"] == ["live"]
            (disk / "fill").unlink()
            assert "notes" not in tables_of(disk / "a.db")
            assert here("verify", "--json", status=0).json["events"] == 2000

    def test_dropping_it_at_once_would_not_have_done(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The negative control: the same disk, and no smaller pages."""
        dropping = import_module("eventlog.cli.projections.drop")._Dropping  # the package has a command of this name
        monkeypatch.setattr(dropping, "may_go_on", lambda self, before: False)
        with small_disk(tmp_path / "disk") as disk:
            asyncio.run(append_notes(disk / "a.db", [SqliteView(Notes())], count=2000, text="x" * 200))
            fill(disk, left=100_000)
            here = HereCommandLine(disk, "--db", "a.db")
            assert (
                here("projections", "drop", "notes", "--live", "--yes", "--json", status=1).json["error"]
                == "store_full"
            )

    def test_doctor_says_that_it_is_nearly_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with small_disk(tmp_path / "disk") as disk:
            here = HereCommandLine(disk, "--db", "a.db")
            checks = {check["name"]: check for check in here("doctor", "--json", status=0).json["checks"]}
            assert (checks["disk"]["state"], checks["disk"]["found"]) == ("warn", "3 145 728 bytes free")
            monkeypatch.setattr(doctors, "_LITTLE_BYTES", 1 << 20)
            checks = {check["name"]: check for check in here("doctor", "--json", status=0).json["checks"]}
            assert checks["disk"]["state"] == "ok"


def fill(disk: Path, *, left: int) -> None:
    """Fill a disk up to so many bytes."""
    free = os.statvfs(disk)
    (disk / "fill").write_bytes(bytes(free.f_bavail * free.f_frsize - left))


class TestADatabaseOfTheirOwn:
    def test_every_command_works_with_views_in_a_file_of_their_own(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = (*program.named(), "--into", "v.db")
        place_orders(cli, {"total": 3})
        (rebuilt,) = cli("projections", "rebuild", "orders", *own, "--json", status=0).json["views"]
        assert (rebuilt["position"], rebuilt["old"]) == (3, "none")
        assert "orders" not in tables_of(cli.folder / "a.db")
        listed = views_of(cli("projections", "list", *own, "--json", status=0))
        assert {name: view["rows"] for name, view in listed.items()} == {"orders live": 1}

        place_orders(cli, {"total": 4})
        late = state_of(cli, "orders live", *own)
        assert (late["condition"], late["behind"]) == ("behind", 1)
        (view,) = cli("projections", "check", "orders", *own, "--json", status=0).json["views"]
        assert (view["verdict"], late["next"] in view["message"]) == ("behind", True)
        follow(cli, late["next"])
        edit(cli.folder / "v.db", "UPDATE orders SET total = 8")
        cli("projections", "check", *own, status=3)
        (again,) = cli("projections", "rebuild", "--all", "--compare", *own, "--json", status=0).json["views"]
        assert (again["old"], again["comparison"]["differing"]) == ("kept", 1)
        follow(cli, state_of(cli, "orders kept", *own)["next"])
        cli("projections", "check", *own, status=0)
        assert cli("projections", "drop", "orders", "--live", "--yes", *own, "--json").json["dropped"] == ["live"]
        assert "orders" not in tables_of(cli.folder / "v.db")

    def test_the_environment_names_the_file_as_well(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        place_orders(cli, {"total": 3})
        cli("projections", "rebuild", "orders", *own, env={"EVENTLOG_VIEWS": "v.db"}, status=0)
        assert "orders" in tables_of(cli.folder / "v.db")
        assert "orders live" not in views_of(cli("projections", "status", *own, "--json", status=0))

    @pytest.mark.parametrize("words", [("list",), ("status",), ("check",), ("resume", "runs"), ("drop", "runs")])
    def test_a_file_that_is_not_there_is_not_made_by_looking(
        self, cli: HereCommandLine, words: tuple[str, ...]
    ) -> None:
        ended = cli("projections", *words, "--into", "v.db", "--json", status=2)
        assert (ended.json["error"], ended.json["message"]) == (
            "store_not_found",
            "there is no database of views at 'v.db'",
        )
        assert not (cli.folder / "v.db").exists()

    def test_what_is_no_place_for_views_is_refused(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        assert "apart from the log" in cli("projections", "status", "--into", "a.db", status=2).error
        words = ("--into", "v.db", "--processes", "2")
        assert "not for --into" in cli("projections", "rebuild", "orders", *own, *words, status=2).error
        (cli.folder / "text").write_text("no database at all, and long enough to be looked at" * 30, encoding="utf-8")
        ended = cli("projections", "status", "--into", "text", "--json", status=2)
        assert ended.json["error"] == "store_not_eventlog"


class TestConsumers:
    @pytest.mark.parametrize("into", [None, "letters.db"])
    def test_status_shows_them_and_doctor_those_that_nobody_runs(self, cli: HereCommandLine, into: str | None) -> None:
        place = None if into is None else cli.folder / into
        asyncio.run(consume(cli.folder / "a.db", place))
        words = () if into is None else ("--into", into)

        def consumer() -> dict[str, Any]:
            (found,) = cli("projections", "status", *words, "--json", status=0).json["consumers"]
            assert isinstance(found, dict)
            return found

        assert (consumer()["name"], consumer()["position"], consumer()["condition"]) == ("letters", 2, "ok")
        assert consumer()["place"] == str(place or cli.folder / "a.db")
        assert not consumers_in_doctor(cli)
        cli("start", "run-2", "--output", "x", status=0)
        assert (consumer()["condition"], consumer()["head"], consumer()["behind"]) == ("behind", 4, 2)
        assert cli("projections", "status", "letters", *words, "--json", status=0).json["views"] == []
        assert "letters\tconsumer\tbehind\t-\t2\t4\t50\t-\t-\n" in cli("projections", "status", *words).text
        said = cli("projections", "status", *words, "--format", "human", status=0).text
        assert "letters, consumer: behind the log, and nobody runs it\n    position 2 of 4, 2 behind" in said
        if into is None:
            assert consumers_in_doctor(cli) == ["letters has handled 2 of 4 events; nobody runs it"]

    def test_they_are_shown_beside_the_views_of_their_file(self, cli: HereCommandLine, program: Program) -> None:
        own = (*program.named(), "--into", "v.db")
        place_orders(cli, {"total": 3})
        cli("projections", "rebuild", "orders", *own, status=0)
        asyncio.run(consume(cli.folder / "a.db", cli.folder / "v.db"))
        status = cli("projections", "status", *own, "--json", status=0).json
        assert [view["name"] for view in status["views"]] == ["orders"]
        assert [(each["name"], each["condition"]) for each in status["consumers"]] == [("letters", "ok")]

    async def test_one_that_somebody_runs_is_running(self, cli: HereCommandLine) -> None:
        async with eventlog.open(cli.folder / "a.db") as log:
            task, _ = await begun(log, None)
            ended = await asyncio.to_thread(cli, "projections", "status", "--json", status=0)
            task.cancel()
            await asyncio.wait({task})
        assert [each["condition"] for each in ended.json["consumers"]] == ["running"]


def consumers_in_doctor(cli: CommandLine) -> list[str]:
    checks = cli("doctor", "--json", status=0).json["checks"]
    return [check["found"] for check in checks if check["name"] == "consumer_stopped"]


async def consume(path: Path, into: Path | None) -> None:
    """Let the consumer `letters` handle all that there is, and end it."""
    async with eventlog.open(path) as log:
        task, consumer = await begun(log, into)
        await consumer.wait_for((await log.head()).position)
        task.cancel()
        await asyncio.wait({task})


async def begun(log: Any, into: Path | None) -> tuple[asyncio.Task[None], Consumer]:
    consumer = Consumer(log, "letters", lambda connection, event: None, into=into)
    task = asyncio.create_task(consumer.run())
    await consumer.wait_for(1)
    return task, consumer


class TestWords:
    def test_one_event_is_one_event(self, cli: HereCommandLine) -> None:
        export = ("export", "--format", "jsonl", "--to", "-")
        assert cli(*export, "--limit", "1", status=0).error == "exported 1 event\n"
        assert cli(*export, status=0).error == "exported 2 events\n"

    def test_doctor_names_what_brings_a_view_up(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 3})
        checks = {check["name"]: check for check in cli("doctor", "--json", status=0).json["checks"]}
        assert "`eventlog --db a.db projections resume orders`" in checks["views"]["hint"]


class Notes(RowProjection):
    """A row for each note."""

    name = "notes"
    event_types = frozenset({"noted"})
    columns: ClassVar[Mapping[str, str]] = {"number": "INTEGER PRIMARY KEY", "text": "TEXT NOT NULL"}

    def key(self, event: ViewEvent) -> int:
        return event.position

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        return {"number": event.position, "text": event.data}


async def append_notes(path: Path, views: list[SqliteView], *, count: int = 3, text: str = "x") -> None:
    async with eventlog.open(path, views=views) as log:
        await log.append("notes", _notes(count, text), expect=Expect.any())


def _notes(count: int, text: str) -> list[NewEvent]:
    return [NewEvent("noted", text) for _ in range(count)]


def command_in(hint: str) -> str:
    """Return the command that a hint ends with."""
    return hint.rpartition(":  ")[2]


def test_a_hint_ends_with_a_command(cli: HereCommandLine) -> None:
    ended: Ended = cli("projections", "resume", "timeline", "--json", status=2)
    assert command_in(ended.json["hint"]) == "eventlog --db a.db projections rebuild timeline"

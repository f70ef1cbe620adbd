"""`eventlog projections`: what it says of views, builds again, proves, drops; and the gate behind the view of runs."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final
from uuid import uuid4

import pytest

import eventlog
from eventlog import Expect, NewEvent
from eventlog.cli import build_line as build_lines
from eventlog.cli.build_line import build_line
from eventlog.cli.options import Options
from eventlog.stores.sqlite.views import Views
from eventlog.views import ViewBuild, ViewEvent
from projections import RUNS, RowProjection, RunsProjection, SqliteView, check_view
from projections.projection import Row
from tests.command_line import CommandLine, Ended, HereCommandLine, edit, environment

ORDERS: Final = '''
import os, time
from projections import GroupProjection, RowProjection, SqliteView

class Orders(RowProjection):
    """The total of each customer. It cannot fold what is bad as long as there is no file `mended`."""

    name = "orders"
    revision = {revision}
    event_types = frozenset({{"order_placed"}})
    columns = {{"customer": "TEXT PRIMARY KEY", "total": "INTEGER NOT NULL", "count": "INTEGER NOT NULL"}}

    def key(self, event):
        return event.stream

    def apply(self, row, event):
        if event.data.get("bad") and not os.path.exists("mended"):
            raise ValueError("it is bad \\u202e")
        while event.data["total"] == 1500 and os.path.exists("held"):
            open("held-at-1500", "w").close()
            time.sleep(0.01)
        row = row or {{"customer": event.stream, "total": 0, "count": 0}}
        return {{**row, "total": row["total"] + event.data["total"], "count": row["count"] + {counts}}}

class Sizes(Orders):
    name = "sizes"

class Runs(Orders):
    name = "runs"

an_object = Orders()
a_view = SqliteView(Orders())
a_list = [Orders, Sizes()]
a_tuple = (Orders(), SqliteView(Sizes()))
twice = [Orders, Orders()]
nothing = []
a_number = 7

def a_function():
    print("made")
    return a_list

def failing():
    raise RuntimeError("not today")
'''


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """A program with projections of its own in the folder of the log; each has a module name of its own."""
    program = Program(tmp_path)
    yield program
    for name in program.names:
        sys.modules.pop(name, None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


class Program:
    """The module that `--projections` names."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self.names: Final[list[str]] = []

    def named(self, name: str = "Orders", *, revision: int = 1, counts: int = 1) -> tuple[str, str]:
        """Write the module and return the option."""
        module = f"own_{uuid4().hex}"
        self.names.append(module)
        (self.folder / f"{module}.py").write_text(ORDERS.format(revision=revision, counts=counts), encoding="utf-8")
        return "--projections", f"{module}:{name}"


@pytest.fixture
def cli(tmp_path: Path) -> HereCommandLine:
    """A log of three runs, positions 1 to 6."""
    here = HereCommandLine(tmp_path, "--db", "a.db")
    for number in (1, 2, 3):
        here("start", f"run-{number}", "--output", "draft.txt", status=0)
    return here


def place_orders(cli: CommandLine, *orders: dict[str, Any], stream: str = "ann") -> None:
    lines = b"".join(json.dumps({"type": "order_placed", "data": order}).encode() + b"\n" for order in orders)
    cli("events", "append", stream, "--from", "-", "--expect", "any", stdin=lines, status=0)


def views_of(ended: Ended) -> dict[str, dict[str, Any]]:
    """Return what was said of each view by name and state."""
    return {f"{view['name']} {view['state']}": view for view in ended.json["views"]}


def differences_of(ended: Ended) -> list[tuple[str, list[str]]]:
    (view,) = ended.json["views"]
    return [(each["key"], each["columns"]) for each in view["differences"]]


class TestWhatThereIs:
    def test_each_view_is_listed_with_both_revisions_its_position_and_its_rows(self, cli: HereCommandLine) -> None:
        listed = views_of(cli("projections", "list", "--json", status=0))
        runs = listed["runs live"]
        assert (runs["known_revision"], runs["revision"], runs["rows"]) == (RUNS.revision, RUNS.revision, 3)
        assert (runs["condition"], runs["position"], runs["head"], runs["percent"]) == ("ok", 6, 6, 100)
        assert listed["timeline absent"]["revision"] is None
        assert f"runs\tlive\tok\t{RUNS.revision}\t{RUNS.revision}\t6\t0\t3\n" in cli("projections", "list").text
        assert "in the log" in cli("projections", "list", "--format", "human", status=0).text

    def test_one_that_is_late_is_shown_with_what_brings_it_up(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 3}, {"total": 4})
        late = views_of(cli("projections", "status", "orders", *own, "--json", status=0))["orders live"]
        assert (late["condition"], late["behind"], late["percent"]) == ("behind", 2, 75)
        follow(cli, late["next"])
        assert cli("projections", "status", "orders", *own, "--json").json["views"][0]["condition"] == "ok"

    def test_a_look_brings_nothing_up_and_builds_nothing(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 3})
        raised = program.named(revision=2)
        for words in (("list",), ("status",), ("check",)):
            cli("projections", *words, *raised)
        state = views_of(cli("projections", "status", *raised, "--json", status=0))["orders live"]
        assert (state["condition"], state["revision"], state["known_revision"]) == ("outdated", 1, 2)
        assert (state["position"], "rebuild" in state["next"]) == (6, True)

    def test_a_view_of_another_program_is_unknown_here_and_one_of_a_later_one_is_left_to_it(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        cli("projections", "rebuild", "orders", *program.named(revision=2), status=0)
        unknown = views_of(cli("projections", "status", "--json", status=0))["orders live"]
        assert (unknown["condition"], unknown["known_revision"], unknown["next"]) == ("unknown_here", None, None)
        assert "unknown here" in cli("projections", "status", "--format", "human", status=0).text
        earlier = program.named(revision=1)
        assert views_of(cli("projections", "status", *earlier, "--json"))["orders live"]["condition"] == "later"
        ended = cli("projections", "rebuild", "orders", *earlier, "--json", status=2)
        assert ended.json["error"] == "view_overtaken"

    @pytest.mark.parametrize("words", [("status",), ("rebuild",), ("check",), ("resume",), ("drop",)])
    def test_a_name_that_nothing_has_is_refused_with_a_near_one(
        self, cli: HereCommandLine, program: Program, words: tuple[str, ...]
    ) -> None:
        ended = cli("projections", *words, "run", "--json", status=2)
        assert (ended.json["error"], ended.json["details"]["view"]) == ("unknown_view", "run")
        assert "did you mean 'runs'?" in ended.json["message"]
        if words[0] not in ("status", "drop"):  # which go by what the log says of such a view
            cli("projections", "rebuild", "orders", *program.named(), status=0)
            message = cli("projections", *words, "orders", "--json", status=2).json["message"]
            assert "does not know its projection" in message

    def test_no_log_is_no_log(self, tmp_path: Path) -> None:
        here = HereCommandLine(tmp_path, "--db", "none.db")
        for words in (("list",), ("status",), ("check",), ("rebuild", "runs"), ("resume", "runs"), ("drop", "runs")):
            assert here("projections", *words, "--json", status=2).json["error"] == "store_not_found"
        assert list(tmp_path.iterdir()) == []


class TestTheCallersOwn:
    @pytest.mark.parametrize("name", ["Orders", "an_object", "a_view", "a_list", "a_tuple", "a_function"])
    def test_whatever_gives_projections_is_taken(self, cli: HereCommandLine, program: Program, name: str) -> None:
        place_orders(cli, {"total": 3}, {"total": 4})
        own = program.named(name)
        ended = cli("projections", "rebuild", "orders", *own, "--json", status=0)
        assert ended.json["views"][0]["position"] == 8
        assert rows(cli, "orders") == [("ann", 7, 2)]

    def test_the_environment_names_them_as_well(self, cli: HereCommandLine, program: Program) -> None:
        _, named = program.named()
        listed = cli("projections", "list", "--json", env={"EVENTLOG_PROJECTIONS": named}, status=0)
        assert "orders absent" in views_of(listed)

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("", "that is not MODULE:NAME"),
            ("absent", "has no 'absent'"),
            ("a_number", "it gives a int, and no projection"),
            ("nothing", "it gives no projection"),
            ("failing", "it fails: RuntimeError: not today"),
            ("Runs", "the name 'runs' is that of a view that ships with the engine"),
            ("twice", "two of its projections have the name 'orders'"),
        ],
    )
    def test_what_gives_none_is_refused_and_says_why(
        self, cli: HereCommandLine, program: Program, name: str, why: str
    ) -> None:
        ended = cli("projections", "list", *program.named(name), "--json", status=2)
        assert (ended.json["error"], why in ended.json["message"]) == ("projections_unusable", True), ended.json

    def test_a_module_that_is_not_there_is_refused(self, cli: HereCommandLine) -> None:
        ended = cli("verify", "--projections", "not_there:X", "--json", status=2)
        assert "cannot import 'not_there'" in ended.json["message"]


class TestTheGate:
    """Real processes throughout: whoever edits the view and whoever resumes do not share one."""

    def test_an_edited_row_is_found_refused_and_mended_and_then_the_run_resumes(self, tmp_path: Path) -> None:
        cli = CommandLine(tmp_path, "--db", "a.db")
        proposal = cli("start", "run-1", "--output", "draft.txt", status=0).json["proposal_hash"]
        cli("start", "run-2", "--output", "other.txt", status=0)
        cli("approve", "run-1", "--proposal-hash", proposal, status=0)
        assert cli("projections", "check", "runs", "--json", status=0).json["views"][0]["rows"] == 2
        assert edit(tmp_path / "a.db", "UPDATE runs SET args = '{\"content\":\"evil\"}' WHERE run_id = 'run-1'") == 1

        ended = cli("projections", "check", "runs", "--json", status=3)
        (difference,) = ended.json["views"][0]["differences"]
        assert (difference["key"], difference["columns"]) == ("run-1", ["args"])
        assert difference["stored"]["args"] == '{"content":"evil"}'
        assert difference["expected"]["args"] == '{"content":"approved technical brief"}'
        shown = cli("projections", "check", "runs", "--format", "human", status=3).text
        assert "row 'run-1':" in shown and 'stored \'{"content":"evil"}\', expected \'{"content":"appr' in shown
        assert cli("verify", "--json", status=3).json["views"]["problems"][0]["reason"] == "view_differs"
        assert cli("resume", "run-1", status=2).json == {"error": "proposal_hash_mismatch"}
        assert not (tmp_path / "draft.txt").exists()

        rebuilt = cli("projections", "rebuild", "runs", "--compare", "--json", status=0).json["views"][0]
        assert (rebuilt["outcome"], rebuilt["comparison"]["differing"]) == ("exchanged", 1)
        cli("projections", "check", "runs", status=0)
        assert cli("resume", "run-1", status=0).json["result"] == "executed"
        assert (tmp_path / "draft.txt").read_text(encoding="utf-8") == "approved technical brief"
        assert cli("verify", "--json", status=0).json["views"]["verdict"] == "ok"


OTHERS: Final = ", ".join(name for name in RUNS.columns if name != "run_id")
"""The columns of the view of runs behind its key."""


class TestCheck:
    @pytest.mark.parametrize(
        ("statement", "key", "side"),
        [
            ("DELETE FROM runs WHERE run_id = 'run-2'", "run-2", "in the log, but not in the view"),
            (
                f"INSERT INTO runs (run_id, {OTHERS}) SELECT 'run-0', {OTHERS} FROM runs LIMIT 1",
                "run-0",
                "in the view, but not in the log",
            ),
        ],
    )
    def test_a_row_that_one_side_lacks_differs(self, cli: HereCommandLine, statement: str, key: str, side: str) -> None:
        edit(cli.folder / "a.db", statement)
        assert [each for each, _ in differences_of(cli("projections", "check", "runs", "--json", status=3))] == [key]
        assert side in cli("projections", "check", "runs", "--format", "human", status=3).text

    def test_only_the_first_rows_are_shown_and_all_are_counted(self, cli: HereCommandLine) -> None:
        edit(cli.folder / "a.db", "UPDATE runs SET output = 'x'")
        ended = cli("projections", "check", "--all", "--limit", "2", "--json", status=3)
        view = ended.json["views"][0]
        assert (view["rows"], view["differing"], len(view["differences"])) == (3, 3, 2)
        assert "… and 1 more rows" in cli("projections", "check", "--limit", "2", "--format", "human").text
        lines = cli("projections", "check", "--limit", "2", "--format", "plain").text.splitlines()
        assert lines[1].split("\t") == ["difference", "runs", "run-1", "output", '"x"', '"draft.txt"']

    def test_one_that_is_late_is_right_up_to_where_it_is_unless_it_was_edited(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        place_orders(cli, {"total": 3})
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 4})
        (view,) = cli("projections", "check", "orders", *own, "--json", status=0).json["views"]
        assert (view["verdict"], view["position"], view["head"]) == ("behind", 7, 8)
        edit(cli.folder / "a.db", "UPDATE orders SET total = 7")  # what it would be at the head
        assert differences_of(cli("projections", "check", "orders", *own, "--json", status=3)) == [("ann", ["total"])]

    def test_a_value_of_another_type_differs_though_it_is_equal(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        place_orders(cli, {"total": 3})
        cli("projections", "rebuild", "orders", *own, status=0)
        connection = sqlite3.connect(cli.folder / "a.db", isolation_level=None)
        connection.execute("DROP TABLE orders")
        connection.execute("CREATE TABLE orders (customer TEXT PRIMARY KEY, total REAL, count INTEGER) STRICT")
        connection.execute("INSERT INTO orders VALUES ('ann', 3.0, 1)")
        connection.close()
        assert differences_of(cli("projections", "check", "orders", *own, "--json", status=3)) == [("ann", ["total"])]

    def test_one_that_has_seen_more_than_the_log_holds_differs(self, cli: HereCommandLine) -> None:
        edit(cli.folder / "a.db", "UPDATE views SET position = 9 WHERE name = 'runs'")
        (view,) = cli("projections", "check", "runs", "--json", status=3).json["views"]
        assert view["reason"] == "view_ahead"

    def test_one_of_another_revision_or_that_is_not_there_cannot_be_compared(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        cli("projections", "rebuild", "orders", *program.named(), status=0)
        (view,) = cli("projections", "check", "orders", *program.named(revision=2), "--json", status=4).json["views"]
        assert (view["verdict"], view["reason"]) == ("unknown", "view_outdated")
        assert cli("projections", "check", "timeline", "--json", status=4).json["views"][0]["verdict"] == "absent"

    def test_without_a_name_those_that_are_known_here_are_checked_and_the_others_named(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        cli("projections", "rebuild", "orders", *program.named(), status=0)
        ended = cli("projections", "check", "--json", status=0)
        assert [view["name"] for view in ended.json["views"]] == ["runs", "approvals", "effects"]
        assert "orders is not checked" in ended.error

    def test_nothing_is_written(self, cli: HereCommandLine) -> None:
        cli("projections", "check", status=0)
        before = (cli.folder / "a.db").read_bytes()
        cli("projections", "check", status=0)
        assert (cli.folder / "a.db").read_bytes() == before


class TestRebuild:
    def test_what_was_there_is_kept_until_it_is_dropped(self, cli: HereCommandLine) -> None:
        rebuilt = cli("projections", "rebuild", "runs", "--json", status=0).json["views"][0]
        assert (rebuilt["events"], rebuilt["old"], rebuilt["comparison"]) == (6, "kept", None)
        kept = views_of(cli("projections", "status", "--json", status=0))["runs kept"]
        follow(cli, kept["next"])
        assert "runs kept" not in views_of(cli("projections", "status", "--json", status=0))
        assert cli("projections", "drop", "runs", "--json", status=0).json == {"name": "runs", "dropped": []}
        assert cli("projections", "rebuild", "runs", "--drop-old", "--json").json["views"][0]["old"] == "dropped"
        assert "runs kept" not in views_of(cli("projections", "status", "--json", status=0))

    def test_a_dry_run_compares_and_leaves_everything_as_it_was(self, cli: HereCommandLine) -> None:
        ended = cli("projections", "rebuild", "runs", "--dry-run", "--json", status=0)
        assert (ended.json["views"][0]["outcome"], ended.json["views"][0]["old"]) == ("compared", "untouched")
        edit(cli.folder / "a.db", "UPDATE runs SET output = 'x' WHERE run_id = 'run-2'")
        ended = cli("projections", "rebuild", "runs", "--dry-run", "--json", status=3)
        (difference,) = ended.json["views"][0]["comparison"]["differences"]
        assert (difference["key"], difference["columns"]) == ("run-2", ["output"])
        assert set(views_of(cli("projections", "status", "--json"))) >= {"runs live"}
        assert not {"runs building", "runs kept"} & views_of(cli("projections", "status", "--json")).keys()
        cli("projections", "check", "runs", status=3)
        cli("projections", "rebuild", "timeline", "--dry-run", status=4)

    def test_a_raised_revision_may_differ(self, cli: HereCommandLine, program: Program) -> None:
        place_orders(cli, {"total": 3})
        cli("projections", "rebuild", "orders", *program.named(), status=0)
        raised = program.named(revision=2, counts=10)
        ended = cli("projections", "rebuild", "orders", *raised, "--dry-run", "--json", status=0)
        assert ended.json["views"][0]["comparison"]["differing"] == 1
        rebuilt = cli("projections", "rebuild", "orders", *raised, "--json", status=0).json["views"][0]
        assert (rebuilt["revision_before"], rebuilt["revision"]) == (1, 2)
        assert rows(cli, "orders") == [("ann", 3, 10)]
        cli("projections", "check", "orders", *raised, status=0)

    def test_all_are_those_of_the_log_that_are_known_and_one_that_fails_does_not_stop_the_others(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named("a_list")
        for name in ("orders", "sizes"):
            cli("projections", "rebuild", name, *own, status=0)
        place_orders(cli, {"total": 3, "bad": True})
        ended = cli("projections", "rebuild", "--all", *own, "--json", status=2)
        outcomes = {view["name"]: (view["outcome"], view.get("error")) for view in ended.json["views"]}
        failed = ("failed", "view_failed")
        kept = dict.fromkeys(("runs", "approvals", "effects"), ("exchanged", None))
        assert outcomes == {**kept, "orders": failed, "sizes": failed}
        (cli.folder / "mended").touch()
        rebuilt = cli("projections", "rebuild", "--all", *own, "--json", status=0).json["views"]
        assert {view["name"]: view["events"] for view in rebuilt}["orders"] == 1

    def test_an_event_of_an_unknown_type_stops_it_unless_that_is_allowed(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        cli("events", "append", "x", "--from", "-", "--expect", "0", stdin=b'{"type": "strange", "data": 1}', status=0)
        ended = cli("projections", "rebuild", "orders", *own, "--json", status=2)
        assert (ended.json["error"], "strange" in ended.json["message"]) == ("event_type_unknown", True)
        cli("projections", "rebuild", "orders", *own, "--allow-unknown", status=0)

    def test_a_bar_with_rate_is_drawn_on_a_terminal_only_and_can_be_switched_off(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        place_orders(cli, *({"total": number} for number in range(2500)))
        said = on_terminal(cli, "projections", "rebuild", "orders", *own)
        assert "building orders" in said and "events/s" in said
        assert "building orders" not in on_terminal(cli, "projections", "rebuild", "orders", *own, "--no-progress")
        assert cli("projections", "rebuild", "orders", *own, status=0).err == b""

    def test_either_a_name_or_all(self, cli: HereCommandLine) -> None:
        for words in ((), ("runs", "--all")):
            assert "Either NAME or --all." in cli("projections", "rebuild", *words, status=2).error

    def test_one_that_is_interrupted_says_so_and_goes_on_where_it_was(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        place_orders(cli, *({"total": number} for number in range(2000)), stream="ann")
        (cli.folder / "held").touch()
        with building(cli, *own) as process:
            status = views_of(cli("projections", "status", "orders", *own, "--json"))["orders building"]
            assert (status["condition"], status["position"], status["percent"]) == ("building", 1000, 49)
            info = cli("db", "info", "--json", status=0).json
            assert info["views_building"] == {"orders/1 (building)": "49 %"}
            assert cli("projections", "rebuild", "orders", *own, "--json", status=5).json["error"] == "view_busy"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, b"")
        assert b"interrupted; the view orders is as it was, and is built up to position 1000" in err
        assert b"Traceback" not in err

        (cli.folder / "held").unlink()
        left = views_of(cli("projections", "status", "orders", *own, "--json"))["orders building"]
        assert left["condition"] == "interrupted"
        doctor = cli("doctor", "--json", status=0).json["checks"]
        assert "orders/1 (building) is built up to 49 %" in [check["found"] for check in doctor]
        assert b"go on with:  " + left["next"].encode() in err
        follow(cli, left["next"])
        assert rows(cli, "orders") == [("ann", sum(range(2000)), 2000)]
        cli("projections", "check", "orders", *own, status=0)

    def test_anew_throws_away_what_was_interrupted(self, cli: HereCommandLine, program: Program) -> None:
        own = program.named()
        place_orders(cli, *({"total": number} for number in range(2000)), stream="ann")
        (cli.folder / "held").touch()
        with building(cli, *own) as process:
            process.kill()
        (cli.folder / "held").unlink()
        rebuilt = cli("projections", "rebuild", "orders", *own, "--anew", "--json", status=0).json["views"][0]
        assert (rebuilt["began_after"], rebuilt["events"]) == (0, 2006)


@contextmanager
def building(cli: CommandLine, *own: str) -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that builds `orders` and stands still inside the second page, having written the first."""
    words = CommandLine(cli.folder, "--db", "a.db").argv("projections", "rebuild", "orders", *own)
    process = subprocess.Popen(words, cwd=cli.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while not (cli.folder / "held-at-1500").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


class TestAStoppedView:
    @pytest.fixture
    def own(self, cli: HereCommandLine, program: Program) -> tuple[str, str]:
        """A view that stopped in front of position 8, a bad event; there are two good ones behind it."""
        own = program.named()
        cli("projections", "rebuild", "orders", *own, status=0)
        place_orders(cli, {"total": 3}, {"total": 4, "bad": True}, {"total": 5}, {"total": 6})
        cli("projections", "resume", "orders", *own, status=2)
        return own

    def test_it_says_where_and_why_and_the_others_go_on(self, cli: HereCommandLine, own: tuple[str, str]) -> None:
        ended = cli("projections", "resume", "orders", *own, "--json", status=2)
        assert ended.json["error"] == "view_failed"
        assert (ended.json["details"]["position"], ended.json["details"]["stream"]) == (8, "ann")
        state = views_of(cli("projections", "status", *own, "--json", status=0))["orders live"]
        assert (state["condition"], state["position"], state["head"], state["percent"]) == ("stopped", 7, 10, 70)
        assert state["problem"] == {
            "position": 8,
            "type": "order_placed",
            "stream": "ann",
            "error": "ValueError: it is bad \u202e",
        }
        human = cli("projections", "status", "orders", *own, "--format", "human", status=0).text
        assert "at position 8, order_placed of ann: ValueError: it is bad \\u202e" in human
        assert f"next: {state['next']}" in human
        cli("start", "run-4", "--output", "x", status=0)
        assert views_of(cli("projections", "status", *own, "--json"))["runs live"]["condition"] == "ok"

    def test_the_next_command_goes_on_once_the_projection_is_mended(
        self, cli: HereCommandLine, own: tuple[str, str]
    ) -> None:
        state = views_of(cli("projections", "status", *own, "--json", status=0))["orders live"]
        (cli.folder / "mended").touch()
        resumed = follow(cli, state["next"], "--json").json
        assert (resumed["stopped_at"], resumed["position_before"], resumed["position"]) == (8, 7, 10)
        assert rows(cli, "orders") == [("ann", 18, 4)]
        state = views_of(cli("projections", "status", *own, "--json", status=0))["orders live"]
        assert (state["condition"], state["problem"], state["next"]) == ("ok", None, None)

    def test_a_check_says_that_it_is_right_up_to_there(self, cli: HereCommandLine, own: tuple[str, str]) -> None:
        (view,) = cli("projections", "check", "orders", *own, "--json", status=0).json["views"]
        assert (view["verdict"], view["position"], view["problem"]["position"]) == ("stopped", 7, 8)
        edit(cli.folder / "a.db", "UPDATE orders SET count = 9")
        cli("projections", "check", "orders", *own, status=3)

    def test_info_and_doctor_name_it(self, cli: HereCommandLine, own: tuple[str, str]) -> None:
        said = "at position 8, order_placed of ann: ValueError: it is bad \u202e"
        assert cli("db", "info", "--json", status=0).json["views_stopped"] == {"orders/1": said}
        checks = {check["name"]: check for check in cli("doctor", "--json", status=0).json["checks"]}
        assert (checks["view_stopped"]["state"], checks["view_stopped"]["found"]) == ("warn", f"orders/1 {said}")

    def test_a_build_that_fails_says_so_and_the_old_view_serves(
        self, cli: HereCommandLine, own: tuple[str, str], program: Program
    ) -> None:
        raised = program.named(revision=2)
        assert cli("projections", "rebuild", "orders", *raised, "--json", status=2).json["error"] == "view_failed"
        states = views_of(cli("projections", "status", *raised, "--json", status=0))
        assert (states["orders live"]["revision"], states["orders building"]["condition"]) == (1, "stopped")
        assert rows(cli, "orders") == [("ann", 3, 1)]
        (cli.folder / "mended").touch()
        follow(cli, states["orders building"]["next"])
        assert rows(cli, "orders") == [("ann", 18, 4)]

    def test_one_of_an_earlier_revision_is_not_resumed(
        self, cli: HereCommandLine, own: tuple[str, str], program: Program
    ) -> None:
        ended = cli("projections", "resume", "orders", *program.named(revision=2), "--json", status=2)
        assert ended.json["error"] == "view_outdated"
        assert cli("projections", "resume", "timeline", "--json", status=2).json["error"] == "unknown_view"


class TestDrop:
    def test_a_live_view_is_dropped_only_by_who_says_yes(self, cli: HereCommandLine) -> None:
        for words in (("--live",), ("--live", "--no-input")):
            assert "Nothing was dropped" in cli("projections", "drop", "runs", *words, stdin=b"runs\n", status=2).error
        cli("projections", "rebuild", "runs", status=0)
        ended = cli("projections", "drop", "runs", "--live", "--yes", "--json", status=0)
        assert ended.json["dropped"] == ["live", "kept"]
        assert "runs live" not in views_of(cli("projections", "status", "--json", status=0))
        assert len(cli("runs", "list", "--json", status=0).json["runs"]) == 3, "it is folded again"

    @pytest.mark.parametrize(("answer", "status"), [(b"runs\n", 0), (b"y\n", 2), (b"\n", 2)])
    def test_on_a_terminal_the_name_is_asked_for(self, cli: HereCommandLine, answer: bytes, status: int) -> None:
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            CommandLine(cli.folder, "--db", "a.db").argv("projections", "drop", "runs", "--live"),
            cwd=cli.folder,
            env=environment(TERM="dumb"),
            stdin=follower,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(follower)
        os.write(leader, answer)
        _, err = process.communicate(timeout=30)
        os.close(leader)
        assert (process.returncode, b"Type its name" in err) == (status, True)
        is_there = "runs live" in views_of(cli("projections", "status", "--json", status=0))
        assert is_there is (status != 0)


class TestVerify:
    def test_every_view_that_is_known_here_is_checked_and_the_others_are_named(
        self, cli: HereCommandLine, program: Program
    ) -> None:
        own = program.named()
        place_orders(cli, {"total": 3})
        cli("projections", "rebuild", "orders", *own, status=0)
        edit(cli.folder / "a.db", "UPDATE orders SET total = 4")
        views = cli("verify", "--json", status=0).json["views"]
        assert (views["verdict"], [view["name"] for view in views["checked"]]) == (
            "ok",
            ["approvals", "effects", "runs"],
        )
        assert [(view["name"], view["revision"]) for view in views["not_checked"]] == [("orders", 1)]
        assert "orders, revision 1: not checked" in cli("verify", "--format", "human", status=0).text

        views = cli("verify", *own, "--json", status=3).json["views"]
        assert (views["verdict"], views["problem_count"]) == ("differs", 1)
        kept = dict.fromkeys(("approvals", "effects", "runs"), "ok")
        assert {view["name"]: view["verdict"] for view in views["checked"]} == {**kept, "orders": "differs"}
        (problem,) = views["problems"]
        assert problem["message"] == "row 'ann' of the view 'orders' differs from its log in total"

    def test_one_of_another_revision_is_named_and_not_checked(self, cli: HereCommandLine, program: Program) -> None:
        cli("projections", "rebuild", "orders", *program.named(), status=0)
        views = cli("verify", *program.named(revision=2), "--json", status=0).json["views"]
        assert "this program folds 2" in views["not_checked"][0]["why"]


class Raised(RunsProjection):
    """The view of runs as a later program has it."""

    revision = RUNS.revision + 1


async def append_notes(path: Path, count: int) -> None:
    async with eventlog.open(path) as log:
        await log.append("notes", [NewEvent("noted", number) for number in range(count)], expect=Expect.any())


class TestOpening:
    async def test_a_raised_revision_tells_how_far_it_is_built(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.stores.sqlite.views._BUILD_PAGE", 50)
        path = tmp_path / "a.db"
        async with eventlog.open(path, views=[SqliteView(RUNS)]):
            pass
        await append_notes(path, 60)
        told: list[ViewBuild] = []
        log = eventlog.open(path, views=[SqliteView(Raised())])
        log.tells_builds(told.append)
        async with log:
            assert (await log.health()).views_behind == {f"runs/{Raised.revision}": 0}
        assert told == [ViewBuild(name="runs", revision=Raised.revision, position=50, head=60)]

    @pytest.mark.parametrize("patience_s", [0.0, 3600.0])
    def test_on_a_terminal_a_line_says_so_and_is_taken_away_but_only_after_a_while(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], patience_s: float
    ) -> None:
        monkeypatch.setattr(build_lines, "PATIENCE_S", patience_s)
        monkeypatch.setattr(Options, "shows_progress", True)
        with build_line(Options([])) as show:
            for position in (1200, 5000):
                show(ViewBuild(name="runs", revision=4, position=position, head=10_000))
        said = capsys.readouterr().err
        lines = [f"building the view runs, revision 4: {share} %" for share in (12, 50)]
        assert said.split("\r") == (["", *lines, " " * len(lines[0]), ""] if patience_s == 0 else [""])

    def test_elsewhere_nothing_is_said(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(build_lines, "PATIENCE_S", 0.0)
        with build_line(Options(["--no-progress"])) as show:
            show(ViewBuild(name="runs", revision=4, position=1, head=2))
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize("forgets", [True, False], ids=["as it is", "negative control"])
    async def test_two_processes_that_build_by_turns_come_to_what_the_log_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
    ) -> None:
        """Each keeps rows from page to page; what the other has written meanwhile must not be lost."""
        if not forgets:
            monkeypatch.setattr("eventlog.stores.sqlite.views._Build.go_on_from", lambda self, entry: None)
        monkeypatch.setattr("eventlog.stores.sqlite.views._BUILD_PAGE", 100)
        path = tmp_path / "a.db"
        view, raised = SqliteView(Counts()), SqliteView(NextCounts())
        async with eventlog.open(path, views=[view]):
            pass
        await append_notes(path, 400)
        async with eventlog.open(path) as log:
            builders = [Views([raised], log.scan_of), Views([raised], log.scan_of)]

            def build(connection: sqlite3.Connection) -> int:
                turns = 0
                while builders[turns % 2].prepare_page(connection):
                    turns += 1
                return turns

            assert log._writer is not None
            assert await log._writer.run_between(build) == 3
            checked = await check_view(log, raised)
            assert checked is not None
            assert (checked.position, checked.rows, checked.differing) == (400, 1, int(not forgets))


class Counts(RowProjection):
    """How many notes there are."""

    name = "counts"
    event_types = frozenset({"noted"})
    columns: ClassVar[Mapping[str, str]] = {"stream": "TEXT PRIMARY KEY", "count": "INTEGER NOT NULL"}

    def key(self, event: ViewEvent) -> str:
        return event.stream

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        return {"stream": event.stream, "count": (row["count"] if row else 0) + 1}


class NextCounts(Counts):
    """The next revision."""

    revision = 2


def on_terminal(cli: CommandLine, *words: str) -> str:
    """Return what the command says on standard error, on a terminal of its own."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        CommandLine(cli.folder, "--db", "a.db").argv(*words),
        cwd=cli.folder,
        env=environment(TERM="xterm-256color", COLUMNS="100", LINES="30"),
        stdin=follower,
        stdout=subprocess.DEVNULL,
        stderr=follower,
    )
    os.close(follower)
    said = b""
    with suppress(OSError):  # the other end is closed
        while piece := os.read(leader, 65536):
            said += piece
    os.close(leader)
    assert process.wait(timeout=10) == 0
    return said.decode()


def rows(cli: CommandLine, table: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(cli.folder / "a.db")
    try:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    finally:
        connection.close()


def follow(cli: CommandLine, command: str, *more: str) -> Ended:
    """Run a command as it was printed."""
    words: Sequence[str] = shlex.split(command)
    assert words[:3] == ["eventlog", "--db", "a.db"]
    return cli(*words[3:], *more, status=0)

"""The command line on the views that ship: what waits for people, the story of a run, what it has used."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Expect, NewEvent, RunContext, Runner
from eventlog.cli.kept_views import KEPT, ON_DEMAND, SHIPPED
from eventlog.events import run_stream
from eventlog.log import Append
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from eventlog.times import parse_time
from eventlog.views import ViewBuild
from projections import RUNS, TIMELINE, SqliteView, built_in_views, check_view
from tests.command_line import CommandLine, Ended, HereCommandLine, NobodyCommandLine, edit, environment
from tests.effect_runs import Crash, Receiver, Sending, approved, crash_at
from tests.test_cli import BARE, HIDDEN, append_without_views, close

PROPOSAL: Final = eventlog.propose("write_draft", {"content": "approved technical brief"}, "draft.txt")
FORMATS: Final = ("human", "plain", "json", "jsonl")

CRASHES: Final = """
import asyncio, sys
import eventlog
from eventlog import Runner
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.failpoints import crash_at
from eventlog.testing.clock import FakeClock

async def main(run_id, point, now_us):
    clock = FakeClock(int(now_us))
    async with eventlog.open("a.db", clock=clock) as log:
        write = WriteFile(name="write_draft", shows_content=True)
        runner = Runner(log, actions=[write], clock=clock, reach=crash_at(point))
        proposal = eventlog.propose("write_draft", {"content": "x"}, f"{run_id}.txt")
        await runner.propose(run_id, proposal)
        await runner.approve(run_id, proposal.hash)
        await runner.resume(run_id)

asyncio.run(main(*sys.argv[1:]))
"""
"""A program that takes a run up to an effect, as at some time, and dies on the way; then its lease has to run out."""

CRASHES_IN_WORKFLOW: Final = """
import asyncio, sys
import eventlog
from eventlog import Policy, Runner
from eventlog.runtime.failpoints import crash_at
from eventlog.testing.clock import FakeClock

async def pay(call):
    return "paid"

@eventlog.workflow
async def pay_bill(run):
    return await run.act("pay", {"n": 1}, output="bank")

async def main(now_us):
    clock, rules = FakeClock(int(now_us)), {"pay": Policy(auto=True)}
    async with eventlog.open("a.db", clock=clock) as log:
        actions = [eventlog.action("pay", promise="opaque")(pay)]
        reach = crash_at("effect.after")
        runner = Runner(log, workflows=[pay_bill], actions=actions, policies=rules, clock=clock, reach=reach)
        await runner.start(pay_bill, "run-1")

asyncio.run(main(*sys.argv[1:]))
"""

HOUR_US: Final = 3_600_000_000


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


def start(cli: CommandLine, *run_ids: str) -> None:
    for run_id in run_ids:
        cli("start", "--output", f"{run_id}.txt", "--", run_id, status=0)


def approve(cli: CommandLine, run_id: str) -> None:
    digest = cli("runs", "show", "--json", "--", run_id, status=0).json["proposal_hash"]
    cli("approve", "--proposal-hash", digest, "--", run_id, status=0)


def hour_ago() -> int:
    return time.time_ns() // 1000 - HOUR_US


def crash(cli: CommandLine, run_id: str, point: str = "effect.after", at_us: int | None = None) -> None:
    """Leave a run in a process that dies there, an hour ago unless a time is given; before the log has later events."""
    die(cli, CRASHES, run_id, point, str(hour_ago() if at_us is None else at_us))


def die(cli: CommandLine, program: str, *arguments: str) -> None:
    words = [sys.executable, "-c", program, *arguments]
    assert subprocess.run(words, cwd=cli.folder, env=environment(), timeout=60, check=False).returncode == 91


def listed(cli: CommandLine, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = cli("approvals", "list", "--json", *words, status=0).json["approvals"]
    return rows


def follow(cli: CommandLine, command: str, status: int = 0, **places: str) -> Ended:
    """Run a command that an answer named, with what belongs into its places."""
    words = [places.get(word, word) for word in shlex.split(command)]
    assert words[0] == "eventlog"
    return HereCommandLine(cli.folder)(*words[1:], status=status)


def head(cli: CommandLine) -> int:
    position: int = cli("db", "info", "--json", status=0).json["head"]
    return position


# ── the inbox ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def propose(path: Path, *run_ids: str) -> None:
    """Leave requests in a log, by a program that keeps no views."""
    async with eventlog.open(path) as log:
        for run_id in run_ids:
            await Runner(log).propose(run_id, PROPOSAL)


class TestTheInbox:
    def test_a_new_process_offers_the_same_requests_again_and_appends_nothing(self, tmp_path: Path) -> None:
        """Case run-32: pending requests are listed before anything runs; same ids, hashes and arguments."""
        asyncio.run(propose(tmp_path / "a.db", "run-1", "run-2"))
        cli = CommandLine(tmp_path, "--db", "a.db")
        rows = [listed(cli) for _ in range(2)]
        assert rows[0] == rows[1]
        assert [(row["run_id"], row["request_id"], row["proposal_hash"]) for row in rows[0]] == [
            (run_id, f"approval:{run_id}", PROPOSAL.hash) for run_id in ("run-1", "run-2")
        ]
        assert [json.loads(row["args"]) for row in rows[0]] == [PROPOSAL.args] * 2
        assert head(cli) == 4
        assert follow(cli, rows[0][0]["next"][0]).text.endswith(f"--proposal-hash {PROPOSAL.hash} run-1\n")

    def test_no_stream_is_read_for_the_list(self, here: HereCommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
        start(here, "run-1")

        def reads(*_: Any, **__: Any) -> Any:
            raise AssertionError("a stream was read")

        for name in ("read", "read_back", "read_stream"):
            monkeypatch.setattr(SqliteLog, name, reads)
        assert [row["run_id"] for row in listed(here)] == ["run-1"]
        assert "a stream was read" in here("approvals", "show", "run-1", status=1).error

    def test_every_key_of_a_row_is_there_for_everything_that_is_wanted(self, here: HereCommandLine) -> None:
        crash(here, "run-1")
        start(here, "run-2")
        crashed, asked = listed(here)
        assert crashed.keys() == asked.keys()
        assert {
            "run_id", "status", "request_id", "action", "args", "output", "proposal_hash", "approval",
            "approval_request_id", "approval_hash", "executed", "workflow", "parent_run_id", "root_run_id",
            "waiting_for", "step", "expires_at", "wanted",
        } <= asked.keys()  # fmt: skip
        assert (asked["status"], asked["approval"], asked["executed"]) == ("WAITING_FOR_USER", None, 0)


class TestCrashes:
    def test_one_that_nobody_has_looked_after_is_listed_and_its_first_command_ends_it(
        self, here: HereCommandLine
    ) -> None:
        crash(here, "run-1")
        (row,) = listed(here)
        assert (row["run_id"], row["wanted"], row["status"]) == ("run-1", "resume", "APPROVED")
        assert (row["request_id"], row["action"], row["attempts"]) == ("approval:run-1", "write_draft", 1)
        assert (row["began_at"] is not None, parse_time(row["until"]) < time.time_ns() // 1000) == (True, True)
        ended = here("approvals", "list", status=0)
        assert ended.text.split("\t")[:2] == ["run-1", "resume"]
        assert ended.error.startswith("1 of these effects began and have no result") and "reconcile" in ended.error
        before = head(here)
        assert follow(here, row["next"][0]).json["result"] == "recovered"
        assert head(here) > before
        assert listed(here) == []
        assert here("approvals", "list", status=0).err == b""

    def test_a_person_who_found_out_settles_it_by_the_other_command(self, here: HereCommandLine) -> None:
        crash(here, "-r", "intent.after_commit")
        (row,) = listed(here)
        assert row["next"][0] == "eventlog --db a.db resume -- -r"
        look: dict[str, Any] = {"VERDICT": "not_executed", "TEXT": "there is no file"}
        seen = here("approvals", "show", "--json", "--", "-r", status=0).json
        early = follow(here, row["next"][1], status=2, N=str(seen["version"]), **look)
        assert "verdict_stale" in early.error, "nobody had seen then that the attempt is over"
        seen = here("approvals", "show", "--json", "--", "-r", status=0).json
        follow(here, row["next"][1], N=str(seen["version"]), **look)
        assert listed(here) == []
        here("resume", "--", "-r", status=0)

    def test_the_places_in_a_command_are_refused_as_they_stand(self, here: HereCommandLine) -> None:
        crash(here, "run-1")
        before = head(here)
        assert "VERDICT" in follow(here, listed(here)[0]["next"][1], status=2).error
        assert head(here) == before

    def test_while_somebody_may_still_be_at_it_nobody_is_wanted(self, here: HereCommandLine) -> None:
        crash(here, "run-1", at_us=hour_ago() + HOUR_US)
        assert listed(here) == []

    def test_they_stand_among_the_requests_by_run_and_count_for_the_limit(self, here: HereCommandLine) -> None:
        for run_id in ("b", "d"):
            crash(here, run_id)
        start(here, "a", "c")
        assert [(row["run_id"], row["wanted"]) for row in listed(here)] == [
            ("a", "decide"),
            ("b", "resume"),
            ("c", "decide"),
            ("d", "resume"),
        ]
        some = here("approvals", "list", "--limit", "3", "--json", status=0)
        assert ([row["run_id"] for row in some.json["approvals"]], some.json["total"]) == (["a", "b", "c"], 4)
        assert some.error == "showing 3 of 4 (--all)\n"
        assert here("approvals", "list", "--limit", "0", "--json", status=0).json == {
            "approvals": [],
            "shown": 0,
            "total": 4,
        }

    def test_one_of_a_workflow_is_named_with_its_request_and_where_it_can_go_on(self, here: HereCommandLine) -> None:
        die(here, CRASHES_IN_WORKFLOW, str(hour_ago()))
        (row,) = listed(here)
        assert (row["step"], row["workflow"], row["wanted"]) == ("pay", "pay_bill", "resume")
        assert row["next"] == [
            "eventlog --db a.db resume --app MODULE:RUNNER run-1",
            "eventlog --db a.db reconcile --request approval:run-1:pay --verdict VERDICT --at-version N "
            "--evidence TEXT run-1",
        ]
        (row,) = listed(here, "--app", "shop:runner")
        assert row["next"][0] == "eventlog --db a.db resume --app shop:runner run-1"
        version = str(here("runs", "show", "run-1", "--json", status=0).json["version"])
        follow(here, row["next"][1], VERDICT="abandoned", N=version, TEXT="nobody will know")
        assert listed(here) == []

    def test_an_undoing_that_crashed_says_what_it_undoes(self, here: HereCommandLine) -> None:
        asyncio.run(crash_in_undoing(here.folder / "a.db"))
        (row,) = listed(here)
        assert (row["request_id"], row["action"], row["wanted"]) == ("approval:run-1", "cancel (undoes send)", "resume")
        (command,) = row["next"]
        version = str(here("runs", "show", "run-1", "--json", status=0).json["version"])
        follow(here, command, VERDICT="executed", N=version, TEXT="the booking is gone")
        assert (listed(here), here("runs", "show", "run-1", "--json").json["status"]) == ([], "COMPENSATED")


async def crash_in_undoing(path: Path) -> None:
    book, cancel = Sending(Receiver(), compensation="cancel"), Sending(Receiver())
    cancel.name = "cancel"
    clock = FakeClock(hour_ago())
    async with eventlog.open(path, clock=clock) as log:
        runner = Runner(log, actions=[book, cancel], clock=clock)
        await approved(runner)
        await runner.resume("run-1")
        broken = Runner(log, actions=[book, cancel], clock=clock, reach=crash_at("intent.after_commit"))
        with pytest.raises(Crash):
            await broken.compensate("run-1")


# ── views that cannot be kept ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


async def keep(path: Path, *views: SqliteView) -> None:
    async with eventlog.open(path, views=views):
        pass


class TestALogThatCannotBeWritten:
    @pytest.mark.parametrize(
        ("words", "lacks"),
        [
            (("approvals", "list"), "approvals"),
            (("runs", "timeline", "run-1"), "timeline"),
            (("runs", "usage"), "usage"),
            (("runs", "usage", "run-1"), "usage"),
        ],
    )
    def test_one_that_lacks_a_view_says_which(self, folder: Path, words: Sequence[str], lacks: str) -> None:
        asyncio.run(propose(folder / "a.db", "run-1"))
        asyncio.run(keep(folder / "a.db", SqliteView(RUNS)))
        close(folder)
        nobody = NobodyCommandLine(folder, "--db", "a.db")
        ended = nobody(*words, "--json", status=2)
        assert (ended.json["error"], f"no view of {lacks} yet" in ended.json["message"]) == ("store_readonly", True)
        nobody("runs", "list", status=0)

    def test_what_is_there_is_shown_and_said_to_be_late(self, folder: Path) -> None:
        asyncio.run(propose(folder / "a.db", "run-1"))
        asyncio.run(keep(folder / "a.db", *built_in_views()))
        asyncio.run(append_without_views(folder))
        close(folder)
        nobody = NobodyCommandLine(folder, "--db", "a.db")
        looks = {
            ("approvals", "list"): "the views of runs, approvals and effects are up to 1 events behind",
            ("runs", "timeline", "run-1"): "the view of timeline is 1 events behind",
            ("runs", "usage"): "the view of usage is 1 events behind",
        }
        for words, said in looks.items():
            ended = nobody(*words, status=0)
            assert ended.error == f"{said} the log, which cannot be written here\n", words
        assert len(nobody("runs", "timeline", "run-1").text.splitlines()) == 2


class TestAViewThatHasStopped:
    @pytest.mark.parametrize("view", ["approvals", "effects"])
    def test_it_keeps_nobody_from_deciding_and_resuming(self, here: HereCommandLine, view: str) -> None:
        start(here, "run-1")
        edit(here.folder / "a.db", f"CREATE TRIGGER no BEFORE INSERT ON {view} BEGIN SELECT RAISE(ABORT, 'no'); END")
        approve(here, "run-1")
        resumed = here("resume", "run-1", status=0)
        assert (resumed.json["result"], resumed.err) == ("executed", b"")
        assert here("runs", "list", "--json", status=0).json["runs"][0]["status"] == "COMPLETED"
        assert "executed" in here("runs", "timeline", "run-1", status=0).text
        here("runs", "usage", "run-1", status=0)
        refused = here("approvals", "list", "--json", status=1).json
        assert (refused["error"], refused["details"]["view"]) == ("view_failed", view)
        edit(here.folder / "a.db", "DROP TRIGGER no")
        assert listed(here) == []

    def test_that_of_runs_does_because_it_is_the_gate(self, here: HereCommandLine) -> None:
        start(here, "run-1")
        edit(here.folder / "a.db", "CREATE TRIGGER no BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END")
        approve(here, "run-1")
        assert here("resume", "run-1").json == {"error": "view_failed"}

    def test_one_that_a_later_program_keeps_is_left_to_it(self, here: HereCommandLine) -> None:
        start(here, "run-1")
        edit(here.folder / "a.db", "UPDATE views SET revision = 99 WHERE name = 'approvals'")
        approve(here, "run-1")
        assert here("resume", "run-1", status=0).json["result"] == "executed"
        assert here("approvals", "list", "--json", status=1).json["error"] == "view_failed"


# ── the story ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def append_to_run(path: Path, *events: NewEvent) -> None:
    async with eventlog.open(path) as log:
        await log.append_reserved([Append(run_stream("run-1"), events, Expect.exists())])


class TestTimeline:
    @pytest.fixture
    def told(self, here: HereCommandLine) -> HereCommandLine:
        start(here, "run-1", "run-2")
        approve(here, "run-1")
        here("resume", "run-1", status=0)
        return here

    def test_it_is_a_line_an_event_in_every_format(self, told: HereCommandLine) -> None:
        events = told("tail", "run-1", "--json", status=0).json["events"]
        texts = {form: told("runs", "timeline", "run-1", "--format", form, status=0).text for form in FORMATS}
        rows = json.loads(texts["json"])["timeline"]
        names = ("position", "version", "type", "actor", "recorded_at")
        assert [[row[name] for name in names] for row in rows] == [[event[name] for name in names] for event in events]
        assert [json.loads(line) for line in texts["jsonl"].splitlines()] == rows
        for form in ("human", "plain"):
            lines = texts[form].splitlines()
            assert len(lines) == len(events)
            for line, row in zip(lines, rows, strict=True):
                assert line.endswith(row["sentence"]) and line.split()[:2] == [str(row["version"]), row["recorded_at"]]

    def test_it_goes_on_where_it_was_brought_up_last(self, told: HereCommandLine) -> None:
        before = told("runs", "timeline", "run-2", "--json", status=0).json
        approve(told, "run-2")
        late = told("projections", "status", "timeline", "--json", status=0).json["views"][0]
        assert late["condition"] == "behind"
        after = told("runs", "timeline", "run-2", "--json", status=0).json
        assert after["timeline"][: before["total"]] == before["timeline"]
        assert after["timeline"][-1]["type"] == "approval_recorded"
        told("projections", "check", "timeline", status=0)

    def test_a_run_that_is_not_there_is_a_coded_answer(self, told: HereCommandLine) -> None:
        for words in (("timeline", "nobody"), ("usage", "nobody")):
            assert told("runs", *words, "--json", status=2).json["error"] == "unknown_run:nobody"
        nowhere = HereCommandLine(told.folder, "--db", "none.db")
        for looks in (["timeline", "run-1"], ["usage", "run-1"], ["usage"]):
            assert nowhere("runs", *looks, "--json", status=2).json["error"] == "store_not_found"
        assert not (told.folder / "none.db").exists()

    def test_events_that_are_not_known_here_are_counted_and_not_passed_over_in_silence(
        self, told: HereCommandLine
    ) -> None:
        count = len(told("runs", "timeline", "run-1", status=0).text.splitlines())
        asyncio.run(append_to_run(told.folder / "a.db", NewEvent("from_the_future", 1)))
        ended = told("runs", "timeline", "run-1", status=0)
        assert len(ended.text.splitlines()) == count
        assert ended.error == "1 of its events are of types that are not known here; `eventlog tail` shows them\n"

    @pytest.mark.parametrize("form", FORMATS)
    def test_no_hidden_character_is_bare_and_no_markup_is_read(self, here: HereCommandLine, form: str) -> None:
        args = json.dumps({"content": HIDDEN + "[red]"})
        here("start", "run-1", "--output", HIDDEN.replace("\x00", "") + "[bold]", "--args", args, status=0)
        for words in (("timeline", "run-1"), ("usage",), ("usage", "run-1")):
            assert not BARE.search(here("runs", *words, "--format", form, status=0).text.replace("\t", ""))
        assert "[bold]" in here("runs", "timeline", "run-1", "--format", form, status=0).text

    def test_how_far_a_first_bringing_up_is_can_be_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("eventlog.stores.sqlite.views._CATCH_UP_PAGE", 2)
        asyncio.run(propose(tmp_path / "a.db", "run-1", "run-2"))
        told: list[ViewBuild] = []

        async def opens() -> None:
            log = eventlog.open(tmp_path / "a.db", views=[SqliteView(TIMELINE)])
            assert isinstance(log, SqliteLog)
            log.tells_builds(told.append)
            async with log:
                checked = await check_view(log, SqliteView(TIMELINE))
                assert checked is not None and (checked.rows, checked.differing) == (4, 0)

        asyncio.run(opens())
        assert told == [ViewBuild(name="timeline", revision=TIMELINE.revision, position=2, head=4)]


# ── what runs have used ──────────────────────────────────────────────────────────────────────────────────────────────


REPORTS: Final[Sequence[dict[str, Any]]] = (
    {"input_tokens": 10**12 - 1, "output_tokens": 1, "cost_usd": 0.1, "model": "small"},
    {"usage": {"input_tokens": 2, "output_tokens": 3}, "cost_usd": "0.2", "model": "large"},
    {"input_tokens": 5, "cost": "0.000000000001", "cost_usd": "much"},
)


async def use(path: Path, *run_ids: str, reports: Sequence[dict[str, Any]] = REPORTS) -> None:
    """Leave runs whose steps report what they have used, by two agents."""

    def asks(number: int) -> Any:
        return reports[number]

    @eventlog.workflow
    async def research(run: RunContext) -> None:
        for number in range(len(reports)):
            await run.step("ask" if number < 2 else "check", asks, number)

    for run_id in run_ids:
        async with eventlog.open(path, actor=f"agent of {run_id}") as log:
            await Runner(log, workflows=[research]).start(research, run_id)


class TestUsage:
    def test_the_totals_of_a_run_are_exact(self, here: HereCommandLine) -> None:
        asyncio.run(use(here.folder / "a.db", "run-1"))
        ended = here("runs", "usage", "--json", status=0)
        (row,) = ended.json["usage"]
        assert (row["run_id"], row["workflow"], row["models"]) == ("run-1", "research", ["large", "small"])
        assert (row["input_tokens"], row["output_tokens"], row["total_tokens"]) == (10**12 + 6, 4, 10**12 + 10)
        assert (row["cost_usd"], row["cost"]) == (str(Decimal("0.1") + Decimal("0.2")), "0.000000000001")
        assert 0.1 + 0.2 != 0.3, "which is what a sum of binary fractions would have shown"
        assert (row["results"], row["reported"], row["malformed"], row["failures"]) == (3, 3, 1, 0)
        assert row["elapsed_us"] > 0
        assert ended.error == "1 reported figures are no numbers, and not counted\n"

    def test_one_run_is_shown_by_agent_and_action_and_in_all(self, here: HereCommandLine) -> None:
        asyncio.run(use(here.folder / "a.db", "run-1", "run-2"))
        document = here("runs", "usage", "run-2", "--json", status=0).json
        assert [(row["agent"], row["kind"], row["action"], row["results"]) for row in document["usage"]] == [
            ("agent of run-2", "step", "ask", 2),
            ("agent of run-2", "step", "check", 1),
        ]
        (whole,) = (row for row in here("runs", "usage", "--json").json["usage"] if row["run_id"] == "run-2")
        assert document["run"] == whole
        for name in ("input_tokens", "output_tokens", "total_tokens", "time_us", "results", "malformed"):
            assert sum(row[name] for row in document["usage"]) == whole[name], name
        assert sum(Decimal(row["cost_usd"]) for row in document["usage"]) == Decimal(whole["cost_usd"])
        human = here("runs", "usage", "run-2", "--format", "human", status=0).text.splitlines()
        assert human[-1].startswith("in all: 1 000 000 000 006 tokens in, 4 out") and "USD 0.3;" in human[-1]

    def test_the_time_of_an_effect_is_that_between_its_two_events(self, here: HereCommandLine) -> None:
        start(here, "run-1")
        approve(here, "run-1")
        here("resume", "run-1", status=0)
        at_us = {
            event["type"]: event["recorded_at"] for event in here("tail", "run-1", "--json", status=0).json["events"]
        }
        (row,) = here("runs", "usage", "run-1", "--json", status=0).json["usage"]
        assert (row["kind"], row["action"], row["timed"]) == ("action", "write_draft", 1)
        took_us = parse_time(at_us["action_executed"]) - parse_time(at_us["resume_started"])
        assert row["time_us"] == took_us
        plain = here("runs", "usage", "run-1", "--format", "plain", status=0).text.rstrip("\n").split("\t")
        assert Decimal(plain[-1]) == Decimal(took_us) / 1_000_000

    def test_every_format_has_the_same_runs_and_the_limit_is_said(
        self, here: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.cli.usage._PAGE", 2)  # so that a run lies across the edge of a page
        names = [f"run-{number}" for number in range(4)]
        asyncio.run(use(here.folder / "a.db", *names, reports=REPORTS[:2]))
        document = here("runs", "usage", "--json", status=0).json
        assert [row["run_id"] for row in document["usage"]] == names
        assert {row["results"] for row in document["usage"]} == {2}
        lines = here("runs", "usage", "--format", "jsonl", status=0).text.splitlines()
        assert [json.loads(line) for line in lines] == document["usage"]
        plain = here("runs", "usage", "--format", "plain", status=0).text.splitlines()
        assert [line.split("\t")[0] for line in plain] == names
        assert all(name in here("runs", "usage", "--format", "human", status=0).text for name in names)
        for limit in range(4):
            some = here("runs", "usage", "--limit", str(limit), "--json", status=0)
            assert (some.json["usage"], some.json["total"]) == (document["usage"][:limit], 4)
            assert some.error == f"showing {limit} of 4 (--all)\n"
        assert here("runs", "usage", "--limit", "1", "--all", status=0).err == b""

    def test_results_that_are_not_looked_into_are_counted(self, here: HereCommandLine) -> None:
        asyncio.run(use(here.folder / "a.db", "run-1", reports=[{"text": "x" * 100_000, "input_tokens": 1}]))
        ended = here("runs", "usage", "run-1", "--json", status=0)
        assert (ended.json["run"]["unread"], ended.json["run"]["input_tokens"]) == (1, 0)
        assert ended.error == "1 results are kept beside the log, and were not looked into\n"

    def test_a_log_without_runs_has_used_nothing(self, here: HereCommandLine) -> None:
        asyncio.run(append_without_views(here.folder))
        assert here("runs", "usage", "--json", status=0).json == {"usage": [], "shown": 0, "total": 0}
        assert here("runs", "usage", "--format", "human", status=0).error == "no usage\n"


# ── which views there are ────────────────────────────────────────────────────────────────────────────────────────────


class TestWhichViewsThereAre:
    def test_any_command_that_writes_keeps_three_and_the_others_are_not_missed(self, here: HereCommandLine) -> None:
        start(here, "run-1")
        states = {view["name"]: view for view in here("projections", "status", "--json", status=0).json["views"]}
        assert {name for name, view in states.items() if view["condition"] == "ok"} == {each.name for each in KEPT}
        absent = {name: (view["state"], view["condition"], view["next"]) for name, view in states.items()}
        for each in ON_DEMAND:
            assert absent[each.name] == ("absent", "not_kept", None)
        assert states.keys() == SHIPPED == {view.name for view in built_in_views()}
        human = here("projections", "status", "--format", "human", status=0).text
        assert f"timeline, revision {TIMELINE.revision}: not kept; brought up when asked for\n" in human
        assert "usage" in here("projections", "list", status=0).text
        assert here("verify", "--json", status=0).json["views"]["verdict"] == "ok"

    def test_one_that_was_asked_for_once_may_lag_and_nothing_complains(self, here: HereCommandLine) -> None:
        start(here, "run-1")
        for words in (("timeline", "run-1"), ("usage",)):
            here("runs", *words, status=0)
        start(here, "run-2")
        verdict = here("verify", "--json", status=0).json["views"]
        assert (verdict["verdict"], verdict["problem_count"]) == ("ok", 0)
        lags = {view["name"]: view["verdict"] for view in verdict["checked"]}
        assert (lags["timeline"], lags["usage"], lags["runs"]) == ("behind", "behind", "ok")
        assert doctor(here)["views"]["state"] == "ok"
        assert "behind the log; brought up when asked for" in here("projections", "status", "--format", "human").text

    def test_one_that_is_kept_and_lags_is_said_to_and_one_that_is_edited_differs(self, here: HereCommandLine) -> None:
        start(here, "run-1")
        here("runs", "timeline", "run-1", status=0)
        asyncio.run(append_without_views(here.folder))
        assert here("verify", "--json", status=0).json["views"]["verdict"] == "behind"
        assert doctor(here)["views"]["state"] == "warn"
        edit(here.folder / "a.db", "UPDATE timeline SET sentence = 'nothing happened' WHERE version = 2")
        problems = here("verify", "--json", status=3).json["views"]["problems"]
        assert any("'timeline' differs from its log in sentence" in problem["message"] for problem in problems)

    def test_every_view_is_what_the_log_says_behind_a_story_of_many_commands(self, here: HereCommandLine) -> None:
        crash(here, "a")
        start(here, "b", "c")
        approve(here, "b")
        here("resume", "b", status=0)
        here("runs", "cancel", "c", status=0)
        listed(here)
        for words in (("timeline", "a"), ("usage",)):
            here("runs", *words, status=0)
        checked = here("projections", "check", "--json", status=0).json["views"]
        assert {view["name"]: view["verdict"] for view in checked} == dict.fromkeys(SHIPPED, "ok")


def doctor(cli: CommandLine) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in cli("doctor", "--json", status=0).json["checks"]}


def test_each_new_command_explains_itself(here: HereCommandLine) -> None:
    helps = {words: here(*words, "--help", status=0).text for words in (("runs", "timeline"), ("runs", "usage"))}
    assert "brought up first" in helps["runs", "timeline"] and "brought up first" in helps["runs", "usage"]
    assert "resume" in here("approvals", "list", "--help", status=0).text
    both = here("runs", "--help", status=0).text
    assert "timeline" in both and "usage" in both

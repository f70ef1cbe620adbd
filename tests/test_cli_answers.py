"""What the command line answers where somebody who is new to it would otherwise be left alone."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Call, Policy, Proposal, RunContext, Runner
from eventlog.log import RunLog
from tests.command_line import CommandLine, HereCommandLine, environment
from tests.test_cli_workflows import APP, asked, break_off, done, hash_of, reviewed, shown, start, submit

pytestmark = pytest.mark.processes

MINE: Final = ("--app", "tests.test_cli_answers:make_runner")
CRASH: Final = {"EVENTLOG_FAILPOINT": "effect.after"}


def fails() -> None:
    raise ValueError("the disk is full \u202e")


@eventlog.workflow
async def breaks(run: RunContext) -> None:
    await run.step("fails", fails)


@eventlog.workflow
async def pays(run: RunContext, action: str) -> Any:
    return await run.act(action, {"n": 1}, output="bank")


@eventlog.workflow
async def counts(run: RunContext) -> int:
    number: int = await run.wait_for_signal("go", type=int)
    return number


async def pay_anyway(call: Call) -> Any:
    """Pay although somebody cancels the run meanwhile."""
    async with eventlog.open("a.db") as log:
        await Runner(log).cancel(call.run_id)
    return {"receipt": 7}


async def pay(call: Call) -> Any:
    return {"receipt": 1}


def is_small(proposal: Proposal) -> bool:
    return bool(proposal.args["n"] < 10)


def asks_the_bank(proposal: Proposal) -> bool:
    raise ConnectionError("the bank is closed")


def make_runner(log: RunLog) -> Runner:
    """Make a Runner whose actions and policies are a test's each."""
    named = {"pay": pay, "pay_soon": pay, "pay_small": pay, "pay_asked": pay, "pay_anyway": pay_anyway}
    return Runner(
        log,
        workflows=[breaks, pays, counts],
        actions=[eventlog.action(name, promise="opaque")(function) for name, function in named.items()],
        policies={
            "pay_soon": Policy(expires_in_s=0.000001),
            "pay_small": Policy(auto=is_small),
            "pay_asked": Policy(auto=asks_the_bank),
        },
        patience_s=0,
    )


@eventlog.workflow(name="fix_incident")
async def fix_incident_otherwise(run: RunContext, incident: str) -> str:
    """A workflow of the same name, and of other code."""
    return incident


def make_other_runner(log: RunLog) -> Runner:
    return Runner(log, workflows=[fix_incident_otherwise])


async def _start(workflow: Any, run_id: str, args: tuple[Any, ...]) -> str:
    async with eventlog.open("a.db") as log:
        return (await make_runner(log).start(workflow, run_id, *args)).status


def begin(workflow: Any, run_id: str, *args: Any) -> str:
    """Start a run of this program's own, and drive it as far as it goes."""
    return asyncio.run(_start(workflow, run_id, args))


async def _submit(workflow: Any, run_id: str, args: tuple[Any, ...]) -> None:
    async with eventlog.open("a.db") as log:
        await make_runner(log).submit(workflow, run_id, *args)


def record(workflow: Any, run_id: str, *args: Any) -> None:
    """Record a run of this program's own for somebody else to drive."""
    asyncio.run(_submit(workflow, run_id, args))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HereCommandLine:
    """The command line in the folder of the log, in which this process works too."""
    monkeypatch.chdir(tmp_path)
    return HereCommandLine(tmp_path, "--db", "a.db")


def approved(here: CommandLine, run_id: str, step: str = "apply_patch") -> None:
    here("approve", run_id, "--proposal-hash", hash_of(here, run_id, step), status=0)


def on_terminal(cli: CommandLine, *words: str) -> tuple[str, int]:
    """Run a command on a terminal of its own; return what was on the screen."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        CommandLine(cli.folder, "--db", "a.db").argv(*words),
        cwd=cli.folder,
        env=environment(TERM="dumb"),
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    said = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        said += piece
    os.close(leader)
    return said.decode(), process.wait(timeout=10)


class TestFailpoints:
    @pytest.mark.parametrize("words", [("resume", "r-42"), ("worker", "--until-idle")])
    def test_with_a_program_of_ones_own_they_are_refused_before_anything_is_done(
        self, here: HereCommandLine, words: tuple[str, ...]
    ) -> None:
        start("fix_incident", "r-42", "INC-7")
        approved(here, "r-42")
        before = here("tail", status=0).out
        for named, env in ((APP, CRASH), ((), {**CRASH, "EVENTLOG_APP": APP[1]})):
            ended = here(*words, *named, env=env, status=2)
            assert (ended.out, "works without --app (EVENTLOG_APP) only" in ended.error) == (b"", True)
        assert "apply_patch" not in done()
        assert here("tail", status=0).out == before
        here(*words, *APP, status=0)
        assert done()["apply_patch"] == 1, "the control: without a failpoint the same command does it"

    def test_no_log_is_created_for_one(self, here: HereCommandLine) -> None:
        here("start", "single", "--output", "x", *APP, env=CRASH, status=2)
        assert not Path("a.db").exists()
        here("start", "single", "--output", "x", *APP, status=0)
        assert Path("a.db").exists()


class TestWhatIsSaidBesideTheAnswer:
    def test_a_refusal_about_a_workflow_is_explained_on_standard_error_and_the_answer_stays(
        self, here: HereCommandLine
    ) -> None:
        start("fix_incident", "r-42", "INC-7")
        approve = ("approve", "r-42", "--proposal-hash", "0" * 64)
        for words, code in ((approve, "proposal_hash_mismatch"), (("resume", "r-42", *APP), "approval_required")):
            ended = here(*words, status=2)
            assert ended.out == b'{"error": "%s"}\n' % code.encode()
            first, *_, last = ended.error.splitlines()
            assert first.startswith(f"error[{code}]: ") and last.startswith("hint: ")
            assert here(*words, "-v", status=2).error.count(f"error[{code}]: ") == 1

    def test_about_a_run_of_one_action_it_stays_silent_unless_a_program_is_named(self, here: HereCommandLine) -> None:
        here("start", "single", "--output", "x", status=0)
        start("fix_incident", "r-42", "INC-7")
        for words in (("approve", "single", "--proposal-hash", "0" * 64), ("resume", "single"), ("resume", "nobody")):
            ended, with_program = here(*words, status=2), here(*words, *APP, status=2)
            assert (ended.out, ended.err) == (with_program.out, b"")
            assert with_program.error.startswith("error[")
        assert here("show-trace", "nobody", *APP, status=2).error.startswith("error[unknown_run]: ")


class TestHowAResumeEnds:
    def test_a_workflow_that_ends_badly_ends_the_command_with_2_and_says_why(self, here: HereCommandLine) -> None:
        record(pays, "late", "pay_soon")
        ended = here("resume", "late", *MINE, status=2)
        assert (ended.json["status"], "error[approval_expired]" in ended.error) == ("EXPIRED", True)
        assert begin(breaks, "broken") == "FAILED"
        ended = here("resume", "broken", *MINE, status=2)
        assert (ended.json["status"], ended.json["failure"]["code"]) == ("FAILED", "step_failed")
        assert ended.error.startswith("error[step_failed]: ") and "the disk is full \\u202e" in ended.error

    def test_one_that_pauses_or_completes_ends_it_with_0(self, here: HereCommandLine) -> None:
        submit("fix_incident", "r-42", "INC-7")
        submit("wait_long", "later")
        for run_id, status in (("r-42", "WAITING_FOR_USER"), ("later", "WAITING")):
            assert here("resume", run_id, *APP, status=0).json["status"] == status
        approved(here, "r-42")
        assert here("resume", "r-42", *APP, status=0).json["status"] == "COMPLETED"

    def test_the_help_says_so(self, here: HereCommandLine) -> None:
        text = " ".join(here("resume", "--help", status=0).text.split())
        assert "2 if it was refused, or if the workflow has ended otherwise: FAILED, REJECTED, EXPIRED" in text


class TestTheCommandsThatArePrinted:
    def test_the_one_that_approves_has_a_place_for_the_role_that_is_wanted(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        one, other = (f"approval:two:{step}" for step in ("deploy", "apply_patch"))
        lines = here("approvals", "show", "two", "--request", one, status=0).text.splitlines()
        at = next(number for number, line in enumerate(lines) if line.startswith("approve with:"))
        assert lines[at + 1] == "  ROLE is one of:  ops"
        _, *words = shlex.split(lines[at].removeprefix("approve with:"))
        assert here(*words, status=2).json == {"error": "role_required"}
        assert here(*("ops" if word == "ROLE" else word for word in words), status=0).json["step"] == "deploy"
        assert "ROLE" not in here("approvals", "show", "two", "--request", other, status=0).text

    def test_the_one_that_reconciles_has_a_place_for_what_a_workflow_goes_on_with(self, here: HereCommandLine) -> None:
        asyncio.run(break_off("a.db"))
        card = here("approvals", "show", "run-1", "--request", "approval:run-1:pay", "--json", status=0).json
        commands = card["reconcile_with"]
        assert [verdict for verdict, command in commands.items() if "--result JSON" in command] == ["executed"]
        _, *words = shlex.split(commands["executed"].replace("''", "'it is there'"))
        assert here(*words, "--json", status=2).json["error"] == "invalid_json"
        settled = here(*("7" if word == "JSON" else word for word in words), "--json", status=0).json
        assert (settled["request_status"], settled["result"]) == ("COMPLETED", 7)


class TestWhichRequestIsMeant:
    def test_a_revocation_that_names_none_means_the_only_one_that_is_approved(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        refused = here("approvals", "revoke", "two", "--json", status=2).json
        assert (refused["error"], "nothing is approved" in refused["message"]) == ("cannot_revoke", True)
        approved(here, "two")
        revoked = here("approvals", "revoke", "two", "--json", status=0).json
        assert (revoked["step"], revoked["status"]) == ("apply_patch", "WAITING_FOR_USER")
        here("verify", status=0)

    def test_a_parent_says_where_its_child_is_decided(self, here: HereCommandLine) -> None:
        start("delegate", "par", "INC-8")
        place = "waits for par/fix_incident: decide there (approval:par/fix_incident:apply_patch)"
        for words in (("approvals", "show", "par"), ("approvals", "wait", "par", "--timeout", "0")):
            refused = here(*words, status=2).error
            assert refused.startswith("error[approval_not_pending]: run 'par' has not asked for anything; it " + place)
        digest = hash_of(here, "par/fix_incident")
        refused_there = here("approve", "par", "--proposal-hash", digest, status=2)
        assert refused_there.json == {"error": "approval_not_pending"}
        assert place in refused_there.error
        line = json.dumps({"run_id": "par", "proposal_hash": digest}).encode()
        assert place in here("approve", "--from", "-", stdin=line, status=2).json["message"]
        approved(here, "par/fix_incident")
        gone = here("approvals", "show", "par", status=2).error
        assert "decide there" not in gone, "the child asks no more"

    def test_lines_of_the_inbox_can_be_filtered_and_fed_in(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        here("start", "single", "--output", "x", status=0)
        lines = here("approvals", "list", "--all", "--format", "jsonl", status=0).text.splitlines()
        wanted = "\n".join(line for line in lines if json.loads(line)["action"] != "deploy")
        ended = here("approve", "--from", "-", stdin=wanted.encode(), status=0)
        assert [json.loads(line)["request_id"] for line in ended.text.splitlines()] == [
            "approval:single",
            "approval:two:apply_patch",
        ]
        assert asked(here, "two")["deploy"]["status"] == "WAITING_FOR_USER"
        line = {"run_id": "two", "proposal_hash": "0" * 64, "request": "a", "request_id": "b"}
        two = here("approve", "--from", "-", stdin=json.dumps(line).encode(), status=2).json
        assert (two["error"], "two requests" in two["message"]) == ("invalid_argument", True)
        for command in ("approve", "reject"):
            assert '"request_id"' in here(command, "--help", status=0).text


class TestWhatBecameOfARun:
    def test_an_effect_that_came_in_spite_of_a_cancellation_is_shown_with_its_result(
        self, here: HereCommandLine
    ) -> None:
        words = ("--output", "bank", "--action", "pay_anyway", "--args", '{"n": 1}')
        digest = here("start", "single", *words, *MINE, status=0).json["proposal_hash"]
        here("approve", "single", "--proposal-hash", digest, status=0)
        here("resume", "single", *MINE)
        begin(pays, "flow", "pay_anyway")
        approved(here, "flow", "pay_anyway")
        assert here("resume", "flow", *MINE, status=2).json["status"] == "CANCELLED", "it ends badly too"
        said = "cancelled, but the effect of 'pay_anyway' happened all the same; its result: {\"receipt\": 7}"
        for run_id in ("single", "flow"):
            assert shown(here, run_id)["status"] == "CANCELLED"
            assert said in here("runs", "show", run_id, status=0).text, run_id
            assert said in here("approvals", "show", run_id, status=0).text, run_id
        for run_id in ("cancelled", "paid"):  # the controls: one that did not happen, and one that nobody cancelled
            begin(pays, run_id, "pay")
        here("runs", "cancel", "cancelled", status=0)
        approved(here, "paid", "pay")
        assert here("resume", "paid", *MINE, status=0).json["status"] == "COMPLETED"
        for run_id in ("cancelled", "paid"):
            assert "all the same" not in here("approvals", "show", run_id, status=0).text
            assert "all the same" not in here("runs", "show", run_id, status=0).text

    def test_a_run_that_nobody_can_drive_says_why(self, here: HereCommandLine) -> None:
        submit("fix_incident", "r-42", "INC-7")
        other = ("--app", "tests.test_cli_answers:make_other_runner")
        assert here("resume", "r-42", *other, status=2).json == {"error": "definition_mismatch"}
        document = shown(here, "r-42")
        assert document["refused"]["code"] == "definition_mismatch"
        assert "\nrefused\tdefinition_mismatch (" in here("runs", "show", "r-42", status=0).text
        assert "\trefused: definition_mismatch (" in here("runs", "list", status=0).text
        assert here("runs", "list", "--json", status=0).json["runs"][0]["refused"].startswith("definition_mismatch (")
        here("resume", "r-42", *APP, status=0)
        assert shown(here, "r-42")["refused"] is None, "somebody could"
        assert "refused" not in here("runs", "list", status=0).text

    def test_the_list_can_be_that_of_some_statuses(self, here: HereCommandLine) -> None:
        start("wait_long", "later")
        start("fix_incident", "r-42", "INC-7")
        here("start", "single", "--output", "x", status=0)
        for statuses, expected in {
            ("WAITING",): ["later"],
            ("waiting_for_user",): ["r-42", "single"],
            ("WAITING", "WAITING_FOR_USER"): ["later", "r-42", "single"],
            ("FAILED",): [],
        }.items():
            words = [word for status in statuses for word in ("--status", status)]
            found = here("runs", "list", *words, "--json", status=0).json
            assert ([row["run_id"] for row in found["runs"]], found["total"]) == (expected, len(expected))
        assert "'SLEEPING' is not one of" in here("runs", "list", "--status", "SLEEPING", status=2).error

    def test_a_rule_that_decided_or_could_not_is_named(self, here: HereCommandLine) -> None:
        begin(pays, "small", "pay_small")
        waited = here("approvals", "wait", "small", "--timeout", "0", status=0).text
        assert "approval:small:pay_small  COMPLETED  policy  the rule is_small approves it" in waited
        assert "decided_by\tpolicy\n" in here("approvals", "show", "small", status=0).text
        assert here("approvals", "show", "small", "--json", status=0).json["decided_by"] is None
        begin(pays, "asked", "pay_asked")
        shown_request = here("approvals", "show", "asked", status=0).text
        assert "its auto rule failed: the rule asks_the_bank raised ConnectionError" in shown_request.splitlines()
        assert "auto rule" not in here("approvals", "show", "small", status=0).text
        trace = here("show-trace", "asked", status=0).json["trace"]
        assert [item["rule_failed"] for item in trace if "rule_failed" in item] == [
            "the rule asks_the_bank raised ConnectionError"
        ]

    def test_a_signal_of_another_type_is_in_the_trace_with_the_reason(self, here: HereCommandLine) -> None:
        begin(counts, "counting")
        here("runs", "signal", "counting", "go", "--payload", '"seven"', status=0)
        assert here("resume", "counting", *MINE, status=0).json["status"] == "WAITING"
        (rejected,) = [
            item for item in here("show-trace", "counting").json["trace"] if item["event"] == "signal_rejected"
        ]
        assert (rejected["name"], "int" in rejected["reason"]) == ("go", True)
        assert "signal_rejected" in here("tail", "counting", status=0).text
        here("runs", "signal", "counting", "go", "--payload", "7", status=0)
        assert here("resume", "counting", *MINE, status=0).json["returned"] == 7
        here("verify", status=0)


class TestOnATerminal:
    def test_a_workflow_run_is_spread_over_many_lines_and_a_run_of_one_action_is_not(
        self, here: HereCommandLine
    ) -> None:
        start("ask_two", "two")
        here("start", "single", "--output", "x", status=0)
        said, status = on_terminal(here, "show-trace", "two")
        assert (status, len(said.splitlines()) > 20) == (0, True)
        assert json.loads(said)["trace"] == here("show-trace", "two", status=0).json["trace"]
        assert len(here("show-trace", "two", status=0).text.splitlines()) == 1
        said, status = on_terminal(here, "show-trace", "single")
        assert (status, len(said.splitlines())) == (0, 1)
        approved(here, "two")
        submit("slow", "quick", 1)
        said, status = on_terminal(here, "resume", "quick", *APP)
        assert (status, json.loads(said)["status"], len(said.splitlines()) > 20) == (0, "COMPLETED", True)

    def test_what_a_workflow_run_holds_cannot_change_it(self, here: HereCommandLine) -> None:
        submit("retry_once", "again")
        said, status = on_terminal(here, "resume", "again", *APP)
        assert (status, "\\u202e" in said) == (0, True)
        assert not re.search("[\u202e\x1b]", said)

    def test_a_review_says_on_readable_lines_what_was_decided(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-1", "INC-1")
        digest = hash_of(here, "r-1")
        said, _ = reviewed(here, [b"a\n", b"\n"])
        assert f"approve  r-1  approval:r-1:apply_patch  {digest}" in said
        assert "\\t" not in said

"""Workflow runs on the command line: the paused state, the inbox, a program's own workflows, and workers that die."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Call, Policy, RunContext, Runner
from eventlog.log import Append, Expect, NewEvent
from eventlog.stores import SqliteLog
from tests import workflow_program as program
from tests.command_line import CommandLine, Ended, HereCommandLine, edit, environment
from tests.test_cli import BARE, HIDDEN

pytestmark = pytest.mark.processes

APP: Final = ("--app", "tests.workflow_program:make_runner")
MANY_S: Final = 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the log; this process works there too, as the program of the tests does."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def here(folder: Path) -> HereCommandLine:
    return HereCommandLine(folder, "--db", "a.db")


@pytest.fixture
def cli(folder: Path) -> CommandLine:
    return CommandLine(folder, "--db", "a.db")


def start(workflow: str, run_id: str, *args: Any) -> str:
    """Begin a run in a program of its own, and drive it as far as it goes."""
    return asyncio.run(program.start("a.db", workflow, run_id, *args))


def submit(workflow: str, run_id: str, *args: Any) -> None:
    asyncio.run(program.submit("a.db", workflow, run_id, *args))


def shown(here: CommandLine, run_id: str, *words: str) -> dict[str, Any]:
    document: dict[str, Any] = here("runs", "show", run_id, "--json", *words, status=0).json
    return document


def asked(here: CommandLine, run_id: str) -> dict[str, dict[str, Any]]:
    """Return the requests of a run by step key."""
    return {request["step"]: request for request in shown(here, run_id)["requests"]}


def hash_of(here: CommandLine, run_id: str, step: str = "apply_patch") -> str:
    return str(asked(here, run_id)[step]["proposal_hash"])


def done() -> Counter[str]:
    """Return how often each thing was really done."""
    path = Path(program.DONE)
    return Counter(path.read_text(encoding="utf-8").splitlines()) if path.exists() else Counter()


class TestThePausedState:
    def test_it_is_printed_as_the_article_has_it_and_another_process_goes_on_from_there(self, cli: CommandLine) -> None:
        assert start("fix_incident", "r-42", "INC-7") == "WAITING_FOR_USER"
        paused = cli("runs", "show", "r-42", "--json", status=0).out
        snapshot = (
            b'{"run_id": "r-42", "state_version": 3, "status": "WAITING_FOR_USER", "committed": ["search_logs"], '
            b'"pending_writes": {"prepare_patch": "patch for INC-7"}, '
            b'"waiting": {"type": "approval", "node_id": "apply_patch", "approval_id": "approval:r-42:apply_patch"}, '
        )
        assert paused.startswith(snapshot)
        assert b"also_waiting" not in paused
        digest = json.loads(paused)["requests"][0]["proposal_hash"]
        assert cli("resume", "r-42", *APP, status=2).json == {"error": "approval_required"}
        cli("approve", "r-42", "--proposal-hash", digest, status=0)
        decided = shown(cli, "r-42")
        assert (decided["status"], decided["waiting"]) == ("RUNNING", None)
        ended = cli("resume", "r-42", *APP, status=0).json
        assert ended["status"] == "COMPLETED"
        assert ended["returned"] == {
            "logs": ["log of INC-7"],
            "patch": "patch for INC-7",
            "applied": {"applied": "p-9"},
        }
        assert done() == {"search_logs": 1, "prepare_patch": 1, "apply_patch": 1}
        again = cli("resume", "r-42", *APP, status=0).json
        assert (again["result"], again["returned"]) == ("already_completed", ended["returned"])
        final = shown(cli, "r-42")
        assert (final["pending_writes"], final["result"]) == ({}, ended["returned"])
        assert final["committed"] == ["search_logs", "prepare_patch", "apply_patch"]
        cli("verify", status=0)

    def test_a_large_output_is_named_by_its_artifact(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "x" * 100_000)
        state = shown(here, "r-42")
        assert re.fullmatch(r"artifact://[0-9a-f]{64}", state["pending_writes"]["prepare_patch"])
        assert re.fullmatch(r"artifact://[0-9a-f]{64}", state["input"])

    def test_it_can_be_seen_as_it_was_after_each_event(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        last = shown(here, "r-42")["version"]
        states = [shown(here, "r-42", "--at-version", str(version)) for version in range(1, last + 1)]
        assert [state["status"] for state in states] == ["RUNNING"] * (last - 1) + ["WAITING_FOR_USER"]
        assert states[2]["committed"] == ["search_logs"]
        assert states[0]["input"] == ["INC-7"]

    def test_whatever_else_it_waits_for_is_said_beside_it(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        state = shown(here, "two")
        assert list(state)[:7] == [
            "run_id",
            "state_version",
            "status",
            "committed",
            "pending_writes",
            "waiting",
            "also_waiting",
        ]
        assert state["also_waiting"] == [
            {"type": "approval", "node_id": "deploy", "approval_id": "approval:two:deploy"},
        ]

    def test_people_get_a_card_with_a_section_for_each_kind_of_thing(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        start("delegate", "parent", "INC-8")
        submit("wait_long", "later")
        text = here("runs", "show", "r-42", "--format", "human", status=0).text
        for line in (
            "waiting        approval of apply_patch (approval:r-42:apply_patch)",
            "  prepare_patch  patch for INC-7",
            "  search_logs    committed",
        ):
            assert line in text.splitlines()
        assert hash_of(here, "r-42") in text
        text = here("runs", "show", "parent", status=0).text
        assert "  fix_incident  parent/fix_incident  fix_incident  has not ended" in text.splitlines()
        assert "parent\tparent (child of step fix_incident)\n" in here("runs", "show", "parent/fix_incident").text
        here("runs", "signal", "later", "go", "--payload", "[1]", status=0)
        assert "  go  [[1]]" in here("runs", "show", "later", status=0).text.splitlines()

    def test_a_list_says_which_workflow_a_run_follows_and_what_it_waits_for(self, here: HereCommandLine) -> None:
        start("delegate", "parent", "INC-8")
        start("wait_long", "later")
        assert [line.split("\t") for line in here("runs", "list", status=0).text.splitlines()] == [
            ["later", "WAITING", "-", "-", "wait_long", "signal go"],
            ["parent", "WAITING", "-", "-", "delegate", "child parent/fix_incident"],
            [
                "parent/fix_incident",
                "WAITING_FOR_USER",
                "apply_patch",
                "repo:main",
                "fix_incident",
                "approval of apply_patch",
            ],
        ]
        rows = here("runs", "list", "--json", status=0).json["runs"]
        assert [(row["parent_run_id"], row["root_run_id"]) for row in rows] == [
            (None, "later"),
            (None, "parent"),
            ("parent", "parent"),
        ]

    def test_the_trace_names_steps_waits_and_children(self, here: HereCommandLine) -> None:
        start("delegate", "parent", "INC-8")
        start("retry_once", "again")
        trace = here("show-trace", "parent", status=0).json["trace"]
        assert [item["event"] for item in trace] == [
            "checkpoint_saved",
            "run_claimed",
            "child_started",
            "checkpoint_saved",
        ]
        assert trace[2]["child_run_id"] == "parent/fix_incident"
        assert trace[3]["waiting"] == ["child parent/fix_incident"]
        failed = [item for item in here("show-trace", "again").json["trace"] if item["event"] == "step_failed"]
        assert [(item["attempt"], item["code"], item["type"]) for item in failed] == [
            (1, "step_failed", "ValueError"),
            (2, "step_failed", "ValueError"),
        ]


class TestTheInbox:
    def test_it_lists_every_request_those_of_children_with_their_parent(self, here: HereCommandLine) -> None:
        start("delegate", "parent", "INC-8")
        start("ask_two", "two")
        here("start", "single", "--output", "x", status=0)
        rows = here("approvals", "list", "--json", status=0).json
        assert [(row["run_id"], row["step"], row["parent_run_id"], row["wanted"]) for row in rows["approvals"]] == [
            ("parent/fix_incident", "apply_patch", "parent", "decide"),
            ("single", None, None, "decide"),
            ("two", "apply_patch", None, "decide"),
            ("two", "deploy", None, "decide"),
        ]
        assert rows["total"] == 4
        assert "showing 3 of 4 (--all)" in here("approvals", "list", "--limit", "3", status=0).error

    def test_a_run_of_a_newer_program_does_not_hide_the_others(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        start("fix_incident", "r-42", "INC-7")
        asyncio.run(append_from_the_future("run:two"))
        rows = here("approvals", "list", "--json", status=0).json["approvals"]
        assert [(row["run_id"], row["request_id"]) for row in rows] == [
            ("r-42", "approval:r-42:apply_patch"),
            ("two", "approval:two:apply_patch"),
            ("two", "approval:two:deploy"),
        ]
        assert here("approvals", "show", "two", "--json", status=2).json["error"] == "event_type_unknown"

    def test_one_of_several_has_to_be_named(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        document = here("approvals", "show", "two", "--json", status=2).json
        assert document["error"] == "request_ambiguous"
        assert document["details"]["requests"] == ["approval:two:apply_patch", "approval:two:deploy"]
        card = here("approvals", "show", "two", "--request", "approval:two:deploy", "--json", status=0).json
        assert (card["policy"], card["votes"]) == (
            {"required": 2, "roles": ["ops"], "separation_of_duties": False},
            [],
        )
        assert card["approve_with"].split()[3:] == [
            "approve",
            "--request",
            "approval:two:deploy",
            "--proposal-hash",
            hash_of(here, "two", "deploy"),
            "--role",
            "ROLE",
            "two",
        ]
        unknown = here("approvals", "show", "two", "--request", "approval:two:nothing", "--json", status=2).json
        assert unknown["error"] == "unknown_request"

    def test_the_terms_of_a_request_are_kept_and_a_vote_that_does_not_decide_is_one(
        self, here: HereCommandLine
    ) -> None:
        start("ask_two", "two")
        words = ("approve", "two", "--proposal-hash", hash_of(here, "two", "deploy"))
        assert here(*words, status=2).json == {"error": "role_required"}
        voted = here(*words, "--role", "ops", "--reason", "looks fine", status=0).json
        assert (voted["status"], voted["step"], voted["approval_hash"]) == ("WAITING_FOR_USER", "deploy", None)
        assert [(vote["reason"], vote["roles"]) for vote in voted["votes"]] == [("looks fine", ["ops"])]
        assert {item["step"] for item in voted["trace"]} == {"deploy"}
        assert here(*words, "--role", "ops", status=2).json == {"error": "already_voted"}
        rejected = here("reject", *words[1:], "--request", "approval:two:deploy", status=2).json
        assert rejected == {"error": "already_voted"}

    def test_a_rejection_ends_the_run_when_it_is_driven_on(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        digest = hash_of(here, "r-42")
        rejected = here("reject", "r-42", "--proposal-hash", digest, "--reason", "nein", status=0).json
        assert (rejected["status"], rejected["run_status"]) == ("REJECTED", "RUNNING")
        ended = here("resume", "r-42", *APP, status=2).json
        assert (ended["status"], ended["failure"]["code"]) == ("REJECTED", "approval_rejected")
        assert here("resume", "r-42", *APP, status=2).json == {"error": "approval_rejected"}
        assert here("approvals", "list", "--json", status=0).json["total"] == 0

    def test_an_edit_asks_something_else_and_the_old_hash_is_good_for_nothing(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        old = hash_of(here, "r-42")
        edited = here(
            "approvals", "edit", "r-42", "--args", '{"patch": "p-10"}', "--reason", "newer", "--json", status=0
        )
        assert edited.json["request_id"] == "approval:r-42:apply_patch#edit-1"
        assert (edited.json["supersedes"], edited.json["args"]) == ("approval:r-42:apply_patch", {"patch": "p-10"})
        lines = here("approvals", "show", "r-42", status=0).text.splitlines()
        assert "changed from approval:r-42:apply_patch:" in lines
        changed = [line for line in lines if line[2:3] in ("-", "+")]
        assert changed == ['  -    "patch": "p-9"', '  +    "patch": "p-10"']
        assert here("approve", "r-42", "--proposal-hash", old, status=2).json == {"error": "proposal_hash_mismatch"}
        here("approve", "r-42", "--proposal-hash", edited.json["proposal_hash"], status=0)
        assert here("resume", "r-42", *APP, status=0).json["returned"]["applied"] == {"applied": "p-10"}

    def test_what_cannot_be_seen_is_counted(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        card = here("approvals", "show", "two", "--request", "approval:two:apply_patch", "--json", status=0).json
        assert card["hidden_characters"] == 2
        text = here("approvals", "show", "two", "--request", "approval:two:apply_patch", status=0).text
        assert "note: 2 characters that cannot be seen are shown as escapes" in text.splitlines()
        assert "cannot be seen" not in here("approvals", "show", "two", "--request", "approval:two:deploy").text

    def test_who_edits_may_approve_in_one_go(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        edited = here("approvals", "edit", "r-42", "--output", "repo:test", "--approve", "--json", status=0).json
        assert (edited["status"], edited["output"], edited["args"]) == ("APPROVED", "repo:test", {"patch": "p-9"})
        assert "names what changes" in here("approvals", "edit", "r-42", status=2).error
        refused = here("approvals", "edit", "r-42", "--args", "[1]", "--json", status=2).json
        assert refused["error"] == "invalid_argument"

    def test_an_approval_is_taken_back_before_the_act_and_not_behind_it(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        digest = hash_of(here, "r-42")
        here("approve", "r-42", "--proposal-hash", digest, status=0)
        revoked = here("approvals", "revoke", "r-42", "--reason", "not yet", "--json", status=0).json
        assert (revoked["status"], revoked["run_status"]) == ("WAITING_FOR_USER", "WAITING_FOR_USER")
        assert here("resume", "r-42", *APP, status=2).json == {"error": "approval_required"}
        here("approve", "r-42", "--proposal-hash", digest, status=0)
        here("resume", "r-42", *APP, status=0)
        assert here("approvals", "revoke", "r-42", "--json", status=2).json["error"] == "approval_spent"
        assert done()["apply_patch"] == 1

    def test_a_run_of_one_action_is_edited_and_revoked_as_well(self, here: HereCommandLine) -> None:
        here("start", "single", "--output", "x", status=0)
        edited = here("approvals", "edit", "single", "--output", "y", "--approve", "--json", status=0).json
        assert (edited["status"], edited["output"]) == ("APPROVED", "y")
        assert here("approvals", "revoke", "single", "--json", status=0).json["status"] == "WAITING_FOR_USER"
        row = here("runs", "list", "--json", status=0).json["runs"][0]
        assert (row["status"], row["output"]) == ("WAITING_FOR_USER", "y")
        here("verify", status=0)

    def test_a_request_whose_time_has_run_out_is_said_to_be_so(self, here: HereCommandLine) -> None:
        propose_with_policy(Policy(expires_in_s=0.000001))
        assert here("approvals", "list", "--json", status=0).json["approvals"][0]["wanted"] == "expired"
        digest = here("approvals", "show", "single", "--json", status=0).json["proposal_hash"]
        assert here("approve", "single", "--proposal-hash", digest, status=2).json == {"error": "approval_expired"}
        assert here("runs", "list", "--json", status=0).json["runs"][0]["status"] == "EXPIRED"
        assert here("approvals", "list", "--json", status=0).json["total"] == 0

    def test_an_unknown_outcome_of_one_of_several_is_settled_by_its_name(self, here: HereCommandLine) -> None:
        asyncio.run(break_off("a.db"))
        rows = here("approvals", "list", "--json", status=0).json["approvals"]
        assert [(row["step"], row["wanted"]) for row in rows] == [("pay", "reconcile"), ("send", "reconcile")]
        card = here("approvals", "show", "run-1", "--request", "approval:run-1:pay", "--json", status=0).json
        assert "--request approval:run-1:pay" in card["reconcile_with"]["executed"]
        words = ("reconcile", "run-1", "--verdict", "executed", "--evidence", "it is there", "--json")
        assert here(*words, status=2).json["error"] == "request_ambiguous"
        settled = here(*words, "--request", "approval:run-1:pay", "--result", "7", status=0).json
        assert (settled["step"], settled["request_status"], settled["result"]) == ("pay", "COMPLETED", 7)
        assert settled["status"] == "OUTCOME_UNKNOWN"
        settled = here(*words, "--request", "approval:run-1:send", status=0).json
        assert settled["status"] == "RUNNING"
        here("verify", status=0)


async def append_from_the_future(stream: str) -> None:
    async with eventlog.open("a.db") as log:
        assert isinstance(log, SqliteLog)
        await log.append_reserved([Append(stream, [NewEvent("from_the_future", {})], Expect.exists())])


def propose_with_policy(policy: Policy) -> None:
    async def propose() -> None:
        async with eventlog.open("a.db") as log:
            runner = Runner(log, policies={"pay": policy})
            await runner.propose("single", eventlog.propose("pay", {"n": 1}, "bank"))

    asyncio.run(propose())


async def approve_as(actor: str, run_id: str, digest: str) -> None:
    async with eventlog.open("a.db") as log:
        await program.make_runner(log).approve(run_id, digest, actor=actor, roles=("ops",))


async def break_off(path: str) -> None:
    """Leave a run behind of which two effects are unknown."""

    async def breaks(call: Call) -> Any:
        raise ConnectionResetError("the line went dead")

    @eventlog.workflow
    async def pay_and_send(run: RunContext) -> Any:
        return await run.gather(run.act("pay", {"n": 1}, output="bank"), run.act("send", {"n": 2}, output="box"))

    async with eventlog.open(path) as log:
        runner = Runner(
            log,
            workflows=[pay_and_send],
            actions=[eventlog.action(name, promise="opaque")(breaks) for name in ("pay", "send")],
            policies={name: Policy(auto=True) for name in ("pay", "send")},
        )
        await runner.start(pay_and_send, "run-1")


class TestDecisionsFromAFile:
    def lines(self, here: HereCommandLine) -> bytes:
        start("fix_incident", "r-1", "INC-1")
        start("fix_incident", "r-2", "INC-2")
        here("start", "single", "--output", "x", status=0)
        single = here("show-trace", "single", status=0).json["proposal_hash"]
        asked = [
            {"run_id": "r-1", "proposal_hash": hash_of(here, "r-1"), "request": "approval:r-1:apply_patch"},
            {"run_id": "nobody", "proposal_hash": "0" * 64},
            {"run_id": "r-2", "proposal_hash": "0" * 64, "reason": "why not", "roles": ["ops"]},
            {"run_id": "single", "proposal_hash": single},
        ]
        return b"".join(json.dumps(each).encode() + b"\n" for each in asked) + b"\n[1]\nno json\n"

    def test_each_line_is_answered_and_a_refusal_does_not_stop_the_others(self, here: HereCommandLine) -> None:
        text = self.lines(here)
        for source, stdin in (("-", text), ("decisions.jsonl", b"")):
            Path("decisions.jsonl").write_bytes(text)
            ended = here("approve", "--from", source, status=2, stdin=stdin)
            answers = [json.loads(line) for line in ended.text.splitlines()]
            if source == "-":
                assert [each.get("status") or each["error"] for each in answers] == [
                    "APPROVED",
                    "unknown_run:nobody",
                    "proposal_hash_mismatch",
                    "APPROVED",
                    "invalid_argument",
                    "invalid_json",
                ]
                assert answers[0] == {
                    "line": 1,
                    "run_id": "r-1",
                    "proposal_hash": hash_of(here, "r-1"),
                    "request_id": "approval:r-1:apply_patch",
                    "decision": "approve",
                    "status": "APPROVED",
                }
            else:
                assert answers[0]["error"] == "approval_not_pending", "it was decided the first time"
            assert ended.err == b""
            assert [each["line"] for each in answers] == [1, 2, 3, 4, 6, 7]

    def test_when_none_is_refused_it_ends_well(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-1", "INC-1")
        line = json.dumps({"run_id": "r-1", "proposal_hash": hash_of(here, "r-1"), "reason": "nein"})
        ended = here("reject", "--from", "-", stdin=line.encode(), status=0)
        assert ended.json["status"] == "REJECTED"

    def test_what_is_named_beside_it_is_a_usage_error_and_so_is_nothing_at_all(self, here: HereCommandLine) -> None:
        assert "leave --proposal-hash away" in here("approve", "--from", "-", "--proposal-hash", "x", status=2).error
        assert "leave RUN away" in here("approve", "--from", "-", "run-1", status=2).error
        error = here("approve", "run-1", status=2).error
        assert "Missing option '--proposal-hash'. `eventlog approvals show RUN` shows it." in error
        assert "Missing argument 'RUN'" in here("approve", "--proposal-hash", "x", status=2).error
        assert "cannot read" in here("approve", "--from", "nowhere.jsonl", status=2).error


class TestWaiting:
    def test_it_ends_when_another_process_decides_and_prints_what(self, cli: CommandLine) -> None:
        start("ask_two", "two")
        digests = {step: request["proposal_hash"] for step, request in asked(cli, "two").items()}
        process = begin(cli, "approvals", "wait", "two", "--timeout", "1m", "--json")
        cli("approve", "two", "--proposal-hash", digests["apply_patch"], "--reason", "yes", status=0)
        cli("reject", "two", "--proposal-hash", digests["deploy"], status=0)
        out, error = process.communicate(timeout=MANY_S)
        assert (process.returncode, error) == (0, b"")
        requests = {each["step"]: each for each in json.loads(out)["requests"]}
        assert (requests["apply_patch"]["status"], requests["apply_patch"]["decision_reason"]) == ("APPROVED", "yes")
        assert requests["deploy"]["status"] == "REJECTED"

    def test_what_is_not_decided_in_time_is_still_waiting(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        ended = here("approvals", "wait", "r-42", "--timeout", "0.2s", "--json", status=5)
        assert ended.json["error"] == "still_waiting"
        assert ended.json["details"]["requests"] == ["approval:r-42:apply_patch"]
        assert "no duration" in here("approvals", "wait", "r-42", "--timeout", "soon", status=2).error

    def test_one_request_is_waited_for_through_an_edit_while_the_other_stays_open(self, here: HereCommandLine) -> None:
        start("ask_two", "two")
        request_id = "approval:two:apply_patch"
        here("approvals", "edit", "two", "--request", request_id, "--args", '{"patch": 2}', status=0)
        words = ("approvals", "wait", "two", "--request", request_id, "--timeout", "0.1", "--json")
        assert here(*words, status=5).json["error"] == "still_waiting"
        here("approve", "two", "--proposal-hash", hash_of(here, "two"), status=0)
        found = here(*words, status=0).json["requests"]
        assert [(each["request_id"], each["status"]) for each in found] == [(f"{request_id}#edit-1", "APPROVED")]
        assert here("approvals", "wait", "two", "--request", "nothing", status=2).err

    def test_what_is_decided_already_is_printed_at_once(self, here: HereCommandLine) -> None:
        here("start", "single", "--output", "x", status=0)
        digest = here("show-trace", "single", status=0).json["proposal_hash"]
        here("reject", "single", "--proposal-hash", digest, "--reason", "no", status=0)
        text = here("approvals", "wait", "single", "--timeout", "0", status=0).text
        assert "approval:single  REJECTED" in text

    def test_a_request_that_nobody_decides_on_expires_while_it_is_waited_for(self, here: HereCommandLine) -> None:
        propose_with_policy(Policy(expires_in_s=0.3))
        ended = here("approvals", "wait", "single", "--timeout", "1m", "--json", status=0).json
        assert (ended["status"], ended["requests"][0]["status"]) == ("EXPIRED", "EXPIRED")


def begin(cli: CommandLine, *words: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        cli.argv(*words),
        cwd=cli.folder,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class TestReview:
    def test_it_shows_each_request_whole_and_decides_as_it_is_told(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-1", "INC-1")
        start("fix_incident", "r-2", "INC-2")
        start("retry_once", "r-3")
        said, status = reviewed(here, [b"approve\n", b"it is fine\n", b"\n", b"maybe\n", b"r\n", b"\n", b"s\n"])
        assert status == 0
        assert hash_of(here, "r-1") in said
        assert said.count("approve, reject, skip or quit") == 5, "an empty answer and a wrong one are asked again"
        assert "2 decided, 1 skipped" in said
        assert not BARE.search(re.sub(r"[\r\n\t]", "", said)), "what a request holds cannot change the terminal"
        assert "[red]" in said
        statuses = {run_id: asked(here, run_id)["apply_patch"] for run_id in ("r-1", "r-2", "r-3")}
        assert [each["status"] for each in statuses.values()] == ["APPROVED", "REJECTED", "WAITING_FOR_USER"]
        assert statuses["r-1"]["decision_reason"] == "it is fine"

    def test_what_changed_while_it_was_on_the_screen_is_not_approved(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-1", "INC-1")

        def edits() -> None:
            here("approvals", "edit", "r-1", "--args", '{"patch": "other"}', status=0)

        said, status = reviewed(here, [b"a\n", b"\n", b"q\n"], before_reason=edits)
        assert "error[approval_not_pending]" in said
        assert asked(here, "r-1")["apply_patch"]["status"] == "WAITING_FOR_USER"
        assert "approval:r-1:apply_patch#edit-1" in said, "and what is asked now is shown next"
        assert status == 0

    def test_it_ends_when_told_to_or_when_nothing_more_is_said(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-1", "INC-1")
        for answers in ([b"quit\n"], [b"\x04"]):
            assert reviewed(here, answers)[1] == 0
        assert asked(here, "r-1")["apply_patch"]["status"] == "WAITING_FOR_USER"

    def test_nobody_is_asked_who_is_not_there(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-1", "INC-1")
        assert "asks on a terminal" in here("approvals", "review", stdin=b"a\n\n", status=2).error
        said, status = reviewed(here, [], "--no-input")
        assert (status, "asks on a terminal" in said) == (2, True)


def reviewed(
    cli: CommandLine, answers: Sequence[bytes], *words: str, before_reason: Callable[[], None] | None = None
) -> tuple[str, int]:
    """Run a review on a terminal of its own; give an answer to each question, and return what was on the screen."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        cli.argv("approvals", "review", *words),
        cwd=cli.folder,
        env=environment(TERM="dumb"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    left = list(answers)
    said = b""
    answered = 0
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        said += piece
        questions = len(re.findall(rb"quit\? |quit: |empty\): ", said))
        while left and answered < questions:
            if before_reason is not None and b"reason" in said[-40:]:
                before_reason()
                before_reason = None
            os.write(leader, left.pop(0))
            answered += 1
    os.close(leader)
    return said.decode(), process.wait(timeout=10)


class TestSignalsAndCancelling:
    def test_a_signal_lets_a_waiting_run_go_on(self, here: HereCommandLine) -> None:
        start("wait_long", "later")
        Path("payload.json").write_text('{"n": [1, 2.5]}', encoding="utf-8")
        sent = here("runs", "signal", "later", "go", "--payload", "@payload.json", "--json", status=0).json
        assert (sent["status"], sent["payload"]) == ("RUNNING", {"n": [1, 2.5]})
        assert here("resume", "later", *APP, status=0).json["returned"] == {"n": [1, 2.5]}
        assert here("runs", "signal", "later", "go", "--json", status=2).json["error"] == "cannot_signal"
        assert here("runs", "signal", "nobody", "go", "--json", status=2).json["error"] == "unknown_run:nobody"

    def test_a_run_is_cancelled_with_those_that_it_waits_for(self, here: HereCommandLine) -> None:
        start("delegate", "parent", "INC-8")
        cancelled = here("runs", "cancel", "parent", "--reason", "too late", "--json", status=0).json
        assert cancelled == {"run_id": "parent", "status": "CANCELLED", "reason": "too late"}
        statuses = [row["status"] for row in here("runs", "list", "--json", status=0).json["runs"]]
        assert statuses == ["CANCELLED", "CANCELLED"]
        assert here("approvals", "list", "--json", status=0).json["total"] == 0
        assert here("resume", "parent", *APP, status=2).json == {"error": "cannot_resume:CANCELLED"}
        assert here("runs", "cancel", "parent", "--json", status=2).json["error"] == "cannot_cancel"

    def test_a_run_of_one_action_is_cancelled_too(self, here: HereCommandLine) -> None:
        here("start", "single", "--output", "x", status=0)
        here("runs", "cancel", "single", status=0)
        assert here("runs", "list", "--json", status=0).json["runs"][0]["status"] == "CANCELLED"
        here("verify", status=0)


class TestAProgramOfTheCallers:
    def test_without_it_a_workflow_cannot_go_on_and_the_hint_says_so(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        here("approve", "r-42", "--proposal-hash", hash_of(here, "r-42"), status=0)
        refused = here("resume", "r-42", status=2)
        assert refused.json == {"error": "unknown_workflow"}
        assert "--app" in refused.error.splitlines()[-1]
        assert here("resume", "r-42", env={"EVENTLOG_APP": APP[1]}, status=0).json["status"] == "COMPLETED"

    def test_what_it_prints_does_not_get_into_the_answer(self, here: HereCommandLine) -> None:
        submit("fix_incident", "r-42", "INC-7")
        ended = here("resume", "r-42", "--app", "tests.workflow_program:make_runner_async", status=0)
        assert ended.json["status"] == "WAITING_FOR_USER"
        assert "prints what it likes" in ended.error

    def test_its_actions_and_policies_are_those_of_runs_of_one_action_too(self, here: HereCommandLine) -> None:
        words = ("--output", "cluster", "--action", "deploy", "--args", '{"to": "production"}')
        digest = here("start", "single", *words, *APP, status=0).json["proposal_hash"]
        vote = ("approve", "single", "--proposal-hash", digest)
        assert here(*vote, status=2).json == {"error": "role_required"}
        assert here(*vote, "--role", "ops", status=0).json["status"] == "WAITING_FOR_USER", "the first of two"
        asyncio.run(approve_as("ada", "single", digest))
        assert here("resume", "single", status=2).json == {"error": "unknown_action"}
        assert here("resume", "single", *APP, status=0).json["result"] == "executed"
        assert done() == {"deploy": 1}
        shown_run = shown(here, "single")
        assert (shown_run["result"], shown_run["decided_by"]) == ("deployed", "ada")
        assert [vote["actor"] for vote in shown_run["votes"]] == [f"os:{os.getuid()}", "ada"]

    @pytest.mark.parametrize("is_told", [True, False])
    def test_what_people_were_shown_is_compared_with_the_log_for_it_too(
        self, here: HereCommandLine, monkeypatch: pytest.MonkeyPatch, is_told: bool
    ) -> None:
        if not is_told:  # the control: a runner that does not know what people look at performs what they did not see
            monkeypatch.setattr(Runner, "shows", lambda runner, view: None)
        args = ("--action", "apply_patch", "--args", '{"patch": "p-9"}')
        digest = here("start", "single", "--output", "repo", *args, *APP, status=0).json["proposal_hash"]
        here("approve", "single", "--proposal-hash", digest, status=0)
        assert edit(here.folder / "a.db", 'UPDATE runs SET args = \'{"patch":"harmless"}\'') == 1
        resumed = here("resume", "single", *APP)
        if is_told:
            assert (resumed.status, resumed.json, done()) == (2, {"error": "proposal_hash_mismatch"}, {})
        else:
            assert (resumed.status, done()) == (0, {"apply_patch": 1})

    def test_it_is_imported_from_the_current_folder(self, cli: CommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        cli("approve", "r-42", "--proposal-hash", hash_of(cli, "r-42"), status=0)
        text = (
            "from tests.workflow_program import make_runner\n\nclass Made:\n    __call__ = staticmethod(make_runner)\n"
        )
        (cli.folder / "mine.py").write_text(text + "\nmade = Made()\n", encoding="utf-8")
        assert cli("resume", "r-42", "--app", "mine:made", status=0).json["status"] == "COMPLETED"

    @pytest.mark.parametrize(
        ("app", "why"),
        [
            ("nowhere:make_runner", "cannot import 'nowhere': ModuleNotFoundError"),
            ("tests.workflow_program", "is not MODULE:RUNNER"),
            ("tests.workflow_program:", "is not MODULE:RUNNER"),
            ("tests.workflow_program:missing", "has no 'missing'"),
            ("tests.workflow_program:NOT_A_FUNCTION", "is a int, and cannot be called"),
            ("tests.workflow_program:make_nothing", "made a NoneType, and no Runner"),
            ("raises:make", "cannot import 'raises': ValueError: [red]\\x1b"),
            ("leaves:make", "cannot import 'leaves': SystemExit: 3"),
            ("makes_badly:make", "failed to make a Runner: ZeroDivisionError"),
            ("of_another_log:make", "of another log"),
        ],
    )
    def test_what_is_no_runner_is_one_clear_error(self, cli: CommandLine, app: str, why: str) -> None:
        for name, text in {
            "raises": "raise ValueError('[red]\\x1b')",
            "leaves": "import sys; sys.exit(3)",
            "makes_badly": "def make(log):\n    return 1 / 0",
            "of_another_log": "import eventlog\n\ndef make(log):\n    return eventlog.Runner(eventlog.open('memory:'))",
        }.items():
            (cli.folder / f"{name}.py").write_text(text, encoding="utf-8")
        cli("start", "single", "--output", "x", status=0)
        ended = cli("runs", "cancel", "single", "--app", app, "--json", status=2)
        assert ended.json["error"] == "app_unusable"
        assert why in ended.json["message"].replace("\x1b", "\\x1b")
        assert ended.err == b""
        seed = cli("resume", "single", "--app", app, status=2)
        assert (seed.json, why in seed.error) == ({"error": "app_unusable"}, True)

    def test_who_wants_to_know_more_sees_where_it_failed(self, cli: CommandLine) -> None:
        (cli.folder / "raises.py").write_text("raise ValueError('x')", encoding="utf-8")
        cli("start", "single", "--output", "x", status=0)
        ended = cli("runs", "cancel", "single", "--app", "raises:make", "-v", status=2)
        assert "error[app_unusable]" in ended.error
        assert "raises.py" in ended.error

    def test_who_only_looks_does_not_run_it(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        for words in (("runs", "list"), ("runs", "show", "r-42"), ("approvals", "list"), ("verify",)):
            here(*words, "--app", "nowhere:make_runner", status=0)


class TestWorkers:
    def test_one_that_is_killed_in_the_middle_is_followed_by_another(self, cli: CommandLine) -> None:
        steps = 40
        submit("slow", "run-1", steps)
        first = begin(cli, "worker", *APP)
        wait_until(lambda: len(done()) >= 5, first)
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=10)
        assert shown(cli, "run-1")["status"] == "RUNNING"
        before = len(shown(cli, "run-1")["committed"])
        assert before < steps, "it was killed in the middle"
        second = cli("worker", *APP, "--until-idle", status=0)
        assert second.out == b""
        assert second.error.splitlines()[0].startswith("run_picked_up run_id='run-1' workflow='slow'")
        ended = shown(cli, "run-1")
        assert (ended["status"], ended["result"]) == ("COMPLETED", sum(range(steps)))
        counts = done()
        assert len(counts) == steps
        assert sum(counts.values()) <= steps + 1, "only the step that it died in was begun again"
        cli("verify", status=0)

    def test_two_of_them_share_the_work_and_do_nothing_twice(self, cli: CommandLine) -> None:
        for number in range(20):
            submit("slow", f"run-{number}", 3)
        workers = [begin(cli, "worker", *APP, "--until-idle", "--concurrency", "4") for _ in range(2)]
        lines = [line for each in workers for line in each.communicate(timeout=MANY_S)[1].decode().splitlines()]
        assert [each.returncode for each in workers] == [0, 0]
        assert done() == {f"step {number}": 20 for number in range(3)}
        rows = cli("runs", "list", "--json", status=0).json["runs"]
        assert {row["status"] for row in rows} == {"COMPLETED"}
        for what in ("run_picked_up", "run_left"):
            named = Counter(re.findall(rf"^{what} run_id='(.*?)'", "\n".join(lines), re.MULTILINE))
            assert named == {f"run-{number}": 1 for number in range(20)}

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_one_that_is_told_to_stop_gives_its_runs_free_at_the_next_step(
        self, cli: CommandLine, number: signal.Signals
    ) -> None:
        submit("slow", "run-1", 1000)
        process = begin(cli, "worker", *APP)
        wait_until(lambda: len(done()) >= 3, process)
        process.send_signal(number)
        out, error = process.communicate(timeout=MANY_S)
        assert (process.returncode, out) == (0, b""), error
        state = shown(cli, "run-1")
        assert (state["status"], state["driven_by"]) == ("RUNNING", None)
        assert error.decode().splitlines()[-1].startswith("run_left run_id='run-1'")
        assert all(count == 1 for count in done().values())

    def test_a_second_signal_ends_it_at_once(self, cli: CommandLine) -> None:
        (cli.folder / "stuck.py").write_text(STUCK, encoding="utf-8")
        subprocess.run([*cli.argv()[:1], "stuck.py"], cwd=cli.folder, env=environment(), check=True, timeout=MANY_S)
        process = begin(cli, "worker", "--app", "stuck:make")
        wait_until(lambda: done()["stuck"] == 1, process)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == -signal.SIGTERM
        process.communicate()

    def test_decisions_and_signals_reach_a_worker_that_is_waiting(self, cli: CommandLine) -> None:
        submit("fix_incident", "r-42", "INC-7")
        submit("wait_long", "later")
        process = begin(cli, "worker", *APP, "-q")
        wait_until(lambda: "prepare_patch" in done() and "r-42" in cli("approvals", "list").text, process)
        cli("approve", "r-42", "--proposal-hash", hash_of(cli, "r-42"), status=0)
        cli("runs", "signal", "later", "go", "--payload", "7", status=0)
        wait_until(lambda: {row["status"] for row in rows_of(cli)} == {"COMPLETED"}, process)
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=MANY_S)
        assert (process.returncode, out) == (0, b"")
        assert error == b"this program prints what it likes\n", "-q leaves the lines about runs away"
        assert done()["apply_patch"] == 1

    def test_it_needs_a_program(self, here: HereCommandLine) -> None:
        start("fix_incident", "r-42", "INC-7")
        assert "--app MODULE:RUNNER" in here("worker", status=2).error


STUCK: Final = """
import asyncio
from pathlib import Path

import eventlog


async def hang():
    Path("done.txt").write_text("stuck\\n")
    await asyncio.sleep(600)


@eventlog.workflow
async def stuck(run):
    await run.step("hang", hang)


def make(log):
    return eventlog.Runner(log, workflows=[stuck])


async def main():
    async with eventlog.open("a.db") as log:
        await make(log).submit(stuck, "run-1")


if __name__ == "__main__":
    asyncio.run(main())
"""


def rows_of(cli: CommandLine) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = cli("runs", "list", "--json", status=0).json["runs"]
    return rows


def wait_until(is_true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Look again and again until it is so; what the process does can be seen in files only."""
    end = time.monotonic() + MANY_S
    while not is_true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it has not come to it"
        time.sleep(0.02)


class TestHostileText:
    @pytest.fixture
    def hostile(self, here: HereCommandLine) -> HereCommandLine:
        """A log in which whoever could choose a text chose one that would change the terminal."""
        start("retry_once", "again")
        start("ask_two", "two")
        submit("wait_long", "later")
        assert here("runs", "signal", "later", "[bold]\u202e", status=2).error.count("invalid_id") == 1
        here("runs", "signal", "later", "[bold]", "--payload", json.dumps(HIDDEN + "[red]"), status=0)
        reason = HIDDEN.replace("\x00", "") + "[link=x]"
        here("approve", "two", "--proposal-hash", hash_of(here, "two"), "--reason", reason, status=0)
        here("approvals", "revoke", "two", "--request", "approval:two:apply_patch", "--reason", reason, status=0)
        here("runs", "cancel", "later", "--reason", reason, status=0)
        return here

    @pytest.mark.parametrize("form", ["human", "plain", "json", "jsonl"])
    def test_no_surface_shows_it_bare_or_reads_markup(self, hostile: HereCommandLine, form: str) -> None:
        for words in (
            ("runs", "list"),
            ("runs", "show", "again"),
            ("runs", "show", "two"),
            ("runs", "show", "later"),
            ("approvals", "list"),
            ("approvals", "show", "again"),
            ("approvals", "show", "two", "--request", "approval:two:apply_patch"),
            ("approvals", "wait", "two", "--timeout", "0"),
            ("tail",),
        ):
            ended = hostile(*words, "--format", form)
            text = ended.text + ended.error
            assert ended.status in (0, 5)
            assert not BARE.search(text.replace("\t", "")), words
        assert "[red]" in hostile("runs", "show", "again", "--format", form, status=0).text
        assert "fail[bold]" in hostile("runs", "show", "again", "--format", form, status=0).text


def test_each_new_command_explains_itself(here: HereCommandLine) -> None:
    for words in (
        ("approvals", "review"),
        ("approvals", "wait"),
        ("approvals", "edit"),
        ("approvals", "revoke"),
        ("runs", "cancel"),
        ("runs", "signal"),
        ("worker",),
    ):
        ended: Ended = here(*words, "--help", status=0)
        assert ended.text.startswith("Usage: ")
        assert "--app MODULE:RUNNER" in ended.text


@pytest.mark.parametrize("code", ["app_unusable", "still_waiting", "unknown_workflow", "request_ambiguous"])
def test_the_new_codes_are_explained(here: HereCommandLine, code: str) -> None:
    assert here("explain", code, "--json", status=0).json["code"] == code

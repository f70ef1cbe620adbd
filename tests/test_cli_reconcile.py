"""Unknown outcomes in the terminal: found, understood, settled by a person; and what a person is never asked for."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import ActionFailed, Call, ClaimLost, OutcomeUnknown, Refused
from eventlog.decide import VERDICTS
from eventlog.runtime.failpoints import CRASH_STATUS
from eventlog.stores.clock import SystemClock
from projections import RunsTable, runs_view
from tests import reconcile_scenarios
from tests.command_line import CommandLine, Ended, HereCommandLine
from tests.test_cli import BARE, HIDDEN
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import open_file

pytestmark = pytest.mark.processes

TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
EVIDENCE: Final = "the post office has its receipt"
WHY: Final = "ConnectionResetError: the line went dead"
STATUS_AFTER: Final = {"executed": "COMPLETED", "not_executed": "APPROVED", "abandoned": "CANCELLED"}

Perform = Callable[[Call], Awaitable[Any]]


async def breaks_off(call: Call) -> Any:
    """Begin an effect of which nobody hears again."""
    raise ConnectionResetError("the line went dead")


async def works(call: Call) -> Any:
    return {"n": 1}


def act(
    folder: Path, perform: Perform = breaks_off, run_id: str = "run-1", *, name: str = "send_letter", **settings: Any
) -> None:
    """Propose a run, approve it and resume it, in a program that knows its action."""

    async def propose_and_resume() -> None:
        view = runs_view()
        async with open_file(folder / "a.db", views=[view]) as log:
            action = eventlog.action(name, **settings)(perform)
            runner = eventlog.Runner(log, actions=[action], view=RunsTable(log, view), folder=str(folder))
            proposal = eventlog.propose(name, {"content": "Dear Ada"}, "box")
            await runner.propose(run_id, proposal)
            await runner.approve(run_id, proposal.hash)
            try:
                await runner.resume(run_id)
            except Refused:
                pass

    asyncio.run(propose_and_resume())


def undo(folder: Path, undoing: Perform = breaks_off) -> None:
    """Send the letter of run-1, and try to take it back."""

    async def send_and_take_back() -> None:
        async with open_file(folder / "a.db") as log:
            actions = [
                eventlog.action("send_letter", compensation="take_back")(works),
                eventlog.action("take_back")(undoing),
            ]
            runner = eventlog.Runner(log, actions=actions)
            proposal = eventlog.propose("send_letter", {}, "box")
            await runner.propose("run-1", proposal)
            await runner.approve("run-1", proposal.hash)
            await runner.resume("run-1")
            try:
                await runner.compensate("run-1")
            except OutcomeUnknown:
                pass

    asyncio.run(send_and_take_back())


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


@pytest.fixture
def unknown(here: HereCommandLine) -> HereCommandLine:
    """A log whose one run, run-1, has an outcome that nobody knows."""
    act(here.folder)
    return here


def reconcile(
    here: CommandLine, *words: str | bytes, run_id: str = "run-1", verdict: str = "executed", **options: Any
) -> Any:
    """Settle a run by what is seen now, and return the document; look again where the first look came too early."""
    command = ("reconcile", run_id, "--json", "--verdict", verdict, "--evidence", EVIDENCE, *words)
    ended = here(*command, *seen(here, run_id), **{"status": None, **options})
    if "verdict_stale" in ended.text:
        ended = here(*command, *seen(here, run_id), **options)
    assert ended.status == options.get("status", 0), ended
    return ended.json


def seen(here: CommandLine, run_id: str = "run-1") -> tuple[str, str]:
    """Return the option that says what the run is like now."""
    return "--at-version", str(show(here, run_id)["version"])


def show(here: CommandLine, run_id: str = "run-1") -> Any:
    return here("runs", "show", run_id, "--json", status=0).json


def types(here: CommandLine, run_id: str = "run-1") -> list[str]:
    return [item["event"] for item in here("show-trace", run_id, status=0).json["trace"]]


def head(here: CommandLine) -> int:
    position: int = here("db", "info", "--json", status=0).json["head"]
    return position


class TestVerdicts:
    @pytest.mark.parametrize("verdict", VERDICTS)
    def test_each_leaves_the_run_where_it_says_and_is_recorded_with_who_gave_it(
        self, unknown: HereCommandLine, verdict: str
    ) -> None:
        before = show(unknown)
        document = reconcile(unknown, verdict=verdict)
        recorded = unknown("events", "show", str(head(unknown)), "--json", status=0).json
        assert (recorded["type"], recorded["actor"]) == ("outcome_reconciled", f"os:{os.getuid()}")
        assert document == {
            "run_id": "run-1",
            "status": STATUS_AFTER[verdict],
            "action": "send_letter",
            "undoing": None,
            "op_key": before["op_key"],
            "attempts": 1,
            "verdict": verdict,
            "evidence": EVIDENCE,
            "reconciled_by": f"os:{os.getuid()}",
            "reconciled_at": recorded["recorded_at"],
            "result": None,
            "resume_with": None,
        }
        row = unknown("runs", "list", "--json", status=0).json["runs"][0]
        assert (row["status"], row["executed"]) == (STATUS_AFTER[verdict], int(verdict == "executed"))
        assert unknown("approvals", "list", "--json", status=0).json["total"] == 0
        unknown("verify", status=0)
        after = show(unknown)
        assert (after["status"], after["unknown"], after["verdict"]) == (STATUS_AFTER[verdict], None, verdict)

    def test_people_and_programs_are_told_in_every_format(self, tmp_path: Path) -> None:
        texts = {}
        for form in ("human", "plain", "json", "jsonl"):
            folder = tmp_path / form
            folder.mkdir()
            act(folder)
            here = HereCommandLine(folder, "--db", "a.db")
            command = ("reconcile", "run-1", "--verdict", "not_executed", "--evidence", EVIDENCE, "--format", form)
            ended = here(*command, *seen(here), status=0)
            assert ended.err == b""
            assert show(here)["op_key"] in ended.text
            texts[form] = ended.text
        assert f"evidence\t{EVIDENCE}\n" in texts["plain"]
        assert re.search(r"^status +APPROVED$", texts["human"], re.MULTILINE)
        for form in ("human", "plain"):
            last = texts[form].splitlines()[-1]
            assert last == "resume it in the program that registers the action 'send_letter'"
        for form in ("json", "jsonl"):
            assert json.loads(texts[form])["status"] == "APPROVED"
            assert texts[form].count("\n") == 1

    def test_what_did_not_happen_can_be_resumed_with_the_command_that_is_named(self, here: HereCommandLine) -> None:
        act(here.folder, name="write_draft")
        words = ("reconcile", "run-1", "--verdict", "not_executed", "--evidence", EVIDENCE)
        text = here(*words, *seen(here), status=0).text.splitlines()[-1]
        assert text == "resume with:  eventlog --db a.db resume run-1"
        resumed = HereCommandLine(here.folder)(*text.split()[3:], status=0).json
        assert (resumed["result"], resumed["status"]) == ("executed", "COMPLETED")
        assert (here.folder / "box").read_text(encoding="utf-8") == "Dear Ada"
        assert (show(here)["attempts"], types(here).count("action_executed")) == (2, 1)

    def test_the_result_that_a_person_found_is_kept_exactly(self, here: HereCommandLine) -> None:
        result = '{"letters": [1.5, null, "草"], "number": 123456789012345678901234567890}'
        (here.folder / "result.json").write_text(result, encoding="utf-8")
        for run_id, source in (("text", result), ("file", "@result.json"), ("input", "-")):
            act(here.folder, run_id=run_id)
            document = reconcile(here, "--result", source, run_id=run_id, stdin=result.encode())
            assert document["result"] == json.loads(result)
            assert show(here, run_id)["result"] == json.loads(result)

    @pytest.mark.parametrize(
        ("verdict", "status"), [("executed", "COMPENSATED"), ("not_executed", "COMPLETED"), ("abandoned", "COMPLETED")]
    )
    def test_the_undoing_of_an_effect_is_settled_in_the_same_way(
        self, here: HereCommandLine, verdict: str, status: str
    ) -> None:
        undo(here.folder)
        waiting = here("approvals", "show", "run-1", "--json", status=0).json
        assert (waiting["status"], waiting["undoing"], waiting["unknown"]) == ("OUTCOME_UNKNOWN", "take_back", WHY)
        state = show(here)
        assert waiting["op_key"] == state["compensation"]["op_key"] != state["op_key"]
        given = ("--result", '{"back": 1}') if verdict == "executed" else ()
        document = reconcile(here, *given, verdict=verdict)
        assert (document["status"], document["undoing"], document["resume_with"]) == (status, "take_back", None)
        assert document["result"] == ({"back": 1} if given else None)
        state = show(here)
        assert (state["executed"], state["result"]) == (True, {"n": 1}), "the effect itself happened, whatever followed"
        assert state["compensation"]["is_settled"] == (verdict != "not_executed")
        here("verify", status=0)


class TestWhatWasSeen:
    def test_the_command_that_is_shown_is_about_what_is_shown(self, here: HereCommandLine) -> None:
        act(here.folder)
        shown = here("approvals", "show", "run-1", "--json", status=0).json
        assert shown["version"] == show(here)["version"]
        for command in shown["reconcile_with"].values():
            assert f"--at-version {shown['version']} " in command
        text = here("approvals", "show", "run-1", "--format", "human", status=0).text
        assert re.search(rf"^version +{shown['version']}$", text, re.MULTILINE)

    def test_a_verdict_that_was_found_before_the_attempt_was_over_is_refused_with_a_trace(
        self, unknown: HereCommandLine
    ) -> None:
        words = ("reconcile", "run-1", "--verdict", "not_executed", "--evidence", EVIDENCE)
        intent = next(number for number, name in enumerate(types(unknown), start=1) if name == "resume_started")
        told = unknown(*words, "--at-version", str(intent), "--json", status=2).json
        assert (told["error"], told["details"]["attempt"]) == ("verdict_stale", 1)
        assert "look at the receiver again" in told["message"] and "approvals show" in told["hint"]
        assert types(unknown)[-1] == "transition_rejected"
        assert show(unknown)["status"] == "OUTCOME_UNKNOWN"

    @pytest.mark.parametrize("given", [(), ("--at-version", "1000")], ids=["no version", "one of the future"])
    def test_who_says_that_nothing_happened_has_to_say_what_was_seen(
        self, unknown: HereCommandLine, given: tuple[str, ...]
    ) -> None:
        before = head(unknown)
        words = ("reconcile", "run-1", "--verdict", "not_executed", "--evidence", EVIDENCE, "--json", *given)
        assert unknown(*words, status=2).json["error"] == "invalid_argument"
        assert head(unknown) == before


class TestRefusals:
    def test_each_has_its_code_and_status(self, unknown: HereCommandLine) -> None:
        act(unknown.folder, works, "done")
        words = ("--verdict", "executed", "--evidence", EVIDENCE, "--json")
        assert unknown("reconcile", "nope", *words, status=2).json["error"] == "unknown_run:nope"
        assert unknown("reconcile", "done", *words, status=2).json["error"] == "outcome_not_unknown"
        assert unknown("reconcile", "a\u202eb", *words, status=2).json["error"] == "invalid_id"
        missing = HereCommandLine(unknown.folder, "--db", "none.db")
        assert missing("reconcile", "run-1", *words, status=2).json["error"] == "store_not_found"
        assert not (unknown.folder / "none.db").exists()
        told = unknown("reconcile", "done", *words[:-1], status=2)
        assert told.out == b""
        assert told.error.splitlines()[0] == (
            "error[outcome_not_unknown]: the outcome of run 'done' is not unknown: it is COMPLETED"
        )

    def test_a_refusal_leaves_a_trace_and_the_first_verdict_stands(self, unknown: HereCommandLine) -> None:
        reconcile(unknown, verdict="abandoned")
        again = reconcile(unknown, verdict="executed", status=2)
        assert (again["error"], again["details"]["status"]) == ("outcome_not_unknown", "CANCELLED")
        last = unknown("show-trace", "run-1", status=0).json["trace"][-1]
        assert last == {
            "event": "transition_rejected",
            "reason": "outcome_not_unknown",
            "current_status": "CANCELLED",
            "existing_approval": "approve",
            "attempted_decision": "reconcile:executed",
            "supplied_hash": None,
        }
        assert (show(unknown)["verdict"], show(unknown)["executed"]) == ("abandoned", False)

    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("--verdict", "executed"),
            ("--evidence", EVIDENCE),
            ("--verdict", "perhaps", "--evidence", EVIDENCE),
            ("--verdict", "EXECUTED", "--evidence", EVIDENCE),
            ("--verdict", "executed", "--evidence", EVIDENCE, "--result", "@missing.json"),
            ("--verdict", "executed", "--evidence", EVIDENCE, "run-2"),
        ],
    )
    def test_a_usage_error_is_said_and_nothing_is_recorded(
        self, unknown: HereCommandLine, words: tuple[str, ...]
    ) -> None:
        before = head(unknown)
        ended = unknown("reconcile", "run-1", *words, status=2)
        assert (ended.out, "Error: " in ended.error) == (b"", True)
        assert unknown("reconcile", "run-1", *words, "--json", status=2).json["error"] == "invalid_argument"
        assert head(unknown) == before

    @pytest.mark.parametrize(
        ("evidence", "code"),
        [
            ("", "invalid_argument"),
            (" \t\n", "invalid_argument"),
            ("\u3000", "invalid_argument"),
            ("x" * 1025, "payload_too_large"),
            (b"\xff", "invalid_text"),
            (b"\xed\xa0\x80", "invalid_text"),
        ],
    )
    def test_evidence_that_says_nothing_or_cannot_be_kept_is_refused(
        self, unknown: HereCommandLine, evidence: str | bytes, code: str
    ) -> None:
        before = head(unknown)
        for verdict in VERDICTS:
            words: tuple[str | bytes, ...] = ("--verdict", verdict, "--evidence", evidence, "--json", *seen(unknown))
            assert unknown("reconcile", "run-1", *words, status=2).json["error"] == code
        assert head(unknown) == before
        document = unknown(
            "reconcile", "run-1", "--verdict", "abandoned", "--evidence", "x" * 1024, "--json", status=0
        ).json
        assert document["evidence"] == "x" * 1024, "the longest that is allowed"

    @pytest.mark.parametrize(
        ("result", "code"),
        [
            ("nonsense", "invalid_json"),
            ("", "invalid_json"),
            ('{"a": 1, "a": 2}', "duplicate_key"),
            ("NaN", "non_finite_number"),
            ('{"a": -Infinity}', "non_finite_number"),
            ("1e999", "non_finite_number"),
            ('"\\ud800"', "invalid_text"),
            (b'"\xff"', "invalid_text"),
            ("[" * 200 + "]" * 200, "payload_too_deep"),
            ("[" * 100_000, "payload_too_deep"),
            ("1" * 5000, "number_too_large"),
            ("@large.json", "payload_too_large"),
            ("@barely.json", "payload_too_large"),
        ],
    )
    def test_a_result_that_is_not_exact_is_refused(
        self, unknown: HereCommandLine, result: str | bytes, code: str
    ) -> None:
        before = head(unknown)
        limit = 16 * 1024 * 1024
        (unknown.folder / "large.json").write_bytes(b'"' + b"x" * limit + b'"')
        (unknown.folder / "barely.json").write_bytes(b'"' + b"x" * (limit - 2) + b'"')
        assert reconcile(unknown, "--result", result, status=2)["error"] == code
        assert head(unknown) == before

    @pytest.mark.parametrize("verdict", ["not_executed", "abandoned"])
    def test_only_what_happened_has_a_result(self, unknown: HereCommandLine, verdict: str) -> None:
        assert reconcile(unknown, "--result", "1", verdict=verdict, status=2)["error"] == "invalid_argument"
        assert show(unknown)["status"] == "OUTCOME_UNKNOWN"

    def test_hidden_characters_are_kept_in_the_log_and_shown_escaped(self, unknown: HereCommandLine) -> None:
        evidence = HIDDEN.replace("\x00", "") + "[red]"
        ended = unknown("reconcile", "run-1", "--verdict", "abandoned", "--evidence", evidence, status=0)
        shown = [unknown(*words, status=0) for words in (("runs", "show", "run-1"), ("tail",), ("approvals", "list"))]
        for each in (ended, *shown):
            assert not BARE.search(each.text.replace("\t", ""))
        assert "[red]" in ended.text
        assert show(unknown)["evidence"] == evidence


class TestLooking:
    def test_the_list_says_what_a_person_is_wanted_for(self, here: HereCommandLine) -> None:
        act(here.folder, run_id="b")
        act(here.folder, works, "done")
        for run_id in ("a", "c"):
            here("start", run_id, "--output", "t", status=0)
        document = here("approvals", "list", "--json", status=0).json
        assert [(row["run_id"], row["status"], row["wanted"]) for row in document["approvals"]] == [
            ("a", "WAITING_FOR_USER", "decide"),
            ("b", "OUTCOME_UNKNOWN", "reconcile"),
            ("c", "WAITING_FOR_USER", "decide"),
        ]
        assert (document["shown"], document["total"]) == (3, 3)
        assert here("approvals", "list", "--limit", "1", "--json", status=0).json["total"] == 3
        lines = here("approvals", "list", status=0).text.splitlines()
        assert [line.split("\t")[:2] for line in lines] == [["a", "decide"], ["b", "reconcile"], ["c", "decide"]]
        assert "wanted" in here("approvals", "list", "--format", "human", status=0).text.splitlines()[0]
        statuses = [row["status"] for row in here("runs", "list", "--json", status=0).json["runs"]]
        assert statuses == ["WAITING_FOR_USER", "OUTCOME_UNKNOWN", "WAITING_FOR_USER", "COMPLETED"]

    def test_show_says_why_it_is_unknown_and_ends_with_the_exact_commands(self, unknown: HereCommandLine) -> None:
        document = unknown("approvals", "show", "run-1", "--json", status=0).json
        state = show(unknown)
        assert (document["unknown"], document["attempts"], document["undoing"]) == (WHY, 1, None)
        assert document["op_key"] == state["op_key"] and re.fullmatch("[0-9a-f]{64}", document["op_key"])
        assert document["approve_with"] is None
        commands = document["reconcile_with"]
        assert list(commands) == sorted(VERDICTS), "the keys of a document are sorted"
        for form in ("human", "plain"):
            lines = unknown("approvals", "show", "run-1", "--format", form, status=0).text.splitlines()
            assert lines[-3:] == [f"  {commands[verdict]}" for verdict in VERDICTS]
            assert any(WHY in line for line in lines)

    @pytest.mark.parametrize("verdict", VERDICTS)
    def test_a_command_as_it_is_shown_lacks_only_the_evidence(self, here: HereCommandLine, verdict: str) -> None:
        act(here.folder, run_id="-r 1")
        shown = here("approvals", "show", "--json", "--", "-r 1", status=0).json["reconcile_with"][verdict]
        words = shlex.split(shown)[1:]
        bare = HereCommandLine(here.folder)
        told = bare(*words, status=2).error
        assert told.startswith("error[invalid_argument]: a verdict needs evidence")
        words[words.index("")] = EVIDENCE
        bare(*words, status=0)
        state = here("runs", "show", "--json", "--", "-r 1", status=0).json
        assert (state["status"], state["evidence"]) == (STATUS_AFTER[verdict], EVIDENCE)
        assert here("approvals", "show", "--json", "--", "-r 1", status=0).json["reconcile_with"] is None

    def test_a_run_that_waits_for_a_decision_has_nothing_to_reconcile(self, here: HereCommandLine) -> None:
        here("start", "run-1", "--output", "t", status=0)
        document = here("approvals", "show", "run-1", "--json", status=0).json
        keys = ("unknown", "undoing", "op_key", "attempts", "intent", "verdict", "reconcile_with")
        assert [document[key] for key in keys] == [None, None, None, 0, None, None, None]
        assert document["approve_with"] is not None

    def test_show_has_what_the_effect_returned(self, here: HereCommandLine) -> None:
        act(here.folder, works)
        state = show(here)
        names = ("result", "failure", "unknown", "compensation", "key_until", "is_stray", "verdict")
        assert [state[name] for name in names] == [{"n": 1}, None, None, None, None, False, None]
        assert 'result               {"n": 1}\n' in here("runs", "show", "run-1", "--format", "human", status=0).text

    def test_show_has_until_when_the_receiver_knows_the_key(self, here: HereCommandLine) -> None:
        act(here.folder, promise="keyed", key_lifetime_s=3600)
        state = show(here)
        assert TIME.fullmatch(state["key_until"])
        assert state["key_until"] > state["recorded_at"]
        assert (state["status"], state["unknown"]) == ("OUTCOME_UNKNOWN", WHY)

    def test_show_has_the_state_of_an_undoing(self, here: HereCommandLine) -> None:
        undo(here.folder, works)
        state = show(here)
        key = state["compensation"].pop("op_key")
        assert state["status"] == "COMPENSATED"
        assert state["compensation"] == {
            "action": "take_back",
            "attempts": 1,
            "intent": None,
            "is_settled": True,
            "key_until": None,
            "result": {"n": 1},
        }
        assert key in here("runs", "show", "run-1", status=0).text

    def test_an_overruled_resumer_may_still_be_at_work_and_people_are_told(
        self, here: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As it is with one on another host, of which nobody can see whether it lives."""
        monkeypatch.setattr("eventlog.runtime.attempts.is_proved_alive", lambda *_: False)
        ended = asyncio.run(overrule_a_late_resumer(here.folder))
        assert (ended.status, ended.error.startswith("an earlier resumer was overruled")) == (0, True)
        assert show(here)["is_stray"] is True
        assert "is_stray\tyes\n" in here("runs", "show", "run-1", status=0).text

    def test_a_failure_for_good_is_shown_and_given_again_with_every_character_visible(
        self, here: HereCommandLine
    ) -> None:
        hidden = HIDDEN.replace("\x00", "")
        facts: dict[str, Any] = {hidden: "insufficient funds"}

        async def is_declined(call: Call) -> Any:
            raise ActionFailed(f"card{hidden}", f"declined {hidden}", is_final=True, **facts)

        act(here.folder, is_declined)
        state = show(here)
        assert (state["status"], state["unknown"]) == ("FAILED", None)
        assert state["failure"] == {
            "code": f"card{hidden}",
            "message": f"declined {hidden}",
            "details": {hidden: "insufficient funds"},
        }
        told = here("resume", "run-1", "-v", status=2)
        assert told.json == {"error": f"card{hidden}"}, "the bytes of the frozen commands are those of json.dumps"
        assert not BARE.search(told.error)
        assert "declined" in told.error and ": insufficient funds\n" in told.error
        for words in (("runs", "show", "run-1"), ("tail",)):
            assert not BARE.search(here(*words, status=0).text.replace("\t", "")), words


class Slow(SystemClock):
    """A clock that stands still, far behind all others: its owner never notices that its time is up."""

    def now_us(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0


async def overrule_a_late_resumer(folder: Path) -> Ended:
    """Reconcile a run while its resumer lives, after the deadline of its intent; the resumer is told."""
    is_inside, may_go_on = asyncio.Event(), asyncio.Event()

    @eventlog.action("send_letter")
    async def send_letter(call: Call) -> None:
        is_inside.set()
        await may_go_on.wait()

    async with open_file(folder / "a.db") as log:
        runner = eventlog.Runner(log, actions=[send_letter], clock=Slow(), lease_s=0.001)
        proposal = eventlog.propose("send_letter", {}, "box")
        await runner.propose("run-1", proposal)
        await runner.approve("run-1", proposal.hash)
        resuming = asyncio.create_task(runner.resume("run-1"))
        await is_inside.wait()
        words = ("reconcile", "run-1", "--verdict", "not_executed", "--evidence", EVIDENCE)
        here = HereCommandLine(folder, "--db", "a.db")
        early = await asyncio.to_thread(here, *words, *await asyncio.to_thread(seen, here))
        assert "verdict_stale" in early.error, early
        ended = await asyncio.to_thread(here, *words, *await asyncio.to_thread(seen, here))
        may_go_on.set()
        with pytest.raises(ClaimLost):
            await resuming
        return ended


class TestExplanations:
    def test_an_action_s_own_code_is_said_to_be_one(self, here: HereCommandLine) -> None:
        assert "an action's own" in here("explain", "xyzzy", status=2).error

    @pytest.mark.parametrize("code", ["outcome_unknown", "outcome_not_unknown", "cannot_compensate", "invalid_verdict"])
    def test_a_code_of_this_room_is_explained(self, here: HereCommandLine, code: str) -> None:
        assert here("explain", code, "--json", status=0).json["code"] == code

    def test_a_shell_completes_the_verdicts(self, here: HereCommandLine) -> None:
        def completions(words: str, last: int) -> list[str]:
            env = {"_EVENTLOG_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(last)}
            return HereCommandLine(here.folder)(env=env, status=0).text.splitlines()

        assert completions("eventlog reconcile r --verdict ", 4) == [f"plain,{verdict}" for verdict in VERDICTS]
        assert completions("eventlog reconcile r --verdict no", 4) == ["plain,not_executed"]
        assert "plain,reconcile" in completions("eventlog rec", 1)


class TestProcesses:
    """A program with an opaque action dies in the middle; the command line, which knows no such action, settles it."""

    @pytest.fixture
    def cli(self, here: HereCommandLine) -> HereCommandLine:
        for run_id in ("run-1", "run-2"):
            words = ("start", run_id, "--output", str(here.folder / "box"), "--action", "send_letter", "--args", "{}")
            digest = here(*words, status=0).json["proposal_hash"]
            here("approve", run_id, "--proposal-hash", digest, status=0)
        return here

    @staticmethod
    def resume(
        cli: CommandLine, *run_ids: str, failpoint: str | None = None, promise: str = "opaque", status: int = 0
    ) -> child.Done:
        env = {"EVENTLOG_FAILPOINT": failpoint} if failpoint is not None else None
        done = child.run(reconcile_scenarios.resumes, cli.folder / "a.db", promise, *run_ids, env=env)
        assert done.returncode == status, done.stderr
        return done

    @staticmethod
    def letters(cli: CommandLine) -> list[str]:
        box = cli.folder / "box"
        return box.read_text(encoding="utf-8").splitlines() if box.exists() else []

    @pytest.mark.parametrize(
        ("failpoint", "status"),
        [
            ("intent.after_commit", CRASH_STATUS),
            ("effect.after", CRASH_STATUS),
            ("effect.after=kill", -signal.SIGKILL),
            ("result.before_commit=kill", -signal.SIGKILL),
        ],
    )
    def test_a_run_whose_process_died_is_settled_directly_and_fenced_first(
        self, cli: HereCommandLine, failpoint: str, status: int
    ) -> None:
        self.resume(cli, "run-1", failpoint=failpoint, status=status)
        state = show(cli)
        assert (state["status"], state["intent"]["attempt"]) == ("APPROVED", 1)
        shown = cli("approvals", "show", "run-1", "--json", status=0).json
        assert (shown["intent"], shown["op_key"], shown["reconcile_with"]) == (state["intent"], state["op_key"], None)
        assert "attempt 1 has begun and has no result yet" in cli("approvals", "show", "run-1", status=0).text
        happened = bool(self.letters(cli))
        verdict = "executed" if happened else "not_executed"
        document = reconcile(CommandLine(cli.folder, "--db", "a.db"), verdict=verdict)
        assert (document["status"], document["op_key"]) == (STATUS_AFTER[verdict], state["op_key"])
        early = [] if happened else ["transition_rejected"]
        behind = ["resume_started", "run_claimed", "outcome_unknown", *early, "outcome_reconciled"]
        assert types(cli)[-len(behind) :] == behind
        assert show(cli)["is_stray"] is False, "its owner was proved dead"
        cli("verify", status=0)
        expected = ["already_completed", None] if happened else ["executed", {"attempt": 2}]
        assert self.resume(cli, "run-1").result == [expected]
        assert self.letters(cli) == [state["op_key"]], "one letter, under the one key of both attempts"

    def test_before_the_intent_there_is_nothing_to_settle(self, cli: HereCommandLine) -> None:
        self.resume(cli, "run-1", failpoint="intent.before_commit", status=CRASH_STATUS)
        assert reconcile(cli, status=2)["error"] == "outcome_not_unknown"
        assert self.resume(cli, "run-1").result == [["executed", {"attempt": 1}]]

    def test_a_resume_finds_the_unknown_outcome_and_a_person_ends_it(self, cli: HereCommandLine) -> None:
        self.resume(cli, "run-1", failpoint="effect.after=kill", status=-signal.SIGKILL)
        assert self.resume(cli, "run-1", "run-1").result == ["outcome_unknown"] * 2
        assert [row["wanted"] for row in cli("approvals", "list", "--json", status=0).json["approvals"]] == [
            "reconcile"
        ]
        why = cli("approvals", "show", "run-1", "--json", status=0).json["unknown"]
        assert why == "attempt 1 ended without a result, and the action cannot be asked"
        reconcile(cli, "--result", '{"attempt": 1}')
        assert self.resume(cli, "run-1").result == [["already_completed", {"attempt": 1}]]
        assert len(self.letters(cli)) == 1

    def test_the_count_of_letters_notices_an_action_that_promises_too_much(self, cli: HereCommandLine) -> None:
        self.resume(cli, "run-1", promise="keyed", failpoint="effect.after=kill", status=-signal.SIGKILL)
        self.resume(cli, "run-1", promise="keyed")
        assert len(self.letters(cli)) == 2, "an action whose receiver knows no keys, and says it does, acts twice"

    def test_a_process_that_is_at_work_is_left_in_peace_until_it_is_dead(self, cli: HereCommandLine) -> None:
        process = child.start(reconcile_scenarios.resumes_and_waits, cli.folder / "a.db", "run-1")
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
            before = head(cli)
            settle = CommandLine(cli.folder, "--db", "a.db")
            told = reconcile(settle, verdict="not_executed", status=5)
            assert told["error"] == "run_conflict"
            assert head(cli) == before, "nobody was fenced and nothing was recorded"
        finally:
            process.kill()
            process.communicate(timeout=30)
        assert reconcile(settle, verdict="not_executed")["status"] == "APPROVED"
        assert self.letters(cli) == []

    def test_without_the_proof_of_life_a_living_process_would_be_overruled(
        self, cli: HereCommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eventlog.runtime.attempts.is_orphaned", lambda *_: True)
        monkeypatch.setattr("eventlog.runtime.attempts.is_proved_alive", lambda *_: False)
        with child.start(reconcile_scenarios.resumes_and_waits, cli.folder / "a.db", "run-1") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
            assert reconcile(cli, verdict="not_executed")["status"] == "APPROVED"
            out, error = process.communicate("go on\n", timeout=30)
        assert (process.returncode, '["claim_lost"]' in out) == (0, True), error
        assert len(self.letters(cli)) == 1, "the letter that was said not to be sent"
        assert show(cli)["is_stray"] is True

    def test_a_process_that_is_at_work_ends_as_if_nobody_had_asked(self, cli: HereCommandLine) -> None:
        with child.start(reconcile_scenarios.resumes_and_waits, cli.folder / "a.db", "run-1") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
            assert reconcile(cli, verdict="abandoned", status=5)["error"] == "run_conflict"
            out, error = process.communicate("go on\n", timeout=30)
        assert (process.returncode, '[["executed", {"attempt": 1}]]' in out) == (0, True), error
        assert show(cli)["status"] == "COMPLETED"

    @pytest.mark.parametrize(
        ("failpoint", "status"), [("effect.after:2", CRASH_STATUS), ("effect.after:2=kill", -signal.SIGKILL)]
    )
    def test_a_failpoint_counts_how_often_it_is_passed(self, cli: HereCommandLine, failpoint: str, status: int) -> None:
        self.resume(cli, "run-1", "run-2", failpoint=failpoint, status=status)
        assert [show(cli, run_id)["status"] for run_id in ("run-1", "run-2")] == ["COMPLETED", "APPROVED"]
        assert len(self.letters(cli)) == 2

    def test_two_people_who_settle_one_run_at_once_are_not_both_believed(self, cli: HereCommandLine) -> None:
        self.resume(cli, "run-1", failpoint="effect.after=kill", status=-signal.SIGKILL)
        words = ("reconcile", "run-1", "--json", "--evidence", EVIDENCE, "--verdict")
        settling = [
            subprocess.Popen(
                CommandLine(cli.folder, "--db", "a.db").argv(*words, verdict),
                cwd=cli.folder,
                env=child.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for verdict in ("executed", "abandoned")
        ]
        answers = [json.loads(process.communicate(timeout=60)[0]) for process in settling]
        believed = [answer for answer in answers if "error" not in answer]
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert len(believed) == 1
        assert refused[0] in ("outcome_not_unknown", "run_conflict")
        assert (show(cli)["status"], show(cli)["verdict"]) == (believed[0]["status"], believed[0]["verdict"])
        assert types(cli).count("outcome_reconciled") == 1

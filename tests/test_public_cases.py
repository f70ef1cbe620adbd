"""Bugs that users met in other engines, tried on this one: effects, approvals, and several processes on one run.

Each docstring names the case and the public thread in which the symptom was reported. Processes are real, and so are
the files and servers at which effects are counted. `tests/test_public_workflow_cases.py` has the cases of workflows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import eventlog
from eventlog import Append, Call, Executed, Expect, NewEvent, Proposal
from eventlog.errors import ActionFailed, InvalidInput, LogCorrupt, OutcomeUnknown, Refused, RunConflict
from eventlog.events import CheckpointSaved, Status, run_stream
from eventlog.log import RunLog
from eventlog.runtime.actions.threads import run_to_the_end
from eventlog.runtime.effects import Report
from eventlog.runtime.failpoints import EFFECT_AFTER, RESULT_AFTER_COMMIT, RESULT_BEFORE_COMMIT
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from projections import RunsTable, runs_view
from tests import process_scenarios, public_case_scenarios
from tests.command_line import CommandLine, Ended
from tests.effect_runs import assert_refused_as_unknown
from tests.public_case_scenarios import Pay
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import assert_whole, open_file

pytestmark = pytest.mark.processes

TEN_YEARS_US = 10 * 365 * 24 * 3600 * 1_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def receipts(tmp_path: Path) -> Path:
    """Where payments leave their receipts: outside the log, a line each."""
    return tmp_path / "receipts"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteLog]:
    async with open_file(path) as log:
        yield log
        await assert_whole(log)


async def approve(log: RunLog, proposal: Proposal, run_id: str = "run-1") -> None:
    runner = eventlog.Runner(log)
    await runner.propose(run_id, proposal)
    await runner.approve(run_id, proposal.hash)


async def approve_payment(path: Path, receipts: Path, *run_ids: str) -> None:
    async with open_file(path) as log:
        for run_id in run_ids or ("run-1",):
            await approve(log, payment(receipts), run_id)


def payment(receipts: Path, amount: int = 25) -> Proposal:
    return eventlog.propose("pay", {"amount": amount}, str(receipts))


def paid(receipts: Path) -> list[str]:
    """Return the runs that have paid, one entry a receipt."""
    return [line.split()[0] for line in receipts.read_text().splitlines()] if receipts.exists() else []


async def types(log: RunLog, run_id: str = "run-1") -> list[str]:
    return [event.type for event in await eventlog.Runner(log).trace(run_id)]


async def command_line(path: Path, *words: str) -> Ended:
    """Run `eventlog` on the log, as a process of its own."""
    return await asyncio.to_thread(CommandLine(path.parent, "--db", path.name), *words)


def together(path: Path, *programs: tuple[Callable[..., Any], Sequence[object]]) -> list[Any]:
    """Start programs, let them begin at the same moment, and return what each returns."""
    processes = [child.start(function, path, *args) for function, args in programs]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "READY\n"
        ended = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            ended.append(json.loads(out.splitlines()[-1].removeprefix("RESULT ")))
        return ended
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class Scripted:
    """Does what it is told, one instruction an attempt, and keeps the calls."""

    name = "scripted"

    def __init__(self, promise: str, *instructions: Report | Exception) -> None:
        self.promise = eventlog.Promise(promise)
        self.key_lifetime_s = 3600.0
        self.calls: list[Call] = []
        self._instructions = list(instructions)

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Report:
        self.calls.append(call)
        instruction = self._instructions.pop(0) if self._instructions else Executed()
        if isinstance(instruction, Exception):
            raise instruction
        return instruction


# ── duplicate effects ─────────────────────────────────────────────────────────────────────────────────────────────────
class PaysAndRaises(Pay):
    """A payment that is made, and then the tool fails."""

    def __init__(self, promise: str) -> None:
        super().__init__(promise)
        self.op_keys: list[str] = []

    async def execute(self, call: Call) -> Executed:
        self.op_keys.append(call.op_key)
        await super().execute(call)
        raise RuntimeError("the tool failed after it had paid")


async def test_a_tool_that_pays_and_then_raises_has_paid_once_however_often_it_is_retried(
    log: SqliteLog, receipts: Path
) -> None:
    """run-08 (crewAIInc/crewAI#5802): a retry of a task repeated tool calls that had already paid or mailed."""
    await approve(log, payment(receipts))
    action = PaysAndRaises("checkable")
    runner = eventlog.Runner(log, actions=[action])
    with pytest.raises(OutcomeUnknown, match="failed after it had paid"):
        await runner.resume("run-1")
    assert [(await runner.resume("run-1")).result for _ in range(2)] == ["recovered", "already_completed"]
    assert paid(receipts) == ["run-1"]
    assert (await types(log))[-2:] == ["action_recovered", "action_replayed"]


async def test_a_tool_that_pays_and_then_raises_waits_for_a_person_where_nobody_can_ask(
    log: SqliteLog, receipts: Path
) -> None:
    """run-08 (crewAIInc/crewAI#5802), where the receiver cannot be asked."""
    await approve(log, payment(receipts))
    runner = eventlog.Runner(log, actions=[PaysAndRaises("opaque")])
    for _ in range(3):
        await assert_refused_as_unknown(runner)
    assert paid(receipts) == ["run-1"]


async def test_all_attempts_at_one_payment_share_one_op_key(log: SqliteLog) -> None:
    """run-08 (crewAIInc/crewAI#5802): without one identity for all attempts no receiver could refuse a second."""
    await approve(log, eventlog.propose("scripted", {}, "bank"))
    action = Scripted("keyed", TimeoutError(), TimeoutError(), Executed())
    runner = eventlog.Runner(log, actions=[action])
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await runner.resume("run-1")
    assert (await runner.resume("run-1")).result == "executed"
    assert [call.attempt for call in action.calls] == [1, 2, 3]
    assert len({call.op_key for call in action.calls}) == 1


@pytest.mark.parametrize(("promise", "told"), [("checkable", "recovered"), ("opaque", "outcome_unknown")])
async def test_a_payment_is_not_made_again_when_the_process_dies_before_its_result_is_stored(
    path: Path, receipts: Path, promise: str, told: str
) -> None:
    """run-10 (google/adk-python discussion #8039): crash between receipt and result, for five runs."""
    run_ids = [f"run-{number}" for number in range(5)]
    await approve_payment(path, receipts, *run_ids)
    for run_id in run_ids:
        died = child.run(public_case_scenarios.resumes, path, run_id, promise, f"{EFFECT_AFTER}=kill")
        assert died.returncode == -signal.SIGKILL
    assert child.run(public_case_scenarios.resumes_all, path, promise, *run_ids).result == [told] * 5
    assert paid(receipts) == run_ids


class Bank(BaseHTTPRequestHandler):
    """Acts, and then drops the connection of each key's first request. Later it says what it was asked with."""

    seen: ClassVar[list[str]] = []
    acted: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        self.seen.append(key)
        if key not in self.acted:
            self.acted.append(key)
            self.close_connection = True
            return
        text = f"paid, asked with {self.headers['Authorization']}".encode()
        self.send_response(201)
        self.send_header("Idempotency-Replayed", "true")
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def bank() -> Iterator[str]:
    """Serve on the loopback interface; gives the URL."""
    Bank.seen.clear()
    Bank.acted.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Bank) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/payments"
        finally:
            server.shutdown()
            serving.join()


def ask_keyed(url: str, **options: Any) -> eventlog.HttpRequest:
    """Return the action that asks a bank which keeps keys, with a time-out of a second."""
    return eventlog.HttpRequest(name="ask", key_lifetime_s=3600, allows=[url], timeout_s=1, **options)


@eventlog.action("ask")
async def ask_opaque(call: Call) -> str:
    """Ask a bank of which nothing is known but its address."""
    host, port = call.output.removeprefix("http://").partition("/")[0].split(":")

    def send() -> str:
        with closing(HTTPConnection(host, int(port), timeout=1)) as connection:
            connection.request("POST", "/payments", json.dumps(call.args), {"Idempotency-Key": call.op_key})
            return connection.getresponse().read().decode()

    return await run_to_the_end(send)


async def test_a_client_that_lost_the_answer_asks_again_under_the_same_key_and_one_thing_is_done(
    log: SqliteLog,
) -> None:
    """run-12 (ComposioHQ/composio#3654): a retry after a read time-out duplicated the action.

    Also run-68 (b) (modelcontextprotocol PR #3182, Abilityai/trinity#914, agentrust-io/cmcp#571): each retry of a tool
    call has a new call id, so that the receiver cannot know it; here the retry is another call by another runner.
    """
    with bank() as url:
        await approve(log, eventlog.propose("ask", {"json": {"amount": 25}}, url))
        with pytest.raises(OutcomeUnknown):
            await eventlog.Runner(log, actions=[ask_keyed(url)]).resume("run-1")
        again = await eventlog.Runner(log, actions=[ask_keyed(url)]).resume("run-1")
        assert (again.result, again.value["status"]) == ("recovered", 201)
        assert (await eventlog.Runner(log).resume("run-1")).value == again.value, "the answer is stored"
        assert len(Bank.seen) == 2
        assert len(Bank.acted) == 1


async def test_a_client_that_lost_the_answer_of_who_may_keep_no_keys_does_not_ask_again(log: SqliteLog) -> None:
    """run-12 (ComposioHQ/composio#3654): without a receiver that is known to keep keys there is no automatic retry."""
    with bank() as url:
        await approve(log, eventlog.propose("ask", {"amount": 25}, url))
        for _ in range(3):
            await assert_refused_as_unknown(eventlog.Runner(log, actions=[ask_opaque]))
        assert len(Bank.seen) == 1


@pytest.mark.parametrize("is_referred_to", [True, False])
async def test_a_secret_that_is_referred_to_is_nowhere_in_the_files_of_the_log(
    path: Path, is_referred_to: bool
) -> None:
    """run-68 (a) (langchain-ai/langgraph PR #7636, aegra/aegra#267): secrets in state were stored in clear.

    The bank even sends the secret back. Written into the proposal it is found: the search can see.
    """
    secret = "marker-of-a-secret-7f3a"
    header = eventlog.secret_ref("TOKEN", prefix="Bearer ") if is_referred_to else f"Bearer {secret}"
    with bank() as url:
        async with open_file(path) as log:
            await approve(log, eventlog.propose("ask", {"headers": {"Authorization": header}}, url))
            runner = eventlog.Runner(log, actions=[ask_keyed(url, secrets={"TOKEN": secret})])
            with pytest.raises(OutcomeUnknown):
                await runner.resume("run-1")
            outcome = await runner.resume("run-1")
            assert outcome.value["body"].startswith("paid, asked with Bearer ")
            stored = b"".join(each.read_bytes() for each in path.parent.glob("log.db-wal"))
        stored += path.read_bytes()
    shown = (await command_line(path, "tail", "--json")).out
    assert b"op_key" in stored
    assert [secret.encode() in each for each in (stored, shown)] == [not is_referred_to] * 2


async def test_what_failed_is_not_taken_for_done(log: SqliteLog) -> None:
    """run-14 (microsoft/agent-framework#3758), as far as a run of one action shows it: resume skipped a failed step."""
    await approve(log, eventlog.propose("scripted", {}, "target"))
    action = Scripted("opaque", ActionFailed("action_failed", "nothing was sent"))
    runner = eventlog.Runner(log, actions=[action])
    with pytest.raises(ActionFailed):
        await runner.resume("run-1")
    run = await runner.state("run-1")
    assert (run.status, run.executed) == ("APPROVED", False)
    assert (await runner.resume("run-1")).result == "executed"
    assert len(action.calls) == 2


# ── approval of the wrong thing ───────────────────────────────────────────────────────────────────────────────────────
async def test_a_value_that_was_proposed_again_on_replay_is_neither_approved_nor_executed(
    log: SqliteLog, receipts: Path
) -> None:
    """run-16 (extra-org/extra#139): the reviewer approved one value, and another one was executed."""
    reviewed, changed = payment(receipts, 25), payment(receipts, 2500)
    runner = eventlog.Runner(log, actions=[Pay("opaque")])
    await runner.propose("run-1", reviewed)
    with pytest.raises(Refused) as refusal:
        await runner.approve("run-1", changed.hash)
    assert refusal.value.code == "proposal_hash_mismatch"
    assert (await types(log))[-1] == "proposal_rejected"
    await runner.approve("run-1", reviewed.hash)
    with pytest.raises(Refused) as refusal:
        await runner.propose("run-1", changed)
    assert refusal.value.label == "run_exists:run-1"
    assert paid(receipts) == []
    await runner.resume("run-1")
    assert receipts.read_text().endswith(" 25\n"), "only the frozen bytes run"


async def test_a_value_that_people_see_changed_after_the_approval_stops_the_effect(path: Path, receipts: Path) -> None:
    """run-16 (extra-org/extra#139): the changed value is put where people look."""
    view = runs_view()
    async with open_file(path, views=[view]) as log:
        await approve(log, payment(receipts, 25))
    with closing(sqlite3.connect(path)) as editor, editor:
        editor.execute("UPDATE runs SET args = '{\"amount\":2500}'")
    async with open_file(path, views=[view]) as log:
        runner = eventlog.Runner(log, actions=[Pay("opaque")], view=RunsTable(log, view))
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1")
        assert refusal.value.code == "proposal_hash_mismatch"
        assert (await types(log))[-1] == "proposal_rejected"
    assert paid(receipts) == []


async def test_a_pending_request_without_a_decision_is_not_an_approval(log: SqliteLog, receipts: Path) -> None:
    """run-18 (pydantic/pydantic-ai#3350, PR #3355): a history that ends in an unapproved call counted as approved."""
    runner = eventlog.Runner(log, actions=[Pay("opaque")])
    await runner.propose("run-1", payment(receipts))
    for output in (None, str(receipts)):  # nothing supplied, then what the call itself names
        with pytest.raises(Refused) as refusal:
            await runner.resume("run-1", output=output)
        assert refusal.value.code == "approval_required"
    run = await runner.state("run-1")
    assert (run.status, run.waiting and run.waiting.approval_id) == ("WAITING_FOR_USER", "approval:run-1")
    assert paid(receipts) == []


async def test_an_edited_call_is_another_run_that_waits_for_its_own_approval(log: SqliteLog, receipts: Path) -> None:
    """run-20 (langchain-ai/langchain#40166): an edit changed the tool's name and skipped the new tool's policy.

    A second proposal for a run is refused. What an edit does, and what policies ask, is in `tests/test_people.py`.
    """
    harmless, gated = eventlog.propose("note", {}, "notes"), payment(receipts)
    runner = eventlog.Runner(log, actions=[Pay("opaque")])
    await runner.propose("run-1", harmless)
    with pytest.raises(Refused) as refusal:
        await runner.propose("run-1", gated)
    assert refusal.value.code == "run_exists"
    await runner.propose("run-2", gated)
    await runner.approve("run-1", harmless.hash)
    with pytest.raises(Refused) as refusal:
        await runner.resume("run-2")
    assert refusal.value.code == "approval_required"
    with pytest.raises(Refused) as refusal:
        await runner.approve("run-2", harmless.hash)
    assert refusal.value.code == "proposal_hash_mismatch"
    assert paid(receipts) == []


async def test_an_amount_that_was_edited_in_the_log_is_damage_and_other_runs_go_on(path: Path, receipts: Path) -> None:
    """run-22 (google/adk-python PR #5545): stored events edited during the pause led to an unapproved call."""
    async with open_file(path) as log:
        for run_id in ("run-1", "run-2"):
            await approve(log, payment(receipts, 10), run_id)
    before, after = payment(receipts, 10).hash, payment(receipts, 1000).hash
    with closing(sqlite3.connect(path)) as editor, editor:
        for (name,) in editor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            editor.execute(f"DROP TRIGGER {name}")
        change = "UPDATE events SET body = replace(replace(body, '\"amount\":10', '\"amount\":1000'), ?, ?)"
        editor.execute(f"{change} WHERE position <= 4", (before, after))
    async with open_file(path) as log:
        runner = eventlog.Runner(log, actions=[Pay("opaque")])
        with pytest.raises(LogCorrupt) as damage:
            await runner.resume("run-1")
        assert damage.value.position == 2, "the first event whose body is another"
        assert (await runner.resume("run-2")).result == "executed"
    assert paid(receipts) == ["run-2"]
    assert (await command_line(path, "verify")).status == 3


async def test_a_rejected_run_is_not_started_again_resumed_or_approved(log: SqliteLog, receipts: Path) -> None:
    """run-24 (langchain4j-demo#265): a rejected run could be started again and executed what was rejected."""
    proposal = payment(receipts)
    runner = eventlog.Runner(log, actions=[Pay("opaque")])
    await runner.propose("run-1", proposal)
    await runner.reject("run-1", proposal.hash)
    labels = []
    for command in (
        runner.propose("run-1", proposal),
        runner.resume("run-1"),
        runner.approve("run-1", proposal.hash),
    ):
        with pytest.raises(Refused) as refusal:
            await command
        labels.append(refusal.value.label)
    assert labels == ["run_exists:run-1", "approval_rejected", "approval_not_pending"]
    assert (await types(log))[-2:] == ["resume_rejected", "transition_rejected"]
    assert (await runner.state("run-1")).status == "REJECTED"
    assert paid(receipts) == []


async def test_of_twenty_threads_in_two_processes_that_decide_at_once_one_decides(path: Path, receipts: Path) -> None:
    """run-26 (Growth-Circle/cadis#1736, useautumn/autumn PR #2903): approve and deny were both processed."""
    proposal = payment(receipts)
    async with open_file(path) as log:
        await eventlog.Runner(log).propose("run-1", proposal)
    decide = public_case_scenarios.approves_or_rejects_one_in_threads
    one, other = together(path, *[(decide, ("run-1", proposal.hash, 10))] * 2)
    told = one + other
    decisions = [answer.removeprefix("decided:") for answer in told if answer.startswith("decided:")]
    assert len(decisions) == 1
    assert told.count(f"approval_not_pending:{decisions[0]}") == 19
    async with open_file(path) as log:
        assert (await types(log)).count("approval_recorded") == 1
        assert (await eventlog.Runner(log).state("run-1")).approval == decisions[0]


async def test_when_one_process_approves_what_another_rejects_the_first_in_the_log_stands(
    path: Path, receipts: Path
) -> None:
    """Fault F78: approve and reject race, over and over; each run has one decision, and the loser is told it."""
    races = 60
    proposal = payment(receipts)
    async with open_file(path) as log:
        for number in range(races):
            await eventlog.Runner(log).propose(f"run-{number}", proposal)
    decide = public_case_scenarios.approves_or_rejects_many
    approving, rejecting = together(
        path, (decide, ("approve", races, proposal.hash)), (decide, ("reject", races, proposal.hash))
    )
    async with open_file(path) as log:
        for number, told in enumerate(zip(approving, rejecting, strict=True)):
            decision = (await eventlog.Runner(log).state(f"run-{number}")).approval
            assert set(told) == {f"decided:{decision}", f"approval_not_pending:{decision}"}
            assert (await types(log, f"run-{number}")).count("approval_recorded") == 1
        await assert_whole(log)


async def test_a_repeated_approval_is_refused_with_the_recorded_decision(log: SqliteLog, receipts: Path) -> None:
    """Fault F77: the same decision a second time changes nothing, and says what stands."""
    proposal = payment(receipts)
    runner = eventlog.Runner(log)
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    with pytest.raises(Refused) as refusal:
        await runner.approve("run-1", proposal.hash)
    assert (refusal.value.code, refusal.value.details["existing_approval"]) == ("approval_not_pending", "approve")
    assert (await types(log)).count("approval_recorded") == 1


async def test_a_repeated_append_of_the_same_decision_event_is_the_first_one(log: SqliteLog, receipts: Path) -> None:
    """Fault F77: whoever was not told whether a decision is stored appends the same event again."""
    await approve(log, payment(receipts))
    event = next(event for event in await eventlog.Runner(log).trace("run-1") if event.type == "approval_recorded")
    again = NewEvent(event.type, event.data, event.event_id)
    (result,) = await log.append_reserved([Append(run_stream("run-1"), [again], Expect.at(event.version - 1))])
    assert (result.deduplicated, result.version, result.last_position) == (True, event.version, event.position)
    assert (await types(log)).count("approval_recorded") == 1


# ── lost requests ─────────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_pending_request_is_offered_again_by_every_later_process(path: Path) -> None:
    """run-32 (microsoft/agent-framework#2485, PR #4955): pending requests were not offered after rehydration."""
    request_id, proposal_hash, position = child.run(public_case_scenarios.proposes, path, "run-1").result
    for _ in range(2):
        listed = child.run(public_case_scenarios.lists_pending, path).result
        assert listed == {"pending": [[request_id, proposal_hash, '{"amount":25}']], "position": position}


# ── concurrent resume, order, clocks ──────────────────────────────────────────────────────────────────────────────────
async def test_a_worker_that_wakes_up_behind_another_that_finished_is_told_that_its_claim_is_lost(
    path: Path, receipts: Path
) -> None:
    """run-40 (langchain-ai/langgraph#8796): two processes wrote one run, its history forked, both claimed success."""
    await approve_payment(path, receipts)
    lease_s = 2.0
    holder = child.start(
        public_case_scenarios.resumes_and_is_stopped, path, "run-1", "checkable", RESULT_BEFORE_COMMIT, lease_s
    )
    try:
        _, status = await asyncio.to_thread(os.waitpid, holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        await asyncio.sleep(lease_s + 0.05)
        assert child.run(public_case_scenarios.resumes, path, "run-1", "checkable").result == "recovered"
        holder.send_signal(signal.SIGCONT)
        out, err = holder.communicate(timeout=30)
    finally:
        holder.kill()
        holder.communicate()
    assert json.loads(out.splitlines()[-1].removeprefix("RESULT ")) == "claim_lost", err
    async with open_file(path) as log:
        found = await types(log)
        await assert_whole(log)
    assert found[-4:] == ["resume_started", "run_claimed", "action_recovered", "result_rejected"]
    assert paid(receipts) == ["run-1"]


async def test_a_writer_that_reloads_and_insists_is_refused_again(path: Path) -> None:
    """run-42 (google/adk-python#4751): a stale copy was reloaded and written on, and histories interleaved for ever."""
    async with open_file(path) as log:
        await log.append("s", [NewEvent("noted", {"n": number}) for number in range(4)], expect=Expect.no_stream())
    insists = public_case_scenarios.insists_on_three_events
    ended = together(path, (insists, ("s", 4)), (insists, ("s", 4)))
    winner, loser = sorted(ended, key=lambda each: len(each["refusals"]))
    assert winner["refusals"] == {}
    assert loser["refusals"] == {"at version 4, actual 7": 2}
    async with open_file(path) as log:
        events = (await log.read_stream("s")).events
        await assert_whole(log)
    assert [event.event_id.hex() for event in events[4:]] == winner["ids"]


async def test_the_latest_checkpoint_is_the_one_of_the_highest_version_when_all_times_are_equal(path: Path) -> None:
    """run-46 (langchain-ai/langgraph#7179, #6869; microsoft/agent-framework#8513): equal times made it arbitrary."""
    clock = FakeClock()
    for opening in range(2):
        async with open_file(path, clock=clock) as log:
            runner = eventlog.Runner(log, clock=clock)
            if opening == 0:
                await runner.propose("run-1", eventlog.propose("note", {}, "notes"))
                for number in range(2, 11):
                    saved = CheckpointSaved(status=Status.RUNNING, state_version=number)
                    await log.append_reserved([Append(run_stream("run-1"), [saved], Expect.at(number))])
            assert {event.recorded_at_us for event in await runner.trace("run-1")} == {clock.now_us()}
            assert {(await runner.state("run-1")).state_version for _ in range(100)} == {10}
            assert [(await runner.state("run-1", at_version=n)).state_version for n in (3, 4, 5)] == [2, 3, 4]


async def test_attempts_go_on_counting_in_the_process_that_recovers(path: Path, receipts: Path) -> None:
    """run-48 (dbos-inc/dbos-transact-py#805, #260): recovery between two attempts found neither result nor error."""
    await approve_payment(path, receipts)
    died = child.run(public_case_scenarios.fails_once_and_dies, path, "run-1", f"{RESULT_AFTER_COMMIT}=kill")
    assert died.returncode == -signal.SIGKILL
    async with open_file(path) as log:
        assert (await types(log))[-2:] == ["resume_started", "action_failed"]
    assert child.run(public_case_scenarios.fails_once_or_pays, path, "run-1").result == "executed"
    async with open_file(path) as log:
        started = [event for event in await eventlog.Runner(log).trace("run-1") if event.type == "resume_started"]
    assert [event.data.attempt for event in started] == [1, 2]
    assert started[0].data.op_key == started[1].data.op_key
    assert paid(receipts) == ["run-1"]


async def test_a_crash_before_the_failure_is_recorded_makes_an_opaque_attempt_unknown(
    path: Path, receipts: Path
) -> None:
    """run-48 (dbos-inc/dbos-transact-py#805, #260): an attempt of which nothing is recorded is neither done nor not."""
    await approve_payment(path, receipts)
    died = child.run(public_case_scenarios.fails_once_and_dies, path, "run-1", f"{RESULT_BEFORE_COMMIT}=kill")
    assert died.returncode == -signal.SIGKILL
    assert child.run(public_case_scenarios.fails_once_or_pays, path, "run-1").result == "outcome_unknown"
    assert paid(receipts) == []


@pytest.mark.parametrize("back_us", [1_000_000, TEN_YEARS_US])
async def test_a_clock_that_jumps_back_brings_no_key_back_to_life(path: Path, back_us: int) -> None:
    """Fault F80: once it was seen that the receiver has forgotten the key, no clock makes it known again."""
    clock = FakeClock()
    action = Scripted("keyed", TimeoutError())
    async with open_file(path, clock=clock) as log:
        await approve(log, eventlog.propose("scripted", {}, "target"))
        runner = eventlog.Runner(log, actions=[action], clock=clock)
        with pytest.raises(OutcomeUnknown):
            await runner.resume("run-1")
        clock.advance(7200)
        for jump_us in (0, back_us):
            clock.set(clock.now_us() - jump_us)
            await assert_refused_as_unknown(runner)
    assert len(action.calls) == 1


async def test_a_clock_that_jumps_forward_ends_a_lease_early_and_nothing_is_done_twice(
    log: SqliteLog, receipts: Path
) -> None:
    """Fault F81: the living holder is overruled, so nobody can tell; it is told so itself, and one payment is made."""
    clock = FakeClock(now_us=time.time_ns() // 1000)
    await approve(log, payment(receipts))
    is_inside, may_end = asyncio.Event(), asyncio.Event()

    class SlowPay(Pay):
        async def execute(self, call: Call) -> Executed:
            is_inside.set()
            await may_end.wait()
            return await super().execute(call)

    runner = eventlog.Runner(log, actions=[SlowPay("checkable")], clock=clock)
    held = asyncio.create_task(runner.resume("run-1"))
    await is_inside.wait()
    with pytest.raises(RunConflict):
        await runner.resume("run-1")
    clock.advance(TEN_YEARS_US / 1_000_000)
    with pytest.raises(OutcomeUnknown, match="may still come"):
        await runner.resume("run-1")
    may_end.set()
    with pytest.raises(eventlog.ClaimLost):
        await held
    assert (await runner.resume("run-1")).result == "recovered"
    assert paid(receipts) == ["run-1"]


# ── what can be stored ────────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_value_that_cannot_be_stored_is_refused_by_its_whole_path_before_anything_happens(
    log: SqliteLog,
) -> None:
    """run-52 (langchain-ai/langgraph#8606): the error named only the outermost type."""
    value = {"a": [{"b": {"c": object()}}]}
    with pytest.raises(InvalidInput, match="object") as refusal:
        eventlog.propose("note", value, "notes")
    assert (refusal.value.code, refusal.value.path) == ("unsupported_type", "$.args.a[0].b.c")
    with pytest.raises(InvalidInput, match="object") as refusal:
        await log.append("state", [NewEvent("saved", value)], expect=Expect.any())
    assert (refusal.value.code, refusal.value.path) == ("unsupported_type", "$.a[0].b.c")
    assert (await log.head()).position == 0


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_nul_character_is_kept_or_refused_and_never_taken_out(path: Path, store: str) -> None:
    """run-54 (langchain-ai/langgraph PR #1885, #1878): a fix for NUL in metadata took the character away."""
    data = {"value": "a\0b", "a\0b": "key", "text": "\\u0000 is no NUL"}
    opened: SqliteLog | MemoryLog = open_file(path) if store == "sqlite" else eventlog.open("memory:")
    async with opened as log:
        await log.append("s", [NewEvent("noted", data)], expect=Expect.no_stream())
        with pytest.raises(InvalidInput) as refusal:
            await log.append("s", [NewEvent("noted", {}, correlation_id="a\0b")], expect=Expect.any())
        assert refusal.value.code == "invalid_id"
        with pytest.raises(InvalidInput) as refusal:
            await log.append("s", [NewEvent("noted", {})], expect=Expect.any(), actor="a\0b")
        assert refusal.value.code == "invalid_id"
        proposal = eventlog.propose("scripted", data, "target")
        action = Scripted("opaque", Executed(result=data))
        await approve(log, proposal)
        outcome = await eventlog.Runner(log, actions=[action]).resume("run-1")
        assert (action.calls[0].args, outcome.value) == (data, data)
        assert [event.data async for event in log.read("s")] == [data]
        assert outcome.run.proposal_hash == proposal.hash


@pytest.mark.timeout(180)
async def test_eight_writers_and_a_reader_never_see_a_locked_database(path: Path) -> None:
    """run-60 (langchain-ai/langgraph#8136, omnilib/aiosqlite#251): "database is locked" under concurrent use."""
    async with open_file(path) as log:
        writing = asyncio.create_task(
            asyncio.to_thread(together, path, *((process_scenarios.appends, (name, 100)) for name in "abcdefgh"))
        )
        pages = position = 0
        while not writing.done():
            read = [event.position async for event in log.read_all(after=position, limit=50)]
            assert read == list(range(position + 1, position + 1 + len(read)))
            position += len(read)
            pages += 1
            await asyncio.sleep(0.001)
        ids = [event_id for acknowledged in writing.result() for event_id in acknowledged]
        assert len(set(ids)) == 1600
        assert [event.position async for event in log.read_all()] == list(range(1, 1601))
        await assert_whole(log)
    assert pages > 10


async def test_an_append_that_is_repeated_after_its_answer_was_lost_does_not_conflict_with_itself(
    log: SqliteLog,
) -> None:
    """store-32 (factstore-io/factstore#16): idempotent appends and append conditions did not fit together."""
    await log.append("policy", [NewEvent("set", {"limit": 1})], expect=Expect.no_stream())
    request = [Append("orders", [NewEvent("placed", {"n": 1})], Expect.at(0))]
    checks = [("policy", Expect.at(1))]
    (first,) = await log.append_many(request, checks=checks)
    await log.append("policy", [NewEvent("set", {"limit": 2})], expect=Expect.at(1))
    (again,) = await log.append_many(request, checks=checks)
    assert (again.deduplicated, again.version, again.last_position) == (True, first.version, first.last_position)
    with pytest.raises(eventlog.WrongExpectedVersion) as conflict:
        await log.append_many([Append("orders", [NewEvent("placed", {"n": 2})], Expect.at(1))], checks=checks)
    assert (conflict.value.stream, conflict.value.actual) == ("policy", 2)

"""The kit for users' tests: the clock, stories about runs, replays of recorded ones, fixtures; and that each fails."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import ApprovalRejected, InvalidInput, Policy, Refused, Retry, RunContext, StepFailed, Workflow
from eventlog.cli.record import as_document
from eventlog.events import SignalReceived, StepCompleted
from eventlog.log import RecordedEvent
from eventlog.testing import clock as clock_module
from eventlog.testing import crashes, plugin, runs
from eventlog.testing import replay as replay_module
from eventlog.testing.clock import FakeClock
from eventlog.testing.plugin import eventlog_clock, eventlog_log, eventlog_runner
from eventlog.testing.replay import replay
from eventlog.testing.runs import Story, given_run

ROOT: Final = Path(__file__).resolve().parent.parent
CALLED: Final[list[str]] = []

# Where the engine is installed, pytest knows these itself; a checkout is not.
__all__ = ["eventlog_clock", "eventlog_log", "eventlog_runner"]


def search_logs(incident: str) -> list[str]:
    CALLED.append("search_logs")
    return [f"log of {incident}"]


async def prepare_patch(incident: str) -> str:
    CALLED.append("prepare_patch")
    return f"patch for {incident}"


def fails() -> None:
    CALLED.append("fails")
    raise ValueError("never")


@eventlog.action("apply_patch", promise="opaque")
async def apply_patch(call: eventlog.Call) -> str:
    CALLED.append("apply_patch")
    return f"applied {call.args['patch']}"


@eventlog.workflow
async def fix_incident(run: RunContext, incident: str) -> str:
    _, patch = await run.gather(
        run.step("search_logs", search_logs, incident), run.step("prepare_patch", prepare_patch, incident)
    )
    await run.sleep(3600)
    try:
        applied: str = await run.act("apply_patch", {"patch": patch}, output="repo:main")
    except ApprovalRejected as error:
        return f"not applied: {error.reason}"
    return applied


@eventlog.workflow
async def ask(run: RunContext) -> str:
    answer: str = await run.wait_for_signal("answer", type=str, timeout_s=60)
    return answer.upper()


def incident(**options: Any) -> Story:
    return given_run(fix_incident, "INC-7", actions=[apply_patch], **options)


# ── the clock ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_clock_is_moved_by_hours_or_to_a_time_and_tells_whoever_asked() -> None:
    clock, told = FakeClock(), []
    noon = clock.now()
    clock.on_move(lambda: told.append(clock.now()))
    clock.advance(hours=2, minutes=30, seconds=1)
    clock.advance(1.5)
    clock.advance_to(noon + timedelta(days=1))
    clock.advance_to(noon)
    clock.set(0)
    assert noon == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert told == [
        noon + timedelta(seconds=9001),
        noon + timedelta(seconds=9002.5),
        noon + timedelta(days=1),
        datetime(1970, 1, 1, tzinfo=UTC),
    ]
    assert clock.monotonic_s() == 86_400


async def test_a_worker_that_is_told_of_the_clock_picks_up_what_is_due() -> None:
    @eventlog.workflow
    async def nap(run: RunContext) -> str:
        await run.sleep(7200)
        return "awake"

    clock = FakeClock()
    async with eventlog.open("memory:", clock=clock) as log:
        runner = eventlog.Runner(log, workflows=[nap], clock=clock, patience_s=0)
        assert (await runner.start(nap, "run-1")).status == "WAITING"
        worker = eventlog.Worker(runner)
        clock.on_move(worker.wake)
        working = asyncio.create_task(worker.run())
        ended = (event async for event in log.subscribe(types=["run_completed"]))
        clock.advance(hours=1)
        await asyncio.sleep(0.05)
        assert (await runner.state("run-1")).status == "WAITING"
        clock.advance(hours=1)
        async with asyncio.timeout(20):
            await anext(ended)
        await ended.aclose()
        worker.stop()
        await working
        assert (await runner.resume("run-1")).value == "awake"


# ── stories ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_story_is_told_from_the_start_to_the_end() -> None:
    outcome = await (
        incident(policies={"apply_patch": Policy(required=2)})
        .when_started()
        .then_waits_for("sleep")
        .then_status("WAITING")
        .when_time_passes(hours=1)
        .when_resumed()
        .then_events("timer_fired", "proposal_recorded", ("checkpoint_saved", {"status": "WAITING_FOR_USER"}))
        .when_resumed()
        .then_refused("approval_required")
        .when_approved("apply_patch", actor="anna")
        .when_approved(actor="anna")
        .then_refused("already_voted")
        .then_waits_for("apply_patch")
        .when_approved(actor="bert", reason="looks good")
        .then_waits_for()
        .when_resumed()
        .then_returned("applied patch for INC-7")
        .then("it was decided twice", lambda run: _has(len(run.progress.evidence["apply_patch"]) == 3))
    )
    assert outcome is not None and outcome.value == "applied patch for INC-7"


async def test_a_past_is_given_as_outputs_and_signals_and_no_function_is_called() -> None:
    CALLED.clear()
    await incident().knowing(search_logs=["x"], prepare_patch="p").when_resumed().then_waits_for("sleep")
    await given_run(ask).having_received("answer", "yes").when_resumed().then_returned("YES")
    assert CALLED == []


async def test_a_past_is_given_as_events() -> None:
    signal = SignalReceived(name="answer", payload=_raw("no"))
    story = given_run(ask).after(signal).when_resumed().then_returned("NO")
    await story
    await story.then_events(
        ("timer_set", {"key": "answer:signal"}),
        StepCompleted(name="answer", key="answer:signal", kind="signal"),
        "run_completed",
    )


async def test_people_and_time_have_their_say() -> None:
    waiting = incident().when_started().when_time_passes(hours=1).when_resumed()
    await waiting.when_rejected(reason="too big").when_resumed().then_returned("not applied: too big")
    await (
        waiting.when_edited(args={"patch": "less"}, actor="anna")
        .then_waits_for("apply_patch")
        .when_approved()
        .when_revoked()
        .then_waits_for("apply_patch")
        .when_approved()
        .when_resumed()
        .then_returned("applied less")
    )
    await waiting.when_cancelled(reason="no need").then_status("CANCELLED").when_resumed().then_refused("cannot_resume")
    overdue = incident(policies={"apply_patch": Policy(expires_in_s=60)}).when_started().when_time_passes(hours=1)
    await (
        overdue.when_resumed().when_time_passes(minutes=2).when_expired().when_resumed().then_failed("approval_expired")
    )
    await given_run(ask).when_started().when_signalled("answer", "so").when_resumed().then_returned("SO")
    await given_run(ask).when_started().when_time_passes(61).when_resumed().then_failed("wait_timed_out", "in time")
    await given_run(ask).when("it is sent", lambda runner, run_id: runner.submit(ask, run_id)).then_status("RUNNING")


def test_a_story_needs_no_loop_of_the_test() -> None:
    outcome = given_run(ask).having_received("answer", "yes").when_resumed().run()
    assert outcome is not None and outcome.value == "YES"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda story: story.then_status("COMPLETED"), "expected: 'COMPLETED'\nfound:    'WAITING'"),
        (lambda story: story.then_waits_for("go"), "expected: ('go',)\nfound:    ('answer',)"),
        (lambda story: story.then_waits_for(), "found:    ('answer',)"),
        (lambda story: story.then_returned("x"), "expected: 'COMPLETED'\nfound:    'WAITING'"),
        (
            lambda story: story.when_signalled("answer", "a").when_resumed().then_returned("b"),
            "expected: 'b'\nfound:    'A'",
        ),
        (lambda story: story.then_failed("x"), "expected: 'x'\nfound:    None"),
        (lambda story: story.then_refused("x"), "expected: 'x'\nfound:    None"),
        (lambda story: story.when_cancelled().when_cancelled(), "that raised cannot_cancel"),
        (lambda story: story.when_cancelled().when_cancelled().then_status("CANCELLED"), "that raised cannot_cancel"),
        (lambda story: story.when_cancelled().when_cancelled().then_refused("x"), "found:    'cannot_cancel'"),
        (lambda story: story.then_events(), "+timer_set"),
        (lambda story: story.then_events("timer_set", "run_completed"), "-run_completed\n+checkpoint_saved"),
        (
            lambda story: story.then_events("checkpoint_saved", ("timer_set", {"key": "x"}), "checkpoint_saved"),
            "-timer_set {'key': 'x'}\n+timer_set {'key': 'answer:signal'}",
        ),
        (
            lambda story: story.then_events("checkpoint_saved", StepCompleted(name="a", key="a"), "checkpoint_saved"),
            "+TimerSet TimerSet(key='answer:signal'",
        ),
        (lambda story: story.when_approved(), "there are 0 pending requests; asked were: none"),
        (lambda story: story.then("it is so", lambda run: _has(run.version == 99)), "it is not so"),
    ],
)
async def test_a_story_that_goes_otherwise_shows_both_sides_and_the_log(wrong: Any, said: str) -> None:
    with pytest.raises(AssertionError) as found:
        await wrong(given_run(ask).when_started())
    message = str(found.value)
    assert said in message
    assert "given a run of ask()\n    when is started" in message
    assert "<──" in message
    assert "checkpoint_saved" in message.partition("the log of the run:")[2]


STORIES: Final = """
import pytest
import eventlog
from eventlog.testing.runs import given_run

@eventlog.workflow
async def nap(run):
    await run.sleep(7200)
    return "awake"

def holds(run):
    assert run.version == 0, "the test's own check"

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_awaited(anyio_backend):
    await given_run(nap).when_started().then_returned("awake")

def test_not_async():
    given_run(nap).when_started().then_events("nothing").run()

def test_refused():
    given_run(nap).when_signalled("none", object()).run()

def test_own_check():
    given_run(nap).when_started().then("it is new", holds).run()
"""


def test_pytest_shows_the_lines_of_the_test_and_none_of_the_kit(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, STORIES, "-p", "no:asyncio")
    assert (done.returncode, "4 failed" in done.stdout) == (1, True), done.stdout + done.stderr
    assert done.stdout.count("the story went otherwise") >= 4
    assert "traceback entries are hidden" not in done.stdout, "what the kit has found is said once"
    for line in ("await given_run(nap)", "given_run(nap).when_started().then_events", "the test's own check"):
        assert line in done.stdout
    assert not re.findall(r"testing/runs\.py:\d+", done.stdout), done.stdout
    shown = run_pytest(tmp_path, STORIES, "-p", "no:asyncio", "--full-trace")
    assert re.findall(r"testing/runs\.py:\d+", shown.stdout), "the control: they are there, and only not shown"


MAIN: Final = """
import asyncio
from eventlog.testing.crashes import crash_after_every_event

def incident(folder):
    raise NotImplementedError

if __name__ == "__main__":
    asyncio.run(crash_after_every_event(incident, in_processes=True))
"""


def test_a_scenario_of_the_program_that_was_started_cannot_be_run_in_processes_and_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MAIN)
    words = [sys.executable, "mine.py"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "incident is a function of __main__, the program that was started; move it into a module" in done.stderr


def test_a_story_that_nobody_tells_is_a_warning() -> None:
    forgotten = [given_run(ask).when_started()]
    with pytest.warns(RuntimeWarning, match=r"this story was never told.*\n.*ask.*\nwhen is started"):
        forgotten.clear()  # the last that knew of it


def test_a_story_that_was_gone_on_with_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    begun = given_run(ask).when_started()
    begun.then_waits_for("answer").run()
    del begun
    gc.collect()
    assert not recwarn.list


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@eventlog.workflow(name="fix_incident")
async def same_steps_other_code(run: RunContext, incident: str) -> str:
    """Another spelling of the same."""
    logs = run.step("search_logs", search_logs, incident)
    patch = (await run.gather(logs, run.step("prepare_patch", prepare_patch, incident)))[1]
    await run.sleep(3600)
    applied: str = await run.act("apply_patch", {"patch": patch}, output="repo:main")
    return applied


@eventlog.workflow(name="fix_incident")
async def a_step_renamed(run: RunContext, incident: str) -> str:
    _, patch = await run.gather(
        run.step("read_logs", search_logs, incident), run.step("prepare_patch", prepare_patch, incident)
    )
    return str(patch)


@eventlog.workflow(name="fix_incident")
async def a_step_left_out(run: RunContext, incident: str) -> str:
    return await run.step("prepare_patch", prepare_patch, incident)


@eventlog.workflow(name="fix_incident")
async def another_patch(run: RunContext, incident: str) -> str:
    _, patch = await run.gather(
        run.step("search_logs", search_logs, incident), run.step("prepare_patch", prepare_patch, incident)
    )
    await run.sleep(3600)
    applied: str = await run.act("apply_patch", {"patch": patch + "!"}, output="repo:main")
    return applied


@eventlog.workflow(name="fix_incident")
async def another_end(run: RunContext, incident: str) -> str:
    return await same_steps_other_code.function(run, incident) + "!"  # type: ignore[no-any-return]


@eventlog.workflow(name="fix_incident")
async def one_step_more(run: RunContext, incident: str) -> str:
    applied: str = await same_steps_other_code.function(run, incident)
    await run.step("tell", search_logs, applied)
    return applied


@eventlog.workflow(name="fix_incident")
async def other_arguments(run: RunContext, incident: str) -> str:
    return await same_steps_other_code.function(run, incident.lower())  # type: ignore[no-any-return]


async def history_of(path: Path | str, hours: float, *, approves: bool = False) -> Sequence[RecordedEvent]:
    """Return the history of a run that was left waiting, or was completed."""
    clock = FakeClock()
    async with eventlog.open(path, clock=clock) as log:
        runner = eventlog.Runner(log, workflows=[fix_incident], actions=[apply_patch], clock=clock, patience_s=0)
        await runner.start(fix_incident, "run-1", "INC-7")
        clock.advance(hours=hours)
        run = (await runner.resume("run-1")).run
        if approves:
            await runner.approve("run-1", run.progress.requests["apply_patch"].proposal_hash)
            await runner.resume("run-1")
        CALLED.clear()
        return await runner.trace("run-1")


async def test_the_same_code_comes_as_far_as_the_history_and_nothing_is_called() -> None:
    asleep = await replay(fix_incident, await history_of("memory:", 0))
    asking = await replay(fix_incident, await history_of("memory:", 1), actions=[apply_patch])
    done = await replay(fix_incident, await history_of("memory:", 1, approves=True))
    steps = ("search_logs", "prepare_patch")
    assert (asleep.how, asleep.answered, asleep.stopped_at) == ("stopped", steps, "sleep")
    assert (asking.how, asking.answered, asking.stopped_at) == ("stopped", (*steps, "sleep"), "apply_patch")
    assert (done.how, done.answered) == ("returned", (*steps, "sleep", "apply_patch"))
    assert (done.value, done.run.status) == ("applied patch for INC-7", "COMPLETED")
    assert CALLED == []


async def test_a_history_is_read_from_a_file_of_lines_and_from_a_log_and_neither_is_written(tmp_path: Path) -> None:
    events = await history_of(tmp_path / "log.db", 1)
    lines = tmp_path / "run-1.jsonl"
    lines.write_text("".join(json.dumps(as_document(event)) + "\n" for event in events))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    expected = await replay(fix_incident, events)
    assert await replay(fix_incident, lines) == expected
    assert await replay(fix_incident, tmp_path / "log.db") == expected
    assert await replay(fix_incident, tmp_path / "log.db", run_id="run-1") == expected
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert {name: after[name] for name in ("log.db", "run-1.jsonl")} == {
        name: before[name] for name in ("log.db", "run-1.jsonl")
    }
    async with eventlog.open(tmp_path / "log.db") as log:
        assert (await log.head()).position == len(events)


async def test_changed_code_is_refused_by_its_fingerprint_unless_that_is_meant() -> None:
    history = await history_of("memory:", 1, approves=True)
    with pytest.raises(Refused) as found:
        await replay(same_steps_other_code, history)
    assert found.value.code == "definition_mismatch"
    replayed = await replay(same_steps_other_code, history, ignores_fingerprint=True)
    assert (replayed.how, replayed.value) == ("returned", "applied patch for INC-7")


@pytest.mark.parametrize(
    ("workflow", "hours", "approves", "asked", "recorded"),
    [
        (a_step_renamed, 0, False, "read_logs", "search_logs"),
        (a_step_left_out, 0, False, "the end of the workflow", "search_logs, sleep"),
        (other_arguments, 0, False, "with other arguments", "digest"),
        (another_patch, 1, False, "an action with the proposal", "an action with the proposal"),
        (another_end, 1, True, "applied patch for INC-7!", "applied patch for INC-7"),
        (one_step_more, 1, True, "'tell'", "the result"),
    ],
)
async def test_code_that_asks_for_something_else_is_refused_with_both_sides(
    workflow: Workflow, hours: float, approves: bool, asked: str, recorded: str
) -> None:
    history = await history_of("memory:", hours, approves=approves)
    with pytest.raises(Refused) as found:
        await replay(workflow, history, ignores_fingerprint=True)
    assert found.value.code == "nondeterministic_replay"
    assert asked in found.value.details["asked"]
    assert recorded in found.value.details["recorded"]
    assert CALLED == []


async def test_a_proposal_that_was_decided_is_compared_too() -> None:
    history = await history_of("memory:", 1, approves=True)
    with pytest.raises(Refused) as found:
        await replay(another_patch, history, ignores_fingerprint=True)
    assert found.value.code == "proposal_hash_mismatch"


async def test_an_action_that_is_gone_is_told() -> None:
    @eventlog.action("other")
    async def other(call: eventlog.Call) -> None:
        """Do nothing."""

    with pytest.raises(Refused) as found:
        await replay(fix_incident, await history_of("memory:", 1), actions=[other])
    assert found.value.code == "unknown_action"


async def test_ends_that_are_no_results_are_replayed_to_where_they_were() -> None:
    @eventlog.workflow
    async def failing(run: RunContext) -> str:
        try:
            await run.step("fails", fails)
        except StepFailed as error:
            CALLED.append(str(error.error_type))
        await run.step("fails", fails, retry=Retry(attempts=2, first_delay_s=0))
        return "never"

    async with eventlog.open("memory:") as log:
        runner = eventlog.Runner(log, workflows=[failing, ask], patience_s=0)
        assert (await runner.start(failing, "run-1")).status == "FAILED"
        await runner.start(ask, "run-2")
        await runner.cancel("run-2")
        CALLED.clear()
        failed = await replay(failing, await runner.trace("run-1"))
        assert CALLED == ["ValueError"], "the workflow was told again, and no step was called"
        CALLED.clear()
        cancelled = await replay(ask, await runner.trace("run-2"))
    assert (failed.how, failed.answered, failed.run.status) == ("raised", ("fails", "fails#2"), "FAILED")
    assert failed.error is not None and "never" in failed.error
    assert (cancelled.how, cancelled.stopped_at, cancelled.run.status) == ("stopped", "answer:signal", "CANCELLED")
    assert CALLED == []


async def test_children_values_chance_and_large_outputs_come_from_the_history(tmp_path: Path) -> None:
    def large() -> str:
        return "x" * 100_000

    @eventlog.workflow
    async def parent(run: RunContext) -> list[Any]:
        number, luck, at = await run.uuid(), await run.random(), await run.now()
        text = await run.step("large", large)
        answer = await run.child(ask)
        return [str(number), luck, at.isoformat(), len(text), answer]

    async with eventlog.open(tmp_path / "log.db") as log:
        runner = eventlog.Runner(log, workflows=[parent, ask], patience_s=0)
        await runner.start(parent, "run-1")
        await runner.signal("run-1/ask", "answer", "yes")
        value = (await runner.resume("run-1")).value
        events = await runner.trace("run-1")
        assert (await replay(parent, events, artifacts=log.artifacts)).value == value
        with pytest.raises(InvalidInput, match=r"this history has artifacts; give artifacts=, or the database"):
            await replay(parent, events)
        (tmp_path / "run-1.jsonl").write_text("".join(json.dumps(as_document(event)) + "\n" for event in events))
        with pytest.raises(InvalidInput, match="this history has artifacts"):
            await replay(parent, tmp_path / "run-1.jsonl")
        async with eventlog.open("memory:") as other:
            with pytest.raises(eventlog.LogCorrupt, match="artifact"):
                await replay(parent, events, artifacts=other.artifacts)
    assert value[3:] == [100_000, "YES"]
    assert (await replay(parent, tmp_path / "log.db", run_id="run-1")).value == value
    with pytest.raises(InvalidInput, match="there are 2 runs"):
        await replay(parent, tmp_path / "log.db")


async def test_what_is_no_history_of_a_workflow_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"event": 1}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InvalidInput, match=r"line 1 of .*bad.jsonl is no recorded event"):
        await replay(ask, tmp_path / "bad.jsonl")
    with pytest.raises(InvalidInput, match="no event of a run"):
        await replay(ask, tmp_path / "empty.jsonl")
    async with eventlog.open("memory:") as log:
        runner = eventlog.Runner(log, actions=[apply_patch])
        await runner.propose("run-1", eventlog.propose("apply_patch", {"patch": "p"}, "repo"))
        with pytest.raises(InvalidInput, match="one action, not a workflow"):
            await replay(ask, await runner.trace("run-1"))


def _has(fact: bool) -> None:
    assert fact, "it is not so"


def _raw(value: Any) -> Any:
    import msgspec

    return msgspec.Raw(msgspec.json.encode(value))


# ── the examples in the docstrings ───────────────────────────────────────────────────────────────────────────────────


def examples(module: Any) -> str:
    """Return the code in the docstring of a module: what is indented, and tables of words are not."""
    blocks = [part for part in module.__doc__.split("\n\n") if part.startswith("    ")]
    code = [part for part in blocks if any(mark in part for mark in (" = ", "await", "async def", "def "))]
    return textwrap.dedent("\n\n".join(code))


@eventlog.workflow(name="fix_incident")
async def patch_at_once(run: RunContext, incident: str) -> str:
    logs = await run.step("search_logs", search_logs, incident)
    applied: str = await run.act("apply_patch", {"patch": logs}, output="repo:main")
    return applied


@eventlog.action("apply_patch")
async def patched(call: eventlog.Call) -> str:
    return "patched"


async def test_the_example_of_stories_runs() -> None:
    names: dict[str, Any] = {"given_run": given_run, "fix_incident": patch_at_once, "apply_patch": patched}
    exec(examples(runs), names)
    await names["test_a_patch_is_applied_once_somebody_has_approved_it"]()


async def test_the_example_of_replays_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = await history_of("memory:", 0)
    (tmp_path / "tests" / "histories").mkdir(parents=True)
    lines = "".join(json.dumps(as_document(event)) + "\n" for event in events)
    (tmp_path / "tests" / "histories" / "run-42.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"replay": replay, "fix_incident": same_steps_other_code, "Path": Path}
    exec(examples(replay_module), names)
    await names["test_runs_that_are_under_way_can_go_on"]()


async def test_the_example_of_crashes_runs(tmp_path: Path) -> None:
    class ReceiptBook:
        def __init__(self, path: Path) -> None:
            @eventlog.action("apply_patch")
            async def apply(call: eventlog.Call) -> str:
                with path.open("a") as book:
                    book.write(call.op_key + "\n")
                return "patched"

            self.action, self.path = apply, path

        def read(self) -> list[str]:
            return self.path.read_text().split() if self.path.exists() else []

    names: dict[str, Any] = {
        **{name: getattr(crashes, name) for name in crashes.__all__},
        "ReceiptBook": ReceiptBook,
        "Path": Path,
        "fix_incident": fix_incident,
        "apply_patch": apply_patch,
    }
    exec(examples(crashes), names)
    await names["test_it_survives"](tmp_path / "plain")
    report = await crashes.crash_after_every_event(names["incident"], every=5)
    assert report.effects == report.histories


async def test_the_example_of_clocks_runs() -> None:
    @eventlog.workflow
    async def nap(run: RunContext) -> str:
        await run.sleep(7200)
        return "awake"

    names: dict[str, Any] = {"FakeClock": FakeClock, "Runner": eventlog.Runner, "eventlog": eventlog, "nap": nap}
    await eval(compile(examples(clock_module), "clock", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    assert (names["paused"].status, names["ended"].value) == ("WAITING", "awake")


async def test_the_example_of_fixtures_runs(eventlog_log: Any, eventlog_runner: Any, eventlog_clock: FakeClock) -> None:
    names: dict[str, Any] = {"fix_incident": fix_incident}
    exec(examples(plugin).replace("...", "assert (await log.head()).position > 5"), names)
    await names["test_an_incident_waits_for_its_patch"](eventlog_log, eventlog_runner, eventlog_clock)


# ── the fixtures, in a pytest of their own ───────────────────────────────────────────────────────────────────────────

WORKFLOW: Final = """
import asyncio, sqlite3
import pytest

async def story(open_log, runner_of, clock):
    import eventlog

    @eventlog.workflow
    async def nap(run):
        await run.sleep(7200)
        return "awake"

    async with open_log() as log:
        outcome = await runner_of(log, workflows=[nap]).start(nap, "run-1")
        assert outcome.status == "WAITING"
        clock.advance(hours=2)
        outcome = await runner_of(log, workflows=[nap]).resume("run-1")
        assert outcome.value == "awake"
"""

SYNC: Final = """
def test_file(eventlog_log, eventlog_runner, eventlog_clock):
    asyncio.run(story(eventlog_log, eventlog_runner, eventlog_clock))

def test_memory(eventlog_memory_log, eventlog_runner, eventlog_clock):
    asyncio.run(story(eventlog_memory_log, eventlog_runner, eventlog_clock))

def test_the_file_is_there_again(eventlog_log, tmp_path):
    async def twice():
        async with eventlog_log() as log:
            name = log.store_id
        async with eventlog_log() as log:
            assert log.store_id == name
        async with eventlog_log("other.db") as log:
            assert log.store_id != name
    asyncio.run(twice())
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["log.db", "other.db"]
"""

ASYNC: Final = """
MARK
async def test_file(eventlog_log, eventlog_runner, eventlog_clock):
    await story(eventlog_log, eventlog_runner, eventlog_clock)
    await story(lambda: eventlog_log("other.db"), eventlog_runner, eventlog_clock)

MARK
async def test_memory(eventlog_memory_log, eventlog_runner, eventlog_clock):
    await story(eventlog_memory_log, eventlog_runner, eventlog_clock)
"""

DAMAGED: Final = """
def test_damaged(eventlog_log, tmp_path):
    async def damage():
        from eventlog import Expect, NewEvent
        async with eventlog_log() as log:
            await log.append("s", [NewEvent("noted", {"a": 1})], expect=Expect.any())
            connection = sqlite3.connect(tmp_path / "log.db")
            DAMAGE
            connection.commit()
            connection.close()
    asyncio.run(damage())
"""

UNUSED: Final = """
import sys

def test_nothing_is_imported():
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("eventlog", "msgspec", "aiosqlite"))
    assert loaded == ["eventlog", "eventlog.testing", "eventlog.testing.plugin"]
"""


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file, in a process where the engine is installed as far as pytest can see."""
    info = folder / "site" / "eventlog_engine-0.0.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eventlog-engine\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\neventlog = eventlog.testing.plugin\n")
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\n    ignore:.*asyncio_default:DeprecationWarning\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder / 'site'}:{ROOT}"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("body", "mark", "options", "passed"),
    [
        (SYNC, "", ("-p", "no:asyncio", "-p", "no:anyio"), 3),
        (SYNC, "", (), 3),
        (ASYNC, "@pytest.mark.asyncio", ("-p", "no:anyio"), 2),
        (ASYNC, "", ("-p", "no:anyio", "-o", "asyncio_mode=auto"), 2),
        (ASYNC, '@pytest.mark.parametrize("anyio_backend", ["asyncio"])\n@pytest.mark.anyio', ("-p", "no:asyncio"), 2),
    ],
    ids=["no plug-in", "not async", "strict", "auto", "anyio"],
)
def test_the_fixtures_work_under_whatever_runs_the_tests(
    tmp_path: Path, body: str, mark: str, options: tuple[str, ...], passed: int
) -> None:
    done = run_pytest(tmp_path, WORKFLOW + body.replace("MARK", mark), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


def test_nothing_of_the_engine_is_imported_where_no_fixture_is_used(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, UNUSED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_control_a_log_that_was_damaged_fails_the_test_that_opened_it(tmp_path: Path) -> None:
    damage = "connection.executescript('DROP TRIGGER IF EXISTS x;')"
    (tmp_path / "sound").mkdir()
    (tmp_path / "damaged").mkdir()
    assert run_pytest(tmp_path / "sound", WORKFLOW + DAMAGED.replace("DAMAGE", damage)).returncode == 0
    done = run_pytest(tmp_path / "damaged", WORKFLOW + DAMAGED.replace("DAMAGE", _damage()))
    assert done.returncode == 1
    assert "the log is damaged" in done.stdout


def _damage() -> str:
    """Return a line that edits the one event, whatever guards the table has."""
    return (
        "[connection.execute(f'DROP TRIGGER {name}') for (name,) in "
        "connection.execute(\"SELECT name FROM sqlite_master WHERE type = 'trigger'\").fetchall()]; "
        "connection.execute('UPDATE events SET recorded_at_us = 0')"
    )


def test_the_plug_in_is_declared_for_whoever_installs_the_engine() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"eventlog": "eventlog.testing.plugin"}

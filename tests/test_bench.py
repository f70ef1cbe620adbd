"""The harness of the benchmark: what it computes, that it runs, and that it notices settings that are not in force.

No test here is about a time: what is asserted is that figures come out, not how large they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import eventlog
from eventlog import Expect, NewEvent, RunContext, Runner
from tests.needs import need_command
from tools.bench import report as reports
from tools.bench.cases import CASES, Place
from tools.bench.cases.case import Case
from tools.bench.cases.processes import LARGEST_SHARE, LOCK_ERRORS, WORST_WAIT, figures
from tools.bench.cases.recovery import recover, until_killed
from tools.bench.cases.storage import measure_storage, twice
from tools.bench.cases.workers import together
from tools.bench.durability import BEGIN, CONTROL, END, count_syncs, syncs_in
from tools.bench.goals import GOALS, Goal, rate, rate_all
from tools.bench.machine import Machine
from tools.bench.payloads import BODIES, DICTS, MEAN_BYTES, STEPS, StepRecorded, taken
from tools.bench.peers import BARE, OURS, PEERS, RAW, find
from tools.bench.peers.our_workflows import OurWorkflows, open_workflows, require_completed
from tools.bench.program import main, measure
from tools.bench.ratios import paired_ratio, spread
from tools.bench.report import Report
from tools.bench.rounds import Side, run_rounds
from tools.bench.scale import TINY
from tools.bench.steps import ANSWER_BYTES, Finished, Steps, require_once
from tools.bench.steps import figures as workflow_figures

ROOT = Path(__file__).parent.parent


# ── what follows from the figures ────────────────────────────────────────────────────────────────────────────────────


def test_a_ratio_is_the_middle_of_the_ratios_of_each_round() -> None:
    found = paired_ratio([10, 100, 60], [5, 10, 20])  # 2, 10, 3; the medians alone would give 60 / 10
    assert (found.median, found.low, found.high) == (3, 2, 10)


def test_a_ratio_needs_both_sides_of_every_round() -> None:
    with pytest.raises(ValueError):
        paired_ratio([1, 2], [1])


def test_the_spread_is_the_distance_of_the_ends_in_percent_of_the_median() -> None:
    assert spread([90, 100, 120]) == 30
    assert spread([0, 0]) == 0


def test_a_goal_for_a_ratio_is_rated_by_its_median() -> None:
    goal = Goal(number="1", text="", case="c", side="ours", over="theirs", bound=3)
    rating = rate(goal, {"ours": [10, 100, 60], "theirs": [5, 10, 20]})
    assert rating is not None
    assert (rating.value, rating.is_met) == (3, True)


@pytest.mark.parametrize(("direction", "is_met"), [("at least", True), ("at most", True), ("below", False)])
def test_a_bound_that_is_just_reached(direction: str, is_met: bool) -> None:
    goal = msgspec.convert(
        {"number": "1", "text": "", "case": "c", "side": "s", "bound": 2, "direction": direction}, Goal
    )
    rating = rate(goal, {"s": [2.0]})
    assert rating is not None and rating.is_met == is_met


def test_a_goal_about_every_round_is_missed_by_one() -> None:
    goal = Goal(number="13", text="", case="c", side="s", direction="at most", bound=0, is_worst=True)
    rating = rate(goal, {"s": [0, 0, 1]})
    assert rating is not None
    assert (rating.value, rating.is_met) == (1, False)


def test_a_goal_whose_peer_was_not_measured_is_left_out() -> None:
    goal = Goal(number="4", text="", case="c", side="ours", over="theirs", bound=1)
    assert rate(goal, {"ours": [1]}) is None
    assert rate_all({"c": {"ours": [1]}}, [goal]) == []


def test_every_goal_names_a_case_and_has_a_number_of_the_notes() -> None:
    names = {case.name for case in CASES}
    assert {goal.case for goal in GOALS} <= names
    assert {goal.number for goal in GOALS} == {*map(str, range(1, 15)), "w", "p"}


def test_what_contenders_report_adds_up() -> None:
    reports = [
        {"appended": 30, "errors": 0, "worst_wait_s": 0.5},
        {"appended": 10, "errors": 2, "worst_wait_s": 0.1},
    ]
    found = figures(reports, 4)
    assert (found[LOCK_ERRORS], found[WORST_WAIT], found[LARGEST_SHARE]) == (2, 0.5, 0.75)


# ── workflows: all complete, none twice ──────────────────────────────────────────────────────────────────────────────


def test_the_time_of_the_middle_workflow_and_of_the_slowest_hundredth() -> None:
    finished = Finished(seconds=2.0, each_s=[number / 100 for number in range(200, 0, -1)])
    found = workflow_figures("ours", finished, 10)
    assert (found["ours: steps/s"], found["ours: workflows/s"]) == (1000, 100)
    assert (found["ours: p50, s"], found["ours: p99, s"]) == (1.01, 1.99)


async def test_a_step_that_was_done_twice_or_never_is_found_out() -> None:
    work = Steps()
    for step in range(2):
        assert len(await work.answer(0, step)) == ANSWER_BYTES
    work.require_once(workflows=1, steps=2)
    with pytest.raises(ValueError, match="1 never"):
        work.require_once(workflows=1, steps=3)
    await work.answer(0, 0)
    with pytest.raises(ValueError, match="1 were done more than once"):
        work.require_once(workflows=1, steps=2)


def test_a_step_that_two_workers_did_is_counted_twice() -> None:
    counts = together([{"0/0": 1, "0/1": 1}, {"1/0": 1, "1/1": 1}])
    require_once(counts, workflows=2, steps=2)
    with pytest.raises(ValueError, match="1 were done more than once"):
        require_once(together([counts, {"1/0": 1}]), workflows=2, steps=2)


async def test_a_run_that_does_not_complete_fails_the_measurement(tmp_path: Path) -> None:
    @eventlog.workflow(name="invoices", version="1")
    async def fails(run: RunContext, number: int, steps: int) -> int:
        raise RuntimeError(f"after {number} of {steps}")

    async with open_workflows(tmp_path) as ours:
        outcome = await Runner(ours.log, workflows=[fails]).start(fails, "run", 0, 2)
    with pytest.raises(ValueError, match="run run is FAILED"):
        require_completed(outcome, 2)


async def test_a_process_that_is_killed_is_recovered_without_doing_a_step_again(tmp_path: Path) -> None:
    module, path = "tools.bench.peers.our_recovery", tmp_path / "log.db"
    begun = await until_killed(module, "start", path, 3)
    assert begun["done"] == 3
    for _ in range(2):  # the one that recovers is killed at the same place, and leaves the same work
        assert set(await recover(OURS, module, path, 3)) == {OURS, f"{OURS}, from the start of its process"}


async def test_a_recovery_that_does_steps_which_should_be_done_is_found_out(tmp_path: Path) -> None:
    module, path = "tools.bench.peers.our_recovery", tmp_path / "log.db"
    await until_killed(module, "start", path, 3)
    with pytest.raises(ValueError, match="did 2 steps again"):
        await recover(OURS, module, path, 5)


async def test_a_recovery_that_finds_nothing_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with status 1"):
        await until_killed("tools.bench.peers.our_recovery", "recover", tmp_path / "log.db", 3)


async def test_storage_that_grows_with_the_square_of_the_steps_is_found_out(tmp_path: Path) -> None:
    async def keep_all(ours: OurWorkflows, steps: int) -> None:
        kept: list[str] = []
        for number in range(steps):
            kept.append("x" * 1000)
            await ours.log.append("long", [NewEvent("all_kept", kept)], expect=Expect.at(number))

    peer = find([OURS])[0]
    scale = msgspec.structs.replace(TINY, storage_steps=30)
    found = await measure_storage(Place(tmp_path, [peer], scale), peer, keep_all)
    assert found[twice(OURS)] > 3


# ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_events_have_461_bytes_on_average_and_are_the_same_in_every_form() -> None:
    assert sum(map(len, BODIES)) == MEAN_BYTES * len(BODIES)
    assert len(set(map(len, BODIES))) == len(BODIES)
    for body, plain, step in zip(BODIES, DICTS, STEPS, strict=True):
        assert msgspec.json.decode(body) == plain
        assert msgspec.convert(plain, StepRecorded) == step


def test_events_are_the_same_in_every_run() -> None:
    assert hashlib.sha256(b"".join(BODIES)).hexdigest().startswith("90c3f4d65ba6fdcd")


def test_events_are_taken_in_a_circle() -> None:
    assert list(taken([1, 2, 3], 5, first=2)) == [3, 1, 2, 3, 1]


async def test_sides_take_turns_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []

    def side(name: str) -> Side:
        async def measure() -> dict[str, float]:
            order.append(name)
            return {name: len(order)}

        return Side(name, measure)

    series = await run_rounds([side("a"), side("b")], 2, warm_up=True)
    assert order == ["a", "b"] * 3
    assert series == {"a": [3, 5], "b": [4, 6]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_case_runs_and_gives_figures(case: Case, tmp_path: Path) -> None:
    place = Place(tmp_path / case.name, find([OURS, RAW]), TINY)
    async with case.open(place) as sides:
        series = await run_rounds(sides, case.rounds(TINY))
    assert series
    assert all(len(values) == 1 for values in series.values())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What the smallest run of two cases gives."""
    cases = [case for case in CASES if case.name in ("append-1", "load")]
    scale = msgspec.structs.replace(TINY, synced_commits=2)
    return asyncio.run(measure(tmp_path_factory.mktemp("stores"), cases, find([OURS, RAW]), scale))


def test_a_report_survives_its_file(report: Report, tmp_path: Path) -> None:
    reports.save(report, tmp_path / "report.json")
    assert reports.load(tmp_path / "report.json") == report


@pytest.mark.parametrize("as_table", [reports.as_text, reports.as_markdown])
def test_a_table_says_how_and_where_it_was_measured(report: Report, as_table: Callable[[Report], str]) -> None:
    table = as_table(report)
    for part in (report.command, report.machine.cpu, "synchronous=FULL", "1 task ÷ sqlite3"):
        assert part in table


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head(report: Report) -> None:
    goals = reports.as_markdown(report).split("**Goals")[1]
    assert len({line.count("|") for line in goals.splitlines() if line.startswith("|")}) == 1


def test_a_report_names_no_place(report: Report) -> None:
    text = msgspec.json.encode(report).decode() + reports.as_text(report)
    assert not re.search(r"(?<![\w.])/[a-z]+/", text)
    assert platform.node() not in text.split()


def test_the_readme_holds_the_published_run_as_it_is_printed() -> None:
    printed = reports.as_markdown(reports.load(ROOT / "tools" / "bench" / "published.json"))
    assert printed in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_goal_shows_what_the_bare_engine_reached_in_the_same_rounds() -> None:
    goal = Goal(number="1", text="", case="c", side=OURS, over="theirs", bound=3)
    rating = rate(goal, {OURS: [10, 20, 30], BARE: [20, 20, 60], "theirs": [10, 10, 10]})
    assert rating is not None and (rating.value, rating.bare) == (2, 2)
    rating = rate(goal, {OURS: [10, 20, 30], "theirs": [10, 10, 10]})
    assert rating is not None and rating.bare is None


def test_the_readme_table_is_printed_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        command="the command",
        scale="tiny",
        history=0,
        machine=Machine(cpu="cpu", cores=1, kernel="k", file_system="f", python="p", sqlite="s"),
        load_before=0,
        load_after=0,
        versions={},
        left_out=["a peer"],
        settings={},
        syncs=[],
        cases=[],
        goals=[],
    )
    reports.save(report, tmp_path / "report.json")
    assert main(["--readme", str(tmp_path / "report.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("`the command` · cpu, 1 cores, k, f, Python p, SQLite s")
    assert "not installed: a peer" in out


@pytest.mark.parametrize("start", [["tools/bench"], ["-m", "tools.bench"]], ids=["folder", "module"])
def test_it_starts_both_ways_and_refuses_a_case_that_there_is_not(start: list[str]) -> None:
    done = subprocess.run([sys.executable, *start, "no-such"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such case: no-such" in done.stderr


def test_the_peers_are_pinned_in_the_extra() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"langgraph==' in text, "whose graphs are measured with the saver"
    for peer in PEERS:
        assert peer.package is None or f'"{peer.package}==' in text


# ── the settings are in force ────────────────────────────────────────────────────────────────────────────────────────


def test_syncs_count_from_mark_to_mark_and_once_each() -> None:
    lines = [
        "12 fdatasync(3) = 0",
        f'12 access("{BEGIN}", F_OK) = -1 ENOENT (No such file or directory)',
        "13 fdatasync(3 <unfinished ...>",
        "13 <... fdatasync resumed>) = 0",
        "13 fsync(4) = 0",
        f'12 access("{END}", F_OK) = -1 ENOENT (No such file or directory)',
        "12 fsync(3) = 0",
    ]
    assert syncs_in(lines) == 2


def test_a_child_that_did_not_reach_the_end_is_not_counted() -> None:
    with pytest.raises(ValueError):
        syncs_in([f'12 access("{BEGIN}", F_OK) = -1', "12 fdatasync(3) = 0"])


@pytest.mark.parametrize(("name", "events"), [(OURS, 1), (OURS, 100), (RAW, 1)])
def test_every_commit_reaches_the_disk(name: str, events: int, tmp_path: Path) -> None:
    need_command("strace")
    syncs = count_syncs(name, tmp_path, commits=10, events=events)
    assert syncs is not None and syncs.is_durable


def test_a_log_that_does_not_sync_each_commit_is_found_out(tmp_path: Path) -> None:
    need_command("strace")
    syncs = count_syncs(CONTROL, tmp_path, commits=10)
    assert syncs is not None
    assert syncs.syncs < syncs.commits
    assert not syncs.is_durable


@pytest.mark.parametrize("name", [OURS, RAW])
async def test_the_settings_of_a_store_are_read_back(name: str, tmp_path: Path) -> None:
    async with find([name])[0].open()(tmp_path) as store:
        assert await store.settings() == {"journal_mode": "WAL", "synchronous": "FULL"}

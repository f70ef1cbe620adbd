"""Races and crashes of real processes around one effect, by the tools that run them for longer elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent / "tools"

pytestmark = pytest.mark.campaign


def run_tool(name: str, *arguments: str, timeout_s: float = 300) -> tuple[int, dict[str, Any]]:
    """Run a tool in a process of its own and return its exit status and the JSON object that it prints."""
    command = [sys.executable, str(TOOLS / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(name, *arguments, report)
    return done.returncode, report


@pytest.mark.timeout(300)
def test_of_two_processes_that_resume_one_run_exactly_one_acts_and_the_other_is_told(is_long: bool) -> None:
    """Four hundred races; with `--long` ten thousand."""
    races = 10_000 if is_long else 400
    status, report = run_tool("race_resumers.py", "--races", str(races))
    assert (status, report["races"], report["doubles"], report["missing"]) == (0, races, 0, 0)
    assert report["acted_twice"] == 0, "a receiver that refuses would have hidden this"
    assert report["by_receiver"] == dict.fromkeys(("line", "file", "row", "table", "http"), races // 5)
    assert report["told"]["executed"] == races
    assert report["told"]["run_conflict"] > races / 2, "the processes hardly met: nothing was raced"


def test_of_eight_processes_exactly_one_acts() -> None:
    status, report = run_tool("race_resumers.py", "--races", "100", "--resumers", "8")
    assert (status, report["doubles"], report["missing"]) == (0, 0, 0)


def test_without_the_expected_version_the_race_check_counts_double_effects() -> None:
    status, report = run_tool("race_resumers.py", "--races", "50", "--without-expected-version")
    assert status == 1
    assert report["doubles"] > 0
    assert report["acted_twice"] > report["doubles"], "nobody acted twice where the receiver refuses"


def test_a_crash_at_every_failpoint_is_recovered_with_one_effect() -> None:
    status, report = run_tool("crash_runs.py", "points")
    assert (status, report["wrong"]) == (0, [])
    assert report["points"] == 12


@pytest.mark.timeout(600)
def test_a_crash_and_a_crash_of_its_recovery_leave_one_effect(is_long: bool) -> None:
    pairs = 36 if is_long else 6
    status, report = run_tool("crash_runs.py", "pairs", "--count", str(pairs))
    assert (status, report["wrong"], report["most_effects"]) == (0, [], 1)
    assert report["pairs"] == 3 * pairs, "file, row and a row of the log itself"
    assert set(report["ends"]) == {"executed", "recovered", "already_completed"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_pairs_of_crashes_at_the_other_receivers_leave_one_effect_or_a_listed_unknown_one() -> None:
    actions = "http_request,askable_function,opaque_function"
    status, report = run_tool("crash_runs.py", "pairs", "--actions", actions)
    assert (status, report["wrong"], report["pairs"], report["most_effects"]) == (0, [], 108, 1)
    assert report["unknown"]
    assert {name.partition("-")[0] for name in report["unknown"]} == {"opaque_function"}


def test_an_engine_that_records_the_result_first_is_reported_by_the_pairs() -> None:
    status, report = run_tool("crash_runs.py", "pairs", "--actions", "write_file", "--count", "6", "--result-first")
    assert status == 1
    assert any("'status': 'COMPLETED'" in wrong and "'effects': 0" in wrong for wrong in report["wrong"])


def kill_at_random(action: str, count: int, *shows: str) -> dict[str, Any]:
    """Kill so often, with nothing wrong afterwards; twice again at other moments if the kills do not show all of this.

    They come by the clock, and on a busy machine they may all fall where there is nothing to see.
    """
    report: dict[str, Any] = {}
    for seed in range(1, 4):
        words = ("kills", "--action", action, "--count", str(count), "--seed", str(seed))
        status, report = run_tool("crash_runs.py", *words, timeout_s=3000)
        assert (status, report["wrong"], report["kills"]) == (0, [], count)
        if all(report[name] > 0 for name in shows):
            break
    return report


@pytest.mark.timeout(600)
def test_random_kills_lose_no_completed_run_and_repeat_no_effect(is_long: bool) -> None:
    """A hundred and fifty kills; with `--long` three thousand."""
    report = kill_at_random("write_file", 3000 if is_long else 150, "recovered", "claims")
    assert report["recovered"] > 0, "no kill hit the gap between effect and record"
    assert report["claims"] > 0, "no kill left an intent open"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("action", ["insert_row", "record_row", "http_request"])
def test_random_kills_repeat_no_row_and_no_request(action: str, is_long: bool) -> None:
    """Thirty kills at each receiver; with `--long` a thousand."""
    report = kill_at_random(action, 1000 if is_long else 30, "claims")
    assert report["claims"] > 0, "no kill left an intent open"
    if action == "record_row":
        assert report["recovered"] == 0, "a row and its record are one: there is nothing to find again"


def test_a_row_without_its_record_is_reported_where_they_must_be_one() -> None:
    status, report = run_tool("crash_runs.py", "kills", "--action", "insert_row", "--count", "60", "--all-is-one")
    assert status == 1
    assert any("has either effect or record" in wrong for wrong in report["wrong"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["write_file", "http_request"])
def test_a_receiver_that_loses_its_memory_is_reported_by_the_kill_check(action: str) -> None:
    status, report = run_tool("crash_runs.py", "kills", "--action", action, "--count", "300", "--forgets")
    assert status == 1
    assert "effects, and one was approved" in report["wrong"][0]

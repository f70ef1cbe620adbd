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
    races = 10_000 if is_long else 1000
    status, report = run_tool("race_resumers.py", "--races", str(races))
    assert (status, report["races"], report["doubles"], report["missing"]) == (0, races, 0, 0)
    assert report["told"]["executed"] == races
    assert report["told"]["run_conflict"] > races / 2, "the processes hardly met: nothing was raced"


def test_of_eight_processes_exactly_one_acts() -> None:
    status, report = run_tool("race_resumers.py", "--races", "100", "--resumers", "8")
    assert (status, report["doubles"], report["missing"]) == (0, 0, 0)


def test_without_the_expected_version_the_race_check_counts_double_effects() -> None:
    status, report = run_tool("race_resumers.py", "--races", "50", "--without-expected-version")
    assert status == 1
    assert report["doubles"] > 0


def test_a_crash_at_every_failpoint_is_recovered_with_one_effect() -> None:
    status, report = run_tool("crash_runs.py", "points")
    assert (status, report["wrong"]) == (0, [])
    assert report["points"] == 12


@pytest.mark.timeout(600)
def test_random_kills_lose_no_completed_run_and_repeat_no_effect(is_long: bool) -> None:
    kills = 3000 if is_long else 300
    status, report = run_tool("crash_runs.py", "kills", "--count", str(kills), timeout_s=3000)
    assert (status, report["wrong"], report["kills"]) == (0, [], kills)
    assert report["recovered"] > 0, "no kill hit the gap between effect and record"
    assert report["claims"] > 0, "no kill left an intent open"


def test_a_receiver_that_loses_its_memory_is_reported_by_the_kill_check() -> None:
    status, report = run_tool("crash_runs.py", "kills", "--count", "10", "--remove-files")
    assert status == 1
    assert report["wrong"]

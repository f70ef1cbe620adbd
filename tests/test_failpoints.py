"""The failpoints: each is passed by every action, in order; the code names no other; and a crash there is a crash."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from eventlog.runtime import failpoints
from eventlog.runtime.failpoints import CRASH_STATUS, FAILPOINTS, crash_at, pass_by
from tests.command_line import ROOT, CommandLine, environment
from tools.campaigns.effects import reached
from tools.campaigns.processes import child

CONSTANTS: Final = {
    name: value for name, value in vars(failpoints).items() if isinstance(value, str) and value in FAILPOINTS
}


@pytest.fixture(scope="module")
def passed() -> Mapping[str, list[str]]:
    """The failpoints that each action passed in one resume without a crash."""
    done = child.run(reached.points_passed)
    assert done.returncode == 0, done.stderr
    result: Mapping[str, list[str]] = done.result
    return result


def never_reached(points: Iterable[str], passed: Mapping[str, list[str]]) -> list[str]:
    """Return the points that no scenario passes."""
    seen = {point for points_of_one in passed.values() for point in points_of_one}
    return [point for point in points if point not in seen]


def names_in_calls_of_reach(source: str) -> set[str]:
    """Return the arguments of all calls of something called `reach` in Python source, as they are written."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("reach", "_reach"):
            found.update(ast.unparse(argument) for argument in node.args)
    return found


class TestEveryFailpoint:
    def test_is_reached_by_a_scenario(self, passed: Mapping[str, list[str]]) -> None:
        assert never_reached(FAILPOINTS, passed) == []

    def test_control_a_failpoint_that_nobody_reaches_is_found(self, passed: Mapping[str, list[str]]) -> None:
        assert never_reached((*FAILPOINTS, "effect.imagined"), passed) == ["effect.imagined"]

    def test_is_passed_once_and_in_order_by_each_action(self, passed: Mapping[str, list[str]]) -> None:
        assert passed == {action: list(FAILPOINTS) for action in passed}
        assert set(passed) >= {"record_row", "write_file", "insert_row", "http_request"}

    def test_is_a_constant_and_the_code_passes_nothing_else(self) -> None:
        assert sorted(CONSTANTS.values()) == sorted(FAILPOINTS)
        written = set()
        for path in (ROOT / "eventlog").rglob("*.py"):
            written |= names_in_calls_of_reach(path.read_text(encoding="utf-8"))
        assert written == set(CONSTANTS)

    def test_control_a_point_that_is_no_constant_is_found(self) -> None:
        source = 'def work(self):\n    self._reach(EFFECT_AFTER)\n    call.reach("effect.imagined")\n'
        assert names_in_calls_of_reach(source) == {"EFFECT_AFTER", "'effect.imagined'"}


class TestASpec:
    @pytest.mark.parametrize(
        "spec",
        ["", "effect", "effect.imagined", "effect.after:", "effect.after:0", "effect.after:-1", "effect.after=term"],
    )
    def test_that_names_no_failpoint_is_refused_so_that_no_test_passes_by_never_crashing(self, spec: str) -> None:
        with pytest.raises(ValueError, match="no failpoint"):
            crash_at(spec)

    @pytest.mark.parametrize(
        ("spec", "status", "said"),
        [
            ("effect.after", CRASH_STATUS, "1"),
            ("effect.after:2", CRASH_STATUS, "12"),
            ("effect.after=kill", -signal.SIGKILL, "1"),
            ("effect.after:3=kill", -signal.SIGKILL, "123"),
            ("effect.after:4", 0, "123."),
            ("result.after_commit", 0, "123."),
        ],
    )
    def test_ends_the_process_at_its_point_the_given_time_without_clean_up(
        self, spec: str, status: int, said: str
    ) -> None:
        program = (
            "import atexit, sys\n"
            "from eventlog.runtime.failpoints import crash_at\n"
            "atexit.register(lambda: print('.', end=''))\n"
            "reach = crash_at(sys.argv[1])\n"
            "for number in '123':\n"
            "    reach('effect.inside')\n"
            "    print(number, end='', flush=True)\n"
            "    reach('effect.after')\n"
        )
        command = [sys.executable, "-c", program, spec]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (status, said, "")

    def test_in_production_is_none_and_nothing_happens(self) -> None:
        for point in FAILPOINTS:
            pass_by(point)


@pytest.mark.processes
@pytest.mark.parametrize("point", FAILPOINTS)
def test_the_command_line_is_killed_at_the_point_and_the_next_process_finishes(tmp_path: Path, point: str) -> None:
    cli = CommandLine(tmp_path, "--db", "runs.db")
    started = cli("--output", "brief.txt", "start", "run-1", status=0).json
    cli("approve", "run-1", "--proposal-hash", started["proposal_hash"], status=0)
    killed = cli("resume", "run-1", env={"EVENTLOG_FAILPOINT": f"{point}=kill"})
    assert (killed.status, killed.out, killed.err) == (-signal.SIGKILL, b"", b"")
    assert cli("resume", "run-1", status=0).json["status"] == "COMPLETED"
    assert [path.name for path in tmp_path.glob("brief*")] == ["brief.txt"]

"""The crash matrix as its user calls it: a process that prints what every promise is worth at every crash point."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog.runtime.failpoints import FAILPOINTS
from tests.command_line import ROOT, edit, environment
from tools.campaigns.effects import article
from tools.campaigns.effects.article import ROWS, perform_row, wrong_with

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(300)]

TOOL: Final = ROOT / "tools" / "crash_matrix.py"
HOWS: Final = ("exit", "SIGKILL")

# What the resume after a crash answers, point by point in the order of FAILPOINTS.
EXECUTED, RECOVERED, COMPLETED, UNKNOWN = "executed", "recovered", "already_completed", "outcome_unknown"
RESULTS: Final = {
    ("transactional", "record_row"): [EXECUTED, EXECUTED, EXECUTED, EXECUTED, EXECUTED, COMPLETED],
    ("checkable", "write_file"): [EXECUTED, EXECUTED, EXECUTED, RECOVERED, RECOVERED, COMPLETED],
    ("checkable", "insert_row"): [EXECUTED, EXECUTED, EXECUTED, RECOVERED, RECOVERED, COMPLETED],
    ("checkable", "askable_function"): [EXECUTED, EXECUTED, EXECUTED, RECOVERED, RECOVERED, COMPLETED],
    ("keyed", "http_request"): [EXECUTED, EXECUTED, RECOVERED, RECOVERED, RECOVERED, COMPLETED],
    ("opaque", "opaque_function"): [EXECUTED, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, COMPLETED],
}

# And how many effects the receiver shows between the crash and that resume. A request is sent at `effect.inside`.
EFFECTS_BEFORE: Final = {
    "transactional": [0, 0, 0, 0, 0, 1],
    "checkable": [0, 0, 0, 1, 1, 1],
    "keyed": [0, 0, 1, 1, 1, 1],
    "opaque": [0, 0, 0, 1, 1, 1],
}

ARTICLE: Final = [
    '{"case": "effect_first-effect", "before": [0, 1], "after": [1, 2], "first_exit": 91, "replay_exit": 0}',
    '{"case": "checkpoint_first-checkpoint", "before": [1, 0], "after": [1, 0], "first_exit": 91, "replay_exit": 0}',
    '{"case": "atomic-in_transaction", "before": [0, 0], "after": [1, 1], "first_exit": 91, "replay_exit": 0}',
    '{"case": "atomic-committed", "before": [1, 1], "after": [1, 1], "first_exit": 91, "replay_exit": 0}',
    '{"case": "idempotent-effect", "before": [0, 1], "after": [1, 1], "first_exit": 91, "replay_exit": 0}',
]


class Matrix:
    """A run of the tool that has ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status: Final = done.returncode
        self.error: Final = done.stderr
        self.lines: Final = done.stdout.splitlines()

    @property
    def last(self) -> Mapping[str, Any]:
        """The last line."""
        last: Mapping[str, Any] = json.loads(self.lines[-1])
        return last

    @property
    def ours(self) -> list[Mapping[str, Any]]:
        """The lines about the engine's own promises."""
        return [line for line in map(json.loads, self.lines) if "promise" in line]

    def cell(self, action: str, point: str, how: str = "exit") -> Mapping[str, Any]:
        """Return the one line of an action, a point and a way to end."""
        (found,) = [each for each in self.ours if (each["action"], each["point"], each["how"]) == (action, point, how)]
        return found


def run(*words: str | os.PathLike[str], **env: str) -> Matrix:
    """Run the tool to its end."""
    return Matrix(
        subprocess.run(
            [sys.executable, TOOL, *words],
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the matrix of the fixture `matrix` keeps what it made."""
    return tmp_path_factory.mktemp("matrix") / "made" / "here"


@pytest.fixture(scope="module")
def matrix(directory: Path) -> Matrix:
    """The whole matrix, run once."""
    return run(directory)


class TestOurs:
    def test_all_assertions_hold_and_the_last_line_says_so(self, matrix: Matrix, directory: Path) -> None:
        assert (matrix.status, matrix.error) == (0, "")
        assert '"assertions": "passed"' in matrix.lines[-1]
        assert matrix.last == {"assertions": "passed", "output": str(directory)}

    def test_every_action_ends_at_every_failpoint_in_both_ways(self, matrix: Matrix) -> None:
        cells = [(each["promise"], each["action"], each["point"], each["how"]) for each in matrix.ours]
        assert cells == [(*of, point, how) for of in sorted_as_printed(cells) for point in FAILPOINTS for how in HOWS]
        assert {cell[:2] for cell in cells} == set(RESULTS)

    @pytest.mark.parametrize("how", HOWS)
    @pytest.mark.parametrize(("promise", "action"), RESULTS)
    def test_a_promise_is_worth_what_the_table_says(self, matrix: Matrix, promise: str, action: str, how: str) -> None:
        cells = [matrix.cell(action, point, how) for point in FAILPOINTS]
        assert [cell["result"] for cell in cells] == RESULTS[promise, action]
        assert [cell["before"]["effects"] for cell in cells] == EFFECTS_BEFORE[promise]
        assert [cell["before"]["status"] for cell in cells] == ["APPROVED"] * 5 + ["COMPLETED"]
        assert [cell["before"]["intents"] for cell in cells] == [0, 1, 1, 1, 1, 1]

    def test_in_the_end_each_effect_is_there_exactly_once(self, matrix: Matrix) -> None:
        assert {cell["effects"] for cell in matrix.ours} == {1}
        known = [cell for cell in matrix.ours if cell["result"] != UNKNOWN]
        assert {(cell["after"]["status"], cell["after"]["effects"]) for cell in known} == {("COMPLETED", 1)}

    def test_each_unknown_outcome_is_listed_and_settled_and_none_is_unexplained(self, matrix: Matrix) -> None:
        (summary,) = [line for line in map(json.loads, matrix.lines) if "unknown" in line]
        assert (summary["cells"], summary["most_effects"], summary["unexplained"]) == (72, 1, [])
        unknown = [cell for cell in matrix.ours if cell["result"] == UNKNOWN]
        assert len(unknown) == len(summary["unknown"]) == 8
        assert {cell["action"] for cell in unknown} == {"opaque_function"}
        for cell in unknown:
            assert cell["after"]["status"] == "OUTCOME_UNKNOWN"
            assert cell["after"]["effects"] == cell["before"]["effects"], "nothing is retried by itself"
            verdict = "executed" if cell["after"]["effects"] else "not_executed"
            assert (cell["reconciled"]["verdict"], cell["reconciled"]["status"]) == (verdict, "COMPLETED")
            assert cell["reconciled"]["effects"] == 1

    def test_each_line_has_the_fields_that_it_says_it_has(self, matrix: Matrix) -> None:
        fields = ["promise", "action", "point", "how", "before", "after", "effects", "result"]
        assert {tuple(line)[:8] for line in matrix.ours} == {tuple(fields)}
        assert {tuple(line)[8:] for line in matrix.ours} == {(), ("reconciled",)}


def sorted_as_printed(cells: Sequence[tuple[str, str, str, str]]) -> list[tuple[str, str]]:
    """Return promise and action of each cell, once, in the order in which they were printed."""
    return list(dict.fromkeys((promise, action) for promise, action, _, _ in cells))


class TestTheArticle:
    def test_its_five_rows_are_printed_to_the_letter_behind_ours(self, matrix: Matrix) -> None:
        assert matrix.lines[-6:-1] == ARTICLE

    def test_what_both_workers_printed_is_kept_and_they_were_other_processes(
        self, matrix: Matrix, directory: Path
    ) -> None:
        results = json.loads((directory / "results.json").read_text(encoding="utf-8"))
        assert results["assertions"] == "passed"
        assert [case["case"] for case in results["cases"]] == [json.loads(line)["case"] for line in ARTICLE]
        seen_pids = set()
        for case, row in zip(results["cases"], ROWS, strict=True):
            first, replay = json.loads(case["first_stdout"]), json.loads(case["replay_stdout"])
            assert (first["event"], first["point"]) == ("injected_exit", row.point)
            assert replay["event"] == ("checkpoint_skip" if row.before[0] else "step_done")
            assert (case["first_stderr"], case["replay_stderr"]) == ("", "")
            receipts = case["after_replay"]["receipts"]
            assert receipts == [["job-17:save-report:v1", "demo-report-17"]] * row.after[1]
            seen_pids |= {first["pid"], replay["pid"]}
        assert len(seen_pids) == 10

    def test_its_databases_are_kept(self, matrix: Matrix, directory: Path) -> None:
        assert matrix.status == 0
        for row in ROWS:
            names = {path.name for path in (directory / row.case).iterdir()}
            assert names == ({"control.db"} if row.way == "atomic" else {"control.db", "effect.db"})

    @pytest.mark.parametrize(
        "wrong", [{"before": (0, 0)}, {"after": (1, 1)}, {"way": "checkpoint_first", "point": "checkpoint"}]
    )
    def test_control_a_row_with_other_counts_is_reported(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        row = ROWS[0]
        record = perform_row(row, tmp_path)
        assert wrong_with(row, record) == []
        assert wrong_with(replace(row, **wrong), record)

    def test_a_worker_that_does_not_end_at_its_point_is_reported(self, tmp_path: Path) -> None:
        row = replace(ROWS[0], point="nowhere")
        assert f"{row.case}: first_exit is 0, not 91" in wrong_with(row, perform_row(row, tmp_path))

    def test_a_known_key_with_another_payload_is_an_error_and_no_second_receipt(self, tmp_path: Path) -> None:
        row = ROWS[4]
        perform_row(row, tmp_path)
        edit(tmp_path / row.case / "control.db", "UPDATE progress SET done = 0")
        edit(tmp_path / row.case / "effect.db", "UPDATE receipts SET payload = 'another report'")
        command = [sys.executable, article.__file__, str(tmp_path / row.case), "idempotent", "none"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "another payload" in done.stderr


class TestControls:
    def test_a_receiver_that_forgets_its_keys_is_seen_to_do_it_twice(self, tmp_path: Path) -> None:
        broken = run("--control", "forgetful-receiver", TMPDIR=str(tmp_path))
        assert broken.status == 1
        assert broken.last["assertions"] == "failed"
        assert broken.cell("http_request", "effect.after")["effects"] == 2
        assert broken.cell("http_request", "result.before_commit", "SIGKILL")["effects"] == 2
        assert broken.cell("http_request", "result.after_commit")["effects"] == 1
        assert any("the effect was done again" in each for each in broken.last["wrong"])
        assert any("is not what the first did" in each for each in broken.last["wrong"])
        kept = Path(broken.last["output"])
        assert kept.parent == tmp_path, "without a directory it makes a new temporary one"
        assert json.loads((kept / "results.json").read_text(encoding="utf-8"))["assertions"] == "failed"

    def test_an_engine_that_records_the_result_first_is_seen_to_lose_the_effect(self, tmp_path: Path) -> None:
        broken = run(tmp_path / "made", "--control", "result-first")
        assert (broken.status, broken.last["assertions"]) == (1, "failed")
        lost = broken.cell("write_file", "result.after_commit")
        assert (lost["before"]["status"], lost["after"]["status"], lost["effects"]) == ("COMPLETED", "COMPLETED", 0)
        assert lost["result"] == "already_completed"

    def test_a_directory_that_exists_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        refused = run(tmp_path)
        assert (refused.status, refused.lines) == (2, [])
        assert f"crash_matrix.py: {tmp_path}: File exists" in refused.error
        assert list(tmp_path.iterdir()) == []


class TestTheEnvironment:
    def test_the_tool_continues_in_the_projects_own_environment(self, tmp_path: Path) -> None:
        tool = a_copy_of_the_tool(tmp_path)
        python = tmp_path / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        (tmp_path / ".venv" / "pyvenv.cfg").touch()
        python.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
        python.chmod(0o755)
        done = a_bare_python(tool, "some", "words")
        assert (done.returncode, done.stdout.splitlines()) == (0, [str(python), str(tool), "some", "words"])

    def test_without_one_it_says_how_to_make_it(self, tmp_path: Path) -> None:
        done = a_bare_python(a_copy_of_the_tool(tmp_path))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "crash_matrix.py: run `python3 tools/dev.py setup` first\n"


def a_copy_of_the_tool(folder: Path) -> Path:
    """Copy the tool and what finds the environment: until it continues there, it may need nothing else."""
    copy = folder / "tools" / TOOL.name
    copy.parent.mkdir()
    shutil.copy(TOOL, copy)
    shutil.copy(TOOL.with_name("environment.py"), copy.with_name("environment.py"))
    return copy


def a_bare_python(*words: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing installed."""
    return subprocess.run([sys.executable, "-I", "-S", *words], capture_output=True, text=True, timeout=60, check=False)

"""`eventlog demo`: it plays the whole story in real processes, checks each step, and leaves its files behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT, CommandLine, HereCommandLine, environment

STORY = ["recovered", "already_completed", "proposal_hash_mismatch", "integrity: ok   order: ok   views: differs"]


def test_it_plays_the_whole_story_and_leaves_the_files_behind(tmp_path: Path) -> None:
    ended = CommandLine(tmp_path)("demo", "--dir", "stage", status=0)
    places = [ended.text.index(word) for word in STORY]
    assert places == sorted(places)
    assert "EVENTLOG_FAILPOINT=effect.after" in ended.text
    assert ended.err == b""
    stage = tmp_path / "stage"
    assert (stage / "draft.txt").read_text(encoding="utf-8") == "approved technical brief"
    assert not (stage / "second.txt").exists()
    assert str(stage / "runs.db") in ended.text
    trace = CommandLine(stage)("--db", "runs.db", "show-trace", "run-1", status=0).json["trace"]
    assert [item["event"] for item in trace][-3:] == ["resume_started", "action_recovered", "action_replayed"]


def test_it_uses_a_new_temporary_folder_and_needs_no_environment(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "eventlog", "demo"],
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path), EVENTLOG_DB="not-mine.db", EVENTLOG_FAILPOINT="effect.inside"),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert [path.name[:14] for path in tmp_path.iterdir()] == ["eventlog-demo-"]


def test_a_folder_that_is_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    ended = HereCommandLine(tmp_path)("demo", "--dir", ".", status=2)
    assert (ended.out, "not empty" in ended.error) == (b"", True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_step_that_gives_something_else_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control: the children cannot write, so that the very first step does not give what it should.
    from eventlog.cli import demo

    monkeypatch.setattr(demo, "_environment", lambda: {**os.environ, "PYTHONPATH": str(tmp_path / "nowhere")})
    monkeypatch.setattr(demo, "sys", _Interpreter())
    ended = HereCommandLine(tmp_path)("demo", "--dir", "stage", status=1)
    assert ended.text.splitlines()[-1].startswith("FAILED: exit ")


@pytest.mark.parametrize("option", [("--json",), ("--format", "json"), ("--format", "jsonl")])
def test_json_is_refused_and_nothing_is_played(tmp_path: Path, option: tuple[str, ...]) -> None:
    ended = HereCommandLine(tmp_path)("demo", "--dir", "stage", *option, status=2)
    assert (ended.json["error"], "no JSON" in ended.error) == ("invalid_argument", True)
    assert not (tmp_path / "stage").exists()


class _Interpreter:
    executable = "/bin/false"

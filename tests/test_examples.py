"""The programs in `tools/examples` are for reading, and they work: the agent survives wherever it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
AGENT = ROOT / "tools" / "examples" / "incident_agent.py"

pytestmark = pytest.mark.processes

ANSWER = "The pool has 150 connections, and requests are answered again."
SAYS_NO = ("reject", "the database allows 200")


def agent(folder: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one command of the agent, as a process of its own in `folder`."""
    given = [] if command == "demo" else ["agent.db"]
    return subprocess.run(
        [sys.executable, "-W", "error", str(AGENT), command, *given, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answer(folder: Path, command: str, *words: str) -> str:
    ended = agent(folder, command, *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_the_incident_agent_plays_its_demonstration(tmp_path: Path) -> None:
    ended = agent(tmp_path, "demo")
    assert (ended.returncode, ended.stderr) == (0, "")
    told = ended.stdout
    assert told.count("\nkilled\n") == 2
    assert told.endswith("$ cat pool.conf\nmax_connections = 150\n")
    transcript = told.split("$ show LOG\n")[1]
    for line in ("says reject: the database allows 200", "says approve", "was written already", ANSWER):
        assert transcript.count(line) == 1
    assert (transcript.count("search_logs"), transcript.count("read_runbook")) == (1, 1)


def test_the_incident_agent_is_short() -> None:
    assert len(AGENT.read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.timeout(300)
@pytest.mark.parametrize("appends", range(5))
def test_the_incident_agent_comes_to_the_same_end_however_often_it_is_killed(tmp_path: Path, appends: int) -> None:
    """Killed once in every stretch between two people, wherever it has come to by then."""
    kills = 0
    for command, *reason in (("start",), SAYS_NO, ("resume",), ("approve",), ("resume",)):
        if command in ("start", "resume"):
            ended = agent(tmp_path, command, "--crash-after", str(appends))
            if ended.returncode == -signal.SIGKILL:
                kills += 1
                again = "start" if command == "start" and appends == 0 else "resume"
                answer(tmp_path, again)
        else:
            answer(tmp_path, command, *reason)
    assert kills > 0, "it came to its end before anybody killed it"
    assert answer(tmp_path, "resume") == "COMPLETED"
    assert (tmp_path / "pool.conf").read_text(encoding="utf-8") == "max_connections = 150\n"
    transcript = answer(tmp_path, "show")
    assert transcript.count(ANSWER) == 1
    assert transcript.count(" asks ") == 2, "no killed process asks a person twice"

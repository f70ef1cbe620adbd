"""`eventlog demo`: the first seed's story, played by real processes, each step checked.

Every command is a child process of its own, so that what one of them forgets, the next has only from the log. The edit
of the view is made by yet another process: the engine's own never opens the database by any other means.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

import eventlog
from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import write_line
from eventlog.runtime.failpoints import CRASH_STATUS, EFFECT_AFTER

__all__ = ["demo"]

_TIMEOUT_S: Final = 60
_VERDICTS: Final = ("integrity", "order", "views")
_SWAPPED: Final = '{"content":"unauthorized change"}'
_SWAP: Final = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("UPDATE runs SET args = ? WHERE run_id = ?", (sys.argv[2], sys.argv[3]))
connection.commit()
connection.close()
"""


class _Unexpected(Exception):
    """A step did not give what it should; the message says which and what it gave."""


@click.command("demo", cls=Command)
@click.option("--dir", "folder", metavar="DIR", help="Play in this folder, new or empty, not in a temporary one.")
@click.pass_obj
def demo(options: Options, folder: str | None) -> int:
    """Watch a run get approved, crash between effect and record, and recover without doing anything twice.

    Real processes in a new folder, which is left behind for a look. Exit status 0 if every step gave what it should.
    """
    if options.is_json:
        raise click.UsageError("The demo is a story for people, and no JSON; leave --json and --format away.")
    stage = _Stage(_new_folder(folder))
    try:
        _play(stage)
    except _Unexpected as error:
        write_line(f"FAILED: {error}")
        return 1
    _say_where(stage)
    return 0


def _new_folder(folder: str | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="eventlog-demo-"))
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--dir: cannot use {folder!r}: {error}.") from error
    if not is_empty:
        raise click.UsageError(f"--dir: {folder!r} is not empty.")
    return path.resolve()


def _play(stage: _Stage) -> None:
    _say("1. A run asks to act. It stops, and no process waits for the answer.")
    started = stage.command("start", "run-1", output="draft.txt", expect=_status("WAITING_FOR_USER"))
    digest = started["proposal_hash"]
    _fact(f"asked:  {started['action']} {json.dumps(started['args'])} -> {started['output']}")
    _fact(f"hash:   {digest}")

    _say("2. A person approves exactly that: this action, these arguments, this target.")
    stage.command("approve", "run-1", "--proposal-hash", digest, expect=_status("APPROVED"))

    _say("3. Another process resumes it, and is killed between the effect and its record.")
    stage.command("resume", "run-1", failpoint=EFFECT_AFTER, status=CRASH_STATUS)
    before = stage.target("draft.txt")
    _fact(f"exit {CRASH_STATUS}; the file is there, but the log does not know it yet")

    _say("4. The next process finds the effect done, proves it, and does not repeat it.")
    modified_ns = before.stat().st_mtime_ns
    stage.command("resume", "run-1", expect=_result("recovered"))
    _require(before.stat().st_mtime_ns == modified_ns, "the file was written again")
    _fact(f"recovered; the file's modification time is unchanged: {modified_ns} ns")

    _say("5. Resuming once more does nothing.")
    stage.command("resume", "run-1", expect=_result("already_completed"))
    _require(before.stat().st_mtime_ns == modified_ns, "the file was written again")
    _fact("already_completed")

    _say("6. A second run is approved; then somebody swaps its arguments in the table that people look at.")
    second = stage.command("start", "run-2", output="second.txt", expect=_status("WAITING_FOR_USER"))
    stage.command("approve", "run-2", "--proposal-hash", second["proposal_hash"], expect=_status("APPROVED"))
    stage.swap("run-2")
    stage.command("resume", "run-2", status=2, expect=_error("proposal_hash_mismatch"))
    _require(not stage.target("second.txt").exists(), "the swapped effect was performed")
    _fact("proposal_hash_mismatch: refused and recorded; second.txt was not written")

    _say("7. verify tells the log from the view: the log is whole, and the edited row is named (so it exits with 3).")
    found = stage.command("verify", "--json", status=3, expect=_is_only_the_view)
    _fact("   ".join(f"{name}: {found[name]['verdict']}" for name in _VERDICTS))
    _fact(found["views"]["problems"][0]["message"])


class _Stage:
    """The folder of the demo, and the processes that play in it."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._environment: Final = _environment()

    def target(self, name: str) -> Path:
        """Return a file of the demo."""
        return self.folder / name

    def command(
        self,
        *words: str,
        output: str | None = None,
        failpoint: str | None = None,
        status: int = 0,
        expect: Callable[[Any], bool] | None = None,
    ) -> Any:
        """Run `eventlog` with these words in a process of its own; return the JSON it prints. Raises _Unexpected."""
        options = ["--db", "runs.db", *(["--output", output] if output is not None else [])]
        extra = {"EVENTLOG_FAILPOINT": failpoint} if failpoint is not None else {}
        _show_command([*(f"{name}={value}" for name, value in extra.items()), "eventlog", *options, *words])
        ended = self._run(["-m", "eventlog", *options, *words], extra)
        told = ended.stdout or ended.stderr
        _require(ended.returncode == status, f"exit {ended.returncode} instead of {status}: {told}")
        if expect is None:
            return None
        document = _parsed(ended.stdout)
        _require(document is not None and expect(document), f"not what it should be: {told}")
        return document

    def swap(self, run_id: str) -> None:
        """Edit the table `runs` behind the log's back, as anybody with the file could."""
        statement = f"UPDATE runs SET args = '{_SWAPPED}' WHERE run_id = '{run_id}'"
        _show_command(["sqlite3", "runs.db", statement])
        ended = self._run(["-c", _SWAP, "runs.db", _SWAPPED, run_id], {})
        _require(ended.returncode == 0, f"the edit failed: {ended.stderr}")

    def _run(self, arguments: list[str], extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=self.folder,
                env={**self._environment, **extra},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _Unexpected(f"no answer within {_TIMEOUT_S} s: {shlex.join(arguments)}") from error


def _environment() -> dict[str, str]:
    """Return the environment of the children: no option, and the source tree where the engine is not installed."""
    source = Path(eventlog.__file__).resolve().parent.parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVENTLOG_")}
    if (source / "pyproject.toml").exists():
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), kept.get("PYTHONPATH"))))
    return kept


def _status(status: str) -> Callable[[Any], bool]:
    return lambda document: document.get("status") == status


def _result(result: str) -> Callable[[Any], bool]:
    return lambda document: document.get("result") == result and document.get("status") == "COMPLETED"


def _error(code: str) -> Callable[[Any], bool]:
    return lambda document: document == {"error": code}


def _is_only_the_view(document: Any) -> bool:
    verdicts = [document[name]["verdict"] for name in _VERDICTS]
    return verdicts == ["ok", "ok", "differs"] and document["views"]["problem_count"] == 1


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise _Unexpected(otherwise.strip())


def _say(text: str) -> None:
    write_line("")
    write_line(text)


def _show_command(words: list[str]) -> None:
    write_line(f"   $ {shlex.join(words)}")


def _fact(text: str) -> None:
    write_line(f"     {text}")


def _say_where(stage: _Stage) -> None:
    _say("Every step gave what it should. The files are left for a look:")
    for path in sorted(stage.folder.iterdir()):
        _fact(str(path))
    log = shlex.quote(str(stage.target("runs.db")))
    _say(f"Try:  eventlog --db {log} tail")
    write_line(f"      eventlog --db {log} runs show run-1")

"""The command line for tests, as a real process or in this one: what it printed where, and how it ended."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog.cli.app import run

__all__ = ["ROOT", "CommandLine", "Ended", "HereCommandLine", "NobodyCommandLine", "edit", "environment"]

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 60
_KNOWN: Final = {
    "EVENTLOG_APP",
    "EVENTLOG_DB",
    "EVENTLOG_FAILPOINT",
    "EVENTLOG_OUTPUT",
    "EVENTLOG_PROJECTIONS",
    "EVENTLOG_SIGNER",
    "EVENTLOG_SUBJECT_KEYS",
    "EVENTLOG_VIEWS",
    "EVENTLOG_WRAPPING_KEY",
    "NO_COLOR",
}


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    status: int
    out: bytes
    err: bytes

    @property
    def json(self) -> Any:
        """What standard output holds, which must be one JSON document."""
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def error(self) -> str:
        return self.err.decode()


def environment(**extra: str) -> dict[str, str]:
    """Return an environment for a child process that imports this source tree and knows no option."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVENTLOG_", "NO_COLOR"))}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


class CommandLine:
    """Runs `eventlog` in a folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder: Final = folder
        self._options: Final = options

    def argv(self, *words: str | bytes) -> list[str | bytes]:
        """Return the command as a list, for tests that run it in their own way."""
        return [sys.executable, "-m", "eventlog", *self._options, *words]

    def __call__(
        self,
        *words: str | bytes,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        status: int | None = None,
    ) -> Ended:
        """Run the command to its end; with `status`, assert that it ended so."""
        ended = subprocess.run(
            self.argv(*words),
            cwd=self.folder,
            env=environment(**(env or {})),
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if status is not None:
            assert ended.returncode == status, (
                f"{words} ended with {ended.returncode}: {ended.stdout!r} {ended.stderr!r}"
            )
        return Ended(ended.returncode, ended.stdout, ended.stderr)


class NobodyCommandLine(CommandLine):
    """Runs `eventlog` as a user who owns nothing, if we are one who may do everything, and as ourselves otherwise."""

    def argv(self, *words: str | bytes) -> list[str | bytes]:
        """Return the command as a list; it loads what it needs before it becomes nobody."""
        return [sys.executable, "-c", _AS_NOBODY, *self._options, *words]


_AS_NOBODY: Final = """
import os, pkgutil, sys
from importlib import import_module
import eventlog.cli
for module in pkgutil.iter_modules(eventlog.cli.__path__):
    import_module(f"eventlog.cli.{module.name}")
from eventlog.cli.app import run
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
sys.exit(run(sys.argv[1:]))
"""


class HereCommandLine(CommandLine):
    """Runs `eventlog` in this process, which is some ten times faster; for what does not depend on being a process."""

    def __call__(
        self,
        *words: str | bytes,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        status: int | None = None,
    ) -> Ended:
        """Run the command to its end; with `status`, assert that it ended so."""
        out, err = io.BytesIO(), io.BytesIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in _KNOWN & os.environ.keys():
                patch.delenv(name)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8"))
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace"))
            ended_with = run([*self._options, *map(os.fsdecode, words)])
            sys.stdout.flush()
            sys.stderr.flush()
            ended = Ended(ended_with, out.getvalue(), err.getvalue())
        if status is not None:
            assert ended.status == status, f"{words} ended with {ended}"
        return ended


def edit(path: Path, statement: str, *arguments: Any) -> int:
    """Edit a database behind the log's back, as the `sqlite3` shell would; return how many rows changed."""
    connection = sqlite3.connect(path)
    try:
        changed = connection.execute(statement, arguments).rowcount
        connection.commit()
    finally:
        connection.close()
    return changed

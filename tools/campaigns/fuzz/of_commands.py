"""The target of the command line: any arguments end in an answer, a status that is documented, and no traceback."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

import eventlog
from eventlog.cli.app import eventlog as program
from eventlog.cli.app import run
from eventlog.log import Expect, NewEvent
from eventlog.stores.telemetry import LOGGER as _LOGGER
from tools.campaigns.fuzz import drawing
from tools.campaigns.fuzz.target import Problem, Target

__all__ = ["Commands"]

_NOT_HERE: Final = frozenset({"demo", "signer", "worker", "review", "wait", "doctor"})
"""What goes on until it is stopped, starts processes, asks a person, or looks at the whole machine."""

_GOES_ON: Final = ("-f", "--follow", "--watch")
_STATUS: Final = frozenset({0, 2, 3, 4, 5})
_WORDS: Final = (
    "run-1", "run-2", "1", "0", "-1", "2", "99999999999999999999", "json", "jsonl", "plain", "csv", "approve",
    "executed", "notes", "run:run-1", "$log", "a.db", "b.db", "out.txt", "other", "runs", "approvals", "@0", "abc",
    "2026-01-01T00:00Z", "0" * 64, "f" * 64, "--", "-", "", "ü", "a\nb", "\udcff", "x" * 300, "*", "1.5", "nan",
    "1e3", "{}", '{"a":1}', "key",
)  # fmt: skip


class Commands:
    """A folder with a small log in it, in which commands are run, in this process. It is laid out anew now and then."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder / "here"
        self._whole: Final = folder / "whole"
        self._whole.mkdir(parents=True)
        _make(self._whole / "a.db")
        self._paths: Final = tuple(_paths(program, click.Context(program)))
        self._done = 0

    def target(self) -> Target:
        """Return the target; it is run in one process, and by no guided fuzzer."""
        return Target("command", self._draw, self._check, 3, known=_KNOWN, is_guided=False)

    def _draw(self, chance: random.Random) -> list[str]:
        words, command = chance.choice(self._paths)
        argv = [*words]
        for parameter in command.params:
            if chance.random() < (0.8 if parameter.required or isinstance(parameter, click.Argument) else 0.2):
                argv += _given(parameter, chance)
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            argv.insert(chance.randrange(len(argv) + 1), chance.choice((*_WORDS, drawing.text(chance))))
        if chance.random() < 0.9:
            argv = ["--db", "a.db", *argv]
        return [word for word in argv if _is_harmless(word)]

    def _check(self, argv: Sequence[str]) -> Problem:
        if self._done % 50 == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            shutil.copytree(self._whole, self._folder)
        self._done += 1
        with _here(self._folder) as said:
            status = run(argv)
            sys.stdout.flush()
            sys.stderr.flush()
        text = said.getvalue().decode("utf-8", "replace")
        is_raw = "Traceback (most recent" in text and not any(map(_asks_for_more, argv))
        if status not in _STATUS or is_raw or "error[unexpected]" in text:
            return f"it ends with {status}: {text[-600:]!r}"
        if status != 0 and not text.strip():
            return f"it ends with {status}, and says nothing"
        return None


def _paths(group: click.Group, context: click.Context, words: tuple[str, ...] = ()) -> Iterator[Any]:
    """Give every command below a group with the words that name it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or name in _NOT_HERE:
            continue
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from _paths(command, context, (*words, name))


def _given(parameter: click.Parameter, chance: random.Random) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [_value(parameter, chance)]
    name = chance.choice([*parameter.opts, *parameter.secondary_opts])
    if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
        return [name]
    return [name, _value(parameter, chance)]


def _value(parameter: click.Parameter, chance: random.Random) -> str:
    if isinstance(parameter.type, click.Choice) and chance.random() < 0.8:
        return str(chance.choice(list(parameter.type.choices)))
    return chance.choice(_WORDS) if chance.random() < 0.8 else drawing.text(chance)


def _is_harmless(word: str) -> bool:
    """Say whether a word leads nowhere out of the folder, and does not make a command go on for ever."""
    leads_out = word.startswith(("/", "~", "@")) and word != "@0"
    named = word.partition("=")[2]
    return not (
        leads_out or named.startswith(("/", "~")) or ".." in word or "\0" in word or word in _GOES_ON or "unix:" in word
    )


def _asks_for_more(word: str) -> bool:
    """Say whether a word may ask for the traceback of a module that cannot be imported."""
    return word.startswith("--v") or (word.startswith("-") and "v" in word and not word.startswith("--"))


@contextmanager
def _here(folder: Path) -> Iterator[io.BytesIO]:
    """Run in a folder, with nothing to read and what is said kept, as a process would."""
    before, streams, environment = os.getcwd(), (sys.stdin, sys.stdout, sys.stderr), dict(os.environ)
    said = io.BytesIO()
    os.chdir(folder)
    for name in [each for each in os.environ if each.startswith(("EVENTLOG_", "_EVENTLOG"))]:
        del os.environ[name]
    sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(said, encoding="utf-8", errors="strict")
    sys.stderr = io.TextIOWrapper(said, encoding="utf-8", errors="backslashreplace")
    wrappers = (sys.stdout, sys.stderr)
    try:
        yield said
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for handler in [each for each in _LOGGER.handlers if isinstance(each, logging.StreamHandler)]:
            _LOGGER.removeHandler(handler)  # it was made for this one invocation, and writes to its standard error
        for wrapper in wrappers:
            wrapper.detach()
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def _make(path: Path) -> None:
    asyncio.run(_write_notes(path))
    for run_id, output in (("run-1", "one.txt"), ("run-2", "two.txt")):
        with _here(path.parent) as said:
            assert run(["--db", path.name, "start", run_id, "--output", output]) == 0, said.getvalue()


async def _write_notes(path: Path) -> None:
    async with eventlog.open(path, actor="service:fuzz") as log:
        await log.append("notes", [NewEvent("noted", {"n": number}) for number in range(5)], expect=Expect.any())


_KNOWN: Final[tuple[list[str], ...]] = (
    [], ["--help"], ["--version"], ["nothing"], ["--db"], ["--db", ""], ["--db", "a.db"], ["--db", "other", "runs"],
    ["--db", "a.db", "verify"], ["--db", "a.db", "runs", "list", "--format", "json"], ["explain", "log_corrupt"],
    ["--db", "a.db", "tail", "--format", "jsonl"], ["--db", "a.db", "approve", "run-1", "\udcff"],
    ["--db", "a.db", "show-trace", ""],
)  # fmt: skip

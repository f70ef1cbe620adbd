"""What happened to a workflow over all its lives, in the order in which it happened, and what must never happen.

A life is one process, or what stands for one, between two crashes. Each writes into the same file, beside the log, line
by line, what a crash cannot take back:

    called      a step's function is called
    returned    it has returned
    effect      an action has done its effect
    appended    these events are durable
    delivered   the workflow has been given the answer to what it asked

From that it can be said, without trusting the engine, whether a step was done again although its output was in the log,
and whether the workflow was told something that a crash could still have taken back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from eventlog.events import (
    ActionExecuted,
    ActionRecovered,
    ChildFinished,
    ChildStarted,
    OutcomeReconciled,
    RunEvent,
    Status,
    StepCompleted,
    TimerFired,
)

__all__ = ["Entry", "Ledger", "answers", "read_ledger", "violations"]


class Entry(msgspec.Struct, omit_defaults=True):
    """One line of the ledger. `answered` are the run and step key of what these events answer."""

    what: str
    life: int = 0
    run: str = ""
    key: str = ""
    op_key: str = ""
    may_repeat: bool = False
    """Whether the receiver itself keeps a repeated effect from counting twice."""
    result: Any = None
    answered: list[tuple[str, str]] = []


class Ledger:
    """The file, as one life writes it. Each line is one write, so that no death of a process halves it."""

    def __init__(self, path: Path, life: int) -> None:
        self._path: Final = path
        self._life: Final = life
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Give the file back. What is written behind that is of a life that is over, and is dropped."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def note(self, what: str, **facts: Any) -> None:
        """Write a line."""
        if self._file >= 0:
            os.write(self._file, msgspec.json.encode(Entry(what, life=self._life, **facts)) + b"\n")

    def effect(self, op_key: str) -> Entry | None:
        """Return the first line that says that this effect was done, if one does, in whatever life."""
        return next(
            (entry for entry in read_ledger(self._path) if (entry.what, entry.op_key) == ("effect", op_key)), None
        )


def read_ledger(path: Path) -> list[Entry]:
    """Return all lines of a ledger."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines()]


def answers(events: Iterable[RunEvent], run_id: str) -> Iterator[tuple[str, str]]:
    """Yield run and step key of all that these events give a workflow the answer to."""
    for event in events:
        match event:
            case StepCompleted(key=key) | TimerFired(key=key):
                yield run_id, key
            case ChildFinished(key=key, status=Status.COMPLETED) | ChildStarted(key=key, relation="handoff"):
                yield run_id, key
            case ActionExecuted(step=str(key)) | ActionRecovered(step=str(key)):
                yield run_id, key
            case OutcomeReconciled(step=str(key), verdict="executed"):
                yield run_id, key


def violations(entries: Sequence[Entry]) -> list[str]:
    """Return what happened that must not, each as a sentence; nothing if all is well."""
    durable: set[tuple[str, str]] = set()
    done: Counter[str] = Counter()
    found: list[str] = []
    for entry in entries:
        place = (entry.run, entry.key)
        named = f"{entry.key!r} of run {entry.run!r}"
        match entry.what:
            case "appended":
                durable.update(entry.answered)
            case "called" if place in durable:
                found.append(f"in life {entry.life} the step {named} was called again, and its output was in the log")
            case "delivered" if place not in durable:
                found.append(f"in life {entry.life} the workflow was given the answer to {named} before it was durable")
            case "effect" if not entry.may_repeat:
                done[entry.op_key] += 1
                if done[entry.op_key] > 1:
                    found.append(
                        f"in life {entry.life} the effect of {named} happened for the {done[entry.op_key]}. time"
                    )
    return found

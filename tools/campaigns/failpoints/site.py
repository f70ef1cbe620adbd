"""What is crashed besides single actions: a workflow with everything that a run can do, and an effect that is undone.

Receivers are files of lines, one system call each, so that no kill takes back what one of them has seen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog import Absent, Call, Executed, Policy, Promise, Recovered, Retry, RunContext
from eventlog.testing.life import Scenario, Script

__all__ = ["Asked", "lines", "note", "scenario"]

HOUR_S: Final = 3600.0
LARGE: Final = "x" * 70_000
"""Too large for an event: it is kept beside the log."""


def note(path: Path, line: str) -> None:
    """Add a line, in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[str]:
    """Return the lines that were noted."""
    return path.read_text().splitlines() if path.exists() else []


class Asked:
    """An action whose receiver can be asked; `undone_by` names the action that undoes it."""

    promise = Promise.CHECKABLE

    def __init__(self, name: str, book: Path, undone_by: str | None = None) -> None:
        self.name: Final = name
        self.compensation: Final = undone_by
        self._book: Final = book

    def check(self, call: Call) -> None:
        """Refuse nothing."""

    async def execute(self, call: Call) -> Executed:
        """Note the op_key."""
        note(self._book, call.op_key)
        return Executed(result={"done": self.name})

    async def inspect(self, call: Call) -> Recovered | Absent:
        """Look for the op_key."""
        return Recovered(result={"done": self.name}) if call.op_key in lines(self._book) else Absent()


@eventlog.workflow
async def look_around(run: RunContext, place: str) -> int:
    """The child."""
    return await run.step("measure", _measure, place)


@eventlog.workflow
async def repair(run: RunContext, house: str) -> dict[str, Any]:
    """Steps one after the other and at once, effects of each promise, a child, a timer and a signal."""
    plan = await run.step("plan", _measure, house)
    ordered, tidied = await run.gather(
        run.act("order", {"parts": plan}, output="shop"), run.step("tidy", _unsteady, retry=Retry(attempts=9))
    )
    size = len(await run.step("photo", _photo))
    child = await run.child(look_around, house)
    await run.sleep(HOUR_S)
    go = await run.wait_for_signal("go")
    painted = await run.act("paint", {"colour": go}, output="door")
    booked = await run.act("book", {"day": "monday"}, output="garage")
    return {"all": [plan, ordered, tidied, size, child, painted, booked]}


def _measure(what: str) -> int:
    return len(what)


def _photo() -> str:
    return LARGE


def _unsteady() -> str:
    return "tidy"


def scenario(folder: Path) -> Scenario:
    """Return the workflow with its receivers in a folder."""

    @eventlog.action("paint", promise="opaque")
    async def paint(call: Call) -> str:
        note(folder / "paint", call.op_key)
        return "painted"

    @eventlog.action("book", promise="keyed", key_lifetime_s=1e6)
    async def book(call: Call) -> str:
        if call.op_key not in lines(folder / "van"):
            note(folder / "van", call.op_key)
        return "van"

    def receipts() -> Sequence[str]:
        return [name for name in ("orders", "paint", "van") for _ in lines(folder / name)]

    return Scenario(
        workflow=repair,
        args=["12 Elm Street"],
        workflows=[look_around],
        actions=[Asked("order", folder / "orders"), paint, book],
        policies={"order": Policy(required=2), "book": Policy(auto=True)},
        script=Script(signals={"go": "green"}),
        receipts=receipts,
    )

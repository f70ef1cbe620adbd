"""A log that holds a marker in every place where somebody's words can come to lie, and the search for what is left.

Each place has a marker of its own, so that a test says where something was found.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import eventlog
from eventlog import Expect, NewEvent
from eventlog.audit.erasure import Erasure, erase, erase_subject
from eventlog.runtime.tools import INLINE_BYTES
from eventlog.stores import SqliteLog
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.views import ViewEvent
from projections import RebuildableViews, RowProjection, SqliteView, built_in_views
from projections.projection import Row

__all__ = [
    "BASIS",
    "MARKS",
    "NOTES",
    "Notes",
    "append_until",
    "erase_and_die",
    "erase_subject_and_die",
    "family",
    "files_of",
    "found_in",
    "keys_in",
    "known",
    "one_action",
    "record",
    "runner_on",
    "views",
]

BASIS: Final = "Art. 17 GDPR"
WRAPPING: Final = b"w" * 32

MARKS: Final[Mapping[str, str]] = {
    name: f"mark-{name}-5f2c"
    for name in (
        "args",
        "child_input",
        "child_output",
        "decision",
        "error",
        "input",
        "large",
        "note",
        "output",
        "refusal",
        "result",
        "signal",
        "step",
    )
}


class Notes(RowProjection):
    """The notes of each stream: a view of a program of its own."""

    name = "notes"
    revision = 1
    event_types = frozenset({"noted"})
    columns: ClassVar[Mapping[str, str]] = {"stream": "TEXT PRIMARY KEY", "said": "TEXT NOT NULL"}

    def key(self, event: ViewEvent) -> str:
        return event.stream

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        before = "" if row is None else row["said"]
        return {"stream": event.stream, "said": before + event.data["text"]}


NOTES: Final = Notes()


@eventlog.workflow
async def child(run: eventlog.RunContext, said: str) -> str:
    return await run.step("echo", lambda: said + MARKS["child_output"])


@eventlog.workflow
async def family(run: eventlog.RunContext, said: str) -> str:
    """Do one of everything that leaves words in a log."""
    await run.step("small", lambda: MARKS["step"])
    await run.step("large", lambda: MARKS["large"] * (INLINE_BYTES // 10))
    with suppress(eventlog.StepFailed):
        await run.step("fails", _fail)
    await run.wait_for_signal("go")
    await run.child(child, MARKS["child_input"])
    return said + MARKS["result"]


def _fail() -> None:
    raise ValueError(MARKS["error"])


@eventlog.action("send", promise="opaque")
async def send(call: eventlog.Call) -> Any:
    """Return what the log has to hold of it."""
    return {"done": MARKS["result"]}


def runner_on(log: SqliteLog) -> eventlog.Runner:
    """Return a runner that knows what the scene records."""
    return eventlog.Runner(log, actions=[send], workflows=[family, child])


def keys_in(folder: Path) -> SubjectKeys:
    """Return the keys of subjects in a folder."""
    return SubjectKeys(folder / "keys", wrapping_key=WRAPPING)


def views() -> list[SqliteView]:
    """Return the views of the scene: those that ship, and one of a program's own."""
    return [*built_in_views(), SqliteView(NOTES)]


def known(log: SqliteLog) -> RebuildableViews:
    """Return all of them as an erasure takes them."""
    return RebuildableViews(log, views())


def append_until(path: str, stop: str) -> int:
    """Append notes of another stream until the file `stop` is there, and return how many."""
    return asyncio.run(_append_until(path, Path(stop)))


async def _append_until(path: str, stop: Path) -> int:
    count = 0
    async with eventlog.open(path) as log:
        while not stop.exists():
            await log.append("others", [NewEvent("counted", {"number": count})], expect=Expect.any())
            count += 1
            async for event in log.read("others", after=count - 1):
                assert event.data == {"number": count - 1}
    return count


async def record(log: SqliteLog, *, subject: str | None = None) -> None:
    """Record a run of a workflow (`family-1`), one of an action (`act-1`) and notes (`notes-1`), with all markers."""
    runner = runner_on(log)
    await runner.start(family, "family-1", MARKS["input"], subject=subject)
    await runner.signal("family-1", "go", {"said": MARKS["signal"] * (INLINE_BYTES // 10)})
    await runner.resume("family-1")
    await one_action(log, subject=subject)
    notes = [NewEvent("noted", {"text": MARKS["note"]}) for _ in range(3)]
    await log.append("notes-1", notes, expect=Expect.any(), subject=subject)


async def one_action(log: SqliteLog, run_id: str = "act-1", *, subject: str | None = None) -> None:
    """Record a run of one action up to its end, with a refused decision on the way."""
    runner = runner_on(log)
    proposal = eventlog.propose("send", {"text": MARKS["args"]}, MARKS["output"])
    asked = await runner.propose(run_id, proposal, subject=subject)
    assert asked.run.proposal_hash is not None
    await runner.approve(run_id, asked.run.proposal_hash, reason=MARKS["decision"])
    with suppress(eventlog.Refused):
        await runner.resume(run_id, output=MARKS["refusal"])
    await runner.resume(run_id)


def files_of(path: Path) -> list[Path]:
    """Return every file of a log: the database, what SQLite keeps beside it, the artifacts, and what else there is."""
    beside = [each for each in path.parent.iterdir() if each.is_file() and each.name.startswith(path.name)]
    return sorted([*beside, *(each for each in Path(f"{path}.artifacts").rglob("*") if each.is_file())])


def found_in(files: Iterable[Path], marks: Iterable[str] = tuple(MARKS.values())) -> list[str]:
    """Return which markers are in which of these files, byte by byte."""
    contents = {file: file.read_bytes() for file in files if file.exists()}
    return [f"{mark} in {file.name}" for mark in marks for file, data in contents.items() if mark.encode() in data]


def erase_and_die(path: str, step: str) -> None:
    """Erase the run `family-1`, and be killed once this step is done."""
    asyncio.run(_erase(Path(path), step))


def erase_subject_and_die(path: str, step: str) -> None:
    """Erase the subject `ann`, and be killed once this step is done."""
    asyncio.run(_erase(Path(path), step, subject="ann"))


async def _erase(path: Path, step: str, subject: str | None = None) -> Erasure:
    def reach(done: str) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    async with eventlog.open(path, subject_keys=keys_in(path.parent) if subject is not None else None) as log:
        if subject is not None:
            return await erase_subject(log, subject, legal_basis=BASIS, views=known(log), on_step=reach)
        return await erase(log, run="family-1", legal_basis=BASIS, views=known(log), on_step=reach)

"""The log that is damaged: a small real one with everything in it, whose last events are in its write-ahead log only.

    $log        the key that signs its heads, and what was erased
    run:…       a run that was approved and executed, and one that waits
    notes       plain events; the body of one is erased
    customer    an encrypted stream
    views       `runs` and `approvals`, written by the engine itself

It is made by a child process that ends without closing it, as a killed one does: about half of the events are in the
database, the others in `-wal`. A head over all of them was signed, and is kept outside (`log.key.heads`) as in the
database. What is random in it is drawn from a seed, so that a byte of one making means the same in the next; only the
salts of the write-ahead log are SQLite's own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sqlite3
import time
import traceback
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eventlog.audit.heads import LocalSigner
from eventlog.audit.heads.head_file import kept_heads
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.verify import OutsideHead, Trust
from eventlog.events import LOG_STREAM, ActionExecuted, LogKeyDeclared
from eventlog.log import Append, Expect, NewEvent
from eventlog.signing.notes import VerifierKey, parse_verifier_key
from eventlog.stores import SqliteLog
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.testing.clock import FakeClock
from projections import APPROVALS, RUNS, SqliteView
from tools.campaigns.storage.log_files import open_file
from tools.golden import OWNERS, Story

__all__ = ["FILES", "Scene", "make_scene", "views"]

FILES: Final = ("log.db", "log.db-wal")
"""The files that are damaged."""

_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A log as it was left, and the bytes of its files."""

    folder: Path
    log_key: VerifierKey
    data: dict[str, bytes]

    def lay_out(self, files: dict[str, bytes], *, signer: bool) -> Path:
        """Write these files in place of those of the log; with `signer`, also what the signer keeps. Return the path.

        Nothing else is left of whoever opened the log before.
        """
        for name in ("log.db-shm", "log.db-wal"):
            (self.folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            _write(self.folder / name, data)
        if signer:
            _write(self.folder / "log.key.heads", self.data["log.key.heads"])
        return self.folder / "log.db"

    def signer(self) -> LocalSigner:
        """Return the signer, which knows the last head."""
        return LocalSigner(self.folder / "log.key", clock=FakeClock())

    def trust(self) -> Trust:
        """Return what an auditor knows who has kept the key of the heads, and the heads."""
        found, _ = kept_heads(str(self.folder / "log.key.heads"))
        heads = [OutsideHead(note=each.note, source="kept", at_us=each.at_us) for each in found]
        return Trust(log_keys=[self.log_key], heads=heads)


def _write(path: Path, data: bytes) -> None:
    """Write over what is there: a file that is cut and grows again is not worth its price on a real disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, len(data))
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)


def views() -> list[SqliteView]:
    """Return the views that are in the log's own database."""
    return [SqliteView(RUNS), SqliteView(APPROVALS)]


def make_scene(folder: Path, seed: str, *, page_bytes: int) -> Scene:
    """Make the log in `folder`, in a child process that leaves it as a killed one does.

    In small pages the same content leaves far fewer bytes without a meaning.
    """
    folder.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _seed(seed)
            _set_page_size(folder / "log.db", page_bytes)
            asyncio.run(asyncio.wait_for(_make(folder), _LIMIT_S))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the log could not be made"
    key = parse_verifier_key((folder / "verifier.key").read_text())
    data = {name: (folder / name).read_bytes() for name in (*FILES, "log.key.heads")}
    (folder / "log.db-shm").unlink(missing_ok=True)
    return Scene(folder, key, data)


def _seed(seed: str) -> None:
    """Let this process draw what is random from a seed; it is a child that makes a log and ends."""
    chance = random.Random(seed)
    ticks = itertools.count(1_767_268_800_000_000_000, 1_000_000)
    os.urandom = chance.randbytes
    time.time_ns = lambda: next(ticks)
    random.seed(seed)


def _set_page_size(path: Path, page_bytes: int) -> None:
    """Make an empty database of such pages, which the engine then makes its own."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        connection.execute("VACUUM")


async def _make(folder: Path) -> None:
    """Write the log; ends the process inside, while the log is open."""
    clock = FakeClock()
    make_key_file(folder / "log.key")
    signer = LocalSigner(folder / "log.key", clock=clock)
    options: dict[str, Any] = {
        "actor": "service:scene",
        "clock": clock,
        "signer": signer,
        "head_every_s": 3600.0,
        "subject_keys": SubjectKeys(folder / "subjects", wrapping_key=bytes(range(32))),
        "views": views(),
    }
    async with open_file(folder / "log.db", **options) as log:
        key = signer.verifier_key((await log.log_ids())[-1][1])
        (folder / "verifier.key").write_text(key.to_text())
        await log.append_reserved([Append(LOG_STREAM, [LogKeyDeclared(verifier_key=key.to_text())], Expect.any())])
        await _write_first(log, clock)
    async with open_file(folder / "log.db", **options) as log:
        await _write_last(log, clock)
        await log.sign_head()
        os._exit(0)


async def _write_first(log: SqliteLog, clock: FakeClock) -> None:
    notes = [_note(f"the {number}. note") for number in range(5)]
    await log.append("notes", notes, expect=Expect.no_stream())
    await log.append("customer", [_note("born 1970")], expect=Expect.any(), subject="customer-17")
    run = Story(log, "run-1", clock)
    await run.start("one.txt")
    await run.decide("approve")
    key = await run.begin(OWNERS[0])
    await run.tell(ActionExecuted(action="write_draft", op_key=key, result={"path": "one.txt"}))
    erased = (await log.read_stream("notes")).events[2]
    await log.erase([erased.position], legal_basis="GDPR 17(1)(a)")


async def _write_last(log: SqliteLog, clock: FakeClock) -> None:
    run = Story(log, "run-2", clock)
    await run.start("two.txt")
    for number in range(3):
        await log.append("notes", [_note(f"later, {number}")], expect=Expect.exists())
    await log.append("customer", [_note("moved to Köln")], expect=Expect.any(), subject="customer-17")
    await log.sign_head()
    await run.decide("approve")
    await log.append("notes", [_note("the last one")], expect=Expect.exists())


def _note(text: str) -> NewEvent:
    return NewEvent("noted", {"text": text, "of": ["é", None, 0.5]})

"""What a process does to its storage besides appending results: eight scenes, each of which a repeat has to finish.

A scene is prepared once, and acted in a copy of that by one process that may be crashed and one that is not. What it
says of a folder must hold right behind the crash (`holds`), and behind the repeat (`is_done`).
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import eventlog
from eventlog import Expect, NewEvent, RunContext
from eventlog.audit.erasure import erase, erase_subject
from eventlog.audit.heads.head_file import HeadFile
from eventlog.audit.heads.key_file import heads_beside, make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.errors import Refused
from eventlog.stores.sqlite import SqliteLog
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.views import ViewEvent
from projections import RebuildableViews, RowProjection, SqliteView, differences, rebuild_view
from projections.projection import Row

__all__ = ["SCENES", "Scene", "Wrong", "database"]

GOLDEN: Final = Path(__file__).resolve().parents[3] / "tests" / "golden" / "v1.db"
SECRET: Final = "the words of ann 5f2c"
LARGE: Final = SECRET * 5000
"""Too large for an event: it is kept beside the log."""
RUN: Final = "run-1"

Wrong = tuple[str, str]
"""The invariant that is broken, and what was seen."""


def database(folder: Path) -> Path:
    """Return where the log of a scene is."""
    return folder / "log.db"


async def _nothing(_: Path) -> None:
    """There is nothing to make."""


async def _no_more(_: Path) -> list[Wrong]:
    """Nothing has to hold that does not hold of every log."""
    return []


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Every function takes the folder."""

    name: str
    act: Callable[[Path], Coroutine[None, None, None]]
    prepare: Callable[[Path], Coroutine[None, None, None]] = _nothing
    holds: Callable[[Path], Coroutine[None, None, list[Wrong]]] = _no_more
    is_done: Callable[[Path], Coroutine[None, None, list[Wrong]]] = _no_more


# ── appends under an event id ─────────────────────────────────────────────────────────────────────────────────────────


def _notes(folder: Path) -> list[NewEvent]:
    """Return the same three events however often they are asked for, with the same ids."""
    ids = folder / "ids"
    if not ids.exists():
        return []
    return [NewEvent("noted", {"text": SECRET}, bytes.fromhex(line)) for line in ids.read_text().split()]


async def _make_ids(folder: Path) -> None:
    (folder / "ids").write_text("\n".join(bytes([7] * 15 + [number]).hex() for number in range(3)))


async def _append(folder: Path) -> None:
    """Append three events; again under the same ids they are the same events."""
    async with _open(folder) as log:
        await log.append("notes", _notes(folder), expect=Expect.any())


async def _has_three(folder: Path) -> list[Wrong]:
    async with _open(folder) as log:
        count = (await log.head()).position
    return [] if count == 3 else [("I4", f"{count} events, and three were appended")]


# ── the format of yesterday ───────────────────────────────────────────────────────────────────────────────────────────


async def _old_format(folder: Path) -> None:
    shutil.copy(GOLDEN, database(folder))


async def _migrate(folder: Path) -> None:
    async with _open(folder):
        pass


async def _is_old_or_new(folder: Path) -> list[Wrong]:
    """The format that it says has exactly the tables of that format."""
    if not database(folder).exists():
        return [("I1", "the log is gone")]
    with closing(sqlite3.connect(database(folder))) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    there = len({"tree", "tiles", "heads", "erasures", "subject_streams"} & names)
    if there == {1: 0, FORMAT_VERSION: 5}.get(version):
        return []
    return [("I2", f"format {version} with {there} of the five tables of format {FORMAT_VERSION}")]


async def _is_new(folder: Path) -> list[Wrong]:
    async with _open(folder, is_read_only=True) as log:
        version, problems = log.facts.format_version, await log.check_file()
    if version != FORMAT_VERSION or problems:
        return [("I2", f"format {version}, {[each.message for each in problems]}")]
    return await _is_old_or_new(folder)


# ── a value beside the log ────────────────────────────────────────────────────────────────────────────────────────────


@eventlog.workflow
async def keep(run: RunContext) -> int:
    """Has one step whose output is an artifact."""
    return len(await run.step("large", lambda: LARGE))


async def _keep(folder: Path) -> None:
    async with _open(folder) as log:
        runner = eventlog.Runner(log, workflows=[keep])
        try:
            await runner.state(RUN)
        except Refused:
            await runner.start(keep, RUN)
        await runner.resume(RUN)


async def _is_kept(folder: Path) -> list[Wrong]:
    async with _open(folder) as log:
        outcome = await eventlog.Runner(log, workflows=[keep]).resume(RUN)
    return [] if outcome.value == len(LARGE) else [("I6", f"the run came to {outcome.value!r}")]


async def _artifacts_are_there(folder: Path) -> list[Wrong]:
    """Every artifact that an event names is there, whole."""
    if not database(folder).exists():
        return []
    async with _open(folder) as log:
        found = await eventlog.audit.verify(log, artifacts=log.artifacts)
    return [] if found.artifacts.verdict in ("ok", "unknown") else [("I6", str(found.artifacts))]


# ── a signed head ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _make_key(folder: Path) -> None:
    await _make_ids(folder)
    make_key_file(folder / "key")


async def _sign(folder: Path) -> None:
    """Append, and have the head signed; a signer that has signed already is asked to go on from there."""
    async with _open(folder, signer=LocalSigner(folder / "key"), head_every_s=3600) as log:
        await log.append("notes", _notes(folder), expect=Expect.any())
        await log.sign_head()


async def _is_signed(folder: Path) -> list[Wrong]:
    """The signer, the database and the log end at the same head."""
    async with _open(folder, is_read_only=True) as log:
        head, kept = await log.tree_head(), await log.signed_heads()
    noted = HeadFile(heads_beside(folder / "key")).path
    if not kept or kept[-1].head != head or not Path(noted).exists():
        return [("I1", f"the log ends at {head}, and the last head in it is {kept[-1].head if kept else None}")]
    return []


# ── a copy ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _back_up(folder: Path) -> None:
    """Copy the log to a new name: one that was cut off may have taken a part of its own."""
    async with _open(folder) as log:
        number = sum(1 for _ in folder.glob("copy-*.db*"))
        await log.backup(folder / f"copy-{number}.db")


async def _copies_are_whole(folder: Path) -> list[Wrong]:
    """Every copy that has its name is whole, whatever a crash has left beside it."""
    wrong: list[Wrong] = []
    for path in _copies(folder):
        async with eventlog.open(path) as log:
            assert isinstance(log, SqliteLog)
            found = await eventlog.audit.verify(log, artifacts=log.artifacts)
        if (found.integrity.verdict, found.artifacts.verdict) != ("ok", "ok"):
            wrong.append(("I10", f"{path.name}: {found.integrity}, {found.artifacts}"))
    return wrong


async def _has_copy(folder: Path) -> list[Wrong]:
    return await _copies_are_whole(folder) if any(_copies(folder)) else [("I6", "there is no copy")]


def _copies(folder: Path) -> Iterator[Path]:
    return folder.glob("copy-*[0-9].db")


# ── erasing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Words(RowProjection):
    """What was said, in a view."""

    name = "words"
    revision = 1
    event_types = frozenset({"noted"})
    columns: ClassVar = {"stream": "TEXT PRIMARY KEY", "said": "TEXT NOT NULL"}

    def key(self, event: ViewEvent) -> str:
        """Return the stream."""
        return event.stream

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Add what was said."""
        return {"stream": event.stream, "said": (row["said"] if row else "") + event.data["text"]}


def _view() -> SqliteView:
    return SqliteView(Words())


async def _say(folder: Path) -> None:
    """Say it in a run with an artifact, in a stream, and in a view."""
    await _make_ids(folder)
    async with _open(folder, views=[_view()]) as log:
        await eventlog.Runner(log, workflows=[keep]).start(keep, RUN)
        await log.append("notes", _notes(folder), expect=Expect.any())


async def _erase(folder: Path) -> None:
    async with _open(folder) as log:
        known = RebuildableViews(log, [_view()])
        await erase(log, run=RUN, legal_basis="Art. 17 GDPR", views=known)
        await erase(log, stream="notes", legal_basis="Art. 17 GDPR", views=known)


async def _say_under_a_key(folder: Path) -> None:
    await _make_ids(folder)
    async with _open(folder, views=[_view()], subject_keys=_keys(folder)) as log:
        await log.append("notes", _notes(folder), expect=Expect.any(), subject="ann")


async def _erase_subject(folder: Path) -> None:
    async with _open(folder, subject_keys=_keys(folder)) as log:
        known = RebuildableViews(log, [_view()])
        await erase_subject(log, "ann", legal_basis="Art. 17 GDPR", views=known)


async def _is_gone(folder: Path) -> list[Wrong]:
    """Nobody finds the words in any byte of any file."""
    files = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    return [("I10", f"what was erased is still in {', '.join(path.name for path in files)}")] if files else []


def _keys(folder: Path) -> SubjectKeys:
    return SubjectKeys(folder / "keys", wrapping_key=b"w" * 32)


# ── a view that is built again ────────────────────────────────────────────────────────────────────────────────────────


async def _rebuild(folder: Path) -> None:
    async with _open(folder) as log:
        await rebuild_view(log, _view(), anew=True)


async def _view_is_right(folder: Path) -> list[Wrong]:
    """The view has its public name and says what the log does, whatever else is half built beside it."""
    async with _open(folder) as log:
        found = await differences(log, _view())
    return [("I10", f"the view differs at {each.key}") for each in found]


def _open(folder: Path, **options: Any) -> SqliteLog:
    log: SqliteLog = eventlog.open(database(folder), **options)
    return log


SCENES: Final = (
    Scene(name="append", prepare=_make_ids, act=_append, is_done=_has_three),
    Scene(name="migration", prepare=_old_format, act=_migrate, holds=_is_old_or_new, is_done=_is_new),
    Scene(name="artifact", act=_keep, holds=_artifacts_are_there, is_done=_is_kept),
    Scene(name="signed_head", prepare=_make_key, act=_sign, is_done=_is_signed),
    Scene(name="backup", prepare=_say, act=_back_up, holds=_copies_are_whole, is_done=_has_copy),
    Scene(name="erasure", prepare=_say, act=_erase, holds=_artifacts_are_there, is_done=_is_gone),
    Scene(name="subject_erasure", prepare=_say_under_a_key, act=_erase_subject, is_done=_is_gone),
    Scene(name="rebuild", prepare=_say, act=_rebuild, holds=_view_is_right, is_done=_view_is_right),
)

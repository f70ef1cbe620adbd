"""Scenarios of what is kept beside a log or made of it: signed heads, copies, views, transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from eventlog import Append, Expect, LocalSigner, Runner, propose
from eventlog.audit.heads.key_file import make_key_file
from eventlog.errors import EventLogError
from eventlog.events import StepCompleted
from eventlog.stores import SqliteLog
from projections import TranscriptMirror, differences, mirrored, rebuild_view, runs_view
from projections.mirrors import MirroredLog
from tools.campaigns.processes.told import Call, Said, StoppedEarly
from tools.campaigns.storage.scenarios.appended import filled
from tools.campaigns.storage.scenarios.scenario import Scenario, Wrong, database, nothing, open_log, opened
from tools.campaigns.storage.scenarios.transcripts import faults_in
from tools.campaigns.storage.scenarios.whole_log import STREAM, audit_log, contradictions, note

__all__ = ["BACKUP", "MIRROR", "SIGNED", "VIEWS"]


async def _append(said: Said, log: SqliteLog | MirroredLog, number: int) -> None:
    event = note(number)
    await said.ask("append", log.append(STREAM, [event], expect=Expect.any()), ids=[event.event_id])


# ── heads that are signed with the key in a file ──────────────────────────────────────────────────────────────────────


async def _prepare_signed(folder: Path) -> None:
    make_key_file(folder / "key.pem")
    async with open_log(database(folder), signer=LocalSigner(folder / "key.pem")):
        pass


async def _signer(folder: Path) -> LocalSigner:
    return LocalSigner(folder / "key.pem")


async def _sign(folder: Path, said: Said) -> None:
    signer = await said.ask("key", _signer(folder))
    if signer is None:
        raise StoppedEarly
    async with opened(said, open_log(database(folder), signer=signer, head_every_s=3600.0)) as log:
        await _append(said, log, 1)
        await said.ask("sign", _signed_size(log))
        await _append(said, log, 2)


async def _signed_size(log: SqliteLog) -> int:
    signed = await log.sign_head()
    return 0 if signed is None else signed.head.size


async def _audit_signed(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    """Beside the usual: the signer knows the last head it gave out, and the log goes on from all that were signed."""
    told = max([0, *(call.facts["value"] for call in calls if call.what == "sign" and call.told == "ok")])
    try:
        last = LocalSigner(folder / "key.pem").last()
        known = 0 if last is None else last.head.size
        wrong = [] if known >= told else [Wrong("I1", f"a head of {told} was signed, and the signer knows {known}")]
        async with open_log(database(folder), signer=LocalSigner(folder / "key.pem")) as log:
            await log.append(STREAM, [note(99)], expect=Expect.any())
        async with open_log(database(folder), is_read_only=True) as log:
            heads = [signed.head for signed in await log.signed_heads()]
            size = (await log.head()).position
            if max((head.size for head in heads), default=0) != size:
                wrong.append(Wrong("I8", f"the log ends at {size}, and the last head that it keeps is of {heads[-1:]}"))
            if any([(await log.tree_head(head.size)).root != head.root for head in heads]):
                wrong.append(Wrong("I10", "a head was signed that the log does not go on from"))
    except EventLogError as error:
        return [Wrong("I1", f"the signed log cannot be used any more: {error.code}: {error}")]
    return wrong + await audit_log(database(folder), calls)


SIGNED: Final = Scenario("signed", "heads are signed by the key in a file", _prepare_signed, _sign, _audit_signed)


# ── a copy with its artifacts ─────────────────────────────────────────────────────────────────────────────────────────


async def _prepare_backup(folder: Path) -> None:
    await filled(folder)
    async with open_log(database(folder)) as log:
        digest = await log.artifacts.put(b"large " * 20_000)
        steps = [StepCompleted(name="s", key="s", artifact=digest)]
        await log.append_reserved([Append("run:one", steps, Expect.no_stream())])


async def _back_up(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder), is_read_only=True)) as log:
        if not said.is_second or not (folder / "copy.db").exists():
            await said.ask("backup", log.backup(folder / "copy.db"))


async def _audit_backup(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    """What is there by the name of the copy is one as a whole, or is refused and was told to be none."""
    copy = folder / "copy.db"
    told = [call for call in calls if call.what == "backup"]
    is_there = await _is_log(copy)
    wrong = []
    if any(call.told == "ok" for call in told) and not is_there:
        wrong.append(Wrong("I1", "the copy was told to be made, and is not there"))
    if told and all(call.told == "failed" for call in told) and is_there:
        wrong.append(Wrong("I3", f"the copy is there, and was told to have failed: {told[0]}"))
    if not is_there:
        copy = folder / "again.db"
        async with open_log(database(folder), is_read_only=True) as log:
            await log.backup(copy)
    try:
        async with open_log(database(folder), is_read_only=True) as log, open_log(copy) as other:
            if await _all(log) != await _all(other):
                wrong.append(Wrong("I10", "the copy has other events"))
            for name in (await other.check_page(after=0)).artifacts:
                await other.artifacts.get(name.digest)
            return wrong + await contradictions(other) + await contradictions(log)
    except EventLogError as error:
        return [*wrong, Wrong("I10", f"what is there by the name of the copy is none: {error.code}: {error}")]


async def _is_log(path: Path) -> bool:
    """Say whether there is something that opens as a log: what has two names, for one, is refused."""
    try:
        async with open_log(path, is_read_only=True):
            return True
    except EventLogError:
        return False


async def _all(log: SqliteLog) -> list[tuple[int, bytes]]:
    return [(event.position, event.leaf) async for event in log.read_all()]


BACKUP: Final = Scenario("backup", "a log is copied with its artifacts", _prepare_backup, _back_up, _audit_backup)


# ── views that are written with the log, and built again ──────────────────────────────────────────────────────────────


async def _prepare_views(folder: Path) -> None:
    await filled(folder)
    async with open_log(database(folder), views=[runs_view()]) as log:
        await _propose(log, "run-0")


async def _propose(log: SqliteLog, run_id: str) -> str:
    outcome = await Runner(log).propose(run_id, propose("write_file", {"content": run_id}, run_id))
    return str(outcome.status)


async def _rebuild(folder: Path, said: Said) -> None:
    view = runs_view()
    async with opened(said, open_log(database(folder), views=[view])) as log:
        await _append(said, log, 50)
        if not said.is_second:
            await said.ask("propose", _propose(log, "run-1"))
        await said.ask("rebuild", rebuild_view(log, view, anew=True))


async def _audit_views(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    wrong = await audit_log(database(folder), calls)
    view = runs_view()
    try:
        async with open_log(database(folder), views=[view]) as log:
            wrong += [Wrong("I10", f"row {each.key} of the view is wrong") for each in await differences(log, view)]
            await rebuild_view(log, view, anew=True)
            wrong += [Wrong("I10", f"row {each.key} as built again") for each in await differences(log, view)]
    except EventLogError as error:
        wrong.append(Wrong("I10", f"the view cannot be used any more: {error.code}: {error}"))
    return wrong


VIEWS: Final = Scenario("views", "views follow the log and are built again", _prepare_views, _rebuild, _audit_views)


# ── a transcript in files ─────────────────────────────────────────────────────────────────────────────────────────────


def _mirrored(folder: Path) -> MirroredLog:
    return mirrored(open_log(database(folder)), TranscriptMirror(folder / "mirror", streams="", room_bytes=0))


async def _mirror(folder: Path, said: Said) -> None:
    log = await said.ask("mirror", _made(folder))
    if log is None or await said.ask("open", log.__aenter__()) is None:
        raise StoppedEarly
    try:
        for number in (1, 2, 3):
            await _append(said, log, number)
    finally:
        await said.ask("close", log.close())


async def _made(folder: Path) -> MirroredLog:
    return _mirrored(folder)


async def _audit_mirror(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    """Settle what was unknown without the mirror, as another program might; then the mirror has to come up."""
    wrong = await audit_log(database(folder), calls)
    try:
        async with _mirrored(folder) as log:
            await log.append(STREAM, [note(99)], expect=Expect.any())
            return wrong + [Wrong("I10", fault) for fault in await faults_in(log, folder / "mirror")]
    except EventLogError as error:
        return [*wrong, Wrong("I10", f"the mirror does not come up: {error.code}: {error}")]


MIRROR: Final = Scenario("mirror", "a transcript is written beside the log", nothing, _mirror, _audit_mirror)

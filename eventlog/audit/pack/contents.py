"""What goes into a pack, read from a log, file by file."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from eventlog.audit.pack.hints import hint_files, seen_size
from eventlog.audit.pack.manifest import Manifest
from eventlog.audit.pack.proofs import growth_text, inclusion_text
from eventlog.audit.pack.readme import VERIFIER, readme
from eventlog.audit.pack.verifier import members_of
from eventlog.entry import parse
from eventlog.errors import InvalidInput, LogCorrupt, Misuse
from eventlog.events import LOG_STREAM, run_stream
from eventlog.heads import SignedHead
from eventlog.log import RunLog, StoredEntry
from eventlog.stores.artifacts import artifact_in, check_digest

__all__ = ["Contents", "covering_head", "pack_files"]

_LENGTH: Final = struct.Struct(">H")


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: the pack of a run under a signed head, with its report.

    `since` are sizes of heads that the auditor holds; each gets a proof that the log has only grown since.
    """

    run_id: str
    head: SignedHead
    report: bytes
    since: Sequence[int] = ()


async def covering_head(log: RunLog, position: int) -> SignedHead:
    """Return a signed head of the log as it is now, whose tree holds the event at `position`.

    With a signer that is a new one where something was appended since the last. Raises Misuse(`no_signed_head`), and
    what signing raises.
    """
    found = await log.sign_head()
    if found is None:
        kept = await log.signed_heads(after=position - 1)
        found = kept[-1] if kept else None
    if found is None or found.head.size < position:
        message = f"no signed head covers position {position}, so that there is nothing that a pack could prove"
        raise Misuse("no_signed_head", message, position=position)
    return found


async def pack_files(log: RunLog, contents: Contents) -> AsyncGenerator[tuple[str, bytes], None]:
    """Give the files of the pack in their order, each with its name, the manifest last.

    Raises InvalidInput for a size that the log has not reached, LogCorrupt, StoreUnavailable.
    """
    log_ids = [each for each in await log.log_ids() if each[0] <= contents.head.head.size]
    manifest = Manifest(contents.run_id, log_ids)
    async with aclosing(_files(log, contents)) as files:
        async for name, data in files:
            yield manifest.note(name, data)
    yield manifest.file()


async def _files(log: RunLog, contents: Contents) -> AsyncGenerator[tuple[str, bytes], None]:
    head = contents.head
    run = await _entries(log, run_stream(contents.run_id), head)
    own = await _entries(log, LOG_STREAM, head)
    if not run:
        raise InvalidInput("invalid_argument", f"the head of size {head.head.size} holds nothing of this run")
    origin = head.note.decode().partition("\n")[0]
    yield "README.txt", readme(contents.run_id, origin, head.head.size)
    yield "verify.py", VERIFIER
    yield "report.html", contents.report
    yield "checkpoint", head.note
    for name, entries in (("", run), ("log-", own)):
        yield f"{name}entries.bin", b"".join(_LENGTH.pack(len(each.entry)) + each.entry for each in entries)
        if entries:
            last = entries[-1].position
            proof = await log.prove_inclusion(last, head.head.size)
            yield f"{name}proof.tlog-proof", inclusion_text(last, proof, head.note)
    for file in (*_bodies("log", own), *_bodies("run", run)):
        yield file
    async with aclosing(_approvals(log, run, contents)) as files:
        async for file in files:
            yield file
    for file in hint_files(contents.run_id, [(each.type, each.stored or b"{}") for each in own]):
        yield file
    for digest in _artifacts(run):
        yield f"artifacts/{digest}", await log.artifacts.get(digest)


async def _entries(log: RunLog, stream: str, head: SignedHead) -> list[StoredEntry]:
    """Return the entries of a stream that the head covers."""
    async with aclosing(log.read_entries(stream)) as entries:
        return [each async for each in entries if each.position <= head.head.size]


def _bodies(folder: str, entries: Sequence[StoredEntry]) -> Iterator[tuple[str, bytes]]:
    for each in entries:
        path = f"payload/{folder}/{each.version}"
        if each.stored is not None and each.salt is not None:
            yield f"{path}.json", each.stored
            yield f"{path}.salt", each.salt
        elif each.stored is not None:
            yield f"{path}.sealed", each.stored


async def _approvals(
    log: RunLog, run: Sequence[StoredEntry], contents: Contents
) -> AsyncGenerator[tuple[str, bytes], None]:
    """Give the signed decisions, then the proofs of growth from the heads that they name, and from those asked for."""
    size, sizes = contents.head.head.size, set(contents.since)
    for each in run:
        if each.type == "approval_recorded" and each.stored is not None and each.salt is not None:
            value, raw = members_of(each.stored, "the body").get("envelope", (None, b""))
            if value is not None:
                yield f"approvals/{each.version}.dsse.json", raw
                seen = seen_size(raw)
                sizes |= {seen} if seen is not None and 0 < seen <= size else set()
    for old in sorted(sizes):
        yield f"consistency/{old}.proof", growth_text(old, await log.prove_consistency(old, size))


def _artifacts(run: Sequence[StoredEntry]) -> list[str]:
    """Return the artifacts that plain bodies of the run name, each once, in the order in which they do."""
    found: dict[str, None] = {}
    for each in run:
        if each.stored is not None and each.salt is not None:
            try:
                stream = parse(each.entry).stream
            except ValueError as error:
                raise LogCorrupt("event_malformed", str(error), position=each.position) from error
            digest = artifact_in(stream, each.type, each.stored)
            if digest is not None:
                found[_checked(digest, each.position)] = None
    return list(found)


def _checked(digest: str, position: int) -> str:
    try:
        return check_digest(digest)
    except InvalidInput as error:
        message = f"position {position} names {digest!r:.80}, which can be no artifact"
        raise LogCorrupt("artifact_missing", message, position=position) from error

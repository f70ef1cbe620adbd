"""`eventlog export --format pack`: the evidence of one run for somebody who does not trust whoever runs the log."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from eventlog.audit.pack import Contents, covering_head, pack_files, verifier_digest, write_archive
from eventlog.audit.report import run_report
from eventlog.cli.options import Options
from eventlog.cli.output import show_card
from eventlog.cli.report import subject_of
from eventlog.cli.target_file import TargetFile
from eventlog.cli.target_folder import TargetFolder
from eventlog.cli.wiring import Opened, open_to_look, read_run, version_of
from eventlog.heads import SignedHead
from eventlog.log import Head

__all__ = ["PACK", "export_pack"]

PACK: Final = "pack"
"""The name of the format."""


async def export_pack(options: Options, run_id: str, target: str, *, force: bool, since: Sequence[int]) -> None:
    """Write the pack of a run to `target`, a zip file, or a folder if it ends with a slash.

    Raises Refused(`unknown_run`), Misuse (`no_signed_head`, `target_exists`), InvalidInput, LogCorrupt,
    StoreUnavailable.
    """
    async with open_to_look(options) as opened:
        await version_of(opened.log, run_id)
        head = await covering_head(opened.log, await _last_position(opened, run_id))
        report = await _report(options, opened, run_id, head)
        contents = Contents(run_id=run_id, head=head, report=report.encode(), since=since)
        async with aclosing(pack_files(opened.log, contents)) as files:
            size = await _write(files, target, force=force, place=opened.log.place)
    show_card(options, _card(run_id, target, head, size))


async def _last_position(opened: Opened, run_id: str) -> int:
    _, events = await read_run(opened.log, run_id)
    return events[-1].position


async def _report(options: Options, opened: Opened, run_id: str, head: SignedHead) -> str:
    """Return the report as of the signed head, made at the time of that: the same head gives the same report."""
    subject = await subject_of(options, opened, run_id)
    version = max(event.version for event in subject.events if event.position <= head.head.size)
    run, events = await read_run(opened.log, run_id, at_version=version)
    as_of_head = msgspec.structs.replace(
        subject,
        run=run,
        events=events,
        path=os.path.basename(options.db),
        head=Head(events[-1].position, events[-1].leaf),
        made_at_us=head.signed_at_us,
    )
    return run_report(as_of_head)


async def _write(files: AsyncGenerator[tuple[str, bytes], None], target: str, *, force: bool, place: str | None) -> int:
    """Write the files and return how many bytes that took."""
    if target.endswith("/"):
        with TargetFolder(target) as folder:
            async for name, data in files:
                folder.write(name, data)
            folder.publish()
        return folder.size_bytes
    with TargetFile(target, force=force, place=place) as file:
        await write_archive(files, file.write)
        file.publish()
    return file.size_bytes


def _card(run_id: str, target: str, head: SignedHead, size_bytes: int) -> dict[str, Any]:
    return {
        "path": target,
        "format": PACK,
        "run_id": run_id,
        "origin": head.note.decode().partition("\n")[0],
        "head_size": head.head.size,
        "size_bytes": size_bytes,
        "verifier_sha256": verifier_digest(),
    }

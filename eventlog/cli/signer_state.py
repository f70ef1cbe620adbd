"""Whether the signer that `--signer` names knows the heads that the database keeps."""

from __future__ import annotations

import asyncio

from eventlog.cli.options import Options
from eventlog.cli.wiring import signer_of
from eventlog.heads import SignedHead
from eventlog.stores import SqliteLog

__all__ = ["behind_of", "signer_behind"]


async def signer_behind(options: Options, log: SqliteLog) -> str | None:
    """Say which signed head the signer has lost, if one was named and has. Raises as it does."""
    signer = signer_of(options)
    return None if signer is None else await behind_of(log, await asyncio.to_thread(signer.last))


async def behind_of(log: SqliteLog, last: SignedHead | None) -> str | None:
    """Say that the database keeps a signed head of this incarnation beyond the last one of its signer, if it does.

    It is kept there after the signer has kept it, so that it has lost it, or is another signer.
    """
    log_id = log.facts.log_ids[-1][1]
    known = last.head.size if last is not None and last.log_id == log_id else 0
    kept = max((each.head.size for each in await log.signed_heads(after=known) if each.log_id == log_id), default=0)
    if not kept:
        return None
    return f"the database keeps a signed head of size {kept}, and the signer knows none beyond {known}"

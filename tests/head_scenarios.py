"""Programs that sign heads and are killed, do not end, or whose disk fails, for `test_head_keeper`."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from typing import Any

from eventlog import Expect, NewEvent
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.errors import EventLogError
from eventlog.heads import HeadRequest, SignedHead
from tests.signers import MemorySigner
from tools.campaigns.processes.child import leaving
from tools.campaigns.storage.libc_faults import FOR_EVER, Faults
from tools.campaigns.storage.log_files import open_file

__all__ = ["ends_with_a_signer_that_hangs", "is_killed_before_signing", "signs_as_another", "syncs_fail"]

ANY = Expect.any()


def _notes(count: int) -> list[NewEvent]:
    return [NewEvent("note_taken", {"n": number}) for number in range(count)]


class _Killing(LocalSigner):
    """Ends the process where a head would be signed."""

    def sign(self, request: HeadRequest) -> SignedHead:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


async def is_killed_before_signing(path: str, key: str) -> None:
    """Append, and be killed behind the commit, when the head is to be signed."""
    async with open_file(path, signer=_Killing(key), head_every_s=3600) as log:
        await log.append("a", _notes(3), expect=ANY)
        await log.sign_head()


async def signs_as_another(path: str, key: str) -> int:
    """Append and sign as another process, and return the size that was signed."""
    async with open_file(path, signer=LocalSigner(key), head_every_s=3600) as log:
        await log.append("b", _notes(3), expect=ANY)
        signed = await log.sign_head()
        assert signed is not None
        return signed.head.size


async def ends_with_a_signer_that_hangs(path: str) -> list[int]:
    """Close a log whose signer never answers, and end."""
    signer = MemorySigner()
    log = open_file(path, signer=signer, head_every_s=0.01)
    await log.__aenter__()
    signer.before = threading.Event().wait  # type: ignore[assignment]
    await log.append("a", _notes(3), expect=ANY)
    await asyncio.sleep(0.1)
    await log.close()
    leaving()
    return signer.sizes


async def syncs_fail(path: str) -> dict[str, Any]:
    """Let the commit's sync fail for a while, and see what is signed meanwhile."""
    faults, signer = Faults(), MemorySigner()
    async with open_file(path, signer=signer, head_every_s=0.01, settle_timeout_s=0.3) as log:
        await log.append("a", _notes(3), expect=ANY)
        await log.sign_head()
        faults.arm("sync", errno.EIO, files="-wal", times=FOR_EVER)
        told = []
        for call in (log.append("a", _notes(1), expect=ANY), log.sign_head()):
            try:
                await call
            except EventLogError as error:
                told.append(error.code)
        await asyncio.sleep(0.1)
        meanwhile = list(signer.sizes)
        faults.disarm("sync")
        await log.append("a", _notes(1), expect=ANY)
        signed = await log.sign_head()
        assert signed is not None
        return {"told": told, "meanwhile": meanwhile, "then": signed.head.size - (await log.head()).position}

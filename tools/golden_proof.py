"""The part of the golden files that is about proof: what came with format 2.

Events about the log itself, a tile, signed heads, an erased body and an encrypted stream, and a second incarnation of
the log. The keys are thrown away: nobody can decrypt that stream any more, and its proofs hold.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.codec import Registry
from eventlog.events import (
    LOG_STREAM,
    ApproverEnrolled,
    ApproverRevoked,
    Envelope,
    EnvelopeSignature,
    LogEvent,
    LogKeyDeclared,
    LogKeyRevoked,
    LogKeyRotated,
)
from eventlog.log import Append, Expect, NewEvent, ProvenLog
from eventlog.stores.subject_keys import SubjectKeys
from eventlog.testing.clock import FakeClock

__all__ = ["describe_proof", "write_what_is_proved"]

_ANY: Final = Expect.any()
_MANY: Final = 100
"""So many that a tile is complete."""
_KEY: Final = "log.example/stock+1a2b3c4d+" + "A" * 44
_NEXT_KEY: Final = "log.example/stock+5e6f7a8b+" + "B" * 44
_SIGNATURE: Final = "c" * 86 + "=="
_PROOF: Final = Envelope(
    payload_type="application/vnd.in-toto+json",
    payload="e30=",
    signatures=(EnvelopeSignature(keyid="k" * 64, sig=_SIGNATURE),),
)
_OF_THE_LOG: Final[tuple[LogEvent, ...]] = (
    LogKeyDeclared(verifier_key=_KEY),
    LogKeyRotated(verifier_key=_NEXT_KEY, replaces=_KEY, signature=_SIGNATURE),
    LogKeyRevoked(verifier_key=_KEY, from_size=250, reason="verloren"),
    ApproverEnrolled(approver="person:3", key_id="k" * 64, kind="ed25519", public_key="D" * 43 + "=", proof=_PROOF),
    ApproverRevoked(key_id="k" * 64, reason="left"),
)


async def write_what_is_proved(path: Path, registry: Registry, clock: FakeClock) -> None:
    """Go on with the log at `path`."""
    with tempfile.TemporaryDirectory() as folder:
        make_key_file(os.path.join(folder, "key"))
        signer = LocalSigner(os.path.join(folder, "key"), prefix="log.example/stock", clock=clock)
        keys = SubjectKeys(os.path.join(folder, "subjects"), wrapping_key=bytes(range(32)))
        options: dict[str, Any] = {
            "actor": "service:stock",
            "registry": registry,
            "clock": clock,
            "signer": signer,
            "head_every_s": 3600,
            "subject_keys": keys,
        }
        async with eventlog.open(path, **options) as log:
            await log.append("shelf", [NewEvent("note_taken", n) for n in range(_MANY)], expect=_ANY)
            await log.append("customer", [NewEvent("note_taken", "born 1970")], expect=_ANY, subject="customer-17")
            await log.append("customer-18", [NewEvent("note_taken", "born 1971")], expect=_ANY, subject="customer-18")
            await log.append_reserved([Append(LOG_STREAM, _OF_THE_LOG, _ANY)])
            await log.erase([(await log.read_stream("shelf")).events[40].position], legal_basis="GDPR 17(1)(a)")
            await log.erase_subject("customer-18", legal_basis="GDPR 17(1)(b)", reason="asked for")
        clock.advance(60)
        async with eventlog.open(path, restored="the disk was lost", **options) as log:
            await log.append("shelf", [NewEvent("note_taken", "behind it")], expect=_ANY)


async def describe_proof(log: ProvenLog) -> dict[str, Any]:
    """Return what proves the log, as plain data."""
    size, frontier = await log.tree_state()
    sizes = [*range(1, size + 1, 50), size]
    return {
        "log_ids": [[first, log_id.hex()] for first, log_id in await log.log_ids()],
        "tree": [size, frontier.hex()],
        "tiles": [[number, root.hex()] for number, root in await log.read_tiles(1, 0, 1000)],
        "roots": [[at, (await log.tree_head(at)).root.hex()] for at in sizes],
        "heads": [[kept.log_id.hex(), kept.head.size, kept.note.decode()] for kept in await log.signed_heads()],
    }

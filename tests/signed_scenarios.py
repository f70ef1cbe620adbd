"""What a process of its own does with signed approvals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import eventlog
from eventlog.signing.envelopes import decode_envelope
from eventlog.signing.signed_decisions import read_statement

__all__ = ["hand_in"]


async def hand_in(path: str, envelopes: str) -> dict[str, str]:
    """Wait to be told to begin; hand in each of the signed approvals, and return what each was answered, by run."""
    texts: dict[str, str] = json.loads(Path(envelopes).read_text(encoding="utf-8"))
    told = {}
    async with eventlog.open(path, busy_timeout_s=30) as log:
        runner = eventlog.Runner(log)
        print("READY", flush=True)
        sys.stdin.readline()
        for run_id, text in texts.items():
            envelope = decode_envelope(text.encode())
            try:
                await runner.approve(run_id, read_statement(envelope).proposal_sha256, envelope=envelope)
            except eventlog.Refused as error:
                told[run_id] = error.code
            else:
                told[run_id] = "recorded"
    return told

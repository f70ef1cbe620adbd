"""Checks a log, or one run, and gives a verdict for each thing that can be wrong.

    integrity   every event is what its hash says, and the store's own files are sound
    order       positions and versions have no gaps, times do not run backwards
    tree        the Merkle tree that is stored is the one that the leaves make
    heads       the log goes on from every head of it that was signed and can be shown
    approvals   who approved what, how sure that is, and that signed approvals are about this log
    erasures    each body that is gone was erased by an event that says so
    artifacts   every large value that an event names is kept beside the log, and is what its name says
    snapshots   the state that a run may be resumed from is what its events add up to
    views       what people look at is what the log says

The log is read page by page, once, and the check goes on behind what is wrong. Damage is a finding, never an exception:
an auditor wants all of it. What stays in memory is 32 bytes for 256 events, and what is known of heads, keys, erasures
and approvals. A cut tail, an older copy of the log and a history whose every hash was computed again are found by heads
that were kept outside the database, and by signed approvals, each of which names the head that the approver saw.
"""

from __future__ import annotations

from eventlog.audit.verify.findings import SHOWN, Finding, Verdict, damage
from eventlog.audit.verify.pages import Progress
from eventlog.audit.verify.trust import OutsideHead, PinnedApprover, Trust
from eventlog.audit.verify.verdicts import Verdicts, ViewsCheck, verify

__all__ = [
    "SHOWN",
    "Finding",
    "OutsideHead",
    "PinnedApprover",
    "Progress",
    "Trust",
    "Verdict",
    "Verdicts",
    "ViewsCheck",
    "damage",
    "verify",
]

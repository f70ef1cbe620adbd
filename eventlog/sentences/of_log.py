"""Sentences about the log itself: its keys and its approvers, what was restored, and what was erased and why."""

from __future__ import annotations

from typing import assert_never

from eventlog.events import (
    ApproverEnrolled,
    ApproverRevoked,
    BarrierRecorded,
    LogEvent,
    LogKeyDeclared,
    LogKeyRevoked,
    LogKeyRotated,
    LogRestored,
    PayloadErased,
    SubjectErased,
)
from eventlog.sentences.words import joined, named, quoted

__all__ = ["log_sentence"]


def log_sentence(actor: str, event: LogEvent) -> str:
    """Return the sentence about an event of the stream `$log`. `actor` is ready to stand in it."""
    match event:
        case BarrierRecorded(reason=reason):
            return f"{actor} opened the log again after {quoted(reason)}; what is read from here on is settled"
        case LogKeyDeclared(verifier_key=key):
            return f"{actor} declared that the heads of this log are signed by {named(key)}"
        case LogKeyRotated(verifier_key=key, replaces=replaces):
            return f"{actor} let {named(key)} sign the heads of this log in place of {named(replaces)}, which agrees"
        case LogKeyRevoked(verifier_key=key, from_size=size, reason=reason):
            return f"{actor} revoked {named(key)}: no head beyond size {size} counts that it signs{_why(reason)}"
        case LogRestored():
            return _restored(actor, event)
        case ApproverEnrolled(approver=approver, key_id=key_id, kind=kind, level=level):
            key = f"the {named(kind)} key {named(key_id)} of {named(approver)}"
            return f"{actor} enrolled {key}, who has proved to hold it; what it signs has the level {level}"
        case ApproverRevoked(key_id=key_id, reason=reason):
            return f"{actor} revoked the key {named(key_id)}: nothing that it signs counts from here on{_why(reason)}"
        case PayloadErased(position=position, legal_basis=basis, reason=reason):
            erased = f"{actor} erased what the event at position {position} holds, on the basis of {quoted(basis)}"
            return f"{erased}{_why(reason)}"
        case SubjectErased(key_id=key_id, legal_basis=basis, reason=reason):
            erased = f"{actor} destroyed the key {named(key_id)} of a subject, on the basis of {quoted(basis)}"
            return joined(f"{erased}{_why(reason)}", "what is encrypted under it cannot be read any more")
        case _:
            assert_never(event)


def _restored(actor: str, event: LogRestored) -> str:
    before = f"in place of {named(event.previous_log_id)}, whose last known head was {named(event.root)}"
    lost = f"its events up to position {event.size} that do not stand before this one are lost"
    return joined(f"{actor} put an older copy of the log {before} at size {event.size}{_why(event.reason)}", lost)


def _why(reason: str | None) -> str:
    return "" if reason is None else f", because {quoted(reason)}"

"""Takes secrets out of events that have to be recorded: what has happened counts more than how somebody put it.

A command that brings a secret is refused, and whoever gave it hears so. What the engine itself has to say must leave
its trace: that something failed, that an outcome is unknown, that a command was refused. Its texts come from tools,
people and exceptions; `***` stands there for what the log's scanner sees as a secret.

An effect that happened is recorded without its result (`without_payload`): half a result could be taken for it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from eventlog.events import (
    ActionConflict,
    ActionFailed,
    CompensationFailed,
    OutcomeUnknown,
    ProposalRejected,
    ResultRejected,
    ResumeRejected,
    RunEvent,
    RunFailed,
    SignalRejected,
    StepFailed,
    TransitionRejected,
)
from eventlog.scanning import Scanner, masked

__all__ = ["MASKED", "without_secrets"]

MASKED: Final = (
    ActionConflict,
    ActionFailed,
    CompensationFailed,
    OutcomeUnknown,
    ProposalRejected,
    ResultRejected,
    ResumeRejected,
    RunFailed,
    SignalRejected,
    StepFailed,
    TransitionRejected,
)
"""What the engine has to say, whatever is in it."""


def without_secrets(scanner: Scanner | None, events: Sequence[RunEvent]) -> Sequence[RunEvent]:
    """Return the events, those of them masked that must not be lost.

    A scanner that raises changes nothing here: the log then refuses the event, and says so.
    """
    if scanner is None or not any(isinstance(event, MASKED) for event in events):
        return events
    return [_masked(scanner, event) if isinstance(event, MASKED) else event for event in events]


def _masked(scanner: Scanner, event: RunEvent) -> RunEvent:
    try:
        body = msgspec.json.encode(event)
        if scanner.find(body) is None:
            return event
        fields: Any = masked(scanner, msgspec.json.decode(body))
        return msgspec.json.decode(msgspec.json.encode(fields), type=type(event))
    except Exception:
        return event

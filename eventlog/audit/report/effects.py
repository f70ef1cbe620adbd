"""The effects of a run: each attempt, what it came to, and whether it was undone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from eventlog.audit.report.parts import card, facts, hash_of, link_to, section, time_of
from eventlog.audit.report.safe import Safe, joined, tag
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    CompensationExecuted,
    CompensationFailed,
    CompensationStarted,
    OutcomeReconciled,
    OutcomeUnknown,
    ResultRejected,
    ResumeStarted,
)
from eventlog.log import RecordedEvent
from eventlog.sentences import sentence

__all__ = ["Effect", "effects_of", "effects_section"]

_INTENTS: Final = (ResumeStarted, CompensationStarted)
_OUTCOMES: Final = (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    CompensationExecuted,
    CompensationFailed,
    OutcomeReconciled,
    OutcomeUnknown,
    ResultRejected,
)
_LOOKS: Final = {
    "action_executed": "good",
    "action_recovered": "good",
    "compensation_executed": "good",
    "outcome_reconciled": "unsure",
    "outcome_unknown": "unsure",
}


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One logical effect, by its op_key: the intents to do it, and what was recorded of how they ended, in order."""

    op_key: str
    attempts: tuple[RecordedEvent, ...]
    outcomes: tuple[RecordedEvent, ...]

    @property
    def is_open(self) -> bool:
        """Whether the last thing that was recorded is an intent: it may have happened, or not."""
        last = max(self.outcomes, key=lambda event: event.version, default=None)
        return bool(self.attempts) and (last is None or last.version < self.attempts[-1].version)

    @property
    def outcome(self) -> str:
        """The type of the event that says how it ended last."""
        return "open" if self.is_open else self.outcomes[-1].type


def effects_of(events: Iterable[RecordedEvent]) -> list[Effect]:
    """Return the effects of a run in the order in which they began."""
    attempts: dict[str, list[RecordedEvent]] = {}
    outcomes: dict[str, list[RecordedEvent]] = {}
    for event in events:
        if isinstance(event.data, (*_INTENTS, *_OUTCOMES)):
            kept = attempts if isinstance(event.data, _INTENTS) else outcomes
            for each in (attempts, outcomes):
                each.setdefault(event.data.op_key, [])
            kept[event.data.op_key].append(event)
    return [Effect(op_key=key, attempts=tuple(attempts[key]), outcomes=tuple(outcomes[key])) for key in attempts]


def effects_section(events: Sequence[RecordedEvent]) -> Safe:
    """Return what was done, under which op_key, at which attempt, and how it ended."""
    found = list(map(_effect, effects_of(events)))
    return section("effects", "What was done", *(found or [tag("p", "Nothing: no effect has begun.")]))


def _effect(effect: Effect) -> Safe:
    outcome = tag("span", _spelled(effect.outcome), class_=f"status {_LOOKS.get(effect.outcome, 'bad')}")
    return card(
        facts(
            {
                "op_key": hash_of(effect.op_key),
                "undoes": hash_of(_undone(effect)),
                "outcome": outcome,
                "attempts": _attempts(effect),
                "recorded": [tag("p", sentence(event), " · ", link_to(event)) for event in effect.outcomes] or None,
            }
        ),
        kind="unknown" if effect.is_open else "",
    )


def _spelled(outcome: str) -> str:
    return "open: it has begun, and has no result yet" if outcome == "open" else outcome


def _undone(effect: Effect) -> str | None:
    first = effect.attempts[0].data if effect.attempts else None
    return first.compensates if isinstance(first, CompensationStarted) else None


def _attempts(effect: Effect) -> Safe:
    lines = [
        tag("p", f"{event.data.attempt}: {time_of(event.recorded_at_us)} · ", event.actor, " · ", link_to(event))
        for event in effect.attempts
    ]
    return joined(*lines) if lines else joined("none of this run")

"""What must be true after a crash, said by the promise alone: a small model of an attempt, beside the engine's code.

The model knows how far a resumer gets (`passed`), what a crash leaves (`crashed`), and what the next resume that is not
crashed comes to (`resumed`). It is written from the promises, so that the engine and its check do not share a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from eventlog import Promise
from eventlog.runtime.failpoints import (
    EFFECT_AFTER,
    EFFECT_INSIDE,
    FAILPOINTS,
    INTENT_BEFORE_COMMIT,
    RESULT_AFTER_COMMIT,
    RESULT_BEFORE_COMMIT,
)
from tools.campaigns.effects.subjects import Subject

__all__ = ["APPROVED", "State", "crashed", "passed", "resumed"]

_EFFECT_IS_DONE: Final = frozenset({EFFECT_AFTER, RESULT_BEFORE_COMMIT})


@dataclass(frozen=True, slots=True)
class State:
    """A run as its log shows it, and its effects as the receiver does."""

    status: str = "APPROVED"
    intents: int = 0
    effects: int = 0

    def plain(self) -> dict[str, Any]:
        """Return it as it is printed."""
        return {"status": self.status, "intents": self.intents, "effects": self.effects}


APPROVED: Final = State()
"""Where every cell begins."""


def passed(subject: Subject, state: State) -> tuple[str, ...]:
    """Return the failpoints that a resumer passes from here, in order."""
    if state.status != "APPROVED" or _nobody_can_tell(subject, state):
        return ()
    if subject.can_be_asked and state.effects:
        return (RESULT_BEFORE_COMMIT, RESULT_AFTER_COMMIT)  # it is found by asking: nothing is begun again
    if subject.looks_first and state.effects:
        return tuple(point for point in FAILPOINTS if point != EFFECT_INSIDE)
    return FAILPOINTS


def crashed(subject: Subject, state: State, point: str) -> State:
    """Return what a crash at `point`, which is passed, leaves behind."""
    if point == INTENT_BEFORE_COMMIT:
        return state
    is_asked = subject.can_be_asked and state.effects > 0
    begun = state if is_asked else replace(state, intents=state.intents + 1)
    if point == RESULT_AFTER_COMMIT:
        return replace(begun, status="COMPLETED", effects=1)
    is_done = point in _EFFECT_IS_DONE and subject.promise is not Promise.TRANSACTIONAL
    is_sent = point == EFFECT_INSIDE and subject.is_sent_inside
    return replace(begun, effects=1) if is_done or is_sent else begun


def resumed(subject: Subject, state: State) -> tuple[str, State]:
    """Return what the next resume answers, and what it leaves behind."""
    if state.status == "COMPLETED":
        return "already_completed", state
    if state.status == "OUTCOME_UNKNOWN" or _nobody_can_tell(subject, state):
        return "outcome_unknown", replace(state, status="OUTCOME_UNKNOWN")
    result = "recovered" if state.effects else "executed"
    return result, crashed(subject, state, RESULT_AFTER_COMMIT)


def _nobody_can_tell(subject: Subject, state: State) -> bool:
    return subject.promise is Promise.OPAQUE and state.intents > 0

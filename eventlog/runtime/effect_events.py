"""How an effect, and the undoing of one, is told in events: the two things that an attempt can be made at."""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from eventlog.decide import begin_compensation, begin_effect
from eventlog.events import (
    ActionConflict,
    ActionExecuted,
    ActionFailed,
    ActionRecovered,
    CompensationExecuted,
    CompensationFailed,
    Failure,
    OutcomeUnknown,
    Owner,
    RunClaimed,
    RunEvent,
)
from eventlog.run import Intent, Run, Status
from eventlog.runtime.effects import Conflicted, Executed, Recovered
from eventlog.runtime.run_streams import printable

__all__ = ["Doing", "EffectEvents", "Hold", "Undoing"]


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Under what an attempt is made: who makes it, until when, and the claim that fences an earlier one."""

    owner: Owner
    deadline_us: int
    claims: RunClaimed | None
    key_until_us: int | None


class EffectEvents(Protocol):
    """One effect of a run. `action` and `op_key` name it."""

    @property
    def action(self) -> str:
        """The action's name."""

    @property
    def op_key(self) -> str:
        """The identity of the effect."""

    def intent(self, run: Run) -> Intent | None:
        """Return the open intent, if one is open."""

    def attempts(self, run: Run) -> int:
        """Return how many attempts have begun."""

    def key_until_us(self, run: Run) -> int | None:
        """Return until when the receiver knows the op_key, as the first intent recorded it."""

    def is_unknown(self, run: Run) -> bool:
        """Say whether an attempt has ended without anybody knowing how."""

    def begin(self, run: Run, hold: Hold) -> tuple[RunEvent, ...]:
        """Return the events that make the intent durable."""

    def executed(self, report: Executed) -> RunEvent:
        """Return the event of an effect that was done."""

    def recovered(self, report: Recovered) -> RunEvent:
        """Return the event of an effect that had been done."""

    def conflict(self, report: Conflicted) -> RunEvent:
        """Return the event of a target that holds something else."""

    def failed(self, failure: Failure, *, is_final: bool) -> RunEvent:
        """Return the event of an effect that was definitely not done."""

    def unknown(self, why: str, *, strays_are_over: bool = False) -> OutcomeUnknown:
        """Return the event of an effect of which nobody knows."""


class Doing:
    """The approved effect of a run."""

    executed_type: Final = ActionExecuted

    def __init__(self, action: str, op_key: str) -> None:
        self.action: Final = action
        self.op_key: Final = op_key

    def intent(self, run: Run) -> Intent | None:
        return run.intent

    def attempts(self, run: Run) -> int:
        return run.attempts

    def key_until_us(self, run: Run) -> int | None:
        return run.key_until_us

    def is_unknown(self, run: Run) -> bool:
        return run.status is Status.OUTCOME_UNKNOWN

    def begin(self, run: Run, hold: Hold) -> tuple[RunEvent, ...]:
        return begin_effect(
            run,
            op_key=self.op_key,
            owner=hold.owner,
            deadline_us=hold.deadline_us,
            key_until_us=hold.key_until_us,
            claims=hold.claims,
        )

    def executed(self, report: Executed) -> RunEvent:
        return ActionExecuted(action=self.action, op_key=self.op_key, result=report.result)

    def recovered(self, report: Recovered) -> RunEvent:
        return ActionRecovered(action=self.action, op_key=self.op_key, evidence=report.evidence, result=report.result)

    def conflict(self, report: Conflicted) -> RunEvent:
        return ActionConflict(
            action=self.action,
            op_key=self.op_key,
            reason=report.reason,
            code=report.code,
            expected_content_hash=report.expected_content_hash,
            existing_content_hash=report.existing_content_hash,
            expected_content=report.expected_content,
            existing_content=report.existing_content,
        )

    def failed(self, failure: Failure, *, is_final: bool) -> RunEvent:
        return ActionFailed(action=self.action, op_key=self.op_key, error=failure, is_final=is_final)

    def unknown(self, why: str, *, strays_are_over: bool = False) -> OutcomeUnknown:
        return OutcomeUnknown(action=self.action, op_key=self.op_key, why=why, strays_are_over=strays_are_over)


class Undoing:
    """The effect that undoes the executed effect of a run. `compensates` is the op_key of the latter."""

    executed_type: Final = CompensationExecuted

    def __init__(self, action: str, op_key: str, compensates: str, reason: str | None) -> None:
        self.action: Final = action
        self.op_key: Final = op_key
        self._compensates: Final = compensates
        self._reason: Final = reason

    def intent(self, run: Run) -> Intent | None:
        return run.compensation.intent if run.compensation is not None else None

    def attempts(self, run: Run) -> int:
        return run.compensation.attempts if run.compensation is not None else 0

    def key_until_us(self, run: Run) -> int | None:
        return run.compensation.key_until_us if run.compensation is not None else None

    def is_unknown(self, run: Run) -> bool:
        return run.status is Status.OUTCOME_UNKNOWN and run.compensation is not None

    def begin(self, run: Run, hold: Hold) -> tuple[RunEvent, ...]:
        return begin_compensation(
            run,
            self.action,
            op_key=self.op_key,
            owner=hold.owner,
            deadline_us=hold.deadline_us,
            key_until_us=hold.key_until_us,
            claims=hold.claims,
            reason=self._reason,
        )

    def executed(self, report: Executed) -> RunEvent:
        return self._executed(report.result, None)

    def recovered(self, report: Recovered) -> RunEvent:
        return self._executed(report.result, report.evidence if report.evidence is not None else True)

    def conflict(self, report: Conflicted) -> RunEvent:
        if report.code == "idempotency_conflict":
            return self.unknown(printable(report.reason))  # somebody has used the op_key, and what that did is unknown
        return self.failed(Failure(code=report.code, message=printable(report.reason)), is_final=False)

    def failed(self, failure: Failure, *, is_final: bool) -> RunEvent:
        return CompensationFailed(
            action=self.action,
            op_key=self.op_key,
            compensates=self._compensates,
            error=failure,
            is_final=is_final,
        )

    def unknown(self, why: str, *, strays_are_over: bool = False) -> OutcomeUnknown:
        return OutcomeUnknown(action=self.action, op_key=self.op_key, why=why, strays_are_over=strays_are_over)

    def _executed(self, result: Any, evidence: Any) -> RunEvent:
        return CompensationExecuted(
            action=self.action,
            op_key=self.op_key,
            compensates=self._compensates,
            result=result,
            evidence=evidence,
        )

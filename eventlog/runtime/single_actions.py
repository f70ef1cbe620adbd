"""The effect of a run of one action: done when it is approved, and undone by the action that its action names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, assert_never

from eventlog.decide import Accepted, Refusal, Replay, compare_view, compensate, refuse_resume, resume
from eventlog.errors import ActionFailed, RunConflict
from eventlog.events import ResumeRejected
from eventlog.log import RunLog
from eventlog.proposal import Proposal, op_key
from eventlog.run import Run, Status
from eventlog.runtime.attempts import AnyAction, Attempts, described, logged
from eventlog.runtime.calls import call_of, failed_check
from eventlog.runtime.effect_events import Doing, Undoing
from eventlog.runtime.effect_grounds import EffectGrounds
from eventlog.runtime.effects import Call, compensation_of
from eventlog.runtime.failpoints import Reach
from eventlog.runtime.outcomes import Outcome
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams, printable

__all__ = ["RunView", "SingleActions"]


class RunView(Protocol):
    """The stored view of runs that people decide from, compared with the log before an effect."""

    async def row(self, run: Run) -> Mapping[str, Any]:
        """Return the row of this run by column name, brought up to `run.version` first where it is missing or late."""


class SingleActions:
    """Performs and undoes the effects of runs of one action, of those `actions` that this program knows.

    `now_us` says what time it is for a run, `view` is compared with the log before an effect, if there is one.
    """

    def __init__(
        self,
        log: RunLog,
        streams: RunStreams,
        attempts: Attempts,
        actions: Mapping[str, AnyAction],
        *,
        now_us: Callable[[Run], int],
        view: RunView | None,
        grounds: EffectGrounds,
        reach: Reach,
    ) -> None:
        self._log: Final = log
        self._streams: Final = streams
        self._attempts: Final = attempts
        self._actions: Final = actions
        self._now_us: Final = now_us
        self._grounds: Final = grounds
        self._reach: Final = reach
        self.view = view

    async def resume(self, run: Run, output: str | None, actor: str | None) -> Outcome:
        """Perform the approved effect, or find that it was performed. Raises as `Runner.resume`."""
        for _ in range(MAX_REDECISIONS):
            decision = await self._refuse_erased(run) or resume(run, output, self._now_us(run))
            if isinstance(decision, Accepted):
                decision = await self._look_before_effect(run) or decision
            match decision:
                case Refusal(event=event, error=error):
                    if await self._streams.has_appended(run, (event,), actor):
                        raise logged(error)
                case Replay(event=event):
                    if await self._streams.has_replayed(run, event.reason, actor):
                        _raise_final_failure(run)
                        return Outcome(run=await self._streams.load(run.run_id), result=event.reason)
                case Accepted():
                    return await self._perform(run, actor)
                case never:
                    assert_never(never)
            run = await self._streams.load(run.run_id)
        raise RunConflict(run.run_id, "it changes faster than a decision can be recorded")

    async def compensate(self, run_id: str, reason: str | None, actor: str | None) -> Outcome:
        """Undo the executed effect of a run. Raises as `Runner.compensate`."""
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            if run.status is Status.COMPENSATED:
                if await self._streams.has_replayed(run, "already_compensated", actor):
                    return Outcome(run=await self._streams.load(run_id), result="already_compensated")
                continue
            undoing = self._undoing_of(run)
            decision = compensate(run, undoing, reason) or await self._undo(run, undoing or "", reason, actor)
            if isinstance(decision, Outcome):
                return decision
            if await self._streams.has_appended(run, (decision.event,), actor):
                raise logged(decision.error)
        raise RunConflict(run_id, "it changes faster than a decision can be recorded")

    def _undoing_of(self, run: Run) -> str | None:
        """Return the name of the action that undoes the run's effect, if its action names one."""
        action = self._actions.get(run.proposal.action) if run.proposal is not None else None
        if action is None and run.compensation is not None:
            return run.compensation.action
        return compensation_of(action)

    async def _refuse_erased(self, run: Run) -> Refusal | None:
        """Refuse a run that would act, and of which what it asks for is gone."""
        would_act = run.status in (Status.APPROVED, Status.OUTCOME_UNKNOWN) and run.compensation is None
        return await self._grounds.refuse_erased(run) if would_act else None

    async def _look_before_effect(self, run: Run) -> Refusal | None:
        """Refuse, before any intent, what this program cannot or must not perform."""
        proposal = run.proposal
        assert proposal is not None, "a run that is approved has a proposal"
        action = self._actions.get(proposal.action)
        if action is None:
            return refuse_resume(run, "unknown_action", f"no action {proposal.action!r} is registered here")
        unproved = await self._grounds.refusal_before_effect(run)
        if unproved is not None:
            return unproved
        effect = self._doing(run, proposal)
        if effect.is_unknown(run) and self._attempts.recourse(action, effect, run) == "unknown":
            return refuse_resume(run, "outcome_unknown", f"the effect of run {run.run_id!r} may have happened")
        refused = self._refused_by_check(run, effect, action)
        if refused is not None:
            return refused
        return compare_view(run, await self.view.row(run)) if self.view is not None else None

    def _refused_by_check(self, run: Run, effect: Doing | Undoing, action: AnyAction) -> Refusal | None:
        """Refuse, before any intent, what the action refuses. Of an earlier attempt that proves nothing."""
        error = failed_check(self._log, action, self._call(run, effect, effect.attempts(run) + 1))
        if error is None:
            return None
        why = described(error, named=False)
        if effect.intent(run) is not None or effect.is_unknown(run):
            message = f"an earlier attempt of run {run.run_id!r} may have happened, and another is refused: {why}"
            return refuse_resume(run, "outcome_unknown", message, detail=f"{printable(str(error.code))}: {why}")
        return Refusal(ResumeRejected(reason=printable(str(error.code)), status=run.status.value, detail=why), error)

    async def _perform(self, run: Run, actor: str | None) -> Outcome:
        proposal = run.proposal
        assert proposal is not None, "a run that is approved has a proposal"
        effect = self._doing(run, proposal)
        make_call = partial(self._call, run, effect)
        action = self._actions[proposal.action]
        prove = self._grounds.prover(action)
        result = await self._attempts.make(run, effect, action, make_call, actor, prove=prove)
        return Outcome(run=await self._streams.load(run.run_id), result=result)

    async def _undo(self, run: Run, undoing: str, reason: str | None, actor: str | None) -> Outcome | Refusal:
        """Undo the effect, or refuse before any intent."""
        proposal = run.proposal
        assert proposal is not None, "a run that was executed has a proposal"
        action = self._actions.get(undoing)
        if action is None:
            return refuse_resume(run, "unknown_action", f"no action {undoing!r} is registered here")
        key = op_key(self._log.store_id, run.run_id, f"compensate:{proposal.action}", run.approval_hash or "")
        effect = Undoing(undoing, key, run.op_key or "", reason)
        if effect.is_unknown(run) and self._attempts.recourse(action, effect, run) == "unknown":
            return refuse_resume(
                run, "outcome_unknown", f"undoing by {undoing!r} the effect of run {run.run_id!r} may have happened"
            )
        refused = self._refused_by_check(run, effect, action)
        if refused is None and self.view is not None and run.status is Status.COMPLETED:
            refused = compare_view(run, await self.view.row(run))
        if refused is not None:
            return refused
        await self._attempts.make(run, effect, action, partial(self._call, run, effect), actor)
        return Outcome(run=await self._streams.load(run.run_id), result="compensated")

    def _doing(self, run: Run, proposal: Proposal) -> Doing:
        key = op_key(self._log.store_id, run.run_id, proposal.action, run.approval_hash or "")
        return Doing(proposal.action, key)

    def _call(self, run: Run, effect: Doing | Undoing, attempt: int) -> Call:
        return call_of(run, effect, self._log, self._reach, attempt)


def _raise_final_failure(run: Run) -> None:
    """Raise the failure that ended the run, as it was stored."""
    if run.failure is not None:
        details = run.failure.details if isinstance(run.failure.details, dict) else {}
        raise logged(
            ActionFailed(run.failure.code, run.failure.message, is_final=True, **{**details, "run_id": run.run_id})
        )

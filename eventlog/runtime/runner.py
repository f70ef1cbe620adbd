"""Drives runs: reads a run, decides, appends, performs the approved effect, and records what became of it.

The runner keeps nothing in memory between two calls. What it knows of a run is folded from the log each time, so any
process may make the next call. Two resumers of one run meet at the append of the intent: it is written at exactly the
version that was read, so one of them wins, and the other has done nothing.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from eventlog.decide import (
    Accepted,
    Refusal,
    Replay,
    check_run_id,
    compare_view,
    compensate,
    reconcile,
    record_decision,
    refuse_resume,
    require_run,
    resume,
    start,
)
from eventlog.errors import ActionFailed, InvalidInput, RunConflict, WrongExpectedVersion
from eventlog.events import ActionReplayed, Owner, ResumeRejected
from eventlog.log import RecordedEvent, RunLog, TransactionalLog
from eventlog.plain import check_id
from eventlog.proposal import Proposal, op_key
from eventlog.run import Run, Status
from eventlog.runtime.attempts import AnyAction, Attempts, described, logged
from eventlog.runtime.claims import forget, hold
from eventlog.runtime.effect_events import Doing, Undoing
from eventlog.runtime.effects import (
    Call,
    Promise,
    compensation_of,
    key_lifetime_s_of,
    request_life_s_of,
)
from eventlog.runtime.failpoints import Reach, pass_by
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams, printable
from eventlog.stores.clock import Clock, SystemClock

__all__ = ["Outcome", "RunView", "Runner"]

MAX_LEASE_S: Final = 365 * 24 * 3600
_MAX_LIFETIME_S: Final = 100 * 365 * 24 * 3600


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a command left behind.

    `result` is set by `resume` (executed, recovered or already_completed) and by `compensate` (compensated or
    already_compensated).
    """

    run: Run
    result: str | None = None

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def status(self) -> str:
        return self.run.status.value

    @property
    def value(self) -> Any:
        """What the effect returned when it happened, the same for every later resume."""
        return self.run.result


class RunView(Protocol):
    """The stored view of runs that people decide from, compared with the log before an effect."""

    async def row(self, run: Run) -> Mapping[str, Any]:
        """Return the row of this run by column name, brought up to `run.version` first where it is missing or late."""


class Runner:
    """Commands on the runs of one log.

    `actions` are the effects that this program can perform. `view` is the stored view to compare with before an effect,
    if the program shows people one. `lease_s` is how long an intent belongs to its owner: a resumer that is proved dead
    is taken over at once, any other when its lease has run out, so it must be longer than the longest effect. `folder`
    is what relative targets of new proposals are relative to, this process's own by default.
    """

    def __init__(
        self,
        log: RunLog,
        *,
        actions: Iterable[AnyAction] = (),
        view: RunView | None = None,
        lease_s: float = 300.0,
        folder: str | None = None,
        clock: Clock | None = None,
        reach: Reach = pass_by,
    ) -> None:
        if not 0 < lease_s <= MAX_LEASE_S:
            raise InvalidInput(
                "invalid_argument", f"lease_s is a number of seconds up to {MAX_LEASE_S}, not {lease_s!r}"
            )
        self._log: Final = log
        self._actions: Final = _by_name(actions)
        self._view: Final = view
        if folder is not None and not os.path.isabs(folder):
            raise InvalidInput("invalid_argument", f"`folder` is an absolute path, not {folder!r:.200}")
        self._folder: Final = folder
        self._reach: Final = reach
        self._streams: Final = RunStreams(log, reach)
        self._attempts: Final = Attempts(self._streams, clock or SystemClock(), reach, place=log.place, lease_s=lease_s)

    async def propose(self, run_id: str, proposal: Proposal, *, actor: str | None = None) -> Outcome:
        """Begin a run of one action, which then waits for a decision. Raises Refused(`run_exists`)."""
        run = Run(run_id=check_run_id(run_id))
        accepted = start(run, proposal, self._folder or _current_folder())
        try:
            await self._streams.append(run, accepted.events, actor)
        except WrongExpectedVersion:
            start(await self._streams.load(run_id), proposal)  # raises run_exists
            raise
        return Outcome(run=await self._streams.load(run_id))

    async def approve(
        self, run_id: str, proposal_hash: str, *, reason: str | None = None, actor: str | None = None
    ) -> Outcome:
        """Approve exactly the proposal with this hash.

        Raises Refused: `unknown_run`, `approval_not_pending` (`existing_approval` in the details),
        `proposal_hash_mismatch`.
        """
        return await self._decide(run_id, "approve", proposal_hash, reason, actor)

    async def reject(
        self, run_id: str, proposal_hash: str, *, reason: str | None = None, actor: str | None = None
    ) -> Outcome:
        """Reject exactly the proposal with this hash; a rejection is final. Raises as `approve`."""
        return await self._decide(run_id, "reject", proposal_hash, reason, actor)

    async def resume(self, run_id: str, *, output: str | None = None, actor: str | None = None) -> Outcome:
        """Perform the approved effect, or find that it was performed. Any process may call this, any number of times.

        `output`, if given, must be the approved target. Raises Refused when the run does not allow it (the refusal is
        in the log), ActionConflict, ActionFailed or OutcomeUnknown for the effect's own end, RunConflict or ClaimLost
        when another resumer is at work, LogCorrupt when the run's events contradict their hashes. A run that has ended
        gives the stored result again (`Outcome.value`), or raises the failure that was final.
        """
        check_run_id(run_id)
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            decision = resume(run, output)
            if isinstance(decision, Accepted):
                decision = await self._look_before_effect(run) or decision
            match decision:
                case Refusal(event=event, error=error):
                    if await self._streams.has_appended(run, (event,), actor):
                        raise logged(error)
                case Replay(event=event):
                    if await self._streams.has_appended(run, (event,), actor):
                        _raise_final_failure(run)
                        return Outcome(run=await self._streams.load(run_id), result=event.reason)
                case Accepted():
                    return await self._perform(run, actor)
        raise RunConflict(run_id, "it changes faster than a decision can be recorded")

    async def reconcile(
        self, run_id: str, verdict: str, *, evidence: str, result: Any = None, actor: str | None = None
    ) -> Outcome:
        """Settle an outcome that nobody knows: `executed` (with its `result`), `not_executed` or `abandoned`.

        `evidence` says how that was found out; it is stored with who said so. A resumer that is dead or late, and left
        no result, is fenced first. After `not_executed` the run may be resumed, and acts under the same op_key; so that
        is refused while a resumer that was overruled can be seen to live. Raises Refused(`unknown_run`,
        `outcome_not_unknown`, `verdict_contradicted`), InvalidInput(`invalid_verdict`, …), RunConflict while a resumer
        is at work.
        """
        check_run_id(run_id)
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            with hold(self._log.place) as owner:
                outcome = await self._settle(
                    run,
                    partial(reconcile, run, verdict, evidence, actor_source=_actor_source(actor), result=result),
                    owner,
                    actor,
                    may_act_again=verdict == "not_executed",
                )
            if outcome is not None:
                return outcome
        raise RunConflict(run_id, "it changes faster than a verdict can be recorded")

    async def _settle(
        self,
        run: Run,
        decide: Callable[..., Accepted | Refusal],
        owner: Owner,
        actor: str | None,
        *,
        may_act_again: bool,
    ) -> Outcome | None:
        """Append a verdict, behind a claim if one is needed; None if the run has moved. Raises what refuses it."""
        is_settled = True
        try:
            claims = self._attempts.fence(run, run.open_intent, owner)
            decision = decide(claims=claims)
            if isinstance(decision, Accepted) and may_act_again:
                self._attempts.require_no_late_effect(run, claims)
            events = decision.events if isinstance(decision, Accepted) else (decision.event,)
            is_settled = False
            has_appended = await self._streams.has_appended(run, events, actor)
            is_settled = True
        finally:
            if is_settled:  # nothing of this owner is open in the log, and nobody will ask whether it lives
                forget(owner, self._log.place)
        if has_appended and claims is not None:
            self._attempts.forget_dead(run.open_intent, claims)
        if has_appended and isinstance(decision, Refusal):
            raise logged(decision.error)
        return Outcome(run=await self._streams.load(run.run_id)) if has_appended else None

    async def compensate(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Outcome:
        """Undo the executed effect of a run by the action that its action names.

        That is an effect like any other: with an op_key, an intent and a result of its own, and safe to repeat after a
        crash. Raises Refused(`unknown_run`, `cannot_compensate`, `unknown_action`), and as `resume` for the effect.
        """
        check_run_id(run_id)
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            if run.status is Status.COMPENSATED:
                if await self._streams.has_appended(run, (ActionReplayed(reason="already_compensated"),), actor):
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

    async def state(self, run_id: str, *, at_version: int | None = None) -> Run:
        """Return the run as its events leave it, up to `at_version` if given. Raises Refused(`unknown_run`)."""
        run = await self._streams.load(check_run_id(run_id), at_version)
        require_run(run)
        return run

    async def trace(self, run_id: str) -> Sequence[RecordedEvent]:
        """Return the events of a run, verified. Raises Refused(`unknown_run`)."""
        events = await self._streams.events(check_run_id(run_id))
        require_run(Run(run_id=run_id, version=len(events)))
        return events

    async def _decide(
        self, run_id: str, decision: str, proposal_hash: str, reason: str | None, actor: str | None
    ) -> Outcome:
        check_run_id(run_id)
        for _ in range(MAX_REDECISIONS):
            run = await self._streams.load(run_id)
            match record_decision(run, decision, proposal_hash, actor_source=_actor_source(actor), reason=reason):
                case Accepted(events=events):
                    if await self._streams.has_appended(run, events, actor):
                        return Outcome(run=await self._streams.load(run_id))
                case Refusal(event=event, error=error):
                    if await self._streams.has_appended(run, (event,), actor):
                        raise logged(error)
        raise RunConflict(run_id, "it changes faster than a decision can be recorded")

    async def _look_before_effect(self, run: Run) -> Refusal | None:
        """Refuse, before any intent, what this program cannot or must not perform."""
        proposal = run.proposal
        assert proposal is not None, "a run that is approved has a proposal"
        action = self._actions.get(proposal.action)
        if action is None:
            return refuse_resume(run, "unknown_action", f"no action {proposal.action!r} is registered here")
        effect = self._doing(run, proposal)
        if effect.is_unknown(run) and self._attempts.recourse(action, effect, run) == "unknown":
            return refuse_resume(run, "outcome_unknown", f"the effect of run {run.run_id!r} may have happened")
        refused = self._refused_by_check(run, effect, action)
        if refused is not None:
            return refused
        return compare_view(run, await self._view.row(run)) if self._view is not None else None

    def _refused_by_check(self, run: Run, effect: Doing | Undoing, action: AnyAction) -> Refusal | None:
        """Refuse, before any intent, what the action refuses. Of an earlier attempt that proves nothing."""
        error = self._failed_check(action, self._call(run, effect, effect.attempts(run) + 1))
        if error is None:
            return None
        why = described(error, named=False)
        if effect.intent(run) is not None or effect.is_unknown(run):
            message = f"an earlier attempt of run {run.run_id!r} may have happened, and another is refused: {why}"
            return refuse_resume(run, "outcome_unknown", message, detail=f"{printable(str(error.code))}: {why}")
        return Refusal(ResumeRejected(reason=printable(str(error.code)), status=run.status.value, detail=why), error)

    def _failed_check(self, action: AnyAction, call: Call) -> ActionFailed | None:
        """Return why the action refuses the call, if it does."""
        if Promise(action.promise) is Promise.TRANSACTIONAL and not isinstance(self._log, TransactionalLog):
            message = f"the action {call.action!r} writes in the log's own database, and this log has none"
            return ActionFailed("transaction_unsupported", message, run_id=call.run_id)
        try:
            answer: object = action.check(call)
            if answer is not None:
                if inspect.iscoroutine(answer):
                    answer.close()
                why = (
                    f"it returned a {type(answer).__name__}; it refuses by raising ActionFailed, and waits for nothing"
                )
                return ActionFailed("action_failed", f"the action's own check failed: {why}", run_id=call.run_id)
        except ActionFailed as error:
            code, why = printable(str(error.code)), described(error, named=False)
            return ActionFailed(code, why, **{**error.details, "run_id": call.run_id})
        except Exception as error:
            why = described(error)
            return ActionFailed("action_failed", f"the action's own check failed: {why}", run_id=call.run_id)
        return None

    async def _perform(self, run: Run, actor: str | None) -> Outcome:
        proposal = run.proposal
        assert proposal is not None, "a run that is approved has a proposal"
        effect = self._doing(run, proposal)
        make_call = partial(self._call, run, effect)
        result = await self._attempts.make(run, effect, self._actions[proposal.action], make_call, actor)
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
        if refused is None and self._view is not None and run.status is Status.COMPLETED:
            refused = compare_view(run, await self._view.row(run))
        if refused is not None:
            return refused
        await self._attempts.make(run, effect, action, partial(self._call, run, effect), actor)
        return Outcome(run=await self._streams.load(run.run_id), result="compensated")

    def _doing(self, run: Run, proposal: Proposal) -> Doing:
        key = op_key(self._log.store_id, run.run_id, proposal.action, run.approval_hash or "")
        return Doing(proposal.action, key)

    def _call(self, run: Run, effect: Doing | Undoing, attempt: int) -> Call:
        """Return a call whose arguments are decoded afresh from what was approved: an action may change them."""
        assert run.proposal is not None, "a run that is approved has a proposal"
        args: Any = Proposal.decode(run.proposal.canonical).args
        if isinstance(effect, Undoing):
            args = {"args": args, "result": deepcopy(run.result)}
        return Call(
            run_id=run.run_id,
            action=effect.action,
            args=args,
            output=run.proposal.output,
            op_key=effect.op_key,
            folder=run.folder,
            place=self._log.place,
            attempt=attempt,
            reach=self._reach,
        )


def _by_name(actions: Iterable[AnyAction]) -> dict[str, AnyAction]:
    by_name: dict[str, AnyAction] = {}
    for action in actions:
        missing = [name for name in ("name", "promise", "check") if not hasattr(action, name)]
        if missing:
            what = f"{action!r:.80} is no action: it has no `{missing[0]}`"
            raise InvalidInput("invalid_argument", f"{what}. `@eventlog.action(…)` makes one of an async function")
        check_id(action.name, "action", max_bytes=128)
        if compensation_of(action) is not None:
            check_id(compensation_of(action), "action that undoes another", max_bytes=128)
        if action.name in by_name:
            raise InvalidInput("invalid_argument", f"two actions are called {action.name!r}")
        try:
            Promise(action.promise)
        except ValueError:
            known = ", ".join(Promise)
            message = f"the action {action.name!r} promises {action.promise!r}; a promise is one of {known}"
            raise InvalidInput("invalid_argument", message) from None
        _check_members(action)
        by_name[action.name] = action
    return by_name


def _check_members(action: AnyAction) -> None:
    """Raise InvalidInput(`invalid_argument`) for an action that lacks what its promise takes."""
    promise = Promise(action.promise)
    member = "write" if promise is Promise.TRANSACTIONAL else "execute"
    if not callable(getattr(action, member, None)):
        raise InvalidInput("invalid_argument", f"the action {action.name!r} is {promise} and has no `{member}`")
    if inspect.iscoroutinefunction(action.check) or (
        member == "write" and inspect.iscoroutinefunction(getattr(action, member))
    ):
        message = f"`check` and `write` of the action {action.name!r} wait for nothing: they are no async functions"
        raise InvalidInput("invalid_argument", message)
    lifetime_s = key_lifetime_s_of(action)
    if promise is Promise.KEYED and not (isinstance(lifetime_s, int | float) and 0 < lifetime_s <= _MAX_LIFETIME_S):
        raise InvalidInput(
            "invalid_argument",
            f"the action {action.name!r} is keyed, so its `key_lifetime_s` is a number of seconds, not {lifetime_s!r}",
        )
    life_s: object = request_life_s_of(action)
    if not (isinstance(life_s, int | float) and 0 <= life_s <= _MAX_LIFETIME_S):
        raise InvalidInput(
            "invalid_argument", f"of {action.name!r} its `request_life_s` is a number of seconds, not {life_s!r}"
        )


def _actor_source(actor: str | None) -> str:
    return "os" if actor is None else "asserted"


def _raise_final_failure(run: Run) -> None:
    """Raise the failure that ended the run, as it was stored."""
    if run.failure is not None:
        details = run.failure.details if isinstance(run.failure.details, dict) else {}
        raise logged(
            ActionFailed(run.failure.code, run.failure.message, is_final=True, **{**details, "run_id": run.run_id})
        )


def _current_folder() -> str | None:
    """Return the folder of this process, None if it is gone or has no name in UTF-8."""
    try:
        folder = os.getcwd()
        folder.encode()
    except (OSError, UnicodeEncodeError):
        return None
    return folder

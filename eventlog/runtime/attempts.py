"""One attempt at an effect: take the run, settle what an earlier one came to, make the intent durable, act, record.

Everything here happens between `hold` and its end, while this process can be seen to live. The order is what keeps an
effect from happening twice:

    1  an earlier resumer that is dead or late is fenced by a claim, an ordinary append at the version that was read
    2  what it may have done is settled by what the action promises (`effects.recourse`)
    3  the intent is durable, and under a signed head where heads are signed, before the effect begins; what it rests on
       (`grounds`) is looked up right before it is appended, and still holds in the transaction of its append
    4  the result is appended, unless a later claim has fenced this attempt meanwhile
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar, assert_never, cast

import msgspec

from eventlog.decide import Refusal, claim
from eventlog.errors import (
    ActionConflict,
    ActionFailed,
    AppendTooLate,
    EventLogError,
    InvalidInput,
    LogCorrupt,
    OutcomeUnknown,
    RunConflict,
    StoreUnavailable,
    WrongExpectedVersion,
)
from eventlog.events import LOG_STREAM, Failure, Owner, RunClaimed, RunEvent
from eventlog.events import OutcomeUnknown as OutcomeUnknownEvent
from eventlog.log import Expect
from eventlog.plain import Limits, check_plain
from eventlog.run import Intent, Run
from eventlog.runtime.claims import forget, hold, is_orphaned, is_proved_alive, is_proved_dead
from eventlog.runtime.effect_events import Doing, Hold, Undoing
from eventlog.runtime.effects import (
    Absent,
    Action,
    Call,
    Conflicted,
    Executed,
    Finding,
    Inconclusive,
    Inspectable,
    Promise,
    Recourse,
    Recovered,
    Report,
    TransactionalAction,
    is_fenced,
    is_key_known,
    key_lifetime_s_of,
    recourse,
    request_life_s_of,
)
from eventlog.runtime.failpoints import (
    EFFECT_AFTER,
    EFFECT_INSIDE,
    INTENT_AFTER_COMMIT,
    INTENT_BEFORE_COMMIT,
    RESULT_BEFORE_COMMIT,
    Reach,
)
from eventlog.runtime.foreign import Interruptions, ends_program
from eventlog.runtime.grounds import Grounds, Prove, no_proof
from eventlog.runtime.run_streams import MAX_REDECISIONS, printable
from eventlog.stores.clock import Clock
from eventlog.stores.telemetry import logger
from eventlog.times import time_text

__all__ = ["AnyAction", "Attempts", "EffectStreams", "MakeCall", "SignHead", "described", "logged"]

E = TypeVar("E", bound=EventLogError)
AnyAction = Action | TransactionalAction
MakeCall = Callable[[int], Call]
SignHead = Callable[[], Awaitable[object]]
"""Makes sure that what is committed is under a signed head, as `RunLog.sign_head`."""
_MICRO: Final = 1_000_000
_NO_GROUNDS: Final = Grounds()
_CONFLICTS: Final = ("output_conflict", "idempotency_conflict")
_CLOCK_TOLERANCE_US: Final = 2_000_000
_MAX_DETAILS_BYTES: Final = 1024 * 1024


class EffectStreams(Protocol):
    """Where the events of an effect go: `RunStreams`, or one request of a run that a session holds."""

    async def append(
        self,
        run: Run,
        events: Sequence[RunEvent],
        actor: str | None,
        *,
        checks: Sequence[tuple[str, Expect]] = (),
        before_us: int | None = None,
    ) -> Run:
        """As `RunStreams.append`."""

    async def record(self, run: Run, event: RunEvent, actor: str | None) -> None:
        """As `RunStreams.record`."""

    async def record_with(
        self, run: Run, kind: type[RunEvent], make: Callable[[Any], RunEvent], actor: str | None
    ) -> None:
        """As `RunStreams.record_with`."""


class Attempts:
    """Makes attempts. `place` is the path beside which lock files are kept, `lease_s` how long an intent is owned."""

    def __init__(
        self,
        streams: EffectStreams,
        clock: Clock,
        reach: Reach,
        *,
        place: str | None,
        lease_s: float,
        sign_head: SignHead,
    ) -> None:
        self._sign_head: Final = sign_head
        self._streams: Final = streams
        self._clock: Final = clock
        self._reach: Final = reach
        self._place: Final = place
        self._lease_s: Final = lease_s

    async def make(
        self,
        run: Run,
        effect: Doing | Undoing,
        action: AnyAction,
        make_call: MakeCall,
        actor: str | None,
        *,
        holder: Owner | None = None,
        prove: Prove = no_proof,
    ) -> str:
        """Perform the effect, or find that it was performed; return `executed` or `recovered`.

        `run` is as it was decided on; `make_call` gives the call of an attempt, each time with arguments of its own,
        decoded from what was approved. `holder` is who holds the whole run, and so every intent in it, if somebody
        does. `prove` is asked before each intent, and whatever it refuses is recorded and raised; finding out what an
        earlier attempt came to needs no proof. Raises ActionConflict, ActionFailed, OutcomeUnknown for the effect's own
        end, RunConflict or ClaimLost when another resumer is at work.
        """
        if holder is not None:
            return await _Attempt(self, run, effect, action, make_call, actor, holder, prove, is_run_held=True).make()
        with hold(self._place) as owner:
            attempt = _Attempt(self, run, effect, action, make_call, actor, owner, prove)
            try:
                return await attempt.make()
            finally:
                if attempt.is_settled:
                    forget(owner, self._place)

    def fence(self, run: Run, intent: Intent | None, owner: Owner) -> RunClaimed | None:
        """Return the claim that fences the owner of an open intent. Raises RunConflict if that may be at work still."""
        if intent is None:
            return None
        if not is_orphaned(intent, self._place, self.now_us(run)):
            until = time_text(intent.deadline_us)
            raise RunConflict(run.run_id, f"another resumer is performing its effect; its claim ends at {until}")
        return self.claim(run, owner, is_stray=not is_proved_dead(intent.owner, self._place))

    def require_no_late_effect(self, run: Run, claims: RunClaimed | None) -> None:
        """Raise RunConflict if a resumer that is overruled, by `claims` or before, is alive and may act after all."""
        intent = run.open_intent
        late = (intent.owner,) if intent is not None and claims is not None and claims.is_stray else ()
        if any(is_proved_alive(owner, self._place) for owner in (*run.strays, *late)):
            why = "a resumer that was overruled is still alive and may yet act; end it first, then look again"
            raise RunConflict(run.run_id, why)

    def forget_dead(self, intent: Intent | None, claims: RunClaimed) -> None:
        """Remove the lock file of an owner who was proved dead, once the log says that another answers for the run."""
        if intent is not None and not claims.is_stray:
            forget(intent.owner, self._place)

    def may_still_act(self, run: Run) -> bool:
        """Say whether somebody who was overruled before is not proved dead."""
        return any(not is_proved_dead(owner, self._place) for owner in run.strays)

    def are_strays_over(self, run: Run, claims: RunClaimed | None = None) -> bool:
        """Say whether somebody was overruled, but not by `claims`, and everybody who was is proved dead."""
        return run.is_stray and not (claims is not None and claims.is_stray) and not self.may_still_act(run)

    def recourse(self, action: AnyAction, effect: Doing | Undoing, run: Run) -> Recourse:
        """Return what may be done about an effect that has begun and has no result.

        A clock that is behind the log cannot tell how old a key is: then nobody knows that its receiver still has it.
        """
        is_behind = self._clock.now_us() < run.recorded_at_us - _CLOCK_TOLERANCE_US
        key_until_us = None if is_behind else effect.key_until_us(run)
        return recourse(action, key_until_us, self.now_us(run))

    def claim(self, run: Run, owner: Owner, *, is_stray: bool = False) -> RunClaimed:
        return claim(run, owner=owner, deadline_us=self.deadline_us(run), is_stray=is_stray)

    def now_us(self, run: Run) -> int:
        # A clock that jumped back must not bring a deadline back to life.
        return max(self._clock.now_us(), run.recorded_at_us)

    def deadline_us(self, run: Run) -> int:
        return self.now_us(run) + round(self._lease_s * _MICRO)


class _Attempt:
    """One attempt of one owner. `self._run` is the run as this attempt holds it."""

    def __init__(
        self,
        attempts: Attempts,
        run: Run,
        effect: Doing | Undoing,
        action: AnyAction,
        make_call: MakeCall,
        actor: str | None,
        owner: Owner,
        prove: Prove,
        *,
        is_run_held: bool = False,
    ) -> None:
        self._attempts: Final = attempts
        self._is_run_held: Final = is_run_held
        """Whether the owner has claimed the whole run: another claim would fence the rest of what it does there."""
        self._prove: Final = prove
        self._streams: Final = attempts._streams
        self._run = run
        self._effect: Final = effect
        self._action: Final = action
        self._make_call: Final = make_call
        self._actor: Final = actor
        self._owner: Final = owner
        self._may_have_happened = False
        self._is_in_doubt = False
        self.is_settled = True
        """Nothing of this attempt is open in the log, so that nobody will ask whether its owner lives."""

    async def make(self) -> str:
        run, effect = self._run, self._effect
        intent = effect.intent(run)
        # A claim of the whole run has handed over what an earlier holder of it had begun.
        is_handed_over = intent is not None and intent.owner == self._owner
        claims = None if is_handed_over else self._attempts.fence(run, intent, self._owner)
        if claims is None and not is_handed_over and not effect.is_unknown(run):
            return await self._begin_and_act(None, may_have_happened=self._may_stray())
        match self._attempts.recourse(self._action, effect, run):
            case "retry" if self._is_refused_twice() or self._are_all_dead(claims):
                return await self._begin_and_act(claims, may_have_happened=True)
            case "retry":
                await self._give_up(claims)
            case "ask" if is_handed_over or self._is_run_held:
                return await self._ask(None)
            case "ask":
                return await self._ask(claims or self._attempts.claim(run, self._owner))
            case "unknown":
                await self._give_up(claims)
            case never:
                assert_never(never)

    def _may_stray(self) -> bool:
        """Say whether somebody who was overruled may have acted, though no outcome is unknown.

        When somebody died nobody knows, and he may have acted until then, behind whatever was said meanwhile; except
        that a person who says that nothing has happened has made sure that nobody comes.
        """
        run = self._run
        return run.is_stray and (not run.is_vouched_for or self._attempts.may_still_act(run))

    async def _give_up(self, claims: RunClaimed | None) -> NoReturn:
        """Fence a resumer whose effect nobody can ask about, and say so."""
        # Without a claim the outcome was unknown before, and the key has ended since the runner looked.
        ended = self._effect.attempts(self._run)
        why = f"attempt {ended} ended without a result, and {self._why_nobody_can_tell()}"
        are_over = self._attempts.are_strays_over(self._run, claims)
        unknown = self._effect.unknown(why, strays_are_over=are_over)
        await self._append((*((claims,) if claims is not None else ()), unknown))
        raise logged(OutcomeUnknown(self._run.run_id, why, undoing=self._undoing()))

    def _is_refused_twice(self) -> bool:
        """Say whether the receiver itself keeps a resumer that was overruled from a second effect."""
        promise = Promise(self._action.promise)
        return promise in (Promise.TRANSACTIONAL, Promise.KEYED) or is_fenced(self._action)

    def _are_all_dead(self, claims: RunClaimed | None) -> bool:
        is_stray = claims is not None and claims.is_stray
        return not is_stray and not self._attempts.may_still_act(self._run)

    def _why_nobody_can_tell(self) -> str:
        if Promise(self._action.promise) is Promise.CHECKABLE:
            return "whoever makes it may still be at work"
        if Promise(self._action.promise) is Promise.KEYED:
            return "the receiver knows its op_key no longer"
        return "the action cannot be asked"

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _ask(self, claims: RunClaimed | None) -> str:
        """Ask the receiver what became of the earlier attempt, and act only if nothing did."""
        # An end that is recorded is not later than its event. When a sender died nobody knows, only that it is over.
        is_recorded = self._effect.is_unknown(self._run) and (not self._run.is_stray or self._run.strays_are_over)
        ended_at_us = self._run.unknown_since_us if is_recorded else self._attempts.now_us(self._run)
        if claims is not None:
            await self._append((claims,))
        can_be_final = self._is_all_over(ended_at_us)  # before the question: the answer may take its time
        match await self._finding():
            case Recovered() as report:
                return await self._record_report(report)
            case Conflicted(code=code) as report if can_be_final or code == "idempotency_conflict":
                return await self._record_report(report)
            case Conflicted():  # once it is cleared another attempt would begin, beside one that may still come
                return await self._unknown("its target holds something else, but an earlier attempt may still come")
            case Absent() if can_be_final:
                return await self._begin_and_act(None, may_have_happened=False)
            case Absent():
                return await self._unknown(
                    "the receiver knows nothing of it yet, but an earlier attempt may still come"
                )
            case Inconclusive(why=why):
                return await self._unknown(f"the receiver was asked and cannot tell: {printable(str(why))}")
            case never:
                assert_never(never)

    async def _finding(self) -> Finding:
        assert isinstance(self._action, Inspectable), "only who can be asked is asked"
        interruptions = Interruptions()
        try:
            finding = await self._action.inspect(self._make_call(self._effect.attempts(self._run)))
        except BaseException as error:
            if interruptions.include(error):
                raise
            return Inconclusive(why=described(error))
        if not isinstance(finding, Recovered | Conflicted | Absent | Inconclusive):
            return Inconclusive(why=f"the action's inspect returned a {type(finding).__name__}, which is no finding")
        return finding

    def _is_all_over(self, since_us: int) -> bool:
        """Say whether a "no" of the receiver is final: nobody overruled may still send, and nothing is under way."""
        request_life_us = round(request_life_s_of(self._action) * _MICRO)
        return (
            not self._attempts.may_still_act(self._run)
            and self._attempts.now_us(self._run) >= since_us + request_life_us
        )

    # ── acting ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin_and_act(self, claims: RunClaimed | None, *, may_have_happened: bool) -> str:
        began_s = self._attempts._clock.monotonic_s()
        deadline_us = self._attempts.deadline_us(self._run)
        self._may_have_happened = may_have_happened
        is_vouched_for = self._run.is_vouched_for  # then it is as with an action that has no key: a person has looked
        await self._begin(claims, deadline_us)
        await self._sign_head()
        if self._is_too_late(began_s, deadline_us):
            late = "half of the lease was used up before the effect could begin; nothing was done"
            raise await self._failed(ActionFailed("lease_used_up", late), has_looked=False)
        if may_have_happened and not is_vouched_for and self._is_key_over():
            await self._unknown("the receiver knows its op_key no longer")
        if Promise(self._action.promise) is Promise.TRANSACTIONAL:
            return await self._write(cast(TransactionalAction, self._action))
        if self._is_in_doubt:
            match await self._finding():
                case Recovered() | Conflicted() as report:
                    return await self._record_report(report)
                case Inconclusive(why=why):
                    await self._unknown(f"the receiver was asked and cannot tell: {printable(str(why))}")
                case Absent():
                    pass
                case never:
                    assert_never(never)
        return await self._execute(cast(Action, self._action))

    async def _sign_head(self) -> None:
        """Put the intent, and what it rests on, under a signed head outside the log before anything happens.

        Where that cannot be done nothing was, and that is recorded.
        """
        try:
            await self._attempts._sign_head()
        except (StoreUnavailable, LogCorrupt) as error:
            message = f"no head could be signed in front of the effect, so nothing was done: {error}"
            raise await self._failed(ActionFailed("head_not_signed", message), has_looked=False) from error

    def _call(self) -> Call:
        """Return the call, afresh: an action may change what it was given, and is given what was approved."""
        call = self._make_call(self._effect.attempts(self._run))
        return dataclasses.replace(call, may_have_happened=self._may_have_happened)

    def _is_key_over(self) -> bool:
        """Say whether the key has ended since the recourse was found."""
        until_us = self._effect.key_until_us(self._run)
        return until_us is not None and not is_key_known(self._action, until_us, self._attempts.now_us(self._run))

    async def _begin(self, claims: RunClaimed | None, deadline_us: int) -> None:
        """Make the intent durable. Raises RunConflict if another was first, and what refuses another attempt."""
        run, effect = self._run, self._effect
        if isinstance(effect, Doing) and run.op_key not in (None, effect.op_key):
            raise LogCorrupt("op_key_changed", f"run {run.run_id!r} began under another op_key")
        under = Hold(owner=self._owner, deadline_us=deadline_us, claims=claims, key_until_us=self._key_until_us())
        for _ in range(MAX_REDECISIONS):
            grounds = await self._prove(run)
            if isinstance(grounds, Refusal):
                await self._refuse(grounds)
            self._attempts._reach(INTENT_BEFORE_COMMIT)
            if await self._has_appended(effect.begin(run, under), grounds):
                self._is_in_doubt = grounds.is_in_doubt
                self._attempts._reach(INTENT_AFTER_COMMIT)
                return
        raise RunConflict(run.run_id, "what its effect rests on changes faster than it can begin")

    async def _refuse(self, refusal: Refusal) -> NoReturn:
        """Record that no attempt begins; and of an earlier one that was asked about, that it did nothing.

        What nobody could ask about stays as it is, for a person to find out.
        """
        run, events = self._run, [refusal.event]
        has_begun = self._effect.intent(run) is not None or self._effect.is_unknown(run)
        if has_begun and not self._may_have_happened:
            why = f"nothing was done, and no other attempt may begin: {refusal.error}"
            events.insert(0, self._effect.failed(Failure(code="approval_lost", message=why), is_final=False))
        await self._append(events)
        self.is_settled = True  # nothing of this attempt is open: an intent of others is still theirs
        raise logged(refusal.error)

    def _key_until_us(self) -> int | None:
        """Return when the receiver forgets the op_key: counted from the first intent, and never again from a later."""
        lifetime_s = key_lifetime_s_of(self._action) if Promise(self._action.promise) is Promise.KEYED else None
        if lifetime_s is None:
            return None
        known = self._effect.key_until_us(self._run)
        return known if known is not None else self._attempts.now_us(self._run) + round(lifetime_s * _MICRO)

    def _is_too_late(self, began_s: float, deadline_us: int) -> bool:
        """Say whether half of the lease is used up, by the clock that says so first."""
        half_s = self._attempts._lease_s / 2
        is_late = self._attempts._clock.monotonic_s() - began_s > half_s
        return is_late or self._attempts._clock.now_us() > deadline_us - round(half_s * _MICRO)

    async def _execute(self, action: Action) -> str:
        interruptions = Interruptions()
        try:
            report = await action.execute(self._call())
        except ActionFailed as error:
            raise await self._failed(error) from error
        except BaseException as error:
            if interruptions.include(error):
                raise
            return await self._unknown(described(error), error)
        self._attempts._reach(EFFECT_AFTER)
        return await self._record_report(report)

    async def _write(self, action: TransactionalAction) -> str:
        """Let the effect be written in the transaction that records it: both are there, or neither is."""

        def make(connection: Any) -> RunEvent:
            self._attempts._reach(EFFECT_INSIDE)
            try:
                result = action.write(connection, self._call())
            except ActionFailed:
                raise
            except BaseException as error:
                if ends_program(error):
                    raise
                raise ActionFailed("action_failed", f"nothing was written: {described(error)}") from error
            self._attempts._reach(EFFECT_AFTER)
            self._attempts._reach(RESULT_BEFORE_COMMIT)
            return self._effect.executed(Executed(result=result))

        try:
            await self._streams.record_with(self._run, self._effect.executed_type, make, self._actor)
            self.is_settled = True
        except ActionFailed as error:
            raise await self._failed(error) from error
        except InvalidInput as error:
            why = f"its result cannot be stored: {printable(str(error))}"
            raise await self._failed(ActionFailed("invalid_arguments", why)) from error
        return "executed"

    # ── recording ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _record_report(self, report: Report) -> str:
        match report:
            case Executed():
                await self._record(self._effect.executed(report))
                return "executed"
            case Recovered():
                await self._record(self._effect.recovered(report))
                return "recovered"
            case Conflicted() if is_sound(report):
                await self._record(self._effect.conflict(report))
                raise logged(self._conflict(report))
            case Conflicted():
                return await self._unknown("the action reported a conflict with something else than texts in it")
            case _:
                return await self._unknown(f"the action returned {type(report).__name__}, which is no report")

    def _conflict(self, report: Conflicted) -> ActionConflict:
        run_id, output = self._run.run_id, self._call().output
        message = f"the target {output!r} of run {run_id!r} holds something else"
        if report.code == "idempotency_conflict":
            message = f"the receiver of run {run_id!r} knows its op_key with another payload"
        return ActionConflict(
            report.code,
            message,
            run_id=run_id,
            output=output,
            expected_content_hash=report.expected_content_hash,
            existing_content_hash=report.existing_content_hash,
        )

    async def _failed(self, error: ActionFailed, *, has_looked: bool = True) -> ActionFailed:
        """Record a definite failure and return it as the caller gets it.

        Raises OutcomeUnknown if it speaks of this attempt only, and an earlier one may have happened. Who has looked at
        the target, or shares a transaction with it, speaks of all.
        """
        message = described(error, named=False)
        if self._may_have_happened and not is_true(error.covers_earlier) and self._is_blind(has_looked):
            await self._unknown(f"an earlier attempt may have happened; this one has not ({error.code}: {message})")
        failure = Failure(code=printable(str(error.code)), message=message, details=_plain(error.details))
        is_final = is_true(error.is_final)
        await self._record(self._effect.failed(failure, is_final=is_final))
        details = {**error.details, "run_id": self._run.run_id}
        return logged(ActionFailed(failure.code, message, is_final=is_final, **details))

    async def _unknown(self, why: str, error: BaseException | None = None) -> NoReturn:
        why = printable(why)
        await self._record(self._effect.unknown(why, strays_are_over=self._attempts.are_strays_over(self._run)))
        raise logged(OutcomeUnknown(self._run.run_id, why, undoing=self._undoing())) from error

    def _is_blind(self, has_looked: bool) -> bool:
        """Say whether this attempt has seen nothing of an earlier one."""
        match Promise(self._action.promise):
            case Promise.TRANSACTIONAL:
                return False
            case Promise.CHECKABLE:
                return not has_looked
            case Promise.KEYED | Promise.OPAQUE:
                return True
            case never:
                assert_never(never)

    def _undoing(self) -> str | None:
        return self._effect.action if isinstance(self._effect, Undoing) else None

    async def _record(self, event: RunEvent) -> None:
        await self._streams.record(self._run, event, self._actor)
        self.is_settled = True

    async def _append(self, events: Sequence[RunEvent]) -> None:
        """Append at the version that is held, and hold what comes of it. Raises RunConflict if another was first."""
        has_appended = await self._has_appended(events)
        assert has_appended, "without checks only the run itself can have moved"

    async def _has_appended(self, events: Sequence[RunEvent], grounds: Grounds = _NO_GROUNDS) -> bool:
        """As `_append`; False, and nothing is written, if the `grounds` do not hold any more then."""
        was_settled, self.is_settled = self.is_settled, False
        intent = self._effect.intent(self._run)
        try:
            self._run = await self._streams.append(
                self._run, events, self._actor, checks=grounds.checks, before_us=grounds.before_us
            )
        except AppendTooLate:
            self.is_settled = was_settled
            return False
        except WrongExpectedVersion as error:
            self.is_settled = was_settled
            if grounds.checks and error.stream == LOG_STREAM:
                return False
            raise RunConflict(self._run.run_id, "another process was first") from None
        self.is_settled = isinstance(events[-1], OutcomeUnknownEvent)
        if isinstance(events[0], RunClaimed):
            self._attempts.forget_dead(intent, events[0])
        return True


def described(error: BaseException, *, named: bool = True) -> str:
    """Return what a foreign exception says, so that an event can hold it: its text may be a lie, or raise in turn."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return printable(f"{type(error).__name__}: {text}" if named else text)


def is_true(value: object) -> bool:
    """Say whether a foreign value counts as true: one that cannot say so does not."""
    try:
        return bool(value)
    except Exception:
        return False


def is_sound(report: Conflicted) -> bool:
    """Say whether a conflict holds texts, where it is to hold texts."""
    *texts, code = msgspec.structs.astuple(report)
    return code in _CONFLICTS and isinstance(texts[0], str) and all(text is None or type(text) is str for text in texts)


def logged(error: E) -> E:
    """Note a refusal in the program's own log, and return it."""
    logger.info("refused", code=error.code, run_id=error.details.get("run_id"))
    return error


def _plain(details: dict[str, Any]) -> dict[str, Any] | None:
    """Return the facts of a failure if an event can hold them."""
    try:
        check_plain(details, Limits(body_bytes=_MAX_DETAILS_BYTES))
    except InvalidInput:
        return None
    return details or None

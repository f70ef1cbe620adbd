"""What every effect rests on, signed or not: its proposal and its approvals, looked at in the log right before it.

    level_required            it was asked on terms of a lower level than this program has for the action
    run_erased                the proposal, or an approval of it, is erased or cannot be read here
    approval_before_restore   the log was put back from an older copy since it was approved, and the action can neither
                              be asked nor keyed: the effect may have happened in what was lost. One that can be
                              asked is asked first

What the approvals themselves have to be is said by `signed_decisions`, which is asked last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from eventlog.decide import Refusal
from eventlog.decide.proofs import approvals_of, event_of_request, refuse_erased, refuse_lost, refuse_lower_level
from eventlog.events import OutcomeReconciled, ResumeStarted, run_stream
from eventlog.log import RecordedEvent, RunLog
from eventlog.run import Run
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.effects import Inspectable, Promise
from eventlog.runtime.grounds import Grounds, Prove
from eventlog.runtime.run_streams import RunStreams
from eventlog.runtime.signed_decisions import SignedDecisions

__all__ = ["EffectGrounds", "Versions"]

_READ_AT_ONCE: Final = 32
"""How many events are read at once, rather than those alone that are looked at."""

Versions = Callable[[], Sequence[int]]
"""Returns the versions of the proposal and the decisions of a request, where that is known."""


class EffectGrounds:
    """Looks at the events that the effects of the runs of one log rest on."""

    def __init__(
        self, log: RunLog, streams: RunStreams, signed: SignedDecisions, *, level_of: Callable[[str], int]
    ) -> None:
        self._level_of: Final = level_of
        self._log: Final = log
        self._streams: Final = streams
        self._signed: Final = signed

    def prover(self, action: AnyAction, versions: Versions | None = None) -> Prove:
        """Return what says on what an attempt by this action would rest now, or why none may begin.

        Without `versions` the whole run is read, where there is a reason to; that is for runs of one action.
        """

        async def prove(request: Run) -> Grounds | Refusal:
            refusal = await self._refusal(request, action, versions)
            grounds = refusal or await self._signed.prove(request)
            if isinstance(grounds, Grounds) and await self._is_in_doubt(request, action, versions):
                return replace(grounds, is_in_doubt=True)
            return grounds

        return prove

    async def refusal_before_effect(self, request: Run) -> Refusal | None:
        """Return why nothing must be done about the effect now, by what is stored; None if something may.

        Where an attempt has begun, what it came to has to be found out whatever became of its approvals. Whoever makes
        another one asks `prover` first.
        """
        return await self._signed.refusal_before_effect(request)

    async def refuse_erased(self, request: Run) -> Refusal | None:
        """Refuse where what the request asks for is gone: what its state says of that is no proposal any more."""
        if request.redacted is None:
            return None
        events = await self._streams.events(request.run_id)
        return refuse_erased(request, [event_of_request(events, request)])

    async def _refusal(self, request: Run, action: AnyAction, versions: Versions | None) -> Refusal | None:
        wanted = self._level_of(action.name)
        if wanted > (request.policy.level if request.policy is not None else 0):
            return refuse_lower_level(request, wanted)
        first = await self._first_of_incarnation(action)
        if versions is None and request.redacted is None and first <= 1:
            return None
        events = await self._events(request, versions)
        asked = event_of_request(events, request)
        approvals = approvals_of(events, asked, request)
        erased = refuse_erased(request, [asked, *approvals])
        if erased is not None or first <= 1:
            return erased
        decided_at = await self._decided_before(request, approvals, first)
        return None if decided_at is None else refuse_lost(request, decided_at, first)

    async def _is_in_doubt(self, request: Run, action: AnyAction, versions: Versions | None) -> bool:
        """Say whether the effect may have happened in what a restore has lost, of an action that can be asked."""
        if Promise(action.promise) is not Promise.CHECKABLE or not isinstance(action, Inspectable):
            return False
        first = (await self._log.log_ids())[-1][0]
        if first <= 1:
            return False
        events = await self._events(request, versions)
        approvals = approvals_of(events, event_of_request(events, request), request)
        return await self._decided_before(request, approvals, first) is not None

    async def _decided_before(self, request: Run, approvals: Sequence[RecordedEvent], first: int) -> int | None:
        """Return the position of the deciding approval, if the log from `first` on has only that to go by."""
        deciding = [event for event in approvals if event.data.is_deciding]
        if not deciding or deciding[-1].position >= first or await self._is_known_since(request, first):
            return None
        return deciding[-1].position

    async def _first_of_incarnation(self, action: AnyAction) -> int:
        """Return the first position of this incarnation of the log, where the action makes that matter; else 1."""
        if Promise(action.promise) is not Promise.OPAQUE:
            return 1
        return (await self._log.log_ids())[-1][0]

    async def _events(self, request: Run, versions: Versions | None) -> Sequence[RecordedEvent]:
        if versions is None:
            return await self._streams.events(request.run_id)
        stream, at = run_stream(request.run_id), sorted(versions())
        if at and at[-1] - at[0] < _READ_AT_ONCE:
            return [event async for event in self._log.read(stream, after=at[0] - 1, limit=at[-1] - at[0] + 1)]
        return [event for each in at async for event in self._log.read(stream, after=each - 1, limit=1)]

    async def _is_known_since(self, request: Run, first: int) -> bool:
        """Say whether this incarnation knows of an attempt, or a person has found out in it what became of one."""
        return any(
            isinstance(event.data, ResumeStarted | OutcomeReconciled)
            and event.data.step == request.step
            and event.position >= first
            for event in await self._streams.events(request.run_id)
        )

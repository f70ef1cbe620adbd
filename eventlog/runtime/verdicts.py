"""What people say became of an effect of which nobody knows.

Who says that nothing has happened must have looked when nothing could happen any more: behind the event that says so.
A verdict that was found earlier is refused; what is known by now is recorded with the refusal, so that the next look
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from eventlog.decide import Accepted, Refusal, choose_request, found_out, reconcile
from eventlog.errors import InvalidInput, RunConflict
from eventlog.events import CheckpointSaved, Owner, RunEvent, RunFailed
from eventlog.progress import ENDED, requests_of
from eventlog.run import Run, Status
from eventlog.runtime.attempts import Attempts, logged
from eventlog.runtime.claims import forget, hold
from eventlog.runtime.people import actor_source
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams

__all__ = ["Verdicts"]


class Verdicts:
    """Records verdicts on runs, behind a claim that fences a resumer which is dead or late."""

    def __init__(self, streams: RunStreams, attempts: Attempts, place: str | None) -> None:
        self._streams: Final = streams
        self._attempts: Final = attempts
        self._place: Final = place

    async def record(
        self,
        run_id: str,
        verdict: str,
        *,
        evidence: str,
        result: Any,
        request_id: str | None,
        at_version: int | None,
        actor: str | None,
    ) -> Run:
        """Settle the outcome, and return the run as it is then. Raises as `Runner.reconcile`."""
        _check_version(verdict, at_version)
        for _ in range(MAX_REDECISIONS):
            whole = await self._streams.load(run_id)
            run = choose_request(
                whole,
                requests_of(whole) or (whole,),
                f"reconcile:{verdict}",
                request_id=request_id,
                is_candidate=_is_at_stake,
                has_to_name=True,
            )
            if isinstance(run, Refusal):
                if await self._streams.has_appended(whole, (run.event,), actor):
                    raise logged(run.error)
                continue
            seen = await self._seen(whole, run, at_version)
            with hold(self._place) as owner:
                settled = await self._settle(
                    whole,
                    run,
                    partial(
                        reconcile, run, verdict, evidence, actor_source=actor_source(actor), result=result, seen=seen
                    ),
                    owner,
                    actor,
                    may_act_again=verdict == "not_executed",
                )
            if settled is not None:
                return settled
        raise RunConflict(run_id, "it changes faster than a verdict can be recorded")

    async def _seen(self, whole: Run, request: Run, at_version: int | None) -> Run | None:
        """Return the request as it was at that version of its run; without attempts, if it had not been made then."""
        if at_version is None:
            return None
        if at_version > whole.version:
            why = f"run {whole.run_id!r} has no version {at_version} yet: it is at {whole.version}"
            raise InvalidInput("invalid_argument", why, path="$.at_version")
        then = await self._streams.load(whole.run_id, at_version)
        found = (each for each in requests_of(then) or (then,) if each.step == request.step)
        return replace(next(found, Run(run_id=whole.run_id)), version=at_version)

    async def _settle(
        self,
        whole: Run,
        run: Run,
        decide: Callable[..., Accepted | Refusal],
        owner: Owner,
        actor: str | None,
        *,
        may_act_again: bool,
    ) -> Run | None:
        """Append a verdict, behind a claim if one is needed; None if the run has moved. Raises what refuses it."""
        try:
            claims = self._attempts.fence(run, run.open_intent, owner)
            are_over = self._attempts.are_strays_over(run, claims)
            decision = decide(claims=claims, strays_are_over=are_over)
            is_stale = isinstance(decision, Refusal) and decision.error.code == "verdict_stale"
            if may_act_again and (is_stale or isinstance(decision, Accepted)):
                self._attempts.require_no_late_effect(run, claims)
            events = decision.events if isinstance(decision, Accepted) else (decision.event,)
            if is_stale:
                events = (*found_out(run, claims, strays_are_over=are_over), *events)
            claims = claims if is_stale or isinstance(decision, Accepted) else None
            if claims is not None and run.step is not None:
                # The verdict needs the run for no longer than this.
                events = (*events, *_free(whole))
        except BaseException:
            forget(owner, self._place)
            raise
        has_appended = await self._streams.has_appended(run, events, actor)  # what raises may have appended a claim
        forget(owner, self._place)  # nothing of this owner is open in the log, and nobody will ask whether it lives
        if has_appended and claims is not None:
            self._attempts.forget_dead(run.open_intent, claims)
        if has_appended and isinstance(decision, Refusal):
            raise logged(decision.error)
        return await self._streams.load(run.run_id) if has_appended else None


def _free(run: Run) -> tuple[RunEvent, ...]:
    """Return the events that give a workflow run free again, as it was: a run that had ended does not go on."""
    if run.status is Status.FAILED and run.failure is not None:
        return (RunFailed(error=run.failure),)  # a claim takes such a run up
    if run.status in ENDED:
        return ()
    return (CheckpointSaved(status=Status.RUNNING, state_version=run.state_version, is_released=True),)


def _check_version(verdict: str, at_version: int | None) -> None:
    """Raise InvalidInput if no version is named where what was seen may be true no more."""
    if at_version is None and verdict == "not_executed":
        why = "say by `at_version` at which version of the run you looked: what had not happened then may have since"
        raise InvalidInput("invalid_argument", why, path="$.at_version")


def _is_at_stake(request: Run) -> bool:
    """Say whether somebody may have to find out what became of an effect."""
    return request.is_unknown or request.open_intent is not None

"""The commands on runs: each reads a run, decides, appends, and has done what follows from that.

The runner keeps nothing in memory between two calls. What it knows of a run is folded from the log each time, so any
process may make the next call. Two resumers of one run meet at the append of the intent: it is written at exactly the
version that was read, so one of them wins, and the other has done nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from eventlog.decide import check_run_id, require_run, start
from eventlog.errors import AppendTooLate, Conflict, InvalidInput, Refused, RunConflict, WrongExpectedVersion
from eventlog.events import Envelope
from eventlog.log import RecordedEvent, RunLog
from eventlog.plain import check_id
from eventlog.proposal import Proposal, checked_proposal
from eventlog.run import Run
from eventlog.runtime.action_digests import ActionDigests
from eventlog.runtime.arguments import check_given, check_if_given
from eventlog.runtime.attempts import AnyAction, Attempts
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.effect_grounds import EffectGrounds
from eventlog.runtime.failpoints import Reach, pass_by
from eventlog.runtime.known_actions import actions_by_name
from eventlog.runtime.operations.waits import checked_seconds
from eventlog.runtime.outcomes import Outcome
from eventlog.runtime.people import People
from eventlog.runtime.policies import Policies, Policy
from eventlog.runtime.run_streams import MAX_REDECISIONS, RunStreams
from eventlog.runtime.signed_decisions import SignedDecisions
from eventlog.runtime.single_actions import RunView, SingleActions
from eventlog.runtime.tools import Tools
from eventlog.runtime.verdicts import Verdicts
from eventlog.runtime.workflows import Workflows, by_name
from eventlog.stores.clock import Clock, SystemClock
from eventlog.stores.telemetry import logger

__all__ = ["Outcome", "RunView", "Runner"]

_MAX_LEASE_S: Final = 365 * 24 * 3600


class Runner:
    """Commands on the runs of one log.

    `actions` are the effects that this program can perform, `policies` how people decide on them, by the action's name;
    without one it is decided once, by anybody. `view` is the stored view to compare with before an effect,
    if the program shows people one. `lease_s` is how long an intent belongs to its owner: a resumer that is proved dead
    is taken over at once, any other when its lease has run out, so it must be longer than the longest effect. `folder`
    is what relative targets of new proposals are relative to, this process's own by default.

    `workflows` are those that this program can drive. A time that is no further off than `patience_s` is waited for in
    memory; for any other the run pauses. With `keeps_tracebacks` the log says where a step failed.
    """

    def __init__(
        self,
        log: RunLog,
        *,
        actions: Iterable[AnyAction] = (),
        policies: Mapping[str, Policy] | None = None,
        workflows: Iterable[Workflow] = (),
        view: RunView | None = None,
        lease_s: float = 300.0,
        patience_s: float = 5.0,
        keeps_tracebacks: bool = False,
        folder: str | None = None,
        clock: Clock | None = None,
        reach: Reach = pass_by,
    ) -> None:
        check_given(log=log, actions=actions, workflows=workflows, keeps_tracebacks=keeps_tracebacks, reach=reach)
        check_if_given(policies=policies, view=view, folder=folder, clock=clock)
        if not 0 < checked_seconds("lease_s", lease_s) <= _MAX_LEASE_S:
            raise InvalidInput(
                "invalid_argument", f"lease_s is a number of seconds up to {_MAX_LEASE_S}, not {lease_s!r}"
            )
        self._log: Final = log
        self._actions: Final = actions_by_name(actions)
        if folder is not None and not os.path.isabs(folder):
            raise InvalidInput("invalid_argument", f"`folder` is an absolute path, not {folder!r:.200}")
        self._folder: Final = folder
        self._streams: Final = RunStreams(log, reach)
        clock = clock or SystemClock()
        self._attempts: Final = Attempts(
            self._streams, clock, reach, place=log.place, lease_s=lease_s, sign_head=log.sign_head
        )
        digests = ActionDigests(self._actions)
        self._policies: Final = Policies(policies, digest_of=digests.of)
        self._policies.require_actions(self._actions)
        signed = SignedDecisions(log, self._streams, clock, digests)
        grounds = EffectGrounds(log, self._streams, signed, level_of=self._policies.level_of)
        self._people: Final = People(
            self._streams,
            clock,
            self._policies,
            signed=signed,
            default_actor=log.actor,
            is_known=lambda action: action in self._actions or action in self._policies,
        )
        self._verdicts: Final = Verdicts(self._streams, self._attempts, log.place)
        self._single_actions: Final = SingleActions(
            log,
            self._streams,
            self._attempts,
            self._actions,
            now_us=self._people.now_us,
            view=view,
            grounds=grounds,
            reach=reach,
        )
        tools = Tools(
            log=log,
            actions=self._actions,
            workflows=by_name(workflows),
            policies=self._policies,
            grounds=grounds,
            clock=clock,
            reach=reach,
            folder=lambda: self._folder or _current_folder(),
            lease_s=lease_s,
            patience_s=checked_seconds("patience_s", patience_s),
            keeps_tracebacks=keeps_tracebacks,
            drive_child=self._drive_child,
        )
        self.workflows: Final = Workflows(self._streams, tools, self._attempts)

    @property
    def log(self) -> RunLog:
        """The log of the runs."""
        return self._log

    def shows(self, view: RunView) -> None:
        """Compare with this view before an effect, because people decide from it; unless one was given already."""
        check_given(view=view)
        self._single_actions.view = self._single_actions.view or view

    async def start(
        self, workflow: Workflow, run_id: str, *args: Any, actor: str | None = None, subject: str | None = None
    ) -> Outcome:
        """Begin a run of the workflow with these arguments, and drive it until it ends or pauses.

        `subject` is whom the run is about, as an opaque id: everything in it, and in its children, is encrypted under
        that subject's key; `eventlog.open(…, subject_keys=…)` has to be given the keys, here and wherever the run goes
        on (StoreUnavailable `subject_key_missing` else). A value of such a run has to fit into its event.

        How it ended, or what it waits for, is in the outcome: a workflow that raised is FAILED, not raised here. Raises
        Refused(`run_exists`, `nondeterministic_replay`), InvalidInput for arguments that cannot be stored exactly,
        ClaimLost if another process had to take the run over. If the caller is cancelled, the run is not.
        """
        check_if_given(actor=actor, subject=subject)
        return await self._outcome(await self.workflows.start(workflow, run_id, args, actor, subject))

    async def submit(
        self, workflow: Workflow, run_id: str, *args: Any, actor: str | None = None, subject: str | None = None
    ) -> Outcome:
        """Record a run of the workflow, *durable* on return, for a worker or `resume` to drive. Raises as `start`."""
        check_if_given(actor=actor, subject=subject)
        return await self._outcome(await self.workflows.submit(workflow, run_id, args, actor, subject))

    async def signal(self, run_id: str, name: str, payload: Any = None, *, actor: str | None = None) -> Outcome:
        """Send a workflow run a signal with plain data; it waits there until the workflow takes it.

        Raises Refused(`unknown_run`, `cannot_signal`), InvalidInput with the path to what cannot be stored.
        """
        check_if_given(actor=actor)
        check_run_id(run_id)
        check_id(name, "signal", max_bytes=128)
        return await self._outcome(await self.workflows.signal(run_id, name, payload, actor))

    async def propose(
        self, run_id: str, proposal: Proposal, *, actor: str | None = None, subject: str | None = None
    ) -> Outcome:
        """Begin a run of one action, which then waits for a decision, on the terms of its action's policy.

        Where the rule of that policy approves it, nobody is waited for. `subject` as for `start`. Raises
        Refused(`run_exists`), and InvalidInput (`invalid_argument`, `invalid_event`) for a proposal whose fields and
        bytes say different things, or whose bytes are not exactly those of a proposal; then nothing is written.
        """
        check_given(proposal=proposal)
        check_if_given(actor=actor, subject=subject)
        run = Run(run_id=check_run_id(run_id))
        proposal = checked_proposal(proposal)
        for _ in range(MAX_REDECISIONS):
            # An end is counted from when the request is recorded: not before the last event of the log.
            floor_us = await self._streams.last_at_us() if self._policies.may_expire(proposal.action) else 0
            terms = self._policies.terms(proposal, max(self._people.now_us(run), floor_us))
            accepted = start(run, proposal, self._folder or _current_folder(), terms)
            try:
                await self._streams.append(
                    run, accepted.events, actor, before_us=terms.decided_before_us, subject=subject
                )
            except AppendTooLate:
                continue
            except WrongExpectedVersion:
                start(await self._streams.load(run_id), proposal)  # raises run_exists
                raise
            return Outcome(run=await self._streams.load(run_id))
        raise RunConflict(run_id, "the time of the log changes faster than a request can be recorded")

    async def approve(
        self,
        run_id: str,
        proposal_hash: str,
        *,
        request: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        roles: Sequence[str] = (),
        is_authenticated: bool = False,
        envelope: Envelope | None = None,
    ) -> Outcome:
        """Approve exactly the proposal with this hash; of several requests of a run, the `request` that is named.

        With `envelope` it is approved by who has signed that (`eventlog.runtime.approval_statements` makes one): the
        statement in it names approver, reason and roles. A server that has authenticated the actor says so by
        `is_authenticated`: level 1.

        Raises Refused: `unknown_run`, `approval_not_pending` (with the recorded decision in its details),
        `proposal_hash_mismatch`, `approval_expired`; where it was asked on terms, `already_voted`, `role_required`,
        `separation_of_duties` and `level_required`; of several requests, `request_ambiguous` and `unknown_request`. Of
        what was signed: `statement_invalid`, `signature_invalid`, `approver_unknown`, `approver_revoked`,
        `statement_mismatch` (`field` in the details says where), `statement_expired`, `nonce_used`, `head_mismatch`.
        Each refusal is in the log, with what was supplied.
        """
        check_given(proposal_hash=proposal_hash, roles=roles, is_authenticated=is_authenticated)
        check_if_given(request=request, reason=reason, actor=actor, envelope=envelope)
        run = await self._people.decide(
            run_id,
            "approve",
            proposal_hash,
            request=request,
            reason=reason,
            actor=actor,
            roles=roles,
            is_authenticated=is_authenticated,
            envelope=envelope,
        )
        return await self._decided(run)

    async def reject(
        self,
        run_id: str,
        proposal_hash: str,
        *,
        request: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        roles: Sequence[str] = (),
        is_authenticated: bool = False,
        envelope: Envelope | None = None,
    ) -> Outcome:
        """Reject exactly the proposal with this hash; a rejection is final. Raises as `approve`."""
        check_given(proposal_hash=proposal_hash, roles=roles, is_authenticated=is_authenticated)
        check_if_given(request=request, reason=reason, actor=actor, envelope=envelope)
        run = await self._people.decide(
            run_id,
            "reject",
            proposal_hash,
            request=request,
            reason=reason,
            actor=actor,
            roles=roles,
            is_authenticated=is_authenticated,
            envelope=envelope,
        )
        return await self._decided(run)

    async def edit(
        self,
        run_id: str,
        *,
        request: str | None = None,
        action: str | None = None,
        args: dict[str, Any] | None = None,
        output: str | None = None,
        approves: bool = False,
        reason: str | None = None,
        actor: str | None = None,
        roles: Sequence[str] = (),
    ) -> Outcome:
        """Ask something else instead: a new proposal under a request id of its own, on the terms of its own action.

        What is not named stays as it was asked. The original request is closed for good. With `approves` the editor
        approves the new proposal in the same append, as far as its terms let him. Raises as `approve`, and
        Refused(`unknown_action`) for another action that this program does not know.
        """
        check_given(approves=approves, roles=roles)
        check_if_given(request=request, action=action, args=args, output=output, reason=reason, actor=actor)
        run = await self._people.edit(
            run_id,
            request=request,
            action=action,
            args=args,
            output=output,
            approves=approves,
            reason=reason,
            actor=actor,
            roles=roles,
        )
        return await self._decided(run)

    async def revoke(
        self, run_id: str, *, request: str | None = None, reason: str | None = None, actor: str | None = None
    ) -> Outcome:
        """Withdraw the approvals of a request before the act; it waits for a decision again, on the same terms.

        Raises Refused: `unknown_run`, `approval_spent` once the effect has begun, `cannot_revoke`, `approval_expired`.
        """
        check_if_given(request=request, reason=reason, actor=actor)
        return Outcome(run=await self._people.revoke(run_id, request=request, reason=reason, actor=actor))

    async def cancel(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Outcome:
        """Cancel a run that has not ended: nothing begins any more, and what an effect has come to is still recorded.

        Raises Refused: `unknown_run`, `cannot_cancel`.
        """
        check_if_given(reason=reason, actor=actor)
        run = await self._streams.load(check_run_id(run_id))
        if run.progress is not None:
            return await self._outcome(await self.workflows.cancel(run_id, reason, actor))
        return Outcome(run=await self._people.cancel(run_id, reason=reason, actor=actor))

    async def expire(self, run_id: str, *, actor: str | None = None) -> Outcome:
        """Record every request of the run on which nobody decided in time. Raises Refused(`unknown_run`)."""
        check_if_given(actor=actor)
        return await self._decided(await self._people.expire(run_id, actor=actor))

    async def resume(self, run_id: str, *, output: str | None = None, actor: str | None = None) -> Outcome:
        """Perform the approved effect, or find that it was performed. Any process may call this, any number of times.

        `output`, if given, must be the approved target. Raises Refused when the run does not allow it (the refusal is
        in the log), ActionConflict, ActionFailed or OutcomeUnknown for the effect's own end, RunConflict or ClaimLost
        when another resumer is at work, LogCorrupt when the run's events contradict their hashes. A run that has ended
        gives the stored result again (`Outcome.value`), or raises the failure that was final.

        A workflow run is driven on until it ends or pauses, as by `start`; one that FAILED tries again what failed.
        Raises Refused(`approval_required`, `definition_mismatch`, `nondeterministic_replay`, `unknown_workflow`,
        `cannot_resume`, …).
        """
        check_if_given(output=output, actor=actor)
        run = await self._streams.load(check_run_id(run_id))
        if run.progress is None:
            return await self._single_actions.resume(run, output, actor)
        driven, answer = await self.workflows.resume(run_id, actor, run)
        return await self._outcome(driven, answer)

    async def reconcile(
        self,
        run_id: str,
        verdict: str,
        *,
        evidence: str,
        result: Any = None,
        request: str | None = None,
        at_version: int | None = None,
        actor: str | None = None,
    ) -> Outcome:
        """Settle an outcome that nobody knows: `executed` (with its `result`), `not_executed` or `abandoned`.

        `evidence` says how that was found out; it is stored with who said so. `at_version` is the version of the run
        (`Run.version`) that was read before the receiver was looked at: the verdict is about the last attempt of then,
        and refused as `verdict_stale` if there is another by now. A resumer that is dead or late, and left no result,
        is fenced first.

        After `not_executed` the run may be resumed, and acts under the same op_key. So that needs an `at_version`, at
        which it was recorded that the outcome is unknown and that whoever was overruled is dead, where this can be
        seen; if it was not it is now, and `verdict_stale` asks for another look. It is refused while a resumer that was
        overruled can be seen to live. One on another host nobody sees: whoever looks makes sure that it has ended.

        Where a run has several requests, `request` has to be named: a verdict that is sent twice must not settle the
        next one. Raises Refused(`unknown_run`, `outcome_not_unknown`, `verdict_stale`, `verdict_contradicted`,
        `request_ambiguous`), InvalidInput(`invalid_verdict`, `invalid_argument`, …), RunConflict while a resumer is at
        work.
        """
        check_given(verdict=verdict, evidence=evidence)
        check_if_given(request=request, at_version=at_version, actor=actor)
        run = await self._verdicts.record(
            check_run_id(run_id),
            verdict,
            evidence=evidence,
            result=result,
            request_id=request,
            at_version=at_version,
            actor=actor,
        )
        return await self._decided(run)

    async def compensate(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Outcome:
        """Undo the executed effect of a run by the action that its action names.

        That is an effect like any other: with an op_key, an intent and a result of its own, and safe to repeat after a
        crash. Raises Refused(`unknown_run`, `cannot_compensate`, `unknown_action`), and as `resume` for the effect.
        """
        check_if_given(reason=reason, actor=actor)
        return await self._single_actions.compensate(check_run_id(run_id), reason, actor)

    async def state(self, run_id: str, *, at_version: int | None = None) -> Run:
        """Return the run as its events leave it, up to `at_version` if given. Raises Refused(`unknown_run`)."""
        check_if_given(at_version=at_version)
        run = await self._streams.load(check_run_id(run_id), at_version)
        require_run(run)
        return run

    async def trace(self, run_id: str) -> Sequence[RecordedEvent]:
        """Return the events of a run, verified. Raises Refused(`unknown_run`)."""
        events = await self._streams.events(check_run_id(run_id))
        require_run(Run(run_id=run_id, version=len(events)))
        return events

    async def _decided(self, run: Run) -> Outcome:
        """Let a drive of the run see what people have decided."""
        self.workflows.notify(run.run_id)
        return await self._outcome(run)

    async def _outcome(self, run: Run, result: str | None = None) -> Outcome:
        return Outcome(run=run, result=result, returned=await self.workflows.value(run))

    async def _drive_child(self, run_id: str) -> None:
        """Drive another run as far as it goes, also if it FAILED: who asks for it again tries again what failed.

        What refuses it is in its own log, and is for whoever resumes it.
        """
        try:
            await self.workflows.advance(run_id, again=True)
        except (Refused, Conflict) as error:
            logger.info("child_not_driven", run_id=run_id, code=error.code)


def _current_folder() -> str | None:
    """Return the folder of this process, None if it is gone or has no name in UTF-8."""
    try:
        folder = os.getcwd()
        folder.encode()
    except (OSError, UnicodeEncodeError):
        return None
    return folder

"""Given, when, then, for runs of workflows: a story that is told from the past of a run to what becomes of it.

    async def test_a_patch_is_applied_once_somebody_has_approved_it() -> None:
        await (
            given_run(fix_incident, "INC-7", actions=[apply_patch])
            .knowing(search_logs=["disk full"])
            .when_resumed()
            .then_waits_for("apply_patch")
            .when_time_passes(hours=2)
            .when_approved("apply_patch", actor="anna")
            .when_resumed()
            .then_returned("patched")
        )

Each part returns the story with one more line; awaiting it (or `story.run()`, in a test that is not async) tells it, in
memory, by a clock that only the story moves. Where it turns out otherwise an AssertionError shows the story up to that
line, what was expected, what was found, and the events of the run. An error of the engine that no `then_refused`
expects ends the story as well. What pytest shows of that are the lines of the test: the frames in which a story is told
have `__tracebackhide__` set.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Final

import msgspec

from eventlog.errors import EventLogError
from eventlog.events import (
    CheckpointSaved,
    ClaimRenewed,
    RunClaimed,
    RunEvent,
    SignalReceived,
    StepCompleted,
    Waiting,
    run_stream,
)
from eventlog.log import Append, Expect, RecordedEvent
from eventlog.progress import requests_of
from eventlog.run import Run, Status
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.policies import Policy
from eventlog.runtime.run_streams import new_event
from eventlog.runtime.runner import Outcome, Runner
from eventlog.stores.memory import MemoryLog
from eventlog.testing.clock import FakeClock
from eventlog.testing.history import difference, printed
from eventlog.values import codec_for

__all__ = ["Story", "given_run"]

_REFUSED: Final = "then that is refused as"

Expected = str | RunEvent | tuple[str, Mapping[str, Any]]
"""An event by its type, as a whole, or by its type and some of its fields."""


def given_run(
    workflow: Workflow,
    *args: Any,
    run_id: str = "run-1",
    actions: Sequence[AnyAction] = (),
    workflows: Sequence[Workflow] = (),
    policies: Mapping[str, Policy] | None = None,
    clock: FakeClock | None = None,
) -> Story:
    """Return the beginning of a story about a run of `workflow` with these arguments. The rest as for a `Runner`."""
    return Story(_Setting(workflow, args, run_id, actions, workflows, policies, clock), ())


class _Otherwise(AssertionError):
    """The story goes otherwise than it was told."""


class _Setting:
    """What a story is about."""

    def __init__(
        self,
        workflow: Workflow,
        args: Sequence[Any],
        run_id: str,
        actions: Sequence[AnyAction],
        workflows: Sequence[Workflow],
        policies: Mapping[str, Policy] | None,
        clock: FakeClock | None,
    ) -> None:
        self.workflow: Final = workflow
        self.args: Final = args
        self.run_id: Final = run_id
        self.clock: Final = clock
        self.actions: Final = actions
        self.workflows: Final = [workflow, *(each for each in workflows if each is not workflow)]
        self.policies: Final = policies

    def __str__(self) -> str:
        return f"given a run of {self.workflow.name}({', '.join(map(repr, self.args))})"


class _Scene:
    """How far a story has been told."""

    def __init__(self, setting: _Setting, log: MemoryLog, clock: FakeClock) -> None:
        self.setting: Final = setting
        self.run_id: Final = setting.run_id
        self.log: Final = log
        self.clock: Final = clock
        self.runner: Final = Runner(
            log,
            workflows=setting.workflows,
            actions=setting.actions,
            policies=setting.policies,
            clock=clock,
            patience_s=0,
            folder="/",
        )
        self.outcome: Outcome | None = None
        self.refusal: EventLogError | None = None
        self.seen = 0
        """The version of the run in front of the last `when`."""

    async def events(self) -> Sequence[RecordedEvent]:
        return (await self.log.read_stream(run_stream(self.run_id))).events

    async def run(self) -> Run:
        """Return the run as it is now."""
        return await self.runner.state(self.run_id)

    async def begin(self) -> None:
        """Let there be the run, for a past to be added to."""
        if not await self.events():
            await self.runner.submit(self.setting.workflow, self.run_id, *self.setting.args)

    def require_no_refusal(self) -> None:
        """Raise AssertionError if the engine has raised what the story does not speak of."""
        __tracebackhide__ = True
        if self.refusal is not None:
            raise _Otherwise(f"that raised {self.refusal.code}: {self.refusal}") from self.refusal

    async def add(self, events: Sequence[RunEvent]) -> None:
        await self.begin()
        new = [new_event(event) for event in events]
        await self.log.append_reserved(
            [Append(run_stream(self.run_id), new, Expect.exists())], correlation_id=self.run_id
        )


Part = Callable[[_Scene], Awaitable[None]]


class Story:
    """A story about a run. Nothing happens until it is awaited, or `run`; it can be told, and gone on with, often."""

    def __init__(self, setting: _Setting, parts: tuple[tuple[str, Part], ...]) -> None:
        self._setting: Final = setting
        self._parts: Final = parts
        self._is_of_use = False

    def __await__(self) -> Generator[Any, None, Outcome | None]:
        __tracebackhide__ = True
        self._is_of_use = True
        return self._tell().__await__()

    def run(self) -> Outcome | None:
        """Tell the story on a loop of its own."""
        __tracebackhide__ = True
        self._is_of_use = True
        try:
            return asyncio.run(self._tell())
        except AssertionError as error:
            raise error.with_traceback(None)  # noqa: B904 - the same error, without the frames of the loop

    def __del__(self) -> None:
        # A test that forgets the `await` would pass, whatever the story says.
        if not self._is_of_use and not sys.is_finalizing():
            told = "\n".join([str(self._setting), *(text for text, _ in self._parts)])
            warnings.warn(f"this story was never told: await it, or call `run()`\n{told}", RuntimeWarning, stacklevel=1)

    # ── given ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def after(self, *events: RunEvent) -> Story:
        """Given that these events are in the log of the run, behind its first."""
        return self._given(f"with {len(events)} events more in its log", lambda scene: scene.add(events))

    def knowing(self, outputs: Mapping[str, Any] | None = None, /, **by_name: Any) -> Story:
        """Given that steps have returned these outputs, by step key (a dict, for keys that are no words) or name."""
        known = {**(outputs or {}), **by_name}
        events = [
            StepCompleted(name=_name(key), key=key, output=msgspec.Raw(codec_for(type(value)).encode(value)))
            for key, value in known.items()
        ]
        return self._given(f"knowing {_brief(known)}", lambda scene: scene.add(events))

    def having_received(self, signal: str, payload: Any = None) -> Story:
        """Given that this signal has come, and was not taken yet."""
        event = SignalReceived(name=signal, payload=msgspec.Raw(codec_for(Any).encode(payload)))
        return self._given(f"having received the signal {signal!r}", lambda scene: scene.add([event]))

    # ── when ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def when_started(self) -> Story:
        """When the run is started, until it ends or pauses."""
        return self._when("is started", lambda on: on.runner.start(on.setting.workflow, on.run_id, *on.setting.args))

    def when_resumed(self) -> Story:
        """When the run is resumed, until it ends or pauses."""
        return self._when("is resumed", lambda on: on.runner.resume(on.run_id))

    def when_approved(
        self, step: str | None = None, *, actor: str | None = None, roles: Sequence[str] = (), reason: str | None = None
    ) -> Story:
        """When somebody approves what the step asks for; without a step, the one request that is pending."""

        async def approve(on: _Scene) -> Outcome:
            __tracebackhide__ = True
            request, proposal_hash = await _request(on, step)
            return await on.runner.approve(
                on.run_id, proposal_hash, request=request, actor=actor, roles=roles, reason=reason
            )

        return self._when(f"{_shown(step)} is approved{_by(actor)}", approve)

    def when_rejected(
        self, step: str | None = None, *, actor: str | None = None, roles: Sequence[str] = (), reason: str | None = None
    ) -> Story:
        """When somebody rejects what the step asks for."""

        async def reject(on: _Scene) -> Outcome:
            __tracebackhide__ = True
            request, proposal_hash = await _request(on, step)
            return await on.runner.reject(
                on.run_id, proposal_hash, request=request, actor=actor, roles=roles, reason=reason
            )

        return self._when(f"{_shown(step)} is rejected{_by(actor)}", reject)

    def when_edited(self, step: str | None = None, *, actor: str | None = None, **changes: Any) -> Story:
        """When somebody asks for something else instead; `changes` as for `Runner.edit`: args, output, approves, …"""

        async def edit(on: _Scene) -> Outcome:
            __tracebackhide__ = True
            request, _ = await _request(on, step)
            return await on.runner.edit(on.run_id, request=request, actor=actor, **changes)

        return self._when(f"{_shown(step)} is edited{_by(actor)}: {_brief(changes)}", edit)

    def when_revoked(self, step: str | None = None, *, actor: str | None = None) -> Story:
        """When the approvals of what the step asks for are withdrawn."""

        async def revoke(on: _Scene) -> Outcome:
            __tracebackhide__ = True
            request, _ = await _request(on, step, wanted=(Status.WAITING_FOR_USER, Status.APPROVED))
            return await on.runner.revoke(on.run_id, request=request, actor=actor)

        return self._when(f"the approval of {_shown(step)} is revoked{_by(actor)}", revoke)

    def when_signalled(self, signal: str, payload: Any = None, *, actor: str | None = None) -> Story:
        """When a signal is sent to the run."""
        return self._when(
            f"the signal {signal!r} comes with {_brief(payload)}",
            lambda on: on.runner.signal(on.run_id, signal, payload, actor=actor),
        )

    def when_cancelled(self, *, reason: str | None = None, actor: str | None = None) -> Story:
        """When somebody cancels the run."""
        return self._when(
            f"it is cancelled{_by(actor)}", lambda on: on.runner.cancel(on.run_id, reason=reason, actor=actor)
        )

    def when_time_passes(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> Story:
        """When so much time passes. Nobody acts on that until the run is resumed, or `when_expired`."""

        async def wait(on: _Scene) -> None:
            on.clock.advance(seconds, minutes=minutes, hours=hours, days=days)

        passed = {"seconds": seconds, "minutes": minutes, "hours": hours, "days": days}
        text = ", ".join(f"{count:g} {unit}" for unit, count in passed.items() if count)
        return self._when(f"{text or 'no time'} pass", wait)

    def when_expired(self) -> Story:
        """When the requests whose time is over are recorded as expired."""
        return self._when("what is overdue is recorded", lambda on: on.runner.expire(on.run_id))

    def when_reconciled(
        self, step: str | None, verdict: str, *, evidence: str = "the story says so", result: Any = None
    ) -> Story:
        """When somebody says what became of an effect of which nobody knows."""

        async def settle(on: _Scene) -> Outcome:
            __tracebackhide__ = True
            request, _ = await _request(on, step, wanted=tuple(Status))
            version = (await on.runner.state(on.run_id)).version
            return await on.runner.reconcile(
                on.run_id, verdict, evidence=evidence, result=result, request=request, at_version=version
            )

        return self._when(f"{_shown(step)} is reconciled as {verdict!r}", settle)

    def when(self, what: str, act: Callable[[Runner, str], Awaitable[Any]]) -> Story:
        """When `act(runner, run_id)` is awaited; `what` says in words what that is."""
        return self._when(what, lambda on: act(on.runner, on.run_id))

    # ── then ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def then_status(self, status: Status | str) -> Story:
        """Then this is where the run is."""

        async def check(on: _Scene) -> None:
            __tracebackhide__ = True
            await _equal(on, "the status", str(status), (await on.run()).status.value)

        return self._then(f"it is {status}", check)

    def then_waits_for(self, *names: str) -> Story:
        """Then the run is paused and waits for exactly these: step keys, names of signals, the oldest first."""

        async def check(on: _Scene) -> None:
            __tracebackhide__ = True
            run = await on.run()
            waits: tuple[Waiting, ...] = run.progress.waits
            await _equal(on, "what it waits for", names, tuple(wait.signal or wait.node_id for wait in waits))

        return self._then(f"it waits for {', '.join(names) or 'nothing'}", check)

    def then_returned(self, value: Any) -> Story:
        """Then the run is completed, and its workflow has returned `value`."""

        async def check(on: _Scene) -> None:
            __tracebackhide__ = True
            run = await on.run()
            await _equal(on, "the status", Status.COMPLETED.value, run.status.value)
            await _equal(on, "what it returned", value, await on.runner.workflows.value(run))

        return self._then(f"it has returned {_brief(value)}", check)

    def then_failed(self, code: str, message: str = "") -> Story:
        """Then the run has ended by an error with this code, in whose message this text is found."""

        async def check(on: _Scene) -> None:
            __tracebackhide__ = True
            failure = (await on.run()).failure
            await _equal(on, "the code of its failure", code, failure and failure.code)
            assert failure is not None, "it was just compared"
            if message not in failure.message:
                await _equal(on, "the message of its failure", message, failure.message)

        return self._then(f"it has failed with {code!r}", check)

    def then_refused(self, code: str) -> Story:
        """Then what was just tried was refused with this code."""

        async def check(on: _Scene) -> None:
            __tracebackhide__ = True
            refusal, on.refusal = on.refusal, None
            await _equal(on, "the code of the refusal", code, refusal and refusal.code)

        return self._with(f"{_REFUSED} {code!r}", check)

    def then_events(self, *expected: Expected) -> Story:
        """Then the last `when` has left exactly these events in the run's log, in this order.

        Each is named by its type, as a whole, or as `(type, {field: value, …})`. That the run was claimed and given
        free is left out.
        """

        async def check(on: _Scene) -> None:
            __tracebackhide__ = True
            found = [event for event in await on.events() if event.version > on.seen and not _is_about_claims(event)]
            pairs = zip(expected, found, strict=False)
            if len(expected) == len(found) and all(_matches(each, event) for each, event in pairs):
                return
            wanted = [_spelled(each) for each in expected]
            fields = [set(each[1]) if isinstance(each, tuple) else set() for each in expected]
            fields += [set()] * (len(found) - len(fields))
            seen = [_spelled_event(event, expected[place:][:1], fields[place]) for place, event in enumerate(found)]
            raise _Otherwise(f"the events are others:\n{difference(wanted, seen, ('expected', 'found'))}")

        return self._then(f"its log has {', '.join(_spelled(each) for each in expected) or 'nothing new'}", check)

    def then(self, what: str, check: Callable[[Run], None]) -> Story:
        """Then `check(run)` raises no AssertionError; `what` says in words what that is."""

        async def asked(on: _Scene) -> None:
            __tracebackhide__ = True
            check(await on.run())

        return self._then(what, asked)

    # ── telling ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _given(self, text: str, part: Part) -> Story:
        return self._with(f"    {text}", part)

    def _then(self, text: str, part: Part) -> Story:
        return self._with(f"then {text}", part)

    def _when(self, text: str, act: Callable[[_Scene], Awaitable[Any]]) -> Story:
        async def part(on: _Scene) -> None:
            __tracebackhide__ = True
            on.seen = len(await on.events())
            try:
                done = await act(on)
            except EventLogError as error:
                on.refusal = error
            else:
                on.outcome = done if isinstance(done, Outcome) else on.outcome

        return self._with(f"when {text}", part)

    def _with(self, text: str, part: Part) -> Story:
        self._is_of_use = True
        return Story(self._setting, (*self._parts, (text, part)))

    async def _tell(self) -> Outcome | None:
        __tracebackhide__ = True
        clock = self._setting.clock or FakeClock()
        async with MemoryLog(actor="story", clock=clock) as log:
            scene = _Scene(self._setting, log, clock)
            told = [str(self._setting)]
            try:
                for text, part in self._parts:
                    if not text.startswith(_REFUSED):
                        scene.require_no_refusal()
                    told.append(text)
                    await part(scene)
                scene.require_no_refusal()
            except AssertionError as error:
                told[-1] += "   <──"
                story = "\n".join(f"    {line}" for line in told)
                events = printed(await scene.events())
                message = f"the story went otherwise:\n{story}\n\n{error}\n\nthe log of the run:\n{events}"
                # What the kit has found is said whole in the message; what else was raised is shown with its frames.
                raise AssertionError(message) from (error.__cause__ if isinstance(error, _Otherwise) else error)
            return scene.outcome


async def _request(
    on: _Scene, step: str | None, wanted: Sequence[Status] = (Status.WAITING_FOR_USER,)
) -> tuple[str | None, str]:
    """Return the request that is meant, and the hash of what it asks for."""
    __tracebackhide__ = True
    found = [
        request
        for request in requests_of(await on.run())
        if (request.step == step if step is not None else request.status in wanted)
    ]
    if len(found) != 1:
        asked = ", ".join(f"{request.step} ({request.status.value})" for request in requests_of(await on.run()))
        meant = f"{len(found)} pending requests" if step is None else f"{len(found)} requests of the step {step!r}"
        raise _Otherwise(f"there are {meant}; asked were: {asked or 'none'}")
    return found[0].request_id, found[0].proposal_hash or ""


async def _equal(on: _Scene, what: str, expected: Any, found: Any) -> None:
    __tracebackhide__ = True
    if expected == found:
        return
    why = ""
    if on.outcome is not None and on.outcome.failure is not None:
        why = f"\n(it failed: {on.outcome.failure.code}: {on.outcome.failure.message})"
    raise _Otherwise(f"{what} is another:\nexpected: {expected!r}\nfound:    {found!r}{why}")


def _is_about_claims(event: RecordedEvent) -> bool:
    match event.data:
        case RunClaimed() | ClaimRenewed():
            return True
        case CheckpointSaved(is_released=True):
            return True
    return False


def _matches(expected: Expected, event: RecordedEvent) -> bool:
    match expected:
        case str():
            return event.type == expected
        case (str(kind), fields):
            return event.type == kind and all(getattr(event.data, name, None) == fields[name] for name in fields)
    return bool(event.data == expected)


def _spelled(expected: Expected) -> str:
    match expected:
        case str():
            return expected
        case (str(kind), fields):
            return f"{kind} {_brief(dict(fields))}"
    return f"{type(expected).__name__} {_brief(expected)}"


def _spelled_event(event: RecordedEvent, beside: Sequence[Expected], fields: set[str]) -> str:
    """Return an event spelled as what was expected in its place is."""
    if beside and not isinstance(beside[0], str | tuple):
        return f"{type(event.data).__name__} {_brief(event.data)}"
    if fields:
        return f"{event.type} {_brief({name: getattr(event.data, name, None) for name in sorted(fields)})}"
    return event.type


def _name(key: str) -> str:
    return key.partition("#")[0].partition(":")[0]


def _shown(step: str | None) -> str:
    return "the request" if step is None else repr(step)


def _by(actor: str | None) -> str:
    return "" if actor is None else f" by {actor!r}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}…"

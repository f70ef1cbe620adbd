"""What stays of an event when its body is erased: the run folds as before, and nothing that anybody wrote is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec.structs import fields

import eventlog
from eventlog import RunContext, remainders
from eventlog.events import LOG_EVENTS, RUN_EVENTS, ActionExecuted
from eventlog.log import RecordedEvent, RunLog
from eventlog.progress import fold_stream, requests_of
from eventlog.remainders import ERASED, REMAINDERS, remainder_of
from eventlog.run import Run
from eventlog.testing.clock import FakeClock
from tests.effect_runs import LEASE_S, Receiver, Sending, trace_of
from tests.workflow_runs import runner_for

MARKER = "a marker of what somebody wrote"

# Fields that hold what the engine or the program's own code says, so that they stay; every other one holds markers.
KEPT = {
    *(
        "action",
        "action_sha256",
        "approval_hash",
        "approval_id",
        "approved_request_id",
        "attempt",
        "boot",
        "child_run_id",
        "committed",
    ),
    *("compensates", "current_hash", "current_request_id", "deadline_us", "due_us", "epoch", "expires_at_us", "group"),
    *("fingerprint", "host", "input_hash", "is_deciding", "is_final", "is_released", "is_stray", "key", "key_until_us"),
    *("level", "lock", "name", "node_id", "op_key", "payloadType", "proposal_hash", "relation", "request_id"),
    *("required", "retry_at_us", "roles", "root_run_id", "run_id", "separation_of_duties", "signal", "snapshot_hash"),
    *("state_version", "status", "step", "steps", "stored_hash", "supersedes", "type", "version", "workflow"),
}
KEPT_OF = {("child_started", "input"), ("step_completed", "input"), ("step_failed", "input")}
OBJECTS: Mapping[str, Mapping[str, object]] = {
    "Owner": remainders.OWNER,
    "Waiting": remainders.WAITING,
    "Definition": remainders.DEFINITION,
    "Parent": remainders.PARENT,
    "PolicyTerms": remainders.POLICY,
    "Failure": remainders.FAILURE,
}


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(RUN_EVENTS))
def test_the_table_has_a_line_for_each_field(name: str) -> None:
    assert set(REMAINDERS[name]) == {field.encode_name for field in fields(RUN_EVENTS[name])}


def test_objects_in_events_have_a_line_for_each_field() -> None:
    found = {cls.__name__: cls for name in sorted(RUN_EVENTS) for cls in structs_in(RUN_EVENTS[name])}
    assert set(found) == {*OBJECTS, "Envelope", "EnvelopeSignature"}, "an object of a new kind needs a table"
    for name, rules in OBJECTS.items():
        assert set(rules) == {field.encode_name for field in fields(found[name])}, name
    assert [field.encode_name for field in fields(found["Envelope"])] == ["payload", "payloadType", "signatures"]


def structs_in(cls: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for hint in get_type_hints(cls).values():
        for part in (hint, *get_args(hint), *(deep for each in get_args(hint) for deep in get_args(each))):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield part
                yield from structs_in(part)


@pytest.mark.parametrize("name", sorted(RUN_EVENTS))
def test_of_an_event_full_of_texts_none_is_left_and_it_decodes_as_the_same_type(name: str) -> None:
    body = msgspec.json.encode(filled(RUN_EVENTS[name], name))
    before = msgspec.json.decode(body, type=RUN_EVENTS[name])
    left = remainder_of(name, body)
    assert MARKER.encode() not in left
    after = msgspec.json.decode(left, type=RUN_EVENTS[name])
    assert type(after) is type(before)
    assert remainder_of(name, left) == left, "nothing is left to erase"


@pytest.mark.parametrize("name", sorted(RUN_EVENTS))
def test_what_a_run_is_folded_from_stays_as_it_was(name: str) -> None:
    body = filled(RUN_EVENTS[name], name)
    left = msgspec.json.decode(remainder_of(name, msgspec.json.encode(body)))
    for field in body.keys() & KEPT:
        assert left[field] == body[field], field


def test_with_a_rule_that_keeps_a_text_the_marker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the search: it can see."""
    rules = {**REMAINDERS["run_cancelled"], "reason": lambda value: value}
    monkeypatch.setattr(remainders, "REMAINDERS", {**REMAINDERS, "run_cancelled": rules})
    body = msgspec.json.encode({"actor_source": "os", "reason": MARKER})
    assert MARKER.encode() in remainder_of("run_cancelled", body)


def filled(cls: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """Return the JSON of an event of which each field is set; what is not of the engine or of code is a marker."""
    hints = get_type_hints(cls)
    found = {}
    for each in fields(cls):
        field = each.encode_name
        is_kept = field in KEPT or (name, field) in KEPT_OF
        found[field] = value_of(hints[each.name], field, is_kept, name)
    return found


def value_of(hint: Any, field: str, is_kept: bool, name: str) -> Any:
    options = [each for each in get_args(hint) if each is not type(None)]
    if field == "proposal":
        return {"action": "book", "args": {MARKER: [MARKER]}, "output": MARKER}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return next(iter(hint)).value
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return filled(hint, name)
    if hint is int:
        return 7
    if hint is bool:
        return True
    if hint is str:
        return f"kept-{field}" if is_kept else MARKER
    if hint is Any or hint is msgspec.Raw:
        return {MARKER: [MARKER, {"deep": MARKER}]}
    if str(hint).startswith("tuple"):
        return [value_of(options[0], field, is_kept, name)]
    if str(hint).startswith("dict"):
        return {MARKER: MARKER}
    assert len(options) == 1, f"{name}.{field} has a type that this test does not know: {hint}"
    return value_of(options[0], field, is_kept, name)


@pytest.mark.parametrize("name", sorted(LOG_EVENTS))
def test_of_an_event_about_the_log_nothing_would_stay(name: str) -> None:
    assert remainder_of(name, b'{"reason":"crash"}') == b""


def test_of_an_event_of_another_program_nothing_stays() -> None:
    assert remainder_of("order_placed", b'{"to":"anna"}') == b""


@pytest.mark.parametrize(
    ("code", "stays"), [("card_declined", True), ("ValueError", True), ("Anna called", False), ("x" * 81, False)]
)
def test_a_code_stays_only_if_it_is_spelled_like_one(code: str, stays: bool) -> None:
    error = msgspec.json.encode({"error": {"code": code, "message": MARKER}})
    left = msgspec.json.decode(remainder_of("run_failed", error))
    assert left["error"] == {"code": code if stays else ERASED, "message": ERASED}


def test_a_value_kept_beside_the_log_leaves_neither_its_name_nor_an_event_without_a_value() -> None:
    body = msgspec.json.encode({"name": "look", "key": "look", "artifact": "ab" * 32})
    assert msgspec.json.decode(remainder_of("step_completed", body)) == {
        "name": "look",
        "key": "look",
        "output": ERASED,
    }


def test_an_effect_whose_result_is_gone_says_so() -> None:
    body = msgspec.json.encode({"action": "book", "op_key": "0" * 64, "result": MARKER})
    left = msgspec.json.decode(remainder_of("action_executed", body), type=ActionExecuted)
    assert (left.result, left.not_stored) == (None, ERASED)


def test_the_first_checkpoint_of_a_workflow_still_has_an_input_and_later_ones_have_none() -> None:
    first = {"status": "RUNNING", "state_version": 1, "input": [MARKER], "definition": None}
    later = {"status": "RUNNING", "state_version": 2}
    assert msgspec.json.decode(remainder_of("checkpoint_saved", msgspec.json.encode(first)))["input"] == [ERASED]
    assert msgspec.json.decode(remainder_of("checkpoint_saved", msgspec.json.encode(later))) == later


# ── real runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def erased(events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """Return the events as they are read once each body is erased."""
    left = []
    for event in events:
        body = remainder_of(event.type, event.body)
        assert MARKER.encode() not in body, event.type
        data = msgspec.json.decode(body, type=RUN_EVENTS[event.type])
        left.append(msgspec.structs.replace(event, body=body, data=data))
    return left


def stands(run: Run) -> dict[str, Any]:
    """Return what has to be the same of a run and of its requests."""
    names = ("status", "version", "state_version", "waiting", "op_key", "proposal_hash", "approval_hash", "request_id")
    more = ("epoch", "attempts", "executed", "approval", "decided_by", "expires_at_us", "key_until_us", "is_unknown")
    found: dict[str, Any] = {
        name: getattr(run, name) for name in (*names, *more, "intent", "is_cancelled", "superseded")
    }
    found["votes"] = [(vote.decision, vote.actor, vote.roles) for vote in run.votes]
    undoing = run.compensation
    found["undoing"] = undoing and (undoing.op_key, undoing.is_settled, undoing.attempts)
    if run.progress is not None:
        progress = run.progress
        found["waits"], found["committed"] = progress.waits, progress.committed
        found["steps"] = {key: (step.name, step.attempts) for key, step in progress.steps.items()}
        found["failures"] = {key: failure.code for key, failure in progress.failures.items()}
        found["hashes"] = progress.first_hashes
        found["requests"] = [stands(request) for request in requests_of(run)]
    return found


def assert_folds_alike(events: Sequence[RecordedEvent]) -> None:
    """Assert it of the run at each of its versions: it may be erased at any time."""
    assert any(MARKER.encode() in event.body for event in events), "there is something to erase"
    left = erased(events)
    for version in range(1, len(events) + 1):
        assert stands(fold_stream("run-1", left[:version])) == stands(fold_stream("run-1", events[:version]))


def says(values: Mapping[str, Any]) -> Callable[..., Any]:
    async def function(*_: Any) -> Any:
        return values

    return function


async def fails(*_: Any) -> None:
    raise ValueError(MARKER)


@eventlog.workflow(name="flow")
async def flow(run: RunContext, order: dict[str, str]) -> Any:
    """Do one of everything that leaves an event with something in it."""
    found = await run.step("look", says(order))
    with_signal = await run.wait_for_signal("go")
    done = await run.act("send", {"to": MARKER}, output=MARKER)
    await run.act("send", {"again": MARKER}, output=MARKER)
    return [found, with_signal, done]


class Telling(Sending):
    """An effect whose receiver tells something."""

    async def execute(self, call: Any) -> Any:
        await super().execute(call)
        return eventlog.Executed(result={"said": MARKER})


async def test_a_workflow_whose_bodies_are_erased_folds_to_where_it_was_at_each_version(
    log: RunLog, clock: FakeClock
) -> None:
    runner = runner_for(log, clock, flow, actions=[Telling(Receiver())])
    await runner.start(flow, "run-1", {"name": MARKER})
    await runner.signal("run-1", "go", {"by": MARKER})
    await runner.resume("run-1")
    for decide, status in ((runner.approve, "WAITING_FOR_USER"), (runner.reject, "REJECTED")):
        (request,) = [each for each in requests_of(await runner.state("run-1")) if each.status == "WAITING_FOR_USER"]
        assert request.proposal_hash is not None
        with pytest.raises(eventlog.Refused):
            await decide("run-1", MARKER, request=request.request_id, reason=MARKER)
        await decide("run-1", request.proposal_hash, request=request.request_id, reason=MARKER)
        assert (await runner.resume("run-1")).status == status
    assert_folds_alike(await trace_of(log))


async def test_a_step_that_failed_for_good_is_that_when_its_message_is_erased(log: RunLog, clock: FakeClock) -> None:
    @eventlog.workflow
    async def breaks(run: RunContext) -> Any:
        await run.step("break", fails)

    runner = runner_for(log, clock, breaks)
    assert (await runner.start(breaks, "run-1")).status == "FAILED"
    assert_folds_alike(await trace_of(log))


async def test_an_effect_that_was_undone_and_cancelled_folds_alike(log: RunLog, clock: FakeClock) -> None:
    receiver = Receiver()
    doing, undoing = Telling(receiver, compensation="cancel"), eventlog.action("cancel")(says({"undone": MARKER}))
    runner = eventlog.Runner(log, actions=[doing, undoing], clock=clock, lease_s=LEASE_S)
    outcome = await runner.propose("run-1", eventlog.propose("send", {"to": MARKER}, MARKER))
    assert outcome.run.proposal_hash is not None
    await runner.approve("run-1", outcome.run.proposal_hash, reason=MARKER)
    await runner.resume("run-1")
    await runner.compensate("run-1", reason=MARKER)
    assert_folds_alike(await trace_of(log))


async def test_a_person_who_settled_an_unknown_outcome_is_erased_and_the_verdict_stays(
    log: RunLog, clock: FakeClock
) -> None:
    runner = eventlog.Runner(log, actions=[eventlog.action("send")(fails)], clock=clock, lease_s=LEASE_S)
    outcome = await runner.propose("run-1", eventlog.propose("send", {"to": MARKER}, MARKER))
    assert outcome.run.proposal_hash is not None
    await runner.approve("run-1", outcome.run.proposal_hash)
    with pytest.raises(eventlog.OutcomeUnknown):
        await runner.resume("run-1")
    await runner.reconcile("run-1", "executed", evidence=MARKER, result={"it": MARKER})
    assert_folds_alike(await trace_of(log))

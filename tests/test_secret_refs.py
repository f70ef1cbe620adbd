"""Secrets are named and not given: in any payload, for any action, and so that a swapped one is noticed."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

import eventlog
from eventlog import ActionFailed, Executed, InvalidInput, OutcomeUnknown, secret_ref
from eventlog.codec import Registry
from eventlog.events import ActionExecuted
from eventlog.log import Expect, NewEvent, RunLog
from eventlog.proposal import propose
from eventlog.runtime.actions.secrets import MARK, KeyedSecrets, Revealed, SecretRef, Secrets
from eventlog.runtime.effects import Absent, Call, Conflicted, Recovered
from eventlog.testing.clock import FakeClock
from tests.effect_runs import LEASE_S, trace_of

KEY = b"a fingerprint key of enough bytes"
VALUE = "the marker of a secret"
SECRETS: Mapping[str, str | int | float | bool] = {
    "TOKEN": VALUE,
    "PIN": 48291,
    "RATE": 0.1875,
    "IS_ROOT": True,
    "N": 7,
}


# ── references ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reference_is_the_plain_data_that_it_always_was_and_hashes_the_same() -> None:
    assert secret_ref("TOKEN") == {"$secret": "TOKEN"}
    assert secret_ref("TOKEN", prefix="Bearer ") == {"$secret": "TOKEN", "prefix": "Bearer "}
    assert SecretRef("TOKEN", "Bearer ").to_plain() == secret_ref("TOKEN", prefix="Bearer ")
    canonical = b'{"action":"send","args":{"to":{"$secret":"TOKEN","prefix":"Bearer "}},"output":"x"}'
    proposal = propose("send", {"to": secret_ref("TOKEN", prefix="Bearer ")}, "x")
    assert proposal.hash == hashlib.sha256(canonical).hexdigest()


def test_a_reference_with_a_type_is_the_same_json_and_comes_back() -> None:
    ref = SecretRef("TOKEN", prefix="Bearer ")
    assert msgspec.json.encode(ref) == b'{"$secret":"TOKEN","prefix":"Bearer "}'
    assert msgspec.json.decode(msgspec.json.encode(ref), type=SecretRef) == ref


async def test_a_registered_event_may_have_a_reference_as_a_field() -> None:
    class Connected(msgspec.Struct, frozen=True):
        to: str
        by: SecretRef

    registry = Registry()
    registry.register(Connected, "connected")
    async with eventlog.open("memory:", registry=registry) as log:
        await log.append("links", [Connected(to="bank", by=SecretRef("TOKEN"))], expect=Expect.any())
        await log.append("links", [NewEvent("noted", {"by": SecretRef("TOKEN").to_plain()})], expect=Expect.any())
        first, second = (await log.read_stream("links")).events
        assert first.data == Connected(to="bank", by=SecretRef("TOKEN"))
        assert second.data == {"by": secret_ref("TOKEN")}


# ── what is put in ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_texts_numbers_and_bools_are_put_in_as_what_they_are(name: str) -> None:
    revealed = Revealed(SECRETS)
    assert revealed.is_empty
    given = revealed.put_in({"deep": [secret_ref(name)]})
    assert given == {"deep": [SECRETS[name]]}
    assert type(given["deep"][0]) is type(SECRETS[name])
    assert not revealed.is_empty, "also of a secret that cannot be taken out again"


def test_a_prefix_stands_in_front_of_a_text_only() -> None:
    assert Revealed(SECRETS).put_in(secret_ref("TOKEN", prefix="Bearer ")) == f"Bearer {VALUE}"
    with pytest.raises(ActionFailed) as refusal:
        Revealed(SECRETS).put_in(secret_ref("PIN", prefix="No. "))
    assert refusal.value.code == "invalid_arguments"
    assert "48291" not in str(refusal.value)


@pytest.mark.parametrize("value", [None, "", "\ud800", float("nan"), float("inf"), b"bytes", ["list"], 1j])
def test_what_is_no_plain_value_is_no_secret(value: Any) -> None:
    with pytest.raises(ActionFailed) as refusal:
        Revealed({"TOKEN": value}).put_in(secret_ref("TOKEN"))
    assert refusal.value.code == "secret_unknown"


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (f"so {VALUE}!", f"so {MARK}!"),
        ({VALUE: [VALUE, {"a": f"x{VALUE}"}]}, {MARK: [MARK, {"a": f"x{MARK}"}]}),
        (("a", VALUE), ["a", MARK]),
        ("the pin is 48291", f"the pin is {MARK}"),
        ([48291, 7, True, None, 1.5], [MARK, 7, True, None, 1.5]),
        (0.1875, MARK),
    ],
    ids=["text", "deep", "tuple", "number in a text", "numbers", "float"],
)
def test_what_comes_back_holds_no_secret(value: Any, left: Any) -> None:
    """A number of less than four characters, and a bool, are no text that could be told from others."""
    revealed = Revealed(SECRETS)
    revealed.put_in([secret_ref(name) for name in sorted(SECRETS)])
    assert revealed.take_out_of(value) == left


@pytest.mark.parametrize("before", ["", "u", "us"])
def test_a_secret_is_found_inside_base64_if_that_is_long_enough_to_be_told_from_other_texts(before: str) -> None:
    secrets = {"LONG": VALUE, "SHORT": "zxy9"}
    revealed = Revealed(secrets)
    revealed.put_in([secret_ref(name) for name in secrets])
    coded = {name: b64encode(f"{before}{secret} ok".encode()).decode() for name, secret in secrets.items()}
    assert MARK in revealed.take_out_of(coded["LONG"])
    assert revealed.take_out_of(coded["SHORT"]) == coded["SHORT"]
    assert revealed.take_out_of("a zxy9") == f"a {MARK}"


# ── fingerprints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fingerprint_is_an_hmac_of_the_value_and_shows_equality_alone() -> None:
    keyed = KeyedSecrets({"A": VALUE, "B": VALUE, "C": "another"}, fingerprint_key=KEY)
    a, b, c = (keyed.ref(name)["fingerprint"] for name in "ABC")
    assert a == b != c
    assert a == hmac.new(KEY, b"eventlog/secret/v1\0" + msgspec.json.encode(VALUE), "sha256").hexdigest()[:32]
    assert KeyedSecrets({"A": VALUE}, fingerprint_key=KEY + b"2").ref("A")["fingerprint"] != a
    assert VALUE not in str(keyed.ref("A"))


def test_a_number_a_bool_and_their_texts_have_different_fingerprints() -> None:
    keyed = KeyedSecrets({}, fingerprint_key=KEY)
    values = (1, "1", True, "true", 1.5, "1.5")
    assert len({keyed.fingerprint_of(value) for value in values}) == len(values)


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_reference_with_a_fingerprint_is_resolved_while_the_value_is_the_same(name: str) -> None:
    values = dict(SECRETS)
    keyed = KeyedSecrets(values, fingerprint_key=KEY)
    ref = keyed.ref(name)
    assert Revealed(keyed).put_in(ref) == SECRETS[name]
    assert Revealed(KeyedSecrets(values.get, fingerprint_key=KEY)).put_in(ref) == SECRETS[name]
    values[name] = "swapped"
    with pytest.raises(ActionFailed, match="another one than this was proposed with") as refusal:
        Revealed(keyed).put_in(ref)
    assert refusal.value.code == "secret_changed"
    assert "swapped" not in f"{refusal.value} {refusal.value.details}"


def test_a_fingerprint_that_nobody_can_compare_is_refused() -> None:
    ref = KeyedSecrets(SECRETS, fingerprint_key=KEY).ref("TOKEN")
    with pytest.raises(ActionFailed) as refusal:
        Revealed(SECRETS).put_in(ref)
    assert refusal.value.code == "invalid_arguments"


@pytest.mark.parametrize("fingerprint", ["0" * 32, "x", "ä", "0" * 31], ids=["zeros", "short", "no ASCII", "cut"])
def test_a_fingerprint_of_another_shape_is_another_one(fingerprint: str) -> None:
    ref = {**secret_ref("TOKEN"), "fingerprint": fingerprint}
    with pytest.raises(ActionFailed) as refusal:
        Revealed(KeyedSecrets(SECRETS, fingerprint_key=KEY)).put_in(ref)
    assert refusal.value.code == "secret_changed"


def test_a_key_that_could_be_guessed_and_a_secret_that_is_not_known_are_refused() -> None:
    with pytest.raises(InvalidInput):
        KeyedSecrets(SECRETS, fingerprint_key=b"short")
    with pytest.raises(InvalidInput) as refusal:
        KeyedSecrets(SECRETS, fingerprint_key=KEY).ref("NOTHING")
    assert refusal.value.code == "secret_unknown"


# ── function actions ─────────────────────────────────────────────────────────────────────────────────────────────────


class Send:
    """What the function of an action was called with, and what it does then."""

    def __init__(self, does: Any = None) -> None:
        self.args: list[Any] = []
        self.checked: list[Any] = []
        self.does = does

    def action(self, secrets: Secrets | None, **rest: Any) -> Any:
        async def send(call: Call) -> Any:
            self.args.append(call.args)
            return self.does(call) if self.does is not None else "sent"

        def check(call: Call) -> None:
            self.checked.append(call.args)

        return eventlog.action("send", secrets=secrets, check=check, **rest)(send)


async def run(log: RunLog, clock: FakeClock, action: Any, args: dict[str, Any]) -> eventlog.Runner:
    runner = eventlog.Runner(log, actions=[action], clock=clock, lease_s=LEASE_S)
    outcome = await runner.propose("run-1", propose("send", args, "out"))
    assert outcome.run.proposal_hash is not None
    await runner.approve("run-1", outcome.run.proposal_hash)
    return runner


async def bodies(log: RunLog) -> str:
    return " ".join([event.body.decode() for event in await trace_of(log)])


ARGS = {"by": secret_ref("TOKEN", prefix="Bearer "), "pin": secret_ref("PIN")}


async def test_a_function_gets_the_values_its_check_does_not_and_the_log_has_the_names(
    log: RunLog, clock: FakeClock
) -> None:
    send = Send()
    runner = await run(log, clock, send.action(SECRETS), ARGS)
    await runner.resume("run-1")
    assert send.args == [{"by": f"Bearer {VALUE}", "pin": 48291}]
    assert send.checked == [ARGS]
    assert VALUE not in await bodies(log) and "48291" not in await bodies(log)
    assert '"$secret":"TOKEN"' in await bodies(log)


async def test_without_secrets_of_its_own_a_function_gets_the_references(log: RunLog, clock: FakeClock) -> None:
    send = Send()
    runner = await run(log, clock, send.action(None), ARGS)
    await runner.resume("run-1")
    assert send.args == [ARGS]


RESULTS = {
    "plain": lambda call: {"echo": call.args},
    "executed": lambda call: Executed(result={"echo": call.args["by"]}),
    "recovered": lambda call: Recovered(evidence=call.args["by"], result=[call.args["by"]]),
}


@pytest.mark.parametrize("kind", sorted(RESULTS))
async def test_what_a_function_returns_is_stored_without_its_secrets(log: RunLog, clock: FakeClock, kind: str) -> None:
    runner = await run(log, clock, Send(RESULTS[kind]).action(SECRETS), ARGS)
    await runner.resume("run-1")
    assert VALUE not in await bodies(log) and "48291" not in await bodies(log)
    assert f"Bearer {MARK}" in await bodies(log)


async def test_without_taking_them_out_they_are_found(
    log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the search: it can see."""
    monkeypatch.setattr(Revealed, "take_out_of", lambda self, value: value)
    runner = await run(log, clock, Send(RESULTS["plain"]).action(SECRETS), ARGS)
    await runner.resume("run-1")
    assert VALUE in await bodies(log)


def fails(call: Call) -> Any:
    raise ActionFailed("card_declined", f"no {call.args['by']}", header=[call.args["by"]], is_final=True)


def breaks(call: Call) -> Any:
    raise OSError(f"no {call.args['by']}")


def conflicts(call: Call) -> Any:
    return Conflicted(reason=f"it holds {call.args['by']}", existing_content=call.args["by"])


@pytest.mark.parametrize(
    ("does", "expected"), [(fails, ActionFailed), (breaks, OutcomeUnknown), (conflicts, eventlog.ActionConflict)]
)
async def test_what_a_function_raises_or_reports_shows_no_secret(
    log: RunLog, clock: FakeClock, does: Any, expected: type[Exception]
) -> None:
    runner = await run(log, clock, Send(does).action(SECRETS), ARGS)
    with pytest.raises(expected) as refusal:
        await runner.resume("run-1")
    told: BaseException | None = refusal.value
    while told is not None:
        assert VALUE not in f"{told!r} {told} {getattr(told, 'details', '')}"
        told = told.__cause__ or told.__context__
    assert VALUE not in await bodies(log)
    assert f"Bearer {MARK}" in await bodies(log)


async def test_an_error_that_shows_no_secret_goes_on_as_it_is(log: RunLog, clock: FakeClock) -> None:
    def other(call: Call) -> Any:
        raise ConnectionResetError("by the receiver")

    runner = await run(log, clock, Send(other).action(SECRETS), ARGS)
    with pytest.raises(OutcomeUnknown) as refusal:
        await runner.resume("run-1")
    assert isinstance(refusal.value.__cause__, ConnectionResetError)


async def test_a_failure_that_shows_no_secret_is_recorded_as_it_was_raised(log: RunLog, clock: FakeClock) -> None:
    def declined(call: Call) -> Any:
        raise ActionFailed("card_declined", "by the bank", is_final=True, bank="X")

    runner = await run(log, clock, Send(declined).action(SECRETS), ARGS)
    with pytest.raises(ActionFailed) as refusal:
        await runner.resume("run-1")
    assert (refusal.value.code, refusal.value.is_final, refusal.value.details["bank"]) == ("card_declined", True, "X")


async def test_a_receiver_that_is_asked_is_asked_with_the_secret(log: RunLog, clock: FakeClock) -> None:
    asked: list[Any] = []

    async def inspect(call: Call) -> Any:
        asked.append(call.args)
        return Recovered(evidence=f"found by {call.args['by']}") if len(asked) > 1 else Absent()

    runner = await run(log, clock, Send(breaks).action(SECRETS, inspect=inspect), ARGS)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    for _ in range(2):
        try:
            await runner.resume("run-1")
        except OutcomeUnknown:
            continue
    assert asked and asked[0]["by"] == f"Bearer {VALUE}"
    assert VALUE not in await bodies(log)


@pytest.mark.parametrize(
    ("secrets", "code"), [({}, "secret_unknown"), ({"TOKEN": "other", "PIN": 1}, "secret_changed")]
)
async def test_a_secret_that_is_missing_or_swapped_is_refused_before_any_intent_and_nothing_is_sent(
    log: RunLog, clock: FakeClock, secrets: Mapping[str, Any], code: str
) -> None:
    meant = KeyedSecrets(SECRETS, fingerprint_key=KEY)
    send = Send()
    args = {"by": meant.ref("TOKEN"), "pin": meant.ref("PIN")}
    runner = await run(log, clock, send.action(KeyedSecrets(secrets, fingerprint_key=KEY)), args)
    with pytest.raises(ActionFailed) as refusal:
        await runner.resume("run-1")
    assert refusal.value.code == code
    types = [event.type for event in await trace_of(log)]
    assert types[-1] == "resume_rejected" and "resume_started" not in types
    assert not send.args
    again = eventlog.Runner(log, actions=[Send().action(meant)], clock=clock, lease_s=LEASE_S)
    assert (await again.resume("run-1")).result == "executed"
    assert any(isinstance(event.data, ActionExecuted) for event in await trace_of(log))


# ── HTTP requests ────────────────────────────────────────────────────────────────────────────────────────────────────


def call_to(url: str, args: Mapping[str, Any]) -> Call:
    return Call(run_id="run-1", action="http_request", args=dict(args), output=url, op_key="0" * 64, attempt=1)


def test_an_http_request_with_a_swapped_secret_is_refused_before_anything_is_sent() -> None:
    url = "https://api.example.com/v1"
    meant = KeyedSecrets(SECRETS, fingerprint_key=KEY)
    args = {"headers": {"Authorization": meant.ref("TOKEN", prefix="Bearer ")}, "json": {"pin": meant.ref("PIN")}}
    eventlog.HttpRequest(key_lifetime_s=3600, allows=[url], secrets=meant).check(call_to(url, args))
    swapped = KeyedSecrets({**SECRETS, "TOKEN": "other"}, fingerprint_key=KEY)
    with pytest.raises(ActionFailed) as refusal:
        eventlog.HttpRequest(key_lifetime_s=3600, allows=[url], secrets=swapped).check(call_to(url, args))
    assert refusal.value.code == "secret_changed"


def test_a_header_is_a_text_and_takes_no_number() -> None:
    url = "https://api.example.com/v1"
    action = eventlog.HttpRequest(key_lifetime_s=3600, allows=[url], secrets=SECRETS)
    with pytest.raises(ActionFailed) as refusal:
        action.check(call_to(url, {"headers": {"X-Pin": secret_ref("PIN")}}))
    assert refusal.value.code == "invalid_arguments"
    assert "48291" not in str(refusal.value)

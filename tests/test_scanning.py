"""Secrets are found before they are stored, in whatever spelling; nothing else is taken for one."""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eventlog
from eventlog import Expect, NewEvent, RunContext
from eventlog.errors import InvalidInput
from eventlog.events import ActionExecuted
from eventlog.log import RunLog, TransactionalLog
from eventlog.runtime.effects import Call
from eventlog.runtime.run_streams import RunStreams
from eventlog.scanning import DEFAULT_PATTERNS, MASK, Found, Pattern, Scanner, masked, place_of
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import LEASE_S, trace_of
from tests.workflow_runs import Calls, runner_for

LETTERS = "aB3dE5gH7jK9mN1pQ2sT4vW6yZ8bC0dF" * 8  # of no issuer, and of no shape but that of a token


def made(*parts: str) -> str:
    """Return a token that stands nowhere in this file, so that no other scanner finds one in the repository."""
    return "".join(parts)


PEM_BODY = base64.b64encode(hashlib.sha512(b"no key").digest()).decode()
PEM = made("-----BEGIN ", "PRIVATE KEY-----\n", PEM_BODY[:64], "\n", PEM_BODY[64:], "\n-----END ", "PRIVATE KEY-----\n")

TOKENS: Mapping[str, tuple[str, ...]] = {
    "github_token": (made("ghp", "_", LETTERS[:36]), made("github", "_pat_", LETTERS[:22], "_", LETTERS[:59])),
    "gitlab_token": (made("glpat", "-", LETTERS[:20]),),
    "aws_access_key_id": (made("AKIA", "Q3EG6UZ2PLMXNT7R"), made("ASIA", "Q3EG6UZ2PLMXNT7R")),
    "google_api_key": (made("AIza", LETTERS[:35]),),
    "google_client_secret": (made("GOCSPX", "-", LETTERS[:28]),),
    "google_access_token": (made("ya29", ".", LETTERS[:60]),),
    "slack_token": (made("xoxb", "-123456789012-123456789012-", LETTERS[:24]), made("xapp", "-1-A0-1-", LETTERS[:40])),
    "stripe_key": (made("sk", "_live_", LETTERS[:24]), made("rk", "_live_", LETTERS[:24])),
    "anthropic_key": (made("sk", "-ant-", "api03-", LETTERS[:93]),),
    "openai_key": (made("sk", "-proj-", LETTERS[:74]), made("sk", "-", LETTERS[:20], "T3Blbk", "FJ", LETTERS[:20])),
    "openrouter_key": (made("sk", "-or-v1-", "0a1b2c3d" * 8),),
    "huggingface_token": (made("hf", "_", "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH"),),
    "npm_token": (made("npm", "_", LETTERS[:36]),),
    "pypi_token": (made("pypi", "-AgE", "IcHlwaS5vcmc", LETTERS[:60]),),
    "docker_token": (made("dckr", "_pat_", LETTERS[:27]),),
    "sendgrid_key": (made("SG", ".", LETTERS[:22], ".", LETTERS[:43]),),
    "digitalocean_token": (made("dop", "_v1_", "0a1b2c3d" * 8),),
    "shopify_token": (made("shpat", "_", "0a1b2c3d" * 4),),
    "vault_token": (made("hvs", ".", LETTERS[:95]),),
    "databricks_token": (made("dapi", "0a1b2c3d" * 4),),
    "grafana_token": (made("glsa", "_", LETTERS[:32], "_0a1b2c3d"),),
    "age_secret_key": (
        made("AGE-SECRET-", "KEY-1", "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" * 1, "QPZRY9X8GF2TVDW0S3JN54KHCE"),
    ),
    "jwt": (made("eyJ", "hbGciOiJIUzI1NiJ9", ".", "eyJ", "zdWIiOiIxIn0", ".", LETTERS[:43]),),
    "azure_storage_key": (made("Account", "Key=", "aB3+/" * 17, "x", "=="),),
    "private_key": (PEM, PEM.replace("\n", "\r\n"), PEM.replace("PRIVATE", "ENCRYPTED PRIVATE")),
}
ALL = [(name, number) for name in sorted(TOKENS) for number in range(len(TOKENS[name]))]
TOKEN = TOKENS["github_token"][0]

SCANNER = Scanner()


def found_in(value: Any) -> str | None:
    found = SCANNER.find(msgspec.json.encode(value))
    return None if found is None else found.pattern


# ── what is found ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_pattern_of_the_table_has_an_example() -> None:
    assert TOKENS.keys() == DEFAULT_PATTERNS.keys()


def as_is(token: str) -> bytes:
    return msgspec.json.encode({"a": {"b": [1, token]}})


def in_a_sentence(token: str) -> bytes:
    return msgspec.json.encode({"text": f'he said: "{token}", and that was it; https://x.example/?k={token}&b=1'})


def after_a_newline(token: str) -> bytes:
    return msgspec.json.encode({"text": f"first\n{token}\nlast\tand"})


def after_a_control_character(token: str) -> bytes:
    return json.dumps({"text": f"\x1b[1mfirst\x1b{token}"}).encode()


def as_json_in_json(token: str) -> bytes:
    return msgspec.json.encode({"text": json.dumps({"deep": json.dumps({"token": token})})})


def in_escapes(token: str) -> bytes:
    return (
        b'{"text":"'
        + "".join(f"\\u{ord(each):04x}" if each > " " else json.dumps(each)[1:-1] for each in token).encode()
        + b'"}'
    )


def with_hyphens_in_capital_escapes(token: str) -> bytes:
    return as_is(token).replace(b"-", b"\\u002D").replace(b"_", b"\\u005F")


def with_slashes_escaped(token: str) -> bytes:
    return as_is(token).replace(b"/", b"\\/")


def as_escapes_in_json_in_json(token: str) -> bytes:
    return msgspec.json.encode({"text": in_escapes(token).decode()})


def as_a_key(token: str) -> bytes:
    return msgspec.json.encode({token: 1})


def alone(token: str) -> bytes:
    return msgspec.json.encode(token)


def behind_a_long_text(token: str) -> bytes:
    return msgspec.json.encode({"text": "a hash " + "0f" * 32 + " and words. " * 5000 + token})


def in_a_query(token: str) -> bytes:
    return msgspec.json.encode({"text": f"https://x.example/?a%3D{token}"})


SPELLINGS: tuple[Callable[[str], bytes], ...] = (
    as_is,
    in_a_sentence,
    after_a_newline,
    after_a_control_character,
    as_json_in_json,
    in_escapes,
    with_hyphens_in_capital_escapes,
    with_slashes_escaped,
    as_escapes_in_json_in_json,
    as_a_key,
    alone,
    behind_a_long_text,
    in_a_query,
)


@pytest.mark.parametrize("spell", SPELLINGS, ids=lambda spell: spell.__name__)
@pytest.mark.parametrize(("name", "number"), ALL)
def test_a_secret_is_found_however_json_spells_it(name: str, number: int, spell: Callable[[str], bytes]) -> None:
    body = spell(TOKENS[name][number])
    found = SCANNER.find(body)
    assert found is not None and found.pattern == name
    assert 0 <= found.start < found.end <= len(body)


@pytest.mark.parametrize("spell", SPELLINGS, ids=lambda spell: spell.__name__)
def test_what_is_found_is_where_it_is_said_to_be(spell: Callable[[str], bytes]) -> None:
    body = spell(TOKEN)
    found = SCANNER.find(body)
    assert found is not None
    rest = body[: found.start] + b"x" + body[found.end :]
    assert SCANNER.find(rest.replace(TOKEN.encode(), b"x")) is None
    msgspec.json.decode(rest)  # no half of an escape stays


@pytest.mark.parametrize("name", sorted(set(DEFAULT_PATTERNS) - {"private_key", "azure_storage_key", "jwt"}))
def test_the_quick_look_sees_each_token_of_the_table(name: str) -> None:
    """What `is_token` promises: the example is found by the rows alone, with nothing else in the body."""
    pattern = DEFAULT_PATTERNS[name]
    assert isinstance(pattern, Pattern) and pattern.is_token
    for token in TOKENS[name]:
        assert Scanner({name: pattern}).find(token.encode()) is not None
        assert any(literal in token.encode() for literal in pattern.literals)


def test_each_literal_of_a_pattern_is_one_that_its_form_can_have() -> None:
    for name in sorted(DEFAULT_PATTERNS):
        pattern = DEFAULT_PATTERNS[name]
        assert isinstance(pattern, Pattern)
        assert all(SCANNER.find(token.encode()) or "\n" in token for token in TOKENS[name]), name


# ── what is left in peace ────────────────────────────────────────────────────────────────────────────────────────────

HARMLESS: Mapping[str, Any] = {
    "hashes": [hashlib.sha256(bytes([each])).hexdigest() for each in range(100)],
    "uuids": [str(uuid.UUID(int=each**9)) for each in range(100)],
    "base64": base64.b64encode(bytes(range(256)) * 64).decode(),
    "base64 of words": base64.b64encode(b"OpenAI and AKIA and ghp_ and OpenAI, " * 50).decode(),
    "base64 in a URL": base64.urlsafe_b64encode(bytes(range(256)) * 64).decode(),
    "an envelope": {"payload": base64.b64encode(json.dumps({"a": {"b": 1}}).encode()).decode(), "sig": LETTERS[:86]},
    "prose": "Set AKIA… or ghp_ or sk-ant- or eyJ in PRIVATE KEY; ask the task-force, npm_config_registry.",
    "an example of a manual": "AKIA" + "IOSFODNN7EXAMPLE",
    "a placeholder": ["ghp_xxxx", "sk_live_...", "sk-ant-api03-…", "hf_token", "glpat-<token>", "xoxb-your-token"],
    "a certificate": PEM.replace("PRIVATE KEY", "CERTIFICATE"),
    "a public key": PEM.replace("PRIVATE KEY", "PUBLIC KEY"),
    "a line of a manual": "It begins with -----BEGIN PRIVATE KEY----- and is base64.",
    "a test key": "sk_test_" + LETTERS[:24],
    "in a longer word": "x" + TOKEN,
    "identifiers": ["content_commitment_of_the_stored_body", "proposal-recorded-and-verified-by-the-engine"] * 20,
    "escapes": "\x1b[0m\x1b[1m/a/b\\u0041\\/" * 100,
    "numbers": [1.5, -0.0, 2**53, True, None],
}


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_only_looks_long_is_no_secret(name: str) -> None:
    assert found_in(HARMLESS[name]) is None
    assert SCANNER.find(json.dumps(HARMLESS[name]).encode()) is None


@given(st.binary(min_size=100, max_size=2000))
def test_no_random_data_is_a_secret(data: bytes) -> None:
    for text in (base64.b64encode(data), base64.urlsafe_b64encode(data), base64.b32encode(data), data.hex().encode()):
        assert SCANNER.find(b'{"data":"' + text + b'"}') is None


@settings(max_examples=30)
@given(
    st.recursive(st.none() | st.text() | st.integers(), lambda deep: st.lists(deep) | st.dictionaries(st.text(), deep))
)
def test_whatever_json_says_the_scanner_ends_and_masking_leaves_it(value: Any) -> None:
    assert found_in(value) is None
    assert masked(SCANNER, value) == value


# ── bounded work ─────────────────────────────────────────────────────────────────────────────────────────────────────

SIZE = 300_000
HOSTILE: Mapping[str, bytes] = {
    "backslashes": b"\\" * SIZE,
    "backslashes and an escape": b"\\" * SIZE + b"u0041",
    "escapes": b"\\u0041" * (SIZE // 6),
    "half escapes": b"\\u00" * (SIZE // 4),
    "escaped slashes": b"\\/" * (SIZE // 2),
    "a row": b"a" * SIZE,
    "rows that nearly are": (b"a" * 19 + b" ") * (SIZE // 20),
    "heads of JWTs": b"eyJ" * (SIZE // 3),
    "parts of JWTs": (b"eyJ" + b"a" * 17 + b".") * (SIZE // 21),
    "hyphens between heads": b"-eyJ" * (SIZE // 4),
    "PEM lines": (b"-----BEGIN PRIVATE KEY-----" + b"\\n" * 8) * (SIZE // 43),
    "PEM words": b"-----BEGIN " + b"A " * (SIZE // 2),
    "PEM and backslashes": b"-----BEGIN PRIVATE KEY-----" + b"\\" * SIZE,
    "a key of hyphens": b"-----BEGIN PRIVATE KEY-----\\n" + b"A" * 16 + b"----" * (SIZE // 4),
    "OpenAI": b"sk-" + b"T3BlbkFJ" * (SIZE // 8),
    "sk-": b"sk-proj-sk-" * (SIZE // 11),
    "account keys": b"AccountKey=" * (SIZE // 11),
    "SendGrid": b"SG." * (SIZE // 3) + b"a" * 30,
}


@pytest.mark.parametrize("name", sorted([*HOSTILE, *DEFAULT_PATTERNS]))
def test_work_is_linear_in_what_somebody_hostile_sends(name: str) -> None:
    """No time is asserted: quadratic work at this size would take minutes, and the test would be ended."""
    if name in HOSTILE:
        SCANNER.find(HOSTILE[name] + b'"')
        return
    pattern = DEFAULT_PATTERNS[name]
    assert isinstance(pattern, Pattern)
    for literal in pattern.literals:
        for fill in (b"", b"a", b"A", b"-", b"a" * 19, b"\\n"):
            SCANNER.find((literal + fill) * (20_000 // len(literal + fill)) + b" " + b"a" * 30)


def test_a_text_that_is_full_of_secrets_is_masked_as_a_whole() -> None:
    assert masked(SCANNER, " ".join([TOKEN] * 5)) == " ".join([MASK] * 5)
    assert masked(SCANNER, " ".join([TOKEN] * 1000)) == MASK


# ── a table of one's own ─────────────────────────────────────────────────────────────────────────────────────────────


def test_patterns_are_added_and_switched_off_by_name() -> None:
    body = msgspec.json.encode([TOKEN, "hse_0a1b2c3d"])
    ours = Pattern((b"hse_",), rb"hse_[0-9a-f]{8}")
    assert Scanner({"house": ours}).find(body) == Found("house", body.index(b"hse_"), len(body) - 2)
    found = Scanner({**DEFAULT_PATTERNS, "github_token": None, "house": ours}).find(body)
    assert found is not None and found.pattern == "house"
    assert Scanner({**DEFAULT_PATTERNS, "github_token": None}).find(body) is None
    assert Scanner({}).find(body) is None


def test_any_function_can_be_a_detector() -> None:
    seen: list[bytes] = []

    def detector(body: bytes) -> bool:
        seen.append(body)
        return b"hunter2" in body

    scanner = Scanner({**DEFAULT_PATTERNS, "passwords": detector})
    assert scanner.find(b'{"a":1}') is None
    assert scanner.find(b'{"a":"hunter2"}') == Found("passwords", 0, 15)
    assert place_of(scanner, b'{"a":[0,"hunter2"]}').path == "$.a[1]"
    assert masked(scanner, {"a": "so hunter2", "b": 1}) == {"a": MASK, "b": 1}
    assert len(seen) > 2


def test_a_detector_that_answers_something_else_is_no_answer() -> None:
    def detector(_: bytes) -> Any:
        return "maybe"

    with pytest.raises(TypeError, match="the detector 'odd' returned a str"):
        Scanner({"odd": detector}).find(b"{}")


def test_the_path_names_the_value_and_never_holds_a_secret() -> None:
    place = place_of(SCANNER, msgspec.json.encode({"a b": [{"ok": 1}, {"c": TOKEN}]}))
    assert (place.path, place.is_key) == ("$['a b'][1].c", False)
    place = place_of(SCANNER, msgspec.json.encode({"a": {TOKEN: {"b": TOKEN}}}))
    assert (place.path, place.is_key) == ("$.a", True)
    assert place_of(SCANNER, b"no json").path == "$"


# ── what a log does with it ──────────────────────────────────────────────────────────────────────────────────────────


async def stored(log: RunLog) -> int:
    return (await log.health()).head


def said(error: BaseException) -> str:
    return f"{error} {error!r} {getattr(error, 'details', '')} {error.__cause__!r} {error.__context__!r}"


async def test_a_secret_is_refused_with_its_path_and_nothing_is_written(log: RunLog) -> None:
    events = [NewEvent("noted", {"fine": 1}), NewEvent("noted", {"to": [{"token": TOKEN}]})]
    with pytest.raises(InvalidInput) as refusal:
        await log.append("notes", events, expect=Expect.any())
    error = refusal.value
    assert (error.code, error.path) == ("secret_found", "$.to[0].token")
    assert (error.details["pattern"], error.details["stream"]) == ("github_token", "notes")
    assert "secret_ref" in error.hint
    assert TOKEN not in said(error)
    assert await stored(log) == 0


@pytest.mark.parametrize("where", ["stream", "actor", "correlation_id", "type"])
async def test_a_name_that_holds_a_secret_is_refused_and_not_shown(log: RunLog, where: str) -> None:
    names: dict[str, Any] = {"stream": "notes", "actor": "os:1", "correlation_id": "c-1", "type": "noted"}
    names[where] = TOKEN
    event = NewEvent(names.pop("type"), {}, correlation_id=names.pop("correlation_id"))
    with pytest.raises(InvalidInput) as refusal:
        await log.append(names.pop("stream"), [event], expect=Expect.any(), **names)
    assert refusal.value.code == "secret_found"
    assert TOKEN not in said(refusal.value)
    assert await stored(log) == 0


async def test_without_a_scanner_everything_is_stored(tmp_path: Path) -> None:
    """The negative control: it is the scanner that refuses."""
    async with eventlog.open(tmp_path / "log.db", scanner=None) as log:
        await log.append("notes", [NewEvent("noted", {"to": TOKEN})], expect=Expect.any())
        await log.artifacts.put(TOKEN.encode())
        assert await stored(log) == 1


async def test_a_refused_secret_is_nowhere_in_the_files_of_the_log(tmp_path: Path) -> None:
    async with eventlog.open(tmp_path / "log.db") as log:
        await log.append("notes", [NewEvent("noted", {"fine": 1})], expect=Expect.any())
        with pytest.raises(InvalidInput):
            await log.append("notes", [NewEvent("noted", {"to": TOKEN})], expect=Expect.any())
        with pytest.raises(InvalidInput):
            await log.artifacts.put(b'"' + b"long " * 20_000 + TOKEN.encode() + b'"')
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"fine" in data for data in files)
    assert not any(TOKEN.encode() in data for data in files)


async def test_a_scanner_that_raises_refuses_the_append_and_does_not_show_its_error(tmp_path: Path) -> None:
    def broken(body: bytes) -> bool:
        raise ValueError(f"cannot read {body!r}")

    async with eventlog.open(tmp_path / "log.db", scanner=Scanner({"broken": broken})) as log:
        with pytest.raises(InvalidInput) as refusal:
            await log.append("notes", [NewEvent("noted", {"to": "marker"})], expect=Expect.any())
        assert refusal.value.code == "secret_scan_failed"
        assert "marker" not in f"{refusal.value} {refusal.value.details} {refusal.value.__cause__!r}"
        assert await stored(log) == 0


async def test_an_event_made_in_the_transaction_is_looked_at_and_the_transaction_undone(tmp_path: Path) -> None:
    async with eventlog.open(tmp_path / "log.db") as log:
        await log.create_table("CREATE TABLE bookings (id INTEGER)")

        def make(connection: Any) -> ActionExecuted:
            connection.execute("INSERT INTO bookings VALUES (1)")
            return ActionExecuted(action="book", op_key="0" * 64, result={"token": TOKEN})

        assert isinstance(log, TransactionalLog)
        with pytest.raises(InvalidInput) as refusal:
            await log.append_with("run:run-1", "action_executed", make, expect=Expect.any())
        assert (refusal.value.code, refusal.value.path) == ("secret_found", "$.result.token")
        assert await stored(log) == 0
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        assert connection.execute("SELECT count(*) FROM bookings").fetchone() == (0,)


# ── what happened is recorded all the same ───────────────────────────────────────────────────────────────────────────


async def approved(runner: eventlog.Runner, args: Any = None) -> None:
    outcome = await runner.propose("run-1", eventlog.propose("send", args or {}, "out"))
    assert outcome.run.proposal_hash is not None
    await runner.approve("run-1", outcome.run.proposal_hash)


async def bodies(log: RunLog) -> bytes:
    return b" ".join([event.body for event in await trace_of(log)])


async def test_an_effect_whose_result_holds_a_token_is_recorded_and_not_done_twice(
    log: RunLog, clock: FakeClock
) -> None:
    calls: list[Call] = []

    @eventlog.action("send")
    async def send(call: Call) -> Any:
        calls.append(call)
        return {"id": 7, "session": {"token": TOKEN}}

    runner = eventlog.Runner(log, actions=[send], clock=clock, lease_s=LEASE_S)
    await approved(runner)
    assert (await runner.resume("run-1")).result == "executed"
    executed = [event.data for event in await trace_of(log) if isinstance(event.data, ActionExecuted)]
    assert [(each.result, each.not_stored) for each in executed] == [(None, "secret_found at $.result.session.token")]
    assert (await runner.resume("run-1")).result == "already_completed"
    assert len(calls) == 1
    assert TOKEN.encode() not in await bodies(log)


@pytest.mark.parametrize("is_certain", [True, False])
async def test_an_effect_that_failed_with_a_token_in_its_message_is_recorded_without_it(
    log: RunLog, clock: FakeClock, is_certain: bool
) -> None:
    @eventlog.action("send")
    async def send(call: Call) -> Any:
        if is_certain:
            raise eventlog.ActionFailed("card_declined", f"bad token {TOKEN}!", sent=[TOKEN], is_final=True)
        raise OSError(f"bad token {TOKEN}!")

    runner = eventlog.Runner(log, actions=[send], clock=clock, lease_s=LEASE_S)
    await approved(runner)
    with pytest.raises(eventlog.ActionFailed if is_certain else eventlog.OutcomeUnknown):
        await runner.resume("run-1")
    last = (await trace_of(log))[-1]
    assert last.type == ("action_failed" if is_certain else "outcome_unknown")
    assert f"bad token {MASK}!".encode() in last.body
    assert TOKEN.encode() not in await bodies(log)


async def test_without_masking_the_trace_of_that_failure_would_be_lost(
    log: RunLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: it is the masking that keeps it."""

    @eventlog.action("send")
    async def send(call: Call) -> Any:
        raise OSError(f"bad token {TOKEN}!")

    monkeypatch.setattr(RunStreams, "without_secrets", lambda _, events: events)
    runner = eventlog.Runner(log, actions=[send], clock=clock, lease_s=LEASE_S)
    await approved(runner)
    with pytest.raises(InvalidInput):
        await runner.resume("run-1")
    assert (await trace_of(log))[-1].type == "resume_started"


async def test_a_target_that_holds_a_token_is_a_conflict_all_the_same(log: RunLog, clock: FakeClock) -> None:
    @eventlog.action("send")
    async def send(call: Call) -> Any:
        return eventlog.Conflicted(reason=f"it holds {TOKEN}", existing_content=f"token: {TOKEN}\n")

    runner = eventlog.Runner(log, actions=[send], clock=clock, lease_s=LEASE_S)
    await approved(runner)
    with pytest.raises(eventlog.ActionConflict):
        await runner.resume("run-1")
    last = (await trace_of(log))[-1]
    assert (last.type, last.data.reason, last.data.existing_content) == (
        "action_conflict",
        f"it holds {MASK}",
        f"token: {MASK}\n",
    )


async def test_a_refused_approval_that_names_a_secret_leaves_its_trace(log: RunLog, clock: FakeClock) -> None:
    runner = eventlog.Runner(log, actions=[eventlog.action("send")(Calls()("send"))], clock=clock, lease_s=LEASE_S)
    outcome = await runner.propose("run-1", eventlog.propose("send", {}, "out"))
    assert outcome.run.proposal_hash is not None
    with pytest.raises(eventlog.Refused):
        await runner.approve("run-1", TOKEN)
    last = (await trace_of(log))[-1]
    assert last.type == "proposal_rejected"
    assert last.data.supplied_hash == MASK
    await runner.approve("run-1", outcome.run.proposal_hash)


async def test_a_command_that_brings_a_secret_is_refused_and_can_be_given_again(log: RunLog, clock: FakeClock) -> None:
    runner = eventlog.Runner(log, actions=[eventlog.action("send")(Calls()("send"))], clock=clock, lease_s=LEASE_S)
    with pytest.raises(InvalidInput) as refusal:
        await runner.propose("run-1", eventlog.propose("send", {"token": TOKEN}, "out"))
    assert (refusal.value.code, refusal.value.path) == ("secret_found", "$.proposal.args.token")
    outcome = await runner.propose("run-1", eventlog.propose("send", {}, "out"))
    assert outcome.run.proposal_hash is not None
    with pytest.raises(InvalidInput):
        await runner.approve("run-1", outcome.run.proposal_hash, reason=TOKEN)
    assert (await runner.approve("run-1", outcome.run.proposal_hash, reason="fine")).status == "APPROVED"


async def test_a_step_whose_output_holds_a_token_has_failed_and_is_not_done_again(
    log: RunLog, clock: FakeClock
) -> None:
    calls = Calls()

    @eventlog.workflow
    async def flow(run: RunContext) -> Any:
        try:
            await run.step("look", calls("look", {"token": TOKEN}))
        except eventlog.StepFailed as error:
            await run.wait_for_signal("go")
            return error.details["path"]

    runner = runner_for(log, clock, flow)
    await runner.start(flow, "run-1")
    await runner.signal("run-1", "go")
    outcome = await runner.resume("run-1")
    assert (outcome.status, outcome.value) == ("COMPLETED", "$.output.token")
    assert calls.count("look") == 1
    assert TOKEN.encode() not in await bodies(log)


async def test_a_large_output_with_a_token_in_it_is_no_artifact_either(log: RunLog, clock: FakeClock) -> None:
    calls = Calls()

    @eventlog.workflow
    async def flow(run: RunContext) -> Any:
        return await run.step("look", calls("look", ["words " * 100_000, TOKEN]))

    outcome = await runner_for(log, clock, flow).start(flow, "run-1")
    assert outcome.status == "FAILED"
    assert calls.count("look") == 1


async def test_a_step_that_raises_a_token_fails_with_the_rest_of_its_message(log: RunLog, clock: FakeClock) -> None:
    async def breaks(*_: Any) -> None:
        raise ValueError(f"denied for {TOKEN} today")

    @eventlog.workflow
    async def flow(run: RunContext) -> Any:
        await run.step("look", breaks)

    outcome = await runner_for(log, clock, flow).start(flow, "run-1")
    assert outcome.status == "FAILED"
    said_of = [event for event in await trace_of(log) if event.type in ("step_failed", "run_failed")]
    assert len(said_of) == 2
    assert all(f"denied for {MASK} today".encode() in event.body for event in said_of)
    assert TOKEN.encode() not in await bodies(log)


async def test_a_workflow_that_returns_a_token_has_failed_and_its_log_says_why(log: RunLog, clock: FakeClock) -> None:
    @eventlog.workflow
    async def flow(run: RunContext) -> Any:
        return {"token": TOKEN}

    outcome = await runner_for(log, clock, flow).start(flow, "run-1")
    assert outcome.status == "FAILED"
    assert outcome.run.failure is not None
    assert outcome.run.failure.details == {"code": "secret_found", "path": "$.result.token"}
    assert TOKEN.encode() not in await bodies(log)


async def test_a_signal_with_a_token_is_refused_to_its_sender(log: RunLog, clock: FakeClock) -> None:
    @eventlog.workflow
    async def flow(run: RunContext) -> Any:
        return await run.wait_for_signal("go")

    runner = runner_for(log, clock, flow)
    await runner.start(flow, "run-1")
    with pytest.raises(InvalidInput) as refusal:
        await runner.signal("run-1", "go", {"token": TOKEN})
    assert (refusal.value.code, refusal.value.path) == ("secret_found", "$.payload.token")
    await runner.signal("run-1", "go", 5)
    assert (await runner.resume("run-1")).value == 5


async def test_a_row_that_returns_a_token_is_not_written(tmp_path: Path, clock: FakeClock) -> None:
    class Book:
        name = "send"
        promise = eventlog.Promise.TRANSACTIONAL

        def check(self, call: Call) -> None:
            """Refuse nothing."""

        def write(self, connection: Any, call: Call) -> Any:
            connection.execute("INSERT INTO bookings VALUES (1)")
            return {"token": TOKEN}

    async with SqliteLog(tmp_path / "log.db", actor="os:1") as log:
        await log.create_table("CREATE TABLE bookings (id INTEGER)")
        runner = eventlog.Runner(log, actions=[Book()], clock=clock, lease_s=LEASE_S)
        await approved(runner)
        with pytest.raises(eventlog.ActionFailed, match="its result cannot be stored"):
            await runner.resume("run-1")
        assert (await trace_of(log))[-1].type == "action_failed"


# ── an outside opinion ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name", ["aws_access_key_id", "github_token", "gitlab_token", "npm_token", "private_key", "slack_token"]
)
def test_a_detector_library_sees_the_same_secrets(name: str) -> None:
    """The library takes milliseconds for a body, and takes hashes for secrets: it is an oracle, not the scanner."""
    plugins = pytest.importorskip("detect_secrets.plugins", reason="the oracle `detect-secrets` is not installed")
    classes = {
        "aws_access_key_id": ("aws", "AWSKeyDetector"),
        "github_token": ("github_token", "GitHubTokenDetector"),
        "gitlab_token": ("gitlab_token", "GitLabTokenDetector"),
        "npm_token": ("npm", "NpmDetector"),
        "private_key": ("private_key", "PrivateKeyDetector"),
        "slack_token": ("slack", "SlackDetector"),
    }
    module, cls = classes[name]
    detector = getattr(__import__(f"{plugins.__name__}.{module}", fromlist=[cls]), cls)()
    token = TOKENS[name][0]
    line = token.splitlines()[0] if name != "npm_token" else f"//registry/:_authToken={token}"
    assert list(detector.analyze_string(line))
    assert SCANNER.find(msgspec.json.encode(token)) is not None

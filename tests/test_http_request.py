"""`HttpRequest` through the real runner, on a log in a file, against a real receiver that counts its effects."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import logging
import re
import socket
import ssl
import subprocess
import sys
import time
import traceback
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import eventlog
from eventlog import ActionConflict, ActionFailed, HttpRequest, InvalidInput, OutcomeUnknown, secret_ref
from eventlog.runtime.actions import secrets
from eventlog.runtime.actions.http_request import action as http_request
from eventlog.runtime.actions.http_request.answer import Lost, Unproved, reported
from eventlog.runtime.actions.http_request.urls import is_allowed, parse_url
from eventlog.runtime.actions.secrets import Revealed
from eventlog.runtime.effects import Call, Executed
from eventlog.runtime.failpoints import CRASH_STATUS
from eventlog.stores import SqliteLog
from eventlog.testing.clock import FakeClock
from tests import http_scenarios
from tests.effect_runs import assert_refused_as_unknown, give_verdict
from tests.http_receiver import (
    Exchange,
    Move,
    Receiver,
    acts,
    acts_and_bombs,
    acts_and_breaks_off,
    acts_and_drips,
    acts_and_echoes,
    acts_and_is_huge,
    acts_late,
    acts_then_drops,
    acts_then_fails,
    acts_unmarked,
    answers,
    drops,
    forgets_then_acts,
    redirects_to,
    stalls,
)
from tests.needs import need, need_command
from tools.campaigns.processes import child
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.log_files import assert_whole, open_file

ARGS: dict[str, Any] = {"json": {"b": 1, "a": "ä"}}
BODY = '{"a":"ä","b":1}'.encode()
MARKER = "marker/sec+ret<7f3a>\"ß'&x=9"
"""A secret of which every spelling differs from the secret itself."""
TOKEN = "marker-token-41c7d2"
"""A secret that may stand in a header."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    async with open_file(tmp_path / "log.db") as log:
        yield log
        await assert_whole(log)


def action_for(receiver: Receiver, **options: Any) -> HttpRequest:
    options.setdefault("allows", [receiver.origin])
    return HttpRequest(**{"key_lifetime_s": 3600, "timeout_s": 10, **options})


async def approved(
    log: SqliteLog, action: HttpRequest, url: str, args: dict[str, Any] | None = None, **options: Any
) -> eventlog.Runner:
    """Return a runner with the approved `run-1`."""
    runner = eventlog.Runner(log, actions=[action], **options)
    proposal = eventlog.propose("http_request", ARGS if args is None else args, url)
    await runner.propose("run-1", proposal)
    await runner.approve("run-1", proposal.hash)
    return runner


async def status(runner: eventlog.Runner) -> str:
    return (await runner.state("run-1")).status.value


async def last_event(runner: eventlog.Runner) -> tuple[str, Any]:
    event = (await runner.trace("run-1"))[-1]
    return event.type, event.data


async def key_of(runner: eventlog.Runner) -> str:
    key = (await runner.state("run-1")).op_key
    assert key is not None
    return key


# ── the straight path ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_request_is_sent_once_with_its_key_and_the_answer_is_stored(
    log: SqliteLog, receiver: Receiver
) -> None:
    runner = await approved(log, action_for(receiver), receiver.url)
    outcome = await runner.resume("run-1")
    key = await key_of(runner)
    assert (outcome.result, outcome.status) == ("executed", "COMPLETED")
    assert outcome.value == {
        "status": 201,
        "headers": {"content-type": "application/json"},
        "body": '{"order": 1}',
        "body_sha256": hashlib.sha256(b'{"order": 1}').hexdigest(),
        "body_bytes": 12,
        "is_cut": False,
    }
    again = await runner.resume("run-1")
    assert (again.result, again.value) == ("already_completed", outcome.value)
    assert receiver.effects == {key: 1}
    assert len(receiver.seen) == 1


async def test_what_is_sent_is_canonical_json_and_nothing_of_the_environment(
    log: SqliteLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://user:pass@127.0.0.1:1")
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    args = {**ARGS, "method": "PUT", "headers": {"X-Team": "red"}}
    runner = await approved(log, action_for(receiver), f"{receiver.url}?a=1&b=%20", args)
    await runner.resume("run-1")
    (seen,) = receiver.seen
    assert (seen.method, seen.path, seen.body) == ("PUT", "/orders?a=1&b=%20", BODY)
    assert seen.headers == {
        "host": receiver.origin.removeprefix("http://"),
        "x-team": "red",
        "content-type": "application/json",
        "content-length": str(len(BODY)),
        "user-agent": "eventlog-engine",
        "idempotency-key": await key_of(runner),
        "accept-encoding": "identity",
        "connection": "close",
    }


@pytest.mark.parametrize(
    ("args", "method", "body", "content_type"),
    [
        ({}, "POST", b"", None),
        ({"json": None}, "POST", b"null", "application/json"),
        ({"text": "ä\n", "method": "PATCH"}, "PATCH", "ä\n".encode(), "text/plain; charset=utf-8"),
        ({"method": "DELETE"}, "DELETE", b"", None),
        ({"json": [], "headers": {"Content-Type": "application/x"}}, "POST", b"[]", "application/x"),
    ],
)
async def test_a_request_has_json_or_text_or_nothing(
    log: SqliteLog, receiver: Receiver, args: dict[str, Any], method: str, body: bytes, content_type: str | None
) -> None:
    runner = await approved(log, action_for(receiver), receiver.url, args)
    await runner.resume("run-1")
    (seen,) = receiver.seen
    assert (seen.method, seen.body, seen.headers.get("content-type")) == (method, body, content_type)
    assert seen.headers["content-length"] == str(len(body))


async def test_no_cookie_is_kept_for_the_next_request(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(answers(429, set_cookie="a=b"))
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(ActionFailed):
        await runner.resume("run-1")
    await runner.resume("run-1")
    assert len(receiver.seen) == 2
    assert all("cookie" not in seen.headers for seen in receiver.seen)


async def test_a_body_that_is_no_text_is_stored_by_its_digest(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(answers(200, b"\xff\x00\xfe"))
    outcome = await (await approved(log, action_for(receiver), receiver.url)).resume("run-1")
    assert (outcome.value["body"], outcome.value["body_bytes"], outcome.value["is_cut"]) == (None, 3, False)


async def test_a_body_in_latin_1_is_read_as_such(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(answers(200, b"\xe4", content_type="text/plain; charset=ISO-8859-1"))
    outcome = await (await approved(log, action_for(receiver), receiver.url)).resume("run-1")
    assert outcome.value["body"] == "ä"


async def test_a_body_in_an_unknown_charset_is_no_text(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(answers(200, b"ab", content_type="text/plain; charset=utf-16"))
    outcome = await (await approved(log, action_for(receiver), receiver.url)).resume("run-1")
    assert (outcome.value["body"], outcome.value["body_bytes"]) == (None, 2)


async def test_a_user_agent_that_is_given_is_sent_instead_of_ours(log: SqliteLog, receiver: Receiver) -> None:
    runner = await approved(log, action_for(receiver), receiver.url, {"headers": {"User-Agent": "mine/1"}})
    await runner.resume("run-1")
    assert receiver.seen[0].headers["user-agent"] == "mine/1"


# ── no answer, and what the next attempt finds ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("move", [acts_then_drops, acts_then_fails, acts_late], ids=lambda move: move.__name__)
async def test_a_lost_answer_is_unknown_and_the_next_attempt_finds_the_one_effect(
    log: SqliteLog, receiver: Receiver, move: Move
) -> None:
    receiver.plan(move)
    timeout_s = 1 if move is acts_late else 10
    runner = await approved(log, action_for(receiver, timeout_s=timeout_s), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert await status(runner) == "OUTCOME_UNKNOWN"
    receiver.release()
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value["body"]) == ("recovered", '{"order": 1}')
    key = await key_of(runner)
    assert receiver.effects == {key: 1}
    kind, event = await last_event(runner)
    assert (kind, event.evidence) == ("action_recovered", {"op_key": key, "status": 201, "is_replay": True})


async def test_every_attempt_sends_the_same_bytes(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(acts_then_drops, drops, acts_then_fails)
    runner = await approved(log, action_for(receiver), receiver.url)
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            await runner.resume("run-1")
    await runner.resume("run-1")
    assert len(receiver.seen) == 4
    assert all(seen == receiver.seen[0] for seen in receiver.seen)
    assert receiver.effects == {await key_of(runner): 1}


async def test_a_replay_that_is_not_marked_counts_as_done_by_this_attempt(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(acts_then_drops, acts_unmarked)
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value["body"]) == ("executed", '{"order": 1}')
    assert receiver.effects == {await key_of(runner): 1}


async def test_a_receiver_that_forgets_before_its_time_acts_twice(log: SqliteLog, receiver: Receiver) -> None:
    """The documented limit, and the control of the counts above: it is the receiver that keeps the effect single."""
    receiver.plan(acts_then_drops, forgets_then_acts)
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    await runner.resume("run-1")
    assert receiver.effects == {await key_of(runner): 2}


async def test_a_receiver_that_never_answers_is_unknown(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(stalls)
    runner = await approved(log, action_for(receiver, timeout_s=1), receiver.url)
    with pytest.raises(OutcomeUnknown, match="no answer in 1 s"):
        await runner.resume("run-1")


async def test_what_was_executed_can_be_undone_by_the_action_that_is_named(log: SqliteLog, receiver: Receiver) -> None:
    @eventlog.action("cancel_order")
    async def cancel_order(call: Call) -> str:
        return f"cancelled {json.loads(call.args['result']['body'])['order']}"

    action = action_for(receiver, compensation="cancel_order")
    await (await approved(log, action, receiver.url)).resume("run-1")
    outcome = await eventlog.Runner(log, actions=[action, cancel_order]).compensate("run-1")
    assert (outcome.result, outcome.status) == ("compensated", "COMPENSATED")


async def test_a_cancelled_request_leaves_the_intent_open_and_is_found_later(
    log: SqliteLog, receiver: Receiver
) -> None:
    receiver.plan(acts_late)
    runner = await approved(log, action_for(receiver), receiver.url)
    task = asyncio.create_task(runner.resume("run-1"))
    await until(lambda: sum(receiver.effects.values()) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run = await runner.state("run-1")
    assert run.intent is not None
    receiver.release()
    assert (await runner.resume("run-1")).result == "recovered"
    assert receiver.effects == {await key_of(runner): 1}


# ── nothing was sent ──────────────────────────────────────────────────────────────────────────────────────────────────


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


async def assert_definitely_not_sent(log: SqliteLog, url: str, **options: Any) -> str:
    action = HttpRequest(**{"key_lifetime_s": 3600, "allows": None, "timeout_s": 10, **options})
    runner = await approved(log, action, url)
    with pytest.raises(ActionFailed, match="nothing was sent") as failure:
        await runner.resume("run-1")
    assert (failure.value.code, failure.value.is_final) == ("action_failed", False)
    assert await status(runner) == "APPROVED"
    return str(failure.value)


async def test_a_refused_connection_is_a_definite_failure(log: SqliteLog) -> None:
    await assert_definitely_not_sent(log, f"http://127.0.0.1:{unused_port()}/")


async def test_a_name_that_does_not_resolve_is_a_definite_failure(log: SqliteLog) -> None:
    await assert_definitely_not_sent(log, f"http://{'a' * 64}.invalid/")  # no resolver is asked for such a name


async def test_a_receiver_without_tls_is_a_definite_failure_of_https(log: SqliteLog, receiver: Receiver) -> None:
    await assert_definitely_not_sent(log, receiver.url.replace("http:", "https:"))
    assert receiver.seen == []


async def test_a_connection_that_is_not_made_in_time_is_a_definite_failure(log: SqliteLog) -> None:
    need(sys.platform == "linux", "a listener that lets connections wait when it is full")
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        said = await assert_definitely_not_sent(log, f"http://127.0.0.1:{address[1]}/", timeout_s=0.5)
        for each in waiting:
            each.close()
    assert "no connection in 0.5 s" in said


async def test_a_later_attempt_that_cannot_connect_leaves_the_outcome_unknown(
    log: SqliteLog, receiver: Receiver
) -> None:
    receiver.plan(acts_then_drops)
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    receiver.stop()
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert await status(runner) == "OUTCOME_UNKNOWN"


def test_what_the_library_does_not_say_counts_as_sent() -> None:
    progress = http_request._Progress(lambda name: None)
    assert progress.was_sent, "no event at all"
    for event, was_sent in [
        ("connection.connect_tcp.started", False),
        ("connection.start_tls.failed", False),
        ("http11.send_request_headers.started", True),
        ("http2.send_request_headers.started", True),
        ("something.new", True),
    ]:
        asyncio.run(progress.trace(event, {}))
        assert progress.was_sent is was_sent


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is signed by itself, and its key."""
    openssl = need_command("openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, "req", *new, *subject], check=True, capture_output=True, timeout=60)
    return certificate, key


async def test_a_certificate_counts_only_if_it_is_trusted(log: SqliteLog, certificate: tuple[Path, Path]) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*certificate)
    with Receiver(served) as receiver:
        runner = await approved(log, action_for(receiver), receiver.url)
        with pytest.raises(ActionFailed, match="nothing was sent"):
            await runner.resume("run-1")
        assert receiver.seen == []
        trusting = action_for(receiver, ssl_context=ssl.create_default_context(cafile=certificate[0]))
        outcome = await eventlog.Runner(log, actions=[trusting]).resume("run-1")
        assert outcome.result == "executed"
        assert receiver.effects == {await key_of(runner): 1}


# ── what an answer proves ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [400, 402, 404, 410, 422, 451])
async def test_a_refusal_of_the_request_itself_ends_the_run(log: SqliteLog, receiver: Receiver, code: int) -> None:
    receiver.plan(answers(code, b"no such product", x_request_id="r-1"))
    runner = await approved(log, action_for(receiver), receiver.url)
    for _ in range(2):
        with pytest.raises(ActionFailed, match=f"answered {code}: no such product") as failure:
            await runner.resume("run-1")
        assert (failure.value.code, failure.value.is_final) == ("request_refused", True)
        assert failure.value.details["status"] == code
        assert failure.value.details["body"] == "no such product"
        assert failure.value.details["headers"] == {"x-request-id": "r-1"}
    assert await status(runner) == "FAILED"
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("code", [401, 403, 407, 421, 423, 425, 429])
async def test_a_refusal_of_the_moment_or_the_sender_leaves_the_run_approved(
    log: SqliteLog, receiver: Receiver, code: int
) -> None:
    receiver.plan(answers(code))
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert (failure.value.code, failure.value.is_final) == ("request_refused", False)
    assert await status(runner) == "APPROVED"
    assert (await runner.resume("run-1")).result == "executed"
    assert receiver.effects == {await key_of(runner): 1}


@pytest.mark.parametrize("code", [300, 301, 302, 303, 304, 408, 500, 501, 502, 503, 504, 599])
async def test_an_answer_that_proves_nothing_is_unknown(log: SqliteLog, receiver: Receiver, code: int) -> None:
    receiver.plan(answers(code, b"", retry_after="1", location="/elsewhere"))
    runner = await approved(log, action_for(receiver, follows_redirects=True), receiver.url)
    with pytest.raises(OutcomeUnknown, match=f"the receiver answered {code}"):
        await runner.resume("run-1")
    assert await status(runner) == "OUTCOME_UNKNOWN"
    assert len(receiver.seen) == 1
    assert (await runner.resume("run-1")).result == "executed"
    assert receiver.effects == {await key_of(runner): 1}


@pytest.mark.parametrize("code", [307, 400, 401, 404, 408, 429, 500, 503])
async def test_the_answer_to_a_later_attempt_says_nothing_of_an_earlier_one(
    log: SqliteLog, receiver: Receiver, code: int
) -> None:
    """The control is above: as the answer to the only request, most of these are definite failures."""
    receiver.plan(acts_then_drops, answers(code))
    runner = await approved(log, action_for(receiver), receiver.url)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await runner.resume("run-1")
    assert (await runner.resume("run-1")).result == "recovered"
    assert receiver.effects == {await key_of(runner): 1}


async def test_a_later_422_is_a_key_that_belongs_to_another_payload(log: SqliteLog, receiver: Receiver) -> None:
    def uses_the_key_for_something_else(exchange: Exchange) -> None:
        exchange.receiver.act(exchange.key, b"another payload")
        exchange.drop()

    receiver.plan(uses_the_key_for_something_else)
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    with pytest.raises(ActionConflict) as conflict:
        await runner.resume("run-1")
    assert conflict.value.code == "idempotency_conflict"
    kind, event = await last_event(runner)
    assert kind == "action_conflict"
    assert "answered 422" in event.reason
    assert receiver.effects == {await key_of(runner): 1}, "ours was not done"


async def test_the_body_of_a_refusal_is_stored_as_far_as_an_event_can_hold_it(
    log: SqliteLog, receiver: Receiver
) -> None:
    receiver.plan(answers(400, b"x" * 3_000_000))
    runner = await approved(log, action_for(receiver), receiver.url)
    for _ in range(2):
        with pytest.raises(ActionFailed) as failure:
            await runner.resume("run-1")
        assert failure.value.details["body"] == "x" * 65536
        assert failure.value.details["is_cut"] is True


async def test_a_replayed_refusal_speaks_for_the_first_request_too(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(drops, answers(402, b"declined", idempotent_replayed="true"))
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    with pytest.raises(ActionFailed, match="declined") as failure:
        await runner.resume("run-1")
    assert failure.value.is_final
    assert await status(runner) == "FAILED"


async def test_a_replayed_fault_stays_unknown(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(drops, answers(500, idempotent_replayed="true"))
    runner = await approved(log, action_for(receiver), receiver.url)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await runner.resume("run-1")


async def test_a_request_in_flight_is_asked_after_until_it_is_done(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(acts_then_drops, answers(409, retry_after="0"), answers(409), acts)
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert (await runner.resume("run-1")).result == "recovered"
    assert len(receiver.seen) == 4
    assert all(seen == receiver.seen[0] for seen in receiver.seen), "same key, same bytes"
    assert receiver.effects == {await key_of(runner): 1}


@pytest.mark.parametrize(
    ("wait_s", "headers"),
    [
        (0, {}),
        (5, {"retry_after": "60"}),
        (5, {"retry_after": "Mon, 05 Jan 2026 10:01:00 GMT", "date": "Mon, 05 Jan 2026 10:00:00 GMT"}),
    ],
)
async def test_a_receiver_is_not_asked_longer_or_sooner_than_allowed(
    log: SqliteLog, receiver: Receiver, wait_s: float, headers: dict[str, str]
) -> None:
    def is_in_flight(exchange: Exchange) -> None:
        exchange._handler.send_response_only(409)
        for name, value in headers.items():
            exchange._handler.send_header(name.replace("_", "-"), value)
        exchange._handler.end_headers()

    receiver.plan(is_in_flight)
    runner = await approved(log, action_for(receiver, in_flight_wait_s=wait_s), receiver.url)
    with pytest.raises(OutcomeUnknown, match="still in flight"):
        await runner.resume("run-1")
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("later", [answers(404), drops], ids=["404", "drops"])
async def test_after_a_request_in_flight_no_answer_but_its_own_is_definite(
    log: SqliteLog, receiver: Receiver, later: Move
) -> None:
    receiver.plan(answers(409), later)
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert len(receiver.seen) == 2


def test_a_refused_connection_after_a_409_is_unknown_too() -> None:
    call = Call(run_id="r", action="http_request", args={}, output="http://127.0.0.1/", op_key="0" * 64, attempt=1)
    with pytest.raises(ActionFailed):
        reported(call, Lost(why="refused", was_sent=False))
    with pytest.raises(Unproved):
        reported(call, Lost(why="refused", was_sent=False, was_in_flight=True))


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("move", [acts_and_is_huge, acts_and_bombs], ids=lambda move: move.__name__)
async def test_a_huge_answer_is_cut_and_the_effect_stands(log: SqliteLog, receiver: Receiver, move: Move) -> None:
    receiver.plan(move)
    runner = await approved(log, action_for(receiver, max_response_bytes=1000), receiver.url)
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value["is_cut"], outcome.value["body_bytes"]) == ("executed", True, 1000)
    assert len(outcome.value["body"]) == 1000
    assert receiver.sent_bytes < 32 * 1024 * 1024, "the rest is not read"
    assert receiver.effects == {await key_of(runner): 1}


@pytest.mark.parametrize(("limit_mib", "is_small"), [(1, True), (64, False)], ids=["bounded", "control"])
async def test_a_bomb_takes_no_more_memory_than_the_limit(receiver: Receiver, limit_mib: int, is_small: bool) -> None:
    receiver.plan(acts_and_bombs, acts_and_bombs)
    action = action_for(receiver, max_response_bytes=limit_mib * 1024 * 1024)
    call = Call(run_id="r", action="http_request", args={}, output=receiver.url, op_key="0" * 64, attempt=1)
    await action.execute(call)  # makes the bomb, and loads what is loaded once
    tracemalloc.start()
    try:
        report = await action.execute(call)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(report, Executed)
    assert (peak < 16 * 1024 * 1024) is is_small


@pytest.mark.parametrize("move", [acts_and_breaks_off, acts_and_drips], ids=lambda move: move.__name__)
async def test_an_answer_that_breaks_off_or_never_ends_is_cut_and_the_effect_stands(
    log: SqliteLog, receiver: Receiver, move: Move
) -> None:
    receiver.plan(move)
    runner = await approved(log, action_for(receiver, timeout_s=1), receiver.url)
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value["status"], outcome.value["is_cut"]) == ("executed", 200, True)
    assert outcome.value["body"].startswith(("the beginning", ".."))
    assert receiver.effects == {await key_of(runner): 1}


async def test_an_answer_that_is_no_http_is_unknown(log: SqliteLog, receiver: Receiver) -> None:
    def babbles(exchange: Exchange) -> None:
        exchange.act()
        exchange.write(b"SSH-2.0-none\r\n\r\n")

    receiver.plan(babbles)
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    assert (await runner.resume("run-1")).result == "recovered"


async def test_a_body_is_never_cut_inside_a_character(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(answers(200, "aää".encode()))
    runner = await approved(log, action_for(receiver, max_response_bytes=4), receiver.url)
    value = (await runner.resume("run-1")).value
    assert (value["body"], value["body_bytes"], value["is_cut"]) == ("aä", 4, True)


async def test_gzip_that_was_not_asked_for_is_read_all_the_same(log: SqliteLog, receiver: Receiver) -> None:
    import gzip

    receiver.plan(answers(200, gzip.compress(b"hello"), content_encoding="gzip"))
    value = (await (await approved(log, action_for(receiver), receiver.url)).resume("run-1")).value
    assert (value["body"], value["is_cut"]) == ("hello", False)


# ── redirects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [307, 308])
async def test_a_redirect_is_not_followed_unless_that_is_asked_for(
    log: SqliteLog, receiver: Receiver, code: int
) -> None:
    receiver.plan(redirects_to("/elsewhere", code))
    runner = await approved(log, action_for(receiver), receiver.url)
    with pytest.raises(ActionFailed, match="'/elsewhere', which was not followed") as failure:
        await runner.resume("run-1")
    assert (failure.value.code, failure.value.is_final) == ("redirect_refused", True)
    assert len(receiver.seen) == 1


async def test_a_redirect_is_followed_with_the_same_method_key_and_body(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(redirects_to("/elsewhere", 308))
    args = {**ARGS, "method": "PATCH"}
    runner = await approved(log, action_for(receiver, allows=None, follows_redirects=True), receiver.url, args)
    assert (await runner.resume("run-1")).result == "executed"
    first, second = receiver.seen
    assert (second.method, second.path, second.headers, second.body) == ("PATCH", "/elsewhere", first.headers, BODY)


@pytest.mark.parametrize(
    ("is_allowed_there", "headers", "is_followed"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"Authorization": secret_ref("TOKEN")}, False),
        (True, {"Authorization": "Basic abc"}, False),
        (True, {"Cookie": "a=b"}, False),
    ],
)
async def test_another_origin_gets_the_request_only_if_it_is_allowed_and_no_secret_goes_along(
    log: SqliteLog, receiver: Receiver, is_allowed_there: bool, headers: dict[str, Any], is_followed: bool
) -> None:
    with Receiver() as other:
        receiver.plan(redirects_to(other.url))
        allows = [receiver.origin, *([other.origin] if is_allowed_there else [])]
        action = action_for(receiver, allows=allows, follows_redirects=True, secrets={"TOKEN": TOKEN})
        runner = await approved(log, action, receiver.url, {**ARGS, "headers": headers})
        if is_followed:
            assert (await runner.resume("run-1")).result == "executed"
        else:
            with pytest.raises(ActionFailed) as failure:
                await runner.resume("run-1")
            assert failure.value.code == "redirect_refused"
        assert len(other.seen) == is_followed


@pytest.mark.parametrize("target", ["/a/../b", "ftp://127.0.0.1/", "http://user@127.0.0.1/", "//other.invalid/"])
async def test_a_redirect_to_what_is_no_allowed_url_is_refused(log: SqliteLog, receiver: Receiver, target: str) -> None:
    receiver.plan(redirects_to(target))
    runner = await approved(log, action_for(receiver, follows_redirects=True), receiver.url)
    if target == "/a/../b":
        assert (await runner.resume("run-1")).result == "executed", "a relative target is resolved first"
        assert receiver.seen[1].path == "/b"
        return
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert failure.value.code == "redirect_refused"


async def test_a_circle_of_redirects_ends(log: SqliteLog, receiver: Receiver) -> None:
    receiver.plan(*[redirects_to("/again")] * 20)
    runner = await approved(log, action_for(receiver, follows_redirects=True), receiver.url)
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert failure.value.code == "redirect_refused"
    assert len(receiver.seen) == 6


async def test_a_receiver_behind_a_redirect_that_is_down_was_definitely_not_reached(
    log: SqliteLog, receiver: Receiver
) -> None:
    elsewhere = f"http://127.0.0.1:{unused_port()}"
    receiver.plan(redirects_to(f"{elsewhere}/"))
    action = action_for(receiver, allows=[receiver.origin, elsewhere], follows_redirects=True)
    runner = await approved(log, action, receiver.url)
    with pytest.raises(ActionFailed, match="nothing was sent"):
        await runner.resume("run-1")


# ── the key's lifetime ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_after_the_keys_lifetime_nothing_is_sent_until_a_person_has_settled_it(
    log: SqliteLog, receiver: Receiver
) -> None:
    clock = FakeClock(time.time_ns() // 1000)
    receiver.plan(drops)
    runner = await approved(log, action_for(receiver, key_lifetime_s=600), receiver.url, clock=clock)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    clock.advance(601)
    await assert_refused_as_unknown(runner)
    assert await status(runner) == "OUTCOME_UNKNOWN"
    assert len(receiver.seen) == 1
    await give_verdict(runner, "not_executed", evidence="the receiver has no such order")
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.status) == ("executed", "COMPLETED")
    assert receiver.effects == {await key_of(runner): 1}


async def test_within_the_keys_lifetime_the_request_is_sent_again(log: SqliteLog, receiver: Receiver) -> None:
    """The control of the test above."""
    clock = FakeClock(time.time_ns() // 1000)
    receiver.plan(drops)
    runner = await approved(log, action_for(receiver, key_lifetime_s=600), receiver.url, clock=clock)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    clock.advance(559)  # for a call lasts 40 s at most
    assert (await runner.resume("run-1")).result == "executed"


async def test_a_request_that_may_arrive_when_its_key_is_forgotten_is_not_sent_again(
    log: SqliteLog, receiver: Receiver
) -> None:
    clock = FakeClock(time.time_ns() // 1000)
    receiver.plan(drops)
    runner = await approved(log, action_for(receiver, key_lifetime_s=600), receiver.url, clock=clock)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    clock.advance(561)
    await assert_refused_as_unknown(runner)
    assert len(receiver.seen) == 1


async def test_a_person_can_say_that_it_was_executed(log: SqliteLog, receiver: Receiver) -> None:
    clock = FakeClock(time.time_ns() // 1000)
    receiver.plan(acts_then_drops)
    runner = await approved(log, action_for(receiver, key_lifetime_s=600), receiver.url, clock=clock)
    with pytest.raises(OutcomeUnknown):
        await runner.resume("run-1")
    clock.advance(601)
    await runner.reconcile("run-1", "executed", evidence="order 1 is there", result={"order": 1})
    outcome = await runner.resume("run-1")
    assert (outcome.result, outcome.value) == ("already_completed", {"order": 1})
    assert receiver.effects == {await key_of(runner): 1}


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

CRASHES = ["intent.after_commit", "effect.inside", "effect.after", "result.before_commit", "effect.after=kill"]


async def proposed_in_file(path: Path, receiver: Receiver) -> str:
    async with open_file(path) as log:
        await approved(log, action_for(receiver), receiver.url)
    return str(path)


@pytest.mark.parametrize("crash", CRASHES)
async def test_a_crash_and_a_resume_in_another_process_make_one_effect(
    tmp_path: Path, receiver: Receiver, crash: str
) -> None:
    path = await proposed_in_file(tmp_path / "log.db", receiver)
    crashed = await asyncio.to_thread(child.run, http_scenarios.resumes, path, receiver.origin, crash)
    assert crashed.returncode == (-9 if crash.endswith("=kill") else CRASH_STATUS), crashed.stderr
    resumed = await asyncio.to_thread(child.run, http_scenarios.resumes, path, receiver.origin, "")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.result["result"] in ({"executed"} if crash.startswith("intent") else {"executed", "recovered"})
    assert resumed.result["value"]["body"] == '{"order": 1}'
    assert list(receiver.effects.values()) == [1]
    async with open_file(path) as log:
        await assert_whole(log)


async def test_without_a_receiver_that_knows_the_key_a_crash_makes_two_effects(
    tmp_path: Path, receiver: Receiver
) -> None:
    """The control of the test above: the crash does fall between the effect and its record."""
    path = await proposed_in_file(tmp_path / "log.db", receiver)
    await asyncio.to_thread(child.run, http_scenarios.resumes, path, receiver.origin, "effect.after")
    receiver.forget()
    await asyncio.to_thread(child.run, http_scenarios.resumes, path, receiver.origin, "")
    assert list(receiver.effects.values()) == [2]


async def test_a_crash_whose_key_has_ended_is_given_up_and_not_repeated(tmp_path: Path, receiver: Receiver) -> None:
    path = await proposed_in_file(tmp_path / "log.db", receiver)
    await asyncio.to_thread(child.run, http_scenarios.resumes, path, receiver.origin, "effect.after")
    clock = FakeClock(time.time_ns() // 1000 + 3601 * 1_000_000)
    async with open_file(path) as log:
        runner = eventlog.Runner(log, actions=[action_for(receiver)], clock=clock)
        with pytest.raises(OutcomeUnknown, match="knows its op_key no longer"):
            await runner.resume("run-1")
        assert await status(runner) == "OUTCOME_UNKNOWN"
    assert len(receiver.seen) == 1


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SECRET_ARGS: dict[str, Any] = {
    "headers": {"Authorization": secret_ref("TOKEN", prefix="Bearer ")},
    "json": {"deep": [{"password": secret_ref("PASSWORD")}]},
}
SECRETS = {"TOKEN": TOKEN, "PASSWORD": MARKER}


SPELLINGS = [TOKEN, MARKER, json.dumps(MARKER)[1:-1], json.dumps(MARKER, ensure_ascii=False)[1:-1], "marker"]


def traces_in(*texts: str) -> list[str]:
    """Return the spellings of a secret, or the word that both begin with, that are found in texts."""
    return [each for text in texts for each in SPELLINGS if each in text]


def traces_beside(folder: Path) -> list[str]:
    """Return what is found in the database, its write-ahead log and all that lies beside them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"log.db", "log.db-wal"} <= {path.name for path in files}
    return [f"{path.name}: {each}" for path in files for each in SPELLINGS if each.encode() in path.read_bytes()]


async def everything_said_by(log: SqliteLog, receiver: Receiver, move: Move) -> str:
    """Resume once with secrets, and return all that came back, or was raised."""
    receiver.plan(move)
    runner = await approved(log, action_for(receiver, secrets=SECRETS), receiver.url, SECRET_ARGS)
    try:
        said = repr((await runner.resume("run-1")).run)
    except eventlog.EventLogError as error:
        said = "".join(traceback.format_exception(error)) + repr(error.details) + repr(error.__cause__)
    return said


def refuses_and_echoes(exchange: Exchange) -> None:
    exchange.answer(400, exchange.request.body + repr(exchange.request.headers).encode())


def fails_and_echoes(exchange: Exchange) -> None:
    exchange.answer(500, exchange.request.body + repr(exchange.request.headers).encode())


def redirects_with_a_secret(exchange: Exchange) -> None:
    exchange.answer(307, headers={"location": f"/{exchange.request.headers['authorization'].split()[1]}"})


def babbles_a_secret(exchange: Exchange) -> None:
    exchange.write(f"HTTP/1.1 {exchange.request.headers['authorization']}\r\n\r\n".encode())


ECHOES = [
    acts_and_echoes,
    refuses_and_echoes,
    fails_and_echoes,
    redirects_with_a_secret,
    babbles_a_secret,
    acts_then_drops,
]


@pytest.mark.parametrize("move", ECHOES, ids=lambda move: move.__name__)
async def test_a_secret_reaches_the_receiver_and_nothing_else(
    log: SqliteLog, receiver: Receiver, move: Move, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = await everything_said_by(log, receiver, move)
    (seen,) = receiver.seen
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert json.loads(seen.body) == {"deep": [{"password": MARKER}]}
    assert traces_in(said, caplog.text) == []
    assert traces_beside(tmp_path) == []
    if move is acts_and_echoes:
        assert "Bearer ***" in said


@pytest.mark.parametrize("move", ECHOES[:-1], ids=lambda move: move.__name__)
async def test_without_taking_secrets_out_they_are_found(
    log: SqliteLog, receiver: Receiver, move: Move, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above, for the log's files and for what is raised or returned."""
    monkeypatch.setattr(Revealed, "take_out", lambda self, data, is_cut=False: data)
    said = await everything_said_by(log, receiver, move)
    assert traces_in(said)
    assert traces_beside(tmp_path)


async def test_without_keeping_the_library_quiet_secrets_are_found_in_the_programs_log(
    log: SqliteLog, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The control for the program's log."""
    caplog.set_level(logging.DEBUG)
    loggers = [logging.getLogger(name) for name in ("httpcore.connection", "httpcore.http11")]
    action_for(receiver)
    for each in loggers:
        each.removeFilter(http_request._keep_quiet)
    try:
        receiver.plan(acts_and_echoes)
        action = action_for(receiver, secrets=SECRETS)
        for each in loggers:
            each.removeFilter(http_request._keep_quiet)
        await (await approved(log, action, receiver.url, SECRET_ARGS)).resume("run-1")
        assert TOKEN in caplog.text
    finally:
        for each in loggers:
            each.addFilter(http_request._keep_quiet)


def test_the_library_is_quiet_only_about_our_requests() -> None:
    HttpRequest(key_lifetime_s=3600, allows=None)
    record = logging.LogRecord("httpcore.http11", logging.DEBUG, "", 0, "somebody else's", None, None)
    assert http_request._keep_quiet(record)
    with http_request._no_debug_log():
        assert not http_request._keep_quiet(record)
    assert http_request._keep_quiet(record)


@pytest.mark.parametrize(
    "spell",
    [
        str,
        repr,
        json.dumps,
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps(text).replace("/", "\\/"),
        html.escape,
        quote,
        lambda text: quote(text, safe=""),
        lambda text: re.sub("%..", lambda escape: escape[0].lower(), quote(text)),
        lambda text: json.dumps(json.dumps(text, ensure_ascii=False)),
        lambda text: json.dumps({"echo": json.dumps({"deep": text})}),
        lambda text: base64.b64encode(text.encode()).decode(),
        lambda text: base64.b64encode(b"user:" + text.encode()).decode(),
        lambda text: base64.urlsafe_b64encode(b"ab" + text.encode() + b"c").decode(),
    ],
)
def test_a_secret_is_recognised_however_it_is_spelled(spell: Any) -> None:
    for secret in (MARKER, TOKEN):
        revealed = Revealed({"S": secret})
        assert revealed.put_in(secret_ref("S", prefix="p")) == f"p{secret}"
        echoed = f"<<{spell(secret)}>>"
        assert secrets.MARK in revealed.take_out_of_text(echoed)
        assert all(piece not in revealed.take_out_of_text(echoed) for piece in (secret, "marker", spell(secret)[4:-4]))


def test_a_secret_that_was_cut_off_is_taken_out_as_far_as_it_goes() -> None:
    revealed = Revealed({"S": TOKEN})
    revealed.put_in([secret_ref("S")])
    for size in range(1, len(TOKEN)):
        assert revealed.take_out(b"body " + TOKEN[:size].encode(), is_cut=True) == b"body "
    assert revealed.take_out(b"body " + TOKEN.encode(), is_cut=True) == b"body ***"
    assert revealed.take_out(b"body mark") == b"body mark", "nothing was cut off here"


def test_of_two_secrets_of_which_one_begins_the_other_nothing_stays() -> None:
    revealed = Revealed({"SHORT": TOKEN, "LONG": f"{TOKEN}-and-more"})
    revealed.put_in([secret_ref("SHORT"), secret_ref("LONG")])
    assert revealed.take_out_of_text(f"{TOKEN} {TOKEN}-and-more") == "*** ***"


@pytest.mark.parametrize("limit", range(1, 60, 7))
async def test_a_cut_body_holds_no_piece_of_a_secret(log: SqliteLog, receiver: Receiver, limit: int) -> None:
    receiver.plan(answers(200, b"." * 20 + TOKEN.encode() * 3))
    action = action_for(receiver, secrets=SECRETS, max_response_bytes=limit)
    value = (await (await approved(log, action, receiver.url, SECRET_ARGS)).resume("run-1")).value
    assert value["is_cut"]
    assert value["body"].strip(".*") == ""


def unknown_by_none(name: str) -> str | None:
    return None


def unknown_by_error(name: str) -> str | None:
    raise KeyError(name)


def fails_and_tells(name: str) -> str | None:
    raise RuntimeError(TOKEN)


@pytest.mark.parametrize(
    "given", [None, {}, {"TOKEN": ""}, {"TOKEN": "\ud800"}, unknown_by_none, unknown_by_error, fails_and_tells]
)
async def test_an_unknown_secret_is_refused_before_any_intent(
    log: SqliteLog, receiver: Receiver, given: Any, tmp_path: Path
) -> None:
    runner = await approved(log, action_for(receiver, secrets=given), receiver.url, SECRET_ARGS)
    with pytest.raises(ActionFailed, match=r"the secret .(TOKEN|PASSWORD).") as failure:
        await runner.resume("run-1")
    assert failure.value.code == "secret_unknown"
    assert TOKEN not in "".join(traceback.format_exception(failure.value))
    assert (await last_event(runner))[0] == "resume_rejected"
    assert receiver.seen == []


async def test_a_secret_that_no_header_can_hold_is_refused_and_not_shown(log: SqliteLog, receiver: Receiver) -> None:
    action = action_for(receiver, secrets={**SECRETS, "TOKEN": f"{TOKEN}\n"})
    runner = await approved(log, action, receiver.url, SECRET_ARGS)
    with pytest.raises(ActionFailed, match="'Authorization' is no visible ASCII text") as failure:
        await runner.resume("run-1")
    assert TOKEN not in "".join(traceback.format_exception(failure.value)) + repr(failure.value.details)
    assert receiver.seen == []


async def test_a_secret_lost_between_two_attempts_proves_nothing_of_the_first(receiver: Receiver) -> None:
    given = dict(SECRETS)
    action = action_for(receiver, secrets=given)
    call = Call(run_id="r", action="http_request", args=SECRET_ARGS, output=receiver.url, op_key="0" * 64, attempt=2)
    given.clear()
    with pytest.raises(Unproved, match="the secret"):
        await action.execute(call)


async def test_a_secret_lost_before_the_only_attempt_proves_that_nothing_was_done(receiver: Receiver) -> None:
    given = dict(SECRETS)
    action = action_for(receiver, secrets=given)
    call = Call(run_id="r", action="http_request", args=SECRET_ARGS, output=receiver.url, op_key="0" * 64, attempt=1)
    given.clear()
    with pytest.raises(ActionFailed, match="the secret") as failure:
        await action.execute(call)
    assert failure.value.code == "secret_unknown"
    assert receiver.seen == []


async def test_a_function_may_know_the_secrets(log: SqliteLog, receiver: Receiver) -> None:
    runner = await approved(log, action_for(receiver, secrets=SECRETS.get), receiver.url, SECRET_ARGS)
    assert (await runner.resume("run-1")).result == "executed"
    assert receiver.seen[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_secrets_need_a_list_of_where_they_may_go() -> None:
    with pytest.raises(InvalidInput, match="`allows`"):
        HttpRequest(key_lifetime_s=3600, allows=None, secrets=SECRETS)


# ── what is refused before anything is sent ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "args",
    [
        {"json": 1, "text": "x"},
        {"body": "x"},
        {"method": "GET"},
        {"method": "post"},
        {"method": 1},
        {"text": 1},
        {"text": {"$secret": "TOKEN"}},
        {"headers": []},
        {"headers": {"X": 1}},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X": "a\nb"}},
        {"headers": {"X": " a"}},
        {"headers": {"X": "ä"}},
        {"headers": {"X": "a\0"}},
        {"headers": {"X Y": "a"}},
        {"headers": {"X:": "a"}},
        {"headers": {"": "a"}},
        {"headers": {"X": "a", "x": "b"}},
        {"headers": {"X": {"a": "b"}}},
        {"headers": {"Idempotency-Key": "mine"}},
        {"headers": {"idempotency-key": "mine"}},
        {"headers": {"Host": "other"}},
        {"headers": {"Content-Length": "0"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"Connection": "keep-alive"}},
        {"headers": {"Proxy-Authorization": "x"}},
        {"headers": {"X": {"$secret": "TOKEN", "suffix": "x"}}},
        {"headers": {"X": {"$secret": 1}}},
        {"json": {"$secret": "TOKEN", "prefix": 1}},
        {"json": "x" * 5000},
        {"text": "x" * 5000},
    ],
    ids=lambda args: repr(args)[:60],
)
async def test_arguments_that_cannot_be_sent_are_refused_before_any_intent(
    log: SqliteLog, receiver: Receiver, args: dict[str, Any]
) -> None:
    action = action_for(receiver, secrets=SECRETS, max_request_bytes=4096)
    runner = await approved(log, action, receiver.url, args)
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert failure.value.code == "invalid_arguments"
    assert (await last_event(runner))[0] == "resume_rejected"
    assert receiver.seen == []


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1",
        "/orders",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "http:/127.0.0.1/",
        "http://",
        "http:///orders",
        "http://user:pass@127.0.0.1/",
        "http://user@127.0.0.1/",
        "http://127.0.0.1/#part",
        "http://127.0.0.1/#",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/a\r\nX: y",
        "http://127.0.0.1\\@other.invalid/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://127.0.0.1:/",
        "http://exämple.invalid/",
        "http://127.0.0.1/a/../b",
        "http://127.0.0.1/a/%2e%2E/b",
        "http://127.0.0.1/a/%252e%252e/b",
        "http://127.0.0.1/a/..;x/b",
        "http://127.0.0.1/a/..%2fb",
        "http://127.0.0.1/a/..%5cb",
        "http://127.0.0.1/./",
        "http://[::1/",
        "http://a..b/",
        "http://a,b/",
        "https://127.0.0.1/orders",
        "http://127.0.0.2/orders",
        "http://127.0.0.1.other.invalid/orders",
    ],
)
async def test_a_url_that_is_not_allowed_or_not_plain_is_refused_before_any_intent(log: SqliteLog, url: str) -> None:
    action = HttpRequest(key_lifetime_s=3600, allows=["http://127.0.0.1"])
    runner = await approved(log, action, url)
    with pytest.raises(ActionFailed) as failure:
        await runner.resume("run-1")
    assert failure.value.code == "url_not_allowed"
    assert (await last_event(runner))[0] == "resume_rejected"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://256.256.256.256/", "the HTTP client does not take it"),
        ("http://127.0.0.1/%2525252525252e/b", "its path holds `.` or `..`"),
    ],
)
def test_a_url_that_two_readers_could_read_differently_is_refused(url: str, why: str) -> None:
    action = HttpRequest(key_lifetime_s=3600, allows=None)
    call = Call(run_id="r", action="http_request", args={}, output=url, op_key="0" * 64, attempt=1)
    with pytest.raises(ActionFailed) as failure:
        action.check(call)
    assert failure.value.code == "url_not_allowed"
    assert why in str(failure.value)


def test_a_url_that_the_client_reads_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No URL is known that is: the readings are compared, whatever a later client makes of them."""
    read = httpx.URL
    monkeypatch.setattr(httpx, "URL", lambda text: read(text.replace("127.0.0.1", "127.0.0.2")))
    action = HttpRequest(key_lifetime_s=3600, allows=["http://127.0.0.1"])
    call = Call(run_id="r", action="http_request", args={}, output="http://127.0.0.1/", op_key="0" * 64, attempt=1)
    with pytest.raises(ActionFailed, match="the HTTP client reads it in another way") as failure:
        action.check(call)
    assert failure.value.code == "url_not_allowed"


@pytest.mark.parametrize("url", ["http://[FE80::1]/", "http://[::FFFF:127.0.0.1]:80/", "HTTP://LOCALHOST/"])
def test_a_host_in_upper_case_is_the_same_host(url: str) -> None:
    for allows in (None, [url.lower()]):
        action = HttpRequest(key_lifetime_s=3600, allows=allows)
        action.check(Call(run_id="r", action="http_request", args={}, output=url, op_key="0" * 64, attempt=1))


def test_a_json_without_an_exact_form_is_refused_by_the_action_too() -> None:
    action = HttpRequest(key_lifetime_s=3600, allows=None)
    args = {"json": [2**60]}
    call = Call(run_id="r", action="http_request", args=args, output="http://a/", op_key="0" * 64, attempt=1)
    with pytest.raises(ActionFailed, match="no exact canonical form") as failure:
        action.check(call)
    assert failure.value.code == "invalid_arguments"


def test_a_password_in_a_url_is_refused_with_the_way_to_give_it() -> None:
    with pytest.raises(ValueError, match="user information; send it as a header"):
        parse_url("http://user:pass@127.0.0.1/")


@pytest.mark.parametrize(
    ("entry", "url", "is_in"),
    [
        ("https://api.example.com", "https://api.example.com/", True),
        ("https://api.example.com", "https://API.example.com:443/x?y", True),
        ("https://api.example.com/", "https://api.example.com", True),
        ("https://api.example.com", "http://api.example.com/", False),
        ("https://api.example.com", "https://api.example.com:8443/", False),
        ("https://api.example.com", "https://api.example.com.evil.invalid/", False),
        ("https://api.example.com", "https://evil.invalid/https://api.example.com", False),
        ("https://api.example.com/v1", "https://api.example.com/v1", True),
        ("https://api.example.com/v1", "https://api.example.com/v1?x", True),
        ("https://api.example.com/v1", "https://api.example.com/v1/orders", True),
        ("https://api.example.com/v1", "https://api.example.com/v10", False),
        ("https://api.example.com/v1/", "https://api.example.com/v1", False),
        ("https://api.example.com/v1/", "https://api.example.com/v1/orders", True),
        ("http://[::1]:8080", "http://[::1]:8080/x", True),
    ],
)
def test_a_url_is_allowed_at_or_below_an_entry(entry: str, url: str, is_in: bool) -> None:
    assert is_allowed(parse_url(url), [parse_url(entry)]) is is_in


@pytest.mark.parametrize(
    "options",
    [
        {"allows": "https://api.example.com"},
        {"allows": ["api.example.com"]},
        {"allows": ["https://api.example.com/v1?x=1"]},
        {"timeout_s": 0},
        {"timeout_s": True},
        {"timeout_s": float("nan")},
        {"in_flight_wait_s": -1},
        {"max_response_bytes": -1},
        {"key_lifetime_s": 0},
        {"key_lifetime_s": None},
        {"name": ""},
    ],
    ids=repr,
)
def test_an_action_that_could_not_work_is_not_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        HttpRequest(**{"key_lifetime_s": 3600, "allows": None, **options})


def test_a_key_that_is_forgotten_before_a_call_is_over_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"forgets a key after 60 s, and a call may last 60 s") as refusal:
        HttpRequest(key_lifetime_s=60, allows=None, timeout_s=20, in_flight_wait_s=40)
    assert refusal.value.code == "invalid_argument"
    longer = HttpRequest(key_lifetime_s=60.5, allows=None, timeout_s=20, in_flight_wait_s=40)
    assert longer.request_life_s == 60


# ── the extra ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_the_library_the_action_says_which_extra_to_install() -> None:
    done = child.run(http_scenarios.makes_one_without_httpx)
    assert done.returncode == 0, done.stderr
    assert done.result == {
        "is_importable": True,
        "code": "missing_extra",
        "message": "HttpRequest needs the extra `http`: install `eventlog-engine[http]`",
    }


@pytest.mark.parametrize("program", ["import eventlog", "import eventlog; eventlog.HttpRequest; eventlog.secret_ref"])
def test_naming_the_action_does_not_load_the_library(program: str) -> None:
    code = f"{program}; import sys; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "False"

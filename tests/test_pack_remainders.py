"""What may be left of an erased body: the pack's verifier, one file without imports, has the engine's own rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from eventlog.audit.pack import verifier
from eventlog.remainders import ERASED, REMAINDERS, remainder_of

WORDS: Final = "call anna at home"
ENVELOPE: Final = {"payload": "e30=", "payloadType": "application/x", "signatures": [{"keyid": "k", "sig": "s"}]}
INSIDE: Final = {
    "owner": {"host": "h", "boot": "b", "lock": "l"},
    "waiting": {"type": "approval", "node_id": "pay", "due_us": 7},
    "also_waiting": [{"type": "timer", "node_id": "t"}, {"type": "signal", "node_id": "s"}],
    "definition": {"workflow": "buy", "fingerprint": "f", "version": 1, "steps": ["a"]},
    "parent": {"run_id": "r", "step": "s"},
    "policy": {"required": 1, "roles": ["cfo"], "level": 2},
    "error": {"code": "card_declined", "message": WORDS, "type": "ValueError", "details": {"a": 1}},
    "proposal": {"action": "pay", "args": {"amount": "25"}, "output": "account-7"},
    "envelope": ENVELOPE,
    "input": [WORDS],
}


def body_of(type: str, **more: Any) -> dict[str, Any]:
    """Return a body in which every field has something."""
    return {name: INSIDE.get(name, "a_word") for name in REMAINDERS[type]} | more


def engine_takes(type: str, left: dict[str, Any]) -> bool:
    """Say whether the engine takes this for the remainder of a body, whatever its order."""
    try:
        return bool(json.loads(remainder_of(type, json.dumps(left).encode())) == left)
    except (TypeError, KeyError, AttributeError):
        return False


def verifier_takes(type: str, left: dict[str, Any]) -> bool:
    return verifier._is_left(verifier.REMAINS.get(type, ""), left)


def variants(type: str) -> Iterator[dict[str, Any]]:
    """Give remainders, and what somebody might leave instead: with a field more, or with something else in a field."""
    left = json.loads(remainder_of(type, json.dumps(body_of(type)).encode()))
    yield left
    yield {}
    yield {**left, "extra": 1}
    for name in REMAINDERS[type]:
        for value in (
            WORDS,
            "a_word",
            None,
            7,
            True,
            ERASED,
            [ERASED],
            [WORDS],
            {"a": WORDS},
            INSIDE.get(name),
            [left],
        ):
            yield {**left, name: value}
        for inner in left[name] if isinstance(left.get(name), dict) else ():
            yield {**left, name: {**left[name], inner: WORDS}}
            yield {**left, name: {**left[name], "extra": WORDS}}


@pytest.mark.parametrize("type", sorted(REMAINDERS))
def test_the_verifier_takes_what_the_engine_takes_and_nothing_else(type: str) -> None:
    seen = [(left, engine_takes(type, left)) for left in variants(type)]
    assert [left for left, is_taken in seen if verifier_takes(type, left) != is_taken] == []
    assert {is_taken for _, is_taken in seen} == {True, False}


def test_nothing_is_left_of_what_is_not_of_a_run() -> None:
    assert verifier_takes("order_placed", {})
    assert not verifier_takes("order_placed", {"n": 1})
    assert verifier.REMAINS.keys() == REMAINDERS.keys()

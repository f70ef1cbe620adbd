"""Proposals: one canonical form, the one that RFC 8785 names, and what runs is decoded from it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eventlog.errors import EventLogError, InvalidInput
from eventlog.plain import Limits, parse_json
from eventlog.proposal import (
    Proposal,
    canonical_args,
    canonical_bytes,
    checked_proposal,
    hash_of,
    op_key,
    propose,
    request_id_for,
    stored_proposal,
)
from tests.strategies import json_plain, texts

VECTORS = Path(__file__).parent / "vectors"
CASES = sorted(path.stem for path in (VECTORS / "rfc8785" / "input").iterdir())
SEED: list[dict[str, Any]] = json.loads((VECTORS / "seed_hashes.json").read_text(encoding="utf-8"))

args_of_all_kinds = st.dictionaries(texts, json_plain, max_size=4)
targets = texts.filter(lambda text: text != "" and "\0" not in text)


# ── RFC 8785 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_there_are_vectors() -> None:
    assert CASES == ["arrays", "french", "structures", "unicode", "values", "weird"]
    assert len(SEED) == 5


@pytest.mark.parametrize("case", CASES)
def test_canonical_bytes_are_those_of_the_reference(case: str) -> None:
    value = parse_json((VECTORS / "rfc8785" / "input" / f"{case}.json").read_bytes())
    found = canonical_bytes(value)
    assert found == (VECTORS / "rfc8785" / "output" / f"{case}.json").read_bytes()
    assert found == bytes.fromhex((VECTORS / "rfc8785" / "outhex" / f"{case}.txt").read_text())


@pytest.mark.parametrize("seed", SEED, ids=[seed["sha256"][:8] for seed in SEED])
def test_hashes_are_those_that_were_published(seed: dict[str, Any]) -> None:
    proposal = propose(seed["action"], seed["args"], seed["output"])
    assert proposal.canonical.decode() == seed["canonical"]
    assert proposal.hash == seed["sha256"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, b"0"),
        (-0.0, b"0"),
        (1.0, b"1"),
        (1.5, b"1.5"),
        (1e21, b"1e+21"),
        (1e-6, b"0.000001"),
        (1e-7, b"1e-7"),
        (5e-324, b"5e-324"),
        (1.7976931348623157e308, b"1.7976931348623157e+308"),
        (333333333.33333329, b"333333333.3333333"),
        (2**53 - 1, b"9007199254740991"),
    ],
)
def test_a_number_is_spelled_as_ecmascript_does(number: float, text: bytes) -> None:
    assert canonical_bytes(number) == text


def same_json(one: Any, other: Any) -> bool:
    """Say whether two values are the same JSON: numbers compare as numbers, and nothing else is a number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


@given(json_plain)
def test_canonical_bytes_spell_the_value_they_were_made_of(value: Any) -> None:
    assert same_json(json.loads(canonical_bytes(value)), value)


@given(json_plain, json_plain)
def test_two_values_have_the_same_bytes_only_if_they_are_the_same_json(one: Any, other: Any) -> None:
    assert (canonical_bytes(one) == canonical_bytes(other)) == same_json(one, other)


@given(st.dictionaries(texts, json_plain, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical_bytes(dict(items)) == canonical_bytes(value)


@given(json_plain)
def test_canonical_bytes_of_canonical_bytes_are_the_same(value: Any) -> None:
    first = canonical_bytes(value)
    assert canonical_bytes(json.loads(first)) == first


@pytest.mark.parametrize("number", [2.0**53, 5.573092662399899e16, 1e20, -1e20, 999999999999999900000.0])
def test_a_float_that_would_be_spelled_as_another_integer_is_refused(number: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        canonical_bytes({"a": [number]})
    assert (caught.value.code, caught.value.path) == ("number_too_large", "$.a[0]")
    assert canonical_bytes([1e21, 2.0**53 - 1]) == b"[1e+21,9007199254740991]"


# ── proposals ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(args_of_all_kinds, targets)
def test_a_proposal_is_what_its_bytes_spell(args: dict[str, Any], output: str) -> None:
    proposal = propose("write", args, output)
    assert Proposal.decode(proposal.canonical) == stored_proposal(proposal.canonical) == proposal
    assert checked_proposal(proposal) == proposal
    assert proposal.hash == hash_of(proposal.canonical) == sha256(proposal.canonical).hexdigest()
    assert json.loads(proposal.canonical) == {"action": "write", "args": proposal.args, "output": output}
    assert same_json(proposal.args, args)
    assert canonical_args(proposal.canonical).encode() == canonical_bytes(args)


@given(args_of_all_kinds, args_of_all_kinds, targets, targets)
def test_only_the_same_proposal_has_the_same_hash(
    one: dict[str, Any], other: dict[str, Any], here: str, there: str
) -> None:
    same = same_json(one, other) and here == there
    assert (propose("write", one, here).hash == propose("write", other, there).hash) == same


def test_a_float_that_is_whole_is_an_integer_before_anybody_approves_it() -> None:
    proposal = propose("pay", {"amount": 1.0, "change": -0.0}, "account:7")
    assert [(type(value), value) for value in proposal.args.values()] == [(int, 1), (int, 0)]
    assert proposal.hash == propose("pay", {"amount": 1, "change": 0}, "account:7").hash


def test_the_parts_of_a_proposal_do_not_run_together() -> None:
    hashes = {
        propose("a", {}, "b").hash,
        propose("b", {}, "a").hash,
        propose("a", {"output": "b"}, "b").hash,
        propose("a", {"args": {}}, "b").hash,
        propose('a","x":"', {}, "b").hash,
    }
    assert len(hashes) == 5


@pytest.mark.parametrize(
    ("action", "args", "output", "code", "path"),
    [
        ("", {}, "x", "invalid_id", "$"),
        ("a\nb", {}, "x", "invalid_id", "$"),
        ("x" * 129, {}, "x", "invalid_id", "$"),
        (7, {}, "x", "invalid_id", "$"),
        ("a", [], "x", "unsupported_type", "$.args"),
        ("a", None, "x", "unsupported_type", "$.args"),
        ("a", {}, "", "invalid_id", "$.output"),
        ("a", {}, "a\0b", "invalid_id", "$.output"),
        ("a", {}, None, "unsupported_type", "$.output"),
        ("a", {}, b"x", "unsupported_type", "$.output"),
        ("a", {}, "\ud800", "invalid_text", "$.output"),
        ("a", {"n": 2**53}, "x", "number_too_large", "$.args.n"),
        ("a", {"n": [-(2**53)]}, "x", "number_too_large", "$.args.n[0]"),
        ("a", {"n": float("nan")}, "x", "non_finite_number", "$.args.n"),
        ("a", {"n": "\ud800"}, "x", "invalid_text", "$.args.n"),
        ("a", {"\ud800": 1}, "x", "invalid_text", r"$.args['\ud800']"),
        ("a", {1: 1}, "x", "non_string_key", "$.args"),
        ("a", {"n": (1,)}, "x", "unsupported_type", "$.args.n"),
        ("a", {"n": b""}, "x", "unsupported_type", "$.args.n"),
    ],
)
def test_what_has_no_exact_canonical_form_is_refused(action: Any, args: Any, output: Any, code: str, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        propose(action, args, output)
    assert (caught.value.code, caught.value.path) == (code, path)


def test_a_target_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        propose("a", {}, "x" * 1000, limits=Limits(body_bytes=1000))
    assert caught.value.code == "payload_too_large"
    with pytest.raises(InvalidInput) as caught:
        canonical_bytes(["\x01" * 100], limits=Limits(body_bytes=500))
    assert caught.value.code == "payload_too_large"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"action":"a","args":{}}',
        b'{"action":"a","args":[],"output":"x"}',
        b'{"action":1,"args":{},"output":"x"}',
        b'{"action":"a","args":{},"output":"x","more":1}',
        b'{"action":"a","args":{},"output":"x"} x',
        b'{"action":"a","args":{},"output":"\xff"}',
    ],
)
def test_stored_bytes_that_are_no_proposal_are_refused(data: bytes) -> None:
    for decode in (Proposal.decode, stored_proposal):
        with pytest.raises(EventLogError) as caught:
            decode(data)
        assert caught.value.code == "invalid_event"


OTHERWISE_SPELLED = {
    "a key of the args twice": b'{"action":"pay","args":{"cents":1,"cents":1000000},"output":"bank"}',
    "a key inside the args twice": b'{"action":"pay","args":{"to":[{"a":1,"a":1}]},"output":"bank"}',
    "the action twice": b'{"action":"note","action":"pay","args":{},"output":"bank"}',
    "white space": b'{"action": "pay","args":{},"output":"bank"}',
    "white space behind": b'{"action":"pay","args":{},"output":"bank"}\n',
    "another order of keys": b'{"args":{},"action":"pay","output":"bank"}',
    "another order inside the args": b'{"action":"pay","args":{"b":1,"a":2},"output":"bank"}',
    "a whole number with a fraction": b'{"action":"pay","args":{"cents":1.0},"output":"bank"}',
    "a number with an exponent": b'{"action":"pay","args":{"cents":1e2},"output":"bank"}',
    "a zero below zero": b'{"action":"pay","args":{"cents":-0},"output":"bank"}',
    "more digits than the number has": b'{"action":"pay","args":{"cents":0.1000000000000000055},"output":"bank"}',
    "a letter that is escaped": b'{"action":"pay","args":{"to":"\\u0041"},"output":"bank"}',
}


@pytest.mark.parametrize("data", OTHERWISE_SPELLED.values(), ids=OTHERWISE_SPELLED)
def test_bytes_that_spell_a_proposal_otherwise_than_rfc_8785_are_none_of_a_caller(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="not the canonical form") as caught:
        Proposal.decode(data)
    assert caught.value.code == "invalid_event"
    stored = stored_proposal(data)
    assert (stored.action, stored.output, stored.canonical) == ("pay", "bank", data), "what a log holds can be read"


@pytest.mark.parametrize(
    "data",
    [
        b'{"action":"pay","args":{"cents":9007199254740992},"output":"bank"}',
        b'{"action":"pay","args":{"cents":-9007199254740993},"output":"bank"}',
        b'{"action":"pay","args":{},"output":""}',
        b'{"action":"pay","args":{},"output":"a\\u0000b"}',
        b'{"action":"","args":{},"output":"bank"}',
        '{"action":"pa\u202ey","args":{},"output":"bank"}'.encode(),
        b'{"action":"' + b"x" * 129 + b'","args":{},"output":"bank"}',
    ],
)
def test_bytes_of_what_cannot_be_proposed_are_no_proposal_of_a_caller(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="spell what cannot be proposed") as caught:
        Proposal.decode(data)
    assert caught.value.code == "invalid_event"
    assert stored_proposal(data).canonical == data


@pytest.mark.parametrize("data", ["{}", bytearray(b"{}"), memoryview(b"{}"), None])
def test_a_proposal_is_read_from_bytes_that_nobody_can_change(data: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Proposal.decode(data)
    assert caught.value.code == "unsupported_type"


def test_however_deep_bytes_are_nested_they_are_a_proposal_or_refused() -> None:
    codes = set()
    for depth in range(500, 1100):  # some on the way can be read, and not be spelled any more
        try:
            Proposal.decode(b'{"action":"pay","args":{"a":' + b"[" * depth + b"]" * depth + b'},"output":"bank"}')
        except EventLogError as error:
            codes.add(error.code)
    assert codes == {"invalid_event"}


# ── a caller's proposal is held to its bytes ─────────────────────────────────────────────────────────────────────────

WIRE = propose("wire", {"cents": 1, "to": [{"name": "ada"}, True, None, 0.5]}, "bank")
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("action", "note"),
        ("action", None),
        ("output", "mallory"),
        ("hash", "0" * 64),
        ("hash", WIRE.hash.upper()),
        ("args", {}),
        ("args", None),
        ("args", {**WIRE.args, "cents": 2}),
        ("args", {**WIRE.args, "cents": True}),
        ("args", {**WIRE.args, "cents": 1.0}),
        ("args", {**WIRE.args, "more": 1}),
        ("args", {"cents": 1, "for": WIRE.args["to"]}),
        ("args", {**WIRE.args, "to": [{"name": "bob"}, True, None, 0.5]}),
        ("args", {**WIRE.args, "to": [{"name": "ada"}, 1, None, 0.5]}),
        ("args", {**WIRE.args, "to": [{"name": "ada"}]}),
        ("args", {**WIRE.args, "to": tuple(WIRE.args["to"])}),
        pytest.param("args", {**WIRE.args, "to": CIRCLE}, id="args that hold themselves"),
    ],
)
def test_a_proposal_of_which_a_field_is_not_that_of_its_bytes_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_proposal(replace(WIRE, **{field: value}))
    assert (caught.value.code, caught.value.path) == ("invalid_argument", f"$.{field}")


def test_a_proposal_with_the_bytes_of_another_is_refused() -> None:
    other = propose("wire", {"cents": 10**6}, "bank")
    for forged in (replace(WIRE, canonical=other.canonical), replace(WIRE, canonical=other.canonical, hash=other.hash)):
        with pytest.raises(InvalidInput) as caught:
            checked_proposal(forged)
        assert (caught.value.code, caught.value.path) == ("invalid_argument", "$.args")
    with pytest.raises(InvalidInput) as caught:
        checked_proposal(stored_proposal(OTHERWISE_SPELLED["a key of the args twice"]))
    assert caught.value.code == "invalid_event"


def test_what_was_checked_cannot_be_changed_by_who_gave_it() -> None:
    given = propose("wire", {"to": {"b": 1, "a": 2}}, "bank")
    checked = checked_proposal(replace(given, args={"to": {"a": 2, "b": 1}}))
    assert checked == given
    given.args["to"]["a"] = 3
    assert checked.args == {"to": {"a": 2, "b": 1}}


# ── keys and names ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_op_key_is_the_published_hash() -> None:
    store_id, approval_hash = bytes(range(16)), "ab" * 32
    fields = (store_id, b"run-1", b"write", approval_hash.encode())
    expected = sha256(b"eventlog/op-key/v1\0" + b"".join(len(each).to_bytes(2, "big") + each for each in fields))
    assert op_key(store_id, "run-1", "write", approval_hash) == expected.hexdigest()


def test_another_store_run_step_or_approval_is_another_effect() -> None:
    keys = {
        op_key(store_id, run_id, step, approval)
        for store_id in (bytes(16), b"x" * 16)
        for run_id in ("a", "ab")
        for step in ("bc", "c")
        for approval in ("c" * 64, "d" * 64)
    }
    assert len(keys) == 16


def test_a_run_of_one_action_asks_one_question() -> None:
    assert request_id_for("run-1") == "approval:run-1"


def test_stored_bytes_that_are_nested_without_end_are_no_proposal() -> None:
    for decode in (Proposal.decode, stored_proposal):
        with pytest.raises(InvalidInput) as caught:
            decode(b'{"action":"pay","output":"o","args":{"a":' + b"[" * 100_000)
        assert caught.value.code == "invalid_event"

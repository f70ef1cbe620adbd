"""What an approver signs: one spelling, the bytes of DSSE, and nothing in it that is not understood."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from eventlog.errors import InvalidInput
from eventlog.events import Envelope, EnvelopeSignature, PolicyTerms, ProposalRecorded
from eventlog.log import RecordedEvent
from eventlog.proposal import canonical_bytes, propose
from eventlog.signing.envelopes import (
    PAYLOAD_TYPE,
    decode_envelope,
    encode_envelope,
    make_envelope,
    pae,
    parse_pae,
    payload_of,
    signature_of,
)
from eventlog.signing.shown_requests import SHOWN_AS, displayed_request, shown_request
from eventlog.signing.statements import (
    APPROVAL,
    ENROLMENT,
    ApprovalStatement,
    Displayed,
    EnrolmentStatement,
    SeenHead,
    encode_approval,
    encode_enrolment,
    key_id_of,
    parse_approval,
    parse_enrolment,
    policy_digest,
)
from tests.audit_runs import HOSTILE, recorded

STATEMENT = ApprovalStatement(
    decision="approve",
    request_id="approval:run-1",
    log_id="0" * 32,
    run_id="run-1",
    proposal_position=2,
    proposal_leaf="a" * 64,
    proposal_sha256="b" * 64,
    action="pay",
    action_sha256=None,
    output="account-7",
    policy_id="pay",
    policy_sha256=policy_digest(None),
    requester="agent",
    approver="anna",
    key_id="c" * 64,
    roles=("ops",),
    reason="fine – so be it",
    nonce="1" * 32,
    not_after_us=1_796_000_000_000_000,
    max_uses=1,
    displayed=Displayed(media_type=SHOWN_AS, sha256="d" * 64),
    head=SeenHead(size=3, root="e" * 64),
)
PAYLOAD = encode_approval(STATEMENT)
ENROLS = EnrolmentStatement(
    approver="anna", key_id="c" * 64, log_id="0" * 32, challenge="2" * 32, not_after_us=1_796_000_000_000_000
)


def refused(payload: bytes) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_approval(payload)
    assert raised.value.code == "statement_invalid"


def changed(**predicate: Any) -> bytes:
    """Return the canonical payload with other fields in the predicate; None of a field takes it away."""
    document = json.loads(PAYLOAD)
    for name, value in predicate.items():
        document["predicate"][name] = value
        if value is ...:
            del document["predicate"][name]
    return canonical_bytes(document)


class TestTheBytesThatAreSigned:
    def test_are_those_of_the_specification(self) -> None:
        # The example of protocol.md of secure-systems-lab/dsse.
        assert pae(b"hello world", "http://example.com/HelloWorld") == (
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        )
        assert pae(b"") == b"DSSEv1 28 application/vnd.in-toto+json 0 "

    def test_are_those_of_securesystemslib(self) -> None:
        dsse = pytest.importorskip("securesystemslib.dsse", reason="the oracle `securesystemslib` is not installed")
        for payload in (b"", b"x", PAYLOAD, encode_enrolment(ENROLS), "päylöad".encode() * 100):
            theirs = dsse.Envelope(payload=payload, payload_type=PAYLOAD_TYPE, signatures={}).pae()
            assert theirs == pae(payload)

    def test_give_the_payload_back_and_nothing_else_does(self) -> None:
        signed = pae(PAYLOAD)
        assert parse_pae(signed) == PAYLOAD
        for other in (
            b"",
            PAYLOAD,
            signed + b" ",
            signed[:-1],
            pae(PAYLOAD, "text/plain"),
            signed.replace(b" ", b"  ", 1),
        ):
            with pytest.raises(InvalidInput) as raised:
                parse_pae(other)
            assert raised.value.code == "statement_invalid"
        with pytest.raises(InvalidInput):
            parse_pae(signed.replace(b" %d " % len(PAYLOAD), b" 0%d " % len(PAYLOAD), 1))


class TestAStatement:
    def test_is_an_in_toto_statement_about_the_proposal(self) -> None:
        document = json.loads(PAYLOAD)
        assert document["_type"] == "https://in-toto.io/Statement/v1"
        assert document["subject"] == [{"name": "approval:run-1", "digest": {"sha256": "b" * 64}}]
        assert document["predicateType"] == APPROVAL == "urn:eventlog:approval:v1"
        assert set(document["predicate"]) == set(ApprovalStatement.__struct_fields__)
        assert parse_approval(PAYLOAD) == STATEMENT

    def test_is_refused_with_a_field_that_is_not_known_missing_or_of_another_type(self) -> None:
        refused(changed(future=1))
        for name in ApprovalStatement.__struct_fields__:
            refused(changed(**{name: ...}))
            refused(changed(**{name: {"x": 1}}))
        assert parse_approval(changed()) == STATEMENT, "the control: unchanged it is taken"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("decision", "approved"),
            ("max_uses", 2),
            ("max_uses", 0),
            ("max_uses", 1.5),
            ("nonce", "1" * 31),
            ("nonce", "G" * 32),
            ("nonce", "1" * 32 + "\n"),
            ("proposal_sha256", "B" * 64),
            ("proposal_position", 0),
            ("proposal_position", "2"),
            ("head", {"size": 0, "root": "e" * 64}),
            ("head", {"size": 3, "root": "e" * 64, "more": 1}),
            ("displayed", {"media_type": "text/plain"}),
            ("roles", "ops"),
            ("not_after_us", -1),
        ],
    )
    def test_is_refused_with_a_value_that_its_field_cannot_have(self, field: str, value: Any) -> None:
        refused(changed(**{field: value}))

    @pytest.mark.parametrize(
        "payload",
        [
            PAYLOAD + b" ",
            PAYLOAD.replace(b'"max_uses":1', b'"max_uses": 1'),
            PAYLOAD.replace(b'"max_uses":1', b'"max_uses":1.0'),
            PAYLOAD.replace(b'"action":"pay"', b'"action":"p\\u0061y"'),
            PAYLOAD.replace(b'"action":"pay",', b'"action":"pay","action":"pay",'),
            PAYLOAD.replace(b'"name":"approval:run-1"', b'"name":"approval:run-2"'),
            PAYLOAD.replace(b'{"digest"', b'{"annotations":{},"digest"'),
            PAYLOAD.replace(APPROVAL.encode(), ENROLMENT.encode()),
            PAYLOAD.replace(b"Statement/v1", b"Statement/v2"),
            encode_enrolment(ENROLS),
            b"",
            b"[]",
            b"\xff",
            b"[" * 100_000,
            b'"' + b"x" * 70_000 + b'"',
        ],
        ids=[
            *("space", "space inside", "float", "escape", "twice", "subject", "in the subject", "predicate type"),
            *("type", "enrolment", "nothing", "a list", "no UTF-8", "deep", "long"),
        ],
    )
    def test_has_one_spelling(self, payload: bytes) -> None:
        assert payload != PAYLOAD
        refused(payload)

    def test_that_differs_in_any_byte_is_refused_or_says_something_else(self) -> None:
        for place in range(len(PAYLOAD)):
            flipped = PAYLOAD[:place] + bytes([PAYLOAD[place] ^ 1]) + PAYLOAD[place + 1 :]
            try:
                assert parse_approval(flipped) != STATEMENT
            except InvalidInput:
                continue

    def test_with_a_number_that_has_no_exact_form_is_refused(self) -> None:
        refused(PAYLOAD.replace(b'"proposal_position":2', b'"proposal_position":9007199254740993'))

    def test_of_an_enrolment_is_another_kind(self) -> None:
        payload = encode_enrolment(ENROLS)
        assert parse_enrolment(payload) == ENROLS
        assert json.loads(payload)["subject"] == [{"name": "anna", "digest": {"sha256": "c" * 64}}]
        with pytest.raises(InvalidInput):
            parse_enrolment(PAYLOAD)


class TestTheDigests:
    def test_the_id_of_a_key_is_the_digest_of_its_raw_bytes(self) -> None:
        assert key_id_of(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

    def test_terms_that_are_absent_are_the_default_ones(self) -> None:
        assert policy_digest(None) == policy_digest(PolicyTerms())
        assert policy_digest(None) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of {}

    def test_each_of_the_terms_is_in_the_digest(self) -> None:
        others = (
            PolicyTerms(required=2),
            PolicyTerms(roles=("ops",)),
            PolicyTerms(separation_of_duties=True),
            PolicyTerms(level=2),
        )
        assert len({policy_digest(each) for each in (None, *others)}) == 1 + len(PolicyTerms.__struct_fields__)

    def test_the_digest_is_that_of_the_stored_spelling_in_canonical_order(self) -> None:
        terms = PolicyTerms(required=2, roles=("ops", "dev"), level=2)
        stored = json.loads(msgspec.json.encode(terms))
        assert stored == {"required": 2, "roles": ["ops", "dev"], "level": 2}
        spelled = json.dumps(stored, sort_keys=True, separators=(",", ":")).encode()
        assert spelled == canonical_bytes(stored)


class TestAnEnvelope:
    ENVELOPE = make_envelope(PAYLOAD, "c" * 64, bytes(64))

    def test_comes_back_from_its_text(self) -> None:
        assert decode_envelope(encode_envelope(self.ENVELOPE)) == self.ENVELOPE
        assert set(json.loads(encode_envelope(self.ENVELOPE))) == {"payload", "payloadType", "signatures"}
        assert payload_of(self.ENVELOPE) == PAYLOAD
        assert signature_of(self.ENVELOPE) == ("c" * 64, bytes(64))

    @pytest.mark.parametrize(
        "text",
        [
            b"{}",
            b"[]",
            b'{"payload":"","payloadType":"t","signatures":[],"more":1}',
            b'{"payload":"","payload":"","payloadType":"t","signatures":[]}',
            b'{"payload":"","payloadType":"t","signatures":[{"sig":""}]}',
        ],
    )
    def test_that_is_none_is_refused(self, text: bytes) -> None:
        with pytest.raises(InvalidInput) as raised:
            decode_envelope(text)
        assert raised.value.code in ("statement_invalid", "duplicate_key")

    @pytest.mark.parametrize(
        "envelope",
        [
            replace(ENVELOPE, payload_type="application/json"),
            replace(ENVELOPE, payload=ENVELOPE.payload + "\n"),
            replace(ENVELOPE, payload="e30"),
            replace(ENVELOPE, payload=base64.urlsafe_b64encode(b"\xfb\xff").decode()),
            replace(ENVELOPE, payload="ä"),
            replace(ENVELOPE, payload="e31="),
        ],
        ids=["type", "line", "no padding", "other alphabet", "no ASCII", "bits behind the end"],
    )
    def test_has_one_spelling_of_its_payload(self, envelope: Envelope) -> None:
        with pytest.raises(InvalidInput) as raised:
            payload_of(envelope)
        assert raised.value.code == "statement_invalid"

    @pytest.mark.parametrize("count", [0, 2])
    def test_has_exactly_one_signature(self, count: int) -> None:
        with pytest.raises(InvalidInput):
            signature_of(replace(self.ENVELOPE, signatures=(EnvelopeSignature(keyid="k", sig=""),) * count))


def asked(args: dict[str, Any], text: str = "account-7", **fields: Any) -> RecordedEvent:
    proposal = propose("pay", args, text.replace("\0", ""))
    event = ProposalRecorded(
        request_id="approval:run-1", proposal=msgspec.Raw(proposal.canonical), proposal_hash=proposal.hash, **fields
    )
    return recorded(event, "proposal_recorded")


class TestWhatIsShown:
    def test_the_request_is_shown_whole_in_a_fixed_form(self) -> None:
        terms = PolicyTerms(required=2, roles=("ops",), separation_of_duties=True, level=2)
        event = asked({"amount": "25", "to": ["x"]}, policy=terms, expires_at_us=1_796_000_000_000_000)
        assert shown_request(event, bytes(16)) == (
            "log:          00000000000000000000000000000000\n"
            'run:          "run-1"\n'
            'request:      "approval:run-1"\n'
            'action:       "pay"\n'
            "definition:   not recorded\n"
            'output:       "account-7"\n'
            'asked by:     "anna"\n'
            "asked at:     2026-11-30T00:53:20.000001Z\n"
            'terms:        2 approvals by different people, each with one of the roles ["ops"], not by who asked, '
            "of level 2 or higher\n"
            "decide until: 2026-11-30T00:53:20.000000Z\n"
            "position:     101\n"
            f"proposal:     {event.data.proposal_hash}\n"
            "args:\n"
            "  {\n"
            '    "amount": "25",\n'
            '    "to": [\n'
            '      "x"\n'
            "    ]\n"
            "  }\n"
        )

    def test_no_text_in_it_can_look_like_another_line_or_hide(self) -> None:
        shown = shown_request(asked({"note": HOSTILE}, HOSTILE, folder=HOSTILE), bytes(16))
        assert all(line.isprintable() for line in shown.split("\n"))
        assert "\u202e" not in shown
        assert [line.partition(":")[0] for line in shown.split("\n") if line and not line.startswith(" ")] == [
            *("log", "run", "request", "action", "definition", "output", "folder", "asked by", "asked at", "terms"),
            *("position", "proposal", "args"),
        ]

    @pytest.mark.parametrize(
        ("text", "seen"),
        [
            ("größe", "größe"),
            ("a\u200bb", r"a\u200bb"),
            ("\U0001fae8", r"\ud83e\udee8"),
            ("日本", "日本"),
        ],
        ids=["letters", "zero width", "of a later Unicode", "wide"],
    )
    def test_what_can_be_seen_is_the_same_under_every_python(self, text: str, seen: str) -> None:
        assert f'"note": "{seen}"' in shown_request(asked({"note": text}), bytes(16))

    def test_its_digest_changes_with_whatever_is_shown(self) -> None:
        base = asked({"amount": "25"})
        others = [
            asked({"amount": "26"}),
            asked({"amount": "25"}, "account-8"),
            asked({"amount": "25"}, policy=PolicyTerms(level=2)),
            asked({"amount": "25"}, folder="/srv"),
            asked({"amount": "25"}, action_sha256="f" * 64),
            recorded(base.data, "proposal_recorded", version=2),
            recorded(base.data, "proposal_recorded", actor="bob"),
        ]
        digests = [displayed_request(event, bytes(16)).sha256 for event in (base, *others)]
        assert len(set(digests)) == len(digests)
        assert displayed_request(base, bytes(16)) != displayed_request(base, b"1" * 16)
        assert displayed_request(base, bytes(16)).media_type == SHOWN_AS

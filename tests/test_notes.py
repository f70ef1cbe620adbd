"""Signed notes, verifier keys, heads and cosignatures: byte for byte as published, and every refusal."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog.errors import EventLogError
from eventlog.merkle import EMPTY_ROOT, TreeHead
from eventlog.signing.cosignatures import (
    GrowthRequest,
    add_cosignatures,
    cosign,
    make_growth_request,
    make_witness_key,
    open_cosignatures,
    parse_growth_request,
    parse_witness_key,
)
from eventlog.signing.ed25519 import PrivateKey, is_signature
from eventlog.signing.head_text import check_prefix, head_text, log_id_of, open_head, origin_of, parse_head
from eventlog.signing.notes import (
    SignatureLine,
    VerifierKey,
    add_line,
    add_signature,
    make_verifier_key,
    open_note,
    parse_note,
    parse_verifier_key,
    sign_note,
)

FOLDER: Final = Path(__file__).parent / "vectors"
GO: Final[dict[str, Any]] = json.loads((FOLDER / "signed_note.json").read_text())
C2SP: Final[dict[str, Any]] = json.loads((FOLDER / "cosignature.json").read_text())
TEXT: Final = GO["text"].encode()
PETER: Final = parse_verifier_key(GO["peter"])
ENOCH: Final = parse_verifier_key(GO["enoch"])
PETERS: Final = PrivateKey.from_seed(b64decode(GO["peter_private"].split("+", 4)[4])[1:])

KEY: Final = PrivateKey.from_seed(b"k" * 32)
LOG_ID: Final = bytes.fromhex("00112233445566778899aabbccddeeff")
ORIGIN: Final = origin_of("log.example/runs", LOG_ID)
VERIFIER: Final = make_verifier_key(ORIGIN, KEY.public)
HEAD: Final = TreeHead(27, bytes(range(32)))
WITNESS: Final = PrivateKey.from_seed(b"w" * 32)
WITNESS_KEY: Final = make_witness_key("witness.example/w1", WITNESS.public)


@contextmanager
def refused(code: str) -> Iterator[None]:
    """Expect an error with this code."""
    with pytest.raises(EventLogError) as raised:
        yield
    assert raised.value.code == code


# ── the vectors of Go's package note ─────────────────────────────────────────────────────────────────────────────────


def test_a_note_is_signed_byte_for_byte_as_go_signs_it() -> None:
    assert sign_note(TEXT, "PeterNeumann", PETERS) == GO["signed"].encode()


def test_signing_again_replaces_the_signature_of_the_same_key() -> None:
    assert add_signature(GO["signed"].encode(), "PeterNeumann", PETERS) == GO["signed"].encode()


def test_verifier_keys_are_read_and_spelled_as_go_does() -> None:
    for text in (GO["peter"], GO["enoch"]):
        assert parse_verifier_key(text).to_text() == text
    assert make_verifier_key("PeterNeumann", PETERS.public) == PETER


def test_every_part_of_a_verifier_key_and_every_change_of_one_is_refused() -> None:
    text = GO["peter"]
    parts = {text[i:j] for i in range(len(text) + 1) for j in range(i, len(text) + 1)} - {text}
    changed = {text[:i] + chr(ord(text[i]) + 1) + text[i + 1 :] for i in range(len(text))}
    for each in sorted(parts | changed | set(GO["refused_keys"])):
        with refused("bad_verifier_key"):
            parse_verifier_key(each)


@pytest.mark.parametrize("text", ["é+00000000+AQ==", "a+ 0 0 0 0+AQ==", "a+C74F20A3+AQ==", "a+c74f20a3", "\udcff+1+2"])
def test_a_text_that_is_no_verifier_key_is_refused(text: str) -> None:
    with refused("bad_verifier_key"):
        parse_verifier_key(text)


def test_unknown_signatures_are_ignored_and_known_ones_verified() -> None:
    both = TEXT + b"\n" + GO["peter_line"].encode() + GO["enoch_line"].encode()
    assert open_note(both, [PETER]).verified == (PETER,)
    assert open_note(both, [ENOCH]).verified == (ENOCH,)
    opened = open_note(both, [ENOCH, PETER, PETER])
    assert (opened.text, opened.verified) == (TEXT, (PETER, ENOCH))
    for keys in ([], [make_verifier_key("PeterNeumann", KEY.public)]):
        with refused("unverified_note"):
            open_note(both, keys)


@pytest.mark.parametrize("index", range(len(GO["malformed"])))
def test_what_go_calls_malformed_is_refused(index: int) -> None:
    with refused("bad_note"):
        open_note(GO["malformed"][index].encode(), [PETER])


@pytest.mark.parametrize(
    ("note", "code"),
    [
        (b"\xff" + TEXT + b"\n" + GO["peter_line"].encode(), "bad_note"),
        (TEXT + b"\n" + GO["peter_line"].encode() * 101, "bad_note"),
        (TEXT + b"\n" + GO["peter_line"].encode() * 65, "bad_note"),
        (TEXT + b"\n" + (GO["peter_line"][:60] + "ABCD" + GO["peter_line"][60:]).encode(), "unverified_note"),
        (b"x" * 1_000_001, "bad_note"),
        (b"", "bad_note"),
        (b"\n\n", "bad_note"),
    ],
    ids=["not-utf8", "101", "65", "inserted", "large", "nothing", "newlines"],
)
def test_a_note_that_is_none_is_refused(note: bytes, code: str) -> None:
    with refused(code):
        open_note(note, [PETER])


def test_the_same_signature_several_times_counts_once() -> None:
    assert open_note(TEXT + b"\n" + GO["peter_line"].encode() * 64, [PETER]).verified == (PETER,)


@pytest.mark.parametrize(
    "line",
    [
        "— a+b {0}",
        "— a\u2003b {0}",
        "—  {0}",
        "— PeterNeumann  {0}",
        "— PeterNeumann {0} ",
        "- PeterNeumann {0}",
        "— PeterNeumann {0}\t",
        "— PeterNeumann",
        "— PeterNeumann AAAA",
        "— PeterNeumann AAAAAA==",
        "— PeterNeumann {1}",
        "",
    ],
)
def test_a_line_that_is_no_signature_makes_no_note(line: str) -> None:
    spelled = GO["peter_line"].split(" ")[2].strip()
    loose = spelled.replace("nAM=", "nAN=")  # the bits behind the last byte are not zero
    assert loose != spelled
    with refused("bad_note"):
        open_note(TEXT + b"\n" + GO["peter_line"].encode() + line.format(spelled, loose).encode() + b"\n", [PETER])


def test_two_known_keys_of_one_name_and_id_are_both_asked() -> None:
    impostor = VerifierKey(PETER.name, PETER.key_id, KEY.public)
    with refused("unverified_note"):
        open_note(GO["signed"].encode(), [PETER, impostor])


def test_the_last_empty_line_ends_the_text() -> None:
    text = b"a\n\n" + GO["peter_line"].encode() + b"\nb\n"
    assert open_note(sign_note(text, ORIGIN, KEY), [VERIFIER]).text == text


@pytest.mark.parametrize("text", [b"", b"no newline", b"\xff\n", b"a\0b\n", b"a\r\n", b"a\tb\n"])
def test_a_text_that_no_note_can_hold_is_not_signed(text: bytes) -> None:
    with refused("bad_note"):
        sign_note(text, ORIGIN, KEY)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\u00a0b", "a\nb", "a\x01", "x" * 256, "\ud800"])
def test_a_name_that_no_key_can_have_signs_nothing(name: str) -> None:
    with refused("bad_verifier_key"):
        sign_note(TEXT, name, KEY)


def test_a_note_takes_64_signatures() -> None:
    note = sign_note(TEXT, "key-0", KEY)
    for index in range(1, 64):
        note = add_line(note, SignatureLine(f"key-{index}", b"abcd", b"signature"))
    assert len(parse_note(note)[1]) == 64
    with refused("bad_note"):
        add_line(note, SignatureLine("key-64", b"abcd", b"signature"))


# ── heads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_head_is_three_lines() -> None:
    text = head_text(ORIGIN, HEAD)
    assert text == (f"log.example/runs/{LOG_ID.hex()}\n27\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").encode()
    assert parse_head(text) == (ORIGIN, HEAD)
    assert log_id_of(ORIGIN) == LOG_ID
    assert parse_head(head_text(ORIGIN, TreeHead(0, EMPTY_ROOT)))[1].size == 0


ROOT: Final = b64encode(HEAD.root).decode()


@pytest.mark.parametrize(
    "text",
    [
        f"{ORIGIN}\n27\n{ROOT}",
        f"{ORIGIN}\n27\n{ROOT}\nmore\n",
        f"{ORIGIN}\n27\n{ROOT}\n\n",
        f"{ORIGIN}\n{ROOT}\n",
        f"{ORIGIN}\n027\n{ROOT}\n",
        f"{ORIGIN}\n+27\n{ROOT}\n",
        f"{ORIGIN}\n-1\n{ROOT}\n",
        f"{ORIGIN}\n 27\n{ROOT}\n",
        f"{ORIGIN}\n\u0662\u0667\n{ROOT}\n",
        f"{ORIGIN}\n\n{ROOT}\n",
        f"{ORIGIN}\n{2**63}\n{ROOT}\n",
        f"{ORIGIN}\n27\n{ROOT[:-4]}\n",
        f"{ORIGIN}\n27\n{ROOT}AAAA\n",
        f"{ORIGIN}\n27\n{ROOT.replace('=', '')}\n",
        f"{ORIGIN}\n27\n{HEAD.root.hex()}\n",
        f"\n27\n{ROOT}\n",
        f"a b\n27\n{ROOT}\n",
        "",
    ],
)
def test_a_text_that_is_no_head_is_refused(text: str) -> None:
    with refused("bad_note"):
        parse_head(text.encode())


@pytest.mark.parametrize(
    "origin", ["a", "a/" + "g" * 32, "a/" + "AB" * 16, "a/" + "ab" * 15, "/" + "ab" * 16, "a/ " + "a" * 31]
)
def test_an_origin_without_the_id_of_a_log_is_refused(origin: str) -> None:
    with refused("bad_note"):
        log_id_of(origin)


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "a b", "a+b", "x" * 201])
def test_a_prefix_that_makes_no_origin_is_refused(prefix: str) -> None:
    with refused("bad_verifier_key"):
        check_prefix(prefix)


def test_an_origin_has_the_whole_id_of_a_log() -> None:
    with refused("bad_verifier_key"):
        origin_of("a", b"short")


def test_a_signed_head_opens_under_its_key_only() -> None:
    note = sign_note(head_text(ORIGIN, HEAD), ORIGIN, KEY)
    opened = open_head(note, [VERIFIER])
    assert (opened.origin, opened.head, opened.verified) == (ORIGIN, HEAD, (VERIFIER,))
    with refused("unverified_note"):
        open_head(note, [make_verifier_key(ORIGIN, WITNESS.public)])


def test_a_key_of_one_log_signs_no_head_of_another() -> None:
    other = origin_of("log.example/runs", bytes(16))
    note = sign_note(head_text(ORIGIN, HEAD), other, KEY)
    with refused("unverified_note"):
        open_head(note, [make_verifier_key(other, KEY.public)])


def test_every_bit_of_a_signed_head_counts() -> None:
    note = sign_note(head_text(ORIGIN, HEAD), ORIGIN, KEY)
    open_head(note, [VERIFIER])
    for bit in range(len(note) * 8):
        changed = bytearray(note)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EventLogError) as raised:
            open_head(bytes(changed), [VERIFIER])
        assert raised.value.code in ("bad_note", "unverified_note"), bit


def test_every_byte_that_is_left_out_or_added_counts() -> None:
    note = sign_note(head_text(ORIGIN, HEAD), ORIGIN, KEY)
    for at in range(len(note)):
        for changed in (note[:at] + note[at + 1 :], note[:at] + note[at : at + 1] + note[at:], note[:at]):
            with pytest.raises(EventLogError) as raised:
                open_head(changed, [VERIFIER])
            assert raised.value.code in ("bad_note", "unverified_note"), at


# ── cosignatures ─────────────────────────────────────────────────────────────────────────────────────────────────────


def cosigned(time_s: int = 1_679_315_147) -> bytes:
    text = head_text(ORIGIN, HEAD)
    return add_line(sign_note(text, ORIGIN, KEY), cosign(text, "witness.example/w1", WITNESS, time_s))


def test_the_published_cosignature_has_the_form_that_ours_have() -> None:
    text, (_, witness) = parse_note(C2SP["head_with_cosignature"].encode())
    assert int.from_bytes(witness.signature[:8], "big") == C2SP["time"]
    assert len(witness.signature) == 72
    assert f"cosignature/v1\ntime {C2SP['time']}\n".encode() + text == C2SP["signed_message"].encode()


def test_a_cosignature_signs_the_published_message() -> None:
    text, _ = parse_note(C2SP["head_with_cosignature"].encode())
    line = cosign(text, "witness.example/w1", WITNESS, C2SP["time"])
    assert is_signature(WITNESS.public, line.signature[8:], C2SP["signed_message"].encode())


def test_a_cosigned_head_opens_with_its_time() -> None:
    (found,) = open_cosignatures(cosigned(), [WITNESS_KEY])
    assert (found.key, found.time_s) == (WITNESS_KEY, 1_679_315_147)
    assert open_head(cosigned(), [VERIFIER]).head == HEAD
    assert open_cosignatures(cosigned(), []) == ()


def test_a_cosignature_is_not_taken_for_a_signature_and_neither_key_for_the_other() -> None:
    with refused("bad_verifier_key"):
        parse_verifier_key(WITNESS_KEY.to_text())
    with refused("bad_verifier_key"):
        parse_witness_key(VERIFIER.to_text())
    assert parse_witness_key(WITNESS_KEY.to_text()) == WITNESS_KEY
    with refused("unverified_note"):
        open_note(cosigned(), [make_verifier_key("witness.example/w1", WITNESS.public)])


def test_a_key_that_is_known_by_two_names_counts_once() -> None:
    text, second = head_text(ORIGIN, HEAD), make_witness_key("witness.example/w2", WITNESS.public)
    note = add_line(cosigned(), cosign(text, "witness.example/w2", WITNESS, 5))
    assert len(open_cosignatures(note, [WITNESS_KEY, second])) == 1


def test_every_bit_of_a_cosignature_counts() -> None:
    text, lines = parse_note(cosigned())
    for bit in range(72 * 8):
        changed = (int.from_bytes(lines[1].signature, "big") ^ 1 << bit).to_bytes(72, "big")
        note = text + b"\n" + SignatureLine(lines[1].name, lines[1].key_id, changed).to_text().encode()
        with refused("unverified_note"):
            open_cosignatures(note, [WITNESS_KEY])


def test_an_answer_is_added_to_its_head_if_a_known_witness_has_cosigned_it() -> None:
    text = head_text(ORIGIN, HEAD)
    note = sign_note(text, ORIGIN, KEY)
    right, wrong = (cosign(each, "witness.example/w1", WITNESS, 7).to_text() for each in (text, b"another\n"))
    unknown = cosign(text, "witness.example/w9", KEY, 7).to_text()
    assert add_cosignatures(note, (unknown + right).encode(), [WITNESS_KEY]) == note + right.encode()
    for answer, code in [
        (unknown, "unverified_note"),
        (wrong, "unverified_note"),
        ("", "bad_note"),
        ("x\n", "bad_note"),
    ]:
        with refused(code):
            add_cosignatures(note, answer.encode(), [WITNESS_KEY])


# ── what a witness is asked ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_spelled_as_the_specification_prints_it() -> None:
    body = C2SP["request"].encode()
    request = parse_growth_request(body)
    assert (request.old_size, len(request.proof)) == (20_852_014, 4)
    assert parse_head(parse_note(request.note)[0])[1].size == 20_852_163
    assert make_growth_request(request.old_size, request.proof, request.note) == body
    assert parse_growth_request(b"old 0\n\nx") == GrowthRequest(0, (), b"x")


HASH: Final = b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "old 5\n",
        "old 5\nx",
        "new 5\n\n",
        "old  5\n\n",
        "old 05\n\n",
        "old -5\n\n",
        "old \n\n",
        "old \u0665\n\n",
        "old 5\nAAAA\n\n",
        f"old 5\n{HASH[:-1]}\n\n",
        f"old 5\n {HASH}\n\n",
        "old 5\n" + f"{HASH}\n" * 64 + "\n",
        "\n\nold 5\n\n",
    ],
)
def test_a_body_that_is_no_request_is_refused(body: str) -> None:
    with refused("bad_request"):
        parse_growth_request(body.encode())


def test_a_proof_may_have_63_hashes() -> None:
    assert len(parse_growth_request(("old 5\n" + f"{HASH}\n" * 63 + "\n").encode()).proof) == 63

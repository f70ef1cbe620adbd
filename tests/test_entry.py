"""The entry: one spelling for each event, and every bit of it counts."""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eventlog.entry import (
    BODY_PLAIN,
    FIXED_SIZE,
    LABEL,
    NO_HASH,
    NO_ID,
    SALT_SIZE,
    Entry,
    content_commitment,
    encode,
    leaf_hash,
    parse,
    prefixed,
    seal,
)
from tests.strategies import texts

U64 = 2**64 - 1
I64 = 2**63

ids = st.binary(min_size=16, max_size=16)
hashes = st.binary(min_size=32, max_size=32)

entries = st.builds(
    Entry,
    log_id=ids,
    position=st.integers(0, U64),
    version=st.integers(0, U64),
    recorded_at_us=st.integers(-I64, I64 - 1),
    schema_version=st.integers(0, 0xFFFF),
    event_id=ids.filter(lambda event_id: event_id != NO_ID),
    causation_id=ids,
    body_kind=st.integers(0, 2),
    body_len=st.integers(0, 2**32 - 1),
    content_commit=hashes,
    stored_hash=hashes,
    prev_in_stream=hashes,
    stream=texts,
    type=texts,
    actor=texts,
    correlation_id=texts,
)

SAMPLE = Entry(
    log_id=bytes(range(16)),
    position=258,
    version=3,
    recorded_at_us=1_767_268_800_000_001,
    schema_version=2,
    event_id=bytes(range(16, 32)),
    causation_id=bytes(range(32, 48)),
    body_kind=BODY_PLAIN,
    body_len=7,
    content_commit=bytes(range(100, 132)),
    stored_hash=NO_HASH,
    prev_in_stream=bytes(range(200, 232)),
    stream="été",
    type="note_taken",
    actor="os:7",
    correlation_id="",
)


def test_the_layout_is_the_published_one_byte_for_byte() -> None:
    expected = bytes.fromhex(
        "6576656e746c6f672f656e7472792f763100"  # eventlog/entry/v1 0x00
        "000102030405060708090a0b0c0d0e0f"
        "0000000000000102"
        "0000000000000003"
        "00064752550bf001"
        "0002"
        "101112131415161718191a1b1c1d1e1f"
        "202122232425262728292a2b2c2d2e2f"
        "00"
        "00000007"
        "6465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283"
        "0000000000000000000000000000000000000000000000000000000000000000"
        "c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7"
        "0005c3a974c3a9"
        "000a6e6f74655f74616b656e"
        "00046f733a37"
        "0000"
    )
    assert encode(SAMPLE) == expected
    assert leaf_hash(expected) == sha256(b"\0" + expected).digest()


def test_the_parts_of_the_layout_lie_where_it_says() -> None:
    data = encode(SAMPLE)
    assert (len(LABEL), FIXED_SIZE, SALT_SIZE) == (18, 193, 16)
    assert data[18:34] == SAMPLE.log_id
    assert struct.unpack_from(">QQqH", data, 34) == (258, 3, 1_767_268_800_000_001, 2)
    assert (data[60:76], data[76:92], data[92]) == (SAMPLE.event_id, SAMPLE.causation_id, 0)
    assert struct.unpack_from(">I", data, 93) == (7,)
    assert data[97:193] == SAMPLE.content_commit + SAMPLE.stored_hash + SAMPLE.prev_in_stream


def test_the_commitment_hides_the_body_behind_a_salt() -> None:
    salt, body = bytes(range(16)), b'{"a":1}'
    assert content_commitment(salt, body) == sha256(b"eventlog/content/v1\0" + salt + body).digest()
    assert content_commitment(bytes(16), body) != content_commitment(salt, body)


@given(entries)
def test_an_entry_comes_back_from_its_bytes(entry: Entry) -> None:
    assert parse(encode(entry)) == entry


@given(entries, entries)
def test_two_entries_have_the_same_bytes_only_if_they_are_the_same(one: Entry, other: Entry) -> None:
    assert (encode(one) == encode(other)) == (one == other)


@given(
    ids,
    st.integers(1, I64),
    st.integers(1, I64),
    st.integers(-I64, I64 - 1),
    st.integers(1, 0xFFFF),
    ids.filter(lambda event_id: event_id != NO_ID),
    ids,
    st.binary(min_size=SALT_SIZE, max_size=SALT_SIZE),
    st.binary(max_size=50),
    hashes,
    st.tuples(texts, texts, texts, texts),
)
def test_a_seal_is_the_leaf_of_the_entry(
    log_id: bytes,
    position: int,
    version: int,
    recorded_at_us: int,
    schema_version: int,
    event_id: bytes,
    causation_id: bytes,
    salt: bytes,
    body: bytes,
    previous: bytes,
    names: tuple[str, str, str, str],
) -> None:
    entry = Entry(
        log_id=log_id,
        position=position,
        version=version,
        recorded_at_us=recorded_at_us,
        schema_version=schema_version,
        event_id=event_id,
        causation_id=causation_id,
        body_kind=BODY_PLAIN,
        body_len=len(body),
        content_commit=content_commitment(salt, body),
        stored_hash=NO_HASH,
        prev_in_stream=previous,
        stream=names[0],
        type=names[1],
        actor=names[2],
        correlation_id=names[3],
    )
    joined = b"".join(map(prefixed, names))
    fields = (log_id, position, version, recorded_at_us, schema_version, event_id, causation_id, salt, body, previous)
    assert seal(*fields, joined) == leaf_hash(encode(entry))


def test_every_flipped_bit_is_refused_or_changes_both_the_entry_and_its_leaf() -> None:
    data = encode(SAMPLE)
    refused = 0
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = parse(bytes(flipped))
        except ValueError:
            refused += 1
            continue
        assert found != SAMPLE
        assert encode(found) == flipped
        assert leaf_hash(encode(found)) != leaf_hash(data)
    assert refused >= 18 * 8, "the label at least has no other spelling"


@given(st.binary(max_size=400) | st.binary(max_size=250).map(lambda tail: LABEL + bytes(range(175)) + tail))
def test_any_bytes_are_refused_or_are_the_one_spelling_of_an_entry(data: bytes) -> None:
    try:
        entry = parse(data)
    except ValueError:
        return
    assert encode(entry) == data


def test_bytes_that_are_cut_short_or_go_on_are_refused() -> None:
    data = encode(SAMPLE)
    for end in range(len(data)):
        with pytest.raises(ValueError):
            parse(data[:end])
    for tail in (b"\0", b"\0\0", data):
        with pytest.raises(ValueError, match="follow the last field"):
            parse(data + tail)


def test_text_that_is_not_utf_8_is_refused() -> None:
    data = encode(SAMPLE)
    with pytest.raises(ValueError):
        parse(data.replace(b"note_taken", b"note\xfftaken"))
    with pytest.raises(ValueError):
        parse(data.replace(b"note_taken", b"note\xed\xa0\x80ken"))


@pytest.mark.parametrize(
    "fields",
    [
        {"event_id": NO_ID},
        {"event_id": b"e" * 15},
        {"event_id": b"e" * 17},
        {"log_id": b""},
        {"causation_id": b"c"},
        {"content_commit": b"c" * 31},
        {"stored_hash": b"c" * 33},
        {"prev_in_stream": b""},
        {"body_kind": 3},
        {"body_kind": 255},
    ],
    ids=str,
)
def test_what_no_entry_holds_is_not_encoded(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        encode(replace(SAMPLE, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"position": -1},
        {"position": 2**64},
        {"version": -1},
        {"recorded_at_us": I64},
        {"schema_version": 65_536},
        {"body_len": 2**32},
        {"stream": "x" * 65_536},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_number_or_a_text_that_does_not_fit_is_not_encoded(fields: dict[str, Any]) -> None:
    with pytest.raises(struct.error):
        encode(replace(SAMPLE, **fields))


def test_moving_a_letter_from_one_text_to_the_next_is_another_entry() -> None:
    one = replace(SAMPLE, stream="ab", type="c")
    other = replace(SAMPLE, stream="a", type="bc")
    assert encode(one) != encode(other)

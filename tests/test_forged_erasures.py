"""Erasures that the log did not write: by who owns the file, knows the format, and needs no key for any of it.

No leaf proves what an erasure says is left of a body. So it may be nothing that somebody could want to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog import Expect, NewEvent
from eventlog.audit.verify import Trust, Verdicts
from eventlog.entry import content_commitment
from eventlog.errors import LogCorrupt
from eventlog.events import NOTHING, PayloadErased
from eventlog.remainders import remainder_of
from eventlog.signing.approver_keys import ED25519, enrol
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.envelopes import make_envelope, pae
from eventlog.signing.statements import EnrolmentStatement, encode_enrolment, key_id_of
from eventlog.stores.subject_keys import SubjectKeys
from tests.attacker import Attacker, attacking
from tests.proven_log import LATER_US, ProvenLog, build, check
from tools.campaigns.storage.log_files import open_file

KEY, ENROLMENT, NOTE, PROPOSAL, APPROVAL = 1, 2, 5, 9, 11
THIEF = PrivateKey.from_seed(b"thief".ljust(32, b"."))
_ERASURE = """
INSERT INTO events SELECT ?, stream_id, max(version) + 1,
  (SELECT type_id FROM types WHERE name = 'payload_erased'), 1, actor_id,
  (SELECT max(recorded_at_us) FROM events), randomblob(16), NULL, NULL, 0, ?, randomblob(16), zeroblob(32)
FROM events WHERE stream_id = (SELECT stream_id FROM streams WHERE name = '$log')"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProvenLog:
    return asyncio.run(build(tmp_path_factory.mktemp("original")))


@pytest.fixture
def world(original: ProvenLog, tmp_path: Path) -> ProvenLog:
    return original.copy_to(tmp_path / "copy")


async def judged(world: ProvenLog) -> Verdicts:
    return await check(world.path, Trust(log_keys=[world.log_key], heads=world.outside_heads()))


def erase(attacker: Attacker, position: int, left_of: Callable[[str, bytes], bytes]) -> None:
    """Erase a body as the log would, with the right commitment, and say that this is left of it."""
    row = "SELECT {} FROM events JOIN types USING (type_id) WHERE position = ?"
    body: bytes = attacker.value(row.format("CAST(body AS BLOB)"), position)
    salt, type_name = attacker.value(row.format("salt"), position), attacker.value(row.format("name"), position)
    left = left_of(type_name, body)
    said = PayloadErased(
        position=position,
        body_kind=0,
        body_len=len(body),
        content_commit=content_commitment(salt, body).hex(),
        stored_hash="00" * 32,
        legal_basis="none",
        remainder=msgspec.Raw(left) if left else NOTHING,
    )
    at = attacker.size + 1
    attacker.run("UPDATE events SET body = NULL, salt = NULL WHERE position = ?", position)
    attacker.run("INSERT OR IGNORE INTO types (name) VALUES ('payload_erased')")
    attacker.run(_ERASURE, at, msgspec.json.encode(said).decode())
    attacker.run("INSERT INTO erasures (position, erased_by) VALUES (?, ?)", position, at)
    attacker.rehash_only(at)
    attacker.replant()


def edited(**fields: Any) -> Callable[[str, bytes], bytes]:
    """Leave all of a body, with these fields changed."""
    return lambda _, body: msgspec.json.encode({**msgspec.json.decode(body), **fields})


def enrolment_of_thief(attacker: Attacker) -> Callable[[str, bytes], bytes]:
    """Leave an enrolment of the thief's own key as anna's: he proves that he holds it, by the same challenge."""
    challenge = attacker.value("SELECT event_id FROM events WHERE position = ?", ENROLMENT)
    log_id = attacker.value("SELECT log_id FROM log_ids")
    statement = EnrolmentStatement(
        approver="anna",
        key_id=key_id_of(THIEF.public),
        log_id=log_id.hex(),
        challenge=challenge.hex(),
        not_after_us=LATER_US,
    )
    payload = encode_enrolment(statement)
    proof = make_envelope(payload, statement.key_id, THIEF.sign(pae(payload)))
    event, _ = enrol({}, proof, kind=ED25519, public=THIEF.public, log_id=log_id, now_us=0)
    return lambda *_: msgspec.json.encode(event)


async def test_what_an_erasure_of_the_log_itself_leaves_counts(world: ProvenLog) -> None:
    """The control: an erasure that leaves what an erasure leaves is in order, whoever wrote it."""
    with attacking(world.path) as attacker:
        erase(attacker, PROPOSAL, remainder_of)
        erase(attacker, NOTE, remainder_of)
    verdicts = await judged(world)
    assert not verdicts.is_damaged
    assert verdicts.erasures.details["erased"] == 2


async def test_the_enrolment_of_a_key_cannot_be_erased_so_that_another_key_takes_its_place(world: ProvenLog) -> None:
    with attacking(world.path) as attacker:
        left = enrolment_of_thief(attacker)
        erase(attacker, ENROLMENT, left)
        erase(attacker, APPROVAL, remainder_of)
    verdicts = await judged(world)
    assert [each.position for each in verdicts.erasures.problems] == [ENROLMENT]
    assert verdicts.integrity.verdict == "damaged"
    with pytest.raises(LogCorrupt) as caught:
        async with world.opened() as log:
            await log.read_stream("$log")
    assert (caught.value.reason, caught.value.position) == ("body_missing", ENROLMENT)


async def test_no_event_about_the_log_itself_is_taken_for_erased(world: ProvenLog) -> None:
    with attacking(world.path) as attacker:
        erase(attacker, KEY, lambda *_: b"")
    assert [each.position for each in (await judged(world)).erasures.problems] == [KEY]


@pytest.mark.parametrize(
    ("position", "left_of"),
    [
        (PROPOSAL, edited(proposal={"action": "pay", "args": {"amount": "2500"}, "output": "account-666"})),
        (PROPOSAL, edited()),
        (APPROVAL, edited(decision="reject")),
        (NOTE, edited(n=99)),
        (NOTE, lambda *_: b'"anything"'),
        (PROPOSAL, lambda *_: b"[1]"),
    ],
    ids=[
        "another-proposal",
        "the-whole-proposal",
        "another-decision",
        "another-note",
        "a-note-of-another-form",
        "no-proposal",
    ],
)
async def test_an_erasure_cannot_say_something_else_in_the_place_of_what_it_erased(
    world: ProvenLog, position: int, left_of: Callable[[str, bytes], bytes]
) -> None:
    with attacking(world.path) as attacker:
        erase(attacker, position, left_of)
    verdicts = await judged(world)
    assert [each.position for each in verdicts.erasures.problems] == [position]
    assert verdicts.is_damaged


@pytest.mark.parametrize(
    "said",
    [{"position": NOTE + 1}, {"body_kind": 1}, {"body_len": "many"}, {"content_commit": "zz"}, {"stored_hash": "0"}],
    ids=lambda said: next(iter(said)),
)
async def test_an_erasure_that_says_nothing_of_this_body_erases_nothing(world: ProvenLog, said: dict[str, Any]) -> None:
    with attacking(world.path) as attacker:
        erase(attacker, NOTE, remainder_of)
        at = attacker.size
        body = attacker.value("SELECT CAST(body AS BLOB) FROM events WHERE position = ?", at)
        attacker.edit_body(at, edited(**said)("payload_erased", body))
        attacker.rehash_only(at)
        attacker.replant()
    assert (await judged(world)).is_damaged
    async with world.opened() as log:
        with pytest.raises(LogCorrupt) as caught:
            [event async for event in log.read_all(after=NOTE - 1, limit=1)]
    assert (caught.value.reason, caught.value.position) == ("body_missing", NOTE)


async def test_a_destruction_that_names_no_key_makes_no_key_destroyed(tmp_path: Path) -> None:
    path, keys = tmp_path / "a.db", SubjectKeys(tmp_path / "keys", wrapping_key=b"w" * 32)
    async with open_file(path, subject_keys=keys) as log:
        await log.append("secret", [NewEvent("noted", {"n": 1})], expect=Expect.any(), subject="ann")
        await log.erase_subject("ann", legal_basis="law")
        assert [event.redacted async for event in log.read("secret")] == ["subject_erased"]
    with attacking(path) as attacker:
        body = attacker.value("SELECT CAST(body AS BLOB) FROM events WHERE position = 2")
        attacker.edit_body(2, edited(key_id="of ann")("subject_erased", body))
        attacker.rehash_only(2)
        attacker.replant()
    async with open_file(path) as log:
        assert [event.redacted async for event in log.read("secret")] == ["key_missing"]


async def test_what_is_noted_as_erased_and_is_there_is_not_said_to_be_erased_already(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_file(path) as log:
        await log.append("notes", [NewEvent("noted", {"n": each}) for each in range(2)], expect=Expect.any())
        await log.erase([2], legal_basis="law")
    with attacking(path) as attacker:
        attacker.run("INSERT INTO erasures SELECT 1, erased_by FROM erasures")
    verdicts = await check(path)
    assert [(each.reason, each.position) for each in verdicts.integrity.problems] == [("not_erased", 1)]
    async with open_file(path) as log:
        with pytest.raises(LogCorrupt) as caught:
            await log.erase([1], legal_basis="law")
    assert caught.value.reason == "not_erased"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM subject_streams", "subject_changed"),
        ("UPDATE subject_streams SET key_id = randomblob(16)", "subject_changed"),
        (
            "INSERT INTO subject_streams SELECT stream_id, zeroblob(16) FROM streams WHERE name = 'notes'",
            "subject_changed",
        ),
        ("INSERT INTO log_ids SELECT max(position) + 1, randomblob(16) FROM events", "log_id_changed"),
        ("INSERT INTO erasures VALUES (1000, 1)", "not_erased"),
    ],
    ids=["not-encrypted", "another-key", "encrypted", "an-incarnation", "an-erasure-of-nothing"],
)
async def test_what_is_noted_beside_the_events_and_they_do_not_bear_out_is_damage(
    tmp_path: Path, statement: str, reason: str
) -> None:
    path, keys = tmp_path / "a.db", SubjectKeys(tmp_path / "keys", wrapping_key=b"w" * 32)
    async with open_file(path, subject_keys=keys) as log:
        await log.append("secret", [NewEvent("noted", {"n": 1})], expect=Expect.any(), subject="ann")
        await log.append("notes", [NewEvent("noted", {"n": 1})], expect=Expect.any())
    assert not (await check(path)).is_damaged
    with attacking(path) as attacker:
        attacker.run(statement)
    assert [each.reason for each in (await check(path)).integrity.problems] == [reason]

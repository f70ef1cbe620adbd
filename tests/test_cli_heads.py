"""`eventlog head`, `keys` and `signer`: what is signed, by which key, and what the command line says of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace
from witness_log import WitnessService

from eventlog.audit.heads import LocalSigner
from eventlog.audit.heads.head_file import HeadFile, kept_heads, move_heads
from eventlog.audit.heads.key_file import make_key_file
from eventlog.events import LogKeyRotated
from eventlog.merkle import is_consistent, is_included
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.head_text import open_head
from eventlog.signing.log_keys import rotate as make_rotation
from eventlog.signing.notes import make_verifier_key, parse_verifier_key
from tests.command_line import Ended, HereCommandLine
from tests.needs import need
from tests.test_signers import refused, running
from tools.campaigns.storage.log_files import open_file

PREFIX: Final = "log.example/runs"


@pytest.fixture
def cli(tmp_path: Path) -> HereCommandLine:
    """The command line in a folder with a log of one event, and a key that was named in it and has signed it."""
    cli = HereCommandLine(tmp_path, "--db", "log.db")
    append(cli, "first")
    cli("keys", "new", "--to", "key", "--prefix", PREFIX, status=0)
    return cli


def answer(ended: Ended) -> dict[str, Any]:
    found: dict[str, Any] = ended.json
    return found


def append(cli: HereCommandLine, what: str, *words: str, status: int = 0) -> Ended:
    """Append one event."""
    line = json.dumps({"type": "noted", "data": {"what": what}}).encode()
    return cli(*words, "events", "append", "notes", "--from", "-", "--expect", "any", stdin=line, status=status)


def heads_of(cli: HereCommandLine, key: str) -> list[int]:
    return [each.head.size for each in kept_heads(cli.folder / f"{key}.heads")[0]]


# ── keys new, declare ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_key_is_named_in_a_log_that_has_none_and_signs_it(cli: HereCommandLine) -> None:
    (key,) = answer(cli("keys", "list", "--json", status=0))["keys"]
    head = answer(cli("head", "--json", status=0))
    assert (key["of"], key["name"], key["since"], key["until"]) == ("log", f"{PREFIX}/{head['log_id']}", 0, None)
    opened = open_head(head["note"].encode(), [parse_verifier_key(key["key"])])
    assert opened.head.size == head["size"] == head["signed_size"] == 2
    assert head["is_covered"] and head["newer_events"] == 0
    assert heads_of(cli, "key") == [2]


def test_a_second_key_is_made_and_not_named(cli: HereCommandLine) -> None:
    made = cli("keys", "new", "--to", "other", "--json", status=0)
    assert answer(made)["declared"] is False and "keys rotate" in made.error
    assert len(answer(cli("keys", "list", "--json", status=0))["keys"]) == 1
    assert not (cli.folder / "other.heads").exists(), "it has signed nothing"


def test_without_a_log_a_key_is_made_and_named_later(tmp_path: Path) -> None:
    cli = HereCommandLine(tmp_path)
    made = cli("keys", "new", "--to", "key", "--json", status=0)
    assert answer(made)["prefix"] == "eventlog.local/log" and "keys declare" in made.error
    cli("--db", "log.db", "keys", "declare", "--key", "key", status=2)
    append(cli, "first", "--db", "log.db", "--signer", "key")
    named = answer(cli("--db", "log.db", "keys", "declare", "--key", "key", "--json", status=0))
    assert named["declared"] is True and named["signed_size"] == 2
    again = answer(cli("--db", "log.db", "keys", "declare", "--key", "key", "--json", status=0))
    assert again["declared"] is True and again["signed_size"] is None
    assert heads_of(HereCommandLine(tmp_path), "key") == [1, 2]


def test_no_key_file_and_no_file_of_heads_is_replaced(cli: HereCommandLine) -> None:
    content = (cli.folder / "key").read_bytes()
    (cli.folder / "key.heads").rename(cli.folder / "away")
    assert "target_exists" in cli("keys", "new", "--to", "key", status=2).error
    assert (cli.folder / "key").read_bytes() == content
    (cli.folder / "lost.heads").write_text("")
    assert "invalid_argument" in cli("keys", "new", "--to", "lost", status=2).error
    assert not (cli.folder / "lost").exists()


@pytest.mark.parametrize("prefix", ["a b", "a/", "", "a+b"])
def test_a_prefix_that_names_no_log_makes_no_key(cli: HereCommandLine, prefix: str) -> None:
    assert "bad_verifier_key" in cli("keys", "new", "--to", "other", "--prefix", prefix, status=2).error
    assert not (cli.folder / "other").exists()


# ── writing under a signer ───────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_command_appends_is_under_a_signed_head_when_it_ends(cli: HereCommandLine) -> None:
    append(cli, "second", "--signer", "key")
    assert heads_of(cli, "key") == [2, 3]
    append(cli, "third")
    head = cli("head", "--json", status=0)
    assert (answer(head)["newer_events"], answer(head)["is_covered"]) == (1, False)
    assert "1 event not under a signed head" in head.error
    signed = answer(cli("head", "--sign", "--json", env={"EVENTLOG_SIGNER": "key"}, status=0))
    assert (signed["signed_size"], signed["signed_by"], signed["is_covered"]) == (4, "signer", True)


def test_an_older_copy_of_the_log_is_refused_and_nothing_is_written(cli: HereCommandLine) -> None:
    cli("db", "backup", "older.db", status=0)
    append(cli, "second", "--signer", "key")
    shutil.copy(cli.folder / "older.db", cli.folder / "log.db")
    for name in ("log.db-wal", "log.db-shm"):
        (cli.folder / name).unlink(missing_ok=True)
    ended = append(cli, "more", "--signer", "key", status=2)
    assert ended.status == 2 and "store_rolled_back" in ended.error
    shown = cli("head", "--signer", "key", "--json", status=0)
    assert answer(shown)["size"] == 2 and answer(shown)["signed_size"] == 3
    assert "the log was cut, or an older copy put in its place" in shown.error


def test_another_history_of_the_same_length_is_refused(cli: HereCommandLine) -> None:
    cli("db", "backup", "older.db", status=0)
    append(cli, "second", "--signer", "key")
    other = HereCommandLine(cli.folder, "--db", "older.db")
    append(other, "another")
    shown = other("head", "--signer", "key", "--json", status=0)
    assert answer(shown)["is_covered"] is False and "another root" in shown.error
    ended = append(other, "more", "--signer", "key", status=2)
    assert ended.status == 2 and "store_forked" in ended.error


def test_who_only_looks_needs_no_signer(cli: HereCommandLine) -> None:
    for words in (["runs", "list"], ["tail"], ["db", "info"], ["keys", "list"]):
        cli("--signer", "unix:nobody", *words, status=0)
    ended = append(cli, "more", "--signer", "unix:nobody", status=2)
    assert ended.status == 2 and "signer_unavailable" in ended.error


@pytest.mark.parametrize(
    ("signer", "code"), [("absent", "key_unusable"), ("exposed", "key_exposed"), ("unix:", "invalid_argument")]
)
def test_a_signer_that_cannot_sign_is_told_before_anything_is_written(
    cli: HereCommandLine, signer: str, code: str
) -> None:
    shutil.copy(cli.folder / "key", cli.folder / "exposed")
    (cli.folder / "exposed").chmod(0o644)
    assert code in append(cli, "more", "--signer", signer, status=2).error
    assert answer(cli("head", "--json", status=0))["size"] == 2


# ── keys rotate, retire, list ────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_hands_over_to_the_next_and_signs_nothing_any_more(cli: HereCommandLine) -> None:
    append(cli, "second", "--signer", "key")
    done = answer(cli("keys", "rotate", "--key", "key", "--to", "next", "--json", status=0))
    assert (done["position"], done["signed_size"]) == (4, 4)
    old, new = (parse_verifier_key(done[name]) for name in ("replaces", "verifier_key"))
    note = kept_heads(cli.folder / "next.heads")[0][-1].note
    assert open_head(note, [old]).head == open_head(note, [new]).head, "the head that hands over has both signatures"
    ended = append(cli, "more", "--signer", "key", status=2)
    assert ended.status == 2 and "head_refused" in ended.error and "next.heads" in ended.error
    append(cli, "third", "--signer", "next")
    assert heads_of(cli, "next")[-1] == 5
    listed = answer(cli("keys", "list", "--json", status=0))["keys"]
    assert [(each["since"], each["until"]) for each in listed] == [(0, 3), (4, None)]
    cli("verify", status=0)


def test_both_keys_sign_as_long_as_both_are_given(cli: HereCommandLine) -> None:
    done = answer(cli("keys", "rotate", "--key", "key", "--to", "next", "--json", status=0))
    append(cli, "second", "--signer", "next,key")
    note = kept_heads(cli.folder / "next.heads")[0][-1].note
    keys = [parse_verifier_key(done[name]) for name in ("replaces", "verifier_key")]
    assert len(open_head(note, keys).verified) == 2
    append(cli, "third", "--signer", "next")
    note = kept_heads(cli.folder / "next.heads")[0][-1].note
    assert open_head(note, keys).verified == (keys[1],)


def test_a_rotation_may_be_repeated_and_is_done_once(cli: HereCommandLine) -> None:
    first = answer(cli("keys", "rotate", "--key", "key", "--to", "next", "--json", status=0))
    assert answer(cli("keys", "rotate", "--key", "key", "--to", "next", "--json", status=0)) == first
    assert len(answer(cli("keys", "list", "--json", status=0))["keys"]) == 2


def test_a_rotation_that_was_killed_behind_its_copy_of_the_heads_goes_on_once_the_old_key_has_signed_more(
    cli: HereCommandLine,
) -> None:
    cli("keys", "new", "--to", "next", status=0)
    shutil.copy(cli.folder / "key.heads", cli.folder / "next.heads")  # and then it was killed
    append(cli, "more", "--signer", "key")
    assert len(heads_of(cli, "next")) < len(heads_of(cli, "key"))
    cli("keys", "rotate", "--key", "key", "--to", "next", status=0)
    assert heads_of(cli, "next")[: len(heads_of(cli, "key"))] == heads_of(cli, "key")
    cli("verify", "--signer", "next", status=0)


def test_heads_do_not_move_into_a_file_with_heads_of_its_own(cli: HereCommandLine) -> None:
    cli("keys", "new", "--to", "next", status=0)
    copied = (cli.folder / "key.heads").read_bytes()
    (cli.folder / "next.heads").write_bytes(copied + copied)
    append(cli, "more", "--signer", "key")
    assert "target_exists" in cli("keys", "rotate", "--key", "key", "--to", "next", status=2).error
    assert (cli.folder / "next.heads").read_bytes() == copied + copied


def test_a_rotation_that_was_interrupted_goes_on(cli: HereCommandLine) -> None:
    make_key_file(cli.folder / "next")
    move_heads(HeadFile(cli.folder / "key.heads"), str(cli.folder / "next.heads"), at_us=1)  # and then it was killed
    cli("keys", "rotate", "--key", "key", "--to", "next", status=0)
    append(cli, "second", "--signer", "next")
    cli("verify", status=0)


def test_only_the_key_that_signs_can_hand_over(cli: HereCommandLine) -> None:
    cli("keys", "new", "--to", "other", "--prefix", PREFIX, status=0)
    ended = cli("keys", "rotate", "--key", "other", "--to", "next", status=2)
    assert "invalid_argument" in ended.error and not (cli.folder / "next").exists()
    ended = cli("keys", "rotate", "--key", "key", "--to", "key", status=2)
    assert "invalid_argument" in ended.error
    append(cli, "second", "--signer", "key")


def test_a_key_that_was_replaced_is_retired_and_the_one_that_signs_is_not(cli: HereCommandLine) -> None:
    cli("keys", "rotate", "--key", "key", "--to", "next", status=0)
    old, new = (each["key_id"] for each in answer(cli("keys", "list", "--json", status=0))["keys"])
    assert "invalid_argument" in cli("keys", "retire", new, "--from-size", "1", status=2).error
    assert "invalid_argument" in cli("keys", "retire", "00000000", "--from-size", "1", status=2).error
    cli("--signer", "next", "keys", "retire", old, "--from-size", "1", "--reason", "lost \u202e", status=0)
    listed = answer(cli("keys", "list", "--json", status=0))["keys"]
    assert (listed[0]["until"], listed[0]["reason"]) == (1, "lost \u202e")
    assert "\u202e" not in cli("keys", "list", status=0).text


# ── head ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_head_is_shown_for_people_and_for_programs(cli: HereCommandLine) -> None:
    plain = dict(line.split("\t") for line in cli("head", status=0).text.partition("\n\n")[0].splitlines())
    document = answer(cli("head", "--json", status=0))
    assert plain["root"] == document["root"] and plain["is_covered"] == "yes"
    assert document["note"] in cli("head", "--format", "human", status=0).text + "\n"


def test_a_log_that_nobody_has_signed_says_so(tmp_path: Path) -> None:
    cli = HereCommandLine(tmp_path, "--db", "log.db")
    append(cli, "first")
    head = answer(cli("head", "--json", status=0))
    assert (head["note"], head["signed_size"], head["is_covered"], head["newer_events"]) == (None, None, False, 1)
    assert "no signed head" in cli("head", "--witness-request", "0", status=2).error


def test_the_proofs_that_are_printed_hold(cli: HereCommandLine) -> None:
    append(cli, "second", "--signer", "key")
    append(cli, "third", "--signer", "key")
    growth = answer(cli("head", "--proof", "2", "--json", status=0))
    proof = [b64decode(each) for each in growth["proof"]]
    roots = [bytes.fromhex(growth[name]) for name in ("old_root", "root")]
    assert is_consistent(2, roots[0], growth["size"], roots[1], proof)
    found = answer(cli("head", "--inclusion", "3", "--at", "3", "--json", status=0))
    proof = [b64decode(each) for each in found["proof"]]
    assert is_included(found["index"], bytes.fromhex(found["leaf"]), 3, bytes.fromhex(found["root"]), proof)
    assert answer(cli("head", "--at", "3", "--json", status=0))["root"] == found["root"]
    shown = cli("head", "--proof", "2", status=0).text.splitlines()
    assert shown[-len(growth["proof"]) :] == growth["proof"]


def test_what_is_printed_for_a_witness_is_cosigned(cli: HereCommandLine) -> None:
    (key,) = answer(cli("keys", "list", "--json", status=0))["keys"]
    WitnessService.create_state(str(cli.folder / "state"))
    witness = WitnessService.new("witness.example/w", b"w" * 32, str(cli.folder / "state"))
    witness.add_log(key["name"], key["key"])
    assert witness.handle_add_checkpoint(cli("head", "--witness-request", "0", status=0).text)[0] == 200
    append(cli, "second", "--signer", "key")
    document = answer(cli("head", "--witness-request", "2", "--json", status=0))
    assert document["request"] == cli("head", "--witness-request", "2", status=0).text
    assert witness.handle_add_checkpoint(document["request"])[0] == 200


@pytest.mark.parametrize(
    "words",
    [
        ["--proof", "9"],
        ["--inclusion", "9"],
        ["--inclusion", "0"],
        ["--inclusion", "2", "--at", "1"],
        ["--proof", "2", "--at", "1"],
        ["--at", "9"],
        ["--at", "-1"],
        ["--witness-request", "9"],
        ["--proof", "1", "--inclusion", "1"],
        ["--sign", "--at", "1"],
        ["--sign"],
    ],
    ids="".join,
)
def test_what_cannot_be_shown_or_proved_is_a_refusal(cli: HereCommandLine, words: list[str]) -> None:
    ended = cli("head", *words, status=2)
    assert ended.out == b"" and ended.err


def test_a_head_of_before_a_restore_does_not_say_that_the_log_was_cut(cli: HereCommandLine) -> None:
    cli("db", "backup", "older.db", status=0)
    append(cli, "second", "--signer", "key")
    signer = LocalSigner(cli.folder / "key")
    asyncio.run(restore(cli.folder / "older.db", signer))
    older = HereCommandLine(cli.folder, "--db", "older.db")
    append(older, "third")
    head = answer(older("head", "--signer", "key", "--json", status=0))
    assert (head["size"], head["newer_events"], head["is_covered"]) == (4, 1, False)
    named = answer(older("keys", "declare", "--key", "key", "--json", status=0))
    assert named["declared"] is True and named["signed_size"] == 5
    older("verify", status=0)


async def restore(path: Path, signer: LocalSigner) -> None:
    """Declare that an older copy was put in the place of a log."""
    async with open_file(path, signer=signer, restored="the disk broke"):
        pass


# ── db restored ──────────────────────────────────────────────────────────────────────────────────────────────────────


def put_back(cli: HereCommandLine, copy: str = "older.db") -> None:
    """Put an older copy in the place of the log."""
    shutil.copy(cli.folder / copy, cli.folder / "log.db")
    for name in ("log.db-wal", "log.db-shm"):
        (cli.folder / name).unlink(missing_ok=True)


@pytest.fixture
def rolled_back(cli: HereCommandLine) -> HereCommandLine:
    """A log of two events whose signer has signed a third."""
    cli("db", "backup", "older.db", status=0)
    append(cli, "second", "--signer", "key")
    put_back(cli)
    return cli


def heads_verdict(cli: HereCommandLine, *words: str, status: int = 0) -> dict[str, Any]:
    """Return what `verify` says of the heads."""
    found: dict[str, Any] = answer(cli("verify", "--json", *words, status=status))["heads"]
    return found


def test_a_rollback_is_refused_and_the_hint_names_the_command_that_declares_it(rolled_back: HereCommandLine) -> None:
    refusal = append(rolled_back, "more", "--signer", "key", status=2)
    assert "store_rolled_back" in refusal.error and "eventlog db restored" in refusal.error
    document = json.loads(rolled_back("--signer", "key", "head", "--sign", "--json", status=2).out)
    assert document["error"] == "store_rolled_back" and "eventlog db restored" in document["hint"]
    assert heads_verdict(rolled_back, "--head", "key.heads", status=3)["verdict"] == "damaged"


def test_a_restore_is_declared_and_the_log_goes_on_under_its_key(rolled_back: HereCommandLine) -> None:
    cli = rolled_back
    before = answer(cli("head", "--json", status=0))["log_id"]
    card = answer(cli("--signer", "key", "db", "restored", "--reason", "the disk broke", "--json", status=0))
    assert (card["previous_log_id"], card["first_position"]) == (before, 3)
    assert (card["last_known_size"], card["lost_events"]) == (3, 1)
    assert (card["declared"], card["signed_size"]) == (True, 4)
    listed = answer(cli("keys", "list", "--json", status=0))["keys"]
    assert [each["name"] for each in listed] == [f"{PREFIX}/{before}", f"{PREFIX}/{card['log_id']}"]
    append(cli, "third", "--signer", "key")
    assert heads_of(cli, "key")[:2] == [2, 3] and heads_of(cli, "key")[-2:] == [4, 5]
    verdict = heads_verdict(cli, "--head", "key.heads", "--log-key", listed[0]["key"])
    assert verdict["verdict"] == "ok"
    (restore,) = verdict["restores"]
    assert (restore["position"], restore["lost_to"], restore["reason"]) == (3, 3, "the disk broke")
    assert "the disk broke" in cli("verify", "--head", "key.heads", status=0).text


def test_a_rollback_after_a_declared_one_is_found(rolled_back: HereCommandLine) -> None:
    cli = rolled_back
    cli("--signer", "key", "db", "restored", "--reason", "the disk broke", status=0)
    cli("db", "backup", "restored.db", status=0)
    append(cli, "third", "--signer", "key")
    put_back(cli, "restored.db")
    assert "store_rolled_back" in append(cli, "more", "--signer", "key", status=2).error
    assert heads_verdict(cli, "--head", "key.heads", status=3)["verdict"] == "damaged"
    put_back(cli)  # and one to the time before
    assert "store_forked" in append(cli, "more", "--signer", "key", status=2).error
    assert heads_verdict(cli, "--head", "key.heads", status=3)["verdict"] == "damaged"


def test_a_log_may_be_restored_twice_and_says_so_of_both(rolled_back: HereCommandLine) -> None:
    cli = rolled_back
    first = answer(cli("--signer", "key", "db", "restored", "--reason", "the disk broke", "--json", status=0))
    again = ["--signer", "key", "db", "restored", "--reason", "again", "--json"]
    assert answer(cli(*again, status=2))["error"] == "restore_not_needed"
    second = answer(cli(*again, "--force", status=0))
    assert second["previous_log_id"] == first["log_id"] and second["lost_events"] is None
    append(cli, "more", "--signer", "key")
    verdict = heads_verdict(cli, "--head", "key.heads")
    assert verdict["verdict"] == "ok"
    assert [each["reason"] for each in verdict["restores"]] == ["the disk broke", "again"]


def test_a_restore_without_a_signer_is_declared_in_the_log_alone(rolled_back: HereCommandLine) -> None:
    cli = rolled_back
    ended = answer(cli("db", "restored", "--reason", "the disk broke", "--json", status=2))
    assert ended["error"] == "restore_not_needed" and "--signer" in ended["message"]
    card = answer(cli("db", "restored", "--reason", "the disk broke", "--force", "--json", status=0))
    assert (card["last_known_size"], card["lost_events"]) == (None, None), "the copy cannot know"
    assert "declared" not in card
    assert "store_forked" in append(cli, "more", "--signer", "key", status=2).error, "the signer has not been told"


def test_a_healthy_log_is_not_declared_restored_by_mistake(cli: HereCommandLine) -> None:
    before = answer(cli("head", "--json", status=0))
    for words in (["--signer", "key"], []):
        ended = answer(cli(*words, "db", "restored", "--reason", "oops", "--json", status=2))
        assert ended["error"] == "restore_not_needed" and "--force" in ended["hint"]
    after = answer(cli("head", "--json", status=0))
    assert (after["size"], after["log_id"]) == (before["size"], before["log_id"])
    forced = answer(cli("--signer", "key", "db", "restored", "--reason", "I know", "--force", "--json", status=0))
    assert (forced["last_known_size"], forced["lost_events"]) == (2, None)


@pytest.mark.parametrize("reason", ["", "  ", "x" * 5_000], ids=["empty", "blank", "too-long"])
def test_a_restore_needs_a_reason(rolled_back: HereCommandLine, reason: str) -> None:
    content = (rolled_back.folder / "key.heads").read_bytes()
    ended = rolled_back("--signer", "key", "db", "restored", "--reason", reason, status=2)
    assert "invalid_argument" in ended.error and ("empty" if not reason.strip() else "at most") in ended.error
    assert (rolled_back.folder / "key.heads").read_bytes() == content
    assert answer(rolled_back("head", "--json", status=0))["size"] == 2


def test_a_restore_with_a_signer_elsewhere_goes_on_once_its_operator_has_begun_it(rolled_back: HereCommandLine) -> None:
    cli = rolled_back
    with running(cli.folder, "--key", "key", "--socket", "socket"):
        declared = cli("--signer", "unix:socket", "db", "restored", "--reason", "the disk broke", "--json", status=0)
        log_id = answer(declared)["log_id"]
        assert f"eventlog signer begin --heads FILE {log_id}" in declared.error
        assert "head_refused" in cli("--signer", "unix:socket", "head", "--sign", status=2).error
        cli("signer", "begin", "--heads", "key.heads", log_id, status=0)
        signed = answer(cli("--signer", "unix:socket", "head", "--sign", "--json", status=0))
        assert (signed["signed_size"], signed["is_covered"], signed["log_id"]) == (3, True, log_id)
        named = answer(cli("--signer", "unix:socket", "keys", "declare", "--json", status=0))
        assert named["declared"] is True and named["log_id"] == log_id
        append(cli, "third", "--signer", f"unix:socket#{named['verifier_key']}")
    assert heads_of(cli, "key") == [2, 3, 3, 4, 5]
    verdict = heads_verdict(cli, "--head", "key.heads")
    assert verdict["verdict"] == "ok" and len(verdict["restores"]) == 1


# ── a signer that is another process ─────────────────────────────────────────────────────────────────────────────────


def test_a_log_is_signed_by_another_process(cli: HereCommandLine) -> None:
    with running(cli.folder, "--key", "key", "--socket", "socket"):
        append(cli, "second", "--signer", "unix:socket")
        assert heads_of(cli, "key") == [2, 3]
        assert answer(cli("head", "--signer", "unix:socket", "--json", status=0))["signed_size"] == 3
    ended = append(cli, "more", "--signer", "unix:socket", status=2)
    assert ended.status == 2 and "signer_unavailable" in ended.error


def moved_to_a_vault(cli: HereCommandLine) -> HereCommandLine:
    """Return the signer's side, in a folder of its own: its socket and its statement reach the log's, nothing else."""
    vault = cli.folder / "vault"
    vault.mkdir()
    for name in ("key", "key.heads"):
        (cli.folder / name).rename(vault / name)
    return HereCommandLine(vault)


def test_a_log_names_the_key_of_a_signer_that_only_a_socket_leads_to(cli: HereCommandLine) -> None:
    operator, ask = moved_to_a_vault(cli), ["--signer", f"unix:{cli.folder / 'socket'}"]
    other = HereCommandLine(cli.folder, "--db", "other.db")
    (operator.folder / "key.heads").unlink()
    with running(operator.folder, "--key", "key", "--socket", "../socket"):
        append(other, "first")
        named = answer(other(*ask, "keys", "declare", "--json", status=0))
        assert named["declared"] is True and named["signed_size"] == 2
        listed = answer(other("keys", "list", "--json", status=0))["keys"]
        assert [each["key"] for each in listed] == [named["verifier_key"]]
        assert answer(other(*ask, "keys", "declare", "--json", status=0))["declared"] is True
        append(other, "second", *ask)
    assert "Missing option" in other("keys", "declare", status=2).error


def test_rotation_as_root_leaves_the_files_to_their_owner(cli: HereCommandLine) -> None:
    need(os.geteuid() == 0, "root, who may give files away")
    for name in ("key", "key.heads"):
        os.chown(cli.folder / name, 65534, 65534)
    os.chmod(cli.folder / "key", 0o400)
    os.chmod(cli.folder / "key.heads", 0o640)
    cli("keys", "rotate", "--key", "key", "--to", "next", status=0)
    found = [(cli.folder / name).stat() for name in ("next", "next.heads")]
    assert [(each.st_uid, each.st_gid) for each in found] == [(65534, 65534)] * 2
    assert [stat.S_IMODE(each.st_mode) for each in found] == [0o400, 0o640]


def test_a_signer_that_has_lost_its_heads_is_named_by_whoever_looks(cli: HereCommandLine) -> None:
    def found() -> tuple[Any, dict[str, Any]]:
        info = answer(cli("--signer", "key", "db", "info", "--json", status=0))
        checks = json.loads(cli("--signer", "key", "doctor", "--json").out)["checks"]
        return info.get("signer_behind"), next(each for each in checks if each["name"] == "signer")

    behind, check = found()
    assert behind is None and check["state"] == "ok"
    (cli.folder / "key.heads").unlink()
    behind, check = found()
    assert "size 2" in behind and check["state"] == "fail" and "signer_behind" in check["found"]


def test_a_file_of_heads_that_was_cut_is_named_by_verify(cli: HereCommandLine) -> None:
    append(cli, "second", "--signer", "key")
    lost = "has lost heads"
    assert lost not in cli("verify", "--head", "key.heads", "--format", "human", status=0).text
    content = (cli.folder / "key.heads").read_bytes()
    (cli.folder / "key.heads").write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    said = cli("verify", "--head", "key.heads", "--format", "human", status=0).text
    assert lost in said and "size 3" in said


@pytest.mark.parametrize("heads", [[], ["--heads", "key.heads"]], ids=["beside", "named"])
def test_a_key_hands_over_between_a_signer_and_its_log(cli: HereCommandLine, heads: list[str]) -> None:
    operator, serve = moved_to_a_vault(cli), ["--socket", "../socket", *heads]
    ask = ["--signer", f"unix:{cli.folder / 'socket'}"]
    take = [*ask, "keys", "rotate", "--statement", "statement"]
    with running(operator.folder, "--key", "key", *serve):
        append(cli, "second", *ask)
        written = answer(operator("signer", "rotate", "--key", "key", "--to", "next", *heads, "--json", status=0))
        shutil.copy(operator.folder / written["statement"], cli.folder / "statement")
        refusal = cli(*take, status=2).error
        assert "head_refused" in refusal, "it has not got the new key"
        assert ("--also OLD" if heads else "the key was replaced") in refusal
    assert operator("signer", "--key", "next", *serve, status=2).err, "the heads so far are the old key's"
    both = ["--key", "next", "--also", "key", *serve]
    assert answer(cli("head", "--json", status=0))["size"] == 3, "nothing was written"
    with running(operator.folder, *both):
        append(cli, "third", *ask)
        done = answer(cli(*take, "--json", status=0))
        assert (done["position"], done["signed_size"]) == (5, 5)
        assert answer(cli(*take, "--json", status=0)) == done, "it may be repeated"
    with running(operator.folder, "--key", "next", *serve):
        append(cli, "fourth", *ask)
    path = operator.folder / ("key.heads" if heads else "next.heads")
    by_size = {each.head.size: each.note for each in kept_heads(path)[0]}
    old, new = (parse_verifier_key(done[name]) for name in ("replaces", "verifier_key"))
    assert open_head(by_size[5], [old]).head == open_head(by_size[5], [new]).head, "who hands over signs with both"
    assert open_head(by_size[6], [old, new]).verified == (new,)
    listed = answer(cli("keys", "list", "--json", status=0))["keys"]
    assert [(each["since"], each["until"]) for each in listed] == [(0, 4), (5, None)]
    assert heads_verdict(cli, "--head", str(path), "--log-key", done["replaces"])["verdict"] == "ok"


def test_a_rotation_on_the_signers_side_may_be_repeated_and_replaces_nothing(cli: HereCommandLine) -> None:
    words = ["signer", "rotate", "--key", "key", "--to", "next", "--json"]
    first = answer(cli(*words, status=0))
    content = (cli.folder / "next.rotation").read_bytes()
    assert answer(cli(*words, status=0)) == first and (cli.folder / "next.rotation").read_bytes() == content
    assert json.loads(content)["replaces"] == first["replaces"]
    (cli.folder / "taken").write_text("mine")
    assert "target_exists" in cli(*words, "--statement", "taken", status=2).out.decode()
    assert (cli.folder / "taken").read_text() == "mine"
    other = cli("signer", "rotate", "--key", "key", "--to", "third", status=2)
    assert "target_exists" in other.error, "its heads have moved"
    assert not (cli.folder / "third.rotation").exists()


def test_a_key_that_has_signed_nothing_or_is_its_own_heir_makes_no_statement(cli: HereCommandLine) -> None:
    make_key_file(cli.folder / "fresh")
    for words in (["--key", "fresh", "--to", "next"], ["--key", "key", "--to", "key"]):
        assert "invalid_argument" in cli("signer", "rotate", *words, status=2).error
    assert not (cli.folder / "next").exists() and not (cli.folder / "key.rotation").exists()
    append(cli, "second", "--signer", "key")


def edited(content: bytes, how: str) -> bytes:
    """Return what somebody may have made of a statement."""
    event = msgspec.json.decode(content, type=LogKeyRotated)
    old, new = parse_verifier_key(event.replaces), parse_verifier_key(event.verifier_key)
    stranger = PrivateKey.from_seed(b"s" * 32)
    match how:
        case "no-json":
            return content[:-3]
        case "another-signature":
            event = replace(event, signature=make_rotation(stranger, new.public, new.name).signature)
        case "another-log":
            names = [make_verifier_key(f"{PREFIX}/{'ab' * 16}", key.public).to_text() for key in (old, new)]
            event = replace(event, replaces=names[0], verifier_key=names[1])
        case "another-heir":
            event = replace(event, verifier_key=make_verifier_key(new.name, stranger.public).to_text())
        case "another-old-key":
            event = make_rotation(stranger, new.public, new.name)
    return msgspec.json.encode(event)


@pytest.mark.parametrize(
    "how", ["no-json", "another-signature", "another-log", "another-heir", "another-old-key", "absent"]
)
def test_a_statement_that_the_old_key_has_not_made_for_this_log_writes_nothing(cli: HereCommandLine, how: str) -> None:
    cli("signer", "rotate", "--key", "key", "--to", "next", status=0)
    if how != "absent":
        (cli.folder / "statement").write_bytes(edited((cli.folder / "next.rotation").read_bytes(), how))
    ended = cli("--signer", "next,key", "keys", "rotate", "--statement", "statement", status=2)
    assert "invalid_argument" in ended.error
    assert answer(cli("head", "--json", status=0))["size"] == 2
    cli("--signer", "next,key", "keys", "rotate", "--statement", "next.rotation", status=0)


@pytest.mark.parametrize(
    "words",
    [[], ["--key", "key"], ["--statement", "s", "--key", "key", "--to", "next"], ["--statement", "s"]],
    ids=["nothing", "half", "both", "no-signer"],
)
def test_a_rotation_is_asked_for_in_one_of_two_ways(cli: HereCommandLine, words: list[str]) -> None:
    assert cli("keys", "rotate", *words, status=2).err
    assert not (cli.folder / "next").exists()


def test_the_signers_operator_begins_a_restored_log(cli: HereCommandLine) -> None:
    log_id = "ab" * 16
    assert answer(cli("signer", "begin", "--heads", "key.heads", log_id, "--json", status=0))["log_id"] == log_id
    with refused("head_refused"):
        LocalSigner(cli.folder / "key").begin(bytes.fromhex(answer(cli("head", "--json", status=0))["log_id"]))
    for words in (
        ["--heads", "absent", log_id],
        ["--heads", "key.heads", "abc"],
        ["--heads", "key.heads", log_id.upper()],
    ):
        assert "invalid_argument" in cli("signer", "begin", *words, status=2).error
    assert not (cli.folder / "absent").exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--key", "key"],
        ["--socket", "socket"],
        ["--key", "key", "--socket", "socket", "--socket-mode", "999"],
        ["--key", "key", "--socket", "socket", "--witness-key", "key"],
        ["--key", "key", "--socket", "socket", "--witness-name", "w"],
        ["--key", "absent", "--socket", "socket"],
        ["--key", "key", "--socket", "key"],
        ["--key", "key", "--socket", "socket", "--prefix", "log.example/others"],
        ["--key", "key", "--socket", "s", "--witness-key", "key", "--witness-name", "w", "--log-key", "nonsense"],
    ],
    ids=lambda words: "-".join(word.strip("-") for word in words) or "nothing",
)
def test_a_signer_that_cannot_serve_does_not_begin(cli: HereCommandLine, words: list[str]) -> None:
    content = (cli.folder / "key").read_bytes()
    ended = cli("signer", *words, status=2)
    assert ended.err and ended.out == b""
    assert not (cli.folder / "socket").exists() and (cli.folder / "key").read_bytes() == content


def test_a_damaged_file_of_heads_is_told_before_anything_is_served(cli: HereCommandLine) -> None:
    with (cli.folder / "key.heads").open("ab") as file:
        file.write(b"nonsense\n")
    assert "head_file_damaged" in cli("signer", "--key", "key", "--socket", "socket", status=2).error
    assert json.loads(cli("--signer", "key", "head", "--json", status=2).out)["error"] == "head_file_damaged"
    assert os.listdir(cli.folder).count("socket") == 0


def test_a_copy_that_is_put_back_twice_is_no_damage_though_nobody_can_compare_all_of_the_heads(
    cli: HereCommandLine,
) -> None:
    copy = (cli.folder / "log.db").read_bytes()
    for lost in (6, 1):
        for number in range(lost):
            append(cli, f"lost {number}", "--signer", "key")
        for end in ("-wal", "-shm"):
            (cli.folder / f"log.db{end}").unlink(missing_ok=True)
        (cli.folder / "log.db").write_bytes(copy)
        cli("db", "restored", "--reason", "the disk died", "--signer", "key", status=0)
    keys = [each["key"] for each in answer(cli("keys", "list", "--json", status=0))["keys"]]
    pinned = [word for key in keys for word in ("--log-key", key)]
    said = cli("verify", "--head", "key.heads", *pinned, status=4)
    assert "is lost, with what it said of that" in said.error + said.text
    rest = (cli.folder / "key.heads").read_text().splitlines(keepends=True)
    (cli.folder / "late.heads").write_text("".join(rest[-2:]))
    cli("verify", "--head", "late.heads", *pinned, status=0)

"""Signed approvals on the command line: with a key file in one step, with SSH in three, and what each refuses."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eventlog.cli.seen_heads import SeenHeads
from eventlog.errors import InvalidInput
from eventlog.merkle import TreeHead
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.envelopes import encode_envelope, make_envelope, pae, parse_pae
from eventlog.signing.shown_requests import SHOWN_AS
from eventlog.signing.ssh_signatures import make_ssh_signature, public_line, to_armour
from eventlog.signing.statements import key_id_of, parse_approval, parse_enrolment
from tests.command_line import CommandLine, HereCommandLine, edit
from tests.needs import need_command

KEY = PrivateKey.from_seed(b"anna" * 8)
SSH = PrivateKey.from_seed(b"ssh!" * 8)


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


@pytest.fixture
def key(here: HereCommandLine) -> str:
    """The name of a key file, which is enrolled for anna in a log with the run `run-1`."""
    start(here)
    write_key(here, "anna.pem", KEY)
    here("keys", "enroll", "--approver", "anna", "--sign", "anna.pem", status=0)
    return "anna.pem"


def start(here: CommandLine, run_id: str = "run-1") -> str:
    digest: str = here("start", run_id, "--output", f"{run_id}.txt", status=0).json["proposal_hash"]
    return digest


def write_key(here: CommandLine, name: str, key: PrivateKey) -> None:
    path = here.folder / name
    path.write_bytes(key.to_pem())
    path.chmod(0o600)


def approval(here: CommandLine, run_id: str = "run-1") -> Any:
    """Return the body of the approval that was recorded last."""
    words = ("--format", "jsonl", "--type", "approval_recorded")
    events = here("tail", run_id, *words, status=0).text.splitlines()
    return json.loads(events[-1])["data"]


def sign_with_ssh(here: CommandLine, name: str, key: PrivateKey = SSH, namespace: str = "eventlog-approval@v1") -> str:
    """Do what `ssh-keygen -Y sign` does with a file."""
    signature = make_ssh_signature(key, (here.folder / name).read_bytes(), namespace)
    (here.folder / f"{name}.sig").write_bytes(to_armour(signature))
    return f"{name}.sig"


class TestWithAKeyFile:
    def test_a_request_is_shown_signed_and_recorded_in_one_step(self, here: HereCommandLine, key: str) -> None:
        digest = start(here, "run-2")
        ended = here("approve", "run-2", "--proposal-hash", digest, "--sign", key, "--reason", "read it", status=0)
        assert set(ended.json) == {
            *("action", "approval_hash", "approval_request_id", "args", "executed", "output", "proposal_hash"),
            *("request_id", "run_id", "status", "trace"),
        }, "the frozen keys, and no others"
        assert ended.json["status"] == "APPROVED"
        said = approval(here, "run-2")
        assert (said["level"], said["actor_source"], said["reason"]) == (2, "signed", "read it")
        statement = parse_approval(base64.b64decode(said["envelope"]["payload"]))
        assert (statement.approver, statement.reason) == ("anna", "read it")
        shown = ended.err
        assert b"approved technical brief" in shown
        assert statement.displayed.media_type == SHOWN_AS
        assert statement.displayed.sha256 == hashlib.sha256(shown).hexdigest(), "what was on the screen, to the byte"
        assert here("resume", "run-2", status=0).json["result"] == "executed"

    def test_a_rejection_is_signed_as_well(self, here: HereCommandLine, key: str) -> None:
        digest = start(here, "run-2")
        assert here("reject", "run-2", "--proposal-hash", digest, "--sign", key, status=0).json["status"] == "REJECTED"
        assert approval(here, "run-2")["level"] == 2

    def test_another_hash_than_the_one_that_is_asked_is_refused_with_a_trace(
        self, here: HereCommandLine, key: str
    ) -> None:
        ended = here("approve", "run-1", "--proposal-hash", "0" * 64, "--sign", key, status=2)
        assert ended.json == {"error": "statement_mismatch"}
        assert b"proposal_sha256" in ended.err
        trace = here("show-trace", "run-1", status=0).json["trace"]
        assert trace[-1]["event"] == "transition_rejected"
        assert trace[-1]["reason"] == "statement_mismatch"

    def test_the_command_that_is_offered_for_a_request_that_has_to_be_signed_says_so(
        self, here: HereCommandLine, key: str
    ) -> None:
        app = here.folder / "signing_program.py"
        app.write_text(
            "import eventlog\n"
            "from eventlog.runtime.actions.write_file import WriteFile\n"
            "from eventlog.runtime.policies import Policy\n"
            "def runner(log):\n"
            "    policies = {'write_draft': Policy(level=2)}\n"
            "    return eventlog.Runner(log, actions=[WriteFile(name='write_draft')], policies=policies)\n"
        )
        words = ("--app", "signing_program:runner")
        digest = here("start", "run-2", "--output", "o.txt", *words, status=0).json["proposal_hash"]
        shown = here("approvals", "show", "run-2", "--json", status=0).json
        assert shown["approve_with"].endswith(f"--proposal-hash {digest} --sign KEY run-2")
        assert shown["policy"]["level"] == 2
        ended = here("approve", "run-2", "--proposal-hash", digest, status=2)
        assert ended.json == {"error": "level_required"}
        here("approve", "run-2", "--proposal-hash", digest, "--sign", key, status=0)
        row = here("approvals", "show", "run-2", "--json", status=0).json
        assert (row["votes"][0]["level"], row["votes"][0]["is_signed"]) == (2, True)
        assert here("verify", "--json", status=0).json["approvals"]["levels"] == {"2": 1}

    def test_a_key_that_is_not_enrolled_or_not_his_signs_nothing(self, here: HereCommandLine, key: str) -> None:
        write_key(here, "bob.pem", SSH)
        digest = here("show-trace", "run-1", status=0).json["proposal_hash"]
        ended = here("approve", "run-1", "--proposal-hash", digest, "--sign", "bob.pem", status=2)
        assert ended.json == {"error": "approver_unknown"}
        ended = here("approve", "run-1", "--proposal-hash", digest, "--sign", key, "--actor", "bob", status=2)
        assert ended.json == {"error": "approver_unknown"}

    def test_a_key_that_others_can_read_signs_nothing(self, here: HereCommandLine, key: str) -> None:
        (here.folder / key).chmod(0o644)
        digest = here("show-trace", "run-1", status=0).json["proposal_hash"]
        ended = here("approve", "run-1", "--proposal-hash", digest, "--sign", key, status=2)
        assert ended.json == {"error": "key_exposed"}

    def test_a_revoked_key_is_refused_at_the_approval_and_before_the_effect(
        self, here: HereCommandLine, key: str
    ) -> None:
        first, second = start(here, "run-2"), start(here, "run-3")
        here("approve", "run-2", "--proposal-hash", first, "--sign", key, status=0)
        card = here("keys", "revoke", key_id_of(KEY.public), "--reason", "left", "--json", status=0).json
        assert card["revoked_at"] is not None
        ended = here("approve", "run-3", "--proposal-hash", second, "--sign", key, status=2)
        assert ended.json == {"error": "approver_revoked"}
        assert here("resume", "run-2", status=2).json == {"error": "approver_revoked"}
        assert not (here.folder / "run-2.txt").exists()
        here("keys", "revoke", key_id_of(KEY.public), status=2)
        here("keys", "revoke", "0" * 64, status=2)

    def test_a_run_whose_approver_was_revoked_says_how_it_goes_on(self, here: HereCommandLine, key: str) -> None:
        digest = start(here, "run-2")
        here("approve", "run-2", "--proposal-hash", digest, "--sign", key, status=0)
        here("keys", "revoke", key_id_of(KEY.public), status=0)
        assert "revoke RUN" not in here("runs", "show", "run-2", "--format", "human", status=0).text
        here("resume", "run-2", status=2)
        shown = here("runs", "show", "run-2", "--format", "human", status=0).text
        assert "resume was refused: approver_revoked" in shown and "eventlog approvals revoke RUN" in shown
        here("approvals", "revoke", "run-2", status=0)
        here("approve", "run-2", "--proposal-hash", digest, status=0)
        here("resume", "run-2", status=0)
        assert "refused" not in here("runs", "show", "run-2", "--format", "human", status=0).text

    def test_a_statement_for_a_revoked_key_says_that_it_was_revoked_and_where(
        self, here: HereCommandLine, key: str
    ) -> None:
        ended = here("approvals", "statement", "run-1", "--actor", "eve", "--to", "s", "--format", "human", status=2)
        assert "no key of 'eve' is enrolled" in ended.error
        at = here("keys", "revoke", key_id_of(KEY.public), "--json", status=0).json["revoked_at"]
        ended = here("approvals", "statement", "run-1", "--actor", "anna", "--to", "s", "--format", "human", status=2)
        assert f"of 'anna' was revoked at position {at}" in ended.error


class TestTheMemoryOfAKey:
    def test_the_head_that_is_signed_is_kept_beside_the_key(self, here: HereCommandLine, key: str) -> None:
        digest = start(here, "run-2")
        here("approve", "run-2", "--proposal-hash", digest, "--sign", key, status=0)
        (line,) = (here.folder / f"{key}.seen").read_text().splitlines()
        head = parse_approval(base64.b64decode(approval(here, "run-2")["envelope"]["payload"])).head
        assert json.loads(line)["size"] == head.size
        assert json.loads(line)["root"] == head.root
        assert os.stat(here.folder / f"{key}.seen").st_mode & 0o077 == 0

    def test_an_older_copy_of_the_log_is_not_signed(self, here: HereCommandLine, key: str) -> None:
        copy(here, "a.db", "old.db")
        digest = start(here, "run-2")
        here("approve", "run-2", "--proposal-hash", digest, "--sign", key, status=0)
        old = HereCommandLine(here.folder, "--db", "old.db")
        asked = old("show-trace", "run-1", status=0).json["proposal_hash"]
        ended = old("approve", "run-1", "--proposal-hash", asked, "--sign", key, status=2)
        assert ended.json == {"error": "store_rolled_back"}

    def test_another_history_of_the_same_log_is_not_signed(self, here: HereCommandLine, key: str) -> None:
        copy(here, "a.db", "fork.db")
        digest = start(here, "run-2")
        here("approve", "run-2", "--proposal-hash", digest, "--sign", key, status=0)
        fork = HereCommandLine(here.folder, "--db", "fork.db")
        asked = [start(fork, f"run-{number}") for number in range(3, 9)]
        ended = fork("approve", "run-3", "--proposal-hash", asked[0], "--sign", key, status=2)
        assert ended.json == {"error": "store_forked"}

    def test_the_control_the_log_itself_goes_on_and_is_signed_again(self, here: HereCommandLine, key: str) -> None:
        for run_id in ("run-2", "run-3"):
            here("approve", run_id, "--proposal-hash", start(here, run_id), "--sign", key, status=0)
        assert len((here.folder / f"{key}.seen").read_text().splitlines()) == 2

    def test_a_line_that_a_crash_has_cut_short_is_passed_over(self, tmp_path: Path) -> None:
        path, head = tmp_path / "k.seen", TreeHead(7, b"\1" * 32)
        with SeenHeads(str(path)) as seen:
            assert seen.last("a" * 32) is None
            seen.keep("a" * 32, head)
        with path.open("ab") as file:
            file.write(b'{"log_id":"aaaa')
        with SeenHeads(str(path)) as seen:
            assert seen.last("a" * 32) == head
            assert seen.last("b" * 32) is None
            seen.keep("a" * 32, TreeHead(9, b"\2" * 32))
        with SeenHeads(str(path)) as seen:
            assert seen.last("a" * 32) == TreeHead(9, b"\2" * 32)

    def test_a_file_that_is_no_memory_of_heads_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "k.seen").write_text("something else\n")
        for path in (tmp_path / "k.seen", tmp_path, tmp_path / "no" / "such"):
            with pytest.raises(InvalidInput), SeenHeads(str(path)):
                pass
        assert (tmp_path / "k.seen").read_text() == "something else\n"


def copy(here: CommandLine, source: str, target: str) -> None:
    """Copy a log as a careful thief does: whole."""
    with sqlite3.connect(here.folder / source) as old, sqlite3.connect(here.folder / target) as new:
        old.backup(new)
    old.close()
    new.close()


class TestElsewhere:
    @pytest.fixture
    def ssh(self, here: HereCommandLine) -> HereCommandLine:
        """A log in which an SSH key was enrolled for anna, with the run `run-1`."""
        start(here)
        (here.folder / "id.pub").write_text(public_line(SSH.public) + " anna@laptop\n")
        here("keys", "challenge", "--approver", "anna", "--key", "id.pub", "--to", "c.pae", status=0)
        words = ("--key", "id.pub", "--challenge", "c.pae", "--ssh-signature", sign_with_ssh(here, "c.pae"))
        card = here("keys", "enroll", *words, "--json", status=0).json
        assert (card["approver"], card["kind"], card["level"]) == ("anna", "ssh-ed25519", 2)
        return here

    def test_an_ssh_key_signs_in_three_steps(self, ssh: HereCommandLine) -> None:
        ended = ssh("approvals", "statement", "run-1", "--actor", "anna", "--to", "s.pae", "--json", status=0)
        statement = parse_approval(parse_pae((ssh.folder / "s.pae").read_bytes()))
        assert ended.json["nonce"] == statement.nonce
        assert "approved technical brief" in ended.json["shown"]
        assert hashlib.sha256(ended.json["shown"].encode()).hexdigest() == statement.displayed.sha256
        signature = sign_with_ssh(ssh, "s.pae")
        words = ("--statement", "s.pae", "--ssh-signature", signature)
        assert ssh("approve", "run-1", *words, status=0).json["status"] == "APPROVED"
        assert ssh("approve", "run-1", *words, status=2).json == {"error": "nonce_used"}
        assert ssh("resume", "run-1", status=0).json["result"] == "executed"

    def test_the_bytes_to_sign_may_go_to_standard_output(self, ssh: HereCommandLine) -> None:
        words = ("--actor", "anna", "--decision", "reject", "--reason", "no", "--role", "ops", "--not-after", "90s")
        ended = ssh("approvals", "statement", "run-1", *words, "--to", "-", status=0)
        statement = parse_approval(parse_pae(ended.out))
        assert (statement.decision, statement.reason, statement.roles) == ("reject", "no", ("ops",))
        assert b"approved technical brief" in ended.err

    def test_a_log_that_can_only_be_read_is_enough_for_a_statement(self, ssh: HereCommandLine) -> None:
        before = ssh("tail", "--json", status=0).out
        ssh("approvals", "statement", "run-1", "--actor", "anna", "--to", "s.pae", "--seen", "anna.seen", status=0)
        assert ssh("tail", "--json", status=0).out == before
        assert (ssh.folder / "anna.seen").read_text().count("\n") == 1

    def test_a_signature_of_something_else_is_refused(self, ssh: HereCommandLine) -> None:
        ssh("approvals", "statement", "run-1", "--actor", "anna", "--to", "s.pae", status=0)
        for key, namespace in ((KEY, "eventlog-approval@v1"), (SSH, "git")):
            signature = sign_with_ssh(ssh, "s.pae", key, namespace)
            ended = ssh("approve", "run-1", "--statement", "s.pae", "--ssh-signature", signature, status=2)
            assert ended.json == {"error": "signature_invalid"}
        ended = ssh("approve", "run-1", "--statement", "id.pub", "--ssh-signature", "s.pae.sig", status=2)
        assert ended.json == {"error": "statement_invalid"}
        ended = ssh("approve", "run-1", "--statement", "s.pae", "--ssh-signature", "id.pub", status=2)
        assert ended.json == {"error": "statement_invalid"}

    def test_an_envelope_may_be_handed_in(self, ssh: HereCommandLine) -> None:
        ssh("approvals", "statement", "run-1", "--actor", "anna", "--to", "s.pae", status=0)
        payload = parse_pae((ssh.folder / "s.pae").read_bytes())
        envelope = make_envelope(payload, key_id_of(SSH.public), make_ssh_signature(SSH, pae(payload)))
        (ssh.folder / "s.dsse.json").write_bytes(encode_envelope(envelope))
        assert ssh("approve", "run-1", "--envelope", "s.dsse.json", status=0).json["status"] == "APPROVED"

    def test_a_statement_for_another_decision_is_not_turned_round(self, ssh: HereCommandLine) -> None:
        ssh("approvals", "statement", "run-1", "--actor", "anna", "--decision", "reject", "--to", "s.pae", status=0)
        words = ("--statement", "s.pae", "--ssh-signature", sign_with_ssh(ssh, "s.pae"))
        assert ssh("approve", "run-1", *words, status=2).json == {"error": "statement_mismatch"}
        assert ssh("reject", "run-1", *words, status=0).json["status"] == "REJECTED"

    def test_a_changed_view_does_not_change_what_was_signed(self, ssh: HereCommandLine) -> None:
        ssh("approvals", "statement", "run-1", "--actor", "anna", "--to", "s.pae", status=0)
        words = ("--statement", "s.pae", "--ssh-signature", sign_with_ssh(ssh, "s.pae"))
        ssh("approve", "run-1", *words, status=0)
        edit(ssh.folder / "a.db", "UPDATE runs SET args='{\"content\":\"other\"}' WHERE run_id='run-1'")
        assert ssh("resume", "run-1", status=2).json == {"error": "proposal_hash_mismatch"}

    def test_an_existing_file_is_not_overwritten(self, ssh: HereCommandLine) -> None:
        ended = ssh("approvals", "statement", "run-1", "--actor", "anna", "--to", "id.pub", "--json", status=2)
        assert ended.json["error"] == "target_exists"

    def test_what_is_decided_already_gets_no_statement(self, ssh: HereCommandLine) -> None:
        digest = ssh("show-trace", "run-1", status=0).json["proposal_hash"]
        ssh("approve", "run-1", "--proposal-hash", digest, status=0)
        ended = ssh("approvals", "statement", "run-1", "--actor", "anna", "--to", "s.pae", "--json", status=2)
        assert ended.json["error"] == "approval_not_pending"
        assert not (ssh.folder / "s.pae").exists()


class TestUsage:
    @pytest.mark.parametrize(
        "words",
        [
            ("approve", "run-1", "--sign", "k", "--envelope", "e"),
            ("approve", "run-1", "--statement", "s"),
            ("approve", "run-1", "--ssh-signature", "s"),
            ("approve", "run-1", "--proposal-hash", "0", "--actor", "anna"),
            ("approve", "run-1", "--proposal-hash", "0", "--not-after", "30m"),
            ("approve", "run-1", "--sign", "k"),
            ("approve", "run-1", "--envelope", "no-such-file"),
            ("approve", "--from", "-", "--sign", "k"),
            ("approve", "run-1", "--sign", "k", "--not-after", "soon"),
            ("approvals", "statement", "run-1", "--to", "-"),
            ("approvals", "statement", "run-1", "--actor", "anna"),
            ("keys", "enroll", "--approver", "anna"),
            ("keys", "enroll", "--sign", "k"),
            ("keys", "enroll", "--envelope", "e"),
            ("keys", "enroll", "--sign", "k", "--envelope", "e", "--approver", "anna"),
            ("keys", "challenge", "--approver", "anna", "--to", "-"),
        ],
        ids=" ".join,
    )
    def test_options_that_do_not_go_together_are_told(self, here: HereCommandLine, words: tuple[str, ...]) -> None:
        start(here)
        before = here("tail", "--json", status=0).out
        ended = here(*words, status=2)
        assert b"Usage:" in ended.err or b"Error:" in ended.err
        assert here("tail", "--json", status=0).out == before, "nothing was recorded"

    @pytest.mark.parametrize("text", ["", "ssh-rsa AAAA", "!!", base64.b64encode(bytes(31)).decode()])
    def test_a_file_that_is_no_public_key_is_refused(self, here: HereCommandLine, text: str) -> None:
        start(here)
        (here.folder / "k.pub").write_text(text)
        ended = here("keys", "challenge", "--approver", "a", "--key", "k.pub", "--to", "-", "--json", status=2)
        assert ended.json["error"] == "invalid_argument"

    def test_a_weak_key_is_refused(self, here: HereCommandLine) -> None:
        start(here)
        (here.folder / "k.pub").write_text(base64.b64encode(bytes(32)).decode())
        ended = here("keys", "challenge", "--approver", "a", "--key", "k.pub", "--to", "-", "--json", status=2)
        assert ended.json["error"] == "weak_key"

    def test_a_key_in_hardware_has_level_3(self, here: HereCommandLine) -> None:
        start(here)
        write_key(here, "k.pem", KEY)
        words = ("--approver", "anna", "--sign", "k.pem", "--hardware", "--json")
        assert here("keys", "enroll", *words, status=0).json["level"] == 3

    def test_the_key_of_another_challenge_is_not_enrolled(self, here: HereCommandLine) -> None:
        start(here)
        (here.folder / "id.pub").write_text(public_line(SSH.public))
        (here.folder / "other.pub").write_text(public_line(KEY.public))
        here("keys", "challenge", "--approver", "anna", "--key", "id.pub", "--to", "c.pae", status=0)
        assert parse_enrolment(parse_pae((here.folder / "c.pae").read_bytes())).approver == "anna"
        words = ("--challenge", "c.pae", "--ssh-signature", sign_with_ssh(here, "c.pae"))
        ended = here("keys", "enroll", "--key", "other.pub", *words, "--json", status=2)
        assert ended.json["error"] == "signature_invalid"


def test_the_real_ssh_keygen_signs_an_approval_from_end_to_end(tmp_path: Path) -> None:
    keygen = need_command("ssh-keygen")
    cli = CommandLine(tmp_path, "--db", "a.db")

    def sign(name: str) -> str:
        argv = [keygen, "-Y", "sign", "-q", "-n", "eventlog-approval@v1", "-f", "id", name]
        subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, timeout=30)
        return f"{name}.sig"

    argv = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "anna", "-f", "id"]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=30)
    start(cli)
    cli("keys", "challenge", "--approver", "anna", "--key", "id.pub", "--to", "c.pae", status=0)
    words = ("--challenge", "c.pae", "--ssh-signature", sign("c.pae"))
    cli("keys", "enroll", "--key", "id.pub", *words, status=0)
    cli("approvals", "statement", "run-1", "--actor", "anna", "--to", "s.pae", status=0)
    words = ("--statement", "s.pae", "--ssh-signature", sign("s.pae"))
    assert cli("approve", "run-1", *words, status=0).json["status"] == "APPROVED"
    assert cli("resume", "run-1", status=0).json["result"] == "executed"
    said = approval(cli)
    blob = base64.b64decode(said["envelope"]["signatures"][0]["sig"])
    (tmp_path / "kept.sig").write_bytes(to_armour(blob))
    (tmp_path / "signers").write_text(f"anna {(tmp_path / 'id.pub').read_text()}")
    argv = [keygen, "-Y", "verify", "-f", "signers", "-I", "anna", "-n", "eventlog-approval@v1", "-s", "kept.sig"]
    signed = pae(base64.b64decode(said["envelope"]["payload"]))
    ended = subprocess.run(argv, cwd=tmp_path, input=signed, capture_output=True, timeout=30, check=False)
    assert ended.returncode == 0, "what the log keeps is verified without any of our code"

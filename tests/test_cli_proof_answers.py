"""What the commands about proof answer people: the reason, what to do next, and no words of Python or of the system."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.audit.pack import verifier
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.ssh_signatures import public_line
from tests.command_line import HereCommandLine

HIDDEN = '{"content": "hidden-words"}'


@pytest.fixture
def cli(tmp_path: Path) -> HereCommandLine:
    """The command line in a folder with a log of one run, `run-1`."""
    cli = HereCommandLine(tmp_path, "--db", "log.db")
    cli("start", "run-1", "--output", "one.txt", status=0)
    return cli


def proposal_hash(cli: HereCommandLine, run_id: str = "run-1", *words: str) -> str:
    found: str = cli(*words, "runs", "show", run_id, "--json", status=0).json["proposal_hash"]
    return found


def checks_of(cli: HereCommandLine, *words: str) -> dict[str, Any]:
    return {each["name"]: each for each in cli(*words, "doctor", "--json").json["checks"]}


# ── frozen commands ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signer_that_does_not_answer_is_explained_and_not_only_coded(cli: HereCommandLine) -> None:
    ended = cli("--signer", "unix:none.sock", "start", "run-2", "--output", "two.txt", status=2)
    assert ended.json == {"error": "signer_unavailable"}
    assert "the signer at unix:none.sock" in ended.error
    assert "hint: See that it runs" in ended.error


def test_a_secret_is_explained_and_not_only_coded(cli: HereCommandLine) -> None:
    args = json.dumps({"content": "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2})
    ended = cli("start", "run-2", "--output", "two.txt", "--action", "write_draft", "--args", args, status=2)
    assert ended.json == {"error": "secret_found"}
    assert "secret_ref" in ended.error


def test_the_control_what_the_first_seed_has_stays_a_code_alone(cli: HereCommandLine) -> None:
    ended = cli("start", "run-1", "--output", "one.txt", status=2)
    assert (ended.json, ended.error) == ({"error": "run_exists:run-1"}, "")


def test_a_statement_that_is_none_is_explained(cli: HereCommandLine) -> None:
    (cli.folder / "no.txt").write_text("DSSEv1 1 a 1 b")
    ended = cli("approve", "run-1", "--statement", "no.txt", "--ssh-signature", "no.txt", status=2)
    assert ended.json == {"error": "statement_invalid"}
    assert "error[statement_invalid]" in ended.error


@pytest.mark.parametrize("code", ["approver_revoked", "statement_expired"])
def test_what_stops_an_approved_run_names_the_way_out(code: str) -> None:
    assert "`eventlog approvals revoke RUN` first" in eventlog.errors.CODES[code].hint


# ── keys, statements ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_missing_is_named_once_and_without_its_errno(cli: HereCommandLine) -> None:
    ended = cli("keys", "challenge", "--approver", "ada", "--key", "ada.pub", "--to", "-", status=2)
    assert "cannot read 'ada.pub': No such file or directory." in ended.error
    assert "Errno" not in ended.error


def test_a_statement_prints_no_tuple(cli: HereCommandLine) -> None:
    key = cli.folder / "ada.pem"
    key.write_bytes(PrivateKey.from_seed(b"ada!" * 8).to_pem())
    key.chmod(0o600)
    cli("keys", "enroll", "--approver", "ada", "--sign", "ada.pem", status=0)
    ended = cli("approvals", "statement", "run-1", "--actor", "ada", "--to", "s.txt", status=0)
    assert "roles\t[]" in ended.text.splitlines()


def test_a_key_that_was_replaced_is_not_called_an_older_copy(cli: HereCommandLine) -> None:
    cli("keys", "new", "--to", "one", status=0)
    cli("keys", "rotate", "--key", "one", "--to", "two", status=0)
    ended = cli("--signer", "one", "start", "run-2", "--output", "two.txt", status=2)
    assert "hint: Sign with the key that took its place" in ended.error


# ── doctor, db info ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_doctor_says_whether_the_signer_answers_and_has_signed_this_log(cli: HereCommandLine) -> None:
    cli("keys", "new", "--to", "key", status=0)
    found = checks_of(cli, "--signer", "key")["signer"]
    assert (found["state"], found["found"]) == ("ok", "has signed 3 of 3 events")
    assert checks_of(cli, "--signer", "unix:none.sock")["signer"]["state"] == "fail"
    assert "signer" not in checks_of(cli)


def test_doctor_finds_that_an_older_copy_was_put_back(cli: HereCommandLine) -> None:
    cli("keys", "new", "--to", "key", status=0)
    cli("db", "backup", "old.db", status=0)
    cli("--signer", "key", "start", "run-2", "--output", "two.txt", status=0)
    for path in cli.folder.glob("log.db*"):
        if path.is_file():
            path.unlink()
    shutil.copy(cli.folder / "old.db", cli.folder / "log.db")
    found = checks_of(cli, "--signer", "key")["signer"]
    assert (found["state"], found["found"]) == ("fail", "store_rolled_back: has signed 5 of 3 events")


def test_doctor_finds_that_the_signer_is_of_another_log(cli: HereCommandLine) -> None:
    other = HereCommandLine(cli.folder, "--db", "other.db")
    other("start", "run-1", "--output", "one.txt", status=0)
    other("keys", "new", "--to", "key", status=0)
    cli("start", "run-2", "--output", "two.txt", status=0)
    found = checks_of(cli, "--signer", "key")["signer"]
    assert (found["state"], found["found"][:12]) == ("fail", "store_forked")


def test_info_says_what_the_database_has_under_a_signed_head(cli: HereCommandLine) -> None:
    assert cli("db", "info", "--json", status=0).json["signed_size"] is None
    cli("keys", "new", "--to", "key", status=0)
    assert cli("db", "info", "--json", status=0).json["signed_size"] == 3


# ── subjects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def about_a_subject(cli: HereCommandLine) -> None:
    words = ("--output", "two.txt", "--subject", "customer-17", "--action", "write_draft", "--args", HIDDEN)
    cli("--subject-keys", "keys", "start", "run-2", *words, status=0)


def test_a_folder_for_keys_may_have_been_made_before(cli: HereCommandLine) -> None:
    (cli.folder / "keys").mkdir(mode=0o700)
    about_a_subject(cli)
    assert (cli.folder / "keys.wrapping").is_file()


def test_a_folder_with_keys_gets_no_other_wrapping_key(cli: HereCommandLine) -> None:
    about_a_subject(cli)
    (cli.folder / "keys.wrapping").unlink()
    words = ("--output", "three.txt", "--subject", "customer-18")
    ended = cli("--subject-keys", "keys", "start", "run-3", *words, status=2)
    assert ended.json == {"error": "wrapping_key_unusable"}
    assert not (cli.folder / "keys.wrapping").exists()


def test_a_view_that_met_a_missing_key_asks_for_the_keys_and_not_for_a_corrected_projection(
    cli: HereCommandLine,
) -> None:
    about_a_subject(cli)
    ended = cli("runs", "timeline", "run-2")
    assert ended.status != 0
    assert "hint: Name the folder of the keys with `--subject-keys FOLDER`" in ended.error


def test_the_erasure_of_a_subject_does_not_say_that_nothing_was_erased(cli: HereCommandLine) -> None:
    about_a_subject(cli)
    keys = ("--subject-keys", "keys")
    cli(*keys, "runs", "cancel", "run-2", status=0)
    words = (*keys, "erase", "--subject", "customer-17", "--legal-basis", "GDPR 17", "--json")
    assert cli(*words, "--dry-run", status=0).json["events"] == 3
    done = cli(*words, "--yes", status=0).json
    assert len(done["subject_key_destroyed"]) == 32
    assert "erased" not in done


# ── the verifier of a pack ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_pack_is_verified_with_the_file_of_an_approvers_key(cli: HereCommandLine) -> None:
    (cli.folder / "ada.pub").write_text(public_line(PrivateKey.from_seed(b"ada!" * 8).public))
    (cli.folder / "a.zip").write_bytes(b"no pack")
    assert "no zip archive" in cli("verify", "--pack", "a.zip", "--approver", "ada=ada.pub", status=3).text
    assert "neither a file nor a key" in cli("verify", "--pack", "a.zip", "--approver", "ada=no.pub", status=2).error


@pytest.mark.parametrize("given", ["ada=ada.pub", "ada", public_line(PrivateKey.from_seed(b"ada!" * 8).public)])
def test_an_approver_that_is_neither_file_nor_key_is_named(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.zip").write_bytes(b"no pack")
    with pytest.raises(SystemExit) as ended:
        verifier.main(["a.zip", "--approver", given])
    assert ended.value.code == 2
    assert "--approver ID=KEY: " in capsys.readouterr().err


def test_what_is_no_pack_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(b"no pack")
    assert verifier.main([str(path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.lstrip().startswith(":")]
    assert len([line for line in lines if "no zip archive" in line]) == 1


def test_a_pack_that_is_missing_is_named_without_its_errno(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verifier.main([str(tmp_path / "none.zip")])
    said = capsys.readouterr().err
    assert "No such file or directory" in said
    assert "Errno" not in said

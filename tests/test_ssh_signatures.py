"""Signatures in the format of OpenSSH: ours are taken by `ssh-keygen`, its by us, and nothing else is."""

from __future__ import annotations

import hashlib
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog.audit.pack import verifier
from eventlog.errors import InvalidInput
from eventlog.signing.ed25519 import PrivateKey
from eventlog.signing.ssh_signatures import (
    NAMESPACE,
    SK_SSH_ED25519,
    is_ssh_signature,
    make_ssh_signature,
    parse_armour,
    parse_blob,
    parse_public_line,
    public_line,
    to_armour,
)
from tests.needs import need_command

KEY = PrivateKey.from_seed(bytes(range(32)))
OTHER = PrivateKey.from_seed(bytes(32))
MESSAGE = b"DSSEv1 28 application/vnd.in-toto+json 2 {}"
BLOB = make_ssh_signature(KEY, MESSAGE)


def text(value: bytes) -> bytes:
    """Return a string of the SSH protocol."""
    return struct.pack(">I", len(value)) + value


def blob(
    *,
    magic: bytes = b"SSHSIG",
    version: int = 1,
    key_kind: bytes = b"ssh-ed25519",
    namespace: bytes = NAMESPACE.encode(),
    reserved: bytes = b"",
    hash_name: bytes = b"sha512",
    signature_kind: bytes = b"ssh-ed25519",
    signature: bytes | None = None,
    behind: bytes = b"",
) -> bytes:
    """Return a blob whose parts can be set; as it stands it is a good one."""
    signed = parse_blob(BLOB).signature if signature is None else signature
    parts = (text(key_kind) + text(KEY.public), namespace, reserved, hash_name, text(signature_kind) + text(signed))
    return magic + struct.pack(">I", version) + b"".join(map(text, parts)) + behind


def refused(data: bytes) -> str:
    with pytest.raises(InvalidInput) as raised:
        is_ssh_signature(KEY.public, data, MESSAGE)
    assert raised.value.code == "statement_invalid"
    return str(raised.value)


class TestOurOwn:
    def test_a_signature_holds_for_its_key_message_and_namespace_alone(self) -> None:
        assert blob() == BLOB, "the control: the parts put together are the blob"
        assert is_ssh_signature(KEY.public, BLOB, MESSAGE)
        assert not is_ssh_signature(OTHER.public, BLOB, MESSAGE)
        assert not is_ssh_signature(KEY.public, BLOB, MESSAGE + b" ")
        assert not is_ssh_signature(KEY.public, BLOB, MESSAGE, "file")

    @pytest.mark.parametrize("hash_name", ["sha512", "sha256"])
    def test_both_hashes_are_taken(self, hash_name: str) -> None:
        assert is_ssh_signature(KEY.public, make_ssh_signature(KEY, MESSAGE, hash_name=hash_name), MESSAGE)

    def test_a_signature_for_another_namespace_proves_nothing(self) -> None:
        assert not is_ssh_signature(KEY.public, make_ssh_signature(KEY, MESSAGE, "git"), MESSAGE)
        renamed = blob(signature=parse_blob(make_ssh_signature(KEY, MESSAGE, "git")).signature)
        assert not is_ssh_signature(KEY.public, renamed, MESSAGE), "the namespace is signed, not only named"

    def test_the_armour_and_the_public_key_come_back(self) -> None:
        assert parse_armour(to_armour(BLOB)) == BLOB
        assert parse_armour(to_armour(BLOB).replace(b"\n", b"\r\n")) == BLOB
        assert parse_public_line(public_line(KEY.public)) == KEY.public
        assert parse_public_line(public_line(KEY.public) + " anna@laptop\n") == KEY.public


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (blob(magic=b"SSHSIX"), "version 1"),
            (blob(version=2), "version 1"),
            (blob(key_kind=b"ssh-rsa"), "the key"),
            (blob(key_kind=b"sk-ssh-ed25519@openssh.com"), "cut short"),
            (blob(signature_kind=b"ssh-rsa"), "the signature"),
            (blob(signature_kind=b"rsa-sha2-512"), "the signature"),
            (blob(reserved=b"x"), "reserved"),
            (blob(hash_name=b"sha1"), "hash"),
            (blob(hash_name=b"md5"), "hash"),
            (blob(behind=b"\0"), "follow"),
            (blob(signature=bytes(63)), "the signature"),
            (BLOB[:-1], "cut short"),
            (b"SSHSIG", "version 1"),
            (b"", "version 1"),
            (b"SSHSIG" + struct.pack(">I", 1) + b"\xff\xff\xff\xff", "cut short"),
            (BLOB + bytes(5000), "version 1"),
        ],
    )
    def test_a_blob_that_is_not_exactly_as_it_has_to_be(self, data: bytes, says: str) -> None:
        assert says in refused(data)

    def test_every_byte_of_a_blob_matters(self) -> None:
        for place in range(len(BLOB)):
            for bit in (1, 0x80):
                flipped = BLOB[:place] + bytes([BLOB[place] ^ bit]) + BLOB[place + 1 :]
                try:
                    holds = is_ssh_signature(KEY.public, flipped, MESSAGE)
                except InvalidInput:
                    continue
                assert not holds, f"byte {place} can be changed"

    def test_the_control_a_changed_byte_that_is_put_back_holds(self) -> None:
        assert is_ssh_signature(KEY.public, bytes(BLOB), MESSAGE)

    @pytest.mark.parametrize(
        "armour",
        [
            b"",
            BLOB,
            to_armour(BLOB).replace(b"BEGIN", b"BEGUN"),
            to_armour(BLOB).replace(b"-----END SSH SIGNATURE-----", b""),
            to_armour(BLOB) + b"behind it",
            to_armour(BLOB).replace(b"U1NIU0lH", b"U1NI%U0lH"),
            b"-----BEGIN SSH SIGNATURE-----\n" + b"A" * 5000 + b"\n-----END SSH SIGNATURE-----\n",
        ],
        ids=["empty", "no armour", "begun", "no end", "more behind", "no base64", "too long"],
    )
    def test_an_armour_that_is_none(self, armour: bytes) -> None:
        with pytest.raises(InvalidInput) as raised:
            parse_armour(armour)
        assert raised.value.code == "statement_invalid"

    @pytest.mark.parametrize("line", ["", "ssh-ed25519", "ssh-rsa AAAA", "ssh-ed25519 AAAA", "ssh-ed25519 %%"])
    def test_a_line_that_is_no_public_key(self, line: str) -> None:
        with pytest.raises(InvalidInput) as raised:
            parse_public_line(line)
        assert raised.value.code == "invalid_argument"


def token_blob(
    message: bytes = MESSAGE,
    *,
    key: PrivateKey = KEY,
    flags: int = 1,
    counter: int = 7,
    application: bytes = b"ssh:",
    key_application: bytes | None = None,
    namespace: str = NAMESPACE,
    said: bytes | None = None,
    behind: bytes = b"",
) -> bytes:
    """Return what `ssh-keygen -Y sign` writes with a FIDO token; a key in memory stands in the token's place.

    `said` are flags and counter as the blob says them, where those that were signed are others.
    """
    kind, digest = SK_SSH_ED25519.encode(), hashlib.sha512(message).digest()
    signed = b"SSHSIG" + b"".join(map(text, (namespace.encode(), b"", b"sha512", digest)))
    token = struct.pack(">BI", flags, counter)
    signature = key.sign(hashlib.sha256(application).digest() + token + hashlib.sha256(signed).digest())
    public = text(kind) + text(key.public) + text(application if key_application is None else key_application)
    blob = text(kind) + text(signature) + (token if said is None else said) + behind
    return b"SSHSIG" + struct.pack(">I", 1) + b"".join(map(text, (public, namespace.encode(), b"", b"sha512", blob)))


def is_taken(blob: bytes, message: bytes = MESSAGE) -> bool:
    """Say whether a signature of a token is taken; the verifier of packs, which shares no code, has to agree."""
    try:
        ours = is_ssh_signature(KEY.public, blob, message, kind=SK_SSH_ED25519)
    except InvalidInput:
        ours = False
    try:
        theirs = verifier.is_ssh_signature(KEY.public, blob, message, SK_SSH_ED25519)
    except ValueError:
        theirs = False
    assert ours == theirs
    return ours


class TestTokens:
    @pytest.mark.parametrize("flags", [1, 5], ids=["present", "verified"])
    def test_a_signature_of_a_token_at_which_somebody_was_present_is_taken(self, flags: int) -> None:
        assert is_taken(token_blob(flags=flags))
        assert not is_taken(token_blob(flags=flags), MESSAGE + b" ")
        assert not is_taken(token_blob(key=OTHER, flags=flags))

    @pytest.mark.parametrize("flags", [0, 4, 2, 3, 0x41, 0x81, 0xFF])
    def test_a_token_that_does_not_say_so_or_says_more_is_not(self, flags: int) -> None:
        assert not is_taken(token_blob(flags=flags))

    @pytest.mark.parametrize(
        "blob",
        [
            token_blob(flags=0, said=struct.pack(">BI", 1, 7)),
            token_blob(said=struct.pack(">BI", 1, 8)),
            token_blob(said=b""),
            token_blob(said=b"\x01"),
            token_blob(behind=b"\0"),
            token_blob(application=b"ssh:other"),
            token_blob(application=b"https://bank.example", key_application=b"ssh:"),
            token_blob(namespace="git"),
            BLOB,
            b"SSHSIG" + struct.pack(">I", 1),
        ],
        ids=[
            "another flag than was signed",
            "another counter",
            "no flags",
            "no counter",
            "more behind",
            "another application",
            "an application that is not the key's",
            "another namespace",
            "a key that is no token",
            "nothing",
        ],
    )
    def test_anything_else_is_not(self, blob: bytes) -> None:
        assert is_taken(token_blob()), "the control"
        assert not is_taken(blob)

    def test_every_byte_matters(self) -> None:
        good = token_blob()
        changed = (
            good[:place] + bytes([good[place] ^ bit]) + good[place + 1 :]
            for place in range(len(good))
            for bit in (1, 128)
        )
        assert not any(map(is_taken, changed))

    def test_a_token_does_not_sign_as_a_key_in_a_file(self) -> None:
        assert not is_ssh_signature(KEY.public, token_blob(), MESSAGE)

    def test_its_public_key_comes_back(self) -> None:
        line = public_line(KEY.public, SK_SSH_ED25519)
        assert parse_public_line(line + " anna@token") == KEY.public
        assert verifier.public_key_of(line) == KEY.public
        kind, body = line.split()
        for wrong in (f"ssh-ed25519 {body}", f"{kind} {public_line(KEY.public).split()[1]}"):
            with pytest.raises(InvalidInput):
                parse_public_line(wrong)
            with pytest.raises(ValueError, match=r"key|cut short"):
                verifier.public_key_of(wrong)


@pytest.fixture(scope="module")
def keygen() -> str:
    """The real `ssh-keygen`; a visible skip where there is none, a failure in continuous integration."""
    return need_command("ssh-keygen")


@pytest.fixture
def ssh_key(tmp_path: Path, keygen: str) -> Path:
    path = tmp_path / "id_ed25519"
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=30)
    return path


Sign = Callable[[bytes, str], bytes]


@pytest.fixture
def ssh_signs(tmp_path: Path, keygen: str, ssh_key: Path) -> Sign:
    """Sign a message for a namespace with the real program; return the armour."""

    def sign(message: bytes, namespace: str) -> bytes:
        path = tmp_path / "message"
        path.write_bytes(message)
        argv = [keygen, "-Y", "sign", "-q", "-n", namespace, "-f", str(ssh_key), str(path)]
        subprocess.run(argv, check=True, capture_output=True, timeout=30)
        armour = (tmp_path / "message.sig").read_bytes()
        (tmp_path / "message.sig").unlink()
        return armour

    return sign


class TestTheRealProgram:
    def test_what_it_signs_is_taken(self, ssh_key: Path, ssh_signs: Sign) -> None:
        public = parse_public_line(ssh_key.with_suffix(".pub").read_text())
        armour = ssh_signs(MESSAGE, NAMESPACE)
        assert is_ssh_signature(public, parse_armour(armour), MESSAGE)
        assert not is_ssh_signature(public, parse_armour(armour), MESSAGE + b"\n")
        assert not is_ssh_signature(KEY.public, parse_armour(armour), MESSAGE)

    def test_what_it_signs_for_another_namespace_is_not(self, ssh_key: Path, ssh_signs: Sign) -> None:
        public = parse_public_line(ssh_key.with_suffix(".pub").read_text())
        assert not is_ssh_signature(public, parse_armour(ssh_signs(MESSAGE, "git")), MESSAGE)

    @pytest.mark.parametrize(
        ("blob", "status", "is_ours"),
        [
            (token_blob(flags=1), 0, True),
            (token_blob(flags=5), 0, True),
            (token_blob(flags=0), 0, False),
            (token_blob(said=struct.pack(">BI", 1, 8)), 255, False),
            (token_blob(application=b"ssh:other", key_application=b"ssh:"), 255, False),
        ],
        ids=["present", "verified", "nobody present", "another counter", "another application"],
    )
    def test_it_takes_what_stands_for_a_token(
        self, tmp_path: Path, keygen: str, blob: bytes, status: int, is_ours: bool
    ) -> None:
        """No token is here: its signature is made by its format. The real program does not look at the flags; we do."""
        (tmp_path / "signers").write_text(f"anna {public_line(KEY.public, SK_SSH_ED25519)}\n")
        (tmp_path / "sig").write_bytes(to_armour(blob))
        argv = [keygen, "-Y", "verify", "-f", "signers", "-I", "anna", "-n", NAMESPACE, "-s", "sig"]
        ended = subprocess.run(argv, cwd=tmp_path, input=MESSAGE, capture_output=True, timeout=30, check=False)
        assert ended.returncode == status, ended.stderr
        assert is_taken(blob) is is_ours

    @pytest.mark.parametrize(
        ("namespace", "message", "status"),
        [(NAMESPACE, MESSAGE, 0), ("file", MESSAGE, 255), (NAMESPACE, MESSAGE + b"x", 255)],
        ids=["ours", "another namespace", "another message"],
    )
    @pytest.mark.parametrize("hash_name", ["sha512", "sha256"])
    def test_it_takes_what_we_sign(
        self, tmp_path: Path, keygen: str, hash_name: str, namespace: str, message: bytes, status: int
    ) -> None:
        (tmp_path / "signers").write_text(f"anna {public_line(KEY.public)}\n")
        (tmp_path / "sig").write_bytes(to_armour(make_ssh_signature(KEY, MESSAGE, hash_name=hash_name)))
        argv = [keygen, "-Y", "verify", "-f", "signers", "-I", "anna", "-n", namespace, "-s", "sig"]
        ended = subprocess.run(argv, cwd=tmp_path, input=message, capture_output=True, timeout=30, check=False)
        assert ended.returncode == status, ended.stderr

"""Keys: which are taken, what they sign, in which files they lie, and which of them count for a head."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as make_ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from eventlog.audit.heads.key_file import make_key_file, read_key_file
from eventlog.errors import EventLogError, InvalidInput
from eventlog.events import LogKeyDeclared, LogKeyRevoked, LogKeyRotated
from eventlog.signing import curve_points
from eventlog.signing.curve_points import flaw_of
from eventlog.signing.ed25519 import PrivateKey, check_public_key, is_signature
from eventlog.signing.log_keys import current_key, fold_log_keys, keys_for, rotate, rotation_text
from eventlog.signing.notes import VerifierKey, key_id_of, make_verifier_key
from tests.command_line import environment

P: Final = 2**255 - 19
NEUTRAL: Final = b"\1" + bytes(31)
# The eight points of small order, as libsodium lists them: order 4 twice, 1, 2, and 8 four times.
SMALL_ORDER: Final = [
    bytes(32),
    bytes(31) + b"\x80",
    NEUTRAL,
    bytes.fromhex("ec" + "ff" * 30 + "7f"),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa"),
]
# Spellings of points that have another: y is not below the prime, or the x of 0 has a sign.
NOT_CANONICAL: Final = [
    *((P + y | sign << 255).to_bytes(32, "little") for y in range(19) for sign in (0, 1)),
    b"\1" + bytes(30) + b"\x80",
    bytes.fromhex("ec" + "ff" * 31),
]
A: Final = PrivateKey.from_seed(b"a" * 32)
B: Final = PrivateKey.from_seed(b"b" * 32)
C: Final = PrivateKey.from_seed(b"c" * 32)
ORIGIN: Final = "log.example/runs/" + "ab" * 16
OTHER: Final = "log.example/runs/" + "cd" * 16


@contextmanager
def refused(code: str) -> Iterator[None]:
    """Expect an error with this code."""
    with pytest.raises(EventLogError) as raised:
        yield
    assert raised.value.code == code


def mixed_with(small: bytes) -> bytes:
    """Return a good key to which a point of small order was added: it still is a point, and hardly anybody looks."""
    points = []
    for raw in (A.public, small):
        encoded = int.from_bytes(raw, "little")
        y = encoded & (1 << 255) - 1
        x = curve_points._x_of(y)
        assert x is not None
        x = x if x & 1 == encoded >> 255 else P - x
        points.append((x, y, 1, x * y % P))
    x, y, z, _ = curve_points._sum(*points)
    inverse = pow(z, -1, P)
    return (y * inverse % P | (x * inverse % P & 1) << 255).to_bytes(32, "little")


@pytest.mark.parametrize("raw", SMALL_ORDER, ids=bytes.hex)
def test_a_point_of_small_order_is_no_key(raw: bytes) -> None:
    with refused("weak_key"):
        check_public_key(raw)


@pytest.mark.parametrize("raw", NOT_CANONICAL, ids=bytes.hex)
def test_a_second_spelling_of_a_point_is_no_key(raw: bytes) -> None:
    assert "not spelled canonically" in (flaw_of(raw) or "")


@pytest.mark.parametrize("raw", SMALL_ORDER[1:2] + SMALL_ORDER[3:], ids=bytes.hex)
def test_a_key_with_a_part_of_small_order_is_no_key(raw: bytes) -> None:
    mixed = mixed_with(raw)
    assert mixed != A.public
    assert "small order" in (flaw_of(mixed) or "")


def test_adding_the_neutral_point_gives_the_same_key() -> None:
    assert mixed_with(NEUTRAL) == A.public  # so the addition above is right


@pytest.mark.parametrize("raw", [b"", b"\2" * 31, b"\2" * 33, (7).to_bytes(32, "little")], ids=["0", "31", "33", "off"])
def test_what_is_no_point_is_no_key(raw: bytes) -> None:
    with refused("weak_key"):
        check_public_key(raw)


@given(st.binary(min_size=32, max_size=32))
def test_every_key_that_is_made_is_taken(seed: bytes) -> None:
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    assert check_public_key(public) == public == PrivateKey.from_seed(seed).public


def test_under_a_weak_key_anybody_signs_and_nothing_verifies_here() -> None:
    forged = NEUTRAL + bytes(32)  # R is the neutral point, S is 0
    Ed25519PublicKey.from_public_bytes(NEUTRAL).verify(forged, b"whatever it is")  # the library takes it
    assert not is_signature(NEUTRAL, forged, b"whatever it is")


def test_a_signature_is_that_of_rfc_8032() -> None:
    seed = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")  # its second test
    key = PrivateKey.from_seed(seed)
    assert key.public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert key.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )


def test_a_signature_with_any_bit_turned_is_none() -> None:
    signature = A.sign(b"these bytes")
    assert is_signature(A.public, signature, b"these bytes")
    for bit in range(512):
        turned = (int.from_bytes(signature, "big") ^ 1 << bit).to_bytes(64, "big")
        assert not is_signature(A.public, turned, b"these bytes")
    for other in (signature[:-1], signature + b"\0", b""):
        assert not is_signature(A.public, other, b"these bytes")
    assert not is_signature(B.public, signature, b"these bytes")
    assert not is_signature(A.public, signature, b"those bytes")


def test_a_signature_has_one_spelling() -> None:
    signature = A.sign(b"x")
    more = int.from_bytes(signature[32:], "little") + curve_points._L  # the same number, for who does not look
    assert not is_signature(A.public, signature[:32] + more.to_bytes(32, "little"), b"x")


def test_a_key_does_not_show_its_secret() -> None:
    assert b"a" * 8 not in repr(A).encode() and A.public.hex() in repr(A)


@pytest.mark.parametrize("seed", [b"", b"x" * 31, b"x" * 33])
def test_a_seed_of_another_size_makes_no_key(seed: bytes) -> None:
    with refused("key_unusable"):
        PrivateKey.from_seed(seed)


def test_a_key_file_is_for_its_owner_and_holds_the_key(tmp_path: Path) -> None:
    made = make_key_file(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert read_key_file(tmp_path / "key").public == made.public
    assert os.listdir(tmp_path) == ["key"]


def test_two_new_keys_are_not_the_same(tmp_path: Path) -> None:
    assert make_key_file(tmp_path / "a").public != make_key_file(tmp_path / "b").public


def test_nothing_is_overwritten_by_a_new_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("something else")
    with refused("target_exists"):
        make_key_file(tmp_path / "key")
    assert (tmp_path / "key").read_text() == "something else"
    assert os.listdir(tmp_path) == ["key"]


@pytest.mark.parametrize("path", ["", "/", "no/such/folder/key", "a\0b"], ids=["empty", "root", "folder", "nul"])
def test_a_key_for_which_there_is_no_place_is_not_made(tmp_path: Path, path: str) -> None:
    with pytest.raises(EventLogError) as raised:
        make_key_file(f"{tmp_path}/{path}" if path not in ("", "/") else path)
    assert raised.value.code in ("invalid_argument", "store_cannot_open")


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o602, 0o610], ids=oct)
def test_a_key_that_others_can_get_at_is_not_used(tmp_path: Path, mode: int) -> None:
    make_key_file(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with refused("key_exposed"):
        read_key_file(tmp_path / "key")
    (tmp_path / "key").chmod(0o400)
    read_key_file(tmp_path / "key")


def pem(key: Ed25519PrivateKey, encryption: BestAvailableEncryption | NoEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def test_what_is_no_key_of_ours_is_told_apart(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    other = make_ec_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content, why in [
        (b"", "no private key"),
        (b"not a key", "no private key"),
        (pem(key, NoEncryption())[:-40], "no private key"),
        (pem(key, BestAvailableEncryption(b"secret")), "encrypted"),
        (other, "another kind"),
    ]:
        path = tmp_path / "key"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InvalidInput, match=why) as raised:
            read_key_file(path)
        assert raised.value.code == "key_unusable" and str(path) in str(raised.value)
    with refused("key_unusable"):
        read_key_file(tmp_path / "absent")
    with refused("key_unusable"):
        read_key_file(tmp_path)
    if Path("/proc/self/mem").exists():
        with pytest.raises(InvalidInput, match="Input/output error") as raised:
            read_key_file("/proc/self/mem")  # it opens, and its first byte cannot be read
        assert raised.value.code == "key_unusable"


def test_without_the_extra_one_line_names_it() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from eventlog.errors import Misuse\n"
        "from eventlog.signing.ed25519 import PrivateKey, is_signature\n"
        "for call in (lambda: PrivateKey.from_seed(b'x' * 32), lambda: is_signature(b'x' * 32, b'', b'')):\n"
        "    try: call()\n"
        "    except Misuse as error: print(error.code, error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(), timeout=60, check=True
    )
    lines = ended.stdout.decode().splitlines()
    assert len(lines) == 2 and all(
        line.startswith("missing_extra") and "eventlog-engine[proof]" in line for line in lines
    )


def test_signing_loads_no_cryptography_until_something_is_signed() -> None:
    program = "import sys, eventlog.signing.log_keys, eventlog.audit.heads; print('cryptography' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(), timeout=60, check=True
    )
    assert ended.stdout.strip() == b"False"


# ── which key counts for a head ──────────────────────────────────────────────────────────────────────────────────────


def verifier(key: PrivateKey, origin: str = ORIGIN) -> VerifierKey:
    return make_verifier_key(origin, key.public)


def declared(key: PrivateKey, origin: str = ORIGIN) -> LogKeyDeclared:
    return LogKeyDeclared(verifier_key=verifier(key, origin).to_text())


def revoked(key: PrivateKey, from_size: int) -> LogKeyRevoked:
    return LogKeyRevoked(verifier_key=verifier(key).to_text(), from_size=from_size, reason="it was stolen")


def test_the_first_key_counts_for_every_size() -> None:
    found = fold_log_keys([(3, declared(A))])
    assert keys_for(found, ORIGIN, 1) == keys_for(found, ORIGIN, 10**9) == (verifier(A),)
    assert keys_for(found, OTHER, 5) == ()
    assert (current_key(found, ORIGIN), current_key(found, OTHER)) == (verifier(A), None)


def test_a_log_that_names_no_key_has_none() -> None:
    assert keys_for(fold_log_keys([(1, object())]), ORIGIN, 1) == ()


def test_a_key_takes_the_place_of_another_at_a_position() -> None:
    found = fold_log_keys([(1, declared(A)), (20, rotate(A, B.public, ORIGIN)), (30, rotate(B, C.public, ORIGIN))])
    assert found.problems == ()
    counted = {size: keys_for(found, ORIGIN, size) for size in (1, 19, 20, 29, 30, 999)}
    assert counted == {
        1: (verifier(A),),
        19: (verifier(A),),
        20: (verifier(B),),
        29: (verifier(B),),
        30: (verifier(C),),
        999: (verifier(C),),
    }
    assert current_key(found, ORIGIN) == verifier(C)


def test_a_key_that_comes_back_counts_for_both_times_and_not_between() -> None:
    events = [(1, declared(A)), (20, rotate(A, B.public, ORIGIN)), (30, rotate(B, A.public, ORIGIN))]
    found = fold_log_keys([*events, (40, rotate(A, C.public, ORIGIN))])
    counted = {size: keys_for(found, ORIGIN, size) for size in (19, 25, 35, 40)}
    assert counted == {19: (verifier(A),), 25: (verifier(B),), 35: (verifier(A),), 40: (verifier(C),)}


def test_the_old_key_has_to_have_signed_its_rotation() -> None:
    honest = rotate(A, B.public, ORIGIN)
    by_another = b64encode(C.sign(rotation_text(honest.replaces, honest.verifier_key))).decode()
    for event in (
        LogKeyRotated(verifier_key=honest.verifier_key, replaces=honest.replaces, signature=by_another),
        LogKeyRotated(verifier_key=verifier(C).to_text(), replaces=honest.replaces, signature=honest.signature),
        LogKeyRotated(verifier_key=honest.verifier_key, replaces=honest.replaces, signature="not base64"),
        LogKeyRotated(verifier_key=honest.verifier_key, replaces="nobody", signature=honest.signature),
        rotate(C, B.public, ORIGIN),
        rotate(A, B.public, OTHER),
    ):
        found = fold_log_keys([(1, declared(A)), (20, event)])
        assert [each.position for each in found.problems] == [20]
        assert keys_for(found, ORIGIN, 25) == (verifier(A),)
    assert fold_log_keys([(1, declared(A)), (20, honest)]).problems == ()


def test_a_second_key_is_not_declared_but_rotated_to() -> None:
    found = fold_log_keys([(1, declared(A)), (9, declared(B))])
    assert keys_for(found, ORIGIN, 10) == (verifier(A),)
    assert [each.position for each in found.problems] == [9]


def test_each_incarnation_of_the_log_has_its_own_key() -> None:
    found = fold_log_keys([(1, declared(A)), (9, declared(A, OTHER))])
    assert (keys_for(found, ORIGIN, 10), keys_for(found, OTHER, 10)) == ((verifier(A),), (verifier(A, OTHER),))


def test_a_revoked_key_counts_up_to_a_size_whenever_it_was_revoked() -> None:
    rotated = [(1, declared(A)), (20, rotate(A, B.public, ORIGIN))]
    found = fold_log_keys([*rotated, (50, revoked(A, 10))])
    assert (keys_for(found, ORIGIN, 10), keys_for(found, ORIGIN, 11)) == ((verifier(A),), ())
    assert (found.keys[0].revoked_at, found.keys[0].reason) == (50, "it was stolen")
    assert keys_for(found, ORIGIN, 20) == (verifier(B),)
    later = fold_log_keys([*rotated, (50, revoked(A, 900))])
    assert keys_for(later, ORIGIN, 25) == (verifier(B),), "a revocation gives nothing back"
    assert current_key(fold_log_keys([(1, declared(A)), (5, revoked(A, 3))]), ORIGIN) is None


def test_what_was_never_named_cannot_be_revoked() -> None:
    assert [each.position for each in fold_log_keys([(1, declared(A)), (5, revoked(B, 3))]).problems] == [5]


def test_a_key_cannot_take_its_own_place() -> None:
    with refused("invalid_argument"):
        rotate(A, A.public, ORIGIN)


def test_a_weak_key_is_not_declared() -> None:
    weak = VerifierKey(ORIGIN, key_id_of(ORIGIN, 1, NEUTRAL), NEUTRAL)
    (problem,) = fold_log_keys([(1, LogKeyDeclared(verifier_key=weak.to_text()))]).problems
    assert problem.position == 1 and "small order" in problem.why

"""The keys under which the bodies about one subject are encrypted, so that destroying one key erases them everywhere.

A folder holds one random key of 256 bits for each subject, wrapped by a key that lies elsewhere: in front of a copy of
the folder alone, or of the log alone, nobody reads anything. Neither folder nor log names a subject.

    wrapping               which wrapping key the folder belongs to
    subjects/<32 hex>      the key id of one subject; the name is a keyed hash of purpose and subject
    keys/<32 hex>          a wrapped key; the name is its id, which is random and stands in the log
    destroyed/<32 hex>     that this key was destroyed; empty

A file is written beside its place and linked there: it is whole or absent, and of two processes that make the key of
one subject at once, the one whose `subjects/…` comes second takes the key of the first. A key is destroyed in this
order: the note in `destroyed/` is durable, the key is overwritten, then unlinked; so a crash in between leaves a key
that is destroyed for everybody, and repeating it ends the work.

What an overwritten file leaves on a flash disk, in a snapshot or in a copy is out of reach from here: copies of the
folder have to be given up after a while, and those of the wrapping key kept apart from them.

A wrapped key is `eventlog/subject-key/v1` 0x00, 12 bytes nonce, and AES-256-GCM of the key with its tag; the
associated data are the label and the id. The keys for wrapping, naming and checking are HMAC-SHA256 of the wrapping
key over a label each.
"""

from __future__ import annotations

import errno
import hmac
import os
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eventlog.entry import content_commitment
from eventlog.errors import InvalidInput, LogCorrupt, Misuse, Refused
from eventlog.plain import check_id
from eventlog.sealed import SealedBody, parse_sealed
from eventlog.stores.artifacts import coded_os_errors, flush
from eventlog.stores.entropy import random_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["SubjectKeys", "open_sealed", "seal_body"]

_LABEL: Final = b"eventlog/subject-key/v1\0"
_NAME_LABEL: Final = b"eventlog/subject-name/v1\0"
_CHECK_LABEL: Final = b"eventlog/wrapping-key/v1\0"
_KEY: Final = 32
_ID: Final = 16
_NONCE: Final = 12
_SALT: Final = 16
_TAG: Final = 16
_MAX_SUBJECT_BYTES: Final = 512
_DOING: Final = "the keys of subjects cannot be used"
_FOLDERS: Final = ("subjects", "keys", "destroyed")
_NOT_FLUSHABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS})
"""Of a folder that we may not read, or whose file system cannot flush or change folders."""


class SubjectKeys:
    """The keys in `folder`, made if it is missing. Blocking, for any thread; several processes may use one folder.

    Several logs too, each with a `purpose` of its own: with the same one they share the key of a subject, and to erase
    him in one log ends what the other holds of him, though a process that writes there may not notice at once.

    `wrapping_key` is 32 bytes, or the path of a file with them or with their 64 hex digits, which nobody else may read
    and which lies outside of the folder. `purpose` keeps keys apart that are about the same subject.

    Raises Misuse(`missing_extra`) without the extra `proof`, InvalidInput (`wrapping_key_unusable`, `key_exposed`,
    `invalid_argument`), and, now or later, StoreUnavailable where the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        wrapping_key: bytes | str | os.PathLike[str],
        purpose: str = "events",
    ) -> None:
        _aes_of(bytes(_KEY))  # that the extra is missing is told at once
        self._folder: Final = Path(folder).absolute()
        self._purpose: Final = check_id(purpose, "purpose", max_bytes=128)
        secret = _wrapping_key(wrapping_key, self._folder)
        self._wrap: Final = _derived(secret, _LABEL)
        self._name: Final = _derived(secret, _NAME_LABEL)
        self._known: Final[dict[bytes, bytes]] = {}
        self._ids: Final[dict[str, bytes]] = {}
        with coded_os_errors(_DOING):
            self._prepare(_derived(secret, _CHECK_LABEL)[:_ID].hex().encode())

    def key_for(self, subject: str, *, may_create: bool) -> tuple[bytes, bytes]:
        """Return id (16 bytes) and key (32 bytes) of a subject; a new one is *durable* on return.

        Raises Refused: `subject_erased` if the key was destroyed, `unknown_subject` if there is none and none may be
        made; InvalidInput(`invalid_id`), LogCorrupt(`subject_key_damaged`).
        """
        with coded_os_errors(_DOING):
            key_id = self._id_of(subject) or (self._make(subject) if may_create else None)
            if key_id is None:
                raise _unknown()
            if self.is_destroyed(key_id):
                raise Refused("subject_erased", "the key of this subject was destroyed; it gets no other")
            key = self.key(key_id)
        if key is None:
            if self.is_destroyed(key_id):  # just now, by another process
                raise Refused("subject_erased", "the key of this subject was destroyed; it gets no other")
            raise _damaged(key_id, "is gone, and was not destroyed by this program")
        return key_id, key

    def key_id_of(self, subject: str) -> bytes:
        """Return the id of a subject's key, destroyed or not. Raises Refused(`unknown_subject`), InvalidInput."""
        with coded_os_errors(_DOING):
            key_id = self._id_of(subject)
        if key_id is None:
            raise _unknown()
        return key_id

    def key(self, key_id: bytes) -> bytes | None:
        """Return the key of this id; None if it was destroyed (see `is_destroyed`) or was never here.

        Raises LogCorrupt(`subject_key_damaged`).
        """
        if self.is_destroyed(key_id):
            self._known.pop(key_id, None)
            return None
        key = self._known.get(key_id)
        if key is None:
            with coded_os_errors(_DOING):
                wrapped = _read(self._path("keys", key_id))
            # A key that is being overwritten was noted as destroyed before.
            if wrapped is None or self.is_destroyed(key_id):
                return None
            key = self._known[key_id] = self._unwrapped(key_id, wrapped)
        return key

    def is_destroyed(self, key_id: bytes) -> bool:
        """Say whether the key of this id was here and was destroyed, by whichever process."""
        return os.path.exists(self._path("destroyed", key_id))

    def destroy(self, subject: str) -> bytes:
        """Destroy the key of a subject for good, and return its id. *Durable* on return; repeating it is harmless.

        Raises Refused(`unknown_subject`) if it never had a key; InvalidInput(`invalid_id`).
        """
        with coded_os_errors(_DOING):
            key_id = self._id_of(subject)
            if key_id is None:
                raise _unknown()
            self._known.pop(key_id, None)
            _link_new(self._path("destroyed", key_id), b"")
            path = self._path("keys", key_id)
            _overwrite(path)
            Path(path).unlink(missing_ok=True)
            _sync_folder(os.path.dirname(path))
        return key_id

    def key_ids(self) -> list[bytes]:
        """Return the ids of the keys that are there, in order."""
        with coded_os_errors(_DOING):
            names = [name for name in os.listdir(self._folder / "keys") if not name.startswith(".")]
        return [key_id for key_id in sorted(map(bytes.fromhex, names)) if not self.is_destroyed(key_id)]

    # ── the folder ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, check: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_names_above(self._folder)
        _refuse_exposed(self._folder)
        for name in _FOLDERS:
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        _sync_folder(self._folder)
        wrapping = os.fspath(self._folder / "wrapping")
        _link_new(wrapping, check)
        if not hmac.compare_digest(_read(wrapping) or b"", check):
            message = f"the keys in {os.fspath(self._folder)!r} are wrapped by another wrapping key than this one"
            raise InvalidInput("wrapping_key_unusable", message)

    def _path(self, kind: str, key_id: bytes) -> str:
        return f"{self._folder}/{kind}/{key_id.hex()}"

    def _path_of(self, subject: str) -> str:
        named = check_id(subject, "subject", max_bytes=_MAX_SUBJECT_BYTES).encode()
        purpose = self._purpose.encode()
        digest = hmac.digest(self._name, len(purpose).to_bytes(2) + purpose + named, sha256)
        return self._path("subjects", digest[:_ID])

    def _id_of(self, subject: str) -> bytes | None:
        path = self._path_of(subject)
        key_id = self._ids.get(path)
        if key_id is None:
            text = _read(path)
            if text is None:
                return None
            key_id = _id_in(path, text)
            _sync_folder(os.path.dirname(path))  # whoever linked it may not have come to flush its name
            self._ids[path] = key_id
        return key_id

    def _make(self, subject: str) -> bytes:
        """Return the id of a key that is the subject's from now on: a new one, or that of who was first."""
        key_id, key = random_bytes(_ID), random_bytes(_KEY)
        nonce = random_bytes(_NONCE)
        wrapped = _LABEL + nonce + _aes_of(self._wrap).encrypt(nonce, key, _LABEL + key_id)
        path = self._path("keys", key_id)
        _link_new(path, wrapped)
        if not _link_new(self._path_of(subject), key_id.hex().encode()):
            os.unlink(path)  # nothing was encrypted under it
        found = self._id_of(subject)
        assert found is not None, "it was linked, here or by another process"
        return found

    def _unwrapped(self, key_id: bytes, wrapped: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        start = len(_LABEL)
        nonce, sealed = wrapped[start : start + _NONCE], wrapped[start + _NONCE :]
        if not wrapped.startswith(_LABEL) or len(sealed) != _KEY + _TAG:
            raise _damaged(key_id, "is no wrapped key")
        try:
            return _aes_of(self._wrap).decrypt(nonce, sealed, _LABEL + key_id)
        except InvalidTag:
            raise _damaged(key_id, "was changed, or was wrapped by another key") from None


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def seal_body(key: bytes, key_id: bytes, aad: bytes, salt: bytes, body: bytes, remainder: bytes, nonce: bytes) -> bytes:
    """Return the stored bytes of a body, as `eventlog/sealed.py` lays them out; `aad` is its `associated_data`.

    `nonce` is 12 bytes that no other body of this key has: random ones are safe for 2**32 bodies (NIST SP 800-38D).
    """
    sealed = _aes_of(key).encrypt(nonce, salt + body, aad)
    return SealedBody(key_id, nonce, content_commitment(salt, body), remainder, sealed).to_bytes()


def open_sealed(key: bytes, aad: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """Return salt and body of stored bytes.

    Raises LogCorrupt: `body_unreadable` for bytes that are no sealed body, or were sealed elsewhere, by another key, or
    changed; `content_mismatch` where what was sealed is not what the stored commitment says.
    """
    from cryptography.exceptions import InvalidTag

    try:
        sealed = parse_sealed(stored)
        opened = _aes_of(key).decrypt(sealed.nonce, sealed.ciphertext, aad)
    except (ValueError, InvalidTag) as error:
        raise LogCorrupt("body_unreadable", "an encrypted body is not the one that was sealed here") from error
    salt, body = opened[:_SALT], opened[_SALT:]
    if content_commitment(salt, body) != sealed.content_commit:
        raise LogCorrupt("content_mismatch", "an encrypted body holds another content than it commits to")
    return salt, body


def _aes_of(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        message = "keys of subjects need the extra `proof`: install `eventlog-engine[proof]`"
        raise Misuse("missing_extra", message) from error
    return AESGCM(key)


def _derived(secret: bytes, label: bytes) -> bytes:
    return hmac.digest(secret, label, sha256)


# ── the wrapping key ─────────────────────────────────────────────────────────────────────────────────────────────────


def _wrapping_key(given: bytes | str | os.PathLike[str], folder: Path) -> bytes:
    if isinstance(given, bytes):
        secret, where = given, "the wrapping key"
    else:
        path = Path(given)
        if path.resolve().is_relative_to(folder.resolve()):
            raise InvalidInput("invalid_argument", "the wrapping key lies outside of the folder of the keys it wraps")
        where = f"the file {os.fspath(path)!r}"
        try:
            _refuse_exposed(path)
            secret = path.read_bytes()
        except OSError as error:
            message = f"{where} of the wrapping key cannot be read ({error.strerror})"
            raise InvalidInput("wrapping_key_unusable", message) from error
        if len(secret) != _KEY:
            secret = _of_hex(secret)
    if len(secret) != _KEY:
        raise InvalidInput("wrapping_key_unusable", f"{where} is not {_KEY} bytes")
    return secret


def _of_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""


def _refuse_exposed(path: Path) -> None:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InvalidInput("key_exposed", f"{os.fspath(path)!r} is open to other users of this machine")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _link_new(path: str, data: bytes) -> bool:
    """Put a whole file at `path`, *durable* on return, unless there is one. Say whether it is this one."""
    folder, name = os.path.split(path)
    temp = f"{folder}/.{name}.{random_bytes(8).hex()}.tmp"
    _write(temp, os.O_CREAT | os.O_EXCL, lambda: data)
    try:
        os.link(temp, path, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        os.unlink(temp)
        _sync_folder(folder)  # of two, the second too goes on only when it is durable
    return True


def _overwrite(path: str) -> None:
    try:
        size = os.stat(path, follow_symlinks=False).st_size
        _write(path, 0, lambda: random_bytes(size))
    except FileNotFoundError:
        return


def _write(path: str, flags: int, make: Callable[[], bytes]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        data = make()
        while data:
            data = data[os.write(fd, data) :]
        flush(fd)
    finally:
        os.close(fd)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _sync_names_above(folder: Path) -> None:
    """Make the names of a folder and of those above it durable: whoever made them may not have flushed them yet.

    Up to where its file system is mounted: that name is in another one, and was not made for us.
    """
    device = os.stat(folder).st_dev
    for above in folder.parents:
        if os.stat(above).st_dev != device:
            return
        try:
            _sync_folder(above)
        except OSError as error:
            if error.errno not in _NOT_FLUSHABLE:
                raise


def _sync_folder(path: str | Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush(fd)
    finally:
        os.close(fd)


def _id_in(path: str, text: bytes) -> bytes:
    try:
        key_id = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key_id = b""
    if len(key_id) != _ID:
        raise LogCorrupt("subject_key_damaged", f"{path!r} holds no key id")
    return key_id


def _damaged(key_id: bytes, why: str) -> LogCorrupt:
    return LogCorrupt("subject_key_damaged", f"the key {key_id.hex()} of a subject {why}")


def _unknown() -> Refused:
    return Refused("unknown_subject", "there is no key of this subject, so nothing is encrypted under one")

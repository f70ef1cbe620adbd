"""A signer that is another process, asked over a Unix socket (`eventlog.audit.heads.signer_service`)."""

from __future__ import annotations

import http.client
import socket
import time
from typing import Annotated, Final, TypeVar

import msgspec

from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.errors import InvalidInput, StoreUnavailable
from eventlog.heads import HeadRequest, HeadSigner, SignedHead, StaleHead
from eventlog.signing.cosignatures import make_growth_request
from eventlog.signing.head_text import DEFAULT_PREFIX, check_prefix, head_text, log_id_of, origin_of, parse_head
from eventlog.signing.notes import MAX_SIGNATURES, VerifierKey, make_verifier_key, parse_note, parse_verifier_key

__all__ = ["RemoteSigner", "signer_from"]

_T = TypeVar("_T")

_SCHEME: Final = "unix:"
_MAX_ANSWER_BYTES: Final = 1_100_000
_PAUSE_S: Final = 0.01
_REFUSALS: Final = frozenset({400, 403, 404, 413, 422})


def signer_from(text: str) -> HeadSigner:
    """Return the signer that an option names: `unix:<path of a socket>`, or `<path of a key file>`.

    `unix:<path>#<verifier key>` pins the key of who answers there. Further key files behind commas sign every head too,
    while one key takes the place of another.

    Raises InvalidInput: `key_exposed`, `key_unusable`, `invalid_argument`, `bad_verifier_key`; Misuse(`missing_extra`).
    """
    if text.startswith(_SCHEME):
        address, mark, pinned = text.partition("#")
        return RemoteSigner(address, verifier_key=parse_verifier_key(pinned) if mark else None)
    first, *also = text.split(",")
    return LocalSigner(first, also=also)


class _Head(msgspec.Struct, frozen=True):
    at_us: int
    note: str


class _Last(msgspec.Struct, frozen=True):
    head: _Head | None
    current: str | None
    prefix: str | None = None


class _Key(msgspec.Struct, frozen=True):
    prefix: str
    public_keys: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_SIGNATURES)]


class RemoteSigner:
    """Keeps the contract of `eventlog.heads.HeadSigner`. `address` is `unix:<path>`; nothing is asked before a call.

    Each call has `timeout_s` for each step of it. A lost answer does no harm: asked again, the signer returns what it
    has signed. Whoever is at the socket is believed nothing: who opens the log opens each note
    (`eventlog.stores.head_check`), under `verifier_key` if one is given, as a VerifierKey or its text, or one that the
    log says it handed over to. Raises InvalidInput: `invalid_argument` for another address, `bad_verifier_key`.
    """

    def __init__(self, address: str, *, verifier_key: VerifierKey | str | None = None, timeout_s: float = 10.0) -> None:
        path = address.removeprefix(_SCHEME)
        if path in (address, "") or "\0" in path:
            raise InvalidInput("invalid_argument", f"the address of a signer is `unix:<path>`, not {address!r:.80}")
        self.address: Final = address
        self._path: Final = path
        self._timeout_s: Final = timeout_s
        self._prefix: str | None = None
        self.pinned: Final = parse_verifier_key(verifier_key) if isinstance(verifier_key, str) else verifier_key

    def last(self) -> SignedHead | None:
        """Return the newest head that was signed, or None. Raises StoreUnavailable(`signer_unavailable`)."""
        head = self._ask_last().head
        return None if head is None else self._signed(head)

    def verifier_keys(self, log_id: bytes) -> tuple[VerifierKey, ...]:
        """Return the keys that the signer says it signs the heads of this log with, the first one first.

        Nobody has verified that it has them: a head that they have signed does. Raises StoreUnavailable.
        """
        status, answer = self._exchange("GET", "/key", None)
        self._check_status(status, answer)
        said = self._decoded(answer, _Key)
        try:
            origin = origin_of(said.prefix, log_id)
            return tuple(make_verifier_key(origin, bytes.fromhex(each)) for each in said.public_keys)
        except (InvalidInput, ValueError) as error:
            raise self._unavailable(f"it names no key: {error}") from error

    def sign(self, request: HeadRequest) -> SignedHead:
        """Have a head signed. Raises StaleHead, and StoreUnavailable: `head_refused`, `signer_unavailable`."""
        prefix = self._prefix or self._ask_prefix()
        text = head_text(origin_of(prefix, request.log_id), request.head)
        status, answer = self._exchange(
            "POST", "/sign-head", make_growth_request(request.old_size, request.proof, text)
        )
        if status == 409:
            raise StaleHead(self._size(answer))
        self._check_status(status, answer)
        signed = self._signed(self._decoded(answer, _Head))
        if (signed.log_id, signed.head) != (request.log_id, request.head):
            raise self._unavailable("it has answered with another head than the one that was asked for")
        return signed

    def begin(self, log_id: bytes) -> None:
        """See that the signer takes heads of this incarnation: its operator has said so, and nobody else can.

        Raises StoreUnavailable: `head_refused` if he has not, `signer_unavailable`.
        """
        if self._ask_last().current != log_id.hex():
            how = f"`eventlog signer begin --heads FILE {log_id.hex()}`"
            message = f"the signer does not take heads of {log_id.hex()} yet; its operator begins them with {how}"
            raise StoreUnavailable("head_refused", message, address=self.address)

    def _ask_last(self) -> _Last:
        status, answer = self._exchange("GET", "/last", None)
        self._check_status(status, answer)
        return self._decoded(answer, _Last)

    def _check_status(self, status: int, answer: bytes) -> None:
        if status in _REFUSALS:
            raise StoreUnavailable("head_refused", f"the signer refuses: {_line(answer)}", address=self.address)
        if status != 200:
            raise self._unavailable(f"it answers {status}: {_line(answer)}")

    def _ask_prefix(self) -> str:
        found = self._ask_last().prefix or DEFAULT_PREFIX
        try:
            self._prefix = check_prefix(found)
        except InvalidInput as error:
            raise self._unavailable(str(error)) from error
        return found

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path, self._timeout_s)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = (error.strerror or str(error) or type(error).__name__) if isinstance(error, OSError) else str(error)
            raise self._unavailable(why) from error
        finally:
            connection.close()
        return response.status, answer

    def _signed(self, head: _Head) -> SignedHead:
        note = head.note.encode()
        try:
            origin, tree_head = parse_head(parse_note(note)[0])
            return SignedHead(log_id=log_id_of(origin), head=tree_head, note=note, signed_at_us=head.at_us)
        except InvalidInput as error:
            raise self._unavailable(f"its answer is no head: {error}") from error

    def _size(self, answer: bytes) -> int:
        if not answer.removesuffix(b"\n").isdigit() or len(answer) > 20:
            raise self._unavailable("its answer is no size")
        return int(answer)

    def _decoded(self, answer: bytes, shape: type[_T]) -> _T:
        try:
            return msgspec.json.decode(answer, type=shape)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._unavailable(f"its answer cannot be read: {error}") from error

    def _unavailable(self, why: str) -> StoreUnavailable:
        return StoreUnavailable("signer_unavailable", f"the signer at {self.address}: {why}", address=self.address)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__(host="localhost", timeout=timeout_s)
        self._path: Final = path
        self._timeout_s: Final = timeout_s

    def connect(self) -> None:
        """Connect to the socket, also where many want to at once. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        give_up_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self.sock.connect(self._path)
                return
            except BlockingIOError:  # its queue is full, and a socket with a time-out does not wait for that
                if time.monotonic() >= give_up_s:
                    raise
                time.sleep(_PAUSE_S)


def _line(answer: bytes) -> str:
    return answer[:500].decode(errors="replace").strip()

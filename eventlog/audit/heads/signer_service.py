"""A signer, and a witness, as a process of their own: HTTP over a Unix socket. Run by `eventlog signer`.

    GET  /last             JSON: {"head": {"at_us": …, "note": "…"} or null, "current": "<log_id>" or null,
                           "prefix": "…"}, which stands in front of the id of a log in an origin
    GET  /key              JSON: {"prefix": "…", "public_keys": ["<64 hex digits>", …]}, the first key first
    POST /sign-head        the body of a tlog-witness request whose head has no signatures yet, which are asked for:
                           `old <size>`, proof lines, an empty line, the three lines of the head
                           200 with {"at_us": …, "note": "…"}
    POST /add-checkpoint   the request of c2sp.org/tlog-witness, answered with a cosignature, if there is a witness key

    400 malformed; 403 no known key has signed, or the key was replaced; 404 another log; 409 with the size of the last
    head, as `text/x.tlog.size`; 413 too large; 422 the proof does not hold; 503 what was signed could not be kept

Who may connect may have a head signed: the rights of the socket (0660 unless said otherwise) are the way to choose.
The heads of a new incarnation of the log are taken only after `eventlog signer begin`, on this side of the socket.
A request has 5 seconds and 64 KiB, and 1 second to begin; each refusal is one line of the log. Of those that have not
come whole yet there are 64 at the most, and the one that has waited longest makes room for a new one: who sends nothing
keeps nobody waiting. 16 at a time are answered.
"""

from __future__ import annotations

import io
import os
import socket
import socketserver
import stat
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

import msgspec

from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.audit.heads.witness import SIZE_TYPE, TEXT_TYPE, Answer, Witness
from eventlog.errors import EventLogError, InvalidInput, Misuse, StoreUnavailable
from eventlog.heads import HeadRequest, SignedHead, StaleHead
from eventlog.signing.cosignatures import parse_growth_request
from eventlog.signing.head_text import log_id_of, parse_head
from eventlog.stores.telemetry import logger

__all__ = ["MAX_BODY_BYTES", "SignerService", "spell_signed"]

MAX_BODY_BYTES: Final = 64 * 1024
_REQUEST_TIMEOUT_S: Final = 5.0
_BEGIN_TIMEOUT_S: Final = 1.0
_MAX_REQUESTS: Final = 16
_MAX_READING: Final = 64
_JSON: Final = "application/json"


class SignerService(socketserver.ThreadingUnixStreamServer):
    """Serves a signer, and a witness if there is one, at the socket `path`, which is made with these rights.

    Made, it takes requests; `serve_forever` answers them until another thread calls `shutdown`; closed, the socket is
    gone. A socket that nobody serves any more is replaced. Raises Misuse(`target_exists`) where somebody does, or where
    something else is; InvalidInput(`invalid_argument`) for a path that can be no socket.
    """

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, path: str, signer: LocalSigner, witness: Witness | None = None, *, mode: int = 0o660) -> None:
        self.signer: Final = signer
        self.witness: Final = witness
        self._path: Final = os.path.abspath(path)
        self._places: Final = threading.BoundedSemaphore(_MAX_REQUESTS)
        self._reading: Final[dict[int, socket.socket]] = {}  # by when they came: the first one has waited longest
        self._reading_lock: Final = threading.Lock()
        _make_room(self._path)
        before = os.umask(0o777 & ~mode)
        try:
            super().__init__(self._path, _Exchange)
        except OSError as error:
            message = f"cannot make the socket {self._path!r}: {error.strerror or error}"
            raise InvalidInput("invalid_argument", message) from error
        finally:
            os.umask(before)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Read a request on a thread of its own, and hang up on who has waited longest to send his if they are many."""
        with self._reading_lock:
            if len(self._reading) >= _MAX_READING:
                oldest = self._reading.pop(next(iter(self._reading)))
                logger.warning("signer_request_too_slow", waiting=_MAX_READING)
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._reading[id(request)] = request
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._has_come(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Read and answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._has_come(request)

    def _has_come(self, request: Any) -> None:
        with self._reading_lock:
            if self._reading.get(id(request)) is request:
                del self._reading[id(request)]

    def answer_whole(self, request: Any, method: str, path: str, body: bytes) -> Answer:
        """Return the answer to a request that has come whole, as soon as one of the places is free."""
        self._has_come(request)
        with self._places:
            return self.answer(method, path, body)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong with one request: the others are answered all the same."""
        logger.exception("signer_request_failed")

    def server_close(self) -> None:
        """Take no more requests, and remove the socket."""
        super().server_close()
        with suppress(OSError):
            os.unlink(self._path)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Return the answer to one request. Never fails: what goes wrong is an answer as well."""
        try:
            match method, path:
                case "GET", "/last":
                    return self._last()
                case "GET", "/key":
                    return self._key()
                case "POST", "/sign-head":
                    return self._sign(body)
                case "POST", "/add-checkpoint" if self.witness is not None:
                    return self.witness.add_checkpoint(body)
            return Answer(404, b"there is nothing here\n", why="there is nothing here")
        except StaleHead as error:
            return Answer(409, b"%d\n" % error.size, SIZE_TYPE, str(error))
        except EventLogError as error:
            status = _STATUS.get(error.details.get("reason", error.code), 503)
            return Answer(status, f"{error.code}: {error}\n".encode(), why=str(error))

    def _last(self) -> Answer:
        last, current = self.signer.last(), self.signer.current()
        head = None if last is None else _facts(last)
        spelled = None if current is None else current.hex()
        document = {"head": head, "current": spelled, "prefix": self.signer.prefix()}
        return Answer(200, msgspec.json.encode(document), _JSON)

    def _key(self) -> Answer:
        keys = [public.hex() for public in self.signer.public_keys]
        return Answer(200, msgspec.json.encode({"prefix": self.signer.prefix(), "public_keys": keys}), _JSON)

    def _sign(self, body: bytes) -> Answer:
        asked = parse_growth_request(body)
        origin, head = parse_head(asked.note)
        log_id = log_id_of(origin)
        if origin != self.signer.origin(log_id):
            why = f"this signer signs as {self.signer.origin(log_id)!r}, not as {origin!r:.120}"
            raise StoreUnavailable("head_refused", why, reason="another_log")
        request = HeadRequest(log_id=log_id, head=head, old_size=asked.old_size, proof=asked.proof)
        return Answer(200, spell_signed(self.signer.sign(request)), _JSON)


_STATUS: Final = {
    "bad_request": 400,
    "bad_note": 400,
    "bad_verifier_key": 400,
    "key_replaced": 403,
    "another_log": 404,
    "not_extended": 422,
}


def spell_signed(signed: SignedHead) -> bytes:
    """Return a signed head as the body of an answer."""
    return msgspec.json.encode(_facts(signed))


def _facts(signed: SignedHead) -> dict[str, Any]:
    return {"at_us": signed.signed_at_us, "note": signed.note.decode()}


class _Exchange(BaseHTTPRequestHandler):
    """One connection: one request and its answer."""

    server: SignerService
    server_version = "eventlog-signer"
    sys_version = ""
    protocol_version = "HTTP/1.0"  # one request for each connection
    timeout = _REQUEST_TIMEOUT_S

    def setup(self) -> None:
        """Give all reading and writing of this request one deadline: who sends slowly is hung up on."""
        super().setup()
        self.rfile = io.BufferedReader(_UntilDeadline(self.connection, time.monotonic()))

    def do_GET(self) -> None:
        """Answer a GET."""
        self._send(self.server.answer_whole(self.connection, "GET", self.path, b""))

    def do_POST(self) -> None:
        """Answer a POST, whose body has to have a length."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 12:
            return self._send(Answer(411, b"the length of the body is missing\n", why="the request has no length"))
        if int(length) > MAX_BODY_BYTES:
            why = f"the body has more than {MAX_BODY_BYTES} bytes"
            return self._send(Answer(413, f"{why}\n".encode(), why=why))
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            return None  # whoever asked has hung up
        self._send(self.server.answer_whole(self.connection, "POST", self.path, body))
        return None

    def _send(self, answer: Answer) -> None:
        if answer.why is not None:
            logger.warning("signer_refused", path=self.path[:80], status=answer.status, why=answer.why)
        with suppress(OSError):  # whoever asked has left; what was signed is kept, and given to him when he asks again
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request at all, in our own form."""
        why = message or "this is no request"
        self._send(Answer(code, f"{why}\n".encode(), TEXT_TYPE, why))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing by itself: a refusal is logged with its reason, and nothing else is worth a line."""

    def log_error(self, format: str, *args: Any) -> None:
        """Log a request that did not come in time: the standard library says so here and answers nothing."""
        logger.warning("signer_request_too_slow")

    def address_string(self) -> str:
        """Return a name of who asks; a Unix socket knows none."""
        return "unix"


class _UntilDeadline(socket.SocketIO):
    """Reads from a connection for so long after a moment; whoever sends, or begins to, later than that is too slow."""

    def __init__(self, connection: socket.socket, since: float) -> None:
        super().__init__(connection, "r")
        self._connection: Final = connection
        self._since: Final = since
        self._deadline = since + _BEGIN_TIMEOUT_S

    def readinto(self, buffer: Any) -> int | None:
        """Read what has come. Raises TimeoutError."""
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(rest)
        count = super().readinto(buffer)
        self._deadline = self._since + _REQUEST_TIMEOUT_S
        return count


def _make_room(path: str) -> None:
    """Remove a socket that nobody serves any more. Raises Misuse(`target_exists`)."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, ValueError):
        return
    except OSError as error:
        raise InvalidInput("invalid_argument", f"cannot use {path!r}: {error.strerror or error}") from error
    if not stat.S_ISSOCK(mode) or _is_served(path):
        what = "a signer serves at" if stat.S_ISSOCK(mode) else "there is a file at"
        raise Misuse("target_exists", f"{what} {path!r} already", path=path)
    try:
        os.unlink(path)
    except OSError as error:
        raise StoreUnavailable("signer_unavailable", f"cannot replace {path!r}: {error.strerror}") from error


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_REQUEST_TIMEOUT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # it is busy, or ours is not allowed to ask: in any case it is somebody's
        return True

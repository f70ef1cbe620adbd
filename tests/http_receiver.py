"""A real HTTP server on loopback that keeps the contract of `Idempotency-Key`, counts effects, and misbehaves on order.

    with Receiver() as receiver:
        receiver.plan(acts_then_drops, acts)    # the first request, the second; `acts` from then on
        …
        assert receiver.effects == {op_key: 1}

A move says what one request meets with. The receiver runs on threads of its own, so the client may be this process, or
others that are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

__all__ = [
    "Exchange",
    "Move",
    "Receiver",
    "Seen",
    "Stored",
    "acts",
    "acts_and_bombs",
    "acts_and_breaks_off",
    "acts_and_drips",
    "acts_and_echoes",
    "acts_and_is_huge",
    "acts_late",
    "acts_then_drops",
    "acts_then_fails",
    "acts_unmarked",
    "answers",
    "drops",
    "forgets_then_acts",
    "redirects_to",
    "stalls",
]


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer, as the receiver keeps it for the next request with the same key."""

    status: int
    body: bytes
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived. Header names are small."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """One request at the receiver, and what may be done about it."""

    def __init__(self, receiver: Receiver, handler: BaseHTTPRequestHandler) -> None:
        self.receiver: Final = receiver
        self.request: Final = Seen(
            method=handler.command,
            path=handler.path,
            headers={name.lower(): value for name, value in handler.headers.items()},
            body=handler.rfile.read(int(handler.headers.get("content-length", 0))),
        )
        self._handler: Final = handler

    @property
    def key(self) -> str:
        return self.request.headers.get("idempotency-key", "")

    def act(self) -> Stored:
        """Do what is asked, or find that it was done for this key."""
        return self.receiver.act(self.key, self.request.body)

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Answer at once and completely."""
        self.begin(status, {"content-length": str(len(body)), **(headers or {})})
        self.write(body)

    def answer_as(self, stored: Stored) -> None:
        """Answer what is kept for the key, and say whether it is a replay."""
        marks = {"idempotency-replayed": "true"} if stored.is_replay else {}
        self.answer(stored.status, stored.body, {"content-type": "application/json", **marks})

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status line and the headers."""
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        self._handler.wfile.write(data)
        self.receiver.sent_bytes += len(data)

    def drop(self) -> None:
        """Reset the connection, as a machine that has lost its power would leave it."""
        connection = self._handler.connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(connection.detach())

    def wait_until_released(self) -> None:
        """Do nothing until the test says so by `Receiver.release`."""
        self.receiver.wait_until_released()


Move = Callable[[Exchange], None]


class Receiver:
    """The server. `seen` are all requests in the order of their arrival, `effects` how often each key was acted on.

    `sent_bytes` is how much of its answers' bodies it could send.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.seen: Final[list[Seen]] = []
        self.effects: Final[Counter[str]] = Counter()
        self.sent_bytes = 0
        self._known: Final[dict[str, tuple[bytes, Stored]]] = {}
        self._moves: Final[deque[Move]] = deque()
        self._lock: Final = threading.Lock()
        self._released: Final = threading.Event()
        self._scheme: Final = "http" if tls is None else "https"
        self._server: Final = _Server(("127.0.0.1", 0), _handler_of(self))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread: Final = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening, as a receiver that is down; the second time does nothing."""
        self.release()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    @property
    def origin(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """A target of this receiver."""
        return f"{self.origin}/orders"

    def plan(self, *moves: Move) -> None:
        """Say what the next requests meet with, one move for each."""
        self._moves.extend(moves)

    def release(self) -> None:
        """Let every request that waits go on."""
        self._released.set()

    def forget(self) -> None:
        """Forget every key, as after its lifetime or a loss of data. What was done stays done."""
        self._known.clear()

    def meet(self, exchange: Exchange) -> None:
        """Let one request meet with what is planned."""
        with self._lock:
            self.seen.append(exchange.request)
            move = self._moves.popleft() if self._moves else acts
        move(exchange)

    def act(self, key: str, payload: bytes) -> Stored:
        """Act unless the key is known; then return what is kept, or 422 if the payload is another one."""
        with self._lock:
            if key not in self._known:
                self.effects[key] += 1
                done = Stored(201, json.dumps({"order": sum(self.effects.values())}).encode())
                self._known[key] = (payload, done)
                return done
            known, stored = self._known[key]
            if known != payload:
                return Stored(422, b'{"title": "this key was used with another payload"}')
            return Stored(stored.status, stored.body, is_replay=True)

    def wait_until_released(self) -> None:
        assert self._released.wait(timeout=60), "nobody released the request"


# ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def acts(exchange: Exchange) -> None:
    """Keep the contract."""
    exchange.answer_as(exchange.act())


def acts_unmarked(exchange: Exchange) -> None:
    """Keep the contract, without saying whether the answer is a replay."""
    stored = exchange.act()
    exchange.answer(stored.status, stored.body)


def acts_then_drops(exchange: Exchange) -> None:
    """Act, and lose the connection before the answer."""
    exchange.act()
    exchange.drop()


def acts_then_fails(exchange: Exchange) -> None:
    """Act, and fail afterwards."""
    exchange.act()
    exchange.answer(500, b"a fault after the act")


def acts_late(exchange: Exchange) -> None:
    """Act, and answer only when the test says so."""
    stored = exchange.act()
    exchange.wait_until_released()
    with contextlib.suppress(ConnectionError):
        exchange.answer_as(stored)


def acts_and_is_huge(exchange: Exchange) -> None:
    """Act, and answer with 64 MiB, or as much of it as somebody reads."""
    exchange.act()
    exchange.begin(200, {"content-length": str(64 * 1024 * 1024), "content-type": "text/plain"})
    with contextlib.suppress(ConnectionError):
        for _ in range(1024):
            exchange.write(b"x" * 65536)


def acts_and_bombs(exchange: Exchange) -> None:
    """Act, and answer with 64 MiB of zeros in 64 KiB of gzip."""
    exchange.act()
    with contextlib.suppress(ConnectionError):
        exchange.answer(200, _bomb(), {"content-encoding": "gzip", "content-type": "text/plain"})


@cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return b"".join(packer.compress(bytes(1024 * 1024)) for _ in range(64)) + packer.flush()


def acts_and_breaks_off(exchange: Exchange) -> None:
    """Act, and lose the connection in the middle of the answer's body."""
    exchange.act()
    exchange.begin(200, {"content-length": "1000", "content-type": "text/plain"})
    exchange.write(b"the beginning")
    exchange.wait_until_released()
    with contextlib.suppress(ConnectionError):
        exchange.drop()


def acts_and_drips(exchange: Exchange) -> None:
    """Act, and send the answer's body byte by byte, for ever."""
    exchange.act()
    exchange.begin(200, {"content-type": "text/plain"})
    with contextlib.suppress(ConnectionError):
        for _ in range(2000):
            exchange.write(b".")
            time.sleep(0.02)


def acts_and_echoes(exchange: Exchange) -> None:
    """Act, and send everything back: the request's headers and body in the body, the authorization in headers."""
    exchange.act()
    authorization = exchange.request.headers.get("authorization", "")
    body = json.dumps({"headers": dict(exchange.request.headers), "body": exchange.request.body.decode()}).encode()
    exchange.answer(200, body, {"content-type": "application/json", "x-request-id": authorization, "x": authorization})


def forgets_then_acts(exchange: Exchange) -> None:
    """Forget every key first, before its time."""
    exchange.receiver.forget()
    acts(exchange)


def drops(exchange: Exchange) -> None:
    """Do nothing, and lose the connection."""
    exchange.drop()


def stalls(exchange: Exchange) -> None:
    """Do nothing, and answer nothing for as long as the test runs."""
    exchange.wait_until_released()
    exchange.drop()


def answers(status: int, body: bytes = b"", **headers: str) -> Move:
    """Return the move that does nothing but answer. Underscores in the names of headers stand for hyphens."""

    def move(exchange: Exchange) -> None:
        exchange.answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return move


def redirects_to(url: str, status: int = 307) -> Move:
    """Return the move that does nothing but send the client elsewhere."""
    return answers(status, location=url)


# ── the server behind it ──────────────────────────────────────────────────────────────────────────────────────────────


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing the server waits for its requests, so that no test leaves a thread behind

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed or hung up; anything else is a fault of the test."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _meet(self) -> None:
            self.close_connection = True
            receiver.meet(Exchange(receiver, self))

        do_DELETE = do_PATCH = do_POST = do_PUT = do_GET = _meet

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler

"""A keyed receiver: an HTTP server on loopback that acts once for each `Idempotency-Key`, and counts its effects.

    POST /cells/NAME    acts, and answers 200 with {"effect": N}; the same key again gets the same answer, with the
                        header `Idempotency-Replayed: true`, and nothing is done
    GET  /cells/NAME    answers {"effects": [N, …]}: what was done in the cell NAME

`Receiver.action()` is the action that sends to it. It is a process of its own, so the crash of a sender leaves it as it
is. It serves one connection after the other, so whoever asks for the effects sees that of every request that was sent
before, even by a sender that has died since. One that `forgets` its keys acts for every request: what a receiver does
that was restored from an older copy.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import ssl
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final, NoReturn

import eventlog
from eventlog import Call

__all__ = ["Receiver", "receiving"]


_KEY_LIFETIME_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where a running receiver is."""

    port: int

    def url(self, cell: str) -> str:
        """Return where the effects of a cell are sent to."""
        return f"{self.origin}/cells/{cell}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    def action(self, name: str) -> eventlog.HttpRequest:
        """Return the action that sends here, and nowhere else."""
        # There is no TLS on loopback, and the certificates that a context loads by default would take their time.
        no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return eventlog.HttpRequest(name=name, key_lifetime_s=_KEY_LIFETIME_S, allows=[self.origin], ssl_context=no_tls)

    def effects(self, cell: str) -> list[int]:
        """Return the numbers of the effects that were done in a cell."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", f"/cells/{cell}")
            answer: dict[str, list[int]] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return answer["effects"]


@contextmanager
def receiving(*, forgets: bool = False) -> Iterator[Receiver]:
    """Run a receiver in a process of its own for as long as the block lasts."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _serve(writing, parent, forgets)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        port = pipe.readline()
    try:
        if not port:
            raise RuntimeError("the receiver did not start")
        receiver = Receiver(int(port))
        asyncio.run(_send_once(receiver))
        yield receiver
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def _send_once(receiver: Receiver) -> None:
    """Send a request, so that all that it takes is loaded: children, which are forked from here, begin at once."""
    action = receiver.action("first_request")
    call = Call(
        run_id="none", action=action.name, args={"json": {}}, output=receiver.url("none"), op_key="0" * 64, attempt=1
    )
    await action.execute(call)


def _serve(writing: int, parent: int, forgets: bool) -> NoReturn:
    try:
        server = _Server(parent, forgets)
        os.write(writing, f"{server.server_address[1]}\n".encode())
        os.close(writing)
        server.serve_forever()
    finally:
        os._exit(1)


class _Server(HTTPServer):
    def __init__(self, parent: int, forgets: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._parent: Final = parent
        self._forgets: Final = forgets
        self._answers: dict[str, int] = {}
        self._effects: dict[str, list[int]] = {}

    def act(self, cell: str, key: str) -> tuple[int, bool]:
        """Do the effect of this key unless it is done; return its number, and whether it was done before."""
        known = self._answers.get(key)
        if known is not None and not self._forgets:
            return known, True
        number = self._answers[key] = sum(map(len, self._effects.values())) + 1
        self._effects.setdefault(cell, []).append(number)
        return number, False

    def effects(self, cell: str) -> list[int]:
        return self._effects.get(cell, [])

    def service_actions(self) -> None:
        """End with the process that needs the receiver, however that ends."""
        if os.getppid() != self._parent:
            os._exit(1)

    def handle_error(self, *_: object) -> None:
        """Say nothing of a sender that has died before its answer; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer({"effects": self.server.effects(self._cell())})

    def do_POST(self) -> None:
        size_bytes = int(self.headers["Content-Length"])
        if len(self.rfile.read(size_bytes)) < size_bytes:
            raise ConnectionAbortedError("the sender died in the middle of its request")
        number, is_replay = self.server.act(self._cell(), self.headers["Idempotency-Key"])
        self._answer({"effect": number}, {"Idempotency-Replayed": "true"} if is_replay else {})

    def log_message(self, *_: object) -> None:
        """Say nothing: standard error is for what goes wrong."""

    def _cell(self) -> str:
        return self.path.rpartition("/")[2]

    def _answer(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

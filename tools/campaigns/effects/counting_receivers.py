"""Receivers that count their effects, and the actions that act on them: what races and take-overs are judged by.

    line     a file to which each effect adds a line. It can neither refuse nor be asked: the action is opaque
    asked    the same, but `inspect` can look for the line; nothing refuses a second one
    file     a file that is created once (`WriteFile`)
    row      a row of another database, unique by its op_key (`InsertRow`)
    table    a row of the log's own database, written with its event (`RecordRow`)
    http     a server on the loopback interface that keeps the `Idempotency-Key` of each request (`HttpRequest`)

All that belongs to them lies in one folder. `attempts` holds a line for each time an action began to act, with the
process that did; the other files hold the effects. Nothing ever removes one, so a second effect of a run is counted.

    python tools/campaigns/effects/receivers.py FOLDER [--forgetful]

is the server. It prints its port, and ends when its standard input does. A forgetful one keeps no keys.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # this is a program: it runs from a clone

import eventlog
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.effects import Absent, Call, Executed, Finding, Promise, Recovered, Report
from eventlog.runtime.failpoints import EFFECT_INSIDE
from eventlog.stores.sqlite.foreign_write import WriteAccess

__all__ = ["RECEIVERS", "REFUSING", "Server", "actions", "attempts", "effects", "prepare", "proposal"]

RECEIVERS: Final = ("line", "asked", "file", "row", "table", "http")
REFUSING: Final = ("file", "row", "table", "http")
"""Those that refuse a second effect of one op_key."""

_TABLE: Final = "CREATE TABLE effects (run TEXT NOT NULL, note TEXT, op_key TEXT NOT NULL UNIQUE) STRICT"
_LOCK_WAIT_S: Final = 0.3


def prepare(folder: Path, database: Path) -> None:
    """Make the tables, one in a database of its own, one in the log's, which must exist and be closed."""
    for path in (folder / "rows.db", database):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(_TABLE)


def proposal(receiver: str, run_id: str, folder: Path, port: int | None = None) -> eventlog.Proposal:
    """Return the proposal of one effect at a receiver; `port` is that of the server."""
    match receiver:
        case "file":
            return eventlog.propose("file", {"content": run_id * 50}, str(folder / f"{run_id}.txt"))
        case "row" | "table":
            return eventlog.propose(receiver, {"run": run_id, "note": "approved"}, "effects")
        case "http":
            return eventlog.propose("http", {"json": {"run": run_id}}, _url(port))
        case _:
            return eventlog.propose(receiver, {}, str(folder / f"{receiver}s"))


def actions(folder: Path, port: int | None = None) -> list[AnyAction]:
    """Return the actions of all receivers in the folder, that of the server only if there is one."""
    return [
        AddLine(folder),
        AddFindableLine(folder),
        CreateFile(folder),
        AddRow(folder),
        AddOwnRow(folder),
        *((Post(folder, port),) if port is not None else ()),
    ]


def effects(receiver: str, folder: Path, database: Path) -> Counter[str]:
    """Return how many effects of each run the receiver holds; for a table in the log, nobody may have it open."""
    match receiver:
        case "row":
            return _rows(folder / "rows.db")
        case "table":
            return _rows(database)
        case _:
            return _lines(folder / f"{receiver}s")


def attempts(folder: Path) -> Counter[str]:
    """Return how often an action began to act for each run."""
    return _lines(folder / "attempts")


# ── actions ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class AddLine:
    """Adds one line to the target. It has no key and cannot be asked: only the log keeps it from happening twice."""

    name = "line"
    promise = Promise.OPAQUE

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def check(self, call: Call) -> None:
        """Nothing to refuse."""

    async def execute(self, call: Call) -> Executed:
        """Append a line in one write."""
        _add_line(self._folder / "attempts", call.run_id)
        call.reach(EFFECT_INSIDE)
        _add_line(Path(call.output), call.run_id)
        return Executed()


class AddFindableLine(AddLine):
    """Adds one line to the target, and can look for it. Nothing refuses a second line."""

    name = "asked"
    promise = Promise.CHECKABLE

    async def inspect(self, call: Call) -> Finding:
        """Look for the line of this run."""
        count = _lines(Path(call.output))[call.run_id]
        return Recovered(evidence={"lines": count}) if count else Absent()


class CreateFile(eventlog.WriteFile):
    """WriteFile that adds a receipt for each file it created."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="file")
        self._folder: Final = folder

    async def execute(self, call: Call) -> Report:
        """Create the file, then write the receipt."""
        _add_line(self._folder / "attempts", call.run_id)
        report = await super().execute(call)
        if isinstance(report, Executed):
            _add_line(self._folder / "files", call.run_id)
        return report


class AddRow(eventlog.InsertRow):
    """InsertRow into the table beside the log."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "rows.db", "effects", name="row", busy_timeout_s=_LOCK_WAIT_S)
        self._folder: Final = folder

    async def execute(self, call: Call) -> Report:
        """Insert the row."""
        _add_line(self._folder / "attempts", call.run_id)
        return await super().execute(call)


class AddOwnRow(eventlog.RecordRow):
    """RecordRow into a table of the log's own database."""

    def __init__(self, folder: Path) -> None:
        super().__init__("effects", name="table")
        self._folder: Final = folder

    def write(self, connection: WriteAccess, call: Call) -> dict[str, int | None]:
        """Insert the row."""
        _add_line(self._folder / "attempts", call.run_id)
        return super().write(connection, call)


class Post(eventlog.HttpRequest):
    """HttpRequest to the server. Passes `effect.inside` before its first byte as well: the worst time to be stopped."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(name="http", key_lifetime_s=24 * 3600, allows=[_url(port)])
        self._folder: Final = folder

    async def execute(self, call: Call) -> Report:
        """Send the request and wait for the answer."""
        _add_line(self._folder / "attempts", call.run_id)
        call.reach(EFFECT_INSIDE)
        return await super().execute(call)


def _url(port: int | None) -> str:
    return f"http://127.0.0.1:{port}/effects"


# ── the server ────────────────────────────────────────────────────────────────────────────────────────────────────────
class Server:
    """A server in a process of its own, as long as the `with` lasts. `port` is where it listens."""

    def __init__(self, folder: Path, *, is_forgetful: bool = False) -> None:
        command = [sys.executable, __file__, str(folder), *(("--forgetful",) if is_forgetful else ())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None, "it was opened with a pipe"
        self.port: Final = int(self._process.stdout.readline())

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise


class _Receiver(ThreadingHTTPServer):
    """Does one effect for each key that it does not know, and gives the first answer again for one that it does."""

    daemon_threads = True

    def __init__(self, folder: Path, *, is_forgetful: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self._folder: Final = folder
        self._is_forgetful: Final = is_forgetful
        self._known: Final[dict[str, tuple[bytes, str]]] = {}
        self._lock: Final = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed while it waited is nothing to report."""

    def answer(self, key: str, body: bytes) -> tuple[int, str, bool]:
        """Return status, text and whether it is the first answer again."""
        with self._lock:
            known = None if self._is_forgetful else self._known.get(key)
            if known is not None:
                is_same = known[0] == body
                return (201, known[1], True) if is_same else (422, "this key came with another payload", False)
            _add_line(self._folder / "https", json.loads(body)["run"])
            text = f"effect {len(self._known) + 1}"
            self._known[key] = (body, text)
            return 201, text, False


class _Request(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Do the effect, or say what it came to before."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, _Receiver), "it is made for this server"
        status, text, is_replayed = self.server.answer(self.headers["Idempotency-Key"], body)
        self.send_response(status)
        if is_replayed:
            self.send_header("Idempotency-Replayed", "true")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the campaign prints one object."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--forgetful", action="store_true")
    options = parser.parse_args(arguments)
    with _Receiver(options.folder, is_forgetful=options.forgetful) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()
        server.shutdown()
        serving.join()
    return 0


# ── files of lines ────────────────────────────────────────────────────────────────────────────────────────────────────
def _add_line(path: Path, run_id: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{run_id} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)


def _lines(path: Path) -> Counter[str]:
    if not path.exists():
        return Counter()
    return Counter(line.split()[0] for line in path.read_text().splitlines())


def _rows(path: Path) -> Counter[str]:
    with closing(sqlite3.connect(path)) as connection:
        return Counter(run for (run,) in connection.execute("SELECT run FROM effects"))


if __name__ == "__main__":
    raise SystemExit(main())

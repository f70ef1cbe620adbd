"""Programs that append to a log with transcripts: killed by themselves or by the system, on a failing disk, or at once.

`faults_in` is the check that all tests of transcripts share.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import eventlog
from eventlog.errors import EventLogError
from eventlog.log import AppendResult, Expect, NewEvent, RunLog
from projections.mirrors import Begun, MirroredLog, TranscriptMirror, mirrored, transcript_files
from tools.campaigns.storage.libc_faults import KILLED, Faults, Operation
from tools.campaigns.storage.log_files import open_file
from tools.campaigns.storage.scenarios.transcripts import faults_in

__all__ = [
    "WINDOWS",
    "DyingMirror",
    "EarlyMirror",
    "ForgetfulMirror",
    "appends_and_dies",
    "appends_at_the_same_time",
    "appends_on_a_failing_disk",
    "faults_in",
    "killed_by_the_system",
    "note",
    "runs_and_dies",
    "transcript",
]

STREAM: Final = "notes"
WINDOWS: Final = ("prepared", "committed", "torn", "written")
"""Behind prepare; behind the log's commit; in the middle of the line; behind it, with the evidence still there."""


def note(number: int = 0, size: int = 0) -> NewEvent:
    return NewEvent("noted", {"n": number, "text": "x" * size})


# ── the check ────────────────────────────────────────────────────────────────────────────────────────────────────────


def transcript(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a transcript; every one has to be whole."""
    data = Path(path).read_bytes()
    assert not data or data.endswith(b"\n"), f"{path} ends in a torn line"
    return [json.loads(line) for line in data.splitlines()]


# ── mirrors that die, and mirrors that are wrong ─────────────────────────────────────────────────────────────────────


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingMirror(TranscriptMirror):
    """Ends its process by SIGKILL in a window of the n-th append from `arm` on."""

    left = 0
    window = ""

    def arm(self, window: str, left: int = 1) -> None:
        self.window, self.left = window, left

    async def prepare(self, appends: Sequence[Begun]) -> Any:
        evidence = await super().prepare(appends)
        self.left -= 1
        if self._is_in("prepared"):
            _kill()
        return evidence

    async def settle(self, log: RunLog, stream: str) -> None:
        if self._is_in("committed"):
            _kill()
        if self._is_in("torn"):  # the kernel writes as much as this allows, and then ends the process
            size = os.stat(self.path(stream)).st_size if os.path.exists(self.path(stream)) else 0
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, size + 40))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        await super().settle(log, stream)

    async def release(self, evidence: Any) -> None:
        if self._is_in("written"):
            _kill()
        await super().release(evidence)

    def _is_in(self, window: str) -> bool:
        return self.window == window and self.left == 0


class EarlyMirror(DyingMirror):
    """Wrong on purpose: it writes the line in front of the log's commit."""

    async def prepare(self, appends: Sequence[Begun]) -> Any:
        for begun in appends if self.left == 1 else ():
            line = transcript(self.path(begun.stream))[-1]
            early = {**line, "version": line["version"] + 1, "position": line["position"] + 1}
            early.pop("sum")
            body = json.dumps(early, separators=(",", ":")).encode()[:-1]
            text = body + b',"sum":"%b"}\n' % hashlib.sha256(body).hexdigest().encode()
            Path(self.path(begun.stream)).write_bytes(Path(self.path(begun.stream)).read_bytes() + text)
        return await super().prepare(appends)


class ForgetfulMirror(TranscriptMirror):
    """Wrong on purpose: it does not look at what a crash has left."""

    async def start(self, log: RunLog) -> list[Any]:
        return []


# ── programs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def appends_and_dies(path: str, folder: str, window: str, kind: str = "DyingMirror") -> None:
    """Append twice, and die in a window of the third append."""
    mirror: DyingMirror = globals()[kind](folder, streams="")
    async with mirrored(open_file(path), mirror) as log:
        for number in range(2):
            await log.append(STREAM, [note(number, 200)], expect=Expect.at(number))
        print("ARMED", flush=True)
        mirror.arm(window)
        await log.append(STREAM, [note(2, 200)], expect=Expect.at(2))
    raise AssertionError("it lives")


async def killed_by_the_system(path: str, folder: str, operation: Operation, files: str, skip: str) -> None:
    """Append until a call on one of the mirror's files kills the process."""
    async with mirrored(open_file(path), TranscriptMirror(folder, streams="")) as log:
        await log.append(STREAM, [note(0)], expect=Expect.no_stream())
        Faults().arm(operation, KILLED, files=files, skip=int(skip))
        for number in range(1, 20):
            await log.append(STREAM, [note(number)], expect=Expect.at(number))
    raise AssertionError("it lives")


async def appends_on_a_failing_disk(
    path: str, folder: str, operation: Operation, error: str, files: str, forgets: str = ""
) -> dict[str, Any]:
    """Append while an operation fails on the mirror's files with this ending; then again, when it works."""
    if forgets:
        vars(transcript_files)["flush"] = lambda descriptor: None
    events = [note(1)]
    async with mirrored(open_file(path), TranscriptMirror(folder, streams="")) as log:
        await log.append(STREAM, [note(0)], expect=Expect.no_stream())
        Faults().arm(operation, getattr(errno, error), files=files)
        first = await _told(log, events)
        hits = Faults().disarm(operation)
        second = await _told(log, events)
        left = [each.stream for each in log.behind()]
        stored = (await log.read_stream(STREAM)).version
        faults = await faults_in(log, Path(folder))
    return {"first": first, "hits": hits, "second": second, "behind": left, "stored": stored, "faults": faults}


async def _told(log: MirroredLog, events: list[NewEvent]) -> list[Any]:
    try:
        result = await log.append(STREAM, events, expect=Expect.at(1))
    except EventLogError as error:
        results: Sequence[AppendResult] = getattr(error, "results", ())
        return [error.code, [each.version for each in results]]
    return ["deduplicated" if result.deduplicated else "stored", [result.version]]


async def appends_at_the_same_time(path: str, folder: str, name: str, count: str) -> int:
    """Append to a stream that others append to as well, from several tasks; return how many that were."""
    log = mirrored(open_file(path, busy_timeout_s=30), TranscriptMirror(folder, streams=""))
    async with log:
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def work(task: int) -> None:
            for number in range(int(count)):
                event = NewEvent("noted", {"by": f"{name}.{task}", "n": number})
                await log.append("shared", [event], expect=Expect.any())

        await asyncio.gather(*map(work, range(4)))
    return 4 * int(count)


@eventlog.action("tell", promise="opaque")
async def tell(call: eventlog.Call) -> Any:
    """An effect that leaves a line in a file."""
    told = Path(call.output)
    told.write_text((told.read_text() if told.exists() else "") + call.op_key + "\n")
    return {"told": True}


async def _look(what: str) -> str:
    return f"saw {what}"


@eventlog.workflow
async def telling(run: eventlog.RunContext, what: str, where: str) -> str:
    """A run that looks at something, and tells when somebody agrees."""
    seen: str = await run.step("look", _look, what)
    await run.act("tell", {"seen": seen}, output=where)
    return seen


def runner_of(log: RunLog) -> eventlog.Runner:
    return eventlog.Runner(log, workflows=[telling], actions=[tell], patience_s=0)


async def runs_and_dies(path: str, folder: str, where: str, window: str, left: str) -> str:
    """Start a run, approve it and resume it, and die in a window of the n-th append to its stream."""
    mirror = DyingMirror(folder)
    async with mirrored(open_file(path), mirror) as log:
        mirror.arm(window, int(left))
        runner = runner_of(log)
        outcome = await runner.start(telling, "run-1", "smoke", where)
        (request,) = outcome.requests
        await runner.approve("run-1", request.proposal_hash or "")
        return str((await runner.resume("run-1")).status)

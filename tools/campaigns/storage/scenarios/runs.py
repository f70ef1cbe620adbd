"""Scenarios of runs: an effect that makes a file, and a step whose value is so large that it lies beside the log."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import eventlog
from eventlog import Refused, Runner
from eventlog.errors import EventLogError
from eventlog.stores import SqliteLog
from tools.campaigns.processes.told import Call, Said
from tools.campaigns.storage.scenarios.scenario import Scenario, Wrong, database, open_log, opened
from tools.campaigns.storage.scenarios.whole_log import audit_log, contradictions

__all__ = ["ARTIFACTS", "FILE_EFFECT", "LARGE_EFFECT"]

_RUN: Final = "run-1"


async def _status(runner: Runner) -> str:
    """Return the status of the run, `ABSENT` if there is none."""
    try:
        return str((await runner.state(_RUN)).status.value)
    except Refused as refused:
        if refused.code != "unknown_run":
            raise
        return "ABSENT"


# ── a whole run with an effect ────────────────────────────────────────────────────────────────────────────────────────

_TARGET: Final = "reports/2024/report.txt"

_Ask = Callable[[str, Awaitable[object]], Awaitable[object]]


class _Effect:
    """A run that is proposed, approved, and makes a file with this text."""

    def __init__(self, content: str) -> None:
        self._content: Final = content
        self._proposal: Final = eventlog.propose("write_file", {"content": content}, _TARGET)

    async def prepare(self, folder: Path) -> None:
        (folder / "out").mkdir()
        async with open_log(database(folder)):
            pass

    async def work(self, folder: Path, said: Said) -> None:
        async with opened(said, open_log(database(folder))) as log:
            await self._ask_for_all(_runner(log, folder), said.ask)
            said.note("target", is_there=(folder / "out" / _TARGET).exists())

    async def audit(self, folder: Path, calls: Sequence[Call]) -> list[Wrong]:
        target = folder / "out" / _TARGET
        wrong = [*await audit_log(database(folder), calls), *_told_of_effect(calls)]
        before = target.stat() if target.exists() else None
        try:
            async with open_log(database(folder)) as log:
                wrong += await self._look(log, target)
                await self._ask_for_all(_runner(log, folder), _plainly)
                wrong += await self._look(log, target, is_done=True)
        except EventLogError as error:
            return [*wrong, Wrong("I8", f"the run cannot be brought to its end: {error.code}: {error}")]
        return wrong + _made_again(target, before)

    async def _ask_for_all(self, runner: Runner, ask: _Ask) -> None:
        """Do what is still to be done of the run, from its proposal to its effect."""
        status = await ask("look", _status(runner))
        if status == "ABSENT":
            status = await ask("propose", runner.propose(_RUN, self._proposal))
        if status is not None and (status == "WAITING_FOR_USER" or not isinstance(status, str)):
            status = await ask("approve", runner.approve(_RUN, self._proposal.hash))
        if status is not None:
            await ask("resume", runner.resume(_RUN))

    async def _look(self, log: SqliteLog, target: Path, *, is_done: bool = False) -> list[Wrong]:
        """Compare what the log says of the effect with the target."""
        events = [event async for event in log.read_all(stream_prefix="run:")]
        wrong = await contradictions(log) if is_done else []
        types = [event.type for event in events]
        is_whole = target.exists() and target.read_text() == self._content
        has_result = "action_executed" in types or "action_recovered" in types
        if target.exists() and not is_whole:
            wrong.append(Wrong("I5", "the file is not what was approved"))
        if target.exists() and "resume_started" not in types:
            wrong.append(Wrong("I5", "the file is there, and no intent"))
        if has_result and not is_whole:
            wrong.append(Wrong("I6", f"the log has its result, and the file is not there: {types}"))
        if is_done and not (has_result and is_whole):
            wrong.append(Wrong("I8", f"asked again, the run is not complete: {types}"))
        if len({event.data.op_key for event in events if event.type == "resume_started"}) > 1:
            wrong.append(Wrong("I5", "the attempts of one effect have several op_keys"))
        return wrong

    def scenario(self, name: str, what: str) -> Scenario:
        return Scenario(name, what, self.prepare, self.work, self.audit)


def _runner(log: SqliteLog, folder: Path) -> Runner:
    return Runner(log, actions=[eventlog.WriteFile(root=folder / "out")], patience_s=0)


async def _plainly(_: str, asked: Awaitable[object]) -> object:
    return await asked


def _made_again(target: Path, before: os.stat_result | None) -> list[Wrong]:
    """Say so if a file that was there is another one now."""
    if before is None or not target.exists():
        return []
    after = target.stat()
    is_same = (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    return [] if is_same else [Wrong("I5", "the file was there, and was made again")]


def _told_of_effect(calls: Sequence[Call]) -> list[Wrong]:
    """Compare what was told of each attempt with the target as it was then."""
    wrong, attempt, may_be_there = [], None, False
    for call in calls:
        if call.what == "resume":
            attempt = call
            may_be_there = may_be_there or call.told in ("unknown", "nothing")
        elif call.what == "target" and attempt is not None:
            is_there = call.facts["is_there"]
            if attempt.told == "ok" and not is_there:
                wrong.append(Wrong("I6", f"the run was told to be complete, and the file is not there: {attempt}"))
            if attempt.told == "failed" and attempt.code == "action_failed" and is_there and not may_be_there:
                wrong.append(Wrong("I3", f"the file is there, and its attempt was told to have failed: {attempt}"))
            attempt = None
    return wrong


FILE_EFFECT: Final = _Effect("approved word by word\n" * 500).scenario("file_effect", "an approved run makes a file")
LARGE_EFFECT: Final = _Effect("approved word by word\n" * 8_000).scenario("large_effect", "it makes a large file")


# ── a large value beside the log ──────────────────────────────────────────────────────────────────────────────────────

_LARGE: Final = "a value too large for an event " * 4_000
_PUT: Final = sha256(b"put").digest() * 3_000


async def _measure() -> str:
    return _LARGE


@eventlog.workflow
async def measuring(run: eventlog.RunContext) -> int:
    """A run with a step whose value is kept beside the log."""
    value: str = await run.step("measure", _measure)
    return len(value)


async def _prepare_artifacts(folder: Path) -> None:
    async with open_log(database(folder)):
        pass


async def _keep(folder: Path, said: Said) -> None:
    async with opened(said, open_log(database(folder))) as log:
        await said.ask("put", log.artifacts.put(_PUT))
        await _ask_to_measure(Runner(log, workflows=[measuring], patience_s=0), said.ask)


async def _ask_to_measure(runner: Runner, ask: _Ask) -> object:
    status = await ask("look", _status(runner))
    if status == "ABSENT":
        return await ask("start", runner.start(measuring, _RUN))
    return None if status is None else await ask("resume", runner.resume(_RUN))


async def _audit_artifacts(folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    wrong = await audit_log(database(folder), calls)
    try:
        async with open_log(database(folder)) as log:
            for name in (await log.check_page(after=0)).artifacts:
                await log.artifacts.get(name.digest)
            if any(call.what == "put" and call.told == "ok" for call in calls):
                await log.artifacts.get(sha256(_PUT).hexdigest())
            outcome = await _ask_to_measure(Runner(log, workflows=[measuring], patience_s=0), _plainly)
            value = getattr(outcome, "value", None)
            wrong += [] if value == len(_LARGE) else [Wrong("I10", f"the run returned {value!r}")]
            if await log.artifacts.put(_PUT) != sha256(_PUT).hexdigest():
                wrong.append(Wrong("I10", "an artifact has another name than before"))
    except EventLogError as error:
        wrong.append(Wrong("I6", f"what the log names is not there as a whole: {error.code}: {error}"))
    return wrong


ARTIFACTS: Final = Scenario(
    "artifacts", "large values are kept beside the log", _prepare_artifacts, _keep, _audit_artifacts
)

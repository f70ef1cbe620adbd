"""Kill a writer at random moments, many times, and look at what is left each time.

    python3 tools/kill_loop.py --workload appends --kills 300 [--seed N]

A child process is forked, works on a log, and says over a pipe what was acknowledged to it. The parent sends SIGKILL
after a random time, which may fall into the opening of the log, its recovery, a transaction, a WAL checkpoint. Then
it opens the log and audits it: nothing that was acknowledged is lost, nothing is half there, positions have no gap,
and every hash is right.

A workload is what the child does, and the audit that belongs to it; `WORKLOADS` holds them by name. Those whose name
begins with `wrong_` are negative controls: they break a rule on purpose, and the audit has to say so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this is a program: it runs from a clone

from tools.environment import continue_in_environment

if __name__ == "__main__":
    continue_in_environment()

import eventlog
from eventlog import Expect, NewEvent, RecordedEvent
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite.wal import WalCheckpoints

__all__ = ["WORKLOADS", "Report", "Workload", "campaign"]

KILLS_OF_ONE_LOG: Final = 50
"""Then a full audit, and a new log: audits stay short, and creation is killed too."""
_FIRST_MS: Final = 1
_LAST_MS: Final = 70
_TASKS: Final = 4

Acknowledge = Callable[[Iterable[str]], None]
"""Says that these things, named by words without blanks, are certain now."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a child does until it is killed, and what must hold of the log afterwards."""

    work: Callable[[Path, Acknowledge, random.Random], Coroutine[Any, Any, None]]
    audit: Callable[[SqliteLog, set[str]], Awaitable[list[str]]]
    """Returns what is wrong, given everything that was ever acknowledged for this log."""


@dataclass(slots=True)
class Report:
    """What a campaign did and found."""

    workload: str
    seed: int
    kills: int = 0
    acknowledged: int = 0
    stored: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.kills / self.seconds if self.seconds else 0
        counts = f"{self.kills} kills ({rate:.0f}/s), {self.acknowledged} acknowledged, {self.stored} stored"
        return f"{self.workload}: {counts}, {len(self.violations)} violations, seed {self.seed}"


def campaign(workload: str, kills: int | str, seed: int | str) -> dict[str, object]:
    """Run a workload, kill it `kills` times, and return the report as plain data."""
    report = Report(workload, int(seed))
    began_s = time.monotonic()
    chance = random.Random(report.seed)
    with tempfile.TemporaryDirectory(prefix="kill-loop-") as folder:
        while report.kills < int(kills):
            path = Path(folder) / f"log{report.kills}.db"
            _kill_one_log(WORKLOADS[workload], path, min(KILLS_OF_ONE_LOG, int(kills) - report.kills), chance, report)
    report.seconds = time.monotonic() - began_s
    return asdict(report)


def _kill_one_log(workload: Workload, path: Path, kills: int, chance: random.Random, report: Report) -> None:
    acknowledged: set[str] = set()
    head = 0
    for _ in range(kills):
        report.kills += 1
        acknowledged |= _killed_child(workload, path, chance)
        head, problems = asyncio.run(_check(path, head))
        report.violations += [f"kill {report.kills}: {problem}" for problem in problems]
    report.acknowledged += len(acknowledged)
    report.stored += head
    faults = asyncio.run(_audit(path, workload, acknowledged))
    report.violations += [f"kills up to {report.kills}: {fault}" for fault in faults]


def _killed_child(workload: Workload, path: Path, chance: random.Random) -> set[str]:
    """Fork a child, let it work for a random time, kill it, and return what was acknowledged to it."""
    from_child, to_parent = os.pipe()
    seed = chance.getrandbits(64)
    child = os.fork()  # no log is open here, and no thread runs
    if child == 0:
        os.close(from_child)
        _be_the_child(workload, path, to_parent, seed)
    os.close(to_parent)
    time.sleep(chance.uniform(_FIRST_MS, _LAST_MS) / 1000)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with open(from_child, "rb") as pipe:
        said = pipe.read().decode()
    if not os.WIFSIGNALED(status):
        raise RuntimeError(f"the child ended by itself, with {os.waitstatus_to_exitcode(status)}")
    whole = said[: said.rfind("\n") + 1]  # a line that was being written is nobody's knowledge
    return set(whole.split())


def _be_the_child(workload: Workload, path: Path, to_parent: int, seed: int) -> NoReturn:
    def acknowledge(names: Iterable[str]) -> None:
        os.write(to_parent, (" ".join(names) + "\n").encode())

    WalCheckpoints.SOFT_LIMIT = 64 * 1024  # so that kills fall into WAL checkpoints as well
    try:
        asyncio.run(workload.work(path, acknowledge, random.Random(seed)))
    finally:
        os._exit(9)


async def _check(path: Path, after: int) -> tuple[int, list[str]]:
    """Check what is new behind position `after`; return the head and what is wrong."""
    async with _open(path) as log:
        head = (await log.head()).position
        if head < after:
            return head, [f"the log ends at {head}, it had {after} events"]
        page = await log.check_page(after=after, limit=head - after + 1)
        problems = [problem.message for problem in page.problems]
        if page.position != head:
            problems.append(f"the check ends at {page.position}, the log at {head}")
        return head, problems


async def _audit(path: Path, workload: Workload, acknowledged: set[str]) -> list[str]:
    async with _open(path) as log:
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
        faults = [problem.message for problem in page.problems]
        if page.events != head:
            faults.append(f"{page.events} events lie at {head} positions")
        damage = await log.read_view(lambda connection: connection.execute("PRAGMA integrity_check").fetchone()[0])
        if damage != "ok":
            faults.append(f"integrity_check: {damage}")
        return [*faults, *await workload.audit(log, acknowledged)]


def _open(path: Path) -> SqliteLog:
    log = eventlog.open(path)
    assert isinstance(log, SqliteLog), "a path that is not `memory:`"
    return log


# ── workload: appends ─────────────────────────────────────────────────────────────────────────────────────────────────


async def _appends(path: Path, acknowledge: Acknowledge, chance: random.Random) -> None:
    """Several tasks append one to six events at a time, and acknowledge what `append` has returned for."""

    async def append(log: SqliteLog, stream: str, events: list[NewEvent]) -> None:
        await log.append(stream, events, expect=Expect.any())
        acknowledge(_names(events))

    await _append_for_ever(path, chance, append)


async def _appends_acknowledged_too_early(path: Path, acknowledge: Acknowledge, chance: random.Random) -> None:
    """Wrong on purpose: acknowledges before `append` has returned."""

    async def append(log: SqliteLog, stream: str, events: list[NewEvent]) -> None:
        acknowledge(_names(events))
        await log.append(stream, events, expect=Expect.any())

    await _append_for_ever(path, chance, append)


async def _appends_in_pieces(path: Path, acknowledge: Acknowledge, chance: random.Random) -> None:
    """Wrong on purpose: appends one event after the other what belongs together."""

    async def append(log: SqliteLog, stream: str, events: list[NewEvent]) -> None:
        for event in events:
            await log.append(stream, [event], expect=Expect.any())
        acknowledge(_names(events))

    await _append_for_ever(path, chance, append)


async def _append_for_ever(
    path: Path, chance: random.Random, append: Callable[[SqliteLog, str, list[NewEvent]], Awaitable[None]]
) -> None:
    async def appending(log: SqliteLog, number: int) -> None:
        while True:
            size = chance.randint(1, 6)
            group = f"{chance.getrandbits(64):016x}"
            text = "x" * chance.randint(0, 600)
            data = [{"group": group, "index": index, "of": size, "text": text} for index in range(size)]
            await append(log, f"s{number}", [NewEvent("noted", each) for each in data])

    async with _open(path) as log, asyncio.TaskGroup() as tasks:
        for number in range(_TASKS):
            tasks.create_task(appending(log, number))


def _names(events: list[NewEvent]) -> list[str]:
    return [event.event_id.hex() for event in events]


async def _audit_appends(log: SqliteLog, acknowledged: set[str]) -> list[str]:
    """Find acknowledged events that are lost, and groups that are half there or torn apart."""
    groups: dict[str, list[RecordedEvent]] = {}
    stored: list[str] = []
    async for event in log.read_all():
        stored.append(event.event_id.hex())
        groups.setdefault(event.data["group"], []).append(event)
    faults = [f"lost: acknowledged event {name} is not stored" for name in sorted(acknowledged - set(stored))]
    if len(stored) != len(set(stored)):
        faults.append("twice: an event id is stored more than once")
    for name, events in groups.items():
        first = events[0]
        expected = [(first.position + index, first.version + index, index) for index in range(first.data["of"])]
        if [(event.position, event.version, event.data["index"]) for event in events] != expected:
            faults.append(f"half there: group {name} has {len(events)} of {first.data['of']} events in a row")
    return faults


WORKLOADS: Final[Mapping[str, Workload]] = {
    "appends": Workload(_appends, _audit_appends),
    "wrong_acknowledged_too_early": Workload(_appends_acknowledged_too_early, _audit_appends),
    "wrong_appends_in_pieces": Workload(_appends_in_pieces, _audit_appends),
}


def main() -> int:
    """Run one campaign and print its report; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="appends")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    found = Report(**campaign(options.workload, options.kills, options.seed))  # type: ignore[arg-type]
    print(found)
    for violation in found.violations[:20]:
        print(f"  {violation}")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())

"""Campaign `sharing`: several processes write one log as fast as they can, and each gets its share of the writing.

SQLite's own way to wait for a lock starves whoever waits; the file lock lets them in one after the other. So while one
waits, few transactions of others come in front of its own, and of all transactions none has much more than its part.
What a process waits for a processor is told apart, by what the kernel says of its threads. Of the first a single wait
is enough, on any machine. Shares are judged where all processes had a processor for most of the time.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from eventlog import Expect, NewEvent
from tools.campaigns.frame.campaign import ALONE, Break, Campaign, Control, Goal, Work
from tools.campaigns.storage.log_files import open_file

__all__ = ["CAMPAIGN"]

LARGEST_SHARE: Final = {2: 0.6, 4: 0.5}
"""The largest share that one of so many processes may have."""

MOST_OVERTAKEN: Final = 150
"""How many transactions of others may come in front of one that waits.

Mostly it is one for each other process. But who is let in may have to wait for its turn at a processor, of which the
kernel says nothing where it counts as asleep: in the 4 ms of a turn two others hand the lock to each other forty times
on a fast disk. Of four on two processors, up to 85 were seen to come in front of one, with three busy programs beside
them up to 94; without the file lock, in a second and a half, 463 to 3,179, and beside busy programs 184 or more.
"""

LEAST_WORKED: Final = 0.8
"""The part of a run in which every process had a processor, or waited for the disk or the lock, for shares to count."""

_LARGEST_DELAY: Final = 0.1
"""The part of a wait that may have been for a processor, for those who overtook to count."""

_BEGIN_S: Final = 60.0
_BUSY_TIMEOUT_S: Final = 30.0


class Written(msgspec.Struct, frozen=True):
    """What one process has done: for how long it could work, the longest wait, where its events are, who overtook."""

    worked_s: float
    """Its time without that in which it was ready to go on and another program had the processor."""
    longest_s: float
    overtaken: int
    """How many transactions of others came in front of one of its own, at the most, while it had a processor."""
    waits: int
    """How often those were more than `MOST_OVERTAKEN`."""
    positions: list[int]

    @property
    def count(self) -> int:
        return len(self.positions)


def run(work: Work) -> None:
    """Let two and four processes write, in turn."""
    seconds = 12.0 if work.tier == "long" and work.control is None else 1.5
    seen = _Seen()
    for number in range(work.goal("runs")):
        processes = 4 if work.control is not None or number % 2 else 2
        case = f"{processes} processes/{number}"
        if work.wants(case):
            written = _write_together(work, case, processes, seconds)
            _judge(work, case, written, seconds, seen)
            work.count("runs")
            work.count("transactions", sum(each.count for each in written))
    work.notes.update(seen.notes())


class _Seen:
    """What the runs have shown."""

    def __init__(self) -> None:
        self.shares: dict[int, list[float]] = {2: [], 4: []}
        self.busy = 0
        self.longest_s = 0.0
        self.overtaken = 0

    def notes(self) -> dict[str, str]:
        """Return it in words."""
        shares = {f"largest share of {count}": f"{max(each):.0%}" for count, each in self.shares.items() if each}
        busy = {"shares not judged, the machine was busy": str(self.busy)} if self.busy else {}
        return {**shares, **busy, "overtaken at most": str(self.overtaken), "longest wait": f"{self.longest_s:.2f} s"}


def _judge(work: Work, case: str, written: Sequence[Written], seconds: float, seen: _Seen) -> None:
    """Report whether one was overtaken again and again, or had too much."""
    if not written:
        return
    seen.longest_s = max(seen.longest_s, *(each.longest_s for each in written))
    seen.overtaken = max(seen.overtaken, *(each.overtaken for each in written))
    if any(each.waits for each in written):
        told = ", ".join(f"up to {each.overtaken}, {each.waits} times too many" for each in written)
        work.violation("I9", case, f"transactions of others were let in while one waited: {told}")
    counts = [each.count for each in written]
    share = max(counts) / max(1, sum(counts))
    if min(each.worked_s for each in written) < LEAST_WORKED * seconds:
        seen.busy += 1
        return
    seen.shares[len(written)].append(share)
    if share > LARGEST_SHARE[len(written)]:
        work.violation("I9", case, f"one of {len(written)} processes made {share:.0%} of the transactions: {counts}")


def _write_together(work: Work, case: str, processes: int, seconds: float) -> list[Written]:
    """Let processes begin at the same moment, and return what each has done; check what they leave."""
    path = work.folder / f"{case.replace('/', '-')}-{seconds:g}.db"
    asyncio.run(_look(path, []))
    writers: list[_Writer] = []
    try:
        for number in range(processes):
            writers.append(_Writer(path, number, seconds))
        ready = all(writer.is_ready() for writer in writers)
        for writer in writers:
            writer.go()
        written = [writer.finish(seconds + _BUSY_TIMEOUT_S + _BEGIN_S) for writer in writers] if ready else []
    finally:
        for writer in writers:
            writer.end()
    done = [each for each in written if each is not None]
    if len(done) < processes:
        work.violation("I9", case, f"{processes - len(done)} of {processes} processes did not come to an end")
        return []
    for invariant, what in asyncio.run(_look(path, done)):
        work.violation(invariant, case, what)
    return done


class _Writer:
    """A process that writes, and its parent's ends of two pipes."""

    def __init__(self, path: Path, number: int, seconds: float) -> None:
        go, self._go = os.pipe()
        self._said, said = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _be_writer(path, number, seconds, go, said)
        os.close(go)
        os.close(said)

    def is_ready(self) -> bool:
        return self._read(_BEGIN_S, 1) == b"+"

    def go(self) -> None:
        with suppress(BrokenPipeError):  # it has ended by itself, which is seen when it has nothing to say
            os.write(self._go, b"+")  # not closed: the processes that were forked later hold it open

    def finish(self, timeout_s: float) -> Written | None:
        """Return what it has done, None if it does not say so in time."""
        said = b""
        while piece := self._read(timeout_s, 65_536):
            said += piece
        return msgspec.json.decode(said, type=Written) if said.endswith(b"}") else None

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)  # it may have ended, and is there until it is waited for
        os.waitpid(self._pid, 0)
        os.close(self._go)
        os.close(self._said)

    def _read(self, timeout_s: float, count: int) -> bytes:
        readable, _, _ = select.select([self._said], [], [], timeout_s)
        return os.read(self._said, count) if readable else b""


def _be_writer(path: Path, number: int, seconds: float, go: int, said: int) -> None:
    """Be the process. Never returns."""
    status = 1
    try:
        written = asyncio.run(_write(path, f"s{number}", seconds, go, said))
        left = msgspec.json.encode(written)
        while left:
            left = left[os.write(said, left) :]
        status = 0
    except BaseException as error:
        print(f"writer {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


async def _write(path: Path, stream: str, seconds: float, go: int, said: int) -> Written:
    positions: list[int] = []
    longest_s, overtaken, waits = 0.0, 0, 0
    async with open_file(path, busy_timeout_s=_BUSY_TIMEOUT_S) as log:
        os.write(said, b"+")
        select.select([go], [], [])
        delays = _Delays()
        began_s = now_s = time.monotonic()
        began_delay_s = delay_s = delays.total_s()
        while now_s < began_s + seconds:
            result = await log.append(stream, [NewEvent("noted", {})], expect=Expect.at(len(positions)))
            last = positions[-1] if positions else result.last_position - 1
            positions.append(result.last_position)
            before_s, now_s = now_s, time.monotonic()
            before_delay_s, delay_s = delay_s, delays.total_s()
            longest_s = max(longest_s, now_s - before_s)
            if delay_s - before_delay_s < (now_s - before_s) * _LARGEST_DELAY:
                overtaken = max(overtaken, result.last_position - last - 1)
                waits += result.last_position - last - 1 > MOST_OVERTAKEN
    return Written(now_s - began_s - (delay_s - began_delay_s), longest_s, overtaken, waits, positions)


class _Delays:
    """For how long the threads of this process were ready to go on and had no processor; 0 if the kernel is silent."""

    def __init__(self) -> None:
        tasks = Path("/proc/self/task")
        self._files: Final = [
            os.open(task / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
            for task in (tasks.iterdir() if tasks.exists() else ())
        ]

    def total_s(self) -> float:
        return sum(int(os.pread(file, 200, 0).split()[1]) for file in self._files) / 1e9


async def _look(path: Path, written: Sequence[Written]) -> list[tuple[str, str]]:
    """Make the log if it is not there; return what is wrong with it."""
    async with open_file(path) as log:
        head = (await log.head()).position
        page = await log.check_page(after=0, limit=head + 1)
        flaws = [("I2", str(problem)) for problem in page.problems]
        for number, each in enumerate(written):
            found = [event.position for event in (await log.read_stream(f"s{number}")).events]
            if found != each.positions:
                flaws.append(("I1", f"process {number} was told of {each.count} events; {len(found)} are there"))
        if written and head != sum(each.count for each in written):
            flaws.append(("I2", f"{head} events of {sum(each.count for each in written)} that were acknowledged"))
        return flaws


CAMPAIGN: Final = Campaign(
    name="sharing",
    title="two and four processes write one log as fast as they can",
    promise="each gets its share, and none waits for ever",
    faults=("F22", "F25"),
    invariants=("I1", "I2", "I9"),
    run=run,
    goals={"runs": Goal(2, 8, 3), "transactions": Goal(20, 2_000, 0)},
    controls=(
        Control(
            "no_file_lock",
            "nobody takes the file lock, so that SQLite alone decides who is next",
            (
                Break(
                    "eventlog/stores/sqlite/file_lock.py",
                    "            fcntl.flock(self._fd, fcntl.LOCK_EX)\n",
                    "            pass\n",
                ),
            ),
            shows="I9 .*while one waited",
        ),
    ),
    cores=ALONE,
)

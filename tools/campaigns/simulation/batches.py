"""Many seeds, in real processes that each run a batch of them and end without looking back.

A batch is forked from a warm parent, and ends by `os._exit`: what belongs to simulated processes that have died must
never run, nor may its memory grow for ever. A batch that says nothing for too long is ended, and its seed reported.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, NoReturn

import msgspec

from tools.campaigns.simulation import kernel
from tools.campaigns.simulation.seeds import simulate, warm_up

__all__ = ["SILENT", "Outcome", "run_seeds"]

_BATCH: Final = 250
_LONGEST_SILENCE_S: Final = 60.0
_POLL_S: Final = 5.0

SILENT: Final = "a simulation does not end: nothing was heard of it"


class Outcome(msgspec.Struct):
    """What one seed came to; `told` and `log` only where something is wrong."""

    seed: str
    digest: str = ""
    wrong: list[tuple[str, str]] = []
    counts: dict[str, int] = {}
    told: list[str] = []
    log: list[str] = []


class _Batch:
    """A batch under way in a process of its own."""

    def __init__(self, seeds: Sequence[str], control: str | None) -> None:
        self.left: Final = deque(seeds)
        self._rest = b""
        self.heard_s = time.monotonic()
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reading)
            _run(seeds, control, writing)
        os.close(writing)

    def take(self) -> list[Outcome] | None:
        """Return what it has said since, None if it has ended."""
        data = os.read(self.reading, 1 << 16)
        self.heard_s = time.monotonic()
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        outcomes = [msgspec.json.decode(line, type=Outcome) for line in lines]
        for _ in outcomes:
            self.left.popleft()
        return outcomes

    def end(self) -> None:
        """End it, whatever it does."""
        os.close(self.reading)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def run_seeds(seeds: Iterable[str], *, processes: int, control: str | None = None) -> Generator[Outcome, None, None]:
    """Yield what each seed came to, as it becomes known. Nothing is left behind, however this is ended."""
    warm_up()
    waiting = _batches(seeds)
    running: dict[int, _Batch] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                while len(running) < processes and (batch := next(waiting, None)) is not None:
                    begun = _Batch(batch, control)
                    running[begun.reading] = begun
                    selector.register(begun.reading, selectors.EVENT_READ)
                if not running:
                    return
                for key, _ in selector.select(_POLL_S):
                    outcomes = running[key.fd].take()
                    yield from outcomes or ()
                    if outcomes is None:
                        yield from _ended(running, selector, key.fd, "its process has died")
                now_s = time.monotonic()
                for silent in [fd for fd, each in running.items() if now_s - each.heard_s > _LONGEST_SILENCE_S]:
                    yield from _ended(running, selector, silent, SILENT)
        finally:
            for each in running.values():
                each.end()


def _ended(
    running: dict[int, _Batch], selector: selectors.BaseSelector, descriptor: int, why: str
) -> Iterator[Outcome]:
    """Forget a batch that is over; yield the seed at which it was, if it had not come to its end."""
    batch = running.pop(descriptor)
    selector.unregister(descriptor)
    batch.end()
    if batch.left:
        yield Outcome(batch.left[0], wrong=[("I9", f"{why}; {len(batch.left) - 1} seeds behind it were not run")])


def _batches(seeds: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for seed in seeds:
        batch.append(seed)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _run(seeds: Sequence[str], control: str | None, writing: int) -> NoReturn:
    """Be the process of a batch."""
    try:
        gc.disable()  # whatever is forgotten in the middle would run the rest of itself
        with kernel.simulated():
            for seed in seeds:
                _write(writing, _outcome(seed, control))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _outcome(seed: str, control: str | None) -> Outcome:
    try:
        found = simulate(seed, control)
    except Exception:
        return Outcome(seed, wrong=[("I8", f"the simulation itself was ended by {traceback.format_exc()[-1500:]}")])
    counts: Counter[str] = found.counts
    is_wrong = bool(found.wrong)
    return Outcome(
        seed, found.digest, found.wrong, dict(counts), found.told if is_wrong else [], found.log if is_wrong else []
    )


def _write(descriptor: int, outcome: Outcome) -> None:
    data = memoryview(msgspec.json.encode(outcome) + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]

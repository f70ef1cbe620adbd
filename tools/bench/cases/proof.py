"""Proof: what hashing, the tree, signed heads and the scanner cost an append, in processor time for an event of 1 KiB.

The plain append is the same engine with the leaf, the tree and the scanner taken out of it, for this measurement only:
no other program does the rest in just this way, and the difference is the price of being able to prove anything.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import Any, Final
from unittest import mock

import eventlog
from eventlog import Append, Expect, NewEvent
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.merkle import Frontier
from eventlog.stores import SqliteLog
from eventlog.stores.sqlite import plan, transaction
from tools.bench.cases.case import Case, Place
from tools.bench.rounds import Side

__all__ = ["PRICE", "PROOF"]

PLAIN: Final = "plain append"
HASHED: Final = "with leaf and tree"
SCANNED: Final = "and the scanner"
SIGNED: Final = "and signed heads"
PRICE: Final = "price of it all"

_BODY: Final = {"text": "a log that agents can stand on, " * 32}
_EACH: Final = 1000


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[list[Side]]:
    async with AsyncExitStack() as opened:
        key = str(place.folder_for("keys") / "log.key")
        make_key_file(key)
        options: dict[str, dict[str, Any]] = {
            PLAIN: {"scanner": None},
            HASHED: {"scanner": None},
            SCANNED: {},
            SIGNED: {"signer": LocalSigner(key)},
        }
        logs = {}
        for name, named in options.items():
            path = place.folder_for(name) / "log.db"
            logs[name] = await opened.enter_async_context(eventlog.open(str(path), **named))
        yield [Side(PRICE, partial(_round, logs, max(place.scale.hundred_each, 5)))]


async def _round(logs: Mapping[str, SqliteLog], calls: int) -> Mapping[str, float]:
    found = dict.fromkeys(logs, 0.0)
    for _ in range(calls):
        for name, log in logs.items():
            with _unproved() if name == PLAIN else nullcontext():
                found[name] += await _microseconds(log)
    means = {name: spent / calls for name, spent in found.items()}
    return {**means, PRICE: means[SIGNED] - means[PLAIN]}


async def _microseconds(log: SqliteLog) -> float:
    """Return the processor time of one event, of 1000 in a call, and of the head that is signed behind them."""
    appends = [Append(f"s-{time.monotonic_ns()}", [NewEvent("said", _BODY) for _ in range(_EACH)], Expect.any())]
    began_s = time.process_time()
    await log.append_many(appends)
    await log.sign_head()
    return (time.process_time() - began_s) / _EACH * 1e6


@contextmanager
def _unproved() -> Iterator[None]:
    """Take leaf and tree out of the append."""
    numbers = count(1)

    def no_leaf(*_: object) -> bytes:
        return next(numbers).to_bytes(32, "big")

    def no_tree(*_: object) -> None:
        return None

    def no_frontier(*_: object) -> Frontier:
        return Frontier()

    with (
        mock.patch.object(plan, "seal", no_leaf),
        mock.patch.object(transaction, "write_tree", no_tree),
        mock.patch.object(transaction, "read_frontier", no_frontier),
    ):
        yield


PROOF: Final = Case(
    name="proof",
    what="processor time of an event of 1 KiB, 1000 in a call",
    unit="µs",
    open=_open,
    warm_up=True,
)

"""Makes the golden log of old schemas: what programs of earlier days wrote, and what is read in it for ever.

    python3 tools/golden_schemas.py

writes `tests/golden/schemas.db` and `tests/golden/schemas.json` once; like every golden file they are never made again.
The days are made up, and frozen: on each a program had the event types of that day, and wrote a part of the log.

    day 1   order_made 1, order_changed 1, order_flagged 1; checkpoint_saved 1
    day 2   order_placed 2: renamed from order_made, with a currency; checkpoint_saved 2: `state` is called `status`
    day 3   order_placed 3: `amount` is called `count`, `hint` is gone; order_changed is split into order_moved 1 and
            order_priced 1; order_flagged is retired; checkpoint_saved 3: `worker` is gone, `committed` is new
    today   order_priced 2: in cents
    later   order_placed 4 and checkpoint_saved 4: a program that is newer than today's

`checkpoint_saved` has one schema in this engine so far, the one that is called 3 here: the registries are made for this
log, and stand in for an engine that has had others.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import eventlog
from eventlog.codec import Registry, event, retire, split
from eventlog.events import (
    LOG_EVENTS,
    RUN_EVENTS,
    CheckpointSaved,
    Definition,
    Owner,
    RunClaimed,
    RunEvent,
    Status,
    StepCompleted,
    StepStarted,
    Waiting,
    run_stream,
)
from eventlog.log import Append, EventReader, Expect, NewEvent, RecordedEvent, RunLog
from eventlog.progress import fold_stream
from eventlog.run import Run
from eventlog.testing.clock import FakeClock

__all__ = [
    "FUTURE_RUN",
    "GOLDEN",
    "NEWER",
    "OLD_RUN",
    "TODAY",
    "Orders",
    "describe",
    "fold_orders",
    "fold_run_alike",
    "make",
    "write_in_todays_shapes",
]

GOLDEN: Final = Path(__file__).resolve().parent.parent / "tests" / "golden"
OLD_RUN: Final = "of-three-days"
FUTURE_RUN: Final = "of-a-later-day"
NEWER: Final = "orders-later"
ANY: Final = Expect.any()
OWNER: Final = Owner(host="h" * 64, boot="b" * 64, lock="1" * 32)


# ── the types of today, with everything that old events need ─────────────────────────────────────────────────────────

TODAY: Final = Registry(knows_engine=False)


def _with_currency(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "currency": "EUR"}


def _counted(old: dict[str, Any]) -> dict[str, Any]:
    return {"sku": old["sku"], "count": old["amount"], "currency": old["currency"]}


@event(
    "order_placed",
    schema_version=3,
    upcast={1: _with_currency, 2: _counted},
    renamed_from=("order_made",),
    registry=TODAY,
)
class OrderPlaced(msgspec.Struct, frozen=True):
    sku: str
    count: int
    currency: str


@event("order_moved", registry=TODAY)
class OrderMoved(msgspec.Struct, frozen=True):
    to: str


@event(
    "order_priced",
    schema_version=2,
    upcast={1: lambda old: {"cents": round(old["price"] * 100)}},
    registry=TODAY,
)
class OrderPriced(msgspec.Struct, frozen=True):
    cents: int


@split("order_changed", into=("order_moved", "order_priced"), registry=TODAY)
def _what_changed(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("order_moved", {"to": old["to"]}) if old["to"] is not None else ("order_priced", {"price": old["price"]})


retire("order_flagged", registry=TODAY)


def _status(old: dict[str, Any]) -> dict[str, Any]:
    return {("status" if name == "state" else name): value for name, value in old.items()}


def _without_worker(old: dict[str, Any]) -> dict[str, Any]:
    step = old.pop("done", None)
    del old["worker"]
    return old if step is None else {**old, "committed": [step]}


TODAY.register(CheckpointSaved, "checkpoint_saved", schema_version=3, upcast={1: _status, 2: _without_worker})
for _name, _cls in (*RUN_EVENTS.items(), *LOG_EVENTS.items()):
    if _cls is not CheckpointSaved:
        TODAY.register(_cls, _name)


# ── what was written, day by day ─────────────────────────────────────────────────────────────────────────────────────

_DEFINITION: Final = {"workflow": "fix_incident", "fingerprint": "f" * 64, "version": "2", "steps": ["search"]}
_WAITING: Final = {"type": "timer", "node_id": "sleep", "due_us": 7_000_000}
_STARTED: Final = StepStarted(name="search", key="search", attempt=1)
_FOUND: Final = StepCompleted(name="search", key="search", output=msgspec.Raw(b'"p-9"'), attempt=1, input="i" * 64)
_CLAIMED: Final = RunClaimed(epoch=2, owner=OWNER, deadline_us=60_000_000)

Written = tuple[str, int, Any]
"""The type, the schema version, and the data: as a mapping, or one of the engine's events that has had one shape."""

_ORDERS: Final[tuple[Sequence[Written], ...]] = (
    (
        ("order_made", 1, {"sku": "é-7", "amount": 2, "hint": '{"x": NaN, "y": [Infinity, -Infinity]}'}),
        ("order_changed", 1, {"to": "Köln", "price": None}),
        ("order_flagged", 1, {"flag": "red", "at": [1, 2.5, None]}),
        ("order_changed", 1, {"to": None, "price": 12.5}),
    ),
    (
        ("order_placed", 2, {"sku": "b", "amount": 10**30, "hint": "\0\u2028", "currency": "CHF"}),
        ("order_flagged", 1, {"flag": None}),
    ),
    (
        ("order_placed", 3, {"sku": "c", "count": 1, "currency": "EUR"}),
        ("order_priced", 1, {"price": 0.25}),
        ("order_moved", 1, {"to": "Bonn"}),
    ),
)
_RUN: Final[tuple[Sequence[Written], ...]] = (
    (
        (
            "checkpoint_saved",
            1,
            {"state": "RUNNING", "state_version": 1, "definition": _DEFINITION, "input": ["INC-7", 3], "worker": "w-1"},
        ),
        ("run_claimed", 1, _CLAIMED),
        ("step_started", 1, _STARTED),
        ("step_completed", 1, _FOUND),
    ),
    (("checkpoint_saved", 2, {"status": "RUNNING", "state_version": 2, "worker": "w-2", "done": "search"}),),
    (("checkpoint_saved", 3, {"status": "WAITING", "state_version": 3, "waiting": _WAITING}),),
)


async def make(path: Path) -> dict[str, Any]:
    """Write the log with its fixed content to `path` and return what is read in it today."""
    clock = FakeClock()
    for orders, run in zip(_ORDERS, _RUN, strict=True):  # what the program of a day knows is what it writes
        async with eventlog.open(path, actor="service:orders", registry=_plain(), clock=clock) as log:
            clock.advance(86_400)
            await log.append("orders", [_new(*each) for each in orders], expect=ANY)
            await log.append_reserved([Append(run_stream(OLD_RUN), [_new(*each) for each in run], ANY)])
    async with eventlog.open(path, actor="service:orders", registry=_plain(), clock=clock) as log:
        await _write_later(log)
    async with eventlog.open(path, registry=TODAY, is_read_only=True) as reading:
        return await describe(reading)


async def _write_later(log: RunLog) -> None:
    await log.append(NEWER, [_new("order_placed", 4, {"lines": [{"sku": "d"}]})], expect=ANY)
    begun = ("checkpoint_saved", 3, {"status": "RUNNING", "state_version": 1, "definition": _DEFINITION, "input": []})
    later = ("checkpoint_saved", 4, {"phase": "RUNNING"})
    await log.append_reserved([Append(run_stream(FUTURE_RUN), [_new(*begun), _new(*later)], ANY)])


def _plain() -> Registry:
    return Registry(knows_engine=False)


def _new(type_name: str, schema_version: int, data: Any) -> NewEvent:
    if isinstance(data, msgspec.Struct):
        data = msgspec.json.decode(msgspec.json.encode(data))
    return NewEvent(type_name, data, schema_version=schema_version)


async def write_in_todays_shapes(log: RunLog) -> None:
    """Write what the old days come to as today's program writes it: the same facts, in the shapes of today."""
    orders = [
        OrderPlaced("é-7", 2, "EUR"),
        OrderMoved("Köln"),
        OrderPriced(1250),
        OrderPlaced("b", 10**30, "CHF"),
        OrderPlaced("c", 1, "EUR"),
        OrderPriced(25),
        OrderMoved("Bonn"),
    ]
    await log.append("orders", orders, expect=ANY)
    definition = Definition(workflow="fix_incident", fingerprint="f" * 64, version="2", steps=("search",))
    run: list[RunEvent] = [
        CheckpointSaved(
            status=Status.RUNNING, state_version=1, definition=definition, input=msgspec.Raw(b'["INC-7",3]')
        ),
        _CLAIMED,
        _STARTED,
        _FOUND,
        CheckpointSaved(status=Status.RUNNING, state_version=2, committed=("search",)),
        CheckpointSaved(
            status=Status.WAITING, state_version=3, waiting=Waiting(type="timer", node_id="sleep", due_us=7_000_000)
        ),
    ]
    await log.append_reserved([Append(run_stream(OLD_RUN), run, ANY)])


# ── reading it ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Orders(msgspec.Struct, frozen=True):
    """What the stream `orders` adds up to."""

    placed: tuple[OrderPlaced, ...] = ()
    places: tuple[str, ...] = ()
    cents: int = 0


def _evolve(orders: Orders, recorded: RecordedEvent) -> Orders:
    match recorded.data:
        case OrderPlaced() as placed:
            return msgspec.structs.replace(orders, placed=(*orders.placed, placed))
        case OrderMoved(to=to):
            return msgspec.structs.replace(orders, places=(*orders.places, to))
        case OrderPriced(cents=cents):
            return msgspec.structs.replace(orders, cents=orders.cents + cents)
        case _:
            raise AssertionError(f"a fold of its own stream knows what comes: {recorded.type}")


async def fold_orders(log: EventReader) -> Orders:
    """Return what the stream `orders` adds up to."""
    orders, _ = await eventlog.fold(log, "orders", Orders, _evolve)
    return orders


async def fold_run_alike(log: EventReader, run_id: str) -> Run:
    """Return the state of a run as if each event had been recorded at the time of its version, by nobody."""
    events = (await log.read_stream(run_stream(run_id))).events
    alike = [msgspec.structs.replace(each, recorded_at_us=each.version, actor="") for each in events]
    return fold_stream(run_id, alike)


async def describe(log: EventReader) -> dict[str, Any]:
    """Return what a log holds as plain data: its events as they are read and as they are stored, and the folds."""
    return {
        "events": [_event(recorded) async for recorded in log.read_all()],
        "orders": _plain_data(await fold_orders(log)),
        "run": _plain_data(await fold_run_alike(log, OLD_RUN)),
    }


def _event(recorded: RecordedEvent) -> Mapping[str, Any]:
    return {
        "position": recorded.position,
        "stream": recorded.stream,
        "type": recorded.type,
        "stored_type": recorded.stored_type,
        "schema_version": recorded.schema_version,
        "is_known": recorded.is_known,
        "data": _plain_data(recorded.data),
        "body": recorded.body.decode(),
        "leaf": recorded.leaf.hex(),
    }


def _plain_data(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def main() -> int:
    """Make the golden files, unless they are there."""
    database, expected = GOLDEN / "schemas.db", GOLDEN / "schemas.json"
    for path in (database, expected):
        if path.exists():
            print(f"{path} is there already; a golden file is never made again.", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "log.db"
        description = asyncio.run(make(made))
        shutil.copyfile(made, database)
    text = json.dumps(description, indent=1, ensure_ascii=False, sort_keys=True)
    expected.write_text(text + "\n", encoding="utf-8")
    print(f"made {database} and {expected}: {len(description['events'])} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())

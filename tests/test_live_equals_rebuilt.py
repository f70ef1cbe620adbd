"""Whatever was written, by whichever program: a view that was kept is the one that is built from the whole log."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventlog import Expect
from eventlog.codec import Registry
from eventlog.stores import SqliteLog
from eventlog.views import ViewEvent
from projections import (
    GroupProjection,
    Key,
    MemoryView,
    ProjectionRunner,
    Row,
    RowProjection,
    SqliteView,
    ViewFile,
    check_view,
    rebuild_view,
)
from tools.campaigns.storage.log_files import open_file

# ── two programs, of which the second has renamed, split, retired and reshaped what the first wrote ──────────────────


class Stocked(msgspec.Struct, frozen=True):
    """So many pieces came in; the first program wrote them as text."""

    item: str
    pieces: str


class Changed(msgspec.Struct, frozen=True):
    """Something about an item changed: its price, or where it lies."""

    item: str
    price: int | None = None
    place: str | None = None


class Flagged(msgspec.Struct, frozen=True):
    """Nobody knows any more what this was for."""

    item: str


class Received(msgspec.Struct, frozen=True):
    """What `Stocked` is called today."""

    item: str
    pieces: int
    supplier: str


class Priced(msgspec.Struct, frozen=True):
    """An item has a price."""

    item: str
    price: int


class Moved(msgspec.Struct, frozen=True):
    """An item lies somewhere else."""

    item: str
    place: str


def first_program() -> Registry:
    """Return the types as they were."""
    registry = Registry()
    registry.register(Stocked, "test_stocked")
    registry.register(Changed, "test_changed")
    registry.register(Flagged, "test_flagged")
    return registry


def second_program() -> Registry:
    """Return the types as they are."""
    registry = Registry()
    registry.register(
        Received,
        "test_received",
        schema_version=3,
        upcast={1: _with_number, 2: _with_supplier},
        renamed_from=("test_stocked",),
    )
    registry.register(Priced, "test_priced")
    registry.register(Moved, "test_moved")
    registry.split(_decide, "test_changed", into=("test_priced", "test_moved"))
    registry.retire("test_flagged")
    return registry


def _with_number(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "pieces": int(data["pieces"])}


def _with_supplier(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "supplier": "unknown"}


def _decide(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if data.get("price") is not None:
        return "test_priced", {"item": data["item"], "price": data["price"]}
    return "test_moved", {"item": data["item"], "place": data.get("place") or "nowhere"}


# ── the views ────────────────────────────────────────────────────────────────────────────────────────────────────────


class OnlyPieces(msgspec.Struct):
    """What the stock needs of a receipt."""

    item: str
    pieces: int


class Stock(RowProjection):
    """How much there is of each item, and its price; items without pieces have no row."""

    name = "stock"
    columns = {"item": "TEXT PRIMARY KEY", "pieces": "INTEGER NOT NULL", "price": "INTEGER", "at": "INTEGER NOT NULL"}
    event_types = {"test_received": OnlyPieces, "test_priced": Priced}
    stream_prefix = "store-"

    def key(self, event: ViewEvent) -> Key:
        """Return the item."""
        return str(event.data.item)

    def apply(self, row: Row | None, event: ViewEvent) -> Row | None:
        """Count, or note the price of what is there."""
        if isinstance(event.data, Priced):
            return row and {**row, "price": event.data.price, "at": event.position}
        before = row or {"item": event.data.item, "pieces": 0, "price": None}
        pieces = before["pieces"] + event.data.pieces
        return {**before, "pieces": pieces, "at": event.position} if pieces else None


class Places(GroupProjection):
    """Where the items of each stream lie: one row a place; the last to lie there is marked."""

    name = "places"
    columns = {"stream": "TEXT", "place": "TEXT", "items": "INTEGER NOT NULL", "is_last": "INTEGER NOT NULL"}
    event_types = frozenset({"test_moved"})

    def group(self, event: ViewEvent) -> str:
        """Return the stream."""
        return event.stream

    def apply(self, rows: Mapping[Key, Row], event: ViewEvent) -> Iterable[Row]:
        """Count it here, and unmark the others."""
        key = (event.stream, event.data.place)
        here = rows.get(key) or {"stream": event.stream, "place": event.data.place, "items": 0}
        yield {**here, "items": here["items"] + 1, "is_last": 1}
        for other, row in rows.items():
            if other != key and row["is_last"]:
                yield {**row, "is_last": 0}


# ── histories ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Written(NamedTuple):
    """What one program appends to one stream at once."""

    is_first: bool
    stream: str
    events: list[Any]


items = st.sampled_from("abc")
streams = st.sampled_from(["store-1", "store-2", "elsewhere"])
old_events = (
    st.builds(Stocked, items, st.integers(-2, 2).map(str))
    | st.builds(Changed, items, st.none() | st.integers(0, 9), st.none() | st.sampled_from(["cellar", "shelf"]))
    | st.builds(Flagged, items)
)
new_events = (
    st.builds(Received, items, st.integers(-2, 2), st.just("us"))
    | st.builds(Priced, items, st.integers(0, 9))
    | st.builds(Moved, items, st.sampled_from(["cellar", "shelf", "yard"]))
)
histories = st.lists(
    st.builds(Written, st.just(True), streams, st.lists(old_events, min_size=1, max_size=8))
    | st.builds(Written, st.just(False), streams, st.lists(new_events, min_size=1, max_size=8)),
    max_size=8,
)


def views() -> list[SqliteView]:
    return [SqliteView(Stock()), SqliteView(Places())]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(history=histories)
def test_a_kept_view_is_the_one_built_from_the_whole_log(history: list[Written]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_compare(Path(folder), history))


async def _compare(folder: Path, history: list[Written]) -> None:
    path, beside = folder / "log.db", folder / "views.db"
    memory = [MemoryView(Stock()), MemoryView(Places())]
    async with open_file(path, registry=second_program(), views=views()) as log:
        async with ProjectionRunner(log, views(), into=beside) as runner, ProjectionRunner(log, memory) as in_memory:
            for written in history:
                await _write(path, log, written)
            position = (await log.head()).position
            for name in ("stock", "places"):
                await runner.wait_for(name, position, timeout_s=30)
                await in_memory.wait_for(name, position, timeout_s=30)
        for view, kept in zip(views(), memory, strict=True):
            await _assert_all_the_same(log, view, kept, beside)


async def _write(path: Path, log: SqliteLog, written: Written) -> None:
    if not written.is_first:
        await log.append(written.stream, written.events, expect=Expect.any())
        return
    async with open_file(path, registry=first_program()) as old:  # which knows nothing of the views
        await old.append(written.stream, written.events, expect=Expect.any())


async def _assert_all_the_same(log: SqliteLog, view: SqliteView, kept: MemoryView, beside: Path) -> None:
    inline = await log.read_view(view.rows, None, 1000)
    assert inline == sorted(kept, key=lambda row: tuple(row[name] for name in view.key_columns))
    checked = await check_view(log, view)
    assert checked is not None
    assert (checked.position, checked.differences) == (checked.head, [])
    async with ViewFile(beside, log) as place:
        followed = await check_view(log, view, place=place)
        assert followed is not None
        assert (followed.position, followed.differences, followed.rows) == (checked.head, [], checked.rows)
    await rebuild_view(log, view)
    assert await log.look(view.rows, None, 1000) == inline


async def test_a_view_that_misses_what_another_program_wrote_would_be_found(tmp_path: Path) -> None:
    """The negative control: a type filter that does not know the old names."""
    path = tmp_path / "log.db"
    async with open_file(path, registry=first_program()) as old:
        await old.append("store-1", [Stocked("a", "2")], expect=Expect.any())
    forgetful = second_program()
    object.__setattr__(forgetful, "stored_names", frozenset)
    async with open_file(path, registry=forgetful, views=views()) as log:
        assert await log.read_view(views()[0].rows, None, 10) == []
    async with open_file(path, registry=second_program(), views=views()) as log:
        checked = await check_view(log, views()[0])
        assert checked is not None
        assert [difference.key for difference in checked.differences] == ["a"]


@pytest.mark.parametrize("view", views(), ids=lambda view: view.name)
async def test_an_event_of_a_later_program_stops_a_view_instead_of_being_left_out(
    tmp_path: Path, view: SqliteView
) -> None:
    path = tmp_path / "log.db"
    later = Registry()
    later.register(Received, "test_received", schema_version=9, upcast=dict.fromkeys(range(1, 9), dict))
    later.register(Moved, "test_moved", schema_version=2, upcast={1: dict})
    async with open_file(path, registry=later) as log:
        await log.append("store-1", [Received("a", 1, "us"), Moved("a", "yard")], expect=Expect.any())
    async with open_file(path, registry=second_program(), views=[view]) as log:
        health = await log.health()
        assert health.views_behind == {f"{view.name}/1": 2 if view.name == "stock" else 1}

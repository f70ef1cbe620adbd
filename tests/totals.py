"""A user's projection for the tests, in two revisions, and the events that it is folded from."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

import eventlog
from eventlog.views import ViewEvent
from projections import Row, RowProjection

__all__ = ["Narrow", "OrderPlaced", "Totals", "TotalsOfAmounts", "dump", "orders"]


@eventlog.event("test_order_placed")
class OrderPlaced(msgspec.Struct, frozen=True):
    """A customer has ordered for so much."""

    customer: str
    amount: int
    note: str = ""


class Narrow(msgspec.Struct):
    """What the totals need of it."""

    customer: str
    amount: int


class Totals(RowProjection):
    """How often each customer has ordered."""

    name = "totals"
    revision = 1
    columns = {"customer": "TEXT PRIMARY KEY", "orders": "INTEGER NOT NULL"}
    event_types = frozenset({"test_order_placed"})

    def key(self, event: ViewEvent) -> str:
        """Return the customer."""
        customer: str = event.data.customer
        return customer

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Count the order."""
        return {"customer": event.data.customer, "orders": (row["orders"] if row else 0) + 1}

    @staticmethod
    def merge(earlier: Row, later: Row) -> Row:
        """Add up."""
        return {**later, "orders": earlier["orders"] + later["orders"]}


class TotalsOfAmounts(Totals):
    """And for how much."""

    revision = 2
    columns = {**Totals.columns, "amount": "INTEGER NOT NULL"}
    event_types = {"test_order_placed": Narrow}  # type: ignore[assignment]

    def apply(self, row: Row | None, event: ViewEvent) -> Row:
        """Count the order and its amount."""
        return {**super().apply(row, event), "amount": (row["amount"] if row else 0) + event.data.amount}

    @staticmethod
    def merge(earlier: Row, later: Row) -> Row:
        """Add up."""
        return {**Totals.merge(earlier, later), "amount": earlier["amount"] + later["amount"]}


def orders(first: int, count: int, *, customers: int = 50) -> list[OrderPlaced]:
    """Return `count` orders from the number `first` on, of customers in turn."""
    return [OrderPlaced(f"customer-{number % customers}", number) for number in range(first, first + count)]


def dump(connection: sqlite3.Connection, table: str = "totals") -> list[tuple[Any, ...]]:
    """Return all rows of a table in the order of their keys, with the types of their values."""
    rows = connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
    return [(*row, *map(type, row)) for row in rows]

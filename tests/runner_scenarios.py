"""What one of several processes that keep the same view, or run the same consumer, does."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from eventlog.log import RecordedEvent
from projections import Consumer, ProjectionRunner, SqliteView
from tests.totals import Totals
from tools.campaigns.storage.log_files import open_file


async def keeps_a_view(path: str, into: str = "") -> None:
    """Keep the view until killed, or until told to stop."""
    async with (
        open_file(path, busy_timeout_s=30) as log,
        ProjectionRunner(log, [SqliteView(Totals())], into=into or None),
    ):
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


def write_letter(connection: Any, event: RecordedEvent) -> None:
    """Write one letter an order, in the consumer's transaction. The position is no key: twice would be seen."""
    connection.execute("INSERT INTO letters (position, customer) VALUES (?, ?)", (event.position, event.data.customer))


async def consumes(path: str, into: str = "") -> None:
    """Run the consumer until killed."""
    async with open_file(path, busy_timeout_s=30) as log:
        consumer = Consumer(log, "letters", write_letter, into=into or None, types=["test_order_placed"])
        print("READY", flush=True)
        await consumer.run()

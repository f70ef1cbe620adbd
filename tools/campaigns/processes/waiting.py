"""Waiting for what another thread or process does, where nothing tells us when it is done."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

__all__ = ["until"]


async def until(is_true: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 5) -> None:
    """Ask `is_true()` again and again until it is; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not await _answer(is_true()):  # noqa: ASYNC110  (nobody would set an event, as said above)
            await asyncio.sleep(0.005)


async def _answer(answer: bool | Awaitable[bool]) -> bool:
    return await answer if inspect.isawaitable(answer) else bool(answer)

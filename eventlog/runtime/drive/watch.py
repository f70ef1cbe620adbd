"""Keeps hold of a run while it is driven: renews its claim, and looks at what others have done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from eventlog.errors import EventLogError
from eventlog.events import ClaimRenewed
from eventlog.runtime.session import Session
from eventlog.stores.telemetry import logger

__all__ = ["watch"]

_MICRO: Final = 1_000_000
_WATCH_S: Final = 2.0
_WATCHED: Final = 100
"""How many runs can be looked at so often without being felt."""


async def watch(
    session: Session, *, lease_s: float, company: Callable[[], int] | None, is_over: Callable[[], bool]
) -> None:
    """Renew the claim long before it ends, and see what others do to the run, until `is_over`.

    `company` says how many runs are watched here; None if somebody tells the drive what others do to its run.
    """
    renew_s = lease_s / 3
    waited_s = 0.0
    while True:
        nap_s = renew_s if company is None else min(renew_s, _WATCH_S * max(1.0, company() / _WATCHED))
        await asyncio.sleep(nap_s)
        waited_s += nap_s
        if is_over():
            return
        if waited_s >= renew_s:
            waited_s = 0.0
            until_us = session.now_us() + round(lease_s * _MICRO)
            try:
                await session.add(ClaimRenewed(epoch=session.epoch, deadline_us=until_us))
            except EventLogError as error:
                logger.warning("claim_not_renewed", run_id=session.run.run_id, code=error.code)
        else:
            await session.catch_up()

"""`eventlog approvals wait`: until somebody has decided."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import click

from eventlog.cli.commands import Command
from eventlog.cli.elsewhere import decide_there, refuse_where_others_ask
from eventlog.cli.failures import StillWaiting
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card
from eventlog.cli.record import decider_of, decision_of
from eventlog.cli.request_card import card_of_request, choose
from eventlog.cli.wiring import Opened, complete, open_existing, read_run
from eventlog.cli.workflow_state import terms_of
from eventlog.decide import is_pending
from eventlog.errors import StoreUnavailable
from eventlog.events import run_stream
from eventlog.progress import requests_of
from eventlog.run import Run
from projections import wanted_requests

__all__ = ["duration_s", "wait"]

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h|d|)")
_MICRO: Final = 1_000_000


def duration_s(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Return the seconds that a text as `30m` names: a number and s, m, h or d; without one, seconds."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no duration like 90, 90s, 30m, 2h or 1d.", context, option)
    return float(found[1]) * _UNITS[found[2]]


@click.command("wait", cls=Command)
@click.option("--request", "request_id", metavar="ID", help="Only for this one, where a run has several.")
@click.option("--timeout", "timeout_s", metavar="TIME", callback=duration_s, help="Give up after this, as 30m.")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def wait(options: Options, run_id: str, request_id: str | None, timeout_s: float | None) -> None:
    """Wait until no request of a run waits for a decision any more, and print what was decided.

    Exit status 5 if that is not so within the time-out. A request whose own time runs out meanwhile has expired.
    """
    complete(options, _wait(options, run_id, request_id, timeout_s))


async def _wait(options: Options, run_id: str, request_id: str | None, timeout_s: float | None) -> None:
    async with open_existing(options, run_id, only_reads=True) as opened:
        run, _ = await read_run(opened.log, run_id)
        if request_id is None:
            places = await refuse_where_others_ask(opened.log, run)
            if places:
                note(options, decide_there(places))
        if not any(_is_meant(request, request_id) for request in requests_of(run)):
            choose(run, request_id)  # refuses what there is not
        try:
            if _pending(run, request_id):
                async with asyncio.timeout(timeout_s):
                    run = await _until_decided(opened, run, request_id)
        except TimeoutError:
            run, _ = await read_run(opened.log, run_id)
            waiting = [request.request_id for request in _pending(run, request_id)]
            why = f"run {run_id!r} still waits for a decision after {timeout_s:g} s"
            raise StillWaiting(why, run_id=run_id, requests=waiting) from None
    _show(options, run, request_id)


async def _until_decided(opened: Opened, run: Run, request_id: str | None) -> Run:
    """Read on as events come; return the run as soon as nothing of it waits for a decision."""
    stream = run_stream(run.run_id)
    after = (await opened.log.head()).position
    run, _ = await read_run(opened.log, run.run_id)  # what came between is in it
    feed: AsyncGenerator[Any, None] = opened.log.subscribe(after=after, stream_prefix=stream)
    async with aclosing(feed):
        following = asyncio.create_task(anext(feed))
        try:
            while _pending(run, request_id):
                done, _ = await asyncio.wait({following}, timeout=_left_s(run, request_id))
                if done:
                    is_its_own = following.result().stream == stream
                    following = asyncio.create_task(anext(feed))
                    if not is_its_own:
                        continue
                elif not await _has_recorded_end(opened, run):
                    return run
                run, _ = await read_run(opened.log, run.run_id)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return run


def _left_s(run: Run, request_id: str | None) -> float | None:
    """Return how long it is until the first of the requests expires; None if none ever does."""
    ends = [request.expires_at_us for request in _pending(run, request_id) if request.expires_at_us is not None]
    return max(0.0, min(ends) / _MICRO - time.time()) if ends else None


async def _has_recorded_end(opened: Opened, run: Run) -> bool:
    """Record what has expired; False where the log cannot be written, and somebody else has to."""
    try:
        await opened.runner.expire(run.run_id)
    except StoreUnavailable:
        return False
    return True


def _pending(run: Run, request_id: str | None) -> list[Run]:
    """Return the requests that wait; of one that is named, it or what an edit has put in its place."""
    return [each for each in wanted_requests(run) if is_pending(each) and _is_meant(each, request_id)]


def _is_meant(request: Run, request_id: str | None) -> bool:
    return request_id is None or request_id in (request.request_id, *request.superseded)


def _show(options: Options, run: Run, request_id: str | None) -> None:
    """Show what became of the request that was waited for, or of all that the run has."""
    decided = [_decided(request) for request in requests_of(run) if _is_meant(request, request_id)]
    card = {"run_id": run.run_id, "status": run.status.value}
    lines = [
        f"{each['request_id']}  {each['status']}  {decider_of(each)}  {each['decision_reason'] or ''}".rstrip()
        for each in decided
    ]
    show_card(options, card, document=card | {"requests": decided}, extra=lines)


def _decided(request: Run) -> dict[str, Any]:
    asked = card_of_request(request)
    names = ("request_id", "step", "action", "output", "proposal_hash", "status", "approval")
    return {**{name: asked[name] for name in names}, **decision_of(request), **terms_of(request)}

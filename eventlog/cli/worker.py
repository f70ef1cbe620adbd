"""`eventlog worker`: a process that drives the workflow runs of a log as they can go on."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click

from eventlog.cli.commands import Command
from eventlog.cli.imported import printing_elsewhere
from eventlog.cli.options import Options
from eventlog.cli.output import note
from eventlog.cli.wiring import complete, open_log
from eventlog.runtime.worker import Worker

__all__ = ["worker"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_TOLD: Final = ("run_picked_up", "run_left", "run_not_driven", "run_failed_to_drive")


@click.command("worker", cls=Command)
@click.option("--concurrency", type=click.IntRange(min=1), default=20, show_default=True, help="Runs at the same time.")
@click.option("--until-idle", is_flag=True, help="End when nothing is left that can go on by now.")
@click.pass_obj
def worker(options: Options, concurrency: int, until_idle: bool) -> None:
    """Drive the workflow runs of the log whose decision, signal or timer has come, until it is stopped.

    Any number of workers may share a log. SIGINT and SIGTERM give every run free at its next boundary, and end with
    status 0; a second one ends at once, and the runs go on elsewhere. A line to standard error says which run was
    picked up and which was left (-q: none).
    """
    if options.app is None:
        raise click.UsageError("A worker needs your workflows: --app MODULE:RUNNER (or EVENTLOG_APP).")
    complete(options, _work(options, concurrency, until_idle))


async def _work(options: Options, concurrency: int, until_idle: bool) -> None:
    async with open_log(options) as opened:
        found = Worker(opened.runner, max_concurrent=concurrency)
        with _told(options), _stopped_by_signals(found), printing_elsewhere():
            await found.run(until_idle=until_idle)


@contextmanager
def _stopped_by_signals(found: Worker) -> Iterator[None]:
    """Stop gracefully at the first signal. At the second the process ends as if nobody had caught it."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        found.stop()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        for each in _SIGNALS:
            with suppress(ValueError):
                loop.remove_signal_handler(each)


@contextmanager
def _told(options: Options) -> Iterator[None]:
    """Write the engine's lines about runs that are picked up and left to standard error."""
    if options.is_quiet or options.verbosity:  # with -v every line of the engine is there
        yield
        return
    handler = _Lines(options)
    engine = logging.getLogger("eventlog")
    before = engine.level
    engine.addHandler(handler)
    engine.setLevel(logging.INFO)
    try:
        yield
    finally:
        engine.removeHandler(handler)
        engine.setLevel(before)


class _Lines(logging.Handler):
    """Tells the lines about runs."""

    def __init__(self, options: Options) -> None:
        super().__init__(logging.INFO)
        self._options: Final = options

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, if it is one about a run."""
        text = record.getMessage()
        if text.startswith(_TOLD):
            note(self._options, text)

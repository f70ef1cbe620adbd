"""`eventlog approvals review`: the inbox in the terminal, one request after the other.

What is approved is what was shown: the hash goes back that stood on the screen, and the request that it belonged to. If
either has changed meanwhile the decision is refused, and the next is shown. There is no "approve all".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from eventlog.cli.commands import Command
from eventlog.cli.failures import label_of
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card, write_error_text, write_line
from eventlog.cli.request_card import lines_of_request, whole_request
from eventlog.cli.runs import all_rows
from eventlog.cli.text import visible
from eventlog.cli.wiring import Opened, complete, open_log, read_run
from eventlog.decide import is_pending
from eventlog.errors import Conflict, InvalidInput, Refused
from eventlog.log import RecordedEvent
from eventlog.run import Run
from projections import wanted_requests

__all__ = ["review"]

_WORDS: Final = {
    "a": "approve",
    "approve": "approve",
    "r": "reject",
    "reject": "reject",
    "s": "skip",
    "skip": "skip",
    "q": "quit",
    "quit": "quit",
}


@click.command("review", cls=Command)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role that you bring; repeatable.")
@click.pass_obj
def review(options: Options, roles: tuple[str, ...]) -> None:
    """Go through the requests that wait for a decision: each is shown whole, and then you are asked.

    Answer approve, reject, skip or quit, or with the first letter. Nothing is decided by pressing Enter.
    """
    if not options.may_ask:
        raise click.UsageError("review asks on a terminal; use `approvals list`, and approve or reject, elsewhere.")
    complete(options, _review(options, roles))


async def _review(options: Options, roles: Sequence[str]) -> None:
    async with open_log(options) as opened:
        asking = [row["run_id"] async for row in all_rows(options, opened) if row["asks"]]
        decided = skipped = 0
        seen: set[str | None] = set()
        for run_id in asking:
            while (found := await _next_request(opened, run_id, seen)) is not None:
                answer = await _ask_about(options, opened, *found, roles)
                if answer == "quit":
                    return
                decided += answer == "decided"
                skipped += answer == "skip"
    note(options, f"{decided} decided, {skipped} skipped" if decided or skipped else "nothing waits for a decision")


async def _next_request(
    opened: Opened, run_id: str, seen: set[str | None]
) -> tuple[Run, Run, Sequence[RecordedEvent]] | None:
    """Return the run, its oldest request that waits and was not shown yet, and the events."""
    run, events = await read_run(opened.log, run_id)
    for request in wanted_requests(run):
        if is_pending(request) and request.request_id not in seen:
            seen.add(request.request_id)
            return run, request, events
    return None


async def _ask_about(
    options: Options, opened: Opened, run: Run, request: Run, events: Sequence[RecordedEvent], roles: Sequence[str]
) -> str:
    """Show a request whole, ask, and carry out the answer; return what became of it."""
    card, document = whole_request(options.db, run, request, events)
    shown_hash = str(document["proposal_hash"])
    show_card(options, card, document=document, extra=lines_of_request(document))
    answer = _WORDS.get(_asked("approve, reject, skip or quit? ").lower())
    while answer is None:
        answer = _WORDS.get(_asked("please say approve, reject, skip or quit: ").lower())
    if answer in ("skip", "quit"):
        return answer
    reason = _asked("reason (may be empty): ") or None
    command = opened.runner.approve if answer == "approve" else opened.runner.reject
    try:
        await command(run.run_id, shown_hash, request=request.request_id, reason=reason, roles=tuple(roles))
    except (Refused, Conflict, InvalidInput) as error:
        write_error_text(f"error[{visible(label_of(error))}]: {visible(str(error))}")
        return "refused"
    write_line(f"{answer}  {run.run_id}  {request.request_id}  {shown_hash}")
    return "decided"


def _asked(question: str) -> str:
    """Ask on the terminal; the end of the input is quit."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else "quit"

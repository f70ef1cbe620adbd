"""`eventlog explain`: what each code means, and what to do."""

from __future__ import annotations

from difflib import get_close_matches

import click

from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, show_rows
from eventlog.errors import CODES

__all__ = ["explain"]


@click.command("explain", cls=Command)
@click.argument("code", required=False)
@click.pass_obj
def explain(options: Options, code: str | None) -> None:
    """Say what a code means and what to do. Without CODE, list all.

    CODE is given as it was printed, with or without what follows the colon.
    """
    if code is None:
        rows = [_card(each) for each in sorted(CODES)]
        show_rows(options, "codes", rows, {"code": "code", "meaning": "meaning"}, total=len(rows))
        return
    name = code.partition(":")[0]
    if name not in CODES:
        raise click.UsageError(f"There is no code {name!r}.{_suggestion(name)}")
    show_card(options, _card(name))


def _card(code: str) -> dict[str, str]:
    return {"code": code, "meaning": CODES[code].meaning, "hint": CODES[code].hint}


def _suggestion(name: str) -> str:
    near = get_close_matches(name, CODES, n=1)
    return f" Did you mean {near[0]}?" if near else " `eventlog explain` lists all; any other is an action's own."

"""`eventlog diagram`: a run as a picture, spelled as text."""

from __future__ import annotations

import click

from eventlog.audit.diagrams import dot_diagram, mermaid_diagram, moments_of
from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import write_document, write_text
from eventlog.cli.wiring import complete, open_to_look
from eventlog.decide import check_run_id, require_run
from eventlog.events import run_stream
from eventlog.run import Run

__all__ = ["diagram"]


@click.command("diagram", cls=Command)
@click.argument("run_id", metavar="RUN")
@click.option(
    "--as",
    "language",
    type=click.Choice(["mermaid", "dot"]),
    default="mermaid",
    show_default=True,
    help="For Mermaid (a sequence diagram) or Graphviz (a flow of events).",
)
@click.pass_obj
def diagram(options: Options, run_id: str, language: str) -> None:
    """Print a run as a picture, as text: requests, decisions, effects, refusals, steps and the runs that belong to it.

    With --json an object whose "text" that is. Long texts are cut, which is said; ids and hashes are whole.
    """
    complete(options, _diagram(options, check_run_id(run_id), language))


async def _diagram(options: Options, run_id: str, language: str) -> None:
    async with open_to_look(options) as opened:
        stream = await opened.log.read_stream(run_stream(run_id))
    require_run(Run(run_id=run_id, version=stream.version))
    moments = list(moments_of(run_id, stream.events))
    text = mermaid_diagram(moments) if language == "mermaid" else dot_diagram(run_id, moments)
    if options.is_json:
        write_document({"run_id": run_id, "as": language, "version": stream.version, "text": text})
    else:
        write_text(text)

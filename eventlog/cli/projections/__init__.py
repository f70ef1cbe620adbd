"""`eventlog projections`: the views of a log, how they are, and how they are built again and proved."""

from __future__ import annotations

import click

from eventlog.cli.projections.check import check
from eventlog.cli.projections.command import ViewGroup
from eventlog.cli.projections.drop import drop
from eventlog.cli.projections.rebuild import rebuild
from eventlog.cli.projections.resume import resume
from eventlog.cli.projections.status import list_views, status

__all__ = ["projections"]


@click.group("projections", cls=ViewGroup)
def projections() -> None:
    """The views of the log: list, status; rebuild, check, resume, drop."""


for _command in (list_views, status, rebuild, check, resume, drop):
    projections.add_command(_command)

"""What the commands about views have in common: the options that name the caller's projections, and where views lie."""

from __future__ import annotations

from typing import Any

import click

from eventlog.cli.commands import Command, Group
from eventlog.cli.options import into_option, projections_option

__all__ = ["PlacedViewCommand", "ViewCommand", "ViewGroup"]


class ViewCommand(Command):
    """A command about views."""

    def _own_options(self) -> list[click.Parameter]:
        return [projections_option(), *super()._own_options()]


class PlacedViewCommand(ViewCommand):
    """A command about views that may lie in a database of their own."""

    def _own_options(self) -> list[click.Parameter]:
        return [into_option(), *super()._own_options()]


class ViewGroup(Group):
    """The group of the commands about views; the options may stand in front of the command as well."""

    command_class = PlacedViewCommand

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params[:0] = [projections_option(), into_option()]

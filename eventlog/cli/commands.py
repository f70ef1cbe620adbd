"""What commands and groups have in common: the shared options, text that is text, and loading when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from eventlog.cli.options import Options, common_options, output_option, projections_option
from eventlog.errors import InvalidInput

__all__ = ["Command", "Group", "LazyGroup", "Place", "SeedCommand", "TargetCommand", "TypedCommand"]


class Command(click.Command):
    """A command that takes the common options behind its name and refuses arguments that are not UTF-8."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.extend(self._own_options())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        options = ctx.find_object(Options)
        assert options is not None, "the root context holds the options"
        _check_texts(options)
        return super().invoke(ctx)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return `--help`, which writes as everything else does."""
        return _written_by_us(super().get_help_option(ctx))

    def _own_options(self) -> list[click.Parameter]:
        return common_options()


class TypedCommand(Command):
    """A command that shows events in the shapes of the caller's own types, which `--projections` may name as well."""

    def _own_options(self) -> list[click.Parameter]:
        return [projections_option("Your own projections, for their event types alone."), *super()._own_options()]


class SeedCommand(Command):
    """One of the five commands whose output is frozen. They take `--output` as well, though not all look at it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; from here on, whatever goes wrong is one JSON object on standard output."""
        ctx.ensure_object(Options).is_seed = True
        return super().invoke(ctx)

    def _own_options(self) -> list[click.Parameter]:
        return [output_option("Accepted for symmetry; only start and resume look at it."), *common_options()]


class TargetCommand(SeedCommand):
    """One of the frozen commands that look at `--output`."""

    def _own_options(self) -> list[click.Parameter]:
        return [output_option(), *common_options()]


class Group(click.Group):
    """A group of commands, which takes the common options as well."""

    command_class = Command

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.extend(common_options())

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return `--help`, which writes as everything else does."""
        return _written_by_us(super().get_help_option(ctx))


class Place(NamedTuple):
    """Where a command is, and its line in the help, which is shown without loading it."""

    module: str
    name: str
    help: str


class LazyGroup(Group):
    """The root: its commands are loaded by name, so that `--help` and each command cost what they use."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Place]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.insert(2, output_option())  # beside --db
        self._sections = sections
        self._places = {name: place for section in sections.values() for name, place in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loading its module."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(import_module(place.module), place.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        for title, places in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, place.help) for name, place in places.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without loading them."""
        found = [(name, place.help) for name, place in self._places.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=text) for name, text in found] or click.Command.shell_complete(
            self, ctx, incomplete
        )


def _written_by_us(option: click.Option | None) -> click.Option | None:
    if option is not None:
        option.callback = _show_help
    return option


def _show_help(context: click.Context, option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        from eventlog.cli.output import write_text

        write_text(context.get_help() + "\n")
        context.exit()


def _check_texts(options: Options) -> None:
    for text in options.texts():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput("invalid_text", f"the argument {text!r:.80} is not UTF-8") from None

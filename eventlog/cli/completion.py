"""`eventlog completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from eventlog.cli.app import COMPLETE
from eventlog.cli.commands import Command
from eventlog.cli.output import write_text

__all__ = ["completion"]

SHELLS: Final = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell, as in: source <(eventlog completion bash)."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that are offered"
    script = kind(context.find_root().command, {}, "eventlog", COMPLETE)
    write_text(ShellComplete.source(script))  # bash's own would start a bash to ask for its version

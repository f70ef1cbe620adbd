"""`eventlog signer`: signs heads as a process of its own, for another user than the one who writes the log."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import click

from eventlog.audit.heads.head_file import HeadFile
from eventlog.audit.heads.local_signer import LocalSigner, begin_incarnation
from eventlog.audit.heads.signer_service import SignerService
from eventlog.audit.heads.witness import Witness
from eventlog.cli.commands import Command, Group
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card
from eventlog.cli.rotations import write_statement
from eventlog.cli.wiring import log_to_standard_error
from eventlog.errors import InvalidInput
from eventlog.signing.notes import parse_verifier_key
from eventlog.stores.clock import SystemClock

__all__ = ["signer"]


@click.group("signer", cls=Group, invoke_without_command=True)
@click.option("--key", metavar="FILE", help="The key file.")
@click.option("--heads", metavar="FILE", help="Where the heads are kept; FILE.heads beside the key unless given.")
@click.option("--also", metavar="FILE", multiple=True, help="Another key that signs every head too; may be repeated.")
@click.option("--prefix", metavar="DOMAIN/NAME", help="What names your logs, in front of their ids.")
@click.option("--socket", "path", metavar="PATH", help="The Unix socket to answer at.")
@click.option("--socket-mode", default="660", metavar="OCTAL", help="Who may ask: the rights of the socket (660).")
@click.option("--witness-key", metavar="FILE", help="Cosign heads of other logs with this key.")
@click.option("--witness-name", metavar="NAME", help="The name of that witness.")
@click.option("--log-key", "log_keys", metavar="VKEY", multiple=True, help="A log to cosign; may be repeated.")
@click.pass_obj
@click.pass_context
def signer(
    context: click.Context,
    options: Options,
    /,
    path: str | None,
    key: str | None,
    socket_mode: str,
    **asked: Any,
) -> None:
    """Sign heads for a log that another user writes, who asks at a Unix socket (`--signer unix:PATH`).

    Runs until it is ended (SIGTERM, Ctrl-C). Each refusal is one line on standard error. What is signed goes on from
    what was signed before, whatever the log says; let this user's files be out of reach of the log's.
    """
    if context.invoked_subcommand is not None:
        return
    if key is None or path is None:
        raise click.UsageError("Missing option '--key' or '--socket'.")
    log_to_standard_error(logging.WARNING)
    local = LocalSigner(key, prefix=asked["prefix"], heads_path=asked["heads"], also=asked["also"])
    local.keep_prefix()
    local.last()  # a damaged file of heads is told before anything is served
    witness = _witness(asked["witness_key"], asked["witness_name"], asked["log_keys"])
    service = SignerService(path, local, witness, mode=_mode(socket_mode))
    try:
        _serve(options, service, path)
    finally:
        service.server_close()


@signer.command("begin", cls=Command)
@click.argument("log_id", metavar="LOG_ID")
@click.option("--heads", metavar="FILE", required=True, help="Where the signer keeps its heads.")
@click.pass_obj
def begin(options: Options, log_id: str, heads: str) -> None:
    """Take heads of a restored log, whose new id the restore has printed, and none of the one before any more."""
    if not os.path.exists(heads):
        raise InvalidInput("invalid_argument", f"there is no file of heads at {heads!r}")
    begin_incarnation(HeadFile(heads), _log_id(log_id), at_us=SystemClock().now_us())
    show_card(options, {"heads": heads, "log_id": log_id})


@signer.command("rotate", cls=Command)
@click.option("--key", "old", metavar="OLD", required=True, help="The key file of the key that signs now.")
@click.option("--to", "path", metavar="NEW", required=True, help="The key file of the next one; made if missing.")
@click.option("--heads", metavar="FILE", help="Where the heads are kept, and stay; else they move to NEW.heads.")
@click.option("--statement", metavar="FILE", help="Where to write the statement; NEW.rotation unless given.")
@click.pass_obj
def rotate(options: Options, old: str, path: str, heads: str | None, statement: str | None) -> None:
    """Let another key take the place of this one: write the statement of that, which the old key signs.

    Then run the signer again with `--key NEW --also OLD`; heads that moved are signed by nobody until then. Hand the
    statement to who writes the log, for `eventlog keys rotate --statement FILE`; after that, `--key NEW` is enough.
    May be repeated if it was interrupted.
    """
    facts = write_statement(old, path, heads=heads, statement=statement)
    note(options, f"now run the signer with --key {path} --also {old}{'' if heads is None else f' --heads {heads}'}")
    show_card(options, facts)


def _serve(options: Options, service: SignerService, path: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # `shutdown` waits for the loop that the signal has interrupted: from this thread it would wait for ever.
        signal.signal(number, lambda *_: threading.Thread(target=service.shutdown).start())
    facts = {"socket": path, "heads": service.signer.heads_path, "prefix": service.signer.prefix()}
    witness_key = None if service.witness is None else service.witness.key.to_text()
    show_card(options, {**facts, "public_key": service.signer.public_key.hex(), "witness_key": witness_key})
    note(options, f"answering; ask with --signer unix:{os.path.abspath(path)}")
    service.serve_forever(poll_interval=0.1)


def _witness(key: str | None, name: str | None, log_keys: Sequence[str]) -> Witness | None:
    if key is None:
        if name is not None or log_keys:
            raise click.UsageError("--witness-name and --log-key go with --witness-key.")
        return None
    if name is None or not log_keys:
        raise click.UsageError("--witness-key needs --witness-name and at least one --log-key.")
    return Witness(key, name=name, log_keys=[parse_verifier_key(each) for each in log_keys])


def _mode(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4 or set(text) & set("89") or int(text, 8) > 0o777:
        raise click.UsageError(f"--socket-mode is octal, as 660, not {text!r}.")
    return int(text, 8)


def _log_id(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16 or found.hex() != text:
        raise InvalidInput("invalid_argument", f"{text!r:.60} is no id of a log: those are 32 hex digits")
    return found

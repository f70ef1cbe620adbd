"""`eventlog keys`: the keys that sign the heads of a log, and those of its approvers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click

from eventlog.audit.heads.key_file import heads_beside, make_key_file, read_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.audit.heads.remote_signer import RemoteSigner
from eventlog.cli.commands import Command, Group, Place
from eventlog.cli.log_events import LogStory, append_to_log, read_log_story
from eventlog.cli.options import Options
from eventlog.cli.output import note, show_card, show_rows
from eventlog.cli.rotations import rotate_by_statement, rotate_here
from eventlog.cli.wiring import complete, open_log, signer_of
from eventlog.errors import InvalidInput, StoreUnavailable
from eventlog.events import LogKeyDeclared, LogKeyRevoked
from eventlog.heads import HeadSigner, SignedHead
from eventlog.signing.approver_keys import fold_approver_keys
from eventlog.signing.head_text import check_prefix, open_head
from eventlog.signing.log_keys import LogKey, LogKeys, current_key
from eventlog.signing.notes import VerifierKey
from eventlog.stores import SqliteLog

__all__ = ["find_story", "keys", "name_key"]

_APPROVERS: Final = "eventlog.cli.approver_keys"
_ELSEWHERE: Final[Mapping[str, Place]] = {
    name: Place(_APPROVERS, name, "") for name in ("challenge", "enroll", "revoke")
}
_COLUMNS: Final = {
    "of": "of",
    "name": "name",
    "key_id": "key id",
    "since": "since",
    "until": "until",
    "level": "level",
    "key": "key",
}


class _KeysGroup(Group):
    """The commands about approvers are in a module of their own, which is loaded when one of them is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *_ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loading its module."""
        place = _ELSEWHERE.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(place.module), place.name)
        return command


@click.group("keys", cls=_KeysGroup)
def keys() -> None:
    """The keys: those that sign the heads of the log, and those of its approvers."""


@keys.command("new", cls=Command)
@click.option("--to", "path", metavar="FILE", required=True, help="The new file, for its owner alone.")
@click.option("--prefix", metavar="DOMAIN/NAME", help="What names your logs, in front of their ids.")
@click.pass_obj
def new(options: Options, path: str, prefix: str | None) -> None:
    """Make a key; for a log that has none yet (--db), name it in the log, and sign the first head.

    Give the verifier key that is printed to whoever is to check the log, by another way than the log.
    """
    complete(options, _new(options, path, prefix))


@keys.command("declare", cls=Command)
@click.option("--key", "path", metavar="FILE", help="The key file; else the key of --signer is named.")
@click.pass_obj
def declare(options: Options, path: str | None) -> None:
    """Name a key in a log that has none yet: a new one, or one that was restored, and sign a head.

    With `--signer unix:PATH` the signer says which key it is, and has to sign a head with it first. Compare the
    verifier key that is printed with the one that the signer's operator has: whoever answers at the socket names his.
    """
    if path is None and options.signer is None:
        raise click.UsageError("Missing option '--key' or '--signer'.")
    complete(options, _declare(options, path))


@keys.command("rotate", cls=Command)
@click.option("--key", "old", metavar="OLD", help="The key file of the key that signs now.")
@click.option("--to", "path", metavar="NEW", help="The key file of the next one; made if missing.")
@click.option("--statement", metavar="FILE", help="What `eventlog signer rotate` has written, in place of both.")
@click.pass_obj
def rotate_key(options: Options, old: str | None, path: str | None, statement: str | None) -> None:
    """Let another key sign the heads of the log from now on; the old one signs that, and nothing any more.

    The file of heads moves along. The head that is signed here has both signatures; give `--signer NEW,OLD` as long as
    others are to have both as well. May be repeated if it was interrupted.

    Where the signer is a process of another user, its operator runs `eventlog signer rotate`, lets it sign with both
    keys (`eventlog signer --key NEW --also OLD`), and hands over the statement; give it here with `--statement FILE`
    and `--signer unix:PATH`. Nothing is written unless both have signed the last head.
    """
    if statement is not None:
        if old is not None or path is not None:
            raise click.UsageError("--statement stands for --key and --to.")
        signer = signer_of(options)
        if signer is None:
            raise click.UsageError("Missing option '--signer' (or the environment variable EVENTLOG_SIGNER).")
        complete(options, _rotate_by_statement(options, statement, signer))
    elif old is None or path is None:
        raise click.UsageError("Missing option '--key' or '--to', or '--statement' instead of both.")
    else:
        complete(options, _rotate(options, old, path))


@keys.command("retire", cls=Command)
@click.argument("key", metavar="KEY-ID")
@click.option("--from-size", type=click.IntRange(min=0), required=True, help="The last size that it counts for.")
@click.option("--reason", metavar="TEXT", help="Why; stays in the log for ever.")
@click.pass_obj
def retire(options: Options, key: str, from_size: int, reason: str | None) -> None:
    """Let a log key that was replaced count for no head beyond a size, whenever it was signed."""
    complete(options, _retire(options, key, from_size, reason))


@keys.command("list", cls=Command)
@click.pass_obj
def list_keys(options: Options) -> None:
    """List the keys that the log names: whose they are, and since which position or size they count."""
    complete(options, _list(options))


async def _new(options: Options, path: str, prefix: str | None) -> None:
    if prefix is not None:
        check_prefix(prefix)
    if os.path.lexists(heads_beside(path)):
        raise InvalidInput("invalid_argument", f"{heads_beside(path)!r} holds the heads of another key")
    story = await find_story(options)
    key = make_key_file(path)
    signer = LocalSigner(path, prefix=prefix)
    signer.keep_prefix()
    card: dict[str, Any] = {"path": path, "public_key": key.public.hex(), "prefix": signer.prefix()}
    if story is None:
        note(options, "name it in a log with `eventlog keys declare --key FILE`, and use it with --signer FILE")
        show_card(options, card)
        return
    show_card(options, {**card, **await name_key(options, story, signer)})


async def _declare(options: Options, path: str | None) -> None:
    signer = signer_of(options) if path is None else LocalSigner(path)
    if not isinstance(signer, (LocalSigner, RemoteSigner)):
        raise InvalidInput("invalid_argument", f"a {type(signer).__name__} names no key")
    named = {} if path is None else {"path": path}
    show_card(options, {**named, **await name_key(options, await _require_story(options), signer)})


async def find_story(options: Options) -> tuple[LogStory, bytes] | None:
    """Return what the log says of itself, and its current id; None if no log is named, or there is none yet."""
    if options.db_or_none is None:
        return None
    try:
        async with open_log(options, is_read_only=True) as opened:
            return await read_log_story(opened.log), _current_log_id(opened.log)
    except StoreUnavailable as error:
        if error.code != "store_not_found":
            raise
        return None


async def _require_story(options: Options) -> tuple[LogStory, bytes]:
    found = await find_story(options)
    if found is None:
        raise StoreUnavailable("store_not_found", f"there is no log at {options.db!r}", path=options.db)
    return found


async def name_key(
    options: Options, found: tuple[LogStory, bytes], signer: LocalSigner | RemoteSigner
) -> dict[str, Any]:
    """Name the key in the log, unless it has one, and return what there is to say.

    Raises StoreUnavailable(`signer_unavailable`), and nothing was named, if the signer does not sign with it.
    """
    story, log_id = found
    verifier_key = (await asyncio.to_thread(signer.verifier_keys, log_id))[0]
    facts: dict[str, Any] = {"log_id": log_id.hex(), "verifier_key": verifier_key.to_text()}
    present = [each.key for each in story.keys.keys if each.key.name.endswith(f"/{log_id.hex()}")]
    if present:
        note(options, "the log has named a key already; this one was not named (`eventlog keys rotate`)")
        return {**facts, "declared": verifier_key in present, "signed_size": None}
    async with open_log(options, signer=signer) as opened:
        if isinstance(signer, RemoteSigner):  # whoever answers at a socket has to show that he has the key
            _require_signed_by(verifier_key, await opened.log.sign_head())
        await append_to_log(opened.log, story, LogKeyDeclared(verifier_key=verifier_key.to_text()))
        signed = await opened.log.sign_head()
    return {**facts, "declared": True, "signed_size": None if signed is None else signed.head.size}


def _require_signed_by(verifier_key: VerifierKey, signed: SignedHead | None) -> None:
    if signed is None:
        return  # the log is empty, and the event that names the key is the first that can be signed
    try:
        open_head(signed.note, [verifier_key])
    except InvalidInput as error:
        message = f"the signer does not sign with the key that it names, {verifier_key.to_text()!r}: {error}"
        raise StoreUnavailable("signer_unavailable", f"{message}; nothing was named") from error


async def _rotate(options: Options, old: str, path: str) -> None:
    read_key_file(old)
    show_card(options, await rotate_here(options, await _require_story(options), old, path))


async def _rotate_by_statement(options: Options, statement: str, signer: HeadSigner) -> None:
    show_card(options, await rotate_by_statement(options, await _require_story(options), statement, signer))


async def _retire(options: Options, key: str, from_size: int, reason: str | None) -> None:
    async with open_log(options) as opened:
        story = await read_log_story(opened.log)
        verifier_key = _named(story.keys, key)
        if verifier_key == current_key(story.keys, verifier_key.name):
            raise InvalidInput(
                "invalid_argument", f"{key!r:.120} signs the heads now; let another one take its place first"
            )
        text = verifier_key.to_text()
        event = LogKeyRevoked(verifier_key=text, from_size=from_size, reason=reason)
        position = await append_to_log(opened.log, story, event)
    show_card(options, {"verifier_key": text, "from_size": from_size, "position": position})


def _named(keys: LogKeys, text: str) -> VerifierKey:
    """Return the one log key that has this id or text. Raises InvalidInput(`invalid_argument`)."""
    found = {each.key for each in keys.keys if text in (each.key.key_id.hex(), each.key.to_text())}
    if len(found) != 1:
        raise InvalidInput("invalid_argument", f"the log names {len(found)} keys {text!r:.120}, not one")
    return found.pop()


async def _list(options: Options) -> None:
    async with open_log(options, is_read_only=True) as opened:
        story = await read_log_story(opened.log)
        approvers = fold_approver_keys(story.events, opened.log.facts.log_id_at)
    rows = [_log_row(each) for each in story.keys.keys]
    rows += [
        {
            "of": "approver",
            "name": each.approver,
            "key_id": each.key_id,
            "since": each.enrolled_at,
            "until": each.revoked_at,
            "level": f"L{each.level}",
            "key": f"{each.kind} {each.public.hex()}",
            "reason": None,
        }
        for each in approvers.values()
    ]
    show_rows(options, "keys", rows, _COLUMNS, total=len(rows))
    for problem in story.keys.problems:
        note(options, f"position {problem.position} changes nothing: {problem.why}")


def _log_row(key: LogKey) -> dict[str, Any]:
    return {
        "of": "log",
        "name": key.key.name,
        "key_id": key.key.key_id.hex(),
        "since": key.from_size,
        "until": key.until_size,
        "level": None,
        "key": key.key.to_text(),
        "reason": key.reason,
    }


def _current_log_id(log: SqliteLog) -> bytes:
    return log.facts.log_ids[-1][1]

"""`eventlog head`: the signed head of the log, what it does not cover yet, and proofs."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import click

from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import counted, note, show_card, write_bytes
from eventlog.cli.wiring import check_not_beyond, complete, open_log, signer_of
from eventlog.errors import InvalidInput
from eventlog.heads import SignedHead
from eventlog.merkle import TreeHead
from eventlog.signing.cosignatures import make_growth_request
from eventlog.stores import SqliteLog
from eventlog.times import time_text

__all__ = ["head"]

_SIZE = click.IntRange(min=0)
_POSITION = click.IntRange(min=1)


@click.command("head", cls=Command)
@click.option("--sign", is_flag=True, help="Have the head signed first (--signer).")
@click.option("--at", "size", type=_SIZE, metavar="SIZE", help="Of the first SIZE events, not of all.")
@click.option("--proof", "old", type=_SIZE, metavar="OLD", help="Prove that the log goes on from its first OLD events.")
@click.option("--inclusion", "position", type=_POSITION, metavar="POS", help="Prove that the event is in the log.")
@click.option("--witness-request", "witnessed", type=_SIZE, metavar="OLD", help="Print what to send to a witness.")
@click.pass_obj
def head(
    options: Options, sign: bool, size: int | None, old: int | None, position: int | None, witnessed: int | None
) -> None:
    """Show the last signed head, and whether it covers the log; or a proof (RFC 6962), as base64.

    A witness request is the body of `add-checkpoint` (c2sp.org/tlog-witness) for the last signed head, for a witness
    that has seen the log at size OLD last.
    """
    if sum(each is not None for each in (old, position, witnessed)) + sign > 1:
        raise click.UsageError("Only one of --sign, --proof, --inclusion and --witness-request.")
    if size is not None and (sign or witnessed is not None):
        raise click.UsageError("--at is for a root, --proof and --inclusion.")
    if sign:
        if options.signer is None:
            raise click.UsageError("Missing option '--signer' (or the environment variable EVENTLOG_SIGNER).")
        complete(options, _sign(options))
    elif old is not None:
        complete(options, _prove_growth(options, old, size))
    elif position is not None:
        complete(options, _prove_inclusion(options, position, size))
    elif witnessed is not None:
        complete(options, _ask_witness(options, witnessed))
    else:
        complete(options, _show(options, size))


async def _sign(options: Options) -> None:
    async with open_log(options) as opened:
        signed = await opened.log.sign_head()
        _show_head(options, opened.log, await opened.log.tree_head(), signed, "signer")


async def _show(options: Options, size: int | None) -> None:
    async with open_log(options, is_read_only=True) as opened:
        tree_head = await opened.log.tree_head(await _size(opened.log, size, "--at"))
        signed, where = await _last_signed(options, opened.log, size)
        _show_head(options, opened.log, tree_head, signed, where)


async def _last_signed(options: Options, log: SqliteLog, size: int | None) -> tuple[SignedHead | None, str | None]:
    """Return the newest signed head, and who has it; with a size the one of exactly that size, if there is one.

    Not those of incarnations that a declared restore has ended: they may have been longer.
    """
    found = [(each, "database") for each in await log.signed_heads(after=0 if size is None else max(size - 1, 0))]
    signer = signer_of(options)
    last = None if signer is None else await asyncio.to_thread(signer.last)
    if last is not None:
        found.append((last, "signer"))
    *ended, _ = (log_id for _, log_id in log.facts.log_ids)
    candidates = [
        each for each in found if (each[0].log_id not in ended if size is None else each[0].head.size == size)
    ]
    return max(candidates, key=lambda each: each[0].head.size, default=(None, None))


def _show_head(
    options: Options, log: SqliteLog, tree_head: TreeHead, signed: SignedHead | None, where: str | None
) -> None:
    facts = {"log_id": log.facts.log_id_at(max(tree_head.size, 1)).hex(), **_facts(tree_head)}
    newer = tree_head.size - (0 if signed is None else signed.head.size)
    is_covered = signed is not None and signed.head == tree_head
    card = {
        **facts,
        "signed_size": None if signed is None else signed.head.size,
        "signed_at": None if signed is None else time_text(signed.signed_at_us),
        "signed_by": None if signed is None else where,
        "is_covered": is_covered,
        "newer_events": max(newer, 0),
    }
    lines = [] if signed is None else ["", *signed.note.decode().rstrip("\n").split("\n")]
    document = {**card, "note": None if signed is None else signed.note.decode()}
    show_card(options, card, document=document, extra=lines)
    if signed is not None and newer < 0:
        note(
            options, f"a head of size {signed.head.size} was signed: the log was cut, or an older copy put in its place"
        )
    elif signed is not None and newer == 0 and not is_covered:
        note(options, "the signed head of this size has another root: this is not the log that was signed")
    elif newer > 0:
        note(options, f"{counted(newer, 'event')} not under a signed head")


async def _prove_growth(options: Options, old: int, size: int | None) -> None:
    async with open_log(options, is_read_only=True) as opened:
        log = opened.log
        size = await _size(log, size, "--at")
        if old > size:
            raise InvalidInput("invalid_argument", f"a log of {size} events does not go on from one of {old}")
        old_head, new_head = await log.tree_head(old), await log.tree_head(size)
        proof = _spelled(await log.prove_consistency(old, size))
    facts = {"old_size": old, "old_root": old_head.root.hex(), **_facts(new_head)}
    show_card(options, facts, document={**facts, "proof": proof}, extra=proof)


async def _prove_inclusion(options: Options, position: int, size: int | None) -> None:
    async with open_log(options, is_read_only=True) as opened:
        log = opened.log
        size = await _size(log, size, "--at")
        if position > size:
            raise InvalidInput("invalid_argument", f"a log of {size} events has no event {position}")
        tree_head = await log.tree_head(size)
        proof = _spelled(await log.prove_inclusion(position, size))
        async with aclosing(log.read_all(after=position - 1, limit=1)) as events:
            leaf = (await anext(events)).leaf
    facts = {"position": position, "index": position - 1, "leaf": leaf.hex(), **_facts(tree_head)}
    show_card(options, facts, document={**facts, "proof": proof}, extra=proof)


async def _ask_witness(options: Options, old: int) -> None:
    async with open_log(options, is_read_only=True) as opened:
        signed, _ = await _last_signed(options, opened.log, None)
        if signed is None:
            raise InvalidInput("invalid_argument", "the log has no signed head; sign one with `eventlog head --sign`")
        if old > signed.head.size:
            raise InvalidInput("invalid_argument", f"the signed head of {signed.head.size} does not go on from {old}")
        await check_not_beyond(opened.log, signed.head.size, "the size of the signed head")
        proof = await opened.log.prove_consistency(old, signed.head.size)
    body = make_growth_request(old, proof, signed.note)
    if options.is_json:
        show_card(options, {"old_size": old, "size": signed.head.size, "request": body.decode()})
    else:
        write_bytes(body)


async def _size(log: SqliteLog, size: int | None, argument: str) -> int:
    if size is None:
        return (await log.head()).position
    await check_not_beyond(log, size, argument)
    return size


def _facts(tree_head: TreeHead) -> dict[str, Any]:
    return {"size": tree_head.size, "root": tree_head.root.hex()}


def _spelled(proof: Sequence[bytes]) -> list[str]:
    return [b64encode(each).decode() for each in proof]
